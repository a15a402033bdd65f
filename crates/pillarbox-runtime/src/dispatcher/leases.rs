//! Keeping the leases of what is held, and losing them.

use pillarbox_core::SettleAction;
use tokio::time::Instant;

use super::held::{LeaseState, Start};
use super::lane::Entry;
use super::{Dispatcher, Key, LaneKind, What};

impl Dispatcher {
    /// Has the leases extended whose time has come.
    pub(super) fn renew(&mut self, now: Instant) {
        for source in 0..self.sources.len() {
            for key in self.sources[source].lane(LaneKind::Extensions).take_expired(now) {
                self.too_late(key);
            }
            let while_beating = self.sources[source].settings.while_beating;
            while let Some(key) = self.sources[source].due_renewal(now) {
                let Some(held) = self.held.get(key) else { continue };
                if held.lease_state != LeaseState::Running || held.is_settling() {
                    continue;
                }
                let is_running = held.is_seated() && held.lease.has_begun();
                if now >= held.deadline {
                    self.lose(key);
                } else if while_beating && is_running && !held.lease.take_beat() {
                    let deadline = held.deadline;
                    self.sources[source].renew_later(key, now, deadline);
                } else {
                    let timeout = self.sources[source].settings.visibility;
                    // That a handler has started on it is told in passing.
                    let action = if is_running && held.start != Start::Recording {
                        SettleAction::Start { timeout }
                    } else {
                        SettleAction::Extend { timeout }
                    };
                    let entry = Entry::new(key, action, held.deadline);
                    self.sources[source].lane(LaneKind::Extensions).push(entry);
                }
            }
        }
    }

    /// Has the queue know that a handler starts on a delivery. The worker waits for it.
    pub(super) fn record_start(&mut self, key: Key) {
        let Some(held) = self.held.get_mut(key) else { return };
        if held.is_lost() || held.is_settling() {
            return;
        }
        held.start = Start::Recording;
        let (source, deadline) = (held.source, held.deadline);
        let timeout = self.sources[source].settings.visibility;
        let entry = Entry::new(key, SettleAction::Start { timeout }, deadline);
        self.sources[source].lane(LaneKind::Extensions).push(entry);
    }

    pub(super) fn lose(&mut self, key: Key) {
        let Some(source) = self.held.get(key).map(|held| held.source) else { return };
        let cancels = self.sources[source].settings.cancel_lost;
        let Some(held) = self.held.get_mut(key) else { return };
        // A transaction decides; the outcome is known when it ends.
        let is_in_transaction = held.is_seated() && held.lease.is_acknowledged();
        if is_in_transaction || held.lease_state != LeaseState::Running {
            return;
        }
        held.lease_state = LeaseState::Lost;
        held.lease.lose();
        if cancels {
            held.lease.cancel();
        }
        let is_nowhere = held.is_waiting();
        self.note(key, What::LeaseLost);
        if is_nowhere {
            self.held.remove(key);
        }
    }
}
