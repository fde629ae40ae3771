//! What of a profile is exported.

use super::source::SourceExcerpt;
use crate::model::{Metric, Unit};
use crate::profile::Profile;
use crate::text::sanitise;
use crate::timeline::Timeline;
use crate::view::{Selection, ViewColumn};

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
    pub sort: Option<ViewColumn>,
    /// Whether [`Format::Folded`](super::Format::Folded) and [`Format::Csv`](super::Format::Csv) have the remarks, in rows that begin with `#` and weigh nothing.
    pub comments: bool,
    /// Names in a table that a spreadsheet would compute, such as `=f`, are made text, by an apostrophe before them.
    pub spreadsheet: bool,
    /// What was asked of the profile to get this one, for the remarks; empty if nothing.
    pub question: &'a str,
    /// The columns of time, if the profile is one over time.
    pub timeline: &'a Timeline,
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
            timeline: Timeline::none(),
            other_metrics: &[],
            sources: &[],
        }
    }

    pub(super) fn metric(&self) -> Metric {
        let metric = self.profile.session().metrics.get(self.selection.metric_index()).cloned();
        metric.unwrap_or(Metric { name: "samples".to_owned(), unit: Unit::Count })
    }

    pub(super) fn title(&self) -> String {
        let session = self.profile.session();
        let target = if session.command.is_empty() { session.target.clone() } else { session.command.join(" ") };
        sanitise(&target).into_owned()
    }

    /// The part of the weight in whose stacks a caller or a callee may be another.
    pub(super) fn approximate_share(&self) -> f64 {
        let walk = self.profile.walk(self.selection);
        if walk.uncertain().is_empty() {
            return 0.0;
        }
        let mut weight = 0u64;
        let total = walk.visit(|_, context| {
            if context.is_approximate() {
                weight = weight.saturating_add(context.sums.weight);
            }
        });
        if total.weight == 0 { 0.0 } else { weight as f64 / total.weight as f64 }
    }
}

pub(super) const fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Nanoseconds => "nanoseconds",
        Unit::Cycles => "cycles",
        Unit::Count => "count",
        Unit::Unknown => "unknown",
    }
}
