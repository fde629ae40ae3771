//! The flat profile.

use ccsd_profile::sanitise;
use ccsd_profile::view::{FlatView, Share};

use super::Shown;
use crate::format::{Scale, count, percent};
use crate::style::Tone;
use crate::table::{Cell, Column, Table};

/// Images have short names; a longer one loses its middle on a terminal.
const IMAGE_WIDTH: usize = 20;

/// The view of what is asked for.
pub fn view(shown: &Shown<'_>) -> FlatView {
    let mut view = FlatView::new(shown.profile, &shown.selection);
    if shown.inherited {
        view.sort_by_inherited();
    }
    view.rows.retain(|row| shown.wants(&row.name));
    if let Some(limit) = shown.limit {
        view.limit(limit);
    }
    view
}

/// As text.
pub fn text(shown: &Shown<'_>) -> String {
    let view = view(shown);
    if view.rows.is_empty() {
        return shown.nothing();
    }
    let scale = Scale::new(shown.metric.unit, view.total.weight);
    let mut table = Table::new(vec![
        Column::number(format!("self {}", scale.unit)),
        Column::number("%"),
        Column::number("95% interval"),
        Column::number(format!("inherited {}", scale.unit)),
        Column::number("%"),
        Column::text("image").at_most(IMAGE_WIDTH),
        Column::text("function"),
    ]);
    for row in &view.rows {
        table.row(vec![
            scale.weight(row.self_weight).into(),
            percent(row.self_share.fraction).into(),
            interval(&row.self_share),
            scale.weight(row.inherited_weight).into(),
            percent(row.inherited_share.fraction).into(),
            Cell::toned(Tone::Faint, sanitise(&row.image)),
            sanitise(&row.name).into(),
        ]);
    }
    if let Some(other) = view.other {
        let more = if other.functions == 1 {
            "1 more function".to_owned()
        } else {
            format!("{} more functions", count(other.functions as u64))
        };
        table.row(vec![
            scale.weight(other.self_weight).into(),
            percent(other.self_share.fraction).into(),
            interval(&other.self_share),
            "".into(),
            "".into(),
            "".into(),
            Cell::toned(Tone::Faint, format!("[{more}{}]", shown.hint())),
        ]);
    }
    table.render(shown.layout)
}

/// A confidence interval in percent.
pub fn interval(share: &Share) -> Cell {
    Cell::toned(Tone::Faint, format!("{}..{}", percent(share.low), percent(share.high)))
}
