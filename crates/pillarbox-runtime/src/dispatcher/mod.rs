//! Who gets which message, and what becomes of it: the dispatcher, pure.
//!
//! It takes events and the time and gives actions; the [driver](crate::driver) does what they say and
//! comes back with what happened. Nothing here waits, locks or knows a queue.
//!
//! ```text
//!            Fetched                Assign                  Finished
//!  queue ─────────────► dispatcher ────────► inbox, worker ──────────► dispatcher
//!        ◄───────────── (holds it) ◄──────── Settled, Buried
//!          Fetch, Settle, Bury
//! ```
//!
//! A delivery is *held* from the moment it is received until it is settled or lost. Meanwhile its lease
//! is extended, wherever it is: in an inbox, in a handler, or on its way to the dead letters.
//!
//! Invariants:
//!
//! 1. No more is asked for than there are free places: what is held in inboxes and handlers, and what
//!    fetches under way may bring, never exceeds the places of the workers.
//! 2. A delivery is in one place: in the backlog, with one worker, being buried, or being settled.
//! 3. After a stop nothing is fetched, nothing is begun, and everything that is held is settled or given
//!    up; then, and only then, it is over.

mod burying;
mod fetching;
mod held;
mod lane;
mod leases;
mod memory;
mod protocol;
mod seats;
mod settling;
mod source;
mod spared;
mod staff;
mod suspects;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::clock::later;
use pillarbox_core::{Delivery, Error, MessageId, RawMessage, Receipt, Result};
use tokio::time::Instant;

pub(crate) use self::held::Key;
use self::held::{Held, Intent, LeaseState, Place, Table};
pub(crate) use self::protocol::{
    Action, Assigned, Burial, Event, FailureNote, Finished, LaneKind, LetterNote, Note, Then,
    Verdict, What,
};
use self::seats::Seat;
use self::source::Source;
pub(crate) use self::source::SourceSettings;
use self::spared::Spared;
pub(crate) use self::suspects::{Quarantine, STAGGER};
use self::suspects::{Suspects, Suspicion};
use crate::control::{Stop, Wanted};
use crate::outcome::FailureKind;

/// After handlers were cancelled, how long they have to let go of their messages.
const GRACE: Duration = Duration::from_secs(1);
/// And how long what is done has to be settled after that.
const LAST_SETTLES: Duration = Duration::from_secs(10);

/// What does not change while the workers run.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// How many deliveries may wait in the inbox of a worker.
    pub(crate) inbox: usize,
    /// How many finished deliveries may wait to be settled before no more are fetched.
    pub(crate) results: usize,
    /// How long to wait after a call of the queue has failed; doubles with each failure.
    pub(crate) backoff: Duration,
}

/// Where the whole is on its way from start to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Running,
    Paused,
    /// Finishing what is running, until then.
    Draining {
        deadline: Instant,
    },
    /// Handlers were cancelled; until then they may let go of their messages.
    Cancelling {
        deadline: Instant,
    },
    Finished,
}

impl Mode {
    const fn is_ending(self) -> bool {
        matches!(self, Self::Draining { .. } | Self::Cancelling { .. } | Self::Finished)
    }
}

/// The state machine. See the [module](self).
#[derive(Debug)]
pub(crate) struct Dispatcher {
    settings: Settings,
    sources: Vec<Source>,
    seats: Vec<Seat>,
    /// Where the search for a worker begins, so that all get their share.
    next_seat: usize,
    held: Table,
    spared: Spared,
    suspects: Suspects,
    /// Deliveries that no inbox has room for.
    backlog: VecDeque<Key>,
    /// Deliveries that a limit refused, and when they are tried again.
    resting: VecDeque<(Instant, Key)>,
    /// Dead letters that could not be stored, and when that is tried again.
    burials: Vec<(Instant, Key)>,
    /// How far the sources have come that were asked lately: where one begins that had nothing.
    level: f64,
    /// Which source is first to be looked at.
    next_source: usize,
    /// Handlers had their time to let go; what is left is being settled.
    is_last_call: bool,
    mode: Mode,
    wanted: Wanted,
    /// Every source is closed: the reason to stop.
    closed: Option<Error>,
    actions: VecDeque<Action>,
    notes: Vec<Note>,
}

impl Dispatcher {
    pub(crate) fn new(
        settings: Settings,
        sources: impl IntoIterator<Item = SourceSettings>,
        wanted: Wanted,
        now: Instant,
    ) -> Self {
        let mut dispatcher = Self {
            settings,
            sources: sources.into_iter().map(Source::new).collect(),
            seats: Vec::new(),
            next_seat: 0,
            held: Table::default(),
            spared: Spared::default(),
            suspects: Suspects::default(),
            backlog: VecDeque::new(),
            resting: VecDeque::new(),
            burials: Vec::new(),
            level: 0.0,
            next_source: 0,
            is_last_call: false,
            mode: Mode::Running,
            wanted,
            closed: None,
            actions: VecDeque::new(),
            notes: Vec::new(),
        };
        dispatcher.change(wanted, now);
        dispatcher
    }

    /// What is to be done next. After [`plan`](Self::plan), until there is no more.
    pub(crate) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// What is worth telling, since the last call.
    pub(crate) fn take_notes(&mut self) -> std::vec::Drain<'_, Note> {
        self.notes.drain(..)
    }

    pub(crate) const fn mode(&self) -> Mode {
        self.mode
    }

    /// How many deliveries are held.
    pub(crate) fn in_flight(&self) -> usize {
        self.held.len()
    }

    /// How many workers there shall be.
    pub(crate) fn active_workers(&self) -> usize {
        self.seats.iter().filter(|seat| seat.is_active()).count()
    }

    /// The message that an entry of the call under way is about, and the worker that had it at last.
    pub(crate) fn settling(
        &self,
        source: usize,
        lane: LaneKind,
        entry: usize,
    ) -> Option<(MessageId, Option<usize>)> {
        let held = self.held.get(self.sources[source].under_way(lane, entry)?)?;
        Some((held.message.id, held.worker))
    }

    /// Why all came to an end by itself, if it did.
    pub(crate) fn closed(&self) -> Option<&Error> {
        self.closed.as_ref()
    }

    /// Takes in what happened. Any number of events may be taken in before [`plan`](Self::plan).
    pub(crate) fn handle(&mut self, event: Event, now: Instant) {
        match event {
            Event::Fetched { source, answer } => self.fetched(source, answer, now),
            Event::Starting { key } => self.record_start(key),
            Event::Finished(finished) => self.finished(finished, now),
            Event::Returned { key, worker } => self.returned(key, worker),
            Event::Skipped { worker } => self.leave(worker),
            Event::Settled { source, lane, answer } => self.settled(source, lane, answer, now),
            Event::Buried { key, answer } => self.buried(key, answer, now),
            Event::Wanted(wanted) => self.change(wanted, now),
            Event::WorkerEnded { worker } => self.worker_ended(worker),
        }
    }

    /// Decides what is to be done now: what time has brought, what can be settled, what can be fetched.
    pub(crate) fn plan(&mut self, now: Instant) {
        self.pass(now);
        self.renew(now);
        self.bury_again(now);
        self.run_suspects(now);
        self.seat_rested(now);
        self.seat_backlog();
        self.balance();
        for source in 0..self.sources.len() {
            for lane in [LaneKind::Settles, LaneKind::Extensions] {
                self.call(source, lane, now);
            }
        }
        self.fetch(now);
        if self.mode.is_ending() && self.mode != Mode::Finished && self.held.is_empty() {
            self.mode = Mode::Finished;
            self.actions.push_back(Action::Finish);
        }
    }

    /// When [`plan`](Self::plan) has something to do even if nothing happens.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let ending = match self.mode {
            Mode::Draining { deadline } | Mode::Cancelling { deadline } => Some(deadline),
            _ => None,
        };
        let is_running = self.mode == Mode::Running;
        let of_sources = self.sources.iter().filter_map(|source| source.next_wake(is_running));
        let rested = self.resting.front().map(|(until, _)| *until);
        let burials = self.burials.iter().map(|(at, _)| *at);
        let suspects = self.suspects.next_wake();
        of_sources.chain(ending).chain(rested).chain(burials).chain(suspects).min()
    }

    fn fetched(&mut self, source: usize, answer: Result<Vec<Delivery>>, now: Instant) {
        let deliveries = match answer {
            Ok(deliveries) => deliveries,
            Err(error) => {
                self.sources[source].fetch_failed(&error, self.settings.backoff, now);
                if self.sources.iter().all(Source::is_closed) && !self.mode.is_ending() {
                    self.closed = Some(error);
                    self.stop(Stop::Graceful, now);
                }
                return;
            }
        };
        self.sources[source].fetched(deliveries.len(), self.settings.backoff, now);
        self.sources[source].tidy_renewals(&self.held);
        if !deliveries.is_empty() {
            self.catch_up(source);
        }
        for Delivery { message, receipt, .. } in deliveries {
            self.hold(source, message, receipt, now);
        }
    }

    fn hold(&mut self, source: usize, message: RawMessage, receipt: Receipt, now: Instant) {
        let visibility = self.sources[source].settings.visibility;
        let suspicion = self.suspicion(source, &message);
        let attempt = self.attempt(source, &message);
        let key = self.held.insert(Held::new(source, message, receipt, attempt, now + visibility));
        self.sources[source].renew_later(key, now, now + visibility);
        self.note(key, What::Received);
        match suspicion {
            _ if self.mode.is_ending() => self.settle(key, Intent::Return),
            Suspicion::Proven { route } => self.quarantine(key, route),
            Suspicion::Suspect => self.suspect(key),
            // A suspect is to be alone.
            Suspicion::None if self.suspects.is_any() => self.settle(key, Intent::Return),
            Suspicion::None => self.seat(key),
        }
    }

    /// Number of this attempt at a message: its deliveries without those that were none.
    fn attempt(&self, source: usize, message: &RawMessage) -> u32 {
        if self.sources[source].settings.quarantine.is_exact {
            return message.attempt();
        }
        let uncounted = self.spared.of((source, message.id));
        message.delivery_count.saturating_sub(uncounted).max(1)
    }

    /// Keeps a delivery until then, and tries it again.
    fn rest(&mut self, key: Key, until: Instant) {
        self.note(key, What::Shed);
        let Some(held) = self.held.get_mut(key) else { return };
        held.place = Place::Backlog;
        if held.is_lost() || self.mode.is_ending() {
            self.give_back(key);
        } else {
            // All rest for as long, so that the first to come is the first to go.
            self.resting.push_back((until, key));
        }
    }

    fn seat_rested(&mut self, now: Instant) {
        while self.resting.front().is_some_and(|(until, _)| *until <= now || self.mode.is_ending())
        {
            let Some((_, key)) = self.resting.pop_front() else { return };
            if self.held.get(key).is_some_and(Held::is_waiting) {
                self.give_back(key);
            }
        }
    }

    fn seat_backlog(&mut self) {
        for _ in 0..self.backlog.len() {
            let Some(key) = self.backlog.pop_front() else { return };
            if self.held.get(key).is_some_and(Held::is_waiting) {
                self.seat(key);
            }
        }
    }

    fn finished(&mut self, finished: Finished, now: Instant) {
        let Finished { key, worker, verdict, took, .. } = finished;
        self.leave(worker);
        // It may have been given up: the drain was over before its handler was.
        let Some(held) = self.held.get(key) else { return };
        let (lease_state, is_acknowledged) = (held.lease_state, held.lease.is_acknowledged());
        if !matches!(verdict, Verdict::Shed { .. } | Verdict::TooLate) {
            self.clear(key);
        }
        if let Verdict::Failed { failure, then } = &verdict {
            self.note(key, What::Failed { failure: failure.clone(), then: then.clone() });
        }
        let took = took.unwrap_or_default();
        match lease_state {
            LeaseState::Acknowledged => self.acknowledged(key, took),
            // Whatever it says, the message may be gone; and a dead letter of a message that is done must not be.
            LeaseState::Running if is_acknowledged && verdict != Verdict::Settled => {
                // There may be no place for it here by the time of the answer.
                let verdict = match verdict {
                    Verdict::Shed { .. } => Verdict::Released { delay: Duration::ZERO },
                    other => other,
                };
                self.settle(key, Intent::Confirm { took, verdict: Box::new(verdict) });
            }
            _ => self.conclude(key, verdict, took, now),
        }
    }

    /// Does what the end of a handler asks for.
    fn conclude(&mut self, key: Key, verdict: Verdict, took: Duration, now: Instant) {
        match verdict {
            Verdict::Done => self.settle(key, Intent::Succeed { took }),
            Verdict::Settled => self.acknowledged(key, took),
            Verdict::Released { delay } => self.settle(key, Intent::Release { delay }),
            Verdict::Shed { delay } => self.rest(key, later(now, delay)),
            Verdict::TooLate => self.never_run(key),
            Verdict::Failed { failure, then } => match then {
                Then::Retry { delay } => self.settle(key, Intent::Retry { delay }),
                Then::Park { delay } => {
                    let is_spared = failure.kind == FailureKind::UnknownKind;
                    self.settle(key, Intent::Park { delay, is_spared });
                }
                Then::Release => self.settle(key, Intent::Release { delay: Duration::ZERO }),
                Then::Bury { route } => self.bury(key, failure, route),
            },
        }
    }

    /// A delivery that was not begun is given to another worker, or goes back to its queue if this is the
    /// end.
    fn give_back(&mut self, key: Key) {
        let is_ending = self.mode.is_ending();
        let Some(held) = self.held.get_mut(key) else { return };
        if held.is_lost() {
            self.held.remove(key);
        } else if is_ending {
            self.settle(key, Intent::Return);
        } else {
            // The one before is still in an inbox, where it says that it was taken back.
            held.lease = Arc::default();
            self.seat(key);
        }
    }

    fn note(&mut self, key: Key, what: What) {
        if let Some(held) = self.held.get(key) {
            let (source, worker) = (held.source, held.worker);
            let (id, attempt) = (held.message.id, held.attempt);
            let delivery_count = held.message.delivery_count;
            self.notes.push(Note { source, worker, id, attempt, delivery_count, what });
        }
    }
}
