//! Stack dumps: what every thread of a process is doing now, running or asleep.
//!
//! ```text
//! look at /proc -> blocked: PTRACE_SEIZE, PTRACE_INTERRUPT -> registers, a part of the stack -> PTRACE_DETACH (take, ptrace)
//!               -> running: a sample of a perf event                                                          (sample)
//! -> unwinding, names, lines                                                                                  (frames)
//! ```
//!
//! Only blocked threads are stopped, one at a time for well under a millisecond, and only if their system calls go on as
//! if nothing had been ([`calls`]); all that is costly comes afterwards. No signal is sent, and a stopped process stays
//! so. A blocked thread that may not be stopped, or is traced, is read as it is. A [`Dump`] says of every thread how its
//! stack was taken.

mod calls;
mod frames;
mod hold;
mod look;
pub mod model;
mod ptrace;
mod sample;
mod stack_copy;
mod take;

use std::fs::File;
use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hashbrown::HashSet;
use nix::unistd::geteuid;

use crate::clock::now_ns;
use crate::error::{Error, Result};
use crate::process::jit_code::is_file;
use crate::process::owner::Owner;
use crate::procfs;
use crate::session::check_target;
use crate::system;
use crate::tracker::scan::ThreadScan;
use crate::usage;
use take::Taking;

pub use hold::{end_holds, idle, on_idle};
pub use model::{Dump, End, FrameInfo, Method, TaskState, ThreadDump};

/// Longest time for which threads are looked at. A thousand take less than a second.
const MAX_TIME: Duration = Duration::from_secs(10);
/// Looks for threads that have been started meanwhile.
const ROUNDS: u32 = 5;
/// Attempts where the process runs another program at the end than at the beginning.
const ATTEMPTS: u32 = 3;
/// Stack of the thread that does the work: reading debug information is recursive, up to a depth that it limits.
const STACK_BYTES: usize = 8 << 20;

/// Takes the stacks of all threads of a process. Gaps are explained in their place. For an owner, debug information is
/// read only from files that he may read.
///
/// # Errors
/// Those of [`check_target`], [`Error::DumpNotPermitted`], and [`Error::NoSuchProcess`] if it ends meanwhile.
pub fn dump(pid: u32, owner: Option<Owner>) -> Result<Dump> {
    check_target(pid)?;
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("ccsd-dump".to_owned()).stack_size(STACK_BYTES);
        let thread = builder.spawn_scoped(scope, || (attempts(pid, owner), usage::thread_work_ns()));
        let thread = thread.map_err(|error| Error::system("start a thread", error))?;
        let failed = || Error::system("take a dump", io::Error::other("its thread has failed"));
        let (taken, cpu_ns) = thread.join().map_err(|_| failed())?;
        usage::add_helper(cpu_ns);
        taken
    })
}

fn attempts(pid: u32, owner: Option<Owner>) -> Result<Dump> {
    let mut attempt = 1;
    loop {
        let (dump, same) = once(pid, owner)?;
        if same {
            return Ok(dump);
        }
        if attempt == ATTEMPTS {
            let mut dump = dump;
            dump.notes
                .push("the process changed its program or libraries while its stacks were being taken".to_owned());
            return Ok(dump);
        }
        attempt += 1;
    }
}

/// One attempt. Whether what was mapped at the beginning was so at the end.
fn once(pid: u32, owner: Option<Owner>) -> Result<(Dump, bool)> {
    let stat = procfs::stat(pid).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => Error::NoAnswer { pid, owner: procfs::owner_label(pid) },
        _ => Error::NoSuchProcess(pid),
    })?;
    let mappings = || match procfs::executable_maps(pid) {
        Ok(maps) => Ok(maps),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(Error::DumpNotPermitted { pid, owner: procfs::owner_label(pid) })
        }
        Err(_) => Err(Error::NoSuchProcess(pid)),
    };
    let before = mappings()?;
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let begun = now_ns();
    let (taken, maps) = take_all(pid, owner)?;
    let took_ns = now_ns().saturating_sub(begun);
    let after = mappings()?;
    if taken.is_empty() || procfs::stat(pid).map(|stat| stat.start_time).ok() != Some(stat.start_time) {
        return Err(Error::NoSuchProcess(pid));
    }
    // What is added (a library, generated code) does no harm.
    let still_there: HashSet<_> = after.iter().map(|map| (map.start, map.inode, map.file_offset, &map.path)).collect();
    let files = before.iter().filter(|map| is_file(map.inode, &map.path));
    let same = files.clone().all(|map| still_there.contains(&(map.start, map.inode, map.file_offset, &map.path)));
    let mut dump = Dump {
        pid,
        start_time: stat.start_time,
        name: stat.comm,
        command: procfs::command_line(pid),
        taken_unix_ns: u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX),
        took_ns,
        ..Dump::default()
    };
    let maps = maps.map(|mut maps| procfs::executable_maps_in(&mut maps).unwrap_or_default());
    frames::read(taken, (owner, maps), &mut dump);
    dump.notes.extend(trace_note(&dump));
    dump.notes.extend(sample_note(&dump));
    Ok((dump, same))
}

impl Dump {
    /// Threads that this process may neither trace nor sample.
    #[must_use]
    pub fn refused(&self) -> usize {
        self.not_stopped(take::NOT_PERMITTED) + self.not_sampled()
    }

    fn not_sampled(&self) -> usize {
        self.not_stopped(take::NOT_SAMPLED) + self.not_stopped(take::NOT_IN_KERNEL)
    }

    /// Threads that were not stopped for a reason that begins like this.
    fn not_stopped(&self, beginning: &str) -> usize {
        let is =
            |thread: &&ThreadDump| matches!(&thread.method, Method::NotStopped { why } if why.starts_with(beginning));
        self.threads.iter().filter(is).count()
    }
}

/// What would allow more, where the kernel refused.
fn trace_note(dump: &Dump) -> Option<String> {
    let count = dump.not_stopped(take::NOT_PERMITTED);
    let yama = system::ptrace_scope().is_some_and(|scope| scope > 0);
    let sysctl = if yama { ", or allow it with `sudo sysctl kernel.yama.ptrace_scope=0`" } else { "" };
    (count > 0).then(|| {
        format!("the stacks of {count} threads may not be seen: run ccsd as root or with CAP_SYS_PTRACE{sysctl}")
    })
}

fn sample_note(dump: &Dump) -> Option<String> {
    let count = dump.not_sampled();
    let paranoid = system::perf_event_paranoid().is_some_and(|level| level > 1);
    let sysctl = if paranoid { ", or allow it with `sudo sysctl kernel.perf_event_paranoid=1`" } else { "" };
    let remedy = match geteuid().is_root() {
        true => "; as root, that is by a container or a security module".to_owned(),
        false => format!(": run ccsd as root or with CAP_PERFMON{sysctl}"),
    };
    (count > 0).then(|| format!("{count} threads run, and perf events on them are refused{remedy}"))
}

/// All threads, those that start meanwhile too; and for an owner the mappings of what he may observe.
fn take_all(pid: u32, owner: Option<Owner>) -> Result<(Vec<take::Taken>, Option<File>)> {
    let mut taking = Taking { pid, owner, until: Instant::now() + MAX_TIME, maps: None };
    let mut taken = Vec::new();
    let mut scan = ThreadScan::default();
    for _ in 0..ROUNDS {
        let mut new = scan.new_threads(pid).unwrap_or_default();
        if new.is_empty() {
            break;
        }
        new.iter().for_each(|&tid| scan.open(tid, now_ns()));
        // The main thread comes first; the others in the order of their numbers, which is mostly that of their age.
        new.sort_unstable_by_key(|&tid| (tid != pid, tid));
        taking.take(&new, &mut taken)?;
    }
    Ok((taken, taking.maps))
}
