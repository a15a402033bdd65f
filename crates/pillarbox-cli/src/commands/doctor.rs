//! `pillarbox doctor`

use std::time::{Duration, Instant};

use pillarbox::{Diagnosis, Finding, Repair, Severity, Timestamp};
use serde::Serialize;

use super::with_backend;
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::time;

/// Clock skew above which a warning is shown.
const MAX_SKEW: Duration = Duration::from_secs(1);

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum DoctorJson<'a> {
    Fact { name: &'a str, value: &'a str },
    Promise { text: &'a str },
    Finding { severity: &'static str, text: &'a str, advice: &'a str, repair: &'static str },
}

pub(crate) async fn run(context: &mut Context, args: args::Doctor) -> Result<()> {
    with_backend(context.open_existing().await?, async |backend| {
        let start = Instant::now();
        // If this fails, the diagnosis has the reason.
        let _ = backend.queues().await;
        let answered_in = time::measured(start.elapsed());
        let asked = Timestamp::now();
        let mut diagnosis = backend.diagnose(args.fix).await?;
        compare_clocks(&mut diagnosis, asked, Timestamp::now());
        let diagnosis = diagnosis.with_fact("answers in", answered_in);
        if context.out.is_json() {
            show_lines(context, &diagnosis)?;
        } else {
            show(context, &diagnosis)?;
        }
        if diagnosis.problems().next().is_some() { Err(Failure::Reported) } else { Ok(()) }
    })
    .await
}

/// Adds the clock skew of the backend, whose clock was read between `before` and `after`.
fn compare_clocks(diagnosis: &mut Diagnosis, before: Timestamp, after: Timestamp) {
    let Some(clock) = diagnosis.clock else { return };
    let skew = if clock < before { before.since(clock) } else { clock.since(after) };
    let direction = if clock < before { "behind" } else { "ahead of" };
    let value = if skew.is_zero() {
        "in sync with the local clock".to_owned()
    } else {
        format!("{} {direction} the local clock", time::measured(skew))
    };
    diagnosis.facts.push(pillarbox::Fact { name: "clock", value });
    if skew > MAX_SKEW {
        diagnosis.findings.push(Finding {
            severity: Severity::Warning,
            text: format!("the backend's clock is {} {direction} the local clock", time::show(skew)),
            advice:
                "leases and delays use the backend's clock and are not affected; ages shown here are \
                     wrong. Synchronize the clocks with NTP"
                    .to_owned(),
            repair: Repair::Manual,
        });
    }
}

fn show_lines(context: &mut Context, diagnosis: &Diagnosis) -> Result<()> {
    for fact in &diagnosis.facts {
        context.out.json(&DoctorJson::Fact { name: fact.name, value: &fact.value })?;
    }
    context.out.json(&DoctorJson::Promise { text: &diagnosis.promise })?;
    for Finding { severity, text, advice, repair } in &diagnosis.findings {
        let severity = match severity {
            Severity::Warning => "warning",
            Severity::Problem => "problem",
        };
        let repair = match repair {
            Repair::Manual => "manual",
            Repair::Possible => "possible",
            Repair::Done => "done",
        };
        context.out.json(&DoctorJson::Finding { severity, text, advice, repair })?;
    }
    Ok(())
}

fn show(context: &mut Context, diagnosis: &Diagnosis) -> Result<()> {
    let style = context.out.style();
    let url = context.url();
    context.out.parts(&[style.heading(url.to_string())])?;
    let width = diagnosis.facts.iter().map(|fact| fact.name.len()).max().unwrap_or(0);
    for fact in &diagnosis.facts {
        let name = style.faint(format!("{:width$}", fact.name));
        context.out.parts(&["  ".into(), name, format!("  {}", fact.value).into()])?;
    }
    context.out.line("")?;
    context.out.parts(&[style.heading("Promise:"), format!(" {}", diagnosis.promise).into()])?;
    context.out.line("")?;
    for finding in &diagnosis.findings {
        let mark = match (finding.repair, finding.severity) {
            (Repair::Done, _) => style.good("repaired"),
            (_, Severity::Problem) => style.bad("problem "),
            (_, Severity::Warning) => style.warn("warning "),
        };
        let advice = match finding.repair {
            Repair::Done => String::new(),
            Repair::Possible => "`pillarbox doctor --fix` repairs it".to_owned(),
            Repair::Manual => finding.advice.clone(),
        };
        context.out.parts(&[mark, format!("  {}", finding.text).into()])?;
        if !advice.is_empty() {
            context.out.line(&format!("          {advice}"))?;
        }
    }
    if diagnosis.findings.is_empty() {
        context.out.parts(&[style.good("No problems found.")])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(clock: i64) -> Diagnosis {
        let mut diagnosis = Diagnosis::new("");
        diagnosis.clock = Some(Timestamp::from_secs(clock));
        compare_clocks(&mut diagnosis, Timestamp::from_secs(100), Timestamp::from_secs(102));
        diagnosis
    }

    #[test]
    fn clock_skew_is_a_warning() {
        assert_eq!(compared(101).facts[0].value, "in sync with the local clock");
        assert_eq!(compared(101).findings, []);
        assert!(compared(40).findings[0].text.contains("1m behind the local clock"));
        assert!(compared(162).findings[0].text.contains("1m ahead of the local clock"));
    }

    #[test]
    fn a_backend_without_a_clock_is_not_compared() {
        let mut diagnosis = Diagnosis::new("");
        compare_clocks(&mut diagnosis, Timestamp::from_secs(1), Timestamp::from_secs(2));
        assert_eq!(diagnosis.facts, []);
    }
}
