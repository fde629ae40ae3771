//! How most frames are left: by stack pointer and frame pointer alone, by a row of the unwind tables.
//!
//! The same as framehop's rules (a test compares them), kept here so that one look in
//! [`KnownRules`](super::known_rules::KnownRules) is enough for a frame and all rows of a function are read at once.

use gimli::{CfaRule, RegisterRule, UnwindTableRow};

use crate::arch::registers::{FP, RA, SP};
use crate::arch::step::CallerPointers;

/// How a frame is left. The return address is always the last word below the frame's address (CFA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameRule {
    /// For images whose bytes are not there: framehop goes on by the frame pointer. It never reads the tables of a program:
    /// of an expression it would wait for the end.
    AskFramehop,
    Outermost,
    /// As code compiled with frame pointers: `rbp` points to the caller's, and the frame begins behind the next word.
    FramePointer,
    /// The frame begins so many words above the stack pointer; `rbp` is the caller's.
    StackPointer {
        /// More than 0.
        words: u32,
    },
    /// The same, and the caller's `rbp` has been saved so many words above where the frame begins (mostly below).
    SavedFramePointer {
        /// More than 0.
        words: u32,
        /// Of 8 bytes, as the others.
        saved: i16,
    },
}

// With its address, a quarter of a cache line.
const _: () = assert!(size_of::<(u64, Option<FrameRule>)>() == 16);

impl FrameRule {
    /// That of a function that has put nothing on the stack.
    pub const ONLY_RETURN_ADDRESS: FrameRule = FrameRule::StackPointer { words: 1 };

    pub fn of(row: &UnwindTableRow<usize>) -> Option<FrameRule> {
        match row.register(RA) {
            None | Some(RegisterRule::Undefined) => return Some(FrameRule::Outermost),
            Some(RegisterRule::Offset(-8)) => {}
            Some(_) => return None,
        }
        let saved = match row.register(FP) {
            None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => None,
            Some(RegisterRule::Offset(offset)) => Some(offset),
            Some(_) => return None,
        };
        let words = |bytes: i64| (bytes % 8 == 0).then_some(bytes / 8);
        match *row.cfa() {
            CfaRule::RegisterAndOffset { register: FP, offset: 16 } if saved == Some(-16) => {
                Some(FrameRule::FramePointer)
            }
            CfaRule::RegisterAndOffset { register: SP, offset } => {
                let above = u32::try_from(words(offset)?).ok().filter(|words| *words > 0)?;
                let Some(saved) = saved else { return Some(FrameRule::StackPointer { words: above }) };
                let saved = i16::try_from(words(saved)?).ok()?;
                Some(FrameRule::SavedFramePointer { words: above, saved })
            }
            _ => None,
        }
    }

    /// The caller's pointers; `None` if it has none, or a return address of 0. `innermost` is a stack's first frame.
    /// (Not for rules that ask framehop.) Errors: the unreadable stack address; `None` if this does not lead outwards.
    #[inline]
    pub fn leave(
        self,
        innermost: bool,
        (sp, bp): (u64, u64),
        mut read: impl FnMut(u64) -> Option<u64>,
    ) -> Result<Option<CallerPointers>, Option<u64>> {
        let above = |words: u32| sp.checked_add(u64::from(words) * 8).ok_or(None);
        let (cfa, bp) = match self {
            FrameRule::AskFramehop => return Err(None),
            FrameRule::Outermost => return Ok(None),
            FrameRule::FramePointer if bp == 0 => return Ok(None),
            FrameRule::FramePointer => {
                let cfa = bp.checked_add(16).filter(|cfa| *cfa > sp).ok_or(None)?;
                (cfa, read(bp).ok_or(Some(bp))?)
            }
            FrameRule::StackPointer { words } => (above(words)?, bp),
            FrameRule::SavedFramePointer { words, saved } => {
                let cfa = above(words)?;
                let slot = cfa.checked_add_signed(i64::from(saved) * 8).ok_or(None)?;
                match read(slot) {
                    Some(bp) => (cfa, bp),
                    // At a function's end `rbp` has been popped, even if the tables do not say so; below the stack
                    // pointer nothing is copied.
                    None if innermost && slot < sp => (cfa, bp),
                    None => return Err(Some(slot)),
                }
            }
        };
        let ip = read(cfa - 8).ok_or(Some(cfa - 8))?;
        Ok((ip != 0).then_some(CallerPointers { ip, sp: cfa, bp }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use ccsd_symbolizer::ElfFile;
    use gimli::{EhFrame, LittleEndian, UnwindSection};

    use super::*;
    use crate::process::images::Images;
    use crate::unwind::loaded::LoadedImages;
    use crate::unwind::tables::{RowContext, UnwindMethod, way};

    const SP: u64 = 0x7000;

    fn leave(rule: FrameRule, innermost: bool, bp: u64) -> Result<Option<CallerPointers>, Option<u64>> {
        let words = [1u64, 2, 3, 0x7abc, 0x200, 0];
        rule.leave(innermost, (SP, bp), |address| {
            words.get(usize::try_from(address.checked_sub(SP)? / 8).ok()?).copied()
        })
    }

    #[test]
    fn a_frame_is_left_as_its_row_says() {
        let caller = |ip, sp, bp| Ok(Some(CallerPointers { ip, sp, bp }));
        let saved = |words: u32, above: i16| FrameRule::SavedFramePointer { words, saved: above - words as i16 };
        let plain = |words| FrameRule::StackPointer { words };
        for (rule, innermost, bp, expected) in [
            (plain(5), false, 9, caller(0x200, SP + 40, 9)),
            (plain(7), false, 9, Err(Some(SP + 48))),
            (plain(6), false, 9, Ok(None)),
            (saved(5, 3), false, 9, caller(0x200, SP + 40, 0x7abc)),
            (saved(5, -1), true, 9, caller(0x200, SP + 40, 9)),
            (saved(5, -1), false, 9, Err(Some(SP - 8))),
            (saved(5, 9), true, 9, Err(Some(SP + 72))),
            (plain(1 << 20), false, 9, Err(Some(SP + (8 << 20) - 8))),
            (FrameRule::FramePointer, false, SP + 24, caller(0x200, SP + 40, 0x7abc)),
            (FrameRule::FramePointer, true, 0, Ok(None)),
            (FrameRule::FramePointer, false, SP - 16, Err(None)),
            (FrameRule::FramePointer, false, u64::MAX - 8, Err(None)),
            (FrameRule::FramePointer, false, 0x9000, Err(Some(0x9000))),
            (FrameRule::Outermost, true, 0, Ok(None)),
        ] {
            assert_eq!(leave(rule, innermost, bp), expected, "{rule:?} {innermost} {bp:#x}");
        }
        let far = FrameRule::StackPointer { words: 1 }.leave(true, (u64::MAX, 0), |_| Some(1));
        assert_eq!(far, Err(None));
    }

    /// On every row of a real program, for stacks of any kind.
    #[test]
    fn frames_are_left_as_framehop_leaves_them() {
        let elf = ElfFile::open(File::open(std::env::current_exe().unwrap()).unwrap()).unwrap();
        let mut images = Images::default();
        let index = images.insert_for_test(elf);
        let mut loaded = LoadedImages::within(1 << 30);
        let (image, framehop) = loaded.with_framehop(index, &images).unwrap();
        let tables = image.tables();
        let section = &tables.sections().eh_frame.as_ref().unwrap().data;
        let (section, bases) = (EhFrame::new(section, LittleEndian), tables.sections().bases());
        let mut entries = section.entries(&bases);
        let mut context = RowContext::new();
        let mut compared = [0u32; 5];
        let mut seed = 1u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed >> 33
        };
        while let Some(entry) = entries.next().unwrap() {
            let gimli::CieOrFde::Fde(partial) = entry else { continue };
            let fde = partial.parse(EhFrame::cie_from_offset).unwrap();
            // There are some 100,000 rows.
            if !random().is_multiple_of(8) {
                continue;
            }
            let UnwindMethod::Plain(_, Some(function)) = way(tables, fde.initial_address(), &mut context) else {
                continue;
            };
            for &(start, rule) in &function.rows {
                let Some(rule) = rule.filter(|rule| *rule != FrameRule::AskFramehop) else { continue };
                let address = function.range.start + u64::from(start);
                let innermost = random().is_multiple_of(2);
                // Stacks that end soon, values that are 0, frame pointers that are none.
                let size = [8u64, 64, 4096, 1 << 20][random() as usize % 4];
                let bp = [0, SP - 8, SP + random() % size, u64::MAX - random() % 32][random() as usize % 4];
                let salt = random();
                let read = |address: u64| {
                    let word = (address ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
                    (SP..SP + size).contains(&address).then_some(if word.is_multiple_of(8) { 0 } else { word })
                };
                let own = image.own(address).unwrap();
                let before = CallerPointers { ip: address, sp: SP, bp };
                let (expected, _) = framehop.leave(own, !innermost, before, read);
                assert_eq!(
                    rule.leave(innermost, (SP, bp), read),
                    expected,
                    "{address:#x} {rule:?} {bp:#x} {innermost}"
                );
                compared[match rule {
                    FrameRule::Outermost => 0,
                    FrameRule::FramePointer => 1,
                    FrameRule::StackPointer { .. } => 2,
                    FrameRule::SavedFramePointer { .. } => 3,
                    FrameRule::AskFramehop => 4,
                }] += 1;
            }
        }
        assert!(compared[1] > 50 && compared[2] > 1000 && compared[3] > 50, "{compared:?}");
    }
}
