//! Profiles as streams of updates: what is new is taken at one end and applied at the other.

use crate::charges::{ChargeRow, RowKind};
use crate::error::UpdateError;
use crate::generation::Generation;
use crate::ids::{ContextId, CostCentreId, ImageId, LineId, RouteId, ThreadId};
use crate::model::Line;
use crate::profile::{Profile, string_bytes};
use crate::shed::Shed;
use crate::squares::{Squares, squared_metrics};
use crate::symbols::{Identity, InternTable, clip};
use crate::update::{ChargeDelta, DefinitionCounts, NewContext, Update};

impl Profile {
    pub(crate) fn counts(&self) -> DefinitionCounts {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        DefinitionCounts {
            images: count(self.images.len()),
            cost_centres: count(self.cost_centres.len()),
            lines: count(self.lines.len()),
            processes: count(self.processes.len()),
            threads: count(self.threads.len()),
            contexts: count(self.contexts.len()),
            routes: count(self.routes.len()),
        }
    }

    /// Everything new and everything charged since the last call, with the accounting as it is now.
    pub fn take_update(&mut self) -> Update {
        if self.flags.collecting {
            self.accounting.contexts = self.context_stats();
            self.accounting.shed.set(Shed::Contexts, self.accounting.contexts.elided);
            self.accounting.pushes = self.accounting.pushes.max(self.accounting.contexts.pushes());
        }
        let base = self.sent.counts;
        let now = self.counts();
        let mut update = self.definitions(base, now);
        let is_new = !update.contexts.is_empty() || !update.routes.is_empty();
        if let Some(generation) = self.generations.current.as_ref().filter(|_| !is_new) {
            // Those who go on with the stream have its numbering.
            update.base.contexts = generation.len() as u32;
            update.base.routes = generation.routes() as u32;
        }
        self.sent.renamed_processes.sort_unstable();
        self.sent.renamed_processes.dedup();
        self.sent.renamed_threads.sort_unstable();
        self.sent.renamed_threads.dedup();
        for id in self.sent.renamed_processes.drain(..) {
            update.renamed_processes.extend(self.processes.get(id.0).map(|process| (id, process.name.clone())));
        }
        for id in self.sent.renamed_threads.drain(..) {
            update.renamed_threads.extend(self.threads.get(id.0).map(|thread| (id, thread.name.clone())));
        }
        let Update { charges, weights, squares, .. } = &mut update;
        self.charges.take(|row, samples, pending, pending_squares| {
            charges.push(delta(row, samples));
            weights.extend_from_slice(pending);
            squares.extend_from_slice(pending_squares);
        });
        update.leave_out_squares(self.session.metrics.len());
        update.notes = self.session.notes.get(self.sent.notes..).unwrap_or(&[]).to_vec();
        update.namings = self.namings.list().get(self.sent.namings..).unwrap_or(&[]).to_vec();
        update.crashes = self.crashes.get(self.sent.crashes..).unwrap_or(&[]).to_vec();
        update.from_ns = self.sent.accounting.duration_ns;
        update.to_ns = self.accounting.duration_ns;
        update.accounting = self.accounting.clone();
        self.sent.accounting = self.accounting.clone();
        self.sent.counts = now;
        self.sent.notes = self.session.notes.len();
        self.sent.namings = self.namings.list().len();
        self.sent.crashes = self.crashes.len();
        update
    }

    /// The whole profile so far, as one update for a new profile of this session. A reader can go on with later updates
    /// (I7).
    #[must_use]
    pub fn snapshot(&self) -> Update {
        let mut update = self.definitions(DefinitionCounts::FRESH, self.sent.counts);
        let Update { charges, weights, squares, .. } = &mut update;
        self.charges.for_each_settled(|row, samples, settled, settled_squares| {
            charges.push(delta(row, samples));
            weights.extend_from_slice(settled);
            squares.extend_from_slice(settled_squares);
        });
        let metrics = self.session.metrics.len();
        sort_charges(charges, (weights, metrics), (squares, squared_metrics(metrics)));
        update.leave_out_squares(metrics);
        update.notes = self.session.notes.get(..self.sent.notes).unwrap_or(&[]).to_vec();
        update.namings = self.namings.list().get(..self.sent.namings).unwrap_or(&[]).to_vec();
        update.crashes = self.crashes.get(..self.sent.crashes).unwrap_or(&[]).to_vec();
        update.to_ns = self.sent.accounting.duration_ns;
        update.accounting = self.sent.accounting.clone();
        update
    }

    fn definitions(&self, base: DefinitionCounts, end: DefinitionCounts) -> Update {
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
            routes: self.routes.range(base.routes, end.routes),
            ..Update::default()
        }
    }

    /// Applies an update of the session. Its charges count as settled: no later `take_update` returns them.
    ///
    /// # Errors
    /// Every id, length and order is checked. After an error the profile is as it was.
    pub fn apply(&mut self, update: &Update) -> Result<(), UpdateError> {
        self.check(update)?;
        let namings = self.namings.list().len();
        for &(unnamed, function) in &update.namings {
            if !self.namings.add(unnamed, function) {
                self.namings.truncate(namings);
                return Err(UpdateError::BadNaming(unnamed.0));
            }
        }
        if update.begins_generation(self.stream_contexts()) {
            self.generations.current = Some(Generation::new());
        }
        if let Some(generation) = &mut self.generations.current {
            for &new in &update.contexts {
                generation.add(new, &mut self.contexts);
            }
            for &new in &update.routes {
                generation.add_route(new, &mut self.routes);
            }
        } else {
            let contexts = self.contexts.len();
            for (new, id) in update.contexts.iter().zip(contexts..) {
                if self.contexts.append(new.parent, new.function).is_none() {
                    self.contexts.truncate(contexts);
                    self.namings.truncate(namings);
                    return Err(UpdateError::BadContext(id as u32));
                }
            }
            let routes = self.routes.len();
            for (&new, id) in update.routes.iter().zip(routes..) {
                if self.routes.append(new).is_none() {
                    self.contexts.truncate(contexts);
                    self.routes.truncate(routes);
                    self.namings.truncate(namings);
                    return Err(UpdateError::BadRoute(id as u32));
                }
            }
        }
        self.flags.collecting = false;
        self.string_bytes += string_bytes_of(update, |_| 0);
        for image in &update.images {
            self.images.insert(image.clone());
        }
        for cost_centre in &update.cost_centres {
            self.cost_centres.insert(cost_centre.clone());
        }
        for line in &update.lines {
            self.string_bytes += self.files.added_bytes(&line.file);
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
                // The new name takes the place of the one before.
                self.string_bytes = self.string_bytes.saturating_sub(process.name.len());
                clip(name).clone_into(&mut process.name);
            }
        }
        for (id, name) in &update.renamed_threads {
            if let Some(thread) = self.threads.get_mut(id.0) {
                // The new name takes the place of the one before.
                self.string_bytes = self.string_bytes.saturating_sub(thread.name.len());
                clip(name).clone_into(&mut thread.name);
            }
        }
        for note in &update.notes {
            self.add_note(note);
        }
        for crash in &update.crashes {
            let _ = self.add_crash(crash.clone());
        }
        let metrics = self.session.metrics.len();
        for (i, (charge, weights)) in update.charges_with_weights(metrics).enumerate() {
            let squares = update.squares_of(i, metrics);
            let Some(generation) = &self.generations.current else {
                let key = (charge.thread.0, charge.context.0, charge.line.0, charge.route.0);
                if !self.charges.add(key, charge.samples, weights, squares, RowKind::Coarse) {
                    // No context of the reader's own: the ids are the writer's.
                    self.charge_elided(charge.thread, charge.samples, weights, squares);
                    self.count_elided_in_reading(charge.samples);
                }
                continue;
            };
            let was_elided = generation.is_elided(charge.context);
            let context = generation.charged(charge.context, &mut self.contexts);
            let route = generation.route(charge.route);
            let elided = self.accounting.elided;
            self.charge_squares((charge.thread, context, charge.line, route), charge.samples, weights, squares);
            if self.accounting.elided > elided && !was_elided {
                self.count_elided_in_reading(charge.samples);
            }
        }
        // What the collector says; see `elided_in_reading`.
        self.accounting = update.accounting.clone();
        self.charges.take(|_, _, _, _| {});
        self.sent.accounting = self.accounting.clone();
        self.sent.counts = self.counts();
        self.sent.notes = self.session.notes.len();
        self.sent.namings = self.namings.list().len();
        self.sent.crashes = self.crashes.len();
        Ok(())
    }

    /// Adds the samples that only this reader elided to the accounting. Call it after the last update.
    pub const fn count_own_elision(&mut self) {
        self.accounting.elided = self.accounting.elided.saturating_add(self.elided_in_reading);
    }

    fn count_elided_in_reading(&mut self, samples: u64) {
        self.elided_in_reading = self.elided_in_reading.saturating_add(samples);
        self.add_note(ELIDED_IN_READING);
    }

    /// Everything about an update that can be checked without changing anything.
    fn check(&self, update: &Update) -> Result<(), UpdateError> {
        let counts = self.counts();
        let base = update.base;
        let before = self.stream_contexts();
        let begins = update.begins_generation(before);
        let stream_contexts = if begins { DefinitionCounts::FRESH.contexts } else { before };
        let stream_routes = if begins { DefinitionCounts::FRESH.routes } else { self.stream_routes() };
        let sequence = [
            ("image", base.images, counts.images),
            ("function", base.cost_centres, counts.cost_centres),
            ("line", base.lines, counts.lines),
            ("process", base.processes, counts.processes),
            ("thread", base.threads, counts.threads),
            ("context", base.contexts, stream_contexts),
            ("route", base.routes, stream_routes),
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
        let contexts = total("contexts", stream_contexts, update.contexts.len(), limits.context_bytes / 12)?;

        let routes = total("routes", stream_routes, update.routes.len(), limits.route_bytes / 12)?;

        // Names of files are counted as often as they occur here, and once when they are kept.
        let names = string_bytes_of(update, |file| self.files.added_bytes(file));
        if names > 0 && self.string_bytes.saturating_add(names) > limits.string_bytes {
            return Err(UpdateError::TooMany { what: "bytes of names", limit: limits.string_bytes });
        }

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
        for (new, id) in update.contexts.iter().zip(stream_contexts..) {
            known("context", new.parent.0, id)?;
            known("function", new.function.0, functions)?;
        }
        for (new, id) in update.routes.iter().zip(stream_routes..) {
            let whole = RouteId(new.parent.0 & !1);
            known("route", if whole == new.parent { whole.number() } else { u32::MAX }, id)?;
            known("function", new.function.0, functions)?;
            known("line", new.line.0, lines)?;
        }
        for (unnamed, function) in &update.namings {
            known("function", unnamed.0, functions)?;
            known("function", function.0, functions)?;
            let new = |id: CostCentreId| update.cost_centres.get((id.0 as usize).checked_sub(self.cost_centres.len())?);
            let nameless = self.cost_centre(*unnamed).or_else(|| new(*unnamed));
            if nameless.is_none_or(|it| it.linkage_name.is_some() || it.image == ImageId::CCSD) {
                return Err(UpdateError::BadNaming(unnamed.0));
            }
        }
        for charge in &update.charges {
            known("thread", charge.thread.0, threads)?;
            known("context", charge.context.0, contexts)?;
            known("line", charge.line.0, lines)?;
            known("route", charge.route.number(), routes)?;
        }
        let expected = update.charges.len() * self.session.metrics.len();
        if update.weights.len() != expected {
            return Err(UpdateError::WeightCount { found: update.weights.len(), expected });
        }
        let expected = update.charges.len() * squared_metrics(self.session.metrics.len());
        if !update.squares.is_empty() && update.squares.len() != expected {
            return Err(UpdateError::WeightCount { found: update.squares.len(), expected });
        }
        Ok(())
    }
}

/// Noted where the contexts or charges of all generations go beyond the limits of a reader.
const ELIDED_IN_READING: &str = "the profile has more stacks than were kept in reading it: some count below [elided]";

fn string_bytes_of(update: &Update, mut file: impl FnMut(&str) -> usize) -> usize {
    let mut last = "";
    let mut lines = 0;
    for line in &update.lines {
        if *line.file != *last {
            lines += file(&line.file);
            last = &line.file;
        }
    }
    lines
        + update.images.iter().map(|image| image.name.len() + image.build_id.len()).sum::<usize>()
        + update.cost_centres.iter().map(string_bytes).sum::<usize>()
        + update.processes.iter().map(|process| process.name.len()).sum::<usize>()
        + update.threads.iter().map(|thread| thread.name.len()).sum::<usize>()
        + update.renamed_processes.iter().map(|(_, name)| name.len()).sum::<usize>()
        + update.renamed_threads.iter().map(|(_, name)| name.len()).sum::<usize>()
}

fn total(what: &'static str, now: u32, more: usize, limit: usize) -> Result<u32, UpdateError> {
    match u32::try_from(more).ok().and_then(|more| now.checked_add(more)) {
        Some(total) if more == 0 || total as usize <= limit => Ok(total),
        _ => Err(UpdateError::TooMany { what, limit }),
    }
}

/// Checks that no new item equals a known one or another new one.
fn unique<T: Identity>(what: &'static str, known: &InternTable<T>, new: &[T]) -> Result<(), UpdateError> {
    let mut seen = hashbrown::HashSet::new();
    for (i, item) in new.iter().enumerate() {
        let key = item.key();
        if known.find(&key).is_some() || !seen.insert(key) {
            return Err(UpdateError::Duplicate { what, id: (known.len() + i) as u32 });
        }
    }
    Ok(())
}

fn delta(row: &ChargeRow, samples: u64) -> ChargeDelta {
    ChargeDelta {
        thread: ThreadId(row.thread),
        context: ContextId(row.context),
        line: LineId(row.line),
        route: RouteId(row.route),
        samples,
    }
}

/// Sorts charges by key, their weights and squares along: so many of each a charge.
pub(crate) fn sort_charges(
    charges: &mut [ChargeDelta],
    (weights, metrics): (&mut Vec<u64>, usize),
    (squares, squared): (&mut Vec<Squares>, usize),
) {
    fn ordered<T: Copy>(order: &[usize], values: &[T], each: usize) -> Vec<T> {
        order.iter().flat_map(|&i| values.get(i * each..(i + 1) * each).unwrap_or(&[])).copied().collect()
    }
    let mut order: Vec<usize> = (0..charges.len()).collect();
    order.sort_unstable_by_key(|&i| charges.get(i).copied());
    *weights = ordered(&order, weights, metrics);
    *squares = ordered(&order, squares, squared);
    charges.sort_unstable();
}
