//! `pillarbox move`, `drain` and `load`: killed, interrupted, concurrent.

#![cfg(unix)]

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use crate::common::{Place, eventually, finish, id, lines, signal, time};
use pillarbox::Mailbox;
use serde_json::{Value, json};

/// Returns the invariant fields of each message, by id. Fails if an id occurs twice.
fn messages(dump: &str) -> BTreeMap<String, Value> {
    let mut messages = BTreeMap::new();
    for line in lines(dump) {
        let kept = ["body", "body_encoding", "attributes", "reply_to", "enqueued_at"];
        let kept = kept.map(|field| line[field].clone());
        let twice = messages.insert(line["id"].as_str().unwrap().to_owned(), kept.to_vec().into());
        assert!(twice.is_none(), "twice: {line}");
    }
    messages
}

fn fill(place: &Place, queue: &str, number: u32) -> BTreeMap<String, Value> {
    let mut lines = String::new();
    for n in 0..number {
        let line = json!({"id": id(n), "body": {"n": n}, "enqueued_at": time(-i64::from(n)),
            "reply_to": format!("r{n}"), "attributes": {"n": n.to_string()}});
        lines += &format!("{line}\n");
    }
    place.ok_with_input(&format!("load {queue}"), lines);
    let messages = messages(&place.ok(&format!("dump {queue}")));
    assert_eq!(messages.len(), number as usize);
    messages
}

/// Kills the command in the middle, whenever some more messages have arrived.
#[tokio::test]
async fn a_move_that_is_killed_20_times_loses_and_duplicates_nothing() {
    let place = Place::new();
    let before = fill(&place, "jobs", 12_000);
    let target = pillarbox::open(&place.url("other.db")).await.unwrap();
    let arrived: Mailbox<Value> = target.mailbox("jobs").unwrap();
    let (mut kills, mut both) = (0u64, 0);
    while kills < 20 {
        let seen = arrived.approximate_count().await.unwrap();
        let mut child = place.start("move jobs sqlite:other.db jobs --visibility 1s");
        while arrived.approximate_count().await.unwrap() == seen {
            assert!(child.try_wait().unwrap().is_none(), "it ended: {:?}", finish(child));
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        // At a different point each time.
        tokio::time::sleep(Duration::from_micros(kills * 150)).await;
        signal(&child, "KILL");
        let run = finish(child);
        // Each message is in one of the queues, or for a moment in both.
        let here = messages(&place.ok("dump jobs"));
        let there = messages(&place.ok("--url sqlite:other.db dump jobs"));
        assert!(before.keys().all(|id| here.contains_key(id) || there.contains_key(id)));
        if run.code == -1 {
            kills += 1;
            both += here.keys().filter(|id| there.contains_key(*id)).count();
        } else {
            assert_eq!(run.code, 0, "{run:?}");
        }
        if there.len() == before.len() {
            // The machine was busy and the move almost done: move everything back.
            place.ok("--url sqlite:other.db move jobs sqlite:pillarbox.db jobs");
        }
    }
    let last = place.ok("move jobs sqlite:other.db jobs --visibility 1s");
    assert!(last.ends_with("none remaining\n"), "{last}");
    assert_eq!(place.ok("dump jobs"), "");
    assert_eq!(messages(&place.ok("--url sqlite:other.db dump jobs")), before);
    println!("{kills} kills, {both} messages were at both places when one came");
}

#[test]
fn two_moves_of_a_queue_share_the_work() {
    let place = Place::new();
    let before = fill(&place, "jobs", 5_000);
    let movers = [(); 2].map(|()| place.start("move jobs sqlite:other.db jobs"));
    for run in movers.map(finish) {
        assert_eq!(run.code, 0, "{run:?}");
    }
    assert_eq!(place.ok("dump jobs"), "");
    assert_eq!(messages(&place.ok("--url sqlite:other.db dump jobs")), before);
}

#[test]
fn order_is_kept() {
    let place = Place::new();
    fill(&place, "jobs", 3_000);
    place.ok("move jobs sqlite:other.db jobs");
    let dump = place.ok("--url sqlite:other.db dump jobs");
    let order: Vec<_> =
        lines(&dump).iter().map(|line| line["body"]["n"].as_u64().unwrap()).collect();
    assert_eq!(order, (0..3_000).collect::<Vec<_>>());
}

/// By any URL: acknowledging the "copied" messages would delete them.
#[test]
fn a_queue_is_not_moved_onto_itself() {
    let place = Place::new();
    let before = fill(&place, "jobs", 10);
    std::os::unix::fs::symlink(place.path().join("pillarbox.db"), place.path().join("link.db"))
        .unwrap();
    for url in ["sqlite:pillarbox.db", "sqlite:./pillarbox.db?synchronous=normal", "sqlite:link.db"]
    {
        let run = place.run(&format!("move jobs {url} jobs"));
        assert_eq!(run.code, 2, "{url}: {run:?}");
        assert!(run.stderr.contains("the same queue"), "{url}: {run:?}");
        assert_eq!(messages(&place.ok("dump jobs")), before, "{url}");
        assert!(place.ok("stats jobs --json").contains("\"ready\":10,"), "{url}");
    }
}

#[test]
fn messages_in_flight_or_delayed_are_waited_for() {
    let place = Place::new();
    place.ok("send jobs 1");
    place.ok("send jobs 2 --delay 700ms");
    place.ok("receive jobs --visibility 900ms");
    let moved = place.ok("move jobs sqlite:other.db jobs --json");
    let expected = "\"moved\":2,\"renamed\":0,\"refused\":0,\"duplicates\":0,\"remaining\":0";
    assert!(moved.contains(expected), "{moved}");
}

#[test]
fn an_interrupted_move_finishes_its_batch_and_explains_how_to_continue() {
    let place = Place::new();
    place.ok("send jobs 1");
    place.ok("send jobs 2 --delay 1h");
    let child = place.start("move jobs sqlite:other.db jobs");
    eventually("the first was moved", || {
        place.run("--url sqlite:other.db stats --json").stdout.contains("\"ready\":1")
    });
    signal(&child, "INT");
    let run = finish(child);
    assert_eq!(run.code, 130, "{run:?}");
    assert_eq!(run.stdout, "1 message moved to 'jobs' at sqlite:other.db; 1 remaining\n");
    assert!(run.stderr.contains("run the same command again"), "{run:?}");
    assert!(place.ok("stats jobs --json").contains("\"in_flight\":0,\"delayed\":1"));
}

#[test]
fn follow_moves_later_messages() {
    let place = Place::new();
    place.ok("send jobs 1");
    let child = place.start("move jobs sqlite:other.db jobs --follow");
    for number in 2..5 {
        eventually("what was sent is moved", || {
            let count = place.run("--url sqlite:other.db stats --json").stdout;
            count.contains(&format!("\"ready\":{},", number - 1))
        });
        place.ok(&format!("send jobs {number}"));
    }
    eventually("the last is moved", || place.ok("stats jobs --json").contains("\"ready\":0"));
    signal(&child, "TERM");
    assert_eq!(finish(child).code, 130);
}

#[test]
fn if_the_target_fails_the_messages_stay() {
    let place = Place::new();
    let bodies: String = (0..300).map(|n| format!("\"{n} {}\"\n", "x".repeat(3000))).collect();
    place.ok_with_input("send jobs --file -", bodies);
    let before = messages(&place.ok("dump jobs"));
    // A limit on the size of files that only the target reaches: the source shrinks, and its log is short.
    let limit = "ulimit -f 160; trap '' XFSZ";
    let run = place.shell(&format!("{limit}; exec pillarbox move jobs sqlite:other.db jobs"));
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("cannot send on queue 'jobs'"), "{run:?}");
    assert!(run.stderr.contains("run the same command again"), "{run:?}");
    let there = messages(&place.ok("--url sqlite:other.db dump jobs"));
    let here = messages(&place.ok("dump jobs"));
    assert!(!here.is_empty() && !there.is_empty(), "{} here, {} there", here.len(), there.len());
    assert!(before.keys().all(|id| here.contains_key(id) || there.contains_key(id)));
    assert!(run.stdout.contains(&format!("{} remaining", here.len())), "{run:?}");
    place.ok("move jobs sqlite:other.db jobs --visibility 1s");
    assert_eq!(messages(&place.ok("--url sqlite:other.db dump jobs")), before);
}

/// Returns a field of all bodies of a queue, sorted.
fn numbers(place: &Place, queue: &str, field: &str) -> Vec<u64> {
    let dump = lines(&place.ok(&format!("dump {queue}")));
    let number = |line: &Value| line["body"][field].as_u64().unwrap_or_else(|| panic!("{line}"));
    let mut numbers: Vec<_> = dump.iter().map(number).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn messages_of_two_queues_with_the_same_id_are_both_moved() {
    let place = Place::new();
    place.ok("send emails \"mail\" --key 4711");
    place.ok("send invoices \"invoice\" --key 4711");
    place.ok("move emails sqlite:other.db all");
    let run = place.run("move invoices sqlite:other.db all --json");
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.stdout.contains("\"moved\":1,\"renamed\":1,"), "{run:?}");
    assert!(run.stderr.contains("with a new id"), "{run:?}");
    let dump = place.ok("--url sqlite:other.db dump all");
    assert!(dump.contains("\"mail\"") && dump.contains("\"invoice\""), "{dump}");
    assert_eq!(messages(&dump).len(), 2);

    // A message that is moved again after a kill before the acknowledgement is stored once.
    place.ok("send invoices \"late\" --key 4712");
    let before = place.ok("dump invoices");
    place.ok("move invoices sqlite:other.db all");
    place.ok_with_input("load invoices", before);
    place.ok("move invoices sqlite:other.db all");
    assert_eq!(messages(&place.ok("--url sqlite:other.db dump all")).len(), 3);
}

/// A message is written before it is acknowledged, so `load` may find it in the queue.
#[test]
fn a_queue_can_be_drained_into_itself() {
    for edit in ["", "| sed 's/\"n\":/\"m\":/2' "] {
        let place = Place::new();
        fill(&place, "jobs", 1_000);
        let run = place.shell(&format!("pillarbox drain jobs {edit}| pillarbox load jobs"));
        assert_eq!(run.code, 0, "{run:?}");
        let field = if edit.is_empty() { "n" } else { "m" };
        assert_eq!(numbers(&place, "jobs", field), (0..1_000).collect::<Vec<_>>(), "{run:?}");
        assert!(place.ok("stats jobs --json").contains("\"ready\":1000,"), "{run:?}");
    }
}

#[test]
fn acknowledged_messages_can_be_loaded_into_the_same_queue() {
    let place = Place::new();
    fill(&place, "jobs", 300);
    let receive = "pillarbox receive jobs --ack --json --max 300";
    let run = place.shell(&format!("{receive} | pillarbox load jobs"));
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(numbers(&place, "jobs", "n"), (0..300).collect::<Vec<_>>(), "{run:?}");
}

/// Starts `drain | load` on one queue, and waits until the drain has started.
fn drain_into_itself(place: &Place) -> [std::process::Child; 2] {
    let mut drain = place.start("drain jobs --visibility 2s");
    let output = Stdio::from(drain.stdout.take().unwrap());
    let load = place.command(["load", "jobs"]).stdin(output).spawn().unwrap();
    eventually("the drain has begun", || {
        !place.ok("stats jobs --json").contains("\"in_flight\":0,")
    });
    [drain, load]
}

/// Messages that the killed process had written and not acknowledged come back when their leases expire; the
/// incomplete line is not a message.
#[test]
fn a_killed_drain_into_the_same_queue_loses_and_duplicates_nothing() {
    for wait in [0, 20, 60] {
        let place = Place::new();
        fill(&place, "jobs", 10_000);
        let [drain, load] = drain_into_itself(&place);
        std::thread::sleep(Duration::from_millis(wait));
        signal(&drain, "KILL");
        let runs = [drain, load].map(finish);
        eventually("leases have expired", || {
            place.ok("stats jobs --json").contains("\"in_flight\":0")
        });
        assert_eq!(numbers(&place, "jobs", "n"), (0..10_000).collect::<Vec<_>>(), "{runs:?}");
    }
}

/// Both processes are interrupted, as by Ctrl+C on a terminal.
#[test]
fn an_interrupted_drain_into_the_same_queue_loses_and_duplicates_nothing() {
    let place = Place::new();
    fill(&place, "jobs", 10_000);
    let [drain, load] = drain_into_itself(&place);
    signal(&load, "INT");
    signal(&drain, "INT");
    let runs = [drain, load].map(finish);
    assert_eq!(numbers(&place, "jobs", "n"), (0..10_000).collect::<Vec<_>>(), "{runs:?}");
}

#[test]
fn an_invalid_line_of_a_pipe_does_not_affect_others() {
    let place = Place::new();
    let lines = "{\"body\":{\"n\":0}}\n{\"bo\n{\"body\":{\"n\":1}}\n{\"body\":{\"n\":2}";
    let run = place.run_with_input("load jobs", lines);
    assert_eq!((run.code, run.stdout.as_str()), (1, "2 messages loaded\n"), "{run:?}");
    assert!(run.stderr.contains("line 2 of standard input"), "{run:?}");
    assert!(run.stderr.contains("line 4 of standard input"), "{run:?}");
    assert_eq!(numbers(&place, "jobs", "n"), [0, 1]);
}

#[test]
fn two_moves_in_opposite_directions_lose_and_duplicate_nothing() {
    let place = Place::new();
    fill(&place, "a", 500);
    let url = place.url("pillarbox.db");
    for round in 0..4 {
        // Both queues are in one file, where conflicts are most likely.
        let moves = [("b", "a"), ("a", "b")].map(|(from, to)| {
            place.start(&format!("move {from} {url} {to} --follow --visibility 5s"))
        });
        std::thread::sleep(Duration::from_millis(700 + 130 * round));
        let runs = moves.map(|child| {
            signal(&child, "INT");
            finish(child)
        });
        assert!(runs.iter().all(|run| run.code == 130), "round {round}: {runs:?}");
        let mut all = numbers(&place, "a", "n");
        all.extend(numbers(&place, "b", "n"));
        all.sort_unstable();
        assert_eq!(all, (0..500).collect::<Vec<_>>(), "round {round}: {runs:?}");
    }
}

/// Lines of a pipe may exist nowhere else.
#[test]
fn lines_of_a_pipe_that_cannot_be_stored_are_saved() {
    let place = Place::new();
    fill(&place, "jobs", 3_000);
    let script =
        "pillarbox drain jobs | pillarbox load jobs -u 'redis://127.0.0.1:1/?retry_for=1ms'";
    let run = place.shell(script);
    assert_eq!(run.code, 1, "{run:?}");
    let (_, name) = run.stderr.split_once("saved in ").unwrap_or_else(|| panic!("{run:?}"));
    let (name, _) = name.split_once(':').unwrap();
    let loaded = place.ok(&format!("load jobs {name}"));
    assert!(loaded.ends_with("loaded\n"), "{loaded}");
    assert_eq!(numbers(&place, "jobs", "n"), (0..3_000).collect::<Vec<_>>(), "{run:?}");
}

#[test]
fn nothing_is_received_or_dumped_without_an_output() {
    let place = Place::new();
    fill(&place, "jobs", 10);
    for command in ["receive jobs --ack", "receive jobs --json", "dump jobs"] {
        let run = place.shell(&format!("pillarbox {command} >&-"));
        assert_eq!(run.code, 2, "{command}: {run:?}");
        assert!(place.ok("stats jobs --json").contains("\"ready\":10,"), "{command}: {run:?}");
    }
    let run = place.shell("pillarbox receive jobs --ack > /dev/null");
    assert_eq!(run.code, 0, "what is thrown away on purpose: {run:?}");
}

#[test]
fn a_drain_whose_reader_ends_is_an_error() {
    let place = Place::new();
    fill(&place, "jobs", 5_000);
    let run = place.shell("pillarbox drain jobs | head -1");
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("written and acknowledged"), "{run:?}");
}
