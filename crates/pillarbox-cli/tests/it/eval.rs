//! `pillarbox eval`: submit, collect, report, and errors.

#![cfg(unix)]

use crate::common::{Place, eventually, finish, signal, until_it_listens};
use pillarbox::Runnable;
use pillarbox::evals::{EvalLoop, EvalRequests, exact_match};
use pillarbox::loops::{MainLoop, MainLoopRequest, MainLoopResult, Run};
use pillarbox::{Mailbox, Mailboxes};
use serde_json::{Value, json};

/// Dataset of twenty sums; the model is wrong for every fifth.
fn with_dataset() -> Place {
    let place = Place::new();
    let mut lines = String::new();
    for n in 0..20 {
        let line = json!({"id": format!("sum-{n}"), "input": {"a": n, "b": 2}, "expected": n + 2});
        lines += &format!("{line}\n");
    }
    std::fs::write(place.path().join("sums.jsonl"), lines).unwrap();
    place
}

fn add(input: &Value, run: &Run) -> Value {
    let (a, b) = (input["a"].as_i64().unwrap(), input["b"].as_i64().unwrap());
    let wrong = run.resources().get::<i64>("wrong").unwrap_or(5);
    json!(a + b + i64::from(a % wrong == 0))
}

/// Runs `work` while a worker is running.
fn beside<T>(
    place: &Place,
    start: impl FnOnce(&Mailboxes) -> pillarbox::Running,
    work: impl FnOnce() -> T,
) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let backend = runtime.block_on(pillarbox::open(&place.url("pillarbox.db"))).unwrap();
    let running = runtime.block_on(async { start(&backend) });
    let done = work();
    runtime.block_on(async {
        running.stop().await.unwrap();
        backend.close().await;
    });
    done
}

fn scoring(backend: &Mailboxes) -> pillarbox::Running {
    let requests: EvalRequests<Value, Value> = backend.mailbox("sums").unwrap();
    EvalLoop::from_adapter(
        |input: Value, run: Run| async move { add(&input, &run) },
        exact_match,
        requests,
    )
    .start()
}

fn answering(backend: &Mailboxes) -> pillarbox::Running {
    let requests: Mailbox<MainLoopRequest<Value>, MainLoopResult<Value>> =
        backend.mailbox("sums").unwrap();
    MainLoop::new(requests, |input: Value, run: Run| async move { add(&input, &run) }).start()
}

/// Replaces the run id and times.
fn steady(text: &str) -> String {
    let words = text.split_inclusive(char::is_whitespace).map(|word| {
        let bare = word.trim();
        let is_run = bare.len() >= 22 && bare.starts_with("20") && bare.contains('T');
        if is_run {
            word.replace(bare, if bare.ends_with(':') { "RUN:" } else { "RUN" })
        } else {
            word.to_owned()
        }
    });
    let mut text: String = words.collect();
    // The width of the columns depends on the times.
    while let Some(place) = text.find(" µs").or_else(|| text.find(" ms")) {
        let start =
            text[..place].rfind(|c: char| !c.is_ascii_digit() && c != '.').map_or(0, |at| at + 1);
        let length = if text[place..].starts_with(" µ") { 4 } else { 3 };
        text.replace_range(start..place + length, "TIME");
    }
    let lines = text.lines().map(|line| {
        let is_table = line.contains("TIME") || line.contains("MEAN SCORE");
        if is_table {
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        } else {
            line.to_owned()
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_run_is_submitted_collected_and_reported() {
    let place = with_dataset();
    let two = r#"eval submit run sums.jsonl --requests sums -e small -e large={"wrong":10}"#;
    let said = place.ok(two);
    insta::assert_snapshot!(steady(&said), @"run RUN: 40 samples sent to sums");
    // Nothing is sent twice, and arguments default to those of the run.
    let said = place.ok("eval submit run");
    insta::assert_snapshot!(steady(&said), @"run RUN: 0 samples sent to sums, 40 sent before");

    let run = place.run("eval collect run --timeout 100ms");
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("40 of 40 results are missing"), "{run:?}");
    assert!(run.stderr.contains("queue 'sums' has 40 messages"), "{run:?}");
    // The limits for CI fail.
    let run = place.run("eval report run --fail-under 0");
    assert!(run.code == 1 && run.stderr.contains("not complete"), "{run:?}");

    let said = beside(&place, scoring, || place.ok("eval collect run --timeout 60s"));
    insta::assert_snapshot!(steady(&said), @"
    run RUN: 34 of 40 passed, 6 not passed

    EXPERIMENT SAMPLES PASSED PASS RATE 95 % MEAN SCORE P50 P95 P99
    small 20 16 80.0% 58.4% to 91.9% 0.800 TIME TIME TIME
    large 20 18 90.0% 69.9% to 97.2% 0.900 TIME TIME TIME

    large against small, 20 samples: 2 gained, 0 lost
      pass rate   +10.0 points (95 %: -8.1 points to +29.4 points): not significant
      mean score  +0.100 (95 %: -0.044 to +0.244): not significant

    SAMPLE  EXPERIMENT  STATUS      SCORE  REASON
    sum-0   small       not passed   0.00  expected 2, got 3
    sum-5   small       not passed   0.00  expected 7, got 8
    sum-10  small       not passed   0.00  expected 12, got 13
    sum-15  small       not passed   0.00  expected 17, got 18
    sum-0   large       not passed   0.00  expected 2, got 3
    sum-10  large       not passed   0.00  expected 12, got 13
    ");
    // Again, without a worker: all results are there.
    assert_eq!(place.ok("eval collect run"), said);
    assert_eq!(place.ok("eval report run"), said);
}

#[test]
fn a_report_has_every_format_and_can_fail_a_build() {
    let place = with_dataset();
    place.ok(
        r#"eval submit run sums.jsonl --requests sums -e good={"wrong":100} -e bad={"wrong":2}"#,
    );
    beside(&place, scoring, || place.ok("eval collect run --timeout 60s --json"));
    let report: Value = serde_json::from_str(&place.ok("eval report run --json")).unwrap();
    assert_eq!((&report["total"], &report["passed"]), (&json!(40), &json!(29)));
    assert_eq!(report["comparisons"][0]["lost"], 9);
    let html = place.ok("eval report run --format html");
    assert!(html.starts_with("<!doctype html>") && html.contains("sum-4"), "{html}");
    for (file, begins) in [
        ("r.html", "<!doctype html>"),
        ("r.xml", "<?xml"),
        ("r.json", "{\"run_id\""),
        ("r.txt", "run 20"),
    ] {
        assert_eq!(place.ok(&format!("eval report run --output {file}")), "");
        let text = std::fs::read_to_string(place.path().join(file)).unwrap();
        assert!(text.starts_with(begins), "{file}: {text}");
    }
    let xml = std::fs::read_to_string(place.path().join("r.xml")).unwrap();
    assert_eq!(xml.matches("<testcase ").count(), 40);
    assert_eq!(xml.matches("<failure ").count(), 11);

    assert_eq!(place.run("eval report run --fail-under 50%").code, 0);
    let run = place.run("eval report run --fail-under 0.6 --fail-if-worse");
    assert_eq!(run.code, 1);
    assert_eq!(
        run.stderr,
        "error: the pass rate of bad is 50.0%, below 60.0%\n\
         error: the pass rate of bad is lower than that of good\n\
         error: the mean score of bad is lower than that of good\n"
    );
    assert!(run.stdout.contains("29 of 40 passed"), "{run:?}");
}

#[test]
fn outputs_of_a_plain_main_loop_are_scored_while_they_are_collected() {
    let place = with_dataset();
    place.ok("eval submit run sums.jsonl --requests sums --plain");
    let run = place.run("eval collect run");
    assert_eq!((run.code, run.stderr.contains("--evaluator")), (2, true), "{run:?}");
    let said = beside(&place, answering, || {
        place.ok("eval collect run --timeout 60s --evaluator exact_match --evaluator numeric_close:0.1:0 --json")
    });
    let report: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&report["scored_by"], &report["passed"]), (&json!("collector"), &json!(16)));
    // The mode of a run cannot be changed.
    assert_eq!(place.run("eval submit run sums.jsonl").code, 0);
}

#[test]
fn samples_are_sent_again_on_request() {
    let place = with_dataset();
    place.ok("eval submit run sums.jsonl --requests sums");
    beside(&place, scoring, || place.ok("eval collect run --timeout 60s"));
    let said = place.ok("eval submit run --again not-passed --json");
    let line: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (&line["sent"], &line["before"], &line["total"]),
        (&json!(4), &json!(16), &json!(20))
    );
    let again = beside(&place, scoring, || place.run("eval collect run --timeout 60s"));
    assert_eq!(again.code, 0, "{again:?}");
    let results = std::fs::read_to_string(place.path().join("run/results.jsonl")).unwrap();
    assert_eq!(results.lines().filter(|line| line.contains("\"round\":2")).count(), 4);
}

#[test]
fn an_interrupted_collector_explains_how_to_continue() {
    let place = with_dataset();
    place.ok("eval submit run sums.jsonl --requests sums");
    let child = place.start("eval collect run");
    until_it_listens(&child);
    // A second collector is rejected.
    eventually("the run is taken", || {
        place.run("eval submit run").stderr.contains("open in another process")
    });
    signal(&child, "INT");
    let run = finish(child);
    assert_eq!(run.code, 130, "{run:?}");
    let note = "20 of 20 results are missing; collect again to continue";
    assert!(run.stderr.contains(note), "{run:?}");
    let said = beside(&place, scoring, || place.ok("eval collect run --timeout 60s"));
    assert!(said.contains("16 of 20 passed"), "{said}");
}

#[test]
fn errors_are_explained_and_leave_nothing_behind() {
    let place = with_dataset();
    let bad = "{\"input\": 1, \"expected\": 1}\n{\"input\": 2}\nx\n";
    std::fs::write(place.path().join("bad.jsonl"), bad).unwrap();
    for (line, code, said) in [
        (
            "eval submit run bad.jsonl --requests sums",
            2,
            "2 of 3 lines are not valid samples:\n  line 2, column 12: missing field `expected`",
        ),
        ("eval submit run none.jsonl --requests sums", 2, "none.jsonl: cannot read the samples"),
        ("eval submit run", 1, "there is no run in run"),
        ("eval collect run", 1, "there is no run in run"),
        ("eval report run", 1, "there is no run in run"),
        ("eval submit run sums.jsonl --requests sums -e a={", 2, "not valid JSON"),
        ("eval report run --output report", 2, "add --format"),
        ("eval collect run --evaluator exactly", 2, "expected exact_match, contains"),
        ("eval report run --fail-under 90", 2, "0% to 100%"),
    ] {
        let run = place.run(line);
        assert_eq!(run.code, code, "{line}: {run:?}");
        assert!(run.stderr.contains(said), "{line}: {run:?}");
        assert!(!place.path().join("run").exists(), "{line}");
    }
    let run = place.run("eval submit run sums.jsonl");
    assert!(run.code == 2 && run.stderr.contains("--requests QUEUE"), "{run:?}");
    place.ok("eval submit run sums.jsonl --requests sums -e a");
    for (line, said) in [
        ("eval submit run sums.jsonl --requests other", "on queue \"sums\", not \"other\""),
        ("eval submit run sums.jsonl -e a={\"x\":1}", "a different experiment called \"a\""),
        ("eval submit run sums.jsonl --plain", "scored by the workers"),
        ("eval collect run --evaluator regex", "remove --evaluator"),
    ] {
        let run = place.run(line);
        assert!(run.code > 0 && run.stderr.contains(said), "{line}: {run:?}");
    }
    assert_eq!(place.ok("stats sums --json").matches("\"ready\":20").count(), 1);
}

/// Inputs and outputs are private.
#[test]
fn the_files_of_a_run_are_private_by_default() {
    use std::os::unix::fs::PermissionsExt;
    let place = with_dataset();
    let under_umask = |line: &str| {
        let run = place.shell(&format!("umask 022; exec pillarbox {line}"));
        assert_eq!(run.code, 0, "{line}: {run:?}");
    };
    for (option, directory, expected) in
        [("", "private", 0o600), (" --permissions umask", "shared", 0o644)]
    {
        under_umask(&format!("eval submit {directory} sums.jsonl --requests sums{option}"));
        beside(&place, scoring, || {
            under_umask(&format!("eval collect {directory} --timeout 60s"));
        });
        under_umask(&format!("eval report {directory} --output {directory}/report.html{option}"));
        let files = std::fs::read_dir(place.path().join(directory)).unwrap();
        let modes: Vec<_> = files
            .map(|file| file.unwrap())
            .map(|file| (file.file_name(), file.metadata().unwrap().permissions().mode() & 0o777))
            .collect();
        assert!(modes.len() >= 6, "{modes:?}");
        assert!(modes.iter().all(|(_, mode)| *mode == expected), "{modes:?}");
    }
}
