//! Integration tests, one module per subject, in one binary.

mod cluster;
mod common;
mod conformance;
mod crash;
mod failover;
mod failures;
mod invariants;
mod large_messages;
mod opening;
mod partitions;
mod property;
mod sentinel;
mod stress;
mod takeover;
mod traces;
