//! Authorisation: which user may do what.
//!
//! Root, the daemon's own user and the members of group `ccsd` may do everything. Other users may profile processes
//! that they
//! could trace themselves (see [`Owner`]), and see only their own sessions. The kernel reports the peer's credentials.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ccsd_collector::{Denied, Owner, procfs};
use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::{Group, User, geteuid};

use crate::protocol::message::{Refusal, RefusalKind};

/// The group whose members may do everything.
pub const GROUP: &str = "ccsd";

/// A user, and what that user may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authority {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Whether the user may do everything.
    pub trusted: bool,
}

/// The peer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The user.
    pub authority: Authority,
    /// Process that connected, in the daemon's PID namespace; 0 if the daemon cannot see it.
    pub pid: u32,
}

impl Authority {
    /// The daemon's own authority.
    #[must_use]
    pub fn own() -> Authority {
        Authority { uid: geteuid().as_raw(), gid: nix::unistd::getegid().as_raw(), trusted: true }
    }

    /// Whether this user may see sessions of `owner`.
    #[must_use]
    pub fn may_see(&self, owner: &Authority) -> bool {
        self.trusted || self.uid == owner.uid
    }

    /// The only user whose processes this user may profile; `None` for all users.
    #[must_use]
    pub fn owner(&self) -> Option<Owner> {
        (!self.trusted).then_some(Owner { uid: self.uid, gid: self.gid })
    }

    /// Checks that this user may look at a process. Returns when the process began, in clock ticks since boot.
    ///
    /// # Errors
    /// [`Refusal`] if the process does not exist or this user may not look at it.
    pub fn check(&self, pid: u32) -> Result<u64, Refusal> {
        let gone = || Refusal::from(ccsd_collector::Error::NoSuchProcess(pid));
        // Who does not answer may be anybody's by now.
        let unseen = |error: std::io::Error| match procfs::is_gone(&error) {
            true => gone(),
            false => ccsd_collector::Error::NoAnswer { pid, owner: procfs::owner_label(pid) }.into(),
        };
        let began = procfs::stat(pid).map_err(unseen)?.start_time;
        if let Some(owner) = self.owner() {
            owner.check_one_thread(pid).map_err(|denied| match denied {
                Denied::Gone => gone(),
                Denied::Forbidden(why) => Refusal::new(
                    RefusalKind::NotPermitted,
                    format!(
                        "user {} may not profile PID {pid}: {why}; root and members of group {GROUP} may",
                        self.uid
                    ),
                ),
            })?;
        }
        match procfs::stat(pid) {
            Ok(stat) if stat.start_time == began => Ok(began),
            Ok(_) => Err(gone()),
            Err(error) => Err(unseen(error)),
        }
    }
}

/// Credentials of a peer as the kernel reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerIds {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// See [`Peer::pid`].
    pub pid: u32,
}

impl PeerIds {
    /// Reads the credentials of a connected peer.
    ///
    /// # Errors
    /// If the kernel does not report them.
    pub fn of(stream: &UnixStream) -> io::Result<PeerIds> {
        let credentials = getsockopt(stream, PeerCredentials)?;
        let pid = u32::try_from(credentials.pid()).unwrap_or(0);
        Ok(PeerIds { uid: credentials.uid(), gid: credentials.gid(), pid })
    }

    /// Whether the user id alone grants everything.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.uid == 0 || self.uid == geteuid().as_raw()
    }

    /// Whether the peer is a member of the group, as far as can be said without asking for the group.
    #[must_use]
    pub fn is_known_member(&self, stream: &UnixStream, members: &Members) -> bool {
        members.known().is_some_and(|group| self.is_in(group, stream).unwrap_or(false))
    }

    fn is_in(&self, group: u32, stream: &UnixStream) -> io::Result<bool> {
        Ok(self.gid == group || groups_of(stream)?.contains(&group))
    }

    /// Determines what the peer may do. May wait for [`Members`].
    ///
    /// # Errors
    /// [`Unknown`], or if the kernel does not report the peer's groups.
    pub fn peer(&self, stream: &UnixStream, members: &Members) -> Result<Peer, Unknown> {
        let PeerIds { uid, gid, pid } = *self;
        let trusted = self.is_trusted()
            || match members.group()? {
                Some(group) => self.is_in(group, stream).map_err(|_| Unknown)?,
                None => false,
            };
        Ok(Peer { authority: Authority { uid, gid, trusted }, pid })
    }
}

/// The group could not be looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot look up group {GROUP} at the moment; try again later")]
pub struct Unknown;

/// How long a connection waits for a lookup, if an earlier answer exists and if not.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const FIRST_LOOK: Duration = Duration::from_secs(5);
/// How long an answer stays valid.
const HOLDS: Duration = Duration::from_secs(1);

/// Looks up the id of group `ccsd` in the user database, which may be slow: in one thread, with bounded waits.
#[derive(Clone, Default)]
pub struct Members(Arc<(Mutex<GroupCache>, Condvar)>);

#[derive(Default)]
struct GroupCache {
    /// The id, if the group exists, and when it was looked up.
    known: Option<(Option<u32>, Instant)>,
    asking: bool,
}

impl Members {
    /// The id of the group, if the group exists. Falls back to the last answer if the database does not respond.
    ///
    /// # Errors
    /// [`Unknown`] if there is no earlier answer.
    pub fn group(&self) -> Result<Option<u32>, Unknown> {
        self.group_by(|| group_id(GROUP), FIRST_LOOK)
    }

    fn known(&self) -> Option<u32> {
        let state = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.known.and_then(|(group, _)| group)
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
                // A failed lookup keeps the earlier answer.
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

/// The id of a group, if there is one; `None` if the user database failed. All these errors may mean that there is no such group,
/// or no database at all: see getgrnam(3).
fn group_id(name: &str) -> Option<Option<u32>> {
    match Group::from_name(name) {
        Ok(group) => Some(group.map(|group| group.gid.as_raw())),
        Err(Errno::ENOENT | Errno::ESRCH | Errno::EBADF | Errno::EPERM) => Some(None),
        Err(_) => None,
    }
}

fn groups_of(stream: &UnixStream) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; 32];
    loop {
        let mut bytes = libc::socklen_t::try_from(groups.len() * size_of::<u32>()).map_err(io::Error::other)?;
        // SAFETY: the kernel writes at most `bytes` bytes of u32 values to `groups`, which has room for them, and to
        // `bytes` the size used or, with ERANGE, needed; both outlive the call. nix does not know this option.
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

/// The name of a user, or the user id. For the command line: the name service may take long, so the daemon's messages
/// have ids.
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
        let peer = PeerIds::of(&one).unwrap().peer(&one, &Members::default()).unwrap();
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
        // No answer yet: lookups fail at once, and only one thread asks.
        assert_eq!(members.group_by(move || silent.recv().ok().and(None), nothing), Err(Unknown));
        assert_eq!(members.group_by(|| unreachable!(), nothing), Err(Unknown));
        drop(let_go);
        while members.0.0.lock().unwrap().asking {}
        // A failed lookup is repeated; a successful one is cached.
        assert_eq!(members.group_by(|| Some(Some(7)), Duration::from_secs(60)), Ok(Some(7)));
        assert_eq!(members.group_by(|| unreachable!(), nothing), Ok(Some(7)));
        if let Some((_, when)) = &mut members.0.0.lock().unwrap().known {
            *when -= HOLDS;
        }
        let (_keep, silent) = std::sync::mpsc::channel::<()>();
        assert_eq!(members.group_by(move || silent.recv().ok().and(None), nothing), Ok(Some(7)));
    }
}
