//! `ccsd top`: a profile that grows, on the whole screen.
//!
//! [`model`]: what is known; [`rows`]: queries and answers; [`state`]: choices and keys; [`draw`]: how it looks. This
//! module waits for keys, updates, and answers of other threads.

mod draw;
mod flame;
mod model;
mod plain;
mod rows;
mod sources;
mod state;
mod terminal;

use std::collections::BTreeSet;
use std::io::{IsTerminal, stdin, stdout};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow};
use ccsd_daemon::{CollectorChoice, OutputFile, StopRequest};
use ccsd_profile::Profile;
use crossbeam_channel::{Receiver, Sender, bounded, never, select};
use ratatui::crossterm::event::{self, Event as Input, KeyEventKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::report;
use crate::args::service::TopArgs;
use crate::connection::by;
use crate::dump;
use crate::exit::{Exit, Failure};
use crate::style::{ColorChoice, TextLayout, has_unicode};

use draw::draw;
use model::TopModel;
use sources::{FollowedProfile, SourceEvent, follow};
use state::{ScreenState, TextPage, Wish};
use terminal::{FullScreen, TerminalFeatures};

/// How long the end of a collection of our own is waited for when the user leaves.
const GRACE: Duration = Duration::from_secs(2);

#[cfg(test)]
pub use model::tests::TestProfile;

pub fn run(args: &TopArgs, colour: ColorChoice) -> Result<Exit, Failure> {
    if args.plain || args.json {
        if args.view.view.is_some_and(|view| view != report::View::Flat) {
            return Err(Failure::bad_request(anyhow!(
                "--plain and --json show the view flat; `ccsd report` has them all"
            )));
        }
        return plain::run(args, colour);
    }
    if !stdout().is_terminal() || !stdin().is_terminal() {
        let hint = "`ccsd top --plain` prints lines, `ccsd report` prints once";
        return Err(Failure::bad_request(anyhow!("top needs a terminal for input and output; {hint}")));
    }
    let (stop, stopped) = bounded(1);
    let FollowedProfile { events, note, .. } = follow(args, stopped)?;
    let look = TerminalFeatures { colour: TextLayout::of(&stdout(), colour).colour, unicode: has_unicode() };
    let (signals, keys) = (signals()?, keys()?);
    let unusable = |error: std::io::Error| {
        Failure::at_run_time(
            anyhow::Error::from(error).context("cannot use the terminal; `ccsd top --plain` prints lines"),
        )
    };
    let mut taken = FullScreen::take().map_err(unusable)?;
    let by = CollectorChoice { daemon_only: false, ..by(&args.by) };
    let mut top = Top { model: TopModel::new(args.full_names), state: ScreenState::new(), dumps: bounded(1), by };
    top.state.message = note;
    top.state.question.view = first_view(args.view.view);
    let mut from: Receiver<SourceEvent> = events.clone();
    let end = loop {
        taken.0.draw(|frame| draw(frame, &mut top.state, &top.model, look)).map_err(unusable)?;
        let wish = select! {
            recv(from) -> event => match event {
                Ok(SourceEvent::Failed(failure)) => break Err(failure),
                Ok(event) => {
                    top.take(event)?;
                    // Of a file everything comes at once.
                    while let Ok(event) = from.try_recv() {
                        top.take(event)?;
                    }
                    Wish::None
                }
                Err(_) => {
                    from = never();
                    Wish::None
                }
            },
            recv(keys) -> input => match input {
                Ok(Ok(Input::Key(key))) if key.kind != KeyEventKind::Release => top.state.key(key, &mut top.model),
                Ok(Ok(_)) => Wish::None,
                Ok(Err(_)) | Err(_) => Wish::Quit,
            },
            recv(top.dumps.1) -> page => {
                top.state.page = page.ok();
                Wish::None
            }
            recv(signals) -> _ => Wish::Quit,
        };
        match wish {
            Wish::None => {}
            Wish::Quit => break Ok(()),
            Wish::Redraw => taken.redraw().map_err(unusable)?,
            Wish::Suspend => taken.suspend().map_err(unusable)?,
            Wish::Dump => top.dump(),
            Wish::Save(path) => top.state.message = Some(save(&path, top.model.profile())),
        }
    };
    drop(taken);
    end?;
    // The collection writes what it has and ends its session.
    if stop.try_send(StopRequest).is_ok() {
        while let Ok(event) = events.recv_timeout(GRACE) {
            if matches!(event, SourceEvent::End(_) | SourceEvent::Failed(_)) {
                break;
            }
        }
    }
    Ok(Exit::SUCCESS)
}

fn first_view(view: Option<report::View>) -> rows::TopView {
    match view {
        Some(report::View::Tree) => rows::TopView::Tree,
        Some(report::View::Butterfly) => rows::TopView::Callers,
        Some(report::View::Threads) => rows::TopView::Threads,
        Some(report::View::Flame) => rows::TopView::Flame,
        _ => rows::TopView::Flat,
    }
}

struct Top {
    model: TopModel,
    state: ScreenState,
    dumps: (Sender<TextPage>, Receiver<TextPage>),
    by: CollectorChoice,
}

impl Top {
    fn take(&mut self, event: SourceEvent) -> Result<(), Failure> {
        let broken = |error| Failure::at_run_time(anyhow::Error::from(error).context("the profile is broken"));
        match event {
            SourceEvent::Begin(session) => self.model.begin(&session),
            SourceEvent::Update { update, latest } => {
                self.model.update(&update).map_err(broken)?;
                if latest && !self.model.is_paused() {
                    self.state.refresh(&self.model);
                }
            }
            SourceEvent::End(why) => {
                self.model.end();
                self.state.message = why;
                self.state.refresh(&self.model);
            }
            SourceEvent::Failed(failure) => return Err(failure),
        }
        Ok(())
    }

    fn dump(&mut self) {
        let pids: BTreeSet<u32> = self.model.profile().processes().iter().map(|process| process.pid).collect();
        let pids: Vec<u32> =
            pids.into_iter().filter(|&pid| Path::new("/proc").join(pid.to_string()).exists()).collect();
        if pids.is_empty() {
            self.state.message = Some("no process of this profile runs here any more".to_owned());
            return;
        }
        self.state.message = Some("taking the stacks of all threads".to_owned());
        let (pages, by) = (self.dumps.0.clone(), self.by.clone());
        let take = move || {
            let (dumps, failures) = dump::take(&pids, false, &by);
            let mut lines = dump::lines(&dumps);
            lines.extend(failures.iter().map(|failure| failure.to_string()));
            let _ = pages.send(TextPage { title: "Stacks of all threads".to_owned(), lines, top: 0 });
        };
        if let Err(error) = thread::Builder::new().name("ccsd-dumps".to_owned()).spawn(take) {
            self.state.message = Some(format!("cannot start a thread: {error}"));
        }
    }
}

/// Writes the profile so far, and says what has become of it.
fn save(path: &Path, profile: &Profile) -> String {
    let mut output = match OutputFile::replace(path, profile.session()) {
        Ok(output) => output,
        Err(error) => return error.to_string(),
    };
    output.write(&profile.snapshot());
    output.finish();
    match output.error() {
        Some(error) => error.to_string(),
        None => format!("saved in {}; `ccsd report {0}` reads it", path.display()),
    }
}

fn keys() -> Result<Receiver<std::io::Result<Input>>, Failure> {
    let (sender, receiver) = bounded(16);
    let read = move || {
        loop {
            let input = event::read();
            let failed = input.is_err();
            if sender.send(input).is_err() || failed {
                return;
            }
        }
    };
    let thread = thread::Builder::new().name("ccsd-keys".to_owned());
    thread.spawn(read).context("cannot start a thread").map_err(Failure::at_run_time)?;
    Ok(receiver)
}

fn signals() -> Result<Receiver<()>, Failure> {
    let caught = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot catch signals");
    let mut caught = caught.map_err(Failure::at_run_time)?;
    let (sender, receiver): (Sender<()>, _) = bounded(1);
    let wait = move || {
        for _ in caught.forever() {
            let _ = sender.try_send(());
        }
    };
    let thread = thread::Builder::new().name("ccsd-signals".to_owned());
    thread.spawn(wait).context("cannot start a thread").map_err(Failure::at_run_time)?;
    Ok(receiver)
}
