//! Cost-centre stacks, one per line.

use ccsd_profile::view::{StackRow, StacksView};

use super::presentation::Presentation;
use crate::format::{counted, unit_name};
use crate::style::Tone;
use crate::table::cut;

pub fn view(shown: &Presentation<'_>) -> StacksView {
    let mut view = StacksView::new(shown.profile, &shown.selection);
    if let Some(column) = shown.sort {
        view.sort(column);
    }
    view
}

pub fn cut_rows(shown: &Presentation<'_>, view: &mut StacksView) -> Vec<StackRow> {
    let (kept, left_out) = shown.keep(std::mem::take(&mut view.rows), |row| row.share.fraction);
    view.rows = kept;
    left_out
}

pub fn text(shown: &Presentation<'_>) -> String {
    let mut view = view(shown);
    let rest = cut_rows(shown, &mut view);
    if view.rows.is_empty() && rest.is_empty() && view.other.stacks == 0 {
        return shown.nothing();
    }
    let head = format!("<leaf,...,root> weight in {} of {}", unit_name(shown.metric.unit), shown.metric.name);
    let mut text = shown.layout.paint(Tone::Faint, &format!("# {head}"));
    text.push('\n');
    for row in &view.rows {
        let line = view.text(row);
        match shown.layout.width {
            Some(width) => text.push_str(&cut(&line, width)),
            None => text.push_str(&line),
        }
        text.push('\n');
    }
    if !rest.is_empty() {
        let weight = rest.iter().map(|row| row.weight).fold(0, u64::saturating_add);
        let more = counted(rest.len() as u64, "more stack", "more stacks");
        text.push_str(&format!("<[{more}{}]> {weight}\n", shown.hint()));
    }
    if view.other.stacks > 0 {
        let more = counted(view.other.stacks as u64, "more stack", "more stacks");
        text.push_str(&format!("<[{more}: too long to be listed]> {}\n", view.other.weight));
    }
    text
}
