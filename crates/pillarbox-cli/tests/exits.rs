//! Every exit code, what is said with it, and what is never said.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

mod common;

use common::{Place, id};

#[test]
fn done_is_0() {
    let place = Place::new().with_orders();
    for line in [
        "queues",
        "stats",
        "send mail hello",
        "receive mail",
        "peek mail",
        "dump mail",
        "drain mail",
        "doctor",
        "purge mail --yes",
        "--help",
        "--version",
        "top --help",
    ] {
        assert_eq!(place.run(line).code, 0, "{line}");
    }
}

#[test]
fn an_error_is_1_and_says_what_was_tried_and_what_to_do() {
    let place = Place::new().with_orders();
    let receipt = format!("{}.AAAAAAAAAAAAAAAA", id(1));
    std::fs::write(place.path().join("letter.txt"), "Dear diary, ".repeat(500)).unwrap();
    std::fs::write(place.path().join("bad.jsonl"), "{\"body\":1}\n{\"body\":2\n").unwrap();
    std::fs::write(place.path().join("odd.jsonl"), "[1]\n").unwrap();
    for (line, says) in [
        ("queues --url sqlite:nothing.db", vec!["there is no file", "nothing.db"]),
        ("queues --url sqlite:no/where.db", vec!["create the directory first"]),
        ("send q x --url sqlite:letter.txt", vec!["is not a SQLite database", "not touched"]),
        (&format!("ack orders {receipt}"), vec!["no longer valid", "'orders'"]),
        (&format!("nack orders {receipt}"), vec!["no longer valid"]),
        (&format!("extend orders {receipt} 5m"), vec!["no longer valid"]),
        ("load q nothing.jsonl", vec!["cannot read nothing.jsonl", "No such file"]),
        ("load q bad.jsonl", vec!["line 2 of bad.jsonl", "EOF", "nothing was sent"]),
        ("send q --file bad.jsonl", vec!["line 2 of bad.jsonl", "not JSON", "nothing was sent"]),
        ("load q odd.jsonl", vec!["line 1 of odd.jsonl", "nothing was sent"]),
        ("load q .", vec!["cannot read .: is a directory"]),
        ("man /proc/nothing", vec!["cannot write manual pages", "/proc/nothing"]),
    ] {
        let run = place.run(line);
        assert_eq!((run.code, run.stdout.as_str()), (1, ""), "{line}: {run:?}");
        assert!(run.stderr.starts_with("error: "), "{line}: {run:?}");
        for text in says {
            assert!(run.stderr.contains(text), "{line}: {text}: {run:?}");
        }
    }
    // None of it has left anything, and none of it has changed anything.
    assert_eq!(place.ok("queues"), "orders\n");
    assert!(!place.path().join("nothing.db").exists());
    let letter = std::fs::read_to_string(place.path().join("letter.txt")).unwrap();
    assert_eq!(letter, "Dear diary, ".repeat(500));
}

#[test]
fn without_a_url_an_error_says_which_was_tried() {
    let place = Place::new();
    let run = place.run("stats");
    assert_eq!(run.code, 1);
    assert!(run.stderr.contains("No --url was given"), "{run:?}");
    assert!(run.stderr.contains("sqlite:pillarbox.db"), "{run:?}");
    let run = place.run("stats --url sqlite:other.db");
    assert!(!run.stderr.contains("No --url was given"), "{run:?}");
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn wrong_usage_is_2_and_changes_nothing() {
    let place = Place::new().with_orders();
    let before = place.ok("dump orders");
    let receipt = format!("{}.AAAAAAAAAAAAAAAA", id(1));
    for (line, says) in [
        ("", "Usage:"),
        ("sned orders x", "a similar subcommand exists: 'send'"),
        ("send orders", "required arguments"),
        ("send orders x --file f", "cannot be used with"),
        ("send orders! x", "contains '!'"),
        ("send orders x --delay 5", "the unit is missing: 5s, 5m or 5h?"),
        ("send orders x --delay soon", "write it as 1500ms, 30s"),
        ("send orders x --attr novalue", "NAME=VALUE"),
        ("send orders x --id 17", "a UUID"),
        ("send orders x --attr a=1 --attr a=2", "'a' is given twice"),
        (&format!("extend orders {receipt} 13h"), "0 to 43200 s"),
        ("stats --watch 500ms", "--watch=500ms"),
        ("stats --watch=0s", "at least 100ms"),
        ("queues --url jobs.db", "a file is written sqlite:PATH"),
        ("move orders sqlite:other.db orders --visibility 5ms", "at least 1s"),
        ("receive orders --max 0", "at least 1"),
        ("receive orders --visibility 13h", "visibility"),
        ("peek orders --max none", "a whole number"),
        ("nack orders", "required arguments"),
        ("purge orders", "say --yes"),
        ("top", "needs a terminal"),
        ("move orders memory: orders", "would be gone"),
        ("move orders kafka://x orders", "unknown scheme"),
        ("queues --url nonsense", "there is no scheme"),
        ("queues --url sqlite:f?cache=1", "unknown option"),
        ("completions tcsh", "possible values: bash"),
        ("bench --batch 5000", "batch size"),
        ("demo --tasks 0", "at least 1"),
    ] {
        let run = place.run(line);
        assert_eq!(run.code, 2, "{line}: {run:?}");
        assert!(run.stderr.contains(says), "{line}: {run:?}");
    }
    assert_eq!(place.ok("dump orders"), before);
}

#[test]
fn nothing_received_is_3() {
    let place = Place::new().with_orders();
    place.ok("drain orders");
    for line in ["receive orders", "receive orders --wait 100ms", "receive nothing --json"] {
        let run = place.run(line);
        assert_eq!((run.code, run.stdout.as_str()), (3, ""), "{line}: {run:?}");
    }
}

#[test]
fn a_password_is_never_printed() {
    let place = Place::new();
    let secret = "kafka://me:hunter2@host?token=hunter2";
    for line in [
        format!("queues --url {secret}"),
        format!("-vvv stats --url {secret}"),
        format!("doctor --url {secret} --json"),
        format!("move orders {secret} orders"),
        format!("queues {secret}"),
        format!("stats {secret}"),
        format!("receive {secret} --max {secret}"),
        format!("send --delay={secret} q x"),
        "queues --url sqlite:x.db?password=hunter2".to_owned(),
        "queues --url sqlite://me:hunter2@host/x.db".to_owned(),
        "move q sqlite:other.db?key=hunter2 q".to_owned(),
    ] {
        let run = place.run(&line);
        assert_ne!(run.code, 0, "{line}");
        assert!(!format!("{run:?}").contains("hunter2"), "{run:?}");
    }
    for line in ["--help", "send --help", "queues", "queues --nonsense"] {
        let mut command = place.command(line.split_whitespace());
        let run = common::finish(command.env("PILLARBOX_URL", secret).spawn().unwrap());
        assert!(!format!("{run:?}").contains("hunter2"), "{run:?}");
    }
}

#[test]
fn the_environment_names_the_backend_and_the_command_line_overrules_it() {
    let place = Place::new();
    let run = |line: &str| {
        let mut command = place.command(line.split_whitespace());
        common::finish(command.env("PILLARBOX_URL", "sqlite:env.db").spawn().unwrap())
    };
    assert_eq!(run("send q x").code, 0);
    assert_eq!(run("queues").stdout, "q\n");
    assert_eq!(run("send other x --url sqlite:line.db").code, 0);
    assert_eq!(run("queues -u sqlite:line.db").stdout, "other\n");
    let mut command = place.command(["queues"]);
    let empty = common::finish(command.env("PILLARBOX_URL", "").spawn().unwrap());
    assert!(empty.stderr.contains("so sqlite:pillarbox.db was tried"), "{empty:?}");
    assert!(!place.path().join("pillarbox.db").exists());
}
