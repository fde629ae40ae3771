//! The first line of a sample, as `perf script` prints it with one or the other choice of fields.

/// The event of a sample that does not name it.
pub(super) const NO_EVENT: &str = "samples";

/// Most characters of a command on Linux (`TASK_COMM_LEN` bytes less the zero), and where the numbers of the thread begin at most, as other
/// tools have longer ones.
const COMM_CHARS: usize = 15;
const MAX_COMM_BYTES: usize = 64;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ScriptSample<'a> {
    pub(super) comm: &'a str,
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) time_ns: Option<u64>,
    pub(super) period: Option<u64>,
    pub(super) event: &'a str,
}

impl<'a> ScriptSample<'a> {
    /// `COMM PID/TID [CPU] SECONDS: PERIOD EVENT:`, and what follows; all but the first two may be missing. A line of these two
    /// alone is one where a paragraph `begins` with it. `timed` says whether samples of this text have times, if that is known.
    pub(super) fn parse(line: &'a str, begins: bool, timed: Option<bool>) -> Option<(ScriptSample<'a>, &'a str)> {
        let line = line.trim();
        let words = line
            .match_indices(char::is_whitespace)
            .take_while(|&(at, _)| at <= MAX_COMM_BYTES)
            .map(|(at, space)| (at, at + space.len()));
        let found = words
            .filter(|&(end, start)| end > 0 && line.get(start..).is_some_and(|rest| rest.starts_with(is_digit)))
            .filter_map(|(end, start)| ScriptSample::of(line.get(..end)?.trim_end(), line.get(start..)?, timed))
            .filter(|(sample, _)| !sample.is_bare() || begins && !sample.comm.contains(" PERF_RECORD_"));
        // A command may have spaces and numbers in it, and look like all that comes after it. So the last place counts that fits:
        // among those that the kernel's commands reach, with a time as others have one, and with a period.
        found.max_by_key(|(sample, _)| {
            let has_time = sample.time_ns.is_some();
            let is_usual = timed.map_or(has_time, |timed| timed == has_time);
            (sample.comm.chars().count() <= COMM_CHARS, is_usual, has_time || sample.period.is_some())
        })
    }

    fn of(comm: &'a str, rest: &'a str, timed: Option<bool>) -> Option<(ScriptSample<'a>, &'a str)> {
        let (ids, mut rest) = word(rest);
        // By itself perf prints the process or the thread alone.
        let (pid, tid) = ids.split_once('/').unwrap_or((ids, ids));
        let (pid, tid) = (pid.parse().ok()?, tid.parse().ok()?);
        let (cpu, after) = word(rest);
        if cpu.strip_prefix('[').and_then(|cpu| cpu.strip_suffix(']')).is_some_and(is_number) {
            rest = after;
        }
        let (time, after) = word(rest);
        let time_ns = time.strip_suffix(':').and_then(nanoseconds);
        if time_ns.is_some() {
            rest = after;
        } else if timed != Some(false)
            && comm.split_whitespace().any(|word| word.starts_with(is_digit) && word.ends_with(':'))
        {
            // A number with a colon is a time, and no part of a command, even where it cannot be read.
            return None;
        }
        let (number, after) = word(rest);
        let period = number.parse().ok().filter(|_| is_number(number));
        if period.is_some() {
            rest = after;
        }
        let sample = |event| ScriptSample { comm, pid, tid, time_ns, period, event };
        if rest.is_empty() && period.is_none() {
            return Some((sample(NO_EVENT), ""));
        }
        // Its name may have spaces and colons in it, as those of tracepoints have.
        let ends = |at: usize| {
            rest.get(at + 1..).is_some_and(|after| after.is_empty() || after.starts_with(char::is_whitespace))
        };
        let end = rest.match_indices(':').map(|(at, _)| at).find(|&at| ends(at))?;
        let event = rest
            .get(..end)
            .filter(|event| !event.is_empty() && !event.starts_with(['[', '(']) && !event.starts_with(is_digit))
            // What perf prints of other records.
            .filter(|event| !event.starts_with("PERF_RECORD_"))?;
        // Without period and time it is one word, or anything would be a sample.
        if time_ns.is_none() && event.contains(char::is_whitespace) {
            return None;
        }
        Some((sample(event), rest.get(end + 1..)?.trim()))
    }

    /// Whether only the command and its numbers are there.
    pub(super) fn is_bare(&self) -> bool {
        self.time_ns.is_none() && self.event == NO_EVENT
    }

    /// Whether it is of this event, whatever its modifiers are.
    pub(super) fn is_of(&self, event: Option<&str>) -> bool {
        event.is_none_or(|wanted| {
            self.event.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/']))
        })
    }
}

fn word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    let (word, rest) = text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()));
    (word, rest.trim_start())
}

fn is_digit(c: char) -> bool {
    c.is_ascii_digit()
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A time such as `38348.268699`.
fn nanoseconds(time: &str) -> Option<u64> {
    let (seconds, fraction) = time.split_once('.')?;
    if !is_number(seconds) || !is_number(fraction) || fraction.len() > 9 {
        return None;
    }
    let fraction = fraction.parse::<u64>().ok()?.checked_mul(10u64.pow(9 - fraction.len() as u32))?;
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_perf_prints_first() {
        let of = |line, begins| {
            let (sample, rest) = ScriptSample::parse(line, begins, None)?;
            let ScriptSample { comm, pid, tid, time_ns, period, event } = sample;
            Some((comm, pid, tid, time_ns, period, event, rest))
        };
        let second = Some(1_500_000_000);
        for (line, expected) in [
            ("demo 7/8 1.500000:   99 cycles:u: ", ("demo", 7, 8, second, Some(99), "cycles:u", "")),
            ("            demo     7 [003] 1.5:   99 cycles: ", ("demo", 7, 7, second, Some(99), "cycles", "")),
            ("java 25607 1.500: cycles: ", ("java", 25607, 25607, second, None, "cycles", "")),
            ("java 25607/25608 [000] 1.500: cpu-clock: ", ("java", 25607, 25608, second, None, "cpu-clock", "")),
            ("Web Content 2 123/124 [011] cycles: ", ("Web Content 2", 123, 124, None, None, "cycles", "")),
            ("demo 7   250000 cpu-clock:pppH: ", ("demo", 7, 7, None, Some(250_000), "cpu-clock:pppH", "")),
            ("demo 7/7 1.5: ", ("demo", 7, 7, second, None, NO_EVENT, "")),
            ("demo 7/7 [001] ", ("demo", 7, 7, None, None, NO_EVENT, "")),
            ("demo 7", ("demo", 7, 7, None, None, NO_EVENT, "")),
            ("a b 3 7/8", ("a b 3", 7, 8, None, None, NO_EVENT, "")),
            (
                "x 7/7 1.5: 3 sched:sched_switch:   1140 main (/x)",
                ("x", 7, 7, second, Some(3), "sched:sched_switch", "1140 main (/x)"),
            ),
        ] {
            assert_eq!(of(line, true), Some(expected), "{line}");
        }
        // Within a paragraph these are something else, and so are those at any place.
        for line in ["demo 7", "demo 7/8", "a demo 7 [001]"] {
            assert_eq!(of(line, false), None, "{line}");
        }
        for line in [
            "",
            "7",
            "nonsense",
            "nonsense 7x",
            "a 7 b c",
            "demo 7/7 1.5: PERF_RECORD_LOST lost 12",
            "demo 7/7 1.5: PERF_RECORD_MMAP2 7/7: [0x1(0x2) @ 0 08:01 1 2]: r-xp /bin/x: ",
            "demo 7/7 1x: 99 cycles: ",
            "demo 7/7 PERF_RECORD_LOST lost 12",
            "x 99999999999: y",
        ] {
            assert_eq!(of(line, true), None, "{line}");
        }
    }

    #[test]
    fn a_command_that_looks_like_a_sample_is_a_command() {
        for comm in
            ["a 1 cpu-clock:", "PERF_RECORD_", "a 1/1 1.0: 9 e:", "a 1 1.0: 9 e:", "bash 1/1 [0] x:", "7 7 1.5: 1 x:"]
        {
            for (format, timed) in [
                ("20001/20002 [001] 1.5:   99 cpu-clock:", true),
                ("20001/20002 1.5: cpu-clock:", true),
                ("20001/20002 99 cpu-clock:", false),
                ("20001/20002 [001] cpu-clock:", false),
            ] {
                // In a text whose samples have no time, a command with one is taken for what it looks like, unless that is known.
                let line = format!("{comm:>16} {format}");
                for known in [None, Some(timed)].into_iter().filter(|known| timed || known.is_some()) {
                    let found = ScriptSample::parse(&line, true, known).map(|(sample, _)| sample);
                    let found = found.map(|it| (it.comm, it.pid, it.tid, it.event));
                    assert_eq!(found, Some((comm, 20_001, 20_002, "cpu-clock")), "{line}");
                }
            }
        }
    }

    #[test]
    fn events_are_chosen_by_name() {
        let (sample, _) = ScriptSample::parse("demo 7/8 1.5: 99 cycles:u: ", true, None).unwrap();
        assert!(sample.is_of(None) && sample.is_of(Some("cycles")) && sample.is_of(Some("cycles:u")));
        assert!(!sample.is_of(Some("cycle")) && !sample.is_of(Some("instructions")));
    }
}
