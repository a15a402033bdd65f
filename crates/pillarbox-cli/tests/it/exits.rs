//! Exit codes and error texts.

use crate::common::{Place, finish, id};

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
    std::fs::write(place.path().join("diary.txt"), "Dear diary, ".repeat(500)).unwrap();
    std::fs::write(place.path().join("bad.jsonl"), "{\"body\":1}\n{\"body\":2\n").unwrap();
    std::fs::write(place.path().join("odd.jsonl"), "[1]\n").unwrap();
    for (line, says) in [
        ("queues --url sqlite:nothing.db", vec!["there is no file", "nothing.db"]),
        ("queues --url sqlite:no/where.db", vec!["create the directory first"]),
        ("send q x --url sqlite:diary.txt", vec!["is not a SQLite database", "not touched"]),
        (&format!("ack orders {receipt}"), vec!["no longer valid", "'orders'"]),
        ("ack orders foo", vec!["'foo' is not a receipt", "`pillarbox receive` prints"]),
        ("nack orders foo bar", vec!["'foo' is not a receipt", "'bar' is not a receipt"]),
        (&format!("nack orders {receipt}"), vec!["no longer valid"]),
        (&format!("extend orders {receipt} 5m"), vec!["no longer valid"]),
        ("load q nothing.jsonl", vec!["cannot read nothing.jsonl", "No such file"]),
        ("load q bad.jsonl", vec!["line 2 of bad.jsonl", "EOF", "nothing was sent"]),
        (
            "send q --file bad.jsonl",
            vec!["line 2 of bad.jsonl", "not valid JSON", "nothing was sent"],
        ),
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
    // Nothing was created or changed.
    assert_eq!(place.ok("queues"), "orders\n");
    assert!(!place.path().join("nothing.db").exists());
    let diary = std::fs::read_to_string(place.path().join("diary.txt")).unwrap();
    assert_eq!(diary, "Dear diary, ".repeat(500));
}

#[test]
fn without_a_url_an_error_names_the_default() {
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
fn an_empty_url_on_the_command_line_is_refused() {
    let place = Place::new();
    for variable in [None, Some("sqlite:env.db")] {
        let mut command = place.command(["send", "q", "x", "--url", ""]);
        command.envs(variable.map(|url| ("PILLARBOX_URL", url)));
        let run = finish(command.spawn().unwrap());
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{run:?}");
        assert!(run.stderr.contains("--url is empty: give a URL"), "{run:?}");
    }
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn only_a_file_with_an_invalid_line_can_be_loaded_from_a_pipe_instead() {
    let place = Place::new();
    std::fs::write(place.path().join("bad.jsonl"), "{\"body\":1}\n{\"body\":2\n").unwrap();
    std::fs::write(place.path().join("latin1.jsonl"), b"{\"body\":\"\xe9\"}\n").unwrap();
    for (file, advised) in [("bad.jsonl", true), ("latin1.jsonl", false), ("nothing", false)] {
        let run = place.run(&format!("load q {file}"));
        assert_eq!(run.code, 1, "{run:?}");
        assert_eq!(run.stderr.contains("loads the other lines"), advised, "{run:?}");
    }
    let other = place.shell("pillarbox load q < bad.jsonl");
    assert_eq!((other.code, other.stdout.as_str()), (1, "1 message loaded\n"), "{other:?}");
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
        ("send orders x --delay soon", "expected a duration such as 1500ms, 30s"),
        ("send orders x --delay -1s", "expected a duration such as 1500ms, 30s"),
        ("receive orders --visibility -1", "expected a duration such as 1500ms, 30s"),
        ("send orders x --reply-to bad!name", "contains '!'"),
        ("send orders x --attr novalue", "NAME=VALUE"),
        ("send orders x --id 17", "a UUID"),
        ("send orders x --attr a=1 --attr a=2", "'a' is given twice"),
        (&format!("extend orders {receipt} 13h"), "0 to 43200 s"),
        ("stats --watch 500ms", "--watch=500ms"),
        ("stats --watch=0s", "at least 100ms"),
        ("queues --url jobs.db", "the URL of a file is sqlite:PATH"),
        ("move orders sqlite:other.db orders --visibility 5ms", "at least 1s"),
        ("receive orders --max 0", "at least 1"),
        ("receive orders --visibility 13h", "visibility"),
        ("peek orders --max none", "expected an integer"),
        ("nack orders", "required arguments"),
        ("purge orders", "add --yes"),
        ("top", "needs a terminal"),
        ("move orders memory: orders", "would be lost"),
        ("move orders kafka://x orders", "unknown scheme"),
        ("queues --url nonsense", "there is no scheme"),
        ("queues --url sqlite:f?cache=1", "unknown option"),
        ("completions tcsh", "possible values: bash"),
        ("queues --url redis://h?partitions=1001", "an integer from 1 to 1000"),
        ("queues --url redis://h?response_timeout=1e9", "0.001 to 86400 seconds"),
        ("bench --batch 5000", "batch size"),
        ("bench -s 99999999999", "use at most 900000000 bytes"),
        ("bench -s 99999999999 --url memory:", "use at most 1073741824 bytes"),
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
        let run = finish(command.env("PILLARBOX_URL", secret).spawn().unwrap());
        assert!(!format!("{run:?}").contains("hunter2"), "{run:?}");
    }
}

#[test]
fn the_command_line_overrides_the_url_of_the_environment() {
    let place = Place::new();
    let run = |line: &str| {
        let mut command = place.command(line.split_whitespace());
        finish(command.env("PILLARBOX_URL", "sqlite:env.db").spawn().unwrap())
    };
    assert_eq!(run("send q x").code, 0);
    assert_eq!(run("queues").stdout, "q\n");
    assert_eq!(run("send other x --url sqlite:line.db").code, 0);
    assert_eq!(run("queues -u sqlite:line.db").stdout, "other\n");
    let mut command = place.command(["queues"]);
    let empty = finish(command.env("PILLARBOX_URL", "").spawn().unwrap());
    assert!(empty.stderr.contains("so sqlite:pillarbox.db was tried"), "{empty:?}");
    assert!(!place.path().join("pillarbox.db").exists());
}

/// Asserts that the output has no control characters other than line ends.
#[track_caller]
fn assert_harmless(run: &crate::common::Run, what: &str) {
    for text in [&run.stdout, &run.stderr] {
        let bad = text.chars().find(|c| c.is_control() && *c != '\n' || *c == '\u{202e}');
        assert_eq!(bad, None, "{what}: {run:?}");
    }
}

#[test]
fn control_characters_of_names_and_files_never_reach_the_terminal() {
    const EVIL: &str = "a\u{1b}[2J\u{9b}31m\r\u{7}\u{7f}\u{202e}b";
    let place = Place::new().with_orders();
    std::fs::write(place.path().join("d.jsonl"), "{\"input\":1,\"expected\":1}\n").unwrap();
    let url = format!("sqlite:{EVIL}.db");
    let run = format!("{EVIL}.run");
    for args in [
        vec!["load", "q", EVIL],
        vec![EVIL],
        vec!["send", "q", "x", "--delay", EVIL],
        vec!["queues", "--url", &url],
        vec!["send", "q", "x", "--attr", "a\u{1b}[2J=1", "--attr", "a\u{1b}[2J=2"],
        vec!["send", "orders", "x", "--url", &url],
        vec!["queues", "--url", &url, "-vv"],
        vec!["peek", "nothing", "--url", &url],
        vec!["doctor", "--url", &url],
        vec!["dlq", "stats", "--url", &url],
        vec!["bench", "--duration", "100ms", "--url", &url],
        vec!["move", "orders", &url, "orders", "--no-wait"],
        vec!["man", EVIL],
        vec!["eval", "submit", &run, "d.jsonl", "--requests", "q", "-e", EVIL],
        vec!["eval", "collect", &run, "--timeout", "100ms"],
        vec!["eval", "report", &run, "--fail-under", "1"],
        vec!["dump", "orders", "--output", "no/such/\u{1b}[2J"],
    ] {
        let run = place.run_args(&args);
        assert_harmless(&run, &format!("{args:?}"));
        assert!(!format!("{}{}", run.stdout, run.stderr).is_empty(), "{args:?}");
    }
    // They are escaped, not left out.
    let run = place.run_args(&["load", "q", EVIL]);
    let escaped = r"cannot read a\u{1b}[2J\u{9b}31m\r\u{7}\u{7f}\u{202e}b";
    assert!(run.stderr.contains(escaped), "{run:?}");
}

/// Answers every call with an error that contains control characters.
fn evil_server() -> u16 {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(1..) = stream.read(&mut bytes) {
                    let answer = "-NOPERM \u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}1m no\r\n".repeat(8);
                    if stream.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

#[test]
fn control_characters_of_a_server_never_reach_the_terminal() {
    let place = Place::new();
    let url = format!("redis://127.0.0.1:{}?retry_for=0.2", evil_server());
    for line in ["queues", "send q x", "-vvv stats", "receive q", "doctor"] {
        let run = place.run(&format!("{line} --url {url}"));
        assert_ne!(run.code, 0, "{line}: {run:?}");
        assert!(run.stderr.contains("owned"), "{line}: {run:?}");
        assert_harmless(&run, line);
    }
}

#[test]
fn a_password_that_is_a_common_word_is_hidden_only_in_urls() {
    let place = Place::new();
    let closed = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = closed.local_addr().unwrap().port();
    drop(closed);
    for word in ["running", "redis", "is", "it", "1", "127"] {
        let url = format!("redis://me:{word}@127.0.0.1:{port}?retry_for=0.1");
        let run = place.run(&format!("queues --url {url}"));
        assert_eq!(run.code, 1, "{run:?}");
        let plain = place.run(&format!("queues --url redis://127.0.0.1:{port}?retry_for=0.1"));
        assert_eq!(run.stderr, plain.stderr, "{word}");
    }
    let run = place.run("queues --url sqlite://me:database@host/x.db");
    assert!(!run.stderr.contains("me:database@") && run.stderr.contains("me:***@"), "{run:?}");
}

/// Other users can see a URL on the command line.
#[test]
fn urls_can_come_from_the_environment_or_a_file() {
    let place = Place::new().with_orders();
    std::fs::write(place.path().join("target.url"), "sqlite:other.db\n").unwrap();
    let run = |line: &str| {
        let mut command = place.command(line.split_whitespace());
        finish(command.env("TARGET", "sqlite:other.db").env("NONE", "").spawn().unwrap())
    };
    let moved = run("move orders env:TARGET jobs --max 1");
    assert_eq!((moved.code, moved.stdout.contains("at sqlite:other.db")), (0, true), "{moved:?}");
    let moved = run("move orders file:target.url jobs --max 1");
    assert_eq!((moved.code, moved.stdout.contains("at sqlite:other.db")), (0, true), "{moved:?}");
    assert_eq!(run("queues --url env:TARGET").stdout, "jobs\n");
    assert_eq!(run("queues --url file:target.url").stdout, "jobs\n");
    let mut command = place.command(["queues"]);
    let queues = finish(command.env("PILLARBOX_URL", "file:target.url").spawn().unwrap());
    assert_eq!(queues.stdout, "jobs\n", "{queues:?}");
    let replayed = run("dlq replay nothing-dlq --yes --to jobs --to-url file:target.url");
    assert!(replayed.code == 0 && replayed.stdout.contains("sqlite:other.db"), "{replayed:?}");

    let two = "redis://:hunter2@h\nredis://:hunter2@i\n";
    std::fs::write(place.path().join("two.url"), two).unwrap();
    std::fs::write(place.path().join("long.url"), "hunter2".repeat(20_000)).unwrap();
    for (url, says) in [
        ("env:TARGETS", "the environment variable TARGETS is not set"),
        ("env:", "use env:NAME"),
        ("file:", "use file:PATH"),
        ("env:NONE", "NONE is empty"),
        ("file:nothing.url", "nothing.url"),
        ("file:two.url", "two.url is not a file with a URL on one line"),
        ("file:long.url", "long.url is not a file with a URL on one line"),
        ("file:pillarbox.db", "the URL of a SQLite file is sqlite:pillarbox.db"),
    ] {
        let lines = [
            format!("move orders {url} jobs"),
            format!("dlq replay q-dlq --yes --to-url {url}"),
            format!("queues --url {url}"),
        ];
        for line in lines {
            let refused = run(&line);
            assert_eq!(refused.code, 2, "{line}: {refused:?}");
            assert!(refused.stderr.contains(says), "{line}: {refused:?}");
            assert!(!refused.stderr.contains("hunter2"), "{line}: {refused:?}");
        }
    }
    // A password from there is not printed either.
    std::fs::write(place.path().join("secret.url"), "kafka://me:hunter2@host").unwrap();
    let refused = run("move orders file:secret.url jobs");
    assert!(refused.code == 2 && !refused.stderr.contains("hunter2"), "{refused:?}");
}

#[test]
fn control_characters_of_an_invalid_command_line_are_escaped() {
    let place = Place::new();
    for args in [&["na\u{1b}]0;x\u{7}me"][..], &["send", "na\u{1b}[31mme", "1"]] {
        let run = place.run_args(args);
        assert_eq!(run.code, 2, "{run:?}");
        assert!(!run.stderr.contains(['\u{1b}', '\u{7}']), "{run:?}");
    }
}
