//! Arguments of `ccsd annotate`.

use std::path::PathBuf;

use ccsd_profile::query::Pattern;
use clap::Args;

use super::socket::SocketArgs;
use super::stored::StoredArgs;
use crate::functions;
use crate::query::QueryArgs;
use crate::source::ProfileSource;
use crate::values::{DEFAULT_FILE, lines};

/// Arguments of `ccsd annotate`.
#[derive(Debug, Args)]
pub struct AnnotateArgs {
    /// The functions: a name, a part of one, a glob, an expression between slashes, as for --only
    #[arg(value_name = "FUNCTION", value_parser = functions::parse)]
    pub function: Pattern,
    /// The profile: a file, session:ID, pid:PID or watch:NAME
    #[arg(value_name = "SOURCE", default_value = DEFAULT_FILE, value_parser = ProfileSource::parser(), conflicts_with = "watch")]
    pub source: ProfileSource,
    /// Look for source files here: by their whole path in the debug information, then by shorter ends of it
    #[arg(long, value_name = "DIR")]
    pub source_root: Vec<PathBuf>,
    /// Replace FROM at the beginning of source paths by TO
    #[arg(long, value_name = "FROM=TO", value_parser = substitution)]
    pub substitute: Vec<(String, String)>,
    /// Lines of context around each line with samples
    #[arg(long, value_name = "LINES", default_value = "5", value_parser = lines)]
    pub context: u32,
    /// Show the instructions of each line, by objdump
    ///
    /// Costs stay those of lines: a profile has no addresses within functions that have lines. The program must have the
    /// build id of the profile.
    #[arg(long)]
    pub asm: bool,
    /// Print the full accounting: samples, losses, stacks, cost, notes
    #[arg(short, long)]
    pub verbose: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub stored: StoredArgs,
    #[command(flatten)]
    pub query: QueryArgs,
    #[command(flatten)]
    pub socket: SocketArgs,
}

/// Examples of `ccsd annotate --help`.
pub const ANNOTATE_EXAMPLES: &str = "\
Examples:
  ccsd annotate parse
  ccsd annotate parse old.ccsd --source-root ~/src/parser-1.2
  ccsd annotate --substitute /build/parser=/home/me/parser --context 20 parse
  ccsd annotate parse --asm                with the instructions of each line
  ccsd annotate parse --json | jq '.functions[].files[].lines[]'";

/// Reads `FROM=TO`.
fn substitution(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((from, to)) if !from.is_empty() => Ok((from.to_owned(), to.to_owned())),
        _ => Err("give FROM=TO, as in /build/parser=/home/me/parser".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn substitutions() {
        assert_eq!(substitution("/a=/b=c"), Ok(("/a".to_owned(), "/b=c".to_owned())));
        assert!(substitution("=x").is_err() && substitution("x").is_err());
    }
}
