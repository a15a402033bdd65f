//! Several processes on one file: commands alongside each other and a program.

#![cfg(unix)]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Place, eventually, finish, lines, signal, until_it_listens};
use pillarbox::{Mailbox, Mailboxes, Receive};
use serde_json::Value;

async fn open(place: &Place) -> (Mailboxes, Mailbox<Value>) {
    let backend = pillarbox::open(&place.url("pillarbox.db")).await.unwrap();
    let jobs = backend.mailbox("jobs").unwrap();
    (backend, jobs)
}

/// The program has the file open all the time, and sees the effect of each command.
#[tokio::test]
async fn every_command_works_while_a_program_has_the_file_open() {
    let place = Place::new();
    let (backend, jobs) = open(&place).await;
    let counts = async || {
        let counts = jobs.counts().await.unwrap();
        (counts.ready, counts.in_flight, counts.delayed)
    };
    jobs.send(&1.into()).await.unwrap();
    assert_eq!(place.ok("queues"), "jobs\n");
    place.ok("send jobs 2");
    place.ok("send jobs 3 --delay 1h");
    assert_eq!(counts().await, (2, 0, 1));
    assert_eq!(lines(&place.ok("stats --json"))[0]["ready"], 2);
    assert_eq!(lines(&place.ok("peek jobs --json")).len(), 3);

    // A receipt is valid in both processes.
    let ours = jobs.receive(Receive::one()).await.unwrap().into_iter().next().unwrap();
    place.ok(&format!("extend jobs {} 1h", ours.receipt()));
    place.ok(&format!("ack jobs {}", ours.receipt()));
    assert!(ours.acknowledge().await.is_err());
    let theirs = lines(&place.ok("receive jobs --json")).remove(0);
    assert_eq!((&theirs["body"], counts().await), (&2.into(), (0, 1, 1)));
    let receipt = theirs["receipt"].as_str().unwrap();
    place.ok(&format!("nack jobs {receipt}"));
    assert!(jobs.acknowledge(&receipt.parse().unwrap()).await.is_err());
    let again = jobs.receive(Receive::one()).await.unwrap().into_iter().next().unwrap();
    assert_eq!((again.body(), again.delivery_count()), (&2.into(), 2));
    again.nack(Duration::ZERO).await.unwrap();

    let dumped = place.ok("dump jobs");
    assert_eq!(lines(&dumped).len(), 2);
    assert_eq!(lines(&place.ok("drain jobs")).len(), 1);
    assert_eq!(counts().await, (0, 0, 1));
    place.ok_with_input("load jobs", &dumped);
    assert_eq!(counts().await, (1, 0, 1));
    place.ok("move jobs sqlite:pillarbox.db others --no-wait");
    assert_eq!(counts().await, (0, 0, 1));
    assert!(place.ok("doctor --fix").contains("No problems found."));
    place.ok("bench --duration 100ms");
    place.ok("purge jobs --yes");
    assert_eq!(counts().await, (0, 0, 0));
    backend.close().await;
}

#[tokio::test]
async fn a_receive_waits_for_a_message_of_another_process() {
    let place = Place::new();
    place.ok("send other x");
    let waiting = place.start("receive jobs --wait 60s --json --ack");
    let started = Instant::now();
    until_it_listens(&waiting);
    // It waits by now, or will find the message at once.
    std::thread::sleep(Duration::from_millis(200));
    place.ok("send jobs {\"n\":1}");
    let run = finish(waiting);
    assert_eq!((run.code, &lines(&run.stdout)[0]["body"]["n"]), (0, &1.into()));
    assert!(started.elapsed() < Duration::from_secs(50), "it waited until the end");
}

/// Starts a receive that waits.
fn start_waiting(place: &Place) -> Child {
    let child = place.start("receive jobs --wait 10m --visibility 12h --json");
    until_it_listens(&child);
    child
}

#[test]
fn an_interrupted_receive_ends_with_130_and_holds_nothing() {
    let place = Place::new();
    place.ok("send other x");
    for name in ["INT", "TERM", "HUP"] {
        let child = start_waiting(&place);
        signal(&child, name);
        let run = finish(child);
        assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (130, "", ""), "{name}");
    }
}

/// A message that is sent while the receiver is interrupted is either printed or ready for others.
#[tokio::test]
async fn an_interrupted_receive_leaves_only_printed_messages_in_flight() {
    let place = Place::new();
    let (_backend, jobs) = open(&place).await;
    let (mut printed, mut left) = (0, 0);
    // The timing is random: repeat until both cases have happened several times.
    for round in 0..200u64 {
        if round >= 30 && printed > 0 && left > 0 {
            break;
        }
        let child = start_waiting(&place);
        let body = round.into();
        let interrupt = async {
            tokio::time::sleep(Duration::from_micros(round % 40 * 700)).await;
            signal(&child, "INT");
        };
        tokio::join!(async { jobs.send(&body).await.unwrap() }, interrupt);
        let run = finish(child);
        let counts = jobs.counts().await.unwrap();
        if run.code == 0 {
            assert_eq!(lines(&run.stdout)[0]["body"], round, "{run:?}");
            assert_eq!((counts.ready, counts.in_flight), (0, 1), "{run:?}");
            printed += 1;
        } else {
            assert_eq!((run.code, run.stdout.as_str()), (130, ""), "{run:?}");
            assert_eq!((counts.ready, counts.in_flight), (1, 0), "{run:?}");
            left += 1;
        }
        jobs.purge().await.unwrap();
    }
    println!("{printed} printed, {left} left");
    assert!(printed > 0 && left > 0, "{printed} printed, {left} left: too late or too early");
}

#[test]
fn a_closed_pipe_is_an_error_only_for_a_drain_and_loses_nothing() {
    let place = Place::new();
    let bodies: String = (0..20_000).map(|n| format!("\"{n} {}\"\n", "x".repeat(200))).collect();
    place.ok_with_input("send jobs --file -", bodies);
    for line in ["peek jobs --max 20000", "dump jobs", "drain jobs", "receive jobs -n 20000 --json"]
    {
        let mut child = place.start(line);
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        stdout.read_line(&mut first).unwrap();
        assert!(!first.is_empty(), "{line}");
        drop(stdout);
        let run = finish(child);
        if line.starts_with("drain") {
            // Acknowledged messages may be lost.
            assert_eq!(run.code, 1, "{run:?}");
            assert!(run.stderr.contains("written and acknowledged"), "{run:?}");
        } else {
            assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{line}");
        }
    }
    // At most the contents of the pipe and the buffers were drained before it was closed. The rest is still there.
    let stats = &lines(&place.ok("stats jobs --json"))[0];
    let (ready, in_flight) =
        (stats["ready"].as_u64().unwrap(), stats["in_flight"].as_u64().unwrap());
    assert!(ready > 15_000 && in_flight > 0 && in_flight < 2_000, "{stats}");
}

#[test]
fn messages_that_cannot_be_written_are_released() {
    let place = Place::new().with_orders();
    for line in ["drain orders", "receive orders --max 2", "receive orders --max 2 --ack --json"] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = place.command(line.split_whitespace());
        let run = finish(command.stdout(Stdio::from(full)).spawn().unwrap());
        assert_eq!(run.code, 1, "{line}: {run:?}");
        assert!(run.stderr.contains("cannot write to stdout"), "{line}: {run:?}");
        assert!(run.stderr.contains("not written are back in the queue"), "{line}: {run:?}");
        let stats = lines(&place.ok("stats orders --json")).remove(0);
        assert_eq!((&stats["ready"], &stats["in_flight"]), (&2.into(), &0.into()), "{line}");
    }
}

/// A server that accepts connections and never answers.
#[test]
fn a_command_that_waits_for_a_server_can_be_interrupted() {
    let place = Place::new().with_orders();
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    for line in [format!("move orders {url} orders"), format!("demo --url {url}")] {
        let child = place.start(&line);
        until_it_listens(&child);
        signal(&child, "INT");
        let run = finish(child);
        assert_eq!(run.code, 130, "{line}: {run:?}");
    }
}

#[test]
fn the_log_has_no_colours_in_a_pipe() {
    let run = Place::new().with_orders().run("-v stats");
    assert!(run.stderr.contains("INFO") && !run.stderr.contains('\x1b'), "{run:?}");
}

#[test]
fn watched_stats_end_when_interrupted() {
    let place = Place::new().with_orders();
    let mut child = place.start("stats --watch=100ms --json");
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut next = || {
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        lines(&line).remove(0)
    };
    assert_eq!(next()["ready"], 2);
    place.ok("send orders x");
    eventually("the new message is counted", || next()["ready"] == 3);
    signal(&child, "INT");
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn an_interrupted_demo_finishes_running_tasks_and_keeps_the_rest() {
    let place = Place::new();
    let mut child = place.start("demo --url sqlite:pillarbox.db");
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    stdout.read_line(&mut first).unwrap();
    signal(&child, "INT");
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let done = rest.lines().chain([first.trim()]).filter(|line| line.contains("done in")).count();
    assert!(rest.contains(&format!("succeeded      {done}\n")), "{rest}");
    let stats = lines(&place.ok("stats demo --json")).remove(0);
    assert_eq!(stats["in_flight"], 0, "{stats}");
    let held = stats["ready"].as_u64().unwrap() + stats["delayed"].as_u64().unwrap();
    assert_eq!(held as usize, 100 - done, "{rest}");
}

#[test]
fn a_demo_whose_tasks_are_taken_away_ends() {
    let place = Place::new();
    let mut child = place.start("demo --url sqlite:pillarbox.db");
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    stdout.read_line(&mut first).unwrap();
    place.ok("purge demo --yes");
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{rest}");
    let shown = format!("{first}{rest}");
    let done = shown.lines().filter(|line| line.contains("done in")).count();
    assert!(done < 100 && shown.contains(&format!("succeeded      {done}\n")), "{shown}");
    assert!(shown.contains("lost attempt 1: its lease expired"), "{shown}");
}

/// Delays end during a pass, so that delayed messages become ready behind the position of the pass.
#[test]
fn a_dump_includes_messages_that_change_their_state_meanwhile() {
    let place = Place::new();
    let bodies: String = (0..6000).map(|n| format!("\"{n} {}\"\n", "x".repeat(100))).collect();
    place.ok_with_input("send jobs --file - --delay 4s", bodies);
    let mut child = place.start("dump jobs");
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut dump = String::new();
    stdout.read_line(&mut dump).unwrap();
    assert!(dump.contains("\"delayed\""), "the machine was too slow: {dump}");
    // It blocks while nobody reads.
    eventually("all are ready", || place.ok("stats --json").contains("\"ready\":6000"));
    stdout.read_to_string(&mut dump).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let ids: std::collections::HashSet<_> =
        lines(&dump).into_iter().map(|line| line["id"].to_string()).collect();
    assert_eq!((ids.len(), dump.lines().count()), (6000, 6000));
}

/// Lines of a pipe are sent as they arrive; an interrupt reports the number sent.
#[test]
fn interrupted_sends_and_loads_report_their_progress() {
    let place = Place::new();
    for line in ["send jobs --file -", "load jobs"] {
        let mut command = place.command(line.split_whitespace());
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let bodies: String = (0..1500).map(|n| format!("{{\"body\":{n}}}\n")).collect();
        std::io::Write::write_all(&mut stdin, bodies.as_bytes()).unwrap();
        eventually("all are in", || {
            place.run("stats jobs --json").stdout.contains("\"ready\":1500")
        });
        signal(&child, "INT");
        let run = finish(child);
        drop(stdin);
        assert_eq!(run.code, 130, "{line}: {run:?}");
        assert!(run.stderr.contains("1500 messages were"), "{line}: {run:?}");
        if line.starts_with("send") {
            assert_eq!(run.stdout.lines().count(), 1500);
        }
        place.ok("purge jobs --yes");
    }
}

#[test]
fn an_interrupted_bench_prints_its_measurements() {
    let place = Place::new();
    let child = place.start("bench --duration 1h --json");
    until_it_listens(&child);
    eventually("it runs", || place.run("queues").stdout.contains("pillarbox-bench"));
    std::thread::sleep(Duration::from_millis(100));
    signal(&child, "INT");
    let run = finish(child);
    assert_eq!(run.code, 130, "{run:?}");
    assert!(lines(&run.stdout).iter().all(|line| line["calls"].as_u64() > Some(0)), "{run:?}");
    assert_eq!(place.ok("queues"), "");
}

/// All messages are sent even if the reader of the ids is gone.
#[test]
fn a_closed_output_does_not_stop_a_send() {
    let place = Place::new();
    let bodies: String = (0..40_000).map(|n| format!("{n}\n")).collect();
    std::fs::write(place.path().join("bodies.jsonl"), bodies).unwrap();
    let mut child = place.start("send jobs --file bodies.jsonl");
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    stdout.read_line(&mut first).unwrap();
    drop(stdout);
    let run = finish(child);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{run:?}");
    assert!(place.ok("stats jobs --json").contains("\"ready\":40000,"));

    // Another write error is reported after all messages are sent.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = place.command(["send", "more", "--file", "bodies.jsonl"]);
    let run = finish(command.stdout(Stdio::from(full)).spawn().unwrap());
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("cannot write to stdout"), "{run:?}");
    assert!(run.stderr.contains("40000 messages were sent"), "{run:?}");
    assert!(place.ok("stats more --json").contains("\"ready\":40000,"));
}

/// The stdout of a program that is started without one is /dev/null.
#[test]
fn a_drain_without_an_output_deletes_nothing() {
    let place = Place::new().with_orders();
    let before = place.ok("dump orders");
    for redirection in [">&-", "> /dev/null"] {
        let run = place.shell(&format!("exec pillarbox drain orders {redirection}"));
        assert_eq!(run.code, 2, "{redirection}: {run:?}");
        assert!(run.stderr.contains("nothing was drained"), "{redirection}: {run:?}");
        assert!(run.stderr.contains("purge"), "{redirection}: {run:?}");
        assert_eq!(place.ok("dump orders"), before, "{redirection}");
    }
    // To a named file, without a stdout.
    let run = place.shell("exec pillarbox drain orders --output o.jsonl >&-");
    assert_eq!(run.code, 0, "{run:?}");
    let drained = std::fs::read_to_string(place.path().join("o.jsonl")).unwrap();
    assert_eq!(drained.lines().count(), 2);
}

#[test]
fn errors_are_printed_even_if_results_cannot_be() {
    let place = Place::new();
    let bodies: String = (0..1_500).map(|n| format!("{n}\n")).collect();
    place.ok_with_input("send jobs --file -", bodies);
    let received = lines(&place.ok("receive jobs -n 1500 --json"));
    let mut args = vec!["ack".to_owned(), "jobs".to_owned(), "--json".to_owned()];
    args.extend(received.iter().map(|line| line["receipt"].as_str().unwrap().to_owned()));
    args.push(format!("{}.AAAAAAAAAAAAAAAA", crate::common::id(1)));
    let mut child = place.command(&args).spawn().unwrap();
    drop(child.stdout.take());
    let run = finish(child);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("no longer valid"), "{run:?}");
    assert!(place.ok("stats jobs --json").contains("\"in_flight\":0"));
}
