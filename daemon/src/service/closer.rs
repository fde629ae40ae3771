//! Closes connections whose clients have no place.
//!
//! What a client has passed along and nobody has received (`SCM_RIGHTS`, unix(7)) is closed with the connection, and there a
//! socket with `SO_LINGER` (socket(7)) waits for as long as its owner likes, or until a signal comes. So a thread of its own
//! closes, and a timer sends it one again and again meanwhile.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;

/// Connections that wait for it; then the acceptor does.
const MOST: usize = 1024;
/// The longest that one may wait for what is left of others.
const PATIENCE: Duration = Duration::from_millis(1);
/// Ignored where no handler is.
const SIGNAL: Signal = Signal::SIGURG;

pub struct Closer(Sender<UnixStream>);

impl Closer {
    /// Starts the thread, which ends with the last handle.
    ///
    /// # Errors
    /// If there can be no thread, or no handler of signals.
    pub fn start() -> io::Result<Closer> {
        // A signal without a handler interrupts nothing.
        signal_hook::flag::register(SIGNAL as i32, Arc::default())?;
        let (sender, streams) = bounded(MOST);
        std::thread::Builder::new().name("ccsd-close".to_owned()).spawn(move || run(&streams))?;
        Ok(Closer(sender))
    }

    pub fn close(&self, stream: UnixStream) {
        // The thread lives as long as this.
        let _ = self.0.send(stream);
    }
}

fn run(streams: &Receiver<UnixStream>) {
    let thread = SigevNotify::SigevThreadId { signal: SIGNAL, thread_id: nix::unistd::gettid().as_raw(), si_value: 0 };
    let mut timer = Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(thread)).ok();
    for stream in streams {
        if let Some(timer) = &mut timer {
            let _ = timer.set(Expiration::Interval(PATIENCE.into()), TimerSetTimeFlags::empty());
        }
        drop(stream);
        if let Some(timer) = &mut timer {
            let _ = timer.set(Expiration::OneShot(Duration::ZERO.into()), TimerSetTimeFlags::empty());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{ErrorKind, IoSlice, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use nix::libc::linger;
    use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg, setsockopt, sockopt::Linger};

    use super::*;

    #[test]
    fn what_clients_pass_along_keeps_nobody_waiting() {
        let closer = Closer::start().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut unread = Vec::new();
        for _ in 0..4 {
            let (client, refused) = UnixStream::pair().unwrap();
            let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            unread.push(listener.accept().unwrap());
            sender.set_nonblocking(true).unwrap();
            while sender.write(&[0; 1 << 16]).map_err(|error| error.kind()) != Err(ErrorKind::WouldBlock) {}
            setsockopt(&sender, Linger, &linger { l_onoff: 1, l_linger: 3600 }).unwrap();
            let passed = [sender.as_raw_fd()];
            let message = [ControlMessage::ScmRights(&passed)];
            sendmsg::<UnixAddr>(client.as_raw_fd(), &[IoSlice::new(b"x")], &message, MsgFlags::empty(), None).unwrap();
            drop(sender);
            closer.close(refused);
        }
        let (mut client, refused) = UnixStream::pair().unwrap();
        closer.close(refused);
        // Its turn comes after those of the others.
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        assert_eq!(unread.len(), 4);
    }
}
