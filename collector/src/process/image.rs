//! One image, and its number.

use std::sync::Arc;

use ccsd_symbolizer::{DebugFileFinder, ElfFile};
use ccsd_worker::{FileKey, Principal};

/// Position of an image in [`Images`](super::images::Images).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageIndex(pub u32);

impl ImageIndex {
    /// Addresses that no mapping covers.
    pub const UNKNOWN: ImageIndex = ImageIndex(0);
    /// The kernel with its modules; its "SVMAs" are the addresses that it runs at.
    pub const KERNEL: ImageIndex = ImageIndex(1);
}

#[derive(Clone, Debug)]
pub struct MappedImage {
    /// Path in the root of the process that mapped it first, or a name in brackets.
    pub name: String,
    /// The user, other than root and the session's own, whose processes have it at that path, where this machine does not, or
    /// where others could have put it. He decides what is found beside it.
    pub shown_by: Option<Principal>,
    /// The file, if it could be opened and is an ELF file, and some process has it mapped.
    pub elf: Option<Arc<ElfFile>>,
    pub key: Option<FileKey>,
    pub debug: DebugFileFinder,
    /// Who decides what is found where `debug` looks, if another user than root: his file systems may never answer.
    pub debug_user: Option<Principal>,
    /// Who pays for its room and for the time to read it: the file's owner, if that is a user. For a file of root's it is the
    /// user whose process was the first to map it, until somebody else maps it, too.
    pub payer: Principal,
}

impl MappedImage {
    /// Who decides what is in it, and beside it: this machine, or another user.
    pub fn author(&self) -> Principal {
        let is_of_machine = self.key.as_ref().is_none_or(|key| key.principal() == Principal::Own);
        self.shown_by.unwrap_or(if is_of_machine { Principal::Own } else { self.payer })
    }

    pub fn new(name: &str, key: Option<FileKey>, payer: Principal) -> MappedImage {
        let debug = DebugFileFinder::none();
        MappedImage { name: name.to_owned(), shown_by: None, elf: None, key, debug, debug_user: None, payer }
    }
}
