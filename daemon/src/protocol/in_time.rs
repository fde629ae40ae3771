//! Socket reads and writes with a deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv, send};

/// A socket with one deadline for all reads and writes. (Its own timeouts apply to each call, and restart after
/// signals.)
#[derive(Debug)]
pub struct InTime<'a> {
    stream: &'a UnixStream,
    until: Instant,
}

impl<'a> InTime<'a> {
    /// Sets the deadline to `time` from now.
    pub fn new(stream: &'a UnixStream, time: Duration) -> InTime<'a> {
        InTime { stream, until: Instant::now() + time }
    }

    /// Repeats polling and `act` until `act` succeeds.
    fn when_ready(&self, what: PollFlags, mut act: impl FnMut() -> nix::Result<usize>) -> io::Result<usize> {
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            // Rounded up: a timeout of zero would spin.
            let wait = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(self.stream.as_fd(), what)], wait).and_then(|ready| match ready {
                0 => Err(nix::Error::EAGAIN),
                _ => act(),
            }) {
                Err(nix::Error::EAGAIN | nix::Error::EINTR) => {}
                result => return Ok(result?),
            }
        }
    }
}

impl Read for InTime<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let fd = self.stream.as_raw_fd();
        self.when_ready(PollFlags::POLLIN, || recv(fd, buffer, MsgFlags::MSG_DONTWAIT))
    }
}

impl Write for InTime<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fd = self.stream.as_raw_fd();
        // A client that has gone is an error, not a SIGPIPE.
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        self.when_ready(PollFlags::POLLOUT, || send(fd, bytes, flags))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn reads_data_that_comes_in_time() {
        let (one, mut other) = UnixStream::pair().unwrap();
        other.write_all(b"all").unwrap();
        let mut buffer = [0; 8];
        assert_eq!(InTime::new(&one, Duration::from_secs(60)).read(&mut buffer).unwrap(), 3);
        drop(other);
        assert_eq!(InTime::new(&one, Duration::from_secs(60)).read(&mut buffer).unwrap(), 0);
        let gone = InTime::new(&one, Duration::from_secs(60)).write(b"?").unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_drop_now_and_then_is_no_excuse() {
        let (one, mut other) = UnixStream::pair().unwrap();
        // Each byte arrives in time; the whole message does not.
        let drops = std::thread::spawn(move || while other.write_all(b".").is_ok() {});
        let mut input = InTime::new(&one, SHORT);
        let error = loop {
            if let Err(error) = input.read(&mut [0]) {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        drop(one);
        drops.join().unwrap();
    }

    #[test]
    fn gives_up_on_a_peer_that_reads_nothing() {
        let (one, _other) = UnixStream::pair().unwrap();
        let error = InTime::new(&one, SHORT).write_all(&vec![0; 8 << 20]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
