//! Output of every command, as text and as JSON.

use std::collections::BTreeSet;
use std::path::Path;

use crate::common::{Place, Run, id, lines, without_numbers};
use pillarbox::sqlite::rusqlite;

#[test]
fn queues() {
    let place = Place::new().with_orders();
    place.ok("send mail.eu hello");
    insta::assert_snapshot!(place.session(&["queues", "queues --json"]));
}

#[test]
fn stats() {
    let place = Place::new().with_orders();
    place.ok("receive orders --visibility 12h");
    let lines = ["stats", "stats --json", "stats mail orders", "stats nothing --json"];
    // The age in JSON is exact.
    let shown = place.session(&lines);
    let age = "oldest_age_seconds\":26";
    assert_eq!(shown.matches(age).count(), 1, "{shown}");
    let from = shown.find(age).unwrap() + age.len();
    let to = from + shown[from..].find('}').unwrap();
    insta::assert_snapshot!(format!("{}<age>{}", &shown[..from], &shown[to..]));
}

#[test]
fn send() {
    let place = Place::new();
    std::fs::write(place.path().join("bodies.jsonl"), "{\"n\":1}\n\n  [2]  \n\"three\"\n").unwrap();
    let lines = [
        "send orders hello",
        &format!("send orders {{\"n\":1}} --id {} --json", id(1)),
        "send orders 5 --key invoice-4711 --delay 1h --reply-to client-7 --attr a=b --attr c=d=e",
        "send orders 5 --key invoice-4711",
        "send orders -5",
        "send orders --file bodies.jsonl",
    ];
    insta::assert_snapshot!(place.session(&lines));
    let bodies: Vec<_> = place.ok("peek orders --json").lines().map(body).collect();
    assert_eq!(bodies, ["\"hello\"", "{\"n\":1}", "-5", "{\"n\":1}", "[2]", "\"three\"", "5"]);
}

#[test]
fn a_send_reports_whether_it_stored_the_message() {
    let place = Place::new();
    let note = "note: the queue holds a message with this id already\n";
    for (option, twice) in [(format!("--id {}", id(1)), false), ("--key k".to_owned(), true)] {
        let line = format!("send orders x {option}");
        let first = place.run(&format!("{line} --json"));
        assert_eq!((first.code, first.stderr.as_str()), (0, ""), "{first:?}");
        assert_eq!(lines(&first.stdout)[0]["is_new"], true, "{first:?}");
        let again = place.run(&format!("{line} --json"));
        assert_eq!((again.code, again.stderr.as_str()), (0, note), "{again:?}");
        assert_eq!(lines(&again.stdout)[0]["is_new"], false, "{again:?}");
        let text = place.run(&line);
        let sent = lines(&first.stdout)[0]["id"].as_str().unwrap().to_owned();
        assert_eq!((text.stdout, text.stderr.as_str()), (format!("{sent}\n"), note));
        assert_eq!(place.ok("peek orders --json").lines().count(), 1 + usize::from(twice));
    }
}

fn body(line: &str) -> String {
    let start = line.find("\"body\":").unwrap() + 7;
    line[start..line.len() - 1].to_owned()
}

#[test]
fn send_reads_standard_input_unchanged() {
    let place = Place::new();
    place.run_with_input("send files -", b"\x00\xff\n");
    place.run_with_input("send files -", "text\n");
    place.run_with_input("send files --file -", "1\n2");
    let bodies: Vec<_> = place.ok("peek files --json").lines().map(body).collect();
    assert_eq!(bodies, ["\"AP8K\"", "\"text\\n\"", "1", "2"]);
}

#[test]
fn receive() {
    let place = Place::new().with_orders();
    insta::assert_snapshot!(place.session(&[
        "receive orders",
        "receive orders --json --visibility 1h",
        "receive orders",
        "receive nothing",
        "send mail hello",
        "receive mail --ack --wait 5s",
        "stats",
    ]));
}

#[test]
fn receive_takes_up_to_max() {
    let place = Place::new();
    let lines: String = (0..2500).map(|n| format!("{n}\n")).collect();
    place.run_with_input("send numbers --file -", lines);
    let run = place.run("receive numbers --max 2100 --json");
    let bodies: Vec<_> = run.stdout.lines().map(body).collect();
    assert_eq!(bodies, (0..2100).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(place.ok("receive numbers --max 5000 --json --ack").lines().count(), 400);
    assert_eq!(place.run("receive numbers --json").code, 3);
}

#[test]
fn peek() {
    let place = Place::new().with_orders();
    place.ok("receive orders --visibility 12h");
    insta::assert_snapshot!(place.session(&[
        "peek orders",
        "peek orders --json",
        "peek orders --max 1",
        "peek nothing"
    ]));
}

#[test]
fn settling() {
    let place = Place::new().with_orders();
    let received = lines(&place.ok("receive orders --max 2 --json"));
    let [one, two] = [0, 1].map(|index: usize| received[index]["receipt"].as_str().unwrap());
    insta::assert_snapshot!(place.session(&[
        &format!("extend orders {one} 1h30m"),
        &format!("extend orders {one} 12h --json"),
        &format!("ack orders {one}"),
        &format!("nack orders {one} {two} --delay 5m"),
        &format!("ack orders {two} --json"),
        "stats",
    ]));
    let again = place.ok("send mail x").trim().to_owned();
    let received = lines(&place.ok("receive mail --json"));
    let receipt = received[0]["receipt"].as_str().unwrap();
    assert!(receipt.starts_with(&again));
    insta::assert_snapshot!(
        "nack_at_once",
        place.session(&[&format!("nack mail {receipt}"), "receive mail --ack"])
    );
}

#[test]
fn purge() {
    let place = Place::new().with_orders();
    place.ok("receive orders");
    insta::assert_snapshot!(place.session(&[
        "purge orders",
        "purge orders --yes",
        "purge orders --yes --json",
        "stats orders"
    ]));
}

/// Overwrites a page in the middle of a table or an index, as a faulty disk would.
fn damage(file: &Path, table: &str) {
    let pages: Vec<u64> = {
        let connection = rusqlite::Connection::open(file).unwrap();
        let leaves =
            "SELECT pageno FROM dbstat WHERE name = ?1 AND pagetype = 'leaf' ORDER BY path";
        let mut leaves = connection.prepare(leaves).unwrap();
        leaves.query_map([table], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    assert!(pages.len() > 4, "{table}: {pages:?}");
    let mut bytes = std::fs::read(file).unwrap();
    let start = (pages[pages.len() / 2] as usize - 1) * 4096;
    bytes[start..start + 4096].fill(0x5a);
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn dump_continues_past_a_damaged_page_and_reports_what_is_missing() {
    let place = Place::new();
    let all: BTreeSet<String> = (1..=600).map(id).collect();
    let body = "x".repeat(100);
    let input: Vec<_> =
        all.iter().map(|id| format!(r#"{{"id":"{id}","body":"{body}"}}"#)).collect();
    place.ok_with_input("load orders", input.join("\n"));
    place.ok("receive orders --max 500 --visibility 12h");
    let file = place.path().join("pillarbox.db");
    damage(&file, "pillarbox_message");
    // Messages that are written, and those reported as missing.
    let dumped = |run: &Run| -> (BTreeSet<String>, BTreeSet<String>) {
        let written = lines(&run.stdout).into_iter();
        let written = written.map(|line| line["id"].as_str().unwrap().to_owned());
        let missing = all.iter().filter(|id| run.stderr.contains(*id)).cloned();
        (written.collect(), missing.collect())
    };
    let run = place.run("dump orders");
    assert_eq!(run.code, 1, "{}", run.stderr);
    let (written, missing) = dumped(&run);
    assert_eq!(run.stdout.lines().count(), written.len(), "each is written once");
    assert!(!missing.is_empty() && missing.len() < 100, "{}", run.stderr);
    assert!(written.is_disjoint(&missing));
    assert_eq!(written.union(&missing).cloned().collect::<BTreeSet<_>>(), all);
    assert!(run.stderr.contains("this dump is incomplete"), "{}", run.stderr);
    assert_eq!(run.stdout.matches("\"state\":\"in_flight\"").count() + missing.len(), 500);
    assert_ne!(place.run("peek orders --max 1000").code, 0, "a peek at all of it fails");

    // Without the index of ids it is unknown which are missing.
    damage(&file, "pillarbox_message_id");
    let run = place.run("dump orders");
    assert_eq!(run.code, 1, "{}", run.stderr);
    assert_eq!(dumped(&run).0, written, "{}", run.stderr);
    assert!(run.stderr.contains("cannot be read: any messages between keys"), "{}", run.stderr);

    // Without leases and delays, messages are shown as ready.
    damage(&file, "pillarbox_timer");
    let run = place.run("dump orders");
    assert_eq!((run.code, dumped(&run).0), (1, written), "{}", run.stderr);
    assert!(run.stderr.contains("which messages are in flight"), "{}", run.stderr);
}

#[test]
fn dump_and_load() {
    let place = Place::new().with_orders();
    place.ok("receive orders --visibility 12h");
    let lines = ["dump orders", "dump nothing", "stats orders --json"];
    let shown = place.session(&lines);
    insta::assert_snapshot!(shown.split("oldest_age").next().unwrap());

    std::fs::write(place.path().join("orders.jsonl"), place.ok("dump orders")).unwrap();
    insta::assert_snapshot!(
        "load",
        place.session(&[
            "load copy orders.jsonl",
            "load copy orders.jsonl --json",
            "peek copy",
            "purge copy --yes"
        ])
    );
}

#[test]
fn drain() {
    let place = Place::new().with_orders();
    insta::assert_snapshot!(place.session(&[
        "drain orders --max 1",
        "drain orders",
        "drain orders",
        "drain nothing"
    ]));
}

#[test]
fn drained_messages_can_be_loaded() {
    let place = Place::new().with_orders();
    let before = place.ok("dump orders");
    let drained = place.ok("drain orders");
    assert_eq!(place.run_with_input("load orders -", &drained).stdout, "2 messages loaded\n");
    let ready = |dump: &str| -> Vec<String> {
        let lines = dump.lines().filter(|line| !line.contains("delayed"));
        lines.map(|line| line.replace("\"delivery_count\":1", "\"delivery_count\":0")).collect()
    };
    assert_eq!(ready(&place.ok("dump orders")), ready(&before));
}

#[test]
fn moving() {
    let place = Place::new().with_orders();
    insta::assert_snapshot!(place.session(&[
        "move orders sqlite:other.db orders --no-wait",
        "move orders sqlite:other.db orders --no-wait --json",
        "--url sqlite:other.db peek orders",
        "--url sqlite:other.db move orders sqlite:pillarbox.db moved --max 1",
        "peek moved --json",
        "move nothing sqlite:other.db orders",
    ]));
}

#[test]
fn bench() {
    let place = Place::new();
    let shown = place.run("bench --duration 200ms --callers 4").shown(&place);
    let shown = without_numbers(&shown).replace("ms", "µs").replace("Nk/s", "N/s");
    let shown: String = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    insta::assert_snapshot!(shown.replace("N s", "N µs"));
    let json = place.ok("bench --duration 100ms --batch 10 --size 0 --json");
    insta::assert_snapshot!("bench_json", without_numbers(&json));
    // The queue is purged.
    assert_eq!(place.ok("queues"), "");
}

#[test]
fn doctor() {
    let place = Place::new().with_orders();
    let shown = |line| without_numbers(&place.run(line).shown(&place)).replace("N ms", "N µs");
    insta::assert_snapshot!(shown("doctor"));
    insta::assert_snapshot!("doctor_json", shown("doctor --json"));
}

#[test]
fn doctor_finds_and_repairs() {
    let place = Place::new().with_orders();
    let file = pillarbox::sqlite::rusqlite::Connection::open(place.path().join("pillarbox.db"));
    let damage = "DELETE FROM pillarbox_expiry; UPDATE pillarbox_queue SET total = 7";
    file.unwrap().execute_batch(damage).unwrap();
    let shown = |line| {
        let run = place.run(line);
        let after = run.shown(&place).split("Promise").nth(1).unwrap().to_owned();
        format!("$ pillarbox {line}\n{after}")
    };
    insta::assert_snapshot!([shown("doctor"), shown("doctor --fix"), shown("doctor")].join("\n"));
    assert_eq!(place.ok("dump orders").lines().count(), 3);
}

#[test]
fn demo() {
    let place = Place::new();
    let lines = "demo --fast --tasks 20 --workers 1 --url sqlite:demo.db";
    let shown = place.run(lines).shown(&place);
    let (events, summary) = shown.split_once("\n\n").unwrap();
    let succeeded = events.lines().filter(|line| line.contains("done in")).count();
    let dead = events.lines().filter(|line| line.contains("dead letter after attempt 3")).count();
    let retried = events.lines().filter(|line| line.contains("retry in")).count();
    assert_eq!(succeeded + dead, 20, "{events}");
    assert!(retried > 0 && dead > 0, "{events}");
    for said in [
        format!("processed      {} attempts of 20 tasks\n", succeeded + dead + retried),
        format!("succeeded      {succeeded}\n"),
        format!("retried        {retried}\n"),
        format!("dead-lettered  {dead}\n"),
        "backend        sqlite:demo.db\n".to_owned(),
    ] {
        assert!(format!("\n{summary}").contains(&said), "{said}: {summary}");
    }
    // The commands that it suggests work.
    let program = env!("CARGO_BIN_EXE_pillarbox");
    let named: Vec<_> =
        summary.lines().filter_map(|line| line.trim().strip_prefix(program)).collect();
    assert_eq!(named.len(), 5, "{summary}");
    let found: Vec<_> = named.iter().map(|line| place.ok(line)).collect();
    assert!(found[0].contains("demo-dlq"), "{found:?}");
    assert!(found[1].starts_with(&format!("demo-dlq: {dead} dead letter")), "{found:?}");
    assert_eq!(found[2].lines().count(), dead + 1, "{found:?}");
    assert!(found[4].starts_with(&format!("{dead} message")), "{found:?}");
    // Replayed messages have their original bodies.
    let (back, bodies) = (place.ok("dump demo --url sqlite:demo.db"), "Summarise document");
    assert_eq!((back.lines().count(), back.matches(bodies).count()), (dead, dead), "{back}");
}

#[test]
fn demo_rejects_a_queue_that_is_in_use() {
    let place = Place::new();
    place.ok("send demo x");
    let run = place.run("demo --fast --url sqlite:pillarbox.db");
    insta::assert_snapshot!(run.shown(&place));
    let run = place.run("demo --fast --tasks 3 --json --url sqlite:fresh.db");
    assert!(run.stdout.starts_with("{\"url\":\"sqlite:fresh.db\",\"tasks\":3,"), "{run:?}");
}

#[test]
fn help() {
    let place = Place::new();
    let shown = place.run("--help").shown(&place);
    // The list of backends depends on the features.
    let (help, backends) = shown.split_once("Backends: ").expect("the backends");
    insta::assert_snapshot!(help);
    assert!(backends.starts_with("sqlite:PATH, redis://HOST"), "{backends}");
    assert_eq!(backends.contains("sqs://REGION/PREFIX"), cfg!(feature = "sqs"), "{backends}");
    insta::assert_snapshot!("help_move", place.run("move --help").shown(&place));
    insta::assert_snapshot!("help_dlq", place.run("dlq --help").shown(&place));
    insta::assert_snapshot!("help_dlq_replay", place.run("dlq replay --help").shown(&place));
}

#[test]
fn completions_and_manual_pages() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.ok(&format!("completions {shell}"));
        assert!(script.contains("dump") && script.contains("visibility"), "{shell}");
    }
    insta::assert_snapshot!(place.run("man pages").shown(&place));
    let page = std::fs::read_to_string(place.path().join("pages/pillarbox-receive.1")).unwrap();
    assert!(page.contains("Time to wait for the first message"), "{page}");
}

/// Returns the permissions of a file.
#[cfg(unix)]
fn mode(place: &Place, file: &str) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(place.path().join(file)).unwrap().permissions().mode() & 0o777
}

/// Runs the command under a usual umask.
#[cfg(unix)]
fn under_umask(place: &Place, line: &str) -> crate::common::Run {
    place.shell(&format!("umask 022; exec pillarbox {line}"))
}

#[test]
#[cfg(unix)]
fn a_dump_file_is_private_by_default() {
    let place = Place::new().with_orders();
    let dump = place.ok("dump orders");
    for (line, file, expected) in [
        ("dump orders --output private.jsonl", "private.jsonl", 0o600),
        ("dump orders --output shared.jsonl --permissions umask", "shared.jsonl", 0o644),
    ] {
        let run = under_umask(&place, line);
        assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (0, "", ""), "{line}");
        assert_eq!(mode(&place, file), expected, "{line}");
        assert_eq!(std::fs::read_to_string(place.path().join(file)).unwrap(), dump);
    }
    // Neither command overwrites a file.
    for line in ["dump orders --output shared.jsonl", "drain orders --output shared.jsonl"] {
        let run = place.run(line);
        assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{line}: {run:?}");
        assert!(run.stderr.contains("shared.jsonl exists already"), "{line}: {run:?}");
        assert_eq!(std::fs::read_to_string(place.path().join("shared.jsonl")).unwrap(), dump);
    }
    assert_eq!(place.ok("dump orders"), dump, "nothing was drained");
    let run = under_umask(&place, "drain orders --output drained.jsonl");
    assert_eq!((run.code, run.stdout.as_str()), (0, ""), "{run:?}");
    assert_eq!(mode(&place, "drained.jsonl"), 0o600);
    let drained = std::fs::read_to_string(place.path().join("drained.jsonl")).unwrap();
    assert_eq!(drained.lines().count(), 2);
    // If the file cannot be created nothing is drained; if it cannot be written the error names it.
    let run = place.run("drain orders --output no/such/file.jsonl");
    assert!(run.code == 1 && run.stderr.contains("no/such/file.jsonl"), "{run:?}");
}

/// A lone surrogate is not a character: other JSON parsers would reject the whole line.
#[test]
fn a_body_with_a_lone_surrogate_is_written_so_that_every_parser_accepts_it() {
    let place = Place::new();
    let bodies =
        ["\"\\ud800\"", "{\"a\":[\"x\\udfff\"]}", "{\"\\ud800\\ud800\":1}", "\"\\ud83d\\ude00\""];
    std::fs::write(place.path().join("bodies.jsonl"), bodies.join("\n")).unwrap();
    place.ok("send odd --file bodies.jsonl");
    for line in ["peek odd --json", "dump odd", "receive odd -n 10 --json", "drain odd --json"] {
        if line.starts_with("drain") {
            place.ok("move odd sqlite:pillarbox.db again");
        }
        let line = line.replace("drain odd", "drain again");
        let written = place.ok(&line);
        let encodings = lines(&written).into_iter().map(|line| line["body_encoding"].clone());
        let encodings: Vec<_> = encodings.collect();
        assert_eq!(encodings, ["base64", "base64", "base64", "json"], "{line}");
        // The output restores the original body.
        place.ok_with_input("load copy", &written);
        let copied = place.ok("receive copy -n 4");
        for body in bodies {
            assert!(copied.contains(body), "{line}: {body}: {copied}");
        }
        place.ok("purge copy --yes");
        for receipt in written.lines().filter_map(|line| line.split("\"receipt\":\"").nth(1)) {
            place.ok(&format!("nack odd {}", receipt.split('"').next().unwrap()));
        }
    }
}
