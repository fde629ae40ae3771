//! Arguments of `ccsd export`.

use std::path::PathBuf;

use ccsd_profile::export::{DEFAULT_MAX_BYTES, Format};
use clap::Args;

use super::socket::SocketArgs;
use super::stored::StoredArgs;
use crate::query::QueryArgs;
use crate::source::ProfileSource;
use crate::values::{self, DEFAULT_FILE};

/// Arguments of `ccsd export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The format
    ///
    /// html: one page with flame graph, functions, callers and callees, call graph, hot path, timeline and source
    /// (profile.html#view=graph opens with a view); pprof: for `go tool pprof`; callgrind: KCachegrind,
    /// callgrind_annotate; folded: one line a stack, for flamegraph.pl and its like; svg: a flame graph; speedscope:
    /// speedscope.app; firefox: profiler.firefox.com; dot: Graphviz; gprof: its two tables; json: all of it; csv: the
    /// flat profile.
    #[arg(value_name = "FORMAT", value_parser = format())]
    pub format: Format,
    /// The profile: a file, session:ID, pid:PID or watch:NAME
    #[arg(value_name = "SOURCE", default_value = DEFAULT_FILE, value_parser = ProfileSource::parser(), conflicts_with = "watch")]
    pub source: ProfileSource,
    /// Compare two profiles: html shows how the second differs from the first
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], value_parser = ProfileSource::parser(),
        conflicts_with_all = ["source", "watch", "since", "until"])]
    pub diff: Vec<ProfileSource>,
    #[command(flatten)]
    pub page: PageArgs,
    #[command(flatten)]
    pub stored: StoredArgs,
    /// Where to write; - for standard output [default: -]
    ///
    /// The file appears when it is complete. An existing file that ccsd did not export is overwritten only with --force, and
    /// so are exports that do not say that they are ccsd's: gprof, and folded with --no-comments.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Leave the accounting out of folded and csv, and print it on standard error
    ///
    /// Neither format has comments, so these lines are stacks or functions that begin with `#` and have no weight. All other
    /// formats have a place for the accounting.
    #[arg(long)]
    pub no_comments: bool,
    /// Put an apostrophe before csv names that a spreadsheet would take for formulas, such as `=f`
    #[arg(long)]
    pub spreadsheet: bool,
    /// Overwrite any existing file
    #[arg(long, requires = "output")]
    pub force: bool,
    /// Refused with the way to choose a view of an export.
    #[arg(long, value_name = "VIEW", hide = true)]
    pub view: Option<String>,
    #[command(flatten)]
    pub query: QueryArgs,
    #[command(flatten)]
    pub socket: SocketArgs,
}

/// Examples of `ccsd export --help`.
pub const EXPORT_EXAMPLES: &str = "\
Examples:
  ccsd export html -o profile.html         then open it in a browser
  ccsd export html --diff before.ccsd after.ccsd -o diff.html
  ccsd export pprof -o profile.pb.gz && go tool pprof -top profile.pb.gz
  ccsd export callgrind -o callgrind.out && kcachegrind callgrind.out
  ccsd export svg --focus parse -o parse.svg
  ccsd export folded | flamegraph.pl > flame.svg
  ccsd export speedscope -o profile.speedscope.json
  ccsd export firefox -o profile.json      then drop it on profiler.firefox.com
  ccsd export dot --by module | dot -Tsvg -o modules.svg";

/// What the HTML page has.
#[derive(Debug, Args)]
pub struct PageArgs {
    /// Leave source out of the page
    ///
    /// By default the page has the source of the functions with the most self time, if their files are here, up to 1/24 of
    /// --max-size. For root, private files may be left out: see "Source as root" in the guide to views.
    #[arg(long)]
    pub no_source: bool,
    /// Look for source files here: by their whole path in the debug information, then by shorter ends of it
    #[arg(long, value_name = "DIR")]
    pub source_root: Vec<PathBuf>,
    /// Largest HTML page, as in 500K or 20M [default: 5M]
    ///
    /// To fit, the page first gets a coarser timeline; then source is left out; then threads, if they take more than a
    /// third; then its lightest stacks are merged into their callers. The page says so.
    #[arg(long, value_name = "SIZE", hide_default_value = true, default_value_t = DEFAULT_MAX_BYTES, value_parser = size)]
    pub max_size: usize,
}

impl Default for PageArgs {
    fn default() -> PageArgs {
        PageArgs { no_source: false, source_root: Vec::new(), max_size: DEFAULT_MAX_BYTES }
    }
}

fn format() -> impl clap::builder::TypedValueParser<Value = Format> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(Format::ALL.map(Format::name)).try_map(|text| text.parse::<Format>())
}

/// Reads a size that something fits into.
fn size(text: &str) -> Result<usize, String> {
    let size = usize::try_from(values::size(text)?).unwrap_or(usize::MAX);
    if size > 0 { Ok(size) } else { Err("nothing fits into that".to_owned()) }
}
