//! Arguments of the commands that have to do with a daemon.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};

use super::collect::MachineArgs;
use super::report::TopViewArgs;
use super::socket::{ByArgs, SocketArgs};
use crate::duration;
use crate::source::ProfileSource;
use crate::times::When;
use crate::values::rows;

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
    /// Runs sessions for any number of clients, and the watches of its configuration. On SIGTERM or SIGINT all sessions end
    /// and send what they have to their clients, within five seconds.
    #[command(after_long_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// List sessions and watches
    ///
    /// Lists the running and the last finished sessions that this user may see, and the watches.
    #[command(after_long_help = STATUS_EXAMPLES)]
    Status(StatusArgs),
    /// End sessions
    ///
    /// Ends sessions. Their profiles stay available for a while.
    #[command(after_long_help = STOP_EXAMPLES)]
    Stop(StopArgs),
    /// Save the profile of a session
    ///
    /// Writes the profile of a session up to now into a file, with the rights of this user, not the daemon's.
    #[command(after_long_help = SAVE_EXAMPLES)]
    Save(SaveArgs),
    /// List watches and their stored profiles
    ///
    /// Lists the watches of /etc/ccsd/ccsd.toml, with size and time of their stored profiles.
    #[command(after_long_help = WATCHES_EXAMPLES)]
    Watches(WatchesArgs),
    /// Print metrics for Prometheus
    ///
    /// Prints the daemon's metrics in the text format of Prometheus. With `metrics_file` in its configuration the daemon
    /// writes them for the textfile collector of node_exporter.
    #[command(after_long_help = METRICS_EXAMPLES)]
    Metrics(MetricsArgs),
}

/// Arguments of `ccsd daemon run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Where to listen [default: $CCSD_SOCKET, else /run/ccsd/ccsd.sock for root, $XDG_RUNTIME_DIR/ccsd/ccsd.sock for others]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The configuration [default: /etc/ccsd/ccsd.toml for the daemon of the machine, else none]
    ///
    /// Names the watches, how long profiles are kept, and the daemon's limits. On SIGHUP the daemon reads the file again;
    /// a file with a mistake changes nothing.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check the configuration and exit
    #[arg(long)]
    pub check_config: bool,
    /// Who may open the socket, in octal [default: 660 with group ccsd for root where that group exists, else 600]
    ///
    /// With 666 every user may connect. Users other than root and members of group ccsd may profile only processes that
    /// they could trace, and see only their own sessions.
    #[arg(long, value_name = "MODE", value_parser = mode)]
    pub socket_mode: Option<u32>,
    /// Keep collecting this long after a client disconnects
    ///
    /// The profile stays available for a while, like that of every finished session.
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
    #[arg(required = true, value_name = "SOURCE", value_parser = ProfileSource::parser())]
    pub sessions: Vec<ProfileSource>,
    #[command(flatten)]
    pub socket: SocketArgs,
}

pub const STOP_EXAMPLES: &str = "\
Examples:
  ccsd daemon stop 3
  ccsd daemon stop pid:1234                the session on that process
  ccsd report session:3                    its profile is still there";

/// Arguments of `ccsd daemon save`.
#[derive(Debug, Args)]
pub struct SaveArgs {
    /// The session, by number or as session:ID, or pid:PID for the latest on a process
    #[arg(value_name = "SOURCE", value_parser = ProfileSource::parser())]
    pub session: ProfileSource,
    /// The profile file; - for standard output
    ///
    /// Replaces an older profile of this name, but no other file.
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

/// Arguments of `ccsd daemon watches`.
#[derive(Debug, Args)]
pub struct WatchesArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Show the CPU use from this time on [default: -1h]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub since: Option<When>,
    /// Show the CPU use up to this time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub until: Option<When>,
    /// Directory of the service's profiles [default: state_dir of /etc/ccsd/ccsd.toml, or /var/lib/ccsd]
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub state_dir: Option<PathBuf>,
    #[command(flatten)]
    pub socket: SocketArgs,
}

pub const WATCHES_EXAMPLES: &str = "\
Examples:
  ccsd daemon watches
  ccsd daemon watches --since 03:10 --until 03:12    which watch used the CPU
  ccsd daemon watches --json | jq '.watches[] | {name, bytes}'";

/// Arguments of `ccsd top`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("lines").args(["plain", "json"]).multiple(true))]
pub struct TopArgs {
    /// A file, session:ID, pid:PID or watch:NAME, or the name of a process or watch; the whole machine if left out
    ///
    /// A process without a session is attached to until top ends. A watch is followed from segment to segment. A number
    /// or name that could mean several things is refused, with a list of them.
    #[arg(conflicts_with_all = ["all", "unit", "cgroup", "container", "uid", "exclude"],
        value_name = "SOURCE", value_parser = ProfileSource::parser())]
    pub source: Option<ProfileSource>,
    #[command(flatten)]
    pub machine: MachineArgs,
    #[command(flatten)]
    pub view: TopViewArgs,
    /// Print the top rows as text, about once a second
    ///
    /// On a terminal each table replaces the last one.
    #[arg(long)]
    pub plain: bool,
    /// Print the top rows as JSON, one line about once a second
    #[arg(long)]
    pub json: bool,
    /// With --plain or --json: rows at most; 0 for all
    #[arg(short = 'n', long, value_name = "N", default_value = "15", value_parser = rows, requires = "lines",
        allow_negative_numbers = true)]
    pub limit: usize,
    /// With --plain or --json: only the last interval instead of everything so far
    #[arg(long, requires = "lines")]
    pub interval: bool,
    /// With --plain or --json: stop after this time, as in 500ms, 10, 1.5s, 2m
    #[arg(short, long, value_name = "TIME", value_parser = duration::parse, requires = "lines", allow_hyphen_values = true)]
    pub duration: Option<Duration>,
    /// Attach to the process even if it has a session
    #[arg(long, requires = "source")]
    pub attach: bool,
    /// Show C++ and Rust names with all parameters, template arguments and namespaces
    #[arg(long)]
    pub full_names: bool,
    #[command(flatten)]
    pub by: ByArgs,
}

pub const TOP_EXAMPLES: &str = "\
Examples:
  ccsd top nginx                           a process; q ends, ? lists all keys
  ccsd top                                 everything that runs on this machine
  ccsd top --unit nginx.service            all processes of a service
  ccsd top session:3                       a session of the daemon
  ccsd top watch:nginx                     a watch of the service
  ccsd top profile.ccsd                    a file, even while it grows
  ccsd top --tree pid:1234                 begin with the tree of calls
  ccsd top --plain --interval redis-server
  ccsd top --json session:3 | jq -r '.rows[0].name'";
