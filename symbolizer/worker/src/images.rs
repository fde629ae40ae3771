//! The worker's images, shared by all questions.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ccsd_symbolizer::{DebugFileFinder, ElfFile, Function, MemoryGate, OpenFiles, Symbols, allocation};
use hashbrown::HashMap;

use crate::message::ImageKey;

/// Parts of the process's memory. Symbols and debug information of all images together: an eighth. A single image, while
/// it is read and afterwards: a half; less for one that is read beside others. The rest is for the small images that the
/// other threads read meanwhile ([`SMALL_IMAGE_BYTES`](ccsd_symbolizer::limits::SMALL_IMAGE_BYTES) each), answers and stacks.
const ALL_PART: u64 = 8;
const IMAGE_PART: u64 = 2;
/// An image of at least this size, debug files included, is read while no other such image is, like one that takes more
/// memory than a small one.
const LARGE: u64 = 8 << 20;
const MAX_IMAGES: usize = 512;
/// Unused images are forgotten after this time.
const MAX_AGE: Duration = Duration::from_secs(300);
/// Addresses between two measurements of an image's size: one takes as long as about ten addresses.
const ADDRESSES_PER_LOOK: u64 = 512;

/// The client's side of a question.
pub trait Asker: OpenFiles {
    fn image_file(&self) -> Option<File>;

    /// Says that the question begins to wait for others, or goes on.
    fn waits(&self, waits: bool);
}

type Entries = Mutex<HashMap<ImageKey, Arc<ImageEntry>>>;

/// Lets one large image be used at a time, and no other be in memory meanwhile, to bound memory.
#[derive(Debug, Default)]
struct LargeImages {
    busy: Mutex<bool>,
    left: Condvar,
    /// The images that make room for a large one, and what they may keep.
    entries: Weak<Entries>,
    most_beside: u64,
}

impl LargeImages {
    fn enter(&self, asker: &dyn Asker) {
        if !std::mem::replace(&mut *lock(&self.busy), true) {
            return;
        }
        asker.waits(true);
        let busy = self.left.wait_while(lock(&self.busy), |busy| *busy);
        *busy.unwrap_or_else(PoisonError::into_inner) = true;
        asker.waits(false);
    }

    /// Forgets the images that were not used for longest, until there is room for the one of `current`. Who waits
    /// for the turn of a large image holds no entry, and looks for it again.
    fn make_room(&self, current: Option<&Current>) {
        let Some(entries) = self.entries.upgrade() else { return };
        let mut forgotten = Vec::new();
        let mut entries = lock(&entries);
        loop {
            let is_other =
                |entry: &&Arc<ImageEntry>| !current.is_some_and(|it| std::ptr::eq(it, &raw const *entry.current));
            let others = || entries.values().filter(is_other);
            let total: u64 = others().map(|entry| entry.held.load(Ordering::Relaxed)).sum();
            let holding = entries.iter().filter(|(_, entry)| is_other(entry) && entry.held.load(Ordering::Relaxed) > 0);
            let oldest = holding.min_by_key(|(_, entry)| entry.used.load(Ordering::Relaxed));
            let Some(key) = oldest.filter(|_| total > self.most_beside).map(|(key, _)| key.clone()) else { break };
            forgotten.extend(entries.remove(&key));
        }
        drop(entries);
        // Freed without the lock. What this thread frees of others is no room for the image that it reads now.
        for entry in forgotten.into_iter().filter_map(Arc::into_inner) {
            let held = entry.held.load(Ordering::Relaxed);
            drop(entry);
            allocation::allocated(usize::try_from(held).unwrap_or(usize::MAX));
        }
    }

    fn leave(&self) {
        *lock(&self.busy) = false;
        self.left.notify_one();
    }
}

/// The current question about an image: opens debug files through the client. Waits for the [`LargeImages`] when the image
/// becomes large.
#[derive(Debug)]
struct Current {
    asker: Mutex<Option<Arc<dyn Asker>>>,
    gate: Arc<LargeImages>,
    /// Bytes of the image and its debug files so far.
    bytes: AtomicU64,
    inside: AtomicBool,
}

impl Current {
    fn new(gate: Arc<LargeImages>) -> Current {
        Current { asker: Mutex::default(), gate, bytes: AtomicU64::new(0), inside: AtomicBool::new(false) }
    }

    /// Begins a question. The image's state is locked, so there is one question at a time. `is_inside`: the image is known
    /// to be large, and its turn was waited for without the lock. So the holder of the gate waits for no state that somebody
    /// at the gate has locked.
    fn begin(&self, asker: Arc<dyn Asker>, bytes: u64, is_inside: bool) {
        *lock(&self.asker) = Some(asker);
        self.inside.store(is_inside, Ordering::Relaxed);
        self.grow(bytes.saturating_sub(self.bytes.load(Ordering::Relaxed)));
    }

    /// Ends the question. Images and known sizes stay. Whether the image was a large one.
    fn end(&self) -> bool {
        *lock(&self.asker) = None;
        let was_inside = self.inside.swap(false, Ordering::Relaxed);
        if was_inside {
            self.gate.leave();
        }
        was_inside
    }

    fn grow(&self, bytes: u64) {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) >= LARGE {
            self.enter();
        }
    }
}

impl MemoryGate for Current {
    fn enter(&self) {
        let Some(asker) = lock(&self.asker).clone() else { return };
        if !self.inside.swap(true, Ordering::Relaxed) {
            self.gate.enter(&*asker);
            self.gate.make_room(Some(self));
        }
    }
}

impl OpenFiles for Current {
    fn open(&self, path: &Path) -> Vec<File> {
        let asker = lock(&self.asker).clone();
        let files = asker.map_or_else(Vec::new, |asker| asker.open(path));
        self.grow(files.iter().filter_map(|file| file.metadata().ok()).map(|meta| meta.len()).sum());
        files
    }
}

#[derive(Debug)]
struct ImageEntry {
    state: Mutex<ImageState>,
    /// Milliseconds since the table was created.
    used: AtomicU64,
    held: AtomicU64,
    /// Whether it was found to be large. Changes while the state is locked.
    large: AtomicBool,
    current: Arc<Current>,
}

impl ImageEntry {
    fn lock_state(&self, asker: &dyn Asker) -> MutexGuard<'_, ImageState> {
        if let Ok(state) = self.state.try_lock() {
            return state;
        }
        asker.waits(true);
        let state = lock(&self.state);
        asker.waits(false);
        state
    }
}

#[derive(Debug)]
struct ImageState {
    current: Arc<Current>,
    most: u64,
    symbols: Option<Symbols>,
    failed: Option<String>,
    until_look: u64,
}

#[derive(Debug)]
pub struct ImageCache {
    entries: Arc<Entries>,
    gate: Arc<LargeImages>,
    began: Instant,
    memory: u64,
}

impl ImageCache {
    pub fn within(memory: u64) -> ImageCache {
        let entries = Arc::new(Entries::default());
        let gate =
            LargeImages { entries: Arc::downgrade(&entries), most_beside: memory / ALL_PART, ..LargeImages::default() };
        ImageCache { entries, gate: Arc::new(gate), began: Instant::now(), memory }
    }

    /// The functions at each address of an image, and all notes about the image. `None` if the client does not provide
    /// its file.
    pub fn functions<A: Asker + 'static>(
        &self,
        key: &ImageKey,
        addresses: &[u64],
        asker: &Arc<A>,
    ) -> Option<(Vec<Vec<Function>>, Vec<String>)> {
        let (mut entry, mut is_large) = self.enter(key, &**asker);
        let mut state = entry.lock_state(&**asker);
        while !is_large && entry.large.load(Ordering::Relaxed) {
            drop(state);
            drop(entry);
            (entry, is_large) = self.enter(key, &**asker);
            state = entry.lock_state(&**asker);
        }
        let answer = {
            let opener: Arc<dyn Asker> = Arc::<A>::clone(asker);
            let current = Arc::clone(&state.current);
            if is_large {
                self.gate.make_room(Some(&current));
            }
            current.begin(opener, key.file.size(), is_large);
            let answer = state.functions(key, addresses, &**asker);
            if let (0, Some(symbols)) = (state.until_look, &state.symbols) {
                entry.held.store(symbols.held_bytes(), Ordering::Relaxed);
                state.until_look = ADDRESSES_PER_LOOK;
            }
            if current.end() {
                entry.large.store(true, Ordering::Relaxed);
            }
            answer
        };
        drop(state);
        self.bound(&entry);
        answer
    }

    /// The image of a key, and whether this thread has the turn of the large images. A thread that has locked the state of
    /// an image not known to be large may wait for the turn. So no thread that has the turn waits for such a state.
    fn enter(&self, key: &ImageKey, asker: &dyn Asker) -> (Arc<ImageEntry>, bool) {
        let is_large = |entry: &ImageEntry| key.file.size() >= LARGE || entry.large.load(Ordering::Relaxed);
        let entry = self.entry(key);
        if !is_large(&entry) {
            return (entry, false);
        }
        // Not held while waiting, so that it can be forgotten.
        drop(entry);
        self.gate.enter(asker);
        let entry = self.entry(key);
        if is_large(&entry) {
            return (entry, true);
        }
        // It was forgotten meanwhile, and another one made.
        self.gate.leave();
        (entry, false)
    }

    fn entry(&self, key: &ImageKey) -> Arc<ImageEntry> {
        let entry = Arc::clone(lock(&self.entries).entry(key.clone()).or_insert_with(|| self.new_entry()));
        entry.used.store(self.now(), Ordering::Relaxed);
        entry
    }

    fn new_entry(&self) -> Arc<ImageEntry> {
        let current = Arc::new(Current::new(Arc::clone(&self.gate)));
        let most = self.memory / IMAGE_PART;
        let state = ImageState { current: Arc::clone(&current), most, symbols: None, failed: None, until_look: 0 };
        Arc::new(ImageEntry {
            state: Mutex::new(state),
            used: AtomicU64::new(0),
            held: AtomicU64::new(0),
            large: AtomicBool::new(false),
            current,
        })
    }

    pub fn forget_old(&self) {
        let since = self.now().saturating_sub(MAX_AGE.as_millis() as u64);
        lock(&self.entries).retain(|_, entry| entry.used.load(Ordering::Relaxed) >= since);
    }

    /// Enforces the limits by forgetting the least recently used images. (A question being answered keeps its image.)
    fn bound(&self, just_used: &Arc<ImageEntry>) {
        let mut entries = lock(&self.entries);
        let held = |entry: &Arc<ImageEntry>| entry.held.load(Ordering::Relaxed);
        let mut total: u64 = entries.values().map(held).sum();
        while total > self.memory / ALL_PART || entries.len() > MAX_IMAGES {
            let others = entries.iter().filter(|(_, entry)| !Arc::ptr_eq(entry, just_used));
            let oldest = others.min_by_key(|(_, entry)| entry.used.load(Ordering::Relaxed));
            let Some(key) = oldest.map(|(key, _)| key.clone()) else {
                // A single image would be read again at once.
                if total > self.memory / IMAGE_PART {
                    entries.clear();
                }
                return;
            };
            total = total.saturating_sub(entries.remove(&key).as_ref().map_or(0, held));
        }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }
}

impl ImageState {
    fn functions(
        &mut self,
        key: &ImageKey,
        addresses: &[u64],
        asker: &dyn Asker,
    ) -> Option<(Vec<Vec<Function>>, Vec<String>)> {
        if let Some(why) = &self.failed {
            return Some((vec![Vec::new(); addresses.len()], vec![why.clone()]));
        }
        if self.symbols.is_none() {
            match ElfFile::open(asker.image_file()?) {
                Ok(elf) => {
                    let opener: Arc<dyn OpenFiles> = Arc::<Current>::clone(&self.current);
                    let mut finder = DebugFileFinder::through(opener);
                    if let Some(path) = &key.path {
                        finder = finder.image_path(PathBuf::from(std::ffi::OsString::from(text(path))));
                    }
                    let gate: Arc<dyn MemoryGate> = Arc::<Current>::clone(&self.current);
                    self.symbols = Some(Symbols::new(Arc::new(elf), finder).within(self.most).through(gate));
                }
                Err(error) => {
                    self.failed = Some(error.to_string());
                    return self.functions(key, addresses, asker);
                }
            }
        }
        let symbols = self.symbols.as_mut()?;
        let mut all = Vec::with_capacity(addresses.len());
        for &address in addresses {
            let mut functions = Vec::new();
            symbols.resolve(address, &mut functions);
            all.push(functions);
        }
        self.until_look = self.until_look.saturating_sub(addresses.len() as u64);
        Some((all, symbols.notes().to_vec()))
    }
}

fn text(bytes: &[u8]) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(bytes)
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic ends the process.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::message::FileKey;

    const MEMORY: u64 = 768 << 20;

    #[derive(Debug, Default)]
    struct OwnFile(AtomicU64);

    impl OpenFiles for OwnFile {
        fn open(&self, _: &Path) -> Vec<File> {
            Vec::new()
        }
    }

    impl Asker for OwnFile {
        fn image_file(&self) -> Option<File> {
            self.0.fetch_add(1, Ordering::Relaxed);
            File::open(std::env::current_exe().unwrap()).ok()
        }

        fn waits(&self, _: bool) {}
    }

    fn key(view: u64) -> ImageKey {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        ImageKey { file: FileKey::own(&file.metadata().unwrap()), path: None, view, user: None }
    }

    #[test]
    fn an_image_is_read_once_for_all() {
        let (images, one, other) =
            (ImageCache::within(MEMORY), Arc::new(OwnFile::default()), Arc::new(OwnFile::default()));
        let elf = ElfFile::open(one.image_file().unwrap()).unwrap();
        let mut expected = Vec::new();
        Symbols::new(Arc::new(elf), DebugFileFinder::none()).resolve(address(), &mut expected);
        assert!(!expected.is_empty());
        for asker in [&one, &other] {
            let (all, _) = images.functions(&key(0), &[address(), 1], asker).unwrap();
            assert_eq!(all, [expected.clone(), vec![]]);
        }
        assert_eq!((one.0.load(Ordering::Relaxed), other.0.load(Ordering::Relaxed)), (2, 0));
        // Another view may have other debug files.
        images.functions(&key(1), &[1], &other).unwrap();
        assert_eq!(other.0.load(Ordering::Relaxed), 1);
        assert!(lock(&images.entries).values().all(|entry| entry.held.load(Ordering::Relaxed) > 0));
    }

    fn address() -> u64 {
        ElfFile::open(File::open(std::env::current_exe().unwrap()).unwrap()).unwrap().entry()
    }

    /// Provides files of a size, and counts how often it waits and goes on.
    #[derive(Debug, Default)]
    struct Large {
        bytes: u64,
        waits: Arc<AtomicU64>,
        goes_on: Arc<AtomicU64>,
    }

    impl OpenFiles for Large {
        fn open(&self, _: &Path) -> Vec<File> {
            let file = tempfile::tempfile().unwrap();
            file.set_len(self.bytes).unwrap();
            vec![file]
        }
    }

    impl Asker for Large {
        fn image_file(&self) -> Option<File> {
            None
        }

        fn waits(&self, waits: bool) {
            self.waits.fetch_add(u64::from(waits), Ordering::SeqCst);
            self.goes_on.fetch_add(u64::from(!waits), Ordering::SeqCst);
        }
    }

    /// How many are inside at once, and how often one waits.
    fn at_once(bytes: u64) -> (u64, u64) {
        let gate = Arc::new(LargeImages::default());
        let (now, most) = (AtomicU64::new(0), AtomicU64::new(0));
        let (waits, goes_on) = (Arc::default(), Arc::default());
        let all_there = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let current = Current::new(Arc::clone(&gate));
                    let asker = Large { bytes, waits: Arc::clone(&waits), goes_on: Arc::clone(&goes_on) };
                    current.begin(Arc::new(asker), 1 << 20, false);
                    all_there.wait();
                    // The debug file makes the image large.
                    assert_eq!(current.open(Path::new("/a")).len(), 1);
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(20));
                    now.fetch_sub(1, Ordering::SeqCst);
                    current.end();
                    // Once known as large, the image is large from the start.
                    current.begin(Arc::new(Large::default()), 1 << 20, false);
                    assert_eq!(current.inside.load(Ordering::Relaxed), bytes >= LARGE);
                    current.end();
                });
            }
        });
        let waits = waits.load(Ordering::SeqCst);
        assert_eq!(goes_on.load(Ordering::SeqCst), waits);
        (most.load(Ordering::SeqCst), waits)
    }

    #[test]
    fn large_images_are_read_one_at_a_time() {
        // All begin before one ends, unless they get no CPU.
        let large: Vec<_> = (0..20).map(|_| at_once(LARGE)).collect();
        assert!(large.iter().all(|(most, _)| *most == 1) && large.iter().any(|(_, waits)| *waits > 0), "{large:?}");
        assert!((0..20).map(|_| at_once(1)).any(|(most, waits)| most > 1 && waits == 0));
    }

    /// With a large image in memory, another one is not read.
    #[test]
    fn a_large_image_is_alone() {
        let (images, asker) = (ImageCache::within(MEMORY), Arc::new(OwnFile::default()));
        let find = |view| lock(&images.entries).get(&key(view)).cloned();
        images.functions(&key(0), &[], &asker).unwrap();
        let first = find(0).unwrap();
        first.held.store(MEMORY / IMAGE_PART, Ordering::Relaxed);
        // This test's program is a large one.
        assert!(key(1).file.size() >= LARGE && first.large.load(Ordering::Relaxed));
        let first = Arc::downgrade(&{ first });
        #[derive(Debug)]
        struct Looking(std::sync::Weak<ImageEntry>, AtomicBool);
        impl OpenFiles for Looking {
            fn open(&self, _: &Path) -> Vec<File> {
                Vec::new()
            }
        }
        impl Asker for Looking {
            fn image_file(&self) -> Option<File> {
                self.1.store(self.0.upgrade().is_none(), Ordering::Relaxed);
                File::open(std::env::current_exe().unwrap()).ok()
            }

            fn waits(&self, _: bool) {}
        }
        let looking = Arc::new(Looking(first, AtomicBool::new(false)));
        images.functions(&key(1), &[address()], &looking).unwrap();
        assert!(looking.1.load(Ordering::Relaxed) && find(0).is_none() && find(1).is_some());
        // All the same image: none waits for itself.
        let answers: Vec<_> = std::thread::scope(|scope| {
            let ask = || images.functions(&key(1), &[address()], &asker).unwrap().0;
            let threads: Vec<_> = (0..6).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(answers.iter().all(|answer| !answer[0].is_empty()));
    }

    #[test]
    fn the_oldest_give_way() {
        let (images, asker) = (ImageCache::within(MEMORY), Arc::new(OwnFile::default()));
        let count = || lock(&images.entries).len();
        for view in 0..3 {
            images.functions(&key(view), &[], &asker).unwrap();
            lock(&images.entries).get(&key(view)).unwrap().used.store(view, Ordering::Relaxed);
        }
        lock(&images.entries).get(&key(1)).unwrap().held.store(MEMORY / ALL_PART + 1, Ordering::Relaxed);
        images.functions(&key(2), &[], &asker).unwrap();
        // The one that held too much was removed.
        assert_eq!((count(), lock(&images.entries).contains_key(&key(1))), (2, false));
        let only = lock(&images.entries).get(&key(2)).cloned().unwrap();
        only.held.store(MEMORY / IMAGE_PART, Ordering::Relaxed);
        images.bound(&only);
        assert_eq!(count(), 1, "only one may hold more");
        images.forget_old();
        assert_eq!(count(), 1);
    }
}
