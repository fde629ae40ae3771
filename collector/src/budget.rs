//! A session's memory and its division among tables.
//!
//! Every table has a fixed part of the total ([`Budget::of`]). A full table sheds: entries go to a coarser place
//! (`[elided]`, `[other]`, `[unknown]`) or are forgotten and found out again, and are counted ([`ccsd_profile::Shed`]).
//! No weight is lost. Nothing is allocated before it is needed.
//!
//! Contexts and charges grow with time: near their limit, they get half of what other tables do not use
//! ([`Budget::lend`]).

use ccsd_profile::{MIN_CONTEXT_BYTES, ProfileLimits};

/// Parts of a session's memory. Tables have 53; the others are for ccsd itself, updates under way, and an image whose
/// debug information takes twice its part.
const PARTS: u64 = 64;

/// Maximum bytes of an entry with its part of an index: resolved frames, functions, lines, images (both threads),
/// processes, threads, and frames of remembered stacks (32 and 24 bytes in the two threads, and room to grow).
const ADDRESS_BYTES: u64 = 64;
const FUNCTION_BYTES: u64 = 128;
const LINE_BYTES: u64 = 64;
const IMAGE_BYTES: u64 = 1024;
const PROCESS_BYTES: u64 = 256;
const THREAD_BYTES: u64 = 128;
const FRAME_BYTES: u64 = 64;

/// Batches of stacks that there can be at once: with each of the two threads, and between them.
const BATCHES: u64 = 8;

/// The budgets of one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// All of it, bytes.
    pub memory: u64,
    /// Rings of samples, bytes. They are locked, and what they hold is how late ccsd may be.
    pub rings: usize,
    /// The tables of the profile.
    pub profile: ProfileLimits,
    /// Addresses whose functions are remembered.
    pub addresses: usize,
    /// Bytes of the names of code that programs generate, of all processes.
    pub generated_code: usize,
    /// Bytes of symbols and debug information. A single image may have [`Budget::debug_information_of_one`].
    pub debug_information: u64,
    /// Bytes of unwind tables, with their indexes.
    pub unwind_tables: u64,
    /// Bytes of what is remembered of single addresses for unwinding, of all images.
    pub unwind_rules: u64,
    /// Frames of the threads' last stacks, and of the deep ones that they may return to.
    pub stack_frames: usize,
    /// Bytes of one batch of stacks between the sampling and the aggregating thread.
    pub batch: usize,
    /// Images, with the names that they have.
    pub images: usize,
    /// Bytes of what is known of live processes: their threads and mappings.
    pub live: usize,
}

impl Budget {
    /// 2 GiB: far more than any program takes that is not made to be large (`cc1 -O2` takes 40 MiB, a browser some 300).
    pub const DEFAULT_MEMORY: u64 = 2 << 30;
    /// The least that is of use: rings for two CPUs, and the unwind tables of a C library.
    pub const MIN_MEMORY: u64 = 16 << 20;

    /// `memory` bytes, at least [`Budget::MIN_MEMORY`], divided.
    #[must_use]
    pub fn of(memory: u64) -> Budget {
        let memory = memory.max(Budget::MIN_MEMORY);
        let parts = |count: u64| memory / PARTS * count;
        let bytes = |count: u64| usize::try_from(parts(count)).unwrap_or(usize::MAX);
        // Tables double: only a power of two fills what they have allocated.
        let entries = |bytes: u64, each: u64| 1usize << (bytes / each).max(1).ilog2().min(30);
        Budget {
            memory,
            rings: bytes(4),
            profile: ProfileLimits {
                context_bytes: bytes(2).max(MIN_CONTEXT_BYTES),
                charge_bytes: bytes(2),
                route_bytes: bytes(1),
                string_bytes: bytes(4),
                cost_centres: entries(parts(4), FUNCTION_BYTES),
                lines: entries(parts(1), LINE_BYTES),
                images: entries(parts(1) / 2, IMAGE_BYTES),
                processes: entries(parts(1) / 2, PROCESS_BYTES),
                threads: entries(parts(1), THREAD_BYTES),
            },
            addresses: entries(parts(2), ADDRESS_BYTES),
            generated_code: bytes(4),
            debug_information: parts(8),
            unwind_tables: parts(6),
            unwind_rules: parts(2),
            stack_frames: entries(parts(2), FRAME_BYTES),
            batch: bytes(4) / BATCHES as usize,
            images: entries(parts(1), IMAGE_BYTES),
            live: bytes(4),
        }
    }

    /// Gives contexts and charges half of what names, functions, generated code and debug information leave unused,
    /// once and for good. Each lender keeps as much again as it lends.
    #[must_use]
    pub fn lend(&mut self, used: &Used) -> &ProfileLimits {
        let half = |all: usize, used: usize| all.saturating_sub(used) / 2;
        let names = half(self.profile.string_bytes, used.name_bytes);
        // Tables double: this one can only give half of itself.
        let functions = if used.functions <= self.profile.cost_centres / 4 { self.profile.cost_centres / 2 } else { 0 };
        let code = half(self.generated_code, used.generated_code);
        let debug = self.debug_information.saturating_sub(used.debug_information) / 2;
        self.profile.string_bytes -= names;
        self.profile.cost_centres -= functions;
        self.generated_code -= code;
        self.debug_information -= debug;
        let function_bytes = functions.saturating_mul(FUNCTION_BYTES as usize);
        let debug = usize::try_from(debug).unwrap_or(usize::MAX);
        let lent = [names, function_bytes, code, debug].into_iter().fold(0, usize::saturating_add);
        self.profile.context_bytes = self.profile.context_bytes.saturating_add(lent / 2);
        self.profile.charge_bytes = self.profile.charge_bytes.saturating_add(lent / 2);
        &self.profile
    }

    /// The same of an image alone, because it would else be read again and again: twice as much.
    #[must_use]
    pub const fn debug_information_of_one(&self) -> u64 {
        self.debug_information.saturating_mul(2)
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    pub name_bytes: usize,
    pub functions: usize,
    pub generated_code: usize,
    pub debug_information: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Budget::of(Budget::DEFAULT_MEMORY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_no_more_than_the_whole() {
        for memory in [0, Budget::MIN_MEMORY, 100 << 20, Budget::DEFAULT_MEMORY, 64 << 30] {
            let mut budget = Budget::of(memory);
            assert_parts(budget.clone());
            let before = budget.profile.clone();
            let used = Used { name_bytes: 100 << 10, functions: 1_000, generated_code: 0, debug_information: 1 << 20 };
            let limits = budget.lend(&used).clone();
            assert!(limits.context_bytes > 2 * before.context_bytes && limits.charge_bytes > 2 * before.charge_bytes);
            assert!(limits.string_bytes >= 2 * used.name_bytes && limits.cost_centres >= 2 * used.functions);
            assert!(budget.debug_information > used.debug_information);
            assert_parts(budget.clone());
            let used = Used {
                name_bytes: usize::MAX,
                functions: usize::MAX,
                generated_code: usize::MAX,
                debug_information: u64::MAX,
            };
            assert_eq!(*budget.clone().lend(&used), limits);
        }
    }

    fn assert_parts(budget: Budget) {
        let Budget {
            memory,
            rings,
            profile,
            addresses,
            generated_code,
            debug_information,
            unwind_tables,
            unwind_rules,
            stack_frames,
            batch,
            images,
            live,
        } = budget;
        let ProfileLimits {
            context_bytes,
            charge_bytes,
            route_bytes,
            string_bytes,
            cost_centres,
            lines,
            processes,
            threads,
            ..
        } = profile;
        let entries = [
            (cost_centres, FUNCTION_BYTES),
            (lines, LINE_BYTES),
            (profile.images + images, IMAGE_BYTES),
            (processes, PROCESS_BYTES),
            (threads, THREAD_BYTES),
            (addresses, ADDRESS_BYTES),
            (stack_frames, FRAME_BYTES),
        ];
        let entries: u64 = entries.iter().map(|&(count, each)| count as u64 * each).sum();
        let bytes = [
            rings,
            context_bytes,
            charge_bytes,
            route_bytes,
            string_bytes,
            generated_code,
            live,
            batch * BATCHES as usize,
        ];
        let bytes: u64 = bytes.iter().map(|&bytes| bytes as u64).sum();
        let all = entries + bytes + debug_information + unwind_tables + unwind_rules;
        assert!(all <= memory / PARTS * 53 && all >= memory / 2, "{all} of {memory}");
    }

    #[test]
    fn the_default_is_what_the_profile_has_by_itself() {
        let Budget { profile, .. } = Budget::default();
        let ProfileLimits { context_bytes, charge_bytes, string_bytes, cost_centres, .. } = ProfileLimits::default();
        let [a, b, c, d] = [profile.context_bytes, profile.charge_bytes, profile.string_bytes, profile.cost_centres];
        assert_eq!([a, b, c, d], [context_bytes, charge_bytes, string_bytes, cost_centres]);
    }
}
