//! Names of kernel functions: one table for all sessions of this process, some 5 MB.
//!
//! The kernel takes 40 ms and more to print it, so a thread beside the collection reads it; early users wait. The
//! kernel proper's part is kept in a file (`kernel_store`); then the rest is read only when a module's function is met.
//! It lives as long as any session, and is read again when one begins and the kernel's modules have changed, for running
//! sessions too.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ccsd_symbolizer::KernelSymbols;

use super::kernel_store;
use crate::sched_priority::become_favoured;
use crate::usage::thread_cpu_ns;

pub type LoadedKernelSymbols = Result<KernelSymbols, String>;
/// The table once it is read, by the first caller.
type LazyKernelSymbols = Arc<OnceLock<Arc<LoadedKernelSymbols>>>;

struct SharedKernel {
    users: usize,
    /// Which modules there were when reading began, and what was read.
    table: Option<(u64, LazyKernelSymbols)>,
    proper: Option<Arc<LoadedKernelSymbols>>,
}

/// CPU time of threads that have read the kernel's list, nanoseconds.
static BESIDE_NS: AtomicU64 = AtomicU64::new(0);

/// CPU time that threads of this process have spent on the kernel's names beside those of its sessions, nanoseconds.
pub fn beside_ns() -> u64 {
    BESIDE_NS.load(Ordering::Relaxed)
}

static SHARED: Mutex<SharedKernel> = Mutex::new(SharedKernel { users: 0, table: None, proper: None });

fn shared() -> MutexGuard<'static, SharedKernel> {
    // Nothing that could panic is done while it is held.
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct KernelNames {
    /// Why there are none, once that is known.
    trouble: Option<String>,
}

impl KernelNames {
    /// Reads the table, if that has not been done or the modules have changed.
    pub fn new() -> KernelNames {
        let modules = modules();
        let mut shared = shared();
        shared.users += 1;
        if shared.proper.is_none() {
            shared.proper = kernel_store::load().map(|symbols| Arc::new(Ok(symbols)));
        }
        let is_kept = shared.proper.is_some();
        if shared.table.as_ref().is_none_or(|(of, _)| *of != modules) {
            let cell = LazyKernelSymbols::default();
            shared.table = Some((modules, Arc::clone(&cell)));
            if !is_kept {
                // Without a thread it is read by who needs it first.
                let _ = std::thread::Builder::new().name("ccsd-kallsyms".to_owned()).spawn(move || {
                    become_favoured();
                    let read_here = || {
                        let symbols = read();
                        // Before who waits for them can go on.
                        BESIDE_NS.fetch_add(thread_cpu_ns(), Ordering::Relaxed);
                        symbols
                    };
                    if let Ok(symbols) = cell.get_or_init(read_here).as_ref() {
                        let before = thread_cpu_ns();
                        kernel_store::save(symbols);
                        BESIDE_NS.fetch_add(thread_cpu_ns().saturating_sub(before), Ordering::Relaxed);
                    }
                });
            }
        }
        KernelNames { trouble: None }
    }

    /// The table as it is now that has an address, if any has. To be asked for each new address, not for each sample.
    pub fn symbols(&mut self, address: u64) -> Arc<LoadedKernelSymbols> {
        let (cell, proper) = {
            let shared = shared();
            (shared.table.as_ref().map(|(_, cell)| Arc::clone(cell)), shared.proper.clone())
        };
        let is_in =
            |symbols: &Arc<LoadedKernelSymbols>| symbols.as_ref().as_ref().is_ok_and(|all| all.is_proper(address));
        if let Some(proper) = proper.filter(is_in) {
            return proper;
        }
        let symbols = Arc::clone(cell.unwrap_or_default().get_or_init(read));
        self.trouble = symbols.as_ref().as_ref().err().cloned();
        symbols
    }

    /// Why there are no names, if they were needed.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }
}

impl Drop for KernelNames {
    fn drop(&mut self) {
        let mut shared = shared();
        shared.users = shared.users.saturating_sub(1);
        if shared.users == 0 {
            (shared.table, shared.proper) = (None, None);
        }
    }
}

fn read() -> Arc<LoadedKernelSymbols> {
    let file = File::open("/proc/kallsyms").map_err(|error| format!("cannot read /proc/kallsyms: {error}"));
    Arc::new(file.and_then(|file| KernelSymbols::read(file).map_err(|error| error.to_string())))
}

fn modules() -> u64 {
    number_of(&fs::read_to_string("/proc/modules").unwrap_or_default())
}

/// A hash of a list of modules (proc(5)): names and, if visible, addresses, without use counts.
fn number_of(list: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    for line in list.lines() {
        let mut fields = line.split(' ');
        (fields.next(), fields.nth(4)).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_share_one_table() {
        let (mut one, mut other) = (KernelNames::new(), KernelNames::new());
        // No kernel function is there; whichever is kept in a file, this asks for the whole.
        let first = one.symbols(0);
        assert!(Arc::ptr_eq(&first, &other.symbols(0)));
        drop(one);
        assert!(Arc::ptr_eq(&first, &other.symbols(0)));
        assert_eq!(other.trouble().is_some(), first.is_err());
        drop(other);
        // With the last the table goes. (Another test of this process may have a session, too.)
        let shared = shared();
        assert!(shared.users > 0 || shared.table.is_none());
    }

    #[test]
    fn a_module_that_comes_or_goes_is_another_table() {
        const LIST: &str = "ext4 892928 3 - Live 0xffffffffc0a00000\nmbcache 16384 1 ext4, Live 0xffffffffc09f0000\n";
        let is_other = |from: &str, to: &str| number_of(LIST) != number_of(&LIST.replace(from, to));
        assert!(is_other("mbcache 16384 1 ext4, Live 0xffffffffc09f0000\n", ""));
        assert!(is_other("c09f0000", "c08f0000"));
        assert!(is_other("mbcache", "jbd2"));
        assert!(!is_other("892928 3 -", "892928 4 -"));
        assert_eq!(modules(), modules());
    }
}
