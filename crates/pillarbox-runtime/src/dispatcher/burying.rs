//! Dead letters on their way: stored first, then acknowledged.
//!
//! A dead letter has an id that comes from its message. Whatever ends in between, the message comes back
//! and the same dead letter is stored once more, which stores nothing.

use pillarbox_core::clock::later;
use pillarbox_core::{Error, Result};
use tokio::time::Instant;

use super::held::{Intent, Place};
use super::protocol::Burial;
use super::source::growing;
use super::{Action, Dispatcher, FailureNote, Key, LetterNote};

/// How often it is tried to store a dead letter, within some seconds, until its message is parked.
const MOST_TRIES: u32 = 7;

impl Dispatcher {
    pub(super) fn bury(&mut self, key: Key, failure: FailureNote, route: usize) {
        let Some(held) = self.held.get_mut(key) else { return };
        held.place = Place::Burying { failure, route, tries: 0 };
        self.store(key);
    }

    fn store(&mut self, key: Key) {
        let Some(held) = self.held.get(key) else { return };
        if held.is_lost() {
            // Somebody else has it, and may succeed.
            self.held.remove(key);
            return;
        }
        let Place::Burying { failure, route, .. } = &held.place else { return };
        self.actions.push_back(Action::Bury(Burial {
            key,
            source: held.source,
            worker: held.worker,
            message: held.message.clone(),
            attempt: held.attempt,
            failure: failure.clone(),
            route: *route,
        }));
    }

    /// A dead letter was stored, or not.
    pub(super) fn buried(&mut self, key: Key, answer: Result<LetterNote>, now: Instant) {
        let (backoff, is_ending) = (self.settings.backoff, self.mode.is_ending());
        let Some(held) = self.held.get_mut(key) else { return };
        let source = held.source;
        let Place::Burying { failure, route, tries } = &mut held.place else { return };
        match answer {
            Ok(letter) => {
                let intent = Intent::Bury { failure: failure.clone(), route: *route, letter };
                self.settle(key, intent);
            }
            Err(_) if is_ending => self.settle(key, Intent::Return),
            Err(error) if is_worth_another_try(&error) && *tries + 1 < MOST_TRIES => {
                let at = later(now, growing(backoff, *tries));
                *tries += 1;
                self.burials.push((at, key));
            }
            // It comes back, fails, and is to be buried again: under the same id, so there will be one.
            Err(_) => {
                let delay = self.sources[source].settings.park;
                self.settle(key, Intent::Park { delay, is_spared: false });
            }
        }
    }

    /// Tries again to store dead letters that could not be.
    pub(super) fn bury_again(&mut self, now: Instant) {
        let is_ending = self.mode.is_ending();
        let due: Vec<Key> = self
            .burials
            .extract_if(.., |(at, _)| is_ending || *at <= now)
            .map(|(_, key)| key)
            .collect();
        due.into_iter().for_each(|key| self.store(key));
    }
}

/// What is wrong with a dead letter itself does not change.
const fn is_worth_another_try(error: &Error) -> bool {
    !matches!(error, Error::InvalidParameter { .. } | Error::Serialization { .. })
}
