//! The threads view: what each process and each of its threads spent.

use std::cmp::Reverse;

use serde::Serialize;

use super::walk::walk_contexts;
use super::{Column, Selection, Share, Total};
use crate::ids::{ProcessId, ThreadId};
use crate::profile::Profile;

/// One thread.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThreadRow {
    /// The thread.
    pub id: ThreadId,
    /// Thread id.
    pub tid: u32,
    /// Name.
    pub name: String,
    /// Weight.
    pub weight: u64,
    /// Samples.
    pub samples: u64,
    /// Share of the view's total.
    pub share: Share,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessRow {
    /// The process.
    pub id: ProcessId,
    /// Process id.
    pub pid: u32,
    /// Start in clock ticks since boot, 0 if unknown.
    pub start_time: u64,
    /// Which of its programs, counted by exec.
    pub exec_generation: u32,
    /// Name.
    pub name: String,
    /// Weight of its threads.
    pub weight: u64,
    /// Samples of its threads.
    pub samples: u64,
    /// Share of the view's total.
    pub share: Share,
    /// Its threads, the heaviest first; those never sampled are there, too.
    pub threads: Vec<ThreadRow>,
}

/// All processes, the heaviest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ThreadsView {
    /// All of it: the sum of all processes.
    pub total: Total,
    /// The processes.
    pub processes: Vec<ProcessRow>,
}

impl ThreadsView {
    /// What [`ThreadsView::sort`] can order by.
    pub const COLUMNS: &[Column] = &[Column::Own, Column::Samples, Column::Name, Column::Id];

    /// Orders the processes, and the threads of each, by a column instead of weight.
    pub fn sort(&mut self, by: Column) {
        match by {
            Column::Samples => self.processes.sort_by_key(|it| Reverse(it.samples)),
            Column::Name => self.processes.sort_by(|a, b| a.name.cmp(&b.name)),
            Column::Id => self.processes.sort_by_key(|it| it.pid),
            _ => self.processes.sort_by_key(|it| Reverse(it.weight)),
        }
        for process in &mut self.processes {
            match by {
                Column::Samples => process.threads.sort_by_key(|it| Reverse(it.samples)),
                Column::Name => process.threads.sort_by(|a, b| a.name.cmp(&b.name)),
                Column::Id => process.threads.sort_by_key(|it| it.tid),
                _ => process.threads.sort_by_key(|it| Reverse(it.weight)),
            }
        }
    }

    /// Computes the view.
    #[must_use]
    pub fn new(profile: &Profile, selection: &Selection) -> Self {
        let named = profile.named();
        let mut counts = vec![false; named.contexts().len()];
        let total = walk_contexts(profile, &named, selection, |context, _| {
            if let Some(place) = counts.get_mut(context.index()) {
                *place = true;
            }
        });
        let mut sums = vec![(0u64, 0u64); profile.threads().len()];
        profile.for_each_charge(|charge| {
            if !counts.get(named.context(charge.context).index()).copied().unwrap_or(false)
                || !selection.takes_thread(charge.thread)
            {
                return;
            }
            if let Some((weights, samples)) = sums.get_mut(charge.thread.index()) {
                let weight = charge.weights.get(selection.metric_index()).copied().unwrap_or(0);
                *weights = weights.saturating_add(weight);
                *samples = samples.saturating_add(charge.samples);
            }
        });
        let mut processes: Vec<ProcessRow> = (0u32..)
            .zip(profile.processes())
            .map(|(i, process)| ProcessRow {
                id: ProcessId::new(i),
                pid: process.pid,
                start_time: process.start_time,
                exec_generation: process.exec_generation,
                name: process.name.clone(),
                weight: 0,
                samples: 0,
                share: Share::default(),
                threads: Vec::new(),
            })
            .collect();
        for ((i, thread), (weight, samples)) in (0u32..).zip(profile.threads()).zip(sums) {
            let Some(process) = processes.get_mut(thread.process.index()) else { continue };
            process.weight = process.weight.saturating_add(weight);
            process.samples = process.samples.saturating_add(samples);
            process.threads.push(ThreadRow {
                id: ThreadId::new(i),
                tid: thread.tid,
                name: thread.name.clone(),
                weight,
                samples,
                share: Share::of(weight, total.weight, total.samples),
            });
        }
        for process in &mut processes {
            process.share = Share::of(process.weight, total.weight, total.samples);
            process.threads.sort_by(|a, b| b.weight.cmp(&a.weight).then(a.id.cmp(&b.id)));
        }
        processes.sort_by(|a, b| b.weight.cmp(&a.weight).then(a.id.cmp(&b.id)));
        Self { total, processes }
    }
}
