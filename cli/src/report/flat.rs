//! The flat profile.

use std::collections::HashSet;

use ccsd_profile::query::Grouping;
use ccsd_profile::sanitise;
use ccsd_profile::view::{FlatView, Share};

use super::presentation::Presentation;
use crate::format::{UnitScale, percent};
use crate::style::Tone;
use crate::table::{TableCell, TableColumn, TextTable};

/// Maximum width of image names on a terminal; longer names lose their middle.
const IMAGE_WIDTH: usize = 20;

pub fn view(shown: &Presentation<'_>) -> FlatView {
    let mut view = FlatView::new(shown.profile, &shown.selection);
    if let Some(column) = shown.sort {
        view.sort(column);
    }
    // A live profile leaves out start-up functions: every stack of the running program has them.
    let startup: HashSet<_> =
        if shown.growing { shown.profile.startup_functions().into_iter().collect() } else { HashSet::new() };
    view.rows.retain(|row| shown.wants(row.function) && !startup.contains(&row.function));
    // The row for merged functions comes last, whatever its weight.
    view.rows.sort_by_key(|row| Some(row.function) == shown.other);
    if let Some(limit) = shown.limit {
        view.limit(limit);
    }
    view
}

pub fn text(shown: &Presentation<'_>) -> String {
    let view = view(shown);
    if view.rows.is_empty() {
        return shown.nothing();
    }
    let scale = UnitScale::new(shown.metric.unit, view.total.weight);
    let mut columns = vec![
        TableColumn::number(format!("self {}", scale.unit)),
        TableColumn::number("%"),
        TableColumn::number("95% interval").if_room(),
        TableColumn::number(format!("total {}", scale.unit)),
        TableColumn::number("%"),
    ];
    // Rows that are modules, threads or groups have no image beside them.
    let with_image = matches!(shown.by, Grouping::Function | Grouping::Lexical | Grouping::File | Grouping::Line);
    if with_image {
        columns.push(TableColumn::text("image").at_most(IMAGE_WIDTH));
    }
    columns.push(TableColumn::text(shown.by.nouns().0));
    let mut table = TextTable::new(columns);
    for row in &view.rows {
        let mut cells = vec![
            scale.weight(row.self_weight).into(),
            percent(row.self_share.fraction).into(),
            interval(&row.self_share),
            scale.weight(row.inherited_weight).into(),
            percent(row.inherited_share.fraction).into(),
        ];
        if with_image {
            cells.push(TableCell::toned(Tone::Faint, sanitise(&row.image)));
        }
        let labels = &shown.labels;
        let label = if with_image { labels.label_beside_image(row.function) } else { labels.label(row.function) };
        cells.push(sanitise(&label).into());
        table.row(cells);
    }
    if let Some(other) = view.other {
        let more = shown.counted(other.functions, "more ");
        let mut cells = vec![
            scale.weight(other.self_weight).into(),
            percent(other.self_share.fraction).into(),
            interval(&other.self_share),
            "".into(),
            "".into(),
        ];
        cells.extend(with_image.then(TableCell::default));
        cells.push(TableCell::toned(Tone::Faint, format!("[{more}{}]", shown.hint())));
        table.row(cells);
    }
    table.render(shown.layout)
}

pub fn interval(share: &Share) -> TableCell {
    TableCell::toned(Tone::Faint, format!("{}..{}", percent(share.low), percent(share.high)))
}
