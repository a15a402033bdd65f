//! From the id of a message to its place.

use std::collections::VecDeque;
use std::hash::BuildHasher;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use uuid::Uuid;

use super::entries::Key;
use crate::MessageId;

/// Places of messages, by id.
///
/// One table for a million ids costs several cache misses per look-up, since a hash sends every
/// id to another corner of it. Ids of version 7 rise with time, and a queue adds at one end of
/// time and takes from the other: so the ids are cut into stretches, each with a small table of
/// its own. Sends then work on the last table and settles near the first, and both stay in the
/// cache however many messages lie in between.
///
/// Tables hold places only, and no ids: whoever asks tells by `id_at` which id is at a place.
///
/// Ids of other versions have no time in them; they share one table, and are as fast as in an
/// ordinary map.
#[derive(Debug, Clone)]
pub(super) struct IdIndex {
    /// In order of `from`; never empty, and the first is from the least id there is. An id
    /// belongs to the last segment that is from no later than it.
    segments: VecDeque<Segment>,
    /// No id in the last segment is greater, and the last segment is from no later.
    newest: MessageId,
    /// Places of ids that are not of version 7.
    others: HashTable<Key>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug, Clone)]
struct Segment {
    from: MessageId,
    places: HashTable<Key>,
}

/// The size at which the last segment is closed and a new one begun.
const SEGMENT_LEN: usize = 4096;

const LEAST: MessageId = MessageId::from_uuid(Uuid::nil());

impl IdIndex {
    pub(super) fn new() -> Self {
        Self {
            segments: VecDeque::from([Segment { from: LEAST, places: HashTable::new() }]),
            newest: LEAST,
            others: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
        }
    }

    pub(super) fn find(&self, id: MessageId, id_at: impl Fn(Key) -> MessageId) -> Option<Key> {
        let places = match self.segment_of(id) {
            Some(at) => &self.segments[at].places,
            None => &self.others,
        };
        places.find(self.hash(id), |key| id_at(*key) == id).copied()
    }

    /// Adds the place of an id. Says no, and does nothing, if the id is here already.
    pub(super) fn insert(
        &mut self,
        id: MessageId,
        key: Key,
        id_at: impl Fn(Key) -> MessageId,
    ) -> bool {
        self.begin_segment_if_full(id);
        let (hash, hasher) = (self.hash(id), &self.hasher);
        let places = match self.segment_of(id) {
            Some(at) => &mut self.segments[at].places,
            None => &mut self.others,
        };
        let rehash = |key: &Key| hasher.hash_one(id_at(*key));
        match places.entry(hash, |key| id_at(*key) == id, rehash) {
            Entry::Occupied(_) => false,
            Entry::Vacant(vacant) => {
                vacant.insert(key);
                true
            }
        }
    }

    /// Closes the last segment if it is full and `id` is beyond all that it holds.
    fn begin_segment_if_full(&mut self, id: MessageId) {
        if id <= self.newest || !has_time(id) {
            return;
        }
        let last = self.segments.len() - 1;
        if self.segments[last].places.len() >= SEGMENT_LEN {
            let places = HashTable::with_capacity(SEGMENT_LEN);
            self.segments.push_back(Segment { from: id, places });
        }
        self.newest = id;
    }

    /// Removes the place of an id.
    pub(super) fn remove(&mut self, id: MessageId, key: Key, id_at: impl Fn(Key) -> MessageId) {
        let (at, hash) = (self.segment_of(id), self.hash(id));
        let places = match at {
            Some(at) => &mut self.segments[at].places,
            None => &mut self.others,
        };
        if let Ok(place) = places.find_entry(hash, |other| *other == key) {
            place.remove();
        }
        // A few that stay behind do not hold on to the room of the many that went.
        if places.len() < places.capacity() / 16 && places.capacity() > 64 {
            places.shrink_to_fit(|key| self.hasher.hash_one(id_at(*key)));
        }
        if let Some(at) = at
            && places.is_empty()
            && self.segments.len() > 1
        {
            self.drop_segment(at);
        }
    }

    pub(super) fn len(&self) -> usize {
        let timed: usize = self.segments.iter().map(|segment| segment.places.len()).sum();
        timed + self.others.len()
    }

    /// Drops an empty segment; its stretch of ids goes to the one before it, or if it is the
    /// first, to the one after it.
    fn drop_segment(&mut self, at: usize) {
        if at == self.segments.len() - 1 {
            self.newest = self.segments[at].from;
        }
        self.segments.remove(at);
        self.segments[0].from = LEAST;
    }

    /// The segment that an id belongs to, if it is of version 7.
    fn segment_of(&self, id: MessageId) -> Option<usize> {
        if !has_time(id) {
            return None;
        }
        let last = self.segments.len() - 1;
        Some(if self.segments[last].from <= id {
            last
        } else if id < self.segments[1].from {
            0
        } else {
            self.segments.partition_point(|segment| segment.from <= id) - 1
        })
    }

    fn hash(&self, id: MessageId) -> u64 {
        self.hasher.hash_one(id)
    }
}

/// Whether an id is of version 7, and so rises with time.
fn has_time(id: MessageId) -> bool {
    id.as_uuid().get_version_num() == 7
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Ids of version 7 in order of their numbers; every fifth of the even ones is of version 5.
    fn id(number: u64) -> MessageId {
        let version = if number % 10 == 4 { 0x5000 } else { 0x7000 };
        Uuid::from_u64_pair(number << 16 | version, 0b10 << 62).into()
    }

    #[test]
    fn a_long_line_is_cut_into_segments_that_go_when_they_are_empty() {
        let mut index = IdIndex::new();
        let key = |number: u64| number as Key;
        let id_at = |key: Key| id(key.into());
        let count = 10 * SEGMENT_LEN as u64;
        for number in 0..count {
            assert!(index.insert(id(number), key(number), id_at));
            assert!(!index.insert(id(number), key(number), id_at));
        }
        // Nine of ten ids are in segments, and the other one in a table beside them.
        assert_eq!((index.segments.len(), index.len() as u64), (9, count));
        for number in 0..count {
            assert_eq!(index.find(id(number), id_at), Some(key(number)));
            index.remove(id(number), key(number), id_at);
            assert_eq!(index.find(id(number), id_at), None);
        }
        assert_eq!((index.segments.len(), index.len()), (1, 0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Any order of ids, with segments of every age emptied and filled again.
        #[test]
        fn finds_what_a_map_finds(steps in prop::collection::vec((any::<bool>(), 0..40u64), 1..80)) {
            let mut index = IdIndex::new();
            let mut map = BTreeMap::new();
            let id_at = |key: Key| id(key.into());
            for (insert, stretch) in steps {
                // A whole stretch at a time, so that segments fill up.
                for number in (stretch * 1000..(stretch + 1) * 1000).step_by(2) {
                    let key = number as Key;
                    if insert {
                        let new = map.insert(number, key).is_none();
                        prop_assert_eq!(index.insert(id(number), key, id_at), new);
                    } else if map.remove(&number).is_some() {
                        index.remove(id(number), key, id_at);
                    }
                }
                prop_assert_eq!(index.len(), map.len());
                for number in stretch * 1000..(stretch + 1) * 1000 {
                    prop_assert_eq!(index.find(id(number), id_at), map.get(&number).copied());
                }
            }
            for (number, key) in &map {
                prop_assert_eq!(index.find(id(*number), id_at), Some(*key));
            }
        }
    }
}
