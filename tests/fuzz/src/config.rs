//! The daemon's configuration.

use std::path::Path;

use ccsd_daemon::config::Config;

pub fn run(data: &[u8]) {
    if let Err(error) = Config::parse(data, Path::new("/etc/ccsd.toml")) {
        assert!(!error.to_string().is_empty());
    }
}
