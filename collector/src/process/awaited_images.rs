//! Images whose headers no worker could read yet; see [`OpenedImage::NotNow`].

use std::collections::VecDeque;
use std::fs::File;
use std::time::{Duration, Instant};

use ccsd_worker::{FileKey, OpenedImage};

use super::image::ImageIndex;

/// Most images that wait, each with an open file. Further ones are not read.
const MAX_AWAITED: usize = 256;
/// How long it may take to ask for them again. The rest has its turn the next time.
const MAX_RETRY: Duration = Duration::from_millis(20);
/// The shortest and the longest pause between two attempts.
const RETRIES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

#[derive(Debug)]
pub struct AwaitedImage {
    pub index: ImageIndex,
    pub file: File,
    pub key: FileKey,
    /// The process that has it mapped.
    pub pid: u32,
}

#[derive(Debug)]
pub struct AwaitedImages {
    list: VecDeque<AwaitedImage>,
    /// When they are asked for next, and the pause before.
    retry_at: Instant,
    pause: Duration,
}

impl Default for AwaitedImages {
    fn default() -> Self {
        AwaitedImages { list: VecDeque::new(), retry_at: Instant::now(), pause: RETRIES.0 }
    }
}

impl AwaitedImages {
    pub fn add(&mut self, image: AwaitedImage) {
        self.pause = RETRIES.0;
        if self.list.len() < MAX_AWAITED {
            self.list.push_back(image);
        }
    }

    pub fn contains(&self, index: ImageIndex) -> bool {
        self.list.iter().any(|awaited| awaited.index == index)
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Asks again, if it is time to. Returns those of which something is known now, each with its process.
    pub fn retry(&mut self) -> Vec<(ImageIndex, u32, OpenedImage)> {
        let mut known = Vec::new();
        let began = Instant::now();
        if began < self.retry_at {
            return known;
        }
        for _ in 0..self.list.len() {
            let Some(AwaitedImage { index, file, key, pid }) = self.list.pop_front() else { break };
            match ccsd_worker::open(file, &key, Duration::ZERO) {
                OpenedImage::NotNow(file) => self.list.push_back(AwaitedImage { index, file, key, pid }),
                opened => known.push((index, pid, opened)),
            }
            if began.elapsed() > MAX_RETRY {
                break;
            }
        }
        // What was not known soon may not be for long.
        let has_found = known.iter().any(|(_, _, opened)| matches!(opened, OpenedImage::Image(_)));
        self.pause = if has_found { RETRIES.0 } else { (2 * self.pause).min(RETRIES.1) };
        self.retry_at = began + self.pause;
        known
    }
}
