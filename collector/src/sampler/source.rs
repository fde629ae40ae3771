//! The live source of records: the events, their rings, and the pipeline that the records go through.

use std::os::fd::OwnedFd;

use super::channels::Channels;
use super::pipeline::Pipeline;
use super::target_time::TargetTime;
use crate::clock::now_ns;
use crate::deadline::begin_turn;
use crate::perf::set::EventSet;
use crate::perf::sorter::{EventSorter, MARGIN_NS};
use crate::procfs;

/// Threads whose events are opened between two looks at the rings, so that these do not run full.
pub const BETWEEN_READS: usize = 64;

pub struct RecordSource {
    pub events: EventSet,
    pub sorter: EventSorter,
    pub channels: Channels,
    pub pipeline: Pipeline,
    pub time: TargetTime,
}

impl RecordSource {
    /// Handles every record of the rings that is older than `horizon`, and sends full batches.
    pub fn read_rings(&mut self, horizon: u64) {
        begin_turn();
        let (sorter, pipeline, channels) = (&mut self.sorter, &mut self.pipeline, &self.channels);
        sorter.drain(horizon, |ring, record| {
            channels.watchdog.beat();
            pipeline.handle(ring, record);
            if pipeline.batch.is_large() {
                pipeline.send(channels, false);
            }
        });
    }

    /// Enters a process that was found running, where all that runs is the target.
    pub fn enter_found(&mut self, pid: u32) {
        // It mapped its files before the session, so no record has them. Kernel threads have no mappings.
        if !self.pipeline.tracker.knows_process(pid) && procfs::stat(pid).is_ok_and(|stat| !stat.kernel_thread) {
            // One that ended meanwhile, or does not fit, is left out.
            let _ = self.pipeline.tracker.enter(pid);
        }
    }

    pub fn read_recent(&mut self) {
        self.read_rings(now_ns().saturating_sub(MARGIN_NS));
    }

    /// Handles every record that is there, whatever may still come before it, and sends nothing.
    pub fn drain(&mut self) {
        begin_turn();
        self.sorter.drain(u64::MAX, |ring, record| self.pipeline.handle(ring, record));
    }
}

/// Closes events. That waits for locks that threads of the target hold while they start and end.
pub fn close_elsewhere(events: Vec<OwnedFd>) {
    if !events.is_empty() {
        let _ = std::thread::Builder::new().name("ccsd-close".to_owned()).spawn(move || drop(events));
    }
}
