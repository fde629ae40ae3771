//! Arguments of `ccsd report`.

use ccsd_profile::query::Pattern;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Args, Command, FromArgMatches, ValueEnum};

use super::socket::SocketArgs;
use super::stored::StoredArgs;
use crate::functions;
use crate::query::QueryArgs;
use crate::source::ProfileSource;
use crate::values::{DEFAULT_FILE, rows};

/// What to show. Each has a flag of its name, too: see [`ViewArgs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum View {
    /// The most expensive chain of calls, then the program's own functions, then all others (default)
    Summary,
    /// Functions by self time, with confidence intervals
    Flat,
    /// Functions, each between its callers and its callees, as gprof shows them
    Graph,
    /// Calls from the root down
    Tree,
    /// Calls from the root down as a flame graph: the width of a call is its share
    Flame,
    /// From the running functions up to their callers
    BottomUp,
    /// The callers and the callees of a function (--function), each as a tree
    #[value(alias = "callers")]
    Butterfly,
    /// The most expensive chains of calls
    Hot,
    /// Source lines of each function with their total and self time
    Lines,
    /// Processes and their threads
    Threads,
    /// Functions over time
    Timeline,
    /// Cost-centre stacks as `<leaf,...,root> weight`
    Stacks,
    /// Cycles of mutual recursion
    Cycles,
    /// Size and cost of the profile itself: contexts, depths, memory
    Stats,
}

/// Which view: `--view graph`, or `--graph` for short.
#[derive(Clone, Copy, Debug, Default)]
pub struct ViewArgs {
    /// The view, if one is named.
    pub view: Option<View>,
}

/// The same for `ccsd top`, which has fewer views.
#[derive(Clone, Copy, Debug, Default)]
pub struct TopViewArgs {
    /// The view, if one is named.
    pub view: Option<View>,
}

/// The views of `ccsd top`.
const TOP_VIEWS: [View; 5] = [View::Flat, View::Tree, View::Butterfly, View::Threads, View::Flame];

const VIEW_HELP: &str = "Show a view by its name, as in --view graph; each has a flag of its own, too";

const VIEW_LONG_HELP: &str = "\
Show a view by its name, as in --view graph; each has a flag of its own, too

graph: callers stand above a function, callees below it. A caller's row has the function's time in calls from this caller; a \
callee's row has the callee's time in calls from the function, `self` in the callee and `child` below it. In mutual recursion an arc may have different weights at its two ends.

flame: -n sets the number of rows. Calls that are narrower than a column are not drawn; the last line counts them.

hot: -n sets the number of chains; the weight of hidden branches is shown beside the chain.

timeline: --sort total includes callees.

A function in parentheses is called again deeper in the stack.";

const VIEW_HEADING: &str = "View";
const VIEW_GROUP: &str = "which view";

/// Adds `--view VIEW`, and a flag for each view.
fn add_views(command: Command, views: &'static [View], long_help: &'static str) -> Command {
    let names = views.iter().filter_map(ValueEnum::to_possible_value);
    let parser = PossibleValuesParser::new(names).try_map(|name| View::from_str(&name, false));
    let view = Arg::new("view").long("view").value_name("VIEW").value_parser(parser);
    let view = view.hide_possible_values(true).help(VIEW_HELP).long_help(long_help);
    let flags = views.iter().map(|view| {
        let value = view.to_possible_value();
        let help = value.as_ref().and_then(PossibleValue::get_help).map_or_else(String::new, ToString::to_string);
        // top shows those of the function under the cursor.
        let help = if views.len() == TOP_VIEWS.len() { help.replace(" (--function)", "") } else { help };
        let flag = Arg::new(view.name()).long(view.name()).action(ArgAction::SetTrue).help(help);
        if *view == View::Butterfly { flag.alias("callers") } else { flag }
    });
    let arguments = flags.chain([view]).map(|argument| argument.group(VIEW_GROUP).help_heading(VIEW_HEADING));
    command.group(ArgGroup::new(VIEW_GROUP)).args(arguments.collect::<Vec<_>>())
}

fn chosen(matches: &ArgMatches, views: &'static [View]) -> Option<View> {
    let flag = || views.iter().find(|view| matches.get_flag(view.name()));
    matches.get_one("view").or_else(flag).copied()
}

/// Makes arguments of views, whose help differs.
macro_rules! view_arguments {
    ($type:ident, $views:expr, $help:expr) => {
        impl Args for $type {
            fn augment_args(command: Command) -> Command {
                add_views(command, $views, $help)
            }

            fn augment_args_for_update(command: Command) -> Command {
                $type::augment_args(command)
            }
        }

        impl FromArgMatches for $type {
            fn from_arg_matches(matches: &ArgMatches) -> Result<$type, clap::Error> {
                Ok($type { view: chosen(matches, $views) })
            }

            fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
                *self = $type::from_arg_matches(matches)?;
                Ok(())
            }
        }
    };
}

view_arguments!(ViewArgs, View::value_variants(), VIEW_LONG_HELP);
view_arguments!(TopViewArgs, &TOP_VIEWS, "Begin with a view by its name, as in --view tree; the keys 1 to 5 change it");

/// Arguments of `ccsd report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The profile: a file, session:ID, pid:PID or watch:NAME
    ///
    /// A file is a profile of ccsd, a recording of `perf record`, or text of `perf script`. session:3 is a session of the
    /// daemon, pid:123 your latest session, or root's, on a process, watch:nginx the stored profiles of a watch. A bare
    /// number that could mean several of these is refused.
    #[arg(value_name = "SOURCE", default_value = DEFAULT_FILE, value_parser = ProfileSource::parser(), conflicts_with = "watch")]
    pub source: ProfileSource,
    #[command(flatten)]
    pub view: ViewArgs,
    #[command(flatten)]
    pub stored: StoredArgs,
    /// Print the full accounting: samples, losses, stacks, cost, notes
    #[arg(short, long)]
    pub verbose: bool,
    /// Show the 95% confidence interval of each function's self time in the summary, too
    ///
    /// --flat, --lines and --cycles show it where there is room.
    #[arg(long)]
    pub intervals: bool,
    /// Print JSON: one document with the accounting and the view
    #[arg(long)]
    pub json: bool,
    /// Rows at most; 0 for all [default: 40 on a terminal, else all]
    #[arg(short = 'n', long, value_name = "N", value_parser = rows, allow_negative_numbers = true)]
    pub limit: Option<usize>,
    /// Only these functions (of --flat, --graph, --lines, --butterfly, --timeline)
    ///
    /// PATTERN is as for --only: a name, a part of one if there is none of that name, a glob (`mem*`), an expression
    /// (`/^mem/`), or `module:` or `file:` and a name.
    #[arg(long, value_name = "PATTERN", value_parser = functions::parse)]
    pub function: Option<Pattern>,
    /// Order by total (inherited) time instead of self time, like --sort total
    #[arg(long, visible_alias = "total", conflicts_with = "sort")]
    pub inherited: bool,
    #[command(flatten)]
    pub socket: SocketArgs,
    #[command(flatten)]
    pub query: QueryArgs,
}

/// Examples of `ccsd report --help`.
pub const REPORT_EXAMPLES: &str = "\
Examples:
  ccsd report                              where the time of profile.ccsd went
  ccsd report --flat                       all functions by their own time
  ccsd report --graph --function parse     its callers and callees
  ccsd report --hot                        the most expensive chains of calls
  ccsd report --tree --min 2               calls from the root down, 2% or more
  ccsd report --flame --focus parse        a flame graph of the time below parse
  ccsd report --butterfly --function parse
  ccsd report --timeline --by module       modules over time
  ccsd report perf.data                    a recording of `perf record`
  ccsd report --stacks old.ccsd | grep malloc
  ccsd report --graph 3                    session 3 of the daemon, up to now
  ccsd report --watch nginx --since 03:10 --until 03:12
  ccsd report --hide module:libc.so.6      count libc's time for its callers
  ccsd report --focus parse --by file      by source file, the time below parse
  ccsd report --since +10s --until +20s    what ran in the second ten seconds
  ccsd report --min 1 --sort total         functions of 1% or more
  ccsd report --json | jq -r '.flat.rows[] | [.self_weight, .name] | @tsv'";
