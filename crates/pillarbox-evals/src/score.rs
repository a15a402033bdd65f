//! Scores.

use pillarbox_runtime::BoxError;
use serde::{Deserialize, Serialize};

/// Score that an evaluator gives to an output.
///
/// ```
/// use pillarbox_evals::Score;
///
/// assert!(Score::pass().passed);
/// assert_eq!(Score::fail("too long").reason.as_deref(), Some("too long"));
/// let score = Score::graded(0.8, 0.7).because("4 of 5 facts");
/// assert!(score.passed && score.value == 0.8);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// Value from 0 (worst) to 1 (best).
    pub value: f64,
    /// Whether the output passed.
    pub passed: bool,
    /// Reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Score {
    /// Creates a score of 1 that passes.
    pub const fn pass() -> Self {
        Self { value: 1.0, passed: true, reason: None }
    }

    /// Creates a score of 0 that does not pass.
    pub fn fail(reason: impl Into<String>) -> Self {
        Self { value: 0.0, passed: false, reason: Some(reason.into()) }
    }

    /// Creates a score that passes if the value is at least `threshold`.
    pub fn graded(value: f64, threshold: f64) -> Self {
        Self { value, passed: value >= threshold, reason: None }
    }

    /// Sets the reason.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Rejects a value outside of 0 to 1.
    pub(crate) fn check(&self) -> Result<(), String> {
        if (0.0..=1.0).contains(&self.value) {
            return Ok(());
        }
        Err(format!("the evaluator gave a score of {}, which is not from 0 to 1", self.value))
    }
}

/// Return type of an evaluator function: a [`Score`], a `bool` (passed or not), or a `Result` of either.
pub trait IntoScore {
    /// Returns the score, or the error of the evaluator.
    fn into_score(self) -> Result<Score, BoxError>;
}

impl IntoScore for Score {
    fn into_score(self) -> Result<Score, BoxError> {
        Ok(self)
    }
}

impl IntoScore for bool {
    fn into_score(self) -> Result<Score, BoxError> {
        Ok(if self { Score::pass() } else { Score { reason: None, ..Score::fail("") } })
    }
}

impl<S: IntoScore, E: Into<BoxError>> IntoScore for Result<S, E> {
    fn into_score(self) -> Result<Score, BoxError> {
        self.map_err(Into::into)?.into_score()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_from_0_to_1() {
        for value in [0.0, 0.5, 1.0] {
            assert!(Score::graded(value, 0.5).check().is_ok());
        }
        for value in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            let error = Score::graded(value, 0.5).check().unwrap_err();
            assert!(error.contains("not from 0 to 1"), "{error}");
        }
    }

    #[test]
    fn an_evaluator_returns_a_bool_a_score_or_an_error() {
        assert_eq!(true.into_score().unwrap(), Score::pass());
        let failed = false.into_score().unwrap();
        assert_eq!((failed.value, failed.passed, failed.reason), (0.0, false, None));
        assert_eq!(Ok::<_, String>(true).into_score().unwrap(), Score::pass());
        assert_eq!(Err::<Score, _>("no judge").into_score().unwrap_err().to_string(), "no judge");
    }
}
