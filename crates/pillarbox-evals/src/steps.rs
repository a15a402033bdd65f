//! Steps that an adapter records while it works on a sample.

use std::borrow::Cow;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use pillarbox_core::internal::lock;
use pillarbox_runtime::loops::Run;
use serde::{Deserialize, Serialize};

/// Maximum number of steps that are kept of a run.
const MAX_STEPS: usize = 1000;
/// Maximum size of their JSON in bytes: it is part of the answer.
const MAX_BYTES: usize = 64 << 10;

/// Something that an adapter did, as [recorded](RecordSteps::step) by it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Step {
    /// Kind of step, such as `search` or `tool_call`.
    pub name: Cow<'static, str>,
    /// Time since the adapter was called, in milliseconds.
    pub at_ms: f64,
    /// Details.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub data: serde_json::Value,
}

/// Lets an adapter record what it does: a call of a tool, an answer of a model.
pub trait RecordSteps {
    /// Records a step. Evaluators see it in [`Session::steps`](crate::Session::steps), and a report shows the
    /// steps of samples that did not pass. The first 1000 are kept, up to 64 KiB.
    ///
    /// Outside an [`EvalLoop`](crate::EvalLoop) it does nothing, so an adapter can record its steps in
    /// production too.
    ///
    /// ```
    /// use pillarbox_evals::RecordSteps;
    /// use pillarbox_runtime::loops::Run;
    ///
    /// async fn answer(question: String, run: Run) -> String {
    ///     run.step("search", serde_json::json!({ "query": question }));
    ///     // ...
    /// #   question
    /// }
    /// ```
    fn step(&self, name: impl Into<Cow<'static, str>>, data: serde_json::Value);
}

impl RecordSteps for Run {
    fn step(&self, name: impl Into<Cow<'static, str>>, data: serde_json::Value) {
        if let Some(recorder) = self.extensions().get::<StepRecorder>() {
            recorder.add(name.into(), data);
        }
    }
}

/// Recorder that an `EvalLoop` attaches to the runs of its adapter.
pub(crate) struct StepRecorder {
    started: Instant,
    // Locked for a push or a copy, never across an await.
    recorded: Mutex<Recorded>,
}

#[derive(Default)]
struct Recorded {
    steps: Vec<Step>,
    bytes: usize,
}

impl StepRecorder {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), recorded: Mutex::default() }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    fn add(&self, name: Cow<'static, str>, data: serde_json::Value) {
        let at_ms = milliseconds(self.elapsed());
        let bytes = name.len() + data.to_string().len();
        let mut recorded = lock(&self.recorded);
        if recorded.steps.len() < MAX_STEPS && recorded.bytes + bytes <= MAX_BYTES {
            recorded.steps.push(Step { name, at_ms, data });
            recorded.bytes += bytes;
        }
    }

    pub(crate) fn steps(&self) -> Vec<Step> {
        lock(&self.recorded).steps.clone()
    }
}

/// Returns a duration in milliseconds, rounded to the microsecond.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn steps_are_kept_in_order_and_no_more_than_a_thousand_or_64_kib() {
        let recorder = StepRecorder::new();
        for n in 0..1001 {
            recorder.add("step".into(), json!(n));
        }
        let all = recorder.steps();
        assert_eq!(all.len(), 1000);
        assert!(all.windows(2).all(|pair| pair[0].at_ms <= pair[1].at_ms));
        assert_eq!((&all[0].data, &all[999].data), (&json!(0), &json!(999)));
        // A step that is too large is dropped; a small one after it is kept.
        let recorder = StepRecorder::new();
        recorder.add("large".into(), json!("x".repeat(70_000)));
        recorder.add("small".into(), json!(7));
        assert_eq!(recorder.steps().iter().map(|step| &*step.name).collect::<Vec<_>>(), ["small"]);
        let written = serde_json::to_string(&all[7]).unwrap();
        assert_eq!(serde_json::from_str::<Step>(&written).unwrap(), all[7]);
    }
}
