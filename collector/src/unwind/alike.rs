//! Code addresses that are left alike: those that one row of the unwind tables stands for.
//!
//! framehop remembers how to leave a frame by the frame's address. Where a program is interrupted is nearly always a new
//! address, though mostly of a function that is known: to find its row anew, by a search through the table and by running
//! the entry's instructions, takes some hundred times as long as the rest of the frame. So framehop is asked for the first
//! address of the row that was met, and knows it.

use std::collections::BTreeMap;
use std::ops::Range;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// Addresses remembered, 17 bytes each: what a table of 65,536 places holds. A run of a compiler is met at 30,000.
const MAX_MET: usize = 57_344;
/// Rows remembered, 24 to 48 bytes each.
const MAX_ROWS: usize = 16_384;

/// Addresses are of ccsd's own address space, see [`unwind`](super).
#[derive(Debug, Default)]
pub struct AlikeAddresses {
    /// What was met, and which address stands for it.
    met: HashMap<u64, u64, FxBuildHasher>,
    /// Rows by where they begin: where they end, and which address stands for them.
    rows: BTreeMap<u64, (u64, u64)>,
}

impl AlikeAddresses {
    /// The address that stands for one, if it or another of its row has been met.
    #[inline]
    pub fn find(&mut self, address: u64) -> Option<u64> {
        if let Some(&first) = self.met.get(&address) {
            return Some(first);
        }
        self.find_row(address)
    }

    #[cold]
    fn find_row(&mut self, address: u64) -> Option<u64> {
        let (_, &(end, first)) = self.rows.range(..=address).next_back()?;
        if address >= end {
            return None;
        }
        self.meet(address, first);
        Some(first)
    }

    /// Remembers an address that has been met, with its row if that stands for others, too.
    pub fn insert(&mut self, address: u64, row: Option<Range<u64>>) {
        if let Some(row) = row.filter(|row| row.contains(&address)) {
            if self.rows.len() >= MAX_ROWS {
                self.rows.clear();
            }
            self.rows.insert(row.start, (row.end, address));
        }
        self.meet(address, address);
    }

    fn meet(&mut self, address: u64, first: u64) {
        if self.met.len() >= MAX_MET {
            self.met.clear();
        }
        self.met.insert(address, first);
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        // A node of the tree is at least half full.
        self.met.allocation_size() + 2 * self.rows.len() * size_of::<(u64, (u64, u64))>()
    }

    /// Forgets all: an image has gone, and another may come to stand in its place.
    pub fn clear(&mut self) {
        *self = AlikeAddresses::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_row_stands_for_all() {
        let mut alike = AlikeAddresses::default();
        assert_eq!(alike.find(0x1010), None);
        alike.insert(0x1010, Some(0x1004..0x1020));
        alike.insert(0x1020, None);
        for (address, expected) in [
            (0x1003, None),
            (0x1004, Some(0x1010)),
            (0x101f, Some(0x1010)),
            (0x1020, Some(0x1020)),
            (0x1021, None),
            (0x1010, Some(0x1010)),
        ] {
            assert_eq!(alike.find(address), expected, "{address:#x}");
            assert_eq!(alike.find(address), expected, "{address:#x} again");
        }
        // A row that does not hold the address is none.
        alike.insert(0x3000, Some(0x2000..0x3000));
        assert_eq!((alike.find(0x2fff), alike.find(0x3000)), (None, Some(0x3000)));
        alike.clear();
        assert_eq!((alike.find(0x1010), alike.find(0x1020)), (None, None));
    }

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let mut alike = AlikeAddresses::default();
        for i in 0..2 * MAX_MET as u64 {
            let at = i * 16;
            alike.insert(at, Some(at..at + 8));
            assert_eq!(alike.find(at + 1), Some(at));
            assert!(alike.met.len() <= MAX_MET && alike.rows.len() <= MAX_ROWS);
        }
    }
}
