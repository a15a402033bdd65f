//! The envelope of a dead letter and its stored form.

use std::fmt::Write as _;
use std::ops::{Deref, DerefMut};
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

use crate::attributes::{ORIGINAL_ID, REPLAYED_AT, REPLAYS, original_id, replay_count, request_id};
use crate::outcome::{FailureDetails, FailureKind, truncate_error};
use crate::trace::TraceContext;

/// Maximum number of causes that are stored, so that a dead letter never fails to be stored for their size.
const MAX_CAUSES: usize = 8;

/// A message that is not retried any more: its body, and the record of what happened to it
/// ([`DeadLetterInfo`]), whose fields are reached through the dead letter: `letter.last_error`.
///
/// It is stored as readable JSON whatever the codec of the body; `docs/dead-letters.md` lists the fields. A
/// `Mailbox<DeadLetter<Order>>` decodes JSON bodies into a type of the program. [`DeadLetterCodec`] does so
/// for other codecs, and `DeadLetterCodec(Raw)` reads bodies that no codec can decode.
///
/// ```
/// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend, Receive};
/// # use pillarbox_runtime::{Outcome, Runnable, Worker};
/// # use pillarbox_runtime::dead_letters::{DeadLetter, DlqPolicy};
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
    /// The body of the message.
    pub body: T,
    /// Everything but the body.
    pub info: DeadLetterInfo,
}

/// Everything about a [`DeadLetter`] except its body: which message it was, where it came from, and why it
/// failed. Names and order of the fields are the stored format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeadLetterInfo {
    /// The id that the message was first sent under. Each replay has an id of its own.
    pub message_id: MessageId,
    /// The queue that the message came from.
    pub source_mailbox: QueueName,
    /// The kind of backend that the source queue is on, such as `sqlite`, if the dead letter went to another
    /// backend. Such a message is replayed only to an explicit target
    /// ([`sources_on`](super::Dlq::sources_on)).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_backend: Option<String>,
    /// Number of deliveries of the message.
    #[serde(default)]
    pub delivery_count: u32,
    /// The text of the last failure, truncated to 2,000 characters.
    #[serde(default)]
    pub last_error: String,
    /// The type of the last error, such as `shop::OutOfStock`. For a failure that no handler returned, its
    /// [kind](Self::failure). [`Failure`](crate::Failure) documents which types are known.
    #[serde(default)]
    pub last_error_type: String,
    /// The kind of the last failure.
    #[serde(with = "failure_kind", default = "failure_kind::unknown")]
    pub failure: FailureKind,
    /// The causes of the last error, the direct cause first.
    #[serde(default)]
    pub error_chain: Vec<String>,
    /// When the message became a dead letter, by the clock of the worker.
    pub dead_lettered_at: Timestamp,
    /// When the message was first sent, by the clock of its backend. A replay keeps it.
    #[serde(default = "not_stored")]
    pub sent_at: Timestamp,
    /// When the message was first delivered since it was sent or last replayed, by the clock of its backend.
    /// Equals [`sent_at`](Self::sent_at) if the backend does not
    /// [record](pillarbox_core::Capabilities::reports_first_received) it.
    pub first_received_at: Timestamp,
    /// The request that the message is about: the attribute `pillarbox.request_id`, else the field
    /// `request_id` of a JSON body, if that is a UUID.
    #[serde(default, deserialize_with = "uuid_if_valid")]
    pub request_id: Option<Uuid>,
    /// The reply address of the message.
    pub reply_to: Option<String>,
    /// The trace that the message belongs to, as 32 hexadecimal digits.
    pub trace_id: Option<String>,
    /// The worker that failed last, such as `orders/2@host:4711`: the name of the worker pool, the number of
    /// the worker if one had the message, the host and the process id.
    #[serde(default)]
    pub worker: String,
    /// Number of times that the message was replayed.
    #[serde(default)]
    pub replay_count: u32,
    /// When the message was last replayed.
    pub replayed_at: Option<Timestamp>,
    /// The attributes that the message was sent with.
    #[serde(default)]
    pub attributes: Attributes,
}

impl DeadLetter {
    /// Creates the dead letter of a message.
    pub(crate) fn new(
        source: &QueueName,
        message: &RawMessage,
        failure: &FailureDetails,
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
        let causes = failure.causes.iter().take(MAX_CAUSES);
        let info = DeadLetterInfo {
            message_id: original_id(message),
            source_mailbox: source.clone(),
            source_backend: None,
            delivery_count: message.delivery_count,
            last_error: truncate_error(&failure.text),
            last_error_type: failure.type_name.to_owned(),
            failure: failure.kind,
            error_chain: causes.map(|text| truncate_error(text)).collect(),
            dead_lettered_at: now,
            sent_at: message.enqueued_at,
            first_received_at: message.first_received_at.unwrap_or(message.enqueued_at),
            request_id: request_id(message),
            reply_to: message.reply_to.as_deref().map(str::to_owned),
            trace_id: TraceContext::of(&message.attributes)
                .map(|trace| trace.trace_id().to_owned()),
            worker,
            replay_count: replay_count(&message.attributes),
            replayed_at,
            attributes,
        };
        Self { body: message.body.clone(), info }
    }

    /// Reads a dead letter as its queue holds it.
    ///
    /// # Errors
    ///
    /// Fails if the message is not a dead letter.
    pub fn read(message: &RawMessage) -> Result<Self, CodecError> {
        DeadLetterCodec(pillarbox_core::Raw).decode(&message.body)
    }

    /// Returns the dead letter as a message to send; `of` is the current id of the message in it.
    ///
    /// The id of the dead letter is derived from that id, the queue, the time of sending and the number of
    /// replays. So it is the same at every delivery of this message, and differs from that of every other
    /// message: an id may be in several queues, and may be used again.
    pub(crate) fn outgoing(&self, of: MessageId) -> Result<Outgoing, CodecError> {
        let DeadLetterInfo { source_mailbox, sent_at, replay_count, .. } = &self.info;
        let mut key = format!("dead letter of {of} in {source_mailbox} at {}", sent_at.as_nanos());
        if *replay_count > 0 {
            let _ = write!(key, ", replay {replay_count}");
        }
        let body = DeadLetterCodec(pillarbox_core::Raw).encode(self)?;
        Ok(Outgoing::with_id(MessageId::from_key(&key), body))
    }

    /// Returns the message to send to its source again, with its body, attributes, reply address and time of
    /// sending, under an id derived from `own`, the id of the dead letter. So it has the same id each time
    /// that it is sent from one dead letter.
    ///
    /// It must not have its original id: the message of that id is acknowledged only after its dead letter is
    /// stored. Until then sending that id again would store nothing, and the acknowledgement would delete the
    /// message for good.
    pub(crate) fn replay(&self, own: MessageId, now: Timestamp) -> Outgoing {
        let replays = self.replay_count.saturating_add(1);
        let id = MessageId::from_key(&format!("replay {replays} of dead letter {own}"));
        let mut message = Outgoing::with_id(id, self.body.clone());
        message.attributes = self.attributes.clone();
        // A backend that remembers the deduplication id of the original would not store the replay.
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
    /// Returns the dead letter with another body.
    pub fn with_body<U>(self, body: U) -> DeadLetter<U> {
        self.map(|_| body)
    }

    /// Returns the dead letter with the result of a function of its body.
    pub fn map<U>(self, body: impl FnOnce(T) -> U) -> DeadLetter<U> {
        DeadLetter { body: body(self.body), info: self.info }
    }
}

impl DeadLetterInfo {
    /// Returns the time since the message became a dead letter, by the clock of the worker. Retention goes by
    /// the clock of the backend instead: see [`Dlq::expire`](super::Dlq::expire).
    pub fn age(&self, now: Timestamp) -> Duration {
        now.since(self.dead_lettered_at)
    }
}

impl<T> Deref for DeadLetter<T> {
    type Target = DeadLetterInfo;

    fn deref(&self) -> &DeadLetterInfo {
        &self.info
    }
}

impl<T> DerefMut for DeadLetter<T> {
    fn deref_mut(&mut self) -> &mut DeadLetterInfo {
        &mut self.info
    }
}

/// The stored form of a dead letter. Fields that may be missing are newer than the format, or are not needed
/// for a replay.
#[derive(Serialize, Deserialize)]
#[serde(expecting = "a dead letter")]
struct Stored<I, B> {
    #[serde(flatten)]
    info: I,
    #[serde(default = "json")]
    body_encoding: BodyEncoding,
    body: B,
}

const fn json() -> BodyEncoding {
    BodyEncoding::Json
}

/// Stands for the time of sending of dead letters that were stored before there was such a field.
const fn not_stored() -> Timestamp {
    Timestamp::MIN
}

fn uuid_if_valid<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Option<Uuid>, D::Error> {
    let text: Option<String> = Deserialize::deserialize(input)?;
    Ok(text.and_then(|text| text.parse().ok()))
}

/// A kind of failure by its name. A name that is not known here counts as an error.
mod failure_kind {
    use super::{Deserialize, FailureKind};

    pub(super) const fn unknown() -> FailureKind {
        FailureKind::Error
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
    pub(super) fn serialize<S: serde::Serializer>(
        kind: &FailureKind,
        output: S,
    ) -> Result<S::Ok, S::Error> {
        output.serialize_str(kind.as_str())
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        input: D,
    ) -> Result<FailureKind, D::Error> {
        Ok(FailureKind::named(&String::deserialize(input)?).unwrap_or(unknown()))
    }
}

impl<'a> Stored<&'a DeadLetterInfo, &'a RawValue> {
    fn new(info: &'a DeadLetterInfo, body: &'a ReadableBody) -> Self {
        Self { info, body_encoding: body.encoding, body: &body.value }
    }
}

impl Stored<DeadLetterInfo, Box<RawValue>> {
    fn into_dead_letter(self) -> Result<DeadLetter, String> {
        let Self { mut info, body_encoding, body } = self;
        if info.sent_at == not_stored() {
            info.sent_at = info.first_received_at;
        }
        Ok(DeadLetter { body: ReadableBody::read(body_encoding, &body)?, info })
    }
}

/// Codec of dead letters whose bodies have the codec `C`: `DeadLetterCodec(Raw)`,
/// `DeadLetterCodec(MessagePack)`. The codec `Json` reads the same as `DeadLetterCodec(Json)`.
///
/// ```
/// use pillarbox_core::{Codec, Json, Raw};
/// use pillarbox_runtime::dead_letters::{DeadLetter, DeadLetterCodec};
///
/// let text = br#"{"message_id":"0193b1f4-0000-7000-8000-000000000000","source_mailbox":"orders",
///     "dead_lettered_at":"2026-11-16T10:00:00Z","first_received_at":"2026-11-16T09:00:00Z",
///     "body_encoding":"text","body":"{\"n\": 7"}"#;
/// let letter: DeadLetter = DeadLetterCodec(Raw).decode(&text[..].into()).unwrap();
/// assert_eq!(&letter.body[..], b"{\"n\": 7");
/// let json = DeadLetterCodec(Json);
/// assert!(Codec::<DeadLetter<serde_json::Value>>::decode(&json, &text[..].into()).is_err());
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct DeadLetterCodec<C>(pub C);

impl<T, C: Codec<T>> Codec<DeadLetter<T>> for DeadLetterCodec<C> {
    fn name(&self) -> &'static str {
        "dead letter"
    }

    fn encode(&self, letter: &DeadLetter<T>) -> Result<Bytes, CodecError> {
        let body = ReadableBody::exact(&self.0.encode(&letter.body)?);
        Ok(serde_json::to_vec(&Stored::new(&letter.info, &body))?.into())
    }

    fn decode(&self, bytes: &Bytes) -> Result<DeadLetter<T>, CodecError> {
        let stored: Stored<_, _> = serde_json::from_slice(bytes)?;
        let letter = stored.into_dead_letter()?;
        let body = self.0.decode(&letter.body).map_err(|error| {
            let codec = self.0.name();
            format!("the body of the message in it is not valid {codec}: {error}")
        })?;
        Ok(letter.with_body(body))
    }
}

/// Lets it be the codec of a mailbox without replies.
impl<C: Codec<()>> Codec<()> for DeadLetterCodec<C> {
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

/// For JSON only.
impl<T: Serialize> Serialize for DeadLetter<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let body = serde_json::to_vec(&self.body).map_err(serde::ser::Error::custom)?;
        Stored::new(&self.info, &ReadableBody::exact(&body)).serialize(serializer)
    }
}

/// For JSON only.
impl<'de, T: DeserializeOwned> Deserialize<'de> for DeadLetter<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let stored: Stored<_, _> = Deserialize::deserialize(deserializer)?;
        let letter = stored.into_dead_letter().map_err(D::Error::custom)?;
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
        let failure = FailureDetails {
            kind: FailureKind::Error,
            type_name: "shop::OutOfStock",
            text: "x".repeat(5_000).into(),
            causes: ["no lamps".into(), "no glass".into()].into(),
        };
        let source = "orders".parse().unwrap();
        DeadLetter::new(&source, &message, &failure, "orders/1@h:7".to_owned(), at)
    }

    #[test]
    fn every_body_and_every_field_survives_a_round_trip() {
        for body in [&b"{\"n\": 1.10}"[..], b" [1]\n", b"text", b"", b"\xff\x00"] {
            let letter = letter(body);
            let bytes = DeadLetterCodec(Raw).encode(&letter).unwrap();
            let back: DeadLetter = DeadLetterCodec(Raw).decode(&bytes).unwrap();
            assert_eq!(back, letter);
            assert_eq!((back.replay_count, back.last_error.len()), (2, 2_000));
            assert_eq!(back.attributes.len(), 2, "{:?}", back.attributes);
            assert_eq!(back.message_id, MessageId::from_key("first"));
            assert_eq!(back.trace_id.as_deref(), Some("0af7651916cd43dd8448eb211c80319c"));
        }
    }

    #[test]
    fn json_bodies_are_decoded_and_encoded_alike() {
        let raw = letter(b"{\"n\": 1}");
        let bytes = DeadLetterCodec(Raw).encode(&raw).unwrap();
        let typed: DeadLetter<serde_json::Value> = Json.decode(&bytes).unwrap();
        assert_eq!(typed.body["n"], 1);
        let same: DeadLetter<serde_json::Value> = DeadLetterCodec(Json).decode(&bytes).unwrap();
        assert_eq!(same, typed);
        let again: DeadLetter<serde_json::Value> =
            Json.decode(&Json.encode(&typed).unwrap()).unwrap();
        assert_eq!(again, typed);
        let spaced = DeadLetterCodec(Raw).encode(&letter(b" {\"n\":\n 1}")).unwrap();
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
        let text =
            String::from_utf8(DeadLetterCodec(Raw).encode(&letter).unwrap().to_vec()).unwrap();
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

    /// A message in flight during an update of the workers must not get a second dead letter under another id.
    #[test]
    fn the_id_of_a_dead_letter_is_stable_across_versions() {
        let of = MessageId::from_key("m");
        let key = format!("dead letter of {of} in orders at 1700000000000000000");
        let mut letter = letter(b"1");
        let replayed = MessageId::from_key(&format!("{key}, replay 2"));
        assert_eq!(letter.outgoing(of).unwrap().id, replayed);
        letter.replay_count = 0;
        assert_eq!(letter.outgoing(of).unwrap().id, MessageId::from_key(&key));
    }

    #[test]
    fn the_time_of_the_first_delivery_defaults_to_the_time_of_sending() {
        let recorded = letter(b"1");
        let (sent, later) = (Timestamp::from_secs(1_700_000_000), Duration::from_secs(7));
        assert_eq!((recorded.sent_at, recorded.first_received_at), (sent, sent + later));
        let message = RawMessage::new(MessageId::new(), "1", sent);
        let failure = FailureDetails {
            kind: FailureKind::Error,
            type_name: "",
            text: "".into(),
            causes: [].into(),
        };
        let source = "orders".parse().unwrap();
        let unrecorded = DeadLetter::new(&source, &message, &failure, String::new(), sent);
        assert_eq!((unrecorded.sent_at, unrecorded.first_received_at), (sent, sent));
    }

    #[test]
    fn a_dead_letter_that_was_stored_without_a_time_of_sending_can_be_read() {
        let letter = letter(b"1");
        let text =
            String::from_utf8(DeadLetterCodec(Raw).encode(&letter).unwrap().to_vec()).unwrap();
        let (before, rest) = text.split_once("\"sent_at\":").unwrap();
        let old = format!("{before}{}", rest.split_once(',').unwrap().1);
        let read: DeadLetter = DeadLetterCodec(Raw).decode(&old.into()).unwrap();
        assert_eq!(read.sent_at, letter.first_received_at);
        assert_eq!(read.first_received_at, letter.first_received_at);
        let replayed = read.replay(MessageId::new(), Timestamp::now());
        assert_eq!(replayed.enqueued_at, Some(letter.first_received_at));
    }

    #[test]
    fn a_dead_letter_has_one_id_for_each_replay_of_a_message() {
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
        // The time of the first delivery does not count: it may be unknown, or known only to newer workers.
        let mut later = one.clone();
        later.first_received_at = Timestamp::from_secs(1);
        assert_eq!(id(&later, of), id(&one, of));
        // Two messages that were sent by a handler with the attributes of a replay.
        assert_ne!(id(&one, MessageId::from_key("other")), id(&one, of));
    }

    #[test]
    fn a_replay_is_the_same_message_under_a_new_id() {
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
}
