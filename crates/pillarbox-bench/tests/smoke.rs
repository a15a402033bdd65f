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
        assert_eq!(fields, ["case", "other", "other_name", "ours", "ratio", "suite", "unit"]);
        assert_eq!(row["suite"], suite, "{line}");
        for figure in ["ours", "other", "ratio"] {
            assert!(row[figure].as_f64().is_some_and(|figure| figure > 0.0), "{line}");
        }
    }
}

#[test]
fn the_memory_suite_prints_rows_of_the_agreed_form() {
    let rows = bench(&["memory", "--quick", "--rounds", "1", "--json"]);
    check(&rows, "memory", 20);
}

#[test]
fn the_sqlite_suite_prints_rows_of_the_agreed_form() {
    let rows = bench(&["sqlite", "--quick", "--rounds", "1", "--json"]);
    check(&rows, "sqlite", 26);
}

#[test]
fn the_redis_suite_prints_rows_of_the_agreed_form() {
    // Peers that are not installed are left out, and their rows with them.
    let rows = bench(&["redis", "--quick", "--rounds", "1", "--json"]);
    check(&rows, "redis", 28);
}

#[test]
fn the_runtime_suite_prints_rows_of_the_agreed_form() {
    let rows = bench(&["runtime", "--quick", "--rounds", "1", "--json"]);
    check(&rows, "runtime", 74);
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
