//! ELF files, with what is shared of their contents.

use std::fs::File;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use object::elf::FileType;

use crate::elf::Section;
use crate::elf::decode::{LINKED, WITH_OBJECTS};
use crate::elf::links::Links;
use crate::elf::reader::{DecodedHeaders, ElfReader};
use crate::error::ImageError;
use crate::go::GoFunctions;
use crate::source::ImageSource;
use crate::symbol_starts::SymbolStarts;
use crate::unwind::UnwindSections;

/// An open ELF file, read with `pread`, never mapped. Opening reads only the headers; sections are read whole on
/// request. Can be shared between threads.
#[derive(Debug)]
pub struct ElfFile {
    reader: ElfReader,
    /// References to debug files, and whether the file names functions, if another process has read them.
    told: Option<(Links, bool)>,
    /// Kept while in use.
    unwind: Mutex<Weak<UnwindSections>>,
    /// Kept while in use.
    go: Mutex<Weak<GoFunctions>>,
}

impl Deref for ElfFile {
    type Target = ElfReader;

    fn deref(&self) -> &ElfReader {
        &self.reader
    }
}

impl ElfFile {
    /// Opens an image; only regular files are accepted.
    ///
    /// # Errors
    /// [`ImageError::NotRegular`], [`ImageError::NotElf`]; [`ImageError::Unsupported`] for anything but an executable
    /// or shared object for x86_64; [`ImageError::Malformed`] for program headers outside the file. Broken section
    /// headers count as none.
    pub fn open(file: File) -> Result<ElfFile, ImageError> {
        ElfFile::new(ImageSource::from_file(file)?, &LINKED)
    }

    /// Opens a file of debug information only: `.dwo` and `.dwp` files are object files.
    ///
    /// # Errors
    /// As [`ElfFile::open`].
    pub fn open_debug(file: File) -> Result<ElfFile, ImageError> {
        ElfFile::new(ImageSource::from_file(file)?, &WITH_OBJECTS)
    }

    /// Opens an image in memory, such as the vdso, which has no file.
    ///
    /// # Errors
    /// As [`ElfFile::open`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<ElfFile, ImageError> {
        ElfFile::new(ImageSource::Bytes(bytes.into()), &LINKED)
    }

    fn new(source: ImageSource, kinds: &[FileType]) -> Result<ElfFile, ImageError> {
        Ok(ElfFile::of(ElfReader::parse(source, kinds)?, None))
    }

    fn of(reader: ElfReader, told: Option<(Links, bool)>) -> ElfFile {
        ElfFile { reader, told, unwind: Mutex::default(), go: Mutex::default() }
    }

    pub(crate) fn from_parts(
        file: File,
        parts: DecodedHeaders,
        links: Links,
        has_names: bool,
    ) -> Result<ElfFile, ImageError> {
        Ok(ElfFile::of(ElfReader::from_parts(file, parts)?, Some((links, has_names))))
    }

    pub(crate) fn links(&self) -> Links {
        self.told.as_ref().map_or_else(|| Links::read(self), |(links, _)| links.clone())
    }

    /// The sections that an unwinder needs, shared while in use. Missing, damaged or too large ones are omitted. Works
    /// without section headers through PT_GNU_EH_FRAME.
    pub fn unwind_sections(&self) -> Arc<UnwindSections> {
        let mut shared = self.unwind.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let read = Arc::new(UnwindSections::read(self));
            *shared = Arc::downgrade(&read);
            read
        })
    }

    /// Maximum bytes of [`ElfFile::unwind_sections`] and [`ElfFile::go_functions`] together, from the headers alone.
    pub fn unwind_size(&self) -> u64 {
        UnwindSections::most_bytes(self).saturating_add(GoFunctions::most_bytes(self))
    }

    /// The functions of a Go program; shared while in use, like [`ElfFile::unwind_sections`].
    pub fn go_functions(&self) -> Option<Arc<GoFunctions>> {
        let mut shared = self.go.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().or_else(|| {
            let read = Arc::new(GoFunctions::read(self)?);
            *shared = Arc::downgrade(&read);
            Some(read)
        })
    }

    /// Whether there is a table of Go's functions, from the headers alone.
    pub fn is_go(&self) -> bool {
        GoFunctions::most_bytes(self) > 0
    }

    /// As [`ElfFile::go_functions`], if they are in use.
    pub fn known_go_functions(&self) -> Option<Arc<GoFunctions>> {
        self.go.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    /// Whether it names functions: it has a symbol table or debug information. (Files in debug directories may have neither.)
    #[must_use]
    pub fn has_names(&self) -> bool {
        if let Some((_, has_names)) = self.told {
            return has_names;
        }
        let has = |section: Option<&Section>| section.is_some_and(|section| self.section_size(section) > 0);
        has(self.section(b".symtab")) || has(self.debug_section(".debug_info"))
    }

    /// The functions that have symbols in this file. Reads them.
    pub fn symbol_starts(&self) -> SymbolStarts {
        SymbolStarts::read(self)
    }

    /// Whether there is unwind information. Reads it, like [`ElfFile::unwind_sections`].
    pub fn has_unwind_info(&self) -> bool {
        let sections = self.unwind_sections();
        sections.eh_frame.is_some() || sections.debug_frame.is_some()
    }
}
