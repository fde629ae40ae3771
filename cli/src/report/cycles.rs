//! Cycles of mutual recursion that occurred.

use ccsd_profile::sanitise;
use ccsd_profile::view::{Cycle, CyclesView, Share};

use super::flat::interval;
use super::presentation::Presentation;
use crate::format::{UnitScale, counted, percent};
use crate::style::{TextLayout, Tone};
use crate::table::{TableCell, TableColumn, TextTable, cut};

const NAME_WIDTH: usize = 24;

pub fn view(shown: &Presentation<'_>) -> CyclesView {
    CyclesView::new(shown.profile, &shown.selection)
}

pub fn text(shown: &Presentation<'_>) -> String {
    let view = view(shown);
    if view.cycles.is_empty() && view.left_out == 0 {
        return "no cycles: no sample was taken while a function was active that had been entered again through another\n"
            .to_owned();
    }
    let scale = UnitScale::new(shown.metric.unit, view.total.weight);
    let mut table = TextTable::new(vec![
        TableColumn::number(format!("self {}", scale.unit)),
        TableColumn::number("%"),
        TableColumn::number(format!("total {}", scale.unit)),
        TableColumn::number("%"),
        TableColumn::number("95% interval").if_room(),
        TableColumn::text("cycle"),
    ]);
    let (kept, left_out) = shown.keep(view.cycles.iter().collect(), |cycle| cycle.inherited_share.fraction);
    for cycle in kept {
        table.row(vec![
            scale.weight(cycle.self_weight).into(),
            percent(cycle.self_share.fraction).into(),
            scale.weight(cycle.inherited_weight).into(),
            percent(cycle.inherited_share.fraction).into(),
            interval(&cycle.inherited_share),
            text_of(&view, cycle, shown.layout).into(),
        ]);
    }
    if !left_out.is_empty() {
        // Inherited weights overlap and have no sum: one sample may be in several cycles.
        let weight = left_out.iter().map(|cycle| cycle.self_weight).fold(0, u64::saturating_add);
        let share = Share::from_weight(weight, &view.total);
        let more = counted(left_out.len() as u64, "more", "more");
        table.row(vec![
            scale.weight(weight).into(),
            percent(share.fraction).into(),
            TableCell::default(),
            TableCell::default(),
            TableCell::default(),
            TableCell::toned(Tone::Faint, format!("[{more}{}]", shown.hint())),
        ]);
    }
    let mut text = table.render(shown.layout);
    if view.left_out > 0 {
        let more = counted(view.left_out as u64, "more cycle is", "more cycles are");
        text.push_str(&format!("# {more} too long to be listed\n"));
    }
    text
}

fn text_of(view: &CyclesView, cycle: &Cycle, layout: TextLayout) -> String {
    let labels = view.labels(cycle);
    let names: Vec<String> = labels
        .iter()
        .chain(labels.first())
        .map(|label| cut(&sanitise(label), if layout.is_terminal() { NAME_WIDTH } else { usize::MAX }))
        .collect();
    let mark = if cycle.approximate { "~" } else { "" };
    format!("{mark}{}", names.join(" > "))
}
