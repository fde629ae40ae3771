//! Reading images, wherever that is done.
//!
//! A process reads images itself, with the rights that it has, unless it has said at its beginning that a worker does it for
//! it ([`read_in`]). That is a matter of the process, not of what it reads: one with the rights of a daemon must not parse
//! files of others anywhere.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use ccsd_symbolizer::jit::{self, Parsed, Parser};
use ccsd_symbolizer::{DebugFileFinder, ElfFile, Function, Headers, Symbols};
use hashbrown::HashMap;

use crate::client::{NoAnswer, Usage, Worker};
use crate::message::{FileKey, ImageKey, MAX_ADDRESSES, Nonsense, WorkerReply, WorkerRequest};

/// Files remembered that are open somewhere in this process. What is not open any more is forgotten at each doubling.
const SWEEP_AT: usize = 256;

/// What reads for this process.
static READER: OnceLock<Reader> = OnceLock::new();

#[derive(Debug)]
struct Reader {
    worker: Worker,
    files: Mutex<Files>,
}

/// Images that are open, so that all sessions share what is held of each.
#[derive(Debug)]
struct Files {
    open: HashMap<FileKey, Weak<ElfFile>>,
    sweep_at: usize,
}

/// From now on a worker reads all images for this process. Of two, the first stays.
pub fn read_in(worker: Worker) {
    let files = Mutex::new(Files { open: HashMap::new(), sweep_at: SWEEP_AT });
    let _ = READER.set(Reader { worker, files });
}

/// Whether a worker reads images for this process.
pub fn is_elsewhere() -> bool {
    READER.get().is_some()
}

/// Forgets what the worker, if there is one, has died of, and how often.
pub fn forgive() {
    if let Some(reader) = READER.get() {
        reader.worker.forgive();
    }
}

/// The process id of the worker, if there is one and it runs.
pub fn worker_pid() -> Option<u32> {
    READER.get()?.worker.pid()
}

/// What the worker costs; nothing, if there is none.
pub fn worker_usage() -> Usage {
    READER.get().map(|reader| reader.worker.usage()).unwrap_or_default()
}

/// What a file turned out to be.
#[derive(Debug)]
pub enum Opened {
    /// An image.
    Image(Arc<ElfFile>),
    /// None that can be read; what it is is not told.
    NoImage,
    /// Nobody could be asked. Later somebody may; this is the file.
    NotNow(File),
}

/// Opens an image.
pub fn open(file: File) -> Opened {
    match READER.get() {
        None => ElfFile::open(file).map_or(Opened::NoImage, |elf| Opened::Image(Arc::new(elf))),
        Some(reader) => reader.open(file),
    }
}

/// Opens a file with debug information, for its headers.
pub fn open_debug(file: File) -> Option<ElfFile> {
    match READER.get() {
        None => ElfFile::open_debug(file).ok(),
        Some(reader) => match reader.headers(&FileKey::of(&file).ok()?, &file, true) {
            Ok(headers) => headers?.apply(file).ok(),
            Err(NoAnswer::GivenUp | NoAnswer::NoWorker) => None,
        },
    }
}

/// Parses the next bytes of a perf map or jitdump. `None` if it cannot be had, now or ever: `key` tells the file.
pub fn parse_code(key: &FileKey, parser: Parser, bytes: &[u8]) -> Option<Parsed> {
    let Some(reader) = READER.get() else { return Some(jit::parse(parser, bytes)) };
    let question = WorkerRequest::Code { parser, bytes: bytes.to_vec() };
    let check = |answer| match answer {
        WorkerReply::Code(parsed) => Ok(parsed),
        _ => Err(Nonsense("no code")),
    };
    reader.worker.ask(key, &question, None, |_| Vec::new(), check).ok()
}

impl Reader {
    fn open(&self, file: File) -> Opened {
        let Ok(key) = FileKey::of(&file) else { return Opened::NoImage };
        let lock = || self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().open.get(&key).and_then(Weak::upgrade) {
            return Opened::Image(known);
        }
        let headers = match self.headers(&key, &file, false) {
            Ok(Some(headers)) => headers,
            Ok(None) => return Opened::NoImage,
            // What the worker has died of is asked about again when that is long ago.
            Err(NoAnswer::GivenUp | NoAnswer::NoWorker) => return Opened::NotNow(file),
        };
        let Ok(new) = headers.apply(file).map(Arc::new) else { return Opened::NoImage };
        let mut files = lock();
        // Another one may have been as quick.
        if let Some(known) = files.open.get(&key).and_then(Weak::upgrade) {
            return Opened::Image(known);
        }
        files.open.insert(key, Arc::downgrade(&new));
        if files.open.len() > files.sweep_at {
            files.open.retain(|_, file| file.strong_count() > 0);
            files.sweep_at = SWEEP_AT.max(2 * files.open.len());
        }
        Opened::Image(new)
    }

    /// `None` if it is no image.
    fn headers(&self, key: &FileKey, file: &File, debug: bool) -> Result<Option<Headers>, NoAnswer> {
        if !file.metadata().is_ok_and(|meta| meta.is_file()) {
            return Ok(None);
        }
        let check = |answer| match answer {
            WorkerReply::Headers(headers) => Ok(headers),
            _ => Err(Nonsense("no headers")),
        };
        let nothing = |_: &WorkerReply| Vec::new();
        self.worker.ask(key, &WorkerRequest::Headers { debug }, Some(file), nothing, check).map(Result::ok)
    }
}

/// The names of one image's functions; see [`Symbols`].
#[derive(Debug)]
pub struct Names(NamesSource);

#[derive(Debug)]
enum NamesSource {
    Here(Box<Symbols>),
    Worker(Box<RemoteNames>),
}

/// An image whose names a worker has.
#[derive(Debug)]
struct RemoteNames {
    reader: &'static Reader,
    image: Arc<ElfFile>,
    key: ImageKey,
    finder: DebugFileFinder,
    notes: Vec<String>,
    /// Whether it is noted that nobody reads it any more.
    given_up: bool,
    cpu_ns: u64,
}

/// Whether names could be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// This is what there is.
    Known,
    /// Nobody could be asked. A later question may have an answer.
    NotNow,
    /// The worker has died of this image, and nobody is asked about it for some time. It is noted.
    GivenUp,
}

impl Names {
    /// For the addresses of `image`, whose debug files `finder` finds. Reads nothing yet.
    #[must_use]
    pub fn new(image: Arc<ElfFile>, finder: DebugFileFinder) -> Names {
        let asked = || {
            let reader = READER.get()?;
            let file = FileKey::of(image.file()?).ok()?;
            let path = finder.path().map(|path| path.as_os_str().as_bytes().to_vec());
            Some((reader, ImageKey { file, path, view: finder.view(), user: finder.user() }))
        };
        Names(match asked() {
            Some((reader, key)) => {
                let asked = RemoteNames { reader, image, key, finder, notes: Vec::new(), given_up: false, cpu_ns: 0 };
                NamesSource::Worker(Box::new(asked))
            }
            // In no file (the vdso, which is the kernel's), or nobody else is to read it.
            None => NamesSource::Here(Box::new(Symbols::new(image, finder))),
        })
    }

    /// Reads at most so many bytes of debug information in this process; see [`Symbols::within`]. A worker has its own
    /// bounds.
    #[must_use]
    pub fn within(self, bytes: u64) -> Names {
        Names(match self.0 {
            NamesSource::Here(symbols) => NamesSource::Here(Box::new(symbols.within(bytes))),
            worker @ NamesSource::Worker(_) => worker,
        })
    }

    /// How many addresses are best asked for at once; 1 if it makes no difference.
    #[must_use]
    pub fn batch(&self) -> usize {
        match &self.0 {
            NamesSource::Here(_) => 1,
            NamesSource::Worker(_) => MAX_ADDRESSES,
        }
    }

    /// The functions at each of these addresses, at most [`Names::batch`]; see [`Symbols::resolve`].
    pub fn resolve(&mut self, addresses: &[u64]) -> (Vec<Vec<Function>>, Told) {
        match &mut self.0 {
            NamesSource::Here(symbols) => {
                let mut resolve = |&address| {
                    let mut functions = Vec::new();
                    symbols.resolve(address, &mut functions);
                    functions
                };
                (addresses.iter().map(&mut resolve).collect(), Told::Known)
            }
            NamesSource::Worker(asked) => asked.resolve(addresses),
        }
    }

    /// Bytes held in this process for the names; see [`Symbols::held_bytes`].
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        match &self.0 {
            NamesSource::Here(symbols) => symbols.held_bytes(),
            NamesSource::Worker(_) => 0,
        }
    }

    /// What could not be used and why; see [`Symbols::notes`].
    #[must_use]
    pub fn notes(&self) -> &[String] {
        match &self.0 {
            NamesSource::Here(symbols) => symbols.notes(),
            NamesSource::Worker(asked) => &asked.notes,
        }
    }

    /// CPU time that another process has spent on them, nanoseconds, by its own account.
    #[must_use]
    pub fn cpu_ns(&self) -> u64 {
        match &self.0 {
            NamesSource::Here(_) => 0,
            NamesSource::Worker(asked) => asked.cpu_ns,
        }
    }
}

/// What is noted of an image that nobody reads any more.
const GIVEN_UP: &str =
    "its functions had no names for some time: the process that reads images did not survive it, or found no end";

impl RemoteNames {
    fn resolve(&mut self, addresses: &[u64]) -> (Vec<Vec<Function>>, Told) {
        let nothing = || vec![Vec::new(); addresses.len()];
        let question = WorkerRequest::Names { image: self.key.clone(), addresses: addresses.to_vec() };
        let (image, finder) = (&self.image, &self.finder);
        let want = |wanted: &WorkerReply| match wanted {
            WorkerReply::WantImage => image.file().and_then(|file| file.try_clone().ok()).into_iter().collect(),
            WorkerReply::WantFiles(path) => finder.open_for_other(Path::new(std::ffi::OsStr::from_bytes(path))),
            _ => Vec::new(),
        };
        let check = |answer| match answer {
            WorkerReply::Names(names) => {
                let cpu_ns = names.cpu_ns;
                Ok((names.check(addresses.len())?, cpu_ns))
            }
            _ => Err(Nonsense("no names")),
        };
        match self.reader.worker.ask(&self.key.file, &question, None, want, check) {
            Ok(((functions, notes), cpu_ns)) => {
                self.notes = notes;
                self.notes.extend(self.given_up.then(|| GIVEN_UP.to_owned()));
                self.cpu_ns = self.cpu_ns.saturating_add(cpu_ns);
                (functions, Told::Known)
            }
            Err(NoAnswer::GivenUp) => {
                if !std::mem::replace(&mut self.given_up, true) {
                    self.notes.push(GIVEN_UP.to_owned());
                }
                (nothing(), Told::GivenUp)
            }
            Err(NoAnswer::NoWorker) => (nothing(), Told::NotNow),
        }
    }
}
