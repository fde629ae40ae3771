//! `ccsd top --plain` and `--json`: the top rows of a profile that grows.

use std::io::{Write, stderr, stdout};

use anyhow::Context;
use ccsd_daemon::StopRequest;
use ccsd_profile::view::{FlatRow, FlatView, Selection, Total};
use ccsd_profile::{Profile, ProfileLimits, SessionInfo, Update, Updates, sanitise};
use crossbeam_channel::{Receiver, Sender, after, bounded, never, select};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::sources::{FollowedProfile, SourceEvent, follow};
use crate::args::service::TopArgs;
use crate::dump::crash;
use crate::exit::{Exit, Failure};
use crate::format::{count, nanoseconds, unit_name};
use crate::message::warn;
use crate::report;
use crate::style::{ColorChoice, TextLayout, Tone};

const SCHEMA: u32 = 1;

/// Processes that have died of a fault whose lines are shown.
const DEATHS: usize = 3;

pub fn run(args: &TopArgs, colour: ColorChoice) -> Result<Exit, Failure> {
    let (stop, stopped) = bounded(1);
    let FollowedProfile { events, is_own: own, note } = follow(args, stopped)?;
    note.iter().for_each(|note| warn(format_args!("{note}")));
    let signals = signals()?;
    let timer = args.duration.map_or_else(never, after);
    let mut screen = PlainOutput::new(args, TextLayout::of(&stdout(), colour));
    loop {
        let event = select! {
            recv(events) -> event => event,
            recv(signals) -> _ => {
                if !own {
                    return Ok(Exit::SUCCESS);
                }
                let _ = stop.try_send(StopRequest);
                continue;
            }
            recv(timer) -> _ => {
                if !own {
                    return Ok(Exit::SUCCESS);
                }
                let _ = stop.try_send(StopRequest);
                continue;
            }
        };
        match event {
            Ok(SourceEvent::Begin(session)) => screen.begin(&session),
            Ok(SourceEvent::Update { update, latest }) => screen.update(&update, latest)?,
            Ok(SourceEvent::End(why)) => {
                screen.end(why.as_deref())?;
                return Ok(Exit::SUCCESS);
            }
            Ok(SourceEvent::Failed(failure)) => return Err(failure),
            Err(_) => return Ok(Exit::FAILURE),
        }
    }
}

/// Says something at a signal that ends us, and with the second leaves.
fn signals() -> Result<Receiver<()>, Failure> {
    let caught = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot catch signals");
    let mut caught = caught.map_err(Failure::at_run_time)?;
    let (sender, receiver): (Sender<()>, _) = bounded(1);
    let wait = move || {
        for (earlier, signal) in caught.forever().enumerate() {
            if earlier > 0 {
                Exit::Status(Exit::shell_status(signal)).leave();
            }
            let _ = sender.try_send(());
        }
    };
    let thread = std::thread::Builder::new().name("ccsd-signals".to_owned());
    thread.spawn(wait).context("cannot start a thread").map_err(Failure::at_run_time)?;
    Ok(receiver)
}

struct PlainOutput<'a> {
    args: &'a TopArgs,
    layout: TextLayout,
    /// Everything so far; with `--interval` the names alone.
    profile: Profile,
    /// What the last table showed, with `--interval`.
    window: Option<Profile>,
    /// What came since, with `--interval`.
    pending: Updates,
    drawn: usize,
    stale: bool,
    shown_ns: u64,
    shown_received: u64,
}

#[derive(Serialize)]
struct JsonLine<'a> {
    schema: u32,
    target: &'a str,
    elapsed_ns: u64,
    interval_ns: u64,
    received: u64,
    lost: u64,
    metric: &'a str,
    unit: &'static str,
    total: Total,
    rows: &'a [FlatRow],
    /// Processes that signals have killed, since the session began.
    crashes: Vec<crash::Json<'a>>,
    /// Why nothing follows; `null` as long as something does.
    ended: Option<&'a str>,
}

impl<'a> PlainOutput<'a> {
    fn new(args: &'a TopArgs, layout: TextLayout) -> PlainOutput<'a> {
        let profile = Profile::new(SessionInfo::default(), ProfileLimits::reading());
        PlainOutput {
            args,
            layout,
            profile,
            window: None,
            pending: Updates::default(),
            drawn: 0,
            stale: false,
            shown_ns: 0,
            shown_received: 0,
        }
    }

    fn begin(&mut self, session: &SessionInfo) {
        self.profile = Profile::new(session.clone(), ProfileLimits::reading());
        (self.window, self.pending) = (None, Updates::default());
    }

    fn update(&mut self, update: &Update, latest: bool) -> Result<(), Failure> {
        let broken = |error| Failure::at_run_time(anyhow::Error::from(error).context("the profile is broken"));
        if self.args.interval {
            // What is not shown yet belongs to what is shown next.
            self.pending.add(update).map_err(broken)?;
        } else {
            self.profile.apply(update).map_err(broken)?;
        }
        self.stale = !latest;
        if latest { self.show(None) } else { Ok(()) }
    }

    /// Makes what came since the last table the window that is shown.
    fn advance(&mut self) -> Result<(), Failure> {
        let broken = |error| Failure::at_run_time(anyhow::Error::from(error).context("the profile is broken"));
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut window = Profile::new(self.profile.session().clone(), ProfileLimits::reading());
        window.apply(&self.profile.snapshot()).map_err(broken)?;
        self.profile.snapshot_generation().map_or(Ok(()), |it| window.apply(&it)).map_err(broken)?;
        for mut update in std::mem::take(&mut self.pending) {
            window.apply(&update).map_err(broken)?;
            update.clear_charges();
            self.profile.apply(&update).map_err(broken)?;
        }
        self.window = Some(window);
        Ok(())
    }

    fn end(&mut self, why: Option<&str>) -> Result<(), Failure> {
        if self.args.json {
            if self.args.interval && self.pending.is_empty() {
                // What has been shown is not of the rest.
                self.window = None;
            }
            return self.show(Some(why.unwrap_or_default()));
        }
        if self.stale {
            self.show(None)?;
        }
        if let Some(why) = why {
            // What is said on standard error must come after what is shown.
            stdout().flush()?;
            let _ = stderr().flush();
            warn(format_args!("{why}"));
        }
        Ok(())
    }

    fn died(&self, profile: &Profile) -> String {
        let crashes = profile.crashes();
        let lines = crashes.iter().skip(crashes.len().saturating_sub(DEATHS)).map(|crash| {
            let line = crate::table::cut(&format!("# {}", crash.summary()), self.layout.width.unwrap_or(usize::MAX));
            self.layout.paint(Tone::Bad, &line) + "\n"
        });
        lines.collect()
    }

    fn show(&mut self, ended: Option<&str>) -> Result<(), Failure> {
        self.advance()?;
        let profile = self.window.as_ref().unwrap_or(&self.profile);
        let accounting = profile.accounting();
        let interval_ns = accounting.duration_ns.saturating_sub(self.shown_ns);
        let new = accounting.received.saturating_sub(self.shown_received);
        let lost = accounting.known_missing();
        let text = if self.args.json {
            let mut view = FlatView::new(profile, &Selection::all());
            if self.args.limit > 0 {
                view.limit(self.args.limit);
            }
            let metric = profile.session().metrics.first();
            ccsd_profile::json::to_text(&JsonLine {
                schema: SCHEMA,
                target: &profile.session().target,
                elapsed_ns: accounting.duration_ns,
                interval_ns: if self.args.interval { interval_ns } else { accounting.duration_ns },
                received: accounting.received,
                lost,
                metric: metric.map_or("", |metric| metric.name.as_str()),
                unit: metric.map_or("", |metric| unit_name(metric.unit)),
                total: view.total,
                rows: &view.rows,
                crashes: crash::json(profile),
                ended,
            })
            .map_err(Failure::at_run_time)?
        } else {
            let head = format!(
                "# {}  {}  {} samples ({} in the last {}), {} lost",
                sanitise(&profile.session().target),
                nanoseconds(accounting.duration_ns),
                count(accounting.received),
                count(new),
                nanoseconds(interval_ns),
                count(lost),
            );
            let head = crate::table::cut(&head, self.layout.width.unwrap_or(usize::MAX));
            let head = self.layout.paint(Tone::Faint, &head);
            let died = self.died(profile);
            format!("{head}\n{died}{}\n", report::top(profile, self.args.limit, self.layout))
        };
        (self.shown_ns, self.shown_received) = (accounting.duration_ns, accounting.received);
        let mut out = stdout().lock();
        if self.layout.is_terminal() && !self.args.json {
            if self.drawn > 0 {
                // Over the last one, from its first line on.
                write!(out, "\x1b[{}A\x1b[J", self.drawn)?;
            }
            self.drawn = text.lines().count();
        }
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccsd_profile::{ContextId, CostCentre, Image, LineId, Metric, Process, Thread, Unit};
    use clap::Parser;

    #[test]
    fn an_interval_has_all_that_was_not_shown() {
        let cli = crate::args::Cli::try_parse_from(["ccsd", "top", "--plain", "--interval", "x"]).unwrap();
        let crate::args::Command::Top(args) = cli.command else { panic!("not live") };
        let metrics = vec![Metric { name: "cpu-clock".to_owned(), unit: Unit::Nanoseconds }];
        let mut source = Profile::new(SessionInfo { metrics, ..SessionInfo::default() }, ProfileLimits::default());
        let image = source.add_image(Image { name: "x".to_owned(), build_id: Vec::new() });
        let process = source.add_process(Process::new(1, 1, String::new()));
        let thread = source.add_thread(Thread { process, tid: 1, name: String::new() });
        let mut charge = |name: &str, samples: u64| {
            let (linkage_name, start) = (Some(name.to_owned()), None);
            let function =
                CostCentre { image, linkage_name, display_name: None, start, file: None, line: 0, local: false };
            let function = source.add_cost_centre(function);
            let context = source.contexts_mut().push(ContextId::ROOT, function);
            source.charge_many(thread, context, LineId::UNKNOWN, samples, &[samples]);
            source.take_update()
        };
        let mut screen = PlainOutput::new(&args, TextLayout::PLAIN);
        let samples = |screen: &mut PlainOutput<'_>| {
            screen.advance().unwrap();
            let view = FlatView::new(screen.window.as_ref().unwrap(), &Selection::all());
            view.rows.iter().map(|row| (row.name.clone(), row.samples_self)).collect::<Vec<_>>()
        };
        let updates = [charge("f", 1), charge("g", 10), charge("f", 4), charge("g", 2)];
        screen.begin(&SessionInfo {
            metrics: vec![Metric { name: "cpu-clock".to_owned(), unit: Unit::Nanoseconds }],
            ..SessionInfo::default()
        });
        for update in &updates[..3] {
            screen.update(update, false).unwrap();
        }
        assert_eq!(samples(&mut screen), [("g".to_owned(), 10), ("f".to_owned(), 5)]);
        screen.update(&updates[3], false).unwrap();
        let later = samples(&mut screen);
        assert_eq!(later.iter().filter(|(_, samples)| *samples > 0).collect::<Vec<_>>(), [&("g".to_owned(), 2)]);
    }
}
