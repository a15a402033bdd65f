//! Reports what happened: statistics, metrics, the log, and events for listeners.

use std::time::Duration;

use tokio::time::Instant;

use super::{Driver, MailboxQueues};
use crate::delivery_event::{DeliveryChange, DeliveryEvent};
use crate::dispatcher::Mode;
use crate::event::{About, Event};
use crate::log::{self, CONTROL};
use crate::request::WorkerId;
use crate::stats::State;

/// The shortest interval between two snapshots of the statistics.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);

impl Driver {
    /// Reports the events of the dispatcher, and a change of its mode.
    pub(super) fn report(&mut self) {
        let Self { dispatcher, tally, queue_metrics, queues, pool, .. } = self;
        let has_listeners = pool.control.events.has_listeners();
        for event in dispatcher.events() {
            tally.add(event);
            queue_metrics[event.source].add(event);
            let mailbox = &queues[event.source];
            log::delivery(event, mailbox.queue.name());
            if has_listeners && let Some(event) = public_event(event.clone(), mailbox) {
                pool.control.emit(|| event);
            }
            self.is_dirty = true;
        }
        dispatcher.clear_events();
        let mode = self.dispatcher.mode();
        if mode == self.mode {
            return;
        }
        let before = std::mem::replace(&mut self.mode, mode);
        self.is_dirty = true;
        // At once, since a caller may wait for it.
        self.published_at = None;
        let (pool, control) = (&*self.settings.name, &self.pool.control);
        match (before, mode) {
            (_, Mode::Paused) => {
                tracing::info!(target: CONTROL, pool, "paused: nothing is received");
                control.emit(|| Event::Paused);
            }
            (Mode::Paused, Mode::Running) => {
                tracing::info!(target: CONTROL, pool, "resumed: messages are received again");
                control.emit(|| Event::Resumed);
            }
            (Mode::Running | Mode::Paused, _) => {
                let in_flight = self.dispatcher.in_flight();
                tracing::info!(target: CONTROL, pool, in_flight, "draining: running handlers finish");
                control.emit(|| Event::Draining);
            }
            _ => {}
        }
        if let Mode::Cancelling { .. } = mode {
            let in_flight = self.dispatcher.in_flight();
            tracing::info!(target: CONTROL, pool, in_flight, "cancelling: running handlers are cancelled");
        }
    }

    /// Publishes a snapshot of the statistics, if there is something new and the last one is old enough.
    pub(super) fn publish(&mut self, now: Instant) {
        let is_early = self.published_at.is_some_and(|at| now < at + PUBLISH_INTERVAL);
        if is_early || !(self.is_dirty || self.tally.is_fading()) {
            return;
        }
        (self.is_dirty, self.published_at) = (false, Some(now));
        let (in_flight, workers) = (self.dispatcher.in_flight(), self.dispatcher.active_workers());
        self.pool_metrics.level(in_flight, workers);
        let state = match self.dispatcher.mode() {
            Mode::Running => State::Running,
            Mode::Paused => State::Paused,
            Mode::Draining { .. } | Mode::Cancelling { .. } => State::Draining,
            Mode::Finished => State::Stopped,
        };
        let snapshot = self.tally.snapshot(state, in_flight, workers, now);
        self.pool.control.stats.send_replace(snapshot);
    }

    /// Returns when the next snapshot is due.
    pub(super) fn next_publish(&self, now: Instant) -> Option<Instant> {
        (self.is_dirty || self.tally.is_fading())
            .then(|| self.published_at.map_or(now, |at| at + PUBLISH_INTERVAL))
    }
}

/// Returns the event that listeners get.
fn public_event(event: DeliveryEvent, mailbox: &MailboxQueues) -> Option<Event> {
    let mut about = About::new(mailbox.queue.name().clone(), event.id, event.attempt);
    about.worker_id = event.worker.map(WorkerId);
    Some(match event.change {
        DeliveryChange::Received => Event::Received(about),
        DeliveryChange::Succeeded { took } => Event::Succeeded { about, took },
        DeliveryChange::Failed { failure, disposition } => Event::Failed {
            about,
            kind: failure.kind,
            terminal: disposition.is_terminal(failure.kind),
            error: failure.text,
        },
        DeliveryChange::Retried { delay } => Event::Retried { about, delay },
        DeliveryChange::Released { delay } => Event::Released { about, delay },
        DeliveryChange::Returned => Event::Returned(about),
        DeliveryChange::Parked { delay } => Event::Parked { about, delay },
        DeliveryChange::DeadLettered { failure, route, .. } => Event::DeadLettered {
            about,
            to: mailbox.dead_letters.get(route)?.name().clone(),
            error_type: failure.type_name,
            error: failure.text,
        },
        DeliveryChange::LeaseLost => Event::LeaseLost(about),
        DeliveryChange::Unconfirmed => Event::Unconfirmed(about),
        DeliveryChange::Extended | DeliveryChange::Shed => return None,
    })
}
