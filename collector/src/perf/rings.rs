//! The rings of a session: how large, and mapped.

use std::io;

use super::attr::ring_owner_attr;
use super::event;
use super::ring_buffer::{PAGE, RingBuffer};
use crate::error::{Error, Result, doing};
use crate::system;

/// Pages of a sample ring at best: 4 MiB hold 64 of the largest samples, 64 ms of a busy CPU at 999 Hz. (2 MiB lost
/// samples under load.)
const SAMPLE_PAGES: usize = 1024;
/// The rate from which on it is so large. With fewer samples in the same time it is smaller, in proportion.
const FULL_RATE_HZ: usize = 999;
/// Pages that no rate makes too many: 16 of the largest samples. Threads that began together are due together.
const SLOW_SAMPLE_PAGES: usize = 256;
/// Pages of a sample ring at least: two samples of 8 KiB of stack. Below this, sampling makes no sense.
const MIN_SAMPLE_PAGES: usize = 8;
/// Pages of a tracking ring at best: 64 KiB hold about 600 mapping records.
const TRACKING_PAGES: usize = 16;
const MIN_TRACKING_PAGES: usize = 1;
pub struct Rings {
    /// Two for each CPU: for samples, and for everything else.
    pub rings: Vec<RingBuffer>,
    pub sample_pages: usize,
    pub tracking_pages: usize,
    /// Pages that one for samples was to have. The locked-memory allowance may have given less.
    pub most: usize,
}

impl Rings {
    /// Maps two rings for each CPU, of about `ring_bytes` in all if the rate can use them, or what the locked-memory
    /// allowance
    /// permits.
    ///
    /// # Errors
    /// [`Error::MlockAllowance`] where not even the smallest fit; [`Error::System`] for anything unforeseen.
    pub fn map(cpus: &[i32], ring_bytes: usize, rate_hz: u32) -> Result<Rings> {
        let (most, mut tracking_pages) = ring_pages(ring_bytes, cpus.len(), rate_hz);
        let mut sample_pages = most;
        loop {
            match map_rings(cpus, sample_pages, tracking_pages) {
                Ok(rings) => return Ok(Rings { rings, sample_pages, tracking_pages, most }),
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                    if sample_pages > MIN_SAMPLE_PAGES {
                        sample_pages /= 2;
                    } else if tracking_pages > MIN_TRACKING_PAGES {
                        tracking_pages /= 2;
                    } else {
                        return Err(Error::MlockAllowance {
                            mlock_kb: system::perf_event_mlock_kb(),
                            rlimit_kb: system::memlock_limit_kb(),
                        });
                    }
                }
                Err(error) => return Err(doing("map a perf ring buffer")(error)),
            }
        }
    }
}

fn map_rings(cpus: &[i32], sample_pages: usize, tracking_pages: usize) -> io::Result<Vec<RingBuffer>> {
    let mut rings = Vec::with_capacity(2 * cpus.len());
    for &cpu in cpus {
        for pages in [sample_pages, tracking_pages] {
            // A quarter full is late enough to batch the wake-ups, and leaves time to be late.
            let watermark = u32::try_from(pages * PAGE / 4).unwrap_or(u32::MAX);
            rings.push(RingBuffer::map(event::open(&ring_owner_attr(watermark), 0, cpu, None)?, pages)?);
        }
    }
    Ok(rings)
}

/// Pages of the two rings of a CPU, for samples and for everything else, where all of them take about `ring_bytes`.
#[must_use]
pub fn ring_pages(ring_bytes: usize, cpus: usize, rate_hz: u32) -> (usize, usize) {
    let each = (ring_bytes / PAGE / cpus.max(1)).next_power_of_two();
    (each.clamp(MIN_SAMPLE_PAGES, useful_pages(rate_hz)), TRACKING_PAGES)
}

/// Pages of a sample ring that are of use at a rate.
fn useful_pages(rate_hz: u32) -> usize {
    let in_proportion = (rate_hz as usize).saturating_mul(SAMPLE_PAGES) / FULL_RATE_HZ;
    in_proportion.next_power_of_two().clamp(SLOW_SAMPLE_PAGES, SAMPLE_PAGES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_as_large_as_the_rate_makes_them_useful() {
        let pages: Vec<usize> = [1, 49, 99, 199, 400, 499, 999, 9_999, u32::MAX].map(useful_pages).into();
        assert_eq!(pages, [256, 256, 256, 256, 512, 512, 1024, 1024, 1024]);
    }
}
