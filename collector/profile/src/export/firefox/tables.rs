//! The tables of a processed profile: parallel lists, whose rows other tables refer to by index.
//!
//! The front end requires all columns, including those that only a browser fills.

use serde::Serialize;

type Same<T> = Vec<T>;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FirefoxFile {
    pub(super) meta: Meta,
    pub(super) libs: Vec<Lib>,
    pub(super) shared: SharedTables,
    pub(super) threads: Vec<ThreadTables>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Meta {
    /// Comes first in the file, where ccsd recognises its own exports.
    pub(super) imported_from: &'static str,
    /// Milliseconds between samples.
    pub(super) interval: f64,
    /// Milliseconds since 1970.
    pub(super) start_time: f64,
    pub(super) profiling_start_time: f64,
    pub(super) profiling_end_time: f64,
    pub(super) process_type: u32,
    pub(super) categories: Vec<Category>,
    pub(super) product: String,
    pub(super) stackwalk: u32,
    pub(super) version: u32,
    pub(super) preprocessed_profile_version: u32,
    pub(super) marker_schema: [u32; 0],
    pub(super) sample_units: Units,
    #[serde(flatten)]
    pub(super) presentation: ViewerSettings,
    pub(super) extra: Vec<ProfileSection>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ViewerSettings {
    pub(super) symbolicated: bool,
    pub(super) symbolication_not_supported: bool,
    pub(super) uses_only_one_stack_type: bool,
    pub(super) source_code_is_not_on_searchfox: bool,
    pub(super) keep_profile_thread_order: bool,
    pub(super) initial_visible_threads: Vec<usize>,
    pub(super) initial_selected_threads: Vec<usize>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Units {
    pub(super) time: &'static str,
    pub(super) event_delay: &'static str,
    #[serde(rename = "threadCPUDelta")]
    pub(super) thread_cpu_delta: &'static str,
}

#[derive(Serialize)]
pub(super) struct Category {
    pub(super) name: &'static str,
    pub(super) color: &'static str,
    pub(super) subcategories: [&'static str; 1],
}

#[derive(Serialize)]
pub(super) struct ProfileSection {
    pub(super) label: &'static str,
    pub(super) entries: Vec<Remark>,
}

#[derive(Serialize)]
pub(super) struct Remark {
    pub(super) label: String,
    pub(super) format: &'static str,
    pub(super) value: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Lib {
    pub(super) arch: &'static str,
    pub(super) name: String,
    pub(super) path: String,
    pub(super) debug_name: String,
    pub(super) debug_path: String,
    pub(super) breakpad_id: String,
    pub(super) code_id: Option<String>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SharedTables {
    pub(super) stack_table: StackTable,
    pub(super) frame_table: FrameTable,
    pub(super) func_table: Functions,
    pub(super) resource_table: Resources,
    native_symbols: NativeSymbols,
    pub(super) string_array: Vec<String>,
    pub(super) sources: Sources,
    source_location_table: SourceLocations,
}

/// Parents before children.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StackTable {
    pub(super) frame: Vec<usize>,
    /// Distance to the caller's row; 0 for a root.
    pub(super) prefix_offset: Vec<usize>,
    pub(super) length: usize,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FrameTable {
    address: Same<i32>,
    lib: Vec<i64>,
    inline_depth: Same<u32>,
    category: Vec<u32>,
    subcategory: Same<u32>,
    func: Vec<usize>,
    native_symbol: Same<Option<u32>>,
    #[serde(rename = "innerWindowID")]
    inner_window_id: Same<u32>,
    line: Vec<Option<u32>>,
    column: Same<Option<u32>>,
    original_location: Same<Option<u32>>,
    length: usize,
}

impl FrameTable {
    pub(super) fn push(&mut self, func: usize, lib: Option<usize>, category: u32, line: Option<u32>) -> usize {
        self.address.push(-1);
        self.lib.push(lib.map_or(-1, |lib| lib as i64));
        self.inline_depth.push(0);
        self.category.push(category);
        self.subcategory.push(0);
        self.func.push(func);
        self.native_symbol.push(None);
        self.inner_window_id.push(0);
        self.line.push(line);
        self.column.push(None);
        self.original_location.push(None);
        self.length += 1;
        self.length - 1
    }
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Functions {
    name: Vec<usize>,
    #[serde(rename = "isJS")]
    is_js: Same<bool>,
    #[serde(rename = "relevantForJS")]
    relevant_for_js: Same<bool>,
    resource: Vec<usize>,
    source: Vec<Option<usize>>,
    line_number: Vec<Option<u32>>,
    column_number: Same<Option<u32>>,
    original_location: Same<Option<u32>>,
    length: usize,
}

impl Functions {
    pub(super) fn push(&mut self, name: usize, resource: usize, source: Option<usize>, line: Option<u32>) -> usize {
        self.name.push(name);
        self.is_js.push(false);
        self.relevant_for_js.push(false);
        self.resource.push(resource);
        self.source.push(source);
        self.line_number.push(line);
        self.column_number.push(None);
        self.original_location.push(None);
        self.length += 1;
        self.length - 1
    }
}

#[derive(Default, Serialize)]
pub(super) struct Resources {
    name: Vec<usize>,
    host: Same<Option<u32>>,
    #[serde(rename = "type")]
    kind: Same<u32>,
    length: usize,
}

impl Resources {
    pub(super) fn push(&mut self, name: usize) {
        const LIBRARY: u32 = 1;
        self.name.push(name);
        self.host.push(None);
        self.kind.push(LIBRARY);
        self.length += 1;
    }
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct NativeSymbols {
    lib_index: [u32; 0],
    address: [u32; 0],
    name: [u32; 0],
    function_size: [u32; 0],
    length: usize,
}

#[derive(Default, Serialize)]
struct SourceLocations {
    source: [u32; 0],
    line: [u32; 0],
    column: [u32; 0],
    length: usize,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Sources {
    id: Same<Option<u32>>,
    filename: Vec<usize>,
    start_line: Same<u32>,
    start_column: Same<u32>,
    #[serde(rename = "sourceMapURL")]
    source_map_url: Same<Option<u32>>,
    content: Same<Option<u32>>,
    length: usize,
}

impl Sources {
    pub(super) fn push(&mut self, filename: usize) -> usize {
        self.id.push(None);
        self.filename.push(filename);
        self.start_line.push(1);
        self.start_column.push(1);
        self.source_map_url.push(None);
        self.content.push(None);
        self.length += 1;
        self.length - 1
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ThreadTables {
    pub(super) process_type: &'static str,
    pub(super) process_startup_time: f64,
    pub(super) process_shutdown_time: Option<f64>,
    pub(super) register_time: f64,
    pub(super) unregister_time: Option<f64>,
    pub(super) paused_ranges: [u32; 0],
    pub(super) name: String,
    pub(super) is_main_thread: bool,
    pub(super) process_name: String,
    pub(super) pid: String,
    pub(super) tid: String,
    pub(super) samples: SampleTable,
    pub(super) markers: Markers,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SampleTable {
    pub(super) stack: Vec<usize>,
    /// Milliseconds since the session began, growing.
    pub(super) time: Vec<f64>,
    pub(super) weight: Vec<Weight>,
    pub(super) weight_type: &'static str,
    /// Nanoseconds of CPU time since the previous sample, from which the front end draws a thread's load.
    #[serde(rename = "threadCPUDelta", skip_serializing_if = "Option::is_none")]
    pub(super) thread_cpu_delta: Option<Vec<u64>>,
    pub(super) length: usize,
}

#[derive(Clone, Copy, Serialize)]
#[serde(untagged)]
pub(super) enum Weight {
    Milliseconds(f64),
    Count(u64),
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Markers {
    data: [u32; 0],
    name: [u32; 0],
    start_time: [u32; 0],
    end_time: [u32; 0],
    phase: [u32; 0],
    category: [u32; 0],
    length: usize,
}
