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
/// A file is used only if it is the right one: its build id equals the image's, or its CRC-32 the one in the image. Only
/// regular files are opened, and opening never waits.
#[derive(Debug, Clone, Default)]
pub struct DebugFileFinder {
    root: Option<PathBuf>,
    image_path: Option<PathBuf>,
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

    /// The separate debug file of an image, with the path it was found at.
    pub(crate) fn find(&self, image: &ElfFile) -> Option<(ElfFile, PathBuf)> {
        self.find_by_build_id(image).or_else(|| self.find_by_link(image))
    }

    fn find_by_build_id(&self, image: &ElfFile) -> Option<(ElfFile, PathBuf)> {
        let id = image.build_id()?;
        let (first, rest) = id.split_first()?;
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let path = format!("/usr/lib/debug/.build-id/{first:02x}/{}.debug", hex(rest));
        let (file, path) = self.open(Path::new(&path)).ok()?;
        let debug = ElfFile::open(file).ok()?;
        (debug.build_id() == Some(id)).then_some((debug, path))
    }

    fn find_by_link(&self, image: &ElfFile) -> Option<(ElfFile, PathBuf)> {
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
        candidates.iter().find_map(|path| {
            let (file, path) = self.open(path).ok()?;
            if crc_of(&file).ok()? != crc {
                return None;
            }
            let debug = ElfFile::open(file).ok()?;
            // The checksum is 32 bits and no secret; where both have build ids, they decide.
            let same = match (image.build_id(), debug.build_id()) {
                (Some(a), Some(b)) => a == b,
                _ => true,
            };
            same.then_some((debug, path))
        })
    }

    /// Opens a regular file, given its absolute path inside the root.
    fn open(&self, path: &Path) -> io::Result<(File, PathBuf)> {
        let root = self.root.as_deref().ok_or(io::ErrorKind::NotFound)?;
        let path = root.join(path.strip_prefix("/").unwrap_or(path));
        // O_NONBLOCK: opening a FIFO or some devices would otherwise wait for a peer. It does nothing for
        // regular files. std adds O_CLOEXEC.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(&path)?;
        if !file.metadata()?.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok((file, path))
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
