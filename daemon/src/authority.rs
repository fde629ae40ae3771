//! Who may do what.
//!
//! Root, the daemon's own user and the members of group `ccsd` may do everything. Others may profile what they could trace
//! themselves: processes whose user and group ids all are theirs, that are dumpable, and that hold no capability (see
//! [`Owner`]); and they see their own sessions alone.
//!
//! Who asks is what the kernel says of the connection, from the moment it was made.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use ccsd_collector::process::owner::{Denied, Owner};
use ccsd_collector::process::procfs;
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

/// Who is on the other side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// What it may do.
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

    /// Whether this user may look at a process, or its main thread, and when that process began, in clock ticks since boot.
    ///
    /// # Errors
    /// [`Refusal`]: there is no such process, or it is not for this user.
    pub fn check(&self, pid: u32) -> Result<u64, Refusal> {
        let gone = || Refusal::from(ccsd_collector::Error::NoSuchProcess(pid));
        let began = procfs::stat(pid).map_err(|_| gone())?.start_time;
        if let Some(owner) = self.owner() {
            owner.check_thread(pid).map_err(|denied| match denied {
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

impl Peer {
    /// Who has made this connection.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn of(stream: &UnixStream) -> io::Result<Peer> {
        let credentials = getsockopt(stream, PeerCredentials)?;
        let (uid, gid) = (credentials.uid(), credentials.gid());
        let trusted = uid == 0 || uid == geteuid().as_raw() || is_member(gid, &groups_of(stream)?);
        let pid = u32::try_from(credentials.pid()).unwrap_or(0);
        Ok(Peer { authority: Authority { uid, gid, trusted }, pid })
    }
}

fn is_member(gid: u32, groups: &[u32]) -> bool {
    let Ok(Some(group)) = Group::from_name(GROUP) else { return false };
    let group = group.gid.as_raw();
    gid == group || groups.contains(&group)
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
        let peer = Peer::of(&one).unwrap();
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
}
