//! Events on the control groups of the processes that are sampled, where all of these are in few groups.
//!
//! Events on whole CPUs sample everything that runs, and the samples of other processes are dropped: most of them, where
//! a small group is sampled on a busy machine. Events on a control group are off while others run.
//!
//! A group may be removed and made again, as systemd does when it restarts a unit; events on the old one then sample
//! nothing. So a group that has lost its last process is given up at once, CPUs are sampled as a whole, and groups are
//! looked for again a while later. Records of mappings and forks are of whole CPUs all the time.

use std::path::PathBuf;
use std::sync::Arc;

use ccsd_profile::notes;

use super::rate::renew_events_on;
use super::sleep::Sleep;
use super::source::RecordSource;
use crate::batch::{BatchCounts, GroupedStats, JudgedSamples};
use crate::clock::now_ns;
use crate::perf::cgroups::{self, ControlGroup, MAX_GROUPS};
use crate::perf::set::EventSet;

/// Minimum time between two looks at which groups there are, nanoseconds.
const LOOK_NS: u64 = 500_000_000;
/// The part of the time that looks take, one in so many.
const LOOK_SHARE: u64 = 100;
/// Time for which a group that was given up is left alone, nanoseconds: it doubles each time, up to the second number.
const PATIENCE_NS: u64 = 2_000_000_000;
const MAX_PATIENCE_NS: u64 = 64_000_000_000;

/// Which control groups the events sample.
#[derive(Debug, Default)]
pub struct GroupEvents {
    /// Where groups are mounted. `None`: events are on whole CPUs for good.
    mount: Option<PathBuf>,
    looks_at: u64,
    patience_ns: u64,
    /// When the present groups began to be sampled.
    bound_at: u64,
    /// Samples while groups were sampled, up to the last change, and all samples at that change.
    judged: JudgedSamples,
    before: JudgedSamples,
}

impl GroupEvents {
    pub fn begin() -> GroupEvents {
        GroupEvents { mount: cgroups::mount(), patience_ns: PATIENCE_NS, ..GroupEvents::default() }
    }

    /// Binds the events to other groups if it is time to. To be called at every turn.
    pub fn review(&mut self, source: &mut RecordSource, sleep: &Sleep, now: u64) {
        let Some(mount) = &self.mount else { return };
        let present = Arc::clone(source.events.groups());
        if !present.iter().all(ControlGroup::is_populated) {
            if now.saturating_sub(self.bound_at) > MAX_PATIENCE_NS {
                self.patience_ns = PATIENCE_NS;
            }
            self.looks_at = now.saturating_add(self.patience_ns);
            self.patience_ns = self.patience_ns.saturating_mul(2).min(MAX_PATIENCE_NS);
            return self.bind(source, sleep, Vec::new());
        }
        if now < self.looks_at {
            return;
        }
        let paths = source.pipeline.tracker.group_paths();
        let found = match paths.len() {
            1..=MAX_GROUPS => paths.iter().map(|path| ControlGroup::open(mount, path)).collect::<Option<Vec<_>>>(),
            _ => None,
        };
        let found = found.unwrap_or_default();
        let are_same = found.len() == present.len() && found.iter().zip(&*present).all(|(a, b)| a.is_same(b));
        let ended = now_ns();
        let took = ended.saturating_sub(now);
        self.looks_at = ended.saturating_add(took.saturating_mul(LOOK_SHARE).max(LOOK_NS));
        if !are_same {
            self.bind(source, sleep, found);
        }
    }

    fn bind(&mut self, source: &mut RecordSource, sleep: &Sleep, groups: Vec<ControlGroup>) {
        let (spec, groups): (_, Arc<[ControlGroup]>) = (*source.events.spec(), groups.into());
        let was_grouped = !source.events.groups().is_empty();
        if renew_events_on(source, spec, Arc::clone(&groups)).is_err() {
            if groups.iter().all(ControlGroup::is_populated) {
                // The kernel has no events on groups, or not on these: whole CPUs for good.
                self.mount = None;
            }
            if !was_grouped || renew_events_on(source, spec, Arc::new([])).is_err() {
                return;
            }
        } else if !groups.is_empty() {
            self.bound_at = now_ns();
            groups.iter().for_each(|group| sleep.watch_group(group));
            let paths: Vec<&str> = groups.iter().map(ControlGroup::path).collect();
            source.pipeline.batch.note(format!("{}: {}", notes::BY_GROUP, paths.join(", ")));
        }
        // Samples up to now are of the events before.
        source.read_recent();
        let judged = source.pipeline.counts().judged();
        if was_grouped {
            self.judged = self.judged.plus(judged.minus(self.before));
        }
        self.before = judged;
    }

    /// What was counted while groups were sampled, and what became of their samples.
    pub fn stats(&self, events: &EventSet, counts: &BatchCounts) -> GroupedStats {
        let present =
            if events.groups().is_empty() { JudgedSamples::default() } else { counts.judged().minus(self.before) };
        GroupedStats { counted: events.grouped_counts(), judged: self.judged.plus(present) }
    }
}
