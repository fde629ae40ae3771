//! Arguments of `ccsd dump`.

use clap::Args;

use super::service::ByArgs;
use super::values::{ProcessName, lines, process};

/// Arguments of `ccsd dump`.
#[derive(Debug, Args)]
pub struct DumpArgs {
    /// Process ids, or names of processes
    ///
    /// A name is that of the process (as `ps -o comm` shows it) or of its executable's file. It must be that of one process;
    /// where several have it, they are listed.
    #[arg(required = true, value_name = "PID|NAME", value_parser = process)]
    pub processes: Vec<ProcessName>,
    /// Their descendants, too
    #[arg(short, long)]
    pub children: bool,
    /// Every frame and every thread for itself: neither fold recursion nor group threads
    #[arg(long)]
    pub full: bool,
    /// The kernel's part of the stacks, too (root only, and only of threads that do not run)
    #[arg(short, long)]
    pub kernel: bool,
    /// Names of functions whole, with all parameters and template arguments, as JSON always has them
    #[arg(long)]
    pub full_names: bool,
    /// For how long each thread was stopped
    #[arg(long)]
    pub stats: bool,
    /// At most this many lines of each stack; 0 for all [default: 100]
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "full", value_parser = lines, allow_negative_numbers = true)]
    pub limit: Option<u32>,
    /// Print JSON: one document, with every frame of every thread
    #[arg(long, conflicts_with_all = ["full", "limit", "stats"])]
    pub json: bool,
    #[command(flatten)]
    pub by: ByArgs,
}

/// Examples of `ccsd dump --help`.
pub const DUMP_EXAMPLES: &str = "\
Examples:
  ccsd dump 1234
  ccsd dump redis-server                   the one process of this name
  ccsd dump --children $(pgrep -o make)    with all that it has started
  ccsd dump -n 5 $(pgrep -o java)          the innermost and outermost frames
  ccsd dump --json 1234 | jq '.processes[].threads[].frames[0].function'

Exit status: 0 if there are stacks of all processes; 1 if some of them could not
be looked at, or there was no stack to be had; 2 if none could be: no such
process, or not permitted.";
