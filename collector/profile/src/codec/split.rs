//! Cuts an update too large for one record into several.
//!
//! Definitions go first, in the order in which they refer to each other; the charges come last, and only the last piece
//! has the new accounting. Applied in turn, the pieces are the update.

use crate::accounting::Accounting;
use crate::model::CostCentre;
use crate::squares::squared_metrics;
use crate::update::{DefinitionCounts, Update};

/// Definitions in one record: far more than an interval brings, and some 20 MiB for a reader.
pub(super) const RECORD_ITEMS: usize = 1 << 16;

/// Bytes of names in one record (and the name that goes beyond them), well below what a record may hold.
const RECORD_NAMES: usize = 4 << 20;

/// Numbers in the charges of one record, of which each takes up to 10 bytes.
const RECORD_NUMBERS: usize = 1 << 20;

/// Charges in one record: two ids, the samples and the weights are its numbers.
pub(super) const fn record_charges(metrics: usize) -> usize {
    RECORD_NUMBERS / (metrics + 3)
}

pub(super) fn fits(update: &Update, metrics: usize) -> bool {
    Size::of(update).fits(metrics)
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Size {
    items: usize,
    names: usize,
    charges: usize,
}

impl Size {
    pub(super) fn of(update: &Update) -> Self {
        Self { items: items(update), names: names(update), charges: update.charges.len() }
    }

    pub(super) fn and(self, other: Self) -> Self {
        let [items, names, charges] =
            [(self.items, other.items), (self.names, other.names), (self.charges, other.charges)]
                .map(|(a, b)| a.saturating_add(b));
        Self { items, names, charges }
    }

    pub(super) const fn fits(self, metrics: usize) -> bool {
        self.items <= RECORD_ITEMS && self.charges <= record_charges(metrics) && self.names <= RECORD_NAMES
    }
}

fn items(update: &Update) -> usize {
    update.images.len()
        + update.cost_centres.len()
        + update.lines.len()
        + update.processes.len()
        + update.threads.len()
        + update.renamed_processes.len()
        + update.renamed_threads.len()
        + update.contexts.len()
        + update.routes.len()
        + update.namings.len()
        + update.notes.len()
}

fn names(update: &Update) -> usize {
    let sums = [
        update.images.iter().map(|image| image.name.len() + image.build_id.len()).sum::<usize>(),
        update.cost_centres.iter().map(names_of).sum(),
        update.lines.iter().map(|line| line.file.len()).sum(),
        update.processes.iter().map(|process| process.name.len()).sum(),
        update.threads.iter().map(|thread| thread.name.len()).sum(),
        update.renamed_processes.iter().map(|(_, name)| name.len()).sum(),
        update.renamed_threads.iter().map(|(_, name)| name.len()).sum(),
        update.notes.iter().map(String::len).sum(),
    ];
    sums.iter().sum()
}

fn names_of(cost_centre: &CostCentre) -> usize {
    let CostCentre { linkage_name, display_name, file, .. } = cost_centre;
    [linkage_name, display_name, file].into_iter().flatten().map(String::len).sum()
}

struct PieceBudget {
    items: usize,
    names: usize,
}

impl PieceBudget {
    /// Moves items from the front of `from` as long as there is room; whether all were moved.
    fn take<T: Clone>(&mut self, from: &mut &[T], to: &mut Vec<T>, names: impl Fn(&T) -> usize) -> bool {
        while let Some((item, rest)) = from.split_first() {
            if self.items == 0 || self.names == 0 {
                return false;
            }
            self.items -= 1;
            self.names = self.names.saturating_sub(names(item));
            to.push(item.clone());
            *from = rest;
        }
        true
    }
}

pub(super) struct Pieces<'a> {
    whole: &'a Update,
    // What is left of the definitions.
    images: &'a [crate::model::Image],
    cost_centres: &'a [CostCentre],
    lines: &'a [crate::model::Line],
    processes: &'a [crate::model::Process],
    threads: &'a [crate::model::Thread],
    renamed_processes: &'a [(crate::ids::ProcessId, String)],
    renamed_threads: &'a [(crate::ids::ThreadId, String)],
    contexts: &'a [crate::update::NewContext],
    routes: &'a [crate::routes::NewRoute],
    namings: &'a [(crate::ids::CostCentreId, crate::ids::CostCentreId)],
    notes: &'a [String],
    charged: usize,
    base: DefinitionCounts,
    before: Accounting,
    metrics: usize,
    done: bool,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(whole: &'a Update, metrics: usize, before: Accounting) -> Self {
        Self {
            whole,
            images: &whole.images,
            cost_centres: &whole.cost_centres,
            lines: &whole.lines,
            processes: &whole.processes,
            threads: &whole.threads,
            renamed_processes: &whole.renamed_processes,
            renamed_threads: &whole.renamed_threads,
            contexts: &whole.contexts,
            routes: &whole.routes,
            namings: &whole.namings,
            notes: &whole.notes,
            charged: 0,
            base: whole.base,
            before,
            metrics,
            done: false,
        }
    }
}

impl Iterator for Pieces<'_> {
    type Item = Update;

    fn next(&mut self) -> Option<Update> {
        if self.done {
            return None;
        }
        let mut room = PieceBudget { items: RECORD_ITEMS, names: RECORD_NAMES };
        let whole = self.whole;
        let mut piece = Update { from_ns: whole.from_ns, to_ns: whole.to_ns, base: self.base, ..Update::default() };
        let defined = room.take(&mut self.images, &mut piece.images, |image| image.name.len() + image.build_id.len())
            && room.take(&mut self.cost_centres, &mut piece.cost_centres, names_of)
            && room.take(&mut self.lines, &mut piece.lines, |line| line.file.len())
            && room.take(&mut self.processes, &mut piece.processes, |process| process.name.len())
            && room.take(&mut self.threads, &mut piece.threads, |thread| thread.name.len())
            && room.take(&mut self.renamed_processes, &mut piece.renamed_processes, |(_, name)| name.len())
            && room.take(&mut self.renamed_threads, &mut piece.renamed_threads, |(_, name)| name.len())
            && room.take(&mut self.contexts, &mut piece.contexts, |_| 0)
            && room.take(&mut self.routes, &mut piece.routes, |_| 0)
            && room.take(&mut self.namings, &mut piece.namings, |_| 0)
            && room.take(&mut self.notes, &mut piece.notes, String::len);
        if defined {
            let end = whole.charges.len().min(self.charged.saturating_add(record_charges(self.metrics)));
            let weights = self.charged * self.metrics..end * self.metrics;
            let squared = squared_metrics(self.metrics);
            let squares = self.charged * squared..end * squared;
            piece.charges = whole.charges.get(self.charged..end).unwrap_or(&[]).to_vec();
            piece.weights = whole.weights.get(weights).unwrap_or(&[]).to_vec();
            piece.squares = whole.squares.get(squares).unwrap_or(&[]).to_vec();
            self.charged = end;
            self.done = end == whole.charges.len();
            if self.done {
                piece.crashes.clone_from(&whole.crashes);
            }
        }
        piece.accounting = if self.done { whole.accounting.clone() } else { self.before.clone() };
        let base = &mut self.base;
        for (count, more) in [
            (&mut base.images, piece.images.len()),
            (&mut base.cost_centres, piece.cost_centres.len()),
            (&mut base.lines, piece.lines.len()),
            (&mut base.processes, piece.processes.len()),
            (&mut base.threads, piece.threads.len()),
            (&mut base.contexts, piece.contexts.len()),
            (&mut base.routes, piece.routes.len()),
        ] {
            *count = count.saturating_add(more as u32);
        }
        Some(piece)
    }
}
