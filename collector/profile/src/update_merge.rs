//! Two updates that follow each other, as one: what a reader gets who is slower than the updates come (I7).

use std::cmp::Ordering;

use crate::charges::ChargeTableKey;
use crate::crash::Crash;
use crate::error::UpdateError;
use crate::squares::{equal_squares, squared_metrics};
use crate::update::{ChargeDelta, DefinitionCounts, Update};

/// Updates that follow each other, merged as far as they are of one generation of contexts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Updates(Vec<Update>);

impl Updates {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the next update.
    ///
    /// # Errors
    /// As [`Update::merge`].
    pub fn add(&mut self, update: &Update) -> Result<(), UpdateError> {
        match self.0.last_mut() {
            Some(last) if !update.begins_generation(last.end().contexts) => last.merge(update),
            _ => {
                self.0.push(update.clone());
                Ok(())
            }
        }
    }
}

impl IntoIterator for Updates {
    type Item = Update;
    type IntoIter = std::vec::IntoIter<Update>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl Update {
    /// How many of each there are after this update.
    #[must_use]
    pub fn end(&self) -> DefinitionCounts {
        let after = |count: u32, more: usize| count.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
        DefinitionCounts {
            images: after(self.base.images, self.images.len()),
            cost_centres: after(self.base.cost_centres, self.cost_centres.len()),
            lines: after(self.base.lines, self.lines.len()),
            processes: after(self.base.processes, self.processes.len()),
            threads: after(self.base.threads, self.threads.len()),
            contexts: after(self.base.contexts, self.contexts.len()),
            routes: after(self.base.routes, self.routes.len()),
        }
    }

    /// Takes `later` in: applying this update is then applying both. Associative; the result is no larger than a
    /// snapshot of both (but for notes and crashes, which the session bounds).
    ///
    /// # Errors
    /// [`UpdateError::OutOfSequence`] if `later` is not next or begins a generation ([`Updates`]),
    /// [`UpdateError::WeightCount`] if their weights for each charge differ in number. This update is unchanged then.
    pub fn merge(&mut self, later: &Update) -> Result<(), UpdateError> {
        in_sequence(self.end(), later.base)?;
        let metrics = metrics(self, later)?;
        self.to_ns = later.to_ns;
        self.images.extend_from_slice(&later.images);
        self.cost_centres.extend_from_slice(&later.cost_centres);
        self.lines.extend_from_slice(&later.lines);
        self.processes.extend_from_slice(&later.processes);
        self.threads.extend_from_slice(&later.threads);
        rename(&mut self.renamed_processes, &later.renamed_processes);
        rename(&mut self.renamed_threads, &later.renamed_threads);
        self.contexts.extend_from_slice(&later.contexts);
        self.routes.extend_from_slice(&later.routes);
        self.namings.extend_from_slice(&later.namings);
        self.add_charges(later, metrics);
        self.notes.extend_from_slice(&later.notes);
        self.crashes.extend_from_slice(&later.crashes);
        self.accounting = later.accounting.clone();
        Ok(())
    }

    /// Bytes that this update takes in memory, about.
    #[must_use]
    pub fn approximate_bytes(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let named = |names: usize, items: usize, each: usize| names.saturating_add(items.saturating_mul(each));
        size_of::<Update>()
            + named(self.images.iter().map(|i| i.name.len() + i.build_id.len()).sum(), self.images.len(), 48)
            + named(
                self.cost_centres.iter().map(|c| text(&c.linkage_name) + text(&c.display_name) + text(&c.file)).sum(),
                self.cost_centres.len(),
                size_of::<crate::model::CostCentre>(),
            )
            + named(0, self.lines.len(), size_of::<crate::model::Line>())
            + named(
                self.processes.iter().map(|p| p.name.len()).sum(),
                self.processes.len(),
                size_of::<crate::model::Process>(),
            )
            + named(
                self.threads.iter().map(|t| t.name.len()).sum(),
                self.threads.len(),
                size_of::<crate::model::Thread>(),
            )
            + named(0, self.renamed_processes.len() + self.renamed_threads.len(), 48)
            + named(0, self.contexts.len() + self.namings.len(), 8)
            + named(0, self.routes.len(), 12)
            + named(0, self.charges.len(), size_of::<ChargeDelta>())
            + named(0, self.weights.len(), 8)
            + named(0, self.squares.len(), size_of::<crate::squares::Squares>())
            + named(self.crashes.iter().map(Crash::approximate_bytes).sum(), 0, 0)
            + named(self.notes.iter().map(String::len).sum(), self.notes.len(), 24)
    }

    fn add_charges(&mut self, later: &Update, metrics: usize) {
        if later.charges.is_empty() {
            return;
        }
        let squared = squared_metrics(metrics);
        let earlier = Update {
            charges: std::mem::take(&mut self.charges),
            weights: std::mem::take(&mut self.weights),
            squares: std::mem::take(&mut self.squares),
            ..Update::default()
        };
        let mut a = earlier.charges_with_weights(metrics).enumerate().peekable();
        let mut b = later.charges_with_weights(metrics).enumerate().peekable();
        self.charges.reserve(earlier.charges.len().max(later.charges.len()));
        self.weights.reserve(earlier.weights.len().max(later.weights.len()));
        loop {
            let which = match (a.peek(), b.peek()) {
                (Some((_, (a, _))), Some((_, (b, _)))) => key(a).cmp(&key(b)),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => break,
            };
            let mut sum: Option<ChargeDelta> = None;
            let (at, squares_at) = (self.weights.len(), self.squares.len());
            self.weights.resize(at + metrics, 0);
            self.squares.resize(squares_at + squared, 0);
            for (update, taken) in
                [(&earlier, a.next_if(|_| which != Ordering::Greater)), (later, b.next_if(|_| which != Ordering::Less))]
            {
                let Some((i, (delta, weights))) = taken else { continue };
                sum = Some(match sum {
                    Some(sum) => ChargeDelta { samples: sum.samples.saturating_add(delta.samples), ..sum },
                    None => *delta,
                });
                for (sum, weight) in self.weights.iter_mut().skip(at).zip(weights) {
                    *sum = sum.saturating_add(*weight);
                }
                let kept = update.squares_of(i, metrics);
                for ((m, sum), &weight) in self.squares.iter_mut().skip(squares_at).enumerate().zip(weights) {
                    let square = kept.and_then(|kept| kept.get(m).copied());
                    *sum = sum.saturating_add(square.unwrap_or_else(|| equal_squares(delta.samples, weight)));
                }
            }
            self.charges.extend(sum);
        }
        self.leave_out_squares(metrics);
    }
}

fn key(charge: &ChargeDelta) -> ChargeTableKey {
    (charge.thread.0, charge.context.0, charge.line.0, charge.route.0)
}

/// The later name of a thing is its name. Both lists are in the order of ids.
fn rename<I: Copy + Ord>(names: &mut Vec<(I, String)>, later: &[(I, String)]) {
    if later.is_empty() {
        return;
    }
    names.extend_from_slice(later);
    // The sort keeps the order of equal ids: the last of them is the latest.
    names.sort_by_key(|(id, _)| *id);
    names.reverse();
    names.dedup_by_key(|(id, _)| *id);
    names.reverse();
}

fn in_sequence(expected: DefinitionCounts, found: DefinitionCounts) -> Result<(), UpdateError> {
    let both = [
        ("image", found.images, expected.images),
        ("function", found.cost_centres, expected.cost_centres),
        ("line", found.lines, expected.lines),
        ("process", found.processes, expected.processes),
        ("thread", found.threads, expected.threads),
        ("context", found.contexts, expected.contexts),
        ("route", found.routes, expected.routes),
    ];
    match both.into_iter().find(|(_, found, expected)| found != expected) {
        Some((what, found, expected)) => Err(UpdateError::OutOfSequence { what, found, expected }),
        None => Ok(()),
    }
}

fn metrics(a: &Update, b: &Update) -> Result<usize, UpdateError> {
    let of = |update: &Update| update.weights.len().checked_div(update.charges.len());
    let metrics = of(a).or(of(b)).unwrap_or(0);
    for update in [a, b] {
        let expected = update.charges.len() * metrics;
        if update.weights.len() != expected {
            return Err(UpdateError::WeightCount { found: update.weights.len(), expected });
        }
        let expected = update.charges.len() * squared_metrics(metrics);
        if !update.squares.is_empty() && update.squares.len() != expected {
            return Err(UpdateError::WeightCount { found: update.squares.len(), expected });
        }
    }
    Ok(metrics)
}
