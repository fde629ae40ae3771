//! Arguments of `ccsd open`.

use ccsd_profile::export::Format;
use clap::Args;

use super::export::{ExportArgs, PageArgs};
use super::socket::SocketArgs;
use super::stored::StoredArgs;
use crate::query::QueryArgs;
use crate::source::ProfileSource;
use crate::values::DEFAULT_FILE;

/// Arguments of `ccsd open`.
#[derive(Debug, Args)]
pub struct OpenArgs {
    /// The profile: a file, session:ID, pid:PID or watch:NAME
    #[arg(value_name = "SOURCE", default_value = DEFAULT_FILE, value_parser = ProfileSource::parser(), conflicts_with = "watch")]
    pub source: ProfileSource,
    #[command(flatten)]
    pub page: PageArgs,
    #[command(flatten)]
    pub stored: StoredArgs,
    /// Serve the page at an address of this machine until Ctrl-C, instead of from a file
    ///
    /// ccsd listens on 127.0.0.1 only, and the address has a random token. The page of a running session is updated every
    /// five seconds, that of a file when the file changes; the view stays.
    #[arg(long)]
    pub serve: bool,
    /// With --serve: the port [default: one that is free]
    #[arg(long, value_name = "PORT", requires = "serve", default_value_t = 0, hide_default_value = true)]
    pub port: u16,
    /// Print where the page is, and start no browser
    #[arg(long)]
    pub no_browser: bool,
    #[command(flatten)]
    pub query: QueryArgs,
    #[command(flatten)]
    pub socket: SocketArgs,
}

impl OpenArgs {
    /// The arguments of `ccsd export html` for the same page.
    pub fn into_export(self) -> ExportArgs {
        let OpenArgs { source, page, stored, query, socket, .. } = self;
        ExportArgs { page, stored, query, socket, ..page_of(source) }
    }
}

/// The arguments of `ccsd export html` for all of a profile.
pub fn page_of(source: ProfileSource) -> ExportArgs {
    ExportArgs {
        format: Format::Html,
        source,
        diff: Vec::new(),
        page: PageArgs::default(),
        stored: StoredArgs::default(),
        output: None,
        no_comments: false,
        spreadsheet: false,
        force: false,
        view: None,
        query: QueryArgs::default(),
        socket: SocketArgs::default(),
    }
}

/// Examples of `ccsd open --help`.
pub const OPEN_EXAMPLES: &str = "\
Examples:
  ccsd open                                profile.ccsd, in a browser
  ccsd open --focus parse old.ccsd         only stacks with parse
  ccsd open perf.data
  ccsd open --serve session:3              live, until Ctrl-C
  ccsd open --serve                        profile.ccsd and its new versions
  ccsd open --serve --port 8123            and on your machine:
                                           ssh -L 8123:127.0.0.1:8123 HOST
  ccsd open --no-browser                   print the file's name";
