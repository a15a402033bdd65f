//! Messages that may take the whole process down when they are handled.
//!
//! Such a message never fails: its lease ends, and so do those of all that were in hand beside it. Which
//! of them it was cannot be told from the queue's count of deliveries that nobody settled, for it is the
//! same for all. So a message with some of those is a *suspect* and runs alone: what is running comes to
//! its end, what is not begun goes back, and so do other suspects. If the process ends then, one more
//! unsettled delivery is counted for this message and no other. Others are cleared by coming to an end, well
//! or not; the one comes to the limit, and is quarantined: a dead letter before it is run.
//!
//! The queue's count never falls, so this process remembers at which count a message was cleared. Others do
//! not know of it, and clear it once more.

use std::time::Duration;

use pillarbox_core::RawMessage;
use pillarbox_core::clock::later;
use tokio::time::Instant;

use super::held::{Held, Intent, Place};
use super::memory::Memory;
use super::{Dispatcher, FailureNote, Key, SourceSettings, Then, What};
use crate::outcome::FailureKind;

/// After so many deliveries that nobody settled, a message is a suspect. One may be bad luck.
const SUSPECT_AFTER: u32 = 2;
/// A backend that does not count them raises the count of deliveries for other reasons, too: when others
/// stop, release, or do not know a kind.
const ROOM: u32 = 10;
/// How far apart suspects come back that had to give way to another.
pub(crate) const STAGGER: Duration = Duration::from_millis(500);

/// When a message is quarantined, and where it goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quarantine {
    /// After so many deliveries that nobody settled.
    pub(crate) after: u32,
    /// Which of the places for dead letters it goes to. `None`: there are none.
    pub(crate) route: Option<usize>,
    /// Whether the backend counts deliveries that nobody settled.
    pub(crate) is_exact: bool,
    /// [`STAGGER`], as the backend takes it.
    pub(crate) stagger: Duration,
}

/// What is thought of a message that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Suspicion {
    None,
    /// It is to run alone.
    Suspect,
    /// It is not to run at all, and goes there.
    Proven {
        route: usize,
    },
}

impl Quarantine {
    /// After how many it is, of messages that have so many attempts, unless it is said otherwise: never
    /// before a message has run alone.
    pub(crate) fn usual(attempts: u32) -> u32 {
        attempts.max(SUSPECT_AFTER + 1)
    }

    /// Number of earlier deliveries that speak against a message, of which this is that attempt.
    fn strikes(&self, message: &RawMessage, attempt: u32) -> u32 {
        if self.is_exact { message.unsettled } else { attempt.saturating_sub(1) }
    }

    /// What is thought of a message that so many speak against.
    fn suspicion(&self, strikes: u32) -> Suspicion {
        let (most, some) = if self.is_exact {
            (self.after, SUSPECT_AFTER)
        } else {
            (self.after.saturating_add(ROOM), self.after)
        };
        match self.route {
            Some(route) if strikes >= most => Suspicion::Proven { route },
            _ if strikes >= some => Suspicion::Suspect,
            _ => Suspicion::None,
        }
    }
}

/// The suspects that are here, and the one that runs.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    /// They wait for their turn to run alone.
    waiting: Vec<Key>,
    /// It runs, alone until then.
    running: Option<(Key, Instant)>,
    /// Until when the first waits for what is running.
    patience: Option<Instant>,
    /// How many deliveries spoke against messages that came to an end all the same.
    cleared: Memory,
}

impl Suspects {
    /// Nothing else may be received or begun.
    pub(super) fn is_any(&self) -> bool {
        self.running.is_some() || !self.waiting.is_empty()
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        let alone = self.running.map(|(_, until)| until);
        self.patience.into_iter().chain(alone).min()
    }

    /// Those that have not run.
    pub(super) fn take(&mut self) -> Vec<Key> {
        self.patience = None;
        std::mem::take(&mut self.waiting)
    }
}

impl Dispatcher {
    /// A suspect was received. It waits until it can be alone.
    pub(super) fn suspect(&mut self, key: Key) {
        if self.suspects.running.is_some() {
            return self.stand_aside(key, 1);
        }
        if let Some(held) = self.held.get_mut(key) {
            held.place = Place::Backlog;
            self.suspects.waiting.push(key);
            // What they would bring would be in hand beside it.
            self.cancel_fetches();
        }
    }

    /// What is thought of a message that was received.
    pub(super) fn suspicion(&self, source: usize, message: &RawMessage) -> Suspicion {
        let cleared = self.suspects.cleared.of((source, message.id));
        let strikes = self.strikes(source, message).saturating_sub(cleared);
        self.sources[source].settings.quarantine.suspicion(strikes)
    }

    /// The handler of a message has come to an end.
    pub(super) fn clear(&mut self, key: Key) {
        let Some(held) = self.held.get(key) else { return };
        let of = (held.source, held.message.id);
        let strikes = self.strikes(held.source, &held.message);
        if strikes > 0 {
            self.suspects.cleared.set(of, strikes);
        }
    }

    fn strikes(&self, source: usize, message: &RawMessage) -> u32 {
        let attempt = self.attempt(source, message);
        self.sources[source].settings.quarantine.strikes(message, attempt)
    }

    pub(super) fn quarantine(&mut self, key: Key, route: usize) {
        let Some(held) = self.held.get(key) else { return };
        let RawMessage { delivery_count, unsettled, .. } = *held.message;
        let text = format!(
            "not run again after {delivery_count} deliveries, of which {unsettled} were started and \
             never settled: it may take down the process that handles it"
        );
        let kind = FailureKind::Quarantined;
        let (text, causes) = (text.into(), [].into());
        let failure = FailureNote { kind, type_name: kind.as_str(), text, causes };
        self.note(key, What::Failed { failure: failure.clone(), then: Then::Bury { route } });
        self.bury(key, failure, route);
    }

    /// Lets a suspect run, once it is alone.
    pub(super) fn run_suspects(&mut self, now: Instant) {
        if !self.suspects.is_any() {
            return;
        }
        // One that takes longer than a lease is not waited for: all would stand still for it.
        let is_over = |(key, until)| self.held.get(key).is_none() || now >= until;
        if self.suspects.running.is_some_and(is_over) {
            self.suspects.running = None;
        }
        let is_here = |key: &Key| self.held.get(*key).is_some_and(Held::is_waiting);
        self.suspects.waiting.retain(is_here);
        if self.suspects.running.is_some() || self.mode.is_ending() {
            return;
        }
        let Some(&first) = self.suspects.waiting.first() else {
            self.suspects.patience = None;
            return;
        };
        // The others would be taken for suspects even more, if this is the one. They come back one by one.
        for (place, other) in self.suspects.waiting.split_off(1).into_iter().enumerate() {
            self.stand_aside(other, place as u32 + 1);
        }
        self.give_way(first);
        let visibility = self.held.get(first).map(|held| held.source);
        let visibility = visibility.map(|source| self.sources[source].settings.visibility);
        let in_a_lease = later(now, visibility.unwrap_or_default());
        let until = *self.suspects.patience.get_or_insert(in_a_lease);
        // Nor is what was running before.
        if self.held.len() == 1 || now >= until {
            self.suspects.patience = None;
            self.suspects.waiting.clear();
            self.suspects.running = Some((first, in_a_lease));
            self.seat(first);
        }
    }

    /// Gives back whatever was not begun, but for one.
    fn give_way(&mut self, first: Key) {
        for worker in 0..self.seats.len() {
            for key in self.take_back(worker, usize::MAX) {
                self.settle(key, Intent::Return);
            }
        }
        let waiting: Vec<Key> = self
            .held
            .iter()
            .filter(|(key, held)| *key != first && held.is_waiting())
            .map(|(key, _)| key)
            .collect();
        waiting.into_iter().for_each(|key| self.settle(key, Intent::Return));
    }

    /// Gives back a suspect, for another one runs first.
    fn stand_aside(&mut self, key: Key, turn: u32) {
        let Some(source) = self.held.get(key).map(|held| held.source) else { return };
        let SourceSettings { quarantine, park, .. } = self.sources[source].settings;
        let delay = quarantine.stagger.saturating_mul(turn).min(park);
        self.settle(key, Intent::Release { delay });
    }
}
