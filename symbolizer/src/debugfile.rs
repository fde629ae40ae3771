//! Where separate debug information is found.
//!
//! Two ways, as GDB's manual describes them ("Debugging Information in Separate Files"): by build id, under
//! `/usr/lib/debug/.build-id`, and by the file name and checksum in `.gnu_debuglink`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use crate::elf::{ElfFile, string_at};
use crate::limits;

/// Where separate debug files are searched for one image.
///
/// A file is used only if it is the right one: its build id equals the image's, or its CRC-32 the one in the image.
/// Only regular files are opened, and opening never waits.
#[derive(Debug, Clone, Default)]
pub struct DebugFileFinder {
    root: Option<PathBuf>,
    image_path: Option<PathBuf>,
}

/// A file with debug information, and where it is inside the root, if that is known.
#[derive(Debug)]
pub(crate) struct DebugFile {
    pub(crate) file: ElfFile,
    pub(crate) path: Option<PathBuf>,
}

impl DebugFileFinder {
    /// Searches nowhere.
    #[must_use]
    pub fn none() -> DebugFileFinder {
        DebugFileFinder::default()
    }

    /// Searches the directories of this machine, `/usr/lib/debug` and those beside the image.
    #[must_use]
    pub fn system() -> DebugFileFinder {
        DebugFileFinder::in_root("/")
    }

    /// Like [`DebugFileFinder::system`] with all paths under `root`, for programs that see another file system.
    #[must_use]
    pub fn in_root(root: impl Into<PathBuf>) -> DebugFileFinder {
        DebugFileFinder { root: Some(root.into()), image_path: None }
    }

    /// Says what the image's absolute path is, as seen inside the root. Needed for `.gnu_debuglink` only.
    #[must_use]
    pub fn image_path(mut self, path: impl Into<PathBuf>) -> DebugFileFinder {
        self.image_path = Some(path.into());
        self
    }

    /// The separate debug file of an image. Files that are there but belong to another build are noted.
    pub(crate) fn find(&self, image: &ElfFile, notes: &mut Vec<String>) -> Option<DebugFile> {
        image.build_id().and_then(|id| self.find_by_build_id(id, notes)).or_else(|| self.find_by_link(image, notes))
    }

    /// The file that `dwz(1)` moved debug information to that is common to several: `.gnu_debugaltlink` of `debug`
    /// has its path, relative to the directory of `debug` itself, and its build id.
    pub(crate) fn find_supplement(
        &self,
        debug: &ElfFile,
        debug_path: Option<&Path>,
        notes: &mut Vec<String>,
    ) -> Option<ElfFile> {
        let section = debug.section(b".gnu_debugaltlink")?;
        let data = debug.section_data(section, limits::MAX_ALTLINK).ok()?;
        let name = string_at(&data, 0);
        let id = data.get(name.len().checked_add(1)?..)?;
        let path = Path::new(std::ffi::OsStr::from_bytes(name));
        let directory = debug_path.or(self.image_path.as_deref()).and_then(Path::parent).unwrap_or(Path::new("/"));
        // An absolute path replaces the directory.
        let by_path = self.open_matching(&directory.join(path), id, notes);
        by_path.or_else(|| self.find_by_build_id(id, notes)).map(|found| found.file)
    }

    fn find_by_build_id(&self, id: &[u8], notes: &mut Vec<String>) -> Option<DebugFile> {
        let (first, rest) = id.split_first()?;
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let path = format!("/usr/lib/debug/.build-id/{first:02x}/{}.debug", hex(rest));
        self.open_matching(Path::new(&path), id, notes)
    }

    /// Opens a file that must have the build id `id`.
    fn open_matching(&self, path: &Path, id: &[u8], notes: &mut Vec<String>) -> Option<DebugFile> {
        let debug = ElfFile::open(self.open(path).ok()?).ok()?;
        if debug.build_id() != Some(id) {
            notes.push(format!("{} is of another build", path.display()));
            return None;
        }
        Some(DebugFile { file: debug, path: Some(path.to_owned()) })
    }

    fn find_by_link(&self, image: &ElfFile, notes: &mut Vec<String>) -> Option<DebugFile> {
        let section = image.section(b".gnu_debuglink")?;
        // A file name, padding to four bytes, and the CRC-32 of the debug file.
        let data = image.section_data(section, limits::MAX_DEBUGLINK).ok()?;
        let name = Path::new(std::ffi::OsStr::from_bytes(string_at(&data, 0)));
        let crc_at = name.as_os_str().len().checked_add(1)?.checked_next_multiple_of(4)?;
        let crc = u32::from_le_bytes(data.get(crc_at..crc_at.checked_add(4)?)?.try_into().ok()?);
        // The link is a bare name; one that walks the file system was not written by objcopy.
        let mut components = name.components();
        let (Some(Component::Normal(name)), None) = (components.next(), components.next()) else { return None };
        let directory = self.image_path.as_deref()?.parent()?;
        let beneath = directory.strip_prefix("/").unwrap_or(directory);
        let candidates = [
            directory.join(name),
            directory.join(".debug").join(name),
            Path::new("/usr/lib/debug").join(beneath).join(name),
        ];
        candidates.into_iter().find_map(|path| {
            let file = self.open(&path).ok()?;
            let same_sum = crc_of(&file).ok()? == crc;
            let debug = ElfFile::open(file).ok()?;
            // The checksum is 32 bits and no secret; where both have build ids, they decide too.
            let same_build = match (image.build_id(), debug.build_id()) {
                (Some(a), Some(b)) => a == b,
                _ => true,
            };
            if !(same_sum && same_build) {
                notes.push(format!("{} is of another build", path.display()));
                return None;
            }
            Some(DebugFile { file: debug, path: Some(path) })
        })
    }

    /// Opens a regular file, given its absolute path inside the root.
    fn open(&self, path: &Path) -> io::Result<File> {
        let root = self.root.as_deref().ok_or(io::ErrorKind::NotFound)?;
        let path = root.join(path.strip_prefix("/").unwrap_or(path));
        // O_NONBLOCK: opening a FIFO or some devices would otherwise wait for a peer. It does nothing for
        // regular files. std adds O_CLOEXEC.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(&path)?;
        if !file.metadata()?.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(file)
    }
}

/// The CRC-32 of a whole file (the polynomial of zlib, as `.gnu_debuglink` uses it).
fn crc_of(file: &File) -> io::Result<u32> {
    use std::os::unix::fs::FileExt;
    if file.metadata()?.len() > limits::MAX_CHECKED_FILE {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; 256 << 10];
    let mut offset = 0;
    // The file may grow while it is read; the limit holds all the same.
    while offset <= limits::MAX_CHECKED_FILE {
        let count = match file.read_at(&mut buffer, offset) {
            Ok(0) => return Ok(hasher.finalize()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        hasher.update(buffer.get(..count).unwrap_or_default());
        offset += count as u64;
    }
    Err(io::ErrorKind::FileTooLarge.into())
}
