//! The source that a page shows: of the hottest functions the lines that cost something, and those around them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::env;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ccsd_collector::{Door, ForUser};
use ccsd_profile::Profile;
use ccsd_profile::export::{ExcerptFile, ExcerptLine, SourceExcerpt};
use ccsd_profile::sanitise;
use ccsd_profile::view::{FunctionLines, LineRow, LinesView, Selection};
use nix::unistd::geteuid;

use crate::annotate::source::{SourceFile, SourceSearch};
use crate::args::export::ExportArgs;

/// Functions below these shares of self and of total time have no source in a page.
const LEAST_SELF: f64 = 0.002;
const LEAST_INHERITED: f64 = 0.01;
const MOST_FUNCTIONS: usize = 60;
/// Lines of one function in one file; generated functions have thousands.
const MOST_LINES: usize = 400;
/// Lines shown around each that costs something.
const CONTEXT: u32 = 4;
/// Bytes of a line in a page beside its text: its numbers.
const LINE_BYTES: usize = 24;

/// Extensions of files whose text a page may have. Debug information names any file, and pages are passed on: a profile must
/// not carry off what is no source.
const EXTENSIONS: [&str; 52] = [
    "S", "ada", "adb", "asm", "c", "c++", "cc", "cpp", "cs", "cu", "cxx", "d", "def", "dart", "erl", "f", "f03", "f08",
    "f77", "f90", "f95", "for", "go", "h", "h++", "hh", "hpp", "hs", "hxx", "i", "ii", "inc", "inl", "ipp", "java",
    "jl", "js", "kt", "l", "m", "ml", "mm", "nim", "pas", "py", "pyx", "rs", "s", "scala", "swift", "tcc", "y",
];

/// Where to look for source. Root looks with the rights of the user who asked by sudo, or whose file the profile is.
pub fn places<'a>(args: &'a ExportArgs, profile: &Path) -> SourceSearch<'a> {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let asked_by = || match (number("SUDO_UID"), number("SUDO_GID")) {
        (Some(uid), Some(gid)) => Some(ForUser { uid, gid }),
        _ => profile.metadata().ok().map(|meta| ForUser { uid: meta.uid(), gid: meta.gid() }),
    };
    let user = if geteuid().is_root() { asked_by().filter(|user| user.uid != 0) } else { None };
    SourceSearch { roots: &args.source_root, substitutions: &[], door: user.map(Door::of) }
}

/// The source of the hottest functions, up to so many bytes.
pub fn excerpts(
    profile: &Profile,
    selection: &Selection,
    places: &SourceSearch<'_>,
    most_bytes: usize,
) -> Vec<SourceExcerpt> {
    let functions = LinesView::new(profile, selection).functions;
    let is_hot =
        |it: &&FunctionLines| it.share.fraction >= LEAST_SELF || it.inherited_share.fraction >= LEAST_INHERITED;
    let mut files: HashMap<String, SourceFile> = HashMap::new();
    let mut room = most_bytes;
    let mut excerpts = Vec::new();
    for function in functions.iter().filter(is_hot).take(MOST_FUNCTIONS) {
        let excerpt = excerpt(profile, function, places, &mut files);
        let size: usize = excerpt.files.iter().map(bytes).sum();
        if excerpt.files.is_empty() || size > room {
            continue;
        }
        room -= size;
        excerpts.push(excerpt);
    }
    excerpts
}

fn bytes(file: &ExcerptFile) -> usize {
    let lines = file.lines.iter().map(|line| LINE_BYTES + line.text.as_ref().map_or(0, String::len));
    file.path.len() + file.remarks.iter().map(String::len).sum::<usize>() + lines.sum::<usize>()
}

fn excerpt(
    profile: &Profile,
    function: &FunctionLines,
    places: &SourceSearch<'_>,
    known: &mut HashMap<String, SourceFile>,
) -> SourceExcerpt {
    let mut rows: BTreeMap<&str, BTreeMap<u32, &LineRow>> = BTreeMap::new();
    for row in function.lines.iter().filter(|row| row.line > 0 && is_source(&row.file)) {
        rows.entry(&row.file).or_default().insert(row.line, row);
    }
    let centre = profile.cost_centre(function.function);
    let taken_unix_ns = profile.session().started_unix_ns;
    let mut files: Vec<(u64, ExcerptFile)> = Vec::new();
    for (path, costs) in rows {
        let found = known.entry(path.to_owned()).or_insert_with(|| places.find(path, taken_unix_ns));
        let mut numbers: BTreeSet<u32> = costs.keys().copied().collect();
        if let Some(all) = &found.lines {
            let last = u32::try_from(all.len()).unwrap_or(u32::MAX);
            let first = costs.keys().next().copied().unwrap_or(0);
            let declared = centre.filter(|it| it.file.as_deref() == Some(path) && it.line > 0).map(|it| it.line);
            numbers.extend(declared.filter(|&line| line <= first));
            for &line in costs.keys().take(MOST_LINES) {
                numbers.extend(line.saturating_sub(CONTEXT).max(1)..=line.saturating_add(CONTEXT).min(last));
            }
        }
        let line = |number: u32| {
            let row = costs.get(&number);
            ExcerptLine {
                number,
                self_weight: row.map_or(0, |row| row.weight),
                inherited_weight: row.map_or(0, |row| row.inherited_weight),
                text: found.lines.as_ref().and_then(|all| all.get(number as usize - 1)).cloned(),
            }
        };
        let heaviest = costs.values().map(|row| row.inherited_weight).max().unwrap_or(0);
        let remarks = found.remarks.iter().map(|remark| sanitise(remark).into_owned()).collect();
        let lines = numbers.into_iter().take(MOST_LINES).map(line).collect();
        files.push((heaviest, ExcerptFile { path: path.to_owned(), remarks, lines }));
    }
    files.sort_by_key(|(heaviest, _)| std::cmp::Reverse(*heaviest));
    SourceExcerpt { function: function.function, files: files.into_iter().map(|(_, file)| file).collect() }
}

fn is_source(path: &str) -> bool {
    let extension = Path::new(path).extension().and_then(OsStr::to_str);
    extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_source_is_source() {
        for path in ["/src/parse.c", "lib.rs", "/usr/include/c++/12/bits/stl_vector.h", "/x/a.b.cpp"] {
            assert!(is_source(path), "{path}");
        }
        for path in ["/etc/shadow", "/root/.ssh/id_rsa", "/home/me/notes.txt", "/x/.c", "", "/srv/key.pem"] {
            assert!(!is_source(path), "{path}");
        }
    }
}
