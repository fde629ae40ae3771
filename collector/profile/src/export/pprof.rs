//! pprof's profile.proto (<https://github.com/google/pprof/blob/main/proto/profile.proto>), compressed with gzip.
//!
//! The field numbers and meanings below are those of that file.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use hashbrown::HashMap;
use prost::Message;

use super::request::{Export, unit_name};
use super::walk::{FrameLines, frame_name, walk_routes};
use crate::ids::{CostCentreId, LineId};
use crate::model::Unit;
use crate::text::sanitise;
use crate::view::FlatView;

#[derive(Clone, PartialEq, Message)]
struct ProfileMessage {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<PprofSample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<PprofMapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<PprofFunction>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
    #[prost(int64, repeated, tag = "13")]
    comment: Vec<i64>,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct PprofSample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    str: i64,
    #[prost(int64, tag = "3")]
    num: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct PprofMapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(int64, tag = "6")]
    build_id: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
    #[prost(bool, tag = "8")]
    has_filenames: bool,
    #[prost(bool, tag = "9")]
    has_line_numbers: bool,
    #[prost(bool, tag = "10")]
    has_inline_frames: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<PprofLine>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct PprofLine {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct PprofFunction {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
    #[prost(int64, tag = "5")]
    start_line: i64,
}

#[derive(Default)]
struct Strings {
    strings: Vec<String>,
    known: HashMap<String, i64>,
}

impl Strings {
    fn id(&mut self, text: &str) -> i64 {
        if self.strings.is_empty() {
            self.strings.push(String::new());
            self.known.insert(String::new(), 0);
        }
        if let Some(&id) = self.known.get(text) {
            return id;
        }
        let id = self.strings.len() as i64;
        self.strings.push(text.to_owned());
        self.known.insert(text.to_owned(), id);
        id
    }
}

/// The number, from 1, of the program's image: the heaviest one that is neither a shared object nor the kernel.
fn main_image(export: &Export<'_>) -> Option<u64> {
    let profile = export.profile;
    let rows = FlatView::new(profile, export.selection).rows;
    let is_program = |name: &str| !name.starts_with('[') && !name.ends_with(".so") && !name.contains(".so.");
    let heaviest = rows.iter().filter(|row| is_program(&row.image)).max_by_key(|row| row.inherited_weight)?;
    profile.cost_centre(heaviest.function).map(|it| it.image.index() as u64 + 1)
}

/// Converts to pprof's signed weights; 2^63 ns is 292 years.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn write(export: &Export<'_>, out: &mut impl Write) -> io::Result<()> {
    let profile = export.profile;
    let session = profile.session();
    let mut strings = Strings::default();
    strings.id("");
    let (samples, count) = (strings.id("samples"), strings.id("count"));
    let mut message =
        ProfileMessage { sample_type: vec![ValueType { r#type: samples, unit: count }], ..Default::default() };
    for metric in &session.metrics {
        let value = ValueType { r#type: strings.id(&sanitise(&metric.name)), unit: strings.id(unit_name(metric.unit)) };
        message.sample_type.push(value);
    }
    // Readers show the first image's name as the program's.
    let main = main_image(export);
    let mut images: Vec<(u64, &crate::model::Image)> = (1..).zip(profile.images()).collect();
    images.sort_by_key(|&(id, _)| (Some(id) != main, id));
    for (id, image) in images {
        let build_id: String = image.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        message.mapping.push(PprofMapping {
            id,
            filename: strings.id(&sanitise(&image.name)),
            build_id: strings.id(&build_id),
            has_functions: true,
            has_filenames: true,
            has_line_numbers: true,
            has_inline_frames: true,
        });
    }
    let mut locations: HashMap<(CostCentreId, LineId), u64> = HashMap::new();
    // A function's lines are all in its file: parts of its body included from another file become another function.
    let mut functions: HashMap<(CostCentreId, String), u64> = HashMap::new();
    let (thread_key, tid_key) = (strings.id("thread"), strings.id("tid"));
    let (process_key, pid_key) = (strings.id("process"), strings.id("pid"));
    let labels = profile.full_labels();
    // Weight and number of samples: [not sampled] has only a weight.
    let mut sampled = (0u64, 0u64);
    let mut frame_lines = FrameLines::new(profile);
    walk_routes(export, |stack| {
        let lines = frame_lines.of(profile, stack);
        if stack.samples > 0 {
            sampled = (sampled.0.saturating_add(stack.weight), sampled.1.saturating_add(stack.samples));
        }
        let mut location_id = Vec::with_capacity(stack.functions.len());
        for (&function, &line) in stack.functions.iter().zip(lines).rev() {
            let next = locations.len() as u64 + 1;
            let location = *locations.entry((function, line)).or_insert_with(|| {
                let centre = profile.cost_centre(function);
                let next_function = functions.len() as u64 + 1;
                let declared = centre.and_then(|it| it.file.as_deref()).unwrap_or("");
                let at = profile.line(line).filter(|it| it.line > 0 && !it.file.is_empty());
                let file = at.map_or(declared, |it| &it.file);
                let function_id = *functions.entry((function, file.to_owned())).or_insert_with(|| {
                    let name = strings.id(&frame_name(&labels, function));
                    let linkage_name = centre.and_then(|it| it.linkage_name.as_deref());
                    message.function.push(PprofFunction {
                        id: next_function,
                        name,
                        system_name: linkage_name.map_or(name, |it| strings.id(&sanitise(it))),
                        filename: strings.id(&sanitise(file)),
                        start_line: centre.filter(|_| file == declared).map_or(0, |it| i64::from(it.line)),
                    });
                    next_function
                });
                message.location.push(Location {
                    id: next,
                    mapping_id: centre.map_or(0, |it| it.image.index() as u64 + 1),
                    address: centre.and_then(|it| it.start).unwrap_or(0),
                    line: vec![PprofLine { function_id, line: profile.line(line).map_or(0, |it| i64::from(it.line)) }],
                });
                next
            });
            location_id.push(location);
        }
        let mut value = vec![signed(stack.samples)];
        value.extend(stack.weights.iter().map(|&weight| signed(weight)));
        let mut label = Vec::new();
        if let Some(thread) = profile.thread(stack.thread) {
            label.push(Label { key: thread_key, str: strings.id(&sanitise(&thread.name)), num: 0 });
            label.push(Label { key: tid_key, str: 0, num: i64::from(thread.tid) });
            if let Some(process) = profile.process(thread.process) {
                label.push(Label { key: process_key, str: strings.id(&sanitise(&process.name)), num: 0 });
                label.push(Label { key: pid_key, str: 0, num: i64::from(process.pid) });
            }
        }
        message.sample.push(PprofSample { location_id, value, label });
    });
    let metric = export.metric();
    message.default_sample_type = strings.id(&sanitise(&metric.name));
    message.time_nanos = signed(session.started_unix_ns);
    message.duration_nanos = signed(profile.accounting().duration_ns);
    // Average weight of a sample: the rate may have been lowered.
    if let (Unit::Nanoseconds, Some(period)) = (metric.unit, sampled.0.checked_div(sampled.1)) {
        message.period_type = message.sample_type.get(1 + export.selection.metric_index()).copied();
        message.period = signed(period);
    }
    let mut remarks = export.remarks_of(true);
    remarks.extend(export.unknown_lines(frame_lines.unknown_weight()));
    message.comment = remarks.iter().map(|remark| strings.id(remark)).collect();
    message.string_table = strings.strings;
    let mut gzip = GzEncoder::new(out, Compression::default());
    gzip.write_all(&message.encode_to_vec())?;
    gzip.finish()?.flush()
}
