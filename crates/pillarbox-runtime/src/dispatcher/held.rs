//! The deliveries that are held.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{RawMessage, Receipt};
use slab::Slab;
use tokio::time::Instant;

use super::{FailureNote, LetterNote, Verdict};
use crate::lease::Lease;

/// A delivery that is held. Keys are used again; the generation tells one use from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    index: usize,
    generation: u32,
}

/// What a delivery that is being settled will have come to.
#[derive(Debug, Clone)]
pub(super) enum Intent {
    Succeed {
        took: Duration,
    },
    Retry {
        delay: Duration,
    },
    Release {
        delay: Duration,
    },
    Return,
    /// `is_spared`: it was no attempt, for nobody here knows what to do with it.
    Park {
        delay: Duration,
        is_spared: bool,
    },
    Bury {
        failure: FailureNote,
        route: usize,
        letter: LetterNote,
    },
    /// Its handler has acknowledged it in a transaction and did not say that this is committed. It is asked for
    /// by an extension, and if the delivery is still there, the verdict counts.
    Confirm {
        took: Duration,
        verdict: Box<Verdict>,
    },
}

/// What is known of the lease of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaseState {
    Running,
    Lost,
    /// The transaction in which the handler has acknowledged the delivery is committed.
    Acknowledged,
}

#[derive(Debug)]
pub(super) struct Held {
    generation: u32,
    pub(super) source: usize,
    pub(super) receipt: Receipt,
    pub(super) message: Arc<RawMessage>,
    pub(super) lease: Arc<Lease>,
    pub(super) place: Place,
    /// Number of this attempt at the work.
    pub(super) attempt: u32,
    pub(super) start: Start,
    /// When the lease ends, as far as is known here.
    pub(super) deadline: Instant,
    pub(super) worker: Option<usize>,
    pub(super) lease_state: LeaseState,
}

/// Whether the queue knows that a handler has started on a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// It need not know before the lease is extended.
    Unrecorded,
    /// It must know before the handler runs.
    ToRecord,
    /// A worker waits for the answer.
    Recording,
    Recorded,
}

#[derive(Debug)]
pub(super) enum Place {
    Backlog,
    Seated {
        worker: usize,
    },
    /// `tries`: how often it could not be stored.
    Burying {
        failure: FailureNote,
        route: usize,
        tries: u32,
    },
    Settling {
        intent: Intent,
    },
}

impl Held {
    pub(super) fn new(
        source: usize,
        message: RawMessage,
        receipt: Receipt,
        attempt: u32,
        deadline: Instant,
    ) -> Self {
        // An earlier delivery was released or expired: if this one expires, it must be known whether a handler
        // had started on it.
        let is_to_record = message.unsettled > 0 || message.uncounted > 0;
        Self {
            generation: 0,
            source,
            receipt,
            message: Arc::new(message),
            lease: Arc::default(),
            place: Place::Backlog,
            attempt,
            start: if is_to_record { Start::ToRecord } else { Start::Unrecorded },
            deadline,
            worker: None,
            lease_state: LeaseState::Running,
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lease_state == LeaseState::Lost
    }

    pub(super) const fn is_settling(&self) -> bool {
        matches!(self.place, Place::Settling { .. })
    }

    pub(super) const fn is_seated(&self) -> bool {
        matches!(self.place, Place::Seated { .. })
    }

    pub(super) fn is_seated_at(&self, worker: usize) -> bool {
        matches!(self.place, Place::Seated { worker: of } if of == worker)
    }

    pub(super) const fn is_waiting(&self) -> bool {
        matches!(self.place, Place::Backlog)
    }
}

/// All that are held, by key.
#[derive(Debug, Default)]
pub(super) struct Table {
    held: Slab<Held>,
    generation: u32,
}

impl Table {
    pub(super) fn insert(&mut self, held: Held) -> Key {
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let index = self.held.insert(Held { generation, ..held });
        Key { index, generation }
    }

    pub(super) fn get(&self, key: Key) -> Option<&Held> {
        self.held.get(key.index).filter(|held| held.generation == key.generation)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Held> {
        self.held.get_mut(key.index).filter(|held| held.generation == key.generation)
    }

    pub(super) fn remove(&mut self, key: Key) {
        if self.get(key).is_some() {
            self.held.remove(key.index);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &Held)> {
        self.held.iter().map(|(index, held)| (Key { index, generation: held.generation }, held))
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}
