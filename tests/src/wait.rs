//! Polling for conditions without a notification: of the daemon's sessions and of processes.

use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(1);

#[track_caller]
pub fn until(mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < PATIENCE, "still not so after {PATIENCE:?}");
        std::thread::sleep(PAUSE);
    }
}
