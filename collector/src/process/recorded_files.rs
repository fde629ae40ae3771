//! The files that processes of a recording had mapped, and whether they are still there.
//!
//! An ELF file is used only if it is the mapped one (device and inode, or perf's build id), and the kernel's own code
//! only if the kernel is where it was.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use ccsd_symbolizer::ElfFile;

use super::image::ImageIndex;
use super::mapped_file::MappedFile;

/// Files of mappings: as many as a profile has images.
const MAX_FILES: usize = 1 << 14;
const MAX_NAMED: usize = 3;
const OTHER_NAME: &str = "[other]";

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RecordedIdentity {
    Inode { device: (u32, u32), inode: u64 },
    BuildId(Vec<u8>),
    Nothing,
}

impl RecordedIdentity {
    fn of(mapped: &MappedFile<'_>) -> RecordedIdentity {
        match mapped {
            MappedFile { build_id, .. } if !build_id.is_empty() => RecordedIdentity::BuildId(build_id.to_vec()),
            MappedFile { inode: 0, .. } => RecordedIdentity::Nothing,
            MappedFile { device, inode, .. } => RecordedIdentity::Inode { device: *device, inode: *inode },
        }
    }
}

#[derive(Debug)]
pub enum MappedObject {
    Known(ImageIndex),
    Anonymous,
    /// The code that the kernel maps into every process; the kernel is the same.
    Vdso,
    /// Something of which no more is known than this name.
    Name(String),
    Changed(String),
    File(String, File),
}

#[derive(Debug, Default)]
pub struct RecordedFiles {
    /// Build ids that perf has noted, by path.
    build_ids: HashMap<String, Vec<u8>>,
    files: HashMap<(Vec<u8>, RecordedIdentity), ImageIndex>,
    /// Where the kernel's text began, and whether it does now; perf tells that first of all.
    kernel_text: Option<u64>,
    same_kernel: Option<bool>,
    changed: BTreeSet<String>,
    /// The inode of the first file of a path, and the paths of several.
    first_of_path: HashMap<Vec<u8>, u64>,
    replaced: BTreeSet<String>,
    left_out: u64,
}

impl RecordedFiles {
    pub fn new(build_ids: HashMap<String, Vec<u8>>) -> RecordedFiles {
        RecordedFiles { build_ids, ..RecordedFiles::default() }
    }

    pub fn find(&mut self, mapped: MappedFile<'_>) -> MappedObject {
        let path = mapped.path;
        if path.starts_with(b"//anon") || path.starts_with(b"[") && path != b"[vdso]" {
            return MappedObject::Anonymous;
        }
        if path == b"[vdso]" {
            // That of another kernel has other code.
            return if self.has_the_running_kernel() {
                MappedObject::Vdso
            } else {
                MappedObject::Name("[vdso]".to_owned())
            };
        }
        let known = RecordedIdentity::of(&mapped);
        let key = (path.to_vec(), known);
        if let Some(&image) = self.files.get(&key) {
            return MappedObject::Known(image);
        }
        if self.files.len() >= MAX_FILES {
            self.left_out += 1;
            return MappedObject::Name(OTHER_NAME.to_owned());
        }
        let name = String::from_utf8_lossy(path).into_owned();
        // perf has noted what was at this path in the end: of several files, that is one.
        let is_one_of_several = match key.1 {
            RecordedIdentity::Inode { inode, .. } => *self.first_of_path.entry(path.to_vec()).or_insert(inode) != inode,
            RecordedIdentity::BuildId(_) | RecordedIdentity::Nothing => false,
        };
        // Inodes are those of this machine where the kernel is the one that was recorded.
        let has_inodes = self.has_the_running_kernel();
        let noted = self.build_ids.get(&name).filter(|_| !is_one_of_several).map(Vec::as_slice);
        if is_one_of_several && !has_inodes {
            self.replaced.insert(name.clone());
        }
        match open(path, &key.1, noted, has_inodes) {
            Some(file) => MappedObject::File(name, file),
            None => {
                self.changed.insert(name.clone());
                MappedObject::Changed(name)
            }
        }
    }

    pub fn keep(&mut self, mapped: MappedFile<'_>, image: ImageIndex) {
        self.files.insert((mapped.path.to_vec(), RecordedIdentity::of(&mapped)), image);
    }

    pub fn set_kernel_text(&mut self, address: u64) {
        self.kernel_text = Some(address);
    }

    /// Whether the kernel that runs is, where it is, the one that was recorded: then its symbols are right.
    pub fn has_the_running_kernel(&mut self) -> bool {
        *self.same_kernel.get_or_insert_with(|| runs_now(self.kernel_text))
    }

    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    pub fn notes(&mut self) -> impl Iterator<Item = String> + use<> {
        let note = |paths: &BTreeSet<String>, what: &str| {
            let count = paths.len();
            let named: Vec<&str> = paths.iter().take(MAX_NAMED).map(String::as_str).collect();
            let more = if count > named.len() { format!(" and {} more", count - named.len()) } else { String::new() };
            (count > 0).then(|| format!("{what}: {}{more}", named.join(", ")))
        };
        let changed = note(&self.changed, "missing, or changed since the recording");
        let replaced = note(
            &self.replaced,
            "several files had one path, so that functions of the first may have names of another",
        );
        let kernel = (!self.has_the_running_kernel()).then(|| {
            "kernel functions have no names: the recording is of another kernel, or kernel symbols are hidden"
                .to_owned()
        });
        changed.into_iter().chain(replaced).chain(kernel)
    }
}

/// Opens the file of this path if it is the one that was mapped. A build id that perf has noted beside decides, too, but not
/// against the inode, where that `is_comparable`: another file may have taken the mapped one's place before perf looked.
fn open(path: &[u8], known: &RecordedIdentity, noted: Option<&[u8]>, is_comparable: bool) -> Option<File> {
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
        (RecordedIdentity::BuildId(build_id), _) => has(build_id),
        // Of the device, file systems tell different numbers.
        (RecordedIdentity::Inode { inode, .. }, Some(_)) if is_comparable && meta.ino() != *inode => false,
        (_, Some(build_id)) => has(build_id),
        (RecordedIdentity::Inode { device, inode }, None) => {
            meta.ino() == *inode && meta.dev() == libc::makedev(device.0, device.1)
        }
        (RecordedIdentity::Nothing, None) => false,
    };
    same.then_some(file)
}

/// Whether the kernel's text begins there now, as far as this user may know.
fn runs_now(kernel_text: Option<u64>) -> bool {
    let Some(recorded) = kernel_text.filter(|&address| address != 0) else { return false };
    let Ok(file) = File::open("/proc/kallsyms") else { return false };
    let lines = BufReader::new(file).lines().take(1000).map_while(Result::ok);
    let mut addresses = lines.filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        matches!(words.nth(1)?, "_text" | "_stext").then_some(address)
    });
    addresses.any(|address| address == recorded)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found of a file at this test's own path with this inode, where perf has noted its build id.
    fn find(files: &mut RecordedFiles, inode: u64) -> MappedObject {
        let path = std::env::current_exe().unwrap();
        let path = path.as_os_str().as_bytes();
        let mapped = MappedFile { pid: 1, start: 0, end: 1, path, device: (0, 0), inode, build_id: &[] };
        let found = files.find(mapped);
        files.keep(mapped, ImageIndex(0));
        found
    }

    fn noted() -> (RecordedFiles, u64) {
        let path = std::env::current_exe().unwrap();
        let file = File::open(&path).unwrap();
        let inode = file.metadata().unwrap().ino();
        let build_id = ElfFile::open(file).unwrap().build_id().unwrap().to_vec();
        (RecordedFiles::new([(path.to_str().unwrap().to_owned(), build_id)].into()), inode)
    }

    #[test]
    fn a_file_that_took_another_s_place_is_not_taken_for_it() {
        for is_here in [true, false] {
            let (mut files, inode) = noted();
            files.same_kernel = Some(is_here);
            // Of another machine the inode says nothing, and perf's build id is all there is.
            let replaced = find(&mut files, inode + 1);
            assert_eq!(matches!(replaced, MappedObject::Changed(_)), is_here);
            assert_eq!(matches!(replaced, MappedObject::File(..)), !is_here);
            // But it is of one file, not of all.
            assert!(matches!(find(&mut files, inode + 2), MappedObject::Changed(_)));
            let several = files.notes().filter(|note| note.starts_with("several files had one path")).count();
            assert_eq!(several, usize::from(!is_here));
        }
        let (mut files, inode) = noted();
        files.same_kernel = Some(true);
        assert!(matches!(find(&mut files, inode), MappedObject::File(..)));
    }
}
