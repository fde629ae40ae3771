//! The sampling thread's sleep between two looks at the rings.

use std::os::fd::AsFd;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use crate::error::{Result, doing};
use crate::perf::cgroups::ControlGroup;
use crate::perf::ring_buffer::RingBuffer;

/// Limit on the events reported for one sleep. Further ones end the next sleep.
const NAMED: usize = 64;

/// What ends a sleep: a ring that is full enough, or a command. `poll(2)` would need the list, and look at every ring,
/// each time.
#[derive(Debug)]
pub struct Sleep(Epoll);

impl Sleep {
    /// Any of `rings` ends it, and `wake` as long as it is readable. Errors:
    /// [`Error::OpenFiles`](crate::Error::OpenFiles): there is no descriptor left. It takes one.
    pub fn new(rings: &[RingBuffer], wake: impl AsFd) -> Result<Sleep> {
        let readable = || EpollEvent::new(EpollFlags::EPOLLIN, 0);
        let made = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).and_then(|epoll| {
            rings.iter().try_for_each(|ring| epoll.add(ring.poll_fd(), readable()))?;
            epoll.add(wake, readable())?;
            Ok(Sleep(epoll))
        });
        made.map_err(std::io::Error::from).map_err(doing("wait for samples"))
    }

    /// The sleep ends, too, when a control group gets its first process or loses its last, for as long as it is open.
    pub fn watch_group(&self, group: &ControlGroup) {
        // Without it the group is looked at when the sleep ends anyway.
        let _ = self.0.add(group.events(), EpollEvent::new(EpollFlags::EPOLLPRI, 0));
    }

    pub fn for_ms(&self, most: u16) {
        // An interrupted sleep is a short one.
        let _ = self.0.wait(&mut [EpollEvent::empty(); NAMED], most);
    }
}
