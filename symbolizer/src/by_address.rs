//! Index into a table sorted by address.
//!
//! Each step of a binary search in a large, cold table waits for memory. Functions are spread about evenly, so the
//! address determines the few entries where the search starts.

/// Average entries of the table per slot of the index.
const PER_SLOT: usize = 8;

/// The position of the first entry of each equally long address range. With uneven addresses it only does not help.
#[derive(Debug, Default)]
pub(crate) struct ByAddress {
    base: u64,
    shift: u32,
    firsts: Box<[u32]>,
}

impl ByAddress {
    /// Builds the index of a table of `len` entries, which should be sorted; `address(index)` is the start of an entry.
    pub(crate) fn new(len: usize, address: impl Fn(usize) -> u64) -> ByAddress {
        let (Some(last), Ok(_)) = (len.checked_sub(1), u32::try_from(len)) else { return ByAddress::default() };
        let base = address(0);
        let (span, most) = (address(last).saturating_sub(base), (len / PER_SLOT) as u64 + 1);
        let shift = (0..u64::BITS - 1).find(|shift| span >> shift <= most).unwrap_or(u64::BITS - 1);
        let slots = (span >> shift) as usize + 1;
        let mut firsts = Vec::with_capacity(slots + 1);
        for index in 0..len {
            let slot = (address(index).saturating_sub(base) >> shift) as usize;
            while firsts.len() <= slot.min(slots - 1) {
                firsts.push(index as u32);
            }
        }
        firsts.resize(slots + 1, len as u32);
        ByAddress { base, shift, firsts: firsts.into() }
    }

    /// The number of entries that start at or before `svma`, given the same table.
    pub(crate) fn count_up_to(&self, svma: u64, address: impl Fn(usize) -> u64) -> usize {
        let (Some(from_base), Some(&len)) = (svma.checked_sub(self.base), self.firsts.last()) else { return 0 };
        let slot = usize::try_from(from_base >> self.shift).unwrap_or(usize::MAX);
        let end = |slot: usize| self.firsts.get(slot).map_or(len, |&first| first) as usize;
        let (mut low, mut high) = (end(slot), end(slot.saturating_add(1)));
        while low < high {
            let middle = low + (high - low) / 2;
            if address(middle) <= svma {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.firsts)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Addresses as in an image, crowded, and far apart.
    fn addresses() -> impl Strategy<Value = Vec<u64>> {
        let one = prop_oneof![0x1000u64..0x9000, 0x5000u64..0x5010, any::<u64>(), Just(0), Just(u64::MAX)];
        prop_oneof![prop::collection::vec(0x1000u64..0x9000, 0..300), prop::collection::vec(one, 0..100)]
    }

    proptest! {
        #[test]
        fn it_finds_what_a_plain_search_finds(mut addresses in addresses(), others in prop::collection::vec(any::<u64>(), 8)) {
            addresses.sort_unstable();
            let index = ByAddress::new(addresses.len(), |at| addresses[at]);
            prop_assert!(index.firsts.len() <= addresses.len() / PER_SLOT + 3);
            let near = addresses.iter().flat_map(|&address| [address.saturating_sub(1), address, address.saturating_add(1)]);
            for svma in near.chain(others).chain([0, u64::MAX]) {
                let plain = addresses.partition_point(|&address| address <= svma);
                prop_assert_eq!(index.count_up_to(svma, |at| addresses[at]), plain, "{:#x}", svma);
            }
        }

        /// The table comes from a file and may be unsorted.
        #[test]
        fn one_that_is_not_sorted_finds_anything(addresses in addresses(), svma in any::<u64>()) {
            let index = ByAddress::new(addresses.len(), |at| addresses[at]);
            prop_assert!(index.firsts.len() <= addresses.len() / PER_SLOT + 3);
            prop_assert!(index.count_up_to(svma, |at| addresses[at]) <= addresses.len());
        }
    }
}
