//! Dumps as text.

use ccsd_collector::dump::{Dump, End, FrameInfo, Method, ThreadDump};
use ccsd_profile::sanitise;

use super::fold::{StackLine, lines};
use crate::format::{count, counted, moment, nanoseconds, shell_word};
use crate::style::{TextLayout, Tone};

/// Maximum lines of a stack by default. Stacks that are deeper without recursion are rare.
pub const LINES: usize = 100;
const NAMED: usize = 8;
const COMMAND: usize = 200;

#[derive(Clone, Copy, Debug)]
pub struct DumpStyle {
    pub full: bool,
    pub kernel: bool,
    pub stats: bool,
    /// Maximum lines of each stack; 0 for all.
    pub limit: usize,
}

pub fn text(dump: &Dump, shown: &DumpStyle, layout: TextLayout) -> String {
    let mut text = head(dump, layout);
    for group in groups(dump, shown) {
        text.push('\n');
        push_group(&mut text, dump, &group, shown, layout);
    }
    if shown.stats {
        text.push('\n');
        push_stats(&mut text, dump, layout);
    }
    text
}

fn head(dump: &Dump, layout: TextLayout) -> String {
    let words: Vec<String> = dump.command.iter().map(|word| shell_word(word)).collect();
    let command = words.join(" ");
    let mut shortened: String = command.chars().take(COMMAND).collect();
    if shortened.len() < command.len() {
        shortened.push('\u{2026}');
    }
    let name = sanitise(&dump.name);
    let title = format!("Process {} ({name})", dump.pid);
    let mut text = layout.paint(Tone::Strong, &title);
    if !shortened.is_empty() {
        text.push_str(": ");
        text.push_str(&sanitise(&shortened));
    }
    let threads = counted(dump.threads.len() as u64, "thread", "threads");
    let line = format!("\n# {threads} on {}\n", moment(dump.taken_unix_ns));
    text.push_str(&layout.paint(Tone::Faint, &line));
    for note in &dump.notes {
        text.push_str(&layout.paint(Tone::Warning, &format!("# note: {}", sanitise(note))));
        text.push('\n');
    }
    text
}

fn groups<'a>(dump: &'a Dump, shown: &DumpStyle) -> Vec<Vec<&'a ThreadDump>> {
    let mut groups: Vec<Vec<&ThreadDump>> = Vec::new();
    let mut known = std::collections::HashMap::new();
    for thread in &dump.threads {
        let why = match &thread.method {
            Method::Stopped { .. } | Method::Sampled => "",
            Method::NotStopped { why } => why,
        };
        let kernel = if shown.kernel { thread.kernel_stack.as_slice() } else { &[] };
        // Addresses within a line do not matter.
        let stack: Vec<_> = thread.stack.iter().filter_map(|&at| dump.frames.get(at as usize)).map(place).collect();
        let key = (thread.state, &thread.wait, stack, &thread.end, why, kernel);
        match known.get(&key) {
            Some(&at) if !shown.full => {
                if let Some(group) = groups.get_mut::<usize>(at) {
                    group.push(thread);
                }
            }
            _ => {
                known.insert(key, groups.len());
                groups.push(vec![thread]);
            }
        }
    }
    groups
}

fn place(frame: &FrameInfo) -> (u32, Option<&str>, u32, bool) {
    (frame.function_id, frame.file.as_deref(), frame.line, frame.inlined)
}

fn push_group(text: &mut String, dump: &Dump, group: &[&ThreadDump], shown: &DumpStyle, layout: TextLayout) {
    let Some(first) = group.first() else { return };
    let named = |thread: &&ThreadDump| format!("{} \"{}\"", thread.tid, sanitise(&thread.name));
    let mut doing = first.state.text().to_owned();
    if let Some(wait) = &first.wait {
        doing.push_str(&format!(" in {}", sanitise(wait)));
    }
    let title = match group {
        [thread] => format!("Thread {}, {doing}", named(thread)),
        _ => {
            let names: Vec<String> = group.iter().take(NAMED).map(named).collect();
            let more = match group.len().checked_sub(NAMED) {
                Some(more @ 1..) => format!(" and {} more", count(more as u64)),
                _ => String::new(),
            };
            format!("{} threads, {doing}: {}{more}", count(group.len() as u64), names.join(", "))
        }
    };
    text.push_str(&layout.paint(Tone::Strong, &title));
    text.push('\n');
    let mut remark = |tone: Tone, remark: &str| {
        text.push_str("    ");
        text.push_str(&layout.paint(tone, remark));
        text.push('\n');
    };
    if let (Method::NotStopped { why }, false) = (&first.method, matches!(first.end, End::Missing(_))) {
        remark(Tone::Faint, &format!("[not stopped: {}]", sanitise(why)));
    }
    if shown.kernel {
        for function in &first.kernel_stack {
            remark(Tone::Faint, &format!("[kernel] {}", sanitise(function)));
        }
    }
    for line in lines(&dump.frames, &first.stack, shown.full, shown.limit) {
        push_line(text, &line, layout);
    }
    let end = match &first.end {
        End::Complete => return,
        End::Truncated(why) => format!("[truncated: {}]", sanitise(why)),
        End::Missing(why) => format!("[no stack: {}]", sanitise(why)),
    };
    text.push_str("    ");
    text.push_str(&layout.paint(Tone::Warning, &end));
    text.push('\n');
}

pub fn push_line(text: &mut String, line: &StackLine<'_>, layout: TextLayout) {
    let line = match line {
        StackLine::Frame(number, frame) => format!("    #{number:<3} {}", described(frame, layout)),
        StackLine::Recursion { count: all, listed, others } => {
            let head = format!("    [{} frames of recursion:", count(*all as u64));
            let mut lines = layout.paint(Tone::Warning, &head);
            for (number, frame) in listed {
                lines.push_str(&format!("\n      {:>9} x {}", count(*number as u64), described(frame, layout)));
            }
            if *others > 0 {
                lines.push_str(&format!("\n      {:>9} others", count(*others as u64)));
            }
            lines.push_str(&layout.paint(Tone::Warning, "]"));
            lines
        }
        StackLine::LeftOut(number) => {
            let what = format!("[{} left out; -n 0 shows all]", counted(*number as u64, "frame", "frames"));
            format!("    {}", layout.paint(Tone::Faint, &what))
        }
    };
    text.push_str(&line);
    text.push('\n');
}

/// `function at file:line (image)`
pub fn described(frame: &FrameInfo, layout: TextLayout) -> String {
    let mut text = sanitise(&frame.function).into_owned();
    if let Some(file) = &frame.file {
        text.push_str(" at ");
        text.push_str(&sanitise(file));
        if frame.line > 0 {
            text.push_str(&format!(":{}", frame.line));
        }
    }
    if frame.image.is_empty() {
        return text;
    }
    let inlined = if frame.inlined { " [inlined]" } else { "" };
    text.push_str(&layout.paint(Tone::Faint, &format!(" ({}){inlined}", sanitise(&frame.image))));
    text
}

fn push_stats(text: &mut String, dump: &Dump, layout: TextLayout) {
    let mut stops: Vec<u64> = dump
        .threads
        .iter()
        .filter_map(|thread| match thread.method {
            Method::Stopped { ns } => Some(ns),
            Method::Sampled | Method::NotStopped { .. } => None,
        })
        .collect();
    stops.sort_unstable();
    let mut line = match (stops.get(stops.len() / 2), stops.last()) {
        (Some(&median), Some(&longest)) => format!(
            "# stopped: {} for {} at the median, {} at most",
            counted(stops.len() as u64, "thread", "threads"),
            nanoseconds(median),
            nanoseconds(longest)
        ),
        _ => "# stopped: no thread".to_owned(),
    };
    let others = dump.threads.len().saturating_sub(stops.len());
    if others > 0 {
        line.push_str(&format!("; not stopped: {}", count(others as u64)));
    }
    line.push_str(&format!("; all of it took {}\n", nanoseconds(dump.took_ns)));
    text.push_str(&layout.paint(Tone::Faint, &line));
    for thread in &dump.threads {
        let time = match &thread.method {
            Method::Stopped { ns } => nanoseconds(*ns),
            Method::Sampled => "sampled while it ran".to_owned(),
            Method::NotStopped { why } => format!("not stopped: {}", sanitise(why)),
        };
        text.push_str(&format!("# {:>10}  {}  {}\n", thread.tid, sanitise(&thread.name), time));
    }
}
