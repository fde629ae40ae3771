//! What ccsd says on standard error.

use std::fmt;
use std::io::{Write, stderr};

/// A line about ccsd itself on standard error. That it cannot be written is no reason to stop.
///
/// What it names, a file for one, may be called anything.
pub fn warn(message: fmt::Arguments<'_>) {
    let message = message.to_string();
    let lines: Vec<_> = message.split('\n').map(ccsd_profile::sanitise).collect();
    let _ = writeln!(stderr(), "ccsd: {}", lines.join("\n"));
}
