//! Arguments that choose the daemon.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

/// Where the daemon is.
#[derive(Debug, Default, Args)]
pub struct SocketArgs {
    /// The daemon's socket [default: $CCSD_SOCKET, else the user's, else the machine's]
    ///
    /// The user's is $XDG_RUNTIME_DIR/ccsd/ccsd.sock, the machine's /run/ccsd/ccsd.sock. ccsd talks only to a daemon of
    /// this user, of root, or of the service's user ccsd.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// Who collects.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("by").multiple(false))]
pub struct ByArgs {
    #[command(flatten)]
    pub socket: SocketArgs,
    /// Use a daemon, or fail [default: use one if this user may]
    #[arg(long, group = "by")]
    pub daemon: bool,
    /// Use no daemon
    #[arg(long, group = "by", conflicts_with = "socket")]
    pub no_daemon: bool,
}
