//! `--fail-above`: what grew by more than is allowed.

use ccsd_profile::sanitise;
use ccsd_profile::view::{DiffFunction, DiffRow, DiffSide, DiffView};
use serde::Serialize;

use crate::format::counted;

/// Functions that the message names.
const NAMED: usize = 5;

/// A function that grew significantly by more than is allowed.
#[derive(Serialize)]
pub struct Grew {
    #[serde(flatten)]
    function: DiffFunction,
    #[serde(skip)]
    label: String,
    /// By how many points of the total before (of self time or, where that is more, of inherited time).
    points: f64,
}

/// What grew significantly by more than `percent` points, most first.
pub fn beyond(view: &DiffView, percent: f64, absolute: bool) -> Vec<Grew> {
    let total = view.before.weight.max(1) as f64;
    let by_weight = |row: &DiffRow, weight: fn(&DiffSide) -> u64| {
        let weight = |side: &Option<DiffSide>| side.as_ref().map_or(0, weight) as f64;
        (weight(&row.after) - weight(&row.before)) / total
    };
    let points = |row: &DiffRow| {
        let changes = if absolute {
            [
                (row.self_absolutely_significant, by_weight(row, |side| side.self_weight)),
                (row.inherited_absolutely_significant, by_weight(row, |side| side.inherited_weight)),
            ]
        } else {
            [(row.self_significant, row.self_change), (row.inherited_significant, row.inherited_change)]
        };
        changes
            .into_iter()
            .filter(|(significant, _)| *significant)
            .map(|(_, change)| change * 100.0)
            .fold(0.0, f64::max)
    };
    let grew = |row: &DiffRow| Grew { function: row.function.clone(), label: row.label.clone(), points: points(row) };
    let mut rows: Vec<Grew> = view.rows.iter().map(grew).filter(|it| it.points > percent).collect();
    rows.sort_by(|a, b| b.points.total_cmp(&a.points));
    rows
}

/// What is said on standard error.
pub fn message(grew: &[Grew], percent: f64) -> String {
    let name = |it: &Grew| format!("{} ({}) +{:.2}", sanitise(&it.label), sanitise(&it.function.image), it.points);
    let mut names: Vec<String> = grew.iter().take(NAMED).map(name).collect();
    if grew.len() > NAMED {
        names.push(format!("{} more", grew.len() - NAMED));
    }
    let what = counted(grew.len() as u64, "row", "rows");
    format!("{what} grew significantly by more than {percent} points: {}", names.join(", "))
}
