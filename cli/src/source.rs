//! Sources: what a command reads or ends, as named on the command line.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use ccsd_daemon::config::WatchName;
use clap::builder::{OsStringValueParser, TypedValueParser};

use crate::values::pid;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfileSource {
    /// A file: any text without another form.
    File(PathBuf),
    Session(u32),
    Process(u32),
    Watch(String),
    /// A bare number, which may be a file, a session or a process.
    Number(u32),
}

impl ProfileSource {
    /// Whether this can only be a session, whose times are unknown.
    pub fn is_session(&self) -> bool {
        matches!(self, ProfileSource::Session(_) | ProfileSource::Process(_))
    }

    pub fn parser() -> impl TypedValueParser<Value = ProfileSource> {
        OsStringValueParser::new().try_map(ProfileSource::parse)
    }

    pub fn parse(text: OsString) -> Result<ProfileSource, String> {
        let Some(word) = text.to_str() else { return Ok(ProfileSource::File(text.into())) };
        if let Some(id) = word.strip_prefix("session:") {
            let id = id.parse().map_err(|_| "session: takes the number of a session; `ccsd daemon status` lists them");
            return Ok(ProfileSource::Session(id?));
        }
        if let Some(number) = word.strip_prefix("pid:") {
            return pid(number).map(ProfileSource::Process);
        }
        if let Some(name) = word.strip_prefix("watch:") {
            return match WatchName::is_valid(name) {
                true => Ok(ProfileSource::Watch(name.to_owned())),
                false => Err("watch: takes the name of a watch; `ccsd daemon watches` lists them".to_owned()),
            };
        }
        match word.parse::<u32>() {
            // `007` can only be a file.
            Ok(number) if number.to_string() == word => Ok(ProfileSource::Number(number)),
            _ => Ok(ProfileSource::File(text.into())),
        }
    }
}

impl fmt::Display for ProfileSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProfileSource::File(path) => write!(f, "{}", path.display()),
            ProfileSource::Session(id) => write!(f, "session:{id}"),
            ProfileSource::Process(pid) => write!(f, "pid:{pid}"),
            ProfileSource::Watch(name) => write!(f, "watch:{name}"),
            ProfileSource::Number(number) => write!(f, "{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ProfileSource, String> {
        ProfileSource::parse(text.into())
    }

    #[test]
    fn sources() {
        assert_eq!(parse("session:3"), Ok(ProfileSource::Session(3)));
        assert_eq!(parse("pid:123"), Ok(ProfileSource::Process(123)));
        assert_eq!(parse("watch:nginx"), Ok(ProfileSource::Watch("nginx".to_owned())));
        assert_eq!(parse("7"), Ok(ProfileSource::Number(7)));
        for file in ["007", "+7", "./7", "a.ccsd", "sessions:3", "99999999999", ""] {
            assert_eq!(parse(file), Ok(ProfileSource::File(file.into())));
        }
        for wrong in ["session:", "session:x", "session:-1", "pid:0", "pid:x", "watch:", "watch:a/b"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        for text in ["session:3", "pid:123", "watch:nginx", "7", "./7"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
    }
}
