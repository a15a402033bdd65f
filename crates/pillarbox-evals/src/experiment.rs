//! Variants that are compared.

use pillarbox_runtime::{Budget, Resources};
use serde::{Deserialize, Serialize};

use crate::EvalError;

/// A variant of what is evaluated: the samples of a run are given to the adapter once for each.
///
/// What makes it a variant travels with the requests: the adapter finds it in
/// [`Run::resources`](pillarbox_runtime::Run::resources) and [`Run::budget`](pillarbox_runtime::Run::budget),
/// where it finds the settings of any other request.
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
    /// What it is called in reports.
    pub name: String,
    /// What it is about, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What the adapter shall work with.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub resources: Resources,
    /// What a sample may cost.
    #[serde(default, skip_serializing_if = "Budget::is_empty")]
    pub budget: Budget,
}

impl Experiment {
    /// The name of the one experiment of a run that compares nothing.
    pub const BASELINE: &str = "baseline";

    /// A variant of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            description: None,
            resources: Resources::new(),
            budget: Budget::new(),
        }
    }

    /// The variant that others are compared with, or the only one.
    pub fn baseline() -> Self {
        Self::new(Self::BASELINE)
    }

    /// Says what it is about.
    #[must_use]
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.description = Some(text.into());
        self
    }

    /// Adds something that the adapter shall work with: a name, a setting.
    ///
    /// # Panics
    ///
    /// Where it cannot be written as JSON. See [`Resources::insert`] for one that fails instead.
    #[must_use]
    pub fn resource(mut self, name: impl Into<String>, value: impl Serialize) -> Self {
        self.resources = self.resources.with(name, value);
        self
    }

    /// Says what a sample may cost.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self
    }

    /// Refuses names that cannot be told apart.
    pub(crate) fn check(experiments: &[Self]) -> Result<(), EvalError> {
        let mut names: Vec<_> = experiments.iter().map(|one| &*one.name).collect();
        names.sort_unstable();
        if names.is_empty() {
            return Err(EvalError::Invalid("there is no experiment".to_owned()));
        }
        if let Some(name) = names.iter().find(|name| name.trim() != **name || name.is_empty()) {
            let text = format!(
                "{name:?} is no name for an experiment: it is empty, or has blanks around it"
            );
            return Err(EvalError::Invalid(text));
        }
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(EvalError::Invalid(format!(
                "two experiments are called {:?}: each needs a name of its own",
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
    fn experiments_need_names_of_their_own() {
        let named = |names: &[&str]| {
            let all: Vec<_> = names.iter().map(|name| Experiment::new(*name)).collect();
            Experiment::check(&all).map_err(|error| error.to_string())
        };
        assert!(named(&["a", "b"]).is_ok());
        assert!(named(&[]).unwrap_err().contains("no experiment"));
        assert!(named(&["a", ""]).unwrap_err().contains("no name"));
        assert!(named(&["a", " a"]).unwrap_err().contains("no name"));
        assert!(named(&["a", "b", "a"]).unwrap_err().contains("\"a\""));
    }

    #[test]
    fn an_experiment_is_written_as_it_is_read_and_a_slip_is_noticed() {
        let one = Experiment::new("a").description("of").resource("model", "small");
        let text = serde_json::to_string(&one).unwrap();
        assert_eq!(serde_json::from_str::<Experiment>(&text).unwrap(), one);
        assert!(serde_json::from_str::<Experiment>(r#"{"name": "a", "resource": {}}"#).is_err());
    }
}
