//! A message as SQS keeps it: a body of text, attributes, and what SQS adds.

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

/// The attribute that holds our id of a message, which its sender made.
const ID: &str = "pillarbox.id";
/// The attribute that holds the address for an answer.
const REPLY_TO: &str = "pillarbox.reply_to";
/// The attribute that says how bytes became the text of the body.
const ENCODING: &str = "pillarbox.encoding";
/// The attribute that holds the time at which a message was first sent that was moved here.
const ENQUEUED_AT: &str = "pillarbox.enqueued_at";

const BASE64: &str = "base64";
/// SQS takes no empty body, so there is something in its place.
const EMPTY: &str = "empty";
const IN_PLACE_OF_NOTHING: &str = "-";

/// The group of messages in a FIFO queue that have none: all of them keep their order.
pub(crate) const DEFAULT_GROUP: &str = "pillarbox";

/// A message, ready to be an entry of a batch.
#[derive(Debug, Clone)]
pub(crate) struct Encoded {
    pub(crate) id: MessageId,
    /// What it counts against the limit: the body and the attributes with their names and types.
    pub(crate) size: usize,
    body: String,
    attributes: HashMap<String, MessageAttributeValue>,
    delay: Option<i32>,
    group: Option<String>,
    deduplication: Option<String>,
}

impl Encoded {
    /// Encodes a message, unless it is larger than `max` then.
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
            // SQS has a place of its own for these.
            let own = all.remove(Outgoing::GROUP).unwrap_or(DEFAULT_GROUP);
            group = Some(identifier(queue, "group", own)?);
            let own = all.remove(Outgoing::DEDUPLICATION).unwrap_or(&id);
            deduplication = Some(identifier(queue, "deduplication", own)?);
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
        // Without one, that of the queue holds.
        let has_delay = kind == Kind::Standard && !message.delay.is_zero();
        let delay = has_delay.then(|| seconds(message.delay));
        Ok(Self { id: message.id, size, body, attributes, delay, group, deduplication })
    }

    /// The entry of a batch that this message is, by its place there.
    pub(crate) fn entry(&self, place: usize) -> SendMessageBatchRequestEntry {
        SendMessageBatchRequestEntry::builder()
            .id(place.to_string())
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

/// Whole seconds, which is what durations have been checked to be.
pub(crate) fn seconds(duration: std::time::Duration) -> i32 {
    i32::try_from(duration.as_secs()).unwrap_or(i32::MAX)
}

/// What SQS takes for a group or a deduplication id.
fn identifier(queue: &QueueName, parameter: &'static str, text: &str) -> Result<String> {
    if (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(text.to_owned());
    }
    let allowed = "1 to 128 letters, digits and signs of ASCII, without blanks";
    Err(Error::invalid(Some(queue), parameter, format!("{text:?}"), allowed))
}

/// A body as text, and how it became that.
fn encode_body(body: &[u8]) -> (String, Option<&'static str>) {
    match std::str::from_utf8(body) {
        Ok("") => (IN_PLACE_OF_NOTHING.to_owned(), Some(EMPTY)),
        Ok(text) if is_text(text) => (text.to_owned(), None),
        _ => (STANDARD.encode(body), Some(BASE64)),
    }
}

/// The bytes that a text was made of. Text that is not what it is said to be stays as it is: whoever
/// expects a body finds out, and sees what there is.
fn decode_body(text: String, encoding: Option<&str>) -> Bytes {
    match encoding {
        Some(BASE64) => STANDARD.decode(&text).map_or_else(|_| text.into(), Bytes::from),
        Some(EMPTY) => Bytes::new(),
        _ => text.into(),
    }
}

/// A message that SQS has delivered. `None` for one without a receipt, with which nothing can be done.
pub(crate) fn delivery(message: Message) -> Option<Delivery> {
    let receipt = message.receipt_handle.as_deref()?.parse().ok()?;
    let system = message.attributes.unwrap_or_default();
    let mut attributes = attributes::decode(message.message_attributes);
    let theirs = message.message_id.unwrap_or_default();
    let id = attributes.remove(ID).and_then(|id| id.parse().ok()).unwrap_or_else(|| {
        // A UUID, by the documentation; whatever it is, the same one at every delivery.
        theirs.parse().unwrap_or_else(|_| MessageId::from_key(&theirs))
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

    /// What arrives of a message that SQS has carried.
    fn arrived(message: Outgoing, kind: Kind) -> Delivery {
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
            let arrived = arrived(sent.clone(), Kind::Standard).message;
            assert_eq!((arrived.body, arrived.id), (sent.body, sent.id));
            assert!(arrived.attributes.is_empty());
        }
        assert_eq!(encode_body(b"{\"n\": 1}"), ("{\"n\": 1}".to_owned(), None));
    }

    #[test]
    fn everything_else_survives_on_queues_of_both_kinds() {
        let mut sent = Outgoing::new("x");
        sent.reply_to = Some("https://sqs.eu-west-1.amazonaws.com/1/replies".into());
        sent.enqueued_at = Some(Timestamp::from_secs(1_000_000_000));
        sent.attributes =
            [("tenant", "acme"), (Outgoing::GROUP, "g"), (Outgoing::DEDUPLICATION, "d")]
                .into_iter()
                .collect();
        for kind in [Kind::Standard, Kind::Fifo] {
            let arrived = arrived(sent.clone(), kind).message;
            assert_eq!(arrived.attributes, sent.attributes);
            assert_eq!(arrived.reply_to, sent.reply_to);
            assert_eq!(Some(arrived.enqueued_at), sent.enqueued_at);
            assert_eq!(arrived.delivery_count, 3);
            assert_eq!(arrived.first_received_at, Some(Timestamp::from_secs(1_700_000_001)));
        }
    }

    #[test]
    fn a_fifo_message_has_a_group_and_is_known_by_its_id_unless_told_otherwise() {
        let sent = Outgoing::new("x");
        let entry = encoded(sent.clone(), Kind::Fifo, 1 << 20).unwrap().entry(0);
        assert_eq!(entry.message_group_id(), Some(DEFAULT_GROUP));
        assert_eq!(entry.message_deduplication_id(), Some(sent.id.to_string().as_str()));
        assert_eq!(entry.delay_seconds(), None, "SQS refuses even none");
        assert!(arrived(sent, Kind::Fifo).message.attributes.is_empty());
        let mut odd = Outgoing::new("x");
        odd.attributes.insert(Outgoing::GROUP, "two words");
        let error = encoded(odd, Kind::Fifo, 1 << 20).unwrap_err();
        assert!(error.to_string().contains("group"), "{error}");
    }

    #[test]
    fn a_message_of_another_program_has_the_id_that_sqs_gave_it() {
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
    fn a_message_that_is_too_large_says_how_large_it_is() {
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
    fn a_delay_is_whole_seconds() {
        let mut message = Outgoing::new("x");
        message.delay = Duration::from_secs(900);
        let entry = encoded(message, Kind::Standard, 1024).unwrap().entry(4);
        assert_eq!((entry.id(), entry.delay_seconds()), ("4", Some(900)));
    }
}
