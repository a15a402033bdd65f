//! The line of receivers that wait for a message.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::clock::Timestamp;

/// Who waits, in order of arrival, and how many messages those already woken will take.
///
/// Two rules keep wake-ups exact:
///
/// * A waiter is woken only while there are more ready messages than the woken ones have room
///   for. One message wakes one waiter; a hundred messages wake ten waiters with room for ten.
/// * Only the first in line watches the clock. When it leaves, or when something is to become
///   ready earlier than it knows, the first in line is told to look again.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    line: BTreeMap<Ticket, Waiter>,
    /// Room of the waiters that were woken and have not come back yet.
    promised: usize,
    next_ticket: u64,
    /// What the first in line sleeps until. `None`: nobody watches the clock.
    armed: Option<(Ticket, Option<Timestamp>)>,
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
    /// sleep at most: until `next_due` if it is the first in line, else without end.
    pub(super) fn join(
        &mut self,
        ticket: Ticket,
        room: usize,
        signal: &Arc<Notify>,
        next_due: Option<Timestamp>,
    ) -> Option<Timestamp> {
        self.line.entry(ticket).or_insert_with(|| Waiter { room, signal: signal.clone() });
        let first = self.line.first_key_value().is_some_and(|(first, _)| *first == ticket);
        if first {
            self.armed = Some((ticket, next_due));
            next_due
        } else {
            None
        }
    }

    /// Leaves the line, or gives back what was promised to this waiter when it was woken.
    pub(super) fn leave(&mut self, ticket: Ticket, room: usize) {
        if self.line.remove(&ticket).is_none() {
            self.promised -= room;
        }
    }

    /// Wakes as many waiters as `ready` messages call for, and sees to it that the first in line
    /// sleeps no longer than until `next_due`. To be called after every change to the queue.
    pub(super) fn balance(&mut self, ready: usize, next_due: Option<Timestamp>) {
        while ready > self.promised
            && let Some((_, waiter)) = self.line.pop_first()
        {
            self.promised += waiter.room;
            waiter.signal.notify_one();
        }
        let Some(due) = next_due else { return };
        let Some((first, waiter)) = self.line.first_key_value() else {
            return;
        };
        let watched = self.armed.is_some_and(|(ticket, until)| {
            ticket == *first && until.is_some_and(|until| until <= due)
        });
        if !watched {
            self.armed = Some((*first, Some(due)));
            waiter.signal.notify_one();
        }
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.line.is_empty() && self.promised == 0
    }
}
