//! The command on a server with the SQS API.
#![cfg(feature = "sqs")]

use pillarbox_testing::server::{SqsFlavour, SqsServer};

use crate::common::{Place, Run, finish};

struct Scene {
    place: Place,
    server: SqsServer,
}

impl Scene {
    fn new() -> Self {
        Self { place: Place::new(), server: SqsServer::start(SqsFlavour::Moto) }
    }

    fn url(&self) -> String {
        format!("{}/shop-?create=true&poll=1", self.server.url())
    }

    /// Runs the command with the URL in the environment.
    fn run(&self, line: &str) -> Run {
        let mut command = self.place.command(line.split_whitespace());
        finish(command.env("PILLARBOX_URL", self.url()).spawn().expect("the command"))
    }

    #[track_caller]
    fn ok(&self, line: &str) -> String {
        let run = self.run(line);
        assert_eq!(run.code, 0, "{line}: {run:?}");
        run.stdout
    }

    #[track_caller]
    fn refused(&self, line: &str, with: &str) {
        let run = self.run(line);
        assert!(run.code != 0 && run.stderr.contains(with), "{line}: {run:?}");
    }
}

#[test]
fn commands_work_on_sqs_or_explain_why_not() {
    let scene = Scene::new();
    scene.ok("send orders one --attr tenant=acme");
    scene.ok("send orders two");
    scene.ok("send orders later --delay 10m");
    assert_eq!(scene.ok("queues"), "orders\n");
    let stats = scene.ok("--json stats orders");
    assert!(stats.contains("\"ready\":2") && stats.contains("\"delayed\":1"), "{stats}");
    scene.refused("peek orders", "not possible on sqs; allowed: receive instead");
    scene.refused("send orders never --delay 16m", "allowed: 0 to 900 s");

    let received = scene.ok("--json receive orders --visibility 1m");
    let receipt = received.split("\"receipt\":\"").nth(1).expect("a receipt");
    let receipt = receipt.split('"').next().expect("its end").to_owned();
    scene.ok(&format!("extend orders {receipt} 2m"));
    scene.ok(&format!("ack orders {receipt}"));
    scene.refused("nack orders made-up", "no longer valid");

    let file = scene.place.url("copy.db");
    scene.ok(&format!("move orders {file} copies --no-wait"));
    assert!(scene.place.ok(&format!("--url {file} --json stats copies")).contains("\"ready\":1"));
    let back = scene.url();
    scene.place.ok(&format!("--url {file} move copies {back} again --no-wait"));
    // From one SQS queue to another, but not onto itself, by any URL.
    scene.refused(
        &format!("move again {}/shop-?poll=1 again --no-wait", scene.server.url()),
        "the same queue",
    );
    scene.ok(&format!("move again {back} twice --no-wait"));
    assert_eq!(scene.ok("drain twice").lines().count(), 1);
    assert!(scene.ok("purge orders --yes").contains("1 message deleted"));
    scene.refused("purge orders --yes", "was purged less than 60 s ago");
    let said = scene.ok("doctor");
    for part in ["sqs", "http://127.0.0.1", "shop-", "several machines"] {
        assert!(said.contains(part), "{said}");
    }
    // Reading creates no queue.
    scene.refused("stats nothing", "there is no 'shop-nothing'");
    let nothing = scene.run("receive nothing");
    assert!(
        nothing.stdout.is_empty() && nothing.stderr.contains("nothing received"),
        "{nothing:?}"
    );
    assert_eq!(nothing.code, scene.run("receive twice").code, "{nothing:?}");
    assert_eq!(scene.ok("queues"), "again\norders\ntwice\n");
}

#[test]
fn groups_and_deduplication_ids_are_sent_to_fifo_queues() {
    let scene = Scene::new();
    for body in ["first", "second"] {
        scene.ok(&format!("send orders.fifo {body} --group customer-7 --deduplication order-1"));
    }
    let received = scene.ok("--json receive orders.fifo --max 10");
    assert_eq!(received.lines().count(), 1, "{received}");
    assert!(received.contains("first") && received.contains("customer-7"), "{received}");
}

#[test]
fn messages_can_be_moved_to_a_fifo_queue_and_back() {
    let scene = Scene::new();
    scene.ok("send jobs.fifo one --group a --deduplication invoice-1");
    for (from, to) in
        [("jobs.fifo", "park.fifo"), ("park.fifo", "jobs.fifo"), ("jobs.fifo", "park.fifo")]
    {
        scene.ok(&format!("move {from} {} {to}", scene.url()));
    }
    assert!(scene.ok("--json receive park.fifo").contains("one"));
}

#[test]
fn redrive_is_shown_and_set() {
    let scene = Scene::new();
    scene.ok("send orders poison");
    scene.ok("send dead x");
    let none = "none: messages stay in the queue however often they are delivered\n";
    assert_eq!(scene.ok("redrive orders"), none);
    assert_eq!(scene.ok("redrive orders --to dead --after 5"), "to 'dead' after 5 deliveries\n");
    let shown = "{\"queue\":\"orders\",\"to\":\"dead\",\"max_deliveries\":5}\n";
    assert_eq!(scene.ok("--json redrive orders"), shown);
    assert!(scene.ok("doctor").contains("orders → dead after 5 deliveries"));
    assert_eq!(scene.ok("redrive orders --off"), none);
    scene.refused("redrive orders --to nowhere --after 5", "there is no 'shop-nowhere'");

    // Other backends have no redrive policy.
    let file = scene.place.url("here.db");
    scene.place.ok(&format!("--url {file} send orders x"));
    assert_eq!(scene.place.ok(&format!("--url {file} redrive orders")), none);
    let refused = scene.place.run(&format!("--url {file} redrive orders --to dead --after 5"));
    assert!(refused.stderr.contains("not possible on sqlite"), "{refused:?}");
}

#[test]
fn dead_letters_of_the_demo_are_replayed_on_sqs() {
    let scene = Scene::new();
    let demo = scene.ok("demo --tasks 20 --fast");
    assert!(demo.contains("demo-dlq"), "{demo}");
    let replayed = scene.ok("dlq replay demo-dlq --yes");
    assert!(!replayed.is_empty());
}
