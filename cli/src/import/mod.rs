//! Imports `perf record` files and `perf script` text: `ccsd import`, and all commands that read such a file.

mod kind;
mod script;

use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Read, Seek, Write, stdin, stdout};
use std::panic;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use ccsd_collector::import::{self, ImportError, Recording};
use ccsd_daemon::OutputFile;
use ccsd_profile::{Encoder, Profile, Session, Update};

use crate::args::ImportArgs;
use crate::exit::{Exit, Failure};
use crate::report::{self, file::open};
use crate::style::{ColorChoice, Layout};

use kind::{FileKind, START_BYTES, describe};

pub fn run(args: &ImportArgs, colour: ColorChoice) -> Result<Exit, Failure> {
    OutputFile::check_replaceable(&args.output).map_err(Failure::bad_request)?;
    let name = args.file.display().to_string();
    let mut output = Output::new(Some(&args.output));
    let profile = if args.file.as_os_str() == "-" {
        if stdin().is_terminal() {
            return Err(Failure::bad_request(anyhow!("standard input is a terminal: pipe `perf script` into this")));
        }
        let start = start(stdin().lock(), &name)?;
        let mut input = start.as_slice().chain(stdin().lock());
        match FileKind::of(&start) {
            FileKind::PerfData => perf_data(Recording::Pipe(&mut input), &name, args.event.as_deref(), &mut output)?,
            FileKind::Text => script::import(
                BufReader::new(input),
                nanoseconds(SystemTime::now()),
                args.event.as_deref(),
                &mut output,
            )?
            .ok_or_else(|| not_importable(&name, &start))?,
            FileKind::Profile | FileKind::Other => return Err(not_importable(&name, &start)),
        }
    } else {
        let file = open(&args.file)?;
        let start = start(&file, &name)?;
        match FileKind::of(&start) {
            FileKind::Profile | FileKind::Other => return Err(not_importable(&name, &start)),
            kind => import_file(file, kind, &name, args.event.as_deref(), &mut output)?
                .ok_or_else(|| not_importable(&name, &start))?,
        }
    };
    output.finish()?;
    let layout = Layout::of(&stdout(), colour);
    let mut out = stdout().lock();
    let size = args.output.metadata().map(|meta| meta.len()).ok();
    write!(out, "{}", report::short(&profile, size, true, layout))?;
    writeln!(out, "\nsaved in {}; see more with `ccsd report --graph {0}`", args.output.display())?;
    out.flush().context("cannot write").map_err(Failure::at_run_time)?;
    Ok(Exit::SUCCESS)
}

/// A profile open for reading.
pub struct OpenedProfile {
    /// The named file or, for a recording of perf, a nameless file with the imported profile.
    pub file: File,
    /// Size of the imported recording.
    pub recording_bytes: Option<u64>,
}

/// Opens a profile, and imports a recording of perf first.
///
/// # Errors
/// What the file is, if it is neither.
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
        None => Err(Failure::at_run_time(anyhow!("{name}: nothing came of it"))),
    }
}

/// Whether a file is a profile of ccsd or a recording of perf, by its first bytes.
pub fn is_profile(path: &Path) -> bool {
    let start = open(path).and_then(|file| start(file, ""));
    start.is_ok_and(|start| matches!(FileKind::of(&start), FileKind::Profile | FileKind::PerfData))
}

fn not_importable(name: &str, start: &[u8]) -> Failure {
    let what = match FileKind::of(start) {
        FileKind::Profile if start.is_empty() => "is empty".to_owned(),
        FileKind::Profile => "is a profile of ccsd already: `ccsd report` reads it".to_owned(),
        _ => format!("is no perf.data file, nor text of `perf script`: it is {}", describe(start)),
    };
    Failure::bad_request(anyhow!("{name} {what}"))
}

fn start(input: impl Read, name: &str) -> Result<Vec<u8>, Failure> {
    let mut start = Vec::with_capacity(START_BYTES as usize);
    let read = input.take(START_BYTES).read_to_end(&mut start);
    read.with_context(|| format!("cannot read {name}")).map_err(Failure::at_run_time)?;
    Ok(start)
}

fn rewind(mut file: &File, name: &str) -> Result<(), Failure> {
    file.rewind().with_context(|| format!("cannot read {name}")).map_err(Failure::at_run_time)
}

/// Nanoseconds since 1970.
fn nanoseconds(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(0)
}

/// Imports a file of this kind; `None` if it is text without a sample.
fn import_file(
    file: File,
    kind: FileKind,
    name: &str,
    event: Option<&str>,
    output: &mut Output<'_>,
) -> Result<Option<Profile>, Failure> {
    rewind(&file, name)?;
    if kind == FileKind::PerfData {
        return perf_data(Recording::File(file), name, event, output).map(Some);
    }
    let modified = file.metadata().and_then(|meta| meta.modified()).map_or(0, nanoseconds);
    script::import(BufReader::with_capacity(1 << 18, file), modified, event, output)
}

fn perf_data(
    recording: Recording<'_>,
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
    // Dropping the output removes the unfinished file.
    let profile = imported.map_err(|error: ImportError| {
        Failure::bad_request(anyhow!("{name} is a recording of perf (perf.data), and cannot be read: {error}"))
    })?;
    // Without charges there is no update, which would have begun the output.
    output.begin(profile.session());
    Ok(profile)
}

/// The destination of an imported profile. The first error is kept until the end.
struct Output<'a> {
    /// `None` for a temporary file without a name.
    path: Option<&'a PathBuf>,
    state: OutputState,
}

enum OutputState {
    /// Nothing is created or replaced before there is something to write.
    Waiting,
    Named(Box<OutputFile>),
    Unnamed(Box<Encoder<BufWriter<File>>>),
    Failed(Failure),
}

impl<'a> Output<'a> {
    fn new(path: Option<&'a PathBuf>) -> Output<'a> {
        Output { path, state: OutputState::Waiting }
    }

    /// Begins the output, if it has not begun.
    fn begin(&mut self, session: &Session) {
        if !matches!(self.state, OutputState::Waiting) {
            return;
        }
        self.state = match self.path {
            Some(path) => match OutputFile::replace(path, session) {
                Ok(output) => OutputState::Named(Box::new(output)),
                Err(error) => OutputState::Failed(Failure::at_run_time(error)),
            },
            None => {
                let file = tempfile::tempfile().context("cannot make a temporary file").map_err(Failure::at_run_time);
                let encoder = file.and_then(|file| {
                    Encoder::new(BufWriter::with_capacity(1 << 18, file), session).map_err(Failure::at_run_time)
                });
                encoder.map_or_else(OutputState::Failed, |encoder| OutputState::Unnamed(Box::new(encoder)))
            }
        };
    }

    fn write(&mut self, update: &Update) {
        match &mut self.state {
            OutputState::Named(output) => output.write(update),
            OutputState::Unnamed(encoder) => {
                if let Err(error) = encoder.write(update) {
                    self.state = OutputState::Failed(Failure::at_run_time(error));
                }
            }
            OutputState::Waiting | OutputState::Failed(_) => {}
        }
    }

    /// Ends the profile. Returns a nameless file, rewound.
    fn finish(self) -> Result<Option<File>, Failure> {
        match self.state {
            OutputState::Waiting => Ok(None),
            OutputState::Failed(failure) => Err(failure),
            OutputState::Named(mut output) => {
                output.finish();
                match output.error() {
                    Some(error) => Err(Failure::at_run_time(anyhow!("{error}"))),
                    None => Ok(None),
                }
            }
            OutputState::Unnamed(encoder) => {
                let written = encoder.finish().map_err(Failure::at_run_time)?;
                let file = written.into_inner().map_err(|error| error.into_error());
                let mut file = file.context("cannot write a temporary file").map_err(Failure::at_run_time)?;
                file.rewind().context("cannot read a temporary file").map_err(Failure::at_run_time)?;
                Ok(Some(file))
            }
        }
    }
}
