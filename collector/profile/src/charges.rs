//! What was charged where: (thread, context, line) -> samples and weights.
//!
//! A sample only adds to the pending part of its row; `take` moves the pending parts to the settled ones. So keeping
//! both a total and a delta costs a sample nothing.

use hashbrown::HashTable;

use crate::hash::{mix3, random_seed};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) thread: u32,
    pub(crate) context: u32,
    pub(crate) line: u32,
    /// Samples settled.
    settled: u64,
    /// Samples since the last `take`.
    pending: u64,
}

impl Row {
    pub(crate) const fn samples(&self) -> u64 {
        self.settled.saturating_add(self.pending)
    }
}

#[derive(Debug)]
pub(crate) struct Charges {
    index: HashTable<u32>,
    rows: Vec<Row>,
    /// For each row: the settled weight of each metric, then the pending one of each.
    weights: Vec<u64>,
    /// Rows with a pending part.
    dirty: Vec<u32>,
    metrics: usize,
    seed: u64,
    limit: usize,
}

impl Charges {
    pub(crate) fn new(metrics: usize, limit: usize) -> Self {
        Self {
            index: HashTable::new(),
            rows: Vec::new(),
            weights: Vec::new(),
            dirty: Vec::new(),
            metrics,
            seed: random_seed(),
            limit,
        }
    }

    /// Adds to the pending part of a row; weights missing are 0. False, with nothing added, if the row is new and
    /// the budget is used up (`force` overrides).
    #[inline]
    pub(crate) fn add(&mut self, key: (u32, u32, u32), samples: u64, weights: &[u64], force: bool) -> bool {
        let (thread, context, line) = key;
        let hash = mix3(self.seed, thread, context, line);
        let rows = &self.rows;
        let found = self.index.find(hash, |&i| {
            rows.get(i as usize).is_some_and(|r| r.context == context && r.line == line && r.thread == thread)
        });
        let i = match found {
            Some(&i) => i as usize,
            None if force || self.has_room() => self.insert(hash, key),
            None => return false,
        };
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

    #[cold]
    fn insert(&mut self, hash: u64, (thread, context, line): (u32, u32, u32)) -> usize {
        let i = self.rows.len();
        self.rows.push(Row { thread, context, line, settled: 0, pending: 0 });
        self.weights.resize((i + 1) * 2 * self.metrics, 0);
        let (rows, seed) = (&self.rows, self.seed);
        self.index.insert_unique(hash, i as u32, |&i| {
            rows.get(i as usize).map_or(0, |r| mix3(seed, r.thread, r.context, r.line))
        });
        i
    }

    /// Whether a new row keeps within the budget, counting what a doubling allocates.
    fn has_room(&self) -> bool {
        let row = self.row_bytes();
        let rows = self.rows.len();
        let grown = if rows == self.rows.capacity() { 2 * rows.max(4) } else { self.rows.capacity() };
        grown.saturating_mul(row) <= self.limit && rows < u32::MAX as usize
    }

    /// Bytes of one row, index (a `u32` and a control byte at a load of at least 7/16) and dirty list included.
    const fn row_bytes(&self) -> usize {
        size_of::<Row>() + 2 * self.metrics * size_of::<u64>() + 12 + size_of::<u32>()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.index.allocation_size()
            + self.rows.capacity() * size_of::<Row>()
            + self.weights.capacity() * size_of::<u64>()
            + self.dirty.capacity() * size_of::<u32>()
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Every row with its total weights written to `weights`.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&Row, &[u64])) {
        let mut total = vec![0; self.metrics];
        for (i, row) in self.rows.iter().enumerate() {
            self.split(i).0.clone_into(&mut total);
            for (sum, pending) in total.iter_mut().zip(self.split(i).1) {
                *sum = sum.saturating_add(*pending);
            }
            visit(row, &total);
        }
    }

    /// Every row that has a settled part, with it.
    pub(crate) fn for_each_settled(&self, mut visit: impl FnMut(&Row, u64, &[u64])) {
        for (i, row) in self.rows.iter().enumerate() {
            let weights = self.split(i).0;
            if row.settled > 0 || weights.iter().any(|&weight| weight > 0) {
                visit(row, row.settled, weights);
            }
        }
    }

    /// Every row that has a pending part, with it, sorted by key; all is settled then.
    pub(crate) fn take(&mut self, mut visit: impl FnMut(&Row, u64, &[u64])) {
        let mut dirty = std::mem::take(&mut self.dirty);
        let rows = &self.rows;
        dirty.sort_unstable_by_key(|&i| rows.get(i as usize).map(|r| (r.thread, r.context, r.line)));
        dirty.dedup(); // a row charged zero samples is listed more than once
        let metrics = self.metrics;
        for &i in &dirty {
            let i = i as usize;
            let Some(row) = self.rows.get_mut(i) else { continue };
            let Some(weights) = self.weights.get_mut(2 * i * metrics..2 * (i + 1) * metrics) else { continue };
            let (settled, pending) = weights.split_at_mut(metrics);
            visit(row, row.pending, pending);
            row.settled = row.settled.saturating_add(row.pending);
            row.pending = 0;
            for (sum, weight) in settled.iter_mut().zip(pending) {
                *sum = sum.saturating_add(std::mem::take(weight));
            }
        }
        dirty.clear();
        self.dirty = dirty;
    }

    /// Settled and pending weights of a row.
    fn split(&self, i: usize) -> (&[u64], &[u64]) {
        let metrics = self.metrics;
        self.weights
            .get(2 * i * metrics..2 * (i + 1) * metrics)
            .unwrap_or(&[])
            .split_at_checked(metrics)
            .unwrap_or((&[], &[]))
    }
}
