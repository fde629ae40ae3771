//! Reads images in this process or in a worker.
//!
//! A process reads images itself, with its own rights, unless it starts a worker at its beginning ([`read_in`]). This
//! applies to the whole process: one with the daemon's rights must not parse other users' files anywhere.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use ccsd_symbolizer::jit::{self, JitParser, Parsed};
use ccsd_symbolizer::{DebugFileFinder, ElfFile, Function, Headers, Symbols};
use hashbrown::HashMap;
use nix::unistd::geteuid;

use crate::client::{NoAnswer, Usage};
use crate::message::{FileKey, ImageKey, MAX_ADDRESSES, Nonsense, WorkerReply, WorkerRequest};
use crate::principal::{FileLocation, Principal, container_of, is_of_machine};
use crate::workers::Workers;

const INSTALLED: &str = "/usr/lib/debug";
const LOOKED_FOR_AGAIN: Duration = Duration::from_secs(10);
/// Initial number of open files remembered; closed ones are removed when it is reached, and at each doubling.
const SWEEP_AT: usize = 256;

static READER: OnceLock<RemoteReader> = OnceLock::new();

#[derive(Debug)]
struct RemoteReader {
    workers: Workers,
    files: Mutex<OpenImages>,
    pending: PendingHeaders,
}

#[derive(Debug)]
struct OpenImages {
    open: HashMap<FileKey, Weak<ElfFile>>,
    sweep_at: usize,
}

/// Makes workers read all images for this process. The first ones stay.
pub fn read_in(workers: Workers) {
    let files = Mutex::new(OpenImages { open: HashMap::new(), sweep_at: SWEEP_AT });
    let _ = READER.set(RemoteReader { workers, files, pending: PendingHeaders::default() });
}

/// Whether another process reads images for this one.
#[must_use]
pub fn has_worker() -> bool {
    READER.get().is_some()
}

/// Forgets the worker's deaths.
pub fn forgive() {
    if let Some(reader) = READER.get() {
        reader.workers.forgive();
    }
}

/// Ends workers that were not used for some time. To be called now and then.
pub fn end_idle() {
    if let Some(reader) = READER.get() {
        reader.workers.end_idle();
    }
}

/// Who answers for what a process does: its user, or, if that is root of a container, the container. Somebody, if the process
/// has gone.
pub fn principal_of_process(pid: u32, user: Option<u32>) -> Principal {
    match user.map(principal_of) {
        Some(Principal::Own) if !is_of_machine(pid) => container_of(pid),
        Some(principal) => principal,
        None => Principal::SOMEWHERE,
    }
}

/// Who answers for what a user does: with workers, a subordinate user id counts for the user who owns its range.
pub fn principal_of(uid: u32) -> Principal {
    match (Principal::of_user(uid), READER.get()) {
        (Principal::User(uid), Some(reader)) => reader.workers.principals().user(uid),
        (principal, _) => principal,
    }
}

/// The key of an open file that the process `pid` maps, if one does. Without workers, root's process distinguishes files by
/// their owners; what a user's process reads, that user has chosen.
///
/// # Errors
/// Those of `fstat(2)`.
pub fn file_key(file: &File, pid: Option<u32>) -> io::Result<FileKey> {
    let meta = file.metadata()?;
    Ok(match READER.get() {
        None => {
            let principal = if geteuid().is_root() { Principal::of_user(meta.uid()) } else { Principal::Own };
            FileKey::new(&meta, FileLocation { principal, is_remote: false })
        }
        Some(reader) => FileKey::new(&meta, reader.workers.principals().place(file, &meta, pid)),
    })
}

/// Process id of the worker for a principal's images, if it runs.
pub fn worker_pid(principal: Principal) -> Option<u32> {
    READER.get()?.workers.pid(principal)
}

/// Resources used by the workers; zero without any.
pub fn worker_usage() -> Usage {
    READER.get().map(|reader| reader.workers.usage()).unwrap_or_default()
}

/// Resources used by the worker for the machine's own files, ended ones included; zero without any.
pub fn own_worker_usage() -> Usage {
    READER.get().map(|reader| reader.workers.own_usage()).unwrap_or_default()
}

/// The result of opening a file.
#[derive(Debug)]
pub enum OpenedImage {
    /// An image.
    Image(Arc<ElfFile>),
    /// Not a readable image.
    NoImage,
    /// There was no worker to ask; a later attempt may succeed. Returns the file.
    NotNow(File),
}

/// Opens an image with its `key`. The sampling thread waits for it: no longer than `patience` for a file that others
/// answer for. Its worker then goes on, and a later call has the answer.
pub fn open(file: File, key: &FileKey, patience: Duration) -> OpenedImage {
    match READER.get() {
        None => ElfFile::open(file).map_or(OpenedImage::NoImage, |elf| OpenedImage::Image(Arc::new(elf))),
        Some(reader) => reader.open(file, key, patience),
    }
}

/// Opens a debug file for its headers: in this process, or a file of this machine's through its worker. Others' are not
/// waited for.
pub fn open_debug(file: File) -> Option<ElfFile> {
    let Some(reader) = READER.get() else { return ElfFile::open_debug(file).ok() };
    let key = file_key(&file, None).ok().filter(|key| key.principal() == Principal::Own)?;
    match reader.headers(&key, &file, true) {
        Ok(headers) => headers?.apply(file).ok(),
        Err(NoAnswer::GivenUp | NoAnswer::NoWorker) => None,
    }
}

/// Parses the next bytes of a perf map or jitdump with this `key`. `None` without an answer, now or ever.
pub fn parse_code(key: &FileKey, parser: JitParser, bytes: &[u8]) -> Option<Parsed> {
    let Some(reader) = READER.get() else { return Some(jit::parse(parser, bytes)) };
    let question = WorkerRequest::Code { parser, bytes: bytes.to_vec() };
    let check = |answer| match answer {
        WorkerReply::Code(parsed) => Ok(parsed),
        _ => Err(Nonsense("no code")),
    };
    reader.workers.of(key.principal()).ok()?.ask(key, &question, None, |_| Vec::new(), check).ok()
}

impl RemoteReader {
    fn open(&'static self, file: File, key: &FileKey, patience: Duration) -> OpenedImage {
        let lock = || self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().open.get(key).and_then(Weak::upgrade) {
            return OpenedImage::Image(known);
        }
        let headers = match key.principal() {
            Principal::Own => self.headers(key, &file, false),
            _ => self.headers_in_time(key, &file, patience),
        };
        let headers = match headers {
            Ok(Some(headers)) => headers,
            Ok(None) => return OpenedImage::NoImage,
            // A given-up file may be tried again much later.
            Err(NoAnswer::GivenUp | NoAnswer::NoWorker) => return OpenedImage::NotNow(file),
        };
        let Ok(new) = headers.apply(file).map(Arc::new) else { return OpenedImage::NoImage };
        let mut files = lock();
        // Another thread may have opened it meanwhile.
        if let Some(known) = files.open.get(key).and_then(Weak::upgrade) {
            return OpenedImage::Image(known);
        }
        files.open.insert(key.clone(), Arc::downgrade(&new));
        if files.open.len() > files.sweep_at {
            files.open.retain(|_, file| file.strong_count() > 0);
            files.sweep_at = SWEEP_AT.max(2 * files.open.len());
        }
        OpenedImage::Image(new)
    }

    /// As [`RemoteReader::headers`], if they come within `patience`. A thread of its own waits for them otherwise.
    fn headers_in_time(
        &'static self,
        key: &FileKey,
        file: &File,
        patience: Duration,
    ) -> Result<Option<Headers>, NoAnswer> {
        if self.pending.begin(key)
            && let Ok(file) = file.try_clone()
        {
            let asked = key.clone();
            let ask = move || {
                let answer = self.headers(&asked, &file, false);
                self.pending.end(&asked, answer);
            };
            if std::thread::Builder::new().name("ccsd-headers".to_owned()).spawn(ask).is_err() {
                self.pending.end(key, Err(NoAnswer::NoWorker));
            }
        }
        self.pending.wait(key, patience)
    }

    /// Reads the headers; `None` if the file is not an image.
    fn headers(&self, key: &FileKey, file: &File, debug: bool) -> Result<Option<Headers>, NoAnswer> {
        if !file.metadata().is_ok_and(|meta| meta.is_file()) {
            return Ok(None);
        }
        let check = |answer| match answer {
            WorkerReply::Headers(headers) => Ok(headers),
            _ => Err(Nonsense("no headers")),
        };
        let nothing = |_: &WorkerReply| Vec::new();
        let question = WorkerRequest::Headers { debug, contents: key.is_remote() };
        self.workers.of(key.principal())?.ask(key, &question, Some(file), nothing, check).map(Result::ok)
    }
}

/// Maximum files whose headers are being read or wait to be taken, in all and of one principal.
const MAX_PENDING: usize = 64;
const MAX_PENDING_OF_ONE: usize = 4;
const TAKEN_WITHIN: Duration = Duration::from_secs(10);

/// Headers that are read for the sampling thread, which does not wait.
#[derive(Debug, Default)]
struct PendingHeaders {
    files: Mutex<HashMap<FileKey, HeadersState>>,
    changed: Condvar,
}

#[derive(Debug)]
enum HeadersState {
    Asked,
    /// `None`: it is not an image.
    Known(Option<Box<Headers>>, Instant),
}

impl PendingHeaders {
    fn lock(&self) -> MutexGuard<'_, HashMap<FileKey, HeadersState>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether to ask for the headers of a file now: no other thread does, and they fit.
    fn begin(&self, key: &FileKey) -> bool {
        let mut files = self.lock();
        files.retain(|_, state| !matches!(state, HeadersState::Known(_, since) if since.elapsed() >= TAKEN_WITHIN));
        let of_one = files.keys().filter(|other| other.principal() == key.principal()).count();
        if files.contains_key(key) || files.len() >= MAX_PENDING || of_one >= MAX_PENDING_OF_ONE {
            return false;
        }
        files.insert(key.clone(), HeadersState::Asked);
        true
    }

    fn end(&self, key: &FileKey, answer: Result<Option<Headers>, NoAnswer>) {
        let mut files = self.lock();
        match answer {
            Ok(headers) => _ = files.insert(key.clone(), HeadersState::Known(headers.map(Box::new), Instant::now())),
            Err(_) => _ = files.remove(key),
        }
        self.changed.notify_all();
    }

    /// Takes the headers of a file, if they are known in time.
    fn wait(&self, key: &FileKey, patience: Duration) -> Result<Option<Headers>, NoAnswer> {
        let is_asked = |files: &mut HashMap<FileKey, HeadersState>| matches!(files.get(key), Some(HeadersState::Asked));
        let waited = self.changed.wait_timeout_while(self.lock(), patience, is_asked);
        let (mut files, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if is_asked(&mut files) {
            return Err(NoAnswer::NoWorker);
        }
        match files.remove(key) {
            Some(HeadersState::Known(headers, _)) => Ok(headers.map(|headers| *headers)),
            _ => Err(NoAnswer::NoWorker),
        }
    }
}

/// The names of one image's functions; see [`Symbols`].
#[derive(Debug)]
pub struct ImageNames(NamesSource);

#[derive(Debug)]
enum NamesSource {
    Here(Box<Symbols>),
    Worker(Box<RemoteNames>),
}

/// An image whose names are in the worker.
#[derive(Debug)]
struct RemoteNames {
    reader: &'static RemoteReader,
    image: Arc<ElfFile>,
    key: ImageKey,
    finder: DebugFileFinder,
    notes: Vec<String>,
    /// Whether the note about giving up was added.
    given_up: bool,
    /// When debug files that could not be opened in time are looked for again.
    unanswered: Option<Instant>,
    cpu_ns: u64,
}

/// Whether names were available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The answer is complete.
    Known,
    /// There was no worker to ask. A later question may succeed.
    NotNow,
    /// The worker died of this image, which is given up for some time. A note says so.
    GivenUp,
}

impl ImageNames {
    /// Creates the names of `image`, the file with this `key` if it is in one, whose debug files `finder` finds. Reads
    /// nothing yet.
    #[must_use]
    pub fn new(image: Arc<ElfFile>, key: Option<&FileKey>, finder: DebugFileFinder) -> ImageNames {
        let key = image.file().and(key).cloned();
        let asked = || {
            let reader = READER.get()?;
            let path = finder.path().map(|path| path.as_os_str().as_bytes().to_vec());
            Some((reader, ImageKey { file: key.clone()?, path, view: finder.view(), user: finder.user() }))
        };
        ImageNames(match asked() {
            Some((reader, key)) => {
                let (given_up, unanswered) = (false, None);
                let asked =
                    RemoteNames { reader, image, key, finder, notes: Vec::new(), given_up, unanswered, cpu_ns: 0 };
                NamesSource::Worker(Box::new(asked))
            }
            // An image without a file (the kernel's vdso), or a process without a worker.
            None => NamesSource::Here(Box::new(Symbols::new(image, finder))),
        })
    }

    /// Limits the bytes of names in this process; see [`Symbols::within`] and [`Symbols::symbols_only`]. A worker has its
    /// own limits.
    #[must_use]
    pub fn within(self, bytes: u64, symbols_only: bool) -> ImageNames {
        ImageNames(match self.0 {
            NamesSource::Here(symbols) => {
                let symbols = symbols.within(bytes);
                NamesSource::Here(Box::new(if symbols_only { symbols.symbols_only() } else { symbols }))
            }
            worker @ NamesSource::Worker(_) => worker,
        })
    }

    /// Recommended number of addresses per call; 1 if it makes no difference.
    #[must_use]
    pub fn batch(&self) -> usize {
        match &self.0 {
            NamesSource::Here(_) => 1,
            NamesSource::Worker(_) => MAX_ADDRESSES,
        }
    }

    /// The functions at each address, at most [`ImageNames::batch`]; see [`Symbols::resolve`]. `open` opens debug files for a
    /// worker, or returns `None` if their file system does not answer in time.
    pub fn resolve(
        &mut self,
        addresses: &[u64],
        open: &mut dyn FnMut(Opening) -> Option<Vec<File>>,
    ) -> (Vec<Vec<Function>>, Told) {
        match &mut self.0 {
            NamesSource::Here(symbols) => {
                let mut resolve = |&address| {
                    let mut functions = Vec::new();
                    symbols.resolve(address, &mut functions);
                    functions
                };
                (addresses.iter().map(&mut resolve).collect(), Told::Known)
            }
            NamesSource::Worker(asked) => asked.resolve(addresses, open),
        }
    }

    /// Bytes held in this process; see [`Symbols::held_bytes`].
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        match &self.0 {
            NamesSource::Here(symbols) => symbols.held_bytes(),
            NamesSource::Worker(_) => 0,
        }
    }

    /// What could not be used; see [`Symbols::notes`].
    #[must_use]
    pub fn notes(&self) -> &[String] {
        match &self.0 {
            NamesSource::Here(symbols) => symbols.notes(),
            NamesSource::Worker(asked) => &asked.notes,
        }
    }

    /// CPU time that the worker reports for the names, nanoseconds.
    #[must_use]
    pub fn cpu_ns(&self) -> u64 {
        match &self.0 {
            NamesSource::Here(_) => 0,
            NamesSource::Worker(asked) => asked.cpu_ns,
        }
    }
}

/// Opens files, which a file system that somebody serves may delay for ever.
pub type Opening = Box<dyn FnOnce() -> Vec<File> + Send>;

const UNANSWERED: &str = "debug files of it were not opened, as their file system did not answer in time";

const GIVEN_UP: &str =
    "its functions had no names for some time: the process that reads images crashed on it, or took too long";

/// Whether the worker of `principal` may have a debug file: the principal's own, or one of the machine's that all may read,
/// installed or beside such an image (`of_machine`).
fn may_hold(principal: Principal, of_machine: bool, file: &File, path: &Path) -> bool {
    let (Ok(meta), Ok(key)) = (file.metadata(), file_key(file, None)) else { return false };
    let is_place = of_machine || path.starts_with(INSTALLED);
    let is_public = || key.principal() == Principal::Own && is_for_all(&meta) && is_place;
    // Of a container's other files of root's, the device alone is known.
    let is_same = match (key.principal(), principal) {
        (Principal::Elsewhere { device, .. }, Principal::Elsewhere { device: own, .. }) => device == own,
        (owner, own) => owner == own,
    };
    is_same || is_public()
}

fn is_for_all(meta: &Metadata) -> bool {
    meta.mode() & 0o004 != 0
}

impl RemoteNames {
    /// Whose worker reads the image: its owner's. For a user's session, files of this machine that all may read are read by
    /// the user's worker, too: which of them, how many and how often is the user's choice, and that of the machine serves
    /// everybody.
    fn principal(&self) -> Principal {
        let owner = self.key.file.principal();
        let Some(user) = self.key.user.filter(|_| owner == Principal::Own) else { return owner };
        let is_public =
            || self.image.file().and_then(|file| file.metadata().ok()).is_some_and(|meta| is_for_all(&meta));
        if is_public() { self.reader.workers.principals().user(user.uid) } else { owner }
    }

    fn resolve(
        &mut self,
        addresses: &[u64],
        open: &mut dyn FnMut(Opening) -> Option<Vec<File>>,
    ) -> (Vec<Vec<Function>>, Told) {
        let nothing = || vec![Vec::new(); addresses.len()];
        if self.unanswered.take_if(|at| Instant::now() >= *at).is_some() {
            // The worker has read the image without them.
            self.finder = std::mem::replace(&mut self.finder, DebugFileFinder::none()).anew();
            self.key.view = self.finder.view();
        }
        let question = WorkerRequest::Names { image: self.key.clone(), addresses: addresses.to_vec() };
        let principal = self.principal();
        let of_machine = self.key.file.principal() == Principal::Own;
        let (image, finder, unanswered) = (&self.image, &self.finder, &mut self.unanswered);
        let want = |wanted: &WorkerReply| match wanted {
            WorkerReply::WantImage => image.file().and_then(|file| file.try_clone().ok()).into_iter().collect(),
            WorkerReply::WantFiles(path) => {
                let (finder, path) = (finder.clone(), PathBuf::from(std::ffi::OsStr::from_bytes(path)));
                let files = open(Box::new(move || {
                    finder.open_for_other(&path, |file| may_hold(principal, of_machine, file, &path))
                }));
                if files.is_none() {
                    unanswered.get_or_insert_with(|| Instant::now() + LOOKED_FOR_AGAIN);
                }
                files.unwrap_or_default()
            }
            _ => Vec::new(),
        };
        let check = |answer| match answer {
            WorkerReply::Names(names) => {
                let cpu_ns = names.cpu_ns;
                Ok((names.check(addresses.len())?, cpu_ns))
            }
            _ => Err(Nonsense("no names")),
        };
        let worker = self.reader.workers.of(principal);
        match worker.and_then(|worker| worker.ask(&self.key.file, &question, None, want, check)) {
            Ok(((functions, notes), cpu_ns)) => {
                self.notes = notes;
                self.notes.extend(self.given_up.then(|| GIVEN_UP.to_owned()));
                self.notes.extend(self.unanswered.is_some().then(|| UNANSWERED.to_owned()));
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
