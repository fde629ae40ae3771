//! The tables behind the ids: images, cost centres, lines, processes, threads, each deduplicated by its identity.
//!
//! Names come from the programs that are profiled, so the hash is hashbrown's default, seeded at random.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::limits::MAX_STRING_BYTES;
use crate::model::{CostCentre, Image, Line, Membership, Process, Thread};

pub(crate) trait Identity {
    type Key<'a>: Hash + Eq
    where
        Self: 'a;
    fn key(&self) -> Self::Key<'_>;
}

impl Identity for Image {
    type Key<'a> = (&'a str, &'a [u8]);
    fn key(&self) -> Self::Key<'_> {
        (&self.name, &self.build_id)
    }
}

/// What tells apart functions of one name in one image: file and line, or the address where no file is known.
pub(crate) type DefinitionKey<'a> = (Option<&'a str>, Option<u64>);

impl Identity for CostCentre {
    type Key<'a> = (u32, Option<&'a str>, DefinitionKey<'a>);
    fn key(&self) -> Self::Key<'_> {
        let linkage = self.linkage_name.as_deref();
        let definition = match (linkage, self.local, self.file.as_deref()) {
            (Some(_), false, _) => (None, None),
            (Some(_), true, Some(file)) => (Some(file), Some(u64::from(self.line))),
            (Some(_), true, None) | (None, ..) => (None, self.start),
        };
        (self.image.0, linkage, definition)
    }
}

impl Identity for Line {
    type Key<'a> = (&'a str, u32);
    fn key(&self) -> Self::Key<'_> {
        (&self.file, self.line)
    }
}

impl Identity for Process {
    type Key<'a> = (u32, u64, u32, Option<(&'a str, Option<&'a Membership>)>);
    fn key(&self) -> Self::Key<'_> {
        if self.is_grouped() {
            return (0, 0, 0, Some((self.name.as_str(), self.membership.as_deref())));
        }
        (self.pid, self.start_time, self.exec_generation, None)
    }
}

impl Identity for Thread {
    type Key<'a> = (u32, u32);
    fn key(&self) -> Self::Key<'_> {
        (self.process.0, self.tid)
    }
}

#[derive(Debug)]
pub(crate) struct InternTable<T> {
    items: Vec<T>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl<T: Identity> InternTable<T> {
    pub(crate) fn new() -> Self {
        Self { items: Vec::new(), index: HashTable::new(), hasher: DefaultHashBuilder::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn items(&self) -> &[T] {
        &self.items
    }

    pub(crate) fn get(&self, i: u32) -> Option<&T> {
        self.items.get(i as usize)
    }

    pub(crate) fn get_mut(&mut self, i: u32) -> Option<&mut T> {
        self.items.get_mut(i as usize)
    }

    pub(crate) fn find<'a>(&'a self, key: &T::Key<'a>) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        self.index.find(hash, |&i| self.get(i).is_some_and(|item| item.key() == *key)).copied()
    }

    pub(crate) fn insert(&mut self, item: T) -> u32 {
        let hash = self.hasher.hash_one(item.key());
        let i = self.items.len() as u32;
        self.items.push(item);
        let (items, hasher) = (&self.items, &self.hasher);
        self.index.insert_unique(hash, i, |&i| items.get(i as usize).map_or(0, |item| hasher.hash_one(item.key())));
        i
    }

    pub(crate) fn bytes(&self) -> usize {
        self.items.capacity() * size_of::<T>() + self.index.allocation_size()
    }
}

#[derive(Debug)]
pub(crate) struct Files {
    names: HashTable<Arc<str>>,
    hasher: DefaultHashBuilder,
}

impl Files {
    pub(crate) fn new() -> Self {
        Self { names: HashTable::new(), hasher: DefaultHashBuilder::default() }
    }

    pub(crate) fn added_bytes(&self, name: &str) -> usize {
        let name = clip(name);
        let known = self.names.find(self.hasher.hash_one(name), |known| **known == *name);
        if known.is_some() { 0 } else { name.len() }
    }

    pub(crate) fn intern(&mut self, name: &str) -> Arc<str> {
        let name = clip(name);
        let hasher = &self.hasher;
        let hash = hasher.hash_one(name);
        if let Some(known) = self.names.find(hash, |known| **known == *name) {
            return Arc::clone(known);
        }
        let new: Arc<str> = name.into();
        self.names.insert_unique(hash, Arc::clone(&new), |name| hasher.hash_one(&**name));
        new
    }
}

/// At most [`MAX_STRING_BYTES`] of a string, cut between two characters.
pub(crate) fn clip(text: &str) -> &str {
    match text.len() {
        0..=MAX_STRING_BYTES => text,
        _ => &text[..text.floor_char_boundary(MAX_STRING_BYTES)],
    }
}

pub(crate) fn clip_string(text: &mut String) {
    let keep = clip(text).len();
    text.truncate(keep);
}
