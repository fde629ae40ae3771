//! Finds separate debug information.
//!
//! As in GDB's manual ("Debugging Information in Separate Files"): by build id under `/usr/lib/debug/.build-id`, by
//! name and checksum in `.gnu_debuglink`, parts shared by `dwz(1)` by `.gnu_debugaltlink` or `.debug_sup`, split DWARF
//! (DWARF 5, section 7.3.2) by its skeleton unit or in a package beside the image.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::stat::fstat;

use crate::debuginfod::own_users;
use crate::door::{Door, ForUser};
use crate::elf_file::ElfFile;
use crate::limits;
use crate::meter;
use crate::root::FileRoot;

/// Where separate debug files of an image are searched.
///
/// A file is used only if its build id or CRC-32 is the image's, and outside of `/usr/lib/debug` only if it belongs to root, to
/// the image's owner or to this process's user. Only regular files are opened, without blocking. Holds the root directory open, so
/// that the program may end.
#[derive(Debug, Clone, Default)]
pub struct DebugFileFinder {
    roots: Vec<FileRoot>,
    image_path: Option<PathBuf>,
    held: Vec<(PathBuf, Arc<File>)>,
    opener: Option<Arc<dyn OpenFiles>>,
    view: u64,
    door: Door,
    /// Owners whose debug files are accepted outside of [`DEBUG_DIRECTORY`]; `None` accepts all.
    accepted_owners: Option<Vec<u32>>,
}

/// Opens files on behalf of a process that may not.
pub trait OpenFiles: Debug + Send + Sync {
    /// Opens the regular files at an absolute path.
    fn open(&self, path: &Path) -> Vec<File>;
}

const DEBUG_DIRECTORY: &str = "/usr/lib/debug";
/// Directories beside an image that are searched, relative to the image's.
const BESIDE: [&str; 3] = ["", ".debug", ".dwz"];
const SPLIT_EXTENSIONS: [&str; 2] = ["dwo", "dwp"];

static VIEWS: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
pub(crate) struct DebugFile {
    pub(crate) file: ElfFile,
    pub(crate) path: Option<PathBuf>,
}

impl DebugFileFinder {
    /// A finder that searches nowhere.
    #[must_use]
    pub fn none() -> DebugFileFinder {
        DebugFileFinder::default()
    }

    /// Searches this machine: `/usr/lib/debug` and the directories beside the image.
    #[must_use]
    pub fn system() -> DebugFileFinder {
        DebugFileFinder { roots: vec![FileRoot::Own], ..DebugFileFinder::default() }
    }

    /// As [`DebugFileFinder::system`] for programs with another file system: all paths are resolved with `root` as `/`,
    /// which may be `/proc/PID/root` and is opened here.
    ///
    /// # Errors
    /// If the directory cannot be opened.
    pub fn in_root(root: impl AsRef<Path>) -> io::Result<DebugFileFinder> {
        let view = VIEWS.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(DebugFileFinder { roots: vec![FileRoot::at(root.as_ref())?], view, ..DebugFileFinder::default() })
    }

    /// Delegates opening files to another process.
    #[must_use]
    pub fn through(opener: Arc<dyn OpenFiles>) -> DebugFileFinder {
        DebugFileFinder { opener: Some(opener), ..DebugFileFinder::default() }
    }

    /// Identifies the file system of its paths: 0 is this process's, each [`DebugFileFinder::in_root`] another. Debug
    /// files differ between views even for equal images.
    #[must_use]
    pub fn view(&self) -> u64 {
        self.view
    }

    /// The same as another view: what was found, or not, is looked for again.
    #[must_use]
    pub fn anew(self) -> DebugFileFinder {
        DebugFileFinder { view: VIEWS.fetch_add(1, Ordering::Relaxed) + 1, ..self }
    }

    /// Opens files through a door, which finds only what its user may read.
    #[must_use]
    pub fn door(mut self, door: Door) -> DebugFileFinder {
        self.door = door;
        self
    }

    /// The user who must be allowed to read the files, if restricted.
    #[must_use]
    pub fn user(&self) -> Option<ForUser> {
        self.door.user()
    }

    /// The image's absolute path, if known.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.image_path.as_deref()
    }

    /// Outside of `/usr/lib/debug`, accepts only files of root (that of the image's container, too), of this process's user,
    /// and of the image's owner: in a directory that all may write to, anybody can place another program's names beside an
    /// image. Files that come from the opener are not checked here: it checks them.
    #[must_use]
    pub fn accept_owners_for(mut self, image: &ElfFile) -> DebugFileFinder {
        // A worker looks nowhere, and may make few system calls.
        if self.roots.is_empty() {
            return self;
        }
        let owner = image.file().and_then(|file| file.metadata().ok()).map(|meta| meta.uid());
        let roots = self.roots.iter().filter_map(|root| fstat(root.directory().ok()?).ok()).map(|meta| meta.st_uid);
        self.accepted_owners = Some(own_users().into_iter().chain(owner).chain(roots).collect());
        self
    }

    /// Opens debug file candidates of the image for an untrusted process: only ELF files beside it, in a debug
    /// directory, installed, or named as split DWARF. Nothing is read of those that it `may` not have.
    #[must_use]
    pub fn open_for_other(&self, path: &Path, may: impl Fn(&File) -> bool) -> Vec<File> {
        let Some(path) = normal(path) else { return Vec::new() };
        let beside = self.directory().and_then(normal).is_some_and(|directory| {
            let within = path.parent().and_then(|parent| parent.strip_prefix(directory).ok());
            within.is_some_and(|within| BESIDE.iter().any(|known| within == Path::new(known)))
        });
        let split = path.extension().is_some_and(|end| SPLIT_EXTENSIONS.iter().any(|known| end == *known));
        if !(beside || split || path.starts_with(DEBUG_DIRECTORY)) {
            return Vec::new();
        }
        let is_elf = |file: &File| {
            let mut magic = [0; 4];
            file.read_exact_at(&mut magic, 0).is_ok() && &magic == b"\x7fELF"
        };
        self.open(&path, &mut Vec::new()).into_iter().filter(|file| may(file) && is_elf(file)).collect()
    }

    /// Searches this machine after the other root: containers rarely have debug files, but their host may.
    #[must_use]
    pub fn or_system(mut self) -> DebugFileFinder {
        self.roots.push(FileRoot::Own);
        self
    }

    /// Sets the image's absolute path inside the root. Needed for `.gnu_debuglink` and packages of split DWARF.
    #[must_use]
    pub fn image_path(mut self, path: impl Into<PathBuf>) -> DebugFileFinder {
        self.image_path = Some(path.into());
        self
    }

    /// Opens debug file candidates of `image` now, to be read when needed: mounts go with the last program of their
    /// namespace. (Not split DWARF, a file for each unit.) A few system calls; `read` reads a file's headers, with
    /// [`ElfFile::open_debug`] or elsewhere.
    #[must_use]
    pub fn hold(self, image: &ElfFile, read: impl Fn(File) -> Option<ElfFile>) -> DebugFileFinder {
        let mut finder = self.accept_owners_for(image);
        let by_id = image.build_id().and_then(build_id_path);
        let linked = finder.link(image).into_iter().flat_map(|link| link.candidates);
        // The last is the first that is looked for.
        let mut paths: Vec<PathBuf> = finder.package_paths(None).chain(linked).chain(by_id).collect();
        let add_supplement = |paths: &mut Vec<PathBuf>, debug: &ElfFile, path: Option<&Path>| {
            if let Some((name, id)) = debug.links().supplement() {
                paths.extend(build_id_path(id));
                paths.extend(path.and_then(Path::parent).map(|directory| directory.join(name)));
            }
        };
        add_supplement(&mut paths, image, finder.image_path.as_deref());
        // Each file found may add two paths; the number of files is bounded.
        while let Some(path) = paths.pop() {
            for root in finder.roots.clone() {
                let Ok(file) = finder.door.open(&root, &path) else { continue };
                if finder.refused_owner(&path, &file).is_some() {
                    continue;
                }
                if finder.held.len() >= limits::MAX_HELD_FILES {
                    return finder;
                }
                if let Some(debug) = file.try_clone().ok().and_then(&read) {
                    add_supplement(&mut paths, &debug, Some(&path));
                }
                finder.held.push((path.clone(), Arc::new(file)));
            }
        }
        finder
    }

    pub(crate) fn find(&self, image: &ElfFile, notes: &mut Vec<String>) -> Option<DebugFile> {
        image.build_id().and_then(|id| self.find_by_build_id(id, notes)).or_else(|| self.find_by_link(image, notes))
    }

    pub(crate) fn find_supplement(
        &self,
        debug: &ElfFile,
        debug_path: Option<&Path>,
        notes: &mut Vec<String>,
    ) -> Option<ElfFile> {
        let links = debug.links();
        let (path, id) = links.supplement()?;
        let directory = debug_path.or(self.image_path.as_deref()).and_then(Path::parent).unwrap_or(Path::new("/"));
        // An absolute path replaces the directory.
        let by_path = self.open_matching(&directory.join(&path), id, notes);
        let found = by_path.or_else(|| self.find_by_build_id(id, notes));
        if found.is_none() {
            let path = path.display();
            notes.push(format!("debug information common to several images is missing: {path}"));
        }
        found.map(|found| found.file)
    }

    /// Finds the split DWARF package of an image: its name or its debug file's with `.dwp` appended.
    pub(crate) fn find_package(
        &self,
        debug_path: Option<&Path>,
        notes: &mut Vec<String>,
    ) -> Option<(PathBuf, ElfFile)> {
        self.package_paths(debug_path).find_map(|path| {
            let file = self.find_split(&path, notes)?;
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

    pub(crate) fn directory(&self) -> Option<&Path> {
        self.image_path.as_deref().and_then(Path::parent)
    }

    pub(crate) fn find_split(&self, path: &Path, notes: &mut Vec<String>) -> Option<ElfFile> {
        self.open(path, notes).into_iter().find_map(|file| ElfFile::open_debug(file).ok())
    }

    fn find_by_build_id(&self, id: &[u8], notes: &mut Vec<String>) -> Option<DebugFile> {
        self.open_matching(&build_id_path(id)?, id, notes)
    }

    fn open_matching(&self, path: &Path, id: &[u8], notes: &mut Vec<String>) -> Option<DebugFile> {
        self.open(path, notes).into_iter().find_map(|file| {
            // Files of `dwz` are object files.
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
            self.open(&path, notes).into_iter().find_map(|file| {
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

    fn link(&self, image: &ElfFile) -> Option<Link> {
        let (name, crc) = image.links().debug?;
        let name = Path::new(OsStr::from_bytes(&name));
        // The link must be a bare name; objcopy writes no paths.
        let mut components = name.components();
        let (Some(Component::Normal(name)), None) = (components.next(), components.next()) else { return None };
        let directory = self.image_path.as_deref()?.parent()?;
        let beneath = directory.strip_prefix("/").unwrap_or(directory);
        let candidates = [
            directory.join(name),
            directory.join(".debug").join(name),
            Path::new(DEBUG_DIRECTORY).join(beneath).join(name),
        ];
        Some(Link { crc, candidates })
    }

    fn open(&self, path: &Path, notes: &mut Vec<String>) -> Vec<File> {
        let held = self.held.iter().filter(|(at, _)| at == path).filter_map(|(_, file)| file.try_clone().ok());
        let here = self.roots.iter().filter_map(|root| self.door.open(root, path).ok());
        let mut files: Vec<File> = held.chain(here).collect();
        files.retain(|file| {
            let refused = self.refused_owner(path, file);
            if let Some(user) = refused {
                let not_of = "not of root, the image's owner or the user who runs ccsd";
                let note = format!("{} was not used: it belongs to user {user}, {not_of}", path.display());
                if !notes.contains(&note) {
                    notes.push(note);
                }
            }
            refused.is_none()
        });
        files.extend(self.opener.iter().flat_map(|opener| opener.open(path)));
        files
    }

    /// The owner of a debug file, if that is none whose files are accepted.
    fn refused_owner(&self, path: &Path, file: &File) -> Option<u32> {
        let accepted = self.accepted_owners.as_ref()?;
        if normal(path).is_some_and(|path| path.starts_with(DEBUG_DIRECTORY)) {
            return None;
        }
        let owner = file.metadata().map_or(u32::MAX, |meta| meta.uid());
        (!accepted.contains(&owner)).then_some(owner)
    }
}

/// The content of `.gnu_debuglink`: the checksum, and paths where the file may be.
struct Link {
    crc: u32,
    candidates: [PathBuf; 3],
}

fn build_id_path(id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(PathBuf::from(format!("{DEBUG_DIRECTORY}/.build-id/{first:02x}/{rest}.debug")))
}

/// Whether a linked file belongs to the image: by build ids if both have one, else by the checksum of a file that is
/// not too large.
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

/// Normalises an absolute path, resolving `..` as if there were no symbolic links.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir => _ = normal.pop(),
            Component::Normal(name) => normal.push(name),
            Component::Prefix(_) => return None,
        }
    }
    path.is_absolute().then_some(normal)
}

fn crc_of(file: &File) -> io::Result<u32> {
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; 256 << 10];
    let mut offset = 0;
    // The file may grow while it is read; the limit applies all the same.
    while offset <= limits::MAX_CHECKED_FILE {
        let count = match file.read_at(&mut buffer, offset) {
            Ok(0) => return Ok(hasher.finalize()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        meter::spend(meter::steps_of(count)).map_err(|meter::Spent| io::Error::from(io::ErrorKind::FileTooLarge))?;
        hasher.update(buffer.get(..count).unwrap_or_default());
        offset += count as u64;
    }
    Err(io::ErrorKind::FileTooLarge.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;

    #[test]
    fn another_process_gets_debug_files_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        fs::create_dir_all(at("bin/.debug")).unwrap();
        fs::create_dir_all(at("bin/deeper")).unwrap();
        let elf = std::env::current_exe().unwrap();
        for path in ["bin/a.debug", "bin/.debug/a", "bin/deeper/a", "b.debug", "b.dwo"] {
            std::os::unix::fs::symlink(&elf, at(path)).unwrap();
        }
        fs::write(at("bin/key"), "secret").unwrap();
        fs::write(at("bin/key.dwo"), "secret").unwrap();
        let finder = DebugFileFinder::system().image_path(at("bin/a"));
        let opened = |path: &Path| finder.open_for_other(path, |_| true).len();
        for path in ["bin/a.debug", "bin/.debug/a", "b.dwo", "bin/deeper/../a.debug"] {
            assert_eq!(opened(&at(path)), 1, "{path}");
        }
        for path in ["bin/deeper/a", "b.debug", "bin/../b.debug", "bin/key", "bin/key.dwo", "bin", "bin/missing"] {
            assert_eq!(opened(&at(path)), 0, "{path}");
        }
        for path in ["/etc/passwd", "/usr/lib/debug/../../../etc/passwd", "bin/a.debug", "/dev/null", ""] {
            assert_eq!(opened(Path::new(path)), 0, "{path}");
        }
    }
}
