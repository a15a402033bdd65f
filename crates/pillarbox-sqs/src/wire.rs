//! Messages in the form of SQS: a text body, attributes, and system attributes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use aws_sdk_sqs::types::{
    Message, MessageAttributeValue, MessageSystemAttributeName as System,
    SendMessageBatchRequestEntry,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use pillarbox_core::{
    Delivery, Error, MessageId, Outgoing, QueueName, RawMessage, Result, Timestamp,
};

use crate::attributes::{self, Malformed, is_text};
use crate::limits::Kind;

/// Attribute with our id of a message, chosen by its sender.
const ID: &str = "pillarbox.id";
/// Attribute with the reply address.
const REPLY_TO: &str = "pillarbox.reply_to";
/// Attribute with the encoding of a body that is not text.
const ENCODING: &str = "pillarbox.encoding";
/// Attribute with the original time of sending of a message that was moved.
const ENQUEUED_AT: &str = "pillarbox.enqueued_at";

const BASE64: &str = "base64";
/// Encoding of an empty body, which SQS refuses: a placeholder is sent instead.
const EMPTY: &str = "empty";
const EMPTY_PLACEHOLDER: &str = "-";

/// Group of FIFO messages without one: all of them are kept in order.
pub(crate) const DEFAULT_GROUP: &str = "pillarbox";

/// A message that is encoded for SQS.
#[derive(Debug, Clone)]
pub(crate) struct Encoded {
    pub(crate) id: MessageId,
    /// Size against the limit: the body and the attributes with their names and types.
    pub(crate) size: usize,
    body: String,
    attributes: HashMap<String, MessageAttributeValue>,
    delay: Option<i32>,
    group: Option<String>,
    deduplication: Option<String>,
}

impl Encoded {
    /// Encodes a message. Fails if it is larger than `max`.
    pub(crate) fn new(
        message: Outgoing,
        kind: Kind,
        queue: &QueueName,
        max: usize,
    ) -> Result<Self> {
        let id = message.id;
        Self::encode(message, kind, queue, max).map_err(|error| error.about(Some(id)))
    }

    fn encode(message: Outgoing, kind: Kind, queue: &QueueName, max: usize) -> Result<Self> {
        let id = message.id.to_string();
        let enqueued_at = message.enqueued_at.map(|at| at.to_string());
        let (body, encoding) = encode_body(&message.body);
        let mut all: BTreeMap<&str, &str> = message.attributes.iter().collect();
        all.insert(ID, &id);
        let ours = [
            (REPLY_TO, message.reply_to.as_deref()),
            (ENCODING, encoding),
            (ENQUEUED_AT, enqueued_at.as_deref()),
        ];
        for (name, value) in ours {
            match value {
                Some(value) => all.insert(name, value),
                None => all.remove(name),
            };
        }
        let (mut group, mut deduplication) = (None, None);
        if kind == Kind::Fifo {
            // SQS has separate parameters for these.
            let group_id = all.remove(Outgoing::GROUP).unwrap_or(DEFAULT_GROUP);
            group = Some(identifier(queue, "group", group_id)?);
            let deduplication_id = all.remove(Outgoing::DEDUPLICATION).unwrap_or(&id);
            deduplication = Some(identifier(queue, "deduplication", deduplication_id)?);
        }
        let malformed =
            |Malformed { value, allowed }| Error::invalid(Some(queue), "attribute", value, allowed);
        let (attributes, attributes_size) = attributes::encode(&all).map_err(malformed)?;
        let size = body.len() + attributes_size;
        if size > max {
            let value = format!("{size} (body {}, attributes {attributes_size})", body.len());
            let allowed = format!("at most {max}, attributes with their names and types included");
            return Err(Error::invalid(Some(queue), "message size in bytes", value, allowed));
        }
        // Without one, the delay of the queue applies.
        let has_delay = kind == Kind::Standard && !message.delay.is_zero();
        let delay = has_delay.then(|| seconds(message.delay));
        Ok(Self { id: message.id, size, body, attributes, delay, group, deduplication })
    }

    /// Returns the entry of a batch, with its index as the id.
    pub(crate) fn entry(&self, index: usize) -> SendMessageBatchRequestEntry {
        SendMessageBatchRequestEntry::builder()
            .id(index.to_string())
            .message_body(&self.body)
            .set_message_attributes(Some(self.attributes.clone()))
            .set_delay_seconds(self.delay)
            .set_message_group_id(self.group.clone())
            .set_message_deduplication_id(self.deduplication.clone())
            .build()
            // Cannot fail: it has an id and a body.
            .expect("an entry with an id and a body")
    }
}

/// Converts to whole seconds. The durations were checked to have no fraction.
pub(crate) fn seconds(duration: std::time::Duration) -> i32 {
    i32::try_from(duration.as_secs()).unwrap_or(i32::MAX)
}

/// Checks a group or a deduplication id.
fn identifier(queue: &QueueName, parameter: &'static str, text: &str) -> Result<String> {
    if (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(text.to_owned());
    }
    let allowed = "1 to 128 printable ASCII characters, without spaces";
    Err(Error::invalid(Some(queue), parameter, format!("{text:?}"), allowed))
}

/// Returns a body as text, and its encoding.
fn encode_body(body: &[u8]) -> (String, Option<&'static str>) {
    match std::str::from_utf8(body) {
        Ok("") => (EMPTY_PLACEHOLDER.to_owned(), Some(EMPTY)),
        Ok(text) if is_text(text) => (text.to_owned(), None),
        _ => (STANDARD.encode(body), Some(BASE64)),
    }
}

/// Returns the bytes of an encoded body. A body that does not match its encoding is returned as it is, so that the
/// receiver sees it.
fn decode_body(text: String, encoding: Option<&str>) -> Bytes {
    match encoding {
        Some(BASE64) => STANDARD.decode(&text).map_or_else(|_| text.into(), Bytes::from),
        Some(EMPTY) => Bytes::new(),
        _ => text.into(),
    }
}

/// Decodes a message. `None` if it has no receipt, since it cannot be settled.
pub(crate) fn delivery(message: Message) -> Option<Delivery> {
    let receipt = message.receipt_handle.as_deref()?.parse().ok()?;
    let system = message.attributes.unwrap_or_default();
    let mut attributes = attributes::decode(message.message_attributes);
    let sqs_id = message.message_id.unwrap_or_default();
    let id = attributes.remove(ID).and_then(|id| id.parse().ok()).unwrap_or_else(|| {
        // Documented to be a UUID; otherwise an id that is the same at every delivery.
        sqs_id.parse().unwrap_or_else(|_| MessageId::from_key(&sqs_id))
    });
    let encoding = attributes.remove(ENCODING);
    let body = decode_body(message.body.unwrap_or_default(), encoding.as_deref());
    let millis = |name: &System| Some(from_millis(system.get(name)?.parse().ok()?));
    let moved = attributes.remove(ENQUEUED_AT).and_then(|at| at.parse().ok());
    let enqueued_at = moved.or_else(|| millis(&System::SentTimestamp));
    let mut raw = RawMessage::new(id, body, enqueued_at.unwrap_or_else(Timestamp::now));
    raw.reply_to = attributes.remove(REPLY_TO).map(Arc::from);
    if let Some(group) = system.get(&System::MessageGroupId).filter(|it| *it != DEFAULT_GROUP) {
        attributes.insert(Outgoing::GROUP.to_owned(), group.clone());
    }
    if let Some(deduplication) = system.get(&System::MessageDeduplicationId)
        && *deduplication != id.to_string()
    {
        attributes.insert(Outgoing::DEDUPLICATION.to_owned(), deduplication.clone());
    }
    raw.attributes = attributes.into();
    let count = system.get(&System::ApproximateReceiveCount);
    raw.delivery_count = count.and_then(|count| count.parse().ok()).unwrap_or(1);
    raw.first_received_at = millis(&System::ApproximateFirstReceiveTimestamp);
    Some(Delivery::new(raw, receipt))
}

fn from_millis(millis: i64) -> Timestamp {
    Timestamp::from_micros(millis.saturating_mul(1_000))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn encoded(message: Outgoing, kind: Kind, max: usize) -> Result<Encoded> {
        Encoded::new(message, kind, &"q".parse().unwrap(), max)
    }

    /// Encodes and decodes a message.
    fn round_trip(message: Outgoing, kind: Kind) -> Delivery {
        let entry = encoded(message, kind, 1 << 20).unwrap().entry(0);
        let system = [
            (System::SentTimestamp, Some("1700000000123".to_owned())),
            (System::ApproximateReceiveCount, Some("3".to_owned())),
            (System::ApproximateFirstReceiveTimestamp, Some("1700000001000".to_owned())),
            (System::MessageGroupId, entry.message_group_id().map(str::to_owned)),
            (System::MessageDeduplicationId, entry.message_deduplication_id().map(str::to_owned)),
        ];
        let system = system.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let message = Message::builder()
            .message_id("5fea7756-0ea4-451a-a703-a558b933e274")
            .receipt_handle("handle")
            .body(entry.message_body())
            .set_attributes(Some(system.collect()))
            .set_message_attributes(entry.message_attributes().cloned());
        delivery(message.build()).unwrap()
    }

    #[test]
    fn every_body_survives() {
        let bodies: [&[u8]; 6] =
            [b"", b"text", "ünï\n".as_bytes(), b"\0", b"\xff\xfe", "\u{fffe}".as_bytes()];
        for body in bodies {
            let sent = Outgoing::new(body);
            let arrived = round_trip(sent.clone(), Kind::Standard).message;
            assert_eq!((arrived.body, arrived.id), (sent.body, sent.id));
            assert!(arrived.attributes.is_empty());
        }
        assert_eq!(encode_body(b"{\"n\": 1}"), ("{\"n\": 1}".to_owned(), None));
    }

    #[test]
    fn everything_else_survives_on_both_kinds_of_queues() {
        let mut sent = Outgoing::new("x");
        sent.reply_to = Some("https://sqs.eu-west-1.amazonaws.com/1/replies".into());
        sent.enqueued_at = Some(Timestamp::from_secs(1_000_000_000));
        sent.attributes =
            [("tenant", "acme"), (Outgoing::GROUP, "g"), (Outgoing::DEDUPLICATION, "d")]
                .into_iter()
                .collect();
        for kind in [Kind::Standard, Kind::Fifo] {
            let arrived = round_trip(sent.clone(), kind).message;
            assert_eq!(arrived.attributes, sent.attributes);
            assert_eq!(arrived.reply_to, sent.reply_to);
            assert_eq!(Some(arrived.enqueued_at), sent.enqueued_at);
            assert_eq!(arrived.delivery_count, 3);
            assert_eq!(arrived.first_received_at, Some(Timestamp::from_secs(1_700_000_001)));
        }
    }

    #[test]
    fn a_fifo_message_has_a_default_group_and_its_id_for_deduplication() {
        let sent = Outgoing::new("x");
        let entry = encoded(sent.clone(), Kind::Fifo, 1 << 20).unwrap().entry(0);
        assert_eq!(entry.message_group_id(), Some(DEFAULT_GROUP));
        assert_eq!(entry.message_deduplication_id(), Some(sent.id.to_string().as_str()));
        assert_eq!(entry.delay_seconds(), None, "SQS refuses even a zero delay");
        assert!(round_trip(sent, Kind::Fifo).message.attributes.is_empty());
        let mut odd = Outgoing::new("x");
        odd.attributes.insert(Outgoing::GROUP, "two words");
        let error = encoded(odd, Kind::Fifo, 1 << 20).unwrap_err();
        assert!(error.to_string().contains("group"), "{error}");
    }

    #[test]
    fn a_message_of_another_program_has_the_id_of_sqs() {
        let message = |id: &str| Message::builder().message_id(id).receipt_handle("h").body("x");
        let id = "5fea7756-0ea4-451a-a703-a558b933e274";
        let arrived = delivery(message(id).build()).unwrap().message;
        assert_eq!(arrived.id.to_string(), id);
        assert_eq!((arrived.delivery_count, &arrived.body[..]), (1, &b"x"[..]));
        let odd = || delivery(message("no uuid").build()).unwrap().message.id;
        assert_eq!(odd(), odd());
        assert!(delivery(Message::builder().body("x").build()).is_none());
    }

    #[test]
    fn the_error_of_a_message_that_is_too_large_has_its_size() {
        let mut message = Outgoing::new("x".repeat(900));
        message.attributes.insert("tenant", "acme");
        let size = encoded(message.clone(), Kind::Standard, 1024).unwrap().size;
        assert_eq!(size, 900 + "tenantStringacme".len() + "pillarbox.idString".len() + 36);
        assert!(encoded(message.clone(), Kind::Standard, size).is_ok());
        let error = encoded(message.clone(), Kind::Standard, size - 1).unwrap_err();
        assert_eq!(error.message_id(), Some(message.id));
        let text = error.to_string();
        assert!(text.contains(&format!("{size} (body 900, attributes 70)")), "{text}");
    }

    #[test]
    fn a_delay_is_sent_in_seconds() {
        let mut message = Outgoing::new("x");
        message.delay = Duration::from_secs(900);
        let entry = encoded(message, Kind::Standard, 1024).unwrap().entry(4);
        assert_eq!((entry.id(), entry.delay_seconds()), ("4", Some(900)));
    }
}
