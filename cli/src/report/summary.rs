//! The summary: an answer in words, the most expensive call chain, and the functions.

use ccsd_profile::view::{ChainStep, FlatRow, ProgramRow, Share, SummaryView};
use ccsd_profile::{CostCentreId, Labels, sanitise};

use super::flat::interval;
use super::{hints, presentation::Presentation};
use crate::format::{UnitScale, counted, percent};
use crate::style::{TextLayout, Tone};
use crate::table::{TableCell, TableColumn, TextTable, cut_name, wrap};

const WHERE_WIDTH: usize = 20;
const NAME_WIDTH: usize = 48;
const NAMED: usize = 4;
const STEPS: usize = 5;
/// Minimum share of a library function for `main`'s call of it to be in the headline.
const MOST: f64 = 0.5;
/// Minimum self share of a function, and minimum ratio to the chain's share, to precede the chain.
const HUB: f64 = 0.3;
const HUB_TIMES: f64 = 1.5;
/// A program with this share is the only one that matters.
const SINGLE: f64 = 0.9;
/// Minimum share of a program to be named, if several took the time.
const LEAST_PROGRAM: f64 = 0.05;
/// Minimum share for a call or a function to be in the headline.
const NOTABLE: f64 = 0.1;

pub fn view(shown: &Presentation<'_>) -> SummaryView {
    SummaryView::new(shown.profile, &shown.selection)
}

pub fn text(shown: &Presentation<'_>) -> String {
    let view = view(shown);
    if view.own.is_empty() && (view.others.is_empty() || view.total.samples == 0) {
        return shown.nothing();
    }
    let layout = shown.layout;
    let mut text = String::new();
    let mut say = |tone, sentence: &str| {
        for line in wrap(sentence, layout.width.unwrap_or(usize::MAX)) {
            text.push_str(&layout.paint(tone, &line));
            text.push('\n');
        }
    };
    if let Some(programs) = programs(&view, shown.metric.noun()) {
        say(Tone::Strong, &programs);
    }
    // The interpreter's own functions are no answer.
    let interpreter = hints::interpreter(&view);
    match &interpreter {
        Some(hint) => say(Tone::Warning, hint),
        None => say(Tone::Strong, &headline(shown, &view)),
    }
    let hints = hints::hints(shown.profile, shown.watch, &view, interpreter.is_some());
    hints.iter().for_each(|hint| say(Tone::Warning, hint));
    if view.chain.len() > 1 {
        text.push('\n');
        text.push_str(&chain(&view).render(layout));
        if view.chain.iter().skip(steps_left_out(&view).max(1)).any(|step| step.folded == 0 && step.uncertain) {
            say_after(
                &mut text,
                layout,
                "~ recursion or an interpreter is folded away above: the caller may be another",
            );
        }
    }
    text.push('\n');
    // With one hint, all rows fit on a screen. Each further hint takes the place of a row.
    text.push_str(&functions(shown, &view, hints.len().saturating_sub(1)).render(layout));
    text
}

fn programs(view: &SummaryView, of: &str) -> Option<String> {
    if view.programs.first()?.share.fraction >= SINGLE {
        return None;
    }
    let is_named = |program: &&ProgramRow| program.share.fraction >= LEAST_PROGRAM;
    let (named, others) = view.programs.split_at(view.programs.iter().take_while(is_named).take(NAMED).count());
    let name = |program: &ProgramRow| cut_name(&sanitise(&program.name), NAME_WIDTH);
    let mut parts: Vec<String> =
        named.iter().map(|program| format!("{} in {}", whole(program.share.fraction), name(program))).collect();
    let first = parts.first_mut()?;
    *first = first.replacen(" in ", &format!(" of {of} is in "), 1);
    let share: f64 = others.iter().map(|program| program.share.fraction).sum();
    if share >= 0.005 {
        let programs = counted(others.len() as u64, "other program", "other programs");
        parts.push(format!("{} in {programs}", whole(share)));
    }
    Some(parts.join(", "))
}

fn headline(shown: &Presentation<'_>, view: &SummaryView) -> String {
    let named = view.chain.get(..view.headline).unwrap_or_default();
    // `main` itself tells nothing, but the library that it calls may.
    let calls = view.chain.get(view.headline).map_or(0.0, |next| next.share.fraction);
    let named = match named {
        [first, rest @ ..] if !rest.is_empty() && first.name == "main" => rest,
        [only]
            if only.name == "main"
                && calls < MOST
                && Share::from_weight(only.self_weight, &view.total).fraction < NOTABLE =>
        {
            &[]
        }
        all => all,
    };
    // Addresses tell less than the names above them.
    let is_named =
        |step: &ChainStep| shown.profile.cost_centre(step.function).is_some_and(|it| it.linkage_name.is_some());
    let names = named.iter().rposition(is_named).map_or(named.len(), |at| at + 1);
    let is_nameless_below = names < named.len();
    let named = named.get(..names).unwrap_or_default();
    let Some(last) = named.last() else { return largest(view, &shown.labels) };
    let of = shown.metric.noun();
    if let Some(hub) = hub(shown, view, last) {
        let name = cut_name(&sanitise(&shown.labels.label(hub.function)), NAME_WIDTH);
        let callers = match named {
            [callers @ .., last] if last.function == hub.function => callers,
            all => all,
        };
        let most = if callers.is_empty() {
            String::new()
        } else {
            format!("; the largest part of it through {}: {}", path(callers), whole(last.share.fraction))
        };
        return format!("{} of {of} is in {name} itself{most}", whole(hub.self_share.fraction));
    }
    let own = Share::from_weight(last.self_weight, &view.total).fraction;
    let next = view.chain.get(view.headline).filter(|next| next.share.fraction >= NOTABLE);
    let detail = match next {
        _ if is_nameless_below => "; below it functions have no names".to_owned(),
        next if own >= next.map_or(NOTABLE, |next| next.share.fraction) => format!(", {} in itself", whole(own)),
        Some(next) => {
            // Functions in between are hidden, or may differ.
            let calls = if next.folded > 0 || next.uncertain { "leads to" } else { "calls" };
            format!(", which {calls} {}: {}", cut_name(&sanitise(&next.name), NAME_WIDTH), whole(next.share.fraction))
        }
        None => String::new(),
    };
    format!("{} of {of} is in {}{detail}", whole(last.share.fraction), path(named))
}

/// The function whose self weight far exceeds the chain's weight, because several chains lead to it.
fn hub<'v>(shown: &Presentation<'_>, view: &'v SummaryView, last: &ChainStep) -> Option<&'v FlatRow> {
    let functions =
        view.own.iter().chain(&view.others).filter(|row| !shown.labels.label(row.function).starts_with('['));
    let largest = functions.max_by_key(|row| row.self_weight)?;
    let share = largest.self_share.fraction;
    (share >= HUB && share >= HUB_TIMES * last.share.fraction).then_some(largest)
}

fn path(steps: &[ChainStep]) -> String {
    let left_out = steps.len().saturating_sub(NAMED);
    let mut path = String::new();
    for (i, step) in steps.iter().enumerate().skip(left_out) {
        if i > left_out {
            path.push_str(if step.folded > 0 || step.uncertain { " -> ... -> " } else { " -> " });
        }
        path.push_str(&cut_name(&sanitise(&step.name), NAME_WIDTH));
        if let Some(place) = place(step).filter(|_| step.own) {
            path.push_str(&format!(" ({place})"));
        }
    }
    path
}

fn largest(view: &SummaryView, labels: &Labels<'_>) -> String {
    let by_self = |row: &&FlatRow| row.self_weight;
    // Of equal rows the last is taken: the program's own.
    let Some(row) = view.others.iter().chain(&view.own).max_by_key(by_self) else { return String::new() };
    let (own, all) = (row.self_share.fraction, row.inherited_share.fraction);
    let name = cut_name(&sanitise(&labels.label(row.function)), NAME_WIDTH);
    format!("No chain of calls dominates; most is in {name}: {} in itself, {} in total", whole(own), whole(all))
}

fn place(step: &ChainStep) -> Option<String> {
    location(step.file.as_deref()?, step.line)
}

fn location(path: &str, line: u32) -> Option<String> {
    let name = path.rsplit('/').next().filter(|name| !name.is_empty())?;
    let name = sanitise(name);
    Some(if line > 0 { format!("{name}:{line}") } else { name.into_owned() })
}

fn whole(fraction: f64) -> String {
    format!("{:.0}%", fraction * 100.0)
}

/// Number of omitted steps of a long chain; never 1, because a line about it would take the step's place.
fn steps_left_out(view: &SummaryView) -> usize {
    Some(view.chain.len().saturating_sub(STEPS)).filter(|&steps| steps > 1).unwrap_or(0)
}

fn say_after(text: &mut String, layout: TextLayout, remark: &str) {
    for line in wrap(remark, layout.width.unwrap_or(usize::MAX)) {
        text.push_str(&layout.paint(Tone::Faint, &line));
        text.push('\n');
    }
}

/// The most expensive chain; only the inner end if it is long.
fn chain(view: &SummaryView) -> TextTable {
    let mut table =
        TextTable::new(vec![TableColumn::number("total %"), TableColumn::text("most expensive chain of calls")]);
    let left_out = steps_left_out(view);
    let above = left_out + view.chain.iter().take(left_out + 1).map(|step| step.folded).sum::<usize>();
    for (i, step) in view.chain.iter().enumerate().skip(left_out) {
        let between = match (step.folded, step.uncertain, i == left_out && left_out > 0) {
            (_, _, true) => format!("[{above} functions above] "),
            _ if i == 0 => String::new(),
            (0, false, _) => String::new(),
            (0, true, _) => "~".to_owned(),
            (folded, ..) => format!("[{folded} between] "),
        };
        let place = place(step).filter(|_| step.own).map_or_else(String::new, |place| format!("  {place}"));
        let name = format!("{}{between}{}{place}", "  ".repeat(i - left_out), sanitise(&step.name));
        let tone = if step.own { Tone::Plain } else { Tone::Faint };
        table.row(vec![percent(step.share.fraction).into(), TableCell::toned(tone, name)]);
    }
    table
}

/// The table has so many rows `fewer` of functions that are not the program's own.
fn functions(shown: &Presentation<'_>, view: &SummaryView, fewer: usize) -> TextTable {
    let scale = UnitScale::new(shown.metric.unit, view.total.weight);
    let mut columns = vec![
        TableColumn::number(format!("total {}", scale.unit)),
        TableColumn::number("%"),
        TableColumn::number(format!("self {}", scale.unit)),
        TableColumn::number("%"),
    ];
    columns.extend(shown.intervals.then(|| TableColumn::number("95% interval")));
    columns.extend([TableColumn::text("where").at_most(WHERE_WIDTH), TableColumn::text("function")]);
    let mut table = TextTable::new(columns);
    let (mut left_out, mut own_rows) = ((0, 0u64), 0);
    for (part, own) in [(&view.own, true), (&view.others, false)] {
        // Others have half as many rows, plus those that the program's own leave unused.
        let of_others = |most: usize| most.saturating_add(most.div_ceil(2)).saturating_sub(own_rows + fewer);
        let most = if own { shown.limit } else { shown.limit.map(of_others) };
        let (kept, rest) = part.split_at(most.map_or(part.len(), |most| most.min(part.len())));
        own_rows = kept.len();
        if !own && !kept.is_empty() && !view.own.is_empty() {
            table.rule();
        }
        for row in kept {
            let file = row.definition.file.as_deref().filter(|_| own);
            let place = file.and_then(|file| location(file, row.definition.line.unwrap_or(0)));
            let place = place.unwrap_or_else(|| sanitise(&row.image).into_owned());
            let mut cells = vec![
                scale.weight(row.inherited_weight).into(),
                percent(row.inherited_share.fraction).into(),
                scale.weight(row.self_weight).into(),
                percent(row.self_share.fraction).into(),
            ];
            cells.extend(shown.intervals.then(|| interval(&row.self_share)));
            cells.extend([
                TableCell::toned(Tone::Faint, place),
                if row.function == CostCentreId::ROOT {
                    "[runtime and start-up]".into()
                } else {
                    sanitise(&shown.labels.label_beside_image(row.function)).into()
                },
            ]);
            table.row(cells);
        }
        left_out.0 += rest.len() as u64;
        left_out.1 = rest.iter().map(|row| row.self_weight).fold(left_out.1, u64::saturating_add);
    }
    if left_out.0 > 0 {
        let more = shown.counted(usize::try_from(left_out.0).unwrap_or(usize::MAX), "more ");
        let mut cells = vec![
            "".into(),
            "".into(),
            scale.weight(left_out.1).into(),
            percent(Share::from_weight(left_out.1, &view.total).fraction).into(),
        ];
        cells.extend(shown.intervals.then(TableCell::default));
        cells.extend([TableCell::default(), TableCell::toned(Tone::Faint, format!("[{more}{}]", shown.hint()))]);
        table.row(cells);
    }
    table
}
