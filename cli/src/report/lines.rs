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
    view.functions.retain(|function| shown.wants(&function.name));
    view
}

/// As text.
pub fn text(shown: &Shown<'_>) -> String {
    let view = view(shown);
    if view.functions.is_empty() {
        return shown.nothing();
    }
    let scale = Scale::new(shown.metric.unit, view.total.weight);
    let mut table = Table::new(vec![
        Column::number(format!("self {}", scale.unit)),
        Column::number("%"),
        Column::number("95% interval"),
        Column::text("function and line"),
    ]);
    let share = |weight| Share::of(weight, view.total.weight, view.total.samples);
    let row = |table: &mut Table, weight, tone, what: String| {
        let share = share(weight);
        table.row(vec![
            Cell::toned(tone, scale.weight(weight)),
            Cell::toned(tone, percent(share.fraction)),
            interval(&share),
            Cell::toned(tone, what),
        ]);
    };
    let functions = shown.rows(view.functions.len());
    for function in view.functions.iter().take(functions) {
        row(&mut table, function.self_weight, Tone::Strong, sanitise(&function.name).into_owned());
        let lines = if shown.layout.is_terminal() { LINES_ON_TERMINAL } else { usize::MAX };
        for line in function.lines.iter().take(lines) {
            let place = match (line.file.as_str(), line.line) {
                ("", _) => "[line not known]".to_owned(),
                (file, 0) => sanitise(file).into_owned(),
                (file, line) => format!("{}:{line}", sanitise(file)),
            };
            row(&mut table, line.weight, Tone::Plain, format!("    {place}"));
        }
        if let Some(rest @ [_, ..]) = function.lines.get(lines..) {
            let weight = rest.iter().map(|line| line.weight).fold(0, u64::saturating_add);
            let more = counted(rest.len() as u64, "more line", "more lines");
            row(&mut table, weight, Tone::Faint, format!("    [{more}]"));
        }
    }
    if let Some(rest @ [_, ..]) = view.functions.get(functions..) {
        let weight = rest.iter().map(|function: &FunctionLines| function.self_weight).fold(0, u64::saturating_add);
        let more = counted(rest.len() as u64, "more function", "more functions");
        row(&mut table, weight, Tone::Faint, format!("[{more}{}]", shown.hint()));
    }
    table.render(shown.layout)
}
