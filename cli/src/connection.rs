//! Connections to a daemon.

use ccsd_daemon::CollectorChoice;
use ccsd_daemon::client::{Client, ClientError};
use ccsd_daemon::service::socket::places;

use crate::args::socket::{ByArgs, SocketArgs};

/// Connects to the first daemon that this user may use.
pub fn connect(args: &SocketArgs) -> Result<Client, ClientError> {
    let mut why: Option<ClientError> = None;
    for path in places(args.socket.as_deref()) {
        match Client::connect(&path) {
            Ok(client) => return Ok(client),
            Err(error @ ClientError::None(_)) => why = why.or(Some(error)),
            Err(error) if matches!(why, None | Some(ClientError::None(_))) => why = Some(error),
            Err(_) => {}
        }
    }
    Err(why.unwrap_or_else(|| ClientError::None("$CCSD_SOCKET, which is empty".into())))
}

pub fn by(args: &ByArgs) -> CollectorChoice {
    let socket = args.socket.socket.as_deref();
    let daemons = if args.no_daemon { Vec::new() } else { places(socket) };
    CollectorChoice { daemons, daemon_only: args.daemon || socket.is_some() }
}
