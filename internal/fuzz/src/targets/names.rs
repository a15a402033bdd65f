//! Short texts: names of queues and of their keys, times, cursors and traces.

use pillarbox_core::{QueueName, Timestamp};
use pillarbox_runtime::trace::TraceContext;

use super::{accepted, refused, text};
use crate::driver::record_outcome;

pub(super) const WORDS: &[&str] = &[
    "orders",
    "-dlq",
    ".fifo",
    "{queue:",
    "}:data",
    "}:pending",
    "#1",
    "#",
    "#01",
    "#999",
    "#1000",
    "tenant:a/b",
    "2026-11-15T10:30:00Z",
    "1677-09-21",
    "2262-04-11T23:47:16.854775807Z",
    "+01:00",
    ".123456789",
    "T",
    "ready.",
    "timer.",
    "0 r 0 ",
    "0 i 1763200000123456 ",
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "{\"deadLetterTargetArn\":\"",
    "\",\"maxReceiveCount\":",
    "\"5\"}",
    "arn:aws:sqs:eu-west-1:1:q",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
];

pub(super) fn run(input: &[u8]) {
    let Some(text) = text(input) else { return };
    name(text);
    time(text);
    cursors(text);
    if let Ok(trace) = text.parse::<TraceContext>() {
        record_outcome("trace");
        assert_eq!(trace.to_string().parse::<TraceContext>().expect("its own text"), trace);
        assert_eq!((trace.trace_id().len(), trace.span_id().len()), (32, 16));
        let _ = trace.is_sampled();
    }
    if let Some(policy) = pillarbox_sqs::fuzzing::policy(text) {
        record_outcome("redrive");
        let written =
            pillarbox_sqs::fuzzing::policy_text(policy.to.clone().into(), policy.max_deliveries);
        assert_eq!(pillarbox_sqs::fuzzing::policy(&written), Some(policy));
    }
}

fn name(text: &str) {
    match QueueName::new(text) {
        Ok(name) => {
            assert_eq!(name.as_str(), text);
            assert!((1..=QueueName::MAX_LEN).contains(&text.len()));
            let dead = accepted(pillarbox_sqs::fuzzing::dead_letter_name(&name));
            if let Some((dead, is_recognized)) = dead {
                record_outcome("dead letters");
                assert!(dead.as_str().len() <= QueueName::MAX_LEN && is_recognized);
                assert_ne!(dead, name);
            }
            let key = format!("{{queue:{name}}}:data");
            let owner =
                pillarbox_redis::fuzzing::owner(&key).map(|(name, partition, _)| (name, partition));
            assert_eq!(owner, Some((name, 0)), "the key of a queue is known");
        }
        Err(error) => {
            refused(&error);
            let length = error.to_string().len();
            assert!(length < 2_000, "a name that is a whole document is shortened");
        }
    }
    if let Some((_, partition, key)) = pillarbox_redis::fuzzing::owner(text) {
        record_outcome(if partition == 0 { "key" } else { "key of a partition" });
        assert_eq!(key, text, "no two keys are the same of a queue");
    }
}

fn time(text: &str) {
    if let Some(at) = accepted(text.parse::<Timestamp>()) {
        record_outcome("time");
        assert_eq!(at.to_string().parse::<Timestamp>().expect("its own text"), at);
        let (before, after) = (at.since(Timestamp::MIN), Timestamp::MAX.since(at));
        assert!(before + after > std::time::Duration::ZERO);
    }
}

fn cursors(text: &str) {
    match pillarbox_redis::fuzzing::cursor(text) {
        Ok(cursor) => {
            record_outcome("cursor of Redis");
            assert_eq!(pillarbox_redis::fuzzing::cursor(&cursor).expect("its own text"), cursor);
        }
        // The error contains the text.
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Some(cursor) = pillarbox_sqlite::fuzzing::cursor(text) {
        record_outcome("cursor of SQLite");
        assert_eq!(pillarbox_sqlite::fuzzing::cursor(&cursor), Some(cursor));
    }
}
