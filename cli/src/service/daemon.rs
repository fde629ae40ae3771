//! `ccsd daemon`: the process around the service.

use std::io::stderr;

use anyhow::{Context, anyhow};
use ccsd_daemon::service::Service;
use ccsd_daemon::service::socket::{Socket, SocketError, place};
use ccsd_daemon::sessions::SessionLimits;
use crossbeam_channel::bounded;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::service::DaemonArgs;
use crate::exit::{Exit, Failure};

/// Serves until it is told to end.
pub fn run(args: DaemonArgs) -> Result<Exit, Failure> {
    let log = tracing_subscriber::fmt().with_writer(stderr).with_ansi(false).with_target(false).finish();
    tracing::subscriber::set_global_default(log).context("cannot begin to log").map_err(Failure::at_run_time)?;
    // The socket before any thread: making it changes the umask.
    let inherited =
        Socket::inherited().context("cannot use the socket that was passed").map_err(Failure::bad_request)?;
    let socket = match inherited {
        Some(socket) => socket,
        None => {
            let path = place(args.socket.as_deref()).map_err(refused)?;
            Socket::make(&path, args.socket_mode).map_err(refused)?
        }
    };
    let (stop, stopped) = bounded(1);
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot catch signals").map_err(Failure::at_run_time)?;
    let watch = move || {
        for (earlier, signal) in signals.forever().enumerate() {
            // Who asks a second time does not want to wait.
            if earlier > 0 {
                Exit::Status(Exit::shell_status(signal)).leave();
            }
            let _ = stop.try_send(());
        }
    };
    let threads = std::thread::Builder::new().name("ccsd-signals".to_owned());
    threads.spawn(watch).context("cannot start a thread").map_err(Failure::at_run_time)?;
    let service = Service::new(socket, SessionLimits { grace: args.grace, ..SessionLimits::default() })
        .map_err(Failure::at_run_time)?;
    service.run(&stopped).map_err(Failure::at_run_time)?;
    Ok(Exit::SUCCESS)
}

/// Its text names its cause already; as a chain it would be said twice.
fn refused(error: SocketError) -> Failure {
    let status = if matches!(error, SocketError::Io { .. }) { 1 } else { 2 };
    Failure { status, error: anyhow!("{error}") }
}
