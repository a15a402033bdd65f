//! Settling: acknowledgements and nacks on their way to the queue, and what comes back.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Error, Result, SettleAction};
use tokio::time::Instant;

use super::held::{Intent, LeaseState, Place, Start};
use super::lane::Entry;
use super::{Action, Dispatcher, Key, LaneKind, What};
use crate::answers::each;

impl Dispatcher {
    pub(super) fn settle(&mut self, key: Key, intent: Intent) {
        let Some(held) = self.held.get_mut(key) else { return };
        let action = match &intent {
            Intent::Succeed { .. } | Intent::Bury { .. } => SettleAction::Acknowledge,
            Intent::Return => SettleAction::Release { delay: Duration::ZERO },
            Intent::Release { delay } | Intent::Park { delay, is_spared: true } => {
                SettleAction::Release { delay: *delay }
            }
            Intent::Retry { delay } | Intent::Park { delay, .. } => {
                SettleAction::Nack { delay: *delay }
            }
            Intent::Confirm { .. } => {
                SettleAction::Extend { timeout: self.sources[held.source].settings.visibility }
            }
        };
        match held.lease_state {
            // Somebody else has it; there is nothing to give back.
            LeaseState::Lost if action != SettleAction::Acknowledge => {
                return self.held.remove(key);
            }
            LeaseState::Acknowledged => return self.acknowledged(key, Duration::ZERO),
            LeaseState::Running | LeaseState::Lost => {}
        }
        held.place = Place::Settling { intent };
        let (source, entry) = (held.source, Entry::new(key, action, held.deadline));
        self.sources[source].lane(LaneKind::Settles).push(entry);
    }

    /// Makes a call of what a lane has to say, unless one is under way or it is too early.
    pub(super) fn call(&mut self, source: usize, kind: LaneKind, now: Instant) {
        let max = self.sources[source].settings.max_batch;
        loop {
            let due = self.sources[source].lane(kind).take(max, now);
            if due.is_empty() {
                return;
            }
            let mut entries = Vec::with_capacity(due.len());
            let mut batch = Vec::with_capacity(due.len());
            for entry in due {
                // It is of no use any more: settled meanwhile, or lost.
                let Some(held) = self.held.get(entry.key) else { continue };
                if kind == LaneKind::Extensions && held.is_settling() {
                    continue;
                }
                if kind == LaneKind::Settles && entry.is_ambiguous && now >= held.deadline {
                    self.give_up(entry.key);
                    continue;
                }
                batch.push((held.receipt.clone(), entry.action));
                entries.push(entry);
            }
            if !batch.is_empty() {
                self.sources[source].lane(kind).call(entries, now);
                self.actions.push_back(Action::Settle { source, lane: kind, batch });
                return;
            }
        }
    }

    pub(super) fn settled(
        &mut self,
        source: usize,
        kind: LaneKind,
        answer: Result<Vec<Result<()>>>,
        now: Instant,
    ) {
        let (entries, called_at) = self.sources[source].lane(kind).answered();
        let mut failed = Vec::new();
        let answers = each(answer, entries.len(), None, "settle");
        for (entry, answer) in entries.into_iter().zip(answers) {
            match answer {
                Ok(()) => self.accepted(entry, kind, called_at, now),
                Err(Error::ReceiptHandleExpired { .. }) => self.refused(entry, kind, now),
                Err(error) if error.is_transient() => failed.push(entry.again()),
                Err(_) if kind == LaneKind::Settles => self.give_up(entry.key),
                // What cannot be recorded as started is not run.
                Err(_) if self.is_recording(&entry) => self.lose(entry.key),
                // It cannot be extended, and is held until its lease ends.
                Err(_) => self.sources[source].renew_later(entry.key, now, entry.deadline),
            }
        }
        let (backoff, lease) = (self.settings.backoff, self.sources[source].settings.visibility);
        self.sources[source].lane(kind).failed(failed, backoff, lease, now);
    }

    fn accepted(&mut self, entry: Entry, kind: LaneKind, called_at: Instant, now: Instant) {
        if let Some(timeout) = entry.action.timeout() {
            let Some(held) = self.held.get_mut(entry.key) else { return };
            // From when it was asked for: the backend cannot have counted from earlier.
            held.deadline = called_at + timeout;
            let is_start = matches!(entry.action, SettleAction::Start { .. });
            if is_start && held.start == Start::Recording {
                // It was no renewal: that of the lease is yet to come.
                held.start = Start::Recorded;
                held.lease.start();
                return;
            }
            if is_start {
                held.start = Start::Recorded;
            }
            let (source, deadline) = (held.source, held.deadline);
            self.sources[source].renew_later(entry.key, now, deadline);
            self.note(entry.key, What::Extended);
            if kind == LaneKind::Settles {
                self.rolled_back(entry.key, now);
            }
            return;
        }
        let Some(held) = self.held.get(entry.key) else { return };
        let Place::Settling { intent } = &held.place else { return };
        let (of, is_exact) = (
            (held.source, held.message.id),
            self.sources[held.source].settings.quarantine.is_exact,
        );
        let what = match intent.clone() {
            Intent::Succeed { took } => What::Succeeded { took },
            Intent::Retry { delay } => What::Retried { delay },
            Intent::Release { delay } => What::Released { delay },
            Intent::Return => What::Returned,
            Intent::Park { delay, .. } => What::Parked { delay },
            Intent::Bury { failure, route, letter } => {
                What::DeadLettered { failure, route, letter }
            }
            Intent::Confirm { .. } => return,
        };
        // Where the backend does not count them, this process does.
        if !is_exact && matches!(entry.action, SettleAction::Release { .. }) {
            self.spared.add(of);
        }
        self.note(entry.key, what);
        self.held.remove(entry.key);
    }

    /// The receipt is worth nothing any more.
    fn refused(&mut self, entry: Entry, kind: LaneKind, now: Instant) {
        let is_extension = entry.action.timeout().is_some();
        let Some(held) = self.held.get_mut(entry.key) else { return };
        if kind == LaneKind::Extensions && held.is_settling() {
            // It was settled while the extension was under way.
            return;
        }
        if entry.is_ambiguous && !is_extension {
            // An earlier call failed after it had done its work.
            let now = held.deadline;
            self.accepted(entry, kind, now, now);
            return;
        }
        // Its lease cannot have ended by itself: the transaction of its handler was committed.
        if held.lease.is_acknowledged() && now < held.deadline {
            match held.place {
                Place::Settling { intent: Intent::Confirm { took, .. } } => {
                    self.acknowledged(entry.key, took);
                }
                Place::Settling { .. } => self.acknowledged(entry.key, Duration::ZERO),
                _ => held.lease_state = LeaseState::Acknowledged,
            }
            return;
        }
        self.lose(entry.key);
        if kind == LaneKind::Settles {
            self.held.remove(entry.key);
        }
    }

    /// Its handler has acknowledged it, in a transaction that is committed.
    pub(super) fn acknowledged(&mut self, key: Key, took: Duration) {
        self.note(key, What::Succeeded { took });
        self.held.remove(key);
    }

    /// The delivery is still there, so the transaction in which its handler acknowledged it was rolled back: what
    /// the handler said counts.
    fn rolled_back(&mut self, key: Key, now: Instant) {
        let Some(held) = self.held.get_mut(key) else { return };
        let Place::Settling { intent: Intent::Confirm { took, verdict } } = &held.place else {
            return;
        };
        let (took, verdict) = (*took, (**verdict).clone());
        // Nothing speaks of the acknowledgement any more.
        held.lease = Arc::default();
        self.conclude(key, verdict, took, now);
    }

    fn is_recording(&self, entry: &Entry) -> bool {
        let is_start = matches!(entry.action, SettleAction::Start { .. });
        is_start && self.held.get(entry.key).is_some_and(|held| held.start == Start::Recording)
    }

    /// A delivery was lost before its handler ran. The queue may have it as started, and its lease may run on
    /// there: then it is told otherwise.
    pub(super) fn never_run(&mut self, key: Key) {
        let Some(held) = self.held.get_mut(key) else { return };
        if held.start != Start::Recording {
            self.held.remove(key);
            return;
        }
        // Refused if the lease has expired there, too; and not repeated for longer than a lease.
        let source = held.source;
        held.place = Place::Settling { intent: Intent::Return };
        let deadline = held.deadline + self.sources[source].settings.visibility;
        held.deadline = deadline;
        let action = SettleAction::Release { delay: Duration::ZERO };
        let entry = Entry::new(key, action, deadline);
        self.sources[source].lane(LaneKind::Settles).push(entry);
    }

    /// The time of a delivery is over before anything was heard of what was said of it.
    pub(super) fn too_late(&mut self, key: Key) {
        if self.held.get(key).is_some_and(|held| !held.is_settling()) {
            self.lose(key);
        }
    }

    /// It is not known whether it was settled, and will not be known.
    pub(super) fn give_up(&mut self, key: Key) {
        self.note(key, What::Unconfirmed);
        self.held.remove(key);
    }
}
