//! Results of samples.

use pillarbox_core::Timestamp;
use pillarbox_runtime::loops::{MainLoopResult, RemoteError, RemoteErrorKind, Uuid};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::message::Scored;
use crate::score::Score;
use crate::steps::Step;

/// Result of a sample: one line of `results.jsonl`.
///
/// A line has either `score`, `output` and `latency_ms`, or `error` and `error_kind`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct EvalResult {
    /// Name of the experiment.
    pub experiment: String,
    /// Id of the sample.
    pub sample_id: String,
    /// Number of times the sample had been submitted, this one included.
    pub round: u32,
    /// Score and output, or the error.
    pub outcome: Result<Scored, RemoteError>,
    /// Session id, if the adapter set one.
    pub session_id: Option<Uuid>,
    /// Time of the answer, by the clock of the loop.
    pub completed_at: Timestamp,
}

/// Maximum number of times that a sample is submitted.
const MAX_ROUNDS: u32 = 1000;

/// Rejects a round outside of 1 to [`MAX_ROUNDS`].
pub(crate) fn check_round(round: u32) -> Result<(), String> {
    if round == 0 || round > MAX_ROUNDS {
        return Err(format!("round {round} is not from 1 to {MAX_ROUNDS}"));
    }
    Ok(())
}

impl EvalResult {
    pub(crate) fn new(
        experiment: &str,
        sample_id: &str,
        round: u32,
        answer: MainLoopResult<Scored>,
    ) -> Self {
        Self {
            experiment: experiment.to_owned(),
            sample_id: sample_id.to_owned(),
            round,
            outcome: answer.outcome,
            session_id: answer.session_id,
            completed_at: answer.completed_at,
        }
    }

    /// Rejects values that no run produces.
    pub(crate) fn check(&self) -> Result<(), String> {
        check_round(self.round)?;
        match &self.outcome {
            Ok(scored) => scored.score.check(),
            Err(_) => Ok(()),
        }
    }

    /// Returns the status that the result counts as.
    pub fn status(&self) -> Status {
        match &self.outcome {
            Ok(scored) if scored.score.passed => Status::Passed,
            Ok(_) => Status::NotPassed,
            Err(error) if error.kind == RemoteErrorKind::DeadLettered => Status::DeadLettered,
            Err(_) => Status::Failed,
        }
    }
}

/// Status of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Status {
    /// The output passed.
    Passed,
    /// The output did not pass.
    NotPassed,
    /// There is no score: the adapter or the evaluator failed.
    Failed,
    /// It became a dead letter: it used up its deliveries, or crashed its processes.
    DeadLettered,
    /// There is no result yet.
    Missing,
}

impl Status {
    /// All statuses, best first.
    pub const ALL: &[Self] =
        &[Self::Passed, Self::NotPassed, Self::Failed, Self::DeadLettered, Self::Missing];

    /// Returns the name in snake case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::NotPassed => "not_passed",
            Self::Failed => "failed",
            Self::DeadLettered => "dead_lettered",
            Self::Missing => "missing",
        }
    }

    /// Returns the name for people.
    pub const fn label(self) -> &'static str {
        match self {
            Self::NotPassed => "not passed",
            Self::DeadLettered => "dead-lettered",
            other => other.as_str(),
        }
    }

    /// Returns whether a sample with this status has a score.
    pub const fn is_scored(self) -> bool {
        matches!(self, Self::Passed | Self::NotPassed)
    }
}

/// Serialized form of a result.
#[derive(Serialize)]
struct SerializedResult<'a> {
    experiment: &'a str,
    sample_id: &'a str,
    round: u32,
    status: Status,
    #[serde(flatten)]
    scored: Option<&'a Scored>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<Uuid>,
    completed_at: Timestamp,
}

/// Deserialized form of a result.
#[derive(Deserialize)]
#[serde(expecting = "the result of a sample")]
struct DeserializedResult {
    experiment: String,
    sample_id: String,
    round: u32,
    score: Option<Score>,
    #[serde(default)]
    output: Value,
    latency_ms: Option<f64>,
    #[serde(default)]
    steps: Vec<Step>,
    error: Option<String>,
    error_kind: Option<String>,
    error_type: Option<String>,
    session_id: Option<Uuid>,
    completed_at: Timestamp,
}

impl Serialize for EvalResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let error = self.outcome.as_ref().err();
        SerializedResult {
            experiment: &self.experiment,
            sample_id: &self.sample_id,
            round: self.round,
            status: self.status(),
            scored: self.outcome.as_ref().ok(),
            error: error.map(|error| &*error.text),
            error_kind: error.map(|error| error.kind.as_str()),
            error_type: error.and_then(|error| error.error_type.as_deref()),
            session_id: self.session_id,
            completed_at: self.completed_at,
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for EvalResult {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = DeserializedResult::deserialize(deserializer)?;
        let outcome = match (read.score, read.error) {
            (Some(score), None) => {
                let DeserializedResult { output, latency_ms, steps, .. } = read;
                Ok(Scored { score, output, latency_ms, steps })
            }
            (None, Some(text)) => {
                let kind = read.error_kind.as_deref().unwrap_or_default();
                let mut error = RemoteError::new(RemoteErrorKind::from_name(kind), text);
                error.error_type = read.error_type;
                Err(error)
            }
            _ => return Err(serde::de::Error::custom("expected either a score or an error")),
        };
        Ok(Self {
            experiment: read.experiment,
            sample_id: read.sample_id,
            round: read.round,
            outcome,
            session_id: read.session_id,
            completed_at: read.completed_at,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_round_is_from_1_to_1000() {
        assert!(check_round(1).is_ok() && check_round(MAX_ROUNDS).is_ok());
        for round in [0, MAX_ROUNDS + 1, u32::MAX] {
            assert!(check_round(round).unwrap_err().contains("is not from 1 to 1000"));
        }
    }

    #[test]
    fn a_result_with_values_that_no_run_produces_is_rejected() {
        let read = |round: u32, value: f64| {
            let score = json!({"value": value, "passed": true});
            let result = json!({"experiment": "a", "sample_id": "7", "round": round, "score": score,
                "completed_at": "2026-01-01T00:00:00Z"});
            serde_json::from_value::<EvalResult>(result).unwrap().check()
        };
        assert_eq!(read(1, 1.0), Ok(()));
        // All rounds before it would be looked up.
        assert!(read(u32::MAX, 1.0).unwrap_err().contains("round"));
        assert!(read(1, 7.0).unwrap_err().contains("not from 0 to 1"));
    }

    #[test]
    fn a_result_is_read_as_it_was_written() {
        let scored = Scored {
            score: Score::fail("no"),
            output: json!({"a": 1}),
            latency_ms: Some(1.5),
            steps: Vec::new(),
        };
        let mut error = RemoteError::new(RemoteErrorKind::DeadLettered, "gone");
        error.error_type = Some("x::Y".to_owned());
        for (outcome, status) in [(Ok(scored), "not_passed"), (Err(error), "dead_lettered")] {
            let result = EvalResult {
                experiment: "a".to_owned(),
                sample_id: "7".to_owned(),
                round: 2,
                outcome,
                session_id: Some(Uuid::nil()),
                completed_at: Timestamp::from_secs(1000),
            };
            let text = serde_json::to_string(&result).unwrap();
            assert_eq!(serde_json::from_str::<EvalResult>(&text).unwrap(), result);
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["status"], status);
        }
        let neither =
            r#"{"experiment":"a","sample_id":"7","round":1,"completed_at":"2026-01-01T00:00:00Z"}"#;
        let error = serde_json::from_str::<EvalResult>(neither).unwrap_err();
        assert!(error.to_string().contains("either a score or an error"), "{error}");
    }
}
