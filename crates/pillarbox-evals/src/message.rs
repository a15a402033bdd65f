//! Messages between submitter, workers and collector.

use pillarbox_core::Mailbox;
use pillarbox_runtime::loops::{MainLoopRequest, MainLoopResult};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::dataset::Sample;
use crate::score::Score;
use crate::steps::Step;

/// Mailbox of an [`EvalLoop`](crate::EvalLoop).
pub type EvalRequests<I, E> = Mailbox<MainLoopRequest<EvalRequest<I, E>>, MainLoopResult<Scored>>;

/// Request to run the adapter on a sample and score the output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EvalRequest<I, E> {
    /// Id of the run.
    pub run_id: String,
    /// Name of the experiment. Its settings are in the resources and the budget of the request.
    pub experiment: String,
    /// The sample.
    pub sample: Sample<I, E>,
}

/// Answer to an [`EvalRequest`]: the scored output of a sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Scored {
    /// The score.
    pub score: Score,
    /// The output, as JSON.
    pub output: Value,
    /// Run time of the adapter, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<f64>,
    /// Steps of the adapter, if the sample did not pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
}
