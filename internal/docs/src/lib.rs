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
    Backends "docs/backends.md"
    DeadLetters "docs/dead-letters.md"
    Deployment "docs/deployment.md"
    Evals "docs/evals.md"
    Faq "docs/faq.md"
    Guarantees "docs/guarantees.md"
    Loops "docs/loops.md"
    Migration "docs/migration.md"
    Operations "docs/operations.md"
    Patterns "docs/patterns.md"
    Redis "docs/redis.md"
    Sqlite "docs/sqlite.md"
    Sqs "docs/sqs.md"
    Testing "docs/testing.md"
    Tutorial "docs/tutorial.md"
    Workers "docs/workers.md"
    WritingABackend "docs/writing-a-backend.md"
}
