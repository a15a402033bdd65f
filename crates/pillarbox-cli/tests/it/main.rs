//! Integration tests, a module for each subject, in one binary.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

mod commands;
mod common;
mod dlq;
mod documentation;
mod eval;
mod exits;
mod moving;
mod processes;
mod redis;
mod sqs;
mod terminal;
