//! Which event samples the target, and its `perf_event_attr`.
//!
//! Pure functions of an [`EventSpec`]; [`super::record`] parses the record layout that follows from `sample_type`.

use perf_event_open_sys::bindings as sys;

use super::layout::EventLayout;
use super::record::SampleLayout;
use crate::arch::user_regs::SAMPLED;

/// Bytes of user stack that the kernel copies with every sample.
///
/// The kernel's limit is 65,528 (a multiple of 8 below 64 KiB, and a record's size is a `u16`). Only bytes up to the
/// stack's
/// end are copied; what the size costs is room in the ring, where each record takes the full size.
pub const MAX_STACK_BYTES: u32 = 65_528 - 1_024;

/// What drives the sampling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The hardware cycle counter; `precise` is `precise_ip` (0 to 3).
    Cycles {
        /// `precise_ip`: how little skid is asked for.
        precise: u8,
    },
    /// The per-task CPU clock, a high-resolution timer that runs while the task runs.
    CpuClock,
    /// [`Event::CpuClock`] as group leader with the time stamp counter (`msr/tsc/`), for TSC cycles since the sample
    /// before.
    CpuClockTsc {
        /// `perf_event_attr.type` of the `msr` PMU.
        pmu_type: u32,
        /// `perf_event_attr.config` of its `tsc` event.
        config: u64,
    },
    /// The scheduler's tick as group leader with the thread's clock, for CPU time since the sample before; see
    /// [`super::tick`].
    Tick {
        /// `perf_event_attr.config`: the tracepoint's number.
        id: u64,
        /// The function that the tick's timer calls.
        handler: u64,
        /// Ticks per second.
        rate_hz: u32,
        /// Where the kernel's part of a stack has the return address of the interrupt itself.
        entry: u64,
    },
}

impl Event {
    /// The event's name as the user writes it after `-e`.
    pub fn name(self) -> &'static str {
        match self {
            Event::Cycles { .. } => "cycles",
            Event::CpuClock => "cpu-clock",
            Event::CpuClockTsc { .. } => "cpu-clock+tsc",
            Event::Tick { .. } => "tick",
        }
    }
}

/// Everything that decides the attributes of the sampling event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventSpec {
    /// What drives the sampling.
    pub event: Event,
    /// Samples per second of CPU time.
    pub rate_hz: u32,
    /// Whether samples are taken in the kernel too, with the kernel's part of the stack.
    pub kernel: bool,
    /// Whether threads and processes created later are sampled too.
    pub inherit: bool,
    /// Whether the event stays off until the target calls `execve`.
    pub enable_on_exec: bool,
    /// Bytes of user stack copied per sample, a multiple of 8, at most [`MAX_STACK_BYTES`].
    pub stack_bytes: u32,
    /// Whether reading the event tells how many records the kernel lost (`PERF_FORMAT_LOST`, since Linux 6.0).
    pub tells_lost: bool,
    /// Whether samples carry the user's call chain by frame pointers: for Go only; costs about a microsecond a sample.
    pub user_chain: bool,
}

#[cfg(test)]
impl EventSpec {
    /// The CPU clock and nothing else, for tests.
    pub const CLOCK: EventSpec = EventSpec {
        event: Event::CpuClock,
        rate_hz: 1000,
        kernel: false,
        inherit: true,
        enable_on_exec: false,
        stack_bytes: 0,
        tells_lost: false,
        user_chain: false,
    };
}

impl EventSpec {
    /// Nanoseconds of CPU time between two samples of a clock event.
    pub fn period_ns(&self) -> u64 {
        1_000_000_000 / u64::from(self.rate_hz.max(1))
    }

    /// How many weights a sample has: that of the event, and the TSC's where it is read.
    pub fn metrics(&self) -> usize {
        1 + usize::from(matches!(self.event, Event::CpuClockTsc { .. }))
    }

    /// Whether samples carry the values of the event group (`PERF_SAMPLE_READ`).
    pub fn reads_group(&self) -> bool {
        matches!(self.event, Event::CpuClockTsc { .. } | Event::Tick { .. })
    }

    /// What a read of the sampling event tells, and each sample where it carries a group's values.
    pub fn read_format(&self) -> u64 {
        let flag = |set: bool, flag: u32| if set { u64::from(flag) } else { 0 };
        flag(self.reads_group(), sys::PERF_FORMAT_GROUP) | flag(self.tells_lost, sys::PERF_FORMAT_LOST)
    }

    /// What samples carry.
    pub fn sample_layout(&self) -> SampleLayout {
        let interrupt = match self.event {
            Event::Tick { entry, .. } => Some(entry),
            _ => None,
        };
        let (group_read, tells_lost) = (self.reads_group(), self.tells_lost);
        SampleLayout { group_read, tells_lost, interrupt, ..SampleLayout::default() }
    }

    /// The attributes of the sampling event itself.
    pub fn sampling_attr(&self) -> sys::perf_event_attr {
        let mut attr = base_attr();
        match self.event {
            Event::Cycles { precise } => {
                attr.type_ = sys::PERF_TYPE_HARDWARE;
                attr.config = sys::PERF_COUNT_HW_CPU_CYCLES.into();
                attr.set_freq(1);
                attr.__bindgen_anon_1.sample_freq = self.rate_hz.into();
                attr.set_precise_ip(precise.into());
            }
            Event::CpuClock | Event::CpuClockTsc { .. } => {
                attr.type_ = sys::PERF_TYPE_SOFTWARE;
                attr.config = sys::PERF_COUNT_SW_CPU_CLOCK.into();
                attr.__bindgen_anon_1.sample_period = self.period_ns();
            }
            Event::Tick { id, .. } => {
                attr.type_ = sys::PERF_TYPE_TRACEPOINT;
                attr.config = id;
                attr.__bindgen_anon_1.sample_period = 1;
            }
        }
        attr.sample_type |= u64::from(sys::PERF_SAMPLE_PERIOD)
            | u64::from(sys::PERF_SAMPLE_CALLCHAIN)
            | u64::from(sys::PERF_SAMPLE_REGS_USER)
            | u64::from(sys::PERF_SAMPLE_STACK_USER);
        attr.sample_regs_user = SAMPLED;
        attr.sample_stack_user = self.stack_bytes;
        attr.set_exclude_callchain_kernel((!self.kernel).into());
        attr.set_exclude_callchain_user((!self.user_chain).into());
        if self.reads_group() {
            attr.sample_type |= u64::from(sys::PERF_SAMPLE_READ);
        }
        attr.read_format = self.read_format();
        self.apply_scope(&mut attr);
        if matches!(self.event, Event::Tick { .. }) {
            // The group is enabled as a whole: a clock that joins a running tracepoint counts only from the thread's
            // next switch on.
            attr.set_disabled(1);
        }
        attr
    }

    /// The attributes of the event that rides in the sampling event's group, if there is one: the TSC, or a clock.
    pub fn group_member_attr(&self) -> Option<sys::perf_event_attr> {
        let (type_, config) = match self.event {
            Event::CpuClockTsc { pmu_type, config } => (pmu_type, config),
            Event::Tick { .. } => (sys::PERF_TYPE_SOFTWARE, sys::PERF_COUNT_SW_TASK_CLOCK.into()),
            Event::Cycles { .. } | Event::CpuClock => return None,
        };
        let mut attr = base_attr();
        attr.type_ = type_;
        attr.config = config;
        attr.read_format = sys::PERF_FORMAT_GROUP.into();
        attr.set_inherit(self.inherit.into());
        // The msr PMU counts everything or nothing: it refuses any exclusion (PERF_PMU_CAP_NO_EXCLUDE).
        attr.set_exclude_hv(0);
        Some(attr)
    }

    /// The attributes of a thread's sampling event; in [`EventLayout::Compact`] it also tracks
    /// ([`EventSpec::tracking_attr`]).
    pub fn thread_attr(&self, layout: EventLayout) -> sys::perf_event_attr {
        let mut attr = self.sampling_attr();
        if layout == EventLayout::Compact {
            report_changes(&mut attr);
        }
        attr
    }

    /// The attributes of a sampling and of a tracking event for everything that runs on a CPU but the idle loop.
    pub fn whole_cpu_attrs(&self) -> (sys::perf_event_attr, sys::perf_event_attr) {
        // There is no parent to inherit from, nor one `execve` to wait for.
        let spec = EventSpec { inherit: false, enable_on_exec: false, ..*self };
        let mut sampling = spec.sampling_attr();
        sampling.set_exclude_idle(1);
        (sampling, spec.tracking_attr())
    }

    /// The attributes of an event on a CPU for every signal that kills (`signal:signal_deliver`, number `tracepoint`),
    /// with user registers and stack.
    pub fn fatal_signal_attr(&self, tracepoint: u64) -> sys::perf_event_attr {
        let mut attr = base_attr();
        attr.type_ = sys::PERF_TYPE_TRACEPOINT;
        attr.config = tracepoint;
        attr.__bindgen_anon_1.sample_period = 1;
        attr.sample_type |= u64::from(sys::PERF_SAMPLE_PERIOD)
            | u64::from(sys::PERF_SAMPLE_CALLCHAIN)
            | u64::from(sys::PERF_SAMPLE_RAW)
            | u64::from(sys::PERF_SAMPLE_REGS_USER)
            | u64::from(sys::PERF_SAMPLE_STACK_USER);
        attr.sample_regs_user = SAMPLED;
        attr.sample_stack_user = self.stack_bytes;
        // How the kernel delivers signals is no part of the program.
        attr.set_exclude_callchain_kernel(1);
        attr.set_disabled(1);
        // Whoever reads the ring is woken by each.
        attr.__bindgen_anon_2.wakeup_events = 1;
        attr
    }

    /// The attributes of an event that only counts a thread's CPU time, and that of all that it starts.
    pub fn counting_attr(&self) -> sys::perf_event_attr {
        let mut attr = base_attr();
        attr.type_ = sys::PERF_TYPE_SOFTWARE;
        attr.config = sys::PERF_COUNT_SW_TASK_CLOCK.into();
        self.apply_scope(&mut attr);
        attr
    }

    /// The attributes of the event for mappings, forks, execs, names and exits. It counts nothing: sampling cannot
    /// crowd out its records.
    pub fn tracking_attr(&self) -> sys::perf_event_attr {
        let mut attr = dummy_attr();
        report_changes(&mut attr);
        self.apply_scope(&mut attr);
        attr.set_exclude_kernel(1);
        attr
    }

    fn apply_scope(&self, attr: &mut sys::perf_event_attr) {
        attr.set_exclude_kernel((!self.kernel).into());
        attr.set_inherit(self.inherit.into());
        attr.set_disabled(self.enable_on_exec.into());
        attr.set_enable_on_exec(self.enable_on_exec.into());
    }
}

/// The attributes of a ring's owner: an event of ccsd itself that never fires, so that no exit of a target thread hangs
/// up the ring. `watermark`: bytes after which a reader is woken.
pub fn ring_owner_attr(watermark: u32) -> sys::perf_event_attr {
    let mut attr = dummy_attr();
    attr.set_exclude_kernel(1);
    attr.set_watermark(1);
    attr.__bindgen_anon_2.wakeup_watermark = watermark;
    attr
}

fn report_changes(attr: &mut sys::perf_event_attr) {
    attr.set_mmap(1);
    attr.set_mmap2(1);
    attr.set_comm(1);
    attr.set_comm_exec(1);
    attr.set_task(1);
}

fn dummy_attr() -> sys::perf_event_attr {
    let mut attr = base_attr();
    attr.type_ = sys::PERF_TYPE_SOFTWARE;
    attr.config = sys::PERF_COUNT_SW_DUMMY.into();
    attr
}

/// What all events share: the trailer (identifier, thread, time) on every record, and the clock. Events of one ring
/// must share a clock (`perf_event_set_output`); ccsd reads `CLOCK_MONOTONIC` too, so the sorter knows what is
/// complete.
fn base_attr() -> sys::perf_event_attr {
    let mut attr = sys::perf_event_attr {
        size: size_of::<sys::perf_event_attr>() as u32,
        sample_type: u64::from(sys::PERF_SAMPLE_IDENTIFIER)
            | u64::from(sys::PERF_SAMPLE_TID)
            | u64::from(sys::PERF_SAMPLE_TIME),
        clockid: libc::CLOCK_MONOTONIC,
        ..Default::default()
    };
    attr.set_use_clockid(1);
    attr.set_sample_id_all(1);
    attr.set_exclude_hv(1);
    attr
}
