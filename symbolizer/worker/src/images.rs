//! The worker's images: what is known of each is shared by all that ask.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ccsd_symbolizer::{DebugFileFinder, ElfFile, Function, OpenFiles, Symbols};
use hashbrown::HashMap;

use crate::message::ImageKey;

/// Bytes of symbols and debug information kept for all images together. That of `rustc` is some 200 MiB.
const MAX_SYMBOL_BYTES: u64 = 256 << 20;
/// The same where it is one image that takes more. Its debug sections may be as large.
const MAX_IMAGE_SYMBOL_BYTES: u64 = 768 << 20;
/// An image of this many bytes, debug files included, is read while no other such one is. Compressed debug information takes
/// some five times its bytes, so that what six threads read at once, and what is kept, is within what the process may take.
const LARGE: u64 = 8 << 20;
/// Images known at once. Each has a file open, or a few.
const MAX_IMAGES: usize = 512;
/// Images that nobody has asked for in so long are forgotten.
const MAX_AGE: Duration = Duration::from_secs(300);
/// After how many addresses it is looked at again how much an image holds: adding up takes about as long as ten of them.
const ADDRESSES_PER_LOOK: u64 = 512;

/// Whoever asks, from the worker's side.
pub trait Asker: OpenFiles {
    /// The file of the image that the question is about.
    fn image_file(&self) -> Option<File>;
}

/// One image at a time may be a large one that is being read: so much memory for all is not there.
#[derive(Debug, Default)]
struct Gate {
    busy: Mutex<bool>,
    left: Condvar,
}

impl Gate {
    fn enter(&self) {
        let mut busy = lock(&self.busy);
        while *busy {
            busy = self.left.wait(busy).unwrap_or_else(PoisonError::into_inner);
        }
        *busy = true;
    }

    fn leave(&self) {
        *lock(&self.busy) = false;
        self.left.notify_one();
    }
}

/// The question about an image that is being answered: opens debug files through whoever asks. It waits for the [`Gate`] where
/// that makes the image a large one.
#[derive(Debug)]
struct Current {
    asker: Mutex<Option<Arc<dyn OpenFiles>>>,
    gate: Arc<Gate>,
    /// Bytes of the image and of its debug files so far.
    bytes: AtomicU64,
    inside: AtomicBool,
}

impl Current {
    fn new(gate: Arc<Gate>) -> Current {
        Current { asker: Mutex::default(), gate, bytes: AtomicU64::new(0), inside: AtomicBool::new(false) }
    }

    /// Begins a question. The image's state is locked, so that there is one at a time; and whoever is inside the gate waits for
    /// no other state.
    fn begin(&self, asker: Arc<dyn OpenFiles>, bytes: u64) {
        *lock(&self.asker) = Some(asker);
        self.grow(bytes.saturating_sub(self.bytes.load(Ordering::Relaxed)));
    }

    /// Ends it. What is held stays, and what is known of its size.
    fn end(&self) {
        *lock(&self.asker) = None;
        if self.inside.swap(false, Ordering::Relaxed) {
            self.gate.leave();
        }
    }

    fn grow(&self, bytes: u64) {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) >= LARGE && !self.inside.swap(true, Ordering::Relaxed) {
            self.gate.enter();
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
    /// Milliseconds since the table was made.
    used: AtomicU64,
    held: AtomicU64,
}

#[derive(Debug)]
struct ImageState {
    current: Arc<Current>,
    symbols: Option<Symbols>,
    /// Why there are none.
    failed: Option<String>,
    until_look: u64,
}

/// All images that are known.
#[derive(Debug)]
pub struct Images {
    entries: Mutex<HashMap<ImageKey, Arc<ImageEntry>>>,
    gate: Arc<Gate>,
    began: Instant,
}

impl Default for Images {
    fn default() -> Images {
        Images { entries: Mutex::default(), gate: Arc::default(), began: Instant::now() }
    }
}

impl Images {
    /// The functions at each of these addresses of an image, and all that there is to be said of the image. `None` if whoever
    /// asks does not give its file.
    pub fn functions<A: Asker + 'static>(
        &self,
        key: &ImageKey,
        addresses: &[u64],
        asker: &Arc<A>,
    ) -> Option<(Vec<Vec<Function>>, Vec<String>)> {
        let entry = Arc::clone(lock(&self.entries).entry(key.clone()).or_insert_with(|| self.new_entry()));
        entry.used.store(self.now(), Ordering::Relaxed);
        let answer = {
            let mut state = lock(&entry.state);
            let opener: Arc<dyn OpenFiles> = Arc::<A>::clone(asker);
            let current = Arc::clone(&state.current);
            current.begin(opener, key.file.size());
            let answer = state.functions(key, addresses, &**asker);
            current.end();
            if let (0, Some(symbols)) = (state.until_look, &state.symbols) {
                entry.held.store(symbols.held_bytes(), Ordering::Relaxed);
                state.until_look = ADDRESSES_PER_LOOK;
            }
            answer
        };
        self.bound(&entry);
        answer
    }

    fn new_entry(&self) -> Arc<ImageEntry> {
        let current = Arc::new(Current::new(Arc::clone(&self.gate)));
        let state = ImageState { current, symbols: None, failed: None, until_look: 0 };
        Arc::new(ImageEntry { state: Mutex::new(state), used: AtomicU64::new(0), held: AtomicU64::new(0) })
    }

    /// Forgets what has not been asked for in a long time.
    pub fn forget_old(&self) {
        let since = self.now().saturating_sub(MAX_AGE.as_millis() as u64);
        lock(&self.entries).retain(|_, entry| entry.used.load(Ordering::Relaxed) >= since);
    }

    /// Keeps all within their bounds, by forgetting first what has not been asked for longest. (Whoever is being answered
    /// from it keeps it until then.)
    fn bound(&self, just_used: &Arc<ImageEntry>) {
        let mut entries = lock(&self.entries);
        let held = |entry: &Arc<ImageEntry>| entry.held.load(Ordering::Relaxed);
        let mut total: u64 = entries.values().map(held).sum();
        while total > MAX_SYMBOL_BYTES || entries.len() > MAX_IMAGES {
            let others = entries.iter().filter(|(_, entry)| !Arc::ptr_eq(entry, just_used));
            let oldest = others.min_by_key(|(_, entry)| entry.used.load(Ordering::Relaxed));
            let Some(key) = oldest.map(|(key, _)| key.clone()) else {
                // The only one would be read again at once.
                if total > MAX_IMAGE_SYMBOL_BYTES {
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
                    self.symbols = Some(Symbols::new(Arc::new(elf), finder));
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
    // A thread that panics ends the process.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::message::FileKey;

    #[derive(Debug, Default)]
    struct Own(AtomicU64);

    impl OpenFiles for Own {
        fn open(&self, _: &Path) -> Vec<File> {
            Vec::new()
        }
    }

    impl Asker for Own {
        fn image_file(&self) -> Option<File> {
            self.0.fetch_add(1, Ordering::Relaxed);
            File::open(std::env::current_exe().unwrap()).ok()
        }
    }

    fn key(view: u64) -> ImageKey {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        ImageKey { file: FileKey::of(&file).unwrap(), path: None, view, user: None }
    }

    #[test]
    fn an_image_is_read_once_for_all() {
        let (images, one, other) = (Images::default(), Arc::new(Own::default()), Arc::new(Own::default()));
        let elf = ElfFile::open(one.image_file().unwrap()).unwrap();
        let mut expected = Vec::new();
        Symbols::new(Arc::new(elf), DebugFileFinder::none()).resolve(address(), &mut expected);
        assert!(!expected.is_empty());
        for asker in [&one, &other] {
            let (all, _) = images.functions(&key(0), &[address(), 1], asker).unwrap();
            assert_eq!(all, [expected.clone(), vec![]]);
        }
        assert_eq!((one.0.load(Ordering::Relaxed), other.0.load(Ordering::Relaxed)), (2, 0));
        // In another view its debug files may be others.
        images.functions(&key(1), &[1], &other).unwrap();
        assert_eq!(other.0.load(Ordering::Relaxed), 1);
        assert!(lock(&images.entries).values().all(|entry| entry.held.load(Ordering::Relaxed) > 0));
    }

    /// Where something of this program is.
    fn address() -> u64 {
        ElfFile::open(File::open(std::env::current_exe().unwrap()).unwrap()).unwrap().entry()
    }

    /// Gives files of a size, and tells how many questions were answered at once.
    #[derive(Debug, Default)]
    struct Large {
        now: Arc<AtomicU64>,
        most: Arc<AtomicU64>,
        bytes: u64,
    }

    impl OpenFiles for Large {
        fn open(&self, _: &Path) -> Vec<File> {
            let file = tempfile::tempfile().unwrap();
            file.set_len(self.bytes).unwrap();
            vec![file]
        }
    }

    fn at_once(bytes: u64) -> u64 {
        let (gate, most) = (Arc::new(Gate::default()), Arc::new(AtomicU64::new(0)));
        let now = Arc::new(AtomicU64::new(0));
        let all_there = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let current = Current::new(Arc::clone(&gate));
                    let asker = Large { now: Arc::clone(&now), most: Arc::clone(&most), bytes };
                    let (now, most) = (Arc::clone(&asker.now), Arc::clone(&asker.most));
                    current.begin(Arc::new(asker), 1 << 20);
                    all_there.wait();
                    // It is a debug file that makes it large.
                    assert_eq!(current.open(Path::new("/a")).len(), 1);
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(20));
                    now.fetch_sub(1, Ordering::SeqCst);
                    current.end();
                    // Once known as large, it is from the beginning.
                    current.begin(Arc::new(Large::default()), 1 << 20);
                    assert_eq!(current.inside.load(Ordering::Relaxed), bytes >= LARGE);
                    current.end();
                });
            }
        });
        most.load(Ordering::SeqCst)
    }

    #[test]
    fn of_large_images_one_is_read_at_a_time() {
        assert_eq!(at_once(LARGE), 1);
        // All have begun before one ends, but where there is no CPU for them.
        assert!((0..20).any(|_| at_once(1) > 1));
    }

    #[test]
    fn the_oldest_give_way() {
        let (images, asker) = (Images::default(), Arc::new(Own::default()));
        let count = || lock(&images.entries).len();
        for view in 0..3 {
            images.functions(&key(view), &[], &asker).unwrap();
            lock(&images.entries).get(&key(view)).unwrap().used.store(view, Ordering::Relaxed);
        }
        lock(&images.entries).get(&key(1)).unwrap().held.store(MAX_SYMBOL_BYTES + 1, Ordering::Relaxed);
        images.functions(&key(2), &[], &asker).unwrap();
        // The first two: one is the oldest, the other the one that held too much.
        assert_eq!(count(), 1);
        let only = lock(&images.entries).get(&key(2)).cloned().unwrap();
        only.held.store(MAX_IMAGE_SYMBOL_BYTES, Ordering::Relaxed);
        images.bound(&only);
        assert_eq!(count(), 1, "the only one may hold more");
        images.forget_old();
        assert_eq!(count(), 1);
    }
}
