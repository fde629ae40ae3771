//! The part of the resolver that asks for the functions of an image's file.
//!
//! With a worker process ([`ccsd_worker`]), each question costs two process switches, so all new frames of a batch in
//! one image are asked for at once.

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ccsd_profile::{Profile, Shed};
use ccsd_symbolizer::{DebugFileFinder, OpenFiles};
use ccsd_worker::{ImageNames, Principal, Told};

use crate::deadline::Deadline;
use crate::process::images::ImageIndex;
use crate::unwind::Frame;

use super::image_symbols::{ImageSymbols, MAX_DROPS};
use super::{Resolver, kernel};

/// A question that takes longer has the image read again, or is one that its file makes slow.
const QUICK: Duration = Duration::from_millis(if cfg!(debug_assertions) { 500 } else { 50 });

/// Debug files whose place another user decides, where this process reads them.
#[derive(Debug)]
struct AskedFiles {
    user: Principal,
    finder: DebugFileFinder,
    deadline: Arc<Mutex<Deadline>>,
}

impl OpenFiles for AskedFiles {
    fn open(&self, path: &Path) -> Vec<File> {
        let (finder, path) = (self.finder.clone(), path.to_owned());
        let mut deadline = self.deadline.lock().unwrap_or_else(PoisonError::into_inner);
        deadline.ask(self.user, move || finder.open_for_other(&path, |_| true)).unwrap_or_default()
    }
}

impl Resolver {
    /// A new batch of samples begins, with these frames among others.
    pub fn begin_batch(&mut self, profile: &mut Profile, frames: &[Frame]) {
        self.batch.answers.clear();
        self.batch.unknown.clear();
        if self.batch.has_dropped || self.batch.asks_together {
            let new =
                frames.iter().filter(|frame| frame.image != ImageIndex::KERNEL && !self.known.contains_key(*frame));
            self.batch.unknown.extend(new);
        }
        self.begin_jit_batch(profile);
    }

    /// Puts the functions of a frame into `functions`, innermost first.
    pub(super) fn find_functions(&mut self, frame: Frame) -> Told {
        self.functions.clear();
        if let Some(found) = self.batch.answers.get(&frame) {
            self.functions.extend_from_slice(found);
            return Told::Known;
        }
        let Some(image) = self.images.get_mut(frame.image.0 as usize) else { return Told::Known };
        image.used = self.resolved;
        let Some(elf) = &image.elf else { return Told::Known };
        let is_again = image.names.is_none() && image.drops > 0;
        let is_other = !self.reading_time.is_unlimited(image.payer);
        if is_again && !self.rereading.may(is_other) {
            return Told::NotNow;
        }
        let (payer, asked_user, deadline) = (image.payer, image.debug_user, &mut self.deadline);
        // An image that has been read answers at once, as a rule.
        let is_slow = image.names.is_none() || image.is_slow;
        if is_slow && !self.reading_time.may_ask(payer) {
            return Told::NotNow;
        }
        let began = Instant::now();
        self.left.loaded |= image.names.is_none();
        let (most, symbols_only) = (self.budget.debug_information_of_one(), image.has_symbols_only());
        let new = || {
            let debug = match image.debug_user {
                Some(user) if !ccsd_worker::has_worker() => {
                    let deadline = Arc::clone(&self.deadline_of_files);
                    let path = image.debug.path().map(Path::to_owned);
                    // `Symbols` checks the owners only of files that it opens itself.
                    let asked = AskedFiles { user, finder: image.debug.clone().accept_owners_for(elf), deadline };
                    let finder = DebugFileFinder::through(Arc::new(asked));
                    path.into_iter().fold(finder, DebugFileFinder::image_path)
                }
                _ => image.debug.clone(),
            };
            ImageNames::new(Arc::clone(elf), image.key.as_ref(), debug).within(most, symbols_only)
        };
        let names = image.names.get_or_insert_with(new);
        // The kernel's vdso has no file, and is never read elsewhere.
        if elf.file().is_some() {
            self.batch.asks_together = names.batch() > 1;
        }
        // Names that were dropped before may be dropped again before the next question.
        let most = if image.drops > 0 { usize::MAX } else { names.batch() };
        let mut asked = vec![frame.address];
        if most > 1 {
            // What does not fit has its turn with the next one that is met.
            self.batch.unknown.retain(|other| {
                let fits = other.image == frame.image && asked.len() < most;
                if fits && *other != frame {
                    asked.push(other.address);
                }
                !fits
            });
            asked.sort_unstable();
            asked.dedup();
        }
        let (all, told) = names.resolve(&asked, &mut |open| match asked_user {
            Some(user) => deadline.ask(user, open),
            None => Some(open()),
        });
        image.is_slow = began.elapsed() > QUICK;
        self.reading_time.asked(payer, began);
        if is_again {
            self.rereading.spend(is_other, began);
        }
        if told != Told::Known {
            self.left.not_asked += u64::from(told == Told::NotNow);
            return told;
        }
        for (address, functions) in asked.into_iter().zip(all) {
            if address == frame.address {
                self.functions.clone_from(&functions);
            }
            if most > 1 {
                self.batch.answers.insert(Frame { address, ..frame }, functions);
            }
        }
        told
    }

    /// What this process keeps of all images, bytes.
    pub(super) fn image_bytes(&self) -> u64 {
        self.images.iter().map(ImageSymbols::held_bytes).sum()
    }

    /// Drops the longest unused symbols beyond the budget of all images; they are read again when needed. (A worker
    /// sees to its own.)
    pub(super) fn bound_symbols(&mut self, profile: &mut Profile) {
        let mut total = self.image_bytes();
        let held = ImageSymbols::held_bytes;
        while total > self.budget.debug_information {
            let of_others = self.images.iter().filter(|image| !self.reading_time.is_unlimited(image.payer));
            let are_over = of_others.map(held).sum::<u64>() > self.budget.debug_information / 8;
            let with_symbols = self.images.iter_mut().filter(|image| held(image) > 0);
            // Other users' images have an eighth of the budget; what root's and the session's own user's leave is lent to them.
            let order =
                |image: &&mut ImageSymbols| (!are_over || self.reading_time.is_unlimited(image.payer), image.used);
            let Some(oldest) = with_symbols.min_by_key(order) else { return };
            // The only one is being used, and would be read again at once.
            if held(oldest) == total {
                if oldest.has_symbols_only() || total <= self.budget.debug_information_of_one() {
                    return;
                }
                oldest.drops = MAX_DROPS;
            }
            oldest.drops = oldest.drops.saturating_add(1);
            self.batch.has_dropped = true;
            profile.accounting_mut().count_shed(Shed::DebugInformation);
            total = total.saturating_sub(held(oldest));
            self.left.drop_names(oldest);
        }
    }

    /// CPU time of threads beside this one that read the kernel's names for this process, nanoseconds.
    pub fn kernel_names_beside_ns(&self) -> u64 {
        if self.kernel.is_some() { kernel::beside_ns() } else { 0 }
    }

    /// CPU time that another process has spent for names, nanoseconds, by its own account.
    pub fn worker_cpu_ns(&self) -> u64 {
        let images = self.images.iter().filter_map(|image| image.names.as_ref());
        images.fold(self.left.cpu_ns, |sum, names| sum.saturating_add(names.cpu_ns()))
    }

    pub(super) fn image_notes(&self) -> impl Iterator<Item = String> {
        let of_image =
            |image: &ImageSymbols| image.notes().map(|note| format!("{}: {note}", image.name)).collect::<Vec<_>>();
        // Few are shown: others' leave room for root's and the session's own user's.
        let is_own = |image: &ImageSymbols| self.reading_time.is_unlimited(image.payer);
        let not_asked = self.left.not_asked;
        let nobody = (not_asked > 0).then(|| {
            format!(
                "{not_asked} times there were no names, because no process that reads images could be asked (it had failed, or \
                 was busy)"
            )
        });
        let refused = self.rereading.refused;
        let late = (refused > 0).then(|| {
            format!(
                "{refused} times there were no names, because to read images again would have taken too long; with more \
                 memory (--memory) they stay"
            )
        });
        nobody
            .into_iter()
            .chain(late)
            .chain(self.images.iter().filter(move |image| is_own(image)).flat_map(of_image))
            .chain(self.images.iter().filter(move |image| !is_own(image)).flat_map(of_image))
            .chain(self.left.notes.iter().cloned())
    }
}

#[cfg(test)]
mod tests {
    use ccsd_profile::{ProfileLimits, SessionInfo, Shed};
    use ccsd_symbolizer::ElfFile;
    use ccsd_worker::{FileKey, FileLocation};

    use super::*;
    use crate::budget::Budget;
    use crate::process::images::MappedImage;

    #[test]
    fn nobody_s_image_is_taken_for_another_user_s() {
        let budget = Budget::of(Budget::MIN_MEMORY);
        let mut profile = Profile::new(SessionInfo::default(), budget.profile.clone());
        let mut resolver = Resolver::new(false, &budget);
        let path = std::env::current_exe().unwrap();
        let elf = Arc::new(ElfFile::open(File::open(&path).unwrap()).unwrap());
        let container = Principal::Elsewhere { namespace: 1, device: 1 };
        let images =
            [(Principal::User(7), true), (Principal::Own, false), (Principal::User(8), false), (container, true)];
        for (principal, is_shown) in images {
            let key = FileKey::new(&path.metadata().unwrap(), FileLocation { principal, is_remote: false });
            let image = MappedImage::new("/bin/x", Some(key), principal);
            let shown_by = is_shown.then_some(principal);
            resolver.add_image(&mut profile, MappedImage { elf: Some(Arc::clone(&elf)), shown_by, ..image });
        }
        let name = |image: &ImageSymbols| profile.image(image.id).unwrap().name.clone();
        let names: Vec<String> = resolver.images.iter().map(name).collect();
        assert_eq!(names, ["user 7:/bin/x", "/bin/x", "/bin/x", "/bin/x"]);
    }

    #[test]
    fn what_a_user_had_no_room_for_has_its_name_when_root_maps_it() {
        let budget = Budget::of(Budget::MIN_MEMORY);
        let mut profile = Profile::new(SessionInfo::default(), ProfileLimits { images: 8, ..budget.profile.clone() });
        let mut resolver = Resolver::new(false, &budget);
        let elf = Arc::new(ElfFile::open(File::open(std::env::current_exe().unwrap()).unwrap()).unwrap());
        let image = |number: u32, payer| {
            let image = MappedImage::new(&format!("/usr/bin/{number}"), None, payer);
            MappedImage { elf: Some(Arc::clone(&elf)), ..image }
        };
        (0..8).for_each(|number| resolver.add_image(&mut profile, image(number, Principal::User(7))));
        let name = |resolver: &Resolver, profile: &Profile| profile.image(resolver.images[7].id).unwrap().name.clone();
        assert_eq!(name(&resolver, &profile), "[other]");
        resolver.reopen(&mut profile, ImageIndex(7), image(7, Principal::Own));
        assert_eq!(name(&resolver, &profile), "/usr/bin/7");
    }

    #[test]
    fn other_users_names_make_place_first() {
        let budget = Budget::of(Budget::MIN_MEMORY);
        let mut profile = Profile::new(SessionInfo::default(), budget.profile.clone());
        let mut resolver = Resolver::new(false, &budget);
        resolver.begin();
        let path = std::env::current_exe().unwrap();
        let elf = Arc::new(ElfFile::open(File::open(&path).unwrap()).unwrap());
        for number in 0..4 {
            let principal = if number == 0 { Principal::Own } else { Principal::User(7) };
            let key = FileKey::new(&path.metadata().unwrap(), FileLocation { principal, is_remote: false });
            let image = MappedImage::new(&format!("/bin/{number}"), Some(key), principal);
            resolver.add_image(&mut profile, MappedImage { elf: Some(Arc::clone(&elf)), ..image });
        }
        resolver.budget.debug_information = 1 << 30;
        for image in 0..4 {
            resolver.resolve(&mut profile, Frame { image: ImageIndex(image), address: elf.entry() }, 0);
            if image == 0 {
                // There is room for two.
                resolver.budget.debug_information = resolver.image_bytes() * 5 / 2;
            }
            resolver.bound_symbols(&mut profile);
            assert_eq!(resolver.images[0].drops, 0, "{image}");
        }
        assert!(resolver.images[1..].iter().any(|image| image.drops > 0));
        // What reading theirs again takes is not taken from root's.
        resolver.rereading.spend(true, Instant::now().checked_sub(std::time::Duration::from_secs(3600)).unwrap());
        assert!(!resolver.rereading.may(true) && resolver.rereading.may(false));
    }

    #[test]
    fn symbols_beyond_the_budget_are_dropped_and_read_again() {
        // 2 MiB for all images; this program has more than that in symbols alone.
        let budget = Budget::of(Budget::MIN_MEMORY);
        let mut profile = Profile::new(SessionInfo::default(), budget.profile.clone());
        let mut resolver = Resolver::new(false, &budget);
        let program = || Arc::new(ElfFile::open(File::open(std::env::current_exe().unwrap()).unwrap()).unwrap());
        let entry = program().entry();
        // The first two stand for unknown memory and the kernel.
        for i in 0..6 {
            let elf = (i >= 2).then(program);
            let image = MappedImage { elf, ..MappedImage::new(&format!("program{i}"), None, Principal::Own) };
            resolver.add_image(&mut profile, image);
        }
        let mut names = Vec::new();
        for round in 0..3 * MAX_DROPS {
            for image in 2..6 {
                let frame = Frame { image: ImageIndex(image), address: entry + u64::from(round) };
                let resolved = resolver.resolve(&mut profile, frame, 0);
                let centre = resolver.cost_centres(&resolved)[0];
                names.push(profile.cost_centre(centre).and_then(|centre| centre.linkage_name.clone()));
                // One alone may be larger, because it would else be read again and again; and there is the one just read.
                let held = resolver.images.iter().filter(|image| image.held_bytes() > 0).count();
                assert!(resolver.image_bytes() <= budget.debug_information || held <= 2, "{held}");
            }
        }
        let shed = profile.accounting().shed.get(Shed::DebugInformation);
        assert!(shed >= 8, "{shed}");
        // In the end they are known by their symbols alone, and of this program these take more than there is, too.
        let notes: Vec<_> = resolver.notes().collect();
        assert!(resolver.images[2..].iter().all(ImageSymbols::has_symbols_only), "{notes:?}");
        assert!(names.iter().all(|name| name.is_some() && *name == names[0]), "{names:?}");
        // Where samples are taken, reading them again may take only a part of the time.
        resolver.begin();
        resolver.rereading.spend(false, Instant::now().checked_sub(std::time::Duration::from_secs(3600)).unwrap());
        let dropped = resolver.images[2..].iter().position(|image| image.names.is_none()).unwrap() as u32 + 2;
        let frame = Frame { image: ImageIndex(dropped), address: entry + 1000 };
        let resolved = resolver.resolve(&mut profile, frame, 0);
        let centre = profile.cost_centre(resolver.cost_centres(&resolved)[0]).unwrap();
        assert_eq!((centre.linkage_name.as_deref(), centre.start), (None, Some(frame.address)));
        assert!(!resolved.named && resolver.notes().any(|note| note.starts_with("1 times there were no names")));
    }
}
