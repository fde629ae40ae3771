//! Messages on standard error.

use std::fmt;
use std::io::{Write, stderr};

pub fn warn(message: fmt::Arguments<'_>) {
    let message = message.to_string();
    let lines: Vec<_> = message.split('\n').map(ccsd_profile::sanitise).collect();
    let _ = writeln!(stderr(), "ccsd: {}", lines.join("\n"));
}

pub fn say(text: &str) {
    let _ = stderr().write_all(text.as_bytes());
}
