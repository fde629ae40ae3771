//! Arguments of `ccsd diff`.

use std::path::PathBuf;

use ccsd_profile::query::Pattern;
use clap::Args;

use super::socket::SocketArgs;
use super::stored::StoredArgs;
use crate::functions;
use crate::query::{QueryArgs, percentage};
use crate::source::ProfileSource;
use crate::times::When;
use crate::values::rows;

/// Arguments of `ccsd diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The profile before and the profile after; or one profile, with two times by --against and --since
    #[arg(value_name = "SOURCE", num_args = 1..=2, value_parser = ProfileSource::parser(), conflicts_with_all = ["watch", "before"],
        required_unless_present_any = ["watch", "before"])]
    pub sources: Vec<ProfileSource>,
    /// Several runs before, to compare with those of --after
    ///
    /// A change must then exceed the differences between runs of one side. Weights are means of the runs; shares are of all
    /// runs of a side. Two or three runs show only large changes; five are better.
    #[arg(long, value_name = "SOURCE", num_args = 1.., value_parser = ProfileSource::parser(), requires = "after", conflicts_with_all = ["watch", "against", "since", "until"])]
    pub before: Vec<ProfileSource>,
    /// Several runs after
    #[arg(long, value_name = "SOURCE", num_args = 1.., value_parser = ProfileSource::parser(), requires = "before", conflicts_with_all = ["sources", "watch", "against", "since", "until"])]
    pub after: Vec<ProfileSource>,
    #[command(flatten)]
    pub stored: StoredArgs,
    /// The earlier time to compare with, as in -25h..-24h or, in a file, +0..+10s
    #[arg(long, value_name = "TIME..TIME", allow_hyphen_values = true, help_heading = "Time")]
    pub against: Option<When>,
    /// Show a tree of calls from the root down, the largest changes first
    #[arg(long, conflicts_with_all = ["function", "significant", "inherited"])]
    pub tree: bool,
    /// Compare weights instead of shares: for runs that did the same work
    #[arg(long)]
    pub absolute: bool,
    /// Compare weights per second of wall time: for watches whose times differ in length
    ///
    /// Time without stored samples counts as idle. For CPU time in nanoseconds, the unit s/s is the number of CPUs in use.
    #[arg(long, conflicts_with_all = ["absolute", "svg", "tree"])]
    pub rate: bool,
    /// Write a flame graph (SVG) of the second profile, coloured by its change
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tree", "json", "function", "significant"])]
    pub svg: Option<PathBuf>,
    /// Overwrite any existing file
    #[arg(long, requires = "svg")]
    pub force: bool,
    /// Order by the change of total (inherited) time instead of self time
    #[arg(long, visible_alias = "total")]
    pub inherited: bool,
    /// Show only significant changes
    ///
    /// At most 5% of them on average are due to chance (false discovery rate over all functions, separately for self and
    /// total time). The tests are Fisher's exact test for sampling and, with several runs a side, Welch's t test for the
    /// differences between runs. With one run a side, those differences are not known.
    #[arg(long)]
    pub significant: bool,
    /// Exit with status 3 if something grew significantly by more than PERCENT points
    ///
    /// For any function (or what --by names), the share of self or total time must grow by more than PERCENT points,
    /// significantly. With --absolute, its weight must grow by more than PERCENT of the total before. --function limits the
    /// functions. Standard error names them. A profile without samples, or one that is cut short or damaged, is
    /// refused, with status 2.
    #[arg(long, value_name = "PERCENT", value_parser = percentage, conflicts_with = "svg")]
    pub fail_above: Option<f64>,
    /// Only these functions; PATTERN is as for --only
    #[arg(long, value_name = "PATTERN", value_parser = functions::parse)]
    pub function: Option<Pattern>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Rows at most; 0 for all [default: 40 on a terminal, else all]
    #[arg(short = 'n', long, value_name = "N", value_parser = rows, allow_negative_numbers = true)]
    pub limit: Option<usize>,
    #[command(flatten)]
    pub query: QueryArgs,
    #[command(flatten)]
    pub socket: SocketArgs,
}

pub const DIFF_EXAMPLES: &str = "\
Examples:
  ccsd diff before.ccsd after.ccsd
  ccsd diff --watch nginx --since -1h --against -25h..-24h   now and yesterday
  ccsd diff --significant --total before.ccsd after.ccsd
  ccsd diff --tree --min 2 before.ccsd after.ccsd
  ccsd diff --absolute --by module before.ccsd after.ccsd    for the same work
  ccsd diff --rate --watch all --since -10m --against yesterday..today
  ccsd diff --svg diff.svg before.ccsd after.ccsd
  ccsd diff --before a?.ccsd --after b?.ccsd                 several runs each
  ccsd diff --fail-above 5% --before old/* --after new/*     for CI
  ccsd diff --against +0..+10s --since +10s profile.ccsd     times of one run";

impl DiffArgs {
    /// Whether weights are compared, not shares.
    pub fn compares_weights(&self) -> bool {
        self.absolute || self.rate
    }
}
