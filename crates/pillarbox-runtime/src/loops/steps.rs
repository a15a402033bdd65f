//! What an adapter says that it does.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The most steps of a run that are kept.
const MOST: usize = 1000;
/// The most bytes of JSON that they may have together: they travel with the answer.
const MOST_BYTES: usize = 64 << 10;

/// Something that an adapter did, and [said so](super::Run::step).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Step {
    /// What kind of thing: `search`, `tool_call`.
    pub name: Cow<'static, str>,
    /// How long after the run began, in milliseconds.
    pub at_ms: f64,
    /// What is to be known of it.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub data: serde_json::Value,
}

/// The steps of a run, as they come.
pub(super) struct Steps {
    begun: Instant,
    // Held for a push or a copy, never across an await.
    steps: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    steps: Vec<Step>,
    bytes: usize,
}

impl Steps {
    pub(super) fn new() -> Self {
        Self { begun: Instant::now(), steps: Mutex::default() }
    }

    pub(super) fn add(&self, name: Cow<'static, str>, data: serde_json::Value) {
        let at_ms = milliseconds(self.begun.elapsed());
        let bytes = name.len() + data.to_string().len();
        let mut kept = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.steps.len() < MOST && kept.bytes + bytes <= MOST_BYTES {
            kept.steps.push(Step { name, at_ms, data });
            kept.bytes += bytes;
        }
    }

    pub(super) fn all(&self) -> Vec<Step> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).steps.clone()
    }
}

/// To the microsecond.
fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn steps_are_kept_in_order_and_no_more_than_a_thousand_or_64_kib() {
        let steps = Steps::new();
        for n in 0..1001 {
            steps.add("step".into(), json!(n));
        }
        let all = steps.all();
        assert_eq!(all.len(), 1000);
        assert!(all.windows(2).all(|pair| pair[0].at_ms <= pair[1].at_ms));
        assert_eq!((&all[0].data, &all[999].data), (&json!(0), &json!(999)));
        // A large one is left out, and a small one after it is not.
        let steps = Steps::new();
        steps.add("large".into(), json!("x".repeat(70_000)));
        steps.add("small".into(), json!(7));
        assert_eq!(steps.all().iter().map(|step| &*step.name).collect::<Vec<_>>(), ["small"]);
        let written = serde_json::to_string(&all[7]).unwrap();
        assert_eq!(serde_json::from_str::<Step>(&written).unwrap(), all[7]);
    }
}
