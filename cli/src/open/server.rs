//! A server of one page, for the browsers of one user.
//!
//! The server listens on 127.0.0.1 only. Every user of this machine can connect there, and every page in a browser can try
//! to. Therefore the page is at a path with a random token, and every other path is not found. A connection has one request
//! (see [`super::http`]) and one thread. At the limit on connections, the server ends the connection that has waited longest
//! without sending its request, so that clients that send nothing do not keep others out.

use std::collections::VecDeque;
use std::hint::black_box;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use rustix::rand::{GetRandomFlags, getrandom};

use super::http::{Answer, NOTHING, Refusal, read_request};
use super::live::ServedPage;
use crate::args::export::ExportArgs;
use crate::exit::Failure;
use crate::export;
use crate::message::warn;

/// Bytes of a token: 192 bits.
const TOKEN_BYTES: usize = 24;
/// Limit on connections that have not sent their request yet.
const MOST_WAITING: usize = 32;
/// Limit on connections.
const MOST_CONNECTIONS: usize = 64;
/// Time that a connection beyond the limit waits for another to end.
const ADMISSION: Duration = Duration::from_secs(1);
/// The page of a session is rendered again when it is older than this.
const FRESH: Duration = Duration::from_secs(2);
/// Pause after a failed `accept`, for example at the limit on open files.
const RETRY: Duration = Duration::from_millis(50);

/// State that the threads of all connections share.
struct Shared {
    args: ExportArgs,
    token: String,
    page: Mutex<Made>,
    connections: Mutex<Connections>,
    /// A connection has ended.
    ended: Condvar,
}

struct Made {
    page: Arc<ServedPage>,
    at: Instant,
    /// Whether its session goes on.
    is_live: bool,
}

#[derive(Default)]
struct Connections {
    next: u64,
    open: usize,
    /// The longest waiting first.
    waiting: VecDeque<(u64, TcpStream)>,
}

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    port: u16,
    shared: Arc<Shared>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// Makes the page, and listens at a port; 0 is any.
    ///
    /// # Errors
    /// As `export html`; the port cannot be had; the kernel gives no random bytes.
    pub fn bind(args: ExportArgs, port: u16) -> Result<Server, Failure> {
        let page = export::page(&args)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        let listener = listener.with_context(|| format!("cannot listen on 127.0.0.1:{port}"));
        let listener = listener.map_err(Failure::bad_request)?;
        let port = listener.local_addr().context("cannot listen").map_err(Failure::at_run_time)?.port();
        let made = Made {
            page: Arc::new(ServedPage::new(page.bytes, page.is_growing)),
            at: Instant::now(),
            is_live: page.is_growing,
        };
        let (page, connections) = (Mutex::new(made), Mutex::default());
        let shared = Arc::new(Shared { args, token: token()?, page, connections, ended: Condvar::new() });
        Ok(Server { listener, port, shared })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where the page is.
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}/{}/", self.port, self.shared.token)
    }

    pub fn is_live(&self) -> bool {
        lock(&self.shared.page).is_live
    }

    /// Serves in threads, until the process ends.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(self) -> Result<(), Failure> {
        let Server { listener, shared, .. } = self;
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

/// Random bytes in hexadecimal digits.
fn token() -> Result<String, Failure> {
    let mut bytes = [0; TOKEN_BYTES];
    // Up to 256 bytes come at once or not at all: see getrandom(2).
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(TOKEN_BYTES) => Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        Ok(_) => Err(Failure::at_run_time(anyhow!("the kernel gives too few random bytes"))),
        Err(error) => Err(Failure::at_run_time(anyhow!("the kernel gives no random bytes: {error}"))),
    }
}

/// Gives a connection a thread, or ends it.
fn admit(shared: &Arc<Shared>, stream: TcpStream) {
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
    let guard = Connection { shared: Arc::clone(shared), number };
    // If no thread can be started, dropping the closure closes the connection.
    let _ = thread::Builder::new().name("ccsd-http".to_owned()).spawn(move || guard.serve(stream));
}

/// A connection, which counts until it is dropped.
struct Connection {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.has_sent();
        lock(&self.shared.connections).open -= 1;
        self.shared.ended.notify_one();
    }
}

impl Connection {
    /// Removes the connection from those that may be ended.
    fn has_sent(&self) {
        lock(&self.shared.connections).waiting.retain(|(number, _)| *number != self.number);
    }

    fn serve(&self, mut stream: TcpStream) {
        let asked = read_request(&mut stream).and_then(|path| self.shared.resource(&path));
        let page;
        let answer = match asked {
            Ok(Resource::Page) => {
                self.has_sent();
                page = self.shared.page();
                Answer {
                    status: "200 OK",
                    content_type: "text/html; charset=utf-8",
                    policy: &page.policy,
                    body: &page.bytes,
                }
            }
            Ok(Resource::Live) => {
                self.has_sent();
                Answer { status: "200 OK", content_type: "text/plain", policy: NOTHING, body: b"live\n" }
            }
            Err(Refusal::Gone) => return,
            Err(refusal) => Answer {
                status: refusal.status(),
                content_type: "text/plain; charset=utf-8",
                policy: NOTHING,
                body: b"ccsd: no page here. Its address is what `ccsd open --serve` has printed.\n",
            },
        };
        // The client may be gone.
        let _ = answer.send(&mut stream);
    }
}

/// What the server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resource {
    Page,
    /// Tells the page that the server still runs.
    Live,
}

impl Shared {
    /// The resource at a path. A wrong token and a wrong name after the right token get the same refusal.
    fn resource(&self, path: &str) -> Result<Resource, Refusal> {
        let (token, name) = path.strip_prefix('/').and_then(|path| path.split_once('/')).ok_or(Refusal::NotFound)?;
        match (is_same(token.as_bytes(), self.token.as_bytes()), name) {
            (true, "") => Ok(Resource::Page),
            (true, "live") => Ok(Resource::Live),
            _ => Err(Refusal::NotFound),
        }
    }

    /// The page; of a session that goes on, one that is fresh.
    fn page(&self) -> Arc<ServedPage> {
        // Concurrent requests wait, and get the same page.
        let mut made = lock(&self.page);
        if made.is_live && made.at.elapsed() >= FRESH {
            match export::page(&self.args) {
                Ok(page) => {
                    made.page = Arc::new(ServedPage::new(page.bytes, page.is_growing));
                    made.is_live = page.is_growing;
                }
                Err(failure) => {
                    warn(format_args!("{failure}; the page stays as it is"));
                    made.page = Arc::new(made.page.last_state());
                    made.is_live = false;
                }
            }
            made.at = Instant::now();
        }
        Arc::clone(&made.page)
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
