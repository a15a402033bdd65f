//! Dead-lettering: the dead letter is stored, then the error reply is sent, then the hooks run, then the message
//! is acknowledged.
//!
//! Every step can be repeated: the ids of a dead letter and of its error reply are derived from the message. If
//! the process ends in between, the message comes back, and storing the same dead letter again has no effect.

use std::time::Duration;

use pillarbox_core::clock::later;
use pillarbox_core::internal::RetryDelay;
use pillarbox_core::{Error, Result};
use tokio::time::Instant;

use super::Dispatcher;
use super::in_flight::{DeadLetterStep, Intent, Key, Stage};
use super::protocol::{Action, NewDeadLetter, StoredDeadLetter};
use crate::outcome::FailureDetails;

/// Number of tries to store a dead letter before its message is parked.
const MAX_STORE_TRIES: u32 = 7;
/// The delay after the first failure; doubles with each.
const STORE_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Number of tries to send an error reply before it is given up.
const MAX_REPLY_TRIES: u32 = 5;
/// The delay after the first failure; doubles with each.
const REPLY_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

impl Dispatcher {
    pub(super) fn dead_letter(&mut self, key: Key, failure: FailureDetails, route: usize) {
        let Some(delivery) = self.in_flight.get_mut(key) else { return };
        let step = DeadLetterStep::Storing;
        delivery.stage = Stage::DeadLettering { failure, route, failures: 0, step };
        self.store_dead_letter(key);
    }

    fn store_dead_letter(&mut self, key: Key) {
        let Some(delivery) = self.in_flight.get(key) else { return };
        if delivery.is_lost() {
            // Another consumer may have the message, and succeed.
            self.in_flight.remove(key);
            return;
        }
        let Stage::DeadLettering { failure, route, .. } = &delivery.stage else { return };
        self.actions.push_back(Action::StoreDeadLetter(NewDeadLetter {
            key,
            source: delivery.source,
            worker: delivery.worker,
            message: delivery.message.clone(),
            attempt: delivery.attempt,
            failure: failure.clone(),
            route: *route,
        }));
    }

    pub(super) fn dead_letter_stored(
        &mut self,
        key: Key,
        result: Result<StoredDeadLetter>,
        now: Instant,
    ) {
        let is_ending = self.mode.is_ending();
        let Some(delivery) = self.in_flight.get_mut(key) else { return };
        let source = delivery.source;
        let Stage::DeadLettering { failures, step, .. } = &mut delivery.stage else { return };
        match result {
            Ok(StoredDeadLetter { ids, has_reply: true }) => {
                (*failures, *step) = (0, DeadLetterStep::Replying(ids));
                self.actions.push_back(Action::SendErrorReply { key });
            }
            Ok(StoredDeadLetter { ids, has_reply: false }) => {
                *step = DeadLetterStep::Reporting(ids);
                self.actions.push_back(Action::ReportDeadLetter { key, reply_error: None });
            }
            Err(_) if is_ending => self.settle(key, Intent::Return),
            Err(error) if is_retryable(&error) && *failures + 1 < MAX_STORE_TRIES => {
                *failures += 1;
                let delay = RetryDelay::after(STORE_RETRY_DELAY, MAX_RETRY_DELAY, *failures);
                self.dead_letter_retries.push((later(now, delay), key));
            }
            // It comes back, fails, and becomes a dead letter again: with the same id, so there will be one.
            Err(_) => {
                let delay = self.sources[source].settings.park;
                self.settle(key, Intent::Park { delay, is_uncounted: false });
            }
        }
    }

    pub(super) fn error_reply_sent(&mut self, key: Key, result: Result<()>, now: Instant) {
        let Some(delivery) = self.in_flight.get_mut(key) else { return };
        let Stage::DeadLettering { failures, step, .. } = &mut delivery.stage else { return };
        let DeadLetterStep::Replying(ids) = *step else { return };
        match result {
            Err(error) if error.is_transient() && *failures + 1 < MAX_REPLY_TRIES => {
                *failures += 1;
                let delay = RetryDelay::after(REPLY_RETRY_DELAY, MAX_RETRY_DELAY, *failures);
                self.dead_letter_retries.push((later(now, delay), key));
            }
            result => {
                *step = DeadLetterStep::Reporting(ids);
                let reply_error = result.err();
                self.actions.push_back(Action::ReportDeadLetter { key, reply_error });
            }
        }
    }

    pub(super) fn dead_letter_reported(&mut self, key: Key) {
        let Some(delivery) = self.in_flight.get(key) else { return };
        let Stage::DeadLettering { failure, route, step, .. } = &delivery.stage else { return };
        let DeadLetterStep::Reporting(ids) = *step else { return };
        let intent = Intent::DeadLetter { failure: failure.clone(), route: *route, ids };
        self.settle(key, intent);
    }

    /// Repeats the steps that failed and are due. At the end of the pool, the last try to store a dead letter is
    /// made at once.
    pub(super) fn retry_dead_letters(&mut self, now: Instant) {
        if self.dead_letter_retries.is_empty() {
            return;
        }
        let (in_flight, is_ending) = (&self.in_flight, self.mode.is_ending());
        let is_due = |(at, key): &mut (Instant, Key)| {
            *at <= now || (is_ending && in_flight.get(*key).is_none_or(|it| is_storing(&it.stage)))
        };
        let due: Vec<_> = self.dead_letter_retries.extract_if(.., is_due).collect();
        for (_, key) in due {
            match self.in_flight.get(key).map(|delivery| is_storing(&delivery.stage)) {
                Some(true) => self.store_dead_letter(key),
                Some(false) => self.actions.push_back(Action::SendErrorReply { key }),
                None => {}
            }
        }
    }
}

const fn is_storing(stage: &Stage) -> bool {
    matches!(stage, Stage::DeadLettering { step: DeadLetterStep::Storing, .. })
}

/// Returns whether another try may succeed: an error in the dead letter itself is permanent.
const fn is_retryable(error: &Error) -> bool {
    !matches!(error, Error::InvalidParameter { .. } | Error::Serialization { .. })
}
