//! Readers and their properties.
//!
//! For all of them: no input panics; a refused input has an error text; an accepted input is within its limits,
//! and stays the same when written and read again.

mod arguments;
mod bodies;
mod evals;
mod lines;
mod names;
mod receipts;
mod redis;
mod sqlite;
mod sqs;
mod stored_messages;
mod urls;
mod values;

use crate::Target;
use crate::driver::record_outcome;

/// All targets.
pub const ALL: &[Target] = &[
    Target { name: "receipt", run: receipts::run, words: receipts::WORDS, inputs: 100_000 },
    Target { name: "name", run: names::run, words: names::WORDS, inputs: 100_000 },
    Target { name: "url", run: urls::run, words: urls::WORDS, inputs: 20_000 },
    Target { name: "body", run: bodies::run, words: bodies::WORDS, inputs: 40_000 },
    Target { name: "redis-data", run: redis::data, words: redis::DATA, inputs: 60_000 },
    Target { name: "redis-reply", run: redis::reply, words: redis::REPLIES, inputs: 60_000 },
    Target { name: "redis-server", run: redis::server, words: redis::SERVER, inputs: 60_000 },
    Target { name: "sqlite-row", run: sqlite::run, words: sqlite::WORDS, inputs: 40_000 },
    Target { name: "sqs-message", run: sqs::run, words: sqs::WORDS, inputs: 20_000 },
    Target {
        name: "dead-letter",
        run: stored_messages::dead_letter,
        words: stored_messages::DEAD_LETTER,
        inputs: 20_000,
    },
    Target {
        name: "loop-message",
        run: stored_messages::message,
        words: stored_messages::MESSAGE,
        inputs: 20_000,
    },
    Target { name: "load", run: lines::load, words: lines::LOAD, inputs: 20_000 },
    Target { name: "send", run: lines::send, words: lines::SEND, inputs: 3_000 },
    Target { name: "arguments", run: arguments::run, words: arguments::WORDS, inputs: 3_000 },
    Target {
        name: "condition",
        run: arguments::condition,
        words: arguments::CONDITIONS,
        inputs: 60_000,
    },
    Target { name: "dataset", run: evals::dataset, words: evals::DATASET, inputs: 20_000 },
    Target { name: "eval-run", run: evals::run, words: evals::RUN, inputs: 2_000 },
];

/// Password in the inputs, which must never be shown.
const SECRET: &str = "hunter2";

/// Returns the input, if it is UTF-8.
fn text(input: &[u8]) -> Option<&str> {
    std::str::from_utf8(input).ok()
}

/// Returns what was accepted, and records the error of what was refused.
fn accepted<T, E: ToString>(result: Result<T, E>) -> Option<T> {
    result.inspect_err(refused).ok()
}

/// Records an error, whose text must be neither empty nor too long: it may be about a whole document.
fn refused(error: &impl ToString) {
    let text = error.to_string();
    assert!(!text.trim().is_empty(), "an error without a text");
    record_outcome(&text);
}
