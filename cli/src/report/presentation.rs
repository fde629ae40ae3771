//! What a view shows, and how.

use ccsd_profile::query::Grouping;
use ccsd_profile::view::{Selection, ViewColumn};
use ccsd_profile::{CostCentreId, Labels, Profile, Timeline, Unit, notes, sanitise};

use crate::format::counted;
use crate::functions::NamedFunctions;
use crate::query::{ShownMetric, metric};
use crate::style::TextLayout;

/// So many samples are expected where a target has used CPU time: that there is none is no chance.
const MANY_EXPECTED: u64 = 10;
/// How the target of a session begins that has only what belongs to something.
const SELECTED: [&str; 4] = ["unit ", "cgroup ", "container ", "user "];

pub struct Presentation<'a> {
    pub profile: &'a Profile,
    pub labels: Labels<'a>,
    pub selection: Selection,
    pub metric: ShownMetric,
    pub layout: TextLayout,
    pub limit: Option<usize>,
    pub functions: Option<NamedFunctions>,
    pub sort: Option<ViewColumn>,
    /// Rows with a smaller share are merged.
    pub min: f64,
    pub other: Option<CostCentreId>,
    pub by: Grouping,
    pub intervals: bool,
    pub short: bool,
    pub growing: bool,
    pub file_bytes: Option<u64>,
    pub watch: Option<&'a str>,
    pub timeline: &'a Timeline,
}

impl<'a> Presentation<'a> {
    pub fn new(profile: &'a Profile, layout: TextLayout) -> Presentation<'a> {
        let (_, metric) = metric(profile, None).unwrap_or((0, ShownMetric { name: String::new(), unit: Unit::Count }));
        Presentation {
            profile,
            labels: profile.labels(),
            selection: Selection::all(),
            metric,
            layout,
            limit: None,
            functions: None,
            sort: None,
            min: 0.0,
            other: None,
            by: Grouping::Function,
            intervals: false,
            short: false,
            growing: false,
            file_bytes: None,
            watch: None,
            timeline: Timeline::none(),
        }
    }

    pub fn counted(&self, number: usize, more: &str) -> String {
        let (one, several) = self.by.nouns();
        counted(number as u64, &format!("{more}{one}"), &format!("{more}{several}"))
    }

    /// Splits rows into those shown (at least the minimum share, within the limit) and the others.
    pub fn keep<T>(&self, rows: Vec<T>, share: impl Fn(&T) -> f64) -> (Vec<T>, Vec<T>) {
        let (mut kept, mut rest): (Vec<T>, Vec<T>) = rows.into_iter().partition(|row| share(row) >= self.min);
        let within = self.rows(kept.len());
        let mut beyond = kept.split_off(within);
        beyond.append(&mut rest);
        (kept, beyond)
    }

    pub fn wants(&self, function: CostCentreId) -> bool {
        self.functions.as_ref().is_none_or(|named| named.contains(function))
    }

    pub fn rows(&self, rows: usize) -> usize {
        self.limit.map_or(rows, |limit| limit.min(rows))
    }

    /// How to see the rest. (The report after a collection ends with a better hint.)
    pub fn hint(&self) -> &'static str {
        if self.short { "" } else { "; -n 0 shows all" }
    }

    /// Whether the session was about what belongs to some units, groups, containers or users.
    fn is_selection(&self) -> bool {
        let session = self.profile.session();
        session.pids.is_empty() && self.watch.is_none() && SELECTED.iter().any(|it| session.target.starts_with(it))
    }

    /// The note that the target's programs had other rights, so that the kernel did not sample them.
    fn other_rights(&self) -> Option<&str> {
        let notes = self.profile.session().notes.iter();
        notes.map(String::as_str).find(|note| note.starts_with(notes::OTHER_RIGHTS))
    }

    pub fn nothing(&self) -> String {
        let accounting = self.profile.accounting();
        match &self.functions {
            Some(named) => format!("no sample was taken in a function that matches {:?}\n", named.text()),
            None if accounting.received > 0 => "no samples: nothing is left of what is asked for\n".to_owned(),
            None if self.growing => "no samples yet\n".to_owned(),
            None if let Some(why) = self.other_rights() => format!("no samples: {}\n", sanitise(why)),
            // The collection was interrupted within its first second, so the target's activity is unknown.
            None if accounting.expected.is_none() => "no samples\n".to_owned(),
            None if self.is_selection() => format!(
                "no samples: nothing that belongs to {} used enough CPU time for one; a program that `ccsd record` starts is \
                 sampled only if it belongs to it, too
",
                sanitise(&self.profile.session().target)
            ),
            // Each thread has a timer, which ends first when the thread has used a whole period.
            None if accounting.expected.is_some_and(|expected| expected >= MANY_EXPECTED) => {
                "no samples: none of the threads used as much CPU time as lies between two samples; sample CPUs instead \
                 (--per-cpu, or layout = \"cpus\" of a watch)\n"
                    .to_owned()
            }
            None => "no samples: the target used too little CPU time; try a higher rate (-F, or rate_hz of a watch)\n"
                .to_owned(),
        }
    }
}
