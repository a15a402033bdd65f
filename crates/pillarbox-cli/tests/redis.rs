//! The command on a real server.

mod common;

use pillarbox_testing::server::RedisServer;

use crate::common::{Place, id};

/// A directory, and a server whose URL has a password in it.
struct Scene {
    place: Place,
    server: RedisServer,
}

const PASSWORD: &str = "open-sesame";

impl Scene {
    fn new() -> Self {
        let server = RedisServer::builder().appendonly("always").password(PASSWORD).start();
        Self { place: Place::new(), server }
    }

    fn url(&self) -> String {
        format!("redis://:{PASSWORD}@127.0.0.1:{}", self.server.port())
    }

    /// Runs the command, which must succeed and tell no password.
    #[track_caller]
    fn ok(&self, line: &str) -> String {
        let line = format!("--url {} {line}", self.url());
        let run = self.place.run(&line);
        assert_eq!(run.code, 0, "{line}: {run:?}");
        assert!(!format!("{run:?}").contains(PASSWORD), "{run:?}");
        run.stdout
    }
}

#[test]
fn every_command_works_on_a_server() {
    let scene = Scene::new();
    scene.ok("send orders one --attr tenant=acme");
    scene.ok("send orders two");
    scene.ok("send orders later --delay 1h");
    assert!(scene.ok("queues").contains("orders"));
    let stats = scene.ok("--json stats orders");
    assert!(stats.contains("\"ready\":2") && stats.contains("\"delayed\":1"), "{stats}");
    let peeked = scene.ok("peek orders");
    assert!(peeked.contains("one") && peeked.contains("later"), "{peeked}");

    let received = scene.ok("--json receive orders --visibility 1m");
    let receipt = received.split("\"receipt\":\"").nth(1).expect("a receipt");
    let receipt = receipt.split('"').next().expect("its end").to_owned();
    scene.ok(&format!("extend orders {receipt} 2m"));
    scene.ok(&format!("ack orders {receipt}"));
    let late = scene.place.run(&format!("--url {} nack orders {receipt}", scene.url()));
    assert!(late.code != 0 && late.stderr.contains("no longer valid"), "{late:?}");

    let dumped = scene.ok("dump orders");
    assert_eq!(dumped.lines().count(), 2, "{dumped}");
    let file = scene.place.url("copy.db");
    scene.ok(&format!("move orders {file} copies --no-wait"));
    assert!(scene.place.ok(&format!("--url {file} --json stats copies")).contains("\"ready\":1"));
    let back = scene.url();
    scene.place.ok(&format!("--url {file} move copies {back} again --no-wait"));
    assert_eq!(scene.ok("drain again").lines().count(), 1);
    assert!(scene.ok("purge orders --yes").contains('1'));
    let bench = scene.ok("bench --duration 200ms --callers 4");
    assert!(bench.contains("/s"), "{bench}");
}

#[test]
fn doctor_says_what_the_server_promises_and_repairs_what_was_broken_by_hand() {
    let scene = Scene::new();
    scene.ok("send orders one");
    let said = scene.ok("doctor");
    for part in ["Redis", "on the server's disk", "queues"] {
        assert!(said.contains(part), "{said}");
    }
    scene.server.command(&["DEL", "{queue:orders}:pending"]);
    let line = format!("--url {} doctor", scene.url());
    let found = scene.place.run(&line);
    assert!(found.code != 0, "{found:?}");
    assert!(found.stdout.contains("neither ready nor in flight"), "{found:?}");
    scene.ok("doctor --fix");
    scene.ok("doctor");
    assert!(scene.ok("receive orders").contains("one"));
}

#[test]
fn a_server_that_is_not_there_is_said_to_be_so() {
    let scene = Scene::new();
    let port = scene.server.port();
    let password = format!("--url redis://:wrong-{PASSWORD}@127.0.0.1:{port} queues");
    let run = scene.place.run(&password);
    assert!(run.code != 0 && run.stderr.contains("password"), "{run:?}");
    assert!(!run.stderr.contains(PASSWORD), "{run:?}");
    drop(scene.server);
    let run = scene.place.run(&format!("--url redis://127.0.0.1:{port}?retry_for=0.2 queues"));
    assert!(run.code != 0 && run.stderr.contains("is it running there?"), "{run:?}");
}

#[test]
fn messages_keep_their_ids_on_a_server() {
    let scene = Scene::new();
    let place = Place::new().with_orders();
    place.ok(&format!("move orders {} orders --no-wait", scene.url()));
    let peeked = scene.ok("--json peek orders");
    assert!(peeked.contains(&id(1)) && peeked.contains(&id(2)), "{peeked}");
}
