//! Which file was mapped, and whether it is still there.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use ccsd_symbolizer::ElfFile;

/// What the recording knows of a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Known {
    /// Device and inode number.
    Inode {
        /// Major and minor number.
        device: (u32, u32),
        /// Inode number.
        inode: u64,
    },
    /// Its build id.
    BuildId(Vec<u8>),
    /// Nothing.
    Nothing,
}

/// Opens the file of this path if it is the one that was mapped. A build id that perf has noted beside decides, too.
pub fn open(path: &[u8], known: &Known, noted: Option<&[u8]>) -> Option<File> {
    if !path.starts_with(b"/") {
        return None;
    }
    let path = Path::new(OsStr::from_bytes(path));
    // Looked at before, because opening a device may do things; and again after, because it may have changed.
    if !path.metadata().ok()?.is_file() {
        return None;
    }
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).ok()?;
    let meta = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let has = |build_id: &[u8]| {
        let elf = file.try_clone().ok().and_then(|file| ElfFile::open(file).ok());
        // perf pads build ids with zeros to 20 bytes.
        elf.is_some_and(|elf| {
            elf.build_id().is_some_and(|own| {
                let (own, all) = (own.get(..own.len().min(build_id.len())), build_id);
                own.is_some_and(|own| {
                    !own.is_empty() && all.starts_with(own) && all[own.len()..].iter().all(|&b| b == 0)
                })
            })
        })
    };
    let same = match (known, noted) {
        (Known::BuildId(build_id), _) => has(build_id),
        (_, Some(build_id)) => has(build_id),
        (Known::Inode { device, inode }, None) => {
            meta.ino() == *inode && meta.dev() == libc::makedev(device.0, device.1)
        }
        (Known::Nothing, None) => false,
    };
    same.then_some(file)
}
