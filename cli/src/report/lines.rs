//! Source lines within functions.

use ccsd_profile::view::{FunctionLines, LinesView, Share, ViewColumn};
use ccsd_profile::{Profile, sanitise};

use super::flat::interval;
use super::presentation::Presentation;
use crate::format::{UnitScale, counted, percent};
use crate::style::Tone;
use crate::table::{TableCell, TableColumn, TextTable};

const LINES_ON_TERMINAL: usize = 10;

pub fn view(shown: &Presentation<'_>) -> LinesView {
    let mut view = LinesView::new(shown.profile, &shown.selection);
    view.sort(shown.sort.unwrap_or(ViewColumn::Inherited));
    view.functions.retain(|function| shown.wants(function.function));
    view
}

/// Truncates the view to the shown functions and lines. Returns the other functions.
pub fn kept(shown: &Presentation<'_>, view: &mut LinesView) -> Vec<FunctionLines> {
    let share = |function: &FunctionLines| function.share.fraction.max(function.inherited_share.fraction);
    let (kept, left_out) = shown.keep(std::mem::take(&mut view.functions), share);
    view.functions = kept;
    left_out
}

pub fn text(shown: &Presentation<'_>) -> String {
    let mut view = view(shown);
    let left_out = kept(shown, &mut view);
    if view.functions.is_empty() && left_out.is_empty() {
        return shown.nothing();
    }
    let scale = UnitScale::new(shown.metric.unit, view.total.weight);
    let mut table = TextTable::new(vec![
        TableColumn::number(format!("total {}", scale.unit)),
        TableColumn::number("%"),
        TableColumn::number("95% interval").if_room(),
        TableColumn::number(format!("self {}", scale.unit)),
        TableColumn::number("%"),
        TableColumn::text("function and line"),
    ]);
    let share = |weight| Share::from_weight(weight, &view.total);
    let row = |table: &mut TextTable, total: Option<(u64, Share)>, own: (u64, Share), tone, what: String| {
        let mut cells = match total {
            Some((weight, share)) => vec![
                TableCell::toned(tone, scale.weight(weight)),
                TableCell::toned(tone, percent(share.fraction)),
                interval(&share),
            ],
            None => vec![TableCell::default(), TableCell::default(), TableCell::default()],
        };
        let (weight, share) = own;
        cells.push(TableCell::toned(tone, scale.weight(weight)));
        cells.push(TableCell::toned(tone, percent(share.fraction)));
        cells.push(TableCell::toned(tone, what));
        table.row(cells);
    };
    for function in &view.functions {
        row(
            &mut table,
            Some((function.inherited_weight, function.inherited_share)),
            (function.self_weight, function.share),
            Tone::Strong,
            sanitise(&shown.labels.label(function.function)).into_owned(),
        );
        let most = if shown.layout.is_terminal() { LINES_ON_TERMINAL } else { usize::MAX };
        let (mut lines, mut rest): (Vec<_>, Vec<_>) =
            function.lines.iter().partition(|line| line.inherited_share.fraction >= shown.min);
        rest.splice(0..0, lines.drain(lines.len().min(most)..));
        for line in lines {
            let place = match (line.file.as_str(), line.line) {
                ("", _) => "[line not known]".to_owned(),
                (file, 0) => sanitise(file).into_owned(),
                (file, line) => format!("{}:{line}", sanitise(file)),
            };
            let total = Some((line.inherited_weight, line.inherited_share));
            row(&mut table, total, (line.weight, line.share), Tone::Plain, format!("    {place}"));
        }
        if !rest.is_empty() {
            let weight = rest.iter().map(|line| line.weight).fold(0, u64::saturating_add);
            let more = counted(rest.len() as u64, "more line", "more lines");
            row(&mut table, None, (weight, share(weight)), Tone::Faint, format!("    [{more}]"));
        }
    }
    if !left_out.is_empty() {
        let weight = left_out.iter().map(|function| function.self_weight).fold(0, u64::saturating_add);
        let more = shown.counted(left_out.len(), "more ");
        row(&mut table, None, (weight, share(weight)), Tone::Faint, format!("[{more}{}]", shown.hint()));
    }
    let mut text = table.render(shown.layout);
    for remark in remarks(shown.profile, &view) {
        text.push_str(&shown.layout.paint(Tone::Faint, &format!("# {remark}\n")));
    }
    text
}

pub fn remarks(profile: &Profile, view: &LinesView) -> Vec<String> {
    let mut remarks = Vec::new();
    if !profile.has_call_sites() {
        remarks.push(
            "lines of calls are not known here, or not by this grouping: the total of a line is what ran in it"
                .to_owned(),
        );
    }
    if view.cut_weight > 0 {
        let share = Share::from_weight(view.cut_weight, &view.total);
        remarks.push(format!(
            "for {}% the lines of inner callers are missing, for want of memory (--memory): their totals are too small",
            percent(share.fraction)
        ));
    }
    remarks
}
