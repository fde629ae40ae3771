//! `ccsd export`: profiles for other tools.

mod difference;
mod sources;

use std::io::{IsTerminal, Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use ccsd_profile::export::{Export, Format};
use ccsd_profile::view::Selection;
use ccsd_profile::{Timeline, sanitise};

use crate::args::export::ExportArgs;
use crate::exit::{Exit, Failure};
use crate::message::warn;
use crate::output;
use crate::query::{self, QueryArgs, QueryResult};
use crate::report::file::{self, LoadedTimeline};
use crate::symbolize;

/// Parts of time at most: about as many as a screen has room for.
const COLUMNS: usize = 600;

pub fn run(args: &ExportArgs) -> Result<Exit, Failure> {
    if let Some(view) = &args.view {
        let view = sanitise(view);
        return Err(Failure::bad_request(anyhow!(
            "an export has the whole profile; for html, choose the view by the end of its address, as in \
             profile.html#view=graph, and `ccsd report --view {view}` prints one"
        )));
    }
    check_sort(&args.query, args.format)?;
    if args.spreadsheet && args.format != Format::Csv {
        return Err(Failure::bad_request(anyhow!("--spreadsheet goes with csv only")));
    }
    if args.format != Format::Html && !args.diff.is_empty() {
        return Err(Failure::bad_request(anyhow!(
            "--diff is for html: `ccsd diff --svg FILE BEFORE AFTER` draws one flame graph of a difference"
        )));
    }
    if let [before, after] = args.diff.as_slice() {
        let (bytes, paths) = difference::page(args, before, after)?;
        return deliver(args, &bytes, &paths);
    }
    with_export(args, |export, origin| {
        let mut bytes = Vec::new();
        // All of it first: what cannot be exported leaves no file behind.
        export.write(args.format, &mut bytes).map_err(Failure::bad_request)?;
        let exit = deliver(args, &bytes, &[origin.path.to_owned()])?;
        say_what_is_left_out(export, args.format);
        Ok(exit)
    })
}

/// Refuses an order for an export that has one of its own.
pub fn check_sort(query: &QueryArgs, format: Format) -> Result<(), Failure> {
    if query.sort.is_some() && format != Format::Csv {
        return Err(Failure::bad_request(anyhow!("--sort is for csv: {} has an order of its own", format.name())));
    }
    Ok(())
}

pub struct ExportedPage {
    pub bytes: Vec<u8>,
    pub is_growing: bool,
    pub file: Option<PathBuf>,
}

pub fn page(args: &ExportArgs) -> Result<ExportedPage, Failure> {
    with_export(args, |export, origin| {
        let mut bytes = Vec::new();
        export.write(Format::Html, &mut bytes).map_err(Failure::bad_request)?;
        let file = origin.is_file.then(|| origin.path.to_owned());
        Ok(ExportedPage { bytes, is_growing: origin.is_growing, file })
    })
}

struct ExportOrigin<'a> {
    path: &'a Path,
    is_file: bool,
    is_growing: bool,
}

fn with_export<T>(
    args: &ExportArgs,
    then: impl FnOnce(&Export<'_>, ExportOrigin<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let LoadedTimeline { file: loaded, timeline, metrics } = load(args, args.query.metric.as_deref())?;
    for message in loaded.messages() {
        warn(format_args!("{message}"));
    }
    let source_path = loaded.path.clone();
    let is_file = loaded.session.is_none() && loaded.stored.is_none();
    let is_growing = loaded.session.is_some() && !loaded.finished;
    let place = loaded.place().map(Path::to_owned);
    let mut asked_for = loaded.time().map(|time| format!("time {time}")).into_iter().collect::<Vec<_>>();
    let QueryResult { profile, selection, question, .. } = query::ask(&args.query, loaded.profile)?;
    asked_for.extend(question.text());
    let others = other_metrics(args, &metrics, &selection, &timeline)?;
    let base = Export { max_bytes: args.page.max_size, ..Export::new(&profile, &selection) };
    let other_metrics: Vec<Export<'_>> = others
        .iter()
        .map(|other| match other {
            OtherMetric::Reread(result) => {
                Export { timeline: &timeline, ..Export::new(&result.profile, &result.selection) }
            }
            OtherMetric::InProfile(selection) => Export::new(&profile, selection),
        })
        .collect();
    let sources = if args.format == Format::Html && !args.page.no_source && question.keeps_functions() {
        let places = sources::places(args, place.as_deref());
        sources::excerpts(&profile, &selection, &places, args.page.max_size / sources::PART)
    } else {
        Vec::new()
    };
    let export = Export {
        sort: args.query.sort,
        comments: !args.no_comments,
        spreadsheet: args.spreadsheet,
        question: &asked_for.join("; "),
        timeline: &timeline,
        other_metrics: &other_metrics,
        sources: &sources,
        ..base
    };
    then(&export, ExportOrigin { path: &source_path, is_file, is_growing })
}

fn deliver(args: &ExportArgs, bytes: &[u8], profiles: &[PathBuf]) -> Result<Exit, Failure> {
    let Some(path) = args.output.as_deref().filter(|path| path.as_os_str() != "-") else {
        if !args.format.is_text() && stdout().is_terminal() {
            let name = args.format.name();
            return Err(Failure::bad_request(anyhow!(
                "{name} is not for a terminal: name a file with -o, or redirect standard output"
            )));
        }
        let mut out = stdout().lock();
        out.write_all(bytes).and_then(|()| out.flush())?;
        return Ok(Exit::SUCCESS);
    };
    let same = |a: &Path, b: &Path| a.canonicalize().ok().zip(b.canonicalize().ok()).is_some_and(|(a, b)| a == b);
    if profiles.iter().any(|profile| same(path, profile)) {
        let name = path.display();
        return Err(Failure::bad_request(anyhow!("{name} is the profile itself: choose another file with -o")));
    }
    output::write(path, bytes, args.force)?;
    Ok(Exit::SUCCESS)
}

/// The profile by a metric; over time where the format shows time and that is known.
fn load(args: &ExportArgs, metric: Option<&str>) -> Result<LoadedTimeline, Failure> {
    let mut loaded = if args.format.shows_time() {
        file::load_timeline(&args.source, &args.stored, &args.socket, metric, (COLUMNS, true))?
    } else {
        let file = file::load_source(&args.source, &args.stored, &args.socket)?;
        LoadedTimeline { file, timeline: Timeline::default(), metrics: Vec::new() }
    };
    symbolize::name_at_hand(&mut loaded.file.profile);
    Ok(loaded)
}

enum OtherMetric {
    /// A profile over time has one metric, so the file is read once more.
    Reread(Box<QueryResult>),
    InProfile(Box<Selection>),
}

/// What a page can be switched to without a requested metric. Metrics with other columns are left out: the file
/// is being written.
fn other_metrics(
    args: &ExportArgs,
    metrics: &[String],
    selection: &Selection,
    timeline: &Timeline,
) -> Result<Vec<OtherMetric>, Failure> {
    let is_wanted = args.format == Format::Html && args.query.metric.is_none();
    let others = metrics.iter().enumerate().skip(1).filter(|_| is_wanted);
    let other = |(number, name): (usize, &String)| {
        if timeline.is_empty() {
            return Ok(Some(OtherMetric::InProfile(Box::new(selection.clone().metric(number)))));
        }
        let query = QueryArgs { metric: Some(name.clone()), ..args.query.clone() };
        let loaded = load(args, Some(name))?;
        if loaded.timeline != *timeline {
            let name = sanitise(name);
            warn(format_args!("the file has changed meanwhile; the page leaves out metric {name}"));
            return Ok(None);
        }
        Ok(Some(OtherMetric::Reread(Box::new(query::ask(&query, loaded.file.profile)?))))
    };
    others.filter_map(|it| other(it).transpose()).collect()
}

fn say_what_is_left_out(export: &Export<'_>, format: Format) {
    if export.comments || !format.has_comments() {
        return;
    }
    let remarks = export.remarks();
    let accounting: Vec<&str> = remarks.iter().skip(1).take(2).map(String::as_str).collect();
    warn(format_args!("{}", accounting.join("; ")));
}
