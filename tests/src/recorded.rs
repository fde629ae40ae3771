//! What was collected, and questions to it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use ccsd_profile::view::{FlatView, GraphView, ProcessRow, Selection, StackRow, StacksView, ThreadsView};
use ccsd_profile::{CostCentreId, Loaded, Profile, Recovery, read_profile};
use tempfile::TempDir;

use crate::ccsd::EndedProgram;
use crate::statistics::assert_share;

pub struct Recorded {
    pub profile: Profile,
    pub recovery: Recovery,
    pub finished: bool,
    pub ended: EndedProgram,
    pub file: PathBuf,
    pub dir: TempDir,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleCounts {
    /// With it as leaf.
    pub own: u64,
    pub inherited: u64,
}

impl Recorded {
    /// Reads a profile that a command has left in `dir`.
    #[must_use]
    pub fn open(dir: TempDir, file: &Path, ended: EndedProgram) -> Recorded {
        Recorded::read(dir, file, ended)
    }

    pub(crate) fn read(dir: TempDir, file: &Path, ended: EndedProgram) -> Recorded {
        let input = File::open(file).unwrap_or_else(|error| panic!("{}: {error}; {ended:?}", file.display()));
        let loaded = read_profile(input).unwrap_or_else(|error| panic!("{}: {error}; {ended:?}", file.display()));
        let Loaded { profile, recovery, finished, .. } = loaded;
        Recorded { profile, recovery, finished, ended, file: file.to_owned(), dir }
    }

    /// Asserts that the file is whole and the accounting adds up (I1, I13): charges are the received samples, of one
    /// period each for a clock, and what is not sampled, up to the target's CPU time.
    pub fn assert_whole(&self) -> &Recorded {
        assert!(self.finished && matches!(self.recovery, Recovery::Whole), "{:?}", self.recovery);
        let accounting = self.profile.accounting();
        let total = self.flat().total;
        assert_eq!(total.samples, accounting.received);
        assert_eq!(accounting.elided, 0);
        if self.profile.session().event.starts_with("cpu-clock") {
            // On a machine that others use the rate may have been changed, where a test has not asked for one.
            let later = accounting.pace.rates.iter().map(|span| span.rate_hz);
            let rates = later.chain([self.profile.session().rate_hz]);
            let periods: Vec<u64> = rates.map(|rate_hz| 1_000_000_000 / u64::from(rate_hz)).collect();
            let (least, most) = (periods.iter().min().unwrap(), periods.iter().max().unwrap());
            let weights = accounting.received * least..=accounting.received * most;
            let sampled = self.sampled().total.weight;
            assert!(weights.contains(&sampled), "{sampled} is not in {weights:?}: {accounting:?}");
        }
        let not_sampled = total.weight - self.sampled().total.weight;
        assert_eq!(not_sampled, accounting.not_sampled.map_or(0, |it| it.total()), "{accounting:?}");
        if not_sampled > 0 {
            let used = accounting.target_cpu_ns.unwrap();
            assert!(total.weight <= used, "{} ns are charged of {used}", total.weight);
        }
        self
    }

    /// Asserts that at most 1 % of the stacks do not reach their root.
    pub fn assert_complete(&self) -> &Recorded {
        let accounting = self.profile.accounting();
        let truncated = accounting.truncated_total();
        assert!(
            truncated * 100 <= accounting.received,
            "{truncated} of {} stacks are truncated: {:?}",
            accounting.received,
            accounting.stacks.truncated
        );
        self
    }

    #[must_use]
    pub fn rate_hz(&self) -> f64 {
        f64::from(self.profile.session().rate_hz)
    }

    #[must_use]
    pub fn flat(&self) -> FlatView {
        FlatView::new(&self.profile, &Selection::all())
    }

    #[must_use]
    pub fn sampled(&self) -> FlatView {
        FlatView::new(&self.profile, &Selection::all().ignore(self.profile.not_sampled_cost_centre()))
    }

    #[must_use]
    pub fn graph(&self) -> GraphView {
        GraphView::new(&self.profile, &Selection::all())
    }

    #[must_use]
    pub fn stacks(&self) -> StacksView {
        StacksView::new(&self.profile, &Selection::all())
    }

    #[must_use]
    pub fn processes(&self) -> Vec<ProcessRow> {
        let sampled = Selection::all().ignore(self.profile.not_sampled_cost_centre());
        let mut processes = ThreadsView::new(&self.profile, &sampled).processes;
        // Time without samples may belong to no known thread, and have a process and thread of its own.
        processes.retain(|process| process.samples > 0);
        processes.iter_mut().for_each(|process| process.threads.retain(|thread| thread.samples > 0));
        processes
    }

    #[must_use]
    pub fn total(&self) -> u64 {
        self.flat().total.samples
    }

    /// The function of this name, or else the one of this name in some namespace or module.
    #[must_use]
    pub fn function(&self, name: &str) -> Option<CostCentreId> {
        let rows = self.flat().rows;
        let exact = rows.iter().any(|row| row.name == name);
        let mut found = rows.iter().filter(|row| if exact { row.name == name } else { short_name(&row.name) == name });
        let first = found.next();
        if let (Some(first), Some(second)) = (first, found.next()) {
            panic!("{name} is both {} of {} and {} of {}", first.name, first.image, second.name, second.image);
        }
        first.map(|row| row.function)
    }

    #[must_use]
    pub fn samples(&self, name: &str) -> SampleCounts {
        let Some(function) = self.function(name) else { return SampleCounts::default() };
        let flat = self.flat();
        let row = flat.row(function).unwrap();
        SampleCounts { own: row.samples_self, inherited: row.samples_inherited }
    }

    /// Samples whose stack has all of these functions.
    #[must_use]
    pub fn samples_with(&self, names: &[&str]) -> u64 {
        let functions: Vec<_> = names.iter().map(|name| self.function(name)).collect();
        let has = |row: &&StackRow| {
            functions.iter().all(|wanted| row.entries.iter().any(|entry| Some(entry.function) == *wanted))
        };
        self.stacks().rows.iter().filter(has).map(|row| row.samples).sum()
    }

    /// Asserts the shares in which these functions divide the samples that they have together, each with what it has
    /// called.
    pub fn assert_proportions(&self, parts: &[(&str, u64)], allowance: f64) {
        let samples: Vec<u64> = parts.iter().map(|(name, _)| self.samples(name).inherited).collect();
        let total: u64 = samples.iter().sum();
        let whole: u64 = parts.iter().map(|(_, part)| part).sum();
        assert!(total >= 100, "only {total} samples: {:?}", self.names());
        for ((name, part), samples) in parts.iter().zip(samples) {
            assert_share(name, samples, total, *part as f64 / whole as f64, allowance);
        }
    }

    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.flat().rows.into_iter().map(|row| row.name).collect()
    }

    #[must_use]
    pub fn through(&self, caller: &str, callee: &str) -> u64 {
        let (Some(caller), Some(callee)) = (self.function(caller), self.function(callee)) else { return 0 };
        let graph = self.graph();
        let arcs = &graph.node(callee).unwrap().callers;
        arcs.iter().find(|arc| arc.function == caller).map_or(0, |arc| arc.samples)
    }

    /// Asserts that `caller` is the only caller of `callee`, but for the 1 % of stacks that may be incomplete.
    pub fn assert_only_caller(&self, caller: &str, callee: &str) {
        let (through, all) = (self.through(caller, callee), self.samples(callee).inherited);
        let enough = all > 0 && through * 100 >= all * 99;
        assert!(enough, "{through} of {all} samples of {callee} are through {caller}; all: {:?}", self.callers(callee));
    }

    #[must_use]
    pub fn callers(&self, callee: &str) -> Vec<(String, u64)> {
        let Some(callee) = self.function(callee) else { return Vec::new() };
        self.graph().node(callee).unwrap().callers.iter().map(|arc| (arc.name.clone(), arc.samples)).collect()
    }

    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        fs::read(&self.file).unwrap()
    }
}

/// `area` of `shapes::Square::area(unsigned long) const`.
#[must_use]
pub fn short_name(name: &str) -> &str {
    let name = name.rsplit("(anonymous namespace)::").next().unwrap_or(name);
    let end = name.find(['(', '<']).filter(|&end| end > 0).unwrap_or(name.len());
    let path = &name[..end];
    let name = path.rsplit("::").next().unwrap_or(path);
    // A template is shown with its return type.
    name.rsplit(' ').next().unwrap_or(name)
}

/// `1,234,567`, as reports write counts.
#[must_use]
pub fn with_commas(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::short_name;

    #[test]
    fn short_names() {
        assert_eq!(short_name("shapes::Square::area(unsigned long) const"), "area");
        assert_eq!(short_name("builds::work"), "work");
        assert_eq!(short_name("void apply<int>(int)"), "apply");
        assert_eq!(short_name("(anonymous)"), "(anonymous)");
        assert_eq!(short_name("a::(anonymous namespace)::hidden()"), "hidden");
        assert_eq!(short_name("main"), "main");
    }
}
