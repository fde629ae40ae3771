//! Hints when the answer lies elsewhere: functions without symbols, and waiting time.

use ccsd_daemon::config::WatchName;
use ccsd_profile::origin::{is_generated, is_interpreter};
use ccsd_profile::view::SummaryView;
use ccsd_profile::{Profile, SessionInfo, notes, sanitise};

/// Minimum share of time in stripped images for a hint.
const NOTABLE: f64 = 0.1;
/// A target that uses less than this fraction of a CPU mostly waits.
const BUSY: f64 = 0.2;
/// Minimum duration for a hint about waiting, nanoseconds.
const LONG_ENOUGH_NS: u64 = 1_000_000_000;
const FEW: u64 = 100;
/// Threads of fewer samples than this have begun when much of what they did was not sampled yet; and so many threads are
/// no exception.
const SHORT: u64 = 5;
const MANY_THREADS: u64 = 20;
/// The rate suggested for a short program.
const HIGH_RATE_HZ: u32 = 9_999;

/// The hints, each a sentence with a command. An interpreter's own functions need no symbols.
pub fn hints(profile: &Profile, watch: Option<&str>, view: &SummaryView, is_interpreted: bool) -> Vec<String> {
    let stripped = if is_interpreted { None } else { stripped(profile, view) };
    let origin = HintTarget::of(profile, watch);
    [biased(profile, origin), waiting(profile, origin), stripped, few(profile, origin)].into_iter().flatten().collect()
}

/// What was sampled, and so what a user can do to learn more.
#[derive(Clone, Copy)]
enum HintTarget<'a> {
    Program,
    /// Many processes, chosen by what they belong to, or all.
    Machine,
    Watch(&'a str),
}

impl<'a> HintTarget<'a> {
    fn of(profile: &'a Profile, watch: Option<&'a str>) -> Self {
        let session = profile.session();
        match watch {
            Some(name) => HintTarget::Watch(name),
            None if is_segment(session) => HintTarget::Watch(&session.target),
            None if session.pids.is_empty() && session.command.is_empty() => HintTarget::Machine,
            None => HintTarget::Program,
        }
    }
}

/// Whether a profile is a segment of a watch, opened as a file: the target is the watch's name. Of a session it is
/// a name with a number, or several words.
fn is_segment(session: &SessionInfo) -> bool {
    let is_by_daemon = session.notes.iter().any(|note| note.starts_with(notes::BY_DAEMON));
    is_by_daemon && session.command.is_empty() && WatchName::is_valid(&session.target)
}

/// A hint if most threads have few samples: each has a timer, which has its first sample when the thread has used a whole
/// period. What threads do at their beginning is then in no sample, however many there are.
fn biased(profile: &Profile, origin: HintTarget<'_>) -> Option<String> {
    let (session, received) = (profile.session(), profile.accounting().received);
    let threads = profile.threads().len() as u64;
    let has_timers =
        |note: &String| ![notes::PER_CPU, notes::MACHINE, notes::BY_TICK].iter().any(|by| note.starts_with(by));
    let remedy = match origin {
        HintTarget::Machine => return None,
        HintTarget::Watch(_) => "`layout = \"cpus\"` in the watch's configuration samples CPUs instead",
        HintTarget::Program => "`--per-cpu` samples CPUs instead",
    };
    let is_biased = threads >= MANY_THREADS && received < threads.saturating_mul(SHORT) && session.rate_hz > 0;
    (is_biased && session.notes.iter().all(has_timers)).then(|| {
        format!(
            "hint: {threads} threads have {:.1} samples each, and what a thread does in its first {:.1} ms is in none: shares \
             and their intervals say nothing about that; {remedy}",
            received as f64 / threads as f64,
            1e3 / f64::from(session.rate_hz)
        )
    })
}

fn share(fraction: f64) -> String {
    format!("{:.0}%", fraction * 100.0)
}

/// A hint if the program mostly waits. A machine has processes that wait and others that do not.
fn waiting(profile: &Profile, origin: HintTarget<'_>) -> Option<String> {
    let accounting = profile.accounting();
    let cpu = accounting.target_cpu_ns.filter(|_| accounting.duration_ns >= LONG_ENOUGH_NS)?;
    let busy = cpu as f64 / accounting.duration_ns as f64;
    let session = profile.session();
    let remedy = match origin {
        HintTarget::Machine => return None,
        HintTarget::Watch(name) => format!(
            "`ccsd report --watch {} --by process` lists its processes, and while one runs, `ccsd dump` with its number \
             shows what each thread waits for",
            sanitise(name)
        ),
        HintTarget::Program => {
            // A program started by ccsd has ended by now; its next run has another id.
            let started = session.command.first() == Some(&session.target);
            let pid = session.pids.first().filter(|_| !started).map_or_else(|| "PID".to_owned(), u32::to_string);
            format!("while it runs, `ccsd dump {pid}` shows what each thread waits for")
        }
    };
    (busy < BUSY).then(|| {
        format!(
            "hint: on the CPU for {} of the time; the rest it waited, for a free CPU or for something else: {remedy}",
            share(busy)
        )
    })
}

/// A hint for an interpreter or virtual machine whose functions have no names.
pub fn interpreter(view: &SummaryView) -> Option<String> {
    let rows = || view.own.iter().chain(&view.others);
    let is_named = |image: &str, name: &str| is_generated(image) && !name.starts_with(image);
    if rows().any(|row| is_named(&row.image, &row.name) && row.inherited_share.fraction >= NOTABLE) {
        return None;
    }
    let runtime = rows().filter(|row| is_interpreter(&row.image)).max_by_key(|row| row.inherited_weight)?;
    let fraction = runtime.inherited_share.fraction;
    if fraction < NOTABLE {
        return None;
    }
    let flag = match runtime.image.trim_start_matches("lib") {
        name if name.starts_with("python") => "`python3 -X perf` (3.12 or later) names them",
        name if name.starts_with("node") => "`node --perf-basic-prof --interpreted-frames-native-stack` names them",
        name if name.starts_with("java") || name.starts_with("jvm") => {
            "`java -XX:+PreserveFramePointer -XX:+UnlockDiagnosticVMOptions -XX:+DumpPerfMapAtExit` names them"
        }
        name if name.starts_with("dotnet") || name.starts_with("coreclr") => "`DOTNET_PerfMapEnabled=1` names them",
        name if name.starts_with("luajit") => "build it with -DLUAJIT_USE_PERFTOOLS to name what it compiles",
        name if name.starts_with("php") => "`opcache.jit_debug=16` names what its JIT compiles",
        _ => "it does not tell their names",
    };
    Some(format!(
        "{} of the time is below the interpreter {}, and the functions of its scripts have no names here: {flag}",
        share(fraction),
        sanitise(&runtime.image)
    ))
}

/// A hint for an image without symbols that has much of the time.
fn stripped(profile: &Profile, view: &SummaryView) -> Option<String> {
    let mut by_image: Vec<(&str, f64)> = Vec::new();
    for row in view.own.iter().chain(&view.others) {
        let Some(centre) = profile.cost_centre(row.function) else { continue };
        let image = profile.image(centre.image).map_or("", |image| image.name.as_str());
        if centre.linkage_name.is_some() || image.starts_with('[') {
            continue;
        }
        match by_image.iter_mut().find(|(name, _)| *name == image) {
            Some((_, sum)) => *sum += row.self_share.fraction,
            None => by_image.push((image, row.self_share.fraction)),
        }
    }
    let (image, fraction) = by_image.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    (fraction >= NOTABLE).then(|| {
        format!(
            "hint: {} is in functions of {} that have no names: install its debug symbols (on Debian, \
             `find-dbgsym-packages` names the package), or build it without -s",
            share(fraction),
            sanitise(image)
        )
    })
}

fn few(profile: &Profile, origin: HintTarget<'_>) -> Option<String> {
    let (samples, rate) = (profile.accounting().received, profile.session().rate_hz);
    let is_few = samples > 0 && samples < FEW && rate > 0 && rate < HIGH_RATE_HZ;
    let remedy = match origin {
        HintTarget::Program => {
            let factor = (f64::from(HIGH_RATE_HZ) / f64::from(rate.max(1))).round();
            format!("`-F {HIGH_RATE_HZ}` takes {factor} times as many")
        }
        HintTarget::Machine => "a longer `--duration` takes more".to_owned(),
        HintTarget::Watch(_) => {
            "a longer time (`--since`) has more, and `rate_hz` in the watch's configuration sets how many are taken"
                .to_owned()
        }
    };
    is_few.then(|| format!("hint: these are few samples; {remedy}"))
}

#[cfg(test)]
mod tests {
    use ccsd_profile::view::Selection;
    use ccsd_profile::{Process, ProfileLimits, Thread};

    use super::*;

    /// The hints for a few samples of what mostly waited.
    fn hints_of(session: SessionInfo, watch: Option<&str>) -> String {
        let mut profile = Profile::new(SessionInfo { rate_hz: 49, ..session }, ProfileLimits::default());
        let accounting = profile.accounting_mut();
        (accounting.received, accounting.duration_ns) = (7, 10_000_000_000);
        accounting.target_cpu_ns = Some(100_000_000);
        let view = SummaryView::new(&profile, &Selection::all());
        hints(&profile, watch, &view, false).join("\n")
    }

    #[test]
    fn short_threads_are_said_to_be_sampled_with_a_bias() {
        let told = |threads: u32, notes: Vec<String>| {
            let session = SessionInfo { rate_hz: 999, pids: vec![1], notes, ..SessionInfo::default() };
            let mut profile = Profile::new(session, ProfileLimits::default());
            let (name, parent, membership) = (String::new(), None, None);
            let process = profile.add_process(Process { parent, membership, ..Process::new(1, 0, name) });
            for tid in 0..threads {
                profile.add_thread(Thread { process, tid, name: String::new() });
            }
            profile.accounting_mut().received = 90;
            biased(&profile, HintTarget::of(&profile, None))
        };
        let hint = told(40, Vec::new()).unwrap();
        assert!(
            hint.starts_with("hint: 40 threads have 2.2 samples each, and what a thread does in its first 1.0 ms"),
            "{hint}"
        );
        assert!(hint.contains("`--per-cpu`"), "{hint}");
        assert_eq!((told(19, Vec::new()), told(18, Vec::new())), (None, None));
        assert_eq!(told(40, vec![format!("{} because", notes::PER_CPU)]), None);
    }

    #[test]
    fn a_hint_names_what_works_for_what_was_sampled() {
        let attached = hints_of(SessionInfo { pids: vec![77], ..SessionInfo::default() }, None);
        assert!(attached.contains("`ccsd dump 77`") && attached.contains("`-F 9999` takes 204 times"), "{attached}");
        let command = vec!["./prog".to_owned()];
        let started = SessionInfo { pids: vec![77], target: "./prog".to_owned(), command, ..SessionInfo::default() };
        assert!(hints_of(started, None).contains("`ccsd dump PID`"));
        let machine = hints_of(SessionInfo::default(), None);
        assert!(!machine.contains("dump") && !machine.contains("-F") && machine.contains("--duration"), "{machine}");
        // Watches have neither a rate on a command line nor one process.
        let watch = hints_of(SessionInfo { pids: vec![77], ..SessionInfo::default() }, Some("web"));
        assert!(watch.contains("`rate_hz`") && watch.contains("--watch web --by process"), "{watch}");
        assert!(!watch.contains("-F") && !watch.contains("77"), "{watch}");
        // A segment of a watch as a file, and a daemon's session on a program.
        let by_daemon = |target: &str| SessionInfo {
            pids: vec![77],
            target: target.to_owned(),
            notes: vec![format!("{}: its CPU time is that of two threads", notes::BY_DAEMON)],
            ..SessionInfo::default()
        };
        assert_eq!(hints_of(by_daemon("web"), None), watch);
        let session = hints_of(by_daemon("web (77)"), None);
        assert!(session.contains("`ccsd dump 77`") && session.contains("-F 9999"), "{session}");
    }
}
