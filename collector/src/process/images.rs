//! The images seen in a session, each once, whatever processes have it mapped.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ccsd_symbolizer::{DebugFileFinder, Door, ElfFile};
use ccsd_worker::{FileKey, OpenedImage, Principal};
use hashbrown::{HashMap, HashSet};

use super::awaited_images::{AwaitedImage, AwaitedImages};
pub use super::image::{ImageIndex, MappedImage};
use super::jit_code::{self, JitCode, JitCodes, is_file};
use super::mapped_file::MappedFile;
use super::owner::Owner;
use super::process_files::{FoundFile, ProcessFiles};
use super::recent_files::RecentFiles;
use super::recorded_files::{MappedObject, RecordedFiles};
use super::shared_room::SharedRoom;
use crate::budget::Budget;
use crate::perf::files::FileShare;
use crate::perf::ring_buffer::PAGE;
use crate::procfs;
use crate::system;
use crate::usage::{Aside, aside};

/// Open images from which on unmapped ones are closed. A busy desktop has some 500 libraries mapped in all its
/// processes.
const SWEEP_AT: usize = 256;
/// Bytes that an image takes beside its name, in both of ccsd's threads; see [`Budget::images`].
const IMAGE_BYTES: usize = 512;
/// Bytes that the headers of an open file take as a rule, and twice as much. Only what is beyond that is counted.
const USUAL_HEADERS: usize = 8 << 10;

/// Total wait of a session for workers of other users' files: most mappings are then known before the first sample.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same of each image afterwards. What is not known then is awaited, and samples go on.
const MAX_OPEN: Duration = Duration::from_millis(20);

/// Files left for other uses than images: /proc and the profile. An eighth of small limits.
const FILES_LEFT: u64 = 64;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ImageFile {
    Known(FileKey),
    /// A file that could not be opened, or a region in brackets.
    Name(String),
}

impl ImageFile {
    fn key(&self) -> Option<&FileKey> {
        match self {
            ImageFile::Known(key) => Some(key),
            ImageFile::Name(_) => None,
        }
    }
}

/// What an image is, and who shows it; see [`MappedImage::shown_by`].
type ImageIdentity = (ImageFile, Option<Principal>);

/// What the images have counted, absolute values since the session began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageStats {
    /// Mappings whose image found no room, and images whose headers found none.
    pub left_out: u64,
    /// Times that the file of an image was not kept open, because there were too many.
    pub without_file: u64,
    /// Images that could not be read when they were first seen, because the symbol worker was down.
    pub unread: u64,
}

/// All images of a session.
#[derive(Debug)]
pub struct Images {
    list: Vec<MappedImage>,
    by_key: HashMap<ImageIdentity, ImageIndex>,
    /// How many have an open file, and from how many on to look for those that need none.
    open: usize,
    sweep_at: usize,
    closed: HashSet<ImageIndex>,
    reopened: Vec<ImageIndex>,
    /// See [`Images::take_paid`].
    paid: Vec<ImageIndex>,
    /// Bytes of the list, about. Later files of a program that maps new ones without end are `[unknown]`.
    bytes: SharedRoom,
    /// Images that the profile has room for, of users other than the session's own.
    count: SharedRoom,
    /// Open files.
    files: SharedRoom,
    /// The number that the file of an image may not have, because there are too many then.
    most_files: u64,
    share: Option<Arc<dyn FileShare>>,
    /// What processes have mapped is asked there.
    pub process_files: ProcessFiles,
    awaited: AwaitedImages,
    patience: Duration,
    stats: ImageStats,
    recent: RecentFiles,
    has_go: bool,
    recorded: Option<RecordedFiles>,
    /// The code that processes generate.
    pub jit: JitCodes,
}

impl Default for Images {
    fn default() -> Self {
        Images::within(Budget::default().images)
    }
}

impl Images {
    /// Empty, with a limit on images whose names have usual lengths.
    pub fn within(images: usize) -> Self {
        let special = |name: &str| MappedImage::new(name, None, Principal::Own);
        let most_files = files_for_images(system::file_limit());
        Images {
            list: vec![special("[unknown]"), special("[kernel]")],
            by_key: HashMap::new(),
            open: 0,
            sweep_at: SWEEP_AT,
            closed: HashSet::new(),
            reopened: Vec::new(),
            paid: Vec::new(),
            bytes: SharedRoom::new(images.saturating_mul(2 * IMAGE_BYTES) as u64),
            // A profile has room for half as many as the list; see `Budget`.
            count: SharedRoom::new((images / 2) as u64),
            files: SharedRoom::new(most_files),
            most_files,
            share: None,
            process_files: ProcessFiles::default(),
            awaited: AwaitedImages::default(),
            patience: PATIENCE,
            stats: ImageStats::default(),
            recent: RecentFiles::default(),
            has_go: false,
            recorded: None,
            jit: JitCodes::default(),
        }
    }
}

impl Images {
    /// Whether a program or library of Go has been among them.
    #[must_use]
    pub fn has_go(&self) -> bool {
        self.has_go
    }

    /// The same for a session in which only this user's processes are followed, if it is one's in particular.
    #[must_use]
    pub fn of(self, owner: Option<Owner>) -> Images {
        let mut images = Images { process_files: ProcessFiles::of(owner), ..self };
        if let Some(owner) = owner {
            for room in [&mut images.bytes, &mut images.count, &mut images.files] {
                room.set_user(owner.uid);
            }
        }
        images
    }

    /// The same where no samples wait while processes are looked at.
    #[must_use]
    pub fn patient(self) -> Images {
        Images { process_files: self.process_files.patient(), ..self }
    }

    /// The same for a recording.
    #[must_use]
    pub fn with_recorded_files(self, files: RecordedFiles) -> Images {
        Images { recorded: Some(files), ..self }
    }

    /// What a recording knows of its files.
    pub fn recorded(&mut self) -> Option<&mut RecordedFiles> {
        self.recorded.as_mut()
    }

    /// Through which all files are opened.
    pub fn door(&self) -> &Door {
        self.process_files.door()
    }

    /// What has been counted.
    pub fn stats(&self) -> ImageStats {
        self.stats
    }

    fn take_room(&mut self, payer: Principal, bytes: usize) -> bool {
        let is_other = self.count.is_other(payer);
        let fits = (!is_other || self.count.has(payer, 1)) && self.bytes.take(payer, bytes as u64);
        if fits && is_other {
            self.count.add(payer, 1);
        }
        self.stats.left_out += u64::from(!fits);
        fits
    }

    /// Name of the images that anonymous executable memory is: code generated at run time.
    pub const ANONYMOUS: &'static str = "[anon]";

    fn find_or_open(&mut self, mapped: MappedFile<'_>) -> ImageIndex {
        match mapped.path {
            b"[vdso]" => self.vdso(),
            _ => {
                let recent = &self.recent;
                let find = |files: &ProcessFiles| recent.image(&mapped, || files.other_user(mapped.pid));
                if let Some(index) = self.process_files.find_within_time(mapped.pid, find) {
                    self.pay(index, mapped.pid);
                    if !self.closed.contains(&index) {
                        return index;
                    }
                }
                aside(Aside::Images, || self.open_file(mapped))
            }
        }
    }

    fn open_file(&mut self, mapped: MappedFile<'_>) -> ImageIndex {
        let name = mapped.name();
        if !is_file(mapped.inode, mapped.path) {
            return self.by_name(&name);
        }
        // Before its file is opened: the process may end meanwhile.
        let user = self.process_files.other_user(mapped.pid);
        let found = self.process_files.open(mapped, user);
        let shown_by = match &found {
            Some(found) => self.shown_by(&mapped, user, &found.key, &name),
            None => self.process_files.shown_by(&mapped, user, None, Principal::Own),
        };
        let may_keep = |found: &FoundFile| self.may_keep(&found.file, payer(mapped.pid, Some(&found.key)));
        let Some(FoundFile { key, file, namespace }) = found.filter(may_keep) else {
            let identity = (ImageFile::Name(name.clone()), shown_by);
            return self.intern(identity, &name, mapped.pid, || OpenedImage::NoImage);
        };
        // Whether a file that others serve is still the same may take them for ever to say, as may closing it.
        let kept = if key.is_remote() { None } else { file.try_clone().ok().filter(|file| self.has_number(file)) };
        let index = self.open_key(&name, mapped.pid, &key, shown_by, file);
        if let Some(file) = kept.filter(|_| index != ImageIndex::UNKNOWN) {
            let shown_to = user.filter(|_| shown_by.is_some());
            if shown_to == shown_by {
                let found = FoundFile { key, file, namespace };
                self.recent.keep(&mapped, found, index, (user, shown_to));
            }
        }
        index
    }

    /// As [`ProcessFiles::shown_by`], which is asked where this machine is not known to have the file at this path.
    fn shown_by(
        &mut self,
        mapped: &MappedFile<'_>,
        user: Option<Principal>,
        key: &FileKey,
        name: &str,
    ) -> Option<Principal> {
        let of_machine = self.by_key.get(&(ImageFile::Known(key.clone()), None));
        let is_known = of_machine.and_then(|&index| self.get(index)).is_some_and(|image| image.name == name);
        if is_known {
            return None;
        }
        self.process_files.shown_by(mapped, user, Some(key), payer(mapped.pid, Some(key)))
    }

    /// The image of what a process maps; its generated code, if that is what it is, goes to `code`.
    pub fn open_mapping(
        &mut self,
        code: &mut Option<Arc<JitCode>>,
        start_time: u64,
        mapped: MappedFile<'_>,
    ) -> ImageIndex {
        if let Some(files) = &mut self.recorded {
            let found = files.find(mapped);
            return self.find_recorded(mapped, found);
        }
        let mut own = |images: &mut Images| {
            let (list, bytes) = (&mut images.list, &mut images.bytes);
            let add = || {
                let payer = payer(mapped.pid, None);
                bytes.take(payer, IMAGE_BYTES as u64).then(|| Images::add_anonymous(list, payer))
            };
            images.jit.own(code, mapped.pid, start_time, &mut images.process_files, add)
        };
        if jit_code::is_dump(mapped.path)
            && let Some(FoundFile { file, .. }) =
                self.process_files.open(mapped, self.process_files.other_user(mapped.pid))
            && let Some(index) = own(self)
        {
            self.jit.add_dump(index, file);
            return index;
        }
        if jit_code::is_anonymous(mapped.path) {
            return own(self).unwrap_or_else(|| self.anonymous());
        }
        let index = self.find_or_open(mapped);
        let is_elf = self.get(index).is_some_and(|image| image.elf.is_some()) || self.awaited.contains(index);
        match jit_code::is_memory_file(mapped.path) && !is_elf {
            true => own(self).unwrap_or(index),
            false => index,
        }
    }

    fn find_recorded(&mut self, mapped: MappedFile<'_>, found: MappedObject) -> ImageIndex {
        let index = match found {
            MappedObject::Known(index) => return index,
            MappedObject::Anonymous => return self.anonymous(),
            MappedObject::Vdso => return self.vdso(),
            MappedObject::Name(name) => return self.by_name(&name),
            MappedObject::Changed(name) => self.by_name(&name),
            MappedObject::File(name, file) => self.add_opened(&name, file),
        };
        if let Some(files) = &mut self.recorded {
            files.keep(mapped, index);
        }
        index
    }

    /// Whether the file of an image may stay open: a new file has the lowest number that is free.
    fn may_keep(&mut self, file: &File, payer: Principal) -> bool {
        let may = self.has_number(file) && self.has_share() && self.files.has(payer, 1);
        self.stats.without_file += u64::from(!may);
        may
    }

    fn has_number(&self, file: &File) -> bool {
        u64::try_from(file.as_raw_fd()).is_ok_and(|number| number < self.most_files)
    }

    /// Bounds the files from now on.
    pub fn share_files(&mut self, share: Arc<dyn FileShare>) {
        self.share = Some(share);
    }

    fn has_share(&self) -> bool {
        self.tell_share();
        self.share.as_ref().is_none_or(|share| share.room() > 0)
    }

    fn tell_share(&self) {
        if let Some(share) = &self.share {
            share.set_images((self.open + self.awaited.len()) as u64);
        }
    }

    /// To be called now and then: closes the files of images that are not mapped any more.
    pub fn forget_recent(&mut self) {
        self.recent.clear();
    }

    fn anonymous(&mut self) -> ImageIndex {
        self.by_name(Self::ANONYMOUS)
    }

    /// A new image for one process's generated code.
    fn add_anonymous(list: &mut Vec<MappedImage>, payer: Principal) -> ImageIndex {
        list.push(MappedImage::new(Self::ANONYMOUS, None, payer));
        ImageIndex(list.len() as u32 - 1)
    }

    /// The image in a file that is open already.
    pub fn add_opened(&mut self, name: &str, file: File) -> ImageIndex {
        match ccsd_worker::file_key(&file, None) {
            Ok(key) => self.open_key(name, 0, &key, None, file),
            Err(_) => self.by_name(name),
        }
    }

    fn open_key(&mut self, name: &str, pid: u32, key: &FileKey, shown_by: Option<Principal>, file: File) -> ImageIndex {
        let (left, began) = (self.patience, Instant::now());
        let patience = left.max(MAX_OPEN);
        let identity = (ImageFile::Known(key.clone()), shown_by);
        let index = self.intern(identity, name, pid, || ccsd_worker::open(file, key, patience));
        self.patience = left.saturating_sub(began.elapsed());
        index
    }

    /// An image of which no more is known than its name.
    pub fn by_name(&mut self, name: &str) -> ImageIndex {
        self.intern((ImageFile::Name(name.to_owned()), None), name, 0, || OpenedImage::NoImage)
    }

    /// The code that the kernel maps into every process, in no file.
    pub fn vdso(&mut self) -> ImageIndex {
        let open = || in_memory(procfs::vdso_bytes().ok().and_then(|bytes| ElfFile::from_bytes(bytes).ok()));
        self.intern((ImageFile::Name("[vdso]".to_owned()), None), "[vdso]", 0, open)
    }

    fn intern(
        &mut self,
        identity: ImageIdentity,
        name: &str,
        pid: u32,
        open: impl FnOnce() -> OpenedImage,
    ) -> ImageIndex {
        if let Some(&index) = self.by_key.get(&identity) {
            self.pay(index, pid);
            if self.closed.remove(&index) {
                let has_room = self.enter(index, pid, open());
                if !has_room {
                    // Its addresses would be offsets in the file, and those that are known are not. Perhaps the next time.
                    self.closed.insert(index);
                    return ImageIndex::UNKNOWN;
                }
            }
            return index;
        }
        let key = identity.0.key();
        let payer = payer(pid, key);
        // The name is in both threads, and where there is no file it is the key, too.
        if !self.take_room(payer, IMAGE_BYTES + 3 * name.len()) {
            return ImageIndex::UNKNOWN;
        }
        let index = ImageIndex(self.list.len() as u32);
        let opened = open();
        self.list.push(MappedImage { shown_by: identity.1, ..MappedImage::new(name, key.cloned(), payer) });
        self.by_key.insert(identity, index);
        self.enter(index, pid, opened);
        self.reopened.pop_if(|reopened| *reopened == index);
        index
    }

    /// A process maps a known image. If another user was the first to map it, he pays no more once somebody else does: what he
    /// has left of his shares does not matter to its names and stacks then.
    fn pay(&mut self, index: ImageIndex, pid: u32) {
        let Some(image) = self.list.get_mut(index.0 as usize) else { return };
        let before = image.payer;
        if !self.count.is_other(before) {
            return;
        }
        let mapper = payer(pid, image.key.as_ref());
        if mapper == before || mapper == Principal::SOMEWHERE {
            return;
        }
        let is_first = before == Principal::SOMEWHERE;
        let now = if is_first || !self.count.is_other(mapper) { mapper } else { Principal::Own };
        image.payer = now;
        let mut bytes = (IMAGE_BYTES + 3 * image.name.len()) as u64;
        if let Some(elf) = &image.elf {
            bytes += unusual_bytes(elf);
            self.files.give(before, 1);
            self.files.add(now, 1);
        } else if image.key.is_some() && !self.awaited.contains(index) {
            // Its headers found no room.
            self.closed.insert(index);
        }
        self.bytes.give(before, bytes);
        self.bytes.add(now, bytes);
        self.count.give(before, 1);
        if self.count.is_other(now) {
            self.count.add(now, 1);
        }
        self.paid.push(index);
        self.reopened.push(index);
    }

    /// Images for which another user paid until now.
    pub fn take_paid(&mut self) -> Vec<ImageIndex> {
        std::mem::take(&mut self.paid)
    }

    /// Sets the file of an image; an old image is reported as reopened. False if what is read of it does not fit.
    fn enter(&mut self, index: ImageIndex, pid: u32, opened: OpenedImage) -> bool {
        let Some(image) = self.list.get_mut(index.0 as usize) else { return false };
        match opened {
            OpenedImage::Image(elf) => {
                if !self.bytes.take(image.payer, unusual_bytes(&elf)) {
                    self.stats.left_out += 1;
                    return false;
                }
                self.files.add(image.payer, 1);
                self.has_go |= elf.is_go();
                (image.debug, image.debug_user) = self.process_files.debug_files(pid, image, &elf);
                image.elf = Some(elf);
                self.open += 1;
                self.reopened.push(index);
            }
            OpenedImage::NoImage => {}
            OpenedImage::NotNow(file) => {
                self.stats.unread += 1;
                if let Some(key) = image.key.clone() {
                    self.awaited.add(AwaitedImage { index, file, key, pid });
                }
            }
        }
        true
    }

    /// Retries what could not be asked. Returns the images known now: addresses in them change (see
    /// [`Images::to_svma`]).
    pub fn retry(&mut self) -> Vec<ImageIndex> {
        let mut found = Vec::new();
        for (index, pid, opened) in self.awaited.retry() {
            found.extend(matches!(opened, OpenedImage::Image(_)).then_some(index));
            self.enter(index, pid, opened);
        }
        found
    }

    /// Whether some image waits for [`Images::retry`].
    pub fn is_awaiting(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// If many files are open, closes those of images that are not `mapped`, and returns them. They keep their index
    /// and are reopened when mapped.
    pub fn sweep(&mut self, mapped: impl FnOnce() -> HashSet<ImageIndex>) -> Option<Vec<ImageIndex>> {
        if self.open < self.sweep_at {
            return None;
        }
        let mapped = mapped();
        self.recent.clear();
        let mut gone = Vec::new();
        for (position, image) in self.list.iter_mut().enumerate() {
            let index = ImageIndex(position as u32);
            if let Some(elf) = image.elf.take_if(|_| !mapped.contains(&index)) {
                self.bytes.give(image.payer, unusual_bytes(&elf));
                self.files.give(image.payer, 1);
                image.debug = DebugFileFinder::none();
                self.closed.insert(index);
                gone.push(index);
            }
        }
        self.open -= gone.len();
        self.tell_share();
        // If most are in use, looking again soon would find nothing.
        self.sweep_at = SWEEP_AT.max(2 * self.open);
        Some(gone)
    }

    /// The images that were opened again since the last call.
    pub fn take_reopened(&mut self) -> Vec<ImageIndex> {
        std::mem::take(&mut self.reopened)
    }

    /// One image.
    pub fn get(&self, index: ImageIndex) -> Option<&MappedImage> {
        self.list.get(index.0 as usize)
    }

    /// Enters an image that is in no file.
    #[cfg(test)]
    pub fn insert_for_test(&mut self, elf: ElfFile) -> ImageIndex {
        let name = format!("test-{}", self.list.len());
        self.intern((ImageFile::Name(name.clone()), None), &name, 0, || in_memory(Some(elf)))
    }

    /// How many there are, the two special ones included.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// Whether addresses of an image are offsets in its file: its headers are not read.
    pub fn has_offsets(&self, index: ImageIndex) -> bool {
        self.get(index).is_some_and(|image| image.elf.is_none() && !image.name.starts_with('['))
    }

    /// The offset from a mapping's address to the image's SVMA, wrapping. Without readable ELF headers the "SVMA" is
    /// the file offset; without a file, the address.
    pub fn to_svma(&self, index: ImageIndex, start: u64, file_offset: u64) -> u64 {
        let Some(image) = self.get(index) else { return 0 };
        match &image.elf {
            Some(elf) => svma_of_mapping(elf, file_offset).wrapping_sub(start),
            None if image.name.starts_with('[') => 0,
            None => file_offset.wrapping_sub(start),
        }
    }
}

/// Who pays for the room of what a process maps: the file's owner, if that is a user, else the user of the process.
fn payer(pid: u32, key: Option<&FileKey>) -> Principal {
    match key.map(FileKey::principal) {
        Some(user @ Principal::User(_)) => user,
        owner if pid == 0 => owner.unwrap_or_default(),
        owner => match ccsd_worker::principal_of_process(pid, procfs::user_of_process(pid)) {
            // A container, which the file may tell from others.
            Principal::SOMEWHERE => owner.filter(|owner| *owner != Principal::Own).unwrap_or(Principal::SOMEWHERE),
            user => user,
        },
    }
}

/// Bytes of an open file's headers beyond the usual: very many sections, long names, or unwind information.
fn unusual_bytes(elf: &ElfFile) -> u64 {
    elf.held_bytes().saturating_sub(USUAL_HEADERS) as u64
}

/// Number of open files from which on files of images are closed, for a limit on open files.
fn files_for_images(limit: u64) -> u64 {
    limit.saturating_sub(FILES_LEFT.min(limit / 8))
}

fn in_memory(elf: Option<ElfFile>) -> OpenedImage {
    elf.map_or(OpenedImage::NoImage, |elf| OpenedImage::Image(Arc::new(elf)))
}

/// The SVMA of an executable mapping's first byte. The mapping's page may also hold the end of the segment before
/// (lld); `ElfFile::svma_of_file_offset` would name that one.
fn svma_of_mapping(elf: &ElfFile, file_offset: u64) -> u64 {
    let segment = elf.segments().iter().filter(|segment| segment.executable).find(|segment| {
        let first = segment.file_offset & !(PAGE as u64 - 1);
        first <= file_offset && file_offset < segment.file_offset.saturating_add(segment.file_size)
    });
    match segment {
        Some(segment) => segment.svma.wrapping_add(file_offset.wrapping_sub(segment.file_offset)),
        None => elf.svma_of_file_offset(file_offset).unwrap_or(file_offset),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_left_for_others_than_images() {
        assert_eq!([0, 100, 1_024, u64::MAX].map(files_for_images), [0, 88, 960, u64::MAX - FILES_LEFT]);
        let mut images = Images { most_files: 0, ..Images::default() };
        let exe = std::env::current_exe().unwrap();
        let file = File::open(&exe).unwrap();
        assert!(!images.may_keep(&file, Principal::Own) && images.stats().without_file == 1);
        images.most_files = 1 << 20;
        assert!(images.may_keep(&file, Principal::Own) && images.stats().without_file == 1);
        images.files = SharedRoom::new(1);
        assert!(!images.may_keep(&file, Principal::User(1)) && images.stats().without_file == 2);
    }

    #[test]
    fn images_beyond_the_budget_are_unknown_and_counted() {
        let mut images = Images::within(8);
        let found: Vec<ImageIndex> = (0..100).map(|i| images.by_name(&format!("/usr/lib/lib{i:04}.so"))).collect();
        let known = found.iter().filter(|&&index| index != ImageIndex::UNKNOWN).count();
        // 8 KiB, of which each takes 512 bytes and three times its name.
        assert_eq!((known, images.count(), images.stats().left_out), (14, 16, 86));
        // Those that are known stay so, and cost nothing more.
        assert_eq!((images.by_name("/usr/lib/lib0003.so"), images.stats().left_out), (found[3], 86));
        // A long name takes more room.
        let mut images = Images::within(8);
        assert_eq!(images.by_name(&"x".repeat(4096)), ImageIndex::UNKNOWN);
        assert_ne!(images.by_name("short"), ImageIndex::UNKNOWN);
    }

    #[test]
    fn images_of_a_user_leave_room_in_the_profile() {
        let mut images = Images::within(1024);
        let mut fill = |payer| (0..700).filter(|_| images.take_room(payer, 1)).count();
        // The profile has room for 512.
        assert_eq!((fill(Principal::User(1)), fill(Principal::User(2)), fill(Principal::Own)), (224, 112, 700));
        assert_eq!(images.stats().left_out, 700 - 224 + 700 - 112);
    }

    #[test]
    fn who_maps_a_file_first_pays_until_others_do() {
        let mut images = Images::within(64);
        let user = Principal::User(7);
        let index = images.by_name("/usr/lib/x");
        let bytes = (IMAGE_BYTES + 3 * "/usr/lib/x".len()) as u64;
        let before = [images.bytes.left(user), images.count.left(user)];
        images.list[index.0 as usize].payer = user;
        images.bytes.give(Principal::Own, bytes);
        images.bytes.add(user, bytes);
        images.count.add(user, 1);
        for paid in [vec![index], Vec::new()] {
            images.pay(index, std::process::id());
            assert_eq!(images.take_paid(), paid);
            assert!(images.get(index).is_some_and(|image| image.payer != user));
            assert_eq!([images.bytes.left(user), images.count.left(user)], before);
        }
        assert_eq!(images.take_reopened(), [index]);
        // A process that has ended may have been anybody's.
        images.list[index.0 as usize].payer = user;
        images.pay(index, u32::MAX);
        assert!(images.take_paid().is_empty());
    }

    fn with_sections(count: u16) -> ElfFile {
        let mut bytes = vec![0; 64 + 64 * usize::from(count)];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, b"\x7fELF\x02\x01\x01");
        put(16, &[3, 0, 62, 0]);
        put(40, &64u64.to_le_bytes());
        put(58, &64u16.to_le_bytes());
        put(60, &count.to_le_bytes());
        ElfFile::from_bytes(bytes).unwrap()
    }

    #[test]
    fn an_image_without_room_when_mapped_again_is_unknown() {
        let unusual = unusual_bytes(&with_sections(1000));
        // Room for the headers of one.
        let mut images = Images::within(unusual as usize / 1024 + 4);
        let map = |images: &mut Images, name: &str| {
            let opened = || OpenedImage::Image(Arc::new(with_sections(1000)));
            images.intern((ImageFile::Name(name.to_owned()), None), name, 0, opened)
        };
        let first = map(&mut images, "a");
        images.sweep_at = 0;
        assert_eq!(images.sweep(HashSet::new), Some(vec![first]));
        let second = map(&mut images, "b");
        // Its functions are known by their addresses, and what could be told now are places in the file.
        assert_eq!((map(&mut images, "a"), images.stats().left_out), (ImageIndex::UNKNOWN, 1));
        images.sweep_at = 0;
        assert_eq!(images.sweep(HashSet::new), Some(vec![second]));
        assert_eq!((map(&mut images, "a"), images.stats().left_out), (first, 1));
        assert!(images.get(first).is_some_and(|image| image.elf.is_some()));
    }

    #[test]
    fn headers_beyond_what_is_usual_count() {
        let unusual = unusual_bytes(&with_sections(1000));
        assert!(unusual > 32 << 10 && unusual_bytes(&with_sections(50)) == 0, "{unusual}");
        // Room for those of three.
        let mut images = Images::within(4 * unusual as usize / 1024);
        let mut insert = |count| {
            let index = images.insert_for_test(with_sections(count));
            (images.get(index).is_some_and(|image| image.elf.is_some()), images.stats().left_out)
        };
        let found: Vec<_> = (0..5).map(|_| insert(1000)).collect();
        assert_eq!(found, [(true, 0), (true, 0), (true, 0), (false, 1), (false, 2)]);
        assert_eq!(insert(50), (true, 2));
        images.sweep_at = 0;
        assert_eq!(images.sweep(HashSet::new).map_or(0, |gone| gone.len()), 4);
        let index = images.insert_for_test(with_sections(1000));
        assert!(images.get(index).is_some_and(|image| image.elf.is_some()) && images.stats().left_out == 2);
    }
}
