//! A session: one collection over a set of processes, from its start to its last update.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use ccsd_profile::{Metric, Profile, SessionInfo, Unit, notes};
use ccsd_symbolizer::FileRoot;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::aggregator::Aggregator;
use crate::child::{ChildEnd, WaitingChild, wake_pipe};
use crate::error::{Error, Result, doing};
use crate::host::container_names::ContainerNames;
use crate::host::selection::ProcessSelection;
use crate::options::Options;
use crate::pace::{MOST_HZ, RateController};
use crate::perf::attr::Event;
use crate::perf::calibrate::target_cost_ns;
use crate::perf::choice::{ChosenEvent, EventChoice, choose, may_observe_machine};
use crate::perf::files::{files_of_all_events, open_elsewhere};
use crate::perf::layout::EventLayout;
use crate::perf::layout_choice::{LayoutChoice, can_be_per_cpu};
use crate::perf::set::EventSet;
use crate::perf::signals::Unwatched;
use crate::process::filter::ProcessFilter;
use crate::procfs;
use crate::sampler::{Channels, LeftOutPids, Sampler, SamplerCommand};
use crate::sched_priority::become_favoured;
use crate::session_event::{Held, SessionEvent};
use crate::system;
use crate::usage::thread_work_ns;
use crate::watchdog::{LOOK, Watchdog, WatchdogWait};

/// Batches between the two threads, some 64 KiB each. If all are full the sampler's grows, as each may while the
/// aggregator is late.
const BATCHES: usize = 4;
/// Stack of the two threads: debug information and demangling are read recursively, to a limited depth.
const STACK_BYTES: usize = 8 << 20;
/// Updates between the aggregator and its reader, who should be done with one before the next is due.
const UPDATES: usize = 4;

/// Capacity of the command channel: a caller that adds processes waits until that is done; stopping twice is stopping once.
const COMMANDS: usize = 8;

/// A running session. Dropping it ends it.
pub struct Session {
    info: SessionInfo,
    events: Receiver<SessionEvent>,
    commands: Sender<SamplerCommand>,
    wake: OwnedFd,
    watchdog: Arc<Watchdog>,
    held: Held,
    /// Each returns its CPU time that is in no update, nanoseconds.
    threads: Vec<JoinHandle<u64>>,
    own_process: bool,
}

impl Session {
    /// Prepares to observe a program from its first instruction; [`WaitingChild::start`] runs it.
    ///
    /// # Errors
    /// All of [`Error`](crate::Error) that concern events; nothing runs then.
    pub fn record(options: &Options, command: &[OsString]) -> Result<(Session, WaitingChild)> {
        // Before anything else: the child must not inherit what is opened or raised below.
        let child = WaitingChild::spawn(command)?;
        let words = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        Ok((Session::record_child(options, words, child.pid())?, child))
    }

    /// The same for any process's child that has yet to call `execve`. Its parent lets it go, and calls
    /// [`Session::stop`] at its end.
    ///
    /// # Errors
    /// As [`Session::record`], and those of [`check_target`].
    pub fn record_child(options: &Options, words: Vec<String>, pid: u32) -> Result<Session> {
        check_target(pid)?;
        let target = words.first().cloned().unwrap_or_default();
        let words = if options.arguments { words } else { without_arguments(words) };
        let (mut choice, pace) = choose_with_pace(options)?;
        choice.spec.enable_on_exec = true;
        let layout = if options.per_cpu { per_cpu(&mut choice, options)? } else { EventLayout::Threads };
        let mut prepared = Prepared::new(options, choice, pace, layout, (target, words, vec![pid]))?;
        prepared.sampler.prepare_child(pid)?;
        prepared.start()
    }

    /// Attaches to all threads of running processes, with `options.inherit` to all descendants. They are not stopped.
    ///
    /// # Errors
    /// As [`check_target`] for each, and all that concern events.
    pub fn attach(options: &Options, pids: &[u32]) -> Result<Session> {
        for &pid in pids {
            check_target(pid)?;
        }
        let names: Vec<String> = pids
            .iter()
            .map(|&pid| format!("{} ({pid})", procfs::stat(pid).map(|stat| stat.comm).unwrap_or_default()))
            .collect();
        let words = pids.first().map(|&pid| procfs::command_line(pid)).unwrap_or_default();
        let words = if options.arguments { words } else { without_title(without_arguments(words)) };
        let (session, ()) = Session::on_running(options, names.join(", "), words, pids, |sampler| {
            sampler.attach(pids, options.inherit)
        })?;
        Ok(session)
    }

    /// Follows those of `pids` that run and may be followed, with all descendants, under the name `target`; more by
    /// [`Session::add`]. Goes on when none is left. Also returns those that are left out.
    ///
    /// # Errors
    /// All that concern events.
    pub fn follow(options: &Options, target: String, pids: &[u32]) -> Result<(Session, LeftOutPids)> {
        let options = Options { inherit: true, ..options.clone() };
        Session::on_running(&options, target, Vec::new(), pids, |sampler| sampler.add(pids))
    }

    /// Samples the selected processes of the machine, as long as they are selected, and those that start later.
    ///
    /// # Errors
    /// [`Error::MachineRefused`], [`Error::ForeignProc`], and all that concern events.
    pub fn machine(options: &Options, selection: &ProcessSelection) -> Result<Session> {
        let names = ContainerNames::below(FileRoot::own());
        let selection = &selection.clone().with_named_containers(&names);
        let filter = (!selection.is_everything()).then(|| Arc::new(selection.clone()) as Arc<dyn ProcessFilter>);
        Session::on_machine(&Options { filter, ..options.clone() }, selection.describe())
    }

    /// Samples all that runs on the machine and fits `options.filter`, under the name `target`, and what starts later.
    ///
    /// # Errors
    /// As [`Session::machine`].
    pub fn on_machine(options: &Options, target: String) -> Result<Session> {
        if !procfs::is_ours() {
            return Err(Error::ForeignProc);
        }
        if !options.whole_machine || options.owner.is_some() {
            return Err(Error::MachineRefused);
        }
        // There is no event whose heirs would have to be told apart.
        let options = Options { inherit: true, ..options.clone() };
        let (mut choice, pace) = choose_with_pace(&options)?;
        sample_cpus(&mut choice, &options)?;
        let prepared = Prepared::new(&options, choice, pace, EventLayout::Cpus, (target, Vec::new(), Vec::new()));
        let mut prepared = prepared.map_err(|error| match error {
            Error::WholeMachineRefused => Error::MachineRefused,
            other => other,
        })?;
        prepared.sampler.observe_machine();
        prepared.begins_now();
        prepared.start()
    }

    /// A session on running processes, by the first layout in which `open` has files enough.
    fn on_running<T>(
        options: &Options,
        target: String,
        words: Vec<String>,
        pids: &[u32],
        open: impl Fn(&mut Sampler) -> Result<T>,
    ) -> Result<(Session, T)> {
        let (choice, pace) = choose_with_pace(options)?;
        let mut refused = Error::DiedDuringAttach(pids.first().copied().unwrap_or(0));
        for (choice, layout) in layouts(choice, options, pids)? {
            let what = (target.clone(), words.clone(), pids.to_vec());
            let prepared = Prepared::new(options, choice, pace.clone(), layout, what);
            let opened = prepared.and_then(|mut prepared| {
                let opened = open(&mut prepared.sampler)?;
                Ok((prepared, opened))
            });
            match opened {
                // It has started more threads in the meantime, or this was the last resort.
                Err(error @ (Error::TooManyFiles { .. } | Error::FileShare(_))) => refused = error,
                other => {
                    let (prepared, opened) = other?;
                    return Ok((prepared.start()?, opened));
                }
            }
        }
        Err(refused)
    }

    /// Follows more processes and all descendants; followed ones stay as they are. Returns those that are left out;
    /// ended ones are no error. Events must be read meanwhile, by this or another thread.
    ///
    /// # Errors
    /// [`Error::TooManyFiles`]: some threads are not followed then. [`Error::Ended`] after the end, or if the sampling
    /// thread hangs.
    pub fn add(&self, pids: &[u32]) -> Result<LeftOutPids> {
        let (answer, answered) = bounded(1);
        let add = SamplerCommand::Add { pids: pids.to_vec(), answer };
        self.commands.send(add).map_err(|_| Error::Ended)?;
        let _ = nix::unistd::write(&self.wake, b"!");
        let mut watch = WatchdogWait::default();
        loop {
            match answered.recv_timeout(LOOK) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Timeout) if !watch.hangs(&self.watchdog) => {}
                Err(_) => return Err(Error::Ended),
            }
        }
    }

    /// What is being collected.
    pub fn info(&self) -> &SessionInfo {
        &self.info
    }

    /// Updates, and the end. Must be read: a full channel stops the aggregator, and in time costs samples.
    pub fn events(&self) -> &Receiver<SessionEvent> {
        &self.events
    }

    /// Bytes of the session in memory, about: rings, profile, images. As of its last update.
    pub fn held_bytes(&self) -> u64 {
        self.held.bytes()
    }

    /// Sets whether full tables begin a new generation instead of eliding, for callers that keep every update:
    /// [`SessionEvent::Finished`] then has the last generation alone.
    pub fn set_generations(&self, generations: bool) {
        self.watchdog.set_generations(generations);
    }

    /// Asks for the end. `child` is how the recorded program ended. The last update and [`SessionEvent::Finished`]
    /// follow.
    pub fn stop(&self, child: Option<&ChildEnd>) {
        self.stop_with(child.map(ChildEnd::cpu_ns));
    }

    /// The same with the CPU time of the recorded program, user and in all, in nanoseconds, if that is known.
    pub fn stop_with(&self, target_cpu_ns: Option<(u64, u64)>) {
        // Full means that it has been said already: adding waits to be done each time.
        let _ = self.commands.try_send(SamplerCommand::Stop { target_cpu_ns });
        self.watchdog.ask_for_end();
        let _ = nix::unistd::write(&self.wake, b"!");
    }
}

impl Session {
    /// Ends the session. Returns the CPU time that its threads took to free what they had, which is in no update,
    /// nanoseconds.
    pub fn end(mut self) -> u64 {
        self.end_threads()
    }

    fn end_threads(&mut self) -> u64 {
        if self.threads.is_empty() {
            return 0;
        }
        self.stop(None);
        // Draining lets the aggregator get to its end.
        while !matches!(self.events.recv(), Ok(SessionEvent::Finished(_)) | Err(_)) {}
        // A process that ends now takes its threads along, so they need not free what they hold.
        let threads = std::mem::take(&mut self.threads);
        if self.own_process || self.watchdog.is_given_up() {
            return 0;
        }
        threads.into_iter().filter_map(|thread| thread.join().ok()).fold(0, u64::saturating_add)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end_threads();
    }
}

/// Whether a process can be attached to, as far as can be told before trying.
///
/// # Errors
/// [`Error::ForeignProc`], [`Error::NoSuchProcess`], [`Error::NotAProcess`], [`Error::Itself`],
/// [`Error::KernelThread`], [`Error::Zombie`].
pub fn check_target(pid: u32) -> Result<()> {
    if !procfs::is_ours() {
        return Err(Error::ForeignProc);
    }
    let stat = procfs::stat(pid).map_err(|error| match error.raw_os_error() {
        Some(libc::EMFILE) => Error::system(format!("look at process {pid}"), error),
        None if error.kind() == std::io::ErrorKind::TimedOut => {
            Error::NoAnswer { pid, owner: procfs::owner_label(pid) }
        }
        _ => Error::NoSuchProcess(pid),
    })?;
    match procfs::thread_group(pid) {
        Some(group) if group != pid => return Err(Error::NotAProcess { tid: pid, pid: group }),
        _ => {}
    }
    if pid == std::process::id() {
        return Err(Error::Itself(pid));
    }
    if stat.kernel_thread {
        return Err(Error::KernelThread(pid));
    }
    if procfs::has_ended(pid) {
        return Err(Error::Zombie(pid));
    }
    Ok(())
}

/// The event for a session, and how its rate is decided. Where there is a budget, the event has the rate that it affords.
fn choose_with_pace(options: &Options) -> Result<(ChosenEvent, RateController)> {
    if procfs::has_other_clocks() {
        return Err(Error::OtherClocks);
    }
    let mut choice = choose(options.event, options.scope, options.rate_hz, options.inherit)?;
    let ticks = matches!(choice.spec.event, Event::Tick { .. });
    let adapts = options.adapts && options.owner.is_none() && !ticks;
    let Some(overhead) = options.overhead else {
        let pace = RateController::at(choice.spec.rate_hz, adapts);
        return Ok((choice, pace));
    };
    if ticks {
        let why = "its rate is fixed, so --overhead cannot choose one";
        return Err(Error::EventUnavailable { event: "tick".to_owned(), why: why.to_owned() });
    }
    let most = MOST_HZ.min(system::perf_max_sample_rate());
    let mut pace = RateController::within(overhead, target_cost_ns(&choice.spec)?, most, adapts);
    if options.owner.is_some() {
        pace.hold();
    }
    choice.spec.rate_hz = pace.rate_hz();
    Ok((choice, pace))
}

/// The layouts to try on running processes, the best first, with event and a note for an unusual one.
fn layouts(choice: ChosenEvent, options: &Options, pids: &[u32]) -> Result<Vec<(ChosenEvent, EventLayout)>> {
    if options.per_cpu {
        let mut choice = choice;
        let layout = per_cpu(&mut choice, options)?;
        return Ok(vec![(choice, layout)]);
    }
    let mut all = pids.to_vec();
    if options.inherit {
        all.extend(procfs::descendants(pids));
    }
    let share = options.files.as_ref().map_or(u64::MAX, |files| files.room());
    let open = files_of_all_events().saturating_add(open_elsewhere());
    let machine = LayoutChoice {
        threads: all.iter().map(|&pid| procfs::threads(pid).map_or(0, |threads| threads.len() as u64)).sum(),
        cpus: system::online_cpus().len() as u64,
        file_limit: system::raise_file_limit().saturating_sub(open).min(share),
        whole_machine: options.whole_machine && options.owner.is_none() && may_observe_machine(&choice.spec),
    };
    let candidates = machine.candidates(&choice.spec, options.event != EventChoice::Auto);
    let usual = choice.spec;
    Ok(candidates
        .into_iter()
        .map(|(layout, spec)| {
            let mut choice = ChosenEvent { spec, notes: choice.notes.clone() };
            let why = format!(
                "{} threads on {} CPUs would take {} files, and {} more may be open",
                machine.threads,
                machine.cpus,
                machine.files(EventLayout::Threads, &usual),
                machine.file_limit
            );
            match layout {
                EventLayout::Threads => {}
                EventLayout::Compact => choice.notes.push(format!(
                    "{}, because {why}: a full ring may lose records about mappings, too",
                    notes::COMPACT
                )),
                EventLayout::Cpus => choice.notes.push(format!("{} {OTHERS_TOO}, because {why}", notes::PER_CPU)),
            }
            if usual.reads_group() && !spec.reads_group() {
                choice.notes.push("no TSC cycles: they would take one more event for each thread".to_owned());
            }
            (choice, layout)
        })
        .collect())
}

/// What to know of the costs of a session that is not alone.
const SHARED: &str = "its CPU time is that of the two threads of this session and of what names took, its memory that \
     of all sessions, without that of the process that reads images";
/// What to know of [`EventLayout::Cpus`].
const OTHERS_TOO: &str = "(samples of other programs are taken, too, and dropped)";

fn per_cpu(choice: &mut ChosenEvent, options: &Options) -> Result<EventLayout> {
    if !options.whole_machine || options.owner.is_some() {
        return Err(Error::WholeMachineRefused);
    }
    sample_cpus(choice, options)?;
    choice.notes.push(format!("{} {OTHERS_TOO}", notes::PER_CPU));
    Ok(EventLayout::Cpus)
}

fn sample_cpus(choice: &mut ChosenEvent, options: &Options) -> Result<()> {
    if !can_be_per_cpu(&choice.spec) {
        let why = "on a CPU it would also count other programs that ran in between";
        if options.event != EventChoice::Auto {
            return Err(Error::EventUnavailable { event: choice.spec.event.name().to_owned(), why: why.to_owned() });
        }
        choice.spec.event = Event::CpuClock;
        choice
            .notes
            .push("no TSC cycles: on a CPU they would also count other programs that ran in between".to_owned());
    }
    Ok(())
}

struct Prepared {
    info: SessionInfo,
    sampler: Sampler,
    aggregator: Aggregator,
    batches: Receiver<crate::batch::Batch>,
    empty: Sender<crate::batch::Batch>,
    commands: Sender<SamplerCommand>,
    wake: OwnedFd,
    watchdog: Arc<Watchdog>,
    held: Held,
    own_process: bool,
    /// Whether its threads get more of the CPU than ordinary ones. Not for users who could not have that themselves.
    is_favoured: bool,
}

impl Prepared {
    fn new(
        options: &Options,
        mut choice: ChosenEvent,
        pace: RateController,
        layout: EventLayout,
        (target, command, pids): (String, Vec<String>, Vec<u32>),
    ) -> Result<Prepared> {
        // Two rings for each CPU, and the owner of each is duplicated.
        let rings = 4 * system::online_cpus().len() as u64;
        if let Some(files) = options.files.as_ref().filter(|files| files.room() < rings) {
            return Err(Error::FileShare(files.reason()));
        }
        let (mut events, mut sorter) = EventSet::new(choice.spec, layout, options.budget.rings, &mut choice.notes)?;
        options.files.iter().for_each(|files| events.share_files(Arc::clone(files)));
        if !options.own_process {
            choice.notes.push(format!("{}: {SHARED}", notes::BY_DAEMON));
        }
        // It may observe everything, and every client may see all of it.
        let trusted = options.owner.is_none() && options.whole_machine;
        match if trusted { events.open_fatal_signals() } else { Err(Unwatched::Untrusted) } {
            Ok(fatal) => sorter.expect_fatal(fatal),
            Err(why) => choice.notes.push(format!("{}: {why}", notes::NO_CRASH_STACKS)),
        }
        let spec = *events.spec();
        let held = Held::new(events.ring_bytes());
        let info = describe(&choice, target, command, pids);
        let profile = Profile::new(info.clone(), options.budget.profile.clone());
        let (batch_sender, batches) = bounded(BATCHES);
        let (empty, empty_receiver) = bounded(BATCHES);
        let (commands, command_receiver) = bounded(COMMANDS);
        let (wake, wake_receiver) = wake_pipe()?;
        let watchdog = Arc::new(Watchdog::default());
        let channels = Channels {
            batches: batch_sender,
            empty: empty_receiver,
            commands: command_receiver,
            wake: wake_receiver,
            watchdog: watchdog.clone(),
        };
        let overhead = pace.overhead();
        let mut sampler =
            Sampler::new(events, sorter, channels, options.interval, options.owner, &options.budget, pace)?;
        sampler.keep_only(options.filter.clone());
        if options.owner.is_some() {
            sampler.is_ordinary();
        }
        options.files.iter().for_each(|files| sampler.share_files(Arc::clone(files)));
        if options.own_process {
            sampler.exits_with_process();
        }
        let aggregator = Aggregator::new(profile, spec, layout, options.own_process, &options.budget)
            .naming_containers(trusted.then(|| ContainerNames::below(FileRoot::own())));
        Ok(Prepared {
            info,
            aggregator: aggregator.within(overhead).advising(options.more_samples).through(sampler.door().clone()),
            sampler,
            batches,
            empty,
            commands,
            wake,
            watchdog,
            held,
            own_process: options.own_process,
            is_favoured: options.owner.is_none(),
        })
    }

    /// What has been done until now takes no part in the session: it may take seconds where there are many processes.
    fn begins_now(&mut self) {
        self.info.started_unix_ns = unix_ns();
        self.aggregator.profile_mut().session_mut().started_unix_ns = self.info.started_unix_ns;
    }

    fn start(self) -> Result<Session> {
        let (events_sender, events) = bounded(UPDATES);
        let Prepared { info, sampler, mut aggregator, batches, empty, commands, wake, watchdog, held, .. } = self;
        let (own_process, is_favoured) = (self.own_process, self.is_favoured);
        aggregator.begin();
        let (watched, told) = (watchdog.clone(), held.clone());
        let spawn = |name: &str, body: Box<dyn FnOnce() -> u64 + Send>| {
            let builder = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
            let body = move || {
                let reported = body();
                thread_work_ns().saturating_sub(reported)
            };
            builder.spawn(body).map_err(doing("start a thread"))
        };
        let aggregate = move || {
            if is_favoured {
                become_favoured();
            }
            aggregator.run(&batches, &empty, &events_sender, &watched, &told)
        };
        let threads =
            vec![spawn("ccsd-aggregate", Box::new(aggregate))?, spawn("ccsd-sample", Box::new(move || sampler.run()))?];
        Ok(Session { info, events, commands, wake, watchdog, held, threads, own_process })
    }
}

/// The program of a command line.
#[must_use]
pub fn without_arguments(mut words: Vec<String>) -> Vec<String> {
    words.truncate(1);
    words
}

/// The first word of a title that a process has written over its command line, arguments included.
fn without_title(words: Vec<String>) -> Vec<String> {
    words.into_iter().map(|title| title.split_whitespace().next().unwrap_or_default().to_owned()).collect()
}

/// Now, nanoseconds since 1970.
fn unix_ns() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
}

fn describe(choice: &ChosenEvent, target: String, command: Vec<String>, pids: Vec<u32>) -> SessionInfo {
    let clock = Metric { name: "cpu-clock".to_owned(), unit: Unit::Nanoseconds };
    let metrics = match choice.spec.event {
        Event::Cycles { .. } => vec![Metric { name: "cycles".to_owned(), unit: Unit::Cycles }],
        // The same metric, however it is sampled.
        Event::CpuClock | Event::Tick { .. } => vec![clock],
        Event::CpuClockTsc { .. } => vec![clock, Metric { name: "tsc".to_owned(), unit: Unit::Cycles }],
    };
    SessionInfo {
        target,
        command,
        pids,
        event: choice.label(),
        rate_hz: choice.spec.rate_hz,
        host: system::host_name(),
        started_unix_ns: unix_ns(),
        metrics,
        notes: choice.notes.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}
