//! Looks sources up: which file, session, watch or process a word means.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use ccsd_collector::procfs;
use ccsd_daemon::client::{Client, ClientError};
use ccsd_daemon::protocol::message::SessionSummary;
use ccsd_daemon::store;
use ccsd_profile::sanitise;
use nix::unistd::geteuid;

use crate::args::socket::SocketArgs;
use crate::connection::connect;
use crate::exit::Failure;
use crate::message::warn;
use crate::processes;
use crate::recording::is_profile;
use crate::source::ProfileSource;
use crate::stored::state_dir;
use crate::values::ProcessName;

#[derive(Debug)]
pub enum Located {
    File(PathBuf),
    Session(Box<Client>, u32),
    Watch(String),
    Process(u32),
}

#[derive(Clone, Copy, Debug)]
pub struct Lookup<'a> {
    pub daemon: Option<&'a SocketArgs>,
    pub files: bool,
    /// Whether a bare number or name may be a process without a session, and a name a watch.
    pub processes: bool,
}

struct Meaning {
    source: ProfileSource,
    about: String,
}

impl Lookup<'_> {
    /// Looks a source up. Fails if it does not exist, or if a bare word is ambiguous; the message has the spelling of
    /// each meaning.
    pub fn locate(self, source: &ProfileSource) -> Result<Located, Failure> {
        match source {
            ProfileSource::File(path) => match path.to_str().filter(|name| self.processes && !name.contains('/')) {
                Some(name) => self.locate_name(name),
                None => Ok(Located::File(path.clone())),
            },
            ProfileSource::Watch(name) => Ok(Located::Watch(name.clone())),
            ProfileSource::Session(_) if self.daemon.is_none() => {
                Err(refused(format!("{source} is a session of the daemon, which --no-daemon does not ask")))
            }
            ProfileSource::Session(id) => {
                let (client, sessions) = self.sessions().map_err(Failure::from)?;
                match sessions.iter().find(|session| session.id == *id) {
                    Some(session) => Ok(by_number(client, session)),
                    None => Err(refused(format!("there is no session {id}; {LISTS}"))),
                }
            }
            ProfileSource::Process(pid) => match self.sessions() {
                Ok((client, sessions)) => match self.latest_on(*pid, &sessions) {
                    Some(session) => Ok(Located::Session(Box::new(client), session.id)),
                    None if self.processes => Ok(Located::Process(*pid)),
                    None => others_on(*pid, &sessions).map_or(Ok(Located::Process(*pid)), Err),
                },
                Err(_) if self.processes => Ok(Located::Process(*pid)),
                Err(error) => Err(error.into()),
            },
            ProfileSource::Number(number) => self.locate_number(*number),
        }
    }

    /// As [`Lookup::locate`], for a command that needs a session.
    pub fn locate_session(self, source: &ProfileSource) -> Result<(Client, u32), Failure> {
        match self.locate(source)? {
            Located::Session(client, id) => Ok((*client, id)),
            Located::Process(pid) => Err(no_session_on(pid)),
            Located::File(_) | Located::Watch(_) => {
                Err(refused(format!("{source} is no session: give session:ID or pid:PID; {LISTS}")))
            }
        }
    }

    /// As [`latest_on`]. Where a process is a valid source, an ended session of a live process does not count.
    fn latest_on(self, pid: u32, sessions: &[SessionSummary]) -> Option<&SessionSummary> {
        latest_on(pid, sessions).filter(|session| session.ended.is_none() || !self.processes || !is_program(pid))
    }

    fn sessions(self) -> Result<(Client, Vec<SessionSummary>), ClientError> {
        let socket = self.daemon.ok_or_else(|| ClientError::None("--no-daemon".into()))?;
        let mut client = connect(socket)?;
        let sessions = client.list()?;
        Ok((client, sessions))
    }

    fn locate_number(self, number: u32) -> Result<Located, Failure> {
        let (client, sessions, error) = match self.sessions() {
            Ok((client, sessions)) => (Some(client), sessions, None),
            Err(error) => (None, Vec::new(), Some(error)),
        };
        let mut meanings = Vec::new();
        if self.files && Path::new(&number.to_string()).symlink_metadata().is_ok() {
            meanings.push(Meaning {
                source: ProfileSource::File(format!("./{number}").into()),
                about: "the file".to_owned(),
            });
        }
        let named = sessions.iter().find(|session| session.id == number);
        let on_process = self.latest_on(number, &sessions);
        meanings.extend(named.map(meaning_of_session));
        match on_process {
            Some(session) if session.id == number => {}
            Some(session) => {
                let about = format!("the process, with session {}", session.id);
                meanings.push(Meaning { source: ProfileSource::Process(number), about });
            }
            None if self.processes && is_program(number) => meanings.push(meaning_of_process(number)),
            None => {}
        }
        let Some(source) = only(&number.to_string(), meanings)? else {
            return Err(match error {
                Some(ClientError::None(path)) if self.daemon.is_some() && self.files => refused(format!(
                    "there is no file {number}, and no daemon at {} to ask for a session {number}",
                    path.display()
                )),
                Some(error) if self.daemon.is_some() => error.into(),
                _ if !self.files => {
                    refused(format!("there is no session {number}, and none on a process {number}; {LISTS}"))
                }
                None => refused(format!(
                    "there is neither a file nor a session {number}, nor a session on a process {number}; {LISTS}, \
                     and `ccsd attach --detach PID` makes one"
                )),
                Some(_) => {
                    refused(format!("there is neither a file nor a process {number}; --no-daemon asks no daemon"))
                }
            });
        };
        Ok(match (source, client) {
            (ProfileSource::File(path), _) => Located::File(path),
            (ProfileSource::Session(_), Some(client)) if let Some(session) = named => by_number(client, session),
            (_, Some(client)) if on_process.is_some() => {
                Located::Session(Box::new(client), on_process.map_or(number, |session| session.id))
            }
            _ => Located::Process(number),
        })
    }

    /// Looks up a name without a directory: a file, a watch or a process. A file that is no profile counts last: it is
    /// often the program itself.
    fn locate_name(self, name: &str) -> Result<Located, Failure> {
        let path = Path::new(name);
        let mut meanings = Vec::new();
        if is_profile(path) {
            meanings.push(Meaning {
                source: ProfileSource::File(format!("./{name}").into()),
                about: "the file".to_owned(),
            });
        }
        let is_watch = |socket| store::watch_dir(&state_dir(None, socket), name).is_ok();
        if self.daemon.is_some_and(is_watch) {
            meanings.push(Meaning { source: ProfileSource::Watch(name.to_owned()), about: "the watch".to_owned() });
        }
        let running = procfs::named(name);
        meanings.extend(running.iter().map(|process| meaning_of_process(process.pid)));
        let are_processes = meanings.iter().all(|it| matches!(it.source, ProfileSource::Process(_)));
        if !running.is_empty() && are_processes {
            // Selects and lists processes as `attach` does.
            let found = processes::find(&[ProcessName::Name(name.to_owned())], false)?;
            return found
                .first()
                .map_or_else(|| Err(nothing_is_called(name)), |&pid| self.locate(&ProfileSource::Process(pid)));
        }
        match only(name, meanings)? {
            Some(ProfileSource::Watch(name)) => Ok(Located::Watch(name)),
            None if path.symlink_metadata().is_err() && path.extension().is_none() => Err(nothing_is_called(name)),
            _ => Ok(Located::File(path.to_owned())),
        }
    }
}

const LISTS: &str = "`ccsd daemon status` lists sessions";

fn refused(message: String) -> Failure {
    Failure::bad_request(anyhow!(message))
}

fn nothing_is_called(name: &str) -> Failure {
    refused(format!("there is no file, watch or process called {}", sanitise(name)))
}

pub fn no_session_on(pid: u32) -> Failure {
    refused(format!("no session is on process {pid}; `ccsd attach --detach {pid}` makes one"))
}

fn meaning_of_session(session: &SessionSummary) -> Meaning {
    Meaning {
        source: ProfileSource::Session(session.id),
        about: format!("the session on {}", sanitise(&session.target)),
    }
}

fn meaning_of_process(pid: u32) -> Meaning {
    let name = procfs::comm(pid, pid).unwrap_or_default();
    Meaning { source: ProfileSource::Process(pid), about: format!("the process {}", sanitise(&name)) }
}

/// Whether a process exists that is not a kernel thread.
fn is_program(pid: u32) -> bool {
    procfs::stat(pid).is_ok_and(|stat| !stat.kernel_thread && !stat.exiting)
}

/// The latest session of a process, this user's or root's; running sessions come first. What others have chosen to sample, and
/// how, is looked at by the number of their session.
fn latest_on(pid: u32, sessions: &[SessionSummary]) -> Option<&SessionSummary> {
    let on = || sessions.iter().filter(|session| is_trusted(session) && session.is_on(pid));
    on().rfind(|session| session.ended.is_none()).or_else(|| on().next_back())
}

/// A session that was asked for by its number: a service that has been started again begins at 1, so it may be another user's
/// than was thought.
fn by_number(client: Client, session: &SessionSummary) -> Located {
    say_whose(session);
    Located::Session(Box::new(client), session.id)
}

/// Says whose a session is, if it is neither this user's nor root's.
pub fn say_whose(session: &SessionSummary) {
    if !is_trusted(session) {
        warn(format_args!("session {} is of user {}", session.id, session.owner_uid));
    }
}

/// Whether it is this user's or root's.
fn is_trusted(session: &SessionSummary) -> bool {
    [0, geteuid().as_raw()].contains(&session.owner_uid)
}

/// Says which session of another user is on a process, if there is no other.
fn others_on(pid: u32, sessions: &[SessionSummary]) -> Option<Failure> {
    let other = sessions.iter().rfind(|session| session.is_on(pid))?;
    let (id, uid) = (other.id, other.owner_uid);
    Some(refused(format!("no session of yours is on process {pid}; one of user {uid} is: session:{id}")))
}

fn only(word: &str, mut meanings: Vec<Meaning>) -> Result<Option<ProfileSource>, Failure> {
    if meanings.len() > 1 {
        return Err(ambiguous(word, &meanings));
    }
    Ok(meanings.pop().map(|meaning| meaning.source))
}

fn ambiguous(word: &str, meanings: &[Meaning]) -> Failure {
    let list: Vec<String> = meanings.iter().map(|it| format!("{} ({})", it.source, it.about)).collect();
    refused(format!("{} may mean several things; give one of {}", sanitise(word), list.join(", ")))
}

/// The session to end. A bare number is a session, never a process. Fails if the source matches several sessions, or
/// none.
pub fn session_to_stop(source: &ProfileSource, sessions: &[SessionSummary]) -> Result<u32, Failure> {
    let running_on = |pid: u32| -> Vec<&SessionSummary> {
        sessions.iter().filter(|session| session.is_on(pid) && session.ended.is_none()).collect()
    };
    match source {
        ProfileSource::Session(id) if !sessions.iter().any(|session| session.id == *id) => {
            Err(refused(format!("there is no session {id}")))
        }
        ProfileSource::Session(id) => Ok(*id),
        ProfileSource::Number(number) => match running_on(*number).iter().find(|session| session.id != *number) {
            None if sessions.iter().any(|session| session.id == *number) => Ok(*number),
            None => Err(refused(format!("there is no session {number}; {LISTS}"))),
            Some(other) => {
                let about = format!("the process, with session {}", other.id);
                let Some(own) = sessions.iter().find(|session| session.id == *number) else {
                    return Err(refused(format!("there is no session {number}; pid:{number} is {about}")));
                };
                let on_process = Meaning { source: ProfileSource::Process(*number), about };
                Err(ambiguous(&number.to_string(), &[meaning_of_session(own), on_process]))
            }
        },
        ProfileSource::Process(pid) => match running_on(*pid).as_slice() {
            [] => Err(refused(format!("no session runs on process {pid}; {LISTS}"))),
            [one] => Ok(one.id),
            several => {
                let meanings: Vec<Meaning> = several.iter().map(|session| meaning_of_session(session)).collect();
                Err(ambiguous(&source.to_string(), &meanings))
            }
        },
        ProfileSource::File(_) | ProfileSource::Watch(_) => {
            Err(refused(format!("{source} is no session: give session:ID or pid:PID; {LISTS}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccsd_daemon::protocol::message::{NEVER, SessionEnd};

    fn session(id: u32, pid: u32, ended: Option<SessionEnd>) -> SessionSummary {
        let text = serde_json::json!({
            "id": id, "owner_uid": 0, "target": "sleep", "pids": [pid], "detached": true, "started_unix_ns": 0,
            "duration_ns": 0, "event": "", "rate_hz": 1, "received": 0, "lost": 0, "contexts": 0, "readers": 0, "bytes": 0,
        });
        SessionSummary { ended, ..serde_json::from_value(text).unwrap() }
    }

    #[test]
    fn a_number_never_stops_the_session_on_a_process() {
        let stop = |text: &str, sessions: &[SessionSummary]| {
            session_to_stop(&ProfileSource::parse(text.into()).unwrap(), sessions)
                .map_err(|failure| failure.to_string())
        };
        let sessions = [session(7, 100, None), session(9, 7, None), session(10, 50, Some(SessionEnd::Target))];
        let both = stop("7", &sessions).unwrap_err();
        assert!(both.contains("session:7") && both.contains("pid:7 "), "{both}");
        assert_eq!(stop("session:7", &sessions), Ok(7));
        assert_eq!(stop("pid:7", &sessions), Ok(9));
        // Not even if the session was forgotten.
        let other = stop("7", &sessions[1..]).unwrap_err();
        assert!(other.contains("no session 7") && other.contains("pid:7"), "{other}");
        assert_eq!(stop("9", &sessions), Ok(9));
        assert!(stop("8", &sessions).unwrap_err().contains("no session 8"));
        assert!(stop("pid:50", &sessions).is_err());
        assert!(stop("profile.ccsd", &sessions).is_err() && stop("watch:x", &sessions).is_err());
        let two = [session(1, 7, None), session(2, 7, None)];
        let several = stop("pid:7", &two).unwrap_err();
        assert!(several.contains("session:1") && several.contains("session:2"), "{several}");
        assert_eq!(stop("7", &[session(7, 7, None)]), Ok(7));
    }

    #[test]
    fn the_latest_session_on_a_process_is_the_one_that_runs() {
        let ended = || Some(SessionEnd::Stopped);
        let sessions = [session(1, 5, ended()), session(2, 5, None), session(3, 5, ended())];
        assert_eq!(latest_on(5, &sessions).map(|session| session.id), Some(2));
        assert_eq!(latest_on(5, &sessions[2..]).map(|session| session.id), Some(3));
        assert!(latest_on(6, &sessions).is_none());
        // Strangers' do not count, nor do those on a process that had the number before.
        let of_stranger = SessionSummary { owner_uid: geteuid().as_raw() + 1, ..session(4, 5, None) };
        assert!(latest_on(5, std::slice::from_ref(&of_stranger)).is_none());
        assert!(others_on(5, &[of_stranger]).unwrap().to_string().contains("session:4"));
        let own = std::process::id();
        let start = procfs::stat(own).unwrap().start_time;
        for (start, is_it) in [(0, true), (start, true), (start - 1, false), (NEVER, false)] {
            let session = SessionSummary { starts: vec![start], ..session(4, own, None) };
            assert_eq!(latest_on(own, &[session]).is_some(), is_it, "{start}");
        }
    }
}
