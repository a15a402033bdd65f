//! Nothing but tests: programs that must not compile, and what the compiler says of them.
//!
//! They are a crate of their own because all that it depends on is compiled once more for them.
