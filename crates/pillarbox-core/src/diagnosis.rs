//! The result of diagnosing a backend.

use crate::Capabilities;
use crate::clock::Timestamp;

/// Facts about a backend and the problems found, for its operators.
///
/// [`Mailboxes::diagnose`](crate::Mailboxes::diagnose) returns one. The texts are for people and may change;
/// programs can rely on [`problems`](Self::problems).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnosis {
    /// Versions, locations, sizes and settings.
    pub facts: Vec<Fact>,
    /// Failures that a confirmed send survives with the current settings, as text.
    pub promise: String,
    /// Time by the backend's own clock. `None`: the backend uses the caller's clock.
    pub clock: Option<Timestamp>,
    /// Warnings and problems.
    pub findings: Vec<Finding>,
}

impl Diagnosis {
    /// Creates a diagnosis with a promise and nothing else.
    pub fn new(promise: impl Into<String>) -> Self {
        Self { facts: Vec::new(), promise: promise.into(), clock: None, findings: Vec::new() }
    }

    /// Creates the diagnosis that follows from the capabilities of a backend alone.
    pub fn of(capabilities: &Capabilities) -> Self {
        let promise = if capabilities.durable {
            "messages outlive this process"
        } else {
            "messages are gone when this process ends"
        };
        Self::new(promise).with_fact("backend", capabilities.backend)
    }

    /// Adds a fact.
    #[must_use]
    pub fn with_fact(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.facts.push(Fact { name, value: value.into() });
        self
    }

    /// Returns the problems that were not repaired.
    pub fn problems(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| {
            finding.severity == Severity::Problem && finding.repair != Repair::Done
        })
    }
}

/// A fact about a backend, such as a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// Subject, in a word or two.
    pub name: &'static str,
    /// Value.
    pub value: String,
}

/// A warning or problem that a diagnosis found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Severity of the finding.
    pub severity: Severity,
    /// Description of the finding.
    pub text: String,
    /// Advice to the operator.
    pub advice: String,
    /// Whether the backend can fix it, or has fixed it.
    pub repair: Repair,
}

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Messages are safe, but something should be improved.
    Warning,
    /// Messages are lost, stuck or may be delivered wrongly.
    Problem,
}

/// Whether a backend can fix what it found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Repair {
    /// It cannot: follow the advice.
    Manual,
    /// It can, if `repair` is set.
    Possible,
    /// It has.
    Done,
}
