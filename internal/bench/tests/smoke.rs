//! The suites run from end to end. What they measure here is worth nothing.

use std::process::Command;

fn bench(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_pillarbox-bench")).args(args).output();
    let output = output.expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?} failed:\n{errors}");
    String::from_utf8(output.stdout).expect("text")
}

/// Checks that these are rows of the agreed form, and that there are as many as there should be.
fn check(rows: &str, suite: &str, at_least: usize) {
    assert!(rows.lines().count() >= at_least, "{rows}");
    for line in rows.lines() {
        let row: serde_json::Value = serde_json::from_str(line).expect("a JSON object a line");
        let row = row.as_object().expect("an object");
        let fields: Vec<_> = row.keys().map(String::as_str).collect();
        assert_eq!(
            fields,
            ["case", "other", "other_name", "ours", "ratio", "role", "suite", "unit"]
        );
        assert_eq!(row["suite"], suite, "{line}");
        for figure in ["ours", "other", "ratio"] {
            assert!(row[figure].as_f64().is_some_and(|figure| figure > 0.0), "{line}");
        }
    }
}

/// Peers that are not installed are left out.
#[test]
fn the_curves_are_charts_with_a_figure_of_everybody_at_every_place() {
    let charts = bench(&["curves", "--quick", "--rounds", "1", "--json"]);
    let mut ids = Vec::new();
    for line in charts.lines() {
        let chart: serde_json::Value = serde_json::from_str(line).expect("a JSON object a line");
        let places = chart["at"].as_array().expect("places").len();
        let lines = chart["lines"].as_array().expect("lines");
        for line in lines {
            assert_eq!(line["failures"].as_array().map(Vec::len), Some(0), "{line}");
            let spots = line["spots"].as_array().expect("spots");
            let figures = spots.iter().filter_map(|spot| spot["median"].as_f64());
            assert_eq!(figures.filter(|figure| *figure > 0.0).count(), places, "{line}");
        }
        assert!(lines.iter().any(|line| line["role"] == "ours"), "{chart}");
        ids.push(chart["id"].as_str().expect("an id").to_owned());
    }
    let kinds = ["memory", "sqlite", "redis"].map(|kind| {
        let latency = |callers| format!("latency-{kind}-{callers}");
        [format!("cycles-{kind}"), latency("1-caller"), latency("16-callers")]
    });
    let others = ["backlog", "queues", "workers-waiting", "workers-counting"].map(str::to_owned);
    assert_eq!(ids, [&kinds.concat()[..], &others].concat());
}

#[test]
fn all_suites_make_one_file_and_that_a_page_with_plots() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("text").to_owned();
    let only = ["--quick", "--rounds", "1", "--suites", "curves,memory", "--only", "queue"];
    bench(&[&["all", "--out", &path("results.json")], &only[..]].concat());
    bench(&["page", &path("results.json"), "--to", &path("docs")]);
    let page = std::fs::read_to_string(path("docs/benchmarks.md")).expect("a page");
    assert!(page.contains("![Cost by number of queues](pictures/bench-queues.svg)"), "{page}");
    assert!(page.contains("quick run"), "{page}");
    let medians = std::fs::read_to_string(path("docs/benchmarks.json")).expect("medians");
    let medians: serde_json::Value = serde_json::from_str(&medians).expect("JSON");
    let queues = medians["figures"]["queues/100/Redis"].as_str().expect("a median");
    assert!(queues.ends_with(" us/message"), "{queues}");
    assert!(medians["figures"]["memory/memory per message, 100,000 queued/capp-queue"].is_string());
    let verdict = bench(&["verdict", &path("results.json")]);
    assert!(verdict.contains("not measured"), "{verdict}");
    let plot = std::fs::read_to_string(path("docs/pictures/bench-queues.svg")).expect("a plot");
    assert!(plot.starts_with("<svg ") && plot.ends_with("</svg>\n"), "{plot}");

    std::fs::write(path("other.json"), "{}").expect("written");
    let refused = Command::new(env!("CARGO_BIN_EXE_pillarbox-bench"))
        .args(["page", &path("other.json"), "--to", &path("docs")])
        .output()
        .expect("the program starts");
    assert!(!refused.status.success());
    let says = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(says.contains("is not a file of results"), "{says}");
}

#[test]
fn the_memory_suite_prints_rows_of_the_agreed_form() {
    let rows = bench(&["memory", "--quick", "--rounds", "1", "--json"]);
    check(&rows, "memory", 19);
}

#[test]
fn the_sqlite_suite_prints_rows_of_the_agreed_form() {
    let rows = bench(&["sqlite", "--quick", "--rounds", "1", "--json"]);
    check(&rows, "sqlite", 17);
}

#[test]
fn the_redis_suite_prints_rows_of_the_agreed_form() {
    // Peers that are not installed are left out, and their rows with them.
    let rows = bench(&["redis", "--quick", "--rounds", "1", "--json"]);
    check(&rows, "redis", 18);
}

#[test]
fn the_runtime_suite_prints_rows_of_the_agreed_form() {
    let rows = bench(&["runtime", "--quick", "--rounds", "1", "--json"]);
    check(&rows, "runtime", 80);
}

#[test]
fn the_loops_suite_prints_rows_of_the_agreed_form() {
    let rows = bench(&["loops", "--quick", "--rounds", "1", "--json"]);
    check(&rows, "loops", 18);
}

#[test]
fn the_evals_suite_prints_rows_of_the_agreed_form() {
    let rows = bench(&["evals", "--quick", "--rounds", "1", "--json"]);
    check(&rows, "evals", 7);
}

#[test]
fn the_cluster_suite_prints_rows_of_the_agreed_form() {
    let rows = bench(&["cluster", "--quick", "--rounds", "1", "--json"]);
    check(&rows, "cluster", 150);
}
