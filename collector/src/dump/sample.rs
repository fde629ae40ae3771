//! Registers and stack of a thread that runs, by a perf event on it.
//!
//! The event's timer interrupts the CPU, not the thread's system call: the kernel copies user registers and stack, and
//! the call goes on. (`PTRACE_INTERRUPT` makes calls end with what they have done so far.)

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::perf::attr::{Event, EventSpec, MAX_STACK_BYTES};
use crate::perf::event;
use crate::perf::record::{Record, SampleLayout, UserRegs, parse};
use crate::perf::ring_buffer::{PAGE, RingBuffer};
use crate::system;

use super::stack_copy::StackCopy;

/// Samples per second of CPU time: a thread that runs is seen within 0.2 ms. The event is closed after the first.
const RATE_HZ: u32 = 4_999;
/// Pages of the ring, at best and at least, where little memory may be locked. It holds one sample with the stack.
const PAGES: usize = 32;
const MIN_PAGES: usize = 4;
/// What a record has beside the stack, bytes, at most.
const OTHER_BYTES: usize = 1_024;

/// A perf event on one thread, until its first sample.
pub struct Sampler {
    ring: RingBuffer,
    layout: SampleLayout,
    /// Whether samples are taken in system calls too.
    pub in_kernel: bool,
}

pub struct ThreadSample {
    /// `None` for a 32-bit program.
    pub regs: Option<UserRegs>,
    pub stack: StackCopy,
}

impl Sampler {
    /// Begins to sample a thread.
    ///
    /// # Errors
    /// Those of `perf_event_open(2)`, and of mapping a ring of the least size.
    pub fn open(tid: u32) -> io::Result<Sampler> {
        let mut pages = PAGES;
        loop {
            let (event, layout, in_kernel) = match open(tid, pages, true) {
                // Samples in the kernel take more rights.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => {
                    open(tid, pages, false)?
                }
                opened => opened?,
            };
            match RingBuffer::map(event, pages) {
                Ok(ring) => {
                    event::enable(ring.owner())?;
                    return Ok(Sampler { ring, layout, in_kernel });
                }
                Err(error) if error.raw_os_error() == Some(libc::EPERM) && pages > MIN_PAGES => pages /= 2,
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the first sample.
    pub fn wait(&mut self, time: Duration) -> Option<ThreadSample> {
        let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO);
        let mut fds = [PollFd::new(self.ring.poll_fd(), PollFlags::POLLIN)];
        // What matters is whether there is a sample.
        let _ = poll(&mut fds, timeout);
        let mut found = None;
        if self.ring.refresh() {
            while let (None, Some(record)) = (&found, self.ring.peek()) {
                if let Record::Sample(sample) = parse(record, self.layout)
                    && sample.has_user_state
                {
                    let stack = StackCopy { bytes: sample.stack.concat(), more: sample.stack_full };
                    found = Some(ThreadSample { regs: sample.regs, stack });
                }
                self.ring.advance();
            }
            self.ring.release();
        }
        found
    }
}

fn open(tid: u32, pages: usize, kernel: bool) -> io::Result<(OwnedFd, SampleLayout, bool)> {
    let spec = EventSpec {
        event: Event::CpuClock,
        rate_hz: RATE_HZ.min(system::perf_max_sample_rate()),
        kernel,
        inherit: false,
        enable_on_exec: false,
        stack_bytes: MAX_STACK_BYTES.min((pages * PAGE - OTHER_BYTES) as u32 / 8 * 8),
        tells_lost: false,
        user_chain: false,
    };
    let mut attr = spec.sampling_attr();
    attr.set_exclude_callchain_kernel(1);
    attr.set_disabled(1);
    attr.__bindgen_anon_2.wakeup_events = 1;
    let tid = i32::try_from(tid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    Ok((event::open(&attr, tid, -1, None)?, spec.sample_layout(), kernel))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_running_thread_is_seen_and_a_waiting_one_is_not() {
        let over = AtomicBool::new(false);
        let (sender, tids) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sender.send(nix::unistd::gettid().as_raw().unsigned_abs()).unwrap();
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let sampler = Sampler::open(tids.recv().unwrap());
            // Where there are no perf events, there is no sample either.
            if let Ok(mut sampler) = sampler {
                let sample = sampler.wait(Duration::from_secs(60)).expect("a sample of a thread that runs");
                assert!(sample.regs.is_some_and(|regs| regs.sp != 0) && !sample.stack.bytes.is_empty());
            }
            over.store(true, Ordering::Relaxed);
        });
        let (keep, blocked) = channel::<()>();
        let (sender, tids) = channel();
        let waiting = std::thread::spawn(move || {
            sender.send(nix::unistd::gettid().as_raw().unsigned_abs()).unwrap();
            let _ = blocked.recv();
        });
        let tid = tids.recv().unwrap();
        while super::super::look::Look::at(std::process::id(), tid).unwrap().pointers().is_none() {
            std::thread::yield_now();
        }
        if let Ok(mut sampler) = Sampler::open(tid) {
            assert!(sampler.wait(Duration::from_millis(20)).is_none());
        }
        drop(keep);
        waiting.join().unwrap();
    }
}
