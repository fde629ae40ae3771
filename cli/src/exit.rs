//! Exit statuses.
//!
//! | status | meaning |
//! |---|---|
//! | 0 | success |
//! | 1 | an error at run time |
//! | 2 | the request cannot be met: wrong arguments, no such process, function or session, not a profile, not permitted; `diff --fail-above`: a profile that cannot be read whole; `symbolize`: nothing could be named |
//! | 3 | `diff --fail-above`: something grew significantly by more |
//! | 70 | a thread of the daemon has failed without which there is no service: `ccsd_daemon::supervisor` |
//! | 126, 127 | the program cannot be executed, is not found (as in a shell) |
//! | 130, 143, 129 | ended at the second SIGINT, SIGTERM, SIGHUP while the program still runs |
//! | other | that of the program under `record`; if a signal killed it, the same signal kills ccsd |

use std::io;

use ccsd_collector::child::{ChildEnd, ExitStatus};
use ccsd_daemon::PrepareError;
use ccsd_daemon::client::ClientError;
use ccsd_daemon::protocol::message::RefusalKind;
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use signal_hook::consts::SIGPIPE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Status(i32),
    Signal(i32),
}

impl Exit {
    pub const SUCCESS: Exit = Exit::Status(0);
    pub const FAILURE: Exit = Exit::Status(1);
    pub const NOT_FOUND: i32 = 127;
    pub const GREW: Exit = Exit::Status(3);

    pub fn as_child(end: &ChildEnd) -> Exit {
        match end.status {
            ExitStatus::Code(code) => Exit::Status(code),
            ExitStatus::Signal(signal) => Exit::Signal(signal),
        }
    }

    pub fn shell_status(signal: i32) -> i32 {
        signal.saturating_add(128)
    }

    pub fn leave(self) -> ! {
        // A thread that a dump holds must be let go properly.
        ccsd_collector::dump::end_holds();
        match self {
            Exit::Status(status) => std::process::exit(status),
            Exit::Signal(signal) => {
                // The program's core dump is enough. The resource limit alone does not apply to dumps into a pipe.
                let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
                let _ = prctl::set_dumpable(false);
                let _ = signal_hook::low_level::emulate_default_handler(signal);
                // A real-time signal, or a blocked one: report it as a shell does.
                std::process::exit(Exit::shell_status(signal))
            }
        }
    }
}

#[derive(Debug)]
pub struct Failure {
    pub status: i32,
    pub error: anyhow::Error,
}

impl Failure {
    pub fn bad_request(error: impl Into<anyhow::Error>) -> Failure {
        Failure { status: 2, error: error.into() }
    }

    pub fn at_run_time(error: impl Into<anyhow::Error>) -> Failure {
        Failure { status: 1, error: error.into() }
    }
}

impl From<ccsd_collector::Error> for Failure {
    fn from(error: ccsd_collector::Error) -> Failure {
        use ccsd_collector::Error;
        let status = match &error {
            Error::ProgramNotFound(_) => Exit::NOT_FOUND,
            Error::ProgramNotExecutable { .. } => 126,
            error if error.is_bad_request() => 2,
            _ => 1,
        };
        // The text already names its cause; a chain would repeat it.
        Failure { status, error: anyhow::anyhow!("{error}") }
    }
}

impl From<PrepareError> for Failure {
    fn from(error: PrepareError) -> Failure {
        match error {
            PrepareError::Collector(error) => error.into(),
            PrepareError::Daemon(error) => error.into(),
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        let failed = matches!(&error, ClientError::Refused(refusal) if refusal.kind == RefusalKind::Failed);
        match error {
            ClientError::None(_) => Failure::bad_request(anyhow::anyhow!(
                "{error}; start one with `ccsd daemon`, or name its socket with --socket"
            )),
            // The text already names its cause; a chain would repeat it.
            ClientError::NotPermitted(_) | ClientError::Stranger { .. } => {
                Failure::bad_request(anyhow::anyhow!("{error}"))
            }
            ClientError::Refused(_) if !failed => Failure::bad_request(anyhow::anyhow!("{error}")),
            error => Failure::at_run_time(anyhow::anyhow!("{error}")),
        }
    }
}

impl std::fmt::Display for Failure {
    /// The error and its causes on one line, each once: many texts already name their cause.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = self.error.to_string();
        for cause in self.error.chain().skip(1).map(ToString::to_string) {
            if !text.contains(&cause) {
                text.push_str(": ");
                text.push_str(&cause);
            }
        }
        f.write_str(&text)
    }
}

/// An error of standard output. If its reader has gone (`| head`), ccsd ends silently, as with SIGPIPE.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Exit::Signal(SIGPIPE).leave();
        }
        Failure::at_run_time(anyhow::Error::from(error).context("cannot write to standard output"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_named_once() {
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let said = anyhow::Error::from(denied()).context(format!("cannot read x: {} (as you know)", denied()));
        assert_eq!(Failure::bad_request(said).to_string(), format!("cannot read x: {} (as you know)", denied()));
        let failure = Failure::at_run_time(anyhow::Error::from(denied()).context("cannot write"));
        assert_eq!(failure.to_string(), format!("cannot write: {}", denied()));
    }

    #[test]
    fn statuses() {
        use ccsd_collector::Error;
        let status = |error: Error| Failure::from(error).status;
        assert_eq!(status(Error::ProgramNotFound("x".to_owned())), 127);
        let source = || io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(status(Error::ProgramNotExecutable { program: "x".to_owned(), source: source() }), 126);
        assert_eq!(status(Error::NoSuchProcess(1)), 2);
        assert_eq!(status(Error::System { what: "x".to_owned(), source: source() }), 1);
        assert_eq!(Exit::shell_status(2), 130);
    }
}
