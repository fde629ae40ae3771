//! `ccsd export`: profiles for other tools.

use std::io::{IsTerminal, Write, stdout};
use std::path::PathBuf;

use anyhow::anyhow;
use ccsd_profile::export::{DEFAULT_MAX_BYTES, Export, Format};
use clap::Args;

use crate::args::service::SocketArgs;
use crate::args::watch::StoredArgs;
use crate::args::{self, DEFAULT_FILE};
use crate::exit::{Exit, Failure};
use crate::query::{self, Asked, QueryArgs};
use crate::report::file::{self, LoadedColumns};
use crate::{output, warn};

/// Parts of time at most: about as many as a screen has room for.
const COLUMNS: usize = 600;

/// Arguments of `ccsd export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The format
    ///
    /// html: one page to look at, with flame graph, functions, callers and callees, call graph, timeline; pprof: for `go tool pprof` and what reads its files; callgrind: KCachegrind, callgrind_annotate; folded: one line
    /// a stack, for flamegraph.pl and its like; svg: a flame graph; speedscope: speedscope.app; firefox: profiler.firefox.com; dot: Graphviz; gprof: its two
    /// tables; json: all of it; csv: the flat profile.
    #[arg(value_name = "FORMAT", value_parser = format())]
    pub format: Format,
    /// The profile: a file, or a session of a daemon by its number
    #[arg(value_name = "FILE|ID", default_value = DEFAULT_FILE, conflicts_with = "watch")]
    pub file: PathBuf,
    #[command(flatten)]
    pub stored: StoredArgs,
    /// Where to write; - for standard output [default: -]
    ///
    /// The file is there when it is whole, and not before. One that is nothing that ccsd exports is not overwritten
    /// without --force.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Begin folded and csv with what became of the samples, in lines of `#`, which not all of their readers take
    ///
    /// Without it that is printed on standard error. All other formats have a place for it.
    #[arg(long)]
    pub comments: bool,
    /// Overwrite a file that is nothing that ccsd exports
    #[arg(long, requires = "output")]
    pub force: bool,
    /// Largest HTML file, as in 500K or 20M [default: 5M]
    ///
    /// Where they do not fit, the parts of its timeline are made longer first, and then the lightest stacks are summed up
    /// within their callers; the page says so.
    #[arg(long, value_name = "SIZE", hide_default_value = true, default_value_t = DEFAULT_MAX_BYTES, value_parser = size)]
    pub max_size: usize,
    #[command(flatten)]
    pub query: QueryArgs,
    #[command(flatten)]
    pub socket: SocketArgs,
}

/// Examples of `ccsd export --help`.
pub const EXAMPLES: &str = "\
Examples:
  ccsd export html -o profile.html         then open it in a browser
  ccsd export pprof -o profile.pb.gz && go tool pprof -top profile.pb.gz
  ccsd export callgrind -o callgrind.out && kcachegrind callgrind.out
  ccsd export svg --focus parse -o parse.svg
  ccsd export folded | flamegraph.pl > flame.svg
  ccsd export speedscope -o profile.speedscope.json
  ccsd export firefox -o profile.json      then drop it on profiler.firefox.com
  ccsd export dot --by module | dot -Tsvg -o modules.svg";

fn format() -> impl clap::builder::TypedValueParser<Value = Format> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(Format::ALL.map(Format::name)).try_map(|text| text.parse::<Format>())
}

/// Reads a size that something fits into.
fn size(text: &str) -> Result<usize, String> {
    let size = usize::try_from(args::size(text)?).unwrap_or(usize::MAX);
    if size > 0 { Ok(size) } else { Err("nothing fits into that".to_owned()) }
}

/// Runs the command.
pub fn run(args: &ExportArgs) -> Result<Exit, Failure> {
    if args.query.sort.is_some() && args.format != Format::Csv {
        return Err(Failure::bad_request(anyhow!("--sort is for csv: {} has an order of its own", args.format.name())));
    }
    let LoadedColumns { file: loaded, columns } = load(args)?;
    for message in loaded.messages() {
        warn(format_args!("{message}"));
    }
    let mut asked_for = loaded.time().map(|time| format!("time {time}")).into_iter().collect::<Vec<_>>();
    let Asked { profile, selection, question, .. } = query::ask(&args.query, loaded.profile)?;
    asked_for.extend(question.text());
    let export = Export {
        profile: &profile,
        selection: &selection,
        max_bytes: args.max_size,
        sort: args.query.sort,
        question: &asked_for.join("; "),
        columns: &columns,
    };
    let output = args.output.as_deref().filter(|path| path.as_os_str() != "-");
    if output.is_none() && !args.format.is_text() && stdout().is_terminal() {
        let name = args.format.name();
        return Err(Failure::bad_request(anyhow!(
            "{name} is not for a terminal: name a file with -o, or redirect standard output"
        )));
    }
    let remarks = export.remarks();
    let mut bytes = Vec::new();
    if args.comments && !args.format.has_remarks() {
        for remark in &remarks {
            bytes.extend_from_slice(format!("# {remark}\n").as_bytes());
        }
    }
    // All of it first: what cannot be exported leaves no file behind.
    export.write(args.format, &mut bytes).map_err(Failure::bad_request)?;
    let Some(path) = output else {
        let mut out = stdout().lock();
        out.write_all(&bytes).and_then(|()| out.flush())?;
        say_what_has_no_place(args, &remarks);
        return Ok(Exit::SUCCESS);
    };
    let name = path.display();
    let same = |a: &std::path::Path, b: &std::path::Path| {
        a.canonicalize().ok().zip(b.canonicalize().ok()).is_some_and(|(a, b)| a == b)
    };
    if same(path, &args.file) {
        return Err(Failure::bad_request(anyhow!("{name} is the profile itself: choose another file with -o")));
    }
    output::write(path, &bytes, args.force)?;
    say_what_has_no_place(args, &remarks);
    Ok(Exit::SUCCESS)
}

/// The profile; with its time in columns where the format shows time and that is known.
fn load(args: &ExportArgs) -> Result<LoadedColumns, Failure> {
    if args.format.shows_time() && file::has_intervals(&args.file, &args.stored)? {
        return file::load_columns(&args.file, &args.stored, &args.socket, args.query.metric.as_deref(), COLUMNS);
    }
    let file = file::load_asked(&args.file, &args.stored, &args.socket)?;
    Ok(LoadedColumns { file, columns: Vec::new() })
}

/// The accounting, where the format has no place for it.
fn say_what_has_no_place(args: &ExportArgs, remarks: &[String]) {
    if args.comments || args.format.has_remarks() {
        return;
    }
    // The first says what was profiled, the others what may be known.
    let accounting: Vec<&str> = remarks.iter().skip(1).take(2).map(String::as_str).collect();
    let name = args.format.name();
    warn(format_args!("{name} has no place for this, but for --comments: {}", accounting.join("; ")));
}
