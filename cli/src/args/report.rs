//! Arguments of `ccsd report`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::service::SocketArgs;
use super::values::{DEFAULT_FILE, rows};
use super::watch::StoredArgs;
use crate::query::QueryArgs;

/// What to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum View {
    /// Functions by the time they spent themselves
    Flat,
    /// Functions, each between its callers and its callees
    Graph,
    /// Cost-centre stacks
    Stacks,
    /// Source lines within functions
    Lines,
    /// Processes and their threads
    Threads,
    /// Cycles of mutual recursion
    Cycles,
    /// Size and cost of the profile itself
    Stats,
    /// Calls from the root down
    Tree,
    /// From the functions that ran up to their callers
    BottomUp,
    /// One function with its callers and callees, each as a tree
    #[value(alias = "callers")]
    Butterfly,
    /// The most expensive chains of calls
    Hot,
    /// Functions over time
    Timeline,
}

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
    #[arg(short = 'n', long, value_name = "N", value_parser = rows, allow_negative_numbers = true)]
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

/// Examples of `ccsd report --help`.
pub const REPORT_EXAMPLES: &str = "\
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
