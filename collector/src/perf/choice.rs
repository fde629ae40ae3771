//! Which event this machine and user can have, found out by trying.
//!
//! Hardware cycles with the least skid, else the CPU clock with the time stamp counter, else the CPU clock; kernel and
//! user,
//! else user only. Every step down is a note.

use std::io;
use std::str::FromStr;

use ccsd_profile::notes;

use super::attr::{Event, EventSpec, MAX_STACK_BYTES};
use super::event::open;
use super::tick;
use crate::error::{Error, Result};
use crate::system;

/// What the user asked for with `-e`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventChoice {
    /// The best there is.
    #[default]
    Auto,
    /// Hardware cycles or nothing.
    Cycles,
    /// The CPU clock with the TSC or nothing.
    CpuClockTsc,
    /// The CPU clock alone.
    CpuClock,
    /// The scheduler's tick or nothing.
    Tick,
}

impl EventChoice {
    /// As it is read.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            EventChoice::Auto => "auto",
            EventChoice::Cycles => "cycles",
            EventChoice::CpuClockTsc => "cpu-clock+tsc",
            EventChoice::CpuClock => "cpu-clock",
            EventChoice::Tick => "tick",
        }
    }
}

impl FromStr for EventChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<EventChoice> {
        match text {
            "auto" => Ok(EventChoice::Auto),
            "cycles" => Ok(EventChoice::Cycles),
            "cpu-clock+tsc" => Ok(EventChoice::CpuClockTsc),
            "cpu-clock" => Ok(EventChoice::CpuClock),
            "tick" => Ok(EventChoice::Tick),
            _ => Err(Error::EventUnavailable {
                event: text.to_owned(),
                why: "it is none of auto, cycles, cpu-clock+tsc, cpu-clock, tick".to_owned(),
            }),
        }
    }
}

/// Which side of the system call boundary is sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Kernel and user where permitted, else user.
    #[default]
    Auto,
    /// User code only.
    User,
    /// Kernel and user, or refuse.
    Kernel,
}

/// The event that was chosen, and why not a better one.
#[derive(Clone, Debug)]
pub struct ChosenEvent {
    /// Attributes for the session.
    pub spec: EventSpec,
    /// One line per step down.
    pub notes: Vec<String>,
}

impl ChosenEvent {
    /// The event as outputs name it: `cpu-clock:u` for user only, as perf writes it.
    pub fn label(&self) -> String {
        format!("{}{}", self.spec.event.name(), if self.spec.kernel { "" } else { ":u" })
    }
}

/// Checks a rate against the kernel's limit.
///
/// # Errors
/// [`Error::Rate`] for 0 and above `perf_event_max_sample_rate`.
pub fn check_rate(rate: u64) -> Result<u32> {
    let max = system::perf_max_sample_rate();
    match u32::try_from(rate) {
        Ok(rate) if rate >= 1 && rate <= max => Ok(rate),
        _ => Err(Error::Rate { rate, max }),
    }
}

/// Chooses by opening each candidate on the calling thread and closing it again.
///
/// # Errors
/// [`Error::Paranoid`] or [`Error::NoPerfEvents`] where nothing can be opened, [`Error::EventUnavailable`] or
/// [`Error::KernelRefused`] where what was asked for cannot.
pub fn choose(event: EventChoice, scope: Scope, rate_hz: u32, inherit: bool) -> Result<ChosenEvent> {
    let base = EventSpec {
        event: Event::CpuClock,
        rate_hz,
        kernel: false,
        inherit,
        enable_on_exec: false,
        stack_bytes: MAX_STACK_BYTES,
        tells_lost: false,
        user_chain: false,
    };
    // The least that every kernel with perf events gives to everybody below paranoid 3.
    probe(&base).map_err(|source| refusal(source, system::perf_event_paranoid()))?;
    let telling = EventSpec { tells_lost: true, ..base };
    let base = if probe(&telling).is_ok() { telling } else { base };

    if event == EventChoice::Tick {
        return tick(&base, scope);
    }
    let mut notes = Vec::new();
    let kernel = match scope {
        Scope::User => false,
        Scope::Auto | Scope::Kernel => match probe(&EventSpec { kernel: true, ..base }) {
            Ok(()) => true,
            Err(_) if scope == Scope::Kernel => return Err(Error::KernelRefused),
            Err(_) => {
                notes.push(format!(
                    "{}: kernel stacks need root, CAP_PERFMON, or kernel.perf_event_paranoid at most 1",
                    notes::USER_ONLY
                ));
                false
            }
        },
    };
    let base = EventSpec { kernel, ..base };

    if matches!(event, EventChoice::Auto | EventChoice::Cycles) {
        match cycles(&base) {
            Some(spec) => return Ok(ChosenEvent { spec, notes }),
            None if event == EventChoice::Cycles => {
                return Err(Error::EventUnavailable {
                    event: "cycles".to_owned(),
                    why: "this machine shows no hardware cycle counter (most virtual machines hide it)".to_owned(),
                });
            }
            None => notes.push("no hardware cycle counter here: sampling by the CPU clock".to_owned()),
        }
    }
    if matches!(event, EventChoice::Auto | EventChoice::CpuClockTsc) {
        match tsc(&base) {
            Ok(spec) => return Ok(ChosenEvent { spec, notes }),
            Err(why) if event == EventChoice::CpuClockTsc => {
                return Err(Error::EventUnavailable { event: "cpu-clock+tsc".to_owned(), why: why.to_owned() });
            }
            // Who wants user code only has not asked for what needs the kernel.
            Err(_) if scope == Scope::User => {}
            Err(why) => notes.push(format!("no TSC cycles: {why}")),
        }
    }
    Ok(ChosenEvent { spec: base, notes })
}

/// Whether this user may sample whatever runs on a CPU: root, CAP_PERFMON, or everybody at `perf_event_paranoid` 0.
pub fn may_observe_machine(spec: &EventSpec) -> bool {
    let Some(&cpu) = system::online_cpus().first() else { return false };
    open(&spec.whole_cpu_attrs().0, -1, cpu, None).is_ok()
}

fn cycles(base: &EventSpec) -> Option<EventSpec> {
    // precise_ip 3 has no skid at all, 0 has whatever the machine has.
    (0..=3)
        .rev()
        .map(|precise| EventSpec { event: Event::Cycles { precise }, ..*base })
        .find(|spec| probe(spec).is_ok())
}

fn tsc(base: &EventSpec) -> std::result::Result<EventSpec, &'static str> {
    if !base.kernel {
        return Err("the TSC event needs the right to sample the kernel");
    }
    let (pmu_type, config) = system::msr_tsc_event().ok_or("this kernel has no msr/tsc event")?;
    let spec = EventSpec { event: Event::CpuClockTsc { pmu_type, config }, ..*base };
    // Inherited events whose samples read a group exist since Linux 6.12.
    probe(&spec).map_err(|_| "this kernel does not read event groups of child threads (Linux 6.12 does)")?;
    Ok(spec)
}

/// The tick comes as often as it comes, in user code and in the kernel.
fn tick(base: &EventSpec, scope: Scope) -> Result<ChosenEvent> {
    let unavailable = |why: &str| Error::EventUnavailable { event: "tick".to_owned(), why: why.to_owned() };
    if scope == Scope::User {
        return Err(unavailable("it is an event of the kernel, and --user samples user code alone"));
    }
    let event = tick::find().map_err(|why| unavailable(&why))?;
    let rate_hz = if let Event::Tick { rate_hz, .. } = event { rate_hz } else { base.rate_hz };
    let spec = EventSpec { event, rate_hz, kernel: true, ..*base };
    // Inherited events whose samples read a group exist since Linux 6.12.
    probe(&spec)
        .map_err(|_| unavailable("this kernel does not read event groups of child threads (Linux 6.12 does)"))?;
    let note =
        format!("{}, {rate_hz} times a second: what runs in step with it is seen always or never", notes::BY_TICK);
    Ok(ChosenEvent { spec, notes: vec![note] })
}

fn probe(spec: &EventSpec) -> io::Result<()> {
    let leader = open(&spec.sampling_attr(), 0, -1, None)?;
    if let Some(member) = spec.group_member_attr() {
        open(&member, 0, -1, Some(std::os::fd::AsFd::as_fd(&leader)))?;
    }
    Ok(())
}

/// Tells a refusal by the machine's setting from one by a container.
fn refusal(source: io::Error, paranoid: Option<i32>) -> Error {
    match (source.raw_os_error(), paranoid) {
        (Some(libc::EACCES | libc::EPERM), Some(level)) if level > 2 => Error::Paranoid { level },
        _ => Error::NoPerfEvents { source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_its_cause() {
        let eacces = || io::Error::from_raw_os_error(libc::EACCES);
        assert!(matches!(refusal(eacces(), Some(3)), Error::Paranoid { level: 3 }));
        assert!(matches!(refusal(eacces(), Some(4)), Error::Paranoid { level: 4 }));
        assert!(matches!(refusal(eacces(), Some(2)), Error::NoPerfEvents { .. }));
        assert!(matches!(refusal(io::Error::from_raw_os_error(libc::ENOSYS), None), Error::NoPerfEvents { .. }));
    }

    #[test]
    fn names_of_events() {
        for choice in
            [EventChoice::Auto, EventChoice::Cycles, EventChoice::CpuClockTsc, EventChoice::CpuClock, EventChoice::Tick]
        {
            assert_eq!(choice.name().parse::<EventChoice>().unwrap(), choice);
        }
        assert!("cyclse".parse::<EventChoice>().unwrap_err().to_string().contains("cyclse"));
    }
}
