//! `ccsd dump`: the stacks of all threads of running processes.

pub mod crash;
mod fold;
mod json;
mod text;

use std::collections::HashMap;
use std::io::{self, Write, stdout};
use std::path::PathBuf;

use anyhow::anyhow;
use ccsd_collector::Error;
use ccsd_collector::dump::{Dump, dump};
use ccsd_collector::procfs;
use ccsd_daemon::CollectorChoice;
use ccsd_daemon::client::{Client, ClientError};
use ccsd_profile::{FrameInfo, readable_names};
use crossbeam_channel::Receiver;

use crate::args::dump::DumpArgs;
use crate::connection;
use crate::exit::{Exit, Failure};
use crate::message::{say, warn};
use crate::processes;
use crate::signals::{Asking, end_between_holds};
use crate::style::{ColorChoice, TextLayout};

use text::{DumpStyle, text};

const MAX_PROCESSES: usize = 256;

pub fn run(args: &DumpArgs, colour: ColorChoice) -> Result<Exit, Failure> {
    let layout = TextLayout::of(&stdout(), colour);
    let shown = DumpStyle {
        full: args.full,
        kernel: args.kernel,
        stats: args.stats,
        limit: match args.limit {
            Some(lines) => lines as usize,
            None if args.full => 0,
            None => text::LINES,
        },
    };
    let by = connection::by(&args.by);
    let pids = processes::find(&args.processes, false)?;
    end_between_holds()?;
    let (mut dumps, mut failures) = take(&pids, args.children, &by);
    if !args.full_names && !args.json {
        dumps.iter_mut().for_each(|dump| shorten_names(&mut dump.frames));
    }
    if dumps.is_empty()
        && let Some(failure) = failures.pop()
    {
        failures.iter().for_each(|failure| warn(format_args!("{failure}")));
        return Err(failure);
    }
    let output = if args.json {
        json::text(&dumps)?
    } else {
        let texts: Vec<String> = dumps.iter().map(|dump| text(dump, &shown, layout)).collect();
        texts.join("\n")
    };
    stdout().write_all(output.as_bytes())?;
    stdout().flush()?;
    failures.iter().for_each(|failure| warn(format_args!("{failure}")));
    let any = dumps.iter().flat_map(|dump| &dump.threads).any(|thread| !thread.stack.is_empty());
    if !any {
        warn(format_args!("ccsd could not read any stack"));
    }
    Ok(if any && failures.is_empty() { Exit::SUCCESS } else { Exit::FAILURE })
}

/// Starts a thread that prints stacks on request to standard error. A daemon is asked for processes that this one may
/// not look at.
pub fn on_request(
    pids: Vec<u32>,
    children: bool,
    by: CollectorChoice,
    (asking, requests): (Asking, Receiver<()>),
    layout: TextLayout,
) -> io::Result<()> {
    let shown = DumpStyle { full: false, kernel: false, stats: false, limit: text::LINES };
    let answer = move || {
        for () in requests {
            let (mut dumps, failures) = take(&pids, children, &by);
            dumps.iter_mut().for_each(|dump| shorten_names(&mut dump.frames));
            // Overwrites the status line.
            let mut output = "\r\x1b[K".to_owned();
            for dump in &dumps {
                output.push_str(&text(dump, &shown, layout));
                output.push('\n');
            }
            for failure in failures {
                output.push_str(&format!("ccsd: {failure}\n"));
            }
            say(&output);
            asking.answered();
        }
    };
    std::thread::Builder::new().name("ccsd-dumps".to_owned()).spawn(answer).map(drop)
}

pub fn lines(dumps: &[Dump]) -> Vec<String> {
    let shown = DumpStyle { full: false, kernel: false, stats: false, limit: text::LINES };
    let layout = TextLayout { width: None, colour: false };
    dumps.iter().flat_map(|dump| text(dump, &shown, layout).lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

fn shorten_names(frames: &mut [FrameInfo]) {
    let short: HashMap<String, String> = readable_names(frames.iter().map(|frame| frame.function.as_str()))
        .into_iter()
        .map(|(name, short)| (name.to_owned(), short.into_owned()))
        .collect();
    for frame in frames {
        if let Some(short) = short.get(&frame.function) {
            frame.function.clone_from(short);
        }
    }
}

/// Dumps processes and, if asked for, their descendants. Returns also the errors of the named processes.
pub fn take(pids: &[u32], children: bool, by: &CollectorChoice) -> (Vec<Dump>, Vec<Failure>) {
    let mut all: Vec<u32> = Vec::new();
    for &pid in pids {
        if !all.contains(&pid) {
            all.push(pid);
        }
    }
    let named = all.len();
    if children {
        all.extend(procfs::descendants(pids).into_iter().filter(|&pid| pid != std::process::id()));
        all.truncate(MAX_PROCESSES.max(named));
    }
    let (mut dumps, mut failures) = (Vec::new(), Vec::new());
    for (at, &pid) in all.iter().enumerate() {
        match one(pid, by) {
            Ok(dump) => dumps.push(dump),
            Err(failure) if at < named => failures.push(failure),
            // A descendant that has ended meanwhile, or that this user may not look at.
            Err(_) => {}
        }
    }
    (dumps, failures)
}

fn one(pid: u32, by: &CollectorChoice) -> Result<Dump, Failure> {
    let own = (!by.daemon_only).then(|| dump(pid, None));
    match own {
        Some(Ok(own)) if own.refused() == 0 => return Ok(own),
        Some(Err(error)) if !matches!(error, Error::DumpNotPermitted { .. }) => return Err(error.into()),
        _ => {}
    }
    let mut why = ClientError::None(PathBuf::new());
    for path in &by.daemons {
        match Client::connect(path).and_then(|mut client| client.dump(pid)) {
            Ok(mut dump) => {
                dump.notes.push(format!("taken by the daemon at {}", path.display()));
                return Ok(dump);
            }
            Err(error @ ClientError::None(_)) if matches!(why, ClientError::None(_)) => why = error,
            Err(ClientError::None(_)) => {}
            Err(error) => why = error,
        }
    }
    match (own, why) {
        (Some(Ok(own)), _) => Ok(own),
        (Some(Err(error)), ClientError::None(_)) => Err(error.into()),
        (Some(Err(error)), why) => Err(Failure::bad_request(anyhow!("{error}; nor by a daemon: {why}"))),
        (None, why) => Err(why.into()),
    }
}
