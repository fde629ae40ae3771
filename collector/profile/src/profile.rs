//! A profile: what a session found out so far.

use crate::accounting::{Accounting, TruncationReason};
use crate::charges::Charges;
use crate::context::ContextTable;
use crate::error::UpdateError;
use crate::ids::{ContextId, CostCentreId, ImageId, LineId, ProcessId, ThreadId};
use crate::limits::{Limits, MAX_METRICS};
use crate::model::{CostCentre, Image, Line, Process, Session, Thread};
use crate::symbols::{Files, Table, clip, clip_string};
use crate::update::{ChargeDelta, Counts, NewContext, Update};

/// Everything charged in one place: a thread, a context, a line of the context's running function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge<'a> {
    /// The thread that ran.
    pub thread: ThreadId,
    /// Its context.
    pub context: ContextId,
    /// The line, or [`LineId::UNKNOWN`].
    pub line: LineId,
    /// Number of samples.
    pub samples: u64,
    /// One weight for each metric of the session.
    pub weights: &'a [u64],
}

/// A profile in memory: the tables behind the ids, the contexts, what was charged, and the accounting.
///
/// Invariant I1: for each metric, the sum of all charges is the weight of all samples charged, whatever the budgets are:
/// what has no place of its own is charged to a coarser one.
#[derive(Debug)]
pub struct Profile {
    pub(crate) session: Session,
    pub(crate) limits: Limits,
    pub(crate) images: Table<Image>,
    pub(crate) cost_centres: Table<CostCentre>,
    pub(crate) lines: Table<Line>,
    pub(crate) files: Files,
    pub(crate) processes: Table<Process>,
    pub(crate) threads: Table<Thread>,
    pub(crate) contexts: ContextTable,
    pub(crate) charges: Charges,
    pub(crate) accounting: Accounting,
    /// Accounting of the last update.
    settled_accounting: Accounting,
    renamed_processes: Vec<ProcessId>,
    renamed_threads: Vec<ThreadId>,
    /// What the updates taken so far hold.
    sent: Counts,
    sent_notes: usize,
}

impl Profile {
    /// An empty profile. `session.metrics` is cut to [`MAX_METRICS`].
    #[must_use]
    pub fn new(mut session: Session, limits: Limits) -> Self {
        session.metrics.truncate(MAX_METRICS);
        let mut profile = Self {
            charges: Charges::new(session.metrics.len(), limits.charge_bytes),
            contexts: ContextTable::new(limits.context_bytes),
            sent_notes: session.notes.len(),
            session,
            limits,
            images: Table::new(),
            cost_centres: Table::new(),
            lines: Table::new(),
            files: Files::new(),
            processes: Table::new(),
            threads: Table::new(),
            accounting: Accounting::default(),
            settled_accounting: Accounting::default(),
            renamed_processes: Vec::new(),
            renamed_threads: Vec::new(),
            sent: Counts::default(),
        };
        // What every profile has, under the ids that the constants name.
        profile.images.insert(Image { name: "[ccsd]".into(), build_id: Vec::new() });
        profile.add_special("[elided]");
        profile.add_special("[root]");
        let file = profile.files.intern("");
        profile.lines.insert(Line { file, line: 0 });
        profile.sent = profile.counts();
        profile
    }

    /// What is profiled, how, since when.
    #[must_use]
    pub const fn session(&self) -> &Session {
        &self.session
    }

    /// The session, to describe it more precisely. Its metrics must stay as they are, and only new notes are sent on in
    /// updates.
    pub const fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Adds a line about a fallback taken, if it is not there yet.
    pub fn add_note(&mut self, note: &str) {
        let note = clip(note);
        if !self.session.notes.iter().any(|known| known == note) {
            self.session.notes.push(note.to_owned());
        }
    }

    /// The budgets.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The image with this name and build id, added if it is new.
    pub fn add_image(&mut self, mut image: Image) -> ImageId {
        clip_string(&mut image.name);
        image.build_id.truncate(MAX_BUILD_ID_BYTES);
        if let Some(i) = self.images.find(&(&image.name, &image.build_id)) {
            return ImageId(i);
        }
        if self.images.len() + 1 >= self.limits.images {
            image = Image { name: "[other]".into(), build_id: Vec::new() };
            if let Some(i) = self.images.find(&(&image.name, &image.build_id)) {
                return ImageId(i);
            }
        }
        ImageId(self.images.insert(image))
    }

    /// The cost centre with this identity, added if it is new. The first description of it holds.
    ///
    /// [`CostCentreId::ELIDED`] when there are too many, or when the image does not exist.
    pub fn add_cost_centre(&mut self, mut cost_centre: CostCentre) -> CostCentreId {
        let CostCentre { linkage_name, display_name, file, .. } = &mut cost_centre;
        for text in [linkage_name, display_name, file].into_iter().flatten() {
            clip_string(text);
        }
        if let Some(i) = self.cost_centres.find(&crate::symbols::Identity::key(&cost_centre)) {
            return CostCentreId(i);
        }
        if self.cost_centres.len() >= self.limits.cost_centres || self.images.get(cost_centre.image.0).is_none() {
            return CostCentreId::ELIDED;
        }
        CostCentreId(self.cost_centres.insert(cost_centre))
    }

    /// The cost centre that stands below everything in a stack that could not be unwound to its root, displayed as
    /// `[truncated: stack copy too small]`.
    pub fn truncated_cost_centre(&mut self, reason: TruncationReason) -> CostCentreId {
        self.add_special(&format!("[truncated: {reason}]"))
    }

    /// A cost centre of the profiler's own, such as `[truncated: ...]`.
    fn add_special(&mut self, name: &str) -> CostCentreId {
        let image = ImageId::CCSD;
        let special =
            CostCentre { image, linkage_name: Some(name.into()), display_name: None, start: None, file: None, line: 0 };
        self.add_cost_centre(special)
    }

    /// The line with this file and number, added if it is new; [`LineId::UNKNOWN`] for an empty file and line 0, and when
    /// there are too many.
    pub fn add_line(&mut self, file: &str, line: u32) -> LineId {
        let file = clip(file);
        if let Some(i) = self.lines.find(&(file, line)) {
            return LineId(i);
        }
        if self.lines.len() >= self.limits.lines {
            return LineId::UNKNOWN;
        }
        let file = self.files.intern(file);
        LineId(self.lines.insert(Line { file, line }))
    }

    /// The process with this identity (pid, start time, exec generation), added if it is new.
    pub fn add_process(&mut self, mut process: Process) -> ProcessId {
        clip_string(&mut process.name);
        if let Some(i) = self.processes.find(&(process.pid, process.start_time, process.exec_generation)) {
            return ProcessId(i);
        }
        if process.parent.is_some_and(|parent| parent.index() >= self.processes.len()) {
            process.parent = None;
        }
        if self.processes.len() + 1 >= self.limits.processes {
            return self.other_process();
        }
        ProcessId(self.processes.insert(process))
    }

    /// The thread with this identity (process, tid), added if it is new.
    pub fn add_thread(&mut self, mut thread: Thread) -> ThreadId {
        clip_string(&mut thread.name);
        if let Some(i) = self.threads.find(&(thread.process.0, thread.tid)) {
            return ThreadId(i);
        }
        if self.threads.len() + 1 >= self.limits.threads || self.processes.get(thread.process.0).is_none() {
            return self.other_thread();
        }
        ThreadId(self.threads.insert(thread))
    }

    /// The process that those share which there is no room for.
    fn other_process(&mut self) -> ProcessId {
        let other = Process { pid: 0, start_time: 0, exec_generation: u32::MAX, parent: None, name: "[other]".into() };
        if let Some(i) = self.processes.find(&(0, 0, u32::MAX)) {
            return ProcessId(i);
        }
        ProcessId(self.processes.insert(other))
    }

    /// The thread that those share which there is no room for.
    fn other_thread(&mut self) -> ThreadId {
        let process = self.other_process();
        if let Some(i) = self.threads.find(&(process.0, 0)) {
            return ThreadId(i);
        }
        ThreadId(self.threads.insert(Thread { process, tid: 0, name: "[other]".into() }))
    }

    /// Gives a process a new name. Nothing happens if it does not exist.
    pub fn rename_process(&mut self, id: ProcessId, name: &str) {
        if let Some(process) = self.processes.get_mut(id.0)
            && process.name != clip(name)
        {
            process.name = clip(name).to_owned();
            if id.0 < self.sent.processes {
                self.renamed_processes.push(id);
            }
        }
    }

    /// Gives a thread a new name. Nothing happens if it does not exist.
    pub fn rename_thread(&mut self, id: ThreadId, name: &str) {
        if let Some(thread) = self.threads.get_mut(id.0)
            && thread.name != clip(name)
        {
            thread.name = clip(name).to_owned();
            if id.0 < self.sent.threads {
                self.renamed_threads.push(id);
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

    /// The line, if it exists. [`LineId::UNKNOWN`] is the line 0 of an empty file.
    #[must_use]
    pub fn line(&self, id: LineId) -> Option<&Line> {
        self.lines.get(id.0)
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

    /// The contexts.
    #[must_use]
    pub const fn contexts(&self) -> &ContextTable {
        &self.contexts
    }

    /// The contexts, to push to.
    pub const fn contexts_mut(&mut self) -> &mut ContextTable {
        &mut self.contexts
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
    /// O(1), and without allocation where this thread, context and line were charged before. Counts the sample in
    /// `accounting.elided` if the context is `[elided]` or below, or if the budget makes it so; all other accounting is
    /// the caller's.
    #[inline]
    pub fn charge(&mut self, thread: ThreadId, context: ContextId, line: LineId, weights: &[u64]) {
        self.charge_many(thread, context, line, 1, weights);
    }

    /// Charges several samples at once: `samples` of them, `weights` in all.
    pub fn charge_many(&mut self, thread: ThreadId, context: ContextId, line: LineId, samples: u64, weights: &[u64]) {
        let known = thread.index() < self.threads.len()
            && context.index() < self.contexts.len()
            && line.index() < self.lines.len();
        let elided = self.contexts.is_elided(context);
        if !known || !self.charges.add((thread.0, context.0, line.0), samples, weights, false) {
            self.charge_coarsely(thread, context, samples, weights);
        } else if elided {
            self.accounting.elided = self.accounting.elided.saturating_add(samples);
        }
    }

    /// Charges where no budget applies: to `[elided]` of the thread. There is one such row for each thread, and threads
    /// are limited.
    #[cold]
    fn charge_coarsely(&mut self, thread: ThreadId, _context: ContextId, samples: u64, weights: &[u64]) {
        let thread = if thread.index() < self.threads.len() { thread } else { self.other_thread() };
        self.accounting.elided = self.accounting.elided.saturating_add(samples);
        self.charges.add((thread.0, ContextId::ELIDED.0, LineId::UNKNOWN.0), samples, weights, true);
    }

    /// Calls `visit` with every charge, in order of first occurrence.
    pub fn for_each_charge(&self, mut visit: impl FnMut(Charge<'_>)) {
        self.charges.for_each(|row, weights| {
            visit(Charge {
                thread: ThreadId(row.thread),
                context: ContextId(row.context),
                line: LineId(row.line),
                samples: row.samples(),
                weights,
            });
        });
    }

    /// Number of different (thread, context, line) charged.
    #[must_use]
    pub fn charge_count(&self) -> usize {
        self.charges.len()
    }

    /// Bytes allocated for contexts, charges and tables; the strings themselves are not counted.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.contexts.bytes()
            + self.charges.bytes()
            + self.images.bytes()
            + self.cost_centres.bytes()
            + self.lines.bytes()
            + self.processes.bytes()
            + self.threads.bytes()
    }

    fn counts(&self) -> Counts {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Counts {
            images: count(self.images.len()),
            cost_centres: count(self.cost_centres.len()),
            lines: count(self.lines.len()),
            processes: count(self.processes.len()),
            threads: count(self.threads.len()),
            contexts: count(self.contexts.len()),
        }
    }

    /// Everything new and everything charged since the last call, with the accounting as it is now.
    pub fn take_update(&mut self) -> Update {
        self.accounting.contexts = self.contexts.stats();
        self.accounting.pushes = self.accounting.pushes.max(self.accounting.contexts.pushes());
        let base = self.sent;
        let now = self.counts();
        let mut update = self.definitions(base, now);
        self.renamed_processes.sort_unstable();
        self.renamed_processes.dedup();
        self.renamed_threads.sort_unstable();
        self.renamed_threads.dedup();
        for id in self.renamed_processes.drain(..) {
            update.renamed_processes.extend(self.processes.get(id.0).map(|process| (id, process.name.clone())));
        }
        for id in self.renamed_threads.drain(..) {
            update.renamed_threads.extend(self.threads.get(id.0).map(|thread| (id, thread.name.clone())));
        }
        let Update { charges, weights, .. } = &mut update;
        self.charges.take(|row, samples, pending| {
            charges.push(delta(row, samples));
            weights.extend_from_slice(pending);
        });
        update.notes = self.session.notes.get(self.sent_notes..).unwrap_or(&[]).to_vec();
        update.from_ns = self.settled_accounting.duration_ns;
        update.to_ns = self.accounting.duration_ns;
        update.accounting = self.accounting.clone();
        self.settled_accounting = self.accounting.clone();
        self.sent = now;
        self.sent_notes = self.session.notes.len();
        update
    }

    /// All that the updates taken or applied so far hold, as one update for a new profile of this session (with the
    /// session's notes of the beginning; later ones are in the update). A reader that starts with this one and goes on
    /// with the following updates has the whole (I7).
    #[must_use]
    pub fn snapshot(&self) -> Update {
        let fresh = Counts { images: 1, cost_centres: 2, lines: 1, processes: 0, threads: 0, contexts: 2 };
        let mut update = self.definitions(fresh, self.sent);
        let Update { charges, weights, .. } = &mut update;
        self.charges.for_each_settled(|row, samples, settled| {
            charges.push(delta(row, samples));
            weights.extend_from_slice(settled);
        });
        sort_charges(charges, weights, self.session.metrics.len());
        update.notes = self.session.notes.get(..self.sent_notes).unwrap_or(&[]).to_vec();
        update.to_ns = self.settled_accounting.duration_ns;
        update.accounting = self.settled_accounting.clone();
        update
    }

    /// An update with the definitions of ids from `base` up to `end`.
    fn definitions(&self, base: Counts, end: Counts) -> Update {
        fn range<T: Clone>(items: &[T], from: u32, to: u32) -> Vec<T> {
            items.get(from as usize..to as usize).unwrap_or(&[]).to_vec()
        }
        Update {
            base,
            images: range(self.images.items(), base.images, end.images),
            cost_centres: range(self.cost_centres.items(), base.cost_centres, end.cost_centres),
            lines: range(self.lines.items(), base.lines, end.lines),
            processes: range(self.processes.items(), base.processes, end.processes),
            threads: range(self.threads.items(), base.threads, end.threads),
            contexts: (base.contexts..end.contexts)
                .map(ContextId)
                .filter_map(|id| {
                    let (parent, function) = self.contexts.parent(id).zip(self.contexts.leaf(id))?;
                    Some(NewContext { parent, function })
                })
                .collect(),
            ..Update::default()
        }
    }

    /// Applies an update of the session that this profile follows. What it charges counts as settled: a later
    /// `take_update` does not give it again.
    ///
    /// # Errors
    ///
    /// Every id, length and order is checked. After an error the profile is as it was.
    pub fn apply(&mut self, update: &Update) -> Result<(), UpdateError> {
        self.check(update)?;
        // Contexts first: the table itself finds out whether they are what pushes make, and can take them back.
        let contexts = self.contexts.len();
        for (new, id) in update.contexts.iter().zip(contexts..) {
            if self.contexts.append(new.parent, new.function).is_none() {
                self.contexts.truncate(contexts);
                return Err(UpdateError::BadContext(id as u32));
            }
        }
        // From here on nothing fails.
        for image in &update.images {
            self.images.insert(image.clone());
        }
        for cost_centre in &update.cost_centres {
            self.cost_centres.insert(cost_centre.clone());
        }
        for line in &update.lines {
            let file = self.files.intern(&line.file);
            self.lines.insert(Line { file, line: line.line });
        }
        for process in &update.processes {
            self.processes.insert(process.clone());
        }
        for thread in &update.threads {
            self.threads.insert(thread.clone());
        }
        for (id, name) in &update.renamed_processes {
            if let Some(process) = self.processes.get_mut(id.0) {
                clip(name).clone_into(&mut process.name);
            }
        }
        for (id, name) in &update.renamed_threads {
            if let Some(thread) = self.threads.get_mut(id.0) {
                clip(name).clone_into(&mut thread.name);
            }
        }
        for note in &update.notes {
            self.add_note(note);
        }
        self.accounting = update.accounting.clone();
        for (charge, weights) in update.charges_with_weights(self.session.metrics.len()) {
            let key = (charge.thread.0, charge.context.0, charge.line.0);
            if !self.charges.add(key, charge.samples, weights, false) {
                self.charge_coarsely(charge.thread, charge.context, charge.samples, weights);
            }
        }
        self.charges.take(|_, _, _| {});
        self.settled_accounting = self.accounting.clone();
        self.sent = self.counts();
        self.sent_notes = self.session.notes.len();
        Ok(())
    }

    /// Everything about an update that can be checked without changing anything.
    fn check(&self, update: &Update) -> Result<(), UpdateError> {
        let counts = self.counts();
        let base = update.base;
        let sequence = [
            ("image", base.images, counts.images),
            ("function", base.cost_centres, counts.cost_centres),
            ("line", base.lines, counts.lines),
            ("process", base.processes, counts.processes),
            ("thread", base.threads, counts.threads),
            ("context", base.contexts, counts.contexts),
        ];
        for (what, found, expected) in sequence {
            if found != expected {
                return Err(UpdateError::OutOfSequence { what, found, expected });
            }
        }
        let limits = &self.limits;
        let images = total("images", counts.images, update.images.len(), limits.images)?;
        let functions = total("functions", counts.cost_centres, update.cost_centres.len(), limits.cost_centres)?;
        let lines = total("lines", counts.lines, update.lines.len(), limits.lines)?;
        let processes = total("processes", counts.processes, update.processes.len(), limits.processes)?;
        let threads = total("threads", counts.threads, update.threads.len(), limits.threads)?;
        // A context takes at least 12 bytes, so the byte budget bounds their number, too.
        let contexts = total("contexts", counts.contexts, update.contexts.len(), limits.context_bytes / 12)?;

        unique("image", &self.images, &update.images)?;
        unique("function", &self.cost_centres, &update.cost_centres)?;
        unique("line", &self.lines, &update.lines)?;
        unique("process", &self.processes, &update.processes)?;
        unique("thread", &self.threads, &update.threads)?;
        let known = |what, id: u32, count| if id < count { Ok(()) } else { Err(UpdateError::UnknownId { what, id }) };
        for cost_centre in &update.cost_centres {
            known("image", cost_centre.image.0, images)?;
        }
        for (process, id) in update.processes.iter().zip(counts.processes..) {
            process.parent.map_or(Ok(()), |parent| known("process", parent.0, id))?;
        }
        for thread in &update.threads {
            known("process", thread.process.0, processes)?;
        }
        for (id, _) in &update.renamed_processes {
            known("process", id.0, processes)?;
        }
        for (id, _) in &update.renamed_threads {
            known("thread", id.0, threads)?;
        }
        for (new, id) in update.contexts.iter().zip(counts.contexts..) {
            known("context", new.parent.0, id)?;
            known("function", new.function.0, functions)?;
        }
        for charge in &update.charges {
            known("thread", charge.thread.0, threads)?;
            known("context", charge.context.0, contexts)?;
            known("line", charge.line.0, lines)?;
        }
        let expected = update.charges.len() * self.session.metrics.len();
        if update.weights.len() != expected {
            return Err(UpdateError::WeightCount { found: update.weights.len(), expected });
        }
        Ok(())
    }
}

/// Longest build id kept: GNU build ids are 20 bytes (SHA-1), the longest hash in use has 64.
const MAX_BUILD_ID_BYTES: usize = 64;

/// Number of things after an update.
fn total(what: &'static str, now: u32, more: usize, limit: usize) -> Result<u32, UpdateError> {
    match u32::try_from(more).ok().and_then(|more| now.checked_add(more)) {
        Some(total) if more == 0 || total as usize <= limit => Ok(total),
        _ => Err(UpdateError::TooMany { what, limit }),
    }
}

/// Checks that no new item equals a known one or another new one.
fn unique<T: crate::symbols::Identity>(what: &'static str, known: &Table<T>, new: &[T]) -> Result<(), UpdateError> {
    let mut seen = hashbrown::HashSet::new();
    for (i, item) in new.iter().enumerate() {
        let key = item.key();
        if known.find(&key).is_some() || !seen.insert(key) {
            return Err(UpdateError::Duplicate { what, id: (known.len() + i) as u32 });
        }
    }
    Ok(())
}

fn delta(row: &crate::charges::Row, samples: u64) -> ChargeDelta {
    ChargeDelta { thread: ThreadId(row.thread), context: ContextId(row.context), line: LineId(row.line), samples }
}

/// Sorts charges by key, their weights along.
fn sort_charges(charges: &mut [ChargeDelta], weights: &mut Vec<u64>, metrics: usize) {
    let mut order: Vec<usize> = (0..charges.len()).collect();
    order.sort_unstable_by_key(|&i| charges.get(i).copied());
    *weights =
        order.iter().flat_map(|&i| weights.get(i * metrics..(i + 1) * metrics).unwrap_or(&[])).copied().collect();
    charges.sort_unstable();
}
