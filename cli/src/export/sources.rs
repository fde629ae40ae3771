//! The source that a page shows: of the hottest functions the lines that cost something, and those around them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::path::Path;

use ccsd_profile::export::{ExcerptFile, ExcerptLine, SourceExcerpt};
use ccsd_profile::view::{FunctionLines, LineRow, LinesView, Selection};
use ccsd_profile::{CostCentreId, ImageId, Profile, sanitise};

use crate::annotate::door::{NamedSource, SourceDoor};
use crate::annotate::source::{ReadLimits, SourceSearch, SourceText, printable};
use crate::args::export::ExportArgs;

pub const PART: usize = 24;
/// Functions below these shares of self and of total time have no source in a page.
const LEAST_SELF: f64 = 0.002;
const LEAST_INHERITED: f64 = 0.01;
const MOST_FUNCTIONS: usize = 60;
/// Lines of one function in one file; generated functions have thousands.
const MOST_LINES: usize = 400;
/// Files of one function: it has lines of the functions that are inlined into it.
const MOST_FILES: usize = 32;
const MOST_READ: u64 = 64 << 20;
const CONTEXT: u32 = 4;
/// Bytes of a line in a page beside its text: its numbers.
const LINE_BYTES: usize = 24;

/// Extensions of files whose text a page may have: debug information can name any file, and pages are passed on.
const EXTENSIONS: [&str; 52] = [
    "S", "ada", "adb", "asm", "c", "c++", "cc", "cpp", "cs", "cu", "cxx", "d", "def", "dart", "erl", "f", "f03", "f08",
    "f77", "f90", "f95", "for", "go", "h", "h++", "hh", "hpp", "hs", "hxx", "i", "ii", "inc", "inl", "ipp", "java",
    "jl", "js", "kt", "l", "m", "ml", "mm", "nim", "pas", "py", "pyx", "rs", "s", "scala", "swift", "tcc", "y",
];

/// Where to look for source, for the profile at `place`.
pub fn places<'a>(args: &'a ExportArgs, place: Option<&Path>) -> SourceSearch<'a> {
    SourceSearch { roots: &args.page.source_root, substitutions: &[], door: SourceDoor::of_profile(place) }
}

pub fn excerpts(
    profile: &Profile,
    selection: &Selection,
    places: &SourceSearch<'_>,
    most_bytes: usize,
) -> Vec<SourceExcerpt> {
    let functions = LinesView::new(profile, selection).functions;
    let is_hot =
        |it: &&FunctionLines| it.share.fraction >= LEAST_SELF || it.inherited_share.fraction >= LEAST_INHERITED;
    let hot = functions.iter().filter(is_hot).take(MOST_FUNCTIONS);
    let chosen: Vec<ChosenFunction<'_>> = hot.map(|function| ChosenFunction::of(profile, function)).collect();
    let mut kept = KeptLines {
        profile,
        places,
        limits: ReadLimits { is_wanted: Some(is_source), room: MOST_READ },
        taken_unix_ns: profile.session().started_unix_ns,
        wanted: HashMap::new(),
        files: HashMap::new(),
    };
    for function in &chosen {
        for file in &function.files {
            kept.wanted.entry((function.image, file.path)).or_default().extend(&file.numbers);
        }
    }
    let mut room = most_bytes;
    let mut excerpts = Vec::new();
    for function in &chosen {
        if room < LINE_BYTES {
            break;
        }
        let excerpt = function.excerpt(&mut kept);
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

/// A file as an image names it: what may be shown of it depends on both.
type FileKey<'a> = (Option<ImageId>, &'a str);

struct KeptLines<'a> {
    profile: &'a Profile,
    places: &'a SourceSearch<'a>,
    limits: ReadLimits,
    taken_unix_ns: u64,
    wanted: HashMap<FileKey<'a>, BTreeSet<u32>>,
    files: HashMap<FileKey<'a>, KeptFile>,
}

#[derive(Default)]
struct KeptFile {
    /// `None` if it cannot be read.
    lines: Option<BTreeMap<u32, String>>,
    remarks: Vec<String>,
}

impl<'a> KeptLines<'a> {
    fn file(&mut self, key: FileKey<'a>) -> &KeptFile {
        let Self { profile, places, limits, taken_unix_ns, wanted, files } = self;
        files.entry(key).or_insert_with(|| {
            let (image, path) = key;
            let named = NamedSource { path, image: image.and_then(|image| profile.image(image)) };
            let SourceText { text, remarks, .. } = places.find_text(named, *taken_unix_ns, limits);
            let wanted = wanted.get(&key);
            let keep = |text: String| {
                let lines = (1..).zip(text.lines()).filter(|(number, _)| wanted.is_some_and(|it| it.contains(number)));
                lines.map(|(number, line)| (number, printable(line))).collect()
            };
            let remarks = remarks.iter().map(|remark| sanitise(remark).into_owned()).collect();
            KeptFile { lines: text.map(keep), remarks }
        })
    }
}

struct ChosenFunction<'a> {
    function: CostCentreId,
    image: Option<ImageId>,
    /// The heaviest first.
    files: Vec<ChosenFile<'a>>,
    files_left_out: usize,
}

struct ChosenFile<'a> {
    path: &'a str,
    costs: BTreeMap<u32, &'a LineRow>,
    numbers: BTreeSet<u32>,
    left_out: usize,
}

impl<'a> ChosenFunction<'a> {
    fn of(profile: &Profile, function: &'a FunctionLines) -> Self {
        let mut rows: BTreeMap<&str, Vec<&LineRow>> = BTreeMap::new();
        for row in function.lines.iter().filter(|row| row.line > 0 && is_source(Path::new(&row.file))) {
            rows.entry(&row.file).or_default().push(row);
        }
        let mut rows: Vec<(&str, Vec<&LineRow>)> = rows.into_iter().collect();
        rows.sort_by_key(|(_, rows)| Reverse(rows.iter().map(|row| row.inherited_weight).max()));
        let files_left_out = rows.len().saturating_sub(MOST_FILES);
        rows.truncate(MOST_FILES);
        let centre = profile.cost_centre(function.function);
        let files = rows.into_iter().map(|(path, rows)| {
            let declared = centre.filter(|it| it.file.as_deref() == Some(path) && it.line > 0).map(|it| it.line);
            ChosenFile::of(path, rows, declared)
        });
        Self {
            function: function.function,
            image: centre.map(|centre| centre.image),
            files: files.collect(),
            files_left_out,
        }
    }

    fn excerpt(&self, kept: &mut KeptLines<'a>) -> SourceExcerpt {
        let excerpt = |file: &ChosenFile<'a>| file.excerpt(kept.file((self.image, file.path)));
        let mut files: Vec<ExcerptFile> = self.files.iter().map(excerpt).collect();
        if let Some(first) = files.first_mut().filter(|_| self.files_left_out > 0) {
            let left_out = self.files_left_out;
            first.remarks.push(format!("lines of this function in {left_out} more files are left out"));
        }
        SourceExcerpt { function: self.function, files }
    }
}

impl<'a> ChosenFile<'a> {
    /// The heaviest lines, and those around them that fit.
    fn of(path: &'a str, mut rows: Vec<&'a LineRow>, declared: Option<u32>) -> Self {
        rows.sort_by_key(|row| (Reverse((row.inherited_weight, row.weight)), row.line));
        let left_out = rows.len().saturating_sub(MOST_LINES);
        rows.truncate(MOST_LINES);
        let costs: BTreeMap<u32, &LineRow> = rows.iter().map(|row| (row.line, *row)).collect();
        let mut numbers: BTreeSet<u32> = costs.keys().copied().collect();
        // A declaration after the first cost is not where this code is.
        let first = costs.keys().next().copied().unwrap_or(0);
        let around = |row: &&LineRow| row.line.saturating_sub(CONTEXT).max(1)..=row.line.saturating_add(CONTEXT);
        for number in declared.into_iter().filter(|&line| line <= first).chain(rows.iter().flat_map(around)) {
            if numbers.len() >= MOST_LINES {
                break;
            }
            numbers.insert(number);
        }
        Self { path, costs, numbers, left_out }
    }

    fn excerpt(&self, kept: &KeptFile) -> ExcerptFile {
        let line = |&number: &u32| {
            let row = self.costs.get(&number);
            let text = kept.lines.as_ref().and_then(|lines| lines.get(&number)).cloned();
            // Around a cost there are only the lines that the file has.
            (row.is_some() || text.is_some()).then(|| ExcerptLine {
                number,
                self_weight: row.map_or(0, |row| row.weight),
                inherited_weight: row.map_or(0, |row| row.inherited_weight),
                text,
            })
        };
        let mut remarks = kept.remarks.clone();
        if self.left_out > 0 {
            let all = self.costs.len() + self.left_out;
            remarks.push(format!("of {all} lines with costs, the {} heaviest are shown", self.costs.len()));
        }
        ExcerptFile { path: self.path.to_owned(), remarks, lines: self.numbers.iter().filter_map(line).collect() }
    }
}

fn is_source(path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str);
    extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
}

#[cfg(test)]
mod tests {
    use ccsd_profile::LineId;
    use ccsd_profile::view::{Share, Total};

    use super::*;

    #[test]
    fn only_source_is_source() {
        for path in ["/src/parse.c", "lib.rs", "/usr/include/c++/12/bits/stl_vector.h", "/x/a.b.cpp"] {
            assert!(is_source(Path::new(path)), "{path}");
        }
        for path in ["/etc/shadow", "/root/.ssh/id_rsa", "/home/me/notes.txt", "/x/.c", "", "/srv/key.pem"] {
            assert!(!is_source(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn the_heaviest_lines_are_chosen() {
        let none = Share::from_weight(0, &Total::default());
        let row = |line: u32, weight: u64| LineRow {
            file: "x.c".to_owned(),
            line,
            weight,
            inherited_weight: weight,
            id: LineId::UNKNOWN,
            samples: 1,
            inherited_samples: 1,
            share: none,
            inherited_share: none,
        };
        let rows: Vec<LineRow> = (1..=500).map(|i| row(10 * i, u64::from(i))).collect();
        let file = ChosenFile::of("x.c", rows.iter().collect(), None);
        let lines = (file.costs.len(), file.costs.keys().next().copied(), file.numbers.len(), file.left_out);
        assert_eq!(lines, (400, Some(1010), 400, 100));
        let file = ChosenFile::of("x.c", rows.iter().take(60).collect(), Some(1));
        // All that cost, the declaration, and what is around the heaviest.
        assert_eq!((file.costs.len(), file.numbers.len(), file.left_out), (60, 400, 0));
        let has = |lines: &[u32]| lines.iter().map(|line| file.numbers.contains(line)).collect::<Vec<_>>();
        assert_eq!(has(&[1, 10, 596, 604, 14]), [true, true, true, true, false]);
        let kept = KeptFile::default();
        assert_eq!(file.excerpt(&kept).lines.len(), 60);
    }
}
