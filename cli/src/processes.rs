//! Processes named on the command line by number or name.

use anyhow::anyhow;
use ccsd_collector::procfs::{Named, command_line, named, owner_name};
use ccsd_profile::sanitise;

use crate::exit::Failure;
use crate::format::shell_word;
use crate::message::warn;
use crate::table::cut;
use crate::values::ProcessName;

const LISTED: usize = 20;
const WIDTH: usize = 100;

/// Resolves processes, each once. A name must match exactly one that this user may look at, with `any` at least one.
pub fn find(wanted: &[ProcessName], any: bool) -> Result<Vec<u32>, Failure> {
    let mut pids = Vec::with_capacity(wanted.len());
    for process in wanted {
        let pid = match process {
            ProcessName::Pid(pid) => *pid,
            ProcessName::Name(name) => by_name(name, any)?,
        };
        if !pids.contains(&pid) {
            pids.push(pid);
        }
    }
    Ok(pids)
}

fn by_name(name: &str, any: bool) -> Result<u32, Failure> {
    let (own, others): (Vec<Named>, Vec<Named>) = named(name).into_iter().partition(|it| it.is_traceable || any);
    let name = sanitise(name);
    let refuse = |message: String| Err(Failure::bad_request(anyhow!("{message}")));
    let beside = match others.as_slice() {
        [] => String::new(),
        [one] => format!("PID {} of {}", one.pid, owner_name(one.pid)),
        several => format!("{} processes of other users", several.len()),
    };
    match own.as_slice() {
        [] if others.is_empty() => {
            refuse(format!("no process is called {name}; `pgrep -f` looks through command lines"))
        }
        [] => refuse(format!(
            "no process that you may look at is called {name}, but others are; with root's rights ccsd may:\n{}",
            list(&others)
        )),
        [one] => {
            if !others.is_empty() {
                warn(format_args!("{name} is PID {}; {beside} may not be looked at", one.pid));
            }
            Ok(one.pid)
        }
        several => {
            let more = if others.is_empty() { String::new() } else { format!("\nand {beside}, not to be looked at") };
            refuse(format!("several processes are called {name}; name one by its PID:\n{}{more}", list(several)))
        }
    }
}

fn list(processes: &[Named]) -> String {
    let line = |process: &Named| {
        let words: Vec<String> = command_line(process.pid).iter().map(|word| shell_word(&sanitise(word))).collect();
        let owner = owner_name(process.pid);
        let owner = owner.strip_prefix("user ").unwrap_or(&owner).to_owned();
        cut(&format!("{:>9}  {owner:<8}  {}", process.pid, words.join(" ")), WIDTH)
    };
    let mut lines: Vec<String> = processes.iter().take(LISTED).map(line).collect();
    if processes.len() > LISTED {
        lines.push(format!("{:>9}  and {} more", "...", processes.len() - LISTED));
    }
    lines.join("\n")
}
