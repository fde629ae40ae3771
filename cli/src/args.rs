//! Arguments as they stand on the command line. What they mean is decided by the module of each command.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use ccsd_collector::Budget;
use clap::builder::PossibleValuesParser;
use clap::{ArgGroup, Args, Parser, Subcommand};

use crate::annotate::{self, AnnotateArgs};
use crate::duration;
use crate::export::{self, ExportArgs};
use crate::query::QueryArgs;
use crate::report::choice::View;
use crate::style::ColorChoice;

pub mod service;
pub mod watch;

use service::{
    ByArgs, DAEMON_EXAMPLES, DaemonArgs, LIVE_EXAMPLES, LiveArgs, METRICS_EXAMPLES, MetricsArgs, SAVE_EXAMPLES,
    SESSIONS_EXAMPLES, STOP_EXAMPLES, SaveArgs, SessionsArgs, SocketArgs, StopArgs, TOP_EXAMPLES, TopArgs,
};
use watch::{DIFF_EXAMPLES, DiffArgs, StoredArgs, WATCHES_EXAMPLES, WatchesArgs};

/// Where a profile goes, and where it is looked for, if no file is named.
pub const DEFAULT_FILE: &str = "profile.ccsd";

/// A sampling profiler for Linux whose profiles survive recursion
///
/// ccsd samples the call stacks of native programs and charges every sample to its cost-centre stack, in which recursion
/// is folded away. It needs no rebuild, never stops the program, and counts whatever it loses.
#[derive(Debug, Parser)]
#[command(name = "ccsd", version, max_term_width = 100, after_long_help = EXAMPLES)]
pub struct Cli {
    /// When to use colour
    #[arg(long, value_name = "WHEN", global = true, default_value = "auto", hide_short_help = true)]
    pub color: ColorChoice,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  ccsd record -- xz -k big.tar       run a program and see where its time goes
  ccsd attach $(pgrep -o postgres)   the same for one that runs; Ctrl-C twice ends it
  ccsd dump $(pgrep -o postgres)     what each of its threads is doing now
  ccsd report --graph                callers and callees, from profile.ccsd
  ccsd doctor                        what can be sampled here, and how to allow more

Exit status: that of the program for `record` (and the same signal, if one killed
it); else 0 if all went well, 1 if something failed on the way, 2 if the request
cannot be met. 126: the program cannot be executed. 127: it is not found.";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program and profile it
    ///
    /// Runs a program, samples its call stacks until it ends, leaves a profile and prints a short report.
    ///
    /// The program's input, output and exit status are its own: whatever ccsd prints goes to standard error, and ccsd ends as
    /// the program ended. On a terminal, Ctrl-C prints the stacks of all threads and the collection goes on; a second one
    /// within two seconds is passed on to the program and ends the collection. On SIGTERM, and on SIGINT without a terminal, in
    /// a pipeline or a script, it ends in order, with file and report; ccsd then waits for the program, unless it is
    /// signalled again.
    #[command(after_long_help = RECORD_EXAMPLES, override_usage = "ccsd record [OPTIONS] [--] PROGRAM [ARGS]...")]
    Record(RecordArgs),
    /// Profile running processes
    ///
    /// Samples the call stacks of processes that run already, until they end, the duration is over, or Ctrl-C is typed twice.
    ///
    /// All their threads are sampled and, unless --no-inherit is given, all their descendants, those that exist and those to
    /// come. Sampling never stops them. On a terminal, the first Ctrl-C prints the stacks of all threads, for which each is
    /// stopped for a moment (see `ccsd dump --help`); a second within two seconds, or q and Enter, ends the collection.
    #[command(after_long_help = ATTACH_EXAMPLES)]
    Attach(AttachArgs),
    /// Show what every thread of a process is doing now
    ///
    /// Prints the stacks of all threads of running processes, once, running or asleep.
    ///
    /// Of each thread: its name, its state, the kernel function it waits in, and its stack, innermost function first, with source
    /// lines and inlined functions where there is debug information. Each thread is stopped for a moment, far less than a
    /// millisecond; system calls and job control go on as if nothing had been. Where that is not possible (another program
    /// traces it, its system call cannot be taken up again), its stack is read without stopping it, as far as it goes, and the
    /// dump says so. Of processes that this user may not trace, a daemon is asked that may and permits it. Threads with the same
    /// stack are shown together, and recursion in deep stacks is folded: what is
    /// repeated is shown once, with how often it is there.
    #[command(after_long_help = DUMP_EXAMPLES)]
    Dump(DumpArgs),
    /// Show a profile
    ///
    /// Shows a profile that `record` or `attach` has written.
    ///
    /// Every output begins with what became of the samples and what collecting them cost, in lines that begin with `#`.
    /// Then it says what was asked. Percentages are of what is selected, by weight, which is everything unless --focus,
    /// --ignore, --since or --until leave something out; they come with their 95% confidence interval where there is room. On
    /// a terminal long tables are cut to --limit rows, with one row for the rest, and long names to its width; into a file or
    /// a pipe goes everything.
    #[command(after_long_help = REPORT_EXAMPLES)]
    Report(ReportArgs),
    /// Make a profile of a file of `perf record`
    ///
    /// Reads perf.data, recorded with `--call-graph dwarf` (stacks are unwound as ccsd unwinds its own) or `-g` (stacks are as
    /// the kernel found them, by frame pointers), and writes a profile for `report`, `top`, `diff` and `export`. Programs and
    /// libraries are read from where they were, if they are still the same.
    #[command(after_long_help = IMPORT_EXAMPLES)]
    Import(ImportArgs),
    /// Serve sessions to many clients
    ///
    /// Runs sessions for any number of clients, who come and go: `attach` and `record` let it collect where they may use it,
    /// and the sessions of `attach --detach` go on without anybody.
    ///
    /// It runs until SIGTERM or SIGINT; then all sessions end, and their readers get what is due to them, within five seconds.
    #[command(after_long_help = DAEMON_EXAMPLES)]
    Daemon(DaemonArgs),
    /// Look at a profile as it grows, on the whole screen
    ///
    /// Functions, the tree of calls, callers and callees, and threads, each brought up to date about once a second: filter as
    /// you type, unfold, compare with an earlier moment, take the stacks of all threads, save. The key ? tells all keys.
    #[command(after_long_help = TOP_EXAMPLES)]
    Top(TopArgs),
    /// Show a profile as it grows
    ///
    /// Prints the functions that take the most time, at once and then with every update, which come about once a second. On a
    /// terminal they are always in the same place; else one table follows the other.
    #[command(after_long_help = LIVE_EXAMPLES)]
    Live(LiveArgs),
    /// List the sessions of a daemon
    ///
    /// Lists the sessions of a daemon that this user may see: those that run, and the last ones that have ended.
    #[command(after_long_help = SESSIONS_EXAMPLES)]
    Sessions(SessionsArgs),
    /// End sessions of a daemon
    ///
    /// Ends sessions of a daemon. What they have collected stays for a while.
    #[command(after_long_help = STOP_EXAMPLES)]
    Stop(StopArgs),
    /// Save the profile of a daemon's session
    ///
    /// Writes the profile of a daemon's session up to now into a file. It is this process that writes it, not the daemon.
    #[command(after_long_help = SAVE_EXAMPLES)]
    Save(SaveArgs),
    /// Compare two profiles
    ///
    /// Compares two profiles, or two times of a watch, function by function.
    ///
    /// Functions are matched by name and file name of their image, so that two builds of a program can be compared. The
    /// change is that of the share in all samples; weights of profiles of different length do not compare.
    #[command(after_long_help = DIFF_EXAMPLES)]
    Diff(DiffArgs),
    /// List what the watches of the service have stored
    ///
    /// Lists the watches of /etc/ccsd/ccsd.toml that have stored profiles, and since when.
    #[command(after_long_help = WATCHES_EXAMPLES)]
    Watches(WatchesArgs),
    /// Show source with what each line cost
    ///
    /// Shows the source of a function with what each of its lines spent itself.
    ///
    /// Source files are read from where the debug information says that they were compiled, or from where --source-root and
    /// --substitute say. Where a file is not there, or was changed after the profile was begun, that is said. Lines are
    /// those of the innermost function of each sample; a profile keeps neither the lines of calls nor addresses.
    #[command(after_long_help = annotate::EXAMPLES)]
    Annotate(AnnotateArgs),
    /// Write a profile in another tool's format
    ///
    /// Writes a profile for pprof, KCachegrind, flame graphs, speedscope, Graphviz, gprof's readers, or as JSON or CSV.
    ///
    /// Totals, and the self and inherited time of every function, are those of `ccsd report` with the same options. Stacks
    /// are contexts: recursion is folded in them, and the files say so.
    #[command(after_long_help = export::EXAMPLES)]
    Export(ExportArgs),
    /// Print the metrics of the service
    ///
    /// Prints the metrics of a daemon in the text format of Prometheus. (`metrics_file` of its configuration writes the same
    /// for the textfile collector of node_exporter.)
    #[command(after_long_help = METRICS_EXAMPLES)]
    Metrics(MetricsArgs),
    /// Show what can be sampled here, and how to allow more
    ///
    /// Tries what this machine lets this user sample, and names the command that would allow more.
    ///
    /// Exit status 1 if nothing can be sampled at all.
    #[command(after_long_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// Print a completion script for a shell
    ///
    /// Prints a completion script.
    #[command(after_long_help = COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
    /// Print the manual page, or write all of them
    ///
    /// Prints ccsd(1), or writes the pages of ccsd and of its commands into a directory.
    #[command(after_long_help = MAN_EXAMPLES)]
    Man(ManArgs),
}

/// How to collect.
#[derive(Debug, Args)]
pub struct CollectArgs {
    /// Samples per second of CPU time, or `max` for what the kernel takes
    ///
    /// Not a round number by default: a program that does something every millisecond would else be seen doing it always
    /// or never.
    #[arg(short = 'F', long = "frequency", value_name = "HZ", default_value = "999", allow_negative_numbers = true)]
    pub frequency: String,
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
        value_parser = PossibleValuesParser::new(["auto", "cycles", "cpu-clock+tsc", "cpu-clock", "tick"]))]
    pub event: String,
    /// The profile file [default: profile.ccsd]
    ///
    /// An older profile of this name is replaced, any other file is not. The file is written as the program runs: if
    /// ccsd is interrupted, what was written up to then is a valid profile.
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
    /// meets. Needs root, CAP_PERFMON or kernel.perf_event_paranoid 0. What else runs meanwhile is sampled, too, and
    /// dropped, which costs it some 20 us each time.
    #[arg(long)]
    pub per_cpu: bool,
    /// What ccsd may have in memory for this, as in 256MiB
    ///
    /// It is divided among all tables by a fixed rule (see "Memory" in the README), and hardly ever used up: 2 or 3% are usual.
    /// Where a table is full the profile becomes coarser: weights and totals stay, and every report says what was full. At
    /// least 16MiB.
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = memory)]
    pub memory: u64,
    /// Sample the kernel, too, or fail [default: if permitted]
    #[arg(long, conflicts_with = "user")]
    pub kernel: bool,
    /// Sample user code only
    #[arg(long)]
    pub user: bool,
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

const RECORD_EXAMPLES: &str = "\
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
    /// Process ids
    #[arg(required = true, value_name = "PID", value_parser = pid)]
    pub pids: Vec<u32>,
    /// Leave the session to a daemon, and print its number
    ///
    /// It goes on until its processes end, the duration is over, or `ccsd stop`.
    #[arg(long, conflicts_with_all = ["output", "no_output", "no_daemon"])]
    pub detach: bool,
}

const ATTACH_EXAMPLES: &str = "\
Examples:
  ccsd attach 1234                         until it ends or Ctrl-C is typed twice
  ccsd attach --duration 10 1234 1240
  ccsd attach --no-inherit $(pgrep -o nginx)
  ccsd attach --detach 1234                a daemon goes on with it: see `ccsd live`, `ccsd report`";

/// Reads a size in bytes: `4096`, `512K`, `5MB`, `2GiB`. All units are powers of 1,024.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn size(text: &str) -> Result<u64, String> {
    let short = text.strip_suffix("iB").or_else(|| text.strip_suffix('B')).unwrap_or(text);
    let digits = short.strip_suffix(['k', 'K', 'm', 'M', 'g', 'G', 't', 'T']).unwrap_or(short);
    let unit = short.strip_prefix(digits).unwrap_or_default().to_ascii_uppercase();
    ccsd_daemon::config::bytes(&format!("{digits}{unit}{}", if unit.is_empty() { "" } else { "iB" }))
}

/// Reads what a session may have in memory.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn memory(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    match bytes >= Budget::MIN_MEMORY {
        true => Ok(bytes),
        false => Err(format!("{text} is too little: {} MiB is the least", Budget::MIN_MEMORY >> 20)),
    }
}

/// Reads a budget of overhead.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn overhead(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>();
    let percent = number.map_err(|_| "not a number of percent, as in 1 or 0.5".to_owned())?;
    ccsd_collector::Overhead::percent(percent).map_err(|error| error.to_string())?;
    Ok(percent)
}

/// Reads a process id.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn pid(text: &str) -> Result<u32, String> {
    // The kernel's pid_t is signed: what does not fit names no process, and 0 would mean ourselves.
    let pid = text.parse::<i32>().ok().filter(|&pid| pid > 0).map(i32::unsigned_abs);
    pid.ok_or_else(|| "not a process id; `pgrep NAME` finds those of a program".to_owned())
}

/// Arguments of `ccsd dump`.
#[derive(Debug, Args)]
pub struct DumpArgs {
    /// Process ids
    #[arg(required = true, value_name = "PID", value_parser = pid)]
    pub pids: Vec<u32>,
    /// Their descendants, too
    #[arg(short, long)]
    pub children: bool,
    /// Every frame and every thread for itself: neither fold recursion nor group threads
    #[arg(long)]
    pub full: bool,
    /// The kernel's part of the stacks, too (root only, and only of threads that do not run)
    #[arg(short, long)]
    pub kernel: bool,
    /// For how long each thread was stopped
    #[arg(long)]
    pub stats: bool,
    /// At most this many lines of each stack; 0 for all [default: 100]
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "full")]
    pub limit: Option<usize>,
    /// Print JSON: one document, with every frame of every thread
    #[arg(long, conflicts_with_all = ["full", "limit", "stats"])]
    pub json: bool,
    #[command(flatten)]
    pub by: ByArgs,
}

const DUMP_EXAMPLES: &str = "\
Examples:
  ccsd dump 1234
  ccsd dump --children $(pgrep -o make)    with all that it has started
  ccsd dump -n 5 $(pgrep -o java)          only the innermost and outermost frames
  ccsd dump --json 1234 | jq -r '.processes[].threads[] | [.tid, .state, .frames[0].function] | @tsv'

Exit status: 0 if there are stacks of all processes; 1 if some of them could not be looked at, or
there was no stack to be had; 2 if none could be: no such process, or not permitted.";

/// Arguments of `ccsd report`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which view"))]
pub struct ReportArgs {
    /// The profile, or the number of a daemon's session, or a process that one is on
    ///
    /// A number is a file if there is one of that name, else a session, else a process.
    #[arg(value_name = "FILE|ID|PID", default_value = DEFAULT_FILE, conflicts_with = "watch")]
    pub file: PathBuf,
    #[command(flatten)]
    pub stored: StoredArgs,
    /// Which view: flat, graph, stacks, lines, threads, cycles, stats, tree, bottom-up, butterfly, hot or timeline
    ///
    /// tree: calls from the root down; bottom-up: the functions that ran, each above its callers; butterfly: one --function, with its
    /// callers and its callees as trees; hot: the most expensive chains of calls (-n: how many), and what they leave aside
    /// where they fork; timeline: what each function spent when (--sort inherited: with what it called). A function in
    /// parentheses has been entered again, further in.
    #[arg(long = "view", value_name = "VIEW", group = "which view", hide_possible_values = true)]
    pub view: Option<View>,
    /// Functions by the time they spent themselves (default)
    #[arg(long, group = "which view")]
    pub flat: bool,
    /// Functions, each between its callers and its callees
    ///
    /// In the form of gprof. Above a function stand its callers with the part of its time that they account for, below it
    /// its callees with the part of theirs that it accounts for; `self` is what the callee of the arc spent itself, `child`
    /// what it spent in others. Where functions call each other in circles, an arc may weigh differently from its two ends.
    #[arg(long, group = "which view")]
    pub graph: bool,
    /// Cost-centre stacks as `<leaf,...,root> weight`
    ///
    /// Recursion is folded: a function in parentheses has been entered again since, further left.
    #[arg(long, group = "which view")]
    pub stacks: bool,
    /// Source lines on which each function spent its time
    #[arg(long, group = "which view")]
    pub lines: bool,
    /// Processes and their threads
    #[arg(long, group = "which view")]
    pub threads: bool,
    /// Cycles of mutual recursion that really happened
    #[arg(long, group = "which view")]
    pub cycles: bool,
    /// Size and cost of the profile itself: contexts, transitions, depths, memory
    #[arg(long, group = "which view")]
    pub stats: bool,
    /// Print JSON: one document with the accounting and the view
    #[arg(long)]
    pub json: bool,
    /// At most this many rows; 0 for all [default: 40 on a terminal, else all]
    #[arg(short = 'n', long, value_name = "N")]
    pub limit: Option<usize>,
    /// Only functions of this name (with --flat, --graph, --lines, --view butterfly)
    ///
    /// If there is none of exactly this name, those whose names contain it.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["stacks", "threads", "cycles", "stats"])]
    pub function: Option<String>,
    /// Order by inherited time instead of their own: --sort inherited
    #[arg(long, conflicts_with_all = ["graph", "stacks", "lines", "threads", "cycles", "stats", "sort"])]
    pub inherited: bool,
    #[command(flatten)]
    pub socket: SocketArgs,
    #[command(flatten)]
    pub query: QueryArgs,
}

const REPORT_EXAMPLES: &str = "\
Examples:
  ccsd report                              the flat profile of profile.ccsd
  ccsd report --graph --function parse     its callers and callees
  ccsd report --view hot                   the most expensive chains of calls
  ccsd report --view tree --min 2          calls from the root down, without what has less than 2%
  ccsd report --view butterfly --function parse
  ccsd report --view timeline --by module  what each module spent when
  ccsd report --stacks old.ccsd | grep malloc
  ccsd report --graph 3                    of the daemon's session 3, up to now
  ccsd report --watch nginx --since 03:10 --until 03:12
  ccsd report --hide module:libc.so.6      libc's time counts for its callers
  ccsd report --focus parse --by file      where the time below parse goes, by source file
  ccsd report --since +10s --until +20s    what ran in the second ten seconds
  ccsd report --min 1 --sort inherited     what has at least 1% of the time, and the rest as one
  ccsd report --json | jq -r '.flat.rows[] | [.self_weight, .name] | @tsv'";

/// Arguments of `ccsd import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The file that `perf record` wrote, or the text that `perf script` printed; - for such text from standard input
    #[arg(value_name = "FILE", default_value = "perf.data")]
    pub file: PathBuf,
    /// The profile file
    ///
    /// An older profile of this name is replaced, any other file is not.
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_FILE)]
    pub output: PathBuf,
}

const IMPORT_EXAMPLES: &str = "\
Examples:
  ccsd import                              perf.data, as from perf record --call-graph dwarf -- ./prog
  ccsd import old/perf.data -o old.ccsd && ccsd diff old.ccsd profile.ccsd
  ccsd import script.txt                   what was printed on another machine, as here:
  perf script --header --no-inline --max-stack 65535 -F comm,pid,tid,time,event,period,ip,sym,dso | ccsd import -";

/// Arguments of `ccsd doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const DOCTOR_EXAMPLES: &str = "\
Examples:
  ccsd doctor
  sudo ccsd doctor                         what root could do
  ccsd doctor --json | jq '.checks[] | select(.mark != \"ok\")'";

/// Arguments of `ccsd completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  ccsd completions bash > ~/.local/share/bash-completion/completions/ccsd
  ccsd completions zsh > ~/.zfunc/_ccsd
  ccsd completions fish > ~/.config/fish/completions/ccsd.fish";

/// Arguments of `ccsd man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Where to write all pages
    #[arg(value_name = "DIR")]
    pub directory: Option<PathBuf>,
}

const MAN_EXAMPLES: &str = "\
Examples:
  ccsd man | man -l -
  ccsd man ~/.local/share/man/man1";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("4096", 4096), ("4k", 4 << 10), ("60K", 60 << 10), ("5MB", 5 << 20), ("5MiB", 5 << 20), ("2GiB", 2 << 30)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "x", "-1", "MB", "1.5M", "5 apples", "99999999999999999999"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_follows_the_program_is_the_program_s() {
        for line in ["ccsd record -F 99 -- ls -l --color", "ccsd record -F 99 ls -l --color"] {
            let Command::Record(args) = parse(line).unwrap().command else { panic!() };
            assert_eq!(args.program, ["ls", "-l", "--color"]);
            assert_eq!(args.collect.frequency, "99");
        }
    }

    #[test]
    fn a_budget_is_in_percent() {
        for (text, percent) in [("1", 1.0), ("0.5%", 0.5), ("25", 25.0)] {
            let line = format!("ccsd record --overhead {text} -- ls");
            let Command::Record(args) = parse(&line).unwrap().command else { panic!() };
            assert_eq!(args.collect.overhead, Some(percent));
        }
    }

    #[test]
    fn a_negative_rate_is_a_rate() {
        let Command::Record(args) = parse("ccsd record -F -5 -- ls").unwrap().command else { panic!() };
        assert_eq!(args.collect.frequency, "-5");
    }

    #[test]
    fn wrong_arguments_exit_with_2() {
        for line in [
            "ccsd",
            "ccsd record",
            "ccsd attach",
            "ccsd attach 0",
            "ccsd attach -1",
            "ccsd attach 99999999999",
            "ccsd record -e nonsense -- ls",
            "ccsd record --duration -1 -- ls",
            "ccsd record --kernel --user -- ls",
            "ccsd record --overhead 0 -- ls",
            "ccsd record --overhead -1 -- ls",
            "ccsd record --overhead 26 -- ls",
            "ccsd record --overhead nan -- ls",
            "ccsd record --overhead much -- ls",
            "ccsd record --overhead 1 -F 99 -- ls",
            "ccsd dump",
            "ccsd dump 0",
            "ccsd dump --json --full 1",
            "ccsd report --flat --graph",
            "ccsd report -n -1",
            "ccsd report --stacks --function x",
            "ccsd report --flat --view graph",
            "ccsd report --min 101",
            "ccsd report --min -1",
            "ccsd report --sort nonsense",
            "ccsd report --inherited --sort self",
            "ccsd report --watch x a.ccsd",
            "ccsd diff",
            "ccsd diff a b c",
            "ccsd diff --watch x --against -1h a b",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
