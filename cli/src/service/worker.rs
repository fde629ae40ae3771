//! The process that reads images for the daemon; see [`ccsd_worker`].

use std::os::unix::process::CommandExt;
use std::process::Command;

use ccsd_worker::{Patience, Program, Worker, read_in};

use crate::exit::Exit;
use crate::message::warn;

/// The argument that makes a process this one.
pub const ARGUMENT: &str = "--worker-of-daemon";

/// This executable, also when its file has been replaced.
#[derive(Debug)]
struct Itself;

impl Program for Itself {
    fn command(&self) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("ccsd").arg(ARGUMENT);
        command
    }
}

/// Has images read by a worker from now on.
pub fn start() -> std::io::Result<()> {
    read_in(Worker::start(Itself, Patience::default())?);
    Ok(())
}

/// The worker itself. Returns only if it does not begin.
pub fn serve() -> Exit {
    let Err(error) = ccsd_worker::serve();
    warn(format_args!("{error}"));
    Exit::FAILURE
}
