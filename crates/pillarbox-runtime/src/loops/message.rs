//! What travels: a request, and the answer to it.

use std::collections::BTreeMap;
use std::fmt;

use pillarbox_core::{MessageId, SendOptions, Timestamp};
use serde::de::DeserializeOwned;
use serde::de::value::UnitDeserializer;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::attributes::REQUEST_ID;

/// A request to a [`MainLoop`](super::MainLoop), as it lies in its mailbox.
///
/// ```
/// use std::time::Duration;
/// use pillarbox_runtime::{Budget, MainLoopRequest};
///
/// let request = MainLoopRequest::new("How high is the Eiger?".to_owned())
///     .deadline_in(Duration::from_secs(60))
///     .budget(Budget::new().limit("total_tokens", 10_000))
///     .resource("model", "small");
/// assert_eq!(request.budget.get("total_tokens"), Some(10_000));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MainLoopRequest<U> {
    /// What is asked.
    pub request: U,
    /// What it may cost: passed on to the adapter, which knows what the limits mean.
    #[serde(default, skip_serializing_if = "Budget::is_empty")]
    pub budget: Budget,
    /// When nobody wants the answer any more: the adapter is not run after it, and cancelled at it. By the
    /// clock of whoever asks, so clocks should agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// What the adapter shall work with, as far as it can travel: names and settings.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub resources: Resources,
    /// Which request it is: the answer carries it. Nil where a sender says none; then it goes by the id of
    /// its message.
    #[serde(default)]
    pub request_id: Uuid,
    /// When it was made, by the clock of whoever asks.
    #[serde(default = "Timestamp::now")]
    pub created_at: Timestamp,
}

fn new_id() -> Uuid {
    *MessageId::new().as_uuid()
}

impl<U> MainLoopRequest<U> {
    /// A request of its own, without limits.
    pub fn new(request: U) -> Self {
        Self {
            request,
            budget: Budget::new(),
            deadline: None,
            resources: Resources::new(),
            request_id: new_id(),
            created_at: Timestamp::now(),
        }
    }

    /// Says what it may cost.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self
    }

    /// Says when nobody wants the answer any more.
    #[must_use]
    pub fn deadline(mut self, deadline: Timestamp) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Says for how long the answer is wanted.
    #[must_use]
    pub fn deadline_in(self, time: std::time::Duration) -> Self {
        self.deadline(Timestamp::now() + time)
    }

    /// Adds something that the adapter shall work with: a name, a setting.
    ///
    /// # Panics
    ///
    /// Where it cannot be written as JSON, such as a map whose keys are no text. See
    /// [`Resources::insert`] for one that fails instead.
    #[must_use]
    pub fn resource(mut self, name: impl Into<String>, value: impl Serialize) -> Self {
        self.resources = self.resources.with(name, value);
        self
    }

    /// How it is best sent, by those who are no [`Client`](super::Client): its id is told beside it, so that also
    /// one that cannot be read is known by it.
    pub fn send_options(&self) -> SendOptions {
        SendOptions::new().attribute(REQUEST_ID, self.request_id.to_string())
    }

    /// Gives it an id of the caller's, such as one that is known elsewhere.
    #[must_use]
    pub fn request_id(mut self, id: Uuid) -> Self {
        self.request_id = id;
        self
    }
}

/// What a request may cost: limits by name, such as `total_tokens`, in whatever unit the adapter counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Budget(BTreeMap<String, u64>);

impl Budget {
    /// No limits.
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Adds a limit.
    #[must_use]
    pub fn limit(mut self, name: impl Into<String>, most: u64) -> Self {
        self.0.insert(name.into(), most);
        self
    }

    /// The limit of this name, if there is one.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// All limits.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, most)| (name.as_str(), *most))
    }

    /// Whether there is no limit.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What a request shall be worked on with, as far as it can travel: JSON by name. What cannot, such as a pool
/// of connections, is [registered](super::MainLoop::resource) on the loop.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Resources(BTreeMap<String, serde_json::Value>);

impl Resources {
    /// None.
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Adds one, in place of what had its name before.
    ///
    /// # Errors
    ///
    /// Where it cannot be written as JSON.
    pub fn insert(
        &mut self,
        name: impl Into<String>,
        value: impl Serialize,
    ) -> Result<(), serde_json::Error> {
        self.0.insert(name.into(), serde_json::to_value(value)?);
        Ok(())
    }

    /// The same with one more, for those that are known to be JSON.
    ///
    /// # Panics
    ///
    /// Where it cannot be written as JSON, such as a map whose keys are no text.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Serialize) -> Self {
        let name = name.into();
        if let Err(error) = self.insert(name.clone(), value) {
            panic!("the resource {name:?} cannot be written as JSON: {error}");
        }
        self
    }

    /// The one of this name, if there is one that is such a thing.
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        T::deserialize(self.0.get(name)?).ok()
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &serde_json::Value)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The answer to a [`MainLoopRequest`]. As JSON it has a field `output`, or else `error`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct MainLoopResult<O> {
    /// The request that it answers.
    pub request_id: Uuid,
    /// What came out, or what went wrong.
    pub outcome: Result<O, RemoteError>,
    /// The session that it came out of, if the adapter said so.
    pub session_id: Option<Uuid>,
    /// When it was answered, by the clock of the loop.
    pub completed_at: Timestamp,
}

impl<O> MainLoopResult<O> {
    /// An answer as of now, for loops that are no [`MainLoop`](super::MainLoop).
    pub fn new(request_id: Uuid, outcome: Result<O, RemoteError>) -> Self {
        Self { request_id, outcome, session_id: None, completed_at: Timestamp::now() }
    }

    /// What came out, if all went well.
    pub const fn output(&self) -> Option<&O> {
        match &self.outcome {
            Ok(output) => Some(output),
            Err(_) => None,
        }
    }

    /// What went wrong, if something did.
    pub const fn error(&self) -> Option<&RemoteError> {
        match &self.outcome {
            Ok(_) => None,
            Err(error) => Some(error),
        }
    }
}

/// What went wrong where a request was worked on.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
#[non_exhaustive]
pub struct RemoteError {
    /// What it said.
    pub text: String,
    /// What kind of error it is.
    pub kind: RemoteErrorKind,
    /// The name of its type, as far as it is known there.
    pub error_type: Option<String>,
}

pillarbox_core::__error_debug!(struct RemoteError { text, kind, error_type });

impl RemoteError {
    /// An error of this kind.
    pub fn new(kind: RemoteErrorKind, text: impl Into<String>) -> Self {
        Self { text: text.into(), kind, error_type: None }
    }
}

/// Why a request has no output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RemoteErrorKind {
    /// The adapter failed, and it is not tried again.
    Failed,
    /// It took longer than a request may take.
    Timeout,
    /// Its deadline passed before it was done.
    Deadline,
    /// It failed as often as it may, or as it may not at all, and is a dead letter now: it may be replayed.
    DeadLettered,
}

impl RemoteErrorKind {
    /// Its name, in snake case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::Deadline => "deadline",
            Self::DeadLettered => "dead_lettered",
        }
    }

    /// The kind of this name. One that is not known here has failed.
    pub fn from_name(name: &str) -> Self {
        let all = [Self::Timeout, Self::Deadline, Self::DeadLettered];
        all.into_iter().find(|kind| kind.as_str() == name).unwrap_or(Self::Failed)
    }
}

impl fmt::Display for RemoteErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How an answer is written.
#[derive(Serialize)]
struct Written<'a, O> {
    request_id: Uuid,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<&'a O>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_kind: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<Uuid>,
    completed_at: Timestamp,
}

/// And how it is read. Other programs may write what is missing as null.
#[derive(Deserialize)]
#[serde(expecting = "an answer to a request")]
struct Read<O> {
    request_id: Uuid,
    output: Option<O>,
    error: Option<String>,
    error_kind: Option<String>,
    error_type: Option<String>,
    session_id: Option<Uuid>,
    #[serde(default = "Timestamp::now")]
    completed_at: Timestamp,
}

impl<O: Serialize> Serialize for MainLoopResult<O> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let error = self.error();
        Written {
            request_id: self.request_id,
            output: self.output(),
            error: error.map(|error| &*error.text),
            error_kind: error.map(|error| error.kind.as_str()),
            error_type: error.and_then(|error| error.error_type.as_deref()),
            session_id: self.session_id,
            completed_at: self.completed_at,
        }
        .serialize(serializer)
    }
}

impl<'de, O: Deserialize<'de>> Deserialize<'de> for MainLoopResult<O> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Read { request_id, output, error, error_kind, error_type, session_id, completed_at } =
            Read::<O>::deserialize(deserializer)?;
        let outcome = match (output, error) {
            (_, Some(text)) => {
                let kind = error_kind.as_deref().map(RemoteErrorKind::from_name);
                Err(RemoteError { text, kind: kind.unwrap_or(RemoteErrorKind::Failed), error_type })
            }
            (Some(output), None) => Ok(output),
            // An output that is nothing by its type looks like one that is missing.
            (None, None) => {
                Ok(O::deserialize(UnitDeserializer::<D::Error>::new()).map_err(|_| {
                    serde::de::Error::custom("an answer has neither an output nor an error")
                })?)
            }
        };
        Ok(Self { request_id, outcome, session_id, completed_at })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn round_trip<O: Serialize + DeserializeOwned + PartialEq + fmt::Debug>(
        result: &MainLoopResult<O>,
    ) -> serde_json::Value {
        let written = serde_json::to_value(result).unwrap();
        assert_eq!(&serde_json::from_value::<MainLoopResult<O>>(written.clone()).unwrap(), result);
        written
    }

    #[test]
    fn an_answer_has_an_output_or_an_error_also_where_the_output_is_nothing() {
        let id = new_id();
        assert_eq!(round_trip(&MainLoopResult::new(id, Ok(7)))["output"], 7);
        let nothing = round_trip(&MainLoopResult::new(id, Ok(())));
        assert!(nothing.as_object().unwrap().contains_key("output"), "{nothing}");
        round_trip(&MainLoopResult::new(id, Ok(None::<u32>)));
        round_trip(&MainLoopResult::new(id, Ok(Err::<u32, String>("its own".to_owned()))));
        let mut error = RemoteError::new(RemoteErrorKind::DeadLettered, "no");
        error.error_type = Some("shop::Closed".to_owned());
        let written = round_trip(&MainLoopResult::<u32>::new(id, Err(error)));
        assert_eq!(written["error"], "no");
        assert_eq!(written["error_kind"], "dead_lettered");
        assert_eq!(written["error_type"], "shop::Closed");
        assert!(written.get("output").is_none());
    }

    #[test]
    fn answers_of_other_programs_need_say_no_more_than_they_must() {
        let id = new_id();
        let failed: MainLoopResult<u32> =
            serde_json::from_value(json!({"request_id": id, "output": null, "error": "no"}))
                .unwrap();
        assert_eq!(failed.error().unwrap().kind, RemoteErrorKind::Failed);
        let neither = serde_json::from_value::<MainLoopResult<u32>>(json!({"request_id": id}));
        assert!(neither.unwrap_err().to_string().contains("neither"));
    }

    #[test]
    fn a_request_of_another_program_needs_nothing_but_the_request() {
        let request: MainLoopRequest<u32> = serde_json::from_value(json!({"request": 7})).unwrap();
        assert_eq!((request.request, request.deadline), (7, None));
        let request = MainLoopRequest::new(7)
            .budget(Budget::new().limit("total_tokens", 3))
            .deadline(Timestamp::from_secs(1_000))
            .resource("model", "small")
            .resource("temperature", 0.5);
        let written = serde_json::to_value(&request).unwrap();
        assert_eq!(written["budget"], json!({"total_tokens": 3}));
        assert_eq!(written["deadline"], "1970-01-01T00:16:40Z");
        assert_eq!(serde_json::from_value::<MainLoopRequest<u32>>(written).unwrap(), request);
        assert_eq!(request.resources.get::<String>("model").unwrap(), "small");
        assert_eq!(request.resources.get::<u32>("model"), None);
        assert_eq!(request.resources.get::<f64>("temperature"), Some(0.5));
    }
}
