//! What reads foreign bytes, for the fuzzer alone: no part of the API.

use aws_sdk_sqs::types::{Message, SendMessageBatchRequestEntry};
use pillarbox_core::{Delivery, Outgoing, QueueName, Redrive, Result};

use crate::limits::{Kind, MAX_MESSAGE, MAX_NAME, MAX_WAIT};
use crate::options::SqsOptions;
use crate::{redrive, wire};

/// A message that SQS has delivered.
pub fn delivery(message: Message) -> Option<Delivery> {
    wire::delivery(message)
}

/// A message as SQS is given it, and what it counts against the limit.
pub fn entry(message: Outgoing, is_fifo: bool) -> Result<(SendMessageBatchRequestEntry, usize)> {
    let kind = if is_fifo { Kind::Fifo } else { Kind::Standard };
    let encoded = wire::Encoded::new(message, kind, &QueueName::new("fuzz")?, MAX_MESSAGE)?;
    Ok((encoded.entry(0), encoded.size))
}

/// A redrive policy.
pub fn policy(text: &str) -> Option<Redrive> {
    redrive::read(text, |_| None)
}

/// The text of a redrive policy.
pub fn policy_text(target: String, deliveries: u32) -> String {
    redrive::write(target, deliveries)
}

/// Whether nothing is beyond what the options promise.
pub fn is_sensible(options: &SqsOptions) -> bool {
    let usage = &options.usage;
    usage.prefix.len() < MAX_NAME
        && !usage.poll.is_zero()
        && usage.poll <= MAX_WAIT
        && (1024..=MAX_MESSAGE).contains(&usage.max_message)
        && usage.attempts > 0
}

/// Returns the name of the queue for dead letters of `source`, and whether it is recognized as one.
pub fn dead_letter_name(source: &QueueName) -> Result<(QueueName, bool)> {
    let name = crate::redrive::dead_letter_name(source)?;
    let is_recognized = crate::redrive::is_dead_letter_name(&name);
    Ok((name, is_recognized))
}
