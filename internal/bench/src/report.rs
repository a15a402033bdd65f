//! The output of a suite: rows and charts, as tables or as JSON lines.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::chart::{Chart, Role};
use crate::progress;
use crate::results::Results;

/// Explanation of the ratio, printed by `--help` and below every table.
pub(crate) const RATIO: &str = "\
ratio: how many times better Pillarbox is. Above 1 Pillarbox is better, below 1 the other is.
       Pillarbox / other for rates (messages per second), other / Pillarbox for costs (bytes,
       time, CPU time, commands and calls to a server, connections, deliveries held, shares).";

/// One comparison of Pillarbox with one other. Its fields are those of a JSON line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) suite: String,
    pub(crate) case: String,
    pub(crate) unit: Unit,
    pub(crate) ours: f64,
    /// None if it failed.
    pub(crate) other: Option<f64>,
    pub(crate) other_name: String,
    /// The role of the other.
    pub(crate) role: Role,
    pub(crate) ratio: Option<f64>,
    /// The reason why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
}

impl Row {
    /// The name of the other, marked if it is a limit.
    pub(crate) fn other_title(&self) -> String {
        self.role.title(&self.other_name)
    }

    /// The figure of the other, formatted.
    pub(crate) fn other_human(&self) -> String {
        self.other.map_or("failed".to_owned(), |other| self.unit.human(other))
    }
}

/// The unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Unit {
    /// Messages sent, received and settled per second.
    #[serde(rename = "messages/s")]
    MessagesPerSecond,
    /// Nanoseconds to send, receive and settle one message.
    #[serde(rename = "ns/cycle")]
    NanosPerCycle,
    /// Microseconds for one call.
    #[serde(rename = "us")]
    Micros,
    /// Microseconds to send, receive and settle one message.
    #[serde(rename = "us/message")]
    MicrosPerMessage,
    /// Milliseconds for one call, or for a whole run.
    #[serde(rename = "ms")]
    Millis,
    /// Bytes for one message.
    #[serde(rename = "bytes")]
    Bytes,
    /// Microseconds of CPU time per second of wall time.
    #[serde(rename = "us CPU/s")]
    CpuMicrosPerSecond,
    /// Microseconds of CPU time to send, receive and settle one message.
    #[serde(rename = "us CPU/message")]
    CpuMicrosPerMessage,
    /// Commands that a server runs per second.
    #[serde(rename = "commands/s")]
    CommandsPerSecond,
    /// Calls to a server to send, receive and settle one message.
    #[serde(rename = "calls/message")]
    CallsPerMessage,
    /// Connections to servers.
    #[serde(rename = "connections")]
    Connections,
    /// Deliveries that a process holds.
    #[serde(rename = "deliveries")]
    Deliveries,
    /// A share, of which an even one is the best.
    #[serde(rename = "%")]
    Percent,
}

impl Unit {
    /// Whether more is better.
    pub(crate) fn is_rate(self) -> bool {
        match self {
            Self::MessagesPerSecond => true,
            Self::NanosPerCycle
            | Self::Micros
            | Self::MicrosPerMessage
            | Self::Millis
            | Self::Bytes
            | Self::CpuMicrosPerSecond
            | Self::CpuMicrosPerMessage
            | Self::CommandsPerSecond
            | Self::CallsPerMessage
            | Self::Connections
            | Self::Deliveries
            | Self::Percent => false,
        }
    }

    /// The title of an axis with this unit.
    pub(crate) fn axis(self) -> &'static str {
        match self {
            Self::MessagesPerSecond => "messages per second",
            Self::NanosPerCycle => "ns per message",
            Self::Micros => "µs",
            Self::MicrosPerMessage => "µs per message",
            Self::Millis => "ms",
            Self::Bytes => "bytes",
            Self::CpuMicrosPerSecond => "µs of CPU per second",
            Self::CpuMicrosPerMessage => "µs of CPU per message",
            Self::CommandsPerSecond => "server commands per second",
            Self::CallsPerMessage => "server calls per message",
            Self::Connections => "connections",
            Self::Deliveries => "deliveries",
            Self::Percent => "%",
        }
    }

    /// Formats a figure of this unit.
    pub(crate) fn human(self, figure: f64) -> String {
        match self {
            Self::MessagesPerSecond => format!("{}/s", with_prefix(figure)),
            Self::NanosPerCycle => time(figure / 1e9),
            Self::Micros | Self::MicrosPerMessage => time(figure / 1e6),
            Self::Millis => time(figure / 1e3),
            Self::Bytes if figure >= 1e6 => format!("{} MB", three_digits(figure / 1e6)),
            Self::Bytes => format!("{} B", three_digits(figure)),
            Self::CpuMicrosPerSecond => format!("{} µs/s", three_digits(figure)),
            Self::CpuMicrosPerMessage => format!("{} µs CPU", three_digits(figure)),
            Self::CommandsPerSecond => format!("{} cmd/s", three_digits(figure)),
            Self::CallsPerMessage => format!("{} calls", three_digits(figure)),
            Self::Connections | Self::Deliveries => format!("{figure:.0}"),
            Self::Percent => format!("{figure:.1} %"),
        }
    }
}

/// Returns how many times better `ours` is than `other`.
pub(crate) fn ratio(unit: Unit, ours: f64, other: f64) -> f64 {
    if unit.is_rate() { ours / other } else { other / ours }
}

/// Formats a number with separators: `1,000,000`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 2);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Collects rows and charts, or prints them as JSON lines.
#[derive(Debug)]
pub(crate) struct Report {
    json: bool,
    pub(crate) rows: Vec<Row>,
    pub(crate) charts: Vec<Chart>,
    /// Results so far, and the file they are written to after each case.
    file: Option<(Results, PathBuf)>,
}

impl Report {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, rows: Vec::new(), charts: Vec::new(), file: None }
    }

    /// A report that is written to a file after each case, so that a later failure loses nothing.
    pub(crate) fn to_file(results: Results, path: &Path) -> Self {
        Self { file: Some((results, path.to_owned())), ..Self::new(false) }
    }

    fn write(&mut self) {
        if let Some((results, path)) = &mut self.file {
            results.rows.clone_from(&self.rows);
            results.charts.clone_from(&self.charts);
            if let Err(error) = results.write(path) {
                progress::say(format_args!("{error}"));
            }
        }
    }

    /// Adds a chart. A JSON line is printed at once.
    pub(crate) fn add_chart(&mut self, chart: Chart) {
        if self.json {
            println!("{}", json(&chart));
        } else {
            self.charts.push(chart);
            self.write();
        }
    }

    /// Adds the rows of one case. JSON lines are printed at once.
    pub(crate) fn add(&mut self, rows: Vec<Row>) {
        if self.json {
            for row in &rows {
                println!("{}", json(row));
            }
        } else {
            self.rows.extend(rows);
            self.write();
        }
    }

    /// Prints the tables.
    pub(crate) fn print(&self) {
        if self.json {
            return;
        }
        for chart in &self.charts {
            println!("{}", chart_table(chart));
        }
        if !self.rows.is_empty() {
            print!("{}", table(&self.rows));
        }
    }
}

fn json(what: &impl Serialize) -> String {
    serde_json::to_string(what).expect("these are strings and numbers, which JSON can hold")
}

/// Formats a chart as a table: a row for each contestant, a column for each place.
fn chart_table(chart: &Chart) -> String {
    let mut lines = vec![vec![chart.along.clone()]];
    lines[0].extend(chart.at.iter().cloned());
    for line in &chart.lines {
        let figures = line.spots.iter().map(|spot| match spot {
            Some(spot) => chart.unit.human(spot.median),
            None => "failed".to_owned(),
        });
        lines.push(std::iter::once(line.name.clone()).chain(figures).collect());
    }
    let width = |column: usize| {
        lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<_> = (0..=chart.at.len()).map(width).collect();
    let mut text = format!("{}\n", chart.title);
    for line in &lines {
        let first = widths[0];
        text += &format!("{:<first$}", line[0]);
        for (cell, width) in line.iter().zip(&widths).skip(1) {
            text += &format!("  {cell:>width$}");
        }
        text += "\n";
    }
    text
}

fn table(rows: &[Row]) -> String {
    let mut lines =
        vec![["case", "Pillarbox", "other", "ratio", "compared with"].map(str::to_owned)];
    let mut last = None;
    for row in rows {
        let first_of_case = last.replace(&row.case) != Some(&row.case);
        lines.push([
            if first_of_case { row.case.clone() } else { String::new() },
            row.unit.human(row.ours),
            row.other_human(),
            row.ratio.map_or_else(String::new, |ratio| format!("{}x", three_digits(ratio))),
            row.other_title(),
        ]);
    }
    let width = |column: usize| {
        lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default()
    };
    let [case_width, ours_width, other_width, ratio_width] = [0, 1, 2, 3].map(width);
    let mut text = String::new();
    for [case, ours, other, ratio, against] in &lines {
        text += &format!(
            "{case:<case_width$}  {ours:>ours_width$}  {other:>other_width$}  \
             {ratio:>ratio_width$}  {against}\n"
        );
    }
    text + "\n" + RATIO + "\n"
}

/// Formats three digits with a decimal prefix: `1.83 M`, `18.3 k`, `183`.
fn with_prefix(figure: f64) -> String {
    // From 999.5 on, three digits would round up to 1000.
    let (scale, prefix) = match figure {
        f if f >= 999.5e6 => (1e9, " G"),
        f if f >= 999.5e3 => (1e6, " M"),
        f if f >= 999.5 => (1e3, " k"),
        _ => (1.0, ""),
    };
    format!("{}{prefix}", three_digits(figure / scale))
}

/// Formats a time: `183 ns`, `18.3 µs`, `1.83 ms`, `1.83 s`.
fn time(seconds: f64) -> String {
    // From 999.5 on, three digits would round up to 1000.
    let (scale, unit) = match seconds {
        f if f >= 0.9995 => (1.0, "s"),
        f if f >= 0.9995e-3 => (1e3, "ms"),
        f if f >= 0.9995e-6 => (1e6, "µs"),
        _ => (1e9, "ns"),
    };
    format!("{} {unit}", three_digits(seconds * scale))
}

/// Formats three digits, or all those before the point: `1.83`, `18.3`, `183`, `1830`.
pub(crate) fn three_digits(figure: f64) -> String {
    let decimals = match figure.abs() {
        f if f < 9.995 => 2,
        f if f < 99.95 => 1,
        _ => 0,
    };
    format!("{figure:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: &str, unit: Unit, ours: f64, other: f64) -> Row {
        Row {
            suite: "memory".to_owned(),
            case: case.to_owned(),
            unit,
            ours,
            other: Some(other),
            other_name: "peer".to_owned(),
            role: Role::Peer,
            ratio: Some(ratio(unit, ours, other)),
            failure: None,
        }
    }

    #[test]
    fn the_ratio_is_above_one_where_ours_is_better_for_rates_and_for_costs() {
        assert_eq!(ratio(Unit::MessagesPerSecond, 300.0, 100.0), 3.0);
        let times = [Unit::NanosPerCycle, Unit::Micros, Unit::Millis];
        let of_cpu = [Unit::CpuMicrosPerSecond, Unit::CpuMicrosPerMessage];
        let others =
            [Unit::Bytes, Unit::CommandsPerSecond, Unit::CallsPerMessage, Unit::Connections];
        for cost in times.into_iter().chain(of_cpu).chain(others) {
            assert_eq!(ratio(cost, 100.0, 300.0), 3.0);
        }
    }

    #[test]
    fn figures_have_three_digits_and_a_prefix() {
        let rate = |figure| Unit::MessagesPerSecond.human(figure);
        assert_eq!(rate(1_834_567.0), "1.83 M/s");
        assert_eq!(rate(183_456.7), "183 k/s");
        assert_eq!(rate(999_700.0), "1.00 M/s");
        assert_eq!(rate(18_345_678_901.0), "18.3 G/s");
        assert_eq!(rate(12.34), "12.3/s");
        assert_eq!(Unit::Bytes.human(1_234.4), "1234 B");
        assert_eq!(Unit::NanosPerCycle.human(99.96), "100 ns");
        assert_eq!(Unit::Micros.human(3_990.6), "3.99 ms");
        assert_eq!(Unit::Millis.human(12.34), "12.3 ms");
        assert_eq!(Unit::CpuMicrosPerSecond.human(0.5), "0.50 µs/s");
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!([0, 999, 1_000, 100_000, 1_000_000].map(grouped).join(" "), {
            "0 999 1,000 100,000 1,000,000"
        });
    }

    #[test]
    fn a_json_line_has_exactly_the_agreed_fields() {
        let line = json(&row("cycle", Unit::NanosPerCycle, 400.0, 300.0));
        assert_eq!(
            line,
            r#"{"suite":"memory","case":"cycle","unit":"ns/cycle","ours":400.0,"other":300.0,"other_name":"peer","role":"peer","ratio":0.75}"#
        );
    }

    #[test]
    fn a_table_is_aligned_and_names_a_case_once() {
        let rows = [
            row("cycle", Unit::MessagesPerSecond, 2e6, 1e6),
            row("cycle", Unit::MessagesPerSecond, 2e6, 4e7),
            row("idle", Unit::CpuMicrosPerSecond, 20.0, 10.0),
        ];
        let expected = "\
case   Pillarbox      other  ratio  compared with
cycle   2.00 M/s   1.00 M/s  2.00x  peer
        2.00 M/s   40.0 M/s  0.05x  peer
idle   20.0 µs/s  10.0 µs/s  0.50x  peer
";
        let table = table(&rows);
        assert_eq!(table.strip_suffix(&format!("\n{RATIO}\n")), Some(expected));
    }
}
