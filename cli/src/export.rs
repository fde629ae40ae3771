//! `ccsd export`: profiles for other tools.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write, stdout};
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use ccsd_profile::export::{Export, Format};
use clap::Args;

use crate::args::DEFAULT_FILE;
use crate::args::service::SocketArgs;
use crate::exit::{Exit, Failure};
use crate::query::{self, QueryArgs};
use crate::report::file;
use crate::warn;

/// Arguments of `ccsd export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The format
    ///
    /// pprof: for `go tool pprof` and what reads its files; callgrind: KCachegrind, callgrind_annotate; folded: one line
    /// a stack, for flamegraph.pl and its like; svg: a flame graph; speedscope: speedscope.app; dot: Graphviz; gprof: its two
    /// tables; json: all of it; csv: the flat profile.
    #[arg(value_name = "FORMAT", value_parser = format())]
    pub format: Format,
    /// The profile: a file, or a session of a daemon by its number
    #[arg(value_name = "FILE|ID", default_value = DEFAULT_FILE)]
    pub file: PathBuf,
    /// Where to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub query: QueryArgs,
    #[command(flatten)]
    pub socket: SocketArgs,
}

/// Examples of `ccsd export --help`.
pub const EXAMPLES: &str = "\
Examples:
  ccsd export pprof -o profile.pb.gz && go tool pprof -top profile.pb.gz
  ccsd export callgrind -o callgrind.out && kcachegrind callgrind.out
  ccsd export svg --focus parse -o parse.svg
  ccsd export folded | flamegraph.pl > flame.svg
  ccsd export speedscope -o profile.speedscope.json
  ccsd export dot --by module | dot -Tsvg -o modules.svg";

fn format() -> impl clap::builder::TypedValueParser<Value = Format> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(Format::ALL.map(Format::name)).try_map(|text| text.parse::<Format>())
}

/// Runs the command.
pub fn run(args: &ExportArgs) -> Result<Exit, Failure> {
    let loaded = file::load_any(&args.file, &args.socket)?;
    if let Some(message) = loaded.message() {
        warn(format_args!("{message}"));
    }
    let (profile, selection, _) = query::ask(&args.query, loaded.profile)?;
    let export = Export { profile: &profile, selection: &selection };
    let Some(path) = args.output.as_deref() else {
        if !args.format.is_text() && stdout().is_terminal() {
            let name = args.format.name();
            return Err(Failure::bad_request(anyhow!(
                "{name} is not for a terminal: name a file with -o, or redirect standard output"
            )));
        }
        write(&export, args.format, stdout().lock())?;
        return Ok(Exit::SUCCESS);
    };
    let name = path.display();
    let same = |a: &std::path::Path, b: &std::path::Path| {
        a.canonicalize().ok().zip(b.canonicalize().ok()).is_some_and(|(a, b)| a == b)
    };
    if same(path, &args.file) {
        return Err(Failure::bad_request(anyhow!("{name} is the profile itself: choose another file with -o")));
    }
    let file = File::create(path).with_context(|| format!("cannot create {name}")).map_err(Failure::bad_request)?;
    match write(&export, args.format, file) {
        Ok(()) => Ok(Exit::SUCCESS),
        Err(failure) => {
            let Failure { error, status } = failure;
            Err(Failure { error: error.context(format!("cannot write {name}")), status })
        }
    }
}

fn write(export: &Export<'_>, format: Format, out: impl Write) -> Result<(), Failure> {
    let mut out = BufWriter::new(out);
    let written = export.write(format, &mut out).and_then(|()| out.flush());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => Failure::bad_request(error),
        _ => error.into(),
    })
}
