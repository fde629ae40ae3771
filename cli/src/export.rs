//! `ccsd export`: profiles for other tools.

use std::io::{IsTerminal, Write, stdout};
use std::path::Path;

use anyhow::anyhow;
use ccsd_profile::export::{Export, Format};
use ccsd_profile::sanitise;

use crate::args::export::ExportArgs;
use crate::exit::{Exit, Failure};
use crate::query::{self, QueryResult};
use crate::report::file::{self, LoadedColumns};
use crate::{output, warn};

/// Parts of time at most: about as many as a screen has room for.
const COLUMNS: usize = 600;

pub fn run(args: &ExportArgs) -> Result<Exit, Failure> {
    if let Some(view) = &args.view {
        let view = sanitise(view);
        return Err(Failure::bad_request(anyhow!(
            "an export has the whole profile: html shows a view by the end of its address, as in \
             profile.html#view=graph, and `ccsd report --view {view}` prints one"
        )));
    }
    if args.query.sort.is_some() && args.format != Format::Csv {
        return Err(Failure::bad_request(anyhow!("--sort is for csv: {} has an order of its own", args.format.name())));
    }
    if args.spreadsheet && args.format != Format::Csv {
        return Err(Failure::bad_request(anyhow!("--spreadsheet is for csv: other formats are no tables of names")));
    }
    with_export(args, |export, loaded| save(args, export, loaded.path))
}

/// What [`page`] makes.
pub struct Page {
    pub bytes: Vec<u8>,
    /// Whether it is of a session that goes on.
    pub is_growing: bool,
}

/// The page that `export html` writes.
///
/// # Errors
/// As `export html`.
pub fn page(args: &ExportArgs) -> Result<Page, Failure> {
    with_export(args, |export, loaded| {
        let mut bytes = Vec::new();
        export.write(Format::Html, &mut bytes).map_err(Failure::bad_request)?;
        Ok(Page { bytes, is_growing: loaded.is_growing })
    })
}

/// Where an exported profile comes from.
struct Origin<'a> {
    path: &'a Path,
    /// It is a session that goes on.
    is_growing: bool,
}

/// Loads a profile and does something with what is to be exported of it.
fn with_export<T>(
    args: &ExportArgs,
    then: impl FnOnce(&Export<'_>, Origin<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let LoadedColumns { file: loaded, columns } = load(args)?;
    for message in loaded.messages() {
        warn(format_args!("{message}"));
    }
    let source_path = loaded.path.clone();
    let is_growing = loaded.session.is_some() && !loaded.finished;
    let mut asked_for = loaded.time().map(|time| format!("time {time}")).into_iter().collect::<Vec<_>>();
    let QueryResult { profile, selection, question, .. } = query::ask(&args.query, loaded.profile)?;
    asked_for.extend(question.text());
    let export = Export {
        profile: &profile,
        selection: &selection,
        max_bytes: args.max_size,
        sort: args.query.sort,
        comments: !args.no_comments,
        spreadsheet: args.spreadsheet,
        question: &asked_for.join("; "),
        columns: &columns,
        other_metrics: &[],
        sources: &[],
    };
    then(&export, Origin { path: &source_path, is_growing })
}

/// Writes an export to where it is to go. It must not replace the profile itself.
fn save(args: &ExportArgs, export: &Export<'_>, source_path: &Path) -> Result<Exit, Failure> {
    let output = args.output.as_deref().filter(|path| path.as_os_str() != "-");
    if output.is_none() && !args.format.is_text() && stdout().is_terminal() {
        let name = args.format.name();
        return Err(Failure::bad_request(anyhow!(
            "{name} is not for a terminal: name a file with -o, or redirect standard output"
        )));
    }
    let mut bytes = Vec::new();
    // All of it first: what cannot be exported leaves no file behind.
    export.write(args.format, &mut bytes).map_err(Failure::bad_request)?;
    let Some(path) = output else {
        let mut out = stdout().lock();
        out.write_all(&bytes).and_then(|()| out.flush())?;
        say_what_is_left_out(export, args.format);
        return Ok(Exit::SUCCESS);
    };
    let name = path.display();
    let same = |a: &Path, b: &Path| a.canonicalize().ok().zip(b.canonicalize().ok()).is_some_and(|(a, b)| a == b);
    if same(path, source_path) {
        return Err(Failure::bad_request(anyhow!("{name} is the profile itself: choose another file with -o")));
    }
    output::write(path, &bytes, args.force)?;
    say_what_is_left_out(export, args.format);
    Ok(Exit::SUCCESS)
}

/// The profile; with its time in columns where the format shows time and that is known.
fn load(args: &ExportArgs) -> Result<LoadedColumns, Failure> {
    if args.format.shows_time() {
        let metric = args.query.metric.as_deref();
        return file::load_columns(&args.source, &args.stored, &args.socket, metric, (COLUMNS, true));
    }
    let file = file::load_source(&args.source, &args.stored, &args.socket)?;
    Ok(LoadedColumns { file, columns: Vec::new() })
}

/// Prints the accounting if it was left out of the output.
fn say_what_is_left_out(export: &Export<'_>, format: Format) {
    if export.comments || !format.has_comments() {
        return;
    }
    // The first remark says what was profiled.
    let remarks = export.remarks();
    let accounting: Vec<&str> = remarks.iter().skip(1).take(2).map(String::as_str).collect();
    warn(format_args!("{}", accounting.join("; ")));
}
