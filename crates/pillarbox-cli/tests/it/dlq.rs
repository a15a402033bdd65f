//! `pillarbox dlq`: output, changes, and what is left unchanged.

#![cfg(unix)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Child;
use std::time::{Duration, Instant};

use crate::common::{
    DAY, HOUR, Place, eventually, finish, id, lines, signal, time, until_it_listens,
};
use pillarbox::dead_letters::DlqPolicy;
use pillarbox::{Mailbox, MessageId, SendOptions, Timestamp};
use pillarbox::{Outcome, Runnable, Worker};
use pillarbox_testing::server::RedisServer;
use serde_json::{Value, json};

/// Returns the stored form of a dead letter. Its age is some days and half an hour, or ten hours, so that the seconds
/// that a test takes are not shown.
fn letter(number: u32, days: i64, with: &Value) -> Value {
    let age = if days == 0 { 10 * HOUR } else { days * DAY + HOUR / 2 };
    let mut letter = json!({
        "message_id": id(number), "source_mailbox": "orders", "delivery_count": 5,
        "last_error": "?", "last_error_type": "shop::Error", "failure": "error", "error_chain": [],
        "dead_lettered_at": time(-age), "sent_at": time(-age - HOUR), "first_received_at": time(-age - HOUR / 2),
        "request_id": null, "reply_to": null, "trace_id": null, "worker": "orders/1@host:4711",
        "replay_count": 0, "replayed_at": null, "attributes": {}, "body_encoding": "json", "body": {},
    });
    for (name, value) in with.as_object().unwrap() {
        letter[name] = value.clone();
    }
    letter
}

fn load(place: &Place, queue: &str, letters: impl IntoIterator<Item = (String, Value)>) {
    let mut lines = String::new();
    for (id, letter) in letters {
        let line = json!({"id": id, "body": letter, "enqueued_at": time(-10 * HOUR)});
        lines += &format!("{line}\n");
    }
    place.ok_with_input(&format!("load {queue}"), lines);
}

/// Four dead letters of different kinds and ages in `orders-dlq`, with the ids 101 to 104, and a message that is not a
/// dead letter.
fn with_letters() -> Place {
    let place = Place::new();
    let letters = [
        letter(
            1,
            3,
            &json!({"last_error": "no lamp 17 left", "last_error_type": "shop::OutOfStock",
                "error_chain": ["the warehouse\nis closed", "Connection reset \u{1b}[2J"],
                "reply_to": "client-7", "attributes": {"tenant": "acme", "trace": "a=b"},
                "request_id": id(77), "trace_id": "0af7651916cd43dd8448eb211c80319c",
                "body": {"customer": {"id": 42}, "tenant": "acme", "amount": 150, "items": [{"sku": "A"}]}}),
        ),
        letter(
            2,
            2,
            &json!({"last_error": "no lamp 4 left", "last_error_type": "shop::OutOfStock",
                "replay_count": 3, "replayed_at": time(-3 * DAY),
                "body": {"customer": {"id": 43}, "tenant": "globex", "amount": 50, "flag": null}}),
        ),
        letter(
            3,
            1,
            &json!({"last_error": "index out of bounds", "last_error_type": "panic",
                "failure": "panic", "source_mailbox": "mail", "replay_count": 1,
                "replayed_at": time(-2 * DAY), "body_encoding": "base64", "body": "AP8Q"}),
        ),
        letter(
            4,
            0,
            &json!({"last_error": "30s are over", "last_error_type": "timeout", "failure": "timeout",
                "delivery_count": 2, "body_encoding": "text", "body": "two\nLINES"}),
        ),
    ];
    load(&place, "orders-dlq", (101..).map(id).zip(letters));
    let junk = json!({"id": id(105), "body": "junk", "body_encoding": "text"});
    place.ok_with_input("load orders-dlq", junk.to_string());
    place
}

/// Returns the messages of a queue by their original ids. Fails if an id occurs twice.
fn dumped(place: &Place, line: &str) -> BTreeMap<String, Value> {
    let mut messages = BTreeMap::new();
    for line in lines(&place.ok(line)) {
        let original = line["attributes"]["pillarbox.original_id"].as_str();
        let id = original.or(line["id"].as_str()).unwrap();
        let twice = messages.insert(id.to_owned(), line.clone());
        assert!(twice.is_none(), "twice: {line}");
    }
    messages
}

/// Returns the numbers of the messages that `dlq list` shows.
fn listed(place: &Place, filter: &str) -> Vec<u32> {
    let numbers: BTreeMap<_, _> = (0..200).map(|number| (id(number), number)).collect();
    let list = lines(&place.ok(&format!("dlq list orders-dlq --json {filter}")));
    let number = |line: &Value| line["message_id"].as_str().map(|id| numbers[id]);
    list.iter().filter_map(number).collect()
}

/// Delays the first dead letter that is ready.
fn keep_first(place: &Place, time: &str) {
    let received = lines(&place.ok("receive orders-dlq --json"));
    let receipt = received[0]["receipt"].as_str().unwrap().to_owned();
    place.ok(&format!("nack orders-dlq {receipt} --delay {time}"));
}

/// Asserts the numbers of processed and of unavailable dead letters.
#[track_caller]
fn says(run: &Value, deed: &str, done: u32, others: u32) {
    assert_eq!((&run[deed], &run["in_flight_or_delayed"]), (&json!(done), &json!(others)), "{run}");
}

#[test]
fn delayed_dead_letters_are_waited_for_if_they_become_ready_in_time() {
    let place = Place::new();
    let letters = (1..=3).map(|number| (id(100 + number), letter(number, 1, &json!({}))));
    load(&place, "orders-dlq", letters);
    keep_first(&place, "30m");
    keep_first(&place, "2h");
    let run = |line: &str| lines(&place.ok(&format!("dlq {line} --json"))).remove(0);
    says(&run("replay orders-dlq --dry-run"), "replayed", 1, 2);
    says(&run("replay orders-dlq --dry-run --delayed=20m"), "replayed", 1, 2);
    says(&run("discard orders-dlq --dry-run --delayed"), "discarded", 2, 1);
    says(&run("replay orders-dlq --dry-run --delayed=3h"), "replayed", 3, 0);

    keep_first(&place, "1s");
    says(&run("replay orders-dlq --yes --delayed=20s"), "replayed", 1, 2);
    let sent = dumped(&place, "dump orders");
    assert_eq!(sent.into_keys().collect::<Vec<_>>(), [id(3)]);
    assert_eq!(listed(&place, ""), [1, 2]);
    says(&run("discard orders-dlq --yes --delayed=20s"), "discarded", 0, 2);

    // The duration is not read from the next argument.
    let refused = place.run("dlq replay orders-dlq --yes --delayed 20s");
    assert_eq!(refused.code, 2, "{refused:?}");
}

#[test]
fn dead_letters_are_listed() {
    let place = with_letters();
    insta::assert_snapshot!(place.session(&[
        "dlq list orders-dlq",
        "dlq list orders-dlq --json -n 2",
        "dlq list orders-dlq --max 2",
        "dlq list orders-dlq --error-type OutOfStock -n 1",
        "dlq list orders-dlq --kind quarantined",
        "dlq list nothing",
    ]));
    // Without a filter, invalid messages are listed as well.
    let all = lines(&place.ok("dlq list orders-dlq --json"));
    assert_eq!((all.len(), &all[4]["id"]), (5, &id(105).into()));
    let why = all[4]["unreadable"].as_str().unwrap();
    assert!(why.contains("expected"), "{why}");
    // Dead letters in flight or delayed are reported.
    place.ok("receive orders-dlq --visibility 12h");
    let run = place.run("dlq list orders-dlq");
    assert!(run.stderr.contains("1 of these in flight or delayed"), "{run:?}");
    let held = lines(&place.ok(&format!("dlq list orders-dlq --json --id {}", id(1)))).remove(0);
    assert_eq!(held["state"], "in_flight");
    assert!(held["until"].is_string(), "{held}");
}

#[test]
fn a_dead_letter_is_shown_in_full() {
    let place = with_letters();
    insta::assert_snapshot!(place.session(&[
        &format!("dlq show orders-dlq {}", id(1)),
        &format!("dlq show orders-dlq {}", id(102)),
        &format!("dlq show orders-dlq {}", id(3)),
        &format!("dlq show orders-dlq {}", id(4)),
        &format!("dlq show orders-dlq {} --json", id(4)),
        &format!("dlq show orders-dlq {}", id(5)),
        &format!("dlq show orders-dlq {}", id(105)),
        &format!("dlq show nothing {}", id(1)),
    ]));
    let body = |number| place.ok(&format!("dlq show orders-dlq {} --body", id(number)));
    assert_eq!(body(4), "two\nLINES");
    let mut command = place.command(["dlq", "show", "orders-dlq", &id(3), "--body"]);
    assert_eq!(command.output().unwrap().stdout, b"\x00\xff\x10");
}

/// SQLite and Redis do not record it; the dead letter has the time of sending then.
#[test]
fn the_time_of_the_first_receive_is_shown_only_if_it_is_known() {
    let place = Place::new();
    let sent = time(-HOUR);
    let unknown = letter(1, 0, &json!({"sent_at": sent, "first_received_at": sent}));
    load(&place, "orders-dlq", [(id(101), unknown), (id(102), letter(2, 0, &json!({})))]);
    for (number, is_known) in [(1, false), (2, true)] {
        let shown = place.ok(&format!("dlq show orders-dlq {}", id(number)));
        assert_eq!(shown.contains("first received"), is_known, "{shown}");
    }
}

#[test]
fn errors_are_grouped_and_counted() {
    let place = with_letters();
    insta::assert_snapshot!(place.session(&[
        "dlq stats orders-dlq",
        "dlq stats orders-dlq --top 1 --not-replayed",
        "dlq stats nothing orders-dlq --kind panic",
        "dlq stats",
        "dlq stats --source nowhere",
    ]));
    let stats = lines(&place.ok("dlq stats orders-dlq --json --top 2")).remove(0);
    let count = |name: &str| stats[name].as_u64().unwrap();
    assert_eq!(["dead_letters", "others", "replayed", "unreadable"].map(count), [4, 0, 2, 1]);
    assert_eq!((count("further"), &stats["unreadable_ids"]), (1, &json!([id(105)])));
    let first = &stats["errors"][0];
    assert_eq!((&first["count"], &first["share"]), (&2.into(), &0.5.into()));
    assert_eq!(first["last_message_id"], id(2));
    assert!(first["first_at"].is_string() && first["last_age_seconds"].as_f64() > Some(172_800.0));
    let overview = lines(&place.ok("dlq stats --json"));
    assert_eq!((overview.len(), &overview[0]["dead_letters"]), (1, &4.into()));
    let none = Place::new();
    none.ok("send orders x");
    let run = none.run("dlq stats");
    assert_eq!((run.code, run.stdout.as_str()), (0, ""));
    assert!(run.stderr.contains("no dead-letter queue with a default name"), "{run:?}");
}

#[test]
fn too_many_or_too_old_ones_end_with_1() {
    let place = with_letters();
    for (line, code, says) in [
        ("dlq stats --fail-over 5", 0, ""),
        ("dlq stats --fail-over 4", 1, "'orders-dlq' has 5 dead letters, more than 4"),
        ("dlq stats orders-dlq --fail-older 4d", 0, ""),
        ("dlq stats orders-dlq --fail-older 2h", 1, "one that is 3d old, older than 2h"),
        ("dlq stats --fail-over 0 --fail-older 3d --json", 1, "more than 0, and one that is 3d"),
        ("dlq stats --fail-older 12h --kind timeout", 0, ""),
        ("dlq stats --fail-over 2 --error-type OutOfStock", 0, ""),
        ("dlq stats --fail-over 1 --error-type OutOfStock", 1, "2 dead letters, more than 1"),
        ("dlq stats --fail-older 4d --kind error", 0, ""),
        ("dlq stats --fail-older 3d --kind error", 1, "one that is 3d old"),
        ("dlq stats nothing --fail-over 0", 0, ""),
    ] {
        let run = place.run(line);
        assert_eq!(run.code, code, "{line}: {run:?}");
        assert!(run.stderr.contains(says) && !run.stdout.is_empty(), "{line}: {run:?}");
    }
}

#[test]
fn every_command_applies_the_same_filters() {
    let place = with_letters();
    let before = place.ok("dump orders-dlq");
    for (filter, expected) in [
        ("", &[1, 2, 3, 4][..]),
        ("--error-type OutOfStock", &[1, 2]),
        ("--error-type shop::", &[1, 2]),
        ("--error-type out", &[4]),
        ("--kind error", &[1, 2]),
        ("--kind timeout", &[4]),
        ("--source mail", &[3]),
        ("--source orders", &[1, 2, 4]),
        ("--older 2d", &[1, 2]),
        ("--newer 2d", &[3, 4]),
        ("--older 1d --newer 3d", &[2, 3]),
        ("--text LAMP", &[1, 2]),
        ("--text warehouse", &[1]),
        ("--text lines", &[4]),
        ("--text GLOBEX", &[2]),
        ("--json-path $.customer.id=42", &[1]),
        ("--json-path $.customer.id", &[1, 2]),
        ("--json-path $.items[0].sku=\"A\"", &[1]),
        ("--json-path $.tenant!=acme", &[2]),
        ("--json-path $.amount>100", &[1]),
        ("--json-path $.amount>=50 --json-path $.flag", &[2]),
        ("--replayed", &[2, 3]),
        ("--not-replayed", &[1, 4]),
        ("--replayed --source orders", &[2]),
        ("--kind panic --source orders", &[]),
    ] {
        assert_eq!(listed(&place, filter), expected, "{filter}");
        let stats = lines(&place.ok(&format!("dlq stats orders-dlq --json {filter}"))).remove(0);
        assert_eq!(stats["dead_letters"], expected.len(), "{filter}");
        for (command, done) in [("replay --max-replays 9", "replayed"), ("discard", "discarded")] {
            let line = format!("dlq {command} orders-dlq --dry-run --json {filter}");
            let rehearsed = lines(&place.ok(&line)).remove(0);
            assert_eq!(rehearsed[done], expected.len(), "{filter}: {rehearsed}");
            assert_eq!(rehearsed["skipped"], 4 - expected.len(), "{filter}: {rehearsed}");
        }
    }
    for ids in [[id(1), id(3)], [id(101), id(3)], [id(101), id(103)]] {
        assert_eq!(listed(&place, &format!("--id {} --id {}", ids[0], ids[1])), [1, 3]);
    }
    assert_eq!(place.ok("dump orders-dlq"), before, "looking has changed something");
    assert_eq!(place.ok("queues"), "orders-dlq\n");

    // The filters match the same without --dry-run.
    let run = place.run("dlq discard orders-dlq --yes --json-path $.tenant!=acme");
    assert_eq!(
        run.stdout,
        "1 dead letter discarded; 3 skipped (no match), 1 skipped (not a valid dead letter)\n"
    );
    let run = place.run(&format!("dlq replay orders-dlq --id {} --id {}", id(101), id(3)));
    assert_eq!(
        run.stdout,
        "2 messages replayed to their queues; 1 skipped (no match), 1 skipped (not a valid dead letter)\n"
    );
    assert_eq!(listed(&place, ""), [4]);
    assert_eq!(dumped(&place, "dump orders").keys().collect::<Vec<_>>(), [&id(1)]);
    assert_eq!(dumped(&place, "dump mail").keys().collect::<Vec<_>>(), [&id(3)]);
}

#[test]
fn a_dry_run_shows_what_would_be_done_and_changes_nothing() {
    let place = with_letters();
    let before = place.ok("dump orders-dlq");
    insta::assert_snapshot!(place.session(&[
        "dlq replay orders-dlq --dry-run",
        "dlq replay orders-dlq --dry-run --max 1 --to elsewhere --to-url sqlite:other.db",
        "dlq discard orders-dlq --dry-run --older 1d",
        "dlq discard nothing --dry-run",
    ]));
    assert_eq!(place.ok("dump orders-dlq"), before);
    assert_eq!(place.ok("queues"), "orders-dlq\n");
    assert!(!place.path().join("other.db").exists());
    // Dead letters in flight are not touched.
    place.ok("receive orders-dlq --visibility 12h");
    let run = place.ok("dlq discard orders-dlq --dry-run --json");
    says(&lines(&run)[0], "discarded", 3, 1);
}

#[test]
fn replay_and_discard_print_a_summary() {
    let place = with_letters();
    place.ok("receive orders-dlq --visibility 12h");
    insta::assert_snapshot!(place.session(&[
        "dlq replay orders-dlq",
        "dlq discard orders-dlq --kind timeout",
        "dlq replay orders-dlq --source orders",
        "dlq replay orders-dlq --yes --json",
        "dlq discard orders-dlq --yes --max 1",
        "dlq discard orders-dlq --yes --json",
        "dlq replay nothing --yes",
        "dlq discard nothing --yes",
    ]));
    // Invalid messages and those in flight are still there.
    let left = dumped(&place, "dump orders-dlq");
    assert_eq!(left.keys().collect::<Vec<_>>(), [&id(101), &id(105)]);
}

/// Turns all messages of a queue into dead letters, as a worker does.
async fn reject_all(place: &Place, queue: &str) {
    let backend = pillarbox::open(&place.url("pillarbox.db")).await.unwrap();
    let orders: Mailbox<Value> = backend.mailbox(queue).unwrap();
    let worker = Worker::new(orders)
        .dead_letters(DlqPolicy::new())
        .handler(|_: Value| async { Outcome::reject("no such customer") });
    worker.run_until_empty().await.unwrap();
    backend.close().await;
}

#[tokio::test]
async fn a_replayed_message_is_unchanged_and_counts_its_replays() {
    let place = Place::new();
    let backend = pillarbox::open(&place.url("pillarbox.db")).await.unwrap();
    let orders: Mailbox<Value> = backend.mailbox("orders").unwrap();
    let options = SendOptions::new().reply_to("client-7").attribute("tenant", "acme");
    orders.send_with(&json!({"n": 1, "price": 1.5}), options).await.unwrap();
    backend.close().await;
    let sent = lines(&place.ok("peek orders --json")).remove(0);
    for round in 1..=3 {
        reject_all(&place, "orders").await;
        assert_eq!(place.ok("dump orders"), "");
        let letter = lines(&place.ok("dlq list orders-dlq --json")).remove(0);
        assert_eq!((&letter["message_id"], &letter["failure"]), (&sent["id"], &"rejected".into()));
        assert_eq!(letter["replay_count"], round - 1);
        let run = place.run("dlq replay orders-dlq --yes");
        assert_eq!(run.stdout, "1 message replayed to its queue\n", "{run:?}");
        let back = lines(&place.ok("peek orders --json")).remove(0);
        for field in ["body", "reply_to", "enqueued_at"] {
            assert_eq!(back[field], sent[field], "{field}");
        }
        let attributes = &back["attributes"];
        assert_eq!(attributes["pillarbox.original_id"], sent["id"]);
        assert_eq!(attributes["tenant"], "acme");
        assert_eq!(attributes["pillarbox.replays"], round.to_string());
    }
    reject_all(&place, "orders").await;
    let left = "0 messages replayed to their queues; 1 skipped (already replayed 3 times)\n";
    assert_eq!(place.ok("dlq replay orders-dlq --yes"), left);
    let dry = place.ok("dlq replay orders-dlq --dry-run");
    assert_eq!(dry, left.replace("replayed to", "would be replayed to"));
    assert!(place.ok("dlq replay orders-dlq --max-replays 4 --replayed").starts_with("1 message "));
}

#[tokio::test]
async fn messages_can_be_replayed_to_another_queue() {
    let place = Place::new();
    for number in 1..=3 {
        place.ok(&format!("send orders {number}"));
    }
    reject_all(&place, "orders").await;
    let run = place.ok("dlq replay orders-dlq -n 1 --to trial");
    assert_eq!(run, "1 message replayed to 'trial'; stopped at --max 1\n");
    let run = place.ok("dlq replay orders-dlq -n 1 --to-url sqlite:other.db");
    assert!(run.starts_with("1 message replayed to its queue at sqlite:other.db;"), "{run}");
    let run = place.ok("dlq replay orders-dlq --yes --to-url sqlite:other.db --to third");
    assert_eq!(run, "1 message replayed to 'third' at sqlite:other.db\n");
    let body = |line: &str| lines(&place.ok(line)).remove(0)["body"].clone();
    assert_eq!(body("dump trial"), 1);
    assert_eq!(body("--url sqlite:other.db dump orders"), 2);
    assert_eq!(body("--url sqlite:other.db dump third"), 3);
    assert_eq!(place.ok("dump orders") + &place.ok("dump orders-dlq"), "");
}

/// A dead letter does not say where its source queue is, only that it is on another backend.
#[test]
fn messages_of_another_backend_are_skipped_without_a_destination() {
    let place = Place::new();
    let far = letter(1, 1, &json!({"source_backend": "redis"}));
    load(&place, "orders-dlq", [(id(101), far), (id(102), letter(2, 1, &json!({})))]);
    let shown = place.ok(&format!("dlq show orders-dlq {}", id(1)));
    assert!(shown.contains("orders, on another backend (redis)"), "{shown}");
    let dry = place.ok("dlq replay orders-dlq --dry-run");
    let expected = "1 message would be replayed to its queue; 1 skipped (rejected)";
    assert!(dry.contains(expected), "{dry}");
    let run = place.run("dlq replay orders-dlq --yes");
    assert_eq!(run.stdout, "1 message replayed to its queue; 1 skipped (rejected)\n");
    assert!(run.code == 1 && run.stderr.contains("--to-url"), "{run:?}");
    assert_eq!(listed(&place, ""), [1]);
    place.ok("dlq replay orders-dlq --yes --to-url sqlite:other.db");
    assert_eq!(dumped(&place, "--url sqlite:other.db dump orders").len(), 1);
    assert_eq!(listed(&place, "").len(), 0);
}

#[test]
fn invalid_arguments_are_rejected_and_change_nothing() {
    let place = with_letters();
    let before = place.ok("dump orders-dlq");
    for (line, says) in [
        ("dlq", "Usage:"),
        ("dlq lst orders-dlq", "a similar subcommand exists: 'list'"),
        ("dlq list", "required arguments"),
        ("dlq list orders-dlq -n 0", "at least 1"),
        ("dlq list orders-dlq --kind odd", "possible values: error, panic, timeout"),
        ("dlq list orders-dlq --older 5", "the unit is missing"),
        ("dlq list orders-dlq --id 17", "a UUID"),
        ("dlq list orders-dlq --replayed --not-replayed", "cannot be used with"),
        ("dlq list orders-dlq --json-path customer", "begins with $"),
        ("dlq list orders-dlq --json-path $.items[*]", "at character 9, '*'"),
        ("dlq stats orders-dlq --json-path $.a>true", "= and != only"),
        ("dlq stats orders-dlq --fail-over many", "invalid"),
        ("dlq show orders-dlq 17", "a UUID"),
        (
            "dlq replay orders-dlq",
            "cannot ask for confirmation without a terminal: add --yes to replay everything",
        ),
        ("dlq replay orders-dlq --yes --rate 50", "expected a rate such as 50/s, 3000/m or 100/h"),
        ("dlq replay orders-dlq --yes --rate 0/s", "at least 1"),
        ("dlq replay orders-dlq --yes --max-replays 0", "0 is not in 1.."),
        ("dlq replay orders-dlq --yes --to orders-dlq", "is the queue of the dead letters"),
        ("dlq replay orders-dlq --yes --to-url memory:", "would be lost"),
        ("dlq replay orders-dlq --yes --to-url kafka://me:hunter2@x", "unknown scheme"),
        ("dlq discard orders-dlq --kind panic", "add --yes"),
    ] {
        let run = place.run(line);
        assert_eq!(run.code, 2, "{line}: {run:?}");
        assert!(run.stderr.contains(says), "{line}: {run:?}");
        assert!(!run.stderr.contains("hunter2"), "{run:?}");
    }
    let run = place.run("dlq stats --url sqlite:nothing.db");
    assert!(run.code == 1 && run.stderr.contains("there is no file"), "{run:?}");
    assert_eq!(place.ok("dump orders-dlq"), before);
}

#[test]
fn a_queue_without_dead_letters_is_rejected_and_not_touched() {
    let place = with_letters();
    place.ok("send orders 7");
    for line in ["dlq replay orders --yes", "dlq discard orders --older 30d --yes"] {
        let run = place.run(line);
        assert_eq!(run.code, 1, "{run:?}");
        assert!(run.stderr.contains("'orders' has messages, but no dead letters"), "{run:?}");
        assert!(run.stderr.contains("did you mean 'orders-dlq'?"), "{run:?}");
    }
    let message = lines(&place.ok("peek orders --json")).remove(0);
    assert_eq!(message["delivery_count"], 0, "{message}");
}

/// Creates dead letters whose messages are numbered from 0.
fn with_many(number: u32) -> Place {
    let place = Place::new();
    let letters = (0..number).map(|n| {
        let with = json!({"body": {"n": n, "even": n % 2 == 0}, "reply_to": format!("r{n}"),
            "last_error": format!("order {n} failed"), "attributes": {"n": n.to_string()}});
        (MessageId::new().to_string(), letter(n, 1, &with))
    });
    load(&place, "orders-dlq", letters);
    place
}

#[test]
fn a_rate_is_not_exceeded() {
    let place = with_many(60);
    let timed = |line: &str| {
        let start = Instant::now();
        assert!(place.ok(line).contains("30 messages replayed"), "{line}");
        start.elapsed()
    };
    let slow = timed("dlq replay orders-dlq -n 30 --rate 40/s");
    // The messages of a tenth of a second may come at once.
    assert!(slow >= Duration::from_millis(600), "{slow:?}");
    timed("dlq replay orders-dlq -n 30 --rate 6000000/m");
    assert_eq!(dumped(&place, "dump orders").len(), 60);
}

#[test]
fn an_interrupted_replay_finishes_its_batch_and_explains_how_to_continue() {
    let place = with_many(50);
    let child = place.start("dlq replay orders-dlq --json-path $.even=true --rate 10/s");
    until_it_listens(&child);
    let ready = || lines(&place.ok("stats orders --json"))[0]["ready"].as_u64();
    eventually("some are replayed", || ready() >= Some(3));
    signal(&child, "INT");
    let run = finish(child);
    assert_eq!(run.code, 130, "{run:?}");
    let note = "no dead letter was deleted before its message was sent; run the same";
    assert!(run.stderr.contains(note), "{run:?}");
    let replayed = dumped(&place, "dump orders").len();
    assert!(run.stdout.starts_with(&format!("{replayed} messages replayed to")), "{run:?}");
    let stats = place.ok("stats orders-dlq --json");
    assert!(stats.contains(&format!("\"ready\":{},\"in_flight\":0,", 50 - replayed)), "{stats}");
    let rest = place.ok("dlq replay orders-dlq --json-path $.even=true");
    assert!(rest.starts_with(&format!("{} messages replayed", 25 - replayed)), "{rest}");
    // Dead letters that do not match are still there, in order.
    let left = lines(&place.ok("dlq list orders-dlq -n 50 --json"));
    let left: Vec<_> = left.iter().map(|line| line["body"]["n"].as_u64().unwrap()).collect();
    assert!(left.iter().all(|n| n % 2 == 1) && left.len() == 25, "{left:?}");
}

/// Expires all leases.
fn end_leases(place: &Place) {
    let file = pillarbox::sqlite::rusqlite::Connection::open(place.path().join("pillarbox.db"));
    let past = "UPDATE pillarbox_timer SET due_at = 1; DELETE FROM pillarbox_expiry";
    file.unwrap().execute_batch(past).unwrap();
    place.ok("doctor --fix");
}

/// Kills the command as soon as messages arrive, so that not all dead letters are acknowledged.
#[tokio::test]
async fn a_replay_that_is_killed_repeatedly_loses_and_duplicates_nothing() {
    const LETTERS: u32 = 12_000;
    let place = with_many(LETTERS);
    let all: BTreeSet<_> = (0..LETTERS).map(id).collect();
    let backend = pillarbox::open(&place.url("pillarbox.db")).await.unwrap();
    let orders: Mailbox<Value> = backend.mailbox("orders").unwrap();
    let (mut kills, mut both) = (0, 0);
    while kills < 6 || both == 0 {
        let before = orders.approximate_count().await.unwrap();
        let mut child = place.start("dlq replay orders-dlq --yes --rate 5000/s");
        // At a different point each time.
        while orders.approximate_count().await.unwrap() <= before + kills * 200 {
            assert!(child.try_wait().unwrap().is_none(), "it ended: {:?}", finish(child));
        }
        child.kill().unwrap();
        let run = finish(child);
        assert_eq!(run.code, -1, "after {kills} kills, {both} in both: {run:?}");
        kills += 1;
        let here: BTreeSet<_> = lines(&place.ok("dlq list orders-dlq -n 20000 --json"))
            .iter()
            .map(|line| line["message_id"].as_str().unwrap().to_owned())
            .collect();
        let there: BTreeSet<_> = dumped(&place, "dump orders").into_keys().collect();
        assert_eq!(here.union(&there).cloned().collect::<BTreeSet<_>>(), all);
        both += here.intersection(&there).count();
        end_leases(&place);
    }
    backend.close().await;
    let run = place.ok("dlq replay orders-dlq --yes");
    println!("killed {kills} times, with {both} sent and not acknowledged in sum, and then: {run}");
    assert_eq!(place.ok("dump orders-dlq"), "");
    let there = dumped(&place, "dump orders");
    assert_eq!(there.keys().cloned().collect::<BTreeSet<_>>(), all);
    for message in there.values() {
        let n = message["body"]["n"].as_u64().unwrap();
        assert_eq!(message["reply_to"], format!("r{n}"));
        assert_eq!(message["attributes"]["n"], n.to_string());
        assert_eq!(message["attributes"]["pillarbox.replays"], "1");
    }
}

#[test]
fn two_replays_of_a_queue_share_the_work() {
    let place = with_many(4_000);
    let replays = [(); 2].map(|()| place.start("dlq replay orders-dlq --yes --json"));
    let shares = replays.map(finish).map(|run| {
        assert_eq!(run.code, 0, "{run:?}");
        lines(&run.stdout)[0]["replayed"].as_u64().unwrap()
    });
    println!("shares: {shares:?}");
    assert_eq!(shares.iter().sum::<u64>(), 4_000);
    assert_eq!(place.ok("dump orders-dlq"), "");
    assert_eq!(dumped(&place, "dump orders").len(), 4_000);
}

/// Waits for the end, and returns the peak memory in KiB.
fn peak(child: &mut Child) -> u64 {
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let status = std::fs::read_to_string(&status).unwrap_or_default();
        let now = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let now = now.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        peak = peak.max(now.unwrap_or(0));
        std::thread::sleep(Duration::from_millis(1));
    }
    peak
}

/// Sends dead letters in batches.
async fn fill(url: &str, number: u32) {
    let backend = pillarbox::open(url).await.unwrap();
    let dead: Mailbox<Value> = backend.mailbox("orders-dlq").unwrap();
    let at = Timestamp::now();
    for first in (0..number).step_by(1_000) {
        let some: Vec<_> = (first..number.min(first + 1_000))
            .map(|n| {
                let error = format!("order {n} failed");
                json!({"message_id": MessageId::new(), "source_mailbox": "orders", "last_error": error,
                    "last_error_type": "shop::Error", "failure": "error", "dead_lettered_at": at,
                    "first_received_at": at, "body": {"n": n, "tenth": n % 10, "pad": "x".repeat(300)}})
            })
            .collect();
        dead.send_batch(&some).await.unwrap().all().unwrap();
    }
    backend.close().await;
}

/// Lists dead letters and replays some. Prints the durations, and returns the peak memory of each command.
async fn measure(url: &str, number: u32) -> Vec<u64> {
    let place = Place::new();
    fill(url, number).await;
    let commands = [
        ("dlq stats orders-dlq --json", "dead_letters", number),
        ("dlq replay orders-dlq --json --json-path $.tenth=7", "replayed", number / 10),
    ];
    let mut peaks = Vec::new();
    for (line, field, expected) in commands {
        let start = Instant::now();
        let mut child = place.start(&format!("--url {url} {line}"));
        peaks.push(peak(&mut child));
        let (took, peak) = (start.elapsed(), peaks.last().unwrap());
        println!("{number} dead letters: {line}: {took:.2?}, {peak} KiB at most");
        assert_eq!(lines(&finish(child).stdout)[0][field], expected, "{line}");
    }
    peaks
}

/// On a server, since SQLite caches up to 64 MiB of a file.
#[tokio::test]
async fn memory_does_not_grow_with_the_number_of_dead_letters() {
    let number = std::env::var("PILLARBOX_DEAD_LETTERS").ok().and_then(|text| text.parse().ok());
    let (one, other) = (RedisServer::start(), RedisServer::start());
    let few = measure(&one.url(), 1_000).await;
    let many = measure(&other.url(), number.unwrap_or(30_000)).await;
    let ratios = few.iter().zip(&many).map(|(few, many)| *many as f64 / *few as f64);
    let ratios: Vec<_> = ratios.collect();
    assert!(ratios.iter().all(|ratio| (0.1..2.0).contains(ratio)), "{ratios:?}");
}

/// Not a test but a measurement: `PILLARBOX_DEAD_LETTERS=100000 cargo test --release ... --ignored`.
#[tokio::test]
#[ignore = "a measurement"]
async fn how_long_many_dead_letters_in_a_file_take() {
    let number = std::env::var("PILLARBOX_DEAD_LETTERS").ok().and_then(|text| text.parse().ok());
    let place = Place::new();
    measure(&place.url("few.db"), 1_000).await;
    measure(&place.url("many.db"), number.unwrap_or(100_000)).await;
}

/// Indented, it would be gigabytes; as JSON, no parser would accept it.
#[test]
fn a_body_that_is_nested_deeply_is_shown_as_text() {
    let place = Place::new();
    let depth = 100_000;
    let deep = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let line = letter(1, 1, &json!({"body": "BODY"})).to_string().replace("\"BODY\"", &deep);
    let line = format!("{{\"id\":\"{}\",\"body\":{line}}}\n", id(101));
    // As `load` stores it, and as a worker does: within a string.
    let text = letter(2, 1, &json!({"body": deep, "body_encoding": "text"}));
    let text = format!("{{\"id\":\"{}\",\"body\":{text}}}\n", id(102));
    place.ok_with_input("load orders-dlq", line + &text);
    // Memory is limited, so that a failing test does not affect others.
    let limited = |line: &str| place.shell(&format!("ulimit -v 3000000; exec pillarbox {line}"));
    for number in [1, 2] {
        let run = limited(&format!("dlq show orders-dlq {}", id(number)));
        assert_eq!(run.code, 0, "{}", run.stderr);
        assert!(run.stdout.contains("body            195.3 KiB\n"), "{}", &run.stdout[..2000]);
        assert!(run.stdout.ends_with(&format!("  {deep}\n")));
        let run = limited(&format!("dlq show orders-dlq {} --body", id(number)));
        assert_eq!((run.code, run.stdout == deep), (0, true));
        let run = limited(&format!("dlq show orders-dlq {} --json", id(number)));
        let shown: Value = serde_json::from_str(&run.stdout).expect("every reader takes it");
        assert_eq!((&shown["body_encoding"], &shown["body"]), (&json!("text"), &json!(deep)));
    }
    for line in ["peek orders-dlq --json", "dump orders-dlq", "dlq list orders-dlq --json"] {
        let run = limited(line);
        assert_eq!((run.code, run.stdout.lines().count()), (0, 2), "{line}");
        for line in run.stdout.lines() {
            let _: Value = serde_json::from_str(line).expect("every reader takes it");
        }
    }
    assert_eq!(limited("dlq list orders-dlq --json-path $.a=1").code, 0);
    assert_eq!(limited("dlq replay orders-dlq --yes").code, 0);
    let back = limited("receive orders -n 2 --json");
    for line in back.stdout.lines() {
        let line: Value = serde_json::from_str(line).expect("every reader takes it");
        assert_eq!(line["body"], deep);
    }
}

/// Nested less, but wide: each item is on a line with a long indent.
#[test]
fn a_body_that_would_be_gigabytes_when_indented_is_shown_as_text() {
    let place = Place::new();
    let (open, close) = ("[".repeat(90), "]".repeat(90));
    let wide = format!("{open}{}0{close}", "0,".repeat(2_000_000));
    let line = letter(1, 1, &json!({"body": "BODY"})).to_string().replace("\"BODY\"", &wide);
    let line = format!("{{\"id\":\"{}\",\"body\":{line}}}\n", id(101));
    place.ok_with_input("load orders-dlq", line);
    let run = place.run(&format!("dlq show orders-dlq {}", id(1)));
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stdout.len() < 3 * wide.len(), "{} bytes", run.stdout.len());
    assert!(run.stdout.ends_with(&format!("  {wide}\n")));
}
