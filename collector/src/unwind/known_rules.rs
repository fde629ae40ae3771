//! The rules of known addresses and of the functions around them.
//!
//! A sample's address is nearly always new, in a known function. Finding its row takes some hundred times as long
//! as the rest of the frame, so all rows of a function are read with its first address.

use std::ops::Range;

use super::rule::FrameRule;

/// Places for addresses, 16 bytes each: at first, and at most (1 MiB). A run of a compiler is met at 30,000 addresses.
const FIRST_PLACES: usize = 1 << 10;
const MAX_PLACES: usize = 1 << 16;
/// Places for an address: a cache line. If all are taken, one is replaced; its function is still known.
const WAYS: usize = 4;
/// Rows of functions remembered, 12 bytes each, and functions, 24 bytes each, at most.
const MAX_ROWS: usize = 1 << 17;
const MAX_FUNCTIONS: usize = 1 << 14;
/// Places and functions take an eighth of a budget each, rows a quarter; the rest is for what is remembered elsewhere.
const PART: u64 = 8;

/// What a function takes, bytes: a vector that grows may be twice as large.
const FUNCTION_BYTES: usize = 2 * (size_of::<u64>() + size_of::<FunctionRows>());

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionRules {
    pub range: Range<u64>,
    /// Where each row begins, from the beginning of the function, in order, and its rule if it has one.
    pub rows: Vec<(u32, Option<FrameRule>)>,
}

impl FunctionRules {
    /// Rows of one function; those that have more are examined address by address.
    pub const MAX_ROWS: usize = 1024;

    #[must_use]
    pub fn moved(mut self, distance: u64) -> FunctionRules {
        self.range = self.range.start.wrapping_add(distance)..self.range.end.wrapping_add(distance);
        self
    }
}

#[derive(Clone, Copy, Debug)]
struct FunctionRows {
    end: u64,
    first: u32,
    count: u32,
}

/// Addresses are of ccsd's own address space, see [`unwind`](super).
#[derive(Debug)]
pub struct KnownRules {
    most_places: usize,
    most_rows: usize,
    most_functions: usize,
    /// By a hash of the address. A power of two of them, at most half of them taken until there are the most.
    places: Vec<[(u64, Option<FrameRule>); WAYS]>,
    taken: usize,
    /// Where functions begin, in order, and the rest of what is known of each. A search touches the first alone.
    starts: Vec<u64>,
    functions: Vec<FunctionRows>,
    rows: Vec<(u32, Option<FrameRule>)>,
}

impl KnownRules {
    /// Empty, with a limit of half of so many bytes (a function or two may exceed it).
    pub fn within(bytes: u64) -> KnownRules {
        let entries = |parts: u64, size: usize, most: usize| {
            let entries = (bytes / PART).saturating_mul(parts) / size as u64;
            usize::try_from(entries).unwrap_or(most).min(most)
        };
        let places = entries(1, size_of::<(u64, Option<FrameRule>)>(), MAX_PLACES).max(FIRST_PLACES);
        KnownRules {
            most_places: (1 << places.ilog2()) / WAYS,
            most_rows: entries(2, size_of::<(u32, Option<FrameRule>)>(), MAX_ROWS),
            most_functions: entries(1, FUNCTION_BYTES, MAX_FUNCTIONS),
            places: Vec::new(),
            taken: 0,
            starts: Vec::new(),
            functions: Vec::new(),
            rows: Vec::new(),
        }
    }

    #[inline]
    pub fn find(&mut self, address: u64) -> Option<FrameRule> {
        let ways = self.places.get(place(address, self.places.len()));
        let met = ways.and_then(|ways| ways.iter().find(|way| way.0 == address)).and_then(|way| way.1);
        met.or_else(|| self.find_in_function(address))
    }

    #[cold]
    fn find_in_function(&mut self, address: u64) -> Option<FrameRule> {
        let function = self.starts.partition_point(|start| *start <= address).checked_sub(1)?;
        let (start, FunctionRows { end, first, count }) = (self.starts.get(function)?, *self.functions.get(function)?);
        if address >= end {
            return None;
        }
        let distance = u32::try_from(address - start).ok()?;
        let rows = self.rows.get(first as usize..)?.get(..count as usize)?;
        let after = rows.partition_point(|(start, _)| *start <= distance);
        let rule = rows.get(after.checked_sub(1)?)?.1?;
        self.insert(address, rule);
        Some(rule)
    }

    pub fn insert(&mut self, address: u64, rule: FrameRule) {
        if 2 * self.taken >= WAYS * self.places.len() && self.places.len() < self.most_places {
            let places = (2 * self.places.len()).max(FIRST_PLACES / WAYS);
            let before = std::mem::replace(&mut self.places, vec![[(0, None); WAYS]; places]);
            self.taken = 0;
            for (address, rule) in before.into_iter().flatten() {
                if let Some(rule) = rule {
                    self.put(address, rule);
                }
            }
        }
        self.put(address, rule);
    }

    fn put(&mut self, address: u64, rule: FrameRule) {
        let at = place(address, self.places.len());
        let Some(ways) = self.places.get_mut(at) else { return };
        let free = ways.iter().position(|way| way.1.is_none() || way.0 == address);
        self.taken += usize::from(free.is_some_and(|free| ways[free].1.is_none()));
        // The lowest bits of code addresses differ most.
        ways[free.unwrap_or(address as usize % WAYS)] = (address, Some(rule));
    }

    pub fn insert_function(&mut self, function: &FunctionRules) {
        let Range { start, end } = function.range;
        let mut at = self.starts.partition_point(|known| *known < start);
        let is_known = self.starts.get(at) == Some(&start);
        // A row without a rule has led here again.
        if is_known && self.functions.get(at).is_some_and(|known| known.end == end) {
            return;
        }
        if self.rows.len() + function.rows.len() > self.most_rows || self.functions.len() >= self.most_functions {
            self.forget_functions();
            at = 0;
        }
        let rows = FunctionRows { end, first: self.rows.len() as u32, count: function.rows.len() as u32 };
        self.rows.extend_from_slice(&function.rows);
        match self.functions.get_mut(at).filter(|_| is_known) {
            Some(known) => *known = rows,
            None => {
                self.starts.insert(at, start);
                self.functions.insert(at, rows);
            }
        }
    }

    fn forget_functions(&mut self) {
        self.starts.clear();
        self.functions.clear();
        self.rows.clear();
    }

    pub fn bytes(&self) -> usize {
        let places = self.places.capacity() * WAYS * size_of::<(u64, Option<FrameRule>)>();
        let rows = self.rows.capacity() * size_of::<(u32, Option<FrameRule>)>();
        places + rows + self.functions.len() * FUNCTION_BYTES
    }

    /// Forgets all: an image has gone, and another may come to stand in its place.
    pub fn clear(&mut self) {
        self.places = Vec::new();
        self.taken = 0;
        self.forget_functions();
        self.rows = Vec::new();
    }
}

/// The places of an address, of so many, a power of two, or none.
#[inline]
fn place(address: u64, places: usize) -> usize {
    // Fibonacci hashing: the upper bits of a product with 2^64 divided by the golden ratio.
    let hash = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    hash as usize & places.wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(words: u32) -> FrameRule {
        FrameRule::StackPointer { words }
    }

    fn function(start: u64) -> FunctionRules {
        let rows = vec![(0, Some(rule(1))), (4, Some(rule(2))), (0x10, None), (0x20, Some(rule(3)))];
        FunctionRules { range: start..start + 0x40, rows }
    }

    #[test]
    fn the_rows_of_a_function_stand_for_all_its_addresses() {
        let mut known = KnownRules::within(1 << 30);
        assert_eq!((known.find(0x1010), known.find(0)), (None, None));
        known.insert_function(&function(0x1000));
        known.insert(0x5000, rule(9));
        for (address, expected) in [
            (0xfff, None),
            (0x1000, Some(rule(1))),
            (0x1003, Some(rule(1))),
            (0x1004, Some(rule(2))),
            (0x100f, Some(rule(2))),
            (0x1010, None),
            (0x101f, None),
            (0x103f, Some(rule(3))),
            (0x1040, None),
            (0x5000, Some(rule(9))),
            (0x5001, None),
        ] {
            assert_eq!(known.find(address), expected, "{address:#x}");
            assert_eq!(known.find(address), expected, "{address:#x} again");
        }
        known.clear();
        assert_eq!((known.find(0x1000), known.find(0x5000)), (None, None));
    }

    #[test]
    fn finds_the_rules_put_in() {
        let mut known = KnownRules::within(1 << 30);
        let of = |address: u64| rule((address % 0xffff) as u32 + 1);
        for i in 0..4 * MAX_PLACES as u64 {
            let address = i * 13;
            known.insert(address, of(address));
            assert_eq!(known.find(address), Some(of(address)));
            let earlier = i / 2 * 13;
            assert!(known.find(earlier).is_none_or(|found| found == of(earlier)));
        }
        let there = (0..4 * MAX_PLACES as u64).filter(|i| known.find(i * 13).is_some()).count();
        assert!((MAX_PLACES / 2..=MAX_PLACES).contains(&there), "{there}");
        assert!(known.places.len() * WAYS == MAX_PLACES);
    }

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let mut known = KnownRules::within(1 << 30);
        for i in 0..3 * MAX_FUNCTIONS as u64 {
            known.insert_function(&function(i * 0x40));
            assert_eq!(known.find(i * 0x40 + 5), Some(rule(2)));
            assert!(known.functions.len() <= MAX_FUNCTIONS && known.rows.len() <= MAX_ROWS);
        }
        for bytes in [0, 64 << 10, 512 << 10, 2 << 20] {
            let mut known = KnownRules::within(bytes);
            for i in 0..20_000u64 {
                known.insert(i * 0x40, rule(1));
                known.insert_function(&function(i * 0x40));
                // A vector that grows may be twice as large.
                let one = 64 * FUNCTION_BYTES + FIRST_PLACES * 16;
                assert!(known.bytes() as u64 <= bytes * 3 / 4 + one as u64, "{} of {bytes}", known.bytes());
            }
        }
        let rows = vec![(0, None); FunctionRules::MAX_ROWS];
        for i in 0..2 * (MAX_ROWS / FunctionRules::MAX_ROWS) as u64 {
            let many = FunctionRules { range: i..i + 1, rows: rows.clone() };
            known.insert_function(&many);
            known.insert_function(&many);
            assert!(known.rows.len() <= MAX_ROWS);
        }
    }
}
