//! Call chains, as the kernel has followed them.

use linux_perf_event_reader::SampleRecord;

use crate::process::images::ImageIndex;
use crate::unwind::Frame;

/// Entries of a call chain from here on are no addresses but say whose the following are (`PERF_CONTEXT_MAX`).
const CONTEXT_MARKERS: u64 = -4095i64 as u64;
/// What follows is the kernel's, the user's (`PERF_CONTEXT_KERNEL`, `PERF_CONTEXT_USER`).
const KERNEL_CONTEXT: u64 = -128i64 as u64;
const USER_CONTEXT: u64 = -512i64 as u64;

pub struct CallChain {
    pub kernel: Vec<u64>,
    user: Vec<u64>,
    /// There is no call chain, only the address where the program was.
    pub is_alone: bool,
}

impl CallChain {
    pub fn of(sample: &SampleRecord<'_>) -> CallChain {
        let mut chain = CallChain { kernel: Vec::new(), user: Vec::new(), is_alone: false };
        let entries = sample.callchain.as_ref();
        let mut context = USER_CONTEXT;
        for entry in entries.into_iter().flat_map(|entries| (0..entries.len()).filter_map(|at| entries.get(at))) {
            match entry {
                marker if marker >= CONTEXT_MARKERS => context = marker,
                address if context == KERNEL_CONTEXT => chain.kernel.push(address),
                address if context == USER_CONTEXT => chain.user.push(address),
                // Of a guest or a hypervisor.
                _ => {}
            }
        }
        if chain.kernel.is_empty() && chain.user.is_empty() {
            // Recorded without call chains: the function alone.
            chain.is_alone = true;
            let in_kernel = |ip: &u64| *ip > i64::MAX as u64;
            match sample.ip.filter(in_kernel) {
                Some(ip) => chain.kernel.push(ip),
                None => chain.user.extend(sample.ip),
            }
        }
        chain
    }

    /// The first is where the kernel was interrupted, all others are return addresses.
    pub fn kernel_frames(&self) -> impl Iterator<Item = Frame> + '_ {
        let address = |(at, &address): (usize, &u64)| if at == 0 { address } else { address.wrapping_sub(1) };
        self.kernel.iter().enumerate().map(address).map(|address| Frame { image: ImageIndex::KERNEL, address })
    }

    pub fn user_addresses(&self) -> impl Iterator<Item = u64> + '_ {
        let address = |(at, &address): (usize, &u64)| if at == 0 { address } else { address.wrapping_sub(1) };
        self.user.iter().enumerate().map(address)
    }
}
