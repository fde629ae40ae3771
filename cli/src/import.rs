//! `ccsd import`: converts a recording of perf.

use std::io::{self, BufReader, IsTerminal, Read, Write, stdin, stdout};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use anyhow::{Context, anyhow};
use ccsd_collector::import::RecordingSource;
use ccsd_daemon::OutputFile;
use signal_hook::consts::SIGINT;

use crate::args::ImportArgs;
use crate::exit::{Exit, Failure};
use crate::recording::{FileKind, Output, describe, import_file, import_script, nanoseconds, open, perf_data, start};
use crate::report;
use crate::style::{ColorChoice, TextLayout};

pub fn run(args: &ImportArgs, colour: ColorChoice) -> Result<Exit, Failure> {
    OutputFile::check_replaceable(&args.output).map_err(Failure::bad_request)?;
    let name = args.file.display().to_string();
    let mut output = Output::new(Some(&args.output));
    let profile = if args.file.as_os_str() == "-" {
        if stdin().is_terminal() {
            return Err(Failure::bad_request(anyhow!(
                "standard input is a terminal; pipe the output of `perf script` into this command"
            )));
        }
        outlast_interrupt().context("cannot catch signals").map_err(Failure::at_run_time)?;
        let start = start(stdin().lock(), &name)?;
        let mut input = start.as_slice().chain(stdin().lock());
        match FileKind::of(&start) {
            FileKind::PerfData => {
                perf_data(RecordingSource::Pipe(&mut input), &name, args.event.as_deref(), &mut output)?
            }
            FileKind::Text => import_script(
                BufReader::new(input),
                &name,
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
    let layout = TextLayout::of(&stdout(), colour);
    let mut out = stdout().lock();
    let size = args.output.metadata().map(|meta| meta.len()).ok();
    write!(out, "{}", report::short(&profile, size, true, layout))?;
    writeln!(out, "\nsaved in {}; see more with `ccsd report --graph {0}`", args.output.display())?;
    out.flush().context("cannot write").map_err(Failure::at_run_time)?;
    Ok(Exit::SUCCESS)
}

/// Ctrl-C goes to all of a pipeline: the first one ends what writes into it, and what that has written is read to its end.
fn outlast_interrupt() -> io::Result<()> {
    let interrupted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register_conditional_default(SIGINT, Arc::clone(&interrupted))?;
    signal_hook::flag::register(SIGINT, interrupted)?;
    Ok(())
}

fn not_importable(name: &str, start: &[u8]) -> Failure {
    let what = match FileKind::of(start) {
        FileKind::Profile if start.is_empty() => "is empty".to_owned(),
        FileKind::Profile => "is a profile of ccsd already: `ccsd report` reads it".to_owned(),
        _ => format!("is no perf.data file, nor text of `perf script`: it is {}", describe(start)),
    };
    Failure::bad_request(anyhow!("{name} {what}"))
}
