//! Experiments: variants to compare.

use pillarbox_runtime::loops::{Budget, Resources};
use serde::{Deserialize, Serialize};

use crate::EvalError;

/// A variant of what is evaluated. Every sample of a run is processed once per experiment.
///
/// Its settings are sent with the requests, and the adapter reads them from
/// [`Run::resources`](pillarbox_runtime::loops::Run::resources) and [`Run::budget`](pillarbox_runtime::loops::Run::budget), as for
/// any other request.
///
/// ```
/// use pillarbox_evals::Experiment;
///
/// let small = Experiment::new("small").resource("model", "small").resource("temperature", 0.2);
/// assert_eq!(small.resources.get::<String>("model").as_deref(), Some("small"));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Experiment {
    /// Name in reports.
    pub name: String,
    /// Description for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Settings for the adapter.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub resources: Resources,
    /// Budget per sample.
    #[serde(default, skip_serializing_if = "Budget::is_empty")]
    pub budget: Budget,
}

impl Experiment {
    /// Name of the only experiment of a run that compares nothing.
    pub const BASELINE: &str = "baseline";

    /// Creates an experiment with this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            description: None,
            resources: Resources::new(),
            budget: Budget::new(),
        }
    }

    /// Creates the experiment that others are compared with, or the only one.
    pub fn baseline() -> Self {
        Self::new(Self::BASELINE)
    }

    /// Sets the description.
    #[must_use]
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.description = Some(text.into());
        self
    }

    /// Adds a setting for the adapter.
    ///
    /// # Panics
    ///
    /// If the value cannot be serialized to JSON. [`Resources::insert`] returns an error instead.
    #[must_use]
    pub fn resource(mut self, name: impl Into<String>, value: impl Serialize) -> Self {
        self.resources = self.resources.with(name, value);
        self
    }

    /// Sets the budget per sample.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self
    }

    /// Rejects an empty list, invalid names and duplicate names.
    pub(crate) fn check(experiments: &[Self]) -> Result<(), EvalError> {
        let mut names: Vec<_> = experiments.iter().map(|one| &*one.name).collect();
        names.sort_unstable();
        if names.is_empty() {
            return Err(EvalError::Invalid("there is no experiment".to_owned()));
        }
        if let Some(name) = names.iter().find(|name| name.trim() != **name || name.is_empty()) {
            let text = format!(
                "{name:?} is not a valid name for an experiment: it is empty, or has spaces around it"
            );
            return Err(EvalError::Invalid(text));
        }
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(EvalError::Invalid(format!(
                "two experiments are called {:?}: names must be unique",
                pair[0]
            ))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiments_need_unique_names() {
        let named = |names: &[&str]| {
            let all: Vec<_> = names.iter().map(|name| Experiment::new(*name)).collect();
            Experiment::check(&all).map_err(|error| error.to_string())
        };
        assert!(named(&["a", "b"]).is_ok());
        assert!(named(&[]).unwrap_err().contains("no experiment"));
        assert!(named(&["a", ""]).unwrap_err().contains("not a valid name"));
        assert!(named(&["a", " a"]).unwrap_err().contains("not a valid name"));
        assert!(named(&["a", "b", "a"]).unwrap_err().contains("\"a\""));
    }

    #[test]
    fn an_experiment_survives_a_round_trip_and_unknown_fields_are_rejected() {
        let one = Experiment::new("a").description("of").resource("model", "small");
        let text = serde_json::to_string(&one).unwrap();
        assert_eq!(serde_json::from_str::<Experiment>(&text).unwrap(), one);
        assert!(serde_json::from_str::<Experiment>(r#"{"name": "a", "resource": {}}"#).is_err());
    }
}
