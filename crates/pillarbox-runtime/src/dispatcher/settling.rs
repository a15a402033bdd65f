//! Settling: acknowledgements and nacks on their way to the queue, and the results.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Error, Result, Settle, SettleAction};
use tokio::time::Instant;

use super::Dispatcher;
use super::in_flight::{Intent, Key, LeaseState, Stage, StartRecord};
use super::protocol::{Action, SettleKind};
use super::settle_batcher::SettleEntry;
use crate::batch_results::per_entry;
use crate::delivery_event::DeliveryChange;

impl Dispatcher {
    pub(super) fn settle(&mut self, key: Key, intent: Intent) {
        let Some(delivery) = self.in_flight.get_mut(key) else { return };
        let action = match &intent {
            Intent::Succeed { .. } | Intent::DeadLetter { .. } => SettleAction::Acknowledge,
            Intent::Return => SettleAction::Release { delay: Duration::ZERO },
            Intent::Release { delay } | Intent::Park { delay, is_uncounted: true } => {
                SettleAction::Release { delay: *delay }
            }
            Intent::Retry { delay } | Intent::Park { delay, .. } => {
                SettleAction::Nack { delay: *delay }
            }
            Intent::Confirm { .. } => {
                SettleAction::Extend { timeout: self.sources[delivery.source].settings.visibility }
            }
        };
        match delivery.lease_state {
            // Another consumer may have the message; there is nothing to give back.
            LeaseState::Lost if action != SettleAction::Acknowledge => {
                return self.in_flight.remove(key);
            }
            LeaseState::Acknowledged => return self.acknowledged(key, Duration::ZERO),
            LeaseState::Running | LeaseState::Lost => {}
        }
        let is_returned = matches!(intent, Intent::Return);
        delivery.stage = Stage::Settling { intent };
        let (source, entry) = (delivery.source, SettleEntry::new(key, action, delivery.deadline));
        self.sources[source].batcher(SettleKind::Final).push(entry);
        if is_returned {
            self.sources[source].returned();
        }
    }

    /// Makes the settle calls that are due: one if none is under way, and one for each full batch.
    pub(super) fn call_settle(&mut self, source: usize, kind: SettleKind, now: Instant) {
        let max = self.sources[source].settings.max_batch;
        loop {
            let due = self.sources[source].batcher(kind).take(max, now);
            if due.is_empty() {
                return;
            }
            let mut entries = Vec::with_capacity(due.len());
            let mut batch = Vec::with_capacity(due.len());
            for entry in due {
                // It was settled or lost in the meantime.
                let Some(delivery) = self.in_flight.get(entry.key) else { continue };
                if kind == SettleKind::Extension && delivery.is_settling() {
                    continue;
                }
                if kind == SettleKind::Final && entry.is_ambiguous && now >= delivery.deadline {
                    self.abandon(entry.key);
                    continue;
                }
                batch.push(Settle { receipt: delivery.receipt.clone(), action: entry.action });
                entries.push(entry);
            }
            if !batch.is_empty() {
                let call = self.sources[source].batcher(kind).call_started(entries, now);
                self.actions.push_back(Action::Settle { source, kind, call, batch });
            }
        }
    }

    pub(super) fn settled(
        &mut self,
        source: usize,
        kind: SettleKind,
        call: u64,
        result: Result<Vec<Result<()>>>,
        now: Instant,
    ) {
        let (entries, called_at) = self.sources[source].batcher(kind).call_ended(call);
        let mut failed = Vec::new();
        let results = per_entry(result, entries.len(), None, "settle");
        for (entry, result) in entries.into_iter().zip(results) {
            match result {
                Ok(()) => self.accepted(entry, kind, called_at, now),
                Err(Error::ReceiptHandleExpired { .. }) => self.refused(entry, kind, now),
                Err(error) if error.is_transient() => failed.push(entry.retry()),
                Err(_) if kind == SettleKind::Final => self.abandon(entry.key),
                // A handler whose start cannot be recorded does not run.
                Err(_) if self.is_recording_start(&entry) => self.lose(entry.key),
                // It cannot be extended, and stays in flight until its lease expires.
                Err(_) => self.sources[source].renew_later(entry.key, now, entry.deadline),
            }
        }
        let visibility = self.sources[source].settings.visibility;
        self.sources[source].batcher(kind).retry_later(failed, visibility, now);
    }

    fn accepted(&mut self, entry: SettleEntry, kind: SettleKind, called_at: Instant, now: Instant) {
        if let Some(timeout) = entry.action.timeout() {
            let Some(delivery) = self.in_flight.get_mut(entry.key) else { return };
            // Counted from the call: the backend cannot have counted from an earlier time.
            delivery.deadline = called_at + timeout;
            let is_start = matches!(entry.action, SettleAction::Start { .. });
            if is_start && delivery.start == StartRecord::Pending {
                // The renewal of the lease is still scheduled.
                delivery.start = StartRecord::Recorded;
                delivery.lease.start();
                return;
            }
            if is_start {
                delivery.start = StartRecord::Recorded;
            }
            let (source, deadline) = (delivery.source, delivery.deadline);
            self.sources[source].renew_later(entry.key, now, deadline);
            self.report(entry.key, DeliveryChange::Extended);
            if kind == SettleKind::Final {
                self.rolled_back(entry.key, now);
            }
            return;
        }
        let Some(delivery) = self.in_flight.get(entry.key) else { return };
        let Stage::Settling { intent } = &delivery.stage else { return };
        let (message, is_exact) = (
            (delivery.source, delivery.message.id),
            self.sources[delivery.source].settings.quarantine.is_exact,
        );
        let change = match intent.clone() {
            Intent::Succeed { took } => DeliveryChange::Succeeded { took },
            Intent::Retry { delay } => DeliveryChange::Retried { delay },
            Intent::Release { delay } => DeliveryChange::Released { delay },
            Intent::Return => DeliveryChange::Returned,
            Intent::Park { delay, .. } => DeliveryChange::Parked { delay },
            Intent::DeadLetter { failure, route, ids } => {
                DeliveryChange::DeadLettered { failure, route, ids }
            }
            Intent::Confirm { .. } => return,
        };
        // If the backend does not count uncounted deliveries, this process does.
        if !is_exact && matches!(entry.action, SettleAction::Release { .. }) {
            self.uncounted.increment(message);
        }
        self.report(entry.key, change);
        self.in_flight.remove(entry.key);
    }

    /// Takes in that the backend refused an expired receipt.
    fn refused(&mut self, entry: SettleEntry, kind: SettleKind, now: Instant) {
        let is_extension = entry.action.timeout().is_some();
        let Some(delivery) = self.in_flight.get_mut(entry.key) else { return };
        if kind == SettleKind::Extension && delivery.is_settling() {
            // The delivery was settled while the extension was under way.
            return;
        }
        if entry.is_ambiguous && !is_extension {
            // An earlier call failed after it had done its work.
            let now = delivery.deadline;
            self.accepted(entry, kind, now, now);
            return;
        }
        // The lease cannot have expired: the transaction of the handler was committed.
        if delivery.lease.is_acknowledged() && now < delivery.deadline {
            match delivery.stage {
                Stage::Settling { intent: Intent::Confirm { took, .. } } => {
                    self.acknowledged(entry.key, took);
                }
                Stage::Settling { .. } => self.acknowledged(entry.key, Duration::ZERO),
                _ => delivery.lease_state = LeaseState::Acknowledged,
            }
            return;
        }
        self.lose(entry.key);
        if kind == SettleKind::Final {
            self.in_flight.remove(entry.key);
        }
    }

    /// Takes in that the handler acknowledged the delivery in a transaction that is committed.
    pub(super) fn acknowledged(&mut self, key: Key, took: Duration) {
        self.report(key, DeliveryChange::Succeeded { took });
        self.in_flight.remove(key);
    }

    /// Takes in that the delivery is still there: the transaction in which its handler acknowledged it was rolled
    /// back, so the verdict of the handler counts.
    fn rolled_back(&mut self, key: Key, now: Instant) {
        let Some(delivery) = self.in_flight.get_mut(key) else { return };
        let Stage::Settling { intent: Intent::Confirm { took, verdict } } = &delivery.stage else {
            return;
        };
        let (took, verdict) = (*took, (**verdict).clone());
        // A new lease carries no acknowledgement.
        delivery.lease = Arc::default();
        self.conclude(key, verdict, took, now);
    }

    fn is_recording_start(&self, entry: &SettleEntry) -> bool {
        let is_start = matches!(entry.action, SettleAction::Start { .. });
        is_start
            && self
                .in_flight
                .get(entry.key)
                .is_some_and(|delivery| delivery.start == StartRecord::Pending)
    }

    /// Ends a delivery that was lost before its handler ran. If the queue may have recorded its start, and the
    /// lease may still run there, the delivery is released.
    pub(super) fn end_not_run(&mut self, key: Key) {
        let Some(delivery) = self.in_flight.get_mut(key) else { return };
        if delivery.start != StartRecord::Pending {
            self.in_flight.remove(key);
            return;
        }
        // Refused if the lease has expired there as well; not repeated for longer than a lease.
        let source = delivery.source;
        delivery.stage = Stage::Settling { intent: Intent::Return };
        let deadline = delivery.deadline + self.sources[source].settings.visibility;
        delivery.deadline = deadline;
        let action = SettleAction::Release { delay: Duration::ZERO };
        let entry = SettleEntry::new(key, action, deadline);
        self.sources[source].batcher(SettleKind::Final).push(entry);
    }

    /// Ends a delivery without knowing whether it was settled.
    pub(super) fn abandon(&mut self, key: Key) {
        self.report(key, DeliveryChange::Unconfirmed);
        self.in_flight.remove(key);
    }
}
