//! Who gets which message, and what becomes of it: the dispatcher, pure.
//!
//! It takes events and the time and gives actions; the [driver](crate::driver) does what they say and
//! comes back with what happened. Nothing here waits, locks or knows a queue.
//!
//! ```text
//!            Fetched                Assign                  Finished, Returned
//!  queue ─────────────► dispatcher ────────► inbox, worker ────────────────────► dispatcher
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

mod lane;
mod source;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Delivery, Error, MessageId, RawMessage, Receipt, Result, SettleAction};
use slab::Slab;
use tokio::time::Instant;

use self::lane::Entry;
use self::source::Source;
pub(crate) use self::source::SourceSettings;
use crate::control::{Stop, Wanted};
use crate::lease::Lease;
use crate::outcome::FailureKind;

/// After handlers were cancelled, how long they have to let go of their messages.
const GRACE: Duration = Duration::from_secs(1);

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

/// A delivery that is held. Keys are used again; the generation tells one use from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    index: usize,
    generation: u32,
}

/// What happened.
#[derive(Debug)]
pub(crate) enum Event {
    /// A fetch was answered.
    Fetched { source: usize, answer: Result<Vec<Delivery>> },
    /// A worker is through with a delivery.
    Finished(Finished),
    /// A worker gave back a delivery that it has not begun.
    Returned { key: Key, worker: usize },
    /// A call that settles was answered.
    Settled { source: usize, lane: LaneKind, answer: Result<Vec<Result<()>>> },
    /// A dead letter was stored, or not.
    Buried { key: Key, answer: Result<()> },
    /// Somebody wants the workers to do something else.
    Wanted(Wanted),
    /// The task of a worker has ended.
    WorkerEnded { worker: usize },
}

/// What became of a delivery in a worker.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) key: Key,
    pub(crate) source: usize,
    pub(crate) worker: usize,
    pub(crate) verdict: Verdict,
    /// How long its handler took, if it was begun.
    pub(crate) took: Option<Duration>,
}

/// What is to become of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Done,
    Failed {
        failure: FailureNote,
        then: Then,
    },
    Released {
        delay: Duration,
    },
    /// Its lease was lost before it was begun: there is nothing to settle.
    TooLate,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Then {
    Retry {
        delay: Duration,
    },
    Park {
        delay: Duration,
    },
    Bury,
    /// Back at once: the handler was cancelled by a stop.
    Release,
}

/// What is kept of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailureNote {
    pub(crate) kind: FailureKind,
    pub(crate) type_name: &'static str,
    pub(crate) text: Arc<str>,
}

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Action {
    /// Receive up to `max` messages, waiting if there are none.
    Fetch { source: usize, max: usize, waits: bool },
    /// Give up a fetch that is under way.
    CancelFetch { source: usize },
    /// Put a delivery into the inbox of a worker.
    Assign { worker: usize, assigned: Assigned },
    /// Settle, and answer by [`Event::Settled`].
    Settle { source: usize, lane: LaneKind, batch: Vec<(Receipt, SettleAction)> },
    /// Store a dead letter, and answer by [`Event::Buried`].
    Bury { key: Key, source: usize, message: Arc<RawMessage>, failure: FailureNote },
    /// Start a worker.
    Hire { worker: usize },
    /// Let a worker finish what it is at, return the rest of its inbox, and end.
    Retire { worker: usize },
    /// All is settled or given up.
    Finish,
}

/// Calls that end leases, and calls that extend them, which must not wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaneKind {
    Settles,
    Extensions,
}

/// A delivery on its way to a worker.
#[derive(Debug)]
pub(crate) struct Assigned {
    pub(crate) key: Key,
    pub(crate) source: usize,
    pub(crate) message: Arc<RawMessage>,
    pub(crate) lease: Arc<Lease>,
}

/// Something worth telling.
#[derive(Debug, Clone)]
pub(crate) struct Note {
    pub(crate) source: usize,
    pub(crate) worker: Option<usize>,
    pub(crate) id: MessageId,
    pub(crate) attempt: u32,
    pub(crate) what: What,
}

#[derive(Debug, Clone)]
pub(crate) enum What {
    Received,
    Succeeded {
        took: Duration,
    },
    Failed {
        failure: FailureNote,
        then: Then,
    },
    Retried {
        delay: Duration,
    },
    Released {
        delay: Duration,
    },
    Returned,
    Parked {
        delay: Duration,
    },
    DeadLettered {
        failure: FailureNote,
    },
    /// Somebody else has the message by now.
    LeaseLost,
    /// It is not known whether the message was settled: it comes back when its lease ends, if it was not.
    Unsettled,
    Extended,
}

/// What a delivery that is being settled will have come to.
#[derive(Debug, Clone)]
enum Intent {
    Succeed { took: Duration },
    Retry { delay: Duration },
    Release { delay: Duration },
    Return,
    Park { delay: Duration },
    Bury { failure: FailureNote },
}

#[derive(Debug)]
struct Held {
    generation: u32,
    source: usize,
    receipt: Receipt,
    message: Arc<RawMessage>,
    lease: Arc<Lease>,
    place: Place,
    /// When the lease ends, as far as is known here.
    deadline: Instant,
    worker: Option<usize>,
    is_lost: bool,
}

#[derive(Debug)]
enum Place {
    Backlog,
    Seated { worker: usize },
    Burying { failure: FailureNote },
    Settling { intent: Intent },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seat {
    Active { load: usize },
    Retiring { load: usize },
    Empty,
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
    held: Slab<Held>,
    generation: u32,
    /// Deliveries that no inbox has room for.
    backlog: VecDeque<Key>,
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
            held: Slab::new(),
            generation: 0,
            backlog: VecDeque::new(),
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
        self.seats.iter().filter(|seat| matches!(seat, Seat::Active { .. })).count()
    }

    /// Why all came to an end by itself, if it did.
    pub(crate) fn closed(&self) -> Option<&Error> {
        self.closed.as_ref()
    }

    /// Takes in what happened. Any number of events may be taken in before [`plan`](Self::plan).
    pub(crate) fn handle(&mut self, event: Event, now: Instant) {
        match event {
            Event::Fetched { source, answer } => self.fetched(source, answer, now),
            Event::Finished(finished) => self.finished(finished),
            Event::Returned { key, worker } => self.returned(key, worker),
            Event::Settled { source, lane, answer } => self.settled(source, lane, answer, now),
            Event::Buried { key, answer } => self.buried(key, answer),
            Event::Wanted(wanted) => self.change(wanted, now),
            Event::WorkerEnded { worker } => self.worker_ended(worker),
        }
    }

    /// Decides what is to be done now: what time has brought, what can be settled, what can be fetched.
    pub(crate) fn plan(&mut self, now: Instant) {
        self.pass(now);
        self.renew(now);
        self.seat_backlog();
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
        of_sources.chain(ending).min()
    }

    // Receiving.

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
        self.sources[source].fetched(deliveries.len());
        let held = &self.held;
        let is_held =
            |key: Key| held.get(key.index).is_some_and(|it| it.generation == key.generation);
        self.sources[source].tidy_renewals(held.len(), is_held);
        if !deliveries.is_empty() {
            self.catch_up(source);
        }
        for Delivery { message, receipt, .. } in deliveries {
            self.hold(source, message, receipt, now);
        }
    }

    fn hold(&mut self, source: usize, message: RawMessage, receipt: Receipt, now: Instant) {
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let SourceSettings { visibility, most_deliveries, .. } = self.sources[source].settings;
        let attempt = message.delivery_count;
        let index = self.held.insert(Held {
            generation,
            source,
            receipt,
            message: Arc::new(message),
            lease: Arc::default(),
            place: Place::Backlog,
            deadline: now + visibility,
            worker: None,
            is_lost: false,
        });
        let key = Key { index, generation };
        self.sources[source].renew_later(key, now);
        self.note(key, What::Received);
        if self.mode.is_ending() {
            self.settle(key, Intent::Return);
        } else if let Some(most) = most_deliveries.filter(|most| attempt > *most) {
            let text = format!(
                "delivered {attempt} times, and {most} is the most: it may have ended its process"
            );
            let kind = FailureKind::Error;
            self.bury(key, FailureNote { kind, type_name: "poison", text: text.into() });
        } else {
            self.seat(key);
        }
    }

    /// Gives a delivery to the worker with the least to do; or keeps it until one has room.
    fn seat(&mut self, key: Key) {
        let count = self.seats.len();
        let mut best = None;
        for offset in 0..count {
            let worker = (self.next_seat + offset) % count;
            let Seat::Active { load } = self.seats[worker] else { continue };
            if load <= self.settings.inbox && best.is_none_or(|(_, least)| load < least) {
                best = Some((worker, load));
                if load == 0 {
                    break;
                }
            }
        }
        let Some(held) = self.held.get_mut(key.index) else { return };
        let Some((worker, load)) = best else {
            held.place = Place::Backlog;
            self.backlog.push_back(key);
            return;
        };
        self.seats[worker] = Seat::Active { load: load + 1 };
        self.next_seat = (worker + 1) % count;
        held.place = Place::Seated { worker };
        held.worker = Some(worker);
        let assigned = Assigned {
            key,
            source: held.source,
            message: held.message.clone(),
            lease: held.lease.clone(),
        };
        self.actions.push_back(Action::Assign { worker, assigned });
    }

    fn seat_backlog(&mut self) {
        for _ in 0..self.backlog.len() {
            let Some(key) = self.backlog.pop_front() else { return };
            if matches!(self.get(key), Some(Held { place: Place::Backlog, .. })) {
                self.seat(key);
            }
        }
    }

    // Results.

    fn finished(&mut self, finished: Finished) {
        let Finished { key, worker, verdict, took, .. } = finished;
        self.leave(worker);
        if self.get(key).is_none() {
            // It was given up: the drain was over before its handler was.
            return;
        }
        match verdict {
            Verdict::Done => {
                let took = took.unwrap_or_default();
                self.settle(key, Intent::Succeed { took });
            }
            Verdict::Released { delay } => self.settle(key, Intent::Release { delay }),
            Verdict::TooLate => self.forget(key),
            Verdict::Failed { failure, then } => {
                self.note(key, What::Failed { failure: failure.clone(), then: then.clone() });
                match then {
                    Then::Retry { delay } => self.settle(key, Intent::Retry { delay }),
                    Then::Park { delay } => self.settle(key, Intent::Park { delay }),
                    Then::Release => self.settle(key, Intent::Release { delay: Duration::ZERO }),
                    Then::Bury => self.bury(key, failure),
                }
            }
        }
    }

    fn returned(&mut self, key: Key, worker: usize) {
        self.leave(worker);
        let Some(held) = self.get_mut(key) else { return };
        if held.is_lost {
            self.forget(key);
        } else if self.mode.is_ending() {
            self.settle(key, Intent::Return);
        } else {
            self.seat(key);
        }
    }

    /// A worker has one delivery less.
    fn leave(&mut self, worker: usize) {
        if let Some(Seat::Active { load } | Seat::Retiring { load }) = self.seats.get_mut(worker) {
            *load = load.saturating_sub(1);
        }
    }

    fn bury(&mut self, key: Key, failure: FailureNote) {
        let Some(held) = self.get_mut(key) else { return };
        held.place = Place::Burying { failure: failure.clone() };
        let (source, message) = (held.source, held.message.clone());
        self.actions.push_back(Action::Bury { key, source, message, failure });
    }

    fn buried(&mut self, key: Key, answer: Result<()>) {
        let Some(held) = self.get_mut(key) else { return };
        let Place::Burying { failure } = &held.place else { return };
        let (failure, source) = (failure.clone(), held.source);
        match answer {
            Ok(()) => self.settle(key, Intent::Bury { failure }),
            // It comes back, and then it is tried again: under the same id, so there will be one.
            Err(_) => {
                let delay = self.sources[source].settings.park;
                self.settle(key, Intent::Park { delay });
            }
        }
    }

    // Settling.

    fn settle(&mut self, key: Key, intent: Intent) {
        let Some(held) = self.get_mut(key) else { return };
        let action = match &intent {
            Intent::Succeed { .. } | Intent::Bury { .. } => SettleAction::Acknowledge,
            Intent::Return => SettleAction::Nack { delay: Duration::ZERO },
            Intent::Retry { delay } | Intent::Release { delay } | Intent::Park { delay } => {
                SettleAction::Nack { delay: *delay }
            }
        };
        if held.is_lost && action != SettleAction::Acknowledge {
            // Somebody else has it; there is nothing to give back.
            self.forget(key);
            return;
        }
        held.place = Place::Settling { intent };
        let source = held.source;
        self.sources[source].lane(LaneKind::Settles).push(Entry::new(key, action));
    }

    /// Makes a call of what a lane has to say, unless one is under way or it is too early.
    fn call(&mut self, source: usize, kind: LaneKind, now: Instant) {
        let max = self.sources[source].settings.max_batch;
        let due = self.sources[source].lane(kind).take(max, now);
        let mut entries = Vec::with_capacity(due.len());
        let mut batch = Vec::with_capacity(due.len());
        for entry in due {
            // It is of no use any more: settled meanwhile, or lost.
            let Some(held) = self.get(entry.key) else { continue };
            if now >= held.deadline && entry.is_ambiguous {
                self.too_late(entry.key);
                continue;
            }
            if kind == LaneKind::Extensions && matches!(held.place, Place::Settling { .. }) {
                continue;
            }
            batch.push((held.receipt.clone(), entry.action));
            entries.push(entry);
        }
        if !batch.is_empty() {
            self.sources[source].lane(kind).call(entries, now);
            self.actions.push_back(Action::Settle { source, lane: kind, batch });
        }
    }

    fn settled(
        &mut self,
        source: usize,
        kind: LaneKind,
        answer: Result<Vec<Result<()>>>,
        now: Instant,
    ) {
        let (entries, called_at) = self.sources[source].lane(kind).answered();
        let mut failed = Vec::new();
        let answers = match answer {
            Ok(answers) if answers.len() == entries.len() => answers,
            Ok(_) => {
                let cause = "it answered with a wrong number of results";
                let error = Error::connection(None, "settle", cause);
                vec![Err(error); entries.len()]
            }
            Err(error) => vec![Err(error); entries.len()],
        };
        for (entry, answer) in entries.into_iter().zip(answers) {
            match answer {
                Ok(()) => self.accepted(entry, called_at, now),
                Err(Error::ReceiptHandleExpired { .. }) => self.refused(entry),
                Err(error) if error.is_transient() => failed.push(entry.again()),
                Err(_) => self.give_up(entry.key),
            }
        }
        let backoff = self.settings.backoff;
        self.sources[source].lane(kind).failed(failed, backoff, now);
    }

    fn accepted(&mut self, entry: Entry, called_at: Instant, now: Instant) {
        if let SettleAction::Extend { timeout } = entry.action {
            let Some(held) = self.get_mut(entry.key) else { return };
            // From when it was asked for: the backend cannot have counted from earlier.
            held.deadline = called_at + timeout;
            let source = held.source;
            self.sources[source].renew_later(entry.key, now);
            self.note(entry.key, What::Extended);
            return;
        }
        let Some(Held { place: Place::Settling { intent }, .. }) = self.get(entry.key) else {
            return;
        };
        let what = match intent.clone() {
            Intent::Succeed { took } => What::Succeeded { took },
            Intent::Retry { delay } => What::Retried { delay },
            Intent::Release { delay } => What::Released { delay },
            Intent::Return => What::Returned,
            Intent::Park { delay } => What::Parked { delay },
            Intent::Bury { failure } => What::DeadLettered { failure },
        };
        self.note(entry.key, what);
        self.forget(entry.key);
    }

    /// The receipt is worth nothing any more.
    fn refused(&mut self, entry: Entry) {
        let is_extension = matches!(entry.action, SettleAction::Extend { .. });
        let Some(held) = self.get(entry.key) else { return };
        if is_extension && matches!(held.place, Place::Settling { .. }) {
            // It was settled while the extension was under way.
            return;
        }
        if entry.is_ambiguous && !is_extension {
            // An earlier call failed after it had done its work.
            let now = held.deadline;
            self.accepted(entry, now, now);
            return;
        }
        self.lose(entry.key);
        if !is_extension {
            self.forget(entry.key);
        }
    }

    /// The time of a delivery is over before it could be settled.
    fn too_late(&mut self, key: Key) {
        match self.get(key) {
            Some(Held { place: Place::Settling { .. }, .. }) => self.give_up(key),
            Some(_) => self.lose(key),
            None => {}
        }
    }

    /// It is not known whether it was settled, and will not be known.
    fn give_up(&mut self, key: Key) {
        self.note(key, What::Unsettled);
        self.forget(key);
    }

    // Leases.

    /// Has the leases extended whose time has come.
    fn renew(&mut self, now: Instant) {
        for source in 0..self.sources.len() {
            let while_beating = self.sources[source].settings.while_beating;
            while let Some(key) = self.sources[source].due_renewal(now) {
                let Some(held) = self.get(key) else { continue };
                if held.is_lost || matches!(held.place, Place::Settling { .. }) {
                    continue;
                }
                let is_running = held.lease.has_begun();
                if now >= held.deadline {
                    self.lose(key);
                } else if while_beating && is_running && !held.lease.take_beat() {
                    self.sources[source].renew_later(key, now);
                } else {
                    let timeout = self.sources[source].settings.visibility;
                    let entry = Entry::new(key, SettleAction::Extend { timeout });
                    self.sources[source].lane(LaneKind::Extensions).push(entry);
                }
            }
        }
    }

    fn lose(&mut self, key: Key) {
        let Some(source) = self.get(key).map(|held| held.source) else { return };
        let cancels = self.sources[source].settings.cancel_lost;
        let Some(held) = self.get_mut(key) else { return };
        if std::mem::replace(&mut held.is_lost, true) {
            return;
        }
        held.lease.lose();
        if cancels {
            held.lease.cancel();
        }
        let is_nowhere = matches!(held.place, Place::Backlog);
        self.note(key, What::LeaseLost);
        if is_nowhere {
            self.forget(key);
        }
    }

    // Fetching.

    /// How many more deliveries may be asked for.
    fn room(&self) -> usize {
        let capacity = self.settings.inbox + 1;
        let mut free = 0;
        for seat in &self.seats {
            if let Seat::Active { load } = seat {
                free += capacity.saturating_sub(*load);
            }
        }
        let asked: usize = self.sources.iter().map(Source::asked).sum();
        let free = free.saturating_sub(self.backlog.len() + asked);
        // What waits to be settled is bounded as well.
        let most = self.seats.len() * capacity + self.settings.results;
        free.min(most.saturating_sub(self.held.len() + asked))
    }

    /// Asks for messages. A source that had some is asked again at once, in proportion to its weight; one
    /// that had none waits with one place, so that it never keeps the others from theirs. A single source
    /// waits with all there are.
    fn fetch(&mut self, now: Instant) {
        if self.mode != Mode::Running {
            return;
        }
        if self.sources.len() == 1 {
            let room = self.room();
            if self.sources[0].can_be_asked(now) && self.is_worth_fetching(room) {
                self.ask(0, room, true);
            }
            return;
        }
        loop {
            let room = self.room();
            let ready = |source: &Source| source.can_be_asked(now);
            let waiting = self.sources.iter().filter(|s| !s.is_hot && ready(s)).count();
            let hottest = (0..self.sources.len())
                .filter(|index| self.sources[*index].is_hot && ready(&self.sources[*index]))
                .min_by(|a, b| self.sources[*a].pass().total_cmp(&self.sources[*b].pass()));
            let coldest = self.sources.iter().position(|s| !s.is_hot && ready(s));
            match (hottest, coldest) {
                (_, Some(cold)) if room > 0 => self.ask(cold, 1, true),
                (Some(hot), _) if room > waiting && self.is_worth_fetching(room - waiting) => {
                    self.ask(hot, room - waiting, false);
                }
                _ => return,
            }
        }
    }

    /// A few places that became free are not worth a call while every worker has something to do.
    fn is_worth_fetching(&self, room: usize) -> bool {
        let places = self.active_workers() * (self.settings.inbox + 1);
        room > 0
            && (room * 4 >= places
                || self.seats.iter().any(|seat| matches!(seat, Seat::Active { load: 0 })))
    }

    fn ask(&mut self, source: usize, room: usize, waits: bool) {
        let max = room.min(self.sources[source].settings.max_receive);
        self.sources[source].ask(max);
        self.actions.push_back(Action::Fetch { source, max, waits });
    }

    /// A source that had nothing for a while does not make up for it: it starts level with the others.
    fn catch_up(&mut self, source: usize) {
        if self.sources[source].is_hot {
            return;
        }
        let level = self.sources.iter().filter(|other| other.is_hot).map(Source::pass);
        let level = level.min_by(f64::total_cmp);
        self.sources[source].become_hot(level);
    }

    fn cancel_fetches(&mut self) {
        for source in 0..self.sources.len() {
            if self.sources[source].asked() > 0 {
                self.sources[source].cancelled();
                self.actions.push_back(Action::CancelFetch { source });
            }
        }
    }

    // Control.

    fn change(&mut self, wanted: Wanted, now: Instant) {
        self.wanted = wanted;
        if let Some(stop) = wanted.stop {
            self.stop(stop, now);
        }
        if self.mode.is_ending() {
            return;
        }
        self.employ(wanted.workers);
        match (wanted.is_paused, self.mode) {
            (true, Mode::Running) => {
                self.mode = Mode::Paused;
                self.cancel_fetches();
            }
            (false, Mode::Paused) => self.mode = Mode::Running,
            _ => {}
        }
    }

    /// Makes it so many workers.
    fn employ(&mut self, workers: usize) {
        let mut active = self.active_workers();
        for worker in (0..self.seats.len()).rev() {
            if active <= workers {
                break;
            }
            if let Seat::Active { load } = self.seats[worker] {
                self.seats[worker] = Seat::Retiring { load };
                self.actions.push_back(Action::Retire { worker });
                active -= 1;
                // What was asked for was meant for more workers.
                self.cancel_fetches();
            }
        }
        while active < workers {
            let empty = self.seats.iter().position(|seat| *seat == Seat::Empty);
            let worker = empty.unwrap_or(self.seats.len());
            if worker == self.seats.len() {
                self.seats.push(Seat::Empty);
            }
            self.seats[worker] = Seat::Active { load: 0 };
            self.actions.push_back(Action::Hire { worker });
            active += 1;
        }
    }

    fn worker_ended(&mut self, worker: usize) {
        let seat = std::mem::replace(&mut self.seats[worker], Seat::Empty);
        // What it had when it ended without a word: it cannot be told whether it was begun.
        let left: Vec<_> = self
            .held
            .iter()
            .filter(|(_, held)| matches!(held.place, Place::Seated { worker: of } if of == worker))
            .map(|(index, held)| (Key { index, generation: held.generation }, held.source))
            .collect();
        for (key, source) in left {
            let delay = self.sources[source].settings.park;
            self.settle(key, Intent::Park { delay });
        }
        if matches!(seat, Seat::Active { .. }) && !self.mode.is_ending() {
            self.seats[worker] = Seat::Active { load: 0 };
            self.actions.push_back(Action::Hire { worker });
        }
    }

    fn stop(&mut self, stop: Stop, now: Instant) {
        if !self.mode.is_ending() {
            self.cancel_fetches();
            for worker in 0..self.seats.len() {
                if let Seat::Active { load } = self.seats[worker] {
                    self.seats[worker] = Seat::Retiring { load };
                    self.actions.push_back(Action::Retire { worker });
                }
            }
            while let Some(key) = self.backlog.pop_front() {
                if matches!(self.get(key), Some(Held { place: Place::Backlog, .. })) {
                    self.settle(key, Intent::Return);
                }
            }
            self.mode = Mode::Draining { deadline: now + self.wanted.drain };
        }
        if let (Stop::Now, Mode::Draining { deadline }) = (stop, &mut self.mode) {
            *deadline = now;
        }
    }

    /// Lets time come to now: deadlines of the way to the end.
    fn pass(&mut self, now: Instant) {
        match self.mode {
            Mode::Draining { deadline } if now >= deadline => {
                for (_, held) in &self.held {
                    if matches!(held.place, Place::Seated { .. }) {
                        held.lease.cancel();
                    }
                }
                self.mode = Mode::Cancelling { deadline: now + GRACE };
            }
            Mode::Cancelling { deadline } if now >= deadline => {
                let left: Vec<Key> = self
                    .held
                    .iter()
                    .map(|(index, held)| Key { index, generation: held.generation })
                    .collect();
                left.into_iter().for_each(|key| self.give_up(key));
            }
            _ => {}
        }
    }

    // Bookkeeping.

    fn get(&self, key: Key) -> Option<&Held> {
        self.held.get(key.index).filter(|held| held.generation == key.generation)
    }

    fn get_mut(&mut self, key: Key) -> Option<&mut Held> {
        self.held.get_mut(key.index).filter(|held| held.generation == key.generation)
    }

    fn forget(&mut self, key: Key) {
        if self.get(key).is_some() {
            self.held.remove(key.index);
        }
    }

    fn note(&mut self, key: Key, what: What) {
        if let Some(held) = self.get(key) {
            let (source, worker) = (held.source, held.worker);
            let (id, attempt) = (held.message.id, held.message.delivery_count);
            self.notes.push(Note { source, worker, id, attempt, what });
        }
    }
}
