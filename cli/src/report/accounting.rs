//! The head of every report: what was sampled, lost samples, and the cost of profiling.

use ccsd_profile::{Accounting, Profile, SessionInfo, Shed, notes, sanitise};

use super::file::LoadedFile;
use crate::dump::crash;
use crate::format::{bytes, count, counted, moment, nanoseconds, ratio, shell_word};
use crate::style::{TextLayout, Tone};
use crate::table::{cut, wrap};

/// Losses above this share of the expected samples are reported: they could shift shares by as much.
const NOTABLE: f64 = 0.01;
const LONGEST_COMMAND: usize = 200;

/// Maximum notes in the accounting, and characters of a note: ccsd's own are fewer and shorter.
const MAX_NOTES: usize = 6;
const LONGEST_NOTE: usize = 400;
/// Minimum CPU time of a target for which the cost share is meaningful, nanoseconds.
const LONG_ENOUGH_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, Default)]
pub struct Said {
    pub head: bool,
    /// Whether everything is printed, including what matters only when a process dies.
    pub verbose: bool,
}

struct AccountingLine {
    label: &'static str,
    text: String,
    tone: Tone,
}

/// The full accounting; each line begins with `#`. `question` has labelled lines about the query.
pub fn text(
    profile: &Profile,
    file: Option<&LoadedFile>,
    question: Vec<(&'static str, String)>,
    said: Said,
    layout: TextLayout,
) -> String {
    let (session, accounting) = (profile.session(), profile.accounting());
    let mut lines = vec![
        AccountingLine { label: "target", text: target(session), tone: Tone::Plain },
        AccountingLine { label: "event", text: event(session, accounting), tone: Tone::Plain },
        AccountingLine {
            label: "samples",
            text: samples(session, accounting),
            tone: warn_if(is_lossy(accounting) || exceeds(accounting)),
        },
        AccountingLine { label: "stacks", text: stacks(accounting), tone: warn_if(is_doubtful(accounting)) },
        AccountingLine { label: "cost", text: cost(accounting), tone: Tone::Plain },
    ];
    if let Some(text) = limits(accounting) {
        lines.push(AccountingLine { label: "limits", text, tone: Tone::Warning });
    }
    if let Some(text) = unseen(accounting) {
        let tone = warn_if(is_unseen(accounting));
        lines.insert(3, AccountingLine { label: "unseen", text, tone });
    }
    if let Some(text) = rates(session, accounting) {
        lines.insert(2, AccountingLine { label: "rates", text, tone: Tone::Plain });
    }
    let time = file.and_then(|file| file.stored.as_ref().map(|about| about.line()).or_else(|| file.time()));
    if let Some(text) = time {
        lines.insert(1, AccountingLine { label: "time", text, tone: Tone::Plain });
    }
    if let Some(text) = file.and_then(|file| file.stored.as_ref()?.gap_line()) {
        lines.insert(2, AccountingLine { label: "gaps", text, tone: Tone::Warning });
    }
    // On a terminal it has just been printed to standard error.
    for message in file.filter(|_| !layout.is_terminal()).map(LoadedFile::messages).unwrap_or_default() {
        lines.push(AccountingLine { label: "file", text: message, tone: Tone::Warning });
    }
    if said.head {
        lines.retain(|line| !["target", "time", "gaps"].contains(&line.label));
    }
    let matters = |note: &&String| said.verbose || !profile.crashes().is_empty() || !notes::is_of_crashes(note);
    for note in session.notes.iter().filter(matters) {
        lines.push(AccountingLine { label: "note", text: sanitise(note).into_owned(), tone: Tone::Plain });
    }
    lines.extend(question.into_iter().map(|(label, text)| AccountingLine { label, text, tone: Tone::Plain }));
    let mut text: String = lines.iter().map(|line| line.render(layout)).collect();
    // Without a file, the stacks were printed when the process died.
    let stacks = file.is_some();
    for (headline, stack) in crash::head(profile, stacks, layout) {
        text.push_str(&AccountingLine { label: "died", text: headline, tone: Tone::Warning }.render(layout));
        for line in stack.lines() {
            text.push_str(&layout.paint(Tone::Faint, "#"));
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

pub fn about(file: &LoadedFile, question: impl Iterator<Item = (&'static str, String)>, layout: TextLayout) -> String {
    let time = file.stored.as_ref().map(|about| about.line()).or_else(|| file.time());
    let target = ("target", target(file.profile.session()));
    let gaps = file.stored.as_ref().and_then(|about| about.gap_line());
    let head = [Some(target), time.map(|text| ("time", text)), gaps.map(|text| ("gaps", text))];
    let lines = head.into_iter().flatten().chain(question);
    lines.map(|(label, text)| AccountingLine { label, text, tone: Tone::Plain }.render(layout)).collect()
}

/// The processes attached to; empty for a program started by ccsd.
pub fn attached(profile: &Profile, layout: TextLayout) -> String {
    let session = profile.session();
    if session.command.first() == Some(&session.target) || session.pids.is_empty() {
        return String::new();
    }
    AccountingLine { label: "target", text: target(session), tone: Tone::Plain }.render(layout) + "\n"
}

/// The accounting in one line: samples, losses, and the cost of profiling.
pub fn line(profile: &Profile, layout: TextLayout) -> String {
    let (session, accounting) = (profile.session(), profile.accounting());
    let mut parts = vec![counted(accounting.received, "sample", "samples")];
    if session.rate_hz > 0 {
        parts[0].push_str(&format!(" at {} Hz", count(session.rate_hz.into())));
    }
    let missing = accounting.missing();
    if accounting.expected.is_some() {
        parts.push(if missing == 0 { "none missing".to_owned() } else { format!("{} missing", count(missing)) });
    }
    for (stacks, why) in [(accounting.truncated_total(), "truncated"), (accounting.stacks.with_gap, "with a gap")] {
        if stacks > 0 {
            parts.push(format!("{} {why}", counted(stacks, "stack", "stacks")));
        }
    }
    if let Some(unseen) = accounting.not_sampled.filter(|unseen| unseen.total() > 0) {
        let share =
            accounting.target_cpu_ns.map_or_else(String::new, |all| format!(" ({})", ratio(unseen.total(), all)));
        parts.push(format!("{}{share} not sampled", nanoseconds(unseen.total())));
    }
    if accounting.own.cpu_ns > 0 {
        // Not meaningful for a short run.
        let long = accounting.target_cpu_ns.filter(|&all| all >= LONG_ENOUGH_NS);
        let share = |own| long.map_or_else(String::new, |all| format!(" ({})", ratio(own, all)));
        parts.push(match accounting.own.by_phase {
            Some(own) => {
                let (lasting, once) = (own.lasting(), own.once());
                let once = nanoseconds(once);
                format!(
                    "ccsd used {} of CPU{} and {once} once, to start and read names",
                    nanoseconds(lasting),
                    share(lasting)
                )
            }
            None => format!("ccsd used {} of CPU{}", nanoseconds(accounting.own.cpu_ns), share(accounting.own.cpu_ns)),
        });
    }
    let (changing, others): (Vec<&String>, Vec<&String>) =
        session.notes.iter().partition(|note| notes::changes_what_is_measured(note));
    let others = match others.len() {
        0 => String::new(),
        some => format!("{}, ", counted(some as u64, "note", "notes")),
    };
    let text = format!("{}; {others}-v shows all", parts.join(", "));
    let width = layout.width.unwrap_or(usize::MAX);
    let mut lines = String::new();
    let mut say = |tone, text: &str| {
        wrap(text, width).iter().for_each(|line| lines.push_str(&(layout.paint(tone, line) + "\n")));
    };
    for note in changing.iter().take(MAX_NOTES) {
        say(Tone::Warning, &format!("note: {}", cut(&sanitise(note), LONGEST_NOTE)));
    }
    say(Tone::Faint, &text);
    lines
}

/// Whether to show the full accounting: a share may be off by more than a percent, a limit was reached, the rate
/// changed, or a process crashed.
pub fn is_notable(profile: &Profile) -> bool {
    let accounting = profile.accounting();
    is_lossy(accounting)
        || exceeds(accounting)
        || is_unseen(accounting)
        || is_doubtful(accounting)
        || limits(accounting).is_some()
        || rate_changed(profile.session(), accounting)
        || !profile.crashes().is_empty()
}

/// Whether there are more samples than the CPU time explains. Allows two dozen by chance; with user code only, the
/// expected number is approximate.
fn exceeds(accounting: &Accounting) -> bool {
    let most =
        accounting.expected.map_or(u64::MAX, |expected| expected.saturating_add(expected / 10).saturating_add(24));
    accounting.received > most
}

/// Whether another rate than the session's was used. (Segments of a watch have one rate each.)
fn rate_changed(session: &SessionInfo, accounting: &Accounting) -> bool {
    let pace = &accounting.pace;
    pace.changes > 0 || pace.rates.iter().any(|span| span.rate_hz != session.rate_hz)
}

fn warn_if(warn: bool) -> Tone {
    if warn { Tone::Warning } else { Tone::Plain }
}

impl AccountingLine {
    fn render(&self, layout: TextLayout) -> String {
        const INDENT: usize = 11;
        let room = layout.width.map_or(usize::MAX, |width| width.saturating_sub(INDENT));
        let mut text = String::new();
        for (i, part) in wrap(&self.text, room).iter().enumerate() {
            let head = format!("# {:8} ", if i == 0 { self.label } else { "" });
            text.push_str(&layout.paint(Tone::Faint, &head));
            text.push_str(&layout.paint(self.tone, part));
            text.push('\n');
        }
        text
    }
}

fn target(session: &SessionInfo) -> String {
    let words: Vec<String> = session.command.iter().map(|word| shell_word(&sanitise(word))).collect();
    let command = cut(&words.join(" "), LONGEST_COMMAND);
    let started = session.command.first() == Some(&session.target);
    let what = if started {
        let pids: Vec<String> = session.pids.iter().map(u32::to_string).collect();
        // A recording of perf without samples of its own program has none.
        if pids.is_empty() { command } else { format!("{command} (PID {})", pids.join(", ")) }
    } else if command.is_empty() {
        sanitise(&session.target).into_owned()
    } else {
        format!("{}: {command}", sanitise(&session.target))
    };
    // The text of `perf script` does not name the host.
    let on = if session.host.is_empty() { String::new() } else { format!(" on {}", sanitise(&session.host)) };
    format!("{what}{on}, {}", moment(session.started_unix_ns))
}

fn event(session: &SessionInfo, accounting: &Accounting) -> String {
    let rates = || accounting.pace.rates.iter().map(|span| span.rate_hz);
    let rate = match (session.rate_hz, rates().min().zip(rates().max())) {
        (_, Some((least, most))) if least < most => {
            format!(" at {} to {} Hz of CPU time", count(least.into()), count(most.into()))
        }
        (0, None) => String::new(),
        (rate, None) | (_, Some((rate, _))) => format!(" at {} Hz of CPU time", count(rate.into())),
    };
    format!("{}{rate}, for {}", sanitise(&session.event), nanoseconds(accounting.duration_ns))
}

fn rates(session: &SessionInfo, accounting: &Accounting) -> Option<String> {
    let pace = &accounting.pace;
    let mut parts = Vec::new();
    if pace.budget_ppm > 0 {
        let us = |ns: u64| format!("{:.1} us", ns as f64 / 1e3);
        let cost = match pace.target_cost_ns {
            0 => "what a sample costs is not known".to_owned(),
            target if pace.own_cost_ns == 0 => {
                format!("a sample costs the target {}; what it costs ccsd is not measured yet", us(target))
            }
            target => format!("a sample costs the target {} and ccsd {}", us(target), us(pace.own_cost_ns)),
        };
        parts.push(format!("{}% of the target's CPU time to spend; {cost}", pace.budget_ppm as f64 / 1e4));
    }
    if rate_changed(session, accounting) {
        let spans = pace
            .rates
            .iter()
            .map(|span| format!("{} Hz for {}", count(span.rate_hz.into()), nanoseconds(span.duration_ns)));
        parts.push(spans.collect::<Vec<_>>().join(", "));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn samples(session: &SessionInfo, accounting: &Accounting) -> String {
    // The kernel's user time of a program is only approximate.
    let about = if session.event.ends_with(":u") { "about " } else { "" };
    let expected = match accounting.expected {
        Some(expected) => format!("{about}{} expected, ", count(expected)),
        None => "expected not known, ".to_owned(),
    };
    let throttled = match accounting.throttle_events {
        0 => count(accounting.throttled),
        times => format!("{} (in {} throttlings)", count(accounting.throttled), count(times)),
    };
    format!(
        "{expected}{} received; {} lost, {throttled} throttled, {} dropped, {} undelivered",
        count(accounting.received),
        count(accounting.lost),
        count(accounting.dropped_by_us),
        count(accounting.undelivered()),
    )
}

/// CPU time without samples, by cause, if any.
fn unseen(accounting: &Accounting) -> Option<String> {
    let unseen = accounting.not_sampled.filter(|unseen| unseen.total() > 0)?;
    let share = accounting.target_cpu_ns.map_or_else(String::new, |all| format!(" ({})", ratio(unseen.total(), all)));
    let causes: Vec<String> =
        unseen.iter().map(|(cause, ns)| format!("{} {}", nanoseconds(ns), cause.text())).collect();
    Some(format!(
        "{} of CPU time{share} is in no sample and counts as [not sampled]: {}; --of-sampled leaves it out",
        nanoseconds(unseen.total()),
        causes.join(", ")
    ))
}

fn stacks(accounting: &Accounting) -> String {
    let truncated = accounting.truncated_total();
    let complete = accounting.received.saturating_sub(truncated).saturating_sub(accounting.stacks.with_gap);
    let mut text = format!("{} complete", count(complete));
    if accounting.stacks.read_late > 0 {
        text.push_str(&format!(" ({} read late)", count(accounting.stacks.read_late)));
    }
    if accounting.stacks.with_gap > 0 {
        text.push_str(&format!(", {} with a gap", count(accounting.stacks.with_gap)));
    }
    text.push_str(&format!(", {} truncated", count(truncated)));
    let reasons = accounting.stacks.truncated.iter();
    let mut reasons: Vec<(u64, &str)> = reasons.map(|(reason, samples)| (samples, reason.text())).collect();
    reasons.sort_by_key(|(samples, _)| std::cmp::Reverse(*samples));
    if !reasons.is_empty() {
        let reasons: Vec<String> =
            reasons.into_iter().map(|(samples, reason)| format!("{} {reason}", count(samples))).collect();
        text.push_str(&format!(" ({})", reasons.join(", ")));
    }
    text.push_str(&format!("; {} unsymbolised, {} elided", count(accounting.unsymbolised), count(accounting.elided)));
    text
}

fn cost(accounting: &Accounting) -> String {
    if accounting.own.cpu_ns == 0 && accounting.own.peak_rss_bytes == 0 {
        // Imported, or cut off before the end record.
        return "not known".to_owned();
    }
    let own = nanoseconds(accounting.own.cpu_ns);
    let peak = bytes(accounting.own.peak_rss_bytes);
    let target = match accounting.target_cpu_ns {
        Some(target) => format!("target {} CPU", nanoseconds(target)),
        None => "target's CPU time not known".to_owned(),
    };
    let share = |own: u64| accounting.target_cpu_ns.map_or_else(String::new, |all| format!(" ({})", ratio(own, all)));
    let phases = accounting.own.by_phase.map_or_else(String::new, |phases| {
        let (lasting, once) = (phases.lasting(), nanoseconds(phases.once()));
        format!(": {}{} while it ran and {once} once", nanoseconds(lasting), share(lasting))
    });
    format!("{target}; ccsd {own} CPU{}{phases}; {peak} peak", share(accounting.own.cpu_ns))
}

fn limits(accounting: &Accounting) -> Option<String> {
    let full: Vec<String> = accounting
        .shed
        .iter()
        .map(|(table, times)| format!("{} ({} times)", table.key().replace('_', " "), count(times)))
        .collect();
    let budget = match accounting.own.memory_bytes {
        0 => String::new(),
        bytes_of_all => {
            let parts = if full.len() == 1 { "its part" } else { "their parts" };
            format!(" within {parts} of {} of memory (--memory)", bytes(bytes_of_all))
        }
    };
    let lost = match accounting.shed.get(Shed::Queue) {
        0 => "no weight is lost, detail is",
        _ => "the weight of dropped samples is lost, and otherwise detail alone",
    };
    (!full.is_empty()).then(|| format!("no room for all {}{budget}: {lost}; see --stats", full.join(", ")))
}

fn is_lossy(accounting: &Accounting) -> bool {
    let missing = accounting.missing();
    missing > 1 && missing as f64 > NOTABLE * accounting.received.saturating_add(missing) as f64
}

fn is_unseen(accounting: &Accounting) -> bool {
    let unseen = accounting.not_sampled.map_or(0, |unseen| unseen.total());
    unseen as f64 > NOTABLE * accounting.target_cpu_ns.unwrap_or(0) as f64
}

fn is_doubtful(accounting: &Accounting) -> bool {
    let doubtful = accounting.truncated_total().max(accounting.elided).max(accounting.stacks.with_gap);
    doubtful > 1 && doubtful as f64 > NOTABLE * accounting.received as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccsd_profile::{NotSampled, OwnCpu, Phase, ProfileLimits, TruncationReason, Unseen};

    fn profile() -> Profile {
        let session = SessionInfo {
            target: "xz".to_owned(),
            command: vec!["xz".to_owned(), "a b".to_owned()],
            pids: vec![7],
            event: "cpu-clock:u".to_owned(),
            rate_hz: 999,
            host: "vm".to_owned(),
            ..SessionInfo::default()
        };
        let mut profile = Profile::new(session, ProfileLimits::default());
        let accounting = profile.accounting_mut();
        accounting.expected = Some(4_315);
        accounting.received = 4_312;
        accounting.stacks.truncated.set(TruncationReason::StackCopyTooSmall, 2);
        accounting.stacks.truncated.set(TruncationReason::NoUnwindInfo, 10);
        accounting.duration_ns = 4_320_000_000;
        accounting.target_cpu_ns = Some(4_310_000_000);
        accounting.own.cpu_ns = 38_000_000;
        accounting.own.peak_rss_bytes = 20 << 20;
        profile
    }

    #[test]
    fn all_is_said_in_few_lines() {
        assert_eq!(
            text(&profile(), None, Vec::new(), Said::default(), TextLayout::PLAIN),
            "# target   xz 'a b' (PID 7) on vm, 1970-01-01 00:00:00 UTC\n\
             # event    cpu-clock:u at 999 Hz of CPU time, for 4.32 s\n\
             # samples  about 4,315 expected, 4,312 received; 0 lost, 0 throttled, 0 dropped, 3 undelivered\n\
             # stacks   4,300 complete, 12 truncated (10 no unwind information, 2 stack copy too small); \
             0 unsymbolised, 0 elided\n\
             # cost     target 4.31 s CPU; ccsd 38.0 ms CPU (0.88%); 20.0 MiB peak\n"
        );
    }

    #[test]
    fn rates_are_said_where_there_were_several() {
        let mut profile = profile();
        let pace = &mut profile.accounting_mut().pace;
        pace.spend(999, 2_000_000_000);
        assert_eq!(rates(profile.session(), profile.accounting()), None);
        let pace = &mut profile.accounting_mut().pace;
        pace.spend(499, 1_500_000_000);
        pace.changes = 1;
        let said = text(&profile, None, Vec::new(), Said::default(), TextLayout::PLAIN);
        assert!(said.contains("\n# rates    999 Hz for 2.00 s, 499 Hz for 1.50 s\n# samples "), "{said}");
        let pace = &mut profile.accounting_mut().pace;
        (pace.budget_ppm, pace.target_cost_ns, pace.own_cost_ns) = (5_000, 16_040, 8_000);
        assert_eq!(
            rates(profile.session(), profile.accounting()).unwrap(),
            "0.5% of the target's CPU time to spend; a sample costs the target 16.0 us and ccsd 8.0 us; \
             999 Hz for 2.00 s, 499 Hz for 1.50 s"
        );
    }

    #[test]
    fn time_not_sampled_is_reported_by_cause() {
        let mut profile = profile();
        profile.accounting_mut().not_sampled = Some(NotSampled::default());
        assert_eq!(unseen(profile.accounting()), None);
        let split = NotSampled::split(431_000_000, &[(Unseen::Ended, 400_000_000)]);
        profile.accounting_mut().not_sampled = Some(split);
        let said = text(&profile, None, Vec::new(), Said::default(), TextLayout::PLAIN);
        assert!(
            said.contains(
                "undelivered\n# unseen   431 ms of CPU time (10.00%) is in no sample and counts as [not sampled]: 400 ms of \
                 threads that ended before their first sample, 31.0 ms for no known cause; --of-sampled leaves it out\n# stacks "
            ),
            "{said}"
        );
        assert!(is_unseen(profile.accounting()));
    }

    #[test]
    fn one_time_costs_are_no_share() {
        let mut profile = profile();
        assert!(line(&profile, TextLayout::PLAIN).contains(" ccsd used 38.0 ms of CPU (0.88%); "));
        let parts = [(Phase::Start, 2_000_000), (Phase::Images, 20_000_000), (Phase::Sampling, 9_000_000)];
        profile.accounting_mut().own.by_phase = Some(OwnCpu::split(38_000_000, &parts));
        let said = line(&profile, TextLayout::PLAIN);
        assert!(
            said.contains(" ccsd used 16.0 ms of CPU (0.37%) and 22.0 ms once, to start and read names; "),
            "{said}"
        );
        let said = text(&profile, None, Vec::new(), Said::default(), TextLayout::PLAIN);
        let cost = "# cost     target 4.31 s CPU; ccsd 38.0 ms CPU (0.88%): 16.0 ms (0.37%) while it ran and 22.0 ms once; 20.0 MiB peak\n";
        assert!(said.ends_with(cost), "{said}");
    }

    #[test]
    fn notes_that_change_what_is_measured_are_said_by_themselves() {
        let mut profile = profile();
        let known = |profile: &mut Profile, note: &str| profile.session_mut().notes.push(note.to_owned());
        known(&mut profile, "no hardware cycle counter here: sampling by the CPU clock");
        known(&mut profile, &format!("{}: no tracefs", notes::NO_CRASH_STACKS));
        assert!(line(&profile, TextLayout::PLAIN).ends_with("; 2 notes, -v shows all\n"));
        known(&mut profile, &format!("{}: it takes root", notes::USER_ONLY));
        let said = line(&profile, TextLayout::PLAIN);
        assert!(said.starts_with("note: user code only: it takes root\n4,312 samples "), "{said}");
        assert!(said.ends_with("; 2 notes, -v shows all\n"), "{said}");
        let whole = |verbose| text(&profile, None, Vec::new(), Said { head: false, verbose }, TextLayout::PLAIN);
        assert!(whole(true).contains("fatal signals") && !whole(false).contains("fatal signals"));
    }

    #[test]
    fn more_samples_than_the_time_explains_are_pointed_out() {
        let mut profile = profile();
        assert!(!is_notable(&profile));
        profile.accounting_mut().received = 4_315 * 11 / 10 + 25;
        assert!(is_notable(&profile));
    }

    #[test]
    fn a_terminal_wraps() {
        let text = text(&profile(), None, Vec::new(), Said::default(), TextLayout { width: Some(60), colour: false });
        assert!(text.lines().all(|line| line.starts_with('#') && line.chars().count() <= 60), "{text}");
    }

    #[test]
    fn names_cannot_forge_lines() {
        let mut profile = profile();
        profile.session_mut().target = "x\n# samples  all".to_owned();
        profile.session_mut().notes.push("a\x1b[2Jb".to_owned());
        let text = text(&profile, None, Vec::new(), Said::default(), TextLayout::PLAIN);
        assert_eq!(text.lines().count(), 6);
        assert!(!text.contains('\x1b'));
    }

    #[test]
    fn losses_are_pointed_out() {
        let mut accounting = Accounting { received: 1_000, lost: 5, ..Accounting::default() };
        assert!(!is_lossy(&accounting));
        accounting.lost = 20;
        assert!(is_lossy(&accounting));
    }
}
