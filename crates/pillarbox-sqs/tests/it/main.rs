//! Integration tests, a module for each subject, in one binary.

mod cancelling;
mod common;
mod conformance;
mod errors;
mod interoperation;
mod queues;
mod requests;
mod runtime;
