//! Which image lies where in one process.

use std::ops::Range;

use crate::process::images::ImageIndex;

/// An image at a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address (AVMA).
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// The image mapped here.
    pub image: ImageIndex,
    /// What is added to an AVMA of this range to get the image's SVMA, wrapping.
    pub to_svma: u64,
    /// Whether that gives offsets in the file instead, because its headers had not been read.
    pub has_offsets: bool,
}

/// Mappings kept per process, 4 MiB at most: browsers have some thousands. Frames in further ones are unknown memory.
pub(super) const MAX_MAPPINGS: usize = 65_536;

/// The executable mappings of one process, never overlapping.
#[derive(Clone, Debug, Default)]
pub struct Mappings {
    list: Vec<Mapping>,
    /// Index of the last answer: neighbouring frames mostly lie in the same image.
    last: usize,
    generation: u32,
}

impl Mappings {
    /// Enters a mapping, without a limit on their number.
    #[cfg(test)]
    pub fn insert(&mut self, new: Mapping) -> bool {
        self.insert_within(new, MAX_MAPPINGS)
    }

    /// Enters a mapping within the limit `most`; what it covers of older ones goes, as with `mmap(MAP_FIXED)`. A
    /// remainder without room goes, too, and the result is false.
    pub fn insert_within(&mut self, new: Mapping, most: usize) -> bool {
        if new.start >= new.end {
            return true;
        }
        let first = self.list.partition_point(|old| old.start >= new.end);
        let last = self.list.partition_point(|old| old.end > new.start);
        let most = most.min(MAX_MAPPINGS);
        let others = self.list.len() - (last - first);
        if others >= most {
            // Nothing of it is entered, and what it covers is gone all the same.
            self.forget(first..last);
            return false;
        }
        if first < last {
            self.generation = self.generation.wrapping_add(1);
        }
        let left = self.list[first..last].last().filter(|old| old.start < new.start).copied();
        let right = self.list[first..last].first().filter(|old| old.end > new.end).copied();
        let whole = others + 1 + usize::from(left.is_some()) + usize::from(right.is_some()) <= most;
        let (left, right) = if whole { (left, right) } else { (None, None) };
        let pieces = right
            .map(|old| Mapping { start: new.end, ..old })
            .into_iter()
            .chain([new])
            .chain(left.map(|old| Mapping { end: new.start, ..old }));
        self.list.splice(first..last, pieces);
        self.last = 0;
        whole
    }

    fn forget(&mut self, range: Range<usize>) {
        if !range.is_empty() {
            self.generation = self.generation.wrapping_add(1);
            self.list.drain(range);
            self.last = 0;
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// Changes when another image is mapped at an address that was mapped before, or takes the place of one.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Takes over all that `new` has.
    pub fn replace(&mut self, new: Mappings) {
        *self = Mappings { generation: self.generation.wrapping_add(1), ..new };
    }

    /// The mapping that covers an address.
    #[inline]
    pub fn find(&mut self, address: u64) -> Option<Mapping> {
        if let Some(mapping) = self.list.get(self.last)
            && (mapping.start..mapping.end).contains(&address)
        {
            return Some(*mapping);
        }
        let index = self.list.partition_point(|mapping| mapping.start > address);
        let mapping = self.list.get(index).filter(|mapping| address < mapping.end)?;
        self.last = index;
        Some(*mapping)
    }

    /// What is added to an address of a process in an image to get one of the image, where it is mapped once.
    pub fn to_svma(&self, image: ImageIndex) -> Option<u64> {
        self.list.iter().rev().find(|mapping| mapping.image == image).map(|mapping| mapping.to_svma)
    }

    /// For an image whose headers are read now: sets those mappings whose addresses are file offsets by `to_svma(start,
    /// offset)`. Whether there are any.
    pub fn translate(&mut self, image: ImageIndex, to_svma: impl Fn(u64, u64) -> u64) -> bool {
        let mut any = false;
        for mapping in self.list.iter_mut().filter(|mapping| mapping.image == image && mapping.has_offsets) {
            any = true;
            mapping.has_offsets = false;
            mapping.to_svma = to_svma(mapping.start, mapping.to_svma.wrapping_add(mapping.start));
        }
        if any {
            self.generation = self.generation.wrapping_add(1);
        }
        any
    }

    /// Says of all mappings of one image that they are of another.
    pub fn replace_image(&mut self, old: ImageIndex, new: ImageIndex) {
        self.generation = self.generation.wrapping_add(1);
        self.list.iter_mut().filter(|mapping| mapping.image == old).for_each(|mapping| mapping.image = new);
    }

    /// All of them, in order of address.
    pub fn iter(&self) -> impl Iterator<Item = &Mapping> {
        self.list.iter().rev()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, end: u64, image: u32) -> Mapping {
        Mapping { start, end, image: ImageIndex(image), to_svma: 0, has_offsets: false }
    }

    #[test]
    fn a_generation_ends_where_an_address_changes_its_image() {
        let mut mappings = Mappings::default();
        mappings.insert(mapping(0, 10, 1));
        let first = mappings.generation();
        mappings.insert(mapping(10, 20, 2));
        assert_eq!(mappings.generation(), first, "nothing was there");
        mappings.insert(mapping(5, 15, 3));
        let second = mappings.generation();
        assert_ne!(second, first);
        mappings.replace_image(ImageIndex(3), ImageIndex(4));
        assert_ne!(mappings.generation(), second);
        assert_eq!(mappings.find(12).map(|mapping| mapping.image), Some(ImageIndex(4)));
    }

    #[test]
    fn the_newest_wins_byte_by_byte() {
        // Against the obvious model: an array of the image per address.
        let mut seed = 1u64;
        let mut random = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        for _ in 0..200 {
            let mut model = [None; 64];
            let mut mappings = Mappings::default();
            for image in 0..20 {
                let start = random(60);
                let end = (start + random(20)).min(64);
                mappings.insert(mapping(start, end, image));
                for slot in start..end {
                    model[slot as usize] = Some(ImageIndex(image));
                }
                for address in 0..64u64 {
                    assert_eq!(mappings.find(address).map(|m| m.image), model[address as usize], "{mappings:?}");
                }
            }
            assert!(mappings.iter().zip(mappings.iter().skip(1)).all(|(a, b)| a.end <= b.start));
        }
    }

    #[test]
    fn a_mapping_without_room_is_unknown_and_not_another_s() {
        let mut mappings = Mappings::default();
        assert!(mappings.insert_within(mapping(0, 100, 1), 2));
        // One that is split is three: what is left of it goes.
        assert!(!mappings.insert_within(mapping(40, 50, 2), 2));
        let image = |mappings: &mut Mappings, address| mappings.find(address).map(|mapping| mapping.image.0);
        assert_eq!([0, 45, 60].map(|address| image(&mut mappings, address)), [None, Some(2), None]);
        assert!(mappings.insert_within(mapping(60, 70, 3), 2) && !mappings.insert_within(mapping(80, 90, 4), 2));
        // One that replaces another always fits.
        assert!(mappings.insert_within(mapping(60, 70, 5), 2));
        assert_eq!([45, 65, 85].map(|address| image(&mut mappings, address)), [Some(2), Some(5), None]);
        // Where there may be fewer than there are, what is covered goes all the same.
        let before = mappings.generation();
        assert!(!mappings.insert_within(mapping(62, 64, 6), 1));
        assert_eq!((mappings.count(), image(&mut mappings, 65)), (1, None));
        assert_ne!(mappings.generation(), before);
    }

    #[test]
    fn what_gives_offsets_is_translated_once() {
        let mut mappings = Mappings::default();
        mappings.insert(Mapping { has_offsets: true, ..mapping(0x10, 0x20, 2) });
        mappings.insert(Mapping { to_svma: 7, ..mapping(0x20, 0x30, 2) });
        for there_were in [true, false] {
            assert_eq!(mappings.translate(ImageIndex(2), |start, offset| start + offset), there_were);
            assert_eq!([0x10, 0x20].map(|at| mappings.find(at).unwrap().to_svma), [0x20, 7]);
        }
    }
}
