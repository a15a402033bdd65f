//! Parsers of untrusted bytes, for the fuzzer. Not part of the API.

use aws_sdk_sqs::types::{Message, SendMessageBatchRequestEntry};
use pillarbox_core::{Delivery, Outgoing, QueueName, Redrive, Result};

use crate::limits::{Kind, MAX_MESSAGE, MAX_NAME, MAX_WAIT};
use crate::options::SqsOptions;
use crate::{redrive, wire};

/// Decodes a message of SQS.
pub fn delivery(message: Message) -> Option<Delivery> {
    wire::delivery(message)
}

/// Encodes a message for SQS. Returns its entry and its size against the limit.
pub fn entry(message: Outgoing, is_fifo: bool) -> Result<(SendMessageBatchRequestEntry, usize)> {
    let kind = if is_fifo { Kind::Fifo } else { Kind::Standard };
    let encoded = wire::Encoded::new(message, kind, &QueueName::new("fuzz")?, MAX_MESSAGE)?;
    Ok((encoded.entry(0), encoded.size))
}

/// Parses a redrive policy.
pub fn policy(text: &str) -> Option<Redrive> {
    redrive::read(text, |_| None)
}

/// Formats a redrive policy.
pub fn policy_text(target: String, deliveries: u32) -> String {
    redrive::write(target, deliveries)
}

/// Returns whether the options are within their limits.
pub fn is_sensible(options: &SqsOptions) -> bool {
    let usage = &options.usage;
    usage.prefix.len() < MAX_NAME
        && !usage.poll.is_zero()
        && usage.poll <= MAX_WAIT
        && (1024..=MAX_MESSAGE).contains(&usage.max_message)
        && usage.tries > 0
}

/// Returns the name of the dead-letter queue of `source`, and whether it is recognized as one.
pub fn dead_letter_name(source: &QueueName) -> Result<(QueueName, bool)> {
    let name = crate::redrive::dead_letter_name(source)?;
    let is_recognized = crate::redrive::is_dead_letter_name(&name);
    Ok((name, is_recognized))
}
