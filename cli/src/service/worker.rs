//! The process that reads images for the daemon; see [`ccsd_worker`].

use std::os::unix::process::CommandExt;
use std::process::Command;

use ccsd_worker::{Patience, WorkerProgram, Workers, read_in};

use crate::exit::Exit;
use crate::message::warn;

pub const ARGUMENT: &str = "--worker-of-daemon";

/// This executable, even if its file has been replaced.
#[derive(Debug)]
struct OwnExecutable;

impl WorkerProgram for OwnExecutable {
    fn command(&self) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("ccsd").arg(ARGUMENT);
        command
    }
}

pub fn start() -> std::io::Result<()> {
    read_in(Workers::start(OwnExecutable, Patience::default())?);
    Ok(())
}

pub fn serve() -> Exit {
    let Err(error) = ccsd_worker::serve();
    warn(format_args!("{error}"));
    Exit::FAILURE
}
