//! The timers of a ledger, in order of time.

use std::collections::BTreeMap;

use super::index::Key;
use crate::clock::Timestamp;

/// Time at which a message becomes ready by itself. Unique within a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Due {
    pub(super) at: Timestamp,
    /// Orders timers with the same time by when they were set.
    pub(super) seq: u64,
}

/// Messages that become ready when their lease expires or their delay elapses, in order of time.
///
/// Every command looks at the first timer, so it is kept beside the others. A queue with one message in flight at a
/// time needs no tree.
#[derive(Debug, Clone, Default)]
pub(super) struct Timers {
    /// Before all others. `None`: there are no timers.
    first: Option<(Due, Key)>,
    others: BTreeMap<Due, Key>,
}

impl Timers {
    pub(super) fn insert(&mut self, due: Due, key: Key) {
        let later = match self.first {
            Some(first) if first.0 < due => Some((due, key)),
            _ => self.first.replace((due, key)),
        };
        if let Some((due, key)) = later {
            self.others.insert(due, key);
        }
    }

    pub(super) fn remove(&mut self, due: Due) {
        if self.first.is_some_and(|(first, _)| first == due) {
            self.first = self.others.pop_first();
        } else {
            self.others.remove(&due);
        }
    }

    /// Removes the first timer if it is due at `now`, and returns its key.
    pub(super) fn pop_due(&mut self, now: Timestamp) -> Option<Key> {
        let (_, key) = self.first.filter(|(due, _)| due.at <= now)?;
        self.first = self.others.pop_first();
        Some(key)
    }

    /// Returns the time of the first timer.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.first.map(|(due, _)| due.at)
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.len()
    }

    /// Returns all timers, in order of time.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Due, Key)> {
        self.first.into_iter().chain(self.others.iter().map(|(due, key)| (*due, *key)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn due(at: i64) -> Due {
        Due { at: Timestamp::from_secs(at), seq: 0 }
    }

    proptest! {
        /// Each step sets a timer, removes one that may exist, or takes those that are due.
        #[test]
        fn timers_behave_like_a_map(steps in prop::collection::vec((0..3u8, 0..20i64), 0..80)) {
            let mut timers = Timers::default();
            let mut map = BTreeMap::new();
            for (step, at) in steps {
                match step {
                    0 => {
                        if map.insert(due(at), at as Key).is_none() {
                            timers.insert(due(at), at as Key);
                        }
                    }
                    1 => {
                        timers.remove(due(at));
                        map.remove(&due(at));
                    }
                    _ => {
                        let now = Timestamp::from_secs(at);
                        while let Some(key) = timers.pop_due(now) {
                            prop_assert_eq!(map.pop_first().map(|(_, key)| key), Some(key));
                        }
                        prop_assert!(map.keys().all(|due| due.at > now));
                    }
                }
                prop_assert_eq!(timers.len(), map.len());
                prop_assert_eq!(timers.next_due(), map.keys().next().map(|due| due.at));
                prop_assert!(timers.iter().eq(map.iter().map(|(due, key)| (*due, *key))));
            }
        }
    }
}
