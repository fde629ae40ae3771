//! The Firefox Profiler's processed format (<https://profiler.firefox.com>; its `docs-developer/CHANGELOG-formats.md`
//! and `src/types/profile.ts`), which shows the threads of any process over time.
//!
//! Within an interval the samples of a thread follow each other, each for its share. Weights are exact: nanoseconds as
//! milliseconds. (The crate `fxprof-processed-profile` has 32-bit weights, which two seconds exceed.)

mod tables;

use std::collections::BTreeMap;
use std::io::{self, Write};

use hashbrown::{HashMap, HashSet};

use super::request::Export;
use super::walk::{FrameLines, frame_name, walk_routes};
use crate::ids::{CostCentreId, LineId, ThreadId};
use crate::labels::Labels;
use crate::model::{Image, Unit};
use crate::name::image_file_name;
use crate::text::sanitise;
use crate::timeline::TimeColumn;

use tables::{
    Category, FirefoxFile, Lib, Markers, Meta, ProfileSection, Remark, SampleTable, SharedTables, ThreadTables, Units,
    ViewerSettings, Weight,
};

/// Version of the format, the first in which a frame names its library.
const VERSION: u32 = 70;
/// Version of the browser's own format at that time, which the front end requires.
const BROWSER_VERSION: u32 = 36;
const SHOWN_THREADS: usize = 10;

const OTHER: u32 = 0;
const USER: u32 = 1;
const KERNEL: u32 = 2;
const CATEGORIES: [(&str, &str); 3] = [("Other", "grey"), ("User", "yellow"), ("Kernel", "orange")];

struct ThreadCell {
    column: usize,
    stack: usize,
    weight: u64,
}

pub(super) fn write(export: &Export<'_>, out: &mut impl Write) -> io::Result<()> {
    let profile = export.profile;
    let duration = profile.accounting().duration_ns;
    let whole = [TimeColumn { from_ns: 0, to_ns: duration }];
    let timed = !export.timeline.is_empty();
    let columns = if timed { export.timeline.columns() } else { &whole };
    let mut tables = TableBuilder::new(export);
    let mut threads: BTreeMap<ThreadId, Vec<ThreadCell>> = BTreeMap::new();
    let mut frame_lines = FrameLines::new(profile);
    walk_routes(export, |stack| {
        let at = tables.stack(export, stack.functions, frame_lines.of(profile, stack));
        let cells = threads.entry(stack.thread).or_default();
        let weights = if timed { export.timeline.weights(stack.weights) } else { std::slice::from_ref(&stack.weight) };
        for (column, &weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0) {
            cells.push(ThreadCell { column, stack: at, weight });
        }
    });
    let total = |cells: &[ThreadCell]| cells.iter().map(|cell| cell.weight).fold(0, u64::saturating_add);
    let mut threads: Vec<(ThreadId, Vec<ThreadCell>)> =
        threads.into_iter().filter(|(_, cells)| !cells.is_empty()).collect();
    threads.sort_by_key(|(thread, cells)| (std::cmp::Reverse(total(cells)), *thread));
    let unit = export.metric().unit;
    let mut processes = HashSet::new();
    let threads: Vec<ThreadTables> = threads
        .into_iter()
        .map(|(id, cells)| {
            let thread = profile.thread(id);
            let process = thread.and_then(|thread| profile.process(thread.process));
            let pid = process.map_or(0, |process| process.pid);
            let generation = process.map_or(0, |process| process.exec_generation);
            // The heaviest thread of each process comes first and leads it.
            let key = (pid, process.map(|process| process.start_time), generation);
            let first = processes.insert(key);
            ThreadTables {
                process_type: "default",
                process_startup_time: 0.0,
                process_shutdown_time: None,
                register_time: 0.0,
                unregister_time: None,
                paused_ranges: [],
                name: sanitise(thread.map_or("[unknown]", |thread| &thread.name)).into_owned(),
                is_main_thread: first,
                process_name: sanitise(process.map_or("[unknown]", |process| &process.name)).into_owned(),
                // A process id may belong to several programs in turn.
                pid: if generation == 0 { pid.to_string() } else { format!("{pid}.{generation}") },
                tid: thread.map_or(0, |thread| thread.tid).to_string(),
                samples: samples(cells, columns, unit),
                markers: Markers::default(),
            }
        })
        .collect();
    let mut remarks = export.remarks_of(true);
    remarks.extend(export.unknown_lines(frame_lines.unknown_weight()));
    remarks.push(match export.timeline.longest_ns() {
        Some(longest) => format!(
            "times are known to {:.3} s: within such a part of the time, the samples of a thread follow each other, each for \
             its share of it",
            longest as f64 / 1e9
        ),
        None => "what was spent when is not known: the samples of a thread follow each other, each for its share of the time"
            .to_owned(),
    });
    if unit == Unit::Cycles {
        remarks.push("what are called samples are cycles".to_owned());
    }
    let remark = |(i, value)| Remark { label: format!("{}", i + 1), format: "string", value };
    let file = FirefoxFile {
        meta: Meta {
            imported_from: "ccsd",
            interval: 1e3 / f64::from(profile.session().rate_hz.max(1)),
            start_time: profile.session().started_unix_ns as f64 / 1e6,
            profiling_start_time: 0.0,
            profiling_end_time: duration as f64 / 1e6,
            process_type: 0,
            categories: CATEGORIES
                .map(|(name, color)| Category { name, color, subcategories: ["Other"] })
                .into_iter()
                .collect(),
            product: format!("{} (recursion is folded)", export.title()),
            stackwalk: 1,
            version: BROWSER_VERSION,
            preprocessed_profile_version: VERSION,
            marker_schema: [],
            sample_units: Units { time: "ms", event_delay: "ms", thread_cpu_delta: "ns" },
            presentation: ViewerSettings {
                symbolicated: true,
                symbolication_not_supported: true,
                uses_only_one_stack_type: true,
                source_code_is_not_on_searchfox: true,
                keep_profile_thread_order: true,
                initial_visible_threads: (0..threads.len().min(SHOWN_THREADS)).collect(),
                initial_selected_threads: (0..threads.len().min(1)).collect(),
            },
            extra: vec![ProfileSection {
                label: "What these numbers are",
                entries: remarks.into_iter().enumerate().map(remark).collect(),
            }],
        },
        libs: tables.libs,
        shared: tables.shared,
        threads,
    };
    crate::json::write(&file, out).map_err(io::Error::from)
}

/// Samples by time, each in the middle of its share of its column: the front end omits a sample at the very end.
fn samples(mut cells: Vec<ThreadCell>, columns: &[TimeColumn], unit: Unit) -> SampleTable {
    cells.sort_by_key(|cell| (cell.column, cell.stack));
    let in_milliseconds = unit == Unit::Nanoseconds;
    let mut samples = SampleTable {
        stack: Vec::new(),
        time: Vec::new(),
        weight: Vec::new(),
        weight_type: if in_milliseconds { "tracing-ms" } else { "samples" },
        thread_cpu_delta: in_milliseconds.then(Vec::new),
        length: cells.len(),
    };
    let mut last = 0;
    for group in cells.chunk_by(|a, b| a.column == b.column) {
        let all: f64 = group.iter().map(|cell| cell.weight as f64).sum();
        let Some(column) = group.first().and_then(|cell| columns.get(cell.column)) else { continue };
        let length = column.to_ns.saturating_sub(column.from_ns) as f64;
        let mut sum = 0.0;
        for cell in group {
            let middle = sum + cell.weight as f64 / 2.0;
            sum += cell.weight as f64;
            samples.stack.push(cell.stack);
            samples.time.push((column.from_ns as f64 + length * middle / all) / 1e6);
            samples.weight.push(if in_milliseconds {
                Weight::Milliseconds(cell.weight as f64 / 1e6)
            } else {
                Weight::Count(cell.weight)
            });
            if let Some(deltas) = &mut samples.thread_cpu_delta {
                deltas.push(last / 2 + cell.weight / 2);
            }
            last = cell.weight;
        }
    }
    samples
}

struct TableBuilder<'a> {
    labels: Labels<'a>,
    shared: SharedTables,
    libs: Vec<Lib>,
    strings: HashMap<String, usize>,
    functions: HashMap<CostCentreId, usize>,
    sources: HashMap<String, usize>,
    frames: HashMap<(CostCentreId, LineId), usize>,
    stacks: HashMap<(Option<usize>, usize), usize>,
}

impl<'a> TableBuilder<'a> {
    fn new(export: &Export<'a>) -> Self {
        let mut tables = Self {
            shared: SharedTables::default(),
            libs: export.profile.images().iter().map(lib).collect(),
            labels: export.profile.full_labels(),
            strings: HashMap::new(),
            functions: HashMap::new(),
            sources: HashMap::new(),
            frames: HashMap::new(),
            stacks: HashMap::new(),
        };
        for image in export.profile.images() {
            let name = tables.string(&sanitise(&image_file_name(&image.name)));
            tables.shared.resource_table.push(name);
        }
        tables
    }

    fn string(&mut self, text: &str) -> usize {
        let next = self.shared.string_array.len();
        let number = *self.strings.entry_ref(text).or_insert(next);
        if number == next {
            self.shared.string_array.push(text.to_owned());
        }
        number
    }

    fn function(&mut self, export: &Export<'_>, id: CostCentreId) -> usize {
        if let Some(&number) = self.functions.get(&id) {
            return number;
        }
        let profile = export.profile;
        let name = self.string(&frame_name(&self.labels, id));
        let centre = profile.cost_centre(id);
        let source = centre.and_then(|it| it.file.as_deref()).map(|file| {
            let file = sanitise(file);
            let filename = self.string(&file);
            let sources = &mut self.shared.sources;
            *self.sources.entry_ref(file.as_ref()).or_insert_with(|| sources.push(filename))
        });
        let line = centre.map(|it| it.line).filter(|&line| line > 0);
        let resource = centre.map_or(0, |it| it.image.index());
        let number = self.shared.func_table.push(name, resource, source, line);
        self.functions.insert(id, number);
        number
    }

    fn frame(&mut self, export: &Export<'_>, id: CostCentreId, line: LineId) -> usize {
        if let Some(&number) = self.frames.get(&(id, line)) {
            return number;
        }
        let func = self.function(export, id);
        let profile = export.profile;
        let centre = profile.cost_centre(id);
        let image = centre.map(|it| it.image);
        let category = match image.and_then(|image| profile.image(image)).map_or("", |image| &image.name) {
            "[ccsd]" | "" => OTHER,
            name if name.starts_with("[kernel") => KERNEL,
            _ => USER,
        };
        // A frame has only a line number: its file is the function's.
        let here = |file: &str| centre.is_some_and(|it| it.file.as_deref() == Some(file));
        let number = profile.line(line).filter(|it| it.line > 0 && here(&it.file)).map(|it| it.line);
        let frame = self.shared.frame_table.push(func, image.map(|image| image.index()), category, number);
        self.frames.insert((id, line), frame);
        frame
    }

    /// The stack of these functions, root first, each at its line.
    fn stack(&mut self, export: &Export<'_>, functions: &[CostCentreId], lines: &[LineId]) -> usize {
        let mut caller: Option<usize> = None;
        for (&id, &line) in functions.iter().zip(lines) {
            let frame = self.frame(export, id, line);
            let stacks = &mut self.shared.stack_table;
            caller = Some(*self.stacks.entry((caller, frame)).or_insert_with(|| {
                let number = stacks.length;
                stacks.frame.push(frame);
                stacks.prefix_offset.push(caller.map_or(0, |caller| number - caller));
                stacks.length += 1;
                number
            }));
        }
        caller.unwrap_or(0)
    }
}

fn lib(image: &Image) -> Lib {
    let (path, name) = (sanitise(&image.name).into_owned(), sanitise(&image_file_name(&image.name)).into_owned());
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    Lib {
        arch: "x86_64",
        name: name.clone(),
        path: path.clone(),
        debug_name: name,
        debug_path: path,
        breakpad_id: breakpad_id(&image.build_id),
        code_id: (!image.build_id.is_empty()).then(|| hex(&image.build_id)),
    }
}

/// A build id as Breakpad names it: its first 16 bytes as a GUID, whose first three numbers are little-endian, and an age of 0.
fn breakpad_id(build_id: &[u8]) -> String {
    const ORDER: [usize; 16] = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    if build_id.is_empty() {
        return String::new();
    }
    let byte = |at: usize| build_id.get(at).copied().unwrap_or(0);
    ORDER.iter().map(|&at| format!("{:02X}", byte(at))).collect::<String>() + "0"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_ids_as_breakpad_names_them() {
        // From the documentation of the crate debugid: a Linux build id and its debug id.
        let bytes: Vec<u8> = (0..20).collect();
        assert_eq!(breakpad_id(&bytes), "03020100050407060809 0A0B0C0D0E0F0".replace(' ', ""));
        assert_eq!(breakpad_id(&[]), "");
    }

    #[test]
    fn samples_stay_within_their_part_of_the_time() {
        let columns =
            [TimeColumn { from_ns: 0, to_ns: 1_000_000 }, TimeColumn { from_ns: 1_000_000, to_ns: 5_000_000 }];
        let cell = |column, stack, weight| ThreadCell { column, stack, weight };
        let samples = samples(vec![cell(1, 0, 30), cell(0, 7, 5), cell(1, 3, 10)], &columns, Unit::Count);
        assert_eq!((samples.stack, samples.time, samples.length), (vec![7, 0, 3], vec![0.5, 2.5, 4.5], 3));
    }
}
