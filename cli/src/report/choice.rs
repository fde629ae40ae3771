//! Which view is asked for.

use ccsd_profile::view::{Column, FlatView, GraphView, LinesView, StacksView, ThreadsView};

use crate::args::ReportArgs;

/// What to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum View {
    /// Functions by the time they spent themselves
    Flat,
    /// Functions, each between its callers and its callees
    Graph,
    /// Cost-centre stacks
    Stacks,
    /// Source lines within functions
    Lines,
    /// Processes and their threads
    Threads,
    /// Cycles of mutual recursion
    Cycles,
    /// Size and cost of the profile itself
    Stats,
}

impl View {
    /// What is asked for.
    pub fn of(args: &ReportArgs) -> View {
        let chosen = [
            (args.graph, View::Graph),
            (args.stacks, View::Stacks),
            (args.lines, View::Lines),
            (args.threads, View::Threads),
            (args.cycles, View::Cycles),
            (args.stats, View::Stats),
        ];
        let chosen = chosen.into_iter().find(|(given, _)| *given).map(|(_, view)| view);
        args.view.or(chosen).unwrap_or(View::Flat)
    }

    /// Its name in JSON, and that of its option.
    pub fn name(self) -> &'static str {
        match self {
            View::Flat => "flat",
            View::Graph => "graph",
            View::Stacks => "stacks",
            View::Lines => "lines",
            View::Threads => "threads",
            View::Cycles => "cycles",
            View::Stats => "stats",
        }
    }

    /// What its rows can be ordered by; the first is usual.
    pub fn columns(self) -> &'static [Column] {
        match self {
            View::Flat => FlatView::COLUMNS,
            View::Graph => GraphView::COLUMNS,
            View::Stacks => StacksView::COLUMNS,
            View::Lines => LinesView::COLUMNS,
            View::Threads => ThreadsView::COLUMNS,
            View::Cycles | View::Stats => &[],
        }
    }

    /// Whether it shows shares.
    pub fn has_percentages(self) -> bool {
        !matches!(self, View::Stacks | View::Stats)
    }

    /// Rows that are shown on a terminal: about a page.
    pub fn rows_on_terminal(self) -> usize {
        match self {
            View::Flat | View::Stacks | View::Threads | View::Cycles | View::Stats => 40,
            // Of these, each "row" is a block of lines.
            View::Graph | View::Lines => 15,
        }
    }
}
