//! Messages that SQS delivers, from any sender.

use std::collections::HashMap;

use pillarbox_core::{Delivery, RawMessage};
use pillarbox_sqs::aws_sdk_sqs::primitives::Blob;
use pillarbox_sqs::aws_sdk_sqs::types::{
    Message, MessageAttributeValue, MessageSystemAttributeName as System,
};
use pillarbox_sqs::fuzzing as reader;

use super::accepted;
use super::redis::outgoing;
use super::values::{lines, unescaped};
use crate::driver::record_outcome;

pub(super) const WORDS: &[&str] = &[
    "handle=AQEB\n",
    "id=5fea7756-0ea4-451a-a703-a558b933e274\n",
    "body=",
    "SentTimestamp=1700000000123\n",
    "ApproximateReceiveCount=3\n",
    "MessageGroupId=g\n",
    "MessageDeduplicationId=d\n",
    ":pillarbox.id String ",
    ":pillarbox.encoding String base64\n",
    ":pillarbox.encoding String empty\n",
    ":pillarbox.reply_to String client-7\n",
    ":pillarbox.enqueued_at String 2026-11-15T10:30:00Z\n",
    ":pillarbox.folded String {\"a b\":\"\"}\n",
    ":pillarbox.types String count=Number\n",
    ":count Number 12\n",
    ":photo Binary.png \\x00\\xff\n",
    ":tenant String acme\n",
    "pillarbox.group",
    "pillarbox.deduplication",
    "pillarbox.types",
    "pillarbox.folded",
    ":a String ",
    "aws.",
    "..",
    "//4=",
];

/// Lines of a message: `name=value` for system fields, `:name type value` for attributes.
pub(super) fn run(input: &[u8]) {
    let mut is_sound = true;
    let Some(delivery) = reader::delivery(message(input, &mut is_sound)) else {
        record_outcome("no receipt");
        return;
    };
    let again = reader::delivery(message(input, &mut true));
    assert_eq!(again.map(seen), Some(seen(delivery.clone())), "the same every time");
    let RawMessage { attributes, reply_to, first_received_at, .. } = &delivery.message;
    let ours = attributes.iter().map(|(name, _)| name.starts_with("pillarbox."));
    let (ours, has_reply) = (ours.collect::<Vec<_>>(), reply_to.is_some());
    record_outcome(&format!("{ours:?} {has_reply} {}", first_received_at.is_some()));
    for is_fifo in [false, true] {
        let entry = accepted(reader::entry(outgoing(&delivery.message), is_fifo));
        let Some((entry, size)) = entry else { continue };
        let attributes = entry.message_attributes().cloned().unwrap_or_default();
        assert!(attributes.len() <= 10 && size <= 1 << 20, "limits of SQS");
        assert!(!entry.message_body().is_empty(), "limits of SQS");
        assert_eq!(entry.message_group_id().is_some(), is_fifo);
        let system = [
            (System::MessageGroupId, entry.message_group_id()),
            (System::MessageDeduplicationId, entry.message_deduplication_id()),
        ];
        let system = system.into_iter().filter_map(|(name, value)| Some((name, value?.to_owned())));
        let carried = Message::builder()
            .message_id("5fea7756-0ea4-451a-a703-a558b933e274")
            .receipt_handle("handle")
            .body(entry.message_body())
            .set_attributes(Some(system.collect()))
            .set_message_attributes(Some(attributes));
        let again = reader::delivery(carried.build()).expect("it has a receipt").message;
        let message = &delivery.message;
        assert_eq!((again.id, &again.body), (message.id, &message.body), "a message survives SQS");
        assert_eq!((&again.reply_to, again.enqueued_at), (&message.reply_to, message.enqueued_at));
        // Attributes that SQS does not allow need not survive.
        if is_sound {
            assert_eq!(again.attributes, message.attributes, "attributes survive SQS");
        }
    }
}

/// Returns the parts that do not depend on the time.
fn seen(delivery: Delivery) -> impl PartialEq + std::fmt::Debug {
    let message = delivery.message;
    (message.id, message.body, message.attributes, message.reply_to, message.delivery_count)
}

/// Returns the message of these lines, and whether SQS allows its attributes.
fn message(input: &[u8], is_sound: &mut bool) -> Message {
    let mut message = Message::builder();
    let (mut system, mut attributes) = (HashMap::new(), HashMap::new());
    for line in lines(input) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(&unescaped(bytes)).into_owned();
        if let Some(line) = line.strip_prefix(b":") {
            let mut words = line.splitn(3, |byte| *byte == b' ');
            let (name, kind) =
                (text(words.next().unwrap_or_default()), text(words.next().unwrap_or_default()));
            let value = unescaped(words.next().unwrap_or_default());
            let is_word = |word: &str| {
                word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
            };
            let kinds = ["String", "Number", "Binary"];
            *is_sound &= !name.is_empty() && is_word(&name) && is_word(&kind) && !value.is_empty();
            *is_sound &= kinds.contains(&kind.split('.').next().unwrap_or_default());
            let mut attribute = MessageAttributeValue::builder().data_type(&kind);
            if kind.starts_with("Binary") {
                attribute = attribute.binary_value(Blob::new(value));
            } else {
                attribute = attribute.string_value(String::from_utf8_lossy(&value));
            }
            attributes.extend(attribute.build().ok().map(|attribute| (name, attribute)));
            continue;
        }
        let mut halves = line.splitn(2, |byte| *byte == b'=');
        let (name, value) =
            (text(halves.next().unwrap_or_default()), text(halves.next().unwrap_or_default()));
        match name.as_str() {
            "handle" => message = message.receipt_handle(value),
            "id" => message = message.message_id(value),
            "body" => message = message.body(value),
            name => drop(system.insert(System::from(name), value)),
        }
    }
    message.set_attributes(Some(system)).set_message_attributes(Some(attributes)).build()
}
