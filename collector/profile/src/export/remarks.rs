//! What a reader of an export should know about its numbers.

use super::request::Export;
use super::walk;
use crate::numbers::{count, nanoseconds};
use crate::text::sanitise;
use crate::view::Total;

impl Export<'_> {
    /// What a reader should know about the numbers.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        self.remarks_of(false)
    }

    pub(super) fn unknown_lines(&self, weight: u64) -> Option<String> {
        let total = Total::of(self.profile, self.selection).weight.max(1);
        let remark = format!(
            "the lines of calls are not given for stacks with {:.1}% of the weight: they have too many call sites",
            100.0 * weight as f64 / total as f64
        );
        (weight > 0).then_some(remark)
    }

    pub(super) fn remarks_of(&self, routes: bool) -> Vec<String> {
        let session = self.profile.session();
        let accounting = self.profile.accounting();
        let expected = accounting.expected.map_or_else(String::new, |it| format!(" of {} expected", count(it)));
        let rate = count(session.rate_hz.into());
        let mut remarks = vec![
            format!(
                "ccsd {}: {} of {} at {rate} Hz",
                sanitise(&session.version),
                sanitise(&session.event),
                self.title()
            ),
            format!(
                "{} samples received{expected}, {} lost, {} throttled, {} dropped, {} undelivered",
                count(accounting.received),
                count(accounting.lost),
                count(accounting.throttled),
                count(accounting.dropped_by_us),
                count(accounting.undelivered()),
            ),
            format!(
                "{} stacks truncated, {} with a gap; {} samples unsymbolised, {} elided",
                count(accounting.truncated_total()),
                count(accounting.stacks.with_gap),
                count(accounting.unsymbolised),
                count(accounting.elided),
            ),
            "recursion is folded: each stack holds a function once for its latest activation, and once more where it is the \
             caller or callee of another; between two functions of which the one may not have called the other stands [...]; \
             call counts are not known"
                .to_owned(),
        ];
        if let Some(unseen) = accounting.not_sampled.filter(|unseen| unseen.total() > 0) {
            let causes: Vec<String> =
                unseen.iter().map(|(cause, ns)| format!("{} {}", nanoseconds(ns), cause.text())).collect();
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
            let total = Total::of(self.profile, self.selection).weight.max(1);
            remarks.push(format!(
                "stacks with {:.1}% of the weight are too long to be listed in full: where every stack is listed, their middle \
                 is [elided]",
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
