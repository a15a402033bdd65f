//! Report as text.

use std::borrow::Cow;
use std::fmt;

use super::{Comparison, Difference, EvalReport, Latency, Tally};
use crate::result::Status;

/// Number of failures that are shown. The other formats have more.
const SHOWN: usize = 10;

impl fmt::Display for EvalReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "run {}: {}", self.run_id, self.totals())?;
        writeln!(f)?;
        self.experiments_table().fmt(f)?;
        for comparison in &self.comparisons {
            writeln!(f)?;
            comparison.fmt(f)?;
        }
        self.failures_table(f)
    }
}

impl EvalReport {
    /// Returns the numbers of samples by status, on one line.
    fn totals(&self) -> String {
        let mut text = format!("{} of {} passed", self.passed, self.total);
        for status in [Status::NotPassed, Status::Failed, Status::DeadLettered, Status::Missing] {
            match self.count(status) {
                0 => {}
                count => text.push_str(&format!(", {count} {}", status.label())),
            }
        }
        if self.strays > 0 {
            text.push_str(&format!("; {} messages are not results of this run", self.strays));
        }
        text
    }

    fn experiments_table(&self) -> Table {
        let mut table = Table::new(&[
            "EXPERIMENT",
            ">SAMPLES",
            ">PASSED",
            ">PASS RATE",
            "95 %",
            ">MEAN SCORE",
            ">P50",
            ">P95",
            ">P99",
        ]);
        for one in &self.experiments {
            let tally = &one.tally;
            let time =
                |of: fn(&Latency) -> f64| or_dash(tally.latency.as_ref().map(of).map(milliseconds));
            table.row([
                one_line(&one.name, 40),
                tally.total.to_string(),
                tally.passed.to_string(),
                or_dash(tally.pass_rate.map(percent)),
                or_dash(tally.interval()),
                or_dash(tally.mean_score.map(|score| format!("{score:.3}"))),
                time(|latency| latency.p50_ms),
                time(|latency| latency.p95_ms),
                time(|latency| latency.p99_ms),
            ]);
        }
        table
    }

    fn failures_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.failures.is_empty() {
            return Ok(());
        }
        let mut table = Table::new(&["SAMPLE", "EXPERIMENT", "STATUS", ">SCORE", "REASON"]);
        // Samples without a score first: they point to a problem beyond the output.
        let mut failures: Vec<_> = self.failures.iter().collect();
        failures.sort_by_key(|failed| match failed.status {
            Status::DeadLettered => 0,
            Status::Failed => 1,
            _ => 2,
        });
        for failed in failures.into_iter().take(SHOWN) {
            table.row([
                one_line(&failed.sample_id, 30),
                one_line(&failed.experiment, 30),
                failed.status.label().to_owned(),
                or_dash(failed.score.map(|score| format!("{score:.2}"))),
                one_line(failed.reason.as_deref().unwrap_or("-"), 80),
            ]);
        }
        write!(f, "\n{table}")?;
        match self.total - self.passed - self.failures.len().min(SHOWN) {
            0 => Ok(()),
            more => writeln!(f, "... and {more} more"),
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { baseline, candidate, pairs, gained, lost, .. } = self;
        let (baseline, candidate) = (one_line(baseline, 40), one_line(candidate, 40));
        write!(f, "{candidate} against {baseline}, {pairs} samples: ")?;
        writeln!(f, "{gained} gained, {lost} lost")?;
        if let Some(difference) = &self.pass_rate {
            writeln!(f, "  pass rate   {}", difference.in_words(points))?;
        }
        if let Some(difference) = &self.mean_score {
            writeln!(f, "  mean score  {}", difference.in_words(|value| format!("{value:+.3}")))?;
        }
        Ok(())
    }
}

impl Tally {
    /// Returns the interval of the pass rate.
    pub(super) fn interval(&self) -> Option<String> {
        let (low, high) = self.pass_rate_low.zip(self.pass_rate_high)?;
        Some(format!("{} to {}", percent(low), percent(high)))
    }
}

impl Difference {
    /// Returns the difference with its interval and a verdict.
    pub(super) fn in_words(&self, show: impl Fn(f64) -> String) -> String {
        let value = show(self.value);
        match (self.low, self.high) {
            (Some(low), Some(high)) => {
                let verdict = match self.is_significant() {
                    true if self.value > 0.0 => "better",
                    true => "worse",
                    false => "not significant",
                };
                format!("{value} (95 %: {} to {}): {verdict}", show(low), show(high))
            }
            _ => format!("{value} (too few samples for an interval)"),
        }
    }
}

/// Formats a difference of shares.
pub(super) fn points(share: f64) -> String {
    format!("{:+.1} points", share * 100.0)
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// Formats a time with about three digits.
pub(super) fn milliseconds(ms: f64) -> String {
    match ms {
        _ if ms >= 10_000.0 => format!("{:.1} s", ms / 1e3),
        _ if ms >= 1000.0 => format!("{:.2} s", ms / 1e3),
        _ if ms >= 10.0 => format!("{ms:.0} ms"),
        _ if ms >= 1.0 => format!("{ms:.1} ms"),
        _ => format!("{:.0} µs", ms * 1e3),
    }
}

pub(super) fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// Cuts a long text.
pub(super) fn cut(text: &str) -> Cow<'_, str> {
    const MAX_CHARS: usize = 20_000;
    match text.char_indices().nth(MAX_CHARS) {
        None => Cow::Borrowed(text),
        Some((end, _)) => {
            let more = text[end..].chars().count();
            Cow::Owned(format!("{}… and {more} more characters, in results.jsonl", &text[..end]))
        }
    }
}

/// Returns text without line breaks and control characters, cut to `max_chars` characters.
fn one_line(text: &str, max_chars: usize) -> String {
    // Nor characters that change the direction of text.
    let turns = |c| matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let clean = text.chars().map(|c| if c.is_control() || turns(c) { ' ' } else { c });
    let mut line: String = clean.clone().take(max_chars).collect();
    if clean.count() > max_chars {
        line.pop();
        line.push('…');
    }
    line
}

/// Table with aligned columns. A heading that starts with `>` makes its column right-aligned.
struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(headings: &[&'static str]) -> Self {
        Self { headings: headings.to_vec(), rows: Vec::new() }
    }

    fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bare = |heading: &'static str| heading.trim_start_matches('>');
        let headings = self.headings.iter().map(|heading| bare(heading).to_owned()).collect();
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0).max(bare(self.headings[column]).len())
        };
        let widths: Vec<_> = (0..self.headings.len()).map(width).collect();
        for row in std::iter::once(&headings).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, heading), width) in row.iter().zip(&self.headings).zip(&widths) {
                let padding = " ".repeat(width - cell.chars().count());
                let (before, after) = if heading.starts_with('>') {
                    (padding, String::new())
                } else {
                    (String::new(), padding)
                };
                line.push_str(&format!("{before}{cell}{after}  "));
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
