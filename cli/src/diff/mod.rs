//! `ccsd diff`: compares profiles, or several runs, by function, as a call tree, or as a flame graph.

mod change;
mod grew;
mod names;
mod runs;
mod tree;

use std::cmp::Reverse;
use std::io::{Write, stdout};

use anyhow::anyhow;
use ccsd_profile::export::{Export, write_difference};
use ccsd_profile::view::{
    DiffRow, DiffSide, DiffTree, DiffView, FlatView, Matching, SIGNIFICANCE, SIGNIFICANCE_LEVEL, Selection, Share,
    Total,
};
use ccsd_profile::{Accounting, Profile, SessionInfo, Unit, sanitise};
use serde::Serialize;

use crate::args::diff::DiffArgs;
use crate::exit::{Exit, Failure};
use crate::format::{UnitScale, count, counted, nanoseconds, percent, unit_name};
use crate::message::warn;
use crate::query::{self, QueryArgs};
use crate::report::AccountingCounts;
use crate::stored::About;
use crate::style::{ColorChoice, TextLayout, Tone};
use crate::table::{TableCell, TableColumn, TextTable, wrap};
use crate::{functions, suggest};
use ccsd_profile::json::to_text;

use change::{ShownChange, change_cell};
use grew::Grew;
use runs::{LoadedRun, RunSide, sides};

const ROWS_ON_TERMINAL: usize = 40;
/// Default of `--min` for call trees, percent.
const TREE_MIN: f64 = 0.5;
/// Maximum width of image names on a terminal; longer names lose their middle.
const IMAGE_WIDTH: usize = 20;

pub fn run(args: &DiffArgs, colour: ColorChoice) -> Result<Exit, Failure> {
    if args.svg.is_some() && args.query.min.is_some() {
        return Err(Failure::bad_request(anyhow!("a flame graph shows all that is wide enough to be seen: no --min")));
    }
    let (mut before, mut after) = sides(args)?;
    if args.fail_above.is_some() {
        refuse_cut(&before, &after)?;
    }
    if let Some(message) = names::one_sided(&before, &after) {
        warn(format_args!("{message}"));
    }
    let (name, unit) = runs::metric(args.query.metric.as_deref(), &before, &after)?;
    // Merging small functions on each side separately would merge different functions.
    let query = QueryArgs { metric: Some(name.clone()), min: None, ..args.query.clone() };
    if let Some(path) = &args.svg {
        if args.absolute && before.runs.len() != after.runs.len() {
            return Err(Failure::bad_request(anyhow!("a flame graph by weight takes as many runs before as after")));
        }
        let (before, after) = (before.merged()?.ask(&query, "before")?, after.merged()?.ask(&query, "after")?);
        let question = query::words_of(&args.query);
        fn export<'a>(run: &'a LoadedRun, question: &'a str) -> Export<'a> {
            Export { question, ..Export::new(&run.profile, &run.selection) }
        }
        let mut bytes = Vec::new();
        let (old, new) = (export(&before, &question), export(&after, &question));
        write_difference(&old, &new, args.absolute, &mut bytes).map_err(Failure::bad_request)?;
        crate::output::write(path, &bytes, args.force)?;
        return Ok(Exit::SUCCESS);
    }
    let lengths = match args.rate {
        true => Some([before.wall_seconds()?, after.wall_seconds()?]),
        false => None,
    };
    before.ask(&query, "before")?;
    after.ask(&query, "after")?;
    let (old, new) = (before.selected(), after.selected());
    let layout = TextLayout::of(&stdout(), colour);
    let limit = match args.limit {
        Some(0) => None,
        None => (layout.is_terminal() && !args.json).then_some(ROWS_ON_TERMINAL),
        limit => limit,
    };
    let mut text = String::new();
    if !args.json {
        before.runs.iter().for_each(|run| text.push_str(&head("before", run, layout)));
        after.runs.iter().for_each(|run| text.push_str(&head("after", run, layout)));
        let several = before.runs.len() > 1 || after.runs.len() > 1;
        let of = match (args.absolute, several) {
            _ if args.rate => "in weight per second of wall time (s/s: CPUs in use)",
            (true, false) => "in weight",
            (true, true) => "in weight of one run on average",
            (false, _) => "in percent of the samples",
        };
        let chance = if several { "in sampling and between runs" } else { "in sampling (not of how runs differ)" };
        let level = SIGNIFICANCE_LEVEL * 100.0;
        let change = format!(
            "{of}; ~ where chance may explain it: of those without at most {level}% on average are due to chance {chance}"
        );
        text.push_str(&line("change", &change, Tone::Plain, layout));
        let programs = programs(&before, &after);
        if !programs.is_empty() {
            let programs = format!("the programs {} count as one", programs.join(", "));
            text.push_str(&line("matched", &programs, Tone::Plain, layout));
        }
        let question = query::words_of(&args.query);
        if !question.is_empty() {
            text.push_str(&line("selected", &format!("{question}; % of what is selected"), Tone::Plain, layout));
        }
    }
    let mut grew = Vec::new();
    let mut view = DiffView::default();
    if !args.tree || args.fail_above.is_some() {
        view = DiffView::from_runs_of_lengths(&old, &new, lengths.unwrap_or([1.0; 2]));
        if let Some(pattern) = &args.function {
            let profiles: Vec<&Profile> = before.runs.iter().chain(&after.runs).map(|run| &run.profile).collect();
            let named = functions::named_in_all(pattern, &profiles);
            view.rows.retain(|row| named.contains(&row.function));
            if view.rows.is_empty() {
                let last = profiles.last();
                return Err(Failure::bad_request(anyhow!(
                    "the profiles have no {} that matches {:?}{}",
                    args.query.by.nouns().0,
                    sanitise(pattern.text()),
                    last.map_or_else(String::new, |profile| suggest::question(pattern, profile))
                )));
            }
        }
        grew =
            args.fail_above.map_or_else(Vec::new, |percent| grew::find_growth(&view, percent, args.compares_weights()));
    }
    let failed = args.fail_above.map(|percent| Failed { percent, grew: &grew });
    if args.tree {
        let min = args.query.min.unwrap_or(TREE_MIN);
        let mut view = DiffTree::from_runs(&old, &new, min / 100.0);
        if args.absolute {
            view.sort_absolutely();
        }
        if args.json {
            let totals = (view.before, view.after);
            text = document(&before, &after, (&name, unit), totals, (lengths, failed), DiffData::Tree(view))
                .map_err(Failure::at_run_time)?;
        } else {
            text.push_str(&line("view", &format!("tree; less than {min}% in both is summed up"), Tone::Plain, layout));
            text.push('\n');
            text.push_str(&tree::text(&view, unit, args.absolute, limit, layout));
        }
    } else {
        order(&mut view, args)?;
        if args.significant {
            view.rows.retain(|row| ShownChange::of(row, args).significant);
        }
        let least = args.query.min.unwrap_or(0.0) / 100.0;
        let size = |side: &Option<DiffSide>| side.map_or(0.0, |side| side.inherited_share.fraction);
        let heavy = |row: &DiffRow| size(&row.before).max(size(&row.after)) >= least;
        let (mut rows, light): (Vec<DiffRow>, Vec<DiffRow>) = view.rows.into_iter().partition(heavy);
        let mut left_out = rows.split_off(rows.len().min(limit.unwrap_or(usize::MAX)));
        left_out.extend(light);
        view.rows = rows;
        let other = Other::of(&left_out);
        if args.json {
            let totals = (view.before, view.after);
            let data = DiffData::Flat { rows: view.rows, left_out: left_out.len(), other };
            text = document(&before, &after, (&name, unit), totals, (lengths, failed), data)
                .map_err(Failure::at_run_time)?;
        } else {
            text.push('\n');
            text.push_str(&table(&view, unit, args, &other, layout));
        }
    }
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())?;
    let Some(percent) = args.fail_above.filter(|_| !grew.is_empty()) else { return Ok(Exit::SUCCESS) };
    warn(format_args!("{}", grew::message(&grew, percent, args.compares_weights())));
    Ok(Exit::GREW)
}

/// Refuses profiles of which a part is missing, or all: what they lack may be what grew.
fn refuse_cut(before: &RunSide, after: &RunSide) -> Result<(), Failure> {
    let is_empty = |run: &&LoadedRun| FlatView::new(&run.profile, &Selection::all()).total.samples == 0;
    if let Some(run) = before.runs.iter().chain(&after.runs).find(is_empty) {
        return Err(Failure::bad_request(anyhow!(
            "--fail-above compares shares of samples, and {} has none: record again, longer or with a higher rate",
            run.what
        )));
    }
    let cut: Vec<&str> =
        before.runs.iter().chain(&after.runs).filter(|run| !run.is_whole).map(|run| run.what.as_str()).collect();
    if cut.is_empty() {
        return Ok(());
    }
    Err(Failure::bad_request(anyhow!(
        "--fail-above takes profiles that can be read whole, and {}: record again, or compare what there is without \
         --fail-above",
        match cut.as_slice() {
            [one] => format!("this one cannot: {one}"),
            several => format!("these cannot: {}", several.join("; ")),
        }
    )))
}

fn order(view: &mut DiffView, args: &DiffArgs) -> Result<(), Failure> {
    use ccsd_profile::view::ViewColumn;
    let after = |row: &DiffRow| row.after.or(row.before).unwrap_or_default();
    match args.query.sort {
        None => {
            let size = |row: &DiffRow| ShownChange::of(row, args).size(args.compares_weights());
            view.rows.sort_by(|a, b| size(b).total_cmp(&size(a)));
        }
        Some(ViewColumn::Own) => view.rows.sort_by_key(|row| Reverse(after(row).self_weight)),
        Some(ViewColumn::Inherited) => view.rows.sort_by_key(|row| Reverse(after(row).inherited_weight)),
        Some(ViewColumn::Samples) => view.rows.sort_by_key(|row| Reverse(after(row).samples_self)),
        Some(ViewColumn::Name) => view.rows.sort_by(|a, b| a.function.name.cmp(&b.function.name)),
        Some(ViewColumn::Image) => view.rows.sort_by(|a, b| a.function.image.cmp(&b.function.image)),
        Some(column) => {
            let column = column.heading();
            return Err(Failure::bad_request(anyhow!(
                "a difference has no column {column} to sort by: it has self, total, samples, name, image"
            )));
        }
    }
    Ok(())
}

/// Programs with different names that count as one image.
fn programs(before: &RunSide, after: &RunSide) -> Vec<String> {
    let matching = Matching::of(before.runs.iter().chain(&after.runs).map(|run| &run.profile));
    matching.programs().into_iter().map(|name| sanitise(name).into_owned()).collect()
}

fn head(label: &str, run: &LoadedRun, layout: TextLayout) -> String {
    let (session, accounting) = (run.profile.session(), run.profile.accounting());
    line(label, &format!("{}: {}", run.what, accounting_line(session, accounting)), Tone::Plain, layout)
}

fn accounting_line(session: &SessionInfo, accounting: &Accounting) -> String {
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

fn line(label: &str, text: &str, tone: Tone, layout: TextLayout) -> String {
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

#[derive(Serialize)]
struct Other {
    functions: usize,
    self_weight_before: u64,
    self_weight_after: u64,
}

impl Other {
    fn of(rows: &[DiffRow]) -> Other {
        let own = |side: &Option<DiffSide>| side.map_or(0, |side| side.self_weight);
        let sum = |side: fn(&DiffRow) -> &Option<DiffSide>| {
            rows.iter().map(|row| own(side(row))).fold(0, u64::saturating_add)
        };
        Other {
            functions: rows.len(),
            self_weight_before: sum(|row| &row.before),
            self_weight_after: sum(|row| &row.after),
        }
    }
}

fn table(view: &DiffView, unit: Unit, args: &DiffArgs, other: &Other, layout: TextLayout) -> String {
    if view.rows.is_empty() && other.functions == 0 {
        return "no function to show\n".to_owned();
    }
    let scale = UnitScale::new(unit, view.before.weight.max(view.after.weight));
    let absolute = args.compares_weights();
    let unit = format!("{}{}", scale.unit, if args.rate { "/s" } else { "" });
    let which = if args.inherited { "total" } else { "self" };
    let (one, _) = args.query.by.nouns();
    let mut table = TextTable::new(vec![
        TableColumn::number(format!("{which} change {}", if absolute { &unit } else { "%" })),
        TableColumn::text(""),
        TableColumn::number(format!("self {unit}")),
        TableColumn::number("%"),
        TableColumn::number("-> self"),
        TableColumn::number("%"),
        TableColumn::number("total").if_room(),
        TableColumn::number("%").if_room(),
        TableColumn::number("-> total").if_room(),
        TableColumn::number("%").if_room(),
        TableColumn::text("image").at_most(IMAGE_WIDTH).if_room(),
        TableColumn::text(one),
    ]);
    for row in &view.rows {
        let change = ShownChange::of(row, args);
        let mut cells = vec![
            change_cell(&change, absolute, scale),
            TableCell::toned(Tone::Faint, if change.significant { "" } else { "~" }),
        ];
        let weights = |side: &Option<DiffSide>, weight: fn(&DiffSide) -> (u64, f64)| -> [TableCell; 2] {
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
        cells.push(TableCell::toned(Tone::Faint, sanitise(&row.function.image)));
        cells.push(sanitise(&row.label).into());
        table.row(cells);
    }
    if other.functions > 0 {
        let share = |weight: u64, total: Total| Share::from_weight(weight, &total).fraction;
        let (was, is) = (other.self_weight_before, other.self_weight_after);
        let (before, after) = (share(was, view.before), share(is, view.after));
        let change = ShownChange { share: after - before, weights: (was, is), significant: false };
        let faint = |text: String| TableCell::toned(Tone::Faint, text);
        let (one, several) = args.query.by.nouns();
        let more = counted(other.functions as u64, &format!("more {one}"), &format!("more {several}"));
        let mut cells = vec![
            // Inherited weights overlap and have no sum.
            if args.inherited { TableCell::default() } else { change_cell(&change, absolute, scale) },
            TableCell::default(),
            faint(scale.weight(was)),
            faint(percent(before)),
            faint(scale.weight(is)),
            faint(percent(after)),
        ];
        cells.resize(11, TableCell::default());
        let hint = if args.query.min.is_some() { "-n 0 without --min" } else { "-n 0" };
        cells.push(faint(format!("[{more}; {hint} shows all]")));
        table.row(cells);
    }
    table.render(layout)
}

#[derive(Serialize)]
struct DiffDocument<'a> {
    schema: u32,
    ccsd_version: &'static str,
    before: SideDocument<'a>,
    after: SideDocument<'a>,
    metric: CommonMetric<'a>,
    significance: Significance,
    /// With `--rate`, the seconds of wall time before and after by which weights are divided.
    #[serde(skip_serializing_if = "Option::is_none")]
    per_wall_seconds: Option<[f64; 2]>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    programs: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fail_above: Option<Failed<'a>>,
    #[serde(flatten)]
    data: DiffData,
}

#[derive(Serialize)]
struct SideDocument<'a> {
    #[serde(flatten)]
    run: Option<RunDocument<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    runs: Vec<RunDocument<'a>>,
    total: Total,
}

#[derive(Serialize)]
struct RunDocument<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    daemon_session: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stored: Option<&'a About>,
    session: &'a SessionInfo,
    accounting: AccountingCounts<'a>,
}

#[derive(Serialize)]
struct Significance {
    level: f64,
    test: &'static str,
}

#[derive(Serialize)]
struct Failed<'a> {
    percent: f64,
    grew: &'a [Grew],
}

#[derive(Serialize)]
struct CommonMetric<'a> {
    name: &'a str,
    unit: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum DiffData {
    Tree(DiffTree),
    #[serde(untagged)]
    Flat {
        rows: Vec<DiffRow>,
        left_out: usize,
        other: Other,
    },
}

fn document(
    before: &RunSide,
    after: &RunSide,
    (name, unit): (&str, Unit),
    totals: (Total, Total),
    (per_wall_seconds, fail_above): (Option<[f64; 2]>, Option<Failed<'_>>),
    data: DiffData,
) -> Result<String, serde_json::Error> {
    fn run(run: &LoadedRun) -> RunDocument<'_> {
        RunDocument {
            file: run.file.as_ref().map(|path| path.to_string_lossy().into_owned()),
            daemon_session: run.session,
            stored: run.stored.as_ref(),
            session: run.profile.session(),
            accounting: AccountingCounts::new(run.profile.accounting()),
        }
    }
    fn side(side: &RunSide, total: Total) -> SideDocument<'_> {
        match side.runs.as_slice() {
            [one] => SideDocument { run: Some(run(one)), runs: Vec::new(), total },
            several => SideDocument { run: None, runs: several.iter().map(run).collect(), total },
        }
    }
    to_text(&DiffDocument {
        schema: 1,
        ccsd_version: env!("CARGO_PKG_VERSION"),
        before: side(before, totals.0),
        after: side(after, totals.1),
        metric: CommonMetric { name, unit: unit_name(unit) },
        significance: Significance { level: SIGNIFICANCE_LEVEL, test: SIGNIFICANCE },
        per_wall_seconds,
        programs: programs(before, after),
        fail_above,
        data,
    })
}
