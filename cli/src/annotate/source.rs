//! Source files: where those are that debug information names, and whether they are what was compiled.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::time::UNIX_EPOCH;

use ccsd_profile::sanitise;
use nix::fcntl::OFlag;

/// Largest source file that is read. Amalgamations such as SQLite's are 9 MB, generated parsers some tens.
const LARGEST: u64 = 64 << 20;
/// Columns of a tab.
const TAB: usize = 8;
/// Longest line that is shown; generated ones are megabytes.
const LONGEST_LINE: usize = 500;

/// Where to look.
pub struct Places<'a> {
    pub roots: &'a [PathBuf],
    /// Beginnings of paths, and what to put in their place.
    pub substitutions: &'a [(String, String)],
}

/// What was found of a source file.
pub struct SourceFile {
    pub source: Option<PathBuf>,
    pub lines: Option<Vec<String>>,
    /// What is to be known about it.
    pub remarks: Vec<String>,
}

impl Places<'_> {
    /// The file that debug information calls `path`, for a profile that was begun at `taken_unix_ns`.
    pub fn find(&self, path: &str, taken_unix_ns: u64) -> SourceFile {
        let mut why = None;
        for candidate in self.candidates(path) {
            match read(&candidate) {
                Ok((lines, modified_unix_ns)) => {
                    let mut remarks = Vec::new();
                    if taken_unix_ns > 0 && modified_unix_ns > taken_unix_ns {
                        remarks.push(
                            "the file was changed after the profile was begun: its lines may not be those that ran"
                                .to_owned(),
                        );
                    }
                    return SourceFile { source: Some(candidate), lines: Some(lines), remarks };
                }
                // The first that is there and cannot be read says more than that others are not there.
                Err(Some(problem)) => why = why.or(Some(format!("{}: {problem}", candidate.display()))),
                Err(None) => {}
            }
        }
        let why = why.unwrap_or_else(|| "there is no such file here; --source-root DIR says where to look".to_owned());
        SourceFile { source: None, lines: None, remarks: vec![why] }
    }

    fn candidates(&self, path: &str) -> Vec<PathBuf> {
        let mut candidates = Vec::new();
        for (from, to) in self.substitutions {
            candidates.extend(path.strip_prefix(from.as_str()).map(|rest| PathBuf::from(format!("{to}{rest}"))));
        }
        // Nothing above a root is meant: `..` takes back what came before it.
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
        for root in self.roots {
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

/// The lines of a file and when it was last changed. The error is `None` where there is no file of this name.
fn read(path: &Path) -> Result<(Vec<String>, u64), Option<String>> {
    // Not to be held by a FIFO: only regular files are read.
    let opened = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
    let file = opened.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => None,
        _ => Some(error.to_string()),
    })?;
    let meta = file.metadata().map_err(|error| Some(error.to_string()))?;
    if !meta.is_file() {
        return Err(Some("not a regular file".to_owned()));
    }
    if meta.len() > LARGEST {
        return Err(Some(format!("larger than {} MiB", LARGEST >> 20)));
    }
    let mut bytes = Vec::new();
    file.take(LARGEST).read_to_end(&mut bytes).map_err(|error| Some(error.to_string()))?;
    let modified = meta.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let modified = modified.and_then(|at| u64::try_from(at.as_nanos()).ok()).unwrap_or(0);
    Ok((String::from_utf8_lossy(&bytes).lines().map(printable).collect(), modified))
}

/// A line as it can be printed: tabs as blanks, nothing that a terminal would act on.
fn printable(line: &str) -> String {
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

    #[test]
    fn where_to_look() {
        let roots = [PathBuf::from("/r")];
        let substitutions = [("/build".to_owned(), "/home/me".to_owned())];
        let places = Places { roots: &roots, substitutions: &substitutions };
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
        assert_eq!(read(Path::new("/dev/zero")).unwrap_err(), Some("not a regular file".to_owned()));
        assert_eq!(read(Path::new("/nowhere/x.c")).unwrap_err(), None);
    }
}
