//! Commands as earlier versions spelled them.

use std::ffi::OsString;

use crate::message::warn;

/// Earlier spellings, and what replaces them. They work for one version.
const RENAMED: [(&str, &[&str]); 7] = [
    ("live", &["top", "--plain"]),
    ("sessions", &["daemon", "status"]),
    // Never a command, but a likely guess.
    ("status", &["daemon", "status"]),
    ("stop", &["daemon", "stop"]),
    ("save", &["daemon", "save"]),
    ("watches", &["daemon", "watches"]),
    ("metrics", &["daemon", "metrics"]),
];

/// The words of a command line with an earlier spelling replaced, which a line on standard error says.
pub fn renewed(words: Vec<OsString>) -> Vec<OsString> {
    let (words, hint) = replace(words);
    if let Some((old, new)) = hint {
        warn(format_args!("`ccsd {old}` is now `ccsd {}`", new.join(" ")));
    }
    words
}

/// An earlier spelling and its replacement.
pub type OldSpelling = (&'static str, &'static [&'static str]);

/// Replaces an earlier spelling, and returns which it was.
pub fn replace(mut words: Vec<OsString>) -> (Vec<OsString>, Option<OldSpelling>) {
    let Some(at) = command_index(&words) else { return (words, None) };
    let renamed = RENAMED.into_iter().find(|(old, _)| words.get(at).is_some_and(|word| word == old));
    if let Some((_, new)) = renamed {
        words.splice(at..=at, new.iter().map(OsString::from));
    }
    (words, renamed)
}

/// Where the command stands: behind `--color WHEN`, the only option that may stand before it.
fn command_index(words: &[OsString]) -> Option<usize> {
    let mut at = 1;
    loop {
        let word = words.get(at)?.to_str()?;
        match word {
            "--color" => at += 2,
            _ if word.starts_with("--color=") => at += 1,
            _ => return Some(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_spellings() {
        let renew = |line: &str| {
            let (words, hint) = replace(line.split(' ').map(OsString::from).collect());
            (words.join(&OsString::from(" ")).into_string().unwrap(), hint.map(|(old, _)| old))
        };
        assert_eq!(renew("ccsd live --json 3"), ("ccsd top --plain --json 3".to_owned(), Some("live")));
        assert_eq!(renew("ccsd --color never stop 3").0, "ccsd --color never daemon stop 3");
        assert_eq!(renew("ccsd --color=never sessions").0, "ccsd --color=never daemon status");
        for same in ["ccsd", "ccsd report live", "ccsd record -- stop", "ccsd daemon stop 3", "ccsd --help"] {
            assert_eq!(renew(same), (same.to_owned(), None));
        }
    }
}
