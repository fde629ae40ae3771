//! Messages between the daemon and the worker.
//!
//! The daemon asks one question at a time on a connection. Before answering, the worker may request files, which it
//! cannot open; the daemon sends those that it finds. Messages from the worker are untrusted: a file may have
//! compromised it.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use ccsd_symbolizer::jit::{JitParser, Parsed};
use ccsd_symbolizer::{FileIdentity, ForUser, Function, Headers, limits};
use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use crate::principal::{FileLocation, Principal};

pub const MAX_ADDRESSES: usize = 256;
/// Maximum functions at one address: inlined ones and the one that contains them.
const MAX_FUNCTIONS: usize = limits::MAX_INLINE_DEPTH + 1;
/// Maximum notes about one image: those of its file, and of several debug files.
const MAX_NOTES: usize = 4 * limits::MAX_NOTES;
/// Maximum bytes of a note: a path and some words.
const MAX_NOTE_BYTES: usize = 2 * limits::MAX_PATH;
/// Maximum bytes of functions, per address on average, and as a minimum. Forty C++ functions inlined into each other
/// reach 100 KiB at one address; neighbouring addresses mostly have the same names.
const NAMES_BYTES_PER_ADDRESS: usize = 32 << 10;
const MIN_NAMES_BYTES: usize = 1 << 20;
/// Maximum bytes of an answer about headers, beside a compressed section of unwind information: segments, a few
/// sections, paths.
const HEADERS_BYTES: usize = 256 << 10;
/// Maximum bytes of parsed entries per byte of a perf map or jitdump.
const CODE_FACTOR: usize = 16;
/// Bytes allowed for any answer.
const SMALL: usize = 16 << 10;

/// Identifies the version of a file. Inode numbers are reused after deletion; size and times distinguish such files.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileKey {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    /// Who answers for the file.
    principal: Principal,
    /// Whether this process must not read it; see [`FileKey::is_remote`].
    is_remote: bool,
}

impl FileKey {
    /// The key of a file at a place.
    pub fn new(meta: &Metadata, place: FileLocation) -> FileKey {
        FileKey {
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
            principal: place.principal,
            is_remote: place.is_remote && place.principal != Principal::Own,
        }
    }

    /// The key of a file of this machine.
    pub fn own(meta: &Metadata) -> FileKey {
        FileKey::new(meta, FileLocation { principal: Principal::Own, is_remote: false })
    }

    #[cfg(test)]
    pub(crate) fn numbered_for_test(&self, inode: u64) -> FileKey {
        FileKey { inode, ..self.clone() }
    }

    /// Who answers for the file.
    #[must_use]
    pub fn principal(&self) -> Principal {
        self.principal
    }

    /// Whether another machine or a user's program serves the file: reading it may take for ever, so that only the worker
    /// does.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.is_remote
    }

    /// Whether that is the file.
    #[must_use]
    pub fn is_of(&self, file: &FileIdentity) -> bool {
        let (major, minor, inode) = file.file;
        (self.device, self.inode) == (rustix::fs::makedev(major, minor), inode)
    }

    /// Whether the file has been written to since the key was made, by its size and time. Not asked of a
    /// [remote](FileKey::is_remote) file: the answer may never come.
    #[must_use]
    pub fn is_rewritten(&self, file: &File) -> bool {
        let is = |meta: Metadata| (meta.len(), meta.mtime(), meta.mtime_nsec());
        !self.is_remote && file.metadata().is_ok_and(|now| is(now) != (self.size, self.modified.0, self.modified.1))
    }

    /// Size of the file, bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The key of the same file while it grows: independent of size and times.
    #[must_use]
    pub fn while_growing(self) -> FileKey {
        FileKey { size: 0, modified: (0, 0), changed: (0, 0), ..self }
    }
}

/// An image and the places of its debug files, which determine its names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ImageKey {
    pub file: FileKey,
    pub path: Option<Vec<u8>>,
    /// The file system of the path.
    pub view: u64,
    /// The user who must be allowed to read its debug files. Data read for other users is not shared.
    pub user: Option<ForUser>,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum WorkerRequest {
    /// The headers of the attached file. Object files are accepted as debug files only.
    Headers {
        debug: bool,
        /// Whether to read the sections that an unwinder needs, too.
        contents: bool,
    },
    Names {
        image: ImageKey,
        /// At most [`MAX_ADDRESSES`].
        addresses: Vec<u64>,
    },
    /// Parse the next bytes of a file about generated code.
    Code { parser: JitParser, bytes: Vec<u8> },
    /// The requested files, attached.
    Files,
    /// The first message, with the connections attached.
    Begin {
        /// Maximum bytes of memory.
        memory: u64,
        /// Whether it reads this machine's own files.
        is_own: bool,
    },
}

impl WorkerRequest {
    /// Maximum bytes of the answer, or of a request for files, about the file `key`.
    #[must_use]
    pub fn max_answer(&self, key: &FileKey) -> usize {
        match self {
            WorkerRequest::Headers { contents, .. } => {
                let sections = if *contents { Headers::MOST_SECTIONS } else { 1 };
                let most = limits::MAX_UNWIND_BYTES * sections;
                let unpacked = key.size().saturating_mul(limits::MAX_COMPRESSION_RATIO).min(most);
                HEADERS_BYTES + usize::try_from(unpacked).unwrap_or(usize::MAX - HEADERS_BYTES)
            }
            WorkerRequest::Names { addresses, .. } => {
                NameList::max_bytes(addresses.len()) + MAX_NOTES * (MAX_NOTE_BYTES + 8) + SMALL
            }
            WorkerRequest::Code { bytes, .. } => SMALL + CODE_FACTOR * bytes.len(),
            WorkerRequest::Files | WorkerRequest::Begin { .. } => SMALL,
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub enum WorkerReply {
    Ready,
    WantImage,
    WantFiles(Vec<u8>),
    /// Whether the question waits now for others to be answered first.
    Waits(bool),
    /// Answer to [`WorkerRequest::Headers`].
    Headers(Result<Headers, String>),
    /// Answer to [`WorkerRequest::Names`].
    Names(NameList),
    /// Answer to [`WorkerRequest::Code`].
    Code(Parsed),
}

/// Functions at several addresses. Each text is stored once.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct NameList {
    texts: Vec<String>,
    functions: Vec<Vec<WireFunction>>,
    notes: Vec<String>,
    /// CPU time used, nanoseconds.
    pub cpu_ns: u64,
}

/// A [`Function`] with indexes of texts.
#[derive(Debug, Serialize, Deserialize)]
struct WireFunction {
    linkage_name: Option<u32>,
    display_name: Option<u32>,
    start: Option<u64>,
    decl_file: Option<u32>,
    decl_line: u32,
    local: bool,
    file: Option<u32>,
    line: u32,
    inlined: bool,
}

/// An answer that only a faulty worker gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it sent a message that ccsd does not understand: {0}")]
pub struct Nonsense(pub &'static str);

impl NameList {
    fn max_bytes(addresses: usize) -> usize {
        MIN_NAMES_BYTES.max(addresses.saturating_mul(NAMES_BYTES_PER_ADDRESS))
    }

    /// Encodes functions by address. An address whose functions do not fit has none.
    #[must_use]
    pub fn of(all: &[Vec<Function>], notes: &[String], cpu_ns: u64) -> NameList {
        let mut texts = Texts { list: Vec::new(), positions: HashMap::new(), left: NameList::max_bytes(all.len()) };
        let functions = all.iter().map(|functions| texts.functions(functions).unwrap_or_default()).collect();
        let notes = notes.iter().take(MAX_NOTES).map(|note| {
            let end = note.floor_char_boundary(MAX_NOTE_BYTES);
            note.get(..end).unwrap_or_default().to_owned()
        });
        NameList { texts: texts.list, functions, notes: notes.collect(), cpu_ns }
    }

    /// Decodes the functions at each of `asked` addresses, and the notes about the image so far. Fails if the message
    /// is invalid.
    pub fn check(self, asked: usize) -> Result<(Vec<Vec<Function>>, Vec<String>), Nonsense> {
        if self.functions.len() != asked {
            return Err(Nonsense("another number of answers"));
        }
        if self.texts.iter().any(|text| text.len() > limits::MAX_LINKAGE_NAME) {
            return Err(Nonsense("names that are too long"));
        }
        if self.notes.len() > MAX_NOTES || self.notes.iter().any(|note| note.len() > MAX_NOTE_BYTES) {
            return Err(Nonsense("too many notes"));
        }
        let texts: Vec<Arc<str>> = self.texts.into_iter().map(Arc::from).collect();
        let text = |position: Option<u32>| match position.map(|position| texts.get(position as usize)) {
            None => Ok(None),
            Some(Some(text)) => Ok(Some(Arc::clone(text))),
            Some(None) => Err(Nonsense("a name that is not there")),
        };
        let function = |wire: WireFunction| {
            if wire.linkage_name.is_none() && wire.start.is_none() {
                return Err(Nonsense("a function that is nothing"));
            }
            Ok(Function {
                linkage_name: text(wire.linkage_name)?,
                display_name: text(wire.display_name)?,
                start: wire.start,
                decl_file: text(wire.decl_file)?,
                decl_line: wire.decl_line,
                local: wire.local,
                file: text(wire.file)?,
                line: wire.line,
                inlined: wire.inlined,
            })
        };
        let all = self.functions.into_iter().map(|functions| match functions.len() {
            0..=MAX_FUNCTIONS => functions.into_iter().map(function).collect(),
            _ => Err(Nonsense("functions inlined without end")),
        });
        let all = all.collect::<Result<_, _>>()?;
        Ok((all, self.notes))
    }
}

/// Maximum bytes of a [`WireFunction`], and overhead of a list or text.
const FUNCTION_BYTES: usize = 48;

struct Texts<'a> {
    list: Vec<String>,
    positions: HashMap<&'a str, u32>,
    left: usize,
}

impl<'a> Texts<'a> {
    /// Encodes the functions at one address; `None` if they do not fit.
    fn functions(&mut self, functions: &'a [Function]) -> Option<Vec<WireFunction>> {
        self.take(FUNCTION_BYTES)?;
        let mut wire = Vec::with_capacity(functions.len());
        for function in functions {
            self.take(FUNCTION_BYTES)?;
            wire.push(WireFunction {
                linkage_name: self.position(&function.linkage_name)?,
                display_name: self.position(&function.display_name)?,
                start: function.start,
                decl_file: self.position(&function.decl_file)?,
                decl_line: function.decl_line,
                local: function.local,
                file: self.position(&function.file)?,
                line: function.line,
                inlined: function.inlined,
            });
        }
        Some(wire)
    }

    #[expect(clippy::option_option, reason = "no room, no text, a text: no one sees it but the caller above")]
    fn position(&mut self, text: &'a Option<Arc<str>>) -> Option<Option<u32>> {
        let Some(text) = text.as_deref() else { return Some(None) };
        if let Some(&known) = self.positions.get(text) {
            return Some(Some(known));
        }
        self.take(text.len() + FUNCTION_BYTES)?;
        let position = u32::try_from(self.list.len()).ok()?;
        self.list.push(text.to_owned());
        self.positions.insert(text, position);
        Some(Some(position))
    }

    fn take(&mut self, bytes: usize) -> Option<()> {
        self.left = self.left.checked_sub(bytes)?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn function(name: &str, inlined: bool) -> Function {
        Function {
            linkage_name: Some(name.into()),
            display_name: None,
            start: (!inlined).then_some(0x1000),
            decl_file: Some("a.c".into()),
            decl_line: 7,
            local: false,
            file: Some("a.c".into()),
            line: 9,
            inlined,
        }
    }

    #[test]
    fn functions_come_as_they_were() {
        let all = vec![vec![function("inner", true), function("outer", false)], vec![], vec![function("outer", false)]];
        let notes = vec!["a note".to_owned()];
        let bytes = postcard::to_stdvec(&WorkerReply::Names(NameList::of(&all, &notes, 5))).unwrap();
        let WorkerReply::Names(names) = postcard::from_bytes(&bytes).unwrap() else { unreachable!() };
        assert_eq!(names.texts.len(), 3);
        assert_eq!(names.check(3).unwrap(), (all, notes));
    }

    #[test]
    fn nonsense_is_refused() {
        let names = || NameList::of(&[vec![function("f", false)]], &[], 0);
        assert!(names().check(1).is_ok());
        assert!(names().check(2).is_err());
        let spoilt = |spoil: fn(&mut NameList)| {
            let mut names = names();
            spoil(&mut names);
            names.check(1)
        };
        assert!(spoilt(|names| names.functions[0][0].file = Some(7)).is_err());
        assert!(
            spoilt(|names| {
                let function = &mut names.functions[0][0];
                (function.linkage_name, function.start) = (None, None);
            })
            .is_err()
        );
        assert!(spoilt(|names| names.texts[0] = "x".repeat(limits::MAX_LINKAGE_NAME + 1)).is_err());
        assert!(spoilt(|names| names.notes = vec!["x".into(); MAX_NOTES + 1]).is_err());
        assert!(NameList::of(&[vec![function("f", true); MAX_FUNCTIONS + 1]], &[], 0).check(1).is_err());
    }

    #[test]
    fn answers_without_room_are_left_out() {
        // Names of the maximum length, and the maximum number of functions, each with its own names.
        let hostile = |address: usize| -> Vec<Function> {
            let long = |number| format!("{address} {number:0>width$}", width = limits::MAX_LINKAGE_NAME - 10);
            (0..MAX_FUNCTIONS).map(|number| function(&long(number), true)).collect()
        };
        let mut all = vec![vec![function("first", false)], hostile(1), vec![function("second", false)]];
        all.extend((2..20).map(hostile));
        let question = WorkerRequest::Names {
            image: ImageKey { file: key(), path: None, view: 0, user: None },
            addresses: vec![0; all.len()],
        };
        let bytes = postcard::to_stdvec(&WorkerReply::Names(NameList::of(&all, &["note".into()], 5))).unwrap();
        assert!(bytes.len() <= question.max_answer(&key()), "{}", bytes.len());
        let WorkerReply::Names(names) = postcard::from_bytes(&bytes).unwrap() else { unreachable!() };
        let (functions, _) = names.check(all.len()).unwrap();
        assert_eq!(functions[0], all[0]);
        assert!(functions[1..].iter().any(Vec::is_empty));
    }

    fn key() -> FileKey {
        FileKey::own(&tempfile::tempfile().unwrap().metadata().unwrap())
    }

    #[test]
    fn an_answer_is_bounded_by_its_question() {
        let of_size =
            |size| WorkerRequest::Headers { debug: false, contents: false }.max_answer(&FileKey { size, ..key() });
        assert_eq!(of_size(100), HEADERS_BYTES + 100 * limits::MAX_COMPRESSION_RATIO as usize);
        assert_eq!(of_size(u64::MAX), HEADERS_BYTES + limits::MAX_UNWIND_BYTES as usize);
        let bytes = b"1 1 a\n".repeat(1000);
        let parser = JitParser::PerfMap { skipping: false };
        let parsed = ccsd_symbolizer::jit::parse(parser, &bytes);
        let answer = postcard::to_stdvec(&WorkerReply::Code(parsed)).unwrap();
        let most = WorkerRequest::Code { parser, bytes }.max_answer(&key());
        assert!(answer.len() <= most && most < 200_000, "{} {most}", answer.len());
    }

    #[test]
    fn any_bytes_are_an_answer_or_an_error() {
        let all = vec![vec![function("inner", true), function("outer", false)]; 3];
        let bytes = postcard::to_stdvec(&WorkerReply::Names(NameList::of(&all, &[], 5))).unwrap();
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                if let Ok(WorkerReply::Names(names)) = postcard::from_bytes(&damaged) {
                    let _ = names.check(3);
                }
            }
            assert!(postcard::from_bytes::<WorkerReply>(&bytes[..at]).is_err());
        }
    }
}
