//! Integration tests, a module for each subject, in one binary.

mod client;
mod common;
mod control;
mod dead_letter_crashes;
mod dead_letter_processes;
mod dead_letters;
mod group;
mod handlers;
mod health;
mod leases;
mod loop_processes;
mod loops;
mod observability;
mod process;
mod simulation;
