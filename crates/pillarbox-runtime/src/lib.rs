//! The worker runtime of Pillarbox: serves mailboxes with any number of workers.
//!
//! ```text
//!  producer handle ─┐                      ┌─ worker 0 ─┐
//!  queue ───────────┼─► dispatcher ────────┼─ worker 1 ─┼─► reports ─► dispatcher ─► settle, send
//!  control ─────────┘   (owns queue I/O)   └─ worker n ─┘
//! ```
//!
//! | to find | look at |
//! |---|---|
//! | getting started, and every option | [`Worker`] |
//! | ways to run a worker | [`Runnable`] |
//! | arguments and return values of handlers | [`handler`], [`Outcome`] |
//! | several kinds of message in a mailbox | [`Router`] |
//! | pausing, stopping, statistics, events | [`Control`], [`stats`], [`Event`] |
//! | hooks for every failure and dead letter | [`Worker::on_failure`], [`Worker::on_dead_letter`] |
//! | long work | [`Heartbeat`](handler::Heartbeat) |
//! | middleware | [`Worker::layer`], [`service`] |
//! | retries | [`Backoff`] |
//! | dead letters: policy, content, handling | [`dead_letters`], [`DlqConsumer`] |
//! | several loops in a process: signals, health, a watchdog | [`group`] |
//! | requests and replies | [`loops`] |
//! | traces | [`trace`] |
//!
//! Metrics go to the recorder that the program installs for the `metrics` crate, logs and spans to its `tracing`
//! subscriber.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod attempt_limit;
mod attributes;
mod backoff;
mod batch_results;
mod call_timeout;
mod control;
pub mod dead_letters;
mod delivery_event;
mod desired_state;
mod dispatcher;
mod dlq_consumer;
mod driver;
mod event;
pub mod group;
pub mod handler;
mod hooks;
mod lease;
mod log;
pub mod loops;
mod mailbox_service;
mod metrics;
mod outcome;
mod producer;
mod pulse;
mod report_queue;
mod request;
mod retry_policy;
mod router;
mod runnable;
mod running;
pub mod service;
mod signals;
pub mod stats;
pub mod trace;
mod until_empty;
mod verdict;
mod worker;
mod worker_task;

/// The version of Tower that layers are written for.
pub use tower;

pub use backoff::Backoff;
pub use control::Control;
pub use dlq_consumer::{DlqAction, DlqConsumer, IntoDlqAction};
pub use event::{About, Event, Events};
pub use hooks::FailedAttempt;
pub use outcome::{BoxError, Failure, FailureKind, Outcome};
pub use producer::ProducerHandle;
pub use router::Router;
pub use runnable::{LoopFailure, Runnable};
pub use running::Running;
pub use worker::{NoHandler, Ready, ReadyWorker, Worker};
