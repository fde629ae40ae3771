//! Charges: (thread, context, line, route) -> samples and weights.
//!
//! A sample adds only to the pending part of its row; `take` moves pending parts to the settled ones. So both a total
//! and a delta are kept at no cost per sample.

use hashbrown::HashTable;

use crate::hash::{mix4, random_seed};
use crate::squares::{Squares, equal_squares, squared_metrics};

/// The row's sums of squares follow from its samples and weights.
const FOLLOWS: u32 = u32::MAX;

/// Thread, context, line and route.
pub(crate) type ChargeTableKey = (u32, u32, u32, u32);

#[derive(Clone, Copy, Debug)]
pub(crate) struct ChargeRow {
    pub(crate) thread: u32,
    pub(crate) context: u32,
    pub(crate) line: u32,
    pub(crate) route: u32,
    /// Index of its sums of squares, or [`FOLLOWS`].
    squares: u32,
    settled: u64,
    pending: u64,
}

impl ChargeRow {
    pub(crate) const fn samples(&self) -> u64 {
        self.settled.saturating_add(self.pending)
    }
}

/// The kind of a row, which determines its part of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowKind {
    /// A distinct context, line and route.
    Own,
    /// A caller, for samples without a row of their own.
    Coarse,
    Always,
}

/// One part in this many of the rows is reserved for callers.
const COARSE_PART: usize = 4;

#[derive(Debug)]
pub(crate) struct ChargeTable {
    index: HashTable<u32>,
    rows: Vec<ChargeRow>,
    /// For each row: the settled weight of each metric, then the pending one of each.
    weights: Vec<u64>,
    /// For each row with samples of different weights, in the same order.
    squares: Vec<Squares>,
    /// Rows with a pending part.
    dirty: Vec<u32>,
    metrics: usize,
    /// Number of metrics with squares.
    squared: usize,
    seed: u64,
    limit: usize,
}

impl ChargeTable {
    pub(crate) fn new(metrics: usize, limit: usize) -> Self {
        Self {
            index: HashTable::new(),
            rows: Vec::new(),
            weights: Vec::new(),
            squares: Vec::new(),
            dirty: Vec::new(),
            metrics,
            squared: squared_metrics(metrics),
            seed: random_seed(),
            limit,
        }
    }

    /// Adds to a row's pending part. Without `squares`, all samples weigh the same. False if there is no `room` for a
    /// new row.
    #[inline]
    pub(crate) fn add(
        &mut self,
        key: ChargeTableKey,
        samples: u64,
        weights: &[u64],
        squares: Option<&[Squares]>,
        room: RowKind,
    ) -> bool {
        let hash = self.hash(key);
        let i = match self.find(hash, key) {
            Some(i) => i as usize,
            None if self.has_room(room) => self.insert(hash, key),
            None => return false,
        };
        self.add_squares(i, samples, weights, squares);
        let Some(row) = self.rows.get_mut(i) else { return false };
        if row.pending == 0 {
            self.dirty.push(i as u32);
        }
        row.pending = row.pending.saturating_add(samples);
        let pending = (2 * i + 1) * self.metrics;
        if let Some(sums) = self.weights.get_mut(pending..pending + self.metrics) {
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum = sum.saturating_add(*weight);
            }
        }
        true
    }

    /// Adds pending sums of squares, before samples and weights. Without room for them, samples count as equal.
    #[inline]
    fn add_squares(&mut self, i: usize, samples: u64, weights: &[u64], squares: Option<&[Squares]>) {
        let Some(row) = self.rows.get(i) else { return };
        let of = |metric: usize| {
            let weight = weights.get(metric).copied().unwrap_or(0);
            squares.and_then(|it| it.get(metric).copied()).unwrap_or_else(|| equal_squares(samples, weight))
        };
        if row.squares == FOLLOWS {
            let (settled, pending) = self.split(i);
            let total = row.samples();
            let equal = (0..self.squared).all(|metric| {
                let at = |of: &[u64]| of.get(metric).copied().unwrap_or(0);
                let (new, known) = (at(weights), at(settled).saturating_add(at(pending)));
                let as_before =
                    total == 0 || u128::from(new) * u128::from(total) == u128::from(known) * u128::from(samples);
                as_before && squares.is_none_or(|_| of(metric) == equal_squares(samples, new))
            });
            if equal || !self.has_room_for_squares() {
                return;
            }
            let parts = [(row.settled, settled), (row.pending, pending)];
            let known: Vec<Squares> = parts
                .iter()
                .flat_map(|(samples, part)| part.iter().take(self.squared).map(|&it| equal_squares(*samples, it)))
                .collect();
            let place = self.squares.len() / (2 * self.squared);
            self.squares.extend(known);
            if let Some(row) = self.rows.get_mut(i) {
                row.squares = place as u32;
            }
        }
        let place = self.rows.get(i).map_or(0, |row| row.squares) as usize;
        let pending = (2 * place + 1) * self.squared;
        if let Some(sums) = self.squares.get_mut(pending..pending + self.squared) {
            for (metric, sum) in sums.iter_mut().enumerate() {
                *sum = sum.saturating_add(of(metric));
            }
        }
    }

    /// Whether sums of squares of another row fit, including what a doubling allocates.
    fn has_room_for_squares(&self) -> bool {
        let (len, capacity) = (self.squares.len(), self.squares.capacity());
        let more = 2 * self.squared;
        let grown = if len + more > capacity { (2 * capacity).max(len + more) } else { capacity };
        let most = self.most_rows_beside(grown.saturating_mul(size_of::<Squares>()));
        self.rows.len() < most - most / COARSE_PART
    }

    pub(crate) fn contains(&self, key: ChargeTableKey) -> bool {
        self.find(self.hash(key), key).is_some()
    }

    fn hash(&self, (thread, context, line, route): ChargeTableKey) -> u64 {
        mix4(self.seed, thread, context, line, route)
    }

    fn find(&self, hash: u64, (thread, context, line, route): ChargeTableKey) -> Option<u32> {
        let is_it = |r: &ChargeRow| r.context == context && r.line == line && r.route == route && r.thread == thread;
        self.index.find(hash, |&i| self.rows.get(i as usize).is_some_and(is_it)).copied()
    }

    #[cold]
    fn insert(&mut self, hash: u64, (thread, context, line, route): ChargeTableKey) -> usize {
        let i = self.rows.len();
        self.rows.push(ChargeRow { thread, context, line, route, squares: FOLLOWS, settled: 0, pending: 0 });
        self.weights.resize((i + 1) * 2 * self.metrics, 0);
        let (rows, seed) = (&self.rows, self.seed);
        self.index.insert_unique(hash, i as u32, |&i| {
            rows.get(i as usize).map_or(0, |r| mix4(seed, r.thread, r.context, r.line, r.route))
        });
        i
    }

    pub(crate) fn has_room(&self, room: RowKind) -> bool {
        let most = self.most_rows();
        let most = match room {
            RowKind::Own => most - most / COARSE_PART,
            RowKind::Coarse => most,
            RowKind::Always => u32::MAX as usize,
        };
        self.rows.len() < most
    }

    pub(crate) fn has_room_for(&self, rows: usize) -> bool {
        let most = self.most_rows();
        self.rows.len().saturating_add(rows) < most - most / COARSE_PART
    }

    /// Maximum rows within the budget. Their memory doubles, so only a power of two fills it.
    fn most_rows(&self) -> usize {
        self.most_rows_beside(self.squares.capacity() * size_of::<Squares>())
    }

    fn most_rows_beside(&self, squares: usize) -> usize {
        let rows = (self.limit.saturating_sub(squares) / self.row_bytes()).min(u32::MAX as usize);
        if rows == 0 { 0 } else { 1 << rows.ilog2() }
    }

    pub(crate) fn is_tight(&self) -> bool {
        2 * self.rows.len() >= self.most_rows()
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Bytes of one row, index (a `u32` and a control byte at a load of at least 7/16) and dirty list included.
    const fn row_bytes(&self) -> usize {
        size_of::<ChargeRow>() + 2 * self.metrics * size_of::<u64>() + 12 + size_of::<u32>()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.index.allocation_size()
            + self.rows.capacity() * size_of::<ChargeRow>()
            + self.weights.capacity() * size_of::<u64>()
            + self.squares.capacity() * size_of::<Squares>()
            + self.dirty.capacity() * size_of::<u32>()
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn for_each(&self, mut visit: impl FnMut(&ChargeRow, &[u64], &[Squares])) {
        let (mut total, mut total_squares) = (vec![0; self.metrics], vec![0; self.squared]);
        for (i, row) in self.rows.iter().enumerate() {
            let (settled, pending) = self.split(i);
            for ((sum, settled), pending) in total.iter_mut().zip(settled).zip(pending) {
                *sum = settled.saturating_add(*pending);
            }
            match self.kept_squares(row) {
                Some((settled, pending)) => {
                    for ((sum, settled), pending) in total_squares.iter_mut().zip(settled).zip(pending) {
                        *sum = settled.saturating_add(*pending);
                    }
                }
                None => follow(&mut total_squares, row.samples(), &total),
            }
            visit(row, &total, &total_squares);
        }
    }

    pub(crate) fn for_each_settled(&self, mut visit: impl FnMut(&ChargeRow, u64, &[u64], &[Squares])) {
        let mut followed = vec![0; self.squared];
        for (i, row) in self.rows.iter().enumerate() {
            let weights = self.split(i).0;
            if row.settled > 0 || weights.iter().any(|&weight| weight > 0) {
                let kept = self.kept_squares(row).map(|(settled, _)| settled);
                if kept.is_none() {
                    follow(&mut followed, row.settled, weights);
                }
                visit(row, row.settled, weights, kept.unwrap_or(&followed));
            }
        }
    }

    /// Every row with a pending part, sorted by key; settles them.
    pub(crate) fn take(&mut self, mut visit: impl FnMut(&ChargeRow, u64, &[u64], &[Squares])) {
        let mut dirty = std::mem::take(&mut self.dirty);
        let rows = &self.rows;
        dirty.sort_unstable_by_key(|&i| rows.get(i as usize).map(|r| (r.thread, r.context, r.line, r.route)));
        dirty.dedup(); // a row charged zero samples is listed more than once
        let (metrics, squared) = (self.metrics, self.squared);
        let mut followed = vec![0; squared];
        for &i in &dirty {
            let i = i as usize;
            let Some(row) = self.rows.get_mut(i) else { continue };
            let Some(weights) = self.weights.get_mut(2 * i * metrics..2 * (i + 1) * metrics) else { continue };
            let (settled, pending) = weights.split_at_mut(metrics);
            let place = row.squares as usize;
            let squares = match row.squares {
                FOLLOWS => None,
                _ => self.squares.get_mut(2 * place * squared..2 * (place + 1) * squared),
            };
            match squares.map(|both| both.split_at_mut(squared)) {
                Some((settled, kept)) => {
                    visit(row, row.pending, pending, kept);
                    for (sum, square) in settled.iter_mut().zip(kept) {
                        *sum = sum.saturating_add(std::mem::take(square));
                    }
                }
                None => {
                    follow(&mut followed, row.pending, pending);
                    visit(row, row.pending, pending, &followed);
                }
            }
            row.settled = row.settled.saturating_add(row.pending);
            row.pending = 0;
            for (sum, weight) in settled.iter_mut().zip(pending) {
                *sum = sum.saturating_add(std::mem::take(weight));
            }
        }
        dirty.clear();
        self.dirty = dirty;
    }

    fn split(&self, i: usize) -> (&[u64], &[u64]) {
        let metrics = self.metrics;
        self.weights
            .get(2 * i * metrics..2 * (i + 1) * metrics)
            .unwrap_or(&[])
            .split_at_checked(metrics)
            .unwrap_or((&[], &[]))
    }

    fn kept_squares(&self, row: &ChargeRow) -> Option<(&[Squares], &[Squares])> {
        let (place, squared) = (row.squares as usize, self.squared);
        if row.squares == FOLLOWS {
            return None;
        }
        self.squares.get(2 * place * squared..2 * (place + 1) * squared)?.split_at_checked(squared)
    }
}

/// The sums of squares of samples of equal weight.
fn follow(squares: &mut [Squares], samples: u64, weights: &[u64]) {
    for (square, &weight) in squares.iter_mut().zip(weights) {
        *square = equal_squares(samples, weight);
    }
}
