//! What the driver reports to the dispatcher, and what the dispatcher asks of the driver.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Delivery, Error, RawMessage, Receipt, Result, Settle};

use super::in_flight::Key;
use crate::delivery_event::DeadLetterIds;
use crate::desired_state::DesiredState;
use crate::lease::Lease;
use crate::outcome::FailureDetails;
use crate::verdict::Verdict;

/// Something that happened.
#[derive(Debug)]
pub(crate) enum Input {
    /// A receive was answered.
    Fetched { source: usize, result: Result<Vec<Delivery>> },
    /// A worker took a delivery and waits until its start is recorded in the queue.
    Starting { key: Key },
    /// A worker is through with a delivery.
    Finished(Finished),
    /// A delivery could not be passed to a worker, or the worker declined it.
    Returned { key: Key, worker: usize },
    /// A worker came to a delivery that had been taken back.
    Skipped { worker: usize },
    /// A settle call was answered.
    Settled { source: usize, kind: SettleKind, call: u64, result: Result<Vec<Result<()>>> },
    /// A dead letter was stored, or could not be.
    DeadLetterStored { key: Key, result: Result<StoredDeadLetter> },
    /// The error reply of a dead letter was sent, or could not be.
    ErrorReplySent { key: Key, result: Result<()> },
    /// The hooks of a dead letter have run.
    DeadLetterReported { key: Key },
    /// The program wants the workers to be in another state.
    Desired(DesiredState),
    /// The task of a worker has ended.
    WorkerEnded { worker: usize },
}

/// The end of a delivery in a worker.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) key: Key,
    pub(crate) source: usize,
    pub(crate) worker: usize,
    pub(crate) verdict: Verdict,
    /// The run time of the handler, if it ran.
    pub(crate) took: Option<Duration>,
}

/// A dead letter that is in its queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoredDeadLetter {
    pub(crate) ids: DeadLetterIds,
    /// The sender of the message wants an error reply.
    pub(crate) has_reply: bool,
}

/// Something that is to be done.
#[derive(Debug)]
pub(crate) enum Action {
    /// Receive up to `max` messages; with `waits`, wait for the first.
    Fetch { source: usize, max: usize, waits: bool },
    /// Cancel the receive that is under way.
    CancelFetch { source: usize },
    /// Pass deliveries to a worker.
    Assign { worker: usize, assignments: Vec<Assignment> },
    /// Settle, and report [`Input::Settled`] with the number of the call.
    Settle { source: usize, kind: SettleKind, call: u64, batch: Vec<Settle> },
    /// Store a dead letter, and report [`Input::DeadLetterStored`].
    StoreDeadLetter(NewDeadLetter),
    /// Send the error reply of a stored dead letter, and report [`Input::ErrorReplySent`].
    SendErrorReply { key: Key },
    /// Run the hooks of a stored dead letter, and report [`Input::DeadLetterReported`]. `reply_error` is why
    /// there was no error reply.
    ReportDeadLetter { key: Key, reply_error: Option<Error> },
    /// Start a worker.
    StartWorker { worker: usize },
    /// Close the channel of a worker, which ends once it has emptied it.
    StopWorker { worker: usize },
    /// Everything is settled or abandoned.
    Finish,
}

/// A dead letter that is to be stored.
#[derive(Debug)]
pub(crate) struct NewDeadLetter {
    pub(crate) key: Key,
    pub(crate) source: usize,
    pub(crate) worker: Option<usize>,
    pub(crate) message: Arc<RawMessage>,
    /// Number of the attempt that failed.
    pub(crate) attempt: u32,
    pub(crate) failure: FailureDetails,
    /// Index of the dead-letter queue.
    pub(crate) route: usize,
}

/// Calls that end leases and calls that extend them, which must not wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SettleKind {
    Final,
    Extension,
}

/// A delivery on its way to a worker.
#[derive(Debug)]
pub(crate) struct Assignment {
    pub(crate) key: Key,
    pub(crate) source: usize,
    pub(crate) message: Arc<RawMessage>,
    pub(crate) receipt: Receipt,
    pub(crate) lease: Arc<Lease>,
    pub(crate) attempt: u32,
    /// The queue must record the start before the handler runs.
    pub(crate) must_record_start: bool,
}
