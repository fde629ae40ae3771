//! Processes and threads as a recording tells of them. Nothing is asked of those that run now, which may have their numbers.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::rc::Rc;

use linux_perf_event_reader::{CommOrExecRecord, CpuMode, ForkOrExitRecord, Mmap2FileId, Mmap2Record, MmapRecord};

use super::images::{Known, open};
use crate::batch::Item;
use crate::process::images::{ImageIndex, Images};
use crate::process::mappings::{Mapping, Mappings};
use crate::process::{ProcessKey, ThreadKey};
use crate::unwind::goroutines::Goroutines;
use crate::unwind::shadow::ShadowStack;

/// Mappings of all processes together: 40 bytes each. A fork copies those of its parent.
const MAX_MAPPINGS: usize = 4 << 20;
/// Mappings that all forks together copy: some seconds of work. A machine that starts a hundred thousand programs has less.
const MAX_COPIED: usize = 1 << 28;
/// Bytes of a name; the kernel has 16. Children have those of their parents.
const MAX_NAME: usize = 64;
/// Processes at a time, and threads: as many as a profile tells apart, but for those that would double the tables.
const MAX_THREADS: usize = 7 << 15;
/// Files of mappings: as many as a profile has images.
const MAX_FILES: usize = 1 << 14;
/// The number of the process, and of the thread, that samples count for whose own found no room. No process has it.
const OTHER: i32 = -2;
const OTHER_NAME: &str = "[other]";
/// Files that are named as not to be had.
const MAX_NAMED: usize = 3;
/// `PROT_EXEC`
const EXECUTABLE: u32 = 4;

/// A process.
#[derive(Debug)]
pub struct Process {
    key: ProcessKey,
    parent: Option<ProcessKey>,
    exec_generation: u32,
    name: Rc<str>,
    announced: bool,
    /// Its code.
    pub mappings: Mappings,
    /// Its goroutines; most have none.
    pub goroutines: Option<Box<Goroutines>>,
}

/// A thread.
#[derive(Debug)]
pub struct Thread {
    /// Which.
    pub key: ThreadKey,
    pid: i32,
    name: Rc<str>,
    announced: bool,
    /// Its last stack, if stacks are unwound here.
    pub shadow: Option<Box<ShadowStack>>,
}

impl Thread {
    /// Frames of its last stack that are remembered.
    pub fn remembered(&self) -> usize {
        self.shadow.as_ref().map_or(0, |shadow| shadow.remembered())
    }
}

/// A thread that has ended, or begun anew under another key.
#[derive(Debug)]
pub struct Ended {
    /// Its key, if it was announced.
    pub key: Option<ThreadKey>,
    /// Frames that were remembered of it.
    pub remembered: usize,
}

/// All of them.
pub struct Table {
    processes: HashMap<i32, Process>,
    threads: HashMap<i32, Thread>,
    ended: Vec<Ended>,
    next: u32,
    mappings: usize,
    images: Images,
    /// Build ids that perf has noted, by path.
    build_ids: HashMap<String, Vec<u8>>,
    /// The images of files that were looked for.
    files: HashMap<(Vec<u8>, Known), ImageIndex>,
    /// Mappings that forks have copied.
    copied: usize,
    /// Where the kernel's text began, and whether it does now; perf tells that first of all.
    kernel_text: Option<u64>,
    same_kernel: Option<bool>,
    changed: BTreeSet<String>,
    shed: u64,
}

impl Table {
    /// Nobody yet.
    pub fn new(build_ids: HashMap<String, Vec<u8>>) -> Table {
        Table {
            processes: HashMap::new(),
            threads: HashMap::new(),
            ended: Vec::new(),
            next: 0,
            mappings: 0,
            images: Images::default(),
            build_ids,
            files: HashMap::new(),
            copied: 0,
            kernel_text: None,
            same_kernel: None,
            changed: BTreeSet::new(),
            shed: 0,
        }
    }

    fn number(&mut self) -> u32 {
        self.next = self.next.wrapping_add(1);
        self.next
    }

    fn process(&mut self, pid: i32) -> Option<&mut Process> {
        if !self.processes.contains_key(&pid) {
            if self.processes.len() >= MAX_THREADS && pid != OTHER {
                self.shed += 1;
                return None;
            }
            let process = Process {
                key: ProcessKey(self.number()),
                parent: None,
                exec_generation: 0,
                name: Rc::from(if pid == OTHER { OTHER_NAME } else { "" }),
                announced: false,
                mappings: Mappings::default(),
                goroutines: None,
            };
            self.processes.insert(pid, process);
        }
        self.processes.get_mut(&pid)
    }

    /// A thread, made with its process if they were never told of. `None` if there is no room.
    fn known(&mut self, pid: i32, tid: i32) -> Option<&mut Thread> {
        let name = self.process(pid)?.name.clone();
        if self.threads.get(&tid).is_none_or(|thread| thread.pid != pid) {
            self.remove_thread(tid);
            if self.threads.len() >= MAX_THREADS && tid != OTHER {
                self.shed += 1;
                return None;
            }
            let key = ThreadKey(self.number());
            self.threads.insert(tid, Thread { key, pid, name, announced: false, shadow: None });
        }
        self.threads.get_mut(&tid)
    }

    /// The thread and the process that a sample counts for, and all images.
    pub fn thread(&mut self, pid: i32, tid: i32) -> Option<(&mut Thread, &mut Process, &Images)> {
        let (pid, tid) = if self.known(pid, tid).is_some() { (pid, tid) } else { (OTHER, OTHER) };
        self.known(pid, tid)?;
        Some((self.threads.get_mut(&tid)?, self.processes.get_mut(&pid)?, &self.images))
    }

    /// The threads that have ended since the last call.
    pub fn take_ended(&mut self) -> impl Iterator<Item = Ended> + '_ {
        self.ended.drain(..)
    }

    fn remove_thread(&mut self, tid: i32) {
        if let Some(thread) = self.threads.remove(&tid) {
            self.end(thread.announced.then_some(thread.key), thread.remembered());
        }
    }

    fn end(&mut self, key: Option<ThreadKey>, remembered: usize) {
        if key.is_some() || remembered > 0 {
            self.ended.push(Ended { key, remembered });
        }
    }

    /// What has to be said of a thread before its first sample.
    pub fn announce(thread: &mut Thread, process: &mut Process, pid: i32, tid: i32) -> [Option<Item>; 2] {
        // That of all the others has no number.
        let [pid, tid] = if thread.pid == OTHER { [0; 2] } else { [pid as u32, tid as u32] };
        let of_process = (!process.announced).then(|| Item::Process {
            key: process.key,
            parent: process.parent,
            pid,
            start_time: 0,
            exec_generation: process.exec_generation,
            name: process.name.to_string(),
        });
        let of_thread = (!thread.announced).then(|| Item::Thread {
            key: thread.key,
            process: process.key,
            tid,
            name: thread.name.to_string(),
        });
        (process.announced, thread.announced) = (true, true);
        [of_process, of_thread]
    }

    /// A name, or another program.
    pub fn comm(&mut self, comm: &CommOrExecRecord<'_>) {
        let name = comm.name.as_slice();
        let name: Rc<str> = Rc::from(&*String::from_utf8_lossy(name.get(..MAX_NAME).unwrap_or(&name)));
        let key = comm.is_execve.then(|| (ProcessKey(self.number()), ThreadKey(self.number())));
        let (pid, tid) = (comm.pid, comm.tid);
        let Some(process) = self.process(pid) else { return };
        if pid == tid || comm.is_execve {
            process.name = name.clone();
        }
        let mut gone = 0;
        if let Some((process_key, _)) = key {
            gone = process.mappings.len();
            process.mappings.clear();
            process.goroutines = None;
            process.parent = Some(process.key);
            (process.key, process.announced) = (process_key, false);
            process.exec_generation = process.exec_generation.saturating_add(1);
        }
        self.mappings = self.mappings.saturating_sub(gone);
        let Some(thread) = self.known(pid, tid) else { return };
        thread.name = name;
        if let Some((_, thread_key)) = key {
            let (old, remembered) = (thread.announced.then_some(thread.key), thread.remembered());
            (thread.key, thread.announced, thread.shadow) = (thread_key, false, None);
            self.end(old, remembered);
        }
    }

    /// A new thread or process.
    pub fn fork(&mut self, fork: &ForkOrExitRecord) {
        let name = self.threads.get(&fork.ptid).map_or_else(|| Rc::from(""), |thread| thread.name.clone());
        if fork.pid != fork.ppid
            && let Some(parent) = self.processes.get(&fork.ppid)
        {
            let (key, count) = (parent.key, parent.mappings.len());
            let fits =
                self.mappings.saturating_add(count) <= MAX_MAPPINGS && self.copied.saturating_add(count) <= MAX_COPIED;
            let mappings = if fits { parent.mappings.clone() } else { Mappings::default() };
            let count = mappings.len();
            self.copied += count;
            self.remove_process(fork.pid);
            self.shed += u64::from(!fits);
            if let Some(process) = self.process(fork.pid) {
                (process.parent, process.name) = (Some(key), name.clone());
                process.mappings = mappings;
                self.mappings += count;
            }
        }
        self.remove_thread(fork.tid);
        if let Some(thread) = self.known(fork.pid, fork.tid) {
            thread.name = name;
        }
    }

    /// The end of a thread, and of its process if that was the last.
    pub fn exit(&mut self, exit: &ForkOrExitRecord) {
        self.remove_thread(exit.tid);
        if exit.pid == exit.tid {
            self.remove_process(exit.pid);
        }
    }

    fn remove_process(&mut self, pid: i32) {
        if let Some(process) = self.processes.remove(&pid) {
            self.mappings = self.mappings.saturating_sub(process.mappings.len());
        }
    }

    /// A mapping, as older kernels tell of it, and perf of the kernel's own.
    pub fn mmap(&mut self, mmap: &MmapRecord<'_>) {
        let path = mmap.path.as_slice();
        if mmap.cpu_mode == CpuMode::Kernel || mmap.pid == -1 {
            if path.starts_with(b"[kernel.kallsyms]") {
                self.kernel_text = Some(mmap.page_offset);
            }
        } else if mmap.is_executable {
            self.map(mmap.pid, (mmap.address, mmap.length, mmap.page_offset), &path, &Known::Nothing);
        }
    }

    /// A mapping.
    pub fn mmap2(&mut self, mmap: &Mmap2Record<'_>) {
        let path = mmap.path.as_slice();
        if mmap.cpu_mode == CpuMode::Kernel || mmap.pid == -1 {
            if path.starts_with(b"[kernel.kallsyms]") {
                self.kernel_text = Some(mmap.page_offset);
            }
            return;
        }
        let known = match &mmap.file_id {
            Mmap2FileId::InodeAndVersion(id) => Known::Inode { device: (id.major, id.minor), inode: id.inode },
            Mmap2FileId::BuildId(build_id) => Known::BuildId(build_id.clone()),
        };
        if mmap.protection & EXECUTABLE != 0 {
            self.map(mmap.pid, (mmap.address, mmap.length, mmap.page_offset), &path, &known);
        }
    }

    fn map(&mut self, pid: i32, (start, length, offset): (u64, u64, u64), path: &[u8], known: &Known) {
        let Some(end) = start.checked_add(length) else { return };
        if self.mappings >= MAX_MAPPINGS {
            self.shed += 1;
            return;
        }
        let image = self.image(path, known);
        let to_svma = self.images.to_svma(image, start, offset);
        let Some(process) = self.process(pid) else { return };
        let before = process.mappings.len();
        process.mappings.insert(Mapping { start, end, image, to_svma });
        let after = process.mappings.len();
        self.mappings = (self.mappings + after).saturating_sub(before);
    }

    fn image(&mut self, path: &[u8], known: &Known) -> ImageIndex {
        let name = String::from_utf8_lossy(path).into_owned();
        // perf says so of what is no file.
        if path.starts_with(b"//anon") || path.starts_with(b"[") && path != b"[vdso]" {
            return self.images.by_name(Images::ANONYMOUS);
        }
        if path == b"[vdso]" {
            // That of another kernel has other code.
            let same = *self.same_kernel.get_or_insert_with(|| runs_now(self.kernel_text));
            return if same { self.images.vdso() } else { self.images.by_name("[vdso]") };
        }
        let key = (path.to_vec(), known.clone());
        if let Some(image) = self.files.get(&key) {
            return *image;
        }
        if self.files.len() >= MAX_FILES {
            self.shed += 1;
            return self.images.by_name(OTHER_NAME);
        }
        let image = match open(path, known, self.build_ids.get(&name).map(Vec::as_slice)) {
            Some(file) => self.images.of_file(&name, file),
            None => {
                self.changed.insert(name.clone());
                self.images.by_name(&name)
            }
        };
        self.files.insert(key, image);
        image
    }

    /// Whether the kernel that runs is, where it is, the one that was recorded: then its symbols are right.
    pub fn has_the_running_kernel(&mut self) -> bool {
        *self.same_kernel.get_or_insert_with(|| runs_now(self.kernel_text))
    }

    /// What is to be said.
    pub fn notes(&mut self) -> impl Iterator<Item = String> + use<> {
        let count = self.changed.len();
        let named: Vec<&str> = self.changed.iter().take(MAX_NAMED).map(String::as_str).collect();
        let changed = (count > 0).then(|| {
            let more = if count > named.len() { format!(" and {} more", count - named.len()) } else { String::new() };
            format!("not there any more, or not as they were when recorded: {}{more}", named.join(", "))
        });
        let kernel = (!self.has_the_running_kernel())
            .then(|| "the kernel was another, or its symbols are hidden: its functions have no names".to_owned());
        let shed =
            (self.shed > 0).then(|| format!("{} times there was no room for a mapping, thread or process", self.shed));
        changed.into_iter().chain(kernel).chain(shed)
    }
}

/// Whether the kernel's text begins there now, as far as this user may know.
fn runs_now(kernel_text: Option<u64>) -> bool {
    let Some(recorded) = kernel_text.filter(|&address| address != 0) else { return false };
    let Ok(file) = File::open("/proc/kallsyms") else { return false };
    // They are among the first.
    let lines = BufReader::new(file).lines().take(1000).map_while(Result::ok);
    let mut addresses = lines.filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        matches!(words.nth(1)?, "_text" | "_stext").then_some(address)
    });
    addresses.any(|address| address == recorded)
}
