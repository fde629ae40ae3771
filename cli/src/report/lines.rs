//! Source lines within functions.

use ccsd_profile::sanitise;
use ccsd_profile::view::{FunctionLines, LinesView, Share};

use super::Shown;
use super::flat::interval;
use crate::format::{Scale, counted, percent};
use crate::style::Tone;
use crate::table::{Cell, Column, Table};

/// Lines of one function that are shown on a terminal.
const LINES_ON_TERMINAL: usize = 10;

/// The view of what is asked for.
pub fn view(shown: &Shown<'_>) -> LinesView {
    let mut view = LinesView::new(shown.profile, &shown.selection);
    if let Some(column) = shown.sort {
        view.sort(column);
    }
    view.functions.retain(|function| shown.wants(function.function));
    view
}

/// Functions and lines that are shown, and the functions that are not.
pub fn kept(shown: &Shown<'_>, view: &mut LinesView) -> Vec<FunctionLines> {
    let share = |function: &FunctionLines| function.share.fraction;
    let (kept, left_out) = shown.keep(std::mem::take(&mut view.functions), share);
    view.functions = kept;
    left_out
}

/// As text.
pub fn text(shown: &Shown<'_>) -> String {
    let mut view = view(shown);
    let left_out = kept(shown, &mut view);
    if view.functions.is_empty() && left_out.is_empty() {
        return shown.nothing();
    }
    let scale = Scale::new(shown.metric.unit, view.total.weight);
    let mut table = Table::new(vec![
        Column::number(format!("self {}", scale.unit)),
        Column::number("%"),
        Column::number("95% interval").if_room(),
        Column::text("function and line"),
    ]);
    let share = |weight| Share::of_weight(weight, &view.total);
    let row = |table: &mut Table, weight, share: Share, tone, what: String| {
        table.row(vec![
            Cell::toned(tone, scale.weight(weight)),
            Cell::toned(tone, percent(share.fraction)),
            interval(&share),
            Cell::toned(tone, what),
        ]);
    };
    for function in &view.functions {
        row(
            &mut table,
            function.self_weight,
            function.share,
            Tone::Strong,
            sanitise(&shown.labels.label(function.function)).into_owned(),
        );
        let most = if shown.layout.is_terminal() { LINES_ON_TERMINAL } else { usize::MAX };
        let (mut lines, mut rest): (Vec<_>, Vec<_>) =
            function.lines.iter().partition(|line| line.share.fraction >= shown.min);
        rest.splice(0..0, lines.drain(lines.len().min(most)..));
        for line in lines {
            let place = match (line.file.as_str(), line.line) {
                ("", _) => "[line not known]".to_owned(),
                (file, 0) => sanitise(file).into_owned(),
                (file, line) => format!("{}:{line}", sanitise(file)),
            };
            row(&mut table, line.weight, line.share, Tone::Plain, format!("    {place}"));
        }
        if !rest.is_empty() {
            let weight = rest.iter().map(|line| line.weight).fold(0, u64::saturating_add);
            let more = counted(rest.len() as u64, "more line", "more lines");
            row(&mut table, weight, share(weight), Tone::Faint, format!("    [{more}]"));
        }
    }
    if !left_out.is_empty() {
        let weight = left_out.iter().map(|function| function.self_weight).fold(0, u64::saturating_add);
        let more = shown.counted(left_out.len(), "more ");
        row(&mut table, weight, share(weight), Tone::Faint, format!("[{more}{}]", shown.hint()));
    }
    table.render(shown.layout)
}
