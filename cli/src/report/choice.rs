//! The choice of the view.

use ccsd_profile::query::Grouping;
use ccsd_profile::view::{FlatView, GraphView, LinesView, StacksView, ThreadsView, TimelineView, TreeView, ViewColumn};

use crate::args::report::{ReportArgs, View};

/// Default and maximum number of chains in the hot view.
const HOT_CHAINS: usize = 3;
const MOST_HOT_CHAINS: usize = 100;
/// Default rows of the program's own functions in the summary. Others have half as many and what these leave, for one
/// screen.
pub const SUMMARY_ROWS: usize = 6;
const BANDS: usize = 15;

impl View {
    /// The requested view; by default the summary, or the flat profile if an option needs a table.
    pub fn of(args: &ReportArgs) -> View {
        let query = &args.query;
        let table = args.json || args.inherited || args.function.is_some() || query.sort.is_some();
        let usual = if table || query.by != Grouping::Function { View::Flat } else { View::Summary };
        args.view.view.unwrap_or(usual)
    }

    pub fn name(self) -> &'static str {
        match self {
            View::Summary => "summary",
            View::Flat => "flat",
            View::Graph => "graph",
            View::Stacks => "stacks",
            View::Lines => "lines",
            View::Threads => "threads",
            View::Cycles => "cycles",
            View::Stats => "stats",
            View::Tree => "tree",
            View::Flame => "flame",
            View::BottomUp => "bottom-up",
            View::Butterfly => "butterfly",
            View::Hot => "hot",
            View::Timeline => "timeline",
        }
    }

    /// Columns that rows can be ordered by; the first is the default.
    pub fn columns(self) -> &'static [ViewColumn] {
        match self {
            View::Flat => FlatView::COLUMNS,
            View::Graph => GraphView::COLUMNS,
            View::Stacks => StacksView::COLUMNS,
            View::Lines => LinesView::COLUMNS,
            View::Threads => ThreadsView::COLUMNS,
            View::Tree | View::BottomUp | View::Butterfly => TreeView::COLUMNS,
            View::Timeline => TimelineView::COLUMNS,
            View::Summary | View::Cycles | View::Stats | View::Hot | View::Flame => &[],
        }
    }

    pub fn has_percentages(self) -> bool {
        !matches!(self, View::Stacks | View::Stats)
    }

    /// Whether the text omits start-up code. JSON and the views of all functions and stacks keep it.
    pub fn folds_startup(self) -> bool {
        matches!(self, View::Graph | View::Tree | View::Flame | View::BottomUp | View::Butterfly | View::Hot)
    }

    /// Default of `--min`, percent: whole trees have as many lines as the profile has contexts.
    pub fn default_min(self) -> f64 {
        if matches!(self, View::Tree | View::BottomUp | View::Butterfly | View::Hot) { 0.5 } else { 0.0 }
    }

    pub fn takes_function(self) -> bool {
        matches!(self, View::Flat | View::Graph | View::Lines | View::Butterfly | View::Timeline)
    }

    pub fn limit(self, asked: Option<usize>, on_terminal: bool) -> Option<usize> {
        match (self, asked) {
            // Each chain needs a pass over the whole tree.
            (View::Hot, None) => Some(HOT_CHAINS),
            (View::Hot, Some(0)) => Some(MOST_HOT_CHAINS),
            (View::Hot, Some(chains)) => Some(chains.min(MOST_HOT_CHAINS)),
            (View::Timeline, None) => Some(BANDS),
            (View::Summary, None) => Some(SUMMARY_ROWS),
            (_, Some(0)) => None,
            (_, Some(limit)) => Some(limit),
            (_, None) => on_terminal.then(|| self.rows_on_terminal()),
        }
    }

    fn rows_on_terminal(self) -> usize {
        match self {
            View::Flat | View::Stacks | View::Threads | View::Cycles | View::Stats => 40,
            View::Tree | View::Flame | View::BottomUp => 40,
            View::Butterfly => 15,
            View::Hot => HOT_CHAINS,
            View::Summary => SUMMARY_ROWS,
            View::Timeline => BANDS,
            View::Graph | View::Lines => 15,
        }
    }
}
