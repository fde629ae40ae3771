//! The images that stacks have led into, with their unwind information, each loaded when its first frame is met.

use std::time::{Duration, Instant};

use ccsd_symbolizer::UnwindSections;
use ccsd_worker::Principal;
use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;

use super::framehop_rows::FramehopRows;
use super::image_unwind::ImageUnwind;
use super::tables::ImageTables;
use crate::process::images::{ImageIndex, Images};
use crate::process::shared_room::SharedRoom;
use crate::time_budget::TimeBudget;
use crate::usage::{Aside, aside};

/// Distance of two images in ccsd's address space: twice what one takes there.
const IMAGE_SPAN: u64 = 1 << 33;

/// Bytes of unwind information that are read at once, in some milliseconds.
const SMALL: u64 = 8 << 20;
/// What reading more than that of other users' files may take.
const READING: Duration = Duration::from_millis(if cfg!(debug_assertions) { 5_000 } else { 500 });

/// When images that there was no time for are tried again.
const RETRY: Duration = Duration::from_secs(2);

/// The images, and how much unwind information they hold. (A desktop's programs and libraries together have some 200 MiB.)
pub struct LoadedImages {
    framehop: FramehopRows,
    /// `None` until a frame falls into it.
    list: Vec<Option<ImageUnwind>>,
    /// Bytes of unwind information.
    held: SharedRoom,
    /// For reading large ones of other users: samples wait for that.
    time: TimeBudget,
    refused: HashSet<ImageIndex, FxBuildHasher>,
    /// Those of them that there was no time to read, and since when the first of them has waited.
    late: HashSet<ImageIndex, FxBuildHasher>,
    late_since: Option<Instant>,
}

impl LoadedImages {
    /// Empty, with a limit on the bytes of unwind information.
    pub fn within(limit: u64) -> LoadedImages {
        LoadedImages {
            framehop: FramehopRows::default(),
            list: Vec::new(),
            held: SharedRoom::new(limit),
            time: TimeBudget::new(READING, true),
            refused: HashSet::default(),
            late: HashSet::default(),
            late_since: None,
        }
    }

    /// Drops images that there was no time to read, so that their next frames read them. Returns whether there were any: then
    /// the caller forgets what it knows of their addresses.
    pub fn retry_late(&mut self, now: Instant) -> bool {
        if self.late_since.is_none_or(|since| now.saturating_duration_since(since) < RETRY) {
            return false;
        }
        self.late_since = None;
        for index in std::mem::take(&mut self.late) {
            self.refused.remove(&index);
            if let Some(entry) = self.list.get_mut(index.0 as usize) {
                entry.take_if(|image| image.bytes == 0);
            }
        }
        true
    }

    #[inline]
    pub fn get(&mut self, index: ImageIndex, images: &Images) -> Option<&mut ImageUnwind> {
        self.with_framehop(index, images).map(|(image, _)| image)
    }

    #[inline]
    pub fn with_framehop(
        &mut self,
        index: ImageIndex,
        images: &Images,
    ) -> Option<(&mut ImageUnwind, &mut FramehopRows)> {
        let position = index.0 as usize;
        if !self.list.get(position).is_some_and(Option::is_some) {
            self.load(index, images);
        }
        Some((self.list.get_mut(position)?.as_mut()?, &mut self.framehop))
    }

    pub fn drop_image(&mut self, index: ImageIndex) -> bool {
        let Some(image) = self.list.get_mut(index.0 as usize).and_then(Option::take) else { return false };
        self.held.give(image.payer, image.bytes);
        if image.bytes > 0 {
            // There may be room now for those that were refused: their next frame tries.
            for refused in &self.refused {
                if let Some(entry) = self.list.get_mut(refused.0 as usize) {
                    entry.take_if(|image| image.bytes == 0);
                }
            }
        }
        #[cfg(test)]
        self.framehop.remove(own_base(index));
        true
    }

    pub fn held(&self) -> u64 {
        self.held.taken()
    }

    /// Bytes of what is remembered of single addresses, of all images. It takes a microsecond for some dozens of these.
    pub fn remembered(&self) -> usize {
        self.list.iter().flatten().map(ImageUnwind::remembered).sum()
    }

    /// Frees all images, to be read again with their next frames. framehop's cache belongs to what is remembered here.
    pub fn drop_all(&mut self) {
        for position in 0..self.list.len() {
            self.drop_image(ImageIndex(position as u32));
        }
    }

    /// Images whose unwind information was not read, because there was too much already.
    pub fn refused(&self) -> u64 {
        self.refused.len() as u64
    }

    #[cold]
    fn load(&mut self, index: ImageIndex, images: &Images) {
        let image = aside(Aside::Images, || self.read(index, images));
        let position = index.0 as usize;
        if self.list.len() <= position {
            self.list.resize_with(position + 1, || None);
        }
        self.list[position] = Some(image);
    }

    fn read(&mut self, index: ImageIndex, images: &Images) -> ImageUnwind {
        let base = own_base(index);
        let image = images.get(index);
        let generated = image.is_some_and(|image| image.name == Images::ANONYMOUS);
        let bare = ImageUnwind::bare(base, generated);
        let Some(image) = image else { return bare };
        let Some(elf) = &image.elf else { return bare };
        if let Some(user) = images.door().user() {
            self.held.set_user(user.uid);
        }
        let payer = image.payer;
        let is_timed = self.held.is_other(payer) && elf.unwind_size() > SMALL;
        let began = Instant::now();
        if is_timed && !self.has_time(payer, began) {
            self.refused.insert(index);
            self.late.insert(index);
            self.late_since.get_or_insert(began);
            return bare;
        }
        // Nothing is read that does not fit.
        let fits = |bytes: u64| self.held.has(payer, bytes);
        let sections = fits(elf.unwind_size()).then(|| elf.unwind_sections());
        let go = sections.as_ref().and_then(|_| elf.go_functions());
        let bytes_of = |sections: &UnwindSections| {
            let go = go.as_ref().map_or(0, |functions| functions.bytes());
            sections.bytes() + ImageTables::most_index_bytes(sections) + go
        };
        let bytes = sections.as_deref().map_or(0, bytes_of);
        let Some(sections) = sections.filter(|_| fits(bytes)) else {
            self.refused.insert(index);
            return bare;
        };
        self.held.add(payer, bytes);
        #[cfg(test)]
        self.framehop.add(&image.name, base, &sections);
        let loaded = ImageUnwind::new(base, (bytes, payer), elf, sections);
        if is_timed {
            loaded.build_indexes();
            self.time.spend(Some(payer), began.elapsed(), Duration::ZERO);
        }
        loaded
    }

    fn has_time(&mut self, payer: Principal, now: Instant) -> bool {
        if !self.time.has_begun() {
            self.time.begin(now);
        }
        self.time.grow(now);
        !self.time.left(Some(payer), Duration::ZERO).is_zero()
    }
}

/// Where an image begins in ccsd's address space. (The index is below 2^16; see `Images`.)
fn own_base(index: ImageIndex) -> u64 {
    IMAGE_SPAN.wrapping_mul(u64::from(index.0) + 1)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use ccsd_symbolizer::ElfFile;

    use ccsd_profile::TruncationReason;

    use super::super::StackUnwinder;
    use super::super::framehop_rows::IMAGE_SPACE;
    use super::super::outcome::UnwindStop;
    use super::*;
    use crate::unwind::known_rules::KnownRules;
    use crate::unwind::tables::RowContext;

    #[test]
    fn remembered_addresses_are_dropped_beyond_the_limit() {
        const LIMIT: u64 = 256 << 10;
        let mut images = Images::default();
        let all: Vec<ImageIndex> = (0..16)
            .map(|_| {
                let program = File::open(std::env::current_exe().unwrap()).unwrap();
                images.insert_for_test(ElfFile::open(program).unwrap())
            })
            .collect();
        let code = (remembered_addresses_are_dropped_beyond_the_limit as fn() as usize) as u64;
        let mut unwinder = StackUnwinder::within(1 << 30, LIMIT);
        // No image has much: it is the sum that counts.
        let remember = |unwinder: &mut StackUnwinder, index, from: u64| {
            let image = unwinder.images.get(index, &images).unwrap();
            let before = image.remembered();
            for address in (code..).skip(from as usize).take(64) {
                let _ = image.tables().with_kept_row(address, |_| Ok(()));
                image.rows(address);
                image.covered(address);
                image.source(address, &mut KnownRules::within(0), &mut RowContext::new(), &mut false);
            }
            assert!(image.remembered() >= before);
            unwinder.bound_rules();
            assert!(unwinder.rule_bytes() <= LIMIT, "{}", unwinder.rule_bytes());
        };
        remember(&mut unwinder, all[0], 0);
        let one = unwinder.rule_bytes();
        assert!(one > 64 * 24 && one < LIMIT / 2, "{one}");
        assert_eq!(unwinder.stats().forgotten_rules, 0);
        for round in 0..8 {
            for &index in &all {
                remember(&mut unwinder, index, round * 64);
            }
        }
        let forgotten = unwinder.stats().forgotten_rules;
        assert!(forgotten >= 2, "{forgotten} of {one}");
        // The tables are read again when they are needed, and are not counted twice.
        unwinder.images.drop_all();
        assert_eq!((unwinder.images.held(), unwinder.held_bytes()), (0, unwinder.rule_bytes()));
        remember(&mut unwinder, all[0], 0);
        assert_eq!((unwinder.rule_bytes(), unwinder.images.refused()), (one, 0));
    }

    #[test]
    fn images_beyond_the_budget_are_refused_until_there_is_room() {
        let mut images = Images::default();
        let mut insert = || {
            // This program has unwind information.
            let program = File::open(std::env::current_exe().unwrap()).unwrap();
            images.insert_for_test(ElfFile::open(program).unwrap())
        };
        let (first, second) = (insert(), insert());
        const LIMIT: u64 = 64 << 20;
        let mut loaded = LoadedImages::within(LIMIT);
        let bytes = loaded.get(first, &images).unwrap().bytes;
        assert!(bytes > 0 && loaded.held() == bytes);
        loaded.held.add(Principal::Own, LIMIT - 2 * bytes + 1);
        let bare = loaded.get(second, &images).unwrap();
        assert_eq!(bare.bytes, 0);
        assert!(matches!(bare.no_way(0), UnwindStop::Because(TruncationReason::NoUnwindInfo)));
        assert_eq!((loaded.refused(), loaded.held()), (1, LIMIT - bytes + 1));
        // The next frame does not ask again, but where another image has gone.
        assert_eq!(loaded.get(second, &images).unwrap().bytes, 0);
        assert!(loaded.drop_image(first));
        assert_eq!(loaded.get(second, &images).unwrap().bytes, bytes);
        assert_eq!((loaded.refused(), loaded.held()), (1, LIMIT - bytes + 1));
    }

    #[test]
    fn other_users_tables_leave_room_and_time() {
        let mut loaded = LoadedImages::within(64 << 20);
        let (one, other, now) = (Principal::User(1), Principal::User(2), Instant::now());
        assert!(!loaded.held.has(one, 29 << 20) && loaded.held.has(Principal::Own, 64 << 20));
        assert!(loaded.has_time(one, now));
        loaded.time.spend(Some(one), 10 * READING, Duration::ZERO);
        assert!(!loaded.has_time(one, now) && loaded.has_time(other, now));
        assert!(loaded.has_time(one, now + 1000 * READING));
    }

    #[test]
    fn images_that_there_was_no_time_for_are_tried_again() {
        let mut images = Images::default();
        let program = File::open(std::env::current_exe().unwrap()).unwrap();
        let index = images.insert_for_test(ElfFile::open(program).unwrap());
        let mut loaded = LoadedImages::within(64 << 20);
        let began = Instant::now();
        // As one that was too large is left.
        loaded.list.resize_with(index.0 as usize + 1, || None);
        loaded.list[index.0 as usize] = Some(ImageUnwind::bare(own_base(index), false));
        (loaded.late, loaded.late_since) = (HashSet::from_iter([index]), Some(began));
        assert!(!loaded.retry_late(began + RETRY / 2));
        assert_eq!(loaded.get(index, &images).unwrap().bytes, 0);
        assert!(loaded.retry_late(began + RETRY));
        assert!(loaded.get(index, &images).unwrap().bytes > 0 && loaded.late_since.is_none());
    }

    #[test]
    fn no_address_of_an_image_stands_where_another_image_does() {
        for base_svma in [0u64, 0x40_0000, 1 << 40] {
            let base = own_base(ImageIndex(3));
            let image = ImageUnwind::at(base, base_svma);
            assert_eq!(image.own(base_svma), Some(base));
            assert_eq!(image.own(base_svma + IMAGE_SPACE - 1), Some(base + IMAGE_SPACE - 1));
            let next = base_svma + (own_base(ImageIndex(4)) - base);
            for beyond in [base_svma.wrapping_sub(1), base_svma + IMAGE_SPACE, next, next + 0x1000] {
                assert_eq!(image.own(beyond), None, "{beyond:#x}");
            }
        }
    }
}
