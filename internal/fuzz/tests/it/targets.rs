//! Every target, on its corpus and on mutations of it.
//!
//! `PILLARBOX_INPUTS` sets the number of inputs, `PILLARBOX_SEED` the seed.

use pillarbox_fuzz::driver::{Campaign, corpus};
use pillarbox_fuzz::{target, targets};

/// Runs a target.
fn holds(name: &str) {
    let target = target(name).expect("there is such a target");
    let corpus = corpus(name).expect("there is a corpus");
    assert!(!corpus.is_empty(), "{name} has inputs to begin with");
    let done = Campaign::of(&target).run(&target, &corpus);
    let done = done.unwrap_or_else(|failure| panic!("{failure}"));
    println!("{name}: {} inputs, {} outcomes", done.tried, done.outcomes);
    assert!(done.outcomes > 1, "{name} says what came out, and not always the same: {done:?}");
}

macro_rules! targets {
    ($($test:ident = $name:literal,)*) => {
        $(#[test] fn $test() { holds($name); })*

        #[test]
        fn every_target_has_a_test() {
            let tested = [$($name),*];
            let all: Vec<_> = targets::ALL.iter().map(|target| target.name).collect();
            assert_eq!(all, tested);
        }
    };
}

targets! {
    receipt = "receipt",
    name = "name",
    url = "url",
    body = "body",
    redis_data = "redis-data",
    redis_reply = "redis-reply",
    redis_server = "redis-server",
    sqlite_row = "sqlite-row",
    sqs_message = "sqs-message",
    dead_letter = "dead-letter",
    loop_message = "loop-message",
    load = "load",
    send = "send",
    arguments = "arguments",
    condition = "condition",
    dataset = "dataset",
    eval_run = "eval-run",
}
