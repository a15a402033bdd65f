//! Report as a self-contained web page.

mod plot;

use std::fmt::{Display, Write};

use serde_json::Value;

use super::table::{cut, milliseconds, or_dash, percent, points};
use super::{Comparison, Difference, EvalReport, ExperimentReport, FailedSample, Latency, Tally};
use crate::result::Status;

const CSS: &str = include_str!("page.css");
const JS: &str = include_str!("page.js");

impl EvalReport {
    /// Returns the report as a web page in one file that works offline, with plots and a table of failures that can be
    /// filtered.
    pub fn to_html(&self) -> String {
        let title = format!("Eval run {}", self.run_id);
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{0}</title>\n<style>\n{CSS}</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
            Escaped(&title)
        );
        self.head(&mut page);
        self.experiments(&mut page);
        self.plots(&mut page);
        self.failure_table(&mut page);
        let _ = write!(page, "<script>\n{JS}</script>\n</body>\n</html>\n");
        page
    }

    fn head(&self, page: &mut String) {
        let experiments = match self.experiments.len() {
            1 => "1 experiment".to_owned(),
            count => format!("{count} experiments"),
        };
        let created = self.created_at.to_string();
        // 2026-11-17T08:15:00.123Z, without the fraction of a second.
        let created = created.get(..19).unwrap_or(&created).replace('T', " ");
        let _ = writeln!(
            page,
            "<div class=\"faint\">{experiments}, created {created} UTC</div>\n<div class=\"tiles\">"
        );
        let mut tile = |name: &str, value: String, class: &str| {
            let value = Escaped(value);
            let _ = writeln!(page, "<div class=\"tile {class}\"><b>{value}</b>{name}</div>");
        };
        tile("samples", self.total.to_string(), "");
        tile("passed", self.passed.to_string(), "");
        tile("pass rate", or_dash(self.pass_rate.map(percent)), "");
        tile("mean score", or_dash(self.mean_score.map(|score| format!("{score:.3}"))), "");
        if let Some(latency) = &self.latency {
            tile("median latency", milliseconds(latency.p50_ms), "");
            tile("p95 latency", milliseconds(latency.p95_ms), "");
        }
        for status in [Status::NotPassed, Status::Failed, Status::DeadLettered, Status::Missing] {
            match self.count(status) {
                0 => {}
                count => tile(status.label(), count.to_string(), "bad"),
            }
        }
        page.push_str("</div>\n");
        if self.strays > 0 {
            let _ = writeln!(
                page,
                "<p class=\"faint\">{} messages are not results of this run: see strays.jsonl.</p>",
                self.strays
            );
        }
    }

    fn experiments(&self, page: &mut String) {
        page.push_str("<h2>Experiments</h2>\n<div class=\"scroll\"><table id=\"experiments\"><thead><tr><th>experiment</th>");
        for (heading, _) in columns(&Tally::default()) {
            let _ = write!(page, "<th class=\"number\">{heading}</th>");
        }
        page.push_str("</tr></thead><tbody>\n");
        for (index, ExperimentReport { name, description, tally, .. }) in
            self.experiments.iter().enumerate()
        {
            let _ = write!(page, "<tr><td>{}{}", Dot(index), Escaped(name));
            if let Some(text) = description {
                let _ = write!(page, "<div class=\"faint\">{}</div>", Escaped(text));
            }
            page.push_str("</td>");
            for (_, cell) in columns(tally) {
                let _ = write!(page, "<td class=\"number\">{}</td>", Escaped(&cell));
            }
            page.push_str("</tr>\n");
        }
        page.push_str("</tbody></table></div>\n");
        if self.comparisons.is_empty() {
            return;
        }
        page.push_str("<h2>Comparison</h2>\n<div class=\"scroll\"><table id=\"comparisons\"><thead><tr><th>experiment</th>\
                       <th>against</th><th class=\"number\">samples</th><th class=\"number\">gained</th>\
                       <th class=\"number\">lost</th><th>pass rate</th><th>mean score</th></tr></thead><tbody>\n");
        for Comparison {
            baseline, candidate, pairs, pass_rate, mean_score, gained, lost, ..
        } in &self.comparisons
        {
            let _ = writeln!(
                page,
                "<tr><td>{}</td><td>{}</td><td class=\"number\">{pairs}</td><td class=\"number\">{gained}</td>\
                 <td class=\"number\">{lost}</td><td>{}</td><td>{}</td></tr>",
                Escaped(candidate),
                Escaped(baseline),
                coloured(pass_rate, points),
                coloured(mean_score, |value| format!("{value:+.3}")),
            );
        }
        page.push_str("</tbody></table></div>\n");
    }

    fn plots(&self, page: &mut String) {
        page.push_str("<h2>Plots</h2>\n");
        if self.experiments.len() > 1 {
            page.push_str("<div class=\"legend\">");
            for (index, experiment) in self.experiments.iter().enumerate() {
                let _ = write!(page, "<span>{}{}</span>", Dot(index), Escaped(&experiment.name));
            }
            page.push_str("</div>\n");
        }
        page.push_str("<div class=\"plots\">\n");
        let mut plot = |id: &str, title: &str, svg: Option<String>| {
            if let Some(svg) = svg {
                let _ =
                    writeln!(page, "<div class=\"plot\" id=\"{id}\"><h3>{title}</h3>\n{svg}</div>");
            }
        };
        plot("pass-rate", "Pass rate by experiment, with 95 % intervals", plot::pass_rates(self));
        plot("scores", "Distribution of scores", plot::scores(self));
        plot("latency", "Cumulative distribution of latencies", plot::latencies(self));
        let differences = plot::differences(self);
        plot("differences", "Difference in pass rate, with 95 % intervals", differences);
        page.push_str("</div>\n");
    }

    fn failure_table(&self, page: &mut String) {
        page.push_str("<h2>Samples that did not pass</h2>\n");
        if self.failures.is_empty() {
            page.push_str("<p class=\"faint\">None.</p>\n");
            return;
        }
        page.push_str(
            "<div class=\"filter\" id=\"filter\" hidden>\n<input type=\"search\" id=\"find\" \
                       placeholder=\"Find in all columns\" aria-label=\"Find in all columns\">\n",
        );
        let mut select = |id: &str, all: &str, options: &mut dyn Iterator<Item = (&str, &str)>| {
            let _ = write!(
                page,
                "<select id=\"{id}\" aria-label=\"{all}\"><option value=\"\">{all}</option>"
            );
            for (value, label) in options {
                let (value, label) = (Escaped(value), Escaped(label));
                let _ = write!(page, "<option value=\"{value}\">{label}</option>");
            }
            page.push_str("</select>\n");
        };
        let mut names = self.experiments.iter().map(|one| (&*one.name, &*one.name));
        select("experiment", "All experiments", &mut names);
        let statuses = Status::ALL.iter().copied().filter(|status| {
            *status != Status::Passed && self.failures.iter().any(|failed| failed.status == *status)
        });
        let mut statuses = statuses.map(|status| (status.as_str(), status.label()));
        select("status", "All statuses", &mut statuses);
        page.push_str("<span class=\"faint\" id=\"shown\" role=\"status\"></span>\n</div>\n");
        page.push_str(
            "<div class=\"failures\"><table id=\"failures\"><thead><tr><th>sample</th><th>experiment</th><th>status</th>\
             <th class=\"number\">score</th><th>reason</th><th>input</th><th>expected</th><th>output</th>\
             <th class=\"number\">latency</th></tr></thead><tbody>\n",
        );
        for failed in &self.failures {
            row(page, failed);
        }
        page.push_str("</tbody></table></div>\n");
        if self.failures_omitted > 0 {
            let _ = writeln!(
                page,
                "<p class=\"faint\">And {} more, in results.jsonl.</p>",
                self.failures_omitted
            );
        }
    }
}

fn row(page: &mut String, failed: &FailedSample) {
    let _ = write!(
        page,
        "<tr data-experiment=\"{0}\" data-status=\"{1}\"><td class=\"id\">{2}</td><td class=\"id\">{0}</td>\
         <td class=\"status {1}\">{3}</td><td class=\"number\">{4}</td><td class=\"reason\">{5}",
        Escaped(&failed.experiment),
        failed.status.as_str(),
        Escaped(&failed.sample_id),
        failed.status.label(),
        or_dash(failed.score.map(|score| format!("{score:.2}"))),
        Escaped(cut(failed.reason.as_deref().unwrap_or("-"))),
    );
    let steps = &failed.steps;
    if !steps.is_empty() {
        let plural = if steps.len() == 1 { "step" } else { "steps" };
        let _ = write!(page, "<details><summary>{} {plural}</summary><pre>", steps.len());
        for step in steps {
            let (at, name, data) =
                (milliseconds(step.at_ms), Escaped(&step.name), Escaped(&step.data));
            let _ = writeln!(page, "{at} {name} {data}");
        }
        page.push_str("</pre></details>");
    }
    let _ = writeln!(
        page,
        "</td><td><pre>{}</pre></td><td><pre>{}</pre></td><td><pre>{}</pre></td><td class=\"number\">{}</td></tr>",
        Escaped(cut(&shown(&failed.input))),
        Escaped(cut(&shown(&failed.expected))),
        Escaped(cut(&or_dash(failed.output.as_ref().map(shown)))),
        or_dash(failed.latency_ms.map(milliseconds)),
    );
}

/// Returns a string as it is, any other value as indented JSON.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => pretty(other).unwrap_or_else(|| other.to_string()),
    }
}

/// Returns a value as indented JSON, or `None` if that is much longer than what is shown of it: deeply nested values have
/// long indents.
fn pretty(value: &Value) -> Option<String> {
    struct Bounded(Vec<u8>);

    impl std::io::Write for Bounded {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            const MAX_BYTES: usize = 1 << 20;
            if self.0.len() + bytes.len() > MAX_BYTES {
                return Err(std::io::ErrorKind::FileTooLarge.into());
            }
            self.0.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let mut text = Bounded(Vec::new());
    serde_json::to_writer_pretty(&mut text, value).ok()?;
    String::from_utf8(text.0).ok()
}

/// Returns the headings and cells of an experiment.
fn columns(tally: &Tally) -> [(&'static str, String); 13] {
    let time = |of: fn(&Latency) -> f64| or_dash(tally.latency.as_ref().map(of).map(milliseconds));
    [
        ("samples", tally.total.to_string()),
        ("passed", tally.passed.to_string()),
        ("not passed", tally.not_passed.to_string()),
        ("failed", tally.failed.to_string()),
        ("dead-lettered", tally.dead_lettered.to_string()),
        ("missing", tally.missing.to_string()),
        ("pass rate", or_dash(tally.pass_rate.map(percent))),
        ("95 %", or_dash(tally.interval())),
        ("mean score", or_dash(tally.mean_score.map(|score| format!("{score:.3}")))),
        ("p50", time(|latency| latency.p50_ms)),
        ("p90", time(|latency| latency.p90_ms)),
        ("p99", time(|latency| latency.p99_ms)),
        ("max", time(|latency| latency.max_ms)),
    ]
}

/// Returns a difference as coloured HTML.
fn coloured(difference: &Option<Difference>, show: impl Fn(f64) -> String) -> String {
    let Some(difference) = difference else { return "-".to_owned() };
    let class = match difference.is_significant() {
        true if difference.value > 0.0 => "better",
        true => "worse",
        false => "",
    };
    format!("<span class=\"{class}\">{}</span>", Escaped(&difference.in_words(show)))
}

/// Coloured dot of an experiment.
struct Dot(usize);

impl Display for Dot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "<span class=\"dot\" style=\"background: {}\"></span>", plot::colour(self.0))
    }
}

/// Escapes text for HTML elements and attributes.
struct Escaped<T>(T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        struct Writing<'a, 'b>(&'a mut std::fmt::Formatter<'b>);
        impl Write for Writing<'_, '_> {
            fn write_str(&mut self, text: &str) -> std::fmt::Result {
                for c in text.chars() {
                    match c {
                        '&' => self.0.write_str("&amp;")?,
                        '<' => self.0.write_str("&lt;")?,
                        '>' => self.0.write_str("&gt;")?,
                        '"' => self.0.write_str("&quot;")?,
                        '\'' => self.0.write_str("&#39;")?,
                        // HTML cannot represent it.
                        '\0' => self.0.write_char('\u{FFFD}')?,
                        c => self.0.write_char(c)?,
                    }
                }
                Ok(())
            }
        }
        write!(Writing(f), "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_would_be_too_long_with_indents_has_none() {
        let nested = |depth: usize, items: usize| {
            let (open, close) = ("[".repeat(depth), "]".repeat(depth));
            let text = format!("{open}{}0{close}", "0,".repeat(items));
            (serde_json::from_str::<Value>(&text).unwrap(), text)
        };
        let (value, text) = nested(120, 100_000);
        assert_eq!(shown(&value), text);
        let (value, text) = nested(2, 1);
        assert_eq!(shown(&value).lines().count(), 6, "{text}");
    }

    #[test]
    fn text_is_escaped_for_html() {
        let text = "</pre><script>alert('x' & \"y\")</script>\0";
        assert_eq!(
            Escaped(text).to_string(),
            "&lt;/pre&gt;&lt;script&gt;alert(&#39;x&#39; &amp; &quot;y&quot;)&lt;/script&gt;\u{FFFD}"
        );
    }
}
