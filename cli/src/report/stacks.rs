//! Cost-centre stacks, one a line.

use ccsd_profile::view::StacksView;

use super::Shown;
use crate::format::{counted, unit_name};
use crate::style::Tone;
use crate::table::cut;

/// The view.
pub fn view(shown: &Shown<'_>) -> StacksView {
    StacksView::new(shown.profile, &shown.selection)
}

/// As text.
pub fn text(shown: &Shown<'_>) -> String {
    let view = view(shown);
    if view.rows.is_empty() {
        return shown.nothing();
    }
    let head = format!("<leaf,...,root> weight in {} of {}", unit_name(shown.metric.unit), shown.metric.name);
    let mut text = shown.layout.paint(Tone::Faint, &format!("# {head}"));
    text.push('\n');
    let rows = shown.rows(view.rows.len());
    for row in view.rows.iter().take(rows) {
        let line = view.text(row);
        match shown.layout.width {
            Some(width) => text.push_str(&cut(&line, width)),
            None => text.push_str(&line),
        }
        text.push('\n');
    }
    // In the form of a stack, so that the weights still add up.
    if let Some(rest @ [_, ..]) = view.rows.get(rows..) {
        let weight = rest.iter().map(|row| row.weight).fold(0, u64::saturating_add);
        let more = counted(rest.len() as u64, "more stack", "more stacks");
        text.push_str(&format!("<[{more}{}]> {weight}\n", shown.hint()));
    }
    text
}
