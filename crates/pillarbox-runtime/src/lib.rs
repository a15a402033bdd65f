//! The worker runtime of Pillarbox: serves mailboxes with any number of workers.
//!
//! ```text
//!  producer handle ─┐                      ┌─ worker 0 ─┐
//!  queue ───────────┼─► dispatcher ────────┼─ worker 1 ─┼─► results ─► dispatcher ─► settle, send
//!  control ─────────┘   (owns queue I/O)   └─ worker n ─┘
//! ```
//!
//! | to find | look at |
//! |---|---|
//! | getting started, and every option | [`Worker`] |
//! | ways to run a worker | [`Runnable`] |
//! | arguments and return values of handlers | [`Handler`], [`FromRequest`], [`Outcome`] |
//! | several kinds of message in a mailbox | [`Router`] |
//! | pausing, stopping, statistics, events | [`Control`], [`StatsSnapshot`], [`Event`] |
//! | hooks for every failure and dead letter | [`Worker::on_failure`], [`Worker::on_dead_letter`] |
//! | long work | [`Heartbeat`] |
//! | middleware | [`Worker::layer`], [`ServiceRequest`], [`build_service_stack`] |
//! | retries | [`Backoff`] |
//! | dead letters: policy, content, handling | [`DlqPolicy`], [`DeadLetter`], [`DlqConsumer`], [`Dlq`] |
//! | several loops in a process: signals, health, a watchdog | [`LoopGroup`], [`Task`] |
//! | requests and replies | [`MainLoop`], [`Client`] |
//! | traces | [`TraceContext`], [`Tracer`] |
//!
//! Metrics go to the recorder that the program installs for the `metrics` crate, logs and spans to its `tracing`
//! subscriber.

mod attempt_limit;
mod attributes;
mod backoff;
mod batch_results;
mod control;
mod dead_letters;
mod delivery_event;
mod desired_state;
mod dispatcher;
mod dlq_consumer;
mod driver;
mod event;
mod group;
mod handler;
mod hooks;
mod lease;
mod log;
mod loops;
mod mailbox_service;
mod metrics;
mod outcome;
mod producer;
mod pulse;
mod request;
mod retry_policy;
mod router;
mod runnable;
mod running;
mod signals;
mod stack;
mod stats;
mod trace;
mod until_empty;
mod verdict;
mod worker;
mod worker_task;

/// The version of Tower that layers are written for.
pub use tower;

pub use backoff::Backoff;
pub use control::Control;
pub use dead_letters::{
    Classify, DeadLetter, DeadLetterCodec, DeadLetterInfo, Decide, Decision, Dlq, DlqHealth,
    DlqLimits, DlqPolicy, DlqStatus, ErrorClass, ErrorGroup, FailedDelivery, Pass, PassFailed,
    PassReport, PeekedDeadLetter, Summary,
};
pub use dlq_consumer::{DlqAction, DlqConsumer, IntoDlqAction};
pub use event::{About, Event, Events};
#[cfg(feature = "health")]
pub use group::PrometheusHandle;
pub use group::{
    DeadLettersHealth, DlqDepth, GroupControl, GroupError, GroupReport, GroupStatus, LoopGroup,
    LoopHealth, LoopReport, LoopState, Readiness, Restart, RunningGroup, StopSignal, Stuck, Task,
};
pub use handler::{FromRequest, Handler, HandlerService, Parts};
pub use hooks::FailedAttempt;
pub use lease::Heartbeat;
pub use loops::{
    Adapter, AdapterService, Budget, CallError, Client, Extensions, IntoOutput, LoopCall, MainLoop,
    MainLoopRequest, MainLoopResult, NotRegistered, RemoteError, RemoteErrorKind, Resources, Run,
    Submission, Swept, sweep_replies,
};
pub use outcome::{BoxError, Failure, FailureKind, IntoOutcome, Outcome};
pub use producer::ProducerHandle;
pub use request::{Attempt, Context, Metadata, Received, Replies, ServiceRequest, WorkerId};
pub use router::Router;
pub use runnable::{LoopFailure, Runnable};
pub use running::Running;
pub use stack::{ServiceStack, ServiceStackOptions, build_service_stack};
pub use stats::{Latency, MailboxStats, State, StatsSnapshot, WorkerStats};
pub use trace::{InvalidTraceparent, Kinship, TraceContext, Tracer};
/// The id of requests.
pub use uuid::Uuid;
pub use worker::{NoHandler, Ready, ReadyWorker, Worker};
