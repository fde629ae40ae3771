//! Cycles of mutual recursion that really happened.

use ccsd_profile::sanitise;
use ccsd_profile::view::{CycleRow, CyclesView, Share};

use super::Shown;
use super::flat::interval;
use crate::format::{Scale, counted, percent};
use crate::style::{Layout, Tone};
use crate::table::{Cell, Column, Table, cut};

/// Columns of one name in a cycle on a terminal.
const NAME_WIDTH: usize = 24;

/// The view.
pub fn view(shown: &Shown<'_>) -> CyclesView {
    CyclesView::new(shown.profile, &shown.selection)
}

/// As text.
pub fn text(shown: &Shown<'_>) -> String {
    let view = view(shown);
    if view.rows.is_empty() {
        return "no cycles: in no sample was the running function also active further up, through another\n".to_owned();
    }
    let scale = Scale::new(shown.metric.unit, view.total.weight);
    let mut table = Table::new(vec![
        Column::number(format!("self {}", scale.unit)),
        Column::number("%"),
        Column::number("95% interval"),
        Column::text("cycle"),
    ]);
    let rows = shown.rows(view.rows.len());
    for row in view.rows.iter().take(rows) {
        table.row(vec![
            scale.weight(row.weight).into(),
            percent(row.share.fraction).into(),
            interval(&row.share),
            cycle(&view, row, shown.layout).into(),
        ]);
    }
    if let Some(rest @ [_, ..]) = view.rows.get(rows..) {
        let weight = rest.iter().map(|row| row.weight).fold(0, u64::saturating_add);
        let share = Share::of(weight, view.total.weight, view.total.samples);
        let more = counted(rest.len() as u64, "more", "more");
        table.row(vec![
            scale.weight(weight).into(),
            percent(share.fraction).into(),
            interval(&share),
            Cell::toned(Tone::Faint, format!("[{more}{}]", shown.hint())),
        ]);
    }
    table.render(shown.layout)
}

/// On a terminal each name is cut, so that all can be told apart.
fn cycle(view: &CyclesView, row: &CycleRow, layout: Layout) -> String {
    let names: Vec<String> = row
        .cycle
        .iter()
        .map(|function| sanitise(view.names.get(function).map_or("[unknown]", String::as_str)))
        .map(|name| cut(&name, if layout.is_terminal() { NAME_WIDTH } else { usize::MAX }))
        .collect();
    let mark = if row.approximate { "~" } else { "" };
    format!("{mark}{}", names.join(" > "))
}
