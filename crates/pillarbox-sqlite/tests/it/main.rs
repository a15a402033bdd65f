//! Integration tests, a module for each subject, in one binary.

mod common;
mod conformance;
mod crash;
mod faults;
mod lost_files;
mod processes;
mod property;
mod soak;
mod stress;
mod transactions;
