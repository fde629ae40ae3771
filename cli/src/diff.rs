//! `ccsd diff`: two profiles side by side, function by function.

use std::io::{Write, stdout};
use std::path::PathBuf;

use anyhow::anyhow;
use ccsd_profile::view::{DiffRow, DiffSide, DiffView, Selection, Total};
use ccsd_profile::{Accounting, Profile, Session, Unit, sanitise};
use serde::Serialize;

use crate::args::watch::DiffArgs;
use crate::exit::{Exit, Failure};
use crate::format::{Scale, count, nanoseconds, percent, unit_name};
use crate::report::{Counts, file};
use crate::stored::{self, About};
use crate::style::{ColorChoice, Layout, Tone};
use crate::table::{Cell, Column, Table, wrap};
use crate::warn;
use ccsd_profile::json::to_text;

/// Rows on a terminal.
const ROWS_ON_TERMINAL: usize = 40;
/// Images have short names; a longer one loses its middle on a terminal.
const IMAGE_WIDTH: usize = 20;

/// One of the two.
struct Side {
    profile: Profile,
    /// What it is: a file, or a time of a watch.
    what: String,
    file: Option<PathBuf>,
    stored: Option<About>,
}

/// Runs the command.
pub fn run(args: &DiffArgs, colour: ColorChoice) -> Result<Exit, Failure> {
    let (before, after) = sides(args)?;
    let (name, unit, before_index, after_index) = metric(args.metric.as_deref(), &before.profile, &after.profile)?;
    let mut view = DiffView::new(
        (&before.profile, &Selection::all().metric(before_index)),
        (&after.profile, &Selection::all().metric(after_index)),
    );
    if args.inherited {
        let size = |row: &DiffRow| row.inherited_change.abs();
        view.rows.sort_by(|a, b| size(b).total_cmp(&size(a)));
    }
    if let Some(text) = &args.function {
        let exact = view.rows.iter().any(|row| &row.name == text);
        view.rows.retain(|row| if exact { &row.name == text } else { row.name.contains(text.as_str()) });
    }
    if args.significant {
        view.rows.retain(|row| if args.inherited { row.inherited_significant } else { row.self_significant });
    }
    let layout = Layout::of(&stdout(), colour);
    let limit = match args.limit {
        Some(0) => None,
        None => (layout.is_terminal() && !args.json).then_some(ROWS_ON_TERMINAL),
        limit => limit,
    };
    let left_out = view.rows.len().saturating_sub(limit.unwrap_or(usize::MAX));
    view.rows.truncate(view.rows.len() - left_out);
    let text = if args.json {
        document(&before, &after, (&name, unit), view, left_out).map_err(Failure::at_run_time)?
    } else {
        let mut text = head("before", &before, layout);
        text.push_str(&head("after", &after, layout));
        text.push_str(&line(
            "change",
            "in percent of all samples; ~ stands where chance alone may be the cause (95% intervals overlap)",
            Tone::Plain,
            layout,
        ));
        text.push('\n');
        text.push_str(&table(&view, unit, args.inherited, left_out, layout));
        text
    };
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())?;
    Ok(Exit::SUCCESS)
}

fn sides(args: &DiffArgs) -> Result<(Side, Side), Failure> {
    if args.stored.is_given()? {
        let side = |since: Option<&str>, until: Option<&str>| {
            let loaded = stored::load(&args.stored, since, until)?;
            for message in loaded.about.messages() {
                warn(format_args!("{message}"));
            }
            let what = loaded.about.line();
            Ok::<Side, Failure>(Side { profile: loaded.profile, what, file: None, stored: Some(loaded.about) })
        };
        let after = side(args.stored.since.as_deref(), args.stored.until.as_deref())?;
        return Ok((side(args.against.as_deref(), None)?, after));
    }
    let [before, after] = args.files.as_slice() else {
        return Err(Failure::bad_request(anyhow!(
            "give two profiles, or --watch NAME with --since TIME and --against TIME..TIME; see `ccsd diff --help`"
        )));
    };
    let side = |path: &PathBuf| {
        let loaded = file::load(path)?;
        if let Some(message) = loaded.message() {
            warn(format_args!("{message}"));
        }
        let what = format!("{} of {}", sanitise(&loaded.profile.session().target), path.display());
        Ok::<Side, Failure>(Side { profile: loaded.profile, what, file: Some(path.clone()), stored: None })
    };
    Ok((side(before)?, side(after)?))
}

/// The metric that both have: its name and unit, and its number in each.
fn metric(asked: Option<&str>, before: &Profile, after: &Profile) -> Result<(String, Unit, usize, usize), Failure> {
    let (old, new) = (&before.session().metrics, &after.session().metrics);
    let position = |name: &str| old.iter().position(|metric| metric.name == name);
    let found = new.iter().enumerate().find_map(|(i, metric)| {
        let wanted = asked.is_none_or(|asked| asked == metric.name);
        let there = position(&metric.name).filter(|_| wanted)?;
        Some((sanitise(&metric.name).into_owned(), metric.unit, there, i))
    });
    found.ok_or_else(|| {
        let names = |metrics: &[ccsd_profile::Metric]| {
            let names: Vec<_> = metrics.iter().map(|metric| sanitise(&metric.name)).collect();
            names.join(", ")
        };
        let (before, after) = (names(old), names(new));
        let what = asked.map_or_else(|| "no metric".to_owned(), |asked| format!("no metric {:?}", sanitise(asked)));
        Failure::bad_request(anyhow!("the two profiles have {what} in common: before {before}; after {after}"))
    })
}

fn head(label: &str, side: &Side, layout: Layout) -> String {
    let (session, accounting) = (side.profile.session(), side.profile.accounting());
    line(label, &format!("{}: {}", side.what, what_became_of_it(session, accounting)), Tone::Plain, layout)
}

/// The accounting of one side, in a line.
fn what_became_of_it(session: &Session, accounting: &Accounting) -> String {
    let used = accounting.target_cpu_ns.map_or_else(String::new, |ns| format!(", {} CPU", nanoseconds(ns)));
    let expected = accounting.expected.map_or_else(String::new, |expected| format!(" of {} expected", count(expected)));
    format!(
        "{} at {} Hz for {}{used}; {} samples{expected}, {} lost, {} throttled, {} dropped, {} undelivered; {} truncated, \
         {} unsymbolised, {} elided",
        sanitise(&session.event),
        count(session.rate_hz.into()),
        nanoseconds(accounting.duration_ns),
        count(accounting.received),
        count(accounting.lost),
        count(accounting.throttled),
        count(accounting.dropped_by_us),
        count(accounting.undelivered()),
        count(accounting.truncated_total()),
        count(accounting.unsymbolised),
        count(accounting.elided),
    )
}

fn line(label: &str, text: &str, tone: Tone, layout: Layout) -> String {
    const INDENT: usize = 11;
    let room = layout.width.map_or(usize::MAX, |width| width.saturating_sub(INDENT));
    let mut lines = String::new();
    for (i, part) in wrap(text, room).iter().enumerate() {
        let head = format!("# {:8} ", if i == 0 { label } else { "" });
        lines.push_str(&layout.paint(Tone::Faint, &head));
        lines.push_str(&layout.paint(tone, part));
        lines.push('\n');
    }
    lines
}

fn table(view: &DiffView, unit: Unit, inherited: bool, left_out: usize, layout: Layout) -> String {
    if view.rows.is_empty() {
        return "no function to show\n".to_owned();
    }
    let scale = Scale::new(unit, view.before.weight.max(view.after.weight));
    let which = if inherited { "inherited" } else { "self" };
    let mut table = Table::new(vec![
        Column::number(format!("{which} change %")),
        Column::text(""),
        Column::number(format!("self {}", scale.unit)),
        Column::number("%"),
        Column::number("-> self"),
        Column::number("%"),
        Column::number("inherited"),
        Column::number("%"),
        Column::number("-> inherited"),
        Column::number("%"),
        Column::text("image").at_most(IMAGE_WIDTH),
        Column::text("function"),
    ]);
    for row in &view.rows {
        let (change, significant) = if inherited {
            (row.inherited_change, row.inherited_significant)
        } else {
            (row.self_change, row.self_significant)
        };
        let tone = match (significant, change > 0.0) {
            (false, _) => Tone::Faint,
            (true, true) => Tone::Bad,
            (true, false) => Tone::Good,
        };
        let mut cells = vec![
            Cell::toned(tone, format!("{:+.2}", change * 100.0)),
            Cell::toned(Tone::Faint, if significant { "" } else { "~" }),
        ];
        let weights = |side: &Option<DiffSide>, weight: fn(&DiffSide) -> (u64, f64)| -> [Cell; 2] {
            match side {
                Some(side) => [scale.weight(weight(side).0).into(), percent(weight(side).1).into()],
                None => ["-".into(), "-".into()],
            }
        };
        for weight in [
            (|side: &DiffSide| (side.self_weight, side.self_share.fraction)) as fn(&DiffSide) -> (u64, f64),
            |side: &DiffSide| (side.inherited_weight, side.inherited_share.fraction),
        ] {
            cells.extend(weights(&row.before, weight));
            cells.extend(weights(&row.after, weight));
        }
        cells.push(Cell::toned(Tone::Faint, sanitise(&row.image)));
        cells.push(sanitise(&row.name).into());
        table.row(cells);
    }
    let mut text = table.render(layout);
    if left_out > 0 {
        text.push_str(&format!("[{} more functions changed less; -n 0 shows all]\n", count(left_out as u64)));
    }
    text
}

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    ccsd_version: &'static str,
    before: SideDocument<'a>,
    after: SideDocument<'a>,
    metric: Metric<'a>,
    rows: Vec<DiffRow>,
    left_out: usize,
}

#[derive(Serialize)]
struct SideDocument<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stored: Option<&'a About>,
    session: &'a Session,
    accounting: Counts,
    total: Total,
}

#[derive(Serialize)]
struct Metric<'a> {
    name: &'a str,
    unit: &'static str,
}

fn document(
    before: &Side,
    after: &Side,
    (name, unit): (&str, Unit),
    view: DiffView,
    left_out: usize,
) -> Result<String, serde_json::Error> {
    fn side(side: &Side, total: Total) -> SideDocument<'_> {
        SideDocument {
            file: side.file.as_ref().map(|path| path.to_string_lossy().into_owned()),
            stored: side.stored.as_ref(),
            session: side.profile.session(),
            accounting: Counts::new(side.profile.accounting()),
            total,
        }
    }
    to_text(&Document {
        schema: 1,
        ccsd_version: env!("CARGO_PKG_VERSION"),
        before: side(before, view.before),
        after: side(after, view.after),
        metric: Metric { name, unit: unit_name(unit) },
        rows: view.rows,
        left_out,
    })
}
