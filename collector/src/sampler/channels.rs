//! The channels between the sampling thread, the aggregating thread and whoever has the session.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};

use crate::batch::Batch;
use crate::error::Result;
use crate::watchdog::Watchdog;

/// What the sampler is told.
#[derive(Clone, Debug)]
pub enum SamplerCommand {
    /// Follow these processes, too, with all that descend from them. Those already followed stay as they are. Which are
    /// refused is answered.
    Add {
        /// Processes.
        pids: Vec<u32>,
        /// Where the answer goes.
        answer: Sender<Result<Vec<u32>>>,
    },
    /// End the collection in order. The target's CPU time, user and in all, in nanoseconds, if the caller knows it.
    Stop {
        /// `(user, user + system)`
        target_cpu_ns: Option<(u64, u64)>,
    },
}

/// The channels of a sampler.
pub struct Channels {
    /// Where batches go.
    pub batches: Sender<Batch>,
    /// Where empty ones come back.
    pub empty: Receiver<Batch>,
    /// What to do.
    pub commands: Receiver<SamplerCommand>,
    /// Becomes readable with every command, to end a sleep.
    pub wake: OwnedFd,
    /// Shows that the sampler is at work.
    pub watchdog: Arc<Watchdog>,
}
