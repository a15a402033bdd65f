//! Redrive policies in the format of SQS.

use pillarbox_core::{QueueName, Redrive, Result};
use serde::{Deserialize, Serialize};

use crate::limits::FIFO_SUFFIX;

/// A redrive policy: JSON in an attribute of the queue.
#[derive(Debug, Serialize, Deserialize)]
struct Policy {
    #[serde(rename = "deadLetterTargetArn")]
    target: String,
    #[serde(rename = "maxReceiveCount")]
    deliveries: Number,
}

/// SQS accepts numbers and strings, and returns them as they were set.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Number {
    Number(u32),
    Text(String),
}

/// Parses a policy. `None` if there is none, or if it is invalid.
pub(crate) fn read(text: &str, name_of: impl FnOnce(&str) -> Option<String>) -> Option<Redrive> {
    let policy: Policy = serde_json::from_str(text).ok()?;
    let deliveries = match policy.deliveries {
        Number::Number(number) => number,
        Number::Text(text) => text.parse().ok()?,
    };
    let physical = policy.target.rsplit(':').next().unwrap_or(&policy.target);
    let to = name_of(physical).unwrap_or(policy.target);
    Some(Redrive::new(to, deliveries))
}

/// Formats a policy whose target has this ARN.
pub(crate) fn write(target: String, deliveries: u32) -> String {
    let policy = Policy { target, deliveries: Number::Number(deliveries) };
    // Cannot fail: it has a string and a number.
    serde_json::to_string(&policy).unwrap_or_default()
}

/// Returns the name of the dead-letter queue of `source`. That of a FIFO queue is a FIFO queue:
/// `orders.fifo` has `orders-dlq.fifo`.
pub(crate) fn dead_letter_name(source: &QueueName) -> Result<QueueName> {
    match source.as_str().strip_suffix(FIFO_SUFFIX) {
        Some(stem) => format!("{stem}-dlq{FIFO_SUFFIX}").parse(),
        None => format!("{source}-dlq").parse(),
    }
}

pub(crate) fn is_dead_letter_name(name: &QueueName) -> bool {
    name.as_str().strip_suffix(FIFO_SUFFIX).unwrap_or(name.as_str()).ends_with("-dlq")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARN: &str = "arn:aws:sqs:eu-west-1:123456789012:shop-jobs-dlq";

    #[test]
    fn a_policy_is_parsed_as_it_was_formatted() {
        let ours = |physical: &str| physical.strip_prefix("shop-").map(str::to_owned);
        let text = write(ARN.to_owned(), 5);
        assert_eq!(read(&text, ours), Some(Redrive::new("jobs-dlq", 5)));
        assert_eq!(read(&text, |_| None), Some(Redrive::new(ARN, 5)));
    }

    #[test]
    fn a_count_may_be_a_string_and_anything_else_is_no_policy() {
        let text = format!(r#"{{"deadLetterTargetArn":"{ARN}","maxReceiveCount":"7"}}"#);
        assert_eq!(read(&text, |_| None), Some(Redrive::new(ARN, 7)));
        for text in ["", "{}", "nonsense"] {
            assert_eq!(read(text, |_| None), None);
        }
    }
}
