//! Integration tests, a module for each subject, in one binary.

mod blocking;
mod contract;
