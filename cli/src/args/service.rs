//! Arguments of the commands that have to do with a daemon.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};

use super::report::TopViewArgs;
use super::values::rows;
use super::watch::{WATCHES_EXAMPLES, WatchesArgs};
use crate::duration;
use crate::source::Source;

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
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct DaemonArgs {
    /// What to do; without it, to run.
    #[command(subcommand)]
    pub command: Option<DaemonCommand>,
    #[command(flatten)]
    pub run: RunArgs,
}

/// What to do with a daemon.
#[derive(Debug, Subcommand)]
pub enum DaemonCommand {
    /// Run a daemon (also `ccsd daemon` alone)
    ///
    /// Runs sessions for any number of clients, and the watches of its configuration, until SIGTERM or SIGINT. Then all
    /// sessions end, and their readers get what is due to them, within five seconds.
    #[command(after_long_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// List its sessions and watches
    ///
    /// Lists the sessions that this user may see, those that run and the last ones that have ended, and the watches.
    #[command(after_long_help = STATUS_EXAMPLES)]
    Status(StatusArgs),
    /// End sessions
    ///
    /// Ends sessions. What they have collected stays for a while.
    #[command(after_long_help = STOP_EXAMPLES)]
    Stop(StopArgs),
    /// Save the profile of a session
    ///
    /// Writes the profile of a session up to now into a file. This process writes it, not the daemon.
    #[command(after_long_help = SAVE_EXAMPLES)]
    Save(SaveArgs),
    /// List what watches have stored
    ///
    /// Lists the watches of /etc/ccsd/ccsd.toml, and what they have stored since when.
    #[command(after_long_help = WATCHES_EXAMPLES)]
    Watches(WatchesArgs),
    /// Print metrics for Prometheus
    ///
    /// Prints the metrics of the daemon in the text format of Prometheus. `metrics_file` of its configuration writes the
    /// same for the textfile collector of node_exporter.
    #[command(after_long_help = METRICS_EXAMPLES)]
    Metrics(MetricsArgs),
}

/// Arguments of `ccsd daemon run`.
#[derive(Debug, Args)]
pub struct RunArgs {
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
  ccsd daemon                              run one for this user's programs
  ccsd daemon status                       its sessions and watches
  ccsd daemon stop 3                       end session 3";

pub const RUN_EXAMPLES: &str = "\
Examples:
  ccsd daemon run                          for this user's own programs
  sudo ccsd daemon run                     for the machine
  ccsd daemon run --config watches.toml --check-config
  ccsd daemon run --socket /tmp/test.sock &
  ccsd daemon status --socket /tmp/test.sock";

/// Arguments of `ccsd daemon metrics`.
#[derive(Debug, Args)]
pub struct MetricsArgs {
    #[command(flatten)]
    pub socket: SocketArgs,
}

pub const METRICS_EXAMPLES: &str = "\
Examples:
  ccsd daemon metrics
  ccsd daemon metrics | grep ccsd_watch_samples_total";

/// Arguments of `ccsd daemon status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Print JSON: one document with a list
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub socket: SocketArgs,
}

pub const STATUS_EXAMPLES: &str = "\
Examples:
  ccsd daemon status
  ccsd daemon status --json | jq -r '.sessions[] | select(.ended == null) | .id'";

/// Arguments of `ccsd daemon stop`.
#[derive(Debug, Args)]
pub struct StopArgs {
    /// Sessions, by number or as session:ID, or pid:PID for the one on a process
    #[arg(required = true, value_name = "SOURCE", value_parser = Source::parser())]
    pub sessions: Vec<Source>,
    #[command(flatten)]
    pub socket: SocketArgs,
}

pub const STOP_EXAMPLES: &str = "\
Examples:
  ccsd daemon stop 3
  ccsd daemon stop pid:1234                the session on that process
  ccsd report session:3                    what it has collected is there";

/// Arguments of `ccsd daemon save`.
#[derive(Debug, Args)]
pub struct SaveArgs {
    /// The session, by number or as session:ID, or pid:PID for the latest on a process
    #[arg(value_name = "SOURCE", value_parser = Source::parser())]
    pub session: Source,
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
  ccsd daemon save 3 -o now.ccsd           up to now; the session goes on
  ccsd report --graph now.ccsd
  ccsd daemon save 3 -o - | ssh elsewhere 'cat > now.ccsd'";

/// Arguments of `ccsd top`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("lines").args(["plain", "json"]).multiple(true))]
pub struct TopArgs {
    /// A file, session:ID, pid:PID or watch:NAME, or the name of a process or watch
    ///
    /// A process that no session is on is attached to for as long as this runs. Of a watch, the segment that is written is
    /// shown, and then the next. A number or name that may mean several things is refused, and the answer lists them.
    #[arg(value_name = "SOURCE", value_parser = Source::parser())]
    pub source: Source,
    #[command(flatten)]
    pub view: TopViewArgs,
    /// Print the top rows as text, at once and then with every update, about once a second
    ///
    /// On a terminal they are always in the same place; else one table follows the other.
    #[arg(long)]
    pub plain: bool,
    /// Print the top rows as JSON, a line with every update
    #[arg(long)]
    pub json: bool,
    /// With --plain or --json: rows each time; 0 for all
    #[arg(short = 'n', long, value_name = "N", default_value = "15", value_parser = rows, requires = "lines",
        allow_negative_numbers = true)]
    pub limit: usize,
    /// With --plain or --json: the last interval only, instead of everything up to now
    #[arg(long, requires = "lines")]
    pub interval: bool,
    /// With --plain or --json: stop after this time, as in 500ms, 10, 1.5s, 2m
    #[arg(short, long, value_name = "TIME", value_parser = duration::parse, requires = "lines", allow_hyphen_values = true)]
    pub duration: Option<Duration>,
    /// Attach to the process even if a session is on it
    #[arg(long)]
    pub attach: bool,
    /// Show names of C++ and Rust with all parameters, template arguments and namespaces
    #[arg(long)]
    pub full_names: bool,
    #[command(flatten)]
    pub by: ByArgs,
}

pub const TOP_EXAMPLES: &str = "\
Examples:
  ccsd top nginx                           a process; q ends, ? lists all keys
  ccsd top session:3                       a session of the daemon
  ccsd top watch:nginx                     a watch of the service
  ccsd top profile.ccsd                    a file, also while it is written
  ccsd top --tree pid:1234                 begin with the tree of calls
  ccsd top --plain --interval redis-server
  ccsd top --json session:3 | jq -r '.rows[0].name'";
