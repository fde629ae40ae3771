//! Every view as a JSON document, with names as in the profiled program.

use ccsd_profile::json::to_text;
use ccsd_profile::view::{
    Cycle, CycleRow, CyclesView, Definitions, FlatView, FunctionNames, GraphNode, GraphView, LinesView, Share,
    StackEntry, StackRow, StacksView, StatsView, SummaryView, ThreadsView, TimelineView, Total, TreeView, ViewColumn,
};
use ccsd_profile::{Accounting, CostCentreId, Intervals, Recovery, SessionInfo};
use serde::Serialize;

use super::file::LoadedFile;
use super::hot::Hot;
use super::tree::Butterflies;
use super::{
    cycles, flat, graph, hot, lines, presentation::Presentation, stacks, stats, summary, threads, timeline, tree,
};
use crate::args::report::View;
use crate::dump::crash;
use crate::format::unit_name;
use crate::query::Question;
use crate::stored::About;

/// Raised when a field changes its meaning or is removed, not for new fields.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct ReportDocument<'a> {
    schema: u32,
    ccsd_version: &'static str,
    /// `null` for a session of a daemon.
    file: Option<FileFields>,
    daemon_session: Option<u32>,
    session: &'a SessionInfo,
    accounting: AccountingCounts<'a>,
    crashes: Vec<crash::Json<'a>>,
    metric: MetricFields<'a>,
    view: &'static str,
    question: &'a Question,
    sort: Option<ViewColumn>,
    #[serde(flatten)]
    data: ViewData,
}

#[derive(Serialize)]
struct FileFields {
    path: String,
    bytes: u64,
    whole_records: u64,
    finished: bool,
    cut: Option<Cut>,
    /// The part of a watch; `path` is then a directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    stored: Option<About>,
    #[serde(skip_serializing_if = "Option::is_none")]
    intervals: Option<Intervals>,
}

#[derive(Serialize)]
struct Cut {
    whole_records: u64,
    bytes_used: u64,
    bytes_discarded: u64,
    why: String,
    message: Option<String>,
}

#[derive(Serialize)]
struct MetricFields<'a> {
    name: &'a str,
    unit: &'static str,
}

#[derive(Serialize)]
pub struct AccountingCounts<'a> {
    #[serde(flatten)]
    accounting: &'a Accounting,
    undelivered: u64,
    truncated: u64,
}

impl<'a> AccountingCounts<'a> {
    pub fn new(accounting: &'a Accounting) -> AccountingCounts<'a> {
        AccountingCounts { accounting, undelivered: accounting.undelivered(), truncated: accounting.truncated_total() }
    }
}

pub fn document(
    view: View,
    shown: &Presentation<'_>,
    file: &LoadedFile,
    question: &Question,
) -> Result<String, serde_json::Error> {
    let cut = match &file.recovery {
        Recovery::Whole => None,
        Recovery::Cut { whole_records, bytes_used, bytes_discarded, why } => Some(Cut {
            whole_records: *whole_records,
            bytes_used: *bytes_used,
            bytes_discarded: *bytes_discarded,
            why: why.to_string(),
            message: file.message(),
        }),
    };
    let session = shown.timeline.session(shown.profile);
    let document = ReportDocument {
        schema: SCHEMA,
        ccsd_version: env!("CARGO_PKG_VERSION"),
        file: file.session.is_none().then(|| FileFields {
            path: file.path.to_string_lossy().into_owned(),
            bytes: file.bytes,
            whole_records: file.records,
            finished: file.finished,
            cut,
            stored: file.stored.clone(),
            intervals: file.intervals,
        }),
        daemon_session: file.session,
        session: &session,
        accounting: AccountingCounts::new(shown.profile.accounting()),
        crashes: crash::json(shown.profile),
        metric: MetricFields { name: &shown.metric.name, unit: unit_name(shown.metric.unit) },
        view: view.name(),
        question,
        sort: shown.sort,
        data: data(view, shown),
    };
    to_text(&document)
}

/// A view under its own name. Typed, not a tree of values: the stacks of a large profile take megabytes.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum ViewData {
    Summary(SummaryView),
    Flat(FlatView),
    Graph(JsonGraph),
    Stacks(StacksData),
    Lines(Limited<LinesView>),
    Threads(Limited<ThreadsView>),
    Cycles(CyclesData),
    Stats(StatsView),
    Tree(TreeView),
    Flame(TreeView),
    #[serde(rename = "bottom-up")]
    BottomUp(TreeView),
    Butterfly(Butterflies),
    Hot(Hot),
    Timeline(TimelineView),
}

/// A view with omitted rows. (The flat view counts them itself.)
#[derive(Serialize)]
struct Limited<T> {
    #[serde(flatten)]
    view: T,
    left_out: usize,
}

#[derive(Serialize)]
struct JsonGraph {
    total: Total,
    nodes: Vec<JsonNode>,
    left_out: usize,
}

#[derive(Serialize)]
struct JsonNode {
    index: Option<usize>,
    #[serde(flatten)]
    node: GraphNode,
}

#[derive(Serialize)]
struct CyclesData {
    cycles: Vec<Cycle>,
    cycles_left_out: usize,
    /// The histories that end by closing a cycle.
    #[serde(flatten)]
    stacks: StacksData,
}

#[derive(Serialize)]
struct StacksData {
    total: Total,
    rows: Vec<RowInCycle>,
    left_out: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    other_weight: Option<u64>,
    names: FunctionNames,
    definitions: Definitions,
}

#[derive(Serialize)]
struct RowInCycle {
    #[serde(skip_serializing_if = "Option::is_none")]
    cycle: Option<Vec<CostCentreId>>,
    /// Oldest entry first.
    stack: Vec<StackEntry>,
    weight: u64,
    samples: u64,
    share: Share,
    approximate: bool,
}

fn data(view: View, shown: &Presentation<'_>) -> ViewData {
    match view {
        View::Summary => ViewData::Summary(summary::view(shown)),
        View::Flat => ViewData::Flat(flat::view(shown)),
        View::Graph => {
            let (GraphView { total, mut nodes, .. }, numbers) = graph::view(shown);
            let left_out = cut(&mut nodes, shown);
            let number = |node: GraphNode| JsonNode { index: numbers.get(&node.function).copied(), node };
            ViewData::Graph(JsonGraph { total, nodes: nodes.into_iter().map(number).collect(), left_out })
        }
        View::Stacks => {
            let mut view = stacks::view(shown);
            let left_out = stacks::cut_rows(shown, &mut view);
            let StacksView { total, rows, other, names, definitions } = view;
            let row = |StackRow { entries, weight, samples, share, approximate }| RowInCycle {
                cycle: None,
                stack: entries,
                weight,
                samples,
                share,
                approximate,
            };
            let other_weight = left_out.iter().map(|row| row.weight).fold(other.weight, u64::saturating_add);
            let left_out = left_out.len() + other.stacks;
            let rows = rows.into_iter().map(row).collect();
            ViewData::Stacks(StacksData { total, rows, left_out, other_weight: Some(other_weight), names, definitions })
        }
        View::Cycles => {
            let CyclesView { total, cycles, left_out: cycles_left_out, mut rows, names, definitions } =
                cycles::view(shown);
            let left_out = cut(&mut rows, shown);
            let row = |CycleRow { entries, cycle, weight, samples, share, approximate }| RowInCycle {
                cycle: Some(cycle),
                stack: entries,
                weight,
                samples,
                share,
                approximate,
            };
            let rows = rows.into_iter().map(row).collect();
            ViewData::Cycles(CyclesData {
                cycles,
                cycles_left_out,
                stacks: StacksData { total, rows, left_out, other_weight: None, names, definitions },
            })
        }
        View::Lines => {
            let mut view = lines::view(shown);
            let left_out = lines::kept(shown, &mut view).len();
            ViewData::Lines(Limited { view, left_out })
        }
        View::Threads => {
            let mut view = threads::view(shown);
            let left_out = cut(&mut view.processes, shown);
            ViewData::Threads(Limited { view, left_out })
        }
        View::Stats => ViewData::Stats(stats::view(shown)),
        View::Tree => ViewData::Tree(tree::top_down(shown)),
        // The calls, all of them: columns are a matter of text.
        View::Flame => ViewData::Flame(tree::top_down(shown)),
        View::BottomUp => ViewData::BottomUp(tree::bottom_up(shown)),
        View::Butterfly => ViewData::Butterfly(tree::butterflies(shown)),
        View::Hot => ViewData::Hot(hot::view(shown)),
        View::Timeline => ViewData::Timeline(timeline::view(shown)),
    }
}

fn cut<T>(rows: &mut Vec<T>, shown: &Presentation<'_>) -> usize {
    let kept = shown.rows(rows.len());
    let left_out = rows.len() - kept;
    rows.truncate(kept);
    left_out
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccsd_profile::TruncationReason;
    use serde_json::json;

    #[test]
    fn causes_of_truncation_have_names() {
        let mut accounting = Accounting::default();
        accounting.count_truncated(TruncationReason::NoUnwindInfo);
        let counts = serde_json::to_value(AccountingCounts::new(&accounting)).unwrap();
        assert_eq!(counts["truncated_by_reason"], json!({ "no unwind information": 1 }));
        assert_eq!(counts["truncated"], 1);
    }
}
