//! Finds the source files that debug information names, and checks that they are what was compiled.

use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::{Component, Path, PathBuf};
use std::time::UNIX_EPOCH;

use ccsd_profile::sanitise;

use super::door::{NamedSource, NotOpened, SourceDoor};

/// Maximum bytes of a source file. Amalgamations such as SQLite's have 9 MB, generated parsers some tens of MB.
const LARGEST: u64 = 64 << 20;
const TAB: usize = 8;
/// Maximum characters of a shown line; generated lines can have megabytes.
const LONGEST_LINE: usize = 500;

pub struct SourceSearch<'a> {
    pub roots: &'a [PathBuf],
    pub substitutions: &'a [(String, String)],
    pub door: SourceDoor,
}

pub struct SourceFile {
    pub source: Option<PathBuf>,
    pub lines: Option<Vec<String>>,
    pub remarks: Vec<String>,
}

pub struct SourceText {
    pub source: Option<PathBuf>,
    /// Its lines are to be printed as [`printable`].
    pub text: Option<String>,
    pub remarks: Vec<String>,
}

pub struct ReadLimits {
    /// Whether the file at this path may be read: the path of the opened file, without symbolic links. `None` for any file.
    pub is_wanted: Option<fn(&Path) -> bool>,
    pub room: u64,
}

impl SourceSearch<'_> {
    /// Finds the file that debug information names, for a profile started at `taken_unix_ns`.
    pub fn find(&self, named: NamedSource<'_>, taken_unix_ns: u64) -> SourceFile {
        let mut limits = ReadLimits { is_wanted: None, room: u64::MAX };
        let SourceText { source, text, remarks } = self.find_text(named, taken_unix_ns, &mut limits);
        SourceFile { source, lines: text.map(|text| text.lines().map(printable).collect()), remarks }
    }

    /// As [`SourceSearch::find`], within limits, whose room it takes.
    pub fn find_text(&self, named: NamedSource<'_>, taken_unix_ns: u64, limits: &mut ReadLimits) -> SourceText {
        let mut why = None;
        for candidate in self.candidates(named.path) {
            match read(&self.door, &candidate, named, limits) {
                Ok((text, modified_unix_ns)) => {
                    let mut remarks = Vec::new();
                    if taken_unix_ns > 0 && modified_unix_ns > taken_unix_ns {
                        remarks.push(
                            "the file was changed after the profile was begun: its lines may not be those that ran"
                                .to_owned(),
                        );
                    }
                    return SourceText { source: Some(candidate), text: Some(text), remarks };
                }
                // An unreadable file is a better explanation than the absence of others.
                Err(Some(problem)) => why = why.or(Some(format!("{}: {problem}", candidate.display()))),
                Err(None) => {}
            }
        }
        let why = why.unwrap_or_else(|| "there is no such file here; --source-root DIR says where to look".to_owned());
        SourceText { source: None, text: None, remarks: vec![why] }
    }

    fn candidates(&self, path: &str) -> Vec<PathBuf> {
        let mut candidates = Vec::new();
        for (from, to) in self.substitutions {
            candidates.extend(path.strip_prefix(from.as_str()).map(|rest| PathBuf::from(format!("{to}{rest}"))));
        }
        // `..` must not lead above a root: it removes the component before it.
        let mut parts: Vec<&std::ffi::OsStr> = Vec::new();
        for component in Path::new(path).components() {
            match component {
                Component::Normal(part) => parts.push(part),
                Component::ParentDir => {
                    parts.pop();
                }
                _ => {}
            }
        }
        for root in self.roots.iter().map(|root| std::path::absolute(root).unwrap_or_else(|_| root.clone())) {
            candidates.extend((0..parts.len()).map(|at| {
                let mut candidate = root.clone();
                candidate.extend(parts.iter().skip(at));
                candidate
            }));
        }
        candidates.push(PathBuf::from(path));
        candidates
    }
}

/// Reads the text of a file and its modification time. The error is `None` if the file does not exist.
fn read(
    door: &SourceDoor,
    path: &Path,
    named: NamedSource<'_>,
    limits: &mut ReadLimits,
) -> Result<(String, u64), Option<String>> {
    let file = door.open(path, named).map_err(|why| match why {
        NotOpened::Absent => None,
        NotOpened::Unreadable(why) => Some(why),
    })?;
    let meta = file.metadata().map_err(|error| Some(error.to_string()))?;
    if meta.len() > LARGEST {
        return Err(Some(format!("larger than {} MiB", LARGEST >> 20)));
    }
    // The name in the profile may be a link to any other file.
    let is_wanted = |is_wanted: fn(&Path) -> bool| {
        fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).is_ok_and(|real| is_wanted(&real))
    };
    if !limits.is_wanted.is_none_or(is_wanted) {
        return Err(Some("the name of the file that this leads to is not that of source".to_owned()));
    }
    if meta.len() > limits.room {
        return Err(Some("too much source was read before".to_owned()));
    }
    let mut bytes = Vec::new();
    let read = file.take(LARGEST.min(limits.room)).read_to_end(&mut bytes);
    limits.room = limits.room.saturating_sub(bytes.len() as u64);
    read.map_err(|error| Some(error.to_string()))?;
    let modified = meta.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let modified = modified.and_then(|at| u64::try_from(at.as_nanos()).ok()).unwrap_or(0);
    let text = String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
    Ok((text, modified))
}

/// A line safe to print: tabs become blanks, and characters that a terminal would act on are escaped.
pub fn printable(line: &str) -> String {
    let mut text = String::new();
    for c in line.trim_end().chars().take(LONGEST_LINE) {
        match c {
            '\t' => text.extend(std::iter::repeat_n(' ', TAB - text.chars().count() % TAB)),
            c => text.push(c),
        }
    }
    sanitise(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(path: &Path, limits: &mut ReadLimits) -> Result<(String, u64), Option<String>> {
        read(&SourceDoor::default(), path, NamedSource { path: "", image: None }, limits)
    }

    #[test]
    fn where_to_look() {
        let roots = [PathBuf::from("/r")];
        let substitutions = [("/build".to_owned(), "/home/me".to_owned())];
        let places = SourceSearch { roots: &roots, substitutions: &substitutions, door: SourceDoor::default() };
        let paths = |path| places.candidates(path).iter().map(|it| it.display().to_string()).collect::<Vec<_>>();
        assert_eq!(paths("/build/x/../y.c"), ["/home/me/x/../y.c", "/r/build/y.c", "/r/y.c", "/build/x/../y.c"]);
        assert_eq!(paths("../../etc/passwd"), ["/r/etc/passwd", "/r/passwd", "../../etc/passwd"]);
    }

    #[test]
    fn lines_are_safe_to_print() {
        assert_eq!(printable("\tif\tx \x1b[31m\r"), "        if      x \\u{1b}[31m");
    }

    #[test]
    fn only_regular_files_are_read() {
        let mut all = ReadLimits { is_wanted: None, room: u64::MAX };
        let mut why = |path: &str| read_all(Path::new(path), &mut all).unwrap_err();
        assert_eq!(why("/dev/zero"), Some("not a regular file".to_owned()));
        assert_eq!(why("/nowhere/x.c"), None);
    }

    #[test]
    fn limits_are_of_the_opened_file() {
        let dir = tempfile::tempdir().unwrap();
        let [secret, link, source] = ["id_rsa", "x.c", "y.c"].map(|name| dir.path().join(name));
        fs::write(&secret, "secret").unwrap();
        std::os::unix::fs::symlink(&secret, &link).unwrap();
        fs::write(&source, "text").unwrap();
        let mut limits = ReadLimits { is_wanted: Some(|path| path.extension().is_some()), room: 7 };
        assert!(read_all(&link, &mut limits).unwrap_err().unwrap().contains("not that of source"));
        assert_eq!(read_all(&source, &mut limits).unwrap().0, "text");
        assert_eq!(limits.room, 3);
        assert!(read_all(&source, &mut limits).unwrap_err().unwrap().contains("too much"));
    }
}
