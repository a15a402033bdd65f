//! The dispatcher: decides which worker gets which message and what becomes of it. A pure state machine.
//!
//! It takes inputs and the time, and returns actions; the [driver](crate::driver) carries them out and reports
//! the results. Nothing here waits, locks or does I/O.
//!
//! ```text
//!            Fetched                  Assign           Finished
//!  queue ─────────────► dispatcher ────────► worker ──────────► dispatcher
//!        ◄───────────── (in flight) ◄─────── Settled, DeadLetterStored
//!          Fetch, Settle, StoreDeadLetter
//! ```
//!
//! A delivery is *in flight* from its receive until it is settled or lost. Its lease is extended all the time:
//! while it waits for a worker, while its handler runs, and while its dead letter is stored.
//!
//! Invariants:
//!
//! 1. No more is requested than there is room for: a delivery for each worker, and those that will be begun within
//!    about one fetch. Of several sources, each that is idle may return one more.
//! 2. A delivery is at one stage: unassigned, with one worker, being dead-lettered, or being settled.
//! 3. After a stop nothing is received and no handler is started, and every delivery in flight is settled or
//!    abandoned; only then the dispatcher finishes.

mod bounded_counts;
mod dead_lettering;
mod fetching;
mod in_flight;
mod leases;
mod prefetch;
mod protocol;
mod quarantine;
mod scaling;
mod settle_batcher;
mod settling;
mod shutdown;
mod source;
#[cfg(test)]
mod tests;
mod worker_slots;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::clock::later;
use pillarbox_core::{Delivery, Error, MessageId, RawMessage, Receipt, Result};
use tokio::time::Instant;

use self::bounded_counts::BoundedCounts;
pub(crate) use self::in_flight::Key;
use self::in_flight::{InFlight, InFlightTable, Intent, LeaseState, Stage};
use self::prefetch::{LONGEST_WAIT, Pace};
pub(crate) use self::protocol::{
    Action, Assignment, Finished, Input, NewDeadLetter, SettleKind, StoredDeadLetter,
};
pub(crate) use self::quarantine::STAGGER;
use self::quarantine::{Admission, Quarantine};
use self::source::Source;
pub(crate) use self::source::{QuarantineSettings, SourceSettings};
use self::worker_slots::WorkerSlot;
use crate::delivery_event::{DeliveryChange, DeliveryEvent};
use crate::desired_state::{DesiredState, Stop};
use crate::outcome::FailureKind;
use crate::verdict::{Disposition, Verdict};

/// The settings of a worker pool.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The largest number of deliveries that may wait for a worker.
    pub(crate) prefetch: usize,
    /// Number of finished deliveries that may wait to be settled before no more are received.
    pub(crate) result_buffer: usize,
    /// The delay after a receive that failed; doubles with each failure.
    pub(crate) receive_backoff: Duration,
}

/// The phase of a worker pool, from start to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Messages are received and handled.
    Running,
    /// Nothing is received.
    Paused,
    /// Running handlers finish until the deadline.
    Draining { deadline: Instant },
    /// Handlers were cancelled; they have until the deadline to end.
    Cancelling { deadline: Instant },
    /// Nothing is in flight any more.
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
    slots: Vec<WorkerSlot>,
    /// The slot at which the search for a worker begins, so that all get their share.
    next_slot: usize,
    in_flight: InFlightTable,
    /// Deliveries that do not count as attempts, for backends that do not count them.
    ///
    /// A queue counts every delivery. One that was released, shed or returned before its handler started uses up
    /// no attempt, and must not turn its message into a dead letter. Most backends count such deliveries with the
    /// message ([`RawMessage::uncounted`]). For the others, this process remembers what it gave back; other
    /// processes do not know of it.
    uncounted: BoundedCounts,
    quarantine: Quarantine,
    pace: Pace,
    /// Number of deliveries that may wait for a worker now.
    prefetch: usize,
    /// Deliveries that no worker has room for, in turn.
    unassigned: VecDeque<Key>,
    /// Deliveries that a limit refused, and when they are assigned again.
    shed: VecDeque<(Instant, Key)>,
    /// Dead letters and error replies whose last try failed, and when the next one is due.
    dead_letter_retries: Vec<(Instant, Key)>,
    /// Virtual time of the sources that were asked last, at which a source that becomes busy starts.
    virtual_time: f64,
    /// Cancelled handlers were abandoned; only settles are waited for.
    has_abandoned_handlers: bool,
    mode: Mode,
    desired: DesiredState,
    /// The error by which the last source was closed, if all are.
    closed: Option<Error>,
    actions: VecDeque<Action>,
    events: Vec<DeliveryEvent>,
}

impl Dispatcher {
    pub(crate) fn new(
        settings: Settings,
        sources: impl IntoIterator<Item = SourceSettings>,
        desired: DesiredState,
        now: Instant,
    ) -> Self {
        let mut dispatcher = Self {
            settings,
            sources: sources.into_iter().map(Source::new).collect(),
            slots: Vec::new(),
            next_slot: 0,
            in_flight: InFlightTable::default(),
            uncounted: BoundedCounts::default(),
            quarantine: Quarantine::default(),
            pace: Pace::default(),
            prefetch: 0,
            unassigned: VecDeque::new(),
            shed: VecDeque::new(),
            dead_letter_retries: Vec::new(),
            virtual_time: 0.0,
            has_abandoned_handlers: false,
            mode: Mode::Running,
            desired,
            closed: None,
            actions: VecDeque::new(),
            events: Vec::new(),
        };
        dispatcher.apply(desired, now);
        dispatcher
    }

    /// Returns the next action. To be called after [`plan`](Self::plan) until there is none.
    pub(crate) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the events since the last call of [`clear_events`](Self::clear_events).
    pub(crate) fn events(&self) -> &[DeliveryEvent] {
        &self.events
    }

    pub(crate) fn clear_events(&mut self) {
        self.events.clear();
    }

    pub(crate) const fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the number of deliveries in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns the number of workers that are not stopping.
    pub(crate) fn active_workers(&self) -> usize {
        self.slots.iter().filter(|slot| slot.is_active()).count()
    }

    /// Returns whether a worker has a delivery that it has not reported on.
    pub(crate) fn has_busy_worker(&self) -> bool {
        self.slots.iter().any(|slot| slot.load() > 0)
    }

    /// Returns the message of an entry of a settle call under way, and the worker that had it last.
    pub(crate) fn settling(
        &self,
        source: usize,
        kind: SettleKind,
        call: u64,
        entry: usize,
    ) -> Option<(MessageId, Option<usize>)> {
        let delivery = self.in_flight.get(self.sources[source].under_way(kind, call, entry)?)?;
        Some((delivery.message.id, delivery.worker))
    }

    /// Returns the error by which the last source was closed, if all are.
    pub(crate) fn closed(&self) -> Option<&Error> {
        self.closed.as_ref()
    }

    /// Takes in what happened. Any number of inputs may be handled before [`plan`](Self::plan).
    pub(crate) fn handle(&mut self, input: Input, now: Instant) {
        match input {
            Input::Fetched { source, result } => self.fetched(source, result, now),
            Input::Starting { key } => self.record_start(key),
            Input::Finished(finished) => self.finished(finished, now),
            Input::Returned { key, worker } => self.returned(key, worker),
            Input::Skipped { worker } => self.skipped(worker, now),
            Input::Settled { source, kind, call, result } => {
                self.settled(source, kind, call, result, now);
            }
            Input::DeadLetterStored { key, result } => self.dead_letter_stored(key, result, now),
            Input::ErrorReplySent { key, result } => self.error_reply_sent(key, result, now),
            Input::DeadLetterReported { key } => self.dead_letter_reported(key),
            Input::Desired(desired) => self.apply(desired, now),
            Input::WorkerEnded { worker } => self.worker_ended(worker),
        }
    }

    /// Decides what is to be done now.
    ///
    /// The order matters. The prefetch comes first, since the room depends on it. The shutdown and the leases follow,
    /// since later steps depend on the mode and must not assign what is lost. Retries of dead letters come next, because
    /// they may settle. A message to be isolated comes before assignments, which must not start anything beside it.
    /// Assignments come before rebalancing, which only helps workers that are still idle. Settles come after all steps
    /// that produce some, so that they share a call, and receives after all steps that change the room. Whether
    /// everything is over is known at the very end.
    pub(crate) fn plan(&mut self, now: Instant) {
        self.update_prefetch(now);
        self.advance_shutdown(now);
        self.renew(now);
        self.retry_dead_letters(now);
        self.run_isolated(now);
        self.assign_shed(now);
        self.give_way();
        self.assign_unassigned(now);
        self.rebalance(now);
        for source in 0..self.sources.len() {
            for kind in [SettleKind::Final, SettleKind::Extension] {
                self.call_settle(source, kind, now);
            }
        }
        self.fetch(now);
        if self.mode.is_ending() && self.mode != Mode::Finished && self.in_flight.is_empty() {
            self.mode = Mode::Finished;
            self.actions.push_back(Action::Finish);
        }
    }

    /// Returns when [`plan`](Self::plan) has something to do even without an input.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let ending = match self.mode {
            Mode::Draining { deadline } | Mode::Cancelling { deadline } => Some(deadline),
            _ => None,
        };
        let is_running = self.mode == Mode::Running;
        let sources = self.sources.iter().filter_map(|source| source.next_wake(is_running));
        let shed = self.shed.front().map(|(until, _)| *until);
        let dead_letters = self.dead_letter_retries.iter().map(|(at, _)| *at);
        let quarantine = self.quarantine.next_wake();
        sources.chain(ending).chain(shed).chain(dead_letters).chain(quarantine).min()
    }

    fn fetched(&mut self, source: usize, result: Result<Vec<Delivery>>, now: Instant) {
        let deliveries = match result {
            Ok(deliveries) => deliveries,
            Err(error) => {
                self.sources[source].fetch_failed(&error, self.settings.receive_backoff, now);
                if self.sources.iter().all(|source| source.is_closed) && !self.mode.is_ending() {
                    self.closed = Some(error);
                    self.stop(Stop::Graceful, now);
                }
                return;
            }
        };
        if let Some(took) = self.sources[source].fetch_succeeded(deliveries.len(), now) {
            self.pace.fetched(took);
        }
        self.sources[source].prune_renewals(&self.in_flight);
        if !deliveries.is_empty() && !self.sources[source].is_busy {
            self.sources[source].become_busy(self.virtual_time);
        }
        for Delivery { message, receipt, .. } in deliveries {
            self.received(source, message, receipt, now);
        }
    }

    fn received(&mut self, source: usize, message: RawMessage, receipt: Receipt, now: Instant) {
        let deadline = now + self.sources[source].settings.visibility;
        let admission = self.admit(source, &message);
        let attempt = self.attempt(source, &message);
        let turn = self.sources[source].next_turn();
        let delivery = InFlight::new(source, message, receipt, attempt, turn, now, deadline);
        let key = self.in_flight.insert(delivery);
        let look_after = self.sources[source].third().min(LONGEST_WAIT);
        self.sources[source].look_at(key, now + look_after);
        self.report(key, DeliveryChange::Received);
        match admission {
            _ if self.mode.is_ending() => self.settle(key, Intent::Return),
            Admission::Quarantine { route } => self.quarantine(key, route),
            Admission::Isolate => self.isolate(key),
            Admission::Run if self.quarantine.is_isolating() => self.settle(key, Intent::Return),
            Admission::Run => self.assign(key),
        }
    }

    /// Returns the number of this attempt at a message: its deliveries without the uncounted ones.
    fn attempt(&self, source: usize, message: &RawMessage) -> u32 {
        if self.sources[source].settings.quarantine.is_exact {
            return message.attempt();
        }
        let uncounted = self.uncounted.get((source, message.id));
        message.delivery_count.saturating_sub(uncounted).max(1)
    }

    /// Keeps a delivery that a limit refused, and assigns it again later.
    fn hold_shed(&mut self, key: Key, until: Instant) {
        self.report(key, DeliveryChange::Shed);
        let Some(delivery) = self.in_flight.get_mut(key) else { return };
        delivery.stage = Stage::Unassigned;
        if delivery.is_lost() || self.mode.is_ending() {
            self.reassign(key);
        } else {
            // The delay is the same for all, so this is in order of time.
            self.shed.push_back((until, key));
        }
    }

    fn assign_shed(&mut self, now: Instant) {
        while self.shed.front().is_some_and(|(until, _)| *until <= now || self.mode.is_ending()) {
            let Some((_, key)) = self.shed.pop_front() else { return };
            if self.in_flight.get(key).is_some_and(InFlight::is_unassigned) {
                self.reassign(key);
            }
        }
    }

    fn finished(&mut self, finished: Finished, now: Instant) {
        let Finished { key, worker, verdict, took, .. } = finished;
        self.pop_assigned(worker, now);
        if let Some(took) = took {
            self.pace.handled(took);
        }
        // It may have been abandoned already, if the drain ended before its handler did.
        let Some(delivery) = self.in_flight.get(key) else { return };
        let (lease_state, is_acknowledged) =
            (delivery.lease_state, delivery.lease.is_acknowledged());
        if !matches!(verdict, Verdict::Shed { .. } | Verdict::NotRun) {
            self.clear(key);
        }
        if let Verdict::Failed { failure, disposition } = &verdict {
            let (failure, disposition) = (failure.clone(), disposition.clone());
            self.report(key, DeliveryChange::Failed { failure, disposition });
        }
        let took = took.unwrap_or_default();
        match lease_state {
            LeaseState::Acknowledged => self.acknowledged(key, took),
            // Whatever the verdict is, the message may be acknowledged already, and there must be no dead letter
            // of a message that is done. The queue is asked first.
            LeaseState::Running if is_acknowledged && verdict != Verdict::Settled => {
                // There may be no room for it here by the time of the answer.
                let verdict = match verdict {
                    Verdict::Shed { .. } => Verdict::Released { delay: Duration::ZERO },
                    other => other,
                };
                self.settle(key, Intent::Confirm { took, verdict: Box::new(verdict) });
            }
            _ => self.conclude(key, verdict, took, now),
        }
    }

    /// Carries out a verdict.
    fn conclude(&mut self, key: Key, verdict: Verdict, took: Duration, now: Instant) {
        match verdict {
            Verdict::Done => self.settle(key, Intent::Succeed { took }),
            Verdict::Settled => self.acknowledged(key, took),
            Verdict::Released { delay } => self.settle(key, Intent::Release { delay }),
            Verdict::Shed { delay } => self.hold_shed(key, later(now, delay)),
            Verdict::NotRun => self.end_not_run(key),
            Verdict::Failed { failure, disposition } => match disposition {
                Disposition::Retry { delay } => self.settle(key, Intent::Retry { delay }),
                Disposition::Park { delay } => {
                    let is_uncounted = failure.kind == FailureKind::UnknownKind;
                    self.settle(key, Intent::Park { delay, is_uncounted });
                }
                Disposition::Release => {
                    self.settle(key, Intent::Release { delay: Duration::ZERO });
                }
                Disposition::DeadLetter { route } => self.dead_letter(key, failure, route),
            },
        }
    }

    /// Assigns a delivery that was not begun to another worker; or returns it to its queue during a shutdown.
    fn reassign(&mut self, key: Key) {
        let is_ending = self.mode.is_ending();
        let Some(delivery) = self.in_flight.get_mut(key) else { return };
        if delivery.is_lost() {
            self.in_flight.remove(key);
        } else if is_ending {
            self.settle(key, Intent::Return);
        } else {
            // The old lease is still with the other worker, marked as taken back.
            delivery.lease = Arc::default();
            self.assign(key);
        }
    }

    fn report(&mut self, key: Key, change: DeliveryChange) {
        if let Some(delivery) = self.in_flight.get(key) {
            let (source, worker) = (delivery.source, delivery.worker);
            let (id, attempt) = (delivery.message.id, delivery.attempt);
            let delivery_count = delivery.message.delivery_count;
            self.events.push(DeliveryEvent { source, worker, id, attempt, delivery_count, change });
        }
    }
}
