//! `ccsd daemon`: the daemon itself, and the commands that use it.

pub mod daemon;
pub mod watches;
pub mod worker;

use std::io::{IsTerminal, Write, stdout};

use anyhow::anyhow;
use ccsd_daemon::OutputFile;
use ccsd_daemon::authority::user_name;
use ccsd_daemon::client::{Client, StreamEvent};
use ccsd_daemon::protocol::message::{Request, SessionSummary};
use ccsd_daemon::watch::WatchStatus;
use ccsd_profile::{Encoder, sanitise};
use serde::Serialize;

use crate::args::service::{MetricsArgs, SaveArgs, StatusArgs, StopArgs};
use crate::connection::connect;
use crate::exit::{Exit, Failure};
use crate::format::{bytes, count, counted, nanoseconds};
use crate::locate::{Lookup, say_whose, session_to_stop};
use crate::message::say;
use crate::style::{ColorChoice, TextLayout, Tone};
use crate::table::{TableCell, TableColumn, TextTable};
use ccsd_profile::json;

const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct StatusDocument<'a> {
    schema: u32,
    ccsd_version: &'static str,
    daemon: String,
    sessions: &'a [SessionSummary],
    /// State of the watches, for root and members of the group.
    watches: &'a [WatchStatus],
}

pub fn status(args: &StatusArgs, colour: ColorChoice) -> Result<Exit, Failure> {
    let mut client = connect(&args.socket)?;
    let sessions = client.list()?;
    // Users without permission see no watches.
    let watches = client.watches().unwrap_or_default().watches;
    let text = if args.json {
        let daemon = client.path().display().to_string();
        let document = StatusDocument {
            schema: SCHEMA,
            ccsd_version: env!("CARGO_PKG_VERSION"),
            daemon,
            sessions: &sessions,
            watches: &watches,
        };
        json::to_text(&document).map_err(Failure::at_run_time)?
    } else if sessions.is_empty() && watches.is_empty() {
        say("no sessions; `ccsd attach --detach PID` makes one\n");
        String::new()
    } else {
        table(&sessions, &watches, TextLayout::of(&stdout(), colour))
    };
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())?;
    Ok(Exit::SUCCESS)
}

fn table(sessions: &[SessionSummary], watches: &[WatchStatus], layout: TextLayout) -> String {
    let mut table = TextTable::new(vec![
        TableColumn::number("id"),
        TableColumn::text("owner"),
        TableColumn::text("state"),
        TableColumn::number("time"),
        TableColumn::number("samples"),
        TableColumn::number("lost"),
        TableColumn::number("memory"),
        TableColumn::number("readers"),
        TableColumn::text("target"),
    ]);
    for session in sessions {
        let (state, tone) = match (&session.ended, session.detached) {
            (None, true) => ("detached", Tone::Plain),
            (None, false) => ("running", Tone::Plain),
            (Some(_), _) => ("ended", Tone::Faint),
        };
        let owner = user_name(session.owner_uid);
        let mut target = sanitise(&session.target).into_owned();
        if let Some(end) = &session.ended {
            target.push_str(&format!(" [{}]", sanitise(&end.text())));
        }
        let cells = [
            session.id.to_string(),
            owner.strip_prefix("user ").unwrap_or(&owner).to_owned(),
            state.to_owned(),
            nanoseconds(session.duration_ns),
            count(session.received),
            count(session.lost),
            bytes(session.bytes),
            session.readers.to_string(),
            target,
        ];
        table.row(cells.into_iter().map(|text| TableCell::toned(tone, text)).collect());
    }
    for watch in watches {
        let state = if watch.profiling { "watch" } else { "waiting" };
        let target = format!(
            "watch {}: {} (`ccsd top watch:{0}`, `ccsd report watch:{0}`)",
            sanitise(&watch.name),
            counted(watch.processes, "process", "processes")
        );
        let none = || "-".to_owned();
        let cells =
            [none(), none(), state.to_owned(), none(), count(watch.samples), count(watch.lost), none(), none(), target];
        table.row(cells.into_iter().map(|text| TableCell::toned(Tone::Plain, text)).collect());
    }
    table.render(layout)
}

/// `ccsd daemon stop`: stops all named sessions, or none.
pub fn stop(args: &StopArgs) -> Result<Exit, Failure> {
    let mut client = connect(&args.socket)?;
    let known = client.list()?;
    let sessions = args.sessions.iter().map(|source| session_to_stop(source, &known));
    for session in sessions.collect::<Result<Vec<u32>, Failure>>()? {
        known.iter().filter(|summary| summary.id == session).for_each(say_whose);
        client.order(&Request::Stop { session, target_cpu_ns: None, forget: false })?;
    }
    Ok(Exit::SUCCESS)
}

pub fn metrics(args: &MetricsArgs) -> Result<Exit, Failure> {
    let text = connect(&args.socket)?.metrics()?;
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())?;
    Ok(Exit::SUCCESS)
}

fn session_to_save(args: &SaveArgs) -> Result<(Client, u32), Failure> {
    Lookup { daemon: Some(&args.socket), files: false, processes: false }.locate_session(&args.session)
}

/// `ccsd daemon save -o -`: written only when complete, because a stream may restart.
fn save_to_standard_output(args: &SaveArgs) -> Result<Exit, Failure> {
    if stdout().is_terminal() {
        return Err(Failure::bad_request(anyhow!("a profile is not for a terminal: name a file, or redirect it")));
    }
    let (client, session) = session_to_save(args)?;
    let (profile, _) = client.subscribe(session, false)?.read_all()?;
    let mut bytes = Vec::new();
    let written = Encoder::new(&mut bytes, profile.session()).and_then(|mut encoder| {
        encoder.write(&profile.snapshot())?;
        encoder.finish().map(|_| ())
    });
    written.map_err(Failure::at_run_time)?;
    let mut out = stdout().lock();
    out.write_all(&bytes).and_then(|()| out.flush())?;
    Ok(Exit::SUCCESS)
}

pub fn save(args: &SaveArgs) -> Result<Exit, Failure> {
    if args.output.as_os_str() == "-" {
        return save_to_standard_output(args);
    }
    OutputFile::check_contents(&args.output).map_err(Failure::bad_request)?;
    let (client, session) = session_to_save(args)?;
    let mut stream = client.subscribe(session, false)?;
    let mut output = OutputFile::replace(&args.output, stream.session()).map_err(Failure::at_run_time)?;
    loop {
        match stream.next_event()? {
            StreamEvent::Restart => output.restart(stream.session()),
            StreamEvent::Update(update) => output.write(&update),
            StreamEvent::End(_) => break,
        }
    }
    output.finish();
    match output.error() {
        Some(error) => Err(Failure::at_run_time(anyhow!("{error}"))),
        None => Ok(Exit::SUCCESS),
    }
}
