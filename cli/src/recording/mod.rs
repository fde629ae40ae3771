//! Opens profiles, and recordings of other profilers as profiles.

mod kind;
mod output;
mod script;

use std::fs::{File, OpenOptions};
use std::io::{BufReader, Read, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::panic;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use ccsd_collector::import::{self, ImportError, RecordingSource};
use ccsd_profile::Profile;
use nix::fcntl::OFlag;

use crate::exit::Failure;
use crate::values::DEFAULT_FILE;
use kind::START_BYTES;

pub use kind::{FileKind, describe};
pub use output::Output;
pub use script::import as import_script;

pub fn open(path: &Path) -> Result<File, Failure> {
    let name = path.display();
    // Opening a FIFO must not block: only regular files are read.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
    let hint = if path == Path::new(DEFAULT_FILE) { " (`ccsd record -- PROGRAM` makes one)" } else { "" };
    let file = file.with_context(|| format!("cannot open {name}{hint}")).map_err(Failure::bad_request)?;
    let meta = file.metadata().with_context(|| format!("cannot read {name}")).map_err(Failure::at_run_time)?;
    if meta.is_dir() {
        return Err(Failure::bad_request(anyhow!("{name} is a directory, not a profile")));
    }
    if !meta.is_file() {
        return Err(Failure::bad_request(anyhow!("{name} is not a regular file")));
    }
    Ok(file)
}

pub struct OpenedProfile {
    /// The named file or, for a recording of perf, a nameless file with the imported profile.
    pub file: File,
    pub recording_bytes: Option<u64>,
}

/// Opens a profile, and imports a recording of perf first.
pub fn open_profile(path: &Path) -> Result<OpenedProfile, Failure> {
    let file = open(path)?;
    let name = path.display().to_string();
    let start = start(&file, &name)?;
    rewind(&file, &name)?;
    let not_readable = || {
        Failure::bad_request(anyhow!(
            "{name} is not a ccsd profile, nor a recording of perf: it is {}",
            describe(&start)
        ))
    };
    match FileKind::of(&start) {
        FileKind::Profile => return Ok(OpenedProfile { file, recording_bytes: None }),
        FileKind::Other => return Err(not_readable()),
        FileKind::PerfData | FileKind::Text => {}
    }
    let bytes = file.metadata().map(|meta| meta.len()).ok();
    let mut output = Output::new(None);
    import_file(file, FileKind::of(&start), &name, None, &mut output)?.ok_or_else(not_readable)?;
    match output.finish()? {
        Some(file) => Ok(OpenedProfile { file, recording_bytes: bytes }),
        None => Err(Failure::at_run_time(anyhow!("{name}: the import has no result"))),
    }
}

pub fn is_profile(path: &Path) -> bool {
    let start = open(path).and_then(|file| start(file, ""));
    start.is_ok_and(|start| matches!(FileKind::of(&start), FileKind::Profile | FileKind::PerfData))
}

pub fn start(input: impl Read, name: &str) -> Result<Vec<u8>, Failure> {
    let mut start = Vec::with_capacity(START_BYTES as usize);
    let read = input.take(START_BYTES).read_to_end(&mut start);
    read.with_context(|| format!("cannot read {name}")).map_err(Failure::at_run_time)?;
    Ok(start)
}

fn rewind(mut file: &File, name: &str) -> Result<(), Failure> {
    file.rewind().with_context(|| format!("cannot read {name}")).map_err(Failure::at_run_time)
}

/// Nanoseconds since 1970.
pub fn nanoseconds(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(0)
}

pub fn import_file(
    file: File,
    kind: FileKind,
    name: &str,
    event: Option<&str>,
    output: &mut Output<'_>,
) -> Result<Option<Profile>, Failure> {
    rewind(&file, name)?;
    if kind == FileKind::PerfData {
        return perf_data(RecordingSource::File(file), name, event, output).map(Some);
    }
    let modified = file.metadata().and_then(|meta| meta.modified()).map_or(0, nanoseconds);
    import_script(BufReader::with_capacity(1 << 18, file), name, modified, event, output)
}

pub fn perf_data(
    recording: RecordingSource<'_>,
    name: &str,
    event: Option<&str>,
    output: &mut Output<'_>,
) -> Result<Profile, Failure> {
    // A panic of the importer is reported once, as an error.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    // Written while importing; an existing file is replaced only if the import has a result.
    let imported = import::perf_data(recording, event, &mut |session, update| {
        output.begin(session);
        output.write(update);
    });
    panic::set_hook(hook);
    let profile = imported.map_err(|error: ImportError| {
        Failure::bad_request(anyhow!("{name} is a recording of perf (perf.data), and cannot be read: {error}"))
    })?;
    // Without charges there is no update, which would have begun the output.
    output.begin(profile.session());
    Ok(profile)
}
