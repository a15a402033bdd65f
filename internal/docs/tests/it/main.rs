//! Integration tests, a module for each subject, in one binary.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

mod architecture;
mod backends;
mod common;
mod console;
mod deployment;
mod errors;
mod failing;
mod features;
mod figures;
mod operations;
mod pages;
mod security;
mod seeds;
mod shelf;
mod stability;
mod urls;
mod words;
