//! The messages of a loop: requests and replies.

use std::collections::BTreeMap;
use std::fmt;

use pillarbox_core::{MessageId, SendOptions, Timestamp};
use serde::de::DeserializeOwned;
use serde::de::value::UnitDeserializer;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::attributes::REQUEST_ID;

/// A request to a [`MainLoop`](super::MainLoop), as it is sent to its mailbox.
///
/// ```
/// use std::time::Duration;
/// use pillarbox_runtime::loops::{Budget, MainLoopRequest};
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
    /// The request itself.
    pub request: U,
    /// Limits of the cost. They are passed to the adapter, which interprets them.
    #[serde(default, skip_serializing_if = "Budget::is_empty")]
    pub budget: Budget,
    /// When the answer is not wanted any more: the adapter is not started after it, and is cancelled at it. By the
    /// clock of the sender, so the clocks should agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Names and settings for the adapter.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub resources: Resources,
    /// The id of the request, which the answer repeats. If it is nil, the id of the message is used.
    #[serde(default)]
    pub request_id: Uuid,
    /// When the request was created, by the clock of the sender.
    #[serde(default = "Timestamp::now")]
    pub created_at: Timestamp,
}

fn new_id() -> Uuid {
    *MessageId::new().as_uuid()
}

impl<U> MainLoopRequest<U> {
    /// Creates a request with a new id and without limits.
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

    /// Sets the limits of the cost.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self
    }

    /// Sets when the answer is not wanted any more.
    #[must_use]
    pub fn deadline(mut self, deadline: Timestamp) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets the deadline to this time from now.
    #[must_use]
    pub fn deadline_in(self, time: std::time::Duration) -> Self {
        self.deadline(Timestamp::now() + time)
    }

    /// Adds a name or setting for the adapter.
    ///
    /// # Panics
    ///
    /// Panics if the value cannot be serialized as JSON, such as a map whose keys are not strings.
    /// [`Resources::insert`] returns an error instead.
    #[must_use]
    pub fn resource(mut self, name: impl Into<String>, value: impl Serialize) -> Self {
        self.resources = self.resources.with(name, value);
        self
    }

    /// Returns the options to send it with, if it is not sent by a [`Client`](super::Client): the id of the request
    /// is an attribute, so that it is known even if the body cannot be decoded.
    pub fn send_options(&self) -> SendOptions {
        SendOptions::new().attribute(REQUEST_ID, self.request_id.to_string())
    }

    /// Sets the id of the request.
    #[must_use]
    pub fn request_id(mut self, id: Uuid) -> Self {
        self.request_id = id;
        self
    }
}

/// Limits of the cost of a request by name, such as `total_tokens`, in the units of the adapter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Budget(BTreeMap<String, u64>);

impl Budget {
    /// Creates a budget without limits.
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Adds a limit.
    #[must_use]
    pub fn limit(mut self, name: impl Into<String>, max: u64) -> Self {
        self.0.insert(name.into(), max);
        self
    }

    /// Returns the limit of this name.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// Returns all limits.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, max)| (name.as_str(), *max))
    }

    /// Whether there are no limits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Names and settings of a request for the adapter: JSON by name. What cannot be serialized, such as a connection
/// pool, is [registered](super::MainLoop::resource) with the loop.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Resources(BTreeMap<String, serde_json::Value>);

impl Resources {
    /// Creates an empty map.
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Inserts a value, replacing the one of the same name.
    ///
    /// # Errors
    ///
    /// Fails if the value cannot be serialized as JSON.
    pub fn insert(
        &mut self,
        name: impl Into<String>,
        value: impl Serialize,
    ) -> Result<(), serde_json::Error> {
        self.0.insert(name.into(), serde_json::to_value(value)?);
        Ok(())
    }

    /// Returns the map with one more value.
    ///
    /// # Panics
    ///
    /// Panics if the value cannot be serialized as JSON, such as a map whose keys are not strings.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Serialize) -> Self {
        let name = name.into();
        if let Err(error) = self.insert(name.clone(), value) {
            panic!("the resource {name:?} cannot be serialized as JSON: {error}");
        }
        self
    }

    /// Returns the value of this name, if there is one that deserializes to `T`.
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        T::deserialize(self.0.get(name)?).ok()
    }

    /// Returns all values.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &serde_json::Value)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The answer to a [`MainLoopRequest`]. As JSON it has either a field `output` or a field `error`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct MainLoopResult<O> {
    /// The id of the request.
    pub request_id: Uuid,
    /// The output, or the error.
    pub outcome: Result<O, RemoteError>,
    /// The session of the run, if the adapter set one.
    pub session_id: Option<Uuid>,
    /// When the request was answered, by the clock of the loop.
    pub completed_at: Timestamp,
}

impl<O> MainLoopResult<O> {
    /// Creates an answer as of now, for loops other than a [`MainLoop`](super::MainLoop).
    pub fn new(request_id: Uuid, outcome: Result<O, RemoteError>) -> Self {
        Self { request_id, outcome, session_id: None, completed_at: Timestamp::now() }
    }

    /// Returns the output, if the request succeeded.
    pub const fn output(&self) -> Option<&O> {
        match &self.outcome {
            Ok(output) => Some(output),
            Err(_) => None,
        }
    }

    /// Returns the error, if the request failed.
    pub const fn error(&self) -> Option<&RemoteError> {
        match &self.outcome {
            Ok(_) => None,
            Err(error) => Some(error),
        }
    }
}

/// The error of a request, as the loop reports it.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
#[non_exhaustive]
pub struct RemoteError {
    /// The text of the error.
    pub text: String,
    /// The kind of the error.
    pub kind: RemoteErrorKind,
    /// The name of its type, if the loop knows it.
    pub error_type: Option<String>,
}

pillarbox_core::__error_debug!(struct RemoteError { text, kind, error_type });

impl RemoteError {
    /// Creates an error of this kind.
    pub fn new(kind: RemoteErrorKind, text: impl Into<String>) -> Self {
        Self { text: text.into(), kind, error_type: None }
    }
}

/// Why a request has no output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RemoteErrorKind {
    /// The adapter failed, and the request is not retried.
    Failed,
    /// The adapter exceeded its timeout.
    Timeout,
    /// The deadline of the request passed.
    Deadline,
    /// The request became a dead letter, which may be replayed.
    DeadLettered,
}

impl RemoteErrorKind {
    /// Returns its name in snake case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::Deadline => "deadline",
            Self::DeadLettered => "dead_lettered",
        }
    }

    /// Returns the kind of this name, [`Failed`](Self::Failed) if the name is unknown.
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

/// The serialized form of an answer.
#[derive(Serialize)]
struct SerializedResult<'a, O> {
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

/// The form from which an answer is deserialized. Other programs may write missing fields as null.
#[derive(Deserialize)]
#[serde(expecting = "an answer to a request")]
struct DeserializedResult<O> {
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
        SerializedResult {
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
        let stored = DeserializedResult::<O>::deserialize(deserializer)?;
        let DeserializedResult { request_id, session_id, completed_at, error_type, .. } = stored;
        let outcome = match (stored.output, stored.error) {
            (_, Some(text)) => {
                let kind = stored.error_kind.as_deref().map(RemoteErrorKind::from_name);
                Err(RemoteError { text, kind: kind.unwrap_or(RemoteErrorKind::Failed), error_type })
            }
            (Some(output), None) => Ok(output),
            // An output such as `()` or `None` looks like a missing one.
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
    fn an_answer_has_an_output_or_an_error_even_if_the_output_is_empty() {
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
    fn answers_of_other_programs_need_only_the_required_fields() {
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
