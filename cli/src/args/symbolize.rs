//! Arguments of `ccsd symbolize`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `ccsd symbolize`.
#[derive(Debug, Args)]
pub struct SymbolizeArgs {
    /// The profile
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Look for debug files here, too
    ///
    /// Either DIR/.build-id/ab/cdef.debug, by the build id of an image, or the image's file name, with or without .debug.
    /// ccsd also searches /usr/lib/debug and the files that debuginfod has fetched before.
    #[arg(long, value_name = "DIR")]
    pub debug_dir: Vec<PathBuf>,
    /// Ask these debuginfod servers, separated by blanks [default: $DEBUGINFOD_URLS, else none]
    ///
    /// A server learns the build ids of the profiled programs. Files are kept in $DEBUGINFOD_CACHE_PATH, or
    /// ~/.cache/debuginfod_client.
    #[arg(long, value_name = "URL")]
    pub debuginfod: Option<String>,
    /// Write the named profile here [default: FILE itself]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

pub const SYMBOLIZE_EXAMPLES: &str = "\
Examples:
  ccsd symbolize profile.ccsd              with files of /usr/lib/debug
  ccsd symbolize --debug-dir build/debug -o named.ccsd profile.ccsd
  ccsd symbolize --debuginfod http://localhost:8002 profile.ccsd";
