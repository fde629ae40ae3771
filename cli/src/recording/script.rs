//! Imports the text of `perf script` from a file or a pipe, whose programs may be on another machine.

use std::io::{self, BufRead};

use anyhow::anyhow;
use ccsd_profile::import::{Passed, perf_script};
use ccsd_profile::{Profile, SessionInfo};

use super::output::Output;
use crate::exit::Failure;
use crate::format::counted;
use crate::message::warn;

/// Imports text of this name whose session begins or ends at `at_unix_ns`; `None` if it has no sample.
pub fn import(
    text: impl BufRead,
    name: &str,
    at_unix_ns: u64,
    event: Option<&str>,
    output: &mut Output<'_>,
) -> Result<Option<Profile>, Failure> {
    let session = SessionInfo { version: "perf".to_owned(), started_unix_ns: at_unix_ns, ..SessionInfo::default() };
    let imported = perf_script(text, session, event, |session, update| {
        match update {
            None => output.begin(session),
            Some(update) => output.write(update),
        }
        Ok(())
    });
    let (profile, Passed { lines, samples }) = match imported {
        Ok(imported) => imported,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(None),
        Err(error) => return Err(Failure::at_run_time(anyhow!("cannot read {name}: {error}"))),
    };
    if lines > 0 {
        warn(format_args!("{} neither a sample nor a frame of one", counted(lines, "line is", "lines are")));
    }
    if samples > 0 {
        warn(format_args!("{} of other events left out", counted(samples, "sample is", "samples are")));
    }
    Ok(Some(profile))
}
