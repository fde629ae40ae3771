//! Profiles from the text of `perf script`, from a file or a pipe: of machines whose files and programs are not here.

use std::io::{self, BufRead};

use anyhow::anyhow;
use ccsd_daemon::OutputFile;
use ccsd_profile::import::{Passed, perf_script};
use ccsd_profile::{Profile, Session, Update, sanitise};

use crate::args::ImportArgs;
use crate::exit::Failure;
use crate::format::counted;
use crate::warn;

/// Imports the text, whose session begins or ends at `at_unix_ns`.
///
/// # Errors
/// That there is no sample in it is a bad request.
pub fn import(args: &ImportArgs, text: impl BufRead, at_unix_ns: u64) -> Result<Profile, Failure> {
    let name = args.file.display().to_string();
    let session = Session { version: "perf".to_owned(), started_unix_ns: at_unix_ns, ..Session::default() };
    let mut output: Option<OutputFile> = None;
    let write = |session: &Session, update: Option<&Update>| -> io::Result<()> {
        match (update, &mut output) {
            (None, _) => output = Some(OutputFile::replace(&args.output, session).map_err(io::Error::other)?),
            (Some(update), Some(output)) => output.write(update),
            (Some(_), None) => {}
        }
        Ok(())
    };
    let (profile, passed) =
        perf_script(text, session, args.event.as_deref(), write).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => Failure::bad_request(anyhow!(
                "{}: it is no perf.data file, and as the text of `perf script` {error}",
                sanitise(&name)
            )),
            _ => Failure::at_run_time(anyhow!("{error}")),
        })?;
    if let Some(mut output) = output {
        output.finish();
        if let Some(error) = output.error() {
            return Err(Failure::at_run_time(anyhow!("{error}")));
        }
    }
    let Passed { lines, samples } = passed;
    if lines > 0 {
        warn(format_args!("{} neither a sample nor a frame of one", counted(lines, "line is", "lines are")));
    }
    if samples > 0 {
        warn(format_args!("{} of other events left out", counted(samples, "sample is", "samples are")));
    }
    Ok(profile)
}
