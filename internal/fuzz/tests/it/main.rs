//! Integration tests, a module for each subject, in one binary.

mod known_defects;
mod targets;
