//! Arguments of the commands that collect.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use ccsd_collector::EventChoice;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args};

use super::socket::ByArgs;
use crate::duration;
use crate::values::{Frequency, ProcessName, frequency, memory, overhead, process};

fn event() -> impl TypedValueParser<Value = EventChoice> {
    PossibleValuesParser::new(["auto", "cycles", "cpu-clock+tsc", "cpu-clock", "tick"])
        .try_map(|text| text.parse::<EventChoice>())
}

/// How to collect.
#[derive(Debug, Args)]
pub struct CollectArgs {
    /// Samples per second of CPU time, or `max` for the kernel's limit
    ///
    /// The default is not a round number: at 1000, samples would run in step with work that a program does every
    /// millisecond.
    #[arg(short = 'F', long = "frequency", visible_alias = "rate", value_name = "HZ", default_value = "999", value_parser = frequency, allow_negative_numbers = true)]
    pub frequency: Frequency,
    /// Choose the rate so that sampling costs at most PERCENT (0.01 to 25) of the target's CPU time
    ///
    /// ccsd first measures what a sample costs the target, on a thread of its own, and then what it costs ccsd. The rate
    /// follows both, up to 4999. The report shows the rates.
    #[arg(long, value_name = "PERCENT", value_parser = overhead, allow_negative_numbers = true, conflicts_with = "frequency")]
    pub overhead: Option<f64>,
    /// Never lower the rate under load
    ///
    /// By default the rate is halved, up to four times, while samples are lost, and doubled again after ten seconds
    /// without loss. The report shows each change; samples keep the weight of the rate they were taken at.
    #[arg(long)]
    pub no_adapt: bool,
    /// The event that triggers samples [default: the best available]
    ///
    /// `cycles` counts hardware cycles; most virtual machines lack it. `cpu-clock` is a timer that runs while the target
    /// runs. `cpu-clock+tsc` also weighs every sample in cycles of the time stamp counter. `tick` samples at the
    /// scheduler's tick, whatever -F says (mostly 250 times a second): the tick comes anyway, so it costs the target next
    /// to nothing, where a timer costs 15 to 20 us a sample. Work in step with the tick is sampled always or never. It
    /// needs root, or CAP_PERFMON with CAP_SYSLOG and a readable tracefs.
    #[arg(short, long, value_name = "EVENT", hide_default_value = true, default_value = "auto",
        value_parser = event())]
    pub event: EventChoice,
    /// The profile file [default: profile.ccsd]
    ///
    /// Replaces an older profile of this name, but no other file. The file grows as the target runs: if ccsd is
    /// interrupted, it is a valid profile up to that time. Files of other users are never written, and only symbolic
    /// links of this user and of root are followed.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Show the report and write no file
    #[arg(long, conflicts_with = "output")]
    pub no_output: bool,
    /// Open the profile in a browser at the end, as `ccsd open` does
    #[arg(long, conflicts_with = "no_output")]
    pub open: bool,
    /// Stop collecting after this time, as in 500ms, 10, 1.5s, 2m
    ///
    /// The target goes on running.
    #[arg(short, long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub duration: Option<Duration>,
    /// Do not sample child processes, nor threads that start later
    #[arg(long)]
    pub no_inherit: bool,
    /// Sample CPUs instead of threads, and keep the target's samples
    ///
    /// For targets whose threads or processes live for about a millisecond: a timer of each thread rarely samples them.
    /// CPU time without samples is not counted in this mode. Other programs are sampled, too, at some 20 us a sample, and
    /// those samples are dropped. Needs root, CAP_PERFMON or kernel.perf_event_paranoid 0.
    #[arg(long)]
    pub per_cpu: bool,
    /// Memory limit of ccsd, as in 256MiB; at least 16MiB
    ///
    /// Divided among all tables by a fixed rule (collector/docs/memory.md); usually 2 or 3% are used. When a table is
    /// full, the profile becomes coarser: weights and totals stay exact, and every report says which table was full.
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = memory)]
    pub memory: u64,
    /// Store the target's name without its arguments, which may hold secrets
    #[arg(long)]
    pub no_args: bool,
    /// Sample the kernel, too, and fail if that is not permitted [default: if permitted]
    #[arg(long, conflicts_with = "user")]
    pub kernel: bool,
    /// Sample user code only
    #[arg(long)]
    pub user: bool,
    /// Print the full accounting: samples, losses, stacks, cost, notes
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Print neither status line nor report
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    pub by: ByArgs,
}

/// Which of all processes of the machine.
#[derive(Clone, Debug, Default, Args)]
#[command(group = ArgGroup::new("of_machine").args(["all", "unit", "cgroup", "container", "uid"]).multiple(true))]
pub struct MachineArgs {
    /// Sample everything that runs on this machine
    ///
    /// All processes of all users, those that start later included, and threads of the kernel. Idle time is not counted;
    /// the report says how much there was. Needs root, CAP_PERFMON or kernel.perf_event_paranoid 0, or a daemon: root and
    /// members of group ccsd may ask it.
    #[arg(short, long, help_heading = "Machine")]
    pub all: bool,
    /// Sample the processes of a systemd unit, as in nginx.service or system.slice
    ///
    /// UNIT may contain * and ?. Like the options below, it may be given several times, and together with them: a process
    /// is sampled if any of them fits. Processes that join are sampled from then on, and no longer when they leave.
    #[arg(long, value_name = "UNIT", help_heading = "Machine")]
    pub unit: Vec<String>,
    /// Sample the processes of a control group and of all below it
    ///
    /// If the group does not exist yet, ccsd says so and waits for it.
    #[arg(long, value_name = "PATH", help_heading = "Machine")]
    pub cgroup: Vec<String>,
    /// Sample the processes of a container, by its id or the beginning of it, or by its name
    ///
    /// Containers of docker, podman, containerd, Kubernetes and LXC are known by their id in the path of the control group,
    /// those of systemd-nspawn by name. Root also finds those that docker, podman, and nerdctl have under a name, and
    /// Kubernetes as NAMESPACE/POD/CONTAINER: those that have it when the collection begins.
    #[arg(long, value_name = "ID", help_heading = "Machine")]
    pub container: Vec<String>,
    /// Sample the processes of a user, by name or number
    #[arg(long, value_name = "USER", help_heading = "Machine")]
    pub uid: Vec<String>,
    /// Leave out processes of this name; * and ? stand for any characters
    #[arg(long, value_name = "PATTERN", help_heading = "Machine", requires = "of_machine")]
    pub exclude: Vec<String>,
}

impl MachineArgs {
    /// Whether processes are selected among all, instead of being named.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.all || self.selects_groups()
    }

    /// Whether units, groups, containers or users are named.
    #[must_use]
    pub fn selects_groups(&self) -> bool {
        [&self.unit, &self.cgroup, &self.container, &self.uid].into_iter().any(|list| !list.is_empty())
    }
}

/// Arguments of `ccsd record`.
#[derive(Debug, Args)]
pub struct RecordArgs {
    #[command(flatten)]
    pub collect: CollectArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    /// The program and its arguments
    ///
    /// With --all it may be left out; with a program everything is sampled for as long as that runs.
    #[arg(required_unless_present_any = ["all", "unit", "cgroup", "container", "uid"], trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// Examples of `ccsd record --help`.
pub const RECORD_EXAMPLES: &str = "\
Examples:
  ccsd record -- xz -k big.tar
  ccsd record -F 4999 -o fast.ccsd -- ./short-program
  ccsd record --duration 30s -- ./server --port 8080
  ccsd record --no-inherit -- make -j8          # make itself, not the compilers
  ccsd record -a --duration 30s                 # everything that runs here
  ccsd record -a --exclude 'kworker*' -- make   # the same while make runs

Then see more of it:
  ccsd report --graph
  ccsd report --lines --function compress";

/// Arguments of `ccsd attach`.
#[derive(Debug, Args)]
pub struct AttachArgs {
    #[command(flatten)]
    pub collect: CollectArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Process ids, or names of processes
    ///
    /// NAME is the name of a process (as in `ps -o comm`) or of its executable. If several processes have it, they are
    /// listed.
    #[arg(required_unless_present_any = ["all", "unit", "cgroup", "container", "uid"],
        conflicts_with_all = ["all", "unit", "cgroup", "container", "uid", "exclude"], value_name = "PID|NAME", value_parser = process)]
    pub processes: Vec<ProcessName>,
    /// Leave the session to a daemon and print its number
    ///
    /// The session ends with its processes, after --duration, or by `ccsd daemon stop`.
    #[arg(long, conflicts_with_all = ["output", "no_output", "no_daemon", "open"])]
    pub detach: bool,
}

/// Examples of `ccsd attach --help`.
pub const ATTACH_EXAMPLES: &str = "\
Examples:
  ccsd attach 1234                         until it ends, or Ctrl-C twice
  ccsd attach redis-server                 the one process of this name
  ccsd attach --duration 10 1234 1240
  ccsd attach --no-inherit $(pgrep -o nginx)
  ccsd attach --unit nginx.service         all processes of a service
  ccsd attach --container 4f1c2d3e --duration 10s
  ccsd attach --detach 1234                a daemon continues it";
