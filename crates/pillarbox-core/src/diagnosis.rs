//! What a backend finds out about itself.

use crate::Capabilities;
use crate::clock::Timestamp;

/// What a backend tells about itself and what it found wrong, for the people who operate it.
///
/// [`Mailboxes::diagnose`](crate::Mailboxes::diagnose) gives one. Its texts are for people and may
/// change; whether there is a [problem](Self::problems) is for programs too.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnosis {
    /// Versions, places, sizes and settings.
    pub facts: Vec<Fact>,
    /// What an answered send has survived, with the settings there are.
    pub promise: String,
    /// What the backend's own clock said. `None`: the backend has only the caller's.
    pub clock: Option<Timestamp>,
    /// What is worth knowing, and what is wrong.
    pub findings: Vec<Finding>,
}

impl Diagnosis {
    /// Makes a diagnosis of nothing but a promise.
    pub fn new(promise: impl Into<String>) -> Self {
        Self { facts: Vec::new(), promise: promise.into(), clock: None, findings: Vec::new() }
    }

    /// What can be said of any backend by its capabilities.
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

    /// What is wrong and was not repaired.
    pub fn problems(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| {
            finding.severity == Severity::Problem && finding.repair != Repair::Done
        })
    }
}

/// Something to know about a backend, such as a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// What it is about, in a word or two.
    pub name: &'static str,
    /// What is so.
    pub value: String,
}

/// Something that a diagnosis has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was found.
    pub text: String,
    /// What to do about it.
    pub advice: String,
    /// What can be, or was, done about it by the backend itself.
    pub repair: Repair,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Messages are safe; something could be better.
    Warning,
    /// Messages are lost, stuck or may be delivered wrongly.
    Problem,
}

/// Whether a backend can put right what it found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Repair {
    /// It cannot: follow the advice.
    Manual,
    /// It would, if it were told to.
    Possible,
    /// It did.
    Done,
}
