//! Arguments of the commands that collect.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use ccsd_collector::EventChoice;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::service::ByArgs;
use super::values::{Frequency, ProcessName, frequency, memory, overhead, process};
use crate::duration;

fn event() -> impl TypedValueParser<Value = EventChoice> {
    PossibleValuesParser::new(["auto", "cycles", "cpu-clock+tsc", "cpu-clock", "tick"])
        .try_map(|text| text.parse::<EventChoice>())
}

/// How to collect.
#[derive(Debug, Args)]
pub struct CollectArgs {
    /// Samples per second of CPU time, or `max` for what the kernel takes
    ///
    /// Not a round number by default: a program that does something every millisecond would else be seen doing it always
    /// or never.
    #[arg(short = 'F', long = "frequency", value_name = "HZ", default_value = "999", value_parser = frequency, allow_negative_numbers = true)]
    pub frequency: Frequency,
    /// What sampling may cost, in percent of the program's CPU time, instead of a rate: 0.01 to 25
    ///
    /// What a sample costs the program is measured beforehand, on a thread of ccsd's own, and what it costs ccsd as it
    /// goes. The rate is what both together leave room for, 4999 at most, and follows when they change. The report says
    /// which rates that were.
    #[arg(long, value_name = "PERCENT", value_parser = overhead, allow_negative_numbers = true, conflicts_with = "frequency")]
    pub overhead: Option<f64>,
    /// Keep the rate, even where samples are lost because the machine does not keep up
    ///
    /// Else it is halved then, four times at most, and doubled again when nothing has been missing for ten seconds. Each
    /// change is said, and samples weigh what they stood for when they were taken.
    #[arg(long)]
    pub no_adapt: bool,
    /// The event that samples [default: the best there is]
    ///
    /// `cycles` counts hardware cycles and is missing in most virtual machines; `cpu-clock` is a timer that runs while
    /// the program runs; `cpu-clock+tsc` is the same and weighs every sample in cycles of the time stamp counter, too.
    /// `tick` samples when the scheduler's tick comes, whatever -F says (mostly 250 times a second): it comes anyway, so
    /// that it costs the target next to nothing, where a timer costs 15 to 20 us a sample. What runs in step with it is
    /// seen always or never. It needs root, or CAP_PERFMON with CAP_SYSLOG and a readable tracefs.
    #[arg(short, long, value_name = "EVENT", hide_default_value = true, default_value = "auto",
        value_parser = event())]
    pub event: EventChoice,
    /// The profile file [default: profile.ccsd]
    ///
    /// An older profile of this name is replaced, any other file is not. The file is written as the program runs: if
    /// ccsd is interrupted, what was written up to then is a valid profile. Files of other users are not
    /// written, and their symbolic links not followed, but for those of root.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write no file, only show the report
    #[arg(long, conflicts_with = "output")]
    pub no_output: bool,
    /// Stop collecting after this time, as in 500ms, 10, 1.5s, 2m
    ///
    /// The program goes on running.
    #[arg(short, long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub duration: Option<Duration>,
    /// Sample neither child processes nor threads that are started later
    #[arg(long)]
    pub no_inherit: bool,
    /// Sample CPUs instead of threads, and keep what is the program's
    ///
    /// For programs whose threads or processes live for a millisecond, which a timer that runs with each thread rarely
    /// meets. How much CPU time is in no sample is not known then. Needs root, CAP_PERFMON or kernel.perf_event_paranoid 0. What else runs meanwhile is sampled, too, and
    /// dropped, which costs it some 20 us each time.
    #[arg(long)]
    pub per_cpu: bool,
    /// What ccsd may have in memory for this, as in 256MiB
    ///
    /// It is divided among all tables by a fixed rule (collector/docs/memory.md), and hardly ever used up: 2 or 3% are usual.
    /// Where a table is full the profile becomes coarser: weights and totals stay, and every report says what was full. At
    /// least 16MiB.
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = memory)]
    pub memory: u64,
    /// Keep the target's arguments out of the profile: they may hold secrets
    ///
    /// Only the program's name is stored.
    #[arg(long)]
    pub no_args: bool,
    /// Sample the kernel, too, or fail [default: if permitted]
    #[arg(long, conflicts_with = "user")]
    pub kernel: bool,
    /// Sample user code only
    #[arg(long)]
    pub user: bool,
    /// Print the whole accounting: samples by what became of them, stacks, losses, cost, notes
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Show neither status line nor report
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    pub by: ByArgs,
}

/// Arguments of `ccsd record`.
#[derive(Debug, Args)]
pub struct RecordArgs {
    #[command(flatten)]
    pub collect: CollectArgs,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// Examples of `ccsd record --help`.
pub const RECORD_EXAMPLES: &str = "\
Examples:
  ccsd record -- xz -k big.tar
  ccsd record -F 4999 -o fast.ccsd -- ./short-program
  ccsd record --duration 30s -- ./server --port 8080
  ccsd record --no-inherit -- make -j8          # make itself, not the compilers

Then see more of it:
  ccsd report --graph
  ccsd report --lines --function compress";

/// Arguments of `ccsd attach`.
#[derive(Debug, Args)]
pub struct AttachArgs {
    #[command(flatten)]
    pub collect: CollectArgs,
    /// Process ids, or names of processes
    ///
    /// A name is that of the process (as `ps -o comm` shows it) or of its executable's file. It must be that of one process;
    /// where several have it, they are listed.
    #[arg(required = true, value_name = "PID|NAME", value_parser = process)]
    pub processes: Vec<ProcessName>,
    /// Leave the session to a daemon, and print its number
    ///
    /// It goes on until its processes end, the duration is over, or `ccsd daemon stop`.
    #[arg(long, conflicts_with_all = ["output", "no_output", "no_daemon"])]
    pub detach: bool,
}

/// Examples of `ccsd attach --help`.
pub const ATTACH_EXAMPLES: &str = "\
Examples:
  ccsd attach 1234                         until it ends, or Ctrl-C twice
  ccsd attach redis-server                 the one process of this name
  ccsd attach --duration 10 1234 1240
  ccsd attach --no-inherit $(pgrep -o nginx)
  ccsd attach --detach 1234                a daemon goes on with it";
