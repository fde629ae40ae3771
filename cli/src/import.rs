//! `ccsd import`: profiles from files of `perf record`.

use std::io::{Write, stdout};
use std::panic;

use anyhow::{Context, anyhow};
use ccsd_collector::import::{self, ImportError};
use ccsd_daemon::OutputFile;

use crate::args::ImportArgs;
use crate::exit::{Exit, Failure};
use crate::report::{self, file::open};
use crate::style::{ColorChoice, Layout};

/// Runs the command.
pub fn run(args: &ImportArgs, colour: ColorChoice) -> Result<Exit, Failure> {
    let name = args.file.display();
    let file = open(&args.file)?;
    OutputFile::check_replaceable(&args.output).map_err(Failure::bad_request)?;
    let mut output: Option<Result<OutputFile, _>> = None;
    // Written as it comes; the file is made when it is known to be for something.
    let output = std::cell::RefCell::new(&mut output);
    // What goes wrong with it is told once, as an error.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let imported = import::perf_data(
        file,
        &mut |session| **output.borrow_mut() = Some(OutputFile::create(&args.output, session)),
        &mut |update| {
            if let Some(Ok(output)) = &mut **output.borrow_mut() {
                output.write(update);
            }
        },
    );
    panic::set_hook(hook);
    let output = output.into_inner().take();
    let failed = |error: ImportError| Failure::bad_request(anyhow!("{name}: {error}"));
    let profile = match (imported, output) {
        (Ok(profile), Some(Ok(mut output))) => {
            output.finish();
            if let Some(error) = output.error() {
                return Err(Failure::at_run_time(anyhow!("{error}")));
            }
            profile
        }
        (_, Some(Err(error))) => return Err(Failure::at_run_time(error)),
        (Err(error), Some(Ok(output))) => {
            // Nothing is left of what is no profile.
            drop(output);
            let _ = std::fs::remove_file(&args.output);
            return Err(failed(error));
        }
        (Err(error), None) => return Err(failed(error)),
        (Ok(_), None) => return Err(Failure::at_run_time(anyhow!("{name}: nothing came of it"))),
    };
    let layout = Layout::of(&stdout(), colour);
    let mut out = stdout().lock();
    let size = args.output.metadata().map(|meta| meta.len()).ok();
    write!(out, "{}", report::short(&profile, size, layout))?;
    writeln!(out, "\nsaved in {}; see more with `ccsd report --graph {0}`", args.output.display())?;
    out.flush().context("cannot write").map_err(Failure::at_run_time)?;
    Ok(Exit::SUCCESS)
}
