//! speedscope's file format (<https://www.speedscope.app/file-format-schema.json>): one sampled profile a thread.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use super::walk::walk;
use super::{Export, unit_name};
use crate::ids::ThreadId;
use crate::model::Unit;
use crate::sanitise;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: String,
    name: String,
    active_profile_index: usize,
    shared: Shared,
    profiles: Vec<Sampled>,
}

#[derive(Serialize)]
struct Shared {
    frames: Vec<Frame>,
}

#[derive(Serialize)]
struct Frame {
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

pub(super) fn write(export: &Export<'_>, out: &mut impl Write) -> io::Result<()> {
    let profile = export.profile;
    // speedscope knows times and nothing else.
    let unit = match export.metric().unit {
        unit @ Unit::Nanoseconds => unit_name(unit),
        Unit::Cycles | Unit::Count => "none",
    };
    let mut threads: BTreeMap<ThreadId, Sampled> = BTreeMap::new();
    walk(export, |stack| {
        let sampled = threads.entry(stack.thread).or_insert_with(|| {
            let thread = profile.thread(stack.thread);
            let process = thread.and_then(|thread| profile.process(thread.process));
            let name = match (thread, process) {
                (Some(thread), Some(process)) => {
                    format!("{} ({}), thread {} ({})", process.name, process.pid, thread.name, thread.tid)
                }
                _ => "[unknown]".to_owned(),
            };
            let name = sanitise(&name).into_owned();
            Sampled { kind: "sampled", name, unit, start_value: 0, end_value: 0, samples: vec![], weights: vec![] }
        });
        sampled.samples.push(stack.functions.iter().map(|id| id.index()).collect());
        sampled.weights.push(stack.weight);
        sampled.end_value = sampled.end_value.saturating_add(stack.weight);
    });
    let frames = (0u32..).zip(profile.cost_centres()).map(|(i, centre)| Frame {
        name: sanitise(&profile.name(crate::CostCentreId::new(i))).into_owned(),
        file: centre.file.as_deref().map(|file| sanitise(file).into_owned()),
        line: (centre.line > 0).then_some(centre.line),
    });
    let mut profiles: Vec<Sampled> = threads.into_values().collect();
    profiles.sort_by_key(|sampled| std::cmp::Reverse(sampled.end_value));
    let file = File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        // The only place for remarks that the format has.
        exporter: export.remarks().join("; "),
        name: format!("{} (recursion is folded)", export.title()),
        active_profile_index: 0,
        shared: Shared { frames: frames.collect() },
        profiles,
    };
    crate::json::write(&file, out).map_err(io::Error::from)
}
