//! The line of receivers that wait for a message.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Timestamp;

/// Who waits, in order of arrival, and how many messages those already woken will take.
///
/// Three rules keep wake-ups exact:
///
/// * A waiter is woken only while there are more ready messages than the woken ones have room
///   for. One message wakes one waiter; a hundred messages wake ten waiters with room for ten.
/// * Only the first in line watches the clock. When it leaves, or when something is to become
///   ready earlier than it knows, the first in line is told to look again.
/// * A waiter that was woken and does not come (its task is busy with something else) loses its
///   claim after [`GRACE`]: from then on, what is ready goes to the first in line.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    line: BTreeMap<Ticket, Waiter>,
    /// Room of the waiters that were woken and have not come back yet.
    promised: usize,
    /// When the oldest of those promises is void. `None`: there are none.
    void_at: Option<Timestamp>,
    next_ticket: u64,
    /// Who watches the clock, and what it sleeps until.
    armed: Option<(Ticket, Option<Timestamp>)>,
}

/// How long a waiter may take from being woken to coming for its messages.
pub(super) const GRACE: Duration = Duration::from_millis(10);

/// What a waiter must know of the queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Situation {
    pub(super) now: Timestamp,
    /// How many messages are ready.
    pub(super) ready: usize,
    /// When the next one becomes ready by time alone.
    pub(super) next_due: Option<Timestamp>,
}

/// A place in line. A waiter that was woken for nothing keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

#[derive(Debug)]
struct Waiter {
    room: usize,
    signal: Arc<Notify>,
}

impl Waiters {
    /// Makes a place at the end of the line.
    pub(super) fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    /// Joins the line, or joins it again in the old place. Says until when this waiter must
    /// sleep at most: without end, unless it is the first in line.
    pub(super) fn join(
        &mut self,
        ticket: Ticket,
        room: usize,
        signal: &Arc<Notify>,
        situation: Situation,
    ) -> Option<Timestamp> {
        self.line.entry(ticket).or_insert_with(|| Waiter { room, signal: signal.clone() });
        let first = self.line.first_key_value().is_some_and(|(first, _)| *first == ticket);
        if !first {
            return None;
        }
        let until = self.look_again_at(situation);
        self.armed = Some((ticket, until));
        until
    }

    /// Whether a waiter may take what is ready: it was woken for it, or there is more than is
    /// promised, or the promises are void.
    pub(super) fn may_take(&self, ticket: Ticket, situation: Situation) -> bool {
        !self.line.contains_key(&ticket)
            || situation.ready > self.promised
            || self.void_at.is_some_and(|void_at| void_at <= situation.now)
    }

    /// Leaves the line, or gives back what was promised to this waiter when it was woken.
    pub(super) fn leave(&mut self, ticket: Ticket, room: usize) {
        if self.line.remove(&ticket).is_none() {
            self.promised -= room;
            if self.promised == 0 {
                self.void_at = None;
            }
        }
    }

    /// Wakes as many waiters as the situation calls for, and sees to it that the first in line
    /// sleeps no longer than it may. To be called after every change to the queue.
    pub(super) fn balance(&mut self, situation: Situation) {
        while situation.ready > self.promised
            && let Some((_, waiter)) = self.line.pop_first()
        {
            self.promised += waiter.room;
            self.void_at.get_or_insert(situation.now + GRACE);
            waiter.signal.notify_one();
        }
        let Some(until) = self.look_again_at(situation) else { return };
        let Some((first, waiter)) = self.line.first_key_value() else { return };
        let watched = self.armed.is_some_and(|(ticket, armed)| {
            ticket == *first && armed.is_some_and(|armed| armed <= until)
        });
        if !watched {
            self.armed = Some((*first, Some(until)));
            waiter.signal.notify_one();
        }
    }

    /// When the first in line must look again, though nobody wakes it.
    fn look_again_at(&self, situation: Situation) -> Option<Timestamp> {
        let void_at = self.void_at.filter(|_| situation.ready > 0);
        void_at.into_iter().chain(situation.next_due).min()
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.line.is_empty() && self.promised == 0
    }
}
