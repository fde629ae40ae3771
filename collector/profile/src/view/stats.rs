//! The statistics of a session: the columns of the paper's Table I, and how the table of contexts did.

use serde::Serialize;

use crate::context::ContextStats;
use crate::ids::ContextId;
use crate::profile::Profile;
use crate::selection::Selection;

/// Table I for a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StatsView {
    /// Samples charged (the paper counts calls instead).
    pub samples: u64,
    /// Functions seen on any charged stack.
    pub functions: u64,
    /// Pushes: calls traced, in the paper's words.
    pub pushes: u64,
    /// Frames of all raw stacks; more than `pushes`, since a stack resumes from its common prefix with the one before.
    pub frames: u64,
    /// Contexts, the empty one not counted.
    pub states: u64,
    /// Contexts that were charged.
    pub charged_states: u64,
    /// Transitions between contexts.
    pub transitions: u64,
    /// Entries of a history, marked and unmarked: average over all states.
    pub depth_average: f64,
    /// The longest history.
    pub depth_maximum: u64,
    /// Frames of a raw stack: average over all samples.
    pub stack_depth_average: f64,
    /// The deepest raw stack.
    pub stack_depth_maximum: u64,
    /// Memory of the contexts in the collector, bytes; that of this profile if the collector did not say.
    pub context_bytes: u64,
    /// Bytes of the file, if known.
    pub file_bytes: Option<u64>,
    /// What the collector's table of contexts did: hits (B1), known (B2), new (B3), elided.
    pub table: ContextStats,
}

impl StatsView {
    /// Computes the view. `file_bytes` is the size of the profile's file, if there is one.
    #[must_use]
    pub fn new(profile: &Profile, file_bytes: Option<u64>) -> Self {
        let accounting = profile.accounting();
        let mut functions = vec![false; profile.cost_centres().len()];
        let mut charged_states = 0;
        let total = profile.walk(&Selection::all()).visit(|_, context| {
            charged_states += 1;
            for function in context.active() {
                if let Some(seen) = functions.get_mut(function.index()) {
                    *seen = true;
                }
            }
        });
        let elided_used = accounting.elided > 0 || profile.contexts().stats().elided > 0;
        let (mut states, mut entries, mut depth_maximum) = (0u64, 0u64, 0u64);
        profile.contexts().lengths(|id, length| {
            if id != ContextId::ROOT && (id != ContextId::ELIDED || elided_used) {
                states += 1;
                entries += length as u64;
                depth_maximum = depth_maximum.max(length as u64);
            }
        });
        let table = if accounting.contexts.contexts > 0 { accounting.contexts } else { profile.contexts().stats() };
        let per = |sum: u64, count: u64| if count == 0 { 0.0 } else { sum as f64 / count as f64 };
        Self {
            samples: total.samples,
            functions: functions.iter().filter(|&&seen| seen).count() as u64,
            pushes: accounting.pushes,
            frames: accounting.stacks.frames,
            states,
            charged_states,
            transitions: table.transitions,
            depth_average: per(entries, states),
            depth_maximum,
            stack_depth_average: per(accounting.stacks.frames, total.samples),
            stack_depth_maximum: accounting.stacks.max_depth,
            context_bytes: table.bytes,
            file_bytes: file_bytes.or((accounting.own.file_bytes > 0).then_some(accounting.own.file_bytes)),
            table,
        }
    }
}
