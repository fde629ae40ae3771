//! What processes have mapped, and where their debug files are, as /proc and the files themselves say.
//!
//! A session's own processes, and root's, are asked at once, and those of other users within a deadline (see [`Deadline`]).

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ccsd_symbolizer::{Authors, DebugFileFinder, Door, ElfFile, FileIdentity};
use ccsd_worker::{FileKey, Principal};

use super::debug_roots::DebugRoots;
use super::image::MappedImage;
use super::mapped_file::MappedFile;
use super::owner::Owner;
use crate::deadline::{Deadline, LateAnswers};
use crate::other_process;
use crate::pids::is_free;
use crate::procfs::{self, MapEntry};
use crate::time_budget::{LEAST, TimeBudget};

/// Time for reading the mappings of other users' processes; see [`TimeBudget`]. One with 65,000 takes some 35 ms.
const MAPS: Duration = Duration::from_secs(2);
/// Time for finding the files that they map. One takes some 0.2 ms.
const FILES: Duration = Duration::from_millis(400);
/// A process is read again when there is so much for it: if not all of its files were found each time, some never would.
const FILES_OF_PROCESS: Duration = Duration::from_millis(50);

/// A file that a process has mapped.
#[derive(Debug)]
pub struct FoundFile {
    pub key: FileKey,
    pub file: File,
    /// The mount namespace of the process; none of one that has ended.
    pub namespace: Option<u64>,
}

/// Asks processes about their files.
#[derive(Debug)]
pub struct ProcessFiles {
    door: Door,
    debug_roots: DebugRoots,
    deadline: Deadline,
    maps_time: TimeBudget,
    files_time: TimeBudget,
    late_maps: LateAnswers<u32, Vec<MapEntry>>,
    late_files: LateAnswers<(u32, u64), Option<FoundFile>>,
    /// See [`ProcessFiles::take_unanswered`].
    unanswered: Option<Principal>,
}

impl Default for ProcessFiles {
    fn default() -> Self {
        ProcessFiles {
            door: Door::default(),
            debug_roots: DebugRoots::default(),
            deadline: Deadline::default().in_turns(),
            maps_time: TimeBudget::new(MAPS, true),
            files_time: TimeBudget::new(FILES, true),
            late_maps: LateAnswers::default(),
            late_files: LateAnswers::default(),
            unanswered: None,
        }
    }
}

impl ProcessFiles {
    /// For a session in which only this user's processes are followed, if it is one's in particular.
    #[must_use]
    pub fn of(owner: Option<Owner>) -> ProcessFiles {
        let door = Owner::door(owner);
        let deadline = owner.map_or_else(Deadline::default, |owner| Deadline::of(owner.uid)).in_turns();
        ProcessFiles { debug_roots: DebugRoots::through(door.clone()), door, deadline, ..ProcessFiles::default() }
    }

    /// The same where no samples wait while processes are looked at.
    #[must_use]
    pub fn patient(self) -> ProcessFiles {
        ProcessFiles { deadline: self.deadline.patient(), ..self }
    }

    /// Through which all files are opened.
    pub fn door(&self) -> &Door {
        &self.door
    }

    /// Asks about a process's files, within a deadline if it is another user's, who is returned, too, and within that user's
    /// time. `None` if there was no answer; see [`ProcessFiles::take_unanswered`].
    pub fn ask<T: Send + 'static>(
        &mut self,
        pid: u32,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Option<(T, Option<Principal>)> {
        let Some(user) = self.deadline.other_user(pid) else { return Some((question(), None)) };
        if !self.may_find_files(user, LEAST) {
            self.unanswered = Some(user);
            return None;
        }
        let began = Instant::now();
        let answer = self.deadline.ask(user, question);
        self.files_time.spend(Some(user), began.elapsed(), Duration::ZERO);
        if answer.is_none() {
            self.unanswered = Some(user);
        }
        Some((answer?, Some(user)))
    }

    /// The executable mappings of a process; empty where it has none, has ended, or may not be looked at. Errors: it is this
    /// other user's, who has taken too much time or does not answer.
    pub fn read_maps(&mut self, pid: u32) -> Result<Vec<MapEntry>, Principal> {
        let read = move || procfs::executable_maps(pid).unwrap_or_default();
        let Some(user) = self.deadline.other_user(pid) else { return Ok(read()) };
        if !self.may_read_maps(user) {
            return Err(user);
        }
        let began = Instant::now();
        let maps = self.deadline.ask_again(user, &mut self.late_maps, pid, read);
        // What is done with them takes as long again.
        self.maps_time.spend(Some(user), 2 * began.elapsed(), Duration::ZERO);
        maps.ok_or(user)
    }

    /// Whether there is time to read mappings of a user's processes.
    pub fn may_read_maps(&mut self, user: Principal) -> bool {
        let now = Instant::now();
        if !self.maps_time.has_begun() {
            self.maps_time.begin(now);
        }
        self.maps_time.grow(now);
        self.maps_time.left(Some(user), Duration::ZERO) >= LEAST
    }

    /// Looks for a file that a process maps; another user's takes that user's time, if there is some.
    pub fn find_within_time<T>(&mut self, pid: u32, find: impl FnOnce(&ProcessFiles) -> Option<T>) -> Option<T> {
        let Some(user) = other_process::user(pid) else { return find(self) };
        if !self.may_find_files(user, LEAST) {
            return None;
        }
        let began = Instant::now();
        let found = find(self);
        self.files_time.spend(Some(user), began.elapsed(), Duration::ZERO);
        found
    }

    /// Whether there is time to read the mappings of a user's process again, and to find its files.
    pub fn may_read_again(&mut self, user: Principal) -> bool {
        self.may_read_maps(user) && self.may_find_files(user, FILES_OF_PROCESS)
    }

    fn may_find_files(&mut self, user: Principal, least: Duration) -> bool {
        let now = Instant::now();
        if !self.files_time.has_begun() {
            self.files_time.begin(now);
        }
        self.files_time.grow(now);
        self.files_time.left(Some(user), Duration::ZERO) >= least
    }

    /// The user of a process of whose file too little was known in time, if there was one since the last call. The image has
    /// only a name, or that of what the user alone shows, until the process is read again.
    pub fn take_unanswered(&mut self) -> Option<Principal> {
        self.unanswered.take()
    }

    /// The user of a process, if that is neither root nor the session's own user; `None` for one that has ended.
    pub fn other_user(&self, pid: u32) -> Option<Principal> {
        self.deadline.other_user(pid)
    }

    /// Opens what a process of `user` has mapped, and says which file it is.
    pub fn open(&mut self, mapped: MappedFile<'_>, user: Option<Principal>) -> Option<FoundFile> {
        let opened = |file: Option<File>, pid: u32| {
            let file = file?;
            let key = ccsd_worker::file_key(&file, Some(pid).filter(|&pid| !is_free(pid))).ok()?;
            Some(FoundFile { key, file, namespace: procfs::mount_namespace(pid) })
        };
        let Some(user) = user else { return opened(mapped.open(&self.door), mapped.pid) };
        if !self.may_find_files(user, LEAST) {
            self.unanswered = Some(user);
            return None;
        }
        let (path, build_id, door) = (mapped.path.to_vec(), mapped.build_id.to_vec(), self.door.clone());
        let MappedFile { pid, start, end, device, inode, .. } = mapped;
        let open = move || {
            let mapped = MappedFile { pid, start, end, device, inode, build_id: &build_id, path: &path };
            opened(mapped.open(&door), pid)
        };
        let began = Instant::now();
        let opened = self.deadline.ask_again(user, &mut self.late_files, (pid, start), open);
        // What is in it takes as long again.
        self.files_time.spend(Some(user), 2 * began.elapsed(), Duration::ZERO);
        if opened.is_none() {
            self.unanswered = Some(user);
        }
        opened.flatten()
    }

    /// Who shows a file at its path, if this machine does not have it there; see [`MappedImage::shown_by`]. A process of `user`
    /// has mapped it, and `payer` pays for its room. A user's own file may be reached by whatever he made; another's has to
    /// be where its owner alone, or root, could put it.
    pub fn shown_by(
        &mut self,
        mapped: &MappedFile<'_>,
        user: Option<Principal>,
        key: Option<&FileKey>,
        payer: Principal,
    ) -> Option<Principal> {
        let is_owned = key.is_some_and(|key| self.deadline.is_other(key.principal()));
        let owner = Some(payer).filter(|&payer| is_owned && self.deadline.is_other(payer));
        let by = user.or(owner)?;
        let Some(key) = key else { return Some(by) };
        let (path, key) = (PathBuf::from(mapped.name()), key.clone());
        let is_own = user.is_none() || user == owner;
        if is_own && FileIdentity::at_once(&path, false).is_ok_and(|file| key.is_of(&file)) {
            return None;
        }
        let (pid, start, end) = (mapped.pid, mapped.start, mapped.end);
        let began = Instant::now();
        let is_here = self.deadline.ask(by, move || {
            let is_there = FileIdentity::from_link(&path).is_ok_and(|file| key.is_of(&file))
                || MappedFile::was_there(pid, start, end, &path);
            is_there && (is_own || is_put_there(&path, owner))
        });
        self.files_time.spend(Some(by), began.elapsed(), Duration::ZERO);
        if is_here.is_none() {
            self.unanswered = Some(by);
        }
        (is_here != Some(true)).then_some(by)
    }

    /// Where the debug files are of an image that a process has mapped, and who decides what is there, if another user.
    pub fn debug_files(
        &mut self,
        pid: u32,
        image: &MappedImage,
        elf: &Arc<ElfFile>,
    ) -> (DebugFileFinder, Option<Principal>) {
        let owner = Some(image.author()).filter(|&author| self.deadline.is_other(author));
        let user = self.deadline.other_user(pid);
        let finder = match image.shown_by.is_none() && user.is_some() && user != owner {
            // The process sees what this machine has there, and may see something else beside it.
            true => self.debug_roots.on_machine(&image.name),
            false => self.debug_files_in_view(owner, pid, &image.name, elf),
        };
        (finder, owner)
    }

    /// Debug files where a process sees them; `user` decides what is there, if another user.
    fn debug_files_in_view(
        &mut self,
        user: Option<Principal>,
        pid: u32,
        name: &str,
        elf: &Arc<ElfFile>,
    ) -> DebugFileFinder {
        let Some(user) = user else { return self.debug_roots.finder(pid, name, Some(elf)) };
        let (mut roots, name, elf) = (std::mem::take(&mut self.debug_roots), name.to_owned(), Arc::clone(elf));
        let found = self.deadline.ask(user, move || {
            let finder = roots.finder(pid, &name, Some(&elf));
            (roots, finder)
        });
        match found {
            Some((roots, finder)) => {
                self.debug_roots = roots;
                finder
            }
            None => {
                self.debug_roots = DebugRoots::through(self.door.clone());
                DebugFileFinder::none()
            }
        }
    }
}

/// Whether root and the owner of a file alone could put it at its path. Where it is no more, that goes for its directory.
fn is_put_there(path: &Path, owner: Option<Principal>) -> bool {
    let authors = match Authors::of(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Authors::of(path.parent().unwrap_or(path)),
        authors => authors,
    };
    match authors {
        Ok(Authors::Users(users)) => users.iter().all(|user| owner == Some(ccsd_worker::principal_of(user.uid))),
        Ok(Authors::Anybody) | Err(_) => false,
    }
}
