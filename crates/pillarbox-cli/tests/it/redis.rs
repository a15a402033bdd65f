//! The command on a Redis server.

use pillarbox::Mailbox;
use pillarbox::dead_letters::DlqPolicy;
use pillarbox::{Outcome, Runnable, Worker};
use pillarbox_testing::server::{RedisCluster, RedisServer};

use crate::common::{Place, id};

/// A directory, and a server whose URL has a password.
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

    /// Runs the command, which must succeed and not print the password.
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
fn doctor_shows_the_guarantees_of_a_server_and_repairs_damage() {
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
fn an_unreachable_server_is_reported() {
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

#[tokio::test]
async fn dead_letters_are_managed_on_a_server() {
    let scene = Scene::new();
    for n in 0..20 {
        scene.ok(&format!("send orders {{\"n\":{n}}} --attr tenant=acme --reply-to client-7"));
    }
    let backend = pillarbox::open(&scene.url()).await.expect("a backend");
    let orders: Mailbox<serde_json::Value> = backend.mailbox("orders").expect("a mailbox");
    let worker = Worker::new(orders)
        .dead_letters(DlqPolicy::new())
        .handler(|_: serde_json::Value| async { Outcome::reject("no such customer") });
    worker.run_until_empty().await.expect("dead letters");
    backend.close().await;

    let stats = scene.ok("dlq stats orders-dlq");
    assert!(stats.starts_with("orders-dlq: 20 dead letters, 0 replayed before"), "{stats}");
    assert!(stats.contains("no such customer"), "{stats}");
    assert_eq!(scene.ok("dlq list orders-dlq --json --json-path $.n>=15").lines().count(), 5);
    let first = scene.ok("dlq list orders-dlq --json -n 1");
    let id = first.split("\"message_id\":\"").nth(1).and_then(|rest| rest.get(..36));
    let shown = scene.ok(&format!("dlq show orders-dlq {}", id.expect("an id")));
    assert!(shown.contains("attribute       tenant=acme\n"), "{shown}");
    let dry = scene.ok("dlq replay orders-dlq --dry-run --json-path $.n<5");
    assert!(dry.ends_with("5 messages would be replayed to their queues; 15 skipped (no match)\n"));
    let done = scene.ok("dlq replay orders-dlq --json-path $.n<5");
    assert_eq!(done, "5 messages replayed to their queues; 15 skipped (no match)\n");
    let back = scene.ok("dump orders");
    assert_eq!(back.matches("\"pillarbox.replays\":\"1\"").count(), 5, "{back}");
    assert_eq!(back.matches("\"reply_to\":\"client-7\"").count(), 5, "{back}");
    // From a server to a file; the rest is discarded.
    let file = scene.place.url("copy.db");
    let done = scene.ok(&format!("dlq replay orders-dlq -n 5 --to-url {file} --to trial"));
    assert!(done.starts_with(&format!("5 messages replayed to 'trial' at {file}")), "{done}");
    assert_eq!(scene.place.ok(&format!("--url {file} dump trial")).lines().count(), 5);
    assert_eq!(scene.ok("dlq discard orders-dlq --yes"), "10 dead letters discarded\n");
    assert_eq!(scene.ok("dump orders-dlq"), "");
}

/// A queue with partitions on three nodes is one queue to every command.
#[test]
fn a_queue_with_partitions_on_a_cluster_is_one_queue() {
    let cluster = RedisCluster::builder().replicas(0).start();
    let place = Place::new();
    let ok = |line: &str| {
        let line = format!("--url {} {line}", cluster.url());
        let run = place.run(&line);
        assert_eq!(run.code, 0, "{line}: {run:?}");
        run.stdout
    };
    for n in 0..10 {
        ok(&format!("send orders early-{n}"));
    }
    assert_eq!(ok("partitions orders"), "1 partition\n");
    assert_eq!(ok("partitions orders 6"), "6 partitions\n");
    let lines: String = (0..290).map(|n| format!("{{\"n\":{n}}}\n")).collect();
    std::fs::write(place.path().join("lines.jsonl"), lines).expect("a file");
    ok("send orders --file lines.jsonl --group everything");
    for n in 0..30 {
        ok(&format!("send orders late-{n} --group customer-{n}"));
    }
    let by_node = cluster.keys_by_node("*:data");
    assert!(by_node.iter().all(|keys| *keys > 0), "{by_node:?}");

    let stats = ok("--json stats orders");
    assert!(stats.contains("\"ready\":330"), "{stats}");
    assert_eq!(ok("dump orders").lines().count(), 330);
    assert_eq!(ok("peek orders --max 1000 --json").lines().count(), 330);
    assert_eq!(ok("--json queues").lines().count(), 1);
    let doctor = ok("doctor");
    assert!(doctor.contains("redis-cluster://") && doctor.contains("has no replica"), "{doctor}");

    // Fewer partitions: messages in removed partitions are received first.
    let fewer = ok("partitions orders 2");
    let removed = "2 partitions, and 4 removed ones that are received from until they are empty\n";
    assert_eq!(fewer, removed);
    let received = ok("receive orders --max 5 --json --visibility 1s");
    assert!(received.lines().count() > 0, "{received}");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    ok(&format!("move orders {} other", cluster.url()));
    assert_eq!(ok("--json dump other").lines().count(), 330);
    assert!(ok("--json stats orders").contains("\"ready\":0"));
    // Empty removed partitions are dropped by a receive.
    let start = std::time::Instant::now();
    while !ok("--json partitions orders").contains("\"received_from\":2") {
        assert!(start.elapsed().as_secs() < 20, "{}", ok("partitions orders"));
        place.run(&format!("--url {} receive orders", cluster.url()));
    }
    assert!(ok("purge other --yes").contains("330 messages deleted"));

    let refused = place.run("--url sqlite:here.db send q x");
    assert_eq!(refused.code, 0, "{refused:?}");
    let refused = place.run("--url sqlite:here.db partitions q 3");
    assert!(refused.code == 2 && refused.stderr.contains("has no partitions"), "{refused:?}");
    let refused = place.run(&format!("--url {} partitions orders 5000", cluster.url()));
    assert!(refused.code == 2 && refused.stderr.contains("1000"), "{refused:?}");
    assert_eq!(place.run("--url sqlite:here.db partitions q").stdout, "1 partition\n");
}

#[test]
fn a_queue_that_cannot_be_counted_does_not_hide_the_others() {
    let scene = Scene::new();
    scene.ok("send orders one");
    scene.ok("send mail two");
    scene.ok("send broken three");
    scene.server.command(&["DEL", "{queue:broken}:pending"]);
    scene.server.command(&["SET", "{queue:broken}:pending", "a text"]);
    for (line, others) in [
        ("stats", vec!["orders", "mail"]),
        (
            "stats --json",
            vec!["\"queue\":\"orders\",\"ready\":1", "\"queue\":\"mail\",\"ready\":1"],
        ),
        ("stats broken mail", vec!["mail"]),
    ] {
        let run = scene.place.run(&format!("--url {} {line}", scene.url()));
        assert_eq!(run.code, 1, "{line}: {run:?}");
        assert!(others.iter().all(|queue| run.stdout.contains(queue)), "{line}: {run:?}");
        assert!(!run.stdout.contains("broken"), "{line}: {run:?}");
        assert!(run.stderr.contains("'broken'"), "{line}: {run:?}");
        assert_eq!(run.stderr.matches("error:").count(), 1, "{line}: {run:?}");
    }
    // If no queue can be counted, the error of the server is printed once.
    let port = scene.server.port();
    drop(scene.server);
    let run = scene.place.run(&format!("stats a b c --url redis://127.0.0.1:{port}?retry_for=0.2"));
    assert_eq!((run.code, run.stderr.matches("error:").count()), (1, 1), "{run:?}");
}

#[test]
fn unreadable_dead_letters_do_not_hide_those_of_other_queues() {
    let scene = Scene::new();
    for queue in ["orders-dlq", "broken-dlq"] {
        scene.ok(&format!("send {queue} one"));
    }
    scene.server.command(&["DEL", "{queue:broken-dlq}:pending"]);
    scene.server.command(&["SET", "{queue:broken-dlq}:pending", "a text"]);
    let run = scene.place.run(&format!("--url {} dlq stats", scene.url()));
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stdout.contains("orders-dlq") && run.stderr.contains("'broken-dlq'"), "{run:?}");
}

/// The server has lost its messages.
#[test]
fn a_move_from_a_server_that_lost_its_messages_reports_only_what_it_knows() {
    let scene = Scene::new();
    scene.ok("send orders one");
    scene.ok("send orders two --delay 1h");
    let copy = scene.place.url("copy.db");
    let line = format!("--url {} move orders {copy} orders --follow", scene.url());
    let child = scene.place.start(&line);
    crate::common::eventually("the first is moved", || {
        scene.place.run(&format!("--url {copy} stats --json")).stdout.contains("\"ready\":1")
    });
    scene.server.command(&["FLUSHALL"]);
    crate::common::signal(&child, "INT");
    let run = crate::common::finish(child);
    assert_eq!(run.code, 130, "{run:?}");
    assert!(!run.stderr.contains("nothing is lost"), "{run:?}");
    assert!(run.stderr.contains("no message was deleted before the destination had it"), "{run:?}");
}
