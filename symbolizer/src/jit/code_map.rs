//! Generated code by address and time.

use hashbrown::HashMap;

/// Bits of an address within a page of the index.
const PAGE_BITS: u32 = 12;
/// Maximum pages of code indexed by page; larger pieces are few and always examined. (HotSpot's interpreter is one of
/// 250.)
const MAX_PAGES: u64 = 256;
/// Maximum larger pieces kept: a runtime has a handful.
const MAX_LARGE: usize = 256;
/// Maximum pieces examined in one search, latest first. Code at one address is rarely replaced a dozen times.
const MAX_SEARCH: usize = 4096;
/// Maximum pieces examined when one without a time is added, to forget hidden ones. A page holds 256 pieces of 16
/// bytes.
const MAX_HIDDEN_SEARCH: usize = 1024;
pub(super) const MAX_NAME_BYTES: usize = 4096;
/// Maximum bytes of a map. The map of a large Node service has 10 MiB.
const MAX_BYTES: usize = 64 << 20;

#[derive(Clone, Copy, Debug)]
struct CodePiece {
    start: u64,
    end: u64,
    from: u64,
    /// Position of the name in the store; an empty name means that the code is gone.
    name: (u32, u32),
}

impl CodePiece {
    fn covers(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }
}

/// The code at an address at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeAtTime<'a> {
    /// Name of the code; `None` if nothing is known there.
    pub name: Option<&'a str>,
    /// Start of validity, nanoseconds; 0 for ever.
    pub from: u64,
    /// End of validity as far as known, otherwise `u64::MAX`.
    pub until: u64,
}

/// Pieces of code by address and time; later ones replace those that they overlap. Adding takes at most [`MAX_PAGES`] +
/// [`MAX_HIDDEN_SEARCH`] steps, a search [`MAX_SEARCH`]. At most about 64 MiB; the rest is counted and omitted.
#[derive(Debug, Default)]
pub struct CodeMap {
    pieces: Vec<CodePiece>,
    names: String,
    pages: HashMap<u64, Vec<u32>>,
    large: Vec<u32>,
    /// Bytes of the lists in `pages`.
    list_bytes: usize,
    left_out: u64,
    /// Maximum bytes, if less than [`MAX_BYTES`].
    limit: Option<usize>,
}

impl CodeMap {
    /// Adds code at `start`, valid since `from` (nanoseconds; 0 if unknown). An empty name removes the code there.
    pub fn add(&mut self, start: u64, size: u64, from: u64, name: &str) {
        let Some(end) = start.checked_add(size).filter(|&end| end > start) else { return };
        let name = &name[..name.floor_char_boundary(MAX_NAME_BYTES)];
        let (first, last) = (start >> PAGE_BITS, (end - 1) >> PAGE_BITS);
        let large = last - first >= MAX_PAGES;
        let pages = if large { 1 } else { (last - first + 1) as usize };
        if self.bytes() + self.growth(name.len(), pages) > self.limit.unwrap_or(MAX_BYTES)
            || large && self.large.len() >= MAX_LARGE
            || self.pieces.len() >= u32::MAX as usize
        {
            self.left_out += 1;
            return;
        }
        let number = self.pieces.len() as u32;
        let name_at = self.names.len() as u32;
        self.names.push_str(name);
        self.pieces.push(CodePiece { start, end, from, name: (name_at, name.len() as u32) });
        if large {
            self.large.push(number);
            return;
        }
        for page in first..=last {
            let numbers = self.pages.entry(page).or_default();
            if from == 0 {
                // Without times, a piece that is completely covered can no longer be found.
                let pieces = &self.pieces;
                let hidden =
                    |old: &mut u32| pieces.get(*old as usize).is_some_and(|old| start <= old.start && old.end <= end);
                let latest = numbers.len().saturating_sub(MAX_HIDDEN_SEARCH / pages);
                numbers.extract_if(latest.., hidden).for_each(drop);
            }
            let before = list_bytes(numbers);
            numbers.push(number);
            self.list_bytes += list_bytes(numbers) - before;
        }
    }

    /// The code at an address at a time.
    #[must_use]
    pub fn find(&self, address: u64, time: u64) -> CodeAtTime<'_> {
        let page = self.pages.get(&(address >> PAGE_BITS)).map_or(&[][..], Vec::as_slice);
        let (mut until, mut steps) = (u64::MAX, 0);
        // Both lists are in order of arrival: the later of their last entries is next.
        let (mut page, mut large) = (page, self.large.as_slice());
        loop {
            let from_page = match (page.last(), large.last()) {
                (None, None) => break,
                (a, b) => a >= b,
            };
            let list = if from_page { &mut page } else { &mut large };
            let Some((&number, rest)) = list.split_last() else { break };
            *list = rest;
            steps += 1;
            if steps > MAX_SEARCH {
                break;
            }
            let Some(piece) = self.pieces.get(number as usize).filter(|piece| piece.covers(address)) else { continue };
            if piece.from > time {
                until = until.min(piece.from);
                continue;
            }
            let (at, len) = (piece.name.0 as usize, piece.name.1 as usize);
            let name = self.names.get(at..at + len).filter(|name| !name.is_empty());
            return CodeAtTime { name, from: piece.from, until };
        }
        CodeAtTime { name: None, from: 0, until }
    }

    /// Limits the bytes from now on. Existing pieces stay.
    pub fn limit(&mut self, bytes: usize) {
        self.limit = Some(bytes.min(MAX_BYTES));
    }

    /// Forgets everything, as when a file is rewritten.
    pub fn clear(&mut self) {
        *self = CodeMap { left_out: self.left_out, limit: self.limit, ..CodeMap::default() };
    }

    /// Number of pieces that did not fit.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Number of pieces added.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether no piece was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes allocated.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let pieces = self.pieces.capacity() * size_of::<CodePiece>();
        pieces + self.names.capacity() + self.pages.allocation_size() + self.list_bytes
    }

    /// What another piece may take, about: what is full is copied to twice the room. Long lists are counted once they have grown.
    fn growth(&self, name: usize, pages: usize) -> usize {
        let of = |fits: bool, held: usize, more: usize| if fits { 0 } else { held.max(more) };
        let room = self.pieces.capacity() - self.pieces.len();
        of(room > 0, self.pieces.capacity() * size_of::<CodePiece>(), 4 * size_of::<CodePiece>())
            + of(self.names.capacity() - self.names.len() >= name, self.names.capacity(), name)
            + of(self.pages.capacity() - self.pages.len() >= pages, 2 * self.pages.allocation_size(), pages * 32)
            + pages * LIST_GROWTH
    }
}

/// What a list takes, with what the allocator keeps for it.
fn list_bytes(numbers: &Vec<u32>) -> usize {
    if numbers.capacity() == 0 { 0 } else { numbers.capacity() * size_of::<u32>() + 16 }
}

/// What a new list takes.
const LIST_GROWTH: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_that_covers_wins_byte_by_byte() {
        // Compared with a naive model, with and without times: the last of all pieces that cover an address.
        for timed in [false, true] {
            let mut seed = 7u64;
            let mut random = |n: u64| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (seed >> 33) % n
            };
            for _ in 0..50 {
                let mut map = CodeMap::default();
                let mut model: Vec<(u64, u64, u64, String)> = Vec::new();
                for i in 0..30u64 {
                    let (start, size) = (random(0x3000), random(0x2000));
                    let size = if random(10) == 0 { size << 10 } else { size };
                    let from = if timed { 10 * (i + 1) } else { 0 };
                    let name = if random(8) == 0 { String::new() } else { format!("f{i}") };
                    map.add(start, size, from, &name);
                    model.push((start, size, from, name));
                }
                for _ in 0..500 {
                    let (address, time) = (random(0x5000), random(320));
                    let covers = |p: &&(u64, u64, u64, String)| p.0 <= address && address < p.0 + p.1;
                    let expected = model.iter().rev().filter(covers).find(|p| p.2 <= time);
                    let until = model.iter().filter(covers).map(|p| p.2).filter(|&from| from > time).min();
                    let found = map.find(address, time);
                    assert_eq!(found.name, expected.map(|p| p.3.as_str()).filter(|name| !name.is_empty()));
                    assert_eq!((found.from, found.until), (expected.map_or(0, |p| p.2), until.unwrap_or(u64::MAX)));
                }
            }
        }
    }

    #[test]
    fn a_flood_of_pieces_is_bounded() {
        let mut map = CodeMap::default();
        let name = "x".repeat(5000);
        for i in 0..40_000u64 {
            map.add(i * 16, 16, 0, &name);
            map.add(0, u64::MAX, i, "everything");
            map.add(0x5000, 1 << 19, i, "half a megabyte");
            map.add(u64::MAX, 2, 0, "beyond the end");
            map.add(5, 0, 0, "empty");
        }
        assert!(map.left_out() > 0 && map.bytes() <= MAX_BYTES, "{} {}", map.left_out(), map.bytes());
        // Each piece is on 256 pages of its own.
        let mut map = CodeMap::default();
        (0..6_000u64).for_each(|i| map.add(i << 20, 0xf_f000, 0, "a"));
        assert!(map.left_out() > 0 && map.bytes() <= MAX_BYTES, "{} {}", map.left_out(), map.bytes());
        assert!(map.pages.len() > 300_000, "{}", map.pages.len());
        // Pieces on many pages that hide none of many others: examining all of them on every page would take hours.
        let mut map = CodeMap::default();
        (0..4095u64).for_each(|i| map.add(i, 255 << PAGE_BITS, 0, "a"));
        (0..500u64).for_each(|_| map.add(4095, 255 << PAGE_BITS, 0, "b"));
        assert_eq!((map.find(4094, 0).name, map.find(4095, 0).name), (Some("a"), Some("b")));
        // A search of the most crowded address is also fast.
        let mut map = CodeMap::default();
        (1..400_000u64).for_each(|i| map.add(0x1000 + i % 64, 1, i, "a"));
        for i in 0..10_000 {
            assert_eq!(map.find(0x1800, i).name, None);
        }
    }
}
