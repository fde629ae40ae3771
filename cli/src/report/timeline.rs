//! Functions over time, as bands of blocks.

use ccsd_profile::view::{TimelineView, ViewColumn};
use ccsd_profile::{TimeColumn, Unit, sanitise};

use super::presentation::Presentation;
use crate::blocks::Blocks;
use crate::format::{UnitScale, nanoseconds, percent};
use crate::style::Tone;
use crate::table::{TableCell, TableColumn, TextTable};

pub const WIDTH: usize = 60;
const BESIDE: usize = 45;
const LEAST_WIDTH: usize = 20;

pub fn width(terminal: Option<usize>) -> usize {
    terminal.map_or(WIDTH, |columns| columns.saturating_sub(BESIDE).max(LEAST_WIDTH))
}

pub fn view(shown: &Presentation<'_>) -> TimelineView {
    let inherited = shown.sort == Some(ViewColumn::Inherited);
    let most = shown.limit.unwrap_or(usize::MAX);
    TimelineView::new(shown.profile, &shown.selection, shown.timeline, inherited, most, |row| shown.wants(row.function))
}

pub fn text(shown: &Presentation<'_>) -> String {
    let view = view(shown);
    let (Some(first), Some(last)) = (view.columns.first(), view.columns.last()) else { return shown.nothing() };
    if view.bands.is_empty() {
        return shown.nothing();
    }
    let width = width(shown.layout.width);
    let blocks = Blocks::from_locale();
    let scale = UnitScale::new(shown.metric.unit, view.total.weight);
    let heights = |weights: &[u64]| spread(&view.columns, weights, width);
    let all = heights(&view.weights);
    let bands: Vec<Vec<f64>> = view.bands.iter().map(|band| heights(&band.weights)).collect();
    let other = view.other.as_deref().filter(|_| view.left_out > 0).map(heights);
    let most = |rows: &mut dyn Iterator<Item = &Vec<f64>>| rows.flatten().copied().fold(0.0, f64::max);
    let (most_all, most_band) = (most(&mut [&all].into_iter()), most(&mut bands.iter().chain(&other)));
    let which = if view.inherited { "total" } else { "self" };
    let mut head = format!(
        "# each band goes from +{} to +{} in {} of at most {}; a full block is {}, in the first row {}\n",
        nanoseconds(first.from_ns),
        nanoseconds(last.to_ns),
        crate::format::counted(view.columns.len() as u64, "part", "parts"),
        nanoseconds(view.columns.iter().map(|column| column.to_ns - column.from_ns).max().unwrap_or(0)),
        rate(shown.metric.unit, most_band),
        rate(shown.metric.unit, most_all),
    );
    head = shown.layout.paint(Tone::Faint, &head);
    let mut table = TextTable::new(vec![
        TableColumn::number(format!("{which} {}", scale.unit)),
        TableColumn::number("%"),
        TableColumn::text("over time"),
        TableColumn::text(shown.by.nouns().0),
    ]);
    let everything = if view.total.weight == 0 { 0.0 } else { 1.0 };
    table.row(vec![
        TableCell::toned(Tone::Strong, scale.weight(view.total.weight)),
        TableCell::toned(Tone::Strong, percent(everything)),
        TableCell::toned(Tone::Strong, blocks.draw(&all, most_all)),
        TableCell::toned(Tone::Strong, "[all]"),
    ]);
    for (band, heights) in view.bands.iter().zip(&bands) {
        table.row(vec![
            scale.weight(band.weight).into(),
            percent(band.share.fraction).into(),
            blocks.draw(heights, most_band).into(),
            sanitise(&shown.labels.label(band.function)).into(),
        ]);
    }
    let more = shown.counted(view.left_out, "more ");
    if let (Some(weights), Some(heights)) = (&view.other, &other) {
        let weight = weights.iter().copied().fold(0, u64::saturating_add);
        let share = if view.total.weight == 0 { 0.0 } else { weight as f64 / view.total.weight as f64 };
        table.row(vec![
            TableCell::toned(Tone::Faint, scale.weight(weight)),
            TableCell::toned(Tone::Faint, percent(share)),
            TableCell::toned(Tone::Faint, blocks.draw(heights, most_band)),
            TableCell::toned(Tone::Faint, format!("[{more}; -n 0 shows all]")),
        ]);
    } else if view.left_out > 0 {
        table.row(vec![
            TableCell::default(),
            TableCell::default(),
            TableCell::default(),
            format!("[{more}; -n 0 shows all]").into(),
        ]);
    }
    format!("{head}\n{}", table.render(shown.layout))
}

/// Weight per nanosecond, in words.
fn rate(unit: Unit, rate: f64) -> String {
    match unit {
        Unit::Nanoseconds => format!("{rate:.2} CPUs"),
        Unit::Cycles => format!("{rate:.2} cycles/ns"),
        Unit::Count | Unit::Unknown => format!("{:.0}/s", rate * 1e9),
    }
}

/// Weight per nanosecond in `width` equal parts of the total time; spread evenly within a column.
fn spread(columns: &[TimeColumn], weights: &[u64], width: usize) -> Vec<f64> {
    let start = columns.first().map_or(0, |column| column.from_ns) as f64;
    let end = columns.last().map_or(0, |column| column.to_ns) as f64;
    let part = (end - start) / width as f64;
    let mut heights = vec![0.0; width];
    for (column, &weight) in columns.iter().zip(weights) {
        let (from, to) = (column.from_ns as f64 - start, column.to_ns as f64 - start);
        if weight == 0 || to <= from || part <= 0.0 {
            continue;
        }
        let rate = weight as f64 / (to - from);
        let (first, last) = ((from / part) as usize, ((to / part).ceil() as usize).min(width));
        for (at, height) in heights.iter_mut().enumerate().take(last).skip(first) {
            let overlap = (to.min((at + 1) as f64 * part) - from.max(at as f64 * part)).max(0.0);
            *height += rate * overlap / part;
        }
    }
    heights
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(ends: &[u64]) -> Vec<TimeColumn> {
        let from = [0].iter().chain(ends);
        from.zip(ends).map(|(&from_ns, &to_ns)| TimeColumn { from_ns, to_ns }).collect()
    }

    #[test]
    fn bands_keep_their_weight_whatever_their_width() {
        let columns = columns(&[10, 15, 40]);
        let weights = [10, 20, 5];
        for width in [1, 3, 7, 40, 111] {
            let heights = spread(&columns, &weights, width);
            let sum: f64 = heights.iter().sum::<f64>() * 40.0 / width as f64;
            assert!((sum - 35.0).abs() < 1e-6, "{width}: {heights:?}");
        }
        assert_eq!(spread(&columns, &weights, 8), [1.0, 1.0, 4.0, 0.2, 0.2, 0.2, 0.2, 0.2]);
        assert_eq!(spread(&[], &[], 2), [0.0, 0.0]);
    }
}
