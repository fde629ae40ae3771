//! A server of one page, for the browsers of one user.
//!
//! It listens on 127.0.0.1, where every user and every page in a browser can connect. So the page is at a path with a
//! random token; other paths are not found. A connection has one request ([`super::http`]) and one thread. At the
//! limit, the connection that has waited longest without a request ends, so that silent clients do not keep others out.

use std::collections::VecDeque;
use std::fs;
use std::hint::black_box;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use rustix::rand::{GetRandomFlags, getrandom};

use super::http::{HttpError, HttpResponse, NOTHING, read_request};
use super::live::{Follows, ServedPage};
use crate::args::export::ExportArgs;
use crate::exit::Failure;
use crate::export;
use crate::message::warn;
use crate::source::ProfileSource;

const TOKEN_BYTES: usize = 24;
/// Limit on connections that have not sent their request yet.
const MOST_WAITING: usize = 32;
const MOST_CONNECTIONS: usize = 64;
/// Time that a connection beyond the limit waits for another to end.
const ADMISSION: Duration = Duration::from_secs(1);
/// The page of a session is rendered again when it is older than this.
const FRESH: Duration = Duration::from_secs(2);
/// Pause after a failed `accept`, for example at the limit on open files.
const RETRY: Duration = Duration::from_millis(50);

struct ServerState {
    args: ExportArgs,
    token: String,
    page: Mutex<Made>,
    connections: Mutex<Connections>,
    ended: Condvar,
}

struct Made {
    page: Arc<ServedPage>,
    at: Instant,
    /// Number of this page. The page knows it, and asks whether it is still the current one.
    version: u64,
    follows: Option<Follows>,
    /// The file that it was made of, as that was before it was read.
    file: Option<(PathBuf, FileStamp)>,
}

/// What differs when a file has been written to or replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl FileStamp {
    fn of(path: &Path) -> Option<FileStamp> {
        let meta = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        let modified = (meta.mtime(), meta.mtime_nsec());
        Some(FileStamp { device: meta.dev(), inode: meta.ino(), bytes: meta.len(), modified })
    }
}

impl Made {
    fn new(page: export::ExportedPage, stamp: Option<FileStamp>, version: u64) -> Made {
        let export::ExportedPage { bytes, is_growing, file } = page;
        let file = file.and_then(|path| Some((path.clone(), stamp.or_else(|| FileStamp::of(&path))?)));
        let follows = if is_growing { Some(Follows::Session) } else { file.as_ref().map(|_| Follows::File) };
        let page = Arc::new(ServedPage::new(bytes, follows.map(|follows| (follows, version))));
        Made { page, at: Instant::now(), version, follows, file }
    }

    /// The stamp of the file if that has changed since the page was made. A file that is gone has not: the page stays.
    fn changed_file(&self) -> Option<FileStamp> {
        let (path, stamp) = self.file.as_ref()?;
        FileStamp::of(path).filter(|now| now != stamp)
    }
}

#[derive(Default)]
struct Connections {
    next: u64,
    open: usize,
    /// The longest waiting first.
    waiting: VecDeque<(u64, TcpStream)>,
}

pub struct PageServer {
    listener: TcpListener,
    port: u16,
    shared: Arc<ServerState>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PageServer {
    /// Makes the page, and listens at a port; 0 is any.
    pub fn bind(args: ExportArgs, port: u16) -> Result<PageServer, Failure> {
        let stamp = match &args.source {
            ProfileSource::File(path) => FileStamp::of(path),
            _ => None,
        };
        let page = export::page(&args)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        let listener = listener.with_context(|| format!("cannot listen on 127.0.0.1:{port}"));
        let listener = listener.map_err(Failure::bad_request)?;
        let port = listener.local_addr().context("cannot listen").map_err(Failure::at_run_time)?.port();
        let made = Made::new(page, stamp, 1);
        let (page, connections) = (Mutex::new(made), Mutex::default());
        let shared = Arc::new(ServerState { args, token: token()?, page, connections, ended: Condvar::new() });
        Ok(PageServer { listener, port, shared })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}/{}/", self.port, self.shared.token)
    }

    pub fn follows(&self) -> Option<Follows> {
        lock(&self.shared.page).follows
    }

    pub fn start(self) -> Result<(), Failure> {
        let PageServer { listener, shared, .. } = self;
        let accept = move || {
            loop {
                match listener.accept() {
                    Ok((stream, _)) => admit(&shared, stream),
                    Err(_) => thread::sleep(RETRY),
                }
            }
        };
        let thread = thread::Builder::new().name("ccsd-accept".to_owned());
        thread.spawn(accept).context("cannot start a thread").map_err(Failure::at_run_time)?;
        Ok(())
    }
}

fn token() -> Result<String, Failure> {
    let mut bytes = [0; TOKEN_BYTES];
    // Up to 256 bytes come at once or not at all: see getrandom(2).
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(TOKEN_BYTES) => Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        Ok(_) => Err(Failure::at_run_time(anyhow!("the kernel gives too few random bytes"))),
        Err(error) => Err(Failure::at_run_time(anyhow!("the kernel gives no random bytes: {error}"))),
    }
}

fn admit(shared: &Arc<ServerState>, stream: TcpStream) {
    let Ok(handle) = stream.try_clone() else { return };
    let number = {
        let connections = lock(&shared.connections);
        let is_full = |connections: &mut Connections| connections.open >= MOST_CONNECTIONS;
        let waited = shared.ended.wait_timeout_while(connections, ADMISSION, is_full);
        let (mut connections, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return;
        }
        if connections.waiting.len() >= MOST_WAITING
            && let Some((_, oldest)) = connections.waiting.pop_front()
        {
            let _ = oldest.shutdown(Shutdown::Both);
        }
        connections.open += 1;
        connections.next += 1;
        let number = connections.next;
        connections.waiting.push_back((number, handle));
        number
    };
    let guard = HttpConnection { shared: Arc::clone(shared), number };
    // If no thread can be started, dropping the closure closes the connection.
    let _ = thread::Builder::new().name("ccsd-http".to_owned()).spawn(move || guard.serve(stream));
}

struct HttpConnection {
    shared: Arc<ServerState>,
    number: u64,
}

impl Drop for HttpConnection {
    fn drop(&mut self) {
        self.has_sent();
        lock(&self.shared.connections).open -= 1;
        self.shared.ended.notify_one();
    }
}

impl HttpConnection {
    fn has_sent(&self) {
        lock(&self.shared.connections).waiting.retain(|(number, _)| *number != self.number);
    }

    fn serve(&self, mut stream: TcpStream) {
        let asked = read_request(&mut stream).and_then(|path| self.shared.resource(&path));
        let (page, version);
        let answer = match asked {
            Ok(ServedResource::Page) => {
                self.has_sent();
                page = self.shared.page();
                HttpResponse {
                    status: "200 OK",
                    content_type: "text/html; charset=utf-8",
                    policy: &page.policy,
                    body: &page.bytes,
                }
            }
            Ok(ServedResource::Live) => {
                self.has_sent();
                version = format!("{}\n", self.shared.version());
                HttpResponse { status: "200 OK", content_type: "text/plain", policy: NOTHING, body: version.as_bytes() }
            }
            Err(HttpError::Gone) => return,
            Err(refusal) => HttpResponse {
                status: refusal.status(),
                content_type: "text/plain; charset=utf-8",
                policy: NOTHING,
                body: b"ccsd: no page here. Its address is what `ccsd open --serve` has printed.\n",
            },
        };
        let _ = answer.send(&mut stream);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServedResource {
    Page,
    /// Tells the page that the server still runs, and which page it has.
    Live,
}

impl ServerState {
    /// The resource at a path. A wrong token and a wrong name after the right token get the same refusal.
    fn resource(&self, path: &str) -> Result<ServedResource, HttpError> {
        let (token, name) = path.strip_prefix('/').and_then(|path| path.split_once('/')).ok_or(HttpError::NotFound)?;
        match (is_same(token.as_bytes(), self.token.as_bytes()), name) {
            (true, "") => Ok(ServedResource::Page),
            (true, "live") => Ok(ServedResource::Live),
            _ => Err(HttpError::NotFound),
        }
    }

    fn page(&self) -> Arc<ServedPage> {
        Arc::clone(&self.fresh().page)
    }

    fn version(&self) -> u64 {
        self.fresh().version
    }

    /// The page: of a session that goes on one that is fresh, of a file that has changed a new one.
    fn fresh(&self) -> MutexGuard<'_, Made> {
        // Concurrent requests wait, and get the same page.
        let mut made = lock(&self.page);
        let changed = made.changed_file();
        let is_old = made.follows == Some(Follows::Session) && made.at.elapsed() >= FRESH;
        if is_old || changed.is_some() {
            let version = made.version + 1;
            match export::page(&self.args) {
                Ok(page) => *made = Made::new(page, changed, version),
                // Half a file, perhaps: the next change is another chance.
                Err(failure) if !is_old => {
                    warn(format_args!("{failure}; the page stays until the file changes"));
                    if let (Some((_, stamp)), Some(changed)) = (&mut made.file, changed) {
                        *stamp = changed;
                    }
                }
                Err(failure) => {
                    warn(format_args!("{failure}; the page stays"));
                    let page = Arc::new(made.page.last_state());
                    *made = Made { page, at: Instant::now(), version, follows: None, file: None };
                }
            }
        }
        made
    }
}

/// Compares in a time that depends only on the lengths.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    let difference = a.iter().zip(b).fold(0, |difference, (a, b)| black_box(difference | (a ^ b)));
    a.len() == b.len() && difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ_and_are_compared_whole() {
        let (a, b) = (token().unwrap(), token().unwrap());
        assert_eq!(a.len(), 2 * TOKEN_BYTES);
        assert_ne!(a, b);
        assert!(is_same(a.as_bytes(), a.as_bytes()) && !is_same(a.as_bytes(), b.as_bytes()));
        for wrong in [&a[..a.len() - 1], "", &format!("{a}0")] {
            assert!(!is_same(wrong.as_bytes(), a.as_bytes()), "{wrong}");
        }
    }
}
