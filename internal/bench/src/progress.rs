//! Progress of a run: lines on stderr, and a progress bar when several suites run on a terminal.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

static BAR: OnceLock<ProgressBar> = OnceLock::new();
static QUIET: AtomicBool = AtomicBool::new(false);

/// Shows a progress bar for this number of cases.
pub(crate) fn start(cases: usize) {
    let template = "{bar:30} {pos}/{len} cases, {elapsed_precise}  {wide_msg}";
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(cases as u64).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(500));
    let _ = BAR.set(bar);
}

/// Prints a line, above the bar if there is one.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    match BAR.get() {
        _ if QUIET.load(Ordering::Relaxed) => {}
        Some(bar) if !bar.is_hidden() => bar.println(line.to_string()),
        _ => eprintln!("{line}"),
    }
}

/// Shows the name of the case that runs.
pub(crate) fn case(suite: &str, name: &str) {
    match BAR.get() {
        Some(bar) if !bar.is_hidden() => bar.set_message(format!("{suite}: {name}")),
        _ => say(format_args!("{suite}: {name} ...")),
    }
}

/// Counts a finished case.
pub(crate) fn step() {
    if let Some(bar) = BAR.get() {
        // Some suites do not know all of their cases before they run.
        if bar.length() == Some(bar.position()) {
            bar.inc_length(1);
        }
        bar.inc(1);
    }
}

/// Removes the bar.
pub(crate) fn finish() {
    if let Some(bar) = BAR.get() {
        bar.finish_and_clear();
    }
}

/// Runs a closure without printing its progress.
pub(crate) fn quietly<T>(what: impl FnOnce() -> T) -> T {
    QUIET.store(true, Ordering::Relaxed);
    let outcome = what();
    QUIET.store(false, Ordering::Relaxed);
    outcome
}
