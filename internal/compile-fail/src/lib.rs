//! Tests only: programs that must not compile, and the errors that the compiler reports for them.
//!
//! They are a separate crate because all of its dependencies are compiled again for them.
