//! Authorisation: who may do what.
//!
//! Root, the daemon's own user and the members of group `ccsd` may do everything. Others may profile what they could trace
//! themselves: processes whose user and group ids all are theirs, that are dumpable, and that hold no capability (see
//! [`Owner`]); and they see their own sessions alone.
//!
//! The kernel gives the credentials of the peer as of the moment of connecting.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ccsd_collector::process::owner::{Denied, Owner};
use ccsd_collector::procfs;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::{Group, User, geteuid};

use crate::protocol::message::{Refusal, RefusalKind};

/// The group whose members may do everything.
pub const GROUP: &str = "ccsd";

/// A user as far as the daemon is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authority {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Whether everything is permitted.
    pub trusted: bool,
}

/// The peer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its authority.
    pub authority: Authority,
    /// The process that connected, in the daemon's PID namespace; 0 if it is in none that the daemon can see.
    pub pid: u32,
}

impl Authority {
    /// The daemon's own.
    #[must_use]
    pub fn own() -> Authority {
        Authority { uid: geteuid().as_raw(), gid: nix::unistd::getegid().as_raw(), trusted: true }
    }

    /// Whether a session of `owner` exists for this user.
    #[must_use]
    pub fn may_see(&self, owner: &Authority) -> bool {
        self.trusted || self.uid == owner.uid
    }

    /// Whose processes alone this user may profile; `None` for everybody's.
    #[must_use]
    pub fn owner(&self) -> Option<Owner> {
        (!self.trusted).then_some(Owner { uid: self.uid, gid: self.gid })
    }

    /// Whether this user may look at a process, and when that process began, in clock ticks since boot.
    ///
    /// # Errors
    /// [`Refusal`]: there is no such process, or it is not for this user.
    pub fn check(&self, pid: u32) -> Result<u64, Refusal> {
        let gone = || Refusal::from(ccsd_collector::Error::NoSuchProcess(pid));
        let began = procfs::stat(pid).map_err(|_| gone())?.start_time;
        if let Some(owner) = self.owner() {
            owner.check_one_thread(pid).map_err(|denied| match denied {
                Denied::Gone => gone(),
                Denied::Forbidden(why) => Refusal::new(
                    RefusalKind::NotPermitted,
                    format!(
                        "{} may not profile PID {pid}: {why}; root and members of group {GROUP} may",
                        user_name(self.uid)
                    ),
                ),
            })?;
        }
        match procfs::stat(pid) {
            Ok(stat) if stat.start_time == began => Ok(began),
            _ => Err(gone()),
        }
    }
}

/// What the kernel says of who has made a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// See [`Peer::pid`].
    pub pid: u32,
}

impl Credentials {
    /// Credentials of the peer that connected.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn of(stream: &UnixStream) -> io::Result<Credentials> {
        let credentials = getsockopt(stream, PeerCredentials)?;
        let pid = u32::try_from(credentials.pid()).unwrap_or(0);
        Ok(Credentials { uid: credentials.uid(), gid: credentials.gid(), pid })
    }

    /// Whether the user id alone says that everything is permitted.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.uid == 0 || self.uid == geteuid().as_raw()
    }

    /// What whoever has made this connection may do. That may wait for [`Members`].
    ///
    /// # Errors
    /// [`Unknown`]; or if the kernel does not say which groups it is in.
    pub fn peer(&self, stream: &UnixStream, members: &Members) -> Result<Peer, Unknown> {
        let Credentials { uid, gid, pid } = *self;
        let trusted = self.is_trusted()
            || match members.group()? {
                Some(group) => gid == group || groups_of(stream).map_err(|_| Unknown)?.contains(&group),
                None => false,
            };
        Ok(Peer { authority: Authority { uid, gid, trusted }, pid })
    }
}

/// The members of the group cannot be looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it cannot be found out at the moment which group {GROUP} is; try again later")]
pub struct Unknown;

/// How long a connection waits for that, where it has been found out before and where it has not.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const FIRST_LOOK: Duration = Duration::from_secs(5);
/// How long what was found out holds.
const HOLDS: Duration = Duration::from_secs(1);

/// Which group has the members: asked of the machine's directory of groups, which may be a slow server's, or one that does
/// not answer. It is asked by a thread of its own, one at a time, and connections wait for it no longer than they must.
#[derive(Clone, Default)]
pub struct Members(Arc<(Mutex<GroupCache>, Condvar)>);

/// Cached lookup of the group.
#[derive(Default)]
struct GroupCache {
    /// Its number, if there is such a group, and when that was so.
    known: Option<(Option<u32>, Instant)>,
    asking: bool,
}

impl Members {
    /// The number of the group, if there is one. Where the directory does not answer, what it said before.
    ///
    /// # Errors
    /// [`Unknown`] if it has never said anything.
    pub fn group(&self) -> Result<Option<u32>, Unknown> {
        self.group_by(|| Group::from_name(GROUP).map(|group| group.map(|group| group.gid.as_raw())).ok(), FIRST_LOOK)
    }

    fn group_by(
        &self,
        ask: impl FnOnce() -> Option<Option<u32>> + Send + 'static,
        patience: Duration,
    ) -> Result<Option<u32>, Unknown> {
        let (asked, answered) = &*self.0;
        let begin = Instant::now();
        let mut state = asked.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh =
            |state: &GroupCache| state.known.filter(|(_, when)| *when + HOLDS > begin).map(|(group, _)| group);
        if let Some(group) = is_fresh(&state) {
            return Ok(group);
        }
        if !state.asking {
            let this = self.clone();
            let asking = move || {
                let answer = ask();
                let (asked, answered) = &*this.0;
                let mut state = asked.lock().unwrap_or_else(PoisonError::into_inner);
                state.asking = false;
                // A failed lookup changes nothing.
                state.known = answer.map(|group| (group, Instant::now())).or(state.known);
                answered.notify_all();
            };
            state.asking = std::thread::Builder::new().name("ccsd-group".to_owned()).spawn(asking).is_ok();
        }
        let patience = if state.known.is_some() { LOOK_AGAIN.min(patience) } else { patience };
        let waits = |state: &mut GroupCache| state.asking && is_fresh(state).is_none();
        let (state, _) = answered.wait_timeout_while(state, patience, waits).unwrap_or_else(PoisonError::into_inner);
        state.known.map(|(group, _)| group).ok_or(Unknown)
    }
}

/// The supplementary groups of whoever has made this connection.
fn groups_of(stream: &UnixStream) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; 32];
    loop {
        let mut bytes = libc::socklen_t::try_from(groups.len() * size_of::<u32>()).map_err(io::Error::other)?;
        // SAFETY: the kernel writes at most `bytes` bytes of u32 values to `groups`, which has so many, and to `bytes` how
        // many they were or, with ERANGE, would be; both outlive the call. nix does not know this option.
        let result = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<u32>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

/// A user's name for messages, or else his number.
#[must_use]
pub fn user_name(uid: u32) -> String {
    match User::from_uid(uid.into()) {
        Ok(Some(user)) => format!("user {}", user.name),
        _ => format!("user {uid}"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn whose_end_this_is() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = Credentials::of(&one).unwrap().peer(&one, &Members::default()).unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.authority, Authority::own());
        assert!(peer.authority.check(peer.pid).is_ok());
    }

    #[test]
    fn others_see_nothing_of_ours() {
        let stranger = Authority { uid: 54_321, gid: 54_321, trusted: false };
        assert!(!stranger.may_see(&Authority::own()));
        assert!(Authority::own().may_see(&stranger));
        let refusal = stranger.check(std::process::id()).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::NotPermitted, "{refusal}");
    }

    #[test]
    fn a_directory_that_does_not_answer_holds_nobody_up() {
        let members = Members::default();
        let (let_go, silent) = std::sync::mpsc::channel::<()>();
        let nothing = Duration::from_millis(1);
        // Nothing is known, and nobody answers; nor is there more than one who asks.
        assert_eq!(members.group_by(move || silent.recv().ok().and(None), nothing), Err(Unknown));
        assert_eq!(members.group_by(|| unreachable!(), nothing), Err(Unknown));
        drop(let_go);
        while members.0.0.lock().unwrap().asking {}
        // A directory that fails is asked again, and what it says is remembered.
        assert_eq!(members.group_by(|| Some(Some(7)), Duration::from_secs(60)), Ok(Some(7)));
        assert_eq!(members.group_by(|| unreachable!(), nothing), Ok(Some(7)));
        if let Some((_, when)) = &mut members.0.0.lock().unwrap().known {
            *when -= HOLDS;
        }
        let (_keep, silent) = std::sync::mpsc::channel::<()>();
        assert_eq!(members.group_by(move || silent.recv().ok().and(None), nothing), Ok(Some(7)));
    }
}
