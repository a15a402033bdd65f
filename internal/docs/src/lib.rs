//! Every program in the README and in `docs/` compiles, and runs where it can: each page is the
//! documentation of a type here, which `cargo test --doc` goes through.
//!
//! What else is checked of the pages is in `tests/`: links, blocks that are no Rust, alert rules,
//! and what is said of backends.

/// Has the programs of pages tested. That no page is forgotten is a test of its own.
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
    Evals "docs/evals.md"
    Faq "docs/faq.md"
    Guarantees "docs/guarantees.md"
    Lifecycle "docs/lifecycle.md"
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
