//! Report as JUnit XML, for CI.

use std::collections::HashMap;
use std::fmt::Write;

use super::EvalReport;
use super::table::cut;
use crate::result::Status;

impl EvalReport {
    /// Returns the report as JUnit XML: an experiment is a test suite, a sample is a test case. A sample that did not
    /// pass is a failure; one that failed, was dead-lettered or is missing is an error.
    pub fn to_junit(&self) -> String {
        let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        let errors = |of: &dyn Fn(Status) -> usize| {
            of(Status::Failed) + of(Status::DeadLettered) + of(Status::Missing)
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            xml,
            r#"<testsuites name="{}" tests="{}" failures="{}" errors="{}">"#,
            escape(&format!("eval {}", self.run_id)),
            self.total,
            self.count(Status::NotPassed),
            errors(&|status| self.count(status)),
        );
        let failures = self.failures.iter();
        let failures: HashMap<_, _> =
            failures.map(|failed| ((&*failed.experiment, &*failed.sample_id), failed)).collect();
        for experiment in &self.experiments {
            let samples = || self.samples_of(&experiment.name);
            let times = samples().filter_map(|sample| sample.latency_ms);
            let time = times.fold(0.0, |sum, ms| sum + ms / 1e3);
            let tally = &experiment.tally;
            let name = escape(&experiment.name);
            let _ = writeln!(
                xml,
                r#"  <testsuite name="{name}" tests="{}" failures="{}" errors="{}" time="{time:.3}" timestamp="{}">"#,
                tally.total,
                tally.not_passed,
                errors(&|status| tally.of(status)),
                self.created_at,
            );
            for sample in samples() {
                let time = sample.latency_ms.unwrap_or_default() / 1e3;
                let id = escape(&sample.sample_id);
                let _ =
                    write!(xml, r#"    <testcase classname="{name}" name="{id}" time="{time:.3}""#);
                let element = match sample.status {
                    Status::Passed => {
                        xml.push_str("/>\n");
                        continue;
                    }
                    Status::NotPassed => "failure",
                    Status::Failed | Status::DeadLettered | Status::Missing => "error",
                };
                let known = failures.get(&(&*experiment.name, &*sample.sample_id));
                let (status, label) = (sample.status.as_str(), sample.status.label());
                let reason = known.and_then(|failed| failed.reason.as_deref()).unwrap_or(label);
                let reason = escape(reason);
                let _ = write!(xml, ">\n      <{element} type=\"{status}\" message=\"{reason}\">");
                if let Some(failed) = known {
                    let (input, expected) = (failed.input.to_string(), failed.expected.to_string());
                    let (input, expected) = (cut(&input), cut(&expected));
                    xml.push_str(&escape(&format!("input: {input}\nexpected: {expected}\n")));
                    if let Some(output) = &failed.output {
                        let output = escape(&format!("output: {}", cut(&output.to_string())));
                        let _ = writeln!(xml, "{output}");
                    }
                }
                let _ = writeln!(xml, "</{element}>\n    </testcase>");
            }
            xml.push_str("  </testsuite>\n");
        }
        xml.push_str("</testsuites>\n");
        xml
    }
}

/// Escapes text for XML elements and attributes. Characters that XML cannot represent are replaced.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push_str("&#10;"),
            '\t' => escaped.push_str("&#9;"),
            '\r' => escaped.push_str("&#13;"),
            '\u{FFFE}' | '\u{FFFF}' => escaped.push('\u{FFFD}'),
            c if c.is_control() && c < '\u{80}' => escaped.push('\u{FFFD}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_for_xml() {
        assert_eq!(escape("a<b> & \"c\"\u{0}\n"), "a&lt;b&gt; &amp; &quot;c&quot;\u{FFFD}&#10;");
    }
}
