//! The threads view: what each process and each of its threads spent.

use std::cmp::Reverse;

use serde::Serialize;

use super::column::ViewColumn;
use super::interval::Share;
use super::sums::Sums;
use super::total::Total;
use super::visible::sums_of;
use crate::ids::{ProcessId, ThreadId};
use crate::profile::Profile;
use crate::selection::Selection;

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
    /// Whether it stands for several of this name, which have no entries of their own; its PID is 0 then.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub grouped: bool,
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
    pub const COLUMNS: &[ViewColumn] = &[ViewColumn::Own, ViewColumn::Samples, ViewColumn::Name, ViewColumn::Id];

    /// Orders the processes, and the threads of each, by a column instead of weight.
    pub fn sort(&mut self, by: ViewColumn) {
        match by {
            ViewColumn::Samples => self.processes.sort_by_key(|it| Reverse(it.samples)),
            ViewColumn::Name => self.processes.sort_by(|a, b| a.name.cmp(&b.name)),
            ViewColumn::Id => self.processes.sort_by_key(|it| it.pid),
            _ => self.processes.sort_by_key(|it| Reverse(it.weight)),
        }
        for process in &mut self.processes {
            match by {
                ViewColumn::Samples => process.threads.sort_by_key(|it| Reverse(it.samples)),
                ViewColumn::Name => process.threads.sort_by(|a, b| a.name.cmp(&b.name)),
                ViewColumn::Id => process.threads.sort_by_key(|it| it.tid),
                _ => process.threads.sort_by_key(|it| Reverse(it.weight)),
            }
        }
    }

    /// Computes the view.
    #[must_use]
    pub fn new(profile: &Profile, selection: &Selection) -> Self {
        let walk = profile.walk(selection);
        let total = walk.visit(|_, _| {});
        let mut sums = vec![Sums::default(); profile.threads().len()];
        walk.charges(|_, charge| {
            if let Some(sum) = sums.get_mut(charge.thread.index()) {
                sum.add(sums_of(&charge, selection));
            }
        });
        let mut processes: Vec<ProcessRow> = (0u32..)
            .zip(profile.processes())
            .map(|(i, process)| ProcessRow {
                id: ProcessId::new(i),
                pid: process.pid,
                start_time: process.start_time,
                exec_generation: process.exec_generation,
                grouped: process.is_grouped(),
                name: process.name.clone(),
                weight: 0,
                samples: 0,
                share: Share::default(),
                threads: Vec::new(),
            })
            .collect();
        let mut of_processes = vec![Sums::default(); processes.len()];
        for ((i, thread), sums) in (0u32..).zip(profile.threads()).zip(sums) {
            let Some(process) = processes.get_mut(thread.process.index()) else { continue };
            if let Some(all) = of_processes.get_mut(thread.process.index()) {
                all.add(sums);
            }
            process.threads.push(ThreadRow {
                id: ThreadId::new(i),
                tid: thread.tid,
                name: thread.name.clone(),
                weight: sums.weight,
                samples: sums.samples,
                share: Share::of(sums, &total),
            });
        }
        for (process, sums) in processes.iter_mut().zip(of_processes) {
            (process.weight, process.samples, process.share) = (sums.weight, sums.samples, Share::of(sums, &total));
            process.threads.sort_by(|a, b| b.weight.cmp(&a.weight).then(a.id.cmp(&b.id)));
        }
        processes.sort_by(|a, b| b.weight.cmp(&a.weight).then(a.id.cmp(&b.id)));
        Self { total, processes }
    }
}
