//! Who may do what.
//!
//! Root, the daemon's own user and the members of group `ccsd` may do everything. Others may profile what they could trace
//! themselves: processes whose user and group ids all are theirs, that are dumpable, and that hold no capability (the rule
//! of ptrace(2), section "Ptrace access mode checking", without the exceptions); and they see their own sessions alone.
//!
//! Who asks is what the kernel says of the connection, from the moment it was made.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;

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

    /// Whether this user may look at a process, and when that process began, in clock ticks since boot.
    ///
    /// # Errors
    /// [`Refusal`]: there is no such process, or it is not for this user.
    pub fn check(&self, pid: u32) -> Result<u64, Refusal> {
        let gone = || Refusal::from(ccsd_collector::Error::NoSuchProcess(pid));
        let began = procfs::stat(pid).map_err(|_| gone())?.start_time;
        if !self.trusted {
            // Group before owner of the directory: a process that executes something between the two is seen to by the
            // kernel, which ends the events on it, and by the next check.
            let status = procfs::read(&format!("/proc/{pid}/status")).map_err(|_| gone())?;
            let credentials = Credentials::parse(&String::from_utf8_lossy(&status)).ok_or_else(gone)?;
            let directory = fs::metadata(format!("/proc/{pid}")).map_err(|_| gone())?;
            if let Err(why) = credentials.check(self.uid, self.gid, (directory.uid(), directory.gid())) {
                return Err(Refusal::new(
                    RefusalKind::NotPermitted,
                    format!(
                        "{} may not profile PID {pid}: {why}; root and members of group {GROUP} may",
                        user_name(self.uid)
                    ),
                ));
            }
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

/// What /proc/PID/status says of a process's rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Credentials {
    /// Real, effective, saved.
    uids: [u32; 3],
    /// Likewise.
    gids: [u32; 3],
    /// Permitted capabilities.
    capabilities: u64,
}

impl Credentials {
    fn parse(status: &str) -> Option<Credentials> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let ids = |name: &str| -> Option<[u32; 3]> {
            let mut words = field(name)?.split_ascii_whitespace().map(str::parse);
            Some([words.next()?.ok()?, words.next()?.ok()?, words.next()?.ok()?])
        };
        Some(Credentials {
            uids: ids("Uid:")?,
            gids: ids("Gid:")?,
            capabilities: u64::from_str_radix(field("CapPrm:")?.trim(), 16).ok()?,
        })
    }

    /// Whether a user without capabilities may look at it. `directory` is to whom its directory in /proc belongs: the
    /// process's effective user and group if it is dumpable, else root.
    fn check(&self, uid: u32, gid: u32, directory: (u32, u32)) -> Result<(), &'static str> {
        if self.uids.iter().any(|&id| id != uid) || self.gids.iter().any(|&id| id != gid) {
            return Err("it runs as another user or group");
        }
        if directory != (uid, gid) {
            return Err(
                "it is not dumpable, because it executes a privileged or unreadable file or has asked for that",
            );
        }
        if self.capabilities != 0 {
            return Err("it has capabilities");
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn credentials(uids: &str, gids: &str, capabilities: &str) -> Credentials {
        let status = format!("Name:\tUid: 0\nUid:\t{uids}\nGid:\t{gids}\nCapInh:\t0\nCapPrm:\t{capabilities}\n");
        Credentials::parse(&status).unwrap()
    }

    #[test]
    fn what_ptrace_would_refuse() {
        let (all, own) = ("1000 1000 1000 1000", (1000, 1000));
        let plain = "0000000000000000";
        assert_eq!(credentials(all, all, plain).check(1000, 1000, own), Ok(()));
        for (uids, gids, capabilities, directory) in [
            ("1000 0 1000 0", all, plain, own),
            ("1000 1000 0 1000", all, plain, own),
            ("0 1000 1000 1000", all, plain, own),
            ("1001 1001 1001 1001", all, plain, (1001, 1000)),
            (all, "1000 42 42 42", plain, own),
            (all, "42 1000 1000 1000", plain, own),
            (all, all, plain, (0, 0)),
            (all, all, plain, (1000, 0)),
            (all, all, "0000000000002000", own),
        ] {
            let refused = credentials(uids, gids, capabilities).check(1000, 1000, directory);
            assert!(refused.is_err(), "{uids} {gids} {capabilities} {directory:?}");
        }
    }

    #[test]
    fn a_status_that_lacks_something_is_no_permission() {
        assert_eq!(Credentials::parse(""), None);
        assert_eq!(Credentials::parse("Uid:\t1 1\nGid:\t1 1 1 1\nCapPrm:\t0\n"), None);
        assert_eq!(Credentials::parse("Uid:\t1 1 1 1\nGid:\t1 1 1 1\nCapPrm:\tx\n"), None);
    }

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
