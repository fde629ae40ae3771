//! Processes killed by signals, as text and as JSON.

use std::collections::{HashMap, HashSet};

use ccsd_profile::{Crash, EarlierStack, Membership, Profile, Update, sanitise, signal_name, signal_reason};
use serde::Serialize;

use super::fold::{StackLine, lines};
use super::json::FrameFields;
use super::text::{LINES, described, push_line};
use crate::format::{count, counted, moment, nanoseconds};
use crate::style::{TextLayout, Tone};

/// Maximum crashes shown with their stacks. Further crashes mostly have the same cause.
const SHOWN: usize = 8;

/// `prog (PID 7) of SIGSEGV (no memory at the address) in f at f.c:3`
fn headline(crash: &Crash) -> String {
    let mut text = format!("{} (PID {}) of {}", sanitise(&crash.process), crash.pid, signal(crash.signal));
    if let Some(reason) = signal_reason(crash.signal, crash.code) {
        text.push_str(&format!(" ({reason})"));
    }
    match crash.innermost() {
        Some(frame) => {
            text.push_str(&format!(" in {}", sanitise(&frame.function)));
            if let Some(file) = &frame.file {
                text.push_str(&format!(" at {}", sanitise(file)));
                if frame.line > 0 {
                    text.push_str(&format!(":{}", frame.line));
                }
            }
        }
        None => text.push_str(", its stack not known"),
    }
    text
}

fn signal(number: u32) -> String {
    signal_name(number).map_or_else(|| format!("signal {number}"), str::to_owned)
}

fn stack(crash: &Crash, layout: TextLayout) -> String {
    let mut text = String::new();
    // Either the whole stack, or its innermost part, a gap, and its outermost part.
    let at =
        if crash.left_out > 0 { (crash.left_out_after as usize).min(crash.stack.len()) } else { crash.stack.len() };
    let (inner, outer) = crash.stack.split_at(at);
    for line in lines(&crash.frames, inner, false, LINES) {
        push_line(&mut text, &line, layout);
    }
    if crash.left_out > 0 {
        let what = format!("    [{} not kept]\n", counted(crash.left_out, "frame", "frames"));
        text.push_str(&layout.paint(Tone::Faint, &what));
        let beyond = at + usize::try_from(crash.left_out).unwrap_or(usize::MAX / 2);
        for line in lines(&crash.frames, outer, false, LINES) {
            let line = match line {
                StackLine::Frame(number, frame) => StackLine::Frame(number + beyond, frame),
                other => other,
            };
            push_line(&mut text, &line, layout);
        }
    }
    if let Some(why) = &crash.truncated {
        text.push_str("    ");
        text.push_str(&layout.paint(Tone::Warning, &format!("[truncated: {}]", sanitise(why))));
        text.push('\n');
    }
    if let Some(EarlierStack { age_ns, stack }) = &crash.earlier {
        let what = format!("    outer frames as of the thread's sample {} before:\n", nanoseconds(*age_ns));
        text.push_str(&layout.paint(Tone::Warning, &what));
        for line in lines(&crash.frames, stack, false, LINES) {
            match line {
                // The frames between this stack and the inner one are unknown, so these frames have no numbers.
                StackLine::Frame(_, frame) => text.push_str(&format!("    #?   {}\n", described(frame, layout))),
                other => push_line(&mut text, &other, layout),
            }
        }
    }
    text
}

pub fn text(crash: &Crash, layout: TextLayout) -> String {
    let title = layout.paint(Tone::Strong, &format!("Died: {}", headline(crash)));
    let thread = format!("# thread {} \"{}\", {}", crash.tid, sanitise(&crash.thread), moment(crash.unix_ns));
    format!("{title}\n{}\n{}", layout.paint(Tone::Faint, &thread), stack(crash, layout))
}

/// Crashes of programs of one user that are alike.
struct Cause<'a> {
    first: &'a Crash,
    times: u64,
    user: Option<&'a Membership>,
}

impl Cause<'_> {
    fn uid(&self) -> Option<u32> {
        self.user.and_then(|user| user.uid)
    }
}

/// A line and, with `stacks`, a stack for each cause, so that a server whose workers keep crashing takes one line. Each user's
/// first cause is shown before any second one.
pub fn head(profile: &Profile, stacks: bool, layout: TextLayout) -> Vec<(String, String)> {
    let of_processes = users(profile);
    let mut causes: Vec<Cause<'_>> = Vec::new();
    for crash in profile.crashes() {
        let user = user_of(&of_processes, crash);
        let uid = user.and_then(|user| user.uid);
        match causes.iter_mut().find(|cause| cause.uid() == uid && is_alike(cause.first, crash)) {
            Some(cause) => cause.times += 1,
            None => causes.push(Cause { first: crash, times: 1, user }),
        }
    }
    let mut of_user: HashMap<Option<u32>, usize> = HashMap::new();
    let mut order: Vec<(usize, usize)> = Vec::with_capacity(causes.len());
    for (at, cause) in causes.iter().enumerate() {
        let nth = of_user.entry(cause.uid()).or_default();
        order.push((*nth, at));
        *nth += 1;
    }
    order.sort_unstable();
    order.truncate(SHOWN);
    let mut shown: Vec<usize> = order.into_iter().map(|(_, at)| at).collect();
    shown.sort_unstable();
    let line_of = |cause: &Cause<'_>| {
        let mut line = headline(cause.first);
        if let Some(user) = cause.user.filter(|_| of_user.len() > 1) {
            line.push_str(&format!(", user {}", sanitise(&user.user())));
        }
        line.push_str(&format!(", {}", moment(cause.first.unix_ns)));
        if cause.times > 1 {
            line.push_str(&format!(", and {} more like it", count(cause.times - 1)));
        }
        (line, if stacks { stack(cause.first, layout) } else { String::new() })
    };
    let mut all: Vec<(String, String)> = shown.iter().map(|&at| line_of(&causes[at])).collect();
    let in_lines: u64 = shown.iter().map(|&at| causes[at].times).sum();
    let more = (profile.crashes().len() as u64).saturating_sub(in_lines);
    if more > 0 {
        all.push((format!("and {} more (--json has all)", count(more)), String::new()));
    }
    all
}

/// What the processes of a profile belong to, by number and name. Of one number and name there may have been several users'.
fn users(profile: &Profile) -> HashMap<(u32, &str), Option<&Membership>> {
    let processes = if profile.crashes().is_empty() { &[] } else { profile.processes() };
    let mut users = HashMap::new();
    for process in processes {
        if let Some(membership) = &process.membership {
            let known = users.entry((process.pid, process.name.as_str())).or_insert(Some(&**membership));
            *known = known.filter(|known| known.uid == membership.uid);
        }
    }
    users
}

/// What the program of a crash belonged to, if that is known.
fn user_of<'a>(users: &HashMap<(u32, &'a str), Option<&'a Membership>>, crash: &'a Crash) -> Option<&'a Membership> {
    users.get(&(crash.pid, crash.process.as_str())).copied().flatten().filter(|user| user.uid.is_some())
}

/// Whether a program of the same name died in the same function of the same image, of the same signal.
fn is_alike(one: &Crash, other: &Crash) -> bool {
    let same_place = match (one.innermost(), other.innermost()) {
        (Some(one), Some(other)) => one.function == other.function && one.image == other.image,
        (one, other) => one.is_none() && other.is_none(),
    };
    (one.signal, one.code) == (other.signal, other.code) && one.process == other.process && same_place
}

/// Crashes that were already reported: a stream that restarts sends them again.
#[derive(Default)]
pub struct ReportedCrashes(HashSet<(u32, u64)>);

impl ReportedCrashes {
    pub fn news<'a>(&mut self, update: &'a Update) -> Vec<&'a Crash> {
        update.crashes.iter().filter(|crash| self.0.insert((crash.pid, crash.unix_ns))).collect()
    }
}

#[derive(Serialize)]
pub struct Json<'a> {
    pid: u32,
    tid: u32,
    process: &'a str,
    thread: &'a str,
    unix_ns: u64,
    /// Whose it was, if that is known.
    uid: Option<u32>,
    signal: String,
    signal_number: u32,
    code: i32,
    reason: Option<&'static str>,
    /// Innermost first.
    frames: Vec<FrameFields<'a>>,
    /// Position and number of frames that were not kept.
    left_out_after: Option<u32>,
    left_out: u64,
    complete: bool,
    truncated: Option<&'a str>,
    earlier: Option<Earlier<'a>>,
}

#[derive(Serialize)]
struct Earlier<'a> {
    age_ns: u64,
    /// Innermost first.
    frames: Vec<FrameFields<'a>>,
}

pub fn json(profile: &Profile) -> Vec<Json<'_>> {
    let users = users(profile);
    profile.crashes().iter().map(|crash| one(crash, user_of(&users, crash))).collect()
}

fn one<'a>(crash: &'a Crash, user: Option<&Membership>) -> Json<'a> {
    let frames = |stack: &'_ [u32]| -> Vec<FrameFields<'_>> {
        stack.iter().filter_map(|&at| crash.frames.get(at as usize)).map(FrameFields::of).collect()
    };
    Json {
        pid: crash.pid,
        tid: crash.tid,
        process: &crash.process,
        thread: &crash.thread,
        unix_ns: crash.unix_ns,
        uid: user.and_then(|user| user.uid),
        signal: signal(crash.signal),
        signal_number: crash.signal,
        code: crash.code,
        reason: signal_reason(crash.signal, crash.code),
        frames: frames(&crash.stack),
        left_out_after: (crash.left_out > 0).then_some(crash.left_out_after),
        left_out: crash.left_out,
        complete: crash.truncated.is_none(),
        truncated: crash.truncated.as_deref(),
        earlier: crash
            .earlier
            .as_ref()
            .map(|earlier| Earlier { age_ns: earlier.age_ns, frames: frames(&earlier.stack) }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use ccsd_profile::{FrameInfo, Process, ProfileLimits, SessionInfo};

    fn frame(function: &str, line: u32, function_id: u32) -> FrameInfo {
        let (image, file) = ("prog".to_owned(), Some("f.c".to_owned()));
        FrameInfo { function: function.to_owned(), image, file, line, function_id, ..FrameInfo::default() }
    }

    fn crash() -> Crash {
        Crash {
            pid: 7,
            tid: 8,
            process: "pr\x1bog".to_owned(),
            thread: "worker".to_owned(),
            signal: 11,
            code: 1,
            frames: vec![frame("f", 3, 1), frame("g", 5, 2), frame("main", 9, 3)],
            stack: vec![0, 1, 2],
            ..Crash::default()
        }
    }

    #[test]
    fn those_alike_have_one_line() {
        let of = |process: &str, pid| Crash { process: process.to_owned(), pid, ..crash() };
        let mut crashes: Vec<Crash> = (0..200).map(|pid| of("often", pid)).collect();
        crashes.push(Crash { signal: 6, code: 2, ..of("often", 500) });
        crashes.extend((0..20).map(|number| of(&format!("p{number}"), 1_000 + number)));
        let head = head(&profile(crashes, []), false, TextLayout::PLAIN);
        assert_eq!(head.len(), SHOWN + 1);
        assert!(head[0].0.contains("often (PID 0)") && head[0].0.ends_with(", and 199 more like it"), "{head:?}");
        assert!(
            head[1].0.contains("PID 500") && head[2].0.contains("p0") && !head[2].0.contains("like it"),
            "{head:?}"
        );
        assert_eq!(head[SHOWN].0, "and 14 more (--json has all)");
    }

    fn profile<const N: usize>(crashes: Vec<Crash>, processes: [Process; N]) -> Profile {
        let mut profile = Profile::new(SessionInfo::default(), ProfileLimits::reading());
        crashes.into_iter().for_each(|crash| assert!(profile.add_crash(crash)));
        processes.into_iter().for_each(|process| {
            profile.add_process(process);
        });
        profile
    }

    #[test]
    fn a_user_s_crashes_of_many_kinds_hide_no_other_s() {
        let of = |process: &str, pid| Crash { process: process.to_owned(), pid, ..crash() };
        let by = |uid, user: &str, name: &str, pid| {
            let membership = Membership { uid: Some(uid), user: user.to_owned(), ..Membership::default() };
            Process { membership: Some(Arc::new(membership)), ..Process::new(pid, 1, name) }
        };
        let strangers = (0..20).map(|pid| of("theirs", pid)).enumerate();
        let mut crashes: Vec<Crash> = strangers.map(|(at, crash)| Crash { signal: 1 + at as u32, ..crash }).collect();
        crashes.push(of("ours", 100));
        // Alike but for its user.
        crashes.push(of("ours", 101));
        let mut processes: Vec<Process> = (0..20).map(|pid| by(1_001, "mallory", "theirs", pid)).collect();
        processes.extend([by(0, "root", "ours", 100), by(1_001, "mallory", "ours", 101)]);
        let processes: [Process; 22] = processes.try_into().unwrap();
        let profile = profile(crashes, processes);
        let head = head(&profile, false, TextLayout::PLAIN);
        assert!(head[0].0.contains("PID 0") && head[6].0.contains("theirs (PID 6)"), "{head:?}");
        let root = &head[SHOWN - 1].0;
        assert!(
            root.contains("ours (PID 100)") && root.contains(", user root, ") && !root.contains("more"),
            "{head:?}"
        );
        assert_eq!(head[SHOWN].0, "and 14 more (--json has all)");
        let json = serde_json::to_value(json(&profile)).unwrap();
        assert_eq!((&json[20]["uid"], &json[21]["uid"]), (&0.into(), &1_001.into()));
    }

    #[test]
    fn it_says_where_and_of_what() {
        let text = text(&crash(), TextLayout::PLAIN);
        let first = text.lines().next().unwrap();
        assert!(first.ends_with("og (PID 7) of SIGSEGV (no memory at the address) in f at f.c:3"), "{first}");
        assert!(!text.contains('\x1b'));
        assert!(text.contains("\n    #2   main at f.c:9 (prog)\n"), "{text}");
    }

    #[test]
    fn recursion_is_folded_on_both_sides_of_what_is_missing() {
        let mut stack: Vec<u32> = vec![0];
        stack.extend([1; 200]);
        stack.push(2);
        let crash =
            Crash { stack, left_out_after: 101, left_out: 1_000, truncated: Some("too deep".to_owned()), ..crash() };
        let text = super::stack(&crash, TextLayout::PLAIN);
        assert!(text.lines().count() < 12, "{text}");
        assert!(text.contains("[1,000 frames not kept]") && text.contains("#1201 main"), "{text}");
        assert!(text.ends_with("[truncated: too deep]\n"), "{text}");
    }

    #[test]
    fn an_earlier_stack_is_no_part_of_this_one() {
        let earlier = Some(EarlierStack { age_ns: 1_200_000, stack: vec![1, 2] });
        let cut = Crash { stack: vec![0, 0], truncated: Some("too deep".to_owned()), earlier, ..crash() };
        let text = super::stack(&cut, TextLayout::PLAIN);
        let (own, rest) = text.split_once("    [truncated: too deep]\n").unwrap();
        assert!(!own.contains("main"), "{text}");
        assert!(
            rest.starts_with("    outer frames as of the thread's sample 1.20 ms before:\n    #?   g at"),
            "{text}"
        );
        assert!(rest.ends_with("    #?   main at f.c:9 (prog)\n"), "{text}");
        let json = serde_json::to_value(one(&cut, None)).unwrap();
        assert_eq!((&json["earlier"]["age_ns"], &json["complete"]), (&1_200_000.into(), &false.into()));
        assert_eq!(json["earlier"]["frames"][1]["function"], "main");
    }

    #[test]
    fn nothing_is_told_twice() {
        let update = Update { crashes: vec![crash()], ..Update::default() };
        let mut told = ReportedCrashes::default();
        assert_eq!(told.news(&update).len(), 1);
        assert_eq!(told.news(&update).len(), 0);
    }
}
