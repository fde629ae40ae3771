//! Every view as one JSON document, with names as the profiled program has them.

use std::collections::BTreeMap;

use ccsd_profile::view::{CyclesView, Names, StacksView};
use ccsd_profile::{Accounting, ContextStats, CostCentreId, Entry, Recovery, Session, TruncationReason};
use serde::Serialize;
use serde_json::{Value, json};

use super::file::LoadedFile;
use super::{Shown, View, cycles, flat, graph, lines, stacks, stats, threads};
use crate::format::unit_name;
use crate::json::to_text;

/// Raised when a field changes its meaning or goes. New fields do not raise it.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    ccsd_version: &'static str,
    file: File,
    session: &'a Session,
    accounting: Counts,
    metric: Metric<'a>,
    view: &'static str,
    #[serde(flatten)]
    data: BTreeMap<&'static str, Value>,
}

#[derive(Serialize)]
struct File {
    path: String,
    bytes: u64,
    whole_records: u64,
    /// The collection ended in good order.
    finished: bool,
    /// What could not be read, if anything.
    cut: Option<Cut>,
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
struct Metric<'a> {
    name: &'a str,
    unit: &'static str,
}

/// The accounting under names that do not depend on how it is stored.
#[derive(Serialize)]
struct Counts {
    duration_ns: u64,
    expected: Option<u64>,
    received: u64,
    lost: u64,
    throttled: u64,
    throttle_events: u64,
    dropped: u64,
    undelivered: u64,
    truncated: u64,
    /// By reason; those that did not occur are left out.
    truncated_by_reason: BTreeMap<&'static str, u64>,
    unsymbolised: u64,
    elided: u64,
    target_cpu_ns: Option<u64>,
    own_cpu_ns: u64,
    own_peak_rss_bytes: u64,
    pushes: u64,
    frames: u64,
    max_stack_depth: u64,
    contexts: ContextStats,
}

impl Counts {
    fn new(accounting: &Accounting) -> Counts {
        let reasons = TruncationReason::ALL.iter().map(|reason| reason.text()).zip(accounting.truncated);
        Counts {
            duration_ns: accounting.duration_ns,
            expected: accounting.expected,
            received: accounting.received,
            lost: accounting.lost,
            throttled: accounting.throttled,
            throttle_events: accounting.throttle_events,
            dropped: accounting.dropped_by_us,
            undelivered: accounting.undelivered(),
            truncated: accounting.truncated_total(),
            truncated_by_reason: reasons.filter(|(_, samples)| *samples > 0).collect(),
            unsymbolised: accounting.unsymbolised,
            elided: accounting.elided,
            target_cpu_ns: accounting.target_cpu_ns,
            own_cpu_ns: accounting.own_cpu_ns,
            own_peak_rss_bytes: accounting.own_peak_rss_bytes,
            pushes: accounting.pushes,
            frames: accounting.frames,
            max_stack_depth: accounting.max_stack_depth,
            contexts: accounting.contexts,
        }
    }
}

/// The document for a view.
///
/// # Errors
/// None that is known: everything in it has a JSON form.
pub fn document(view: View, shown: &Shown<'_>, file: &LoadedFile) -> Result<String, serde_json::Error> {
    let (name, data) = data(view, shown)?;
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
    let document = Document {
        schema: SCHEMA,
        ccsd_version: env!("CARGO_PKG_VERSION"),
        file: File {
            path: file.path.to_string_lossy().into_owned(),
            bytes: file.bytes,
            whole_records: file.records,
            finished: file.finished,
            cut,
        },
        session: shown.profile.session(),
        accounting: Counts::new(shown.profile.accounting()),
        metric: Metric { name: &shown.metric.name, unit: unit_name(shown.metric.unit) },
        view: name,
        data: BTreeMap::from([(name, data)]),
    };
    to_text(&document)
}

fn data(view: View, shown: &Shown<'_>) -> Result<(&'static str, Value), serde_json::Error> {
    let (name, mut data) = match view {
        View::Flat => ("flat", serde_json::to_value(flat::view(shown))?),
        View::Graph => ("graph", graph_value(shown)?),
        View::Stacks => ("stacks", stacks_value(&stacks::view(shown))?),
        View::Lines => ("lines", serde_json::to_value(lines::view(shown))?),
        View::Threads => ("threads", serde_json::to_value(threads::view(shown))?),
        View::Cycles => ("cycles", cycles_value(&cycles::view(shown))?),
        View::Stats => ("stats", serde_json::to_value(stats::view(shown))?),
    };
    // Whatever the view calls its rows. (The flat view has been cut already, and says itself what it left out.)
    let rows = match view {
        View::Graph => "nodes",
        View::Stacks | View::Cycles => "rows",
        View::Lines => "functions",
        View::Threads => "processes",
        View::Flat | View::Stats => return Ok((name, data)),
    };
    if let Some(list) = data.get_mut(rows).and_then(Value::as_array_mut) {
        let kept = shown.rows(list.len());
        let left_out = list.len() - kept;
        list.truncate(kept);
        insert(&mut data, "left_out", json!(left_out));
    }
    Ok((name, data))
}

/// With the numbers by which the text refers to functions.
fn graph_value(shown: &Shown<'_>) -> Result<Value, serde_json::Error> {
    let (view, numbers) = graph::view(shown);
    let mut data = serde_json::to_value(&view)?;
    if let Some(nodes) = data.get_mut("nodes").and_then(Value::as_array_mut) {
        for (node, of) in nodes.iter_mut().zip(&view.nodes) {
            insert(node, "index", json!(numbers.get(&of.function)));
        }
    }
    Ok(data)
}

/// With names in place of numbers, oldest entry first.
fn stacks_value(view: &StacksView) -> Result<Value, serde_json::Error> {
    let rows: Vec<Value> = view
        .rows
        .iter()
        .map(|row| {
            json!({
                "stack": entries(&row.entries, &view.names),
                "weight": row.weight,
                "samples": row.samples,
                "share": row.share,
                "approximate": row.approximate,
            })
        })
        .collect();
    Ok(json!({ "total": serde_json::to_value(view.total)?, "rows": rows }))
}

fn cycles_value(view: &CyclesView) -> Result<Value, serde_json::Error> {
    let rows: Vec<Value> = view
        .rows
        .iter()
        .map(|row| {
            let cycle: Vec<&str> = row.cycle.iter().map(|function| name(*function, &view.names)).collect();
            json!({
                "cycle": cycle,
                "stack": entries(&row.entries, &view.names),
                "weight": row.weight,
                "samples": row.samples,
                "share": row.share,
                "approximate": row.approximate,
            })
        })
        .collect();
    Ok(json!({ "total": serde_json::to_value(view.total)?, "rows": rows }))
}

fn entries(entries: &[Entry], names: &Names) -> Vec<Value> {
    entries.iter().map(|entry| json!({ "name": name(entry.function, names), "marked": entry.marked })).collect()
}

fn name(function: CostCentreId, names: &Names) -> &str {
    names.get(&function).map_or("[unknown]", String::as_str)
}

fn insert(object: &mut Value, key: &str, value: Value) {
    if let Some(object) = object.as_object_mut() {
        object.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_of_truncation_have_names() {
        let mut accounting = Accounting::default();
        accounting.count_truncated(TruncationReason::NoUnwindInfo);
        let counts = serde_json::to_value(Counts::new(&accounting)).unwrap();
        assert_eq!(counts["truncated_by_reason"], json!({ "no unwind information": 1 }));
        assert_eq!(counts["truncated"], 1);
    }
}
