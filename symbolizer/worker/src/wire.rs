//! Messages on a socket: a length, a body, and possibly open files.

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::cmsg_space;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::Serialize;

pub const MAX_FILES: usize = 16;
const LENGTH: usize = 4;
const PIECE: usize = 64 << 10;
/// Capacity that an empty buffer keeps.
const KEPT: usize = 1 << 20;

#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
}

impl Channel {
    /// Creates a connected pair. Errors: those of `socketpair(2)`.
    pub fn pair() -> io::Result<(Channel, Channel)> {
        let (one, other) = UnixStream::pair()?;
        Ok((Channel { stream: one }, Channel { stream: other }))
    }

    /// Sends a message. Blocks if the socket's buffers are full. Errors: those of `sendmsg(2)`; `TimedOut` after the
    /// time set by [`Channel::set_patience`].
    pub fn send(&self, message: &impl Serialize, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let body = postcard::to_extend(message, vec![0; LENGTH]).map_err(io::Error::other)?;
        self.send_bytes(body, files)
    }

    fn send_bytes(&self, mut bytes: Vec<u8>, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let length = u32::try_from(bytes.len() - LENGTH).map_err(io::Error::other)?;
        bytes[..LENGTH].copy_from_slice(&length.to_le_bytes());
        let files: Vec<RawFd> = files.iter().take(MAX_FILES).map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&files)];
        let mut control = if files.is_empty() { &rights[..0] } else { &rights[..] };
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let flags = MsgFlags::MSG_NOSIGNAL;
            match sendmsg::<()>(self.stream.as_raw_fd(), &[IoSlice::new(rest)], control, flags, None) {
                Ok(sent) => {
                    rest = rest.get(sent..).unwrap_or_default();
                    // The files were sent with the first byte.
                    control = &[];
                }
                Err(nix::errno::Errno::EINTR) => {}
                Err(nix::errno::Errno::EAGAIN) => return Err(ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.stream.set_write_timeout(Some(patience))
    }

    /// Receives a message of at most `limit` bytes into `buffer`, until `deadline`. Attached files are ignored. Errors:
    /// those of `read(2)`; `UnexpectedEof` if the other side has closed, `TimedOut`, `InvalidData` if the message is
    /// longer.
    pub fn receive(&self, buffer: &mut Vec<u8>, limit: usize, deadline: Instant) -> io::Result<()> {
        buffer.clear();
        buffer.shrink_to(KEPT);
        let mut wanted = None;
        loop {
            wait(self.stream.as_fd(), Some(deadline))?;
            // Reads only this message: the other side should wait for the answer, but is not trusted to.
            let most = wanted.map_or(LENGTH, |wanted: usize| wanted - buffer.len()).min(PIECE);
            if read_some(&self.stream, buffer, most)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            match wanted {
                Some(wanted) if buffer.len() >= wanted => return Ok(()),
                None if buffer.len() >= LENGTH => {
                    let length = length(buffer)?;
                    if length > limit {
                        return Err(ErrorKind::InvalidData.into());
                    }
                    buffer.clear();
                    if length == 0 {
                        return Ok(());
                    }
                    wanted = Some(length);
                }
                _ => {}
            }
        }
    }

    /// As [`Channel::receive`], with attached files and without a deadline. `None` after `idle` without a message.
    pub fn receive_files(
        &self,
        buffer: &mut Vec<u8>,
        limit: usize,
        idle: Option<Duration>,
    ) -> io::Result<Option<Vec<File>>> {
        buffer.clear();
        buffer.shrink_to(KEPT);
        match wait(self.stream.as_fd(), idle.map(|idle| Instant::now() + idle)) {
            Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(None),
            other => other?,
        }
        let mut head = [0; LENGTH];
        let files = self.receive_head(&mut head)?;
        let length = length(&head)?;
        if length > limit {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut body = (&self.stream).take(length as u64);
        body.read_to_end(buffer)?;
        if buffer.len() < length { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(Some(files)) }
    }

    /// Reads the length, and the files attached to its first byte.
    fn receive_head(&self, head: &mut [u8; LENGTH]) -> io::Result<Vec<File>> {
        let mut space = cmsg_space!([RawFd; MAX_FILES]);
        let mut files = Vec::new();
        let got = loop {
            let mut pieces = [IoSliceMut::new(head)];
            let flags = MsgFlags::MSG_CMSG_CLOEXEC;
            let message = match recvmsg::<()>(self.stream.as_raw_fd(), &mut pieces, Some(&mut space), flags) {
                Err(nix::errno::Errno::EINTR) => continue,
                message => message?,
            };
            for control in message.cmsgs()? {
                let ControlMessageOwned::ScmRights(numbers) = control else { continue };
                // SAFETY: the kernel has just installed these descriptors in this process for this message (unix(7),
                // SCM_RIGHTS); nothing else knows them, so this is their only owner.
                files.extend(numbers.into_iter().map(|number| File::from(unsafe { OwnedFd::from_raw_fd(number) })));
            }
            break message.bytes;
        };
        if got == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if let Some(rest) = head.get_mut(got..) {
            (&self.stream).read_exact(rest)?;
        }
        Ok(files)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl From<OwnedFd> for Channel {
    fn from(fd: OwnedFd) -> Channel {
        Channel { stream: UnixStream::from(fd) }
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> OwnedFd {
        channel.stream.into()
    }
}

fn length(head: &[u8]) -> io::Result<usize> {
    let head = head.first_chunk::<LENGTH>().ok_or(ErrorKind::InvalidData)?;
    Ok(u32::from_le_bytes(*head) as usize)
}

fn read_some(mut stream: &UnixStream, buffer: &mut Vec<u8>, most: usize) -> io::Result<usize> {
    let before = buffer.len();
    buffer.resize(before + most, 0);
    let got = loop {
        match stream.read(&mut buffer[before..]) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => break other,
        }
    };
    buffer.truncate(before + got.as_ref().map_or(0, |&got| got));
    got
}

/// Waits until there is something to read, or the other side has closed.
fn wait(fd: BorrowedFd<'_>, deadline: Option<Instant>) -> io::Result<()> {
    loop {
        let timeout = match deadline {
            None => PollTimeout::NONE,
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(ErrorKind::TimedOut.into());
                }
                // Rounded up, so that the last attempt is not before the deadline.
                PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
            }
        };
        match poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn messages_and_files_arrive() {
        let (one, other) = Channel::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"inside").unwrap();
        let mut buffer = Vec::new();
        one.send(&("a", 1u32), &[file.as_fd(), file.as_fd()]).unwrap();
        let files = other.receive_files(&mut buffer, 100, None).unwrap().unwrap();
        assert_eq!(postcard::from_bytes::<(&str, u32)>(&buffer).unwrap(), ("a", 1));
        assert_eq!(files.len(), 2);
        let mut text = [0; 6];
        std::os::unix::fs::FileExt::read_exact_at(&files[1], &mut text, 0).unwrap();
        assert_eq!(&text, b"inside");
        let long = vec![7u8; 3 << 20];
        std::thread::scope(|scope| {
            scope.spawn(|| other.send(&long, &[]).unwrap());
            one.receive(&mut buffer, 4 << 20, soon()).unwrap();
        });
        assert_eq!(postcard::from_bytes::<Vec<u8>>(&buffer).unwrap(), long);
        // A message without files, and no message.
        one.send(&5u8, &[]).unwrap();
        assert!(other.receive_files(&mut buffer, 100, None).unwrap().unwrap().is_empty());
        assert!(other.receive_files(&mut buffer, 100, Some(Duration::from_millis(1))).unwrap().is_none());
    }

    #[test]
    fn long_late_or_ended_messages_are_errors() {
        let (one, other) = Channel::pair().unwrap();
        let mut buffer = Vec::new();
        let kind = |result: io::Result<()>| result.unwrap_err().kind();
        assert_eq!(kind(one.receive(&mut buffer, 10, Instant::now())), ErrorKind::TimedOut);
        (&other.stream).write_all(&[0xff, 0xff, 0xff, 0xff]).unwrap();
        assert_eq!(kind(one.receive(&mut buffer, 10, soon())), ErrorKind::InvalidData);
        (&other.stream).write_all(&[5, 0, 0, 0, 1]).unwrap();
        drop(other);
        assert_eq!(kind(one.receive(&mut buffer, 10, soon())), ErrorKind::UnexpectedEof);
        assert_eq!(kind(one.receive_files(&mut buffer, 10, None).map(drop)), ErrorKind::UnexpectedEof);
        assert_eq!(one.send(&5u8, &[]).unwrap_err().kind(), ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_peer_that_reads_nothing_is_not_waited_for() {
        let (one, _other) = Channel::pair().unwrap();
        one.set_patience(Duration::from_millis(20)).unwrap();
        assert_eq!(one.send(&vec![0u8; 8 << 20], &[]).unwrap_err().kind(), ErrorKind::TimedOut);
    }
}
