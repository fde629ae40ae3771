//! Arguments of `ccsd dump`.

use clap::Args;

use super::socket::ByArgs;
use crate::values::{ProcessName, lines, process};

/// Arguments of `ccsd dump`.
#[derive(Debug, Args)]
pub struct DumpArgs {
    /// Process ids, or names of processes
    ///
    /// NAME is the name of a process (as in `ps -o comm`) or of its executable. If several processes have it, they are
    /// listed.
    #[arg(required = true, value_name = "PID|NAME", value_parser = process)]
    pub processes: Vec<ProcessName>,
    /// Include descendants
    #[arg(short, long)]
    pub children: bool,
    /// Show every frame of every thread: do not fold recursion or group threads
    #[arg(long)]
    pub full: bool,
    /// Include kernel frames (root only, and only of threads that are not running)
    #[arg(short, long)]
    pub kernel: bool,
    /// Show whole names of functions, with all parameters and template arguments, as JSON does
    #[arg(long)]
    pub full_names: bool,
    /// Show how long each thread was stopped
    #[arg(long)]
    pub stats: bool,
    /// Lines of each stack at most; 0 for all [default: 100]
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
  ccsd dump --children $(pgrep -o make)    with its descendants
  ccsd dump -n 5 $(pgrep -o java)          the innermost and outermost frames
  ccsd dump --json 1234 | jq '.processes[].threads[].frames[0].function'

Exit status: 0 if all processes were dumped; 1 if some could not be read, or
gave no stack; 2 if none could be read: no such process, or not permitted.";
