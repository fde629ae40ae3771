//! Paths on which no other user decides what is found.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ccsd_worker::Principal;

/// Links on the way that are followed.
const MAX_LINKS: usize = 40;

/// A part of a path is another user's.
#[derive(Debug)]
pub struct Stranger {
    /// What the path leads to, a directory above it, or a link on the way.
    pub part: PathBuf,
    pub owner: u32,
}

/// Checks that neither a file or directory, nor a directory above it, nor a link on the way there is another user's, as far as
/// they exist. Returns the last one in which all users may replace files, or the file itself if all may write to it.
pub fn check(path: &Path) -> Result<Option<PathBuf>, Stranger> {
    let mut open_to_all = None;
    let mut path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for _ in 0..MAX_LINKS {
        let Some((link, to)) = check_parts(&path, &mut open_to_all)? else { break };
        let rest = path.strip_prefix(&link).unwrap_or(Path::new(""));
        path = link.parent().unwrap_or(Path::new("/")).join(to).join(rest);
    }
    Ok(open_to_all)
}

/// Checks the parts of a path from the root on. Returns the first link, and where it leads.
fn check_parts(path: &Path, open_to_all: &mut Option<PathBuf>) -> Result<Option<(PathBuf, PathBuf)>, Stranger> {
    let parts: Vec<&Path> = path.ancestors().collect();
    for part in parts.into_iter().rev() {
        let Ok(meta) = part.symlink_metadata() else { return Ok(None) };
        if ccsd_worker::principal_of(meta.uid()) != Principal::Own && !is_unmapped(meta.uid()) {
            return Err(Stranger { part: part.to_owned(), owner: meta.uid() });
        }
        if meta.is_symlink() {
            return Ok(part.read_link().ok().map(|to| (part.to_owned(), to)));
        }
        // With the sticky bit (inode(7)) others may add files but not replace any: harmless above what is looked for.
        if meta.mode() & 0o002 != 0 && (meta.mode() & 0o1000 == 0 || part == path) {
            *open_to_all = Some(part.to_owned());
        }
    }
    Ok(None)
}

/// Whether a user is one that this process's user namespace does not have, as root outside is.
fn is_unmapped(uid: u32) -> bool {
    const OVERFLOW: u32 = 65_534;
    let whole = |map: String| map.split_ascii_whitespace().eq(["0", "0", "4294967295"]);
    uid == OVERFLOW && !std::fs::read_to_string("/proc/self/uid_map").is_ok_and(whole)
}
