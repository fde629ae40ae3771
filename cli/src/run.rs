//! `ccsd record` and `ccsd attach`: a collection run by this process.

use std::ffi::OsString;
use std::io::{Write, stderr, stdout};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use ccsd_collector::child::{ChildEnd, ExitStatus};
use ccsd_collector::{Budget, Options, Overhead, ProcessSelection, Scope, check_rate, system};
use ccsd_daemon::protocol::message::{self, Collect};
use ccsd_daemon::{
    CollectRequest, CollectTarget, Collection, CollectorChoice, Outcome, OutputFile, Progress, StopRequest,
};
use ccsd_profile::CORE_SIGNALS;
use crossbeam_channel::{Receiver, select, unbounded};

use crate::args::collect::{AttachArgs, CollectArgs, MachineArgs, RecordArgs};
use crate::connection;
use crate::doctor::Capabilities;
use crate::dump;
use crate::dump::crash::{self, ReportedCrashes};
use crate::exit::{Exit, Failure};
use crate::format::shell_word;
use crate::job::{self, Job};
use crate::leader::Leader;
use crate::machine;
use crate::message::{say, warn};
use crate::open;
use crate::processes;
use crate::report;
use crate::signals::{Asking, Plan, Signals};
use crate::status::StatusLine;
use crate::style::{ColorChoice, TextLayout};
use crate::values::{DEFAULT_FILE, Frequency};

/// A message about waiting is printed only after this time: most programs end sooner.
const PATIENCE: Duration = Duration::from_millis(200);

pub fn record(args: RecordArgs, colour: ColorChoice) -> Result<Exit, Failure> {
    // Anything after `--` is a program; without `--`, a word that starts with `-` is a mistyped option.
    let words: Vec<OsString> = std::env::args_os().collect();
    let before = words.len().checked_sub(args.program.len() + 1).and_then(|at| words.get(at));
    if let Some(option) = args.program.first().filter(|word| word.as_encoded_bytes().starts_with(b"-"))
        && before.is_none_or(|word| word != "--")
    {
        let option = option.to_string_lossy();
        let meant = match option.as_bytes() {
            [b'-', b'p', ..] | b"--pid" => "`ccsd attach PID` profiles a process that runs",
            _ => "see `ccsd record --help`",
        };
        return Err(Failure::bad_request(anyhow!(
            "unknown option {option}; {meant} (a program of this name goes after `--`)"
        )));
    }
    let target = match selection(&args.machine, &args.collect)? {
        Some(selection) => CollectTarget::Machine { selection, command: args.program.clone() },
        None => CollectTarget::Command(args.program.clone()),
    };
    if args.program.is_empty() {
        return attend(request(target, &args.collect)?, &args.collect, colour);
    }
    let is_machine = matches!(target, CollectTarget::Machine { .. });
    let mut request = request(target, &args.collect)?;
    let layout = TextLayout::of(&stderr(), colour);
    let stops = job::can_lead().then(unbounded);
    request.stops = stops.as_ref().map(|(sender, _)| sender.clone());
    let asks = Asks { dump: stops.is_some() && !is_machine, quit: false, stops: stops.map(|(_, receiver)| receiver) };
    let collected = collect(request, asks, &args.collect, layout);
    let (mut outcome, signals, job) = collected.map_err(|failure| suggest_here(failure, &args.program))?;
    if outcome.child.is_some() {
        job.iter().for_each(|job| job.ended());
    }
    let saved = conclude(&mut outcome, &args.collect, layout);
    let end = wait(&outcome, &signals, &args);
    if end.is_ok() {
        job.iter().for_each(|job| job.ended());
    }
    let end = match end {
        Ok(end) => end,
        Err(signal) => return Ok(Exit::Status(Exit::shell_status(signal))),
    };
    match end.as_ref().map(Exit::as_child) {
        None => Err(Failure::at_run_time(anyhow!("ccsd does not know how the program ended"))),
        // The program succeeded and ccsd failed.
        Some(Exit::SUCCESS) if !saved => Ok(Exit::FAILURE),
        Some(exit) => Ok(exit),
    }
}

/// Suggests a program in the current directory if the search path has none of this name.
fn suggest_here(failure: Failure, program: &[OsString]) -> Failure {
    let name = program.first().map(|name| name.to_string_lossy()).unwrap_or_default();
    let is_here = failure.status == Exit::NOT_FOUND && !name.contains('/') && Path::new(name.as_ref()).is_file();
    if !is_here {
        return failure;
    }
    let Failure { status, error } = failure;
    Failure { status, error: anyhow!("{error}; did you mean ./{}?", shell_word(&name)) }
}

pub fn attach(args: AttachArgs, colour: ColorChoice) -> Result<Exit, Failure> {
    let target = match selection(&args.machine, &args.collect)? {
        Some(selection) => CollectTarget::Machine { selection, command: Vec::new() },
        None => CollectTarget::Pids(processes::find(&args.processes, Capabilities::effective().perfmon)?),
    };
    if args.detach {
        return detach(target, &args.collect);
    }
    attend(request(target, &args.collect)?, &args.collect, colour)
}

fn selection(args: &MachineArgs, collect: &CollectArgs) -> Result<Option<ProcessSelection>, Failure> {
    let selection = machine::selection(args)?;
    if selection.is_some() && (collect.no_inherit || collect.per_cpu) {
        let option = if collect.per_cpu { "--per-cpu" } else { "--no-inherit" };
        return Err(Failure::bad_request(anyhow!(
            "{option} goes with processes named by PID or name; --all, --unit and the like sample CPUs, and every process that fits"
        )));
    }
    Ok(selection)
}

fn attend(request: CollectRequest, args: &CollectArgs, colour: ColorChoice) -> Result<Exit, Failure> {
    let layout = TextLayout::of(&stderr(), colour);
    let owns_ctrl_c = job::owns_ctrl_c();
    // The stacks of all threads of a machine are of no use at a glance.
    let dump = owns_ctrl_c && !matches!(request.target, CollectTarget::Machine { .. });
    let asks = Asks { dump, quit: owns_ctrl_c, stops: None };
    let (mut outcome, _signals, _) = collect(request, asks, args, layout)?;
    let saved = conclude(&mut outcome, args, layout);
    Ok(if saved { Exit::SUCCESS } else { Exit::FAILURE })
}

fn detach(target: CollectTarget, args: &CollectArgs) -> Result<Exit, Failure> {
    let collect = Collect::of(&options(args)?);
    let duration_ms = args.duration.map(|duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
    let mut client = connection::connect(&args.by.socket)?;
    let request = match target {
        CollectTarget::Machine { selection, .. } => {
            message::Request::Machine { selection, collect, duration_ms, detach: true }
        }
        CollectTarget::Pids(pids) => message::Request::attach(pids, collect, duration_ms, true),
        CollectTarget::Command(_) => return Err(Failure::bad_request(anyhow!("--detach is for processes that run"))),
    };
    let session = client.start(&request)?;
    let mut out = stdout().lock();
    writeln!(out, "{session}").and_then(|()| out.flush())?;
    if !args.quiet {
        warn(format_args!(
            "session {session} of the daemon at {}: see `ccsd report session:{session}`; `ccsd daemon stop {session}` ends it",
            client.path().display()
        ));
    }
    Ok(Exit::SUCCESS)
}

fn options(args: &CollectArgs) -> Result<Options, Failure> {
    let scope = match (args.kernel, args.user) {
        (true, _) => Scope::Kernel,
        (_, true) => Scope::User,
        _ => Scope::Auto,
    };
    Ok(Options {
        event: args.event,
        scope,
        rate_hz: match args.frequency {
            Frequency::Max => system::perf_max_sample_rate(),
            Frequency::Hz(rate) => check_rate(rate)?,
        },
        overhead: args.overhead.map(Overhead::percent).transpose()?,
        adapts: !args.no_adapt,
        inherit: !args.no_inherit,
        per_cpu: args.per_cpu,
        budget: Budget::of(args.memory),
        arguments: !args.no_args,
        ..Options::default()
    })
}

fn request(target: CollectTarget, args: &CollectArgs) -> Result<CollectRequest, Failure> {
    let options = options(args)?;
    let output = match (&args.output, args.no_output) {
        (_, true) => None,
        (Some(path), _) => Some(path.clone()),
        (None, _) => Some(PathBuf::from(DEFAULT_FILE)),
    };
    if output.as_deref().is_some_and(|path| path.as_os_str() == "-") {
        return Err(Failure::bad_request(anyhow!(
            "a profile is not written to standard output, which is the program's: name a file (-o ./- for one of the name -)"
        )));
    }
    if let Some(path) = &output {
        // Checked before the program runs; later problems of the file do not prevent the run.
        let checked = match args.output {
            Some(_) => OutputFile::check_creatable(path),
            // The default file may be in a read-only directory; the user still wants the report.
            None => OutputFile::check_contents(path),
        };
        checked.map_err(Failure::bad_request)?;
    }
    let by = connection::by(&args.by);
    Ok(CollectRequest { target, options, output, duration: args.duration, by, stops: None })
}

struct Asks {
    dump: bool,
    quit: bool,
    stops: Option<Receiver<i32>>,
}

fn collect(
    request: CollectRequest,
    asks: Asks,
    args: &CollectArgs,
    layout: TextLayout,
) -> Result<(Outcome, Signals, Option<Arc<Job>>), Failure> {
    let (target, inherit) = (request.target.clone(), request.options.inherit);
    // Ctrl-C dumps are taken by this process where it may, even if the daemon collects.
    let by = CollectorChoice { daemon_only: false, ..request.by.clone() };
    let mut collection = Collection::prepare(request)?;
    let child = collection.child_pid();
    let pids = match target {
        CollectTarget::Pids(pids) => pids,
        CollectTarget::Machine { .. } => Vec::new(),
        CollectTarget::Command(_) => child.into_iter().collect(),
    };
    let job = asks.stops.is_some().then_some(child).flatten().map(|child| Arc::new(Job::new(child)));
    let (asking, requests) = Asking::new();
    let plan = Plan { dump: asks.dump.then(|| asking.clone()), job: job.clone() };
    // After the fork, so that the program inherits the original signal settings; before it runs, so that a failure
    // cannot abandon it.
    let failed = |error| Failure::from(ccsd_collector::Error::system("catch signals", error));
    let signals = Signals::catch(child, plan).map_err(failed)?;
    if asks.dump {
        dump::on_request(pids, inherit, by, (asking, requests), layout).map_err(failed)?;
    }
    if let (Some(job), Some(stops)) = (job.clone(), asks.stops) {
        let follow = move || stops.iter().for_each(|signal| job.stopped(signal));
        std::thread::Builder::new().name("ccsd-job".to_owned()).spawn(follow).map_err(failed)?;
    }
    if asks.quit {
        let stop = signals.stop_sender.clone();
        let quit = move || {
            // If the channel is full, the end was already requested.
            let _ = stop.try_send(StopRequest);
        };
        job::on_quit(quit).map_err(failed)?;
    }
    collection.start()?;
    if !args.quiet {
        for error in collection.passed_over() {
            warn(format_args!("{error}; collecting in this process"));
        }
        if let Some((path, session)) = collection.daemon() {
            warn(format_args!("collecting in the daemon at {}, as session {session}", path.display()));
        }
    }
    if let Some(error) = collection.output_error() {
        warn(format_args!("{error}; going on without a file"));
    }
    let hint = match (asks.dump, asks.quit) {
        (true, true) => "Ctrl-C: stacks; twice, or q Enter: end",
        (true, false) => "Ctrl-C: stacks; twice: end",
        (false, true) => "Ctrl-C: end",
        _ => "",
    };
    let mut line = StatusLine::new(layout, args.quiet, hint);
    let session = collection.info().clone();
    let mut leader = line.is_enabled().then(|| Leader::new(&session));
    let mut told = ReportedCrashes::default();
    let outcome = collection.run_with(&signals.stop, |progress, status| {
        if let (Progress::Update(update), false) = (&progress, args.quiet) {
            for crash in told.news(update) {
                line.erase();
                say(&crash::text(crash, layout));
            }
        }
        if let Some(leader) = &mut leader {
            match progress {
                Progress::Restart => *leader = Leader::new(&session),
                Progress::Update(update) => leader.update(update),
            }
        }
        line.show(status, leader.as_ref().and_then(Leader::text).as_deref());
    });
    line.erase();
    signals.now_waiting();
    if let Some(why) = &outcome.early {
        warn(format_args!("the daemon has ended the session early: {why}"));
    }
    Ok((outcome, signals, job))
}

/// Prints the short report and where the profile is. False if it could not be saved, or the collecting daemon
/// disappeared.
fn conclude(outcome: &mut Outcome, args: &CollectArgs, layout: TextLayout) -> bool {
    let file_error = outcome.file.as_ref().and_then(|file| file.error());
    if let Some(error) = file_error {
        warn(format_args!("{error}"));
    } else if let Some(file) = &outcome.file
        && let Some((intervals, why)) = file.unmerged()
    {
        let name = file.path().display();
        warn(format_args!("{name} is larger than necessary: ccsd could not merge its {intervals} intervals: {why}"));
    }
    let saved = file_error.is_none() && outcome.file_error.is_none();
    if !args.quiet {
        // A note explains why a crash has no stack here.
        let signal = outcome.child.as_ref().and_then(|child| match child.status {
            ExitStatus::Signal(signal) => Some(signal),
            _ => None,
        });
        let verbose = args.verbose || signal.is_some_and(dumps_core);
        let size = outcome.file.as_ref().map(|file| file.bytes());
        let mut text = report::short(&outcome.profile, size, verbose, layout);
        if let Some(file) = outcome.file.as_ref().filter(|_| saved) {
            let mut command = "ccsd report --graph".to_owned();
            if file.path() != std::path::Path::new(DEFAULT_FILE) {
                command.push(' ');
                command.push_str(&shell_word(&file.path().to_string_lossy()));
            }
            text.push_str(&format!("\nsaved in {}; see more with `{command}`\n", file.path().display()));
        }
        say(&text);
    }
    if args.open
        && let Some(file) = outcome.file.as_ref().filter(|_| saved)
        && let Err(failure) = open::open_file(file.path())
    {
        // The profile is there: how the collection ends does not depend on a browser.
        warn(format_args!("{failure}"));
    }
    saved && !outcome.broke_off
}

fn dumps_core(signal: i32) -> bool {
    u32::try_from(signal).is_ok_and(|signal| CORE_SIGNALS.iter().any(|(number, _)| *number == signal))
}

/// Waits for the program if it still runs. The error is the signal that ends the wait.
fn wait(outcome: &Outcome, signals: &Signals, args: &RecordArgs) -> Result<Option<ChildEnd>, i32> {
    let Some(ended) = outcome.child_end() else { return Ok(outcome.child) };
    select! {
        recv(ended) -> end => return Ok(end.ok()),
        default(PATIENCE) => {}
    }
    if !args.collect.quiet {
        let program = args.program.first().map(OsString::as_os_str).unwrap_or_default().to_string_lossy();
        let program = ccsd_profile::sanitise(&program).into_owned();
        warn(format_args!("{program} still runs; waiting for it to end (a second Ctrl-C leaves it running)"));
    }
    select! {
        recv(ended) -> end => Ok(end.ok()),
        recv(signals.again) -> signal => match signal {
            Ok(signal) => Err(signal),
            Err(_) => Ok(ended.recv().ok()),
        },
    }
}
