//! Candidates for the word at the cursor.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use ccsd_collector::procfs;
use ccsd_daemon::client::ServiceStatus;
use ccsd_daemon::config::Config;
use ccsd_daemon::protocol::message::SessionSummary;
use ccsd_daemon::store;
use ccsd_profile::view::{FlatView, Selection};
use ccsd_profile::{Profile, sanitise};
use clap::{Arg, ArgAction, Command};

use super::cursor::{CursorSlot, TypedLine};
use crate::args::socket::SocketArgs;
use crate::args::stored::StoredArgs;
use crate::connection::connect;
use crate::recording::is_profile;
use crate::report::file;
use crate::source::ProfileSource;
use crate::values::DEFAULT_FILE;

/// What the shell itself completes beside the candidates: the shell knows quoting, `~` and its own commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Native {
    #[default]
    Nothing,
    Files,
    Directories,
    Commands,
}

impl Native {
    pub fn name(self) -> &'static str {
        match self {
            Native::Nothing => "values",
            Native::Files => "files",
            Native::Directories => "directories",
            Native::Commands => "commands",
        }
    }
}

/// Maximum size of a profile whose functions are offered: larger ones take too long to read for a TAB.
const MAX_PROFILE_BYTES: u64 = 64 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    pub value: String,
    /// Description; empty if the value needs none.
    pub about: String,
}

impl Completion {
    fn new(value: impl Into<String>, about: impl Into<String>) -> Completion {
        Completion { value: value.into(), about: about.into() }
    }

    /// The line of the answer, if the typed text is a prefix of this candidate.
    ///
    /// Names of processes, functions and threads come from other users. A name that a terminal must not print cannot be
    /// typed either, so it is omitted.
    pub fn line(&self, cursor: &TypedLine<'_>) -> Option<String> {
        let is_printable = sanitise(&self.value) == self.value && !self.value.contains(['\t', '\n']);
        let is_wanted = is_printable && self.value.starts_with(&cursor.typed);
        let about = sanitise(&self.about).replace(['\t', '\n'], " ");
        is_wanted.then(|| format!("{}{}\t{about}\n", cursor.kept, self.value))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueKind {
    Listed,
    /// A profile: a file, `session:3`, `pid:123`, `watch:nginx`.
    Profile,
    ProfileOrProcess,
    Session,
    Process,
    Watch,
    /// A pattern: a function, or a name after `module:`, `file:`, `thread:` or `process:`.
    Pattern,
    Metric,
    /// A command of ccsd, after the commands that contain it.
    Command,
    File,
    Directory,
    Program,
}

impl ValueKind {
    fn of(argument: &Arg, command: &Command) -> ValueKind {
        let name = argument.get_value_names().and_then(<[_]>::first).map_or("", |name| name.as_str());
        match (name, argument.get_id().as_str()) {
            ("SOURCE", "session" | "sessions") => ValueKind::Session,
            ("SOURCE", _) if command.get_name() == "top" => ValueKind::ProfileOrProcess,
            ("SOURCE", _) | (_, "diff") => ValueKind::Profile,
            ("PID|NAME", _) => ValueKind::Process,
            ("NAME", "watch") => ValueKind::Watch,
            ("NAME", "metric") => ValueKind::Metric,
            ("COMMAND", _) => ValueKind::Command,
            ("FUNCTION" | "PATTERN", _) => ValueKind::Pattern,
            ("FILE" | "PATH", _) => ValueKind::File,
            ("DIR", _) => ValueKind::Directory,
            ("PROGRAM", _) => ValueKind::Program,
            _ => ValueKind::Listed,
        }
    }

    fn at(cursor: &TypedLine<'_>) -> ValueKind {
        cursor.argument().map_or(ValueKind::Listed, |argument| ValueKind::of(argument, cursor.command))
    }
}

pub fn native(cursor: &TypedLine<'_>) -> Native {
    let is_special = ["session:", "pid:", "watch:"].iter().any(|prefix| cursor.typed.starts_with(prefix));
    match (cursor.slot, ValueKind::at(cursor)) {
        (CursorSlot::ProgramArgument, _) => Native::Files,
        (_, ValueKind::Profile | ValueKind::ProfileOrProcess) if !is_special => Native::Files,
        (_, ValueKind::File) => Native::Files,
        (_, ValueKind::Directory) => Native::Directories,
        (_, ValueKind::Program) => Native::Commands,
        _ => Native::Nothing,
    }
}

/// Commands, options and values from the definition. Options only after a dash: otherwise they would hide the values.
pub fn listed(cursor: &TypedLine<'_>) -> Vec<Completion> {
    match cursor.slot {
        CursorSlot::Option => options(cursor),
        CursorSlot::ProgramArgument => Vec::new(),
        CursorSlot::Positional(_) | CursorSlot::Value(_) => {
            let is_positional = matches!(cursor.slot, CursorSlot::Positional(_));
            let mut all = if is_positional && cursor.takes_command { commands(cursor.command) } else { Vec::new() };
            if ValueKind::at(cursor) == ValueKind::Command {
                all.extend(named_command(cursor).map(commands).unwrap_or_default());
            }
            if let Some(argument) = cursor.argument() {
                let values = argument.get_possible_values();
                let visible = values.iter().filter(|value| !value.is_hide_set());
                all.extend(visible.map(|value| {
                    Completion::new(value.get_name(), value.get_help().map_or_else(String::new, ToString::to_string))
                }));
            }
            all
        }
    }
}

/// The command that the values before the cursor name, as in `ccsd man daemon`.
fn named_command<'a>(cursor: &TypedLine<'a>) -> Option<&'a Command> {
    let argument = cursor.argument()?.get_id().as_str();
    let mut words = cursor.given.iter().filter(|(id, _)| *id == argument).map(|(_, word)| word);
    words.try_fold(cursor.root, |command, word| command.find_subcommand(word))
}

fn commands(command: &Command) -> Vec<Completion> {
    let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
    let about = |command: &Command| command.get_about().map_or_else(String::new, ToString::to_string);
    visible.map(|command| Completion::new(command.get_name(), about(command))).collect()
}

fn options(cursor: &TypedLine<'_>) -> Vec<Completion> {
    let is_given = |argument: &Arg| cursor.given.iter().any(|(id, _)| *id == argument.get_id().as_str());
    let repeats = |argument: &Arg| matches!(argument.get_action(), ArgAction::Append | ArgAction::Count);
    let offered = cursor.command.get_arguments().filter(|it| !it.is_hide_set() && (repeats(it) || !is_given(it)));
    offered
        .flat_map(|argument| {
            let about = argument.get_help().map_or_else(String::new, ToString::to_string);
            let names = argument.get_long_and_visible_aliases().unwrap_or_default();
            names.into_iter().map(move |name| Completion::new(format!("--{name}"), about.clone()))
        })
        .collect()
}

/// A lookup beyond the definition. It runs on a thread that may be abandoned.
#[derive(Debug)]
pub struct CandidateLookup {
    kind: ValueKind,
    typed: String,
    socket: SocketArgs,
    source: ProfileSource,
}

impl CandidateLookup {
    pub fn new(cursor: &TypedLine<'_>) -> CandidateLookup {
        let watch = cursor.value("watch").map(|name| ProfileSource::Watch(name.to_owned()));
        let named = || cursor.value("source").or_else(|| cursor.value("sources")).unwrap_or(DEFAULT_FILE);
        let source = watch.or_else(|| ProfileSource::parse(named().into()).ok());
        CandidateLookup {
            kind: ValueKind::at(cursor),
            typed: cursor.typed.clone(),
            socket: SocketArgs { socket: cursor.value("socket").map(PathBuf::from) },
            source: source.unwrap_or_else(|| ProfileSource::File(DEFAULT_FILE.into())),
        }
    }

    pub fn send_candidates(&self, sender: &Sender<Completion>) {
        let send = |candidate| sender.send(candidate).unwrap_or_default();
        match self.kind {
            ValueKind::Listed | ValueKind::Command | ValueKind::File | ValueKind::Directory | ValueKind::Program => {}
            ValueKind::Process => processes("").into_iter().for_each(send),
            ValueKind::Watch => watches(&self.socket, "").into_iter().for_each(send),
            ValueKind::Session => {
                let sessions = running_sessions(&self.socket);
                let number = |session: &SessionSummary| session.id.to_string();
                match self.typed.starts_with(|c: char| c.is_ascii_digit()) {
                    true => sessions.iter().map(|it| Completion::new(number(it), about_session(it))).for_each(send),
                    false => session_sources(&sessions).into_iter().for_each(send),
                }
            }
            ValueKind::Profile | ValueKind::ProfileOrProcess => {
                session_sources(&running_sessions(&self.socket)).into_iter().for_each(send);
                watches(&self.socket, "watch:").into_iter().for_each(send);
                if self.kind == ValueKind::ProfileOrProcess {
                    // Hundreds of process ids are offered only on request.
                    let prefix = if self.typed.starts_with('p') { "pid:" } else { "" };
                    let all = processes(prefix);
                    let wanted = all.into_iter().filter(|it| it.value.starts_with("pid:") || !is_number(&it.value));
                    wanted.for_each(send);
                }
            }
            ValueKind::Pattern | ValueKind::Metric => {
                if let Some(profile) = self.profile() {
                    self.profile_candidates(&profile).into_iter().for_each(send);
                }
            }
        }
    }

    fn profile(&self) -> Option<Profile> {
        if let ProfileSource::File(path) = &self.source {
            let is_small = |path: &Path| fs::metadata(path).is_ok_and(|meta| meta.len() <= MAX_PROFILE_BYTES);
            if !is_small(path) || !is_profile(path) {
                return None;
            }
        }
        file::load_source(&self.source, &StoredArgs::default(), &self.socket).ok().map(|loaded| loaded.profile)
    }

    fn profile_candidates(&self, profile: &Profile) -> Vec<Completion> {
        match self.kind {
            ValueKind::Metric => {
                profile.session().metrics.iter().map(|it| Completion::new(it.name.clone(), "")).collect()
            }
            ValueKind::Pattern => match self.typed.split_once(':') {
                Some((prefix @ ("module" | "file" | "thread" | "process"), _)) => {
                    let names = names(profile, prefix).into_iter();
                    names.map(|name| Completion::new(format!("{prefix}:{name}"), "")).collect()
                }
                _ => functions(profile, &self.typed),
            },
            _ => functions(profile, &self.typed),
        }
    }
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Functions by self weight: by the shown name, or by the full one if only that starts with the typed text.
fn functions(profile: &Profile, typed: &str) -> Vec<Completion> {
    let labels = profile.labels();
    let rows = FlatView::new(profile, &Selection::all()).rows;
    let mut seen = std::collections::HashSet::new();
    let names = rows.iter().filter_map(|row| {
        let label = labels.label(row.function);
        let whole = profile.name(row.function);
        [label, whole].into_iter().find(|name| name.starts_with(typed)).map(std::borrow::Cow::into_owned)
    });
    let real = names.filter(|name| !name.starts_with('['));
    real.filter(|name| seen.insert(name.clone())).map(|name| Completion::new(name, "")).collect()
}

fn names(profile: &Profile, prefix: &str) -> Vec<String> {
    let file_name = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    let mut names: Vec<String> = match prefix {
        "module" => profile.images().iter().map(|image| file_name(&image.name)).collect(),
        "file" => profile.cost_centres().iter().filter_map(|centre| centre.file.as_deref().map(file_name)).collect(),
        "thread" => profile.threads().iter().map(|thread| thread.name.clone()).collect(),
        _ => profile.processes().iter().map(|process| process.name.clone()).collect(),
    };
    names.retain(|name| !name.is_empty());
    names.sort_unstable();
    names.dedup();
    names
}

fn processes(prefix: &str) -> Vec<Completion> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut by_name: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for pid in pids.filter(|&pid| pid != own) {
        let stat = procfs::stat(pid).ok().filter(|stat| !stat.kernel_thread && !stat.exiting);
        let Some(stat) = stat.filter(|_| procfs::executable(pid).is_ok()) else { continue };
        by_name.entry(stat.comm).or_default().push(pid);
    }
    let single = by_name.iter().filter(|(name, pids)| prefix.is_empty() && pids.len() == 1 && !is_number(name));
    let mut all: Vec<Completion> =
        single.filter_map(|(name, pids)| Some(Completion::new(name, format!("PID {}", pids.first()?)))).collect();
    let mut numbers: Vec<(u32, &str)> =
        by_name.iter().flat_map(|(name, pids)| pids.iter().map(|&pid| (pid, name.as_str()))).collect();
    numbers.sort_unstable();
    all.extend(numbers.into_iter().map(|(pid, name)| Completion::new(format!("{prefix}{pid}"), name)));
    all
}

fn running_sessions(socket: &SocketArgs) -> Vec<SessionSummary> {
    connect(socket).and_then(|mut client| client.list()).unwrap_or_default()
}

fn about_session(session: &SessionSummary) -> String {
    let state = if session.ended.is_some() { ", ended" } else { "" };
    format!("{}{state}", session.target)
}

/// `session:3` for each session, and `pid:123` for each process with a session.
fn session_sources(sessions: &[SessionSummary]) -> Vec<Completion> {
    let numbers = sessions.iter().map(|it| Completion::new(format!("session:{}", it.id), about_session(it)));
    let running = sessions.iter().filter(|session| session.ended.is_none());
    let pids = running.flat_map(|session| {
        session.pids.iter().map(|pid| Completion::new(format!("pid:{pid}"), about_session(session)))
    });
    numbers.chain(pids).collect()
}

fn watches(socket: &SocketArgs, prefix: &str) -> Vec<Completion> {
    let ServiceStatus { watches: statuses, state_dir: dir, .. } =
        connect(socket).and_then(|mut client| client.watches()).unwrap_or_default();
    let dir = dir.unwrap_or_else(|| Config::load_default().unwrap_or_default().state_dir.0);
    let mut names: Vec<String> = statuses.into_iter().map(|status| status.name).collect();
    names.extend(store::watches(&dir).unwrap_or_default());
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(|name| Completion::new(format!("{prefix}{name}"), "a watch of the service")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;

    fn with_cursor<T>(line: &str, ask: impl FnOnce(&TypedLine<'_>) -> T) -> T {
        let mut command = Cli::grouped();
        command.build();
        ask(&TypedLine::new(&command, line.split(' ').map(str::to_owned).collect()))
    }

    fn offered(line: &str) -> Vec<String> {
        with_cursor(line, |cursor| {
            let lines = listed(cursor).into_iter().filter_map(|it| it.line(cursor));
            lines.map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect()
        })
    }

    #[test]
    fn commands_values_and_options() {
        assert_eq!(offered("re"), ["record", "report"]);
        assert_eq!(offered("daemon st"), ["status", "stop"]);
        assert_eq!(offered("report --view=g"), ["--view=graph"]);
        assert_eq!(offered("export s"), ["svg", "speedscope"]);
        assert_eq!(offered("completions z"), ["zsh"]);
        assert_eq!(offered("man re"), ["record", "report"]);
        assert_eq!(offered("man daemon st"), ["status", "stop"]);
        assert_eq!(offered("man daemon stop s"), Vec::<String>::new());
        assert_eq!(offered("man nonsense s"), Vec::<String>::new());
        assert_eq!(offered("report --fu"), ["--function", "--full-names"]);
        assert_eq!(offered("report --graph --gra"), Vec::<String>::new(), "it was given");
        assert_eq!(offered("report --hide a --hi"), ["--hide"], "it may be given again");
        assert_eq!(offered("report "), Vec::<String>::new(), "options wait for a dash");
        assert_eq!(offered("record ls --vi"), Vec::<String>::new());
    }

    #[test]
    fn the_shell_completes_files() {
        for (line, expected) in [
            ("report ", Native::Files),
            ("report pid:", Native::Nothing),
            ("report -", Native::Nothing),
            ("record -o ", Native::Files),
            ("export html --diff ", Native::Files),
            ("export html --diff a.ccsd ", Native::Files),
            ("record ", Native::Commands),
            ("record ls ", Native::Files),
            ("man --output ", Native::Directories),
            ("attach ", Native::Nothing),
            ("report --min ", Native::Nothing),
        ] {
            assert_eq!(with_cursor(line, native), expected, "{line:?}");
        }
    }

    #[test]
    fn names_that_a_terminal_must_not_print_are_left_out() {
        with_cursor("attach ", |cursor| {
            for hostile in ["a\nb", "a\tb", "\x1b[2J", "a\u{202e}b", "a\r"] {
                assert_eq!(Completion::new(hostile, "").line(cursor), None, "{hostile:?}");
            }
            let line = Completion::new("a", "b\n\x1b[2J\tc").line(cursor).unwrap();
            assert!(line.starts_with("a\t") && line.matches(['\n', '\t', '\x1b']).count() == 2, "{line:?}");
        });
    }

    #[test]
    fn processes_by_number_and_name() {
        let parent = std::os::unix::process::parent_id().to_string();
        let all = processes("");
        assert!(all.iter().any(|it| it.value == parent), "{all:?}");
        assert!(processes("pid:").iter().any(|it| it.value == format!("pid:{parent}")));
        let own = std::process::id().to_string();
        assert!(all.iter().all(|it| it.value != own));
    }
}
