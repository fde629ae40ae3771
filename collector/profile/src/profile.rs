//! A profile: what a session found out so far.

use std::sync::Arc;

use crate::accounting::{Accounting, TruncationReason};
use crate::charges::{ChargeTable, RowKind};
use crate::context::ContextTable;
use crate::crash::{Crash, MAX_CRASH_FRAMES, MAX_CRASH_INNER, MAX_CRASH_OUTER, MAX_CRASHES, MAX_CRASHES_BYTES};
use crate::generation::{Generation, Generations};
use crate::ids::{ContextId, CostCentreId, ImageId, LineId, ProcessId, RouteId, ThreadId};
use crate::limits::{MAX_METRICS, MAX_NOTE_BYTES, MAX_NOTES, MAX_STRING_BYTES, ProfileLimits};
use crate::model::{CostCentre, Image, Line, Membership, Process, SessionInfo, Thread};
use crate::naming::Namings;
use crate::routes::RouteTable;
use crate::shares::{Payer, TableShares};
use crate::shed::Shed;
use crate::squares::Squares;
use crate::symbols::{Files, Identity, InternTable, clip, clip_string};
use crate::uncertain::Uncertain;
use crate::update::DefinitionCounts;

/// Everything charged in one place: a thread, a context, a line of the context's running function, the lines of its callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge<'a> {
    /// The thread that ran.
    pub thread: ThreadId,
    /// Its context.
    pub context: ContextId,
    /// The line, or [`LineId::UNKNOWN`].
    pub line: LineId,
    /// From which lines the functions of the stack made their calls.
    pub route: RouteId,
    /// Number of samples.
    pub samples: u64,
    /// One weight for each metric of the session.
    pub weights: &'a [u64],
    /// The sum of the squared weights of the samples, for each metric (the first [`MAX_METRICS`] of them).
    pub squares: &'a [Squares],
}

#[derive(Debug, Default)]
pub(crate) struct Sent {
    pub(crate) counts: DefinitionCounts,
    pub(crate) notes: usize,
    pub(crate) namings: usize,
    pub(crate) crashes: usize,
    pub(crate) accounting: Accounting,
    pub(crate) renamed_processes: Vec<ProcessId>,
    pub(crate) renamed_threads: Vec<ThreadId>,
}

#[derive(Debug)]
pub(crate) struct Flags {
    /// Nothing was applied or merged: the statistics of the context table are those of the collection.
    pub(crate) collecting: bool,
    /// Text shows names as they are.
    pub(crate) full_names: bool,
    /// Several functions of what was charged are one here: which of them was active last is not known.
    pub(crate) merges_functions: bool,
}

/// A profile in memory: tables, contexts, charges and accounting.
///
/// Invariant I1: for each metric, the sum of all charges is the weight of all samples charged and of `[not sampled]`,
/// whatever the budgets are.
#[derive(Debug)]
pub struct Profile {
    pub(crate) session: SessionInfo,
    pub(crate) limits: ProfileLimits,
    pub(crate) images: InternTable<Image>,
    pub(crate) cost_centres: InternTable<CostCentre>,
    pub(crate) lines: InternTable<Line>,
    pub(crate) files: Files,
    pub(crate) processes: InternTable<Process>,
    pub(crate) threads: InternTable<Thread>,
    pub(crate) contexts: ContextTable,
    pub(crate) routes: RouteTable,
    pub(crate) generations: Generations,
    pub(crate) namings: Namings,
    /// What is uncertain in contexts that were made from those of another profile. Collected ones have none.
    pub(crate) uncertain: Uncertain,
    pub(crate) charges: ChargeTable,
    pub(crate) crashes: Vec<Crash>,
    pub(crate) accounting: Accounting,
    /// Samples that are `[elided]` here and not in the stream that was read.
    pub(crate) elided_in_reading: u64,
    pub(crate) sent: Sent,
    pub(crate) string_bytes: usize,
    pub(crate) offset_lines: usize,
    pub(crate) shares: TableShares,
    pub(crate) flags: Flags,
}

impl Profile {
    /// An empty profile. `session.metrics` is cut to [`MAX_METRICS`].
    #[must_use]
    pub fn new(mut session: SessionInfo, limits: ProfileLimits) -> Self {
        session.metrics.truncate(MAX_METRICS);
        Self::with_all_metrics(session, limits)
    }

    /// The same however many metrics there are; it cannot be written.
    pub(crate) fn with_all_metrics(mut session: SessionInfo, limits: ProfileLimits) -> Self {
        session.notes.truncate(MAX_NOTES);
        let mut profile = Self {
            charges: ChargeTable::new(session.metrics.len(), limits.charge_bytes),
            contexts: ContextTable::new(limits.context_bytes),
            routes: RouteTable::new(limits.route_bytes),
            generations: Generations::default(),
            elided_in_reading: 0,
            namings: Namings::default(),
            uncertain: Uncertain::default(),
            sent: Sent { notes: session.notes.len(), ..Sent::default() },
            crashes: Vec::new(),
            session,
            limits,
            images: InternTable::new(),
            cost_centres: InternTable::new(),
            lines: InternTable::new(),
            files: Files::new(),
            processes: InternTable::new(),
            threads: InternTable::new(),
            accounting: Accounting::default(),
            flags: Flags { collecting: true, full_names: false, merges_functions: false },
            string_bytes: 0,
            offset_lines: 0,
            shares: TableShares::default(),
        };
        // What every profile has, under the ids that the constants name.
        profile.images.insert(Image { name: "[ccsd]".into(), build_id: Vec::new() });
        profile.add_special("[elided]");
        profile.add_special("[root]");
        let file = profile.files.intern("");
        profile.lines.insert(Line { file, line: 0 });
        profile.sent.counts = profile.counts();
        profile
    }

    /// What is profiled, how, since when.
    #[must_use]
    pub const fn session(&self) -> &SessionInfo {
        &self.session
    }

    /// The session, to describe it more precisely. Metrics must not change; only new notes reach updates.
    pub const fn session_mut(&mut self) -> &mut SessionInfo {
        &mut self.session
    }

    /// Adds a note about a fallback, once. Keeps the first ones, up to a limit.
    pub fn add_note(&mut self, note: &str) {
        let notes = &mut self.session.notes;
        if notes.len() >= MAX_NOTES {
            return;
        }
        let note = if notes.len() + 1 == MAX_NOTES { "more notes are left out" } else { note };
        let note = &note[..note.floor_char_boundary(MAX_NOTE_BYTES)];
        if !notes.iter().any(|known| known == note) {
            notes.push(note.to_owned());
        }
    }

    /// The processes that died of a signal, in the order in which they were told.
    #[must_use]
    pub fn crashes(&self) -> &[Crash] {
        &self.crashes
    }

    /// Makes room for crashes once half of it is taken: forgets those that are in updates already.
    pub fn make_room_for_crashes(&mut self) {
        let bytes: usize = self.crashes.iter().map(Crash::approximate_bytes).sum();
        if self.crashes.len() >= MAX_CRASHES / 2 || bytes >= MAX_CRASHES_BYTES / 2 {
            self.crashes.drain(..self.sent.crashes.min(self.crashes.len()));
            self.sent.crashes = 0;
        }
    }

    /// Adds a process that died of a signal. False if it is larger than a crash may be, or there are too many already.
    pub fn add_crash(&mut self, mut crash: Crash) -> bool {
        crash.clip();
        let bytes: usize = self.crashes.iter().map(Crash::approximate_bytes).sum();
        let fits = self.crashes.len() < MAX_CRASHES
            && bytes + crash.approximate_bytes() <= MAX_CRASHES_BYTES
            && crash.frames.len() <= MAX_CRASH_FRAMES
            && crash.stack.len() <= MAX_CRASH_INNER + MAX_CRASH_OUTER
            && crash.earlier.as_ref().is_none_or(|earlier| earlier.stack.len() <= MAX_CRASH_OUTER);
        if fits {
            self.crashes.push(crash);
        }
        fits
    }

    /// The budgets.
    #[must_use]
    pub const fn limits(&self) -> &ProfileLimits {
        &self.limits
    }

    /// Changes the budgets. A table that holds more already stays as it is.
    pub fn set_limits(&mut self, limits: ProfileLimits) {
        self.contexts.set_limit(limits.context_bytes);
        self.charges.set_limit(limits.charge_bytes);
        self.routes.set_limit(limits.route_bytes);
        self.limits = limits;
    }

    /// Enters something that a user pays for: it has to fit into that user's shares of the tables of names, functions, lines,
    /// images, processes and threads. `None` for root and the session's own user, who may take all.
    pub fn paid_by<T>(&mut self, payer: Option<Payer>, enter: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.shares.set_payer(payer);
        let entered = enter(self);
        self.shares.set_payer(before);
        entered
    }

    /// Whether the contexts or the charges have used about half of their budget, and have to grow.
    #[must_use]
    pub fn is_tight(&self) -> bool {
        self.contexts.is_tight() || self.charges.is_tight()
    }

    /// Bytes of all names.
    #[must_use]
    pub const fn name_bytes(&self) -> usize {
        self.string_bytes
    }

    /// The image with this name and build id, added if it is new.
    pub fn add_image(&mut self, mut image: Image) -> ImageId {
        clip_string(&mut image.name);
        image.build_id.truncate(MAX_BUILD_ID_BYTES);
        if let Some(i) = self.images.find(&(&image.name, &image.build_id)) {
            return ImageId(i);
        }
        let taken = (self.images.len() + 1, self.limits.images);
        if !self.take_room(taken, image.name.len(), Shed::Images) {
            image = Image { name: OTHER.to_owned(), build_id: Vec::new() };
            if let Some(i) = self.images.find(&(&image.name, &image.build_id)) {
                return ImageId(i);
            }
        }
        self.add_string_bytes(image.name.len() + image.build_id.len());
        ImageId(self.images.insert(image))
    }

    /// The cost centre with this identity, if there is one; see [`CostCentre`] and [`Profile::add_cost_centre`].
    #[must_use]
    pub fn find_cost_centre(
        &self,
        image: ImageId,
        linkage_name: Option<&str>,
        start: Option<u64>,
        local: Option<(Option<&str>, u32)>,
    ) -> Option<CostCentreId> {
        let linkage = linkage_name.map(clip);
        let definition = match (linkage, local) {
            (Some(_), None) => (None, None),
            (Some(_), Some((Some(file), line))) => (Some(clip(file)), Some(u64::from(line))),
            (Some(_), Some((None, _))) | (None, _) => (None, start),
        };
        self.cost_centres.find(&(image.0, linkage, definition)).map(CostCentreId)
    }

    /// The cost centre with this identity, added if it is new. The first description holds.
    ///
    /// [`CostCentreId::ELIDED`] if there are too many, or if the image does not exist.
    pub fn add_cost_centre(&mut self, cost_centre: CostCentre) -> CostCentreId {
        self.add_cost_centre_within(cost_centre, self.limits.cost_centres)
    }

    fn add_cost_centre_within(&mut self, mut cost_centre: CostCentre, limit: usize) -> CostCentreId {
        let CostCentre { linkage_name, display_name, file, .. } = &mut cost_centre;
        for text in [linkage_name, display_name, file].into_iter().flatten() {
            clip_string(text);
        }
        if let Some(i) = self.cost_centres.find(&cost_centre.key()) {
            return CostCentreId(i);
        }
        let is_special = limit == usize::MAX;
        if self.images.get(cost_centre.image.0).is_none() {
            return CostCentreId::ELIDED;
        }
        if !is_special && !self.shares.has(Shed::Functions, (self.cost_centres.len(), limit), 1) {
            self.accounting.count_shed(Shed::Functions);
            return CostCentreId::ELIDED;
        }
        if !is_special && !self.has_room_for(string_bytes(&cost_centre)) {
            self.accounting.count_shed(Shed::Names);
            // No room for names: the address has to do, if there is one.
            let CostCentre { image, start, line, .. } = cost_centre;
            if start.is_none() {
                return CostCentreId::ELIDED;
            }
            cost_centre =
                CostCentre { image, start, line, linkage_name: None, display_name: None, file: None, local: false };
            if let Some(i) = self.cost_centres.find(&cost_centre.key()) {
                return CostCentreId(i);
            }
        }
        if is_special {
            self.string_bytes += string_bytes(&cost_centre);
        } else {
            self.shares.add(Shed::Functions, 1);
            self.add_string_bytes(string_bytes(&cost_centre));
        }
        CostCentreId(self.cost_centres.insert(cost_centre))
    }

    /// The cost centre below everything in a stack without its root: `[truncated: stack copy too small]`.
    pub fn truncated_cost_centre(&mut self, reason: TruncationReason) -> CostCentreId {
        self.add_special(&format!("[truncated: {reason}]"))
    }

    /// The cost centre in place of a stack's unknown middle: `[gap: stack copy too small]`.
    pub fn gap_cost_centre(&mut self, reason: TruncationReason) -> CostCentreId {
        self.add_special(&format!("[gap: {reason}]"))
    }

    /// Charges CPU time without samples (I13) to `[not sampled]` below a thread's root. Missing weights count as 0.
    pub fn charge_not_sampled(&mut self, thread: ThreadId, weights: &[u64]) {
        let centre = self.add_special(NOT_SAMPLED);
        let context = self.contexts.push(ContextId::ROOT, centre);
        self.charge_many(thread, context, LineId::UNKNOWN, 0, weights);
    }

    /// The cost centre `[not sampled]`, if anything is charged to it.
    #[must_use]
    pub fn not_sampled_cost_centre(&self) -> Option<CostCentreId> {
        self.find_cost_centre(ImageId::CCSD, Some(NOT_SAMPLED), None, None)
    }

    /// A cost centre of the profiler's own, such as `[truncated: ...]`. They are few: no budget applies.
    pub(crate) fn add_special(&mut self, name: &str) -> CostCentreId {
        let image = ImageId::CCSD;
        let special = CostCentre::named(image, name);
        self.add_cost_centre_within(special, usize::MAX)
    }

    /// The line, added if new; [`LineId::UNKNOWN`] for an empty file and line 0, and if there are too many.
    pub fn add_line(&mut self, file: &str, line: u32) -> LineId {
        let file = clip(file);
        if let Some(i) = self.lines.find(&(file, line)) {
            return LineId(i);
        }
        let taken = (self.lines.len(), self.limits.lines);
        if !self.take_room(taken, self.files.added_bytes(file), Shed::Lines) {
            return LineId::UNKNOWN;
        }
        self.add_string_bytes(self.files.added_bytes(file));
        let file = self.files.intern(file);
        LineId(self.lines.insert(Line { file, line }))
    }

    /// The process with this identity (pid, start time, exec generation), added if it is new. Where three quarters of the
    /// table are taken, it is the one entry of all further processes of this name and membership.
    pub fn add_process(&mut self, mut process: Process) -> ProcessId {
        clip_string(&mut process.name);
        if let Some(membership) = process
            .membership
            .as_mut()
            .filter(|it| it.cgroup.len() + it.user.len() + it.container_name.len() > MAX_STRING_BYTES)
        {
            *membership = Arc::default();
        }
        if let Some(i) = self.processes.find(&process.key()) {
            return ProcessId(i);
        }
        if process.parent.is_some_and(|parent| parent.index() >= self.processes.len()) {
            process.parent = None;
        }
        let limit = self.shares.usable(self.limits.processes);
        let own = if process.is_grouped() { limit } else { limit - limit / 4 };
        if !self.take_room((self.processes.len() + 1, own), process.name.len(), Shed::Processes) {
            return self.grouped_process(process.name, process.membership);
        }
        self.insert_process(process)
    }

    /// Readers tell processes apart by number, start and generation, so that each entry has a generation of its own.
    fn insert_process(&mut self, mut process: Process) -> ProcessId {
        if process.is_grouped() {
            process.exec_generation = Process::GROUPED.saturating_add(self.processes.len() as u32);
        }
        self.add_string_bytes(process.name.len());
        ProcessId(self.processes.insert(process))
    }

    /// The entry that all further processes of this name and membership share. Of ever new names, an eighth of the
    /// table is kept for those that do not go by their names, so that what they belong to is known still.
    fn grouped_process(&mut self, name: String, membership: Option<Arc<Membership>>) -> ProcessId {
        let limit = self.shares.usable(self.limits.processes);
        for (name, limit) in [(name, limit - limit / 8), (OTHER.to_owned(), limit)] {
            let group = Process::grouped(name, membership.clone());
            if let Some(i) = self.processes.find(&group.key()) {
                return ProcessId(i);
            }
            let taken = (self.processes.len() + 1, limit);
            if self.shares.has(Shed::Processes, taken, 1) && self.has_room_for(group.name.len()) {
                self.shares.add(Shed::Processes, 1);
                return self.insert_process(group);
            }
        }
        self.other_process()
    }

    /// The thread with this identity (process, tid), added if it is new.
    pub fn add_thread(&mut self, mut thread: Thread) -> ThreadId {
        clip_string(&mut thread.name);
        if let Some(i) = self.threads.find(&(thread.process.0, thread.tid)) {
            return ThreadId(i);
        }
        let Some(process) = self.processes.get(thread.process.0) else { return self.other_thread() };
        if process.is_grouped() {
            let shared = Thread { process: thread.process, tid: 0, name: process.name.clone() };
            return self.shared_thread(shared);
        }
        let limit = self.shares.usable(self.limits.threads);
        let taken = (self.threads.len() + 1, limit - limit / 4);
        if !self.take_room(taken, thread.name.len(), Shed::Threads) {
            return self.shared_thread(Thread { process: thread.process, tid: 0, name: OTHER.to_owned() });
        }
        self.add_string_bytes(thread.name.len());
        ThreadId(self.threads.insert(thread))
    }

    /// The thread that stands for several of a process.
    fn shared_thread(&mut self, thread: Thread) -> ThreadId {
        if let Some(i) = self.threads.find(&thread.key()) {
            return ThreadId(i);
        }
        let taken = (self.threads.len() + 1, self.shares.usable(self.limits.threads));
        if !self.shares.has(Shed::Threads, taken, 1) || !self.has_room_for(thread.name.len()) {
            return self.other_thread();
        }
        self.shares.add(Shed::Threads, 1);
        self.add_string_bytes(thread.name.len());
        ThreadId(self.threads.insert(thread))
    }

    /// Adds the processes and threads of another profile, which have the same numbers here as there.
    pub(crate) fn copy_runners(&mut self, processes: &[Process], threads: &[Thread]) {
        for process in processes {
            self.string_bytes += process.name.len();
            self.processes.insert(process.clone());
        }
        for thread in threads {
            self.string_bytes += thread.name.len();
            self.threads.insert(thread.clone());
        }
    }

    /// Takes room for one entry more than `len`, with a name of so many bytes. False, and counted, if there is none.
    fn take_room(&mut self, (len, limit): (usize, usize), name: usize, table: Shed) -> bool {
        let has_entry = self.shares.has(table, (len, limit), 1);
        let has_room = has_entry && (name == 0 || self.has_room_for(name));
        if has_room {
            self.shares.add(table, 1);
        } else {
            self.accounting.count_shed(if has_entry { Shed::Names } else { table });
        }
        has_room
    }

    fn has_room_for(&self, bytes: usize) -> bool {
        self.shares.has(Shed::Names, (self.string_bytes, self.limits.string_bytes), bytes)
    }

    /// Counts bytes of names that are entered.
    fn add_string_bytes(&mut self, bytes: usize) {
        self.string_bytes += bytes;
        self.shares.add(Shed::Names, bytes);
    }

    fn other_process(&mut self) -> ProcessId {
        let other = Process::grouped(OTHER.to_owned(), None);
        self.processes.find(&other.key()).map_or_else(|| self.insert_process(other), ProcessId)
    }

    fn other_thread(&mut self) -> ThreadId {
        let process = self.other_process();
        if let Some(i) = self.threads.find(&(process.0, 0)) {
            return ThreadId(i);
        }
        ThreadId(self.threads.insert(Thread { process, tid: 0, name: OTHER.to_owned() }))
    }

    /// Gives a process a new name, and returns its entry: another one, if it shares one. Nothing happens if it does not
    /// exist.
    pub fn rename_process(&mut self, id: ProcessId, name: &str) -> ProcessId {
        if let Some(process) = self.processes.get_mut(id.0)
            && process.name != clip(name)
        {
            if process.is_grouped() {
                let membership = process.membership.clone();
                return self.grouped_process(clip(name).to_owned(), membership);
            }
            process.name = clip(name).to_owned();
            if id.0 < self.sent.counts.processes {
                self.sent.renamed_processes.push(id);
            }
        }
        id
    }

    /// Gives a thread a new name. Nothing happens if it does not exist.
    pub fn rename_thread(&mut self, id: ThreadId, name: &str) {
        if let Some(thread) = self.threads.get_mut(id.0)
            && thread.name != clip(name)
            && !self.processes.get(thread.process.0).is_some_and(Process::is_grouped)
        {
            thread.name = clip(name).to_owned();
            if id.0 < self.sent.counts.threads {
                self.sent.renamed_threads.push(id);
            }
        }
    }

    /// The image, if it exists.
    #[must_use]
    pub fn image(&self, id: ImageId) -> Option<&Image> {
        self.images.get(id.0)
    }

    /// The cost centre, if it exists.
    #[must_use]
    pub fn cost_centre(&self, id: CostCentreId) -> Option<&CostCentre> {
        self.cost_centres.get(id.0)
    }

    /// The source line, if it exists. [`LineId::UNKNOWN`] is the line 0 of an empty file, and so are
    /// [offsets](Profile::offset).
    #[must_use]
    pub fn line(&self, id: LineId) -> Option<&Line> {
        self.lines.get(self.source_line(id).0)
    }

    /// The process, if it exists.
    #[must_use]
    pub fn process(&self, id: ProcessId) -> Option<&Process> {
        self.processes.get(id.0)
    }

    /// The thread, if it exists.
    #[must_use]
    pub fn thread(&self, id: ThreadId) -> Option<&Thread> {
        self.threads.get(id.0)
    }

    /// All images, in order of their ids.
    #[must_use]
    pub fn images(&self) -> &[Image] {
        self.images.items()
    }

    /// All cost centres, in order of their ids.
    #[must_use]
    pub fn cost_centres(&self) -> &[CostCentre] {
        self.cost_centres.items()
    }

    /// All lines, in order of their ids.
    #[must_use]
    pub fn lines(&self) -> &[Line] {
        self.lines.items()
    }

    /// All processes, in order of their ids.
    #[must_use]
    pub fn processes(&self) -> &[Process] {
        self.processes.items()
    }

    /// All threads, in order of their ids.
    #[must_use]
    pub fn threads(&self) -> &[Thread] {
        self.threads.items()
    }

    /// The contexts, as they were charged: what was named later ([`Profile::real`]) has no name here.
    #[must_use]
    pub const fn contexts(&self) -> &ContextTable {
        &self.contexts
    }

    /// The contexts, to push to.
    pub const fn contexts_mut(&mut self) -> &mut ContextTable {
        &mut self.contexts
    }

    /// The routes: the call sites of stacks.
    #[must_use]
    pub const fn routes(&self) -> &RouteTable {
        &self.routes
    }

    /// Whether any source line of a call is known.
    #[must_use]
    pub fn has_call_sites(&self) -> bool {
        self.routes.range(1, u32::MAX).iter().any(|site| self.offset(site.line).is_none())
    }

    /// The route after a call of `function` from `line`. Unknown lines and functions without debug information add
    /// nothing.
    #[inline]
    pub fn push_site(&mut self, route: RouteId, function: CostCentreId, line: LineId) -> RouteId {
        let has_lines = || self.cost_centre(function).is_some_and(|centre| centre.file.is_some());
        if line == LineId::UNKNOWN && !has_lines() {
            return route;
        }
        if self.routes.is_tight() && self.offset(line).is_some() {
            self.accounting.count_shed(Shed::Offsets);
            return route;
        }
        self.routes.push(route, function, line)
    }

    /// As [`Profile::push_site`], for sites of routes that are known: equal routes may stay several, and offsets are kept
    /// as long as there is room.
    pub(crate) fn push_known_site(&mut self, route: RouteId, function: CostCentreId, line: LineId) -> RouteId {
        let has_lines = || self.cost_centre(function).is_some_and(|centre| centre.file.is_some());
        if line == LineId::UNKNOWN && !has_lines() { route } else { self.routes.graft(route, function, line) }
    }

    /// What became of the samples.
    #[must_use]
    pub const fn accounting(&self) -> &Accounting {
        &self.accounting
    }

    /// What became of the samples, to be kept up by the collector.
    pub const fn accounting_mut(&mut self) -> &mut Accounting {
        &mut self.accounting
    }

    /// Charges one sample: `weights[m]` to metric m; missing weights count as 0, further ones are ignored.
    ///
    /// O(1), without allocation for a repeated charge. Counts elided samples in `accounting.elided`; all other
    /// accounting is the caller's.
    #[inline]
    pub fn charge(&mut self, thread: ThreadId, context: ContextId, line: LineId, weights: &[u64]) {
        self.charge_many(thread, context, line, 1, weights);
    }

    /// Charges one sample, as [`Profile::charge`], of which is known from which lines its callers made their calls.
    #[inline]
    pub fn charge_route(
        &mut self,
        thread: ThreadId,
        context: ContextId,
        mut line: LineId,
        route: RouteId,
        weights: &[u64],
    ) {
        if line != LineId::UNKNOWN && self.charges.is_tight() && self.offset(line).is_some() {
            self.accounting.count_shed(Shed::Offsets);
            line = LineId::UNKNOWN;
        }
        if route.is_cut() {
            self.accounting.count_shed(Shed::Routes);
        }
        self.charge_squares((thread, context, line, route), 1, weights, None);
    }

    /// Charges several samples of equal weight at once: `samples` of them, `weights` in all.
    pub fn charge_many(&mut self, thread: ThreadId, context: ContextId, line: LineId, samples: u64, weights: &[u64]) {
        self.charge_squares((thread, context, line, RouteId::EMPTY), samples, weights, None);
    }

    /// Charges what another profile charged in one place, with its sums of squares.
    pub fn charge_sums(&mut self, place: (ThreadId, ContextId, LineId, RouteId), sums: &Charge<'_>) {
        self.charge_squares(place, sums.samples, sums.weights, Some(sums.squares));
    }

    #[inline]
    pub(crate) fn charge_squares(
        &mut self,
        (thread, context, line, route): (ThreadId, ContextId, LineId, RouteId),
        samples: u64,
        weights: &[u64],
        squares: Option<&[Squares]>,
    ) {
        let known = thread.index() < self.threads.len()
            && context.index() < self.contexts.len()
            && line.index() < self.lines.len()
            && route.index() < self.routes.len();
        let elided = self.contexts.is_elided(context);
        if !known {
            self.charge_elided(thread, samples, weights, squares);
        } else if !self.charges.add((thread.0, context.0, line.0, route.0), samples, weights, squares, RowKind::Own) {
            self.accounting.shed.add(Shed::Charges, samples);
            self.charge_caller(thread, context, samples, weights, squares);
        } else if elided {
            self.accounting.elided = self.accounting.elided.saturating_add(samples);
        }
    }

    /// Charges a sample without a row to its deepest caller with one, or one call deeper if there is room, so that the
    /// outer callers of all stacks come first.
    #[cold]
    fn charge_caller(
        &mut self,
        thread: ThreadId,
        context: ContextId,
        samples: u64,
        weights: &[u64],
        squares: Option<&[Squares]>,
    ) {
        // Its calls are not known.
        let row = |elided: ContextId| (thread.0, elided.0, LineId::UNKNOWN.0, RouteId::EMPTY.cut().0);
        let mut at = self.contexts.prefix(context);
        let (mut found, mut deeper) = (ContextId::ELIDED, None);
        for _ in 0..MAX_CALLERS {
            if let Some(elided) = self.contexts.find_elided(at)
                && (at == ContextId::ROOT || self.charges.contains(row(elided)))
            {
                found = elided;
                break;
            }
            deeper = Some(at);
            at = self.contexts.parent(at).unwrap_or(ContextId::ROOT);
        }
        if let Some(deeper) = deeper.filter(|_| self.charges.has_room(RowKind::Coarse)) {
            found = self.contexts.elide(deeper);
        }
        if found == ContextId::ELIDED || !self.charges.add(row(found), samples, weights, squares, RowKind::Coarse) {
            return self.charge_elided(thread, samples, weights, squares);
        }
        self.accounting.elided = self.accounting.elided.saturating_add(samples);
    }

    /// Charges to the thread's `[elided]`, beyond any budget: one row for each thread, and threads are limited.
    #[cold]
    pub(crate) fn charge_elided(
        &mut self,
        thread: ThreadId,
        samples: u64,
        weights: &[u64],
        squares: Option<&[Squares]>,
    ) {
        let thread = if thread.index() < self.threads.len() { thread } else { self.other_thread() };
        self.accounting.elided = self.accounting.elided.saturating_add(samples);
        let key = (thread.0, ContextId::ELIDED.0, LineId::UNKNOWN.0, RouteId::EMPTY.cut().0);
        self.charges.add(key, samples, weights, squares, RowKind::Always);
    }

    /// Calls `visit` with every charge, in order of first occurrence.
    pub fn for_each_charge(&self, mut visit: impl FnMut(Charge<'_>)) {
        self.charges.for_each(|row, weights, squares| {
            visit(Charge {
                thread: ThreadId(row.thread),
                context: ContextId(row.context),
                line: LineId(row.line),
                route: RouteId(row.route),
                samples: row.samples(),
                weights,
                squares,
            });
        });
    }

    /// Number of different (thread, context, line, route) charged.
    #[must_use]
    pub fn charge_count(&self) -> usize {
        self.charges.len()
    }

    /// Bytes allocated for contexts, charges, tables and names. (What the allocator adds to each name is not counted.)
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.string_bytes
            + self.contexts.bytes()
            + self.generations.current.as_ref().map_or(0, Generation::bytes)
            + self.namings.bytes()
            + self.charges.bytes()
            + self.routes.bytes()
            + self.images.bytes()
            + self.cost_centres.bytes()
            + self.lines.bytes()
            + self.processes.bytes()
            + self.threads.bytes()
    }
}

/// Name of the cost centre of CPU time that no sample stands for.
pub(crate) const NOT_SAMPLED: &str = "[not sampled]";

/// Name of what stands for entries that there was no room for.
const OTHER: &str = "[other]";

/// Callers examined for a sample without a row, innermost first. More are a recursion over many functions.
const MAX_CALLERS: usize = 4096;

/// Longest build id kept: GNU build ids are 20 bytes (SHA-1), the longest hash in use has 64.
const MAX_BUILD_ID_BYTES: usize = 64;

pub(crate) fn string_bytes(cost_centre: &CostCentre) -> usize {
    let CostCentre { linkage_name, display_name, file, .. } = cost_centre;
    [linkage_name, display_name, file].into_iter().flatten().map(String::len).sum()
}
