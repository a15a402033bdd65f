//! Integration tests, a module for each subject, in one binary.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

mod browser;
mod processes;
mod runs;
