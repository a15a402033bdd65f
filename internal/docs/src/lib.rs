//! Compiles every program in the README and in `docs/`, and runs those that can run: each page is the
//! documentation of a type here, which `cargo test --doc` tests.
//!
//! Other checks of the pages are in `tests/`: links, blocks in other languages, alert rules, tables.

/// Turns pages into doctests. Another test checks that the list is complete.
macro_rules! pages {
    ($($name:ident $path:literal)*) => {$(
        #[cfg(doctest)]
        #[doc = include_str!(concat!("../../../", $path))]
        pub struct $name;
    )*};
}

pages! {
    Readme "README.md"
    FacadeReadme "crates/pillarbox/README.md"
    Backends "docs/backends.md"
    Blocking "docs/blocking.md"
    Concepts "docs/concepts.md"
    DeadLetters "docs/dead-letters.md"
    Deduplication "docs/deduplication.md"
    DelayedMessages "docs/delayed-messages.md"
    Deployment "docs/deployment.md"
    Errors "docs/errors.md"
    Evals "docs/evals.md"
    Events "docs/events.md"
    FanOut "docs/fan-out.md"
    Faq "docs/faq.md"
    Guarantees "docs/guarantees.md"
    IdempotentHandlers "docs/idempotent-handlers.md"
    Loops "docs/loops.md"
    Migration "docs/migration.md"
    Operations "docs/operations.md"
    Redis "docs/redis.md"
    RequestReply "docs/request-reply.md"
    Sqlite "docs/sqlite.md"
    Sqs "docs/sqs.md"
    Testing "docs/testing.md"
    TransactionalEnqueue "docs/transactional-enqueue.md"
    Tutorial "docs/tutorial.md"
    Urls "docs/urls.md"
    Workers "docs/workers.md"
    WritingABackend "docs/writing-a-backend.md"
}
