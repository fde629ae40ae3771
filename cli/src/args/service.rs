//! Arguments of the commands that have to do with a daemon.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};

use super::values::{id, rows};
use crate::duration;

/// Where the daemon is.
#[derive(Debug, Default, Args)]
pub struct SocketArgs {
    /// The daemon's socket [default: $CCSD_SOCKET, else that of the user, else that of the machine]
    ///
    /// Without this and CCSD_SOCKET, a daemon is looked for at $XDG_RUNTIME_DIR/ccsd/ccsd.sock and at /run/ccsd/ccsd.sock.
    /// Wherever it is, ccsd asks only a daemon of your own, of root, or of the service's user ccsd.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// Who collects.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("by").multiple(false))]
pub struct ByArgs {
    #[command(flatten)]
    pub socket: SocketArgs,
    /// Let a daemon collect, or fail [default: if there is one that this user may use]
    #[arg(long, group = "by")]
    pub daemon: bool,
    /// Collect in this process, whether or not there is a daemon
    #[arg(long, group = "by", conflicts_with = "socket")]
    pub no_daemon: bool,
}

/// Arguments of `ccsd daemon`.
#[derive(Debug, Args)]
pub struct DaemonArgs {
    /// Where to listen [default: $CCSD_SOCKET, else /run/ccsd/ccsd.sock for root, $XDG_RUNTIME_DIR/ccsd/ccsd.sock else]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The configuration [default: /etc/ccsd/ccsd.toml for the daemon of the machine, else none]
    ///
    /// It says what to watch, how long to keep what, and what the daemon may use. SIGHUP makes it read the file anew; one
    /// with a mistake changes nothing.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Only check the configuration
    #[arg(long)]
    pub check_config: bool,
    /// Who may open the socket, in octal [default: 660 with group ccsd for root where that group exists, else 600]
    ///
    /// With 666 every user may connect. Those who are neither root nor members of group ccsd may profile only what they
    /// could trace, and see no sessions but their own.
    #[arg(long, value_name = "MODE", value_parser = mode)]
    pub socket_mode: Option<u32>,
    /// How long a session goes on whose client has gone without a word
    ///
    /// Its profile is kept for a while, like that of every session that has ended.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "5s")]
    pub grace: Duration,
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "not a mode in octal, as in 660".to_owned())
}

pub const DAEMON_EXAMPLES: &str = "\
Examples:
  ccsd daemon                              for this user's own programs
  sudo ccsd daemon                         for the machine
  ccsd daemon --config watches.toml --check-config
  ccsd daemon --socket /tmp/test.sock &
  ccsd sessions --socket /tmp/test.sock";

/// Arguments of `ccsd metrics`.
#[derive(Debug, Args)]
pub struct MetricsArgs {
    #[command(flatten)]
    pub socket: SocketArgs,
}

pub const METRICS_EXAMPLES: &str = "\
Examples:
  ccsd metrics
  ccsd metrics | grep ccsd_watch_samples_total";

/// Arguments of `ccsd sessions`.
#[derive(Debug, Args)]
pub struct SessionsArgs {
    /// Print JSON: one document with a list
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub socket: SocketArgs,
}

pub const SESSIONS_EXAMPLES: &str = "\
Examples:
  ccsd sessions
  ccsd sessions --json | jq -r '.sessions[] | select(.ended == null) | .id'";

/// Arguments of `ccsd stop`.
#[derive(Debug, Args)]
pub struct StopArgs {
    /// Numbers of sessions, as `ccsd sessions` lists them, or processes that they are on
    #[arg(required = true, value_name = "ID|PID", value_parser = id)]
    pub sessions: Vec<u32>,
    #[command(flatten)]
    pub socket: SocketArgs,
}

pub const STOP_EXAMPLES: &str = "\
Examples:
  ccsd stop 3
  ccsd report 3                            what it has collected is there";

/// Arguments of `ccsd save`.
#[derive(Debug, Args)]
pub struct SaveArgs {
    /// Number of the session, or a process that one is on
    #[arg(value_name = "ID|PID", value_parser = id)]
    pub session: u32,
    /// The profile file; - for standard output
    ///
    /// An older profile of this name is replaced, any other file is not.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    #[command(flatten)]
    pub socket: SocketArgs,
}

pub const SAVE_EXAMPLES: &str = "\
Examples:
  ccsd save 3 -o now.ccsd                  up to now; the session goes on
  ccsd report --graph now.ccsd
  ccsd save 3 -o - | ssh elsewhere 'cat > now.ccsd'";

/// Arguments of `ccsd live`.
#[derive(Debug, Args)]
pub struct LiveArgs {
    /// Number of a daemon's session, a process, a profile file, or a watch of the service
    ///
    /// A number is a file if there is one of that name, else a session, else a process that a session is on. A name that is no
    /// file's is a watch's: of what that writes the latest segment is shown, and then the next.
    #[arg(value_name = "ID|PID|FILE|WATCH")]
    pub what: PathBuf,
    /// Attach to this process for as long as this runs
    #[arg(long)]
    pub attach: bool,
    /// Rows each time
    #[arg(short = 'n', long, value_name = "N", default_value = "15", value_parser = rows, allow_negative_numbers = true)]
    pub limit: usize,
    /// Of the last interval only, instead of everything up to now
    #[arg(long)]
    pub interval: bool,
    /// Stop after this time, as in 500ms, 10, 1.5s, 2m
    #[arg(short, long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub duration: Option<Duration>,
    /// Print JSON, a line each time
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub by: ByArgs,
}

pub const LIVE_EXAMPLES: &str = "\
Examples:
  ccsd live 3                              until the session ends or Ctrl-C
  ccsd live profile.ccsd                   a file that `record` is writing
  ccsd live --attach --interval $(pgrep -o nginx)
  ccsd live --json 3 | jq -r '.rows[0].name'";

/// Arguments of `ccsd top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Number of a daemon's session, a process, or a profile file
    ///
    /// A number is a file if there is one of that name, else a session, else a process that a session is on, else a
    /// process that is attached to for as long as this runs. A name that is no file's is that of a watch of the service.
    #[arg(value_name = "ID|PID|FILE|WATCH")]
    pub what: PathBuf,
    /// Show names of C++ and Rust with all parameters, template arguments and namespaces
    #[arg(long)]
    pub full_names: bool,
    #[command(flatten)]
    pub by: ByArgs,
}

pub const TOP_EXAMPLES: &str = "\
Examples:
  ccsd top $(pgrep -o nginx)               until q; the key ? tells all others
  ccsd top 3                               a session of the daemon
  ccsd top profile.ccsd                    a file, also while it is being written";
