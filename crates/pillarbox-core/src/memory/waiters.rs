//! Receivers that wait for a message.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Timestamp;

/// Waiters in order of arrival, and the number of messages reserved for those already woken.
///
/// Three rules keep wake-ups exact:
///
/// * A waiter is woken only while more messages are ready than are reserved. One message wakes one waiter; a hundred
///   messages wake ten waiters that receive up to ten each.
/// * Only the first waiter holds a timer. When it leaves, or when a message becomes due earlier than its timer, the
///   first waiter is notified to check again.
/// * A woken waiter that does not come within [`RESERVATION_TIME`], because its task is busy, loses its reservation:
///   from then on, ready messages go to the first waiter.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    waiting: BTreeMap<WaiterId, Waiter>,
    /// Number of messages that the woken waiters may take.
    reserved: usize,
    /// Time at which the oldest reservation expires. `None`: there is none.
    expires_at: Option<Timestamp>,
    last_id: u64,
    /// The waiter that holds the timer, and the time that it is set to.
    timer: Option<(WaiterId, Option<Timestamp>)>,
}

/// Time that a woken waiter has to take its messages.
pub(super) const RESERVATION_TIME: Duration = Duration::from_millis(10);

/// State of the queue that waiters depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueueStatus {
    pub(super) now: Timestamp,
    /// Number of ready messages.
    pub(super) ready: usize,
    /// Time at which the next lease expires or delay elapses.
    pub(super) next_due: Option<Timestamp>,
}

/// Identifies a waiter, in order of arrival. A waiter that was woken in vain keeps it, and so its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WaiterId(u64);

#[derive(Debug)]
struct Waiter {
    /// Maximum number of messages that the waiter takes.
    max: usize,
    signal: Arc<Notify>,
}

impl Waiters {
    /// Returns the id of a new waiter, after all others.
    pub(super) fn next_id(&mut self) -> WaiterId {
        self.last_id += 1;
        WaiterId(self.last_id)
    }

    /// Adds a waiter, or adds it again at its earlier position. Returns the time until which the waiter may sleep;
    /// only the first waiter has one.
    pub(super) fn join(
        &mut self,
        id: WaiterId,
        max: usize,
        signal: &Arc<Notify>,
        status: QueueStatus,
    ) -> Option<Timestamp> {
        self.waiting.entry(id).or_insert_with(|| Waiter { max, signal: signal.clone() });
        let is_first = self.waiting.first_key_value().is_some_and(|(first, _)| *first == id);
        if !is_first {
            return None;
        }
        let until = self.next_check(status);
        self.timer = Some((id, until));
        until
    }

    /// Returns whether a waiter may take ready messages: it was woken, or more messages are ready than are
    /// reserved, or the reservations have expired.
    pub(super) fn may_receive(&self, id: WaiterId, status: QueueStatus) -> bool {
        !self.waiting.contains_key(&id)
            || status.ready > self.reserved
            || self.expires_at.is_some_and(|expires_at| expires_at <= status.now)
    }

    /// Removes a waiter, or gives back its reservation if it was woken.
    pub(super) fn leave(&mut self, id: WaiterId, max: usize) {
        if self.waiting.remove(&id).is_none() {
            self.reserved -= max;
            if self.reserved == 0 {
                self.expires_at = None;
            }
        }
    }

    /// Wakes the waiters that ready messages are for, and notifies the first waiter if its timer is too late. Must be
    /// called after every change to the queue.
    pub(super) fn wake(&mut self, status: QueueStatus) {
        while status.ready > self.reserved
            && let Some((_, waiter)) = self.waiting.pop_first()
        {
            self.reserved += waiter.max;
            self.expires_at.get_or_insert(status.now + RESERVATION_TIME);
            waiter.signal.notify_one();
        }
        let Some(until) = self.next_check(status) else { return };
        let Some((first, waiter)) = self.waiting.first_key_value() else { return };
        let has_timer = self.timer.is_some_and(|(holder, set_to)| {
            holder == *first && set_to.is_some_and(|set_to| set_to <= until)
        });
        if !has_timer {
            self.timer = Some((*first, Some(until)));
            waiter.signal.notify_one();
        }
    }

    /// Returns the time at which the first waiter must check again without being woken.
    fn next_check(&self, status: QueueStatus) -> Option<Timestamp> {
        let expires_at = self.expires_at.filter(|_| status.ready > 0);
        expires_at.into_iter().chain(status.next_due).min()
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.reserved == 0
    }
}
