//! Profiles in the formats that other tools open.
//!
//! What they are given is a profile's contexts, in which recursion is folded (see [`History`](crate::History)): every
//! function is on a stack once for its latest activation and as often as it takes to keep callers and callees true. Where the
//! function above may not have called the one below, `[...]` stands between the two. A consumer that counts a function once
//! for each stack, as they do, has ccsd's own self and inherited weights, and totals that agree to the last
//! unit. Every format says so. Names are made safe ([`sanitise`]) in all of them but JSON,
//! which has escapes of its own.

mod callgrind;
mod csv;
mod dot;
mod firefox;
mod folded;
mod gprof;
mod html;
mod json;
mod pprof;
mod source;
mod speedscope;
mod svg;
mod walk;

pub use source::{ExcerptFile, ExcerptLine, SourceExcerpt};
pub use svg::write_difference;

use std::io::{self, Write};
use std::str::FromStr;

use crate::codec::TimeColumn;
use crate::model::{Metric, Unit};
use crate::profile::Profile;
use crate::sanitise;
use crate::view::{Column, Selection, walk_contexts};

/// A format to export to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// pprof's protobuf, compressed: `go tool pprof`, pprof.me, Grafana.
    Pprof,
    /// Callgrind's: KCachegrind, callgrind_annotate.
    Callgrind,
    /// One HTML file to look at, with all views in it.
    Html,
    /// One line a stack: flamegraph.pl, inferno, speedscope.
    Folded,
    /// A flame graph.
    Svg,
    /// speedscope's JSON.
    Speedscope,
    /// The Firefox Profiler's JSON: profiler.firefox.com.
    Firefox,
    /// Graphviz' language: `dot -Tsvg`.
    Dot,
    /// gprof's two tables, in its layout.
    Gprof,
    /// All of it as JSON.
    Json,
    /// Functions as comma-separated values.
    Csv,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 11] = [
        Format::Html,
        Format::Pprof,
        Format::Callgrind,
        Format::Folded,
        Format::Svg,
        Format::Speedscope,
        Format::Firefox,
        Format::Dot,
        Format::Gprof,
        Format::Json,
        Format::Csv,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Format::Html => "html",
            Format::Pprof => "pprof",
            Format::Callgrind => "callgrind",
            Format::Folded => "folded",
            Format::Svg => "svg",
            Format::Speedscope => "speedscope",
            Format::Firefox => "firefox",
            Format::Dot => "dot",
            Format::Gprof => "gprof",
            Format::Json => "json",
            Format::Csv => "csv",
        }
    }

    /// Whether remarks on the numbers are rows among its rows, which [`Export::comments`] can leave out.
    #[must_use]
    pub const fn has_comments(self) -> bool {
        matches!(self, Format::Folded | Format::Csv)
    }

    /// Whether it shows what was spent when.
    #[must_use]
    pub const fn shows_time(self) -> bool {
        matches!(self, Format::Html | Format::Firefox | Format::Speedscope)
    }

    /// Whether it is text.
    #[must_use]
    pub const fn is_text(self) -> bool {
        !matches!(self, Format::Pprof)
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Format::ALL.map(Format::name).join(", ");
        Format::ALL.into_iter().find(|it| it.name() == text).ok_or_else(|| format!("{text:?} is none of {}", names()))
    }
}

/// Size of an HTML file that browsers open at once and that can be attached to a message.
pub const DEFAULT_MAX_BYTES: usize = 5 << 20;

/// What of a profile is exported.
#[derive(Clone, Copy, Debug)]
pub struct Export<'a> {
    /// The profile.
    pub profile: &'a Profile,
    /// Which functions, stacks and threads, and the metric.
    pub selection: &'a Selection,
    /// Largest size of an HTML file, in bytes; the least of the stacks are summed up where they do not fit.
    pub max_bytes: usize,
    /// What orders the rows of a table, if not self weight.
    pub sort: Option<Column>,
    /// Whether [`Format::Folded`] and [`Format::Csv`] have the remarks, in rows that begin with `#` and weigh nothing.
    pub comments: bool,
    /// Names in a table that a spreadsheet would compute, such as `=f`, are made text, by an apostrophe before them.
    pub spreadsheet: bool,
    /// What was asked of the profile to get this one, for the remarks; empty if nothing.
    pub question: &'a str,
    /// What the metrics of the profile after the first are of, if its time is in columns
    /// ([`read_columns`](crate::codec::read_columns)); empty if it is not.
    pub columns: &'a [TimeColumn],
    /// The same by other metrics, between which an HTML file switches; their time is in the same columns.
    pub other_metrics: &'a [Export<'a>],
    /// Source that an HTML file shows.
    pub sources: &'a [SourceExcerpt],
}

impl<'a> Export<'a> {
    /// Of this part of a profile, with what is usual else.
    #[must_use]
    pub const fn new(profile: &'a Profile, selection: &'a Selection) -> Self {
        Self {
            profile,
            selection,
            max_bytes: DEFAULT_MAX_BYTES,
            sort: None,
            comments: true,
            spreadsheet: false,
            question: "",
            columns: &[],
            other_metrics: &[],
            sources: &[],
        }
    }

    /// Writes it.
    ///
    /// # Errors
    /// Those of `out`; and [`io::ErrorKind::InvalidInput`] where the format has no place for what is to be written, as a flame
    /// graph of nothing.
    pub fn write(&self, format: Format, out: &mut impl Write) -> io::Result<()> {
        match format {
            Format::Html => html::write(self, out),
            Format::Pprof => pprof::write(self, out),
            Format::Callgrind => callgrind::write(self, out),
            Format::Folded => folded::write(self, out),
            Format::Svg => svg::write(self, out),
            Format::Speedscope => speedscope::write(self, out),
            Format::Firefox => firefox::write(self, out),
            Format::Dot => dot::write(self, out),
            Format::Gprof => gprof::write(self, out),
            Format::Json => json::write(self, out),
            Format::Csv => csv::write(self, out),
        }
    }

    /// The metric of the selection.
    fn metric(&self) -> Metric {
        let metric = self.profile.session().metrics.get(self.selection.metric_index()).cloned();
        metric.unwrap_or(Metric { name: "samples".to_owned(), unit: Unit::Count })
    }

    /// What was profiled, in a line.
    fn title(&self) -> String {
        let session = self.profile.session();
        let target = if session.command.is_empty() { session.target.clone() } else { session.command.join(" ") };
        sanitise(&target).into_owned()
    }

    /// The part of the weight in whose stacks a caller or a callee may be another.
    fn approximate_share(&self) -> f64 {
        let shown = self.profile.shown(self.selection);
        if shown.uncertain().is_empty() {
            return 0.0;
        }
        let mut weight = 0u64;
        let total = walk_contexts(self.profile, &shown, self.selection, |_, context| {
            if context.is_approximate() {
                weight = weight.saturating_add(context.sums.weight);
            }
        });
        if total.weight == 0 { 0.0 } else { weight as f64 / total.weight as f64 }
    }

    /// What a reader should know about the numbers.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        self.remarks_of(false)
    }

    /// The same of an export that lists stacks by their routes, if `routes`.
    fn remarks_of(&self, routes: bool) -> Vec<String> {
        let session = self.profile.session();
        let accounting = self.profile.accounting();
        let expected = accounting.expected.map_or_else(String::new, |expected| format!(" of {expected} expected"));
        let mut remarks = vec![
            format!("ccsd {}: {} of {} at {} Hz", session.version, session.event, self.title(), session.rate_hz),
            format!(
                "{} samples received{expected}, {} lost, {} throttled, {} dropped, {} undelivered",
                accounting.received,
                accounting.lost,
                accounting.throttled,
                accounting.dropped_by_us,
                accounting.undelivered(),
            ),
            format!(
                "{} stacks truncated, {} with a gap; {} samples unsymbolised, {} elided",
                accounting.truncated_total(),
                accounting.stacks.with_gap,
                accounting.unsymbolised,
                accounting.elided,
            ),
            "recursion is folded: each stack holds a function once for its latest activation, and once more where it is the \
             caller or callee of another; between two functions of which the one may not have called the other stands [...]; \
             call counts are not known"
                .to_owned(),
        ];
        if let Some(unseen) = accounting.not_sampled.filter(|unseen| unseen.total() > 0) {
            let causes: Vec<String> = unseen.iter().map(|(cause, ns)| format!("{ns} ns {}", cause.text())).collect();
            remarks.push(format!("CPU time that is in no sample counts as [not sampled]: {}", causes.join(", ")));
        }
        let approximate = self.approximate_share();
        if approximate > 0.0 {
            remarks.push(format!(
                "callers and callees are approximate in stacks with {:.1}% of the weight: functions are hidden or merged there, \
                 and what recursion squeezed out may be the true neighbour",
                100.0 * approximate
            ));
        }
        let shortened = walk::shortened(self, routes);
        if shortened > 0 {
            let total = crate::view::Total::of(self.profile, self.selection).weight.max(1);
            remarks.push(format!(
                "stacks with {:.1}% of the weight are too deep to be listed in full: where every stack is listed, their inner \
                 part is [elided]",
                100.0 * shortened as f64 / total as f64
            ));
        }
        if !self.question.is_empty() {
            remarks.push(format!("asked for: {}", sanitise(self.question)));
        }
        remarks.extend(session.notes.iter().map(|note| sanitise(note).into_owned()));
        remarks
    }
}

/// Writes an HTML file that compares two profiles, of the size that `after` allows.
///
/// # Errors
/// As [`Export::write`].
pub fn write_difference_page(before: &Export<'_>, after: &Export<'_>, out: &mut impl Write) -> io::Result<()> {
    html::write_difference(before, after, out)
}

/// What weights are counted in.
const fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Nanoseconds => "nanoseconds",
        Unit::Cycles => "cycles",
        Unit::Count => "count",
        Unit::Unknown => "unknown",
    }
}
