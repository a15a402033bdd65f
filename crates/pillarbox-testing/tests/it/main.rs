//! Integration tests, a module for each subject, in one binary.

mod broken;
mod ledger_exhaustive;
mod memory_conformance;
mod memory_property;
mod memory_stress;
mod slow_conformance;
mod verification_table;
