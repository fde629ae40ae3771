//! A whole profile as one JSON document, for programs that need the contexts.

use std::io::{self, Write};

use serde::Serialize;

use super::request::{Export, unit_name};
use super::walk::{GAP_FRAME, frame_index, frame_name, walk};
use crate::model::SessionInfo;

const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    remarks: Vec<String>,
    session: &'a SessionInfo,
    metrics: Vec<JsonMetric>,
    images: Vec<JsonImage>,
    /// Stacks refer to functions by index.
    functions: Vec<JsonFunction>,
    threads: Vec<JsonThread>,
    stacks: Vec<JsonStack>,
}

#[derive(Serialize)]
struct JsonMetric {
    name: String,
    unit: &'static str,
}

#[derive(Serialize)]
struct JsonImage {
    name: String,
    build_id: String,
}

#[derive(Serialize)]
struct JsonFunction {
    name: String,
    linkage_name: Option<String>,
    image: usize,
    file: Option<String>,
    line: u32,
    /// Start in its image (SVMA).
    start: Option<u64>,
    /// What distinguishes it from functions of the same name, as shown after the name.
    apart: Option<String>,
}

#[derive(Serialize)]
struct JsonThread {
    name: String,
    tid: u32,
    process: String,
    pid: u32,
}

#[derive(Serialize)]
struct JsonStack {
    thread: usize,
    functions: Vec<usize>,
    /// Position in the innermost function: file and line.
    line: Option<(String, u32)>,
    samples: u64,
    weights: Vec<u64>,
}

pub(super) fn write(export: &Export<'_>, out: &mut impl Write) -> io::Result<()> {
    let profile = export.profile;
    let mut stacks = Vec::new();
    walk(export, |stack| {
        let line = profile.line(stack.line).filter(|line| line.line > 0 || !line.file.is_empty());
        stacks.push(JsonStack {
            thread: stack.thread.index(),
            functions: stack.functions.iter().map(|&id| frame_index(profile, id)).collect(),
            line: line.map(|line| (line.file.to_string(), line.line)),
            samples: stack.samples,
            weights: stack.weights.to_vec(),
        });
    });
    let labels = profile.full_labels();
    let functions = (0u32..).zip(profile.cost_centres()).map(|(i, centre)| JsonFunction {
        name: profile.name(crate::ids::CostCentreId::new(i)).into_owned(),
        linkage_name: centre.linkage_name.clone(),
        image: centre.image.index(),
        file: centre.file.clone(),
        line: centre.line,
        start: centre.start,
        apart: labels.apart(crate::ids::CostCentreId::new(i)),
    });
    let gap = JsonFunction {
        name: frame_name(&labels, GAP_FRAME).into_owned(),
        linkage_name: None,
        image: 0,
        file: None,
        line: 0,
        start: None,
        apart: None,
    };
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let document = Document {
        schema: SCHEMA,
        remarks: export.remarks(),
        session: profile.session(),
        metrics: profile
            .session()
            .metrics
            .iter()
            .map(|metric| JsonMetric { name: metric.name.clone(), unit: unit_name(metric.unit) })
            .collect(),
        images: profile
            .images()
            .iter()
            .map(|image| JsonImage { name: image.name.clone(), build_id: hex(&image.build_id) })
            .collect(),
        functions: functions.chain([gap]).collect(),
        threads: profile
            .threads()
            .iter()
            .map(|thread| {
                let process = profile.process(thread.process);
                JsonThread {
                    name: thread.name.clone(),
                    tid: thread.tid,
                    process: process.map(|process| process.name.clone()).unwrap_or_default(),
                    pid: process.map_or(0, |process| process.pid),
                }
            })
            .collect(),
        stacks,
    };
    crate::json::write(&document, out).map_err(io::Error::from)
}
