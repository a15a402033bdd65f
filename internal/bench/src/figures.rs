//! The medians of a run by name, for the file that is committed, for the pages that quote them, and for verdicts.
//!
//! The name of a figure is `chart/place/contestant` or `suite/case/contestant`, as the page has them:
//! `cycles-sqlite/64/Pillarbox`, `sqlite/durable send, 64 callers, p99/append-only log`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::measure::Result;
use crate::report::{Unit, three_digits};
use crate::results::{Machine, Results};

/// Ours in the rows of suites.
const OURS: &str = "Pillarbox";
/// The begin of a quote, up to the name of its figure, what follows the name, and the end.
const QUOTE: (&str, &str, &str) = ("<!-- bench: ", " -->", "<!-- /bench -->");
/// Between two names: how many times as large the first is.
const OVER: &str = " over ";

/// All figures of a run.
#[derive(Debug)]
pub(crate) struct Figures {
    by_name: BTreeMap<String, (f64, Unit)>,
}

/// The file that is committed: medians only.
#[derive(Serialize)]
struct Summary<'a> {
    machine: &'a Machine,
    quick: bool,
    rounds: usize,
    /// By name: `"33900 messages/s"`.
    figures: BTreeMap<&'a str, String>,
}

impl Figures {
    pub(crate) fn of(results: &Results) -> Self {
        let mut by_name = BTreeMap::new();
        for chart in &results.charts {
            for line in &chart.lines {
                for (at, spot) in chart.at.iter().zip(&line.spots) {
                    if let Some(spot) = spot {
                        let name = format!("{}/{at}/{}", chart.id, line.name);
                        by_name.insert(name, (spot.median, chart.unit));
                    }
                }
            }
        }
        for row in &results.rows {
            let name = |who: &str| format!("{}/{}/{who}", row.suite, row.case);
            by_name.insert(name(OURS), (row.ours, row.unit));
            if let Some(other) = row.other {
                by_name.insert(name(&row.other_name), (other, row.unit));
            }
        }
        Self { by_name }
    }

    /// The median of this name, in its unit.
    pub(crate) fn median(&self, name: &str) -> Option<f64> {
        self.by_name.get(name).map(|(median, _)| *median)
    }

    /// The names that begin with `start`, each with its median.
    pub(crate) fn starting_with(&self, start: &str) -> impl Iterator<Item = (&str, f64)> {
        let all = self.by_name.iter().map(|(name, (median, _))| (&name[..], *median));
        all.filter(move |(name, _)| name.starts_with(start))
    }

    /// Writes the file that is committed.
    pub(crate) fn write(&self, results: &Results, path: &Path) -> Result<()> {
        let figure = |(name, (median, unit)): (&'_ String, &(f64, Unit))| -> Result<_> {
            let unit = serde_json::to_value(unit)?;
            let unit = unit.as_str().ok_or("a unit is a text")?;
            // Four digits: one more than pages quote.
            let median: f64 = format!("{median:.3e}").parse()?;
            Ok((name.clone(), format!("{median} {unit}")))
        };
        let figures = self.by_name.iter().map(figure).collect::<Result<Vec<_>>>()?;
        let figures = figures.iter().map(|(name, figure)| (&name[..], figure.clone())).collect();
        let Results { machine, quick, rounds, .. } = results;
        let summary = Summary { machine, quick: *quick, rounds: *rounds, figures };
        Ok(fs::write(path, serde_json::to_string_pretty(&summary)? + "\n")?)
    }

    /// A figure as pages quote it: that of a name, or how many times as large the first of two is.
    pub(crate) fn quoted(&self, name: &str) -> Result<String> {
        let find = |name: &str| {
            let figure = self.by_name.get(name).copied();
            figure.ok_or_else(|| format!("there is no figure {name:?}"))
        };
        Ok(match name.split_once(OVER) {
            Some((one, other)) => format!("{} times", three_digits(find(one)?.0 / find(other)?.0)),
            None => {
                let (median, unit) = find(name)?;
                unit.human(median)
            }
        })
    }

    /// A figure with the marks by which it is found again.
    pub(crate) fn quote(&self, name: &str) -> Result<String> {
        let (begin, name_end, end) = QUOTE;
        Ok(format!("{begin}{name}{name_end}{}{end}", self.quoted(name)?))
    }

    /// Returns a text with the figures that it quotes replaced.
    pub(crate) fn with_quotes(&self, text: &str) -> Result<String> {
        let (begin, name_end, end) = QUOTE;
        let mut updated = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, quote)) = rest.split_once(begin) {
            let (name, quote) = quote.split_once(name_end).ok_or("a quote has no name")?;
            let (_, after) = quote.split_once(end).ok_or_else(|| format!("{name}: no {end}"))?;
            updated += before;
            updated += &self.quote(name)?;
            rest = after;
        }
        Ok(updated + rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::tests::chart;

    #[test]
    fn quotes_are_replaced_wherever_they_are() {
        let figures = Figures::of(&Results::of(vec![chart()]));
        let text = "About <!-- bench: cycles-x/256/Pillarbox -->1/s<!-- /bench -->, \
                    <!-- bench: cycles-x/256/Pillarbox over cycles-x/1/Pillarbox -->?<!-- /bench -->.";
        let updated = figures.with_quotes(text).unwrap();
        assert!(updated.contains("-->50.0 k/s<!-- /bench -->, "), "{updated}");
        assert!(updated.ends_with("-->50.0 times<!-- /bench -->."), "{updated}");
        assert_eq!(figures.with_quotes(&updated).unwrap(), updated);
        assert!(figures.with_quotes("<!-- bench: no/such -->1<!-- /bench -->").is_err());
        assert!(figures.with_quotes("<!-- bench: cycles-x/1/Pillarbox -->1").is_err());
    }
}
