//! The envelope of a dead letter, and how it is written.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use pillarbox_core::codec::CodecError;
use pillarbox_core::{
    Attributes, BodyEncoding, Codec, MessageId, Outgoing, QueueName, RawMessage, ReadableBody,
    Timestamp,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::dispatcher::FailureNote;
use crate::outcome::FailureKind;
use crate::trace::TraceContext;

/// The attribute of a message that was replayed: how often.
const REPLAYS: &str = "pillarbox.replays";
/// And when, the last time.
const REPLAYED_AT: &str = "pillarbox.replayed_at";
/// And under which id it was sent at first.
const ORIGINAL_ID: &str = "pillarbox.original_id";
/// The attribute that names the request that a message is about, where its body does not.
pub(crate) const REQUEST_ID: &str = "pillarbox.request_id";
/// Longer texts are cut: a dead letter must not fail for its reason.
const LONGEST_ERROR: usize = 2_000;
/// As do causes beyond this one.
const MOST_CAUSES: usize = 8;

/// A message that is not tried again, with what is known of why.
///
/// It is stored as JSON that people can read, whatever the body is made of: see
/// `docs/dead-letters.md` for the fields. A mailbox gives it with the body as a type of the program's own,
/// `Mailbox<DeadLetter<Order>>`, if bodies are JSON; of any other codec by [`Letters`], with
/// `Letters(Raw)` even of bytes that no codec can read.
///
/// ```
/// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend, Receive};
/// # use pillarbox_runtime::{DeadLetter, DlqPolicy, Outcome, Runnable, Worker};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox_core::Result<()> {
/// let backend = Mailboxes::new(MemoryBackend::new());
/// let orders: Mailbox<u32> = backend.mailbox("orders")?;
/// orders.send(&7).await?;
/// Worker::new(orders)
///     .dead_letters(DlqPolicy::new())
///     .handler(|_: u32| async { Outcome::reject("no such customer") })
///     .run_until_empty()
///     .await?;
///
/// let dead: Mailbox<DeadLetter<u32>> = backend.mailbox("orders-dlq")?;
/// let letter = dead.peek(1).await?.remove(0).body?;
/// assert_eq!((letter.body, letter.delivery_count), (7, 1));
/// assert_eq!(letter.last_error, "no such customer");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DeadLetter<T = Bytes> {
    /// The id that the message was first sent under. Each replay of it has an id of its own.
    pub message_id: MessageId,
    /// Its body.
    pub body: T,
    /// The queue that it came from.
    pub source_mailbox: QueueName,
    /// What kind of backend that queue is on, where it is another than the dead letter's own, as far as the
    /// worker knew: `sqlite`. Such a message is not replayed unless it is said where to
    /// ([`sources_on`](super::Dlq::sources_on)).
    pub source_backend: Option<String>,
    /// How often it was delivered.
    pub delivery_count: u32,
    /// Why it failed at last. Texts of more than 2,000 characters are cut.
    pub last_error: String,
    /// The type of that error, such as `shop::OutOfStock`; for a failure that no handler returned, its
    /// [kind](Self::failure). What is not known of it is told at [`Failure`](crate::Failure).
    pub last_error_type: String,
    /// What kind of failure it was.
    pub failure: FailureKind,
    /// What the error was caused by, what that was caused by, and so on.
    pub error_chain: Vec<String>,
    /// When it became a dead letter, by the clock of the worker.
    pub dead_lettered_at: Timestamp,
    /// When it was first sent, by the clock of its backend. A replay keeps it.
    pub sent_at: Timestamp,
    /// When it was first delivered, by the clock of its backend, where that
    /// [tells](pillarbox_core::Capabilities::tells_first_received); since the last replay, if there was one.
    /// Elsewhere [`sent_at`](Self::sent_at), the earliest moment at which that can have been.
    pub first_received_at: Timestamp,
    /// The request that it is about: the attribute `pillarbox.request_id`, or else the field `request_id`
    /// of a JSON body, if that is a UUID.
    pub request_id: Option<Uuid>,
    /// Where its sender wants the answer.
    pub reply_to: Option<String>,
    /// The trace that it belongs to, in 32 hexadecimal digits.
    pub trace_id: Option<String>,
    /// The worker that had it at last: `orders/2@host:4711`, which is the name of the group, the number of
    /// the worker, where one had it, the host and the process.
    pub worker: String,
    /// How often it was replayed before.
    pub replay_count: u32,
    /// When it was replayed the last time.
    pub replayed_at: Option<Timestamp>,
    /// The attributes that it was sent with.
    pub attributes: Attributes,
}

impl DeadLetter {
    /// The dead letter of a message.
    pub(crate) fn new(
        source: &QueueName,
        message: &RawMessage,
        failure: &FailureNote,
        worker: String,
        now: Timestamp,
    ) -> Self {
        let replayed_at = message.attributes.get(REPLAYED_AT).and_then(|text| text.parse().ok());
        let own = |name: &str| [REPLAYS, REPLAYED_AT, ORIGINAL_ID].contains(&name);
        let attributes = if message.attributes.iter().any(|(name, _)| own(name)) {
            message.attributes.iter().filter(|(name, _)| !own(name)).collect()
        } else {
            message.attributes.clone()
        };
        Self {
            message_id: original_id(message),
            body: message.body.clone(),
            source_mailbox: source.clone(),
            source_backend: None,
            delivery_count: message.delivery_count,
            last_error: cut(&failure.text),
            last_error_type: failure.type_name.to_owned(),
            failure: failure.kind,
            error_chain: failure.causes.iter().take(MOST_CAUSES).map(|text| cut(text)).collect(),
            dead_lettered_at: now,
            sent_at: message.enqueued_at,
            first_received_at: message.first_received_at.unwrap_or(message.enqueued_at),
            request_id: request_id(message),
            reply_to: message.reply_to.as_deref().map(str::to_owned),
            trace_id: TraceContext::of(&message.attributes)
                .map(|trace| trace.trace_id().to_owned()),
            worker,
            replay_count: replays(&message.attributes),
            replayed_at,
            attributes,
        }
    }

    /// Reads a dead letter as its queue holds it.
    ///
    /// # Errors
    ///
    /// Where it is none.
    pub fn read(message: &RawMessage) -> Result<Self, CodecError> {
        Letters(pillarbox_core::Raw).decode(&message.body)
    }

    /// The dead letter as a message, of the message of this id. Its own id comes from that, its queue, when
    /// it was sent and how often it was replayed: the same at every delivery of this message, and of no
    /// other, for an id may be in several queues, and may be used again.
    pub(crate) fn outgoing(&self, of: MessageId) -> Result<Outgoing, CodecError> {
        let Self { source_mailbox, sent_at, replay_count, .. } = self;
        let mut key = format!("dead letter of {of} in {source_mailbox} at {}", sent_at.as_nanos());
        if *replay_count > 0 {
            let _ = write!(key, ", replay {replay_count}");
        }
        let body = Letters(pillarbox_core::Raw).encode(self)?;
        Ok(Outgoing::with_id(MessageId::from_key(&key), body))
    }

    /// The message once more, to be sent to where it came from: with its body, attributes, reply address and
    /// time of sending, and under an id that comes from the dead letter's `own`.
    ///
    /// Not under the id that it had: as long as the message of that id is not acknowledged, which is after
    /// its dead letter is stored, sending it again would store nothing, and the acknowledgement would
    /// delete it for good. Sent twice from one dead letter, it has the same id both times.
    pub(crate) fn replay(&self, own: MessageId, now: Timestamp) -> Outgoing {
        let replays = self.replay_count.saturating_add(1);
        let id = MessageId::from_key(&format!("replay {replays} of dead letter {own}"));
        let mut message = Outgoing::with_id(id, self.body.clone());
        message.attributes = self.attributes.clone();
        // It is not the message that it was: where that is remembered, it would be taken for it, and not stored.
        message.attributes.remove(Outgoing::DEDUPLICATION);
        message.attributes.insert(REPLAYS, replays.to_string());
        message.attributes.insert(REPLAYED_AT, now.to_string());
        message.attributes.insert(ORIGINAL_ID, self.message_id.to_string());
        message.reply_to = self.reply_to.as_deref().map(Into::into);
        message.enqueued_at = Some(self.sent_at);
        message
    }
}

impl<T> DeadLetter<T> {
    /// How long it has been a dead letter, at this moment, by the clock of the worker that made it one. What is
    /// deleted for its age goes by the clock of the backend instead: see
    /// [`Dlq::expire`](super::Dlq::expire).
    pub fn age(&self, now: Timestamp) -> Duration {
        now.since(self.dead_lettered_at)
    }

    /// The same with another body.
    pub fn with_body<U>(self, body: U) -> DeadLetter<U> {
        self.map(|_| body)
    }

    /// The same with what a function makes of the body.
    pub fn map<U>(self, body: impl FnOnce(T) -> U) -> DeadLetter<U> {
        DeadLetter {
            message_id: self.message_id,
            body: body(self.body),
            source_mailbox: self.source_mailbox,
            source_backend: self.source_backend,
            delivery_count: self.delivery_count,
            last_error: self.last_error,
            last_error_type: self.last_error_type,
            failure: self.failure,
            error_chain: self.error_chain,
            dead_lettered_at: self.dead_lettered_at,
            sent_at: self.sent_at,
            first_received_at: self.first_received_at,
            request_id: self.request_id,
            reply_to: self.reply_to,
            trace_id: self.trace_id,
            worker: self.worker,
            replay_count: self.replay_count,
            replayed_at: self.replayed_at,
            attributes: self.attributes,
        }
    }

    fn written<'a>(&'a self, body: &'a ReadableBody) -> Written<'a> {
        Written {
            message_id: self.message_id,
            source_mailbox: &self.source_mailbox,
            source_backend: self.source_backend.as_deref(),
            delivery_count: self.delivery_count,
            last_error: &self.last_error,
            last_error_type: &self.last_error_type,
            failure: self.failure.as_str(),
            error_chain: &self.error_chain,
            dead_lettered_at: self.dead_lettered_at,
            sent_at: self.sent_at,
            first_received_at: self.first_received_at,
            request_id: self.request_id.map(|id| id.to_string()),
            reply_to: self.reply_to.as_deref(),
            trace_id: self.trace_id.as_deref(),
            worker: &self.worker,
            replay_count: self.replay_count,
            replayed_at: self.replayed_at,
            attributes: &self.attributes,
            body_encoding: body.encoding,
            body: &body.value,
        }
    }
}

/// How often a message of these attributes was replayed.
pub(crate) fn replays(attributes: &Attributes) -> u32 {
    attributes.get(REPLAYS).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The id that a message was first sent under: its own, unless it was replayed.
pub(crate) fn original_id(message: &RawMessage) -> MessageId {
    let original = message.attributes.get(ORIGINAL_ID).and_then(|text| text.parse().ok());
    original.unwrap_or(message.id)
}

/// The request that a message is about, if it says so.
pub(crate) fn request_id(message: &RawMessage) -> Option<Uuid> {
    #[derive(Deserialize)]
    struct Request {
        request_id: Option<String>,
    }
    let attribute = message.attributes.get(REQUEST_ID).and_then(|text| text.parse().ok());
    attribute.or_else(|| {
        // Only an object has fields: anything else is not worth reading to its end.
        let is_object = message.body.trim_ascii_start().starts_with(b"{");
        let request: Request =
            is_object.then(|| serde_json::from_slice(&message.body).ok()).flatten()?;
        request.request_id?.parse().ok()
    })
}

/// As much of a text as is kept.
pub(crate) fn cut(text: &str) -> String {
    text.chars().take(LONGEST_ERROR).collect()
}

/// How a dead letter is written. Names and order are part of the format.
#[derive(Serialize)]
struct Written<'a> {
    message_id: MessageId,
    source_mailbox: &'a QueueName,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_backend: Option<&'a str>,
    delivery_count: u32,
    last_error: &'a str,
    last_error_type: &'a str,
    failure: &'a str,
    error_chain: &'a [String],
    dead_lettered_at: Timestamp,
    sent_at: Timestamp,
    first_received_at: Timestamp,
    request_id: Option<String>,
    reply_to: Option<&'a str>,
    trace_id: Option<&'a str>,
    worker: &'a str,
    replay_count: u32,
    replayed_at: Option<Timestamp>,
    attributes: &'a Attributes,
    body_encoding: BodyEncoding,
    body: &'a RawValue,
}

/// And how it is read: what may be missing is what was added since, or what nobody needs to replay it.
#[derive(Deserialize)]
#[serde(expecting = "a dead letter")]
struct Read {
    message_id: MessageId,
    source_mailbox: QueueName,
    source_backend: Option<String>,
    #[serde(default)]
    delivery_count: u32,
    #[serde(default)]
    last_error: String,
    #[serde(default)]
    last_error_type: String,
    #[serde(default)]
    failure: String,
    #[serde(default)]
    error_chain: Vec<String>,
    dead_lettered_at: Timestamp,
    /// Letters of before this was written have it as the time of the first delivery.
    sent_at: Option<Timestamp>,
    first_received_at: Timestamp,
    request_id: Option<String>,
    reply_to: Option<String>,
    trace_id: Option<String>,
    #[serde(default)]
    worker: String,
    #[serde(default)]
    replay_count: u32,
    replayed_at: Option<Timestamp>,
    #[serde(default)]
    attributes: Attributes,
    #[serde(default = "json")]
    body_encoding: BodyEncoding,
    body: Box<RawValue>,
}

const fn json() -> BodyEncoding {
    BodyEncoding::Json
}

impl Read {
    fn letter(self) -> Result<DeadLetter, String> {
        Ok(DeadLetter {
            body: ReadableBody::read(self.body_encoding, &self.body)?,
            message_id: self.message_id,
            source_mailbox: self.source_mailbox,
            source_backend: self.source_backend,
            delivery_count: self.delivery_count,
            last_error: self.last_error,
            last_error_type: self.last_error_type,
            failure: FailureKind::named(&self.failure).unwrap_or(FailureKind::Error),
            error_chain: self.error_chain,
            dead_lettered_at: self.dead_lettered_at,
            sent_at: self.sent_at.unwrap_or(self.first_received_at),
            first_received_at: self.first_received_at,
            request_id: self.request_id.and_then(|id| id.parse().ok()),
            reply_to: self.reply_to,
            trace_id: self.trace_id,
            worker: self.worker,
            replay_count: self.replay_count,
            replayed_at: self.replayed_at,
            attributes: self.attributes,
        })
    }
}

/// Dead letters of messages that this codec reads: `Letters(Raw)`, `Letters(MessagePack)`. For JSON, the
/// codec `Json` does the same as `Letters(Json)`.
///
/// ```
/// use pillarbox_core::{Codec, Json, Raw};
/// use pillarbox_runtime::{DeadLetter, Letters};
///
/// let text = br#"{"message_id":"0193b1f4-0000-7000-8000-000000000000","source_mailbox":"orders",
///     "dead_lettered_at":"2026-11-16T10:00:00Z","first_received_at":"2026-11-16T09:00:00Z",
///     "body_encoding":"text","body":"{\"n\": 7"}"#;
/// let letter: DeadLetter = Letters(Raw).decode(&text[..].into()).unwrap();
/// assert_eq!(&letter.body[..], b"{\"n\": 7");
/// assert!(Codec::<DeadLetter<serde_json::Value>>::decode(&Letters(Json), &text[..].into()).is_err());
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Letters<C>(pub C);

impl<T, C: Codec<T>> Codec<DeadLetter<T>> for Letters<C> {
    fn name(&self) -> &'static str {
        "dead letter"
    }

    fn encode(&self, letter: &DeadLetter<T>) -> Result<Bytes, CodecError> {
        let body = ReadableBody::exact(&self.0.encode(&letter.body)?);
        Ok(serde_json::to_vec(&letter.written(&body))?.into())
    }

    fn decode(&self, bytes: &Bytes) -> Result<DeadLetter<T>, CodecError> {
        let read: Read = serde_json::from_slice(bytes)?;
        let letter = read.letter()?;
        let body = self.0.decode(&letter.body).map_err(|error| {
            let codec = self.0.name();
            format!("the body of the message in it is no {codec}: {error}")
        })?;
        Ok(letter.with_body(body))
    }
}

/// For mailboxes without answers.
impl<C: Codec<()>> Codec<()> for Letters<C> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn encode(&self, body: &()) -> Result<Bytes, CodecError> {
        self.0.encode(body)
    }

    fn decode(&self, bytes: &Bytes) -> Result<(), CodecError> {
        self.0.decode(bytes)
    }
}

/// Within JSON only.
impl<T: Serialize> Serialize for DeadLetter<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let body = serde_json::to_vec(&self.body).map_err(serde::ser::Error::custom)?;
        self.written(&ReadableBody::exact(&body)).serialize(serializer)
    }
}

/// Within JSON only.
impl<'de, T: DeserializeOwned> Deserialize<'de> for DeadLetter<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let letter = Read::deserialize(deserializer)?.letter().map_err(D::Error::custom)?;
        let body = serde_json::from_slice(&letter.body)
            .map_err(|error| format!("the body of the message in it is not as expected: {error}"));
        Ok(letter.with_body(body.map_err(D::Error::custom)?))
    }
}

#[cfg(test)]
mod tests {
    use pillarbox_core::{Json, Raw};

    use super::*;

    fn letter(body: &[u8]) -> DeadLetter {
        let at = Timestamp::from_secs(1_700_000_000);
        let mut message = RawMessage::new(MessageId::from_key("m"), body.to_vec(), at);
        message.delivery_count = 5;
        message.first_received_at = Some(at + Duration::from_secs(7));
        message.reply_to = Some("client".into());
        message.attributes.insert("tenant", "acme");
        message.attributes.insert(REPLAYS, "2");
        message.attributes.insert(REPLAYED_AT, "2026-11-16T10:00:00Z");
        message.attributes.insert(ORIGINAL_ID, MessageId::from_key("first").to_string());
        let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        message.attributes.insert("traceparent", trace);
        let failure = FailureNote {
            kind: FailureKind::Error,
            type_name: "shop::OutOfStock",
            text: "x".repeat(5_000).into(),
            causes: ["no lamps".into(), "no glass".into()].into(),
        };
        let source = "orders".parse().unwrap();
        DeadLetter::new(&source, &message, &failure, "orders/1@h:7".to_owned(), at)
    }

    #[test]
    fn every_body_comes_back_to_the_byte_and_every_field_with_it() {
        for body in [&b"{\"n\": 1.10}"[..], b" [1]\n", b"text", b"", b"\xff\x00"] {
            let letter = letter(body);
            let bytes = Letters(Raw).encode(&letter).unwrap();
            let back: DeadLetter = Letters(Raw).decode(&bytes).unwrap();
            assert_eq!(back, letter);
            assert_eq!((back.replay_count, back.last_error.len()), (2, 2_000));
            assert_eq!(back.attributes.len(), 2, "{:?}", back.attributes);
            assert_eq!(back.message_id, MessageId::from_key("first"));
            assert_eq!(back.trace_id.as_deref(), Some("0af7651916cd43dd8448eb211c80319c"));
        }
    }

    #[test]
    fn json_can_be_read_as_what_it_is_and_is_written_alike() {
        let raw = letter(b"{\"n\": 1}");
        let bytes = Letters(Raw).encode(&raw).unwrap();
        let typed: DeadLetter<serde_json::Value> = Json.decode(&bytes).unwrap();
        assert_eq!(typed.body["n"], 1);
        let same: DeadLetter<serde_json::Value> = Letters(Json).decode(&bytes).unwrap();
        assert_eq!(same, typed);
        let again: DeadLetter<serde_json::Value> =
            Json.decode(&Json.encode(&typed).unwrap()).unwrap();
        assert_eq!(again, typed);
        let spaced = Letters(Raw).encode(&letter(b" {\"n\":\n 1}")).unwrap();
        let typed: DeadLetter<serde_json::Value> = Json.decode(&spaced).unwrap();
        assert_eq!(typed.body["n"], 1);
        let other: Result<DeadLetter<u32>, _> = Json.decode(&bytes);
        let error = other.unwrap_err().to_string();
        assert!(error.contains("body of the message"), "{error}");
    }

    #[test]
    fn the_text_is_readable() {
        let mut letter = letter(b"{\"n\": 1}");
        letter.last_error = "out of lamps".to_owned();
        let text = String::from_utf8(Letters(Raw).encode(&letter).unwrap().to_vec()).unwrap();
        for part in [
            "{\"message_id\":\"",
            "\"source_mailbox\":\"orders\",\"delivery_count\":5,\"last_error\":\"out of lamps\"",
            "\"last_error_type\":\"shop::OutOfStock\",\"failure\":\"error\"",
            "\"error_chain\":[\"no lamps\",\"no glass\"]",
            "\"dead_lettered_at\":\"2023-11-14T22:13:20Z\"",
            "\"reply_to\":\"client\"",
            "\"body_encoding\":\"json\",\"body\":{\"n\": 1}}",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    /// What is in flight while workers are updated must not get a second dead letter under another id.
    #[test]
    fn the_id_of_a_letter_is_what_it_always_was() {
        let of = MessageId::from_key("m");
        let key = format!("dead letter of {of} in orders at 1700000000000000000");
        let mut letter = letter(b"1");
        let replayed = MessageId::from_key(&format!("{key}, replay 2"));
        assert_eq!(letter.outgoing(of).unwrap().id, replayed);
        letter.replay_count = 0;
        assert_eq!(letter.outgoing(of).unwrap().id, MessageId::from_key(&key));
    }

    #[test]
    fn the_time_of_the_first_delivery_is_the_time_of_sending_where_the_backend_does_not_tell_it() {
        let told = letter(b"1");
        let (sent, later) = (Timestamp::from_secs(1_700_000_000), Duration::from_secs(7));
        assert_eq!((told.sent_at, told.first_received_at), (sent, sent + later));
        let message = RawMessage::new(MessageId::new(), "1", sent);
        let failure = FailureNote {
            kind: FailureKind::Error,
            type_name: "",
            text: "".into(),
            causes: [].into(),
        };
        let source = "orders".parse().unwrap();
        let untold = DeadLetter::new(&source, &message, &failure, String::new(), sent);
        assert_eq!((untold.sent_at, untold.first_received_at), (sent, sent));
    }

    #[test]
    fn a_letter_of_before_there_was_a_time_of_sending_is_read_as_it_was() {
        let letter = letter(b"1");
        let text = String::from_utf8(Letters(Raw).encode(&letter).unwrap().to_vec()).unwrap();
        let (before, rest) = text.split_once("\"sent_at\":").unwrap();
        let old = format!("{before}{}", rest.split_once(',').unwrap().1);
        let read: DeadLetter = Letters(Raw).decode(&old.into()).unwrap();
        assert_eq!(read.sent_at, letter.first_received_at);
        assert_eq!(read.first_received_at, letter.first_received_at);
        let replayed = read.replay(MessageId::new(), Timestamp::now());
        assert_eq!(replayed.enqueued_at, Some(letter.first_received_at));
    }

    #[test]
    fn a_letter_has_one_id_for_each_life_of_a_message() {
        let (one, of) = (letter(b"1"), MessageId::from_key("m"));
        let id = |letter: &DeadLetter, of| letter.outgoing(of).unwrap().id;
        assert_eq!(id(&one, of), id(&one, of));
        let mut others = vec![one.clone(), one.clone(), one.clone()];
        others[0].replay_count += 1;
        others[1].source_mailbox = "others".parse().unwrap();
        others[2].sent_at = Timestamp::from_secs(1);
        for other in others {
            assert_ne!(id(&other, of), id(&one, of), "{other:?}");
        }
        // Whenever it was received: that may not be known, or only since this worker was updated.
        let mut later = one.clone();
        later.first_received_at = Timestamp::from_secs(1);
        assert_eq!(id(&later, of), id(&one, of));
        // Two messages that a handler has sent with the attributes of a replay.
        assert_ne!(id(&one, MessageId::from_key("other")), id(&one, of));
    }

    #[test]
    fn a_replay_is_the_message_once_more_under_an_id_of_its_own() {
        let letter = letter(b"{}");
        let now = Timestamp::from_secs(1_800_000_000);
        let own = MessageId::new();
        let replay = letter.replay(own, now);
        assert_eq!(replay.id, letter.replay(own, Timestamp::now()).id, "the same when repeated");
        assert_ne!(replay.id, letter.replay(MessageId::new(), now).id);
        assert!(replay.id != letter.message_id && replay.id != MessageId::from_key("m"));
        let original = letter.message_id.to_string();
        assert_eq!(replay.attributes.get(ORIGINAL_ID), Some(&*original));
        assert_eq!(replay.body, &b"{}"[..]);
        assert_eq!(replay.reply_to.as_deref(), Some("client"));
        assert_eq!(replay.attributes.get("tenant"), Some("acme"));
        assert_eq!(replay.attributes.get(REPLAYS), Some("3"));
        assert_eq!(replay.enqueued_at, Some(letter.sent_at));
        assert_eq!(replay.delay, Duration::ZERO);
    }

    #[test]
    fn a_request_is_named_by_an_attribute_or_by_the_body() {
        let id = "0193b1f4-0000-7000-8000-000000000000";
        let now = Timestamp::from_secs(0);
        let of = |body: &str| RawMessage::new(MessageId::new(), body.to_owned(), now);
        let named = of(&format!("{{\"request_id\": \"{id}\", \"more\": [1]}}"));
        assert_eq!(request_id(&named), Some(id.parse().unwrap()));
        let mut by_attribute = of("no json");
        by_attribute.attributes.insert(REQUEST_ID, id);
        assert_eq!(request_id(&by_attribute), Some(id.parse().unwrap()));
        for body in ["{\"request_id\": 7}", "{\"request_id\": \"seven\"}", "{}", "[]", ""] {
            assert_eq!(request_id(&of(body)), None, "{body}");
        }
    }
}
