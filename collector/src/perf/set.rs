//! The events of one session: rings per CPU, and events spread as [`EventLayout`] says.
//!
//! Each CPU has a ring for samples and one for mappings, forks, execs, names and exits, so that under load only samples
//! are
//! dropped (but in [`EventLayout::Compact`]). A dummy event of ccsd owns the ring; others are redirected to it.
//! `inherit`
//! demands events bound to a CPU: an inherited event that may run on any has no ring.

mod ended;
pub mod renew;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ccsd_profile::notes;
use hashbrown::HashMap;
use perf_event_open_sys::bindings::perf_event_attr;

use super::attr::{Event, EventSpec, MAX_STACK_BYTES};
use super::counters::{CounterTotals, EventCounts, Past, sum_of};
use super::files::{CountedFiles, FileShare, files_of_all_events, open_elsewhere};
use super::layout::EventLayout;
use super::layout_choice::{files_per_target, room};
use super::ring_buffer::PAGE;
use super::rings::Rings;
use super::signals::{self, FatalSignals, SignalPoint, Unwatched};
use super::sorter::EventSorter;
use super::{closer, event, tick};
use crate::error::{Error, Result, doing};
use crate::machine_time::{MachineTime, MachineTimes};
use crate::perf::cgroups::ControlGroup;
use crate::procfs;
use crate::system;

/// Full-size samples that a ring must hold, by which the reader may be late. A smaller ring shortens the stack copy.
const SAMPLES_PER_RING: usize = 8;

/// The events of one session.
pub struct EventSet {
    spec: EventSpec,
    layout: EventLayout,
    cpus: Vec<i32>,
    /// Per CPU the descriptors of the ring owners, sample ring first.
    owners: Vec<(OwnedFd, OwnedFd)>,
    /// Those whose counts add up to what the target has used: the sampling events, or those that only count.
    counting: Vec<OwnedFd>,
    /// What else belongs to sampling at this rate: what rides in the groups of those, or the events that sample CPUs.
    samplers: Vec<OwnedFd>,
    others: Vec<OwnedFd>,
    fatal: Vec<OwnedFd>,
    /// Events on threads that may have inherited others, by the identifier of the one that samples.
    late: HashMap<u64, LateEvents>,
    /// Files that may be open for this session and the events of all others.
    file_limit: u64,
    /// Those of this session among the events of all.
    counted: CountedFiles,
    ring_bytes: usize,
    /// Whether there are threads whose time nothing counts.
    uncounted: bool,
    /// What was counted at other rates than the present one.
    past: Past,
    /// The machine's own time, where all that runs is the target.
    machine: Option<MachineTime>,
    /// The control groups whose processes the events sample. None where everything that runs on a CPU is sampled.
    groups: Arc<[ControlGroup]>,
    grouped: GroupedTime,
}

/// What was counted while control groups alone were sampled.
#[derive(Debug, Default)]
struct GroupedTime {
    /// By events that are closed.
    past: EventCounts,
    /// The machine's time meanwhile, until the last change of what is sampled, nanoseconds.
    machine_ns: u64,
    /// The machine's time when groups began to be sampled, if they are.
    since: Option<u64>,
}

/// Events on one CPU of a thread that may have inherited others on that CPU.
struct LateEvents {
    sampling: OwnedFd,
    member: Option<OwnedFd>,
    tracking: Option<OwnedFd>,
}

impl LateEvents {
    fn all(&self) -> impl Iterator<Item = &OwnedFd> {
        std::iter::once(&self.sampling).chain(&self.member).chain(&self.tracking)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenOutcome {
    Yes,
    Gone,
}

impl EventSet {
    /// Maps the rings , adjusts `spec.stack_bytes` to them, and returns them as one merged stream, with a
    /// note if they had to be small. In [`EventLayout::Cpus`], sampling begins with [`EventSet::begin_cpus`].
    ///
    /// # Errors
    /// [`Error::MlockAllowance`]; [`Error::WholeMachineRefused`] for [`EventLayout::Cpus`]; [`Error::System`] for
    /// anything
    /// unforeseen.
    pub fn new(
        mut spec: EventSpec,
        layout: EventLayout,
        ring_bytes: usize,
        notes: &mut Vec<String>,
    ) -> Result<(EventSet, EventSorter)> {
        let cpus = system::online_cpus();
        let Rings { rings, sample_pages, tracking_pages, most } = Rings::map(&cpus, ring_bytes, spec.rate_hz)?;
        // 256 bytes for everything in a record that is not stack; see `record`.
        let fits = (sample_pages * PAGE / SAMPLES_PER_RING).saturating_sub(256) / 8 * 8;
        spec.stack_bytes = spec.stack_bytes.min(MAX_STACK_BYTES).min(u32::try_from(fits).unwrap_or(MAX_STACK_BYTES));
        if sample_pages < most {
            notes.push(format!(
                "{} {} KiB of ring per CPU: {} KiB of stack are copied per sample; raise `ulimit -l` or kernel.perf_event_mlock_kb for more",
                notes::SMALL_RINGS,
                sample_pages * PAGE / 1024,
                spec.stack_bytes / 1024
            ));
        }
        let owners = rings
            .chunks(2)
            .map(|pair| Ok((pair[0].owner().try_clone()?, pair[1].owner().try_clone()?)))
            .collect::<io::Result<Vec<_>>>()
            .map_err(doing("duplicate a perf event"))?;
        let sample_layout = spec.sample_layout();
        let file_limit = system::raise_file_limit().saturating_sub(open_elsewhere());
        let ring_bytes = (sample_pages + tracking_pages) * PAGE * cpus.len();
        let (counting, samplers, others) = (Vec::new(), Vec::new(), Vec::new());
        let mut set = EventSet {
            spec,
            layout,
            cpus,
            owners,
            counting,
            samplers,
            others,
            fatal: Vec::new(),
            late: HashMap::new(),
            file_limit,
            counted: CountedFiles::default(),
            ring_bytes,
            uncounted: false,
            past: Past::default(),
            machine: None,
            groups: Arc::new([]),
            grouped: GroupedTime::default(),
        };
        if layout == EventLayout::Cpus {
            set.open_cpus().map_err(|error| match error.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => Error::WholeMachineRefused,
                Some(libc::EMFILE | libc::ENFILE) => set.too_many_files(),
                _ => doing("open perf events on all CPUs")(error),
            })?;
        }
        set.count_files();
        Ok((set, EventSorter::new(rings, sample_layout)))
    }

    /// Bounds the files of all events from now on.
    pub fn share_files(&mut self, share: Arc<dyn FileShare>) {
        self.counted.share(share);
    }

    /// The attributes in use.
    pub fn spec(&self) -> &EventSpec {
        &self.spec
    }

    /// How the events are spread.
    pub fn layout(&self) -> EventLayout {
        self.layout
    }

    /// Whether every thread that was opened is counted, so that [`EventSet::read_counters`] is known.
    pub fn counts_all(&self) -> bool {
        !self.uncounted
    }

    /// Opens the events of one thread. `late` says that it may have inherited events already; see [`EventSet::take_late`].
    ///
    /// # Errors
    /// [`Error::TooManyFiles`] at the descriptor limit, [`Error::NotPermitted`] where the kernel refuses the process.
    pub fn open_thread(&mut self, tid: u32, late: bool) -> Result<OpenOutcome> {
        let Ok(pid) = i32::try_from(tid) else { return Ok(OpenOutcome::Gone) };
        let opened = match self.layout {
            EventLayout::Cpus => self.count_thread(pid),
            EventLayout::Threads | EventLayout::Compact if self.is_full() => {
                Err(io::Error::from_raw_os_error(libc::EMFILE))
            }
            EventLayout::Threads | EventLayout::Compact => self.follow_thread(pid, late),
        };
        self.count_files();
        match opened {
            Ok(()) => Ok(OpenOutcome::Yes),
            Err(error) => match error.raw_os_error() {
                Some(libc::ESRCH) => Ok(OpenOutcome::Gone),
                None if error.kind() == io::ErrorKind::TimedOut => {
                    let pid = procfs::thread_group(tid).unwrap_or(tid);
                    Err(Error::NoAnswer { pid, owner: procfs::owner_label(tid) })
                }
                Some(libc::EMFILE | libc::ENFILE) => Err(self.too_many_files()),
                Some(libc::EACCES | libc::EPERM) => {
                    let pid = procfs::thread_group(tid).unwrap_or(tid);
                    Err(Error::NotPermitted { pid, owner: procfs::owner_label(tid) })
                }
                _ => Err(doing(format!("open perf events on thread {tid}"))(error)),
            },
        }
    }

    /// Whether one thread more would take what ccsd needs for other files.
    fn is_full(&self) -> bool {
        self.is_full_with(0)
    }

    /// The same where `more` files are open that are not counted yet.
    fn is_full_with(&self, more: u64) -> bool {
        let one = files_per_target(self.layout, &self.spec).saturating_mul(self.cpus.len() as u64);
        files_of_all_events().saturating_add(more).saturating_add(one) > room(self.file_limit)
            || self.counted.refusal(more.saturating_add(one)).is_some()
    }

    fn count_files(&mut self) {
        let files = self.files();
        self.counted.set(files);
    }

    /// Tells how many threads the target has, of which each has inherited events.
    pub fn tell_threads(&self, live: u64) {
        let places = if self.layout == EventLayout::Cpus { 1 } else { self.cpus.len() as u64 };
        let each = files_per_target(self.layout, &self.spec).saturating_mul(places);
        self.counted.tell_events(if self.spec.inherit { live.saturating_mul(each) } else { 0 });
    }

    /// How many CPUs have rings.
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// Bytes of all rings.
    pub fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }

    fn too_many_files(&self) -> Error {
        let one = files_per_target(self.layout, &self.spec).saturating_mul(self.cpus.len() as u64);
        if let Some(why) = self.counted.refusal(one) {
            return Error::FileShare(why);
        }
        Error::TooManyFiles { open: files_of_all_events(), limit: self.file_limit }
    }

    /// Events on a thread that sample it and all that it starts, on every CPU.
    fn follow_thread(&mut self, tid: i32, late: bool) -> io::Result<()> {
        let before = [self.counting.len(), self.samplers.len(), self.others.len()];
        let opened = self.open_on_cpus(tid, late);
        if opened.is_err() {
            // It would be sampled on some CPUs only.
            let events = [&mut self.counting, &mut self.samplers, &mut self.others];
            events.into_iter().zip(before).for_each(|(events, before)| events.truncate(before));
        }
        opened
    }

    fn open_on_cpus(&mut self, tid: i32, late: bool) -> io::Result<()> {
        let mut tracking = Vec::new();
        if self.layout != EventLayout::Compact {
            // Tracking first: no mapping may fall between the first sample and the first record of mappings.
            let attr = self.spec.tracking_attr();
            for (&cpu, (_, owner)) in self.cpus.iter().zip(&self.owners) {
                let fd = event::open(&attr, tid, cpu, None)?;
                event::redirect(&fd, owner).map_err(revoked)?;
                tracking.push(fd);
            }
        }
        let mut tracking = tracking.into_iter();
        let attr = self.spec.thread_attr(self.layout);
        let switches_on = matches!(self.spec.event, Event::Tick { .. }) && !self.spec.enable_on_exec;
        for (&cpu, (owner, _)) in self.cpus.iter().zip(&self.owners) {
            let (leader, member) = open_sampler(&self.spec, &attr, tid, cpu, owner)?;
            if switches_on {
                event::enable(&leader).map_err(revoked)?;
            }
            if late {
                let events = LateEvents { sampling: leader, member, tracking: tracking.next() };
                self.late.insert(event::id(&events.sampling)?, events);
            } else {
                self.counting.push(leader);
                self.samplers.extend(member);
                self.others.extend(tracking.next());
            }
        }
        Ok(())
    }

    /// Takes the events of a thread that turned out to have inherited others on a CPU, by its samples' identifier.
    /// Dropping closes them and all heirs, and may wait.
    pub fn take_late(&mut self, id: u64) -> Vec<OwnedFd> {
        let taken = self.late.remove(&id);
        self.count_files();
        let all = |late: LateEvents| std::iter::once(late.sampling).chain(late.member).chain(late.tracking);
        taken.into_iter().flat_map(all).collect()
    }

    /// Counts a thread's time and that of all it starts, on any CPU. Without room for it, the total is unknown.
    fn count_thread(&mut self, tid: i32) -> io::Result<()> {
        if files_of_all_events() < room(self.file_limit) {
            self.counting.push(event::open(&self.spec.counting_attr(), tid, -1, None)?);
        } else {
            self.uncounted = true;
        }
        Ok(())
    }

    /// Opens one event per CPU for fatal signals, as one per thread would cost at every switch. They write among
    /// samples.
    ///
    /// # Errors
    /// [`Unwatched`]: no signals will be reported.
    pub fn open_fatal_signals(&mut self) -> std::result::Result<FatalSignals, Unwatched> {
        let point = SignalPoint::find()?;
        let attr = self.spec.fatal_signal_attr(point.number());
        let mut opened = Vec::with_capacity(self.cpus.len());
        for (&cpu, (owner, _)) in self.cpus.iter().zip(&self.owners) {
            let fd = event::open(&attr, -1, cpu, None)?;
            event::set_filter(&fd, signals::FILTER)?;
            event::redirect(&fd, owner)?;
            opened.push(fd);
        }
        let ids = opened.iter().map(event::id).collect::<io::Result<Vec<u64>>>()?;
        opened.iter().try_for_each(event::enable)?;
        self.fatal.append(&mut opened);
        Ok(point.of(&ids))
    }

    fn open_cpus(&mut self) -> io::Result<()> {
        let (_, tracking) = self.spec.whole_cpu_attrs();
        for (&cpu, (_, changes)) in self.cpus.iter().zip(&self.owners) {
            let fd = event::open(&tracking, -1, cpu, None)?;
            event::redirect(&fd, changes)?;
            self.others.push(fd);
        }
        // Until it is known what runs: see `begin_cpus`.
        self.samplers = self.open_cpu_samplers(&self.spec, &[])?;
        Ok(())
    }

    /// Opens the events that sample CPUs, switched off: of control groups, or of all that runs where there are none.
    fn open_cpu_samplers(&self, spec: &EventSpec, groups: &[ControlGroup]) -> io::Result<Vec<OwnedFd>> {
        let (mut attr, _) = spec.whole_cpu_attrs();
        attr.set_disabled(1);
        let mut opened = Vec::new();
        for (&cpu, (owner, _)) in self.cpus.iter().zip(&self.owners) {
            let events = match groups {
                [] => vec![event::open(&attr, -1, cpu, None)?],
                groups => groups
                    .iter()
                    .map(|group| event::open_on_group(&attr, group.directory(), cpu))
                    .collect::<io::Result<_>>()?,
            };
            for fd in events {
                event::redirect(&fd, owner)?;
                opened.push(fd);
            }
        }
        Ok(opened)
    }

    /// The control groups whose processes alone are sampled; none where all that runs is.
    pub fn groups(&self) -> &Arc<[ControlGroup]> {
        &self.groups
    }

    /// What the events counted while control groups alone were sampled. It is not in what
    /// [`EventSet::read_counters`] counts.
    pub fn grouped_counts(&self) -> EventCounts {
        let present = if self.groups.is_empty() { None } else { sum_of(self.samplers.iter(), &self.spec).counted };
        self.grouped.past.plus(present, self.spec.period_ns())
    }

    /// The machine's time without that in which control groups alone were sampled.
    fn machine_time_sampled(&self) -> Option<u64> {
        let busy = self.machine_times()?.busy;
        let grouped = self.grouped.since.map_or(0, |since| busy.saturating_sub(since));
        Some(busy.saturating_sub(self.grouped.machine_ns).saturating_sub(grouped))
    }

    /// For a process that is about to end: what takes long to close is closed after its end, by a child.
    pub fn close_at_exit(&self) {
        if let Some(leaving) = closer::leave(&self.fatal) {
            leaving.until_exit();
        }
    }

    /// How many descriptors the events take, those of the rings included.
    pub fn files(&self) -> u64 {
        let late: usize = self.late.values().map(|late| late.all().count()).sum();
        let kept = [&self.counting, &self.samplers, &self.others, &self.fatal].map(Vec::len);
        (kept.iter().sum::<usize>() + late + 4 * self.owners.len()) as u64
    }

    /// Begins to sample CPUs, in [`EventLayout::Cpus`]. Until then, only records of mappings and forks are written.
    pub fn begin_cpus(&self) {
        if self.layout == EventLayout::Cpus {
            self.samplers.iter().for_each(|event| _ = event::enable(event));
        }
    }

    /// Stops sampling; the rings keep what was written.
    pub fn stop(&self) {
        let late = self.late.values().flat_map(LateEvents::all);
        let all = [&self.counting, &self.samplers, &self.others, &self.fatal];
        for event in all.into_iter().flatten().chain(late) {
            // An event whose thread is gone is stopped already.
            let _ = event::disable(event);
        }
    }

    /// What the events count up to now, at all rates, without unreadable events (ECHILD: a thread was forked while its
    /// group was being made).
    pub fn read_counters(&self) -> CounterTotals {
        let late = self.late.values().map(|late| &late.sampling);
        let CounterTotals { counted, lost } = match self.layout {
            EventLayout::Threads | EventLayout::Compact => sum_of(self.counting.iter().chain(late), &self.spec),
            EventLayout::Cpus => CounterTotals {
                counted: self.counted_of_threads(),
                lost: sum_of(self.samplers.iter(), &self.spec).lost,
            },
        };
        let counted = if self.uncounted { None } else { self.past.with(counted, self.spec.period_ns()) };
        CounterTotals { counted, lost: self.past.lost.saturating_add(lost) }
    }

    /// Counts the time of the machine from now on, instead of that of threads: all that runs is the target.
    pub fn count_machine(&mut self) {
        self.machine = MachineTime::begin();
        self.uncounted = self.machine.is_none();
    }

    /// What the machine has spent since [`EventSet::count_machine`].
    pub fn machine_times(&self) -> Option<MachineTimes> {
        self.machine.as_ref().and_then(MachineTime::since)
    }

    /// What is counted where one event counts and another one samples.
    fn counted_of_threads(&self) -> Option<EventCounts> {
        if self.machine.is_some() {
            return self.machine_time_sampled().map(|used| EventCounts { used, ..EventCounts::default() });
        }
        sum_of(self.counting.iter(), &EventSpec { tells_lost: false, ..self.spec }).counted
    }
}

/// The event that samples a thread and all that it starts on one CPU, into the ring of `owner`, and what rides in its group.
fn open_sampler(
    spec: &EventSpec,
    attr: &perf_event_attr,
    tid: i32,
    cpu: i32,
    owner: &OwnedFd,
) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    let leader = event::open(attr, tid, cpu, None)?;
    // A sample written before the member is there reads a group of one, and has no TSC.
    let member = match spec.group_member_attr() {
        Some(attr) => Some(event::open(&attr, tid, cpu, Some(leader.as_fd())).map_err(revoked)?),
        None => None,
    };
    if let Event::Tick { handler, .. } = spec.event {
        event::set_filter(&leader, &tick::filter(handler)?).map_err(revoked)?;
    }
    event::redirect(&leader, owner).map_err(revoked)?;
    Ok((leader, member))
}

/// The error for an event whose thread has exited since it was opened (ENODEV, since Linux 6.15): the thread has gone.
fn revoked(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENODEV) => io::Error::from_raw_os_error(libc::ESRCH),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::sync::mpsc::channel;

    use nix::unistd::gettid;

    use super::*;
    use crate::perf::choice::{EventChoice, Scope, choose};
    use crate::perf::record::{Record, TargetChange};
    use crate::usage::thread_cpu_ns;

    fn work() {
        let until = thread_cpu_ns() + 200_000;
        while thread_cpu_ns() < until {
            black_box((0..1_000u64).sum::<u64>());
        }
    }

    /// Samples that records of the rings say were lost.
    fn lost_by_records(sorter: &mut EventSorter) -> u64 {
        let mut lost = 0;
        sorter.drain(u64::MAX, |_, record| {
            if let Record::Change { change: TargetChange::Lost { count }, .. } = record {
                lost += count;
            }
        });
        lost
    }

    /// Loses samples, in an heir of the events if `by_heir`. Returns how many the events report, and the records before
    /// and after there is room again.
    fn lose(event: EventChoice, by_heir: bool) -> Option<(u64, [u64; 2])> {
        // Where there is no such event, or none that tells, there is nothing to compare.
        let spec = choose(event, Scope::Auto, 999, true).ok()?.spec;
        let rate_hz = system::perf_max_sample_rate().min(4_999);
        let (mut set, mut sorter) =
            EventSet::new(EventSpec { rate_hz, ..spec }, EventLayout::Threads, 0, &mut Vec::new()).ok()?;
        if !set.spec().tells_lost {
            return None;
        }
        // On one CPU, whose ring is then the one that fills: the one it is on may be used.
        let mut first = [0u64; 128];
        // SAFETY: it takes nothing and returns a number.
        let cpu = usize::try_from(unsafe { libc::sched_getcpu() }).unwrap();
        first[cpu / 64] = 1 << (cpu % 64);
        // SAFETY: the kernel reads as many bytes from the pointer as the array has.
        assert_eq!(unsafe { libc::sched_setaffinity(0, size_of_val(&first), first.as_ptr().cast()) }, 0);
        assert_eq!(set.open_thread(gettid().as_raw().unsigned_abs(), false).unwrap(), OpenOutcome::Yes);
        // 500 samples, of which the smallest ring holds seven.
        let worked = || (0..500).for_each(|_| work());
        if by_heir {
            std::thread::spawn(worked).join().unwrap();
        } else {
            worked();
        }
        set.stop();
        // A thread that has been waited for may be about to give up its events.
        let told = (0..5_000).map(|_| (work(), set.read_counters().lost).1).find(|&lost| lost > 0).unwrap_or(0);
        let before = lost_by_records(&mut sorter);
        set.counting.iter().for_each(|leader| event::enable(leader).unwrap());
        let mut after = before;
        for _ in 0..5_000 {
            work();
            after += lost_by_records(&mut sorter);
            if after >= told {
                break;
            }
        }
        Some((told, [before, after]))
    }

    #[test]
    fn the_last_losses_are_read_from_the_events() {
        for event in [EventChoice::CpuClock, EventChoice::CpuClockTsc] {
            for by_heir in [false, true] {
                // In a thread of its own, which stays on one CPU.
                let (sender, receiver) = channel();
                std::thread::spawn(move || sender.send(lose(event, by_heir)).unwrap()).join().unwrap();
                let Some((told, [before, after])) = receiver.recv().unwrap() else {
                    eprintln!(
                        "{event:?}: not here, or the kernel does not tell (before Linux 6.0); nothing is compared"
                    );
                    continue;
                };
                assert!(told > 10 && before < told, "{event:?} {by_heir}: {told}, {before} by records");
                // And they tell of the same.
                assert_eq!(after, told, "{event:?} {by_heir}");
            }
        }
    }
}
