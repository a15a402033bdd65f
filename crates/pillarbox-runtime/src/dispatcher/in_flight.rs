//! The deliveries in flight.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{RawMessage, Receipt};
use slab::Slab;
use tokio::time::Instant;

use crate::delivery_event::DeadLetterIds;
use crate::lease::Lease;
use crate::outcome::FailureDetails;
use crate::verdict::Verdict;

/// Identifies a delivery in flight. Indexes are reused; the generation distinguishes their uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    index: usize,
    generation: u32,
}

/// A delivery in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    generation: u32,
    pub(super) source: usize,
    pub(super) receipt: Receipt,
    pub(super) message: Arc<RawMessage>,
    pub(super) lease: Arc<Lease>,
    pub(super) stage: Stage,
    pub(super) attempt: u32,
    /// Place in the order of the deliveries of all sources: the lowest is assigned first.
    pub(super) turn: f64,
    pub(super) received_at: Instant,
    pub(super) start: StartRecord,
    /// When the lease expires, as far as is known here.
    pub(super) deadline: Instant,
    pub(super) worker: Option<usize>,
    pub(super) lease_state: LeaseState,
}

/// Where a delivery is between its receive and its settlement.
#[derive(Debug)]
pub(super) enum Stage {
    /// It waits for a worker.
    Unassigned,
    /// It is in the channel of a worker, or its handler runs.
    Assigned { worker: usize },
    /// It becomes a dead letter. `failures` is the number of tries of the current step that failed.
    DeadLettering { failure: FailureDetails, route: usize, failures: u32, step: DeadLetterStep },
    /// It is in the batcher, or in a settle call.
    Settling { intent: Intent },
}

/// The steps of dead-lettering, in their order. The message is acknowledged after the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeadLetterStep {
    Storing,
    Replying(DeadLetterIds),
    Reporting(DeadLetterIds),
}

/// What a delivery that is being settled will have come to.
#[derive(Debug, Clone)]
pub(super) enum Intent {
    /// The message is done.
    Succeed { took: Duration },
    /// Its handler failed, and it is delivered again.
    Retry { delay: Duration },
    /// Its handler gave it back or was cancelled, or it has to wait for an isolated message.
    Release { delay: Duration },
    /// It goes back at once: no handler has run it, or the pool stops.
    Return,
    /// It stays in its queue for a while. `is_uncounted`: the delivery does not count as an attempt, since no handler
    /// here knows the message.
    Park { delay: Duration, is_uncounted: bool },
    /// Its dead letter is stored.
    DeadLetter { failure: FailureDetails, route: usize, ids: DeadLetterIds },
    /// The handler acknowledged the delivery in a transaction and did not report a commit. An extension asks the
    /// queue: if the delivery is still there, `verdict` counts.
    Confirm { took: Duration, verdict: Box<Verdict> },
}

/// What is known of the lease of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaseState {
    Running,
    Lost,
    /// The transaction in which the handler acknowledged the delivery is committed.
    Acknowledged,
}

/// Whether the queue has recorded that a handler started on a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartRecord {
    /// It is recorded with the first extension of the lease.
    Optional,
    /// It must be recorded before the handler runs.
    Required,
    /// A worker waits for the call that records it.
    Pending,
    Recorded,
}

impl InFlight {
    pub(super) fn new(
        source: usize,
        message: RawMessage,
        receipt: Receipt,
        attempt: u32,
        turn: f64,
        received_at: Instant,
        deadline: Instant,
    ) -> Self {
        // An earlier delivery was released or expired. If this one expires as well, it must be known whether a
        // handler had started on it.
        let must_record = message.unsettled > 0 || message.uncounted > 0;
        Self {
            generation: 0,
            source,
            receipt,
            message: Arc::new(message),
            lease: Arc::default(),
            stage: Stage::Unassigned,
            attempt,
            turn,
            received_at,
            start: if must_record { StartRecord::Required } else { StartRecord::Optional },
            deadline,
            worker: None,
            lease_state: LeaseState::Running,
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lease_state == LeaseState::Lost
    }

    pub(super) const fn is_settling(&self) -> bool {
        matches!(self.stage, Stage::Settling { .. })
    }

    pub(super) const fn is_assigned(&self) -> bool {
        matches!(self.stage, Stage::Assigned { .. })
    }

    pub(super) fn is_assigned_to(&self, worker: usize) -> bool {
        matches!(self.stage, Stage::Assigned { worker: of } if of == worker)
    }

    pub(super) const fn is_unassigned(&self) -> bool {
        matches!(self.stage, Stage::Unassigned)
    }

    /// Returns whether no worker has begun it. A delivery that a limit refused was begun.
    pub(super) fn is_waiting(&self) -> bool {
        (self.is_unassigned() || self.is_assigned()) && !self.lease.has_begun()
    }
}

/// All deliveries in flight, by key.
#[derive(Debug, Default)]
pub(super) struct InFlightTable {
    deliveries: Slab<InFlight>,
    generation: u32,
}

impl InFlightTable {
    pub(super) fn insert(&mut self, delivery: InFlight) -> Key {
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let index = self.deliveries.insert(InFlight { generation, ..delivery });
        Key { index, generation }
    }

    pub(super) fn get(&self, key: Key) -> Option<&InFlight> {
        self.deliveries.get(key.index).filter(|delivery| delivery.generation == key.generation)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut InFlight> {
        self.deliveries.get_mut(key.index).filter(|delivery| delivery.generation == key.generation)
    }

    pub(super) fn remove(&mut self, key: Key) {
        if self.get(key).is_some() {
            self.deliveries.remove(key.index);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &InFlight)> {
        self.deliveries
            .iter()
            .map(|(index, delivery)| (Key { index, generation: delivery.generation }, delivery))
    }

    pub(super) fn len(&self) -> usize {
        self.deliveries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.deliveries.is_empty()
    }
}
