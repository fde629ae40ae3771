//! What the resolver keeps of images: their names, and what is left of those that it does not keep.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use ccsd_profile::ImageId;
use ccsd_symbolizer::{DebugFileFinder, ElfFile, Function};
use ccsd_worker::{FileKey, ImageNames, Principal};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::jit::JitNames;
use crate::unwind::Frame;

/// Notes about images that are not kept, beyond which no more are.
const MAX_NOTES: usize = 256;

/// Said of an image whose file was written to. The kernel shows what is written to all that have it mapped.
const REWRITTEN: &str = "the file was written to since ccsd opened it; if a process had it mapped then, names of this image \
                         may be those of other code";

/// After this many drops an image is named by its symbol table alone: images that do not fit in memory together would
/// be read again and again, in seconds each.
pub(super) const MAX_DROPS: u32 = 3;

pub(super) struct ImageSymbols {
    pub(super) id: ImageId,
    pub(super) name: String,
    pub(super) elf: Option<Arc<ElfFile>>,
    pub(super) key: Option<FileKey>,
    /// See [`MappedImage::payer`](crate::process::images::MappedImage::payer).
    pub(super) payer: Principal,
    pub(super) was_read: bool,
    /// Whether it is stripped and has a build id: functions that it exports keep offsets, as those without a name do, as
    /// long as no debug file of it was found.
    pub(super) lacks_lines: bool,
    pub(super) debug: DebugFileFinder,
    /// See [`MappedImage::debug_user`](crate::process::images::MappedImage::debug_user).
    pub(super) debug_user: Option<Principal>,
    pub(super) names: Option<ImageNames>,
    pub(super) jit: Option<Box<JitNames>>,
    /// When it was last asked, in frames resolved.
    pub(super) used: u64,
    /// Addresses that stand for themselves, because nothing tells in which function they are.
    pub(super) bare_addresses: u32,
    /// How often its names were dropped for those of others. From [`MAX_DROPS`] on its debug information is not read again.
    pub(super) drops: u32,
    /// Whether the last question took long.
    pub(super) is_slow: bool,
}

impl ImageSymbols {
    /// Whether debug information of a file may be found later.
    pub(super) fn lines_may_come(elf: Option<&Arc<ElfFile>>) -> bool {
        elf.is_some_and(|elf| elf.build_id().is_some() && !elf.has_names())
    }

    /// What this process keeps of its names, bytes.
    pub(super) fn held_bytes(&self) -> u64 {
        self.names.as_ref().map_or(0, ImageNames::held_bytes)
    }

    /// What its names could not give.
    pub(super) fn notes(&self) -> impl Iterator<Item = &str> {
        let file = self.elf.as_ref().and_then(|elf| elf.file());
        let is_rewritten = self.key.as_ref().zip(file).is_some_and(|(key, file)| key.is_rewritten(file));
        let rewritten = self.names.as_ref().filter(|_| is_rewritten).map(|_| REWRITTEN);
        self.names.iter().flat_map(|names| names.notes()).map(String::as_str).chain(rewritten)
    }

    pub(super) fn has_symbols_only(&self) -> bool {
        self.drops >= MAX_DROPS
    }
}

pub(super) struct SymbolBatch {
    /// Whether names were dropped: an image that is read again answers all questions of a batch at once.
    pub(super) has_dropped: bool,
    /// Whether several frames are asked for at once: the first image with a file decides, see [`ImageNames::batch`].
    pub(super) asks_together: bool,
    pub(super) unknown: Vec<Frame>,
    pub(super) answers: HashMap<Frame, Vec<Function>, FxBuildHasher>,
}

impl Default for SymbolBatch {
    fn default() -> Self {
        SymbolBatch { has_dropped: false, asks_together: true, unknown: Vec::new(), answers: HashMap::default() }
    }
}

/// One part in this many of a session's time may go into reading images again whose names were dropped, and as much into
/// reading those of other users.
const REREAD_PART: u128 = 32;

/// The time that reading images again takes. Where all that runs does not fit in memory, this would take most of a CPU.
#[derive(Default)]
pub(super) struct Rereading {
    /// When sampling began. Without a beginning nothing waits for the names, as with a recording of another profiler.
    pub(super) began: Option<Instant>,
    /// For root's and the session's own user's images, and for those of others, nanoseconds.
    spent_ns: [u128; 2],
    /// Questions that were not answered for this reason.
    pub(super) refused: u64,
}

impl Rereading {
    pub(super) fn may(&mut self, is_other: bool) -> bool {
        let spent_ns = self.spent_ns[usize::from(is_other)];
        let may = self.began.is_none_or(|began| spent_ns * REREAD_PART <= began.elapsed().as_nanos());
        self.refused += u64::from(!may);
        may
    }

    pub(super) fn spend(&mut self, is_other: bool, since: Instant) {
        self.spent_ns[usize::from(is_other)] += since.elapsed().as_nanos();
    }
}

#[derive(Default)]
pub(super) struct DroppedImages {
    pub(super) notes: BTreeSet<String>,
    /// CPU time of another process, nanoseconds.
    pub(super) cpu_ns: u64,
    /// Whether an image was asked for the first time since it was looked at what all hold.
    pub(super) loaded: bool,
    /// Questions for which no worker was available.
    pub(super) not_asked: u64,
}

impl DroppedImages {
    pub(super) fn drop_names(&mut self, image: &mut ImageSymbols) {
        self.add_notes(image.notes().map(|note| format!("{}: {note}", image.name)));
        if let Some(names) = image.names.take() {
            self.cpu_ns = self.cpu_ns.saturating_add(names.cpu_ns());
        }
    }

    /// Keeps notes, as far as there is room.
    pub(super) fn add_notes(&mut self, notes: impl IntoIterator<Item = String>) {
        for note in notes {
            if self.notes.len() < MAX_NOTES {
                self.notes.insert(note);
            }
        }
    }
}
