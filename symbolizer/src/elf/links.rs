//! References of an ELF file to other files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::reader::{ElfReader, string_at};
use crate::limits;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Links {
    /// `.gnu_debuglink`: a file name and the CRC-32 of the file.
    pub(crate) debug: Option<(Vec<u8>, u32)>,
    /// `.gnu_debugaltlink` or `.debug_sup`: a path and a build id.
    pub(crate) supplement: Option<(Vec<u8>, Vec<u8>)>,
}

impl Links {
    pub(crate) fn read(file: &ElfReader) -> Links {
        Links { debug: debug_link(file), supplement: supplement_link(file) }
    }

    /// Path and build id of the file with shared debug information.
    pub(crate) fn supplement(&self) -> Option<(PathBuf, &[u8])> {
        let (path, id) = self.supplement.as_ref()?;
        Some((Path::new(OsStr::from_bytes(path)).to_owned(), id))
    }
}

fn debug_link(file: &ElfReader) -> Option<(Vec<u8>, u32)> {
    let section = file.section(b".gnu_debuglink")?;
    // A file name, padding to four bytes, and the CRC-32 of the debug file.
    let data = file.section_data(section, limits::MAX_DEBUGLINK).ok()?;
    let name = string_at(&data, 0);
    let crc_at = name.len().checked_add(1)?.checked_next_multiple_of(4)?;
    let crc = u32::from_le_bytes(data.get(crc_at..crc_at.checked_add(4)?)?.try_into().ok()?);
    Some((name.to_vec(), crc))
}

/// `.gnu_debugaltlink`: path, build id; `.debug_sup` (DWARF 5, section 7.3.6) also a version, a flag, and the id's
/// size.
fn supplement_link(file: &ElfReader) -> Option<(Vec<u8>, Vec<u8>)> {
    let read = |name| file.section_data(file.section(name)?, limits::MAX_ALTLINK).ok();
    if let Some(data) = read(b".gnu_debugaltlink".as_slice()) {
        let name = string_at(&data, 0);
        return Some((name.to_vec(), data.get(name.len().checked_add(1)?..)?.to_vec()));
    }
    let data = read(b".debug_sup")?;
    let [5, 0, 0, rest @ ..] = &*data else { return None };
    let name = string_at(rest, 0);
    let (&size, id) = rest.get(name.len().checked_add(1)?..)?.split_first()?;
    // A LEB128 number; ids are shorter than 128 bytes.
    Some((name.to_vec(), id.get(..usize::from(size))?.to_vec()))
}
