//! What is told while benchmarks run: lines, and a bar where all suites run at once on a terminal.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

static BAR: OnceLock<ProgressBar> = OnceLock::new();
static QUIET: AtomicBool = AtomicBool::new(false);

/// Shows a bar from now on, for so many cases.
pub(crate) fn start(cases: usize) {
    let template = "{bar:30} {pos}/{len} cases, {elapsed_precise}  {wide_msg}";
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(cases as u64).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(500));
    let _ = BAR.set(bar);
}

/// Says a line, above the bar if there is one.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    match BAR.get() {
        _ if QUIET.load(Ordering::Relaxed) => {}
        Some(bar) if !bar.is_hidden() => bar.println(line.to_string()),
        _ => eprintln!("{line}"),
    }
}

/// Says which case is on.
pub(crate) fn case(suite: &str, name: &str) {
    match BAR.get() {
        Some(bar) if !bar.is_hidden() => bar.set_message(format!("{suite}: {name}")),
        _ => say(format_args!("{suite}: {name} ...")),
    }
}

/// Counts a case as done.
pub(crate) fn step() {
    if let Some(bar) = BAR.get() {
        // Some suites have more cases than they can tell before they run.
        if bar.length() == Some(bar.position()) {
            bar.inc_length(1);
        }
        bar.inc(1);
    }
}

/// Takes the bar away.
pub(crate) fn finish() {
    if let Some(bar) = BAR.get() {
        bar.finish_and_clear();
    }
}

/// Does something of which nothing is told.
pub(crate) fn quietly<T>(what: impl FnOnce() -> T) -> T {
    QUIET.store(true, Ordering::Relaxed);
    let outcome = what();
    QUIET.store(false, Ordering::Relaxed);
    outcome
}
