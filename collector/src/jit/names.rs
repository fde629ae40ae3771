//! The names of one process's code, and the frames that wait for theirs.

use std::fs::File;
use std::io;
use std::time::Instant;

use ccsd_profile::{CostCentre, CostCentreId, Image, ImageId, Profile, Shed};
use ccsd_symbolizer::jit::{CodeAtTime, JitDump, PerfMap};
use ccsd_worker::Principal;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::files::{FileGrowth, GrowingFile};
use crate::clock::now_ns;
use crate::deadline::Deadline;
use crate::function_names::display_name;
use crate::process::images::{ImageIndex, Images};
use crate::process::jit_code::JitSource;

/// Addresses remembered per process, named ones; at the limit all are forgotten and looked up again.
const MAX_KNOWN: usize = 1 << 16;
/// Addresses that may wait for a name, per process. Those beyond stay nameless.
const MAX_WAITING: usize = 1 << 15;
/// How far out of order the records of a jitdump may be, nanoseconds: threads write them as they come by a lock.
const DISORDER_NS: u64 = 1_000_000_000;
/// How long a runtime that writes at once may take to write a record, nanoseconds.
const TELLING_NS: u64 = 10_000_000;
/// Addresses asked about in one look, to tell whether their names were those of earlier code.
const MAX_LATE_SEARCH: usize = 1 << 12;
/// Jitdumps of one process: one for each runtime in it.
pub const MAX_DUMPS: usize = 4;
/// Bytes that a remembered address takes with its name, and one that waits. (Names are shared and mostly shorter.)
const KNOWN_BYTES: usize = 256;
const WAITING_BYTES: usize = 64;
/// Entries of each that there is always room for.
const LEAST_ENTRIES: usize = 16;
/// Looks at the end, each at a limited number of bytes.
const LAST_LOOKS: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JitFrameName {
    pub centre: CostCentreId,
    pub named: bool,
    /// When the answer begins to hold, nanoseconds.
    pub from: u64,
    /// When another may be right, nanoseconds.
    pub until: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    centre: CostCentreId,
    /// Times of the first and last sample with it.
    first: u64,
    last: u64,
    /// Samples that ended in it.
    as_leaf: u64,
}

pub struct JitNames {
    source: JitSource,
    map: Option<(GrowingFile, PerfMap)>,
    dumps: Vec<(GrowingFile, JitDump)>,
    known: HashMap<u64, JitFrameName, FxBuildHasher>,
    /// Names that have been met, so that they are met again without being copied. As many as `known` may be.
    centres: HashMap<Box<str>, CostCentreId, FxBuildHasher>,
    waiting: HashMap<u64, Waiting, FxBuildHasher>,
    looked: bool,
    /// Whether an address has been asked about.
    was_asked: bool,
    /// Whether the files were not read to their ends when they were looked at last.
    unread: bool,
    /// When that was, nanoseconds.
    looked_at: u64,
    /// Addresses whose code had been replaced before a jitdump said so; see [`JitNames::count_late`].
    told_late: u64,
    /// Addresses that the perf map has given to other functions after they were looked up; see [`JitNames::count_reused`].
    reused: u64,
    notes: Vec<String>,
    /// Most entries of `known` and `centres`, and of `waiting`.
    most_known: usize,
    most_waiting: usize,
    centre_bytes: usize,
    /// What is counted of [`JitNames::bytes`] for its user.
    pub counted_bytes: u64,
}

impl JitNames {
    pub fn new(source: JitSource) -> JitNames {
        JitNames {
            source,
            map: None,
            dumps: Vec::new(),
            known: HashMap::default(),
            centres: HashMap::default(),
            waiting: HashMap::default(),
            looked: false,
            was_asked: false,
            unread: false,
            looked_at: 0,
            told_late: 0,
            reused: 0,
            notes: Vec::new(),
            most_known: MAX_KNOWN,
            most_waiting: MAX_WAITING,
            centre_bytes: 0,
            counted_bytes: 0,
        }
    }

    pub fn bytes(&self) -> usize {
        let files = self.map.iter().map(|(_, map)| map.bytes()).chain(self.dumps.iter().map(|(_, dump)| dump.bytes()));
        files.sum::<usize>()
            + self.known.allocation_size()
            + self.centres.allocation_size()
            + self.centre_bytes
            + self.waiting.allocation_size()
    }

    /// Sets the memory limit: half for the contents of the files that are open, a quarter for looked-up names, an eighth for
    /// waiting frames.
    fn allot(&mut self, bytes: usize) {
        let files = usize::from(self.map.is_some()) + self.dumps.len();
        let each = bytes / 2 / files.max(1);
        if let Some((_, map)) = &mut self.map {
            map.limit(each);
        }
        self.dumps.iter_mut().for_each(|(_, dump)| dump.limit(each));
        self.most_known = (bytes / 4 / KNOWN_BYTES).clamp(LEAST_ENTRIES, MAX_KNOWN);
        self.most_waiting = (bytes / 8 / WAITING_BYTES).clamp(LEAST_ENTRIES, MAX_WAITING);
    }

    pub fn left_out(&self) -> u64 {
        let maps = self.map.iter().map(|(_, map)| map.code().left_out());
        maps.chain(self.dumps.iter().map(|(_, dump)| dump.code().left_out())).sum()
    }

    /// Whose names hold where this process has none of its own.
    pub fn inherited(&self) -> Option<ImageIndex> {
        self.source.inherited
    }

    pub fn add_dump(&mut self, file: File, deadline: &mut Deadline) {
        if self.dumps.iter().any(|(known, _)| known.is_same(&file)) {
            return;
        }
        match GrowingFile::dump(file, &self.source, deadline) {
            Some(Some(file)) if self.dumps.len() < MAX_DUMPS => {
                self.dumps.push((file, JitDump::of_clock(self.source.ahead_ns)))
            }
            Some(Some(_)) => self.note("it has more jitdumps than are read"),
            Some(None) => self.note("its jitdump belongs to another user, or is on a file system that others serve"),
            None => self.note("its jitdump could not be opened in time"),
        }
        self.looked = false;
    }

    /// A new batch of samples begins: the files may be looked at again.
    pub fn begin_batch(&mut self) {
        self.looked = false;
    }

    pub fn may_look(&self) -> bool {
        !self.looked
    }

    /// Whether a file may say that an address whose name is known had another from some time on.
    pub fn may_replace(&self) -> bool {
        self.dumps.iter().any(|(_, dump)| !dump.is_over())
    }

    /// What has been found out about an address, without looking anything up.
    #[inline]
    pub fn known(&mut self, address: u64, time: u64) -> Option<JitFrameName> {
        if let Some(answer) = self.known.get(&address) {
            return Some(*answer).filter(|answer| answer.from <= time && time < answer.until);
        }
        let waiting = self.waiting.get_mut(&address)?;
        (waiting.first, waiting.last) = (waiting.first.min(time), waiting.last.max(time));
        let Waiting { centre, first, .. } = *waiting;
        Some(JitFrameName { centre, named: false, from: 0, until: self.unnamed_until(address, first, time) })
    }

    /// Until when an address is nameless, unnamed since `first`. While a dump may still name the code of that time, the
    /// answer is for one sample. Afterwards only a later record may name other code.
    fn unnamed_until(&self, address: u64, first: u64, time: u64) -> u64 {
        let is_past = |(_, dump): &(_, JitDump)| dump.is_over() || dump.latest() >= first.saturating_add(DISORDER_NS);
        if self.dumps.is_empty() {
            u64::MAX
        } else if self.source.inherited.is_none() && self.dumps.iter().all(is_past) {
            self.find(address, time).until
        } else {
            time
        }
    }

    pub fn find(&self, address: u64, time: u64) -> CodeAtTime<'_> {
        let mut answer = CodeAtTime { name: None, from: 0, until: u64::MAX };
        for (_, dump) in &self.dumps {
            let found = dump.code().find(address, time);
            answer.until = answer.until.min(found.until);
            if found.name.is_some() {
                return CodeAtTime { until: answer.until, ..found };
            }
        }
        let name = self.map.as_ref().and_then(|(_, map)| map.code().find(address, time).name);
        CodeAtTime { name, ..answer }
    }

    /// Remembers a name, if one is known from this process's own files or else from those of the one that forked it.
    pub fn enter(
        &mut self,
        profile: &mut Profile,
        inherited: Option<&JitNames>,
        address: u64,
        time: u64,
    ) -> Option<JitFrameName> {
        self.was_asked = true;
        let (name, from, until) = self.find_or_inherited(inherited, address, time)?;
        let (centre, new): (_, Option<Box<str>>) = match self.centres.get(name) {
            Some(&centre) => (centre, None),
            None => (self.named(profile, name), Some(Box::from(name))),
        };
        if let Some(name) = new {
            if self.centres.len() >= self.most_known || self.centre_bytes >= self.most_known * KNOWN_BYTES {
                self.centres = HashMap::default();
                // Without the names it is not known which ones these had.
                self.known = HashMap::default();
                self.centre_bytes = 0;
                profile.accounting_mut().count_shed(Shed::GeneratedCode);
            }
            self.centre_bytes += name.len();
            self.centres.insert(name, centre);
        }
        if self.known.len() >= self.most_known {
            self.known = HashMap::default();
            profile.accounting_mut().count_shed(Shed::GeneratedCode);
        }
        let answer = JitFrameName { centre, named: true, from, until };
        self.known.insert(address, answer);
        Some(answer)
    }

    pub fn wait(&mut self, profile: &mut Profile, address: u64, time: u64) -> JitFrameName {
        if self.waiting.len() >= self.most_waiting {
            profile.accounting_mut().count_shed(Shed::GeneratedCode);
            return JitFrameName { centre: nameless(profile), named: false, from: 0, until: u64::MAX };
        }
        let image = self.waiting_image(profile);
        let centre = profile.add_cost_centre(bare(image, None, Some(address)));
        // One that was named after the process had gone, or that does not fit.
        let centre = if profile.real(centre) == centre { centre } else { nameless(profile) };
        let until = self.unnamed_until(address, time, time);
        if centre != CostCentreId::ELIDED {
            self.waiting.insert(address, Waiting { centre, first: time, last: time, as_leaf: 0 });
        }
        JitFrameName { centre, named: false, from: 0, until }
    }

    pub fn count_leaf(&mut self, address: u64) {
        if let Some(waiting) = self.waiting.get_mut(&address) {
            waiting.as_leaf += 1;
        }
    }

    /// Whose files its names are in.
    pub fn user(&self) -> Option<u32> {
        self.source.user
    }

    /// Who pays for them; root for the session's own user, too.
    pub fn payer(&self) -> Principal {
        self.source.payer()
    }

    /// There is no time for a look now.
    pub fn pass(&mut self) {
        self.looked = true;
    }

    fn has_files(&self, deadline: &mut Deadline) -> bool {
        let has_map = |deadline| matches!(GrowingFile::perf_map(&self.source, deadline), Some(Ok(_)));
        self.map.is_some() || !self.dumps.is_empty() || has_map(deadline)
    }

    pub fn is_unread(&self) -> bool {
        self.unread
    }

    /// Reads on in the files, until then, into so many bytes. Whether there was something new.
    pub fn look(&mut self, until: Instant, bytes: usize, deadline: &mut Deadline) -> bool {
        self.looked = true;
        self.unread = false;
        // What was charged until now has the names that were known in the last look.
        let charged_until = std::mem::replace(&mut self.looked_at, now_ns());
        let mut grown = false;
        if self.map.is_none() {
            match GrowingFile::perf_map(&self.source, deadline) {
                Some(Ok(file)) => self.map = Some((file, PerfMap::default())),
                Some(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                    self.note("its perf map is not read: it belongs to another user");
                }
                Some(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => {
                    self.note("its perf map is not read: it is a link, or no file at all");
                }
                Some(Err(_)) => self.note("its perf map is not read: it is on a file system that others serve"),
                None => {}
            }
        }
        self.allot(bytes);
        if let Some((file, map)) = &mut self.map {
            let key = file.key().clone();
            let feed = |map: &mut PerfMap, bytes: &[u8]| {
                ccsd_worker::parse_code(&key, map.parser(), bytes).map_or(0, |parsed| map.apply(parsed))
            };
            let mut look = file.look(until, |bytes| feed(map, bytes));
            if look.0 == FileGrowth::Anew {
                map.clear();
                look = file.look(until, |bytes| feed(map, bytes));
                grown = true;
            }
            grown |= look.0 == FileGrowth::Yes;
            self.unread |= look.1;
        }
        for (file, dump) in self.dumps.iter_mut().filter(|(_, dump)| !dump.is_over()) {
            let key = file.key().clone();
            let feed = |dump: &mut JitDump, bytes: &[u8]| {
                ccsd_worker::parse_code(&key, dump.parser(), bytes).map_or(0, |parsed| dump.apply(parsed))
            };
            let (now, more) = match file.look(until, |bytes| feed(dump, bytes)) {
                (FileGrowth::Anew, _) => {
                    dump.clear();
                    grown = true;
                    file.look(until, |bytes| feed(dump, bytes))
                }
                look => look,
            };
            grown |= now == FileGrowth::Yes;
            self.unread |= more;
        }
        if grown {
            self.count_late(charged_until);
            self.count_reused();
            self.known.clear();
        }
        grown
    }

    /// Counts addresses whose names did not hold until `charged_until`: the runtime reported too late for charged
    /// samples.
    fn count_late(&mut self, charged_until: u64) {
        if self.dumps.is_empty() {
            return;
        }
        let until = charged_until.saturating_sub(TELLING_NS);
        let held = self.known.iter().filter(|(_, answer)| answer.until == u64::MAX).take(MAX_LATE_SEARCH);
        let late = held.filter(|(address, answer)| self.find(**address, until).from > answer.from).count();
        self.told_late = self.told_late.saturating_add(late as u64);
    }

    /// Counts addresses that have another name now by the perf map, which says no times: until when they had the last one
    /// is not known.
    fn count_reused(&mut self) {
        let Some((_, map)) = &self.map else { return };
        let has_another = |(address, answer): &(&u64, &JitFrameName)| {
            let is_from_dump = answer.from > 0 || answer.until < u64::MAX;
            let now = map.code().find(**address, 0).name.filter(|_| !is_from_dump);
            now.is_some_and(|name| self.centres.get(name) != Some(&answer.centre))
        };
        let reused = self.known.iter().take(MAX_LATE_SEARCH).filter(has_another).count();
        self.reused = self.reused.saturating_add(reused as u64);
    }

    /// Names what waits, if known now; `inherited` finds names of the forking process. Returns how many samples got a
    /// name for their leaf.
    pub fn name_waiting(&mut self, profile: &mut Profile, inherited: Option<&JitNames>) -> u64 {
        let mut named_samples = 0;
        let mut still = std::mem::take(&mut self.waiting);
        still.retain(|&address, waiting| {
            let Some((name, from, until)) = self.find_or_inherited(inherited, address, waiting.first) else {
                return true;
            };
            if waiting.last >= until || waiting.first < from {
                // Different code at different times, and no telling how many samples each had.
                return true;
            }
            let function = self.named(profile, name);
            let done = profile.name_later(waiting.centre, function);
            named_samples += if done { waiting.as_leaf } else { 0 };
            !done
        });
        self.waiting = still;
        named_samples
    }

    /// A name from this process's own files, or else from those of the one that forked it; with its time.
    fn find_or_inherited<'a>(
        &'a self,
        inherited: Option<&'a JitNames>,
        address: u64,
        time: u64,
    ) -> Option<(&'a str, u64, u64)> {
        let own = self.find(address, time);
        let found = match own.name {
            Some(_) => own,
            None => inherited.map_or(own, |parent| {
                let theirs = parent.find(address, time);
                CodeAtTime { until: theirs.until.min(own.until), ..theirs }
            }),
        };
        found.name.map(|name| (name, found.from, found.until))
    }

    /// The last look, when the process or the session has ended, until then and into so many bytes; `None` if there is no
    /// time for one. What still has no name will never have one.
    pub fn finish(
        &mut self,
        profile: &mut Profile,
        inherited: Option<&JitNames>,
        look: Option<(Instant, usize)>,
        deadline: &mut Deadline,
    ) -> u64 {
        match look {
            Some((until, bytes)) => {
                for _ in 0..LAST_LOOKS {
                    if !self.look(until, bytes, deadline) || Instant::now() >= until {
                        break;
                    }
                }
            }
            None => self.unread |= self.has_files(deadline),
        }
        let named_samples = self.name_waiting(profile, inherited);
        if !self.waiting.is_empty() {
            let function = nameless(profile);
            for (_, waiting) in self.waiting.drain() {
                profile.name_later(waiting.centre, function);
            }
        }
        self.notes_of_files();
        named_samples
    }

    /// Whether no address in the code has been asked about.
    pub fn is_unasked(&self) -> bool {
        !self.was_asked
    }

    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    fn notes_of_files(&mut self) {
        let maps =
            self.map.iter().map(|(file, map)| (file, map.code().left_out(), map.bad_lines(), "perf map", "lines"));
        let dumps = self.dumps.iter();
        let dumps = dumps.map(|(file, dump)| (file, dump.code().left_out(), dump.bad_records(), "jitdump", "records"));
        let mut notes = Vec::new();
        if self.told_late > 0 {
            let n = self.told_late;
            notes.push(format!(
                "its jitdump said late that code was replaced: samples at {n} addresses may have the name of what was there \
                 before"
            ));
        }
        if self.reused > 0 {
            notes.push(format!(
                "its perf map gave {} sampled addresses to other functions and says no times: samples there may have the name \
                 of what was there before or after",
                self.reused
            ));
        }
        for (file, left_out, bad, what, of) in maps.chain(dumps) {
            if left_out > 0 {
                notes.push(format!("its {what} names more code than ccsd keeps: {left_out} {of} were left out"));
            }
            if bad > 0 {
                notes.push(format!("{bad} {of} of its {what} are malformed"));
            }
            if file.is_exhausted() {
                notes.push(format!("its {what} is longer than ccsd reads"));
            }
        }
        notes.iter().for_each(|note| self.note(note));
    }

    fn note(&mut self, note: &str) {
        let note = format!("process {}: {note}", self.source.pid);
        // The files are looked at again and again.
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// A function of this name, which is the same in all processes of a user: two that run the same program run the same
    /// functions. Of two users one could give his functions the names of the other's.
    fn named(&self, profile: &mut Profile, name: &str) -> CostCentreId {
        let owner = match self.payer() {
            Principal::Own => Vec::new(),
            Principal::User(user) => user.to_le_bytes().to_vec(),
            Principal::Elsewhere { namespace, device } => [namespace, device].map(u64::to_le_bytes).concat(),
        };
        let image = profile.add_image(Image::generated(owner));
        profile.add_cost_centre(bare(image, Some(name.to_owned()), None))
    }

    /// The image that this process's nameless code belongs to: addresses of different processes must not meet.
    fn waiting_image(&self, profile: &mut Profile) -> ImageId {
        let identity = [u64::from(self.source.pid), self.source.start_time];
        let build_id = identity.iter().flat_map(|number| number.to_le_bytes()).collect();
        profile.add_image(Image { name: Images::ANONYMOUS.to_owned(), build_id })
    }
}

fn bare(image: ImageId, linkage_name: Option<String>, start: Option<u64>) -> CostCentre {
    let display_name = display_name(linkage_name.as_deref(), None);
    CostCentre { image, linkage_name, display_name, start, file: None, line: 0, local: false }
}

fn nameless(profile: &mut Profile) -> CostCentreId {
    let image = profile.add_image(Image { name: Images::ANONYMOUS.to_owned(), build_id: Vec::new() });
    profile.add_cost_centre(bare(image, None, None))
}
