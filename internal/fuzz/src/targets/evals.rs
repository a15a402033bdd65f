//! Files of eval runs.

use std::fs;

use pillarbox_evals::{Dataset, EvalReport, EvalResult, EvalRun, Resubmit};
use serde_json::Value;
use tempfile::TempDir;

use super::{accepted, refused, text};
use crate::driver::record_outcome;

pub(super) const DATASET: &[&str] = &[
    "{\"input\": 2, \"expected\": 4}",
    "\"id\":\"q1\"",
    "\"id\":1",
    "\"input\":",
    "\"expected\":",
    "\"source\":\"quiz 7\"",
    "\n",
    ",",
    "{",
    "}",
    "\u{feff}",
    "\"experiment\":\"a\"",
    "\"sample_id\":\"7\"",
    "\"round\":1",
    "\"score\":{\"value\":1.0,\"passed\":true}",
    "\"error\":\"no\"",
    "\"error_kind\":\"failed\"",
    "\"completed_at\":\"2026-11-16T10:00:00Z\"",
    "\"latency_ms\":1.5",
    "\"steps\":[{\"name\":\"a\"}]",
];

/// Samples and results, one per line.
pub(super) fn dataset(input: &[u8]) {
    if let Some(dataset) = accepted(Dataset::<Value, Value>::from_jsonl(input)) {
        record_outcome(&format!("dataset {}", dataset.len().min(3)));
        let line = |sample| serde_json::to_string(sample).expect("a sample is JSON");
        let written: Vec<_> = dataset.iter().map(line).collect();
        let again = Dataset::<Value, Value>::from_jsonl(written.join("\n").as_bytes());
        assert_eq!(again.expect("what was written can be read"), dataset, "a dataset survives");
    }
    let Some(text) = text(input) else { return };
    for line in text.lines().take(16) {
        if let Some(result) = accepted(serde_json::from_str::<EvalResult>(line)) {
            record_outcome(result.status().as_str());
            let written = serde_json::to_string(&result).expect("a result is JSON");
            let again = serde_json::from_str::<EvalResult>(&written);
            assert_eq!(again.expect("what was written can be read"), result, "a result survives");
        }
    }
}

pub(super) const RUN: &[&str] = &[
    "== run.json\n",
    "== samples.jsonl\n",
    "== sent.jsonl\n",
    "== results.jsonl\n",
    "== strays.jsonl\n",
    "{\"round\":1,\"ranges\":[[0,2]]}\n",
    "\"round\":",
    "\"samples\":",
    "\"experiments\":",
    "\"value\":",
    "\"latency_ms\":",
    "\"error\":\"no\"",
    "\"passed\":false",
    "\"score\":",
    "\"sample_id\":\"2\"",
];

/// The files of a run, each preceded by a line with its name.
pub(super) fn run(input: &[u8]) {
    DIRECTORY.with(|directory| check(directory, input));
}

const FILES: [&str; 5] =
    ["run.json", "samples.jsonl", "sent.jsonl", "results.jsonl", "strays.jsonl"];

thread_local! {
    static DIRECTORY: TempDir = tempfile::tempdir().expect("a temporary directory");
}

fn check(directory: &TempDir, input: &[u8]) {
    let mut files = FILES.map(|name| (name, None::<Vec<u8>>));
    let mut current = None;
    for line in input.split_inclusive(|byte| *byte == b'\n') {
        let name = line.strip_prefix(b"== ").map(<[u8]>::trim_ascii_end);
        match FILES.iter().position(|known| Some(known.as_bytes()) == name) {
            Some(place) => {
                files[place].1 = Some(Vec::new());
                current = Some(place);
            }
            None => {
                let content = current.and_then(|place| files[place].1.as_mut());
                content.into_iter().for_each(|content| content.extend_from_slice(line));
            }
        }
    }
    for (name, content) in files {
        let path = directory.path().join(name);
        match content {
            Some(content) => fs::write(path, content).expect("the file is written"),
            None => drop(fs::remove_file(path)),
        }
    }
    let mut run = match EvalRun::open_read_only(directory.path()) {
        Ok(run) => run,
        // Without the directory, whose name changes.
        Err(error) => {
            return refused(&error.to_string().replace(&*directory.path().to_string_lossy(), ""));
        }
    };
    let progress = run.progress();
    assert!(progress.collected <= progress.total && progress.sent <= progress.total);
    let scored = progress.passed + progress.not_passed;
    assert_eq!(progress.collected, scored + progress.failed + progress.dead_lettered);
    record_outcome(&format!("{} {}", progress.total > 0, progress.collected > 0));
    for which in [Resubmit::Missing, Resubmit::Unscored, Resubmit::NotPassed] {
        assert!(run.resubmit(which) <= progress.total);
    }
    let Some(report) = accepted(run.report()) else { return };
    record_outcome(if report.is_complete { "complete" } else { "incomplete" });
    assert_eq!(report.samples.len(), report.total);
    for share in [report.pass_rate, report.mean_score] {
        assert!(share.is_none_or(|share| (0.0..=1.0).contains(&share)), "from 0 to 1: {share:?}");
    }
    let json = serde_json::to_string(&report).expect("a report is JSON");
    let again: EvalReport = serde_json::from_str(&json).expect("what was written can be read");
    assert_eq!(again, report, "a report survives");
    let texts = [report.to_string(), report.to_junit(), report.to_html()];
    assert!(texts.iter().all(|text| !text.is_empty()));
}
