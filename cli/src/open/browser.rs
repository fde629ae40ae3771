//! Whether a browser can be started, and which.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::Uid;

const XDG_OPEN: &str = "xdg-open";
/// Time in which a failure to start shows. `xdg-open` ends soon; a browser may stay.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// Programs that open a page, each a command and its arguments. The first that works is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Browser {
    commands: Vec<Vec<OsString>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    NotAsked,
    /// Started by sudo or the like: the browser would run as root on the user's display.
    Sudo,
    Ssh,
    NoDisplay,
    NoProgram,
}

impl Obstacle {
    /// In words, where there is something to say.
    pub fn text(self) -> Option<&'static str> {
        match self {
            Obstacle::NotAsked => None,
            Obstacle::Sudo => Some("no browser is started as root"),
            Obstacle::Ssh => Some("no browser is started over ssh (BROWSER names one)"),
            Obstacle::NoDisplay => Some("no browser is started without a display"),
            Obstacle::NoProgram => Some("no browser is started: there is no xdg-open (BROWSER names a program)"),
        }
    }
}

/// The browser of this user: of `BROWSER`, else what `xdg-open` starts.
pub fn find() -> Result<Browser, Obstacle> {
    find_in(&|name| env::var_os(name), Uid::effective().is_root())
}

fn find_in(variable: &dyn Fn(&str) -> Option<OsString>, is_root: bool) -> Result<Browser, Obstacle> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let is_any = |names: &[&str]| names.iter().any(|name| set(name).is_some());
    if is_root && is_any(&["SUDO_UID", "SUDO_USER", "DOAS_USER", "PKEXEC_UID"]) {
        return Err(Obstacle::Sudo);
    }
    if let Some(browser) = set("BROWSER").map(|list| Browser::parse(&list)).filter(|it| !it.commands.is_empty()) {
        return Ok(browser);
    }
    if is_any(&["SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY"]) {
        return Err(Obstacle::Ssh);
    }
    if !is_any(&["DISPLAY", "WAYLAND_DISPLAY"]) {
        return Err(Obstacle::NoDisplay);
    }
    let path = set("PATH").unwrap_or_default();
    if !env::split_paths(&path).any(|dir| dir.join(XDG_OPEN).is_file()) {
        return Err(Obstacle::NoProgram);
    }
    Ok(Browser { commands: vec![vec![XDG_OPEN.into()]] })
}

impl Browser {
    /// Reads `BROWSER`: commands between colons, with `%s` for what is opened, which else comes last.
    fn parse(list: &OsStr) -> Browser {
        let words = |command: &[u8]| -> Vec<OsString> {
            let words = command.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
            words.map(|word| OsStr::from_bytes(word).to_owned()).collect()
        };
        let commands = list.as_bytes().split(|&byte| byte == b':').map(words);
        Browser { commands: commands.filter(|words| !words.is_empty()).collect() }
    }

    /// Starts the browser, which outlives this command.
    pub fn open(&self, target: &OsStr) -> Result<(), String> {
        let mut wrong = "no browser is named".to_owned();
        for command in &self.commands {
            match start(command, target) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    let name = command.first().map_or(Path::new(""), Path::new);
                    wrong = format!("cannot open the page with {}: {error}", name.display());
                }
            }
        }
        Err(wrong)
    }
}

fn with_target(command: &[OsString], target: &OsStr) -> Vec<OsString> {
    let place = b"%s";
    let mut is_placed = false;
    let mut words: Vec<OsString> = Vec::with_capacity(command.len() + 1);
    for word in command {
        let bytes = word.as_bytes();
        match bytes.windows(place.len()).position(|part| part == place) {
            Some(at) => {
                let (before, after) = (bytes.get(..at), bytes.get(at + place.len()..));
                let parts = [before.unwrap_or_default(), target.as_bytes(), after.unwrap_or_default()];
                words.push(OsStr::from_bytes(&parts.concat()).to_owned());
                is_placed = true;
            }
            None => words.push(word.clone()),
        }
    }
    if !is_placed {
        words.push(target.to_owned());
    }
    words
}

fn start(command: &[OsString], target: &OsStr) -> Result<(), String> {
    let words = with_target(command, target);
    let Some((program, arguments)) = words.split_first() else { return Err("nothing to run".to_owned()) };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // In a process group of its own: Ctrl-C at this terminal must not end the browser.
    let mut child = command.process_group(0).spawn().map_err(|error| error.to_string())?;
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        match child.try_wait() {
            Ok(Some(status)) if !status.success() => return Err(format!("it ended with {status}")),
            Ok(Some(_)) | Err(_) => return Ok(()),
            Ok(None) => thread::sleep(Duration::from_millis(10)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)], is_root: bool) -> Result<Browser, Obstacle> {
        let get = |name: &str| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| OsString::from(value));
        find_in(&get, is_root)
    }

    #[test]
    fn where_no_browser_is_started() {
        let display = ("DISPLAY", ":0");
        assert_eq!(found(&[], false), Err(Obstacle::NoDisplay));
        assert_eq!(found(&[("DISPLAY", "")], false), Err(Obstacle::NoDisplay));
        assert_eq!(found(&[display, ("PATH", "/nonexistent")], false), Err(Obstacle::NoProgram));
        assert_eq!(found(&[display, ("SSH_CONNECTION", "1 2 3 4")], false), Err(Obstacle::Ssh));
        assert_eq!(found(&[display, ("SUDO_UID", "1000"), ("BROWSER", "x")], true), Err(Obstacle::Sudo));
        // A shell that sudo once started may have become another user again.
        assert!(found(&[("SUDO_UID", "1000"), ("BROWSER", "x")], false).is_ok());
        assert!(found(&[("SSH_TTY", "/dev/pts/1"), ("BROWSER", "x")], false).is_ok());
    }

    #[test]
    fn browsers_that_a_variable_names() {
        let browser = Browser::parse(OsStr::new("first --new %s:: second  -x :"));
        let commands: Vec<Vec<OsString>> =
            browser.commands.iter().map(|command| with_target(command, OsStr::new("/a b.html"))).collect();
        assert_eq!(commands, [vec!["first", "--new", "/a b.html"], vec!["second", "-x", "/a b.html"]]);
        assert_eq!(found(&[("BROWSER", ": :")], false), Err(Obstacle::NoDisplay));
    }

    #[test]
    fn the_first_browser_that_works_is_taken() {
        let open = |list: &str| Browser::parse(OsStr::new(list)).open(OsStr::new("/x"));
        assert_eq!(open("/nonexistent/browser:false:true"), Ok(()));
        let error = open("/nonexistent/browser:false").unwrap_err();
        assert!(error.contains("with false: it ended with exit status: 1"), "{error}");
    }
}
