//! Closes connections whose clients have no place.
//!
//! A client may send descriptors (`SCM_RIGHTS`, unix(7)). Closing the connection closes those that nobody received.
//! A socket with `SO_LINGER` (socket(7)) then waits as long as its owner likes, or until a signal arrives. So a separate thread
//! closes connections, and a timer sends it a signal every millisecond while it does.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;

/// Connections that wait to be closed. Where there are more, the acceptor waits.
const MOST: usize = 1024;
/// The longest that one close may wait.
const PATIENCE: Duration = Duration::from_millis(1);
/// Ignored where no handler is.
const SIGNAL: Signal = Signal::SIGURG;

/// Hands connections to the thread that closes them.
pub struct Closer(Sender<UnixStream>);

impl Closer {
    /// Starts the thread, which ends with the last handle.
    ///
    /// # Errors
    /// If there can be no thread, no timer, or no handler of signals.
    pub fn start() -> io::Result<Closer> {
        // A signal without a handler interrupts nothing.
        signal_hook::flag::register(SIGNAL as i32, Arc::default())?;
        let (sender, streams) = bounded(MOST);
        let (tell, told) = bounded(1);
        let run = move || match timer() {
            Ok(mut timer) => {
                let _ = tell.send(None);
                run(&streams, &mut timer);
            }
            Err(error) => _ = tell.send(Some(error)),
        };
        std::thread::Builder::new().name("ccsd-close".to_owned()).spawn(run)?;
        match told.recv() {
            Ok(None) => Ok(Closer(sender)),
            Ok(Some(error)) => Err(error),
            Err(_) => Err(io::Error::other("the thread that closes connections has failed")),
        }
    }

    pub fn close(&self, stream: UnixStream) {
        // The thread lives as long as this.
        let _ = self.0.send(stream);
    }
}

/// Sends signals to the calling thread, once it is set.
fn timer() -> io::Result<Timer> {
    let thread = SigevNotify::SigevThreadId { signal: SIGNAL, thread_id: nix::unistd::gettid().as_raw(), si_value: 0 };
    Ok(Timer::new(ClockId::CLOCK_MONOTONIC, SigEvent::new(thread))?)
}

fn run(streams: &Receiver<UnixStream>, timer: &mut Timer) {
    for stream in streams {
        // With valid times and an own timer this does not fail (timer_settime(2)).
        let _ = timer.set(Expiration::Interval(PATIENCE.into()), TimerSetTimeFlags::empty());
        drop(stream);
        let _ = timer.set(Expiration::OneShot(Duration::ZERO.into()), TimerSetTimeFlags::empty());
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
        // Its turn comes after those of the others. Else this waits for an hour.
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        assert_eq!(unread.len(), 4);
    }
}
