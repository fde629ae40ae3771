//! `ccsd import`: profiles from files of `perf record`, and from the text of `perf script`.

mod script;

use std::io::{BufReader, IsTerminal, Read, Seek, Write, stdin, stdout};
use std::panic;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use ccsd_collector::import::{self, ImportError, Recording};
use ccsd_daemon::OutputFile;
use ccsd_profile::Profile;

use crate::args::ImportArgs;
use crate::exit::{Exit, Failure};
use crate::report::{self, file::open};
use crate::style::{ColorChoice, Layout};

/// First bytes of what `perf record` writes, in either byte order.
const MAGIC: [&[u8]; 2] = [b"PERFILE2", b"2ELIFREP"];
const MAGIC_BYTES: u64 = 8;

fn is_magic(start: &[u8]) -> bool {
    MAGIC.contains(&start)
}

/// Runs the command.
pub fn run(args: &ImportArgs, colour: ColorChoice) -> Result<Exit, Failure> {
    OutputFile::check_creatable(&args.output).map_err(Failure::bad_request)?;
    let now = |at: SystemTime| at.duration_since(UNIX_EPOCH).ok().and_then(|it| u64::try_from(it.as_nanos()).ok());
    let profile = if args.file.as_os_str() == "-" {
        if stdin().is_terminal() {
            return Err(Failure::bad_request(anyhow!("standard input is a terminal: pipe `perf script` into this")));
        }
        let mut start = Vec::with_capacity(MAGIC_BYTES as usize);
        stdin()
            .lock()
            .take(MAGIC_BYTES)
            .read_to_end(&mut start)
            .context("cannot read")
            .map_err(Failure::at_run_time)?;
        let is_perf_data = is_magic(&start);
        let mut input = start.as_slice().chain(stdin().lock());
        if is_perf_data {
            perf_data(args, Recording::Pipe(&mut input))?
        } else {
            script::import(args, BufReader::new(input), now(SystemTime::now()).unwrap_or(0))?
        }
    } else {
        let mut file = open(&args.file)?;
        let mut start = Vec::with_capacity(MAGIC_BYTES as usize);
        let is_perf_data = (&file).take(MAGIC_BYTES).read_to_end(&mut start).is_ok() && is_magic(&start);
        file.rewind().context("cannot read").map_err(Failure::at_run_time)?;
        let modified = file.metadata().and_then(|meta| meta.modified()).ok();
        if is_perf_data {
            perf_data(args, Recording::File(file))?
        } else {
            script::import(args, BufReader::with_capacity(1 << 18, file), modified.and_then(now).unwrap_or(0))?
        }
    };
    let layout = Layout::of(&stdout(), colour);
    let mut out = stdout().lock();
    let size = args.output.metadata().map(|meta| meta.len()).ok();
    write!(out, "{}", report::short(&profile, size, layout))?;
    writeln!(out, "\nsaved in {}; see more with `ccsd report --graph {0}`", args.output.display())?;
    out.flush().context("cannot write").map_err(Failure::at_run_time)?;
    Ok(Exit::SUCCESS)
}

/// Imports a file of `perf record`.
fn perf_data(args: &ImportArgs, recording: Recording<'_>) -> Result<Profile, Failure> {
    let name = args.file.display();
    let mut output: Option<Result<OutputFile, _>> = None;
    // What goes wrong with it is told once, as an error.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    // Written as it comes; nothing is replaced before there is something.
    let imported = import::perf_data(recording, args.event.as_deref(), &mut |session, update| {
        if let Ok(output) = output.get_or_insert_with(|| OutputFile::replace(&args.output, session)) {
            output.write(update);
        }
    });
    panic::set_hook(hook);
    let failed = |error: ImportError| Failure::bad_request(anyhow!("{name}: {error}"));
    match (imported, output) {
        (Ok(profile), Some(Ok(mut output))) => {
            output.finish();
            if let Some(error) = output.error() {
                return Err(Failure::at_run_time(anyhow!("{error}")));
            }
            Ok(profile)
        }
        (_, Some(Err(error))) => Err(Failure::at_run_time(error)),
        // Dropped unfinished, nothing is left of what is no profile.
        (Err(error), Some(Ok(_)) | None) => Err(failed(error)),
        (Ok(_), None) => Err(Failure::at_run_time(anyhow!("{name}: nothing came of it"))),
    }
}
