//! `ccsd dump`: the stacks of all threads of running processes.

pub mod crash;
mod fold;
mod json;
mod text;

use std::io::{self, Write, stdout};

use ccsd_collector::dump::{Dump, dump};
use ccsd_collector::process::procfs;
use crossbeam_channel::Receiver;

use crate::args::DumpArgs;
use crate::exit::{Exit, Failure};
use crate::signals::Asking;
use crate::style::{ColorChoice, Layout};
use crate::{say, warn};

use text::{Shown, text};

/// Processes of one dump at most, where descendants are asked for.
const MAX_PROCESSES: usize = 256;

/// Takes and prints them.
pub fn run(args: &DumpArgs, colour: ColorChoice) -> Result<Exit, Failure> {
    let layout = Layout::of(&stdout(), colour);
    let shown = Shown {
        full: args.full,
        kernel: args.kernel,
        stats: args.stats,
        limit: args.limit.unwrap_or(if args.full { 0 } else { text::LINES }),
    };
    let (dumps, mut failures) = take(&args.pids, args.children);
    if dumps.is_empty()
        && let Some(failure) = failures.pop()
    {
        failures.iter().for_each(|failure| warn(format_args!("{failure}")));
        return Err(failure.into());
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
        warn(format_args!("no stack could be had"));
    }
    Ok(if any && failures.is_empty() { Exit::SUCCESS } else { Exit::FAILURE })
}

/// From now on prints, to standard error, the stacks of processes (and, with `children`, of their descendants) whenever asked.
///
/// # Errors
/// If no thread can be started.
pub fn on_request(
    pids: Vec<u32>,
    children: bool,
    (asking, requests): (Asking, Receiver<()>),
    layout: Layout,
) -> io::Result<()> {
    let shown = Shown { full: false, kernel: false, stats: false, limit: text::LINES };
    let answer = move || {
        for () in requests {
            let (dumps, failures) = take(&pids, children);
            // In place of the status line, if there is one.
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

/// Dumps as lines without colour, of any length.
pub fn lines(dumps: &[Dump]) -> Vec<String> {
    let shown = Shown { full: false, kernel: false, stats: false, limit: text::LINES };
    let layout = Layout { width: None, colour: false };
    dumps.iter().flat_map(|dump| text(dump, &shown, layout).lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// The dumps of processes and, if asked for, of their descendants; what could not be had of those that were named.
pub fn take(pids: &[u32], children: bool) -> (Vec<Dump>, Vec<ccsd_collector::Error>) {
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
        match dump(pid) {
            Ok(dump) => dumps.push(dump),
            Err(failure) if at < named => failures.push(failure),
            // A descendant that has ended meanwhile, or is somebody else's.
            Err(_) => {}
        }
    }
    (dumps, failures)
}
