//! Where separate debug information is found.
//!
//! As GDB's manual describes it ("Debugging Information in Separate Files"): by build id, under
//! `/usr/lib/debug/.build-id`, and by the file name and checksum in `.gnu_debuglink`; what `dwz(1)` made common by
//! `.gnu_debugaltlink` or `.debug_sup`; and split DWARF (DWARF 5, section 7.3.2) by the name in its skeleton unit, or in
//! one package beside the image.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::elf::{ElfFile, string_at};
use crate::limits;
use crate::root::Root;

/// Where separate debug files are searched for one image.
///
/// A file is used only if it is the right one: its build id equals the image's, or its CRC-32 the one in the image.
/// Only regular files are opened, and opening never waits. It can be cloned and kept: it holds another root open, so that
/// the program that had it may end.
#[derive(Debug, Clone, Default)]
pub struct DebugFileFinder {
    /// In order of preference.
    roots: Vec<Root>,
    image_path: Option<PathBuf>,
    /// Files opened beforehand, by the paths they were found at.
    held: Vec<(PathBuf, Arc<File>)>,
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
        DebugFileFinder { roots: vec![Root::Own], ..DebugFileFinder::default() }
    }

    /// Like [`DebugFileFinder::system`] for programs that see another file system: all paths, and the symbolic links on
    /// them, are resolved with `root` as `/`. It is opened here, and may be `/proc/PID/root`.
    ///
    /// # Errors
    ///
    /// If the directory cannot be opened.
    pub fn in_root(root: impl AsRef<Path>) -> io::Result<DebugFileFinder> {
        Ok(DebugFileFinder { roots: vec![Root::at(root.as_ref())?], ..DebugFileFinder::default() })
    }

    /// Searches this machine too, after the other root: containers rarely have debug files, their host may.
    #[must_use]
    pub fn or_system(mut self) -> DebugFileFinder {
        self.roots.push(Root::Own);
        self
    }

    /// Says what the image's absolute path is, as seen inside the root. Needed for `.gnu_debuglink` and packages of
    /// split DWARF.
    #[must_use]
    pub fn image_path(mut self, path: impl Into<PathBuf>) -> DebugFileFinder {
        self.image_path = Some(path.into());
        self
    }

    /// Opens what may be debug files of `image` now, to be looked at when they are needed: for programs in a mount
    /// namespace of their own, which is taken apart when they end, whoever holds its root open. (Not the files of split
    /// DWARF, as there is one for each unit.) A few system calls; nothing large is read.
    #[must_use]
    pub fn hold(mut self, image: &ElfFile) -> DebugFileFinder {
        let by_id = image.build_id().and_then(build_id_path);
        let linked = self.link(image).into_iter().flat_map(|link| link.candidates);
        let mut paths: Vec<PathBuf> = by_id.into_iter().chain(linked).chain(self.package_paths(None)).collect();
        let add_supplement = |paths: &mut Vec<PathBuf>, debug: &ElfFile, path: Option<&Path>| {
            if let Some((name, id)) = supplement_link(debug) {
                paths.extend(build_id_path(&id));
                paths.extend(path.and_then(Path::parent).map(|directory| directory.join(name)));
            }
        };
        add_supplement(&mut paths, image, self.image_path.as_deref());
        // Each file found may add two paths, and as many files are held.
        while let Some(path) = paths.pop() {
            for root in &self.roots {
                let Ok(file) = root.open(&path) else { continue };
                if self.held.len() >= limits::MAX_HELD_FILES {
                    return self;
                }
                if let Some(debug) = file.try_clone().ok().and_then(|file| ElfFile::open_debug(file).ok()) {
                    add_supplement(&mut paths, &debug, Some(&path));
                }
                self.held.push((path.clone(), Arc::new(file)));
            }
        }
        self
    }

    /// The separate debug file of an image. Files that are there but belong to another build are noted.
    pub(crate) fn find(&self, image: &ElfFile, notes: &mut Vec<String>) -> Option<DebugFile> {
        image.build_id().and_then(|id| self.find_by_build_id(id, notes)).or_else(|| self.find_by_link(image, notes))
    }

    /// The file that `dwz(1)` moved debug information to that is common to several.
    pub(crate) fn find_supplement(
        &self,
        debug: &ElfFile,
        debug_path: Option<&Path>,
        notes: &mut Vec<String>,
    ) -> Option<ElfFile> {
        let (path, id) = supplement_link(debug)?;
        let directory = debug_path.or(self.image_path.as_deref()).and_then(Path::parent).unwrap_or(Path::new("/"));
        // An absolute path replaces the directory.
        let by_path = self.open_matching(&directory.join(&path), &id, notes);
        let found = by_path.or_else(|| self.find_by_build_id(&id, notes));
        if found.is_none() {
            let path = path.display();
            notes.push(format!("debug information common to several images is missing: {path}"));
        }
        found.map(|found| found.file)
    }

    /// The package with the split DWARF of an image, and of a file with its debug information: their names with `.dwp`
    /// appended.
    pub(crate) fn find_package(&self, debug_path: Option<&Path>) -> Option<(PathBuf, ElfFile)> {
        self.package_paths(debug_path).find_map(|path| {
            let file = self.open(&path).find_map(|file| ElfFile::open_debug(file).ok())?;
            Some((path, file))
        })
    }

    fn package_paths<'a>(&'a self, debug_path: Option<&'a Path>) -> impl Iterator<Item = PathBuf> + 'a {
        [self.image_path.as_deref(), debug_path].into_iter().flatten().map(|path| {
            let mut name = path.as_os_str().to_owned();
            name.push(".dwp");
            PathBuf::from(name)
        })
    }

    /// The directory of the image.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.image_path.as_deref().and_then(Path::parent)
    }

    /// The file with the debug information that was split off one unit (`.dwo`).
    pub(crate) fn find_split(&self, path: &Path) -> Option<ElfFile> {
        self.open(path).find_map(|file| ElfFile::open_debug(file).ok())
    }

    fn find_by_build_id(&self, id: &[u8], notes: &mut Vec<String>) -> Option<DebugFile> {
        self.open_matching(&build_id_path(id)?, id, notes)
    }

    /// Opens a file that must have the build id `id`.
    fn open_matching(&self, path: &Path, id: &[u8], notes: &mut Vec<String>) -> Option<DebugFile> {
        self.open(path).find_map(|file| {
            // Those of `dwz` are object files.
            let debug = ElfFile::open_debug(file).ok()?;
            if debug.build_id() != Some(id) {
                notes.push(format!("{} is of another build", path.display()));
                return None;
            }
            Some(DebugFile { file: debug, path: Some(path.to_owned()) })
        })
    }

    fn find_by_link(&self, image: &ElfFile, notes: &mut Vec<String>) -> Option<DebugFile> {
        let Link { crc, candidates } = self.link(image)?;
        candidates.into_iter().find_map(|path| {
            self.open(&path).find_map(|file| {
                let sum = file.try_clone();
                let debug = ElfFile::open(file).ok()?;
                match is_linked(image, &debug, crc, sum) {
                    Ok(true) => return Some(DebugFile { file: debug, path: Some(path.clone()) }),
                    Ok(false) => notes.push(format!("{} is of another build", path.display())),
                    Err(error) => notes.push(format!("cannot tell the build of {}: {error}", path.display())),
                }
                None
            })
        })
    }

    /// What `.gnu_debuglink` says.
    fn link(&self, image: &ElfFile) -> Option<Link> {
        let section = image.section(b".gnu_debuglink")?;
        // A file name, padding to four bytes, and the CRC-32 of the debug file.
        let data = image.section_data(section, limits::MAX_DEBUGLINK).ok()?;
        let name = Path::new(OsStr::from_bytes(string_at(&data, 0)));
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
        Some(Link { crc, candidates })
    }

    /// The regular files that an absolute path leads to, in the roots.
    fn open(&self, path: &Path) -> impl Iterator<Item = File> {
        let held = self.held.iter().filter(move |(at, _)| at == path).filter_map(|(_, file)| file.try_clone().ok());
        held.chain(self.roots.iter().filter_map(move |root| root.open(path).ok()))
    }
}

/// What `.gnu_debuglink` says of the debug file: its checksum, and by its name where it may be.
struct Link {
    crc: u32,
    candidates: [PathBuf; 3],
}

fn build_id_path(id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(PathBuf::from(format!("/usr/lib/debug/.build-id/{first:02x}/{rest}.debug")))
}

/// Whether the file that `.gnu_debuglink` leads to is the right one. Where both have build ids these tell, as they are
/// longer and need no reading; else the checksum of the whole file does, if it is not too large.
fn is_linked(image: &ElfFile, debug: &ElfFile, crc: u32, file: io::Result<File>) -> Result<bool, String> {
    if let (Some(ours), Some(theirs)) = (image.build_id(), debug.build_id()) {
        return Ok(ours == theirs);
    }
    let (mib, limit) = (debug.file_size() >> 20, limits::MAX_CHECKED_FILE >> 20);
    if debug.file_size() > limits::MAX_CHECKED_FILE {
        return Err(format!("it has no build id, and its {mib} MiB are above the limit for a checksum, {limit} MiB"));
    }
    let sum = file.and_then(|file| crc_of(&file)).map_err(|error| error.to_string())?;
    Ok(sum == crc)
}

/// The path and the build id of the file with debug information common to several: `.gnu_debugaltlink` has just
/// these, `.debug_sup` (DWARF 5, section 7.3.6) also a version, a mark for the file itself, and the size of the id.
fn supplement_link(debug: &ElfFile) -> Option<(PathBuf, Vec<u8>)> {
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let read = |name| debug.section_data(debug.section(name)?, limits::MAX_ALTLINK).ok();
    if let Some(data) = read(b".gnu_debugaltlink".as_slice()) {
        let name = string_at(&data, 0);
        return Some((path(name), data.get(name.len().checked_add(1)?..)?.to_vec()));
    }
    let data = read(b".debug_sup")?;
    let [5, 0, 0, rest @ ..] = &*data else { return None };
    let name = string_at(rest, 0);
    let (&size, id) = rest.get(name.len().checked_add(1)?..)?.split_first()?;
    // A LEB128 number; ids are shorter than 128 bytes.
    Some((path(name), id.get(..usize::from(size))?.to_vec()))
}

/// The CRC-32 of a whole file (the polynomial of zlib, as `.gnu_debuglink` uses it).
fn crc_of(file: &File) -> io::Result<u32> {
    use std::os::unix::fs::FileExt;
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
