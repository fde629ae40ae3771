//! `ccsd daemon run`: the process of the service.

use std::io::{self, Write, stderr, stdout};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use ccsd_collector::become_favoured;
use ccsd_daemon::config::{Config, DEFAULT_PATH};
use ccsd_daemon::last_good::LastGood;
use ccsd_daemon::service::Service;
use ccsd_daemon::service::socket::{SOCKET_VARIABLE, SYSTEM_SOCKET, Socket, SocketError, place};
use ccsd_daemon::sessions::SessionLimits;
use ccsd_daemon::supervisor::Supervisor;
use ccsd_daemon::upkeep::{ConfigFile, Order, Upkeep, UpkeepError};
use ccsd_daemon::watch::{describe, look, unknown_users, user_number};
use ccsd_profile::sanitise;
use crossbeam_channel::{bounded, unbounded};
use nix::sys::stat::fstat;
use nix::unistd::geteuid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;

use crate::args::service::RunArgs;
use crate::exit::{Exit, Failure};
use crate::format::counted;
use crate::message::warn;
use crate::service::worker;

/// Log level: `warn`, `info` or `debug`, which logs each process that a watch follows.
const LOG_VARIABLE: &str = "CCSD_LOG";

pub fn run(args: RunArgs) -> Result<Exit, Failure> {
    let path = config_path(&args);
    // A check changes nothing.
    let last_good = LastGood::for_service().filter(|_| !args.check_config);
    let mut refused_file = None;
    let config = match &path {
        Some(path) => match LastGood::read(last_good.as_ref(), path) {
            Ok(config) => config,
            Err(error) => match last_good.as_ref().and_then(LastGood::load) {
                Some(config) => {
                    refused_file = Some(error.to_string());
                    config
                }
                // A service with a wrong configuration would silently watch nothing.
                None => return Err(Failure::bad_request(anyhow!("{error}"))),
            },
        },
        None => Config::default(),
    };
    if args.check_config {
        let mut warnings = config.warnings.clone();
        let what = match &path {
            Some(path) if path.exists() => path.display().to_string(),
            _ => "no configuration".to_owned(),
        };
        let mut out = stdout().lock();
        for (watch, (processes, near)) in config.watches.iter().zip(look(&config)) {
            for user in unknown_users(watch, user_number) {
                warnings.push(format!("watch {}: there is no user {user:?}, so it matches no process", watch.name.0));
            }
            let now = match (processes, near) {
                (0, Some(near)) => format!("none now; {}", sanitise(&near)),
                (0, None) => "none now".to_owned(),
                (some, _) => format!("{some} now"),
            };
            writeln!(out, "{}: {now}", describe(watch))?;
        }
        let watches = counted(config.watches.len() as u64, "watch", "watches");
        let verdict = match warnings.len() {
            0 => "good".to_owned(),
            many => format!("usable, but {}", counted(many as u64, "warning", "warnings")),
        };
        writeln!(out, "{what}: {verdict}: {watches}").and_then(|()| out.flush())?;
        warnings.iter().for_each(|warning| warn(format_args!("{warning}")));
        return Ok(Exit::SUCCESS);
    }
    begin_to_log()?;
    config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    if let (Some(error), Some(copy)) = (&refused_file, &last_good) {
        tracing::error!(
            "the configuration is refused, and the last good one in {} is used: {error}",
            copy.path().display()
        );
    }
    // Applies to all threads started here: on a busy machine, the daemon's work must not wait. Budgets bound that work.
    become_favoured();
    // The socket before any thread: creating it changes the umask.
    let inherited =
        Socket::inherited().context("cannot use the socket that was passed").map_err(Failure::bad_request)?;
    let socket = match inherited {
        Some(socket) => socket,
        None => {
            // The command line overrides the environment; the system configuration does not.
            let configured = config.socket.as_ref().map(|socket| socket.0.as_path());
            let of_the_machine = path.as_ref().filter(|_| args.config.is_none()).map(|_| Path::new(SYSTEM_SOCKET));
            let configured = configured.or(of_the_machine);
            let configured = configured.filter(|_| args.config.is_some() || !has_socket_variable());
            let path = place(args.socket.as_deref().or(configured)).map_err(refused)?;
            Socket::make(&path, args.socket_mode).map_err(refused)?
        }
    };
    // From here on this process parses no files of other users.
    worker::start().context("cannot start the process that reads images").map_err(Failure::at_run_time)?;
    let (stop, stopped) = bounded(1);
    // Unbounded, but orders are few and handled within moments.
    let (orders, ordered) = unbounded();
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot catch signals");
    let mut signals = signals.map_err(Failure::at_run_time)?;
    let watch = move || {
        let mut asked_to_end = false;
        for signal in signals.forever() {
            if signal == SIGHUP {
                // A reload suggests that what made the worker fail may be repaired.
                ccsd_worker::forgive();
                let _ = orders.send(Order::Reload);
                continue;
            }
            // A second signal ends the daemon at once.
            if asked_to_end {
                Exit::Status(Exit::shell_status(signal)).leave();
            }
            asked_to_end = true;
            let _ = orders.send(Order::Stop);
            let _ = stop.try_send(());
        }
    };
    let thread = std::thread::Builder::new().name("ccsd-signals".to_owned()).spawn(watch);
    thread.context("cannot start a thread").map_err(Failure::at_run_time)?;
    let bytes_of_user = config.sessions.memory_of_user.0;
    let arguments = config.sessions.arguments;
    let paranoid_users = config.sessions.paranoid_users;
    let limits =
        SessionLimits { grace: args.grace, bytes_of_user, arguments, paranoid_users, ..SessionLimits::default() };
    let supervisor = Supervisor::for_this_process();
    let service = Service::new(socket, limits, supervisor.clone()).map_err(Failure::at_run_time)?;
    let file = ConfigFile { path, last_good, refused: refused_file };
    let upkeep =
        Upkeep::start(&config, file, service.sessions().clone(), supervisor.clone()).map_err(|error| match error {
            UpkeepError::StateDir(error) => Failure::bad_request(anyhow!("{error}")),
            error => Failure::at_run_time(error),
        })?;
    let service = service.with_upkeep(upkeep.clone());
    let keep = supervisor.spawn("ccsd-upkeep", move |heart| upkeep.run(config, &ordered, heart));
    let keep = keep.context("cannot start a thread").map_err(Failure::at_run_time)?;
    service.run(&stopped).map_err(Failure::at_run_time)?;
    // It was told to end at the same time, and takes no longer than the service.
    let _ = keep.join();
    Ok(Exit::SUCCESS)
}

/// Path of the configuration. The system's applies only to the system's daemon: run by root, or by systemd at the usual
/// path.
fn config_path(args: &RunArgs) -> Option<PathBuf> {
    if args.config.is_some() {
        return args.config.clone();
    }
    let by_systemd = std::env::var_os("STATE_DIRECTORY").is_some();
    let of_the_machine = args.socket.is_none() && !has_socket_variable() && (geteuid().is_root() || by_systemd);
    (of_the_machine || args.check_config).then(|| PathBuf::from(DEFAULT_PATH))
}

fn has_socket_variable() -> bool {
    std::env::var_os(SOCKET_VARIABLE).is_some_and(|path| !path.is_empty())
}

fn begin_to_log() -> Result<(), Failure> {
    let journal = is_journal().then(tracing_journald::layer).and_then(Result::ok);
    let plain = journal.is_none().then(|| {
        tracing_subscriber::fmt::layer().with_writer(|| LogLines(stderr())).with_ansi(false).with_target(false)
    });
    let level = std::env::var(LOG_VARIABLE).ok().and_then(|level| level.parse().ok()).unwrap_or(LevelFilter::INFO);
    let log = tracing_subscriber::registry().with(level).with(journal).with(plain);
    tracing::subscriber::set_global_default(log).context("cannot begin to log").map_err(Failure::at_run_time)
}

/// Lines of the log: names of files and processes in them are safe to print, and make no lines of their own.
struct LogLines<W>(W);

impl<W: Write> Write for LogLines<W> {
    /// The logger writes a line at once.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let (text, end) = text.strip_suffix('\n').map_or((&*text, ""), |text| (text, "\n"));
        self.0.write_all(format!("{}{end}", sanitise(text)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Whether standard error is the journal, by device and inode; see systemd.exec(5).
fn is_journal() -> bool {
    let Some(stream) = std::env::var("JOURNAL_STREAM").ok() else { return false };
    let Ok(meta) = fstat(stderr().as_fd()) else { return false };
    stream == format!("{}:{}", meta.st_dev, meta.st_ino)
}

/// The text already names its cause; a chain would repeat it.
fn refused(error: SocketError) -> Failure {
    let status = if matches!(error, SocketError::Io { .. }) { 1 } else { 2 };
    Failure { status, error: anyhow!("{error}") }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_name_makes_no_line_of_its_own() {
        let mut lines = LogLines(Vec::new());
        lines.write_all(b"INFO /na\nme\x1b[2J\xff is left alone\n").unwrap();
        assert_eq!(String::from_utf8(lines.0).unwrap(), "INFO /na\\u{a}me\\u{1b}[2J\\u{fffd} is left alone\n");
    }
}
