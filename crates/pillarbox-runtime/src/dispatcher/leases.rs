//! Extending the leases of deliveries in flight, and losing them.

use pillarbox_core::SettleAction;
use tokio::time::Instant;

use super::Dispatcher;
use super::in_flight::{Key, LeaseState, StartRecord};
use super::protocol::SettleKind;
use super::settle_batcher::SettleEntry;
use crate::delivery_event::DeliveryChange;

impl Dispatcher {
    /// Extends the leases that are due, and loses those that expired.
    pub(super) fn renew(&mut self, now: Instant) {
        let mut has_returned = false;
        for source in 0..self.sources.len() {
            for key in self.sources[source].batcher(SettleKind::Extension).take_expired(now) {
                if self.in_flight.get(key).is_some_and(|delivery| !delivery.is_settling()) {
                    self.lose(key);
                }
            }
            let while_beating = self.sources[source].settings.extend_while_beating;
            while let Some(key) = self.sources[source].due_renewal(now) {
                let Some(delivery) = self.in_flight.get(key) else { continue };
                if delivery.lease_state != LeaseState::Running || delivery.is_settling() {
                    continue;
                }
                if delivery.is_waiting() && !std::mem::replace(&mut has_returned, true) {
                    self.return_surplus();
                }
                let Some(delivery) = self.in_flight.get(key).filter(|it| !it.is_settling()) else {
                    continue;
                };
                let third = self.sources[source].third();
                let is_running = delivery.is_assigned() && delivery.lease.has_begun();
                if now < delivery.received_at + third {
                    // It was only looked at because it might still wait.
                    let at = (delivery.received_at + third).min(delivery.deadline);
                    self.sources[source].look_at(key, at);
                } else if now >= delivery.deadline {
                    self.lose(key);
                } else if while_beating && is_running && !delivery.lease.take_beat() {
                    let deadline = delivery.deadline;
                    self.sources[source].renew_later(key, now, deadline);
                } else {
                    let timeout = self.sources[source].settings.visibility;
                    // The extension of a running handler's lease also records its start, at no cost.
                    let action = if is_running && delivery.start != StartRecord::Pending {
                        SettleAction::Start { timeout }
                    } else {
                        SettleAction::Extend { timeout }
                    };
                    let entry = SettleEntry::new(key, action, delivery.deadline);
                    self.sources[source].batcher(SettleKind::Extension).push(entry);
                }
            }
        }
    }

    /// Records in the queue that a handler starts on a delivery. The worker waits for it.
    pub(super) fn record_start(&mut self, key: Key) {
        let Some(delivery) = self.in_flight.get_mut(key) else { return };
        if delivery.is_lost() || delivery.is_settling() {
            return;
        }
        delivery.start = StartRecord::Pending;
        let (source, deadline) = (delivery.source, delivery.deadline);
        let timeout = self.sources[source].settings.visibility;
        let entry = SettleEntry::new(key, SettleAction::Start { timeout }, deadline);
        self.sources[source].batcher(SettleKind::Extension).push(entry);
    }

    pub(super) fn lose(&mut self, key: Key) {
        let Some(source) = self.in_flight.get(key).map(|delivery| delivery.source) else { return };
        let cancels = self.sources[source].settings.cancel_when_lost;
        let Some(delivery) = self.in_flight.get_mut(key) else { return };
        // The handler's transaction decides; its result is known when the handler ends.
        let is_in_transaction = delivery.is_assigned() && delivery.lease.is_acknowledged();
        if is_in_transaction || delivery.lease_state != LeaseState::Running {
            return;
        }
        delivery.lease_state = LeaseState::Lost;
        delivery.lease.lose();
        if cancels {
            delivery.lease.cancel();
        }
        let is_unassigned = delivery.is_unassigned();
        self.report(key, DeliveryChange::LeaseLost);
        if is_unassigned {
            self.unassigned.retain(|other| *other != key);
            self.in_flight.remove(key);
        }
    }
}
