//! The worker: answers questions about files until the daemon ends.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use ccsd_symbolizer::{Headers, OpenFiles, jit};
use nix::sys::prctl;
use nix::sys::signal::{self, SigHandler, Signal};
use nix::time::{ClockId, clock_gettime};

use crate::client::QUICK;
use crate::images::{Asker, ImageCache};
use crate::message::{ImageKey, MAX_ADDRESSES, NameList, WorkerReply, WorkerRequest};
use crate::sandbox::{self, SandboxError};
use crate::wire::Channel;

const MAX_QUESTION: usize = 1 << 20;
/// Interval of forgetting unused images.
const IDLE: Duration = Duration::from_secs(60);
/// Stack size of a thread: parsing debug information and demangling recurse to a limited depth. It counts as memory.
const STACK_BYTES: usize = 4 << 20;
const PANICKED: i32 = 70;
/// Nice value of the worker of this machine's own files, if permitted: the sampling thread waits for its answers. Nobody
/// waits for those of others, whose files their authors choose.
const FAVOURED: i32 = -10;
const ORDINARY: i32 = 0;
/// When memory runs out, the kernel first kills workers of others' files, then the one of this machine's own, and only
/// then, by what it takes, the daemon (`proc_pid_oom_score_adj(5)`).
const OOM_SCORE_OWN: u16 = 500;
const OOM_SCORE_OTHER: u16 = 1000;

/// Why the worker cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It was not started by a daemon.
    #[error("this is an internal part of `ccsd daemon`, which starts it")]
    NotByDaemon,
    /// Some rights could not be given up.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// Another system call failed.
    #[error("cannot begin: {0}")]
    Io(#[from] io::Error),
}

/// Serves the daemon that started this process with a connection as standard input, after giving up all rights. Ends
/// the process when the daemon ends. To be called first.
///
/// # Errors
/// If it cannot start. Nothing was read then.
pub fn serve() -> Result<Infallible, ServeError> {
    let control = io::stdin().as_fd().try_clone_to_owned()?;
    if !is_socket(&control) {
        return Err(ServeError::NotByDaemon);
    }
    drop(control);
    sandbox::close_inherited()?;
    let control = Channel::from(io::stdin().as_fd().try_clone_to_owned()?);
    let _ = prctl::set_name(c"ccsd-worker");
    ignore_signals();
    let mut buffer = Vec::new();
    let connections = control.receive_files(&mut buffer, MAX_QUESTION, None)?.unwrap_or_default();
    let Ok(WorkerRequest::Begin { memory, is_own }) = postcard::from_bytes(&buffer) else {
        return Err(ServeError::NotByDaemon);
    };
    // SAFETY: setpriority(2) takes numbers; on Linux 0 is the calling thread, whose nice value later threads inherit.
    // Failure has no effect.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, if is_own { FAVOURED } else { ORDINARY }) };
    if is_own {
        // Threads inherit the scheduling policy of their creator, which is reset below.
        set_policy(libc::SCHED_RR, 1);
    }
    sandbox::give_up_rights(memory, if is_own { OOM_SCORE_OWN } else { OOM_SCORE_OTHER })?;
    keep_no_freed_memory();
    // All threads start before the filter, which forbids starting them. They meet twice: when all have started, and
    // when the filter is installed.
    let ready = Arc::new(Barrier::new(connections.len() + 1));
    let images = Arc::new(ImageCache::within(memory));
    for (number, connection) in connections.into_iter().enumerate() {
        if number == QUICK {
            set_policy(libc::SCHED_OTHER, 0);
        }
        let (ready, images) = (Arc::clone(&ready), Arc::clone(&images));
        let channel = Arc::new(Channel::from(OwnedFd::from(connection)));
        let body = move || {
            ready.wait();
            ready.wait();
            let served = catch_unwind(AssertUnwindSafe(|| ServedConnection { channel, images }.serve()));
            // After any panic: the daemon starts another worker.
            std::process::exit(if served.is_ok() { 0 } else { PANICKED });
        };
        std::thread::Builder::new().name("ccsd-read".to_owned()).stack_size(STACK_BYTES).spawn(body)?;
    }
    set_policy(libc::SCHED_OTHER, 0);
    ready.wait();
    sandbox::filter_system_calls()?;
    ready.wait();
    control.send(&WorkerReply::Ready, &[])?;
    // The other end is closed when the daemon ends, however it does.
    let _ = control.receive_files(&mut buffer, MAX_QUESTION, None);
    std::process::exit(0);
}

/// Bytes from which on an allocation is mapped by itself, and goes back to the system when it is freed. The C library raises
/// this by itself, up to 32 MiB; what it keeps counts as memory of the process, which is limited.
const MAPPED_ALONE: i32 = 1 << 20;
/// Heaps of the C library: each keeps memory that was freed, where those of other threads do not use it. By default there is
/// one for each thread.
const HEAPS: i32 = 1;

fn keep_no_freed_memory() {
    // SAFETY: mallopt(3) takes numbers. No other thread has started. Failure has no effect.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_ALONE);
        libc::mallopt(libc::M_ARENA_MAX, HEAPS);
    }
}

fn set_policy(policy: i32, priority: i32) {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: sched_setscheduler(2) reads one sched_param, which is live; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, policy, &raw const param) };
}

/// Ignores signals sent to all processes of a terminal or service: the daemon shuts down in order, and then this
/// process ends.
fn ignore_signals() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
        // SAFETY: ignoring a signal runs no handler.
        let _ = unsafe { signal::signal(signal, SigHandler::SigIgn) };
    }
}

fn is_socket(fd: &OwnedFd) -> bool {
    use nix::sys::stat::{SFlag, fstat};
    fstat(fd).is_ok_and(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFSOCK)
}

struct ServedConnection {
    channel: Arc<Channel>,
    images: Arc<ImageCache>,
}

#[derive(Debug)]
struct DaemonAsker(Arc<Channel>);

impl DaemonAsker {
    /// Requests files from the daemon. Without an answer, the daemon's time limit has passed, and this process is about
    /// to end.
    fn want(&self, want: &WorkerReply) -> Vec<File> {
        let mut buffer = Vec::new();
        let files = self.0.send(want, &[]).and_then(|()| self.0.receive_files(&mut buffer, MAX_QUESTION, None));
        files.ok().flatten().unwrap_or_default()
    }
}

impl OpenFiles for DaemonAsker {
    fn open(&self, path: &Path) -> Vec<File> {
        self.want(&WorkerReply::WantFiles(path.as_os_str().as_encoded_bytes().to_vec()))
    }
}

impl Asker for DaemonAsker {
    fn image_file(&self) -> Option<File> {
        self.want(&WorkerReply::WantImage).pop()
    }

    fn waits(&self, waits: bool) {
        // If that fails, the answer does, too.
        let _ = self.0.send(&WorkerReply::Waits(waits), &[]);
    }
}

impl ServedConnection {
    fn serve(self) {
        let mut buffer = Vec::new();
        loop {
            let files = match self.channel.receive_files(&mut buffer, MAX_QUESTION, Some(IDLE)) {
                Ok(Some(files)) => files,
                Ok(None) => {
                    self.images.forget_old();
                    continue;
                }
                Err(_) => return,
            };
            let Ok(question) = postcard::from_bytes(&buffer) else { return };
            let answered = match question {
                WorkerRequest::Headers { debug, contents } => self.headers(debug, contents, files),
                WorkerRequest::Names { image, addresses } => self.names(&image, &addresses),
                WorkerRequest::Code { parser, bytes } => {
                    self.channel.send(&WorkerReply::Code(jit::parse(parser, &bytes)), &[])
                }
                WorkerRequest::Files | WorkerRequest::Begin { .. } => return,
            };
            if answered.is_err() {
                return;
            }
        }
    }

    fn headers(&self, debug: bool, contents: bool, files: Vec<File>) -> io::Result<()> {
        let Some(file) = files.into_iter().next() else { return Err(io::ErrorKind::InvalidInput.into()) };
        let headers = Headers::read(file, debug, contents).map_err(|error| error.to_string());
        self.channel.send(&WorkerReply::Headers(headers), &[])
    }

    fn names(&self, image: &ImageKey, addresses: &[u64]) -> io::Result<()> {
        let began = thread_cpu_ns();
        let addresses = addresses.get(..addresses.len().min(MAX_ADDRESSES)).unwrap_or_default();
        let daemon = Arc::new(DaemonAsker(Arc::clone(&self.channel)));
        // Without the image's file there are no names; the daemon knows that.
        let (functions, notes) = self
            .images
            .functions(image, addresses, &daemon)
            .unwrap_or_else(|| (vec![Vec::new(); addresses.len()], Vec::new()));
        let names = NameList::of(&functions, &notes, thread_cpu_ns().saturating_sub(began));
        self.channel.send(&WorkerReply::Names(names), &[])
    }
}

fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
