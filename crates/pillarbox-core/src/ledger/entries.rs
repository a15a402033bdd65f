//! The messages of a ledger, by key and by id.

use std::ops::{Index, IndexMut};

use slab::Slab;

use super::EntryState;
use super::index::{IdIndex, Key};
use crate::MessageId;
use crate::message::RawMessage;

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) message: RawMessage,
    pub(super) state: EntryState,
}

/// Messages in a slab, with an index by id.
#[derive(Debug, Clone)]
pub(super) struct Entries {
    slab: Slab<Entry>,
    index: IdIndex,
}

impl Entries {
    pub(super) fn new() -> Self {
        Self { slab: Slab::new(), index: IdIndex::new() }
    }

    /// Adds a message, unless its id exists already.
    pub(super) fn insert(&mut self, entry: Entry) -> Option<Key> {
        let key = self.slab.vacant_key() as Key;
        let id_at = |key: Key| self.slab[key as usize].message.id;
        self.index.insert(entry.message.id, key, id_at).then(|| self.slab.insert(entry) as Key)
    }

    pub(super) fn find(&self, id: MessageId) -> Option<Key> {
        self.index.find(id, |key| self.slab[key as usize].message.id)
    }

    pub(super) fn remove(&mut self, key: Key) {
        let id_at = |key: Key| self.slab[key as usize].message.id;
        self.index.remove(id_at(key), key, id_at);
        self.slab.remove(key as usize);
    }

    pub(super) fn get(&self, key: Key) -> Option<&Entry> {
        self.slab.get(key as usize)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &Entry)> {
        self.slab.iter().map(|(key, entry)| (key as Key, entry))
    }

    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    pub(super) fn capacity(&self) -> usize {
        self.slab.capacity()
    }

    /// Returns whether the index has one key for each message.
    pub(super) fn index_is_complete(&self) -> bool {
        self.index.len() == self.slab.len()
    }
}

impl Index<Key> for Entries {
    type Output = Entry;

    fn index(&self, key: Key) -> &Entry {
        &self.slab[key as usize]
    }
}

impl IndexMut<Key> for Entries {
    fn index_mut(&mut self, key: Key) -> &mut Entry {
        &mut self.slab[key as usize]
    }
}
