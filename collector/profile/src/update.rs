//! What is new since the last update: the unit of which files and live streams are made.

use crate::accounting::Accounting;
use crate::crash::Crash;
use crate::ids::{ContextId, CostCentreId, LineId, ProcessId, RouteId, ThreadId};
use crate::model::{CostCentre, Image, Line, Process, Thread};
use crate::routes::NewRoute;
use crate::squares::{Squares, equal_squares, squared_metrics};

/// How many of each there were before an update: the ids of its definitions continue from here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefinitionCounts {
    /// Images, `[ccsd]` among them.
    pub images: u32,
    /// Cost centres, `[elided]` and `[root]` among them.
    pub cost_centres: u32,
    /// Lines, the unknown one among them.
    pub lines: u32,
    /// Processes.
    pub processes: u32,
    /// Threads.
    pub threads: u32,
    /// Contexts of this generation. Only the two fixed ones, where the reader has more, begin a new generation.
    pub contexts: u32,
    /// Routes, the empty one among them, of the same generation.
    pub routes: u32,
}

impl DefinitionCounts {
    /// What every profile has from its beginning.
    pub const FRESH: Self =
        Self { images: 1, cost_centres: 2, lines: 1, processes: 0, threads: 0, contexts: 2, routes: 1 };
}

/// A context as it is sent: where it was first reached from, and by which function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewContext {
    /// An earlier context.
    pub parent: ContextId,
    /// The function pushed.
    pub function: CostCentreId,
}

/// What was charged in one place during one interval. Its weights are in [`Update::weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChargeDelta {
    /// The thread that ran.
    pub thread: ThreadId,
    /// Its context.
    pub context: ContextId,
    /// The source line within the context's running function.
    pub line: LineId,
    /// The call sites of its callers.
    pub route: RouteId,
    /// Number of samples.
    pub samples: u64,
}

/// One interval of a session: what is new in it and what was charged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// Start of the interval, nanoseconds since the session began.
    pub from_ns: u64,
    /// End of the interval, nanoseconds since the session began.
    pub to_ns: u64,
    /// How many of each there were before.
    pub base: DefinitionCounts,
    /// New images.
    pub images: Vec<Image>,
    /// New cost centres.
    pub cost_centres: Vec<CostCentre>,
    /// New lines.
    pub lines: Vec<Line>,
    /// New processes.
    pub processes: Vec<Process>,
    /// New threads.
    pub threads: Vec<Thread>,
    /// Processes that have a new name.
    pub renamed_processes: Vec<(ProcessId, String)>,
    /// Threads that have a new name.
    pub renamed_threads: Vec<(ThreadId, String)>,
    /// New contexts, parents before children.
    pub contexts: Vec<NewContext>,
    /// New routes, parents before children.
    pub routes: Vec<NewRoute>,
    /// Cost centres without a name that turned out to be another; see [`Profile::name_later`](crate::Profile::name_later).
    pub namings: Vec<(CostCentreId, CostCentreId)>,
    /// What was charged, sorted by thread, context, line, route.
    pub charges: Vec<ChargeDelta>,
    /// The weights of the charges: one for each metric of the session, charge after charge.
    pub weights: Vec<u64>,
    /// Sums of squared weights, of at most [`MAX_METRICS`](crate::MAX_METRICS) a charge. Empty if all follow
    /// ([`equal_squares`]).
    pub squares: Vec<Squares>,
    /// New notes of the session.
    pub notes: Vec<String>,
    /// Processes that died of a signal.
    pub crashes: Vec<Crash>,
    /// Absolute values at the end of the interval.
    pub accounting: Accounting,
}

impl Update {
    /// The charges with their weights, one for each of `metrics` metrics.
    pub fn charges_with_weights(&self, metrics: usize) -> impl Iterator<Item = (&ChargeDelta, &[u64])> {
        self.charges
            .iter()
            .enumerate()
            .map(move |(i, charge)| (charge, self.weights.get(i * metrics..(i + 1) * metrics).unwrap_or(&[])))
    }

    /// The sums of squares of charge number `i`; `None` where they follow from its samples and weights.
    #[must_use]
    pub fn squares_of(&self, i: usize, metrics: usize) -> Option<&[Squares]> {
        let squared = squared_metrics(metrics);
        self.squares.get(i * squared..(i + 1) * squared).filter(|_| !self.squares.is_empty())
    }

    /// Leaves out the squares if every one follows from samples and weight.
    pub(crate) fn leave_out_squares(&mut self, metrics: usize) {
        let follows = self.charges_with_weights(metrics).enumerate().all(|(i, (charge, weights))| {
            let squares = self.squares_of(i, metrics).unwrap_or(&[]);
            squares.iter().zip(weights).all(|(&square, &weight)| square == equal_squares(charge.samples, weight))
        });
        if follows {
            self.squares = Vec::new();
        }
    }

    /// Forgets what happened, charges and crashes, and keeps the definitions: what follows refers to them.
    pub fn clear_charges(&mut self) {
        self.crashes.clear();
        self.charges.clear();
        self.weights.clear();
        self.squares.clear();
    }

    /// Whether nothing was charged and nothing is new.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.images.is_empty()
            && self.cost_centres.is_empty()
            && self.lines.is_empty()
            && self.processes.is_empty()
            && self.threads.is_empty()
            && self.renamed_processes.is_empty()
            && self.renamed_threads.is_empty()
            && self.contexts.is_empty()
            && self.routes.is_empty()
            && self.namings.is_empty()
            && self.charges.is_empty()
            && self.notes.is_empty()
            && self.crashes.is_empty()
    }
}
