//! `ccsd annotate`: source lines with their costs, and the costs of their calls.

mod assembly;
pub mod door;
pub mod source;

use std::collections::BTreeMap;
use std::io::{Write, stdout};
use std::path::Path;

use anyhow::anyhow;
use ccsd_profile::json::to_text;
use ccsd_profile::query::Grouping;
use ccsd_profile::view::{FunctionLines, LineRow, LinesView, Share, Total, ViewColumn};
use ccsd_profile::{Definition, Labels, Profile, sanitise};
use serde::Serialize;

use crate::args::annotate::AnnotateArgs;
use crate::exit::{Exit, Failure};
use crate::format::{UnitScale, counted, percent, unit_name};
use crate::functions::NamedFunctions;
use crate::message::warn;
use crate::query::{self, QueryResult, Question};
use crate::report::{AccountingCounts, accounting, file, line_remarks};
use crate::style::{ColorChoice, TextLayout, Tone};
use crate::suggest;
use crate::symbolize;
use crate::table::{TableCell, TableColumn, TextTable};

use assembly::Assembly;
use door::{NamedSource, SourceDoor};
use source::{SourceFile, SourceSearch};

const FUNCTIONS_ON_TERMINAL: usize = 3;

const NO_ADDRESSES: &str = "source lines only: a profile keeps no addresses within functions that have names, so instructions have no costs of their own";

#[derive(Serialize)]
struct Annotated {
    name: String,
    #[serde(skip)]
    label: String,
    image: String,
    #[serde(flatten)]
    definition: Definition,
    self_weight: u64,
    samples: u64,
    share: Share,
    inherited_weight: u64,
    inherited_samples: u64,
    inherited_share: Share,
    /// Ordered by weight, descending.
    files: Vec<AnnotatedFile>,
    without_line: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    assembly: Option<Assembly>,
}

#[derive(Serialize)]
struct AnnotatedFile {
    /// As in the debug information.
    path: String,
    source: Option<String>,
    remarks: Vec<String>,
    weight: u64,
    lines: Vec<AnnotatedLine>,
}

#[derive(Serialize)]
struct AnnotatedLine {
    line: u32,
    weight: u64,
    samples: u64,
    share: Share,
    inherited_weight: u64,
    inherited_samples: u64,
    inherited_share: Share,
    /// `null` if the file or the line is missing.
    text: Option<String>,
}

pub fn run(args: &AnnotateArgs, colour: ColorChoice) -> Result<Exit, Failure> {
    if args.query.by != Grouping::Function || args.query.min.is_some() || args.query.sort.is_some() {
        return Err(Failure::bad_request(anyhow!(
            "annotate shows lines in the order of the source; leave out --by, --min and --sort"
        )));
    }
    let mut loaded = file::load_source(&args.source, &args.stored, &args.socket)?;
    symbolize::name_at_hand(&mut loaded.profile);
    for message in loaded.messages() {
        warn(format_args!("{message}"));
    }
    let QueryResult { profile, selection, metric, question, .. } = query::ask(&args.query, loaded.profile)?;
    loaded.profile = profile;
    let profile = &loaded.profile;
    let mut view = LinesView::new(profile, &selection);
    view.sort(ViewColumn::Inherited);
    let remarks = line_remarks(profile, &view);
    let LinesView { total, functions, .. } = view;
    let named = NamedFunctions::new(&args.function, profile);
    let labels = profile.labels();
    let layout = TextLayout::of(&stdout(), colour);
    let mut wanted: Vec<&FunctionLines> = functions.iter().filter(|it| named.contains(it.function)).collect();
    if wanted.is_empty() {
        let name = sanitise(args.function.text());
        return Err(Failure::bad_request(anyhow!(
            "no sample was taken in a function that matches {name:?}; `ccsd report --butterfly --function NAME` shows a \
             function's callees{}",
            hint_at_file(args.function.text()).unwrap_or_else(|| suggest::question(&args.function, profile))
        )));
    }
    let left_out =
        if layout.is_terminal() && !args.json { wanted.len().saturating_sub(FUNCTIONS_ON_TERMINAL) } else { 0 };
    wanted.truncate(wanted.len() - left_out);
    let door = SourceDoor::of_profile(loaded.place());
    let places = SourceSearch { roots: &args.source_root, substitutions: &args.substitute, door };
    let taken_unix_ns = profile.session().started_unix_ns;
    let mut shown: Vec<Annotated> = Vec::new();
    for function in wanted {
        let mut annotated = annotated(&labels, profile, function, total, &places, taken_unix_ns, args.context);
        if args.asm {
            annotated.assembly = Some(disassembled(profile, function)?);
        }
        shown.push(annotated);
    }
    let text = if args.json {
        let document = AnnotateDocument {
            schema: 1,
            ccsd_version: env!("CARGO_PKG_VERSION"),
            session: profile.session(),
            accounting: AccountingCounts::new(profile.accounting()),
            question: &question,
            metric: &metric.name,
            unit: unit_name(metric.unit),
            total,
            remarks,
            instructions: NO_ADDRESSES,
            functions: shown,
        };
        to_text(&document).map_err(Failure::at_run_time)?
    } else {
        let what = format!("annotate {}; weighed by {}; {NO_ADDRESSES}", sanitise(args.function.text()), metric.name);
        let mut head = vec![("view", what)];
        head.extend(remarks.iter().map(|remark| ("lines", remark.clone())));
        head.extend(question.text().map(|text| ("selected", text)));
        let said = accounting::Said { head: false, verbose: args.verbose };
        let mut text = accounting::text(profile, Some(&loaded), head, said, layout);
        let scale = UnitScale::new(metric.unit, total.weight);
        for function in &shown {
            text.push('\n');
            text.push_str(&function_text(function, total, scale, layout));
        }
        if left_out > 0 {
            let more = counted(left_out as u64, "more function", "more functions");
            text.push_str(&format!("\n[{more} of such a name, with less self time: name one]\n"));
        }
        text
    };
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())?;
    Ok(Exit::SUCCESS)
}

#[derive(Serialize)]
struct AnnotateDocument<'a> {
    schema: u32,
    ccsd_version: &'static str,
    session: &'a ccsd_profile::SessionInfo,
    accounting: AccountingCounts<'a>,
    question: &'a Question,
    metric: &'a str,
    unit: &'static str,
    total: Total,
    remarks: Vec<String>,
    instructions: &'static str,
    functions: Vec<Annotated>,
}

fn annotated(
    labels: &Labels<'_>,
    profile: &Profile,
    function: &FunctionLines,
    total: Total,
    places: &SourceSearch<'_>,
    taken_unix_ns: u64,
    context: u32,
) -> Annotated {
    let mut files: BTreeMap<&str, Vec<&LineRow>> = BTreeMap::new();
    let mut without_line = 0u64;
    for row in &function.lines {
        if row.file.is_empty() || row.line == 0 {
            without_line = without_line.saturating_add(row.weight);
        } else {
            files.entry(&row.file).or_default().push(row);
        }
    }
    let centre = profile.cost_centre(function.function);
    let image = centre.and_then(|centre| profile.image(centre.image));
    let declared = |path: &str| centre.filter(|it| it.file.as_deref() == Some(path) && it.line > 0).map(|it| it.line);
    let mut files: Vec<AnnotatedFile> = files
        .into_iter()
        .map(|(path, rows)| {
            let SourceFile { source, lines, remarks } = places.find(NamedSource { path, image }, taken_unix_ns);
            let costs: BTreeMap<u32, &LineRow> = rows.iter().map(|row| (row.line, *row)).collect();
            let mut numbers: Vec<u32> = costs.keys().copied().collect();
            if let Some(all) = &lines {
                let last = u32::try_from(all.len()).unwrap_or(u32::MAX);
                // A declaration after the first cost, or far before it, is not where this code is.
                let first = costs.keys().next().copied().unwrap_or(0);
                numbers.extend(declared(path).filter(|&line| line <= first));
                // Print each line once, even if contexts overlap.
                let mut next = 1;
                for &line in costs.keys() {
                    let (from, to) = (line.saturating_sub(context).max(next), line.saturating_add(context).min(last));
                    numbers.extend(from..=to);
                    next = next.max(to.saturating_add(1));
                }
                numbers.sort_unstable();
                numbers.dedup();
            }
            let text = |line: u32| lines.as_ref().and_then(|all| all.get(line as usize - 1)).cloned();
            AnnotatedFile {
                path: path.to_owned(),
                source: source.map(|path| path.to_string_lossy().into_owned()),
                remarks,
                weight: rows.iter().map(|row| row.weight).fold(0, u64::saturating_add),
                lines: numbers
                    .into_iter()
                    .map(|line| {
                        let row = costs.get(&line);
                        let none = || Share::from_weight(0, &total);
                        AnnotatedLine {
                            line,
                            weight: row.map_or(0, |row| row.weight),
                            samples: row.map_or(0, |row| row.samples),
                            share: row.map_or_else(none, |row| row.share),
                            inherited_weight: row.map_or(0, |row| row.inherited_weight),
                            inherited_samples: row.map_or(0, |row| row.inherited_samples),
                            inherited_share: row.map_or_else(none, |row| row.inherited_share),
                            text: text(line),
                        }
                    })
                    .collect(),
            }
        })
        .collect();
    let most = |file: &AnnotatedFile| file.lines.iter().map(|line| line.inherited_weight).max();
    files.sort_by_key(|file| std::cmp::Reverse((most(file), file.weight)));
    Annotated {
        name: function.name.clone(),
        label: labels.label_beside_image(function.function).into_owned(),
        image: profile.image_name(function.function).into_owned(),
        definition: function.definition.clone(),
        self_weight: function.self_weight,
        samples: function.samples,
        share: function.share,
        inherited_weight: function.inherited_weight,
        inherited_samples: function.inherited_samples,
        inherited_share: function.inherited_share,
        files,
        without_line,
        assembly: None,
    }
}

fn disassembled(profile: &Profile, function: &FunctionLines) -> Result<Assembly, Failure> {
    let centre = profile.cost_centre(function.function);
    let found = match centre.and_then(|centre| Some((centre, profile.image(centre.image)?))) {
        Some((centre, image)) => {
            // Instructions carry only the self weight of their lines.
            let ran = |line: &&LineRow| line.samples > 0 || line.weight > 0;
            let lines: Vec<LineRow> = function.lines.iter().filter(ran).cloned().collect();
            assembly::of(centre, image, &lines)
        }
        None => Err("the profile does not say where it is".to_owned()),
    };
    found.map_err(|why| Failure::bad_request(anyhow!("no instructions of {}: {why}", sanitise(&function.name))))
}

fn function_text(function: &Annotated, total: Total, scale: UnitScale, layout: TextLayout) -> String {
    let head = format!(
        "{} ({}): {}, {}",
        sanitise(&function.label),
        sanitise(&function.image),
        scale.total_and_self(
            (function.inherited_weight, function.inherited_share.fraction),
            (function.self_weight, function.share.fraction)
        ),
        counted(function.samples, "sample", "samples"),
    );
    let mut text = layout.paint(Tone::Strong, &head);
    text.push('\n');
    if function.files.is_empty() {
        text.push_str("no line of it is known: there is no debug information with line numbers for this code\n");
    }
    for file in &function.files {
        text.push_str(&format!("\n{}\n", sanitise(&file.path)));
        if let Some(found) = file.source.as_ref().filter(|found| **found != file.path) {
            text.push_str(&layout.paint(Tone::Faint, &format!("# read from {}\n", sanitise(found))));
        }
        for remark in &file.remarks {
            text.push_str(&layout.paint(Tone::Warning, &format!("# {}\n", sanitise(remark))));
        }
        let mut table = TextTable::new(vec![
            TableColumn::number(format!("total {}", scale.unit)),
            TableColumn::number("%"),
            TableColumn::number(format!("self {}", scale.unit)),
            TableColumn::number("%"),
            TableColumn::number("line"),
            TableColumn::text("source"),
        ]);
        let mut before: Option<u32> = None;
        for line in &file.lines {
            if before.is_some_and(|before| before + 1 < line.line) && file.source.is_some() {
                let mut cells: Vec<TableCell> = (0..4).map(|_| TableCell::default()).collect();
                cells.push(TableCell::toned(Tone::Faint, "..."));
                table.row(cells);
            }
            before = Some(line.line);
            let source = line.text.as_deref().unwrap_or_default();
            let number = line.line.to_string();
            let empty = || vec![TableCell::default(), TableCell::default()];
            let costs = |weight: u64, share: Share| vec![scale.weight(weight).into(), percent(share.fraction).into()];
            if line.inherited_samples == 0 {
                let faint = |text: String| TableCell::toned(Tone::Faint, text);
                let cells = [empty(), empty(), vec![faint(number), faint(source.to_owned())]];
                table.row(cells.into_iter().flatten().collect());
            } else {
                let own = if line.samples == 0 { empty() } else { costs(line.weight, line.share) };
                let cells =
                    [costs(line.inherited_weight, line.inherited_share), own, vec![number.into(), source.into()]];
                table.row(cells.into_iter().flatten().collect());
            }
        }
        text.push_str(&table.render(layout));
    }
    if function.without_line > 0 && !function.files.is_empty() {
        let share = Share::from_weight(function.without_line, &total).fraction;
        text.push_str(&format!(
            "\n{} {} ({}%) ran where no line is known\n",
            scale.weight(function.without_line),
            scale.unit,
            percent(share)
        ));
    }
    if let Some(assembly) = &function.assembly {
        text.push_str(&assembly.text(total.weight, scale, layout));
    }
    text
}

/// Suggests the right order of arguments if a file was given as the function.
fn hint_at_file(function: &str) -> Option<String> {
    let is_file = Path::new(function).is_file();
    is_file.then(|| format!("; of the profile {0}: `ccsd annotate FUNCTION {0}`", sanitise(function)))
}
