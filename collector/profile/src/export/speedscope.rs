//! speedscope's file format (<https://www.speedscope.app/file-format-schema.json>): one sampled profile per thread.
//!
//! Samples are ordered by interval if that is known; otherwise the profile's name says that they are not in order of
//! time.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use super::request::{Export, unit_name};
use super::walk::{GAP_FRAME, frame_index, frame_name, walk};
use crate::ids::ThreadId;
use crate::model::Unit;
use crate::text::sanitise;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SpeedscopeFile {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: String,
    name: String,
    active_profile_index: usize,
    shared: SharedFrames,
    profiles: Vec<Sampled>,
}

#[derive(Serialize)]
struct SharedFrames {
    frames: Vec<SpeedscopeFrame>,
}

#[derive(Serialize)]
struct SpeedscopeFrame {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Sampled {
    #[serde(rename = "type")]
    kind: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    samples: Vec<Vec<usize>>,
    weights: Vec<u64>,
}

type WeightedStack = (Vec<usize>, u64);

pub(super) fn write(export: &Export<'_>, out: &mut impl Write) -> io::Result<()> {
    let profile = export.profile;
    // Of these units, speedscope knows only times.
    let unit = match export.metric().unit {
        unit @ Unit::Nanoseconds => unit_name(unit),
        Unit::Cycles | Unit::Count | Unit::Unknown => "none",
    };
    let mut threads: BTreeMap<ThreadId, Sampled> = BTreeMap::new();
    let timed = !export.timeline.is_empty();
    let mut parts: BTreeMap<(ThreadId, usize), Vec<WeightedStack>> = BTreeMap::new();
    walk(export, |stack| {
        let functions: Vec<usize> = stack.functions.iter().map(|&id| frame_index(profile, id)).collect();
        let weights = if timed { export.timeline.weights(stack.weights) } else { std::slice::from_ref(&stack.weight) };
        for (column, &weight) in weights.iter().enumerate().filter(|(_, weight)| !timed || **weight > 0) {
            parts.entry((stack.thread, column)).or_default().push((functions.clone(), weight));
        }
    });
    for ((thread, _), samples) in parts {
        let sampled = threads.entry(thread).or_insert_with(|| {
            let thread = profile.thread(thread);
            let process = thread.and_then(|thread| profile.process(thread.process));
            let name = match (thread, process) {
                (Some(thread), Some(process)) => {
                    format!("{}, thread {} ({})", process.label(), thread.name, thread.tid)
                }
                _ => "[unknown]".to_owned(),
            };
            let order = if timed { "" } else { " (not in order of time)" };
            let name = format!("{}{order}", sanitise(&name));
            Sampled { kind: "sampled", name, unit, start_value: 0, end_value: 0, samples: vec![], weights: vec![] }
        });
        for (functions, weight) in samples {
            sampled.samples.push(functions);
            sampled.weights.push(weight);
            sampled.end_value = sampled.end_value.saturating_add(weight);
        }
    }
    let labels = profile.full_labels();
    let gap = SpeedscopeFrame { name: frame_name(&labels, GAP_FRAME).into_owned(), file: None, line: None };
    let frames = (0u32..).zip(profile.cost_centres()).map(|(i, centre)| SpeedscopeFrame {
        name: frame_name(&labels, crate::ids::CostCentreId::new(i)).into_owned(),
        file: centre.file.as_deref().map(|file| sanitise(file).into_owned()),
        line: (centre.line > 0).then_some(centre.line),
    });
    let mut profiles: Vec<Sampled> = threads.into_values().collect();
    profiles.sort_by_key(|sampled| std::cmp::Reverse(sampled.end_value));
    let mut remarks = export.remarks();
    remarks.push(match export.timeline.longest_ns() {
        Some(longest) => format!(
            "time is that on the CPU, in order of {} parts of at most {:.3} s; within a part the order is not known",
            export.timeline.columns().len(),
            longest as f64 / 1e9
        ),
        None => "the order of the samples is not that of time".to_owned(),
    });
    let file = SpeedscopeFile {
        schema: "https://www.speedscope.app/file-format-schema.json",
        // The format's only place for remarks.
        exporter: remarks.join("; "),
        name: format!("{} (recursion is folded)", export.title()),
        active_profile_index: 0,
        shared: SharedFrames { frames: frames.chain([gap]).collect() },
        profiles,
    };
    crate::json::write(&file, out).map_err(io::Error::from)
}
