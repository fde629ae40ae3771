//! Patterns that name functions, modules, source files, threads, processes, and what processes belong to.

use std::str::FromStr;

use regex::{Regex, RegexBuilder};

use crate::cgroup;
use crate::ids::{CostCentreId, ThreadId};
use crate::model::{Membership, Process, Thread};
use crate::name::{basename, image_file_name};
use crate::profile::Profile;

/// Maximum bytes of a compiled regular expression: `(x{1000}){1000}` would take gigabytes.
const REGEX_BYTES: usize = 1 << 20;

/// What a pattern is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The name of a function.
    Name,
    /// The image that a function is in, by path or file name.
    Module,
    /// The source file in which a function is declared, by path or its last parts.
    File,
    /// The thread that ran, by name or thread id.
    Thread,
    /// The process that ran, by name or process id.
    Process,
    /// The unit that the process that ran belongs to.
    Unit,
    /// The container that it belongs to.
    Container,
    /// The user that it runs as.
    User,
}

impl Subject {
    /// Whether it says who ran, not which function.
    #[must_use]
    pub const fn is_runner(self) -> bool {
        !matches!(self, Subject::Name | Subject::Module | Subject::File)
    }
}

/// Which functions, threads or processes are meant.
///
/// `[SUBJECT:]TEXT`, where SUBJECT is `name` (the default), `module`, `file`, `thread`, `process`, `unit`, `container`
/// or `user`. TEXT between slashes is a regular expression that is searched for. TEXT with `*` (anything) or `?` (any
/// one character) is a glob for the whole, unless a function has exactly this name, such as `f(char*)`. Any other TEXT
/// matches itself or, if no function has this name, a part of names.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    subject: Subject,
    matcher: Matcher,
}

#[derive(Clone, Debug)]
enum Matcher {
    Plain(String),
    Glob(String, Regex),
    Regex(Regex),
}

/// Why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// There is nothing to look for.
    #[error(
        "{0:?} names nothing; write [name:|module:|file:|thread:|process:|unit:|container:|user:]TEXT, TEXT a name, a glob or /REGEX/"
    )]
    Empty(String),
    /// The regular expression is wrong, or too large.
    #[error("{text:?} is no regular expression: {why}")]
    Regex {
        /// The pattern.
        text: String,
        /// What is wrong with it, on one line.
        why: String,
    },
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        const SUBJECTS: [(&str, Subject); 8] = [
            ("name:", Subject::Name),
            ("module:", Subject::Module),
            ("file:", Subject::File),
            ("thread:", Subject::Thread),
            ("process:", Subject::Process),
            ("unit:", Subject::Unit),
            ("container:", Subject::Container),
            ("user:", Subject::User),
        ];
        // `file::open` is a function of a namespace.
        let with_subject = SUBJECTS.iter().find_map(|&(prefix, subject)| {
            Some((subject, text.strip_prefix(prefix).filter(|rest| !rest.starts_with(':'))?))
        });
        let (subject, what) = with_subject.unwrap_or((Subject::Name, text));
        if what.is_empty() {
            return Err(PatternError::Empty(text.to_owned()));
        }
        let (regex, is_glob) = match what.strip_prefix('/').and_then(|rest| rest.strip_suffix('/')) {
            // `/` alone, and a path such as `/usr/bin/`, would else be empty or surprising.
            Some("") => return Err(PatternError::Empty(text.to_owned())),
            Some(regex) => (Some(regex.to_owned()), false),
            None if what.contains(['*', '?']) => (Some(glob(what)), true),
            None => (None, false),
        };
        let matcher = match regex {
            None => Matcher::Plain(what.to_owned()),
            Some(regex) => {
                match RegexBuilder::new(&regex).size_limit(REGEX_BYTES).dfa_size_limit(REGEX_BYTES).build() {
                    Ok(regex) if is_glob => Matcher::Glob(what.to_owned(), regex),
                    Ok(regex) => Matcher::Regex(regex),
                    Err(error) => {
                        let why = error.to_string();
                        let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
                        return Err(PatternError::Regex { text: text.to_owned(), why });
                    }
                }
            }
        };
        Ok(Self { text: text.to_owned(), subject, matcher })
    }
}

impl Pattern {
    /// As it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What it is compared with.
    #[must_use]
    pub const fn subject(&self) -> Subject {
        self.subject
    }

    /// The functions that are meant; none where threads or processes are.
    #[must_use]
    pub fn functions(&self, profile: &Profile) -> Vec<CostCentreId> {
        let ids = || (0u32..).map(CostCentreId::new).take(profile.cost_centres().len());
        match self.subject {
            Subject::Name => {
                // A name as the profile has it or as text shows it, with what tells it from others.
                let labels = profile.labels();
                if let Matcher::Glob(text, _) = &self.matcher {
                    let exact: Vec<_> = ids().filter(|&id| labels.any(id, |name| name == text)).collect();
                    if !exact.is_empty() {
                        return exact;
                    }
                }
                let exact: Vec<_> = ids().filter(|&id| labels.any(id, |name| self.is_match(name))).collect();
                match &self.matcher {
                    Matcher::Plain(text) if exact.is_empty() => {
                        ids().filter(|&id| labels.any(id, |name| name.contains(text))).collect()
                    }
                    _ => exact,
                }
            }
            Subject::Module => {
                let images: Vec<bool> = profile.images().iter().map(|image| self.is_path(&image.name)).collect();
                let image = |id| profile.cost_centre(id).map(|it| it.image.index());
                ids().filter(|&id| image(id).and_then(|at| images.get(at)).copied().unwrap_or(false)).collect()
            }
            Subject::File => {
                let file = |id| profile.cost_centre(id).and_then(|it| it.file.as_deref());
                ids().filter(|&id| file(id).is_some_and(|file| self.is_path(file))).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The threads that are meant; `None` where functions are.
    #[must_use]
    pub fn threads(&self, profile: &Profile) -> Option<Vec<ThreadId>> {
        if !self.subject.is_runner() {
            return None;
        }
        let matches = |thread: &Thread| match (self.subject, profile.process(thread.process)) {
            (Subject::Thread, _) => self.is_match(&thread.name) || self.is_number(thread.tid),
            (_, Some(process)) => self.is_of_process(process),
            _ => false,
        };
        let all = (0u32..).map(ThreadId::new).zip(profile.threads());
        Some(all.filter(|(_, thread)| matches(thread)).map(|(id, _)| id).collect())
    }

    fn is_of_process(&self, process: &Process) -> bool {
        match (self.subject, process.membership.as_deref()) {
            (Subject::Unit | Subject::Container | Subject::User, None) => self.is_match(Membership::UNKNOWN),
            (Subject::Unit, Some(it)) => self.is_match(&it.unit()),
            (Subject::Container, Some(it)) => self.is_container(it),
            (Subject::User, Some(it)) => self.is_match(&it.user()) || it.uid.is_some_and(|uid| self.is_number(uid)),
            _ => self.is_match(&process.name) || self.is_number(process.pid),
        }
    }

    /// By what `--by container` calls it, its name, or its id as far as it is written.
    fn is_container(&self, membership: &Membership) -> bool {
        let by_id = || {
            let Matcher::Plain(text) = &self.matcher else { return false };
            cgroup::container(&membership.cgroup).is_some_and(|container| container.is_called(text))
        };
        let name = &membership.container_name;
        self.is_match(&membership.container()) || (!name.is_empty() && self.is_match(name)) || by_id()
    }

    fn is_match(&self, text: &str) -> bool {
        match &self.matcher {
            Matcher::Plain(plain) => plain == text,
            Matcher::Glob(_, regex) | Matcher::Regex(regex) => regex.is_match(text),
        }
    }

    fn is_number(&self, number: u32) -> bool {
        matches!(&self.matcher, Matcher::Plain(plain) if plain.parse() == Ok(number))
    }

    /// A path by its whole, its file name, or its last parts.
    fn is_path(&self, path: &str) -> bool {
        let tails = || path.match_indices('/').filter_map(|(at, _)| path.get(at + 1..));
        match &self.matcher {
            Matcher::Plain(_) => {
                self.is_match(path) || self.is_match(&image_file_name(path)) || tails().any(|tail| self.is_match(tail))
            }
            Matcher::Glob(..) | Matcher::Regex(_) => self.is_match(path) || self.is_match(basename(path)),
        }
    }
}

fn glob(glob: &str) -> String {
    let mut regex = String::from("(?s)^");
    for c in glob.chars() {
        match c {
            '*' => regex.push_str(".*"),
            '?' => regex.push('.'),
            c => regex.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
        }
    }
    regex.push('$');
    regex
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        text.parse().unwrap()
    }

    #[test]
    fn subjects() {
        for (text, subject) in [
            ("main", Subject::Name),
            ("name:main", Subject::Name),
            ("module:libc.so.6", Subject::Module),
            ("file:*.c", Subject::File),
            ("thread:worker*", Subject::Thread),
            ("process:7", Subject::Process),
            ("unit:nginx.service", Subject::Unit),
            ("container:0123456789ab", Subject::Container),
            ("user:1000", Subject::User),
            ("user::get", Subject::Name),
            ("file::open", Subject::Name),
            ("std::file:x", Subject::Name),
        ] {
            assert_eq!(pattern(text).subject(), subject, "{text}");
        }
    }

    #[test]
    fn globs_and_expressions() {
        for (text, yes, no) in [
            ("mem*", "memcpy", "xmemcpy"),
            ("operator*", "operator*", "my_operator"),
            ("f(int?)", "f(int*)", "f(int)"),
            ("a.b*", "a.bc", "axb"),
            ("/^mem(cpy|set)$/", "memset", "memsets"),
            ("/cpy/", "memcpy_avx", "memset"),
        ] {
            assert!(pattern(text).is_match(yes), "{text} {yes}");
            assert!(!pattern(text).is_match(no), "{text} {no}");
        }
    }

    #[test]
    fn paths() {
        for text in
            ["module:/usr/lib/libc.so.6", "module:libc.so.6", "module:lib/libc.so.6", "module:libc*", "module:/libc/"]
        {
            assert!(pattern(text).is_path("/usr/lib/libc.so.6"), "{text}");
        }
        for text in ["module:ibc.so.6", "module:libc", "module:lib"] {
            assert!(!pattern(text).is_path("/usr/lib/libc.so.6"), "{text}");
        }
    }

    #[test]
    fn what_nobody_looked_at_is_unknown() {
        let process = Process::new(7, 1, "p");
        for text in ["unit:[unknown]", "container:[unknown]", "user:[unknown]", "unit:/unknown/"] {
            assert!(pattern(text).is_of_process(&process), "{text}");
        }
        for text in ["unit:[no unit]", "user:0", "user:7", "process:[unknown]"] {
            assert!(!pattern(text).is_of_process(&process), "{text}");
        }
    }

    #[test]
    fn refuses_invalid_patterns() {
        for text in ["", "name:", "module:", "//"] {
            assert!(matches!(text.parse::<Pattern>(), Err(PatternError::Empty(_))), "{text}");
        }
        for text in ["/(/", "/(x{1000}){1000}/", "/[z-a]/"] {
            let error = text.parse::<Pattern>().unwrap_err().to_string();
            assert!(error.contains("is no regular expression: ") && !error.contains('\n'), "{error}");
        }
    }
}
