//! What travels between those who submit, those who work and those who collect.

use pillarbox_core::Mailbox;
use pillarbox_runtime::{MainLoopRequest, MainLoopResult};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::dataset::Sample;
use crate::score::Score;
use crate::steps::Step;

/// The mailbox of an [`EvalLoop`](crate::EvalLoop): requests in the form of a main loop's, and its answers.
pub type EvalRequests<I, E> = Mailbox<MainLoopRequest<EvalRequest<I, E>>, MainLoopResult<Scored>>;

/// A sample that is to be worked on and judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EvalRequest<I, E> {
    /// The run that it is a part of.
    pub run_id: String,
    /// The variant that shall be used, by its name. What it consists of is in the resources and the budget of the
    /// request.
    pub experiment: String,
    /// What to work on.
    pub sample: Sample<I, E>,
}

/// A sample that was worked on and judged: the answer to an [`EvalRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Scored {
    /// How well it did.
    pub score: Score,
    /// What came out, as JSON.
    pub output: Value,
    /// How long the adapter took, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<f64>,
    /// What the adapter said that it did, of a sample that did not pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
}
