//! The channels between the sampling thread, the aggregating thread and the session's handle.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};

use super::left_out_pids::LeftOutPids;
use crate::batch::Batch;
use crate::error::Result;
use crate::watchdog::Watchdog;

#[derive(Clone, Debug)]
pub enum SamplerCommand {
    /// Follow these processes and all descendants, too. Answers which are left out.
    Add { pids: Vec<u32>, answer: Sender<Result<LeftOutPids>> },
    /// End the collection in order. The target's CPU time, user and in all, in nanoseconds, if the caller knows it.
    Stop {
        /// `(user, user + system)`
        target_cpu_ns: Option<(u64, u64)>,
    },
}

pub struct Channels {
    pub batches: Sender<Batch>,
    /// Where empty ones come back.
    pub empty: Receiver<Batch>,
    pub commands: Receiver<SamplerCommand>,
    /// Becomes readable with every command, to end a sleep.
    pub wake: OwnedFd,
    pub watchdog: Arc<Watchdog>,
}
