//! The images seen in a session, each once, whatever processes have it mapped.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use ccsd_symbolizer::ElfFile;
use hashbrown::HashMap;

use super::procfs;

/// Position of an image in [`Images`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageIndex(pub u32);

impl ImageIndex {
    /// Addresses that no mapping covers.
    pub const UNKNOWN: ImageIndex = ImageIndex(0);
    /// The kernel with its modules; its "SVMAs" are the addresses that it runs at.
    pub const KERNEL: ImageIndex = ImageIndex(1);
}

/// One image.
#[derive(Clone, Debug)]
pub struct Image {
    /// Path in the root of the process that mapped it first, or a name in brackets.
    pub name: String,
    /// The file, if it could be opened and is an ELF file.
    pub elf: Option<Arc<ElfFile>>,
}

/// What makes two mappings the same image.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// An opened file. Inode numbers are used again after deletion; size and times tell the files apart.
    File { device: u64, inode: u64, size: u64, modified: (i64, i64), changed: (i64, i64) },
    /// A file that could not be opened, or a region in brackets.
    Name(String),
}

/// What a process maps, as a record or /proc tells it.
#[derive(Clone, Copy, Debug)]
pub struct MappedFile<'a> {
    /// The process.
    pub pid: u32,
    /// First address of the mapping.
    pub start: u64,
    /// One past its last.
    pub end: u64,
    /// Inode number; 0 for what is no file.
    pub inode: u64,
    /// Path or bracketed name.
    pub path: &'a str,
}

/// All images of a session.
#[derive(Debug)]
pub struct Images {
    list: Vec<Image>,
    by_key: HashMap<Key, ImageIndex>,
}

impl Default for Images {
    fn default() -> Self {
        let special = |name: &str| Image { name: name.to_owned(), elf: None };
        Images { list: vec![special("[unknown]"), special("[kernel]")], by_key: HashMap::new() }
    }
}

impl Images {
    /// Name of the image that all anonymous executable memory is: code generated at run time.
    pub const ANONYMOUS: &'static str = "[anon]";

    /// The image of a mapping; opened if it is new.
    pub fn find_or_open(&mut self, mapped: MappedFile<'_>) -> ImageIndex {
        match mapped.path {
            "[vdso]" => self.intern(Key::Name("[vdso]".to_owned()), "[vdso]", || {
                ElfFile::from_bytes(procfs::vdso_bytes().ok()?).ok()
            }),
            "" | "//anon" | "[heap]" | "[stack]" => {
                self.intern(Key::Name(Self::ANONYMOUS.to_owned()), Self::ANONYMOUS, || None)
            }
            path if mapped.inode == 0 => self.intern(Key::Name(path.to_owned()), path, || None),
            path => match procfs::open_mapped_file(mapped.pid, mapped.start, mapped.end, mapped.inode, path) {
                Some(file) => match file_key(&file) {
                    Some(key) => self.intern(key, path, || ElfFile::open(file).ok()),
                    None => self.intern(Key::Name(path.to_owned()), path, || None),
                },
                None => self.intern(Key::Name(path.to_owned()), path, || None),
            },
        }
    }

    fn intern(&mut self, key: Key, name: &str, open: impl FnOnce() -> Option<ElfFile>) -> ImageIndex {
        if let Some(&index) = self.by_key.get(&key) {
            return index;
        }
        let index = ImageIndex(u32::try_from(self.list.len()).unwrap_or(u32::MAX));
        self.list.push(Image { name: name.to_owned(), elf: open().map(Arc::new) });
        self.by_key.insert(key, index);
        index
    }

    /// One image.
    pub fn get(&self, index: ImageIndex) -> Option<&Image> {
        self.list.get(index.0 as usize)
    }

    /// How many there are, the two special ones included.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Never: the special images are always there.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// What is added to an address of a mapping to get the image's SVMA, wrapping.
    ///
    /// For a file without readable ELF headers the "SVMA" is the offset in the file; for what is no file, the address.
    pub fn to_svma(&self, index: ImageIndex, start: u64, file_offset: u64) -> u64 {
        let Some(image) = self.get(index) else { return 0 };
        match &image.elf {
            Some(elf) => svma_of_page(elf, file_offset).wrapping_sub(start),
            None if image.name.starts_with('[') => 0,
            None => file_offset.wrapping_sub(start),
        }
    }
}

/// The SVMA that belongs to the first byte of a mapping. A mapping begins on a page, a segment may begin inside one;
/// where two segments share the page, the executable one is meant.
fn svma_of_page(elf: &ElfFile, file_offset: u64) -> u64 {
    let covers = |segment: &&ccsd_symbolizer::Segment| {
        let first = segment.file_offset & !(crate::perf::ring::PAGE as u64 - 1);
        first <= file_offset && file_offset < segment.file_offset.saturating_add(segment.file_size)
    };
    let segments = elf.segments();
    let segment = segments.iter().filter(covers).find(|s| s.executable).or_else(|| segments.iter().find(covers));
    segment.map_or(file_offset, |segment| segment.svma.wrapping_add(file_offset.wrapping_sub(segment.file_offset)))
}

fn file_key(file: &File) -> Option<Key> {
    let meta = file.metadata().ok()?;
    Some(Key::File {
        device: meta.dev(),
        inode: meta.ino(),
        size: meta.len(),
        modified: (meta.mtime(), meta.mtime_nsec()),
        changed: (meta.ctime(), meta.ctime_nsec()),
    })
}
