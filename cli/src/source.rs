//! Sources: what a command reads or ends, as named on the command line.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use ccsd_daemon::config::WatchName;
use clap::builder::{OsStringValueParser, TypedValueParser};

use crate::values::pid;

/// A profile, or a session that produces one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file: any text without another form.
    File(PathBuf),
    /// `session:3`, a session of the daemon.
    Session(u32),
    /// `pid:123`, a process.
    Process(u32),
    /// `watch:nginx`, a watch of the service.
    Watch(String),
    /// A bare number, which may be a file, a session or a process.
    Number(u32),
}

impl Source {
    /// Whether this can only be a session, whose times are unknown.
    pub fn is_session(&self) -> bool {
        matches!(self, Source::Session(_) | Source::Process(_))
    }

    /// The argument parser for sources.
    pub fn parser() -> impl TypedValueParser<Value = Source> {
        OsStringValueParser::new().try_map(Source::parse)
    }

    /// Parses a source.
    ///
    /// # Errors
    /// A sentence that describes the mistake.
    pub fn parse(text: OsString) -> Result<Source, String> {
        let Some(word) = text.to_str() else { return Ok(Source::File(text.into())) };
        if let Some(id) = word.strip_prefix("session:") {
            let id = id.parse().map_err(|_| "session: takes the number of a session; `ccsd daemon status` lists them");
            return Ok(Source::Session(id?));
        }
        if let Some(number) = word.strip_prefix("pid:") {
            return pid(number).map(Source::Process);
        }
        if let Some(name) = word.strip_prefix("watch:") {
            return match WatchName::is_valid(name) {
                true => Ok(Source::Watch(name.to_owned())),
                false => Err("watch: takes the name of a watch; `ccsd daemon watches` lists them".to_owned()),
            };
        }
        match word.parse::<u32>() {
            // `007` can only be a file.
            Ok(number) if number.to_string() == word => Ok(Source::Number(number)),
            _ => Ok(Source::File(text.into())),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Session(id) => write!(f, "session:{id}"),
            Source::Process(pid) => write!(f, "pid:{pid}"),
            Source::Watch(name) => write!(f, "watch:{name}"),
            Source::Number(number) => write!(f, "{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Source, String> {
        Source::parse(text.into())
    }

    #[test]
    fn sources() {
        assert_eq!(parse("session:3"), Ok(Source::Session(3)));
        assert_eq!(parse("pid:123"), Ok(Source::Process(123)));
        assert_eq!(parse("watch:nginx"), Ok(Source::Watch("nginx".to_owned())));
        assert_eq!(parse("7"), Ok(Source::Number(7)));
        for file in ["007", "+7", "./7", "a.ccsd", "sessions:3", "99999999999", ""] {
            assert_eq!(parse(file), Ok(Source::File(file.into())));
        }
        for wrong in ["session:", "session:x", "session:-1", "pid:0", "pid:x", "watch:", "watch:a/b"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        for text in ["session:3", "pid:123", "watch:nginx", "7", "./7"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
    }
}
