//! A message as one line of JSON, and back.
//!
//! The fields are documented in `docs/cli.md` and stable.

use pillarbox::{
    Attributes, BodyEncoding, Delivery, MessageId, MessageState, Outgoing, Peeked, QueueName,
    RawMessage, ReadableBody, Receipt, Timestamp,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Serialized form of a message.
#[derive(Debug, Serialize)]
pub(crate) struct MessageJson<'a> {
    queue: &'a QueueName,
    id: MessageId,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<&'a Receipt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
    delivery_count: u32,
    unsettled: u32,
    uncounted: u32,
    enqueued_at: Timestamp,
    reply_to: Option<&'a str>,
    attributes: &'a Attributes,
    body_encoding: BodyEncoding,
    body: Box<RawValue>,
}

/// How a body is represented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fidelity {
    /// Every JSON body is written as JSON; white space may change.
    Convenient,
    /// A JSON body that would not be restored exactly is written as text.
    Exact,
}

impl<'a> MessageJson<'a> {
    pub(crate) fn delivered(queue: &'a QueueName, delivery: &'a Delivery) -> Self {
        let mut line = Self::new(queue, &delivery.message, Fidelity::Convenient);
        line.receipt = Some(&delivery.receipt);
        line
    }

    pub(crate) fn peeked(queue: &'a QueueName, peeked: &'a Peeked, fidelity: Fidelity) -> Self {
        let line = Self::new(queue, &peeked.message, fidelity);
        let (state, until) = state(peeked.state);
        Self { state: Some(state), until, ..line }
    }

    /// A message that leaves its queue, without its receipt.
    pub(crate) fn drained(queue: &'a QueueName, delivery: &'a Delivery) -> Self {
        Self::new(queue, &delivery.message, Fidelity::Exact)
    }

    fn new(queue: &'a QueueName, message: &'a RawMessage, fidelity: Fidelity) -> Self {
        let ReadableBody { encoding, value } = match fidelity {
            Fidelity::Convenient => ReadableBody::convenient(&message.body),
            Fidelity::Exact => ReadableBody::exact(&message.body),
        };
        Self {
            queue,
            id: message.id,
            receipt: None,
            state: None,
            until: None,
            delivery_count: message.delivery_count,
            unsettled: message.unsettled,
            uncounted: message.uncounted,
            enqueued_at: message.enqueued_at,
            reply_to: message.reply_to.as_deref(),
            attributes: &message.attributes,
            body_encoding: encoding,
            body: value,
        }
    }
}

/// Returns the name of a state, and the time at which it ends.
pub(crate) fn state(state: MessageState) -> (&'static str, Option<Timestamp>) {
    match state {
        MessageState::Ready => ("ready", None),
        MessageState::InFlight { until } => ("in_flight", Some(until)),
        MessageState::Delayed { until } => ("delayed", Some(until)),
    }
}

/// Deserialized form of a message. Fields that only describe its origin are ignored.
#[derive(Deserialize)]
#[serde(expecting = "an object with a `body`")]
struct MessageInput<'a> {
    id: Option<MessageId>,
    #[serde(borrow)]
    body: &'a RawValue,
    body_encoding: Option<BodyEncoding>,
    attributes: Option<Attributes>,
    reply_to: Option<String>,
    enqueued_at: Option<Timestamp>,
    state: Option<String>,
    until: Option<Timestamp>,
}

/// Parses a message from a line of JSON. A delayed message stays delayed until its time, by the local clock.
pub(crate) fn parse(line: &str, now: Timestamp) -> Result<Outgoing, String> {
    // Some editors and shells begin a file with a byte order mark.
    let line = line.strip_prefix('\u{feff}').unwrap_or(line);
    // An array would be parsed as the fields in order.
    if !line.trim_start().starts_with('{') {
        return Err("not an object with a `body`".to_owned());
    }
    let input: MessageInput<'_> =
        serde_json::from_str(line).map_err(|error| describe_error(&error))?;
    let encoding = input.body_encoding.unwrap_or(BodyEncoding::Json);
    let body = ReadableBody::read(encoding, input.body)?;
    let mut message = Outgoing::with_id(input.id.unwrap_or_else(MessageId::new), body);
    message.attributes = input.attributes.unwrap_or_default();
    message.reply_to = input.reply_to.map(Into::into);
    message.enqueued_at = input.enqueued_at;
    // A lease belongs to another queue.
    if input.state.as_deref() != Some("in_flight")
        && let Some(until) = input.until
    {
        message.delay = until.since(now);
    }
    Ok(message)
}

/// Returns the text of an error with its column.
pub(crate) fn describe_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    // The line number is always 1.
    match text.rsplit_once(" at line ") {
        Some((what, _)) => format!("{what}, at column {}", error.column()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;

    #[test]
    fn an_exact_line_restores_every_body_exactly() {
        let queue: QueueName = "q".parse().unwrap();
        for body in [
            &b"{\"n\": 1.10}"[..],
            b" {\n \"n\": 1}\n",
            b"\"text\"",
            b"text\r\n",
            b"",
            b"\x00\xff",
            "\u{feff}{}".as_bytes(),
        ] {
            let (id, body) = (MessageId::new(), Bytes::copy_from_slice(body));
            let mut message = RawMessage::new(id, body, Timestamp::from_secs(5));
            message.attributes.insert("tenant", "acme");
            message.reply_to = Some("client-7".into());
            let until = Timestamp::from_secs(90);
            let peeked = Peeked::new(message.clone(), MessageState::Delayed { until });
            let line = MessageJson::peeked(&queue, &peeked, Fidelity::Exact);
            let line = serde_json::to_string(&line).unwrap();
            assert!(!line.contains('\n'), "{line}");

            let read = parse(&line, Timestamp::from_secs(60)).unwrap();
            assert_eq!(read.body, message.body);
            assert_eq!((read.id, read.enqueued_at), (message.id, Some(message.enqueued_at)));
            assert_eq!((read.attributes, read.reply_to), (message.attributes, message.reply_to));
            assert_eq!(read.delay, Duration::from_secs(30));
        }
    }

    #[test]
    fn a_line_needs_a_body_and_nothing_else() {
        let now = Timestamp::from_secs(0);
        for line in ["{\"body\": [1, 2]}", "\u{feff}{\"body\": [1, 2]}"] {
            assert_eq!(parse(line, now).unwrap().body, "[1, 2]");
        }
        for (line, says) in [
            ("{}", "missing field `body`"),
            ("[1]", "an object with a `body`"),
            ("{\"body\":}", "expected value, at column 9"),
            ("nonsense", "an object with a `body`"),
            ("{nonsense", "key must be a string"),
            ("{\"body\":1,\"body_encoding\":\"text\"}", "is a string"),
            ("{\"body\":\"!\",\"body_encoding\":\"base64\"}", "base64"),
            ("{\"body\":1,\"body_encoding\":\"hex\"}", "hex"),
            ("{\"body\":1,\"id\":\"x\"}", "UUID"),
        ] {
            let error = parse(line, now).unwrap_err();
            assert!(error.contains(says), "{line}: {error}");
        }
    }

    #[test]
    fn a_lease_is_not_loaded() {
        let line = "{\"body\":1,\"state\":\"in_flight\",\"until\":\"2100-01-01T00:00:00Z\"}";
        assert_eq!(parse(line, Timestamp::now()).unwrap().delay, Duration::ZERO);
    }
}
