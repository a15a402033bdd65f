//! What the dispatcher and the driver say to each other.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Delivery, MessageId, RawMessage, Receipt, Result, SettleAction};
use uuid::Uuid;

use super::Key;
use crate::control::Wanted;
use crate::lease::Lease;
use crate::outcome::FailureKind;

/// What happened.
#[derive(Debug)]
pub(crate) enum Event {
    /// A fetch was answered.
    Fetched { source: usize, answer: Result<Vec<Delivery>> },
    /// A worker has taken up a delivery, and waits until the queue knows.
    Starting { key: Key },
    /// A worker is through with a delivery.
    Finished(Finished),
    /// A delivery could not be put into the inbox of a worker, or was declined there.
    Returned { key: Key, worker: usize },
    /// A worker came upon a delivery that had been taken back.
    Skipped { worker: usize },
    /// A call that settles was answered.
    Settled { source: usize, lane: LaneKind, answer: Result<Vec<Result<()>>> },
    /// A dead letter was stored, or not.
    Buried { key: Key, answer: Result<LetterNote> },
    /// Somebody wants the workers to do something else.
    Wanted(Wanted),
    /// The task of a worker has ended.
    WorkerEnded { worker: usize },
}

/// What became of a delivery in a worker.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) key: Key,
    pub(crate) source: usize,
    pub(crate) worker: usize,
    pub(crate) verdict: Verdict,
    /// How long its handler took, if it was begun.
    pub(crate) took: Option<Duration>,
}

/// What is to become of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Done,
    /// Its handler has acknowledged it in a transaction of its own.
    Settled,
    Failed {
        failure: FailureNote,
        then: Then,
    },
    Released {
        delay: Duration,
    },
    /// A limit refused it: it stays here, and is tried again after a while.
    Shed {
        delay: Duration,
    },
    /// Its lease was lost before it was begun: there is nothing to settle.
    TooLate,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Then {
    Retry {
        delay: Duration,
    },
    Park {
        delay: Duration,
    },
    /// It becomes a dead letter, in that of their places.
    Bury {
        route: usize,
    },
    /// It is given back at once: its handler was cancelled.
    Release,
}

/// What is kept of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailureNote {
    pub(crate) kind: FailureKind,
    pub(crate) type_name: &'static str,
    pub(crate) text: Arc<str>,
    /// What it was caused by.
    pub(crate) causes: Arc<[Box<str>]>,
}

/// What is told of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LetterNote {
    /// The id that its message was first sent under.
    pub(crate) message_id: MessageId,
    /// The request that it is about.
    pub(crate) request_id: Option<Uuid>,
}

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Action {
    /// Receive up to `max` messages, waiting if there are none.
    Fetch { source: usize, max: usize, waits: bool },
    /// Give up a fetch that is under way.
    CancelFetch { source: usize },
    /// Put a delivery into the inbox of a worker.
    Assign { worker: usize, assigned: Assigned },
    /// Settle, and answer by [`Event::Settled`].
    Settle { source: usize, lane: LaneKind, batch: Vec<(Receipt, SettleAction)> },
    /// Store a dead letter, and answer by [`Event::Buried`].
    Bury(Burial),
    /// Start a worker.
    Hire { worker: usize },
    /// Close the inbox of a worker, which then ends.
    Retire { worker: usize },
    /// All is settled or given up.
    Finish,
}

/// A dead letter that is to be stored.
#[derive(Debug)]
pub(crate) struct Burial {
    pub(crate) key: Key,
    pub(crate) source: usize,
    pub(crate) worker: Option<usize>,
    pub(crate) message: Arc<RawMessage>,
    /// Number of the attempt that failed.
    pub(crate) attempt: u32,
    pub(crate) failure: FailureNote,
    /// Which of the places for dead letters it goes to.
    pub(crate) route: usize,
}

/// Calls that end leases, and calls that extend them, which must not wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaneKind {
    Settles,
    Extensions,
}

/// A delivery on its way to a worker.
#[derive(Debug)]
pub(crate) struct Assigned {
    pub(crate) key: Key,
    pub(crate) source: usize,
    pub(crate) message: Arc<RawMessage>,
    pub(crate) receipt: Receipt,
    pub(crate) lease: Arc<Lease>,
    /// Number of this attempt at the work.
    pub(crate) attempt: u32,
    /// The queue must know that a handler starts on it before it does.
    pub(crate) is_to_record: bool,
}

/// Something worth telling.
#[derive(Debug, Clone)]
pub(crate) struct Note {
    pub(crate) source: usize,
    pub(crate) worker: Option<usize>,
    pub(crate) id: MessageId,
    pub(crate) attempt: u32,
    pub(crate) delivery_count: u32,
    pub(crate) what: What,
}

#[derive(Debug, Clone)]
pub(crate) enum What {
    Received,
    Shed,
    Succeeded {
        took: Duration,
    },
    Failed {
        failure: FailureNote,
        then: Then,
    },
    Retried {
        delay: Duration,
    },
    Released {
        delay: Duration,
    },
    Returned,
    Parked {
        delay: Duration,
    },
    DeadLettered {
        failure: FailureNote,
        route: usize,
        letter: LetterNote,
    },
    /// Somebody else has the message by now.
    LeaseLost,
    /// It is not known whether the message was settled: it comes back when its lease ends, if it was not.
    Unconfirmed,
    Extended,
}
