//! Index from the id of a message to its key.

use std::collections::VecDeque;
use std::hash::BuildHasher;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use uuid::Uuid;

use crate::MessageId;

/// Key of a message in the slab. 32 bits are enough for all messages that fit into memory.
pub(super) type Key = u32;

/// Keys of messages, by id.
///
/// A single table for a million ids costs several cache misses per lookup, since hashing scatters the ids over the
/// whole table. UUIDv7 ids rise with time, and a queue adds new ids and removes old ones. So the ids are divided
/// into ranges, each with a small table of its own: sends work on the last table and settles near the first, and
/// both stay in the cache however many messages are in between.
///
/// The tables hold keys only, no ids: the caller passes `id_at`, which returns the id at a key.
///
/// Ids of other versions contain no time. They share one table, which is as fast as an ordinary map.
#[derive(Debug, Clone)]
pub(super) struct IdIndex {
    /// In order of `from`; never empty, and the first segment starts at the least id. An id belongs to the last
    /// segment whose `from` is not greater.
    segments: VecDeque<Segment>,
    /// Upper bound of the ids in the last segment, and not less than its `from`.
    newest: MessageId,
    /// Keys of ids that are not UUIDv7.
    others: HashTable<Key>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug, Clone)]
struct Segment {
    from: MessageId,
    keys: HashTable<Key>,
}

/// Length at which the last segment is closed and a new one is started.
const SEGMENT_LEN: usize = 4096;

const LEAST: MessageId = MessageId::from_uuid(Uuid::nil());

impl IdIndex {
    pub(super) fn new() -> Self {
        Self {
            segments: VecDeque::from([Segment { from: LEAST, keys: HashTable::new() }]),
            newest: LEAST,
            others: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
        }
    }

    pub(super) fn find(&self, id: MessageId, id_at: impl Fn(Key) -> MessageId) -> Option<Key> {
        let keys = match self.segment_of(id) {
            Some(at) => &self.segments[at].keys,
            None => &self.others,
        };
        keys.find(self.hash(id), |key| id_at(*key) == id).copied()
    }

    /// Adds the key of an id. Returns false, and does nothing, if the id exists already.
    pub(super) fn insert(
        &mut self,
        id: MessageId,
        key: Key,
        id_at: impl Fn(Key) -> MessageId,
    ) -> bool {
        self.start_segment_if_full(id);
        let (hash, hasher) = (self.hash(id), &self.hasher);
        let keys = match self.segment_of(id) {
            Some(at) => &mut self.segments[at].keys,
            None => &mut self.others,
        };
        let rehash = |key: &Key| hasher.hash_one(id_at(*key));
        match keys.entry(hash, |key| id_at(*key) == id, rehash) {
            Entry::Occupied(_) => false,
            Entry::Vacant(vacant) => {
                vacant.insert(key);
                true
            }
        }
    }

    /// Starts a new segment if the last one is full and `id` is greater than all of its ids.
    fn start_segment_if_full(&mut self, id: MessageId) {
        if id <= self.newest || !has_time(id) {
            return;
        }
        let last = self.segments.len() - 1;
        if self.segments[last].keys.len() >= SEGMENT_LEN {
            let keys = HashTable::with_capacity(SEGMENT_LEN);
            self.segments.push_back(Segment { from: id, keys });
        }
        self.newest = id;
    }

    /// Removes the key of an id.
    pub(super) fn remove(&mut self, id: MessageId, key: Key, id_at: impl Fn(Key) -> MessageId) {
        let (at, hash) = (self.segment_of(id), self.hash(id));
        let keys = match at {
            Some(at) => &mut self.segments[at].keys,
            None => &mut self.others,
        };
        if let Ok(entry) = keys.find_entry(hash, |other| *other == key) {
            entry.remove();
        }
        // Frees the memory of removed keys even if a few keys stay for long.
        if keys.len() < keys.capacity() / 16 && keys.capacity() > 64 {
            keys.shrink_to_fit(|key| self.hasher.hash_one(id_at(*key)));
        }
        if let Some(at) = at
            && keys.is_empty()
            && self.segments.len() > 1
        {
            self.drop_segment(at);
        }
    }

    pub(super) fn len(&self) -> usize {
        let timed: usize = self.segments.iter().map(|segment| segment.keys.len()).sum();
        timed + self.others.len()
    }

    /// Drops an empty segment. Its range of ids goes to the segment before it, or to the one after it if it is the
    /// first.
    fn drop_segment(&mut self, at: usize) {
        if at == self.segments.len() - 1 {
            self.newest = self.segments[at].from;
        }
        self.segments.remove(at);
        self.segments[0].from = LEAST;
    }

    /// Returns the segment of an id, if it is a UUIDv7.
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

/// Returns whether an id is a UUIDv7, and so rises with time.
fn has_time(id: MessageId) -> bool {
    id.as_uuid().get_version_num() == 7
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// UUIDv7 ids in order of their numbers; every fifth of the even ones is a UUIDv5.
    fn id(number: u64) -> MessageId {
        let version = if number % 10 == 4 { 0x5000 } else { 0x7000 };
        Uuid::from_u64_pair(number << 16 | version, 0b10 << 62).into()
    }

    #[test]
    fn many_ids_are_divided_into_segments_that_are_dropped_when_empty() {
        let mut index = IdIndex::new();
        let key = |number: u64| number as Key;
        let id_at = |key: Key| id(key.into());
        let count = 10 * SEGMENT_LEN as u64;
        for number in 0..count {
            assert!(index.insert(id(number), key(number), id_at));
            assert!(!index.insert(id(number), key(number), id_at));
        }
        // Nine of ten ids are in segments, and the tenth is in the shared table.
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
        fn the_index_behaves_like_a_map(steps in prop::collection::vec((any::<bool>(), 0..40u64), 1..80)) {
            let mut index = IdIndex::new();
            let mut map = BTreeMap::new();
            let id_at = |key: Key| id(key.into());
            for (insert, range) in steps {
                // A whole range at a time, so that segments fill up.
                for number in (range * 1000..(range + 1) * 1000).step_by(2) {
                    let key = number as Key;
                    if insert {
                        let new = map.insert(number, key).is_none();
                        prop_assert_eq!(index.insert(id(number), key, id_at), new);
                    } else if map.remove(&number).is_some() {
                        index.remove(id(number), key, id_at);
                    }
                }
                prop_assert_eq!(index.len(), map.len());
                for number in range * 1000..(range + 1) * 1000 {
                    prop_assert_eq!(index.find(id(number), id_at), map.get(&number).copied());
                }
            }
            for (number, key) in &map {
                prop_assert_eq!(index.find(id(*number), id_at), Some(*key));
            }
        }
    }
}
