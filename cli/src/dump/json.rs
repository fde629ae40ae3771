//! Dumps as JSON: every thread with all its frames.

use ccsd_collector::dump::{Dump, End, FrameInfo, Method, TaskState, ThreadDump};
use serde::Serialize;

use crate::exit::Failure;
use ccsd_profile::json::to_text;

#[derive(Serialize)]
struct DumpDocument<'a> {
    processes: Vec<ProcessDocument<'a>>,
}

#[derive(Serialize)]
struct ProcessDocument<'a> {
    pid: u32,
    name: &'a str,
    command: &'a [String],
    start_time: u64,
    taken_unix_ns: u64,
    took_ns: u64,
    notes: &'a [String],
    threads: Vec<ThreadDocument<'a>>,
}

#[derive(Serialize)]
struct ThreadDocument<'a> {
    tid: u32,
    name: &'a str,
    state: TaskState,
    wait: Option<&'a str>,
    kernel_stack: &'a [String],
    /// Innermost first.
    frames: Vec<FrameFields<'a>>,
    complete: bool,
    truncated: Option<&'a str>,
    missing: Option<&'a str>,
    stopped_ns: Option<u64>,
    sampled: bool,
    not_stopped: Option<&'a str>,
}

#[derive(Serialize)]
pub struct FrameFields<'a> {
    function: &'a str,
    image: &'a str,
    file: Option<&'a str>,
    line: Option<u32>,
    inlined: bool,
    /// Address in the image, hexadecimal: JSON numbers cannot hold all addresses.
    address: String,
}

impl FrameFields<'_> {
    pub fn of(frame: &FrameInfo) -> FrameFields<'_> {
        FrameFields {
            function: &frame.function,
            image: &frame.image,
            file: frame.file.as_deref(),
            line: Some(frame.line).filter(|&line| line > 0),
            inlined: frame.inlined,
            address: format!("{:#x}", frame.address),
        }
    }
}

pub fn text(dumps: &[Dump]) -> Result<String, Failure> {
    let processes = dumps.iter().map(process).collect();
    to_text(&DumpDocument { processes }).map_err(Failure::at_run_time)
}

fn process(dump: &Dump) -> ProcessDocument<'_> {
    ProcessDocument {
        pid: dump.pid,
        name: &dump.name,
        command: &dump.command,
        start_time: dump.start_time,
        taken_unix_ns: dump.taken_unix_ns,
        took_ns: dump.took_ns,
        notes: &dump.notes,
        threads: dump.threads.iter().map(|one| thread(dump, one)).collect(),
    }
}

fn thread<'a>(dump: &'a Dump, thread: &'a ThreadDump) -> ThreadDocument<'a> {
    let frames = thread.stack.iter().filter_map(|&at| dump.frames.get(at as usize));
    let (truncated, missing) = match &thread.end {
        End::Complete => (None, None),
        End::Truncated(why) => (Some(why.as_str()), None),
        End::Missing(why) => (None, Some(why.as_str())),
    };
    let (stopped_ns, not_stopped) = match &thread.method {
        Method::Stopped { ns } => (Some(*ns), None),
        Method::Sampled => (None, None),
        Method::NotStopped { why } => (None, Some(why.as_str())),
    };
    ThreadDocument {
        tid: thread.tid,
        name: &thread.name,
        state: thread.state,
        wait: thread.wait.as_deref(),
        kernel_stack: &thread.kernel_stack,
        frames: frames.map(FrameFields::of).collect(),
        complete: thread.end == End::Complete,
        truncated,
        missing,
        stopped_ns,
        sampled: thread.method == Method::Sampled,
        not_stopped,
    }
}
