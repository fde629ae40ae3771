//! The daemon's socket: its path, its lock and its permissions.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem::ManuallyDrop;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::fcntl::{AtFlags, OFlag, open};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Group, fchownat, geteuid};

use crate::authority::GROUP;
use crate::lock_file::{self, LockError};

/// Path of the system daemon's socket.
pub const SYSTEM_SOCKET: &str = "/run/ccsd/ccsd.sock";
/// Environment variable with another path, for daemon and clients; ignored if empty.
pub const SOCKET_VARIABLE: &str = "CCSD_SOCKET";

#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum SocketError {
    #[error("another ccsd daemon serves {}; stop it, or choose another place with --socket", .0.display())]
    Busy(PathBuf),
    #[error("{} exists and is no socket: not replaced; choose another place with --socket", .0.display())]
    NotASocket(PathBuf),
    #[error("XDG_RUNTIME_DIR is not set, so there is no place for the socket; choose one with --socket")]
    NoPlace,
    #[error("cannot {what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
}

/// Paths where a client looks for a daemon, in order: only the one asked for; otherwise the user's, then the system's.
#[must_use]
pub fn places(asked_for: Option<&Path>) -> Vec<PathBuf> {
    if let Some(path) = asked_for {
        return vec![path.to_owned()];
    }
    if let Some(path) = std::env::var_os(SOCKET_VARIABLE) {
        return if path.is_empty() { Vec::new() } else { vec![path.into()] };
    }
    own_place().into_iter().chain([PathBuf::from(SYSTEM_SOCKET)]).collect()
}

/// Path where a daemon listens.
///
/// # Errors
/// [`SocketError::NoPlace`].
pub fn place(asked_for: Option<&Path>) -> Result<PathBuf, SocketError> {
    if asked_for.is_none() && std::env::var_os(SOCKET_VARIABLE).is_none_or(|path| path.is_empty()) {
        if geteuid().is_root() {
            return Ok(PathBuf::from(SYSTEM_SOCKET));
        }
        return own_place().ok_or(SocketError::NoPlace);
    }
    places(asked_for).into_iter().next().ok_or(SocketError::NoPlace)
}

fn own_place() -> Option<PathBuf> {
    let directory = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    directory.is_absolute().then(|| directory.join("ccsd/ccsd.sock"))
}

/// A listening socket. Removed on drop if it was created here.
pub struct Socket {
    /// Open until the process ends: closing it could wait for what clients that were not accepted have passed along; see
    /// [`Closer`](super::closer::Closer).
    listener: ManuallyDrop<UnixListener>,
    /// Path and lock, if the socket was created here.
    made: Option<(PathBuf, File)>,
    name: String,
}

impl Socket {
    /// Takes the socket passed by systemd, if any.
    ///
    /// # Errors
    /// If it is not a listening Unix socket.
    pub fn inherited() -> io::Result<Option<Socket>> {
        let listener = listenfd::ListenFd::from_env().take_unix_listener(0)?;
        Ok(listener.map(|listener| {
            let path =
                listener.local_addr().ok().and_then(|address| Some(address.as_pathname()?.display().to_string()));
            Socket {
                listener: ManuallyDrop::new(listener),
                made: None,
                name: path.unwrap_or_else(|| "an inherited socket".to_owned()),
            }
        }))
    }

    /// Creates a socket, and replaces a dead daemon's. Unless `mode` is given, only its owner may open it, and, for
    /// root, the members of group `ccsd`. Call before there are threads: it changes the umask for a moment.
    pub fn make(path: &Path, mode: Option<u32>) -> Result<Socket, SocketError> {
        let doing = |what, path: &Path| {
            let path = path.to_owned();
            move |source| SocketError::Io { what, path, source }
        };
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            let directory_mode = if geteuid().is_root() { 0o755 } else { 0o700 };
            let made = fs::DirBuilder::new().recursive(true).mode(directory_mode).create(directory);
            made.map_err(doing("create", directory))?;
        }
        let lock = lock(path)?;
        match fs::symlink_metadata(path) {
            Ok(meta) if !meta.file_type().is_socket() => return Err(SocketError::NotASocket(path.to_owned())),
            // The lock proves that no daemon serves it.
            Ok(_) => fs::remove_file(path).map_err(doing("replace", path))?,
            Err(_) => {}
        }
        let group = Group::from_name(GROUP).ok().flatten().filter(|_| geteuid().is_root());
        let mode = mode.unwrap_or(if group.is_some() { 0o660 } else { 0o600 });
        // The mode is set at creation: before a later change, another user of the directory could replace the socket.
        let before = umask(Mode::from_bits_truncate(!mode & 0o777));
        let listener = UnixListener::bind(path);
        umask(before);
        let listener = listener.map_err(doing("listen at", path))?;
        if let Some(group) = &group {
            give_to_group(path, group.gid).map_err(doing("give away", path))?;
        }
        let listener = ManuallyDrop::new(listener);
        Ok(Socket { listener, made: Some((path.to_owned(), lock)), name: path.display().to_string() })
    }

    /// The listening socket.
    #[must_use]
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Path of the socket.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some((path, _lock)) = &self.made {
            let _ = fs::remove_file(path);
            // Removed while locked: a daemon that has opened it meanwhile finds that it has no name any more.
            let _ = fs::remove_file(lock_path(path));
        }
    }
}

/// Gives the socket created at `path` to a group, if the path still refers to that socket.
fn give_to_group(path: &Path, group: Gid) -> io::Result<()> {
    let handle = File::from(open(path, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?);
    let meta = handle.metadata()?;
    if !meta.file_type().is_socket() || meta.uid() != geteuid().as_raw() || meta.nlink() != 1 {
        return Err(io::Error::other("another program has put something in its place"));
    }
    Ok(fchownat(&handle, "", None, Some(group), AtFlags::AT_EMPTY_PATH)?)
}

/// Locks the file beside the socket.
fn lock(path: &Path) -> Result<File, SocketError> {
    let name = lock_path(path);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
    lock_file::lock(&name, &options).map_err(|error| match error {
        LockError::Held(_) => SocketError::Busy(path.to_owned()),
        LockError::Io(source) => SocketError::Io { what: "lock", path: name, source },
    })
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    #[test]
    fn one_daemon_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/er/ccsd.sock");
        let socket = Socket::make(&path, None).unwrap();
        assert!(matches!(Socket::make(&path, None), Err(SocketError::Busy(_))));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o007, 0);
        UnixStream::connect(&path).unwrap();
        drop(socket);
        assert!(!path.exists() && !lock_path(&path).exists());
        // A killed daemon leaves its socket.
        drop(UnixListener::bind(&path).unwrap());
        assert!(UnixStream::connect(&path).is_err());
        let socket = Socket::make(&path, Some(0o666)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
        UnixStream::connect(&path).unwrap();
        drop(socket);
    }

    #[test]
    fn nothing_but_the_socket_is_given_away() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let group = nix::unistd::getegid();
        let _listener = UnixListener::bind(at("socket")).unwrap();
        give_to_group(&at("socket"), group).unwrap();
        fs::write(at("file"), "").unwrap();
        std::os::unix::fs::symlink("socket", at("link")).unwrap();
        for name in ["file", "link", "none"] {
            assert!(give_to_group(&at(name), group).is_err(), "{name}");
        }
        // The name may be a hard link to another user's socket.
        fs::hard_link(at("socket"), at("hard")).unwrap();
        assert!(give_to_group(&at("hard"), group).is_err());
    }

    #[test]
    fn other_files_are_not_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notes.txt");
        fs::write(&path, "dear diary").unwrap();
        assert!(matches!(Socket::make(&path, None), Err(SocketError::NotASocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "dear diary");
        let link = directory.path().join("link.sock");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(Socket::make(&link, None), Err(SocketError::NotASocket(_))));
    }
}
