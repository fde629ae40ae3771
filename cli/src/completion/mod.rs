//! `ccsd completions`, and the hidden `ccsd __complete` that the scripts call for every TAB.
//!
//! `ccsd __complete WORDS...` takes the words up to the cursor. The answer's first line names what else the shell
//! offers: [`Native::name`]. The others are `VALUE<TAB>DESCRIPTION`.

mod candidates;
mod cursor;

use std::ffi::OsString;
use std::io::{Write, stdout};
use std::panic;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use clap_complete::Shell;

use crate::args::{Cli, CompletionsArgs, spelling};
use crate::exit::{Exit, Failure};
use candidates::Completion;
use cursor::TypedLine;

/// The first argument of a process that completes.
pub const ARGUMENT: &str = "__complete";
/// Time limit of a lookup: a hanging daemon or file system must not hang the shell.
const PATIENCE: Duration = Duration::from_secs(1);
const MAX_CANDIDATES: usize = 500;

pub fn print_script(args: &CompletionsArgs) -> Result<Exit, Failure> {
    let script = match args.shell {
        Shell::Bash => include_bytes!("bash.sh").to_vec(),
        Shell::Zsh => include_bytes!("zsh.zsh").to_vec(),
        Shell::Fish => include_bytes!("fish.fish").to_vec(),
        shell => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::grouped(), "ccsd", &mut script);
            script
        }
    };
    let mut out = stdout().lock();
    out.write_all(&script).and_then(|()| out.flush())?;
    Ok(Exit::SUCCESS)
}

/// Answers a completion script. Errors give an empty answer: the user is in the middle of a line.
pub fn complete(words: Vec<OsString>) -> Exit {
    panic::set_hook(Box::new(|_| {}));
    let words = std::iter::once("ccsd".into()).chain(words).collect();
    let words =
        spelling::replace(words).0.into_iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let mut command = Cli::grouped();
    command.build();
    let cursor = TypedLine::new(&command, words);
    let native = candidates::native(&cursor);
    // Commands, options and values from the definition need no lookup.
    let listed = candidates::listed(&cursor);
    let (sender, receiver) = channel();
    let request = candidates::CandidateLookup::new(&cursor);
    thread::spawn(move || request.send_candidates(&sender));
    let looked_up = receive(&receiver, Instant::now() + PATIENCE);
    let mut answer = format!("{}\n", native.name());
    let matching = listed.into_iter().chain(looked_up).filter_map(|candidate| candidate.line(&cursor));
    answer.extend(matching.take(MAX_CANDIDATES));
    let mut out = stdout().lock();
    let _ = out.write_all(answer.as_bytes()).and_then(|()| out.flush());
    Exit::SUCCESS
}

fn receive(receiver: &Receiver<Completion>, deadline: Instant) -> Vec<Completion> {
    let mut received = Vec::new();
    loop {
        match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(candidate) => received.push(candidate),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return received,
        }
    }
}
