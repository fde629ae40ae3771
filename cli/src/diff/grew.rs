//! `--fail-above`: functions that grew by more than allowed.

use ccsd_profile::sanitise;
use ccsd_profile::view::{DiffFunction, DiffRow, DiffSide, DiffView};
use serde::Serialize;

use crate::format::counted;

const NAMED: usize = 5;

/// A function that grew significantly by more than allowed.
#[derive(Serialize)]
pub struct Grew {
    #[serde(flatten)]
    function: DiffFunction,
    #[serde(skip)]
    label: String,
    /// Growth in percentage points of share, or in percent of the total time before: of self or, if larger, inherited
    /// time.
    points: f64,
    /// Growth of self time, if that alone exceeds the limit.
    #[serde(skip)]
    own: Option<f64>,
    #[serde(skip)]
    inherited: u64,
}

/// Functions that grew significantly by more than `percent`: by self time, largest first; then their callers, innermost
/// first.
pub fn find_growth(view: &DiffView, percent: f64, absolute: bool) -> Vec<Grew> {
    let total = view.before.weight.max(1) as f64;
    let by_weight = |row: &DiffRow, weight: fn(&DiffSide) -> u64| {
        let weight = |side: &Option<DiffSide>| side.as_ref().map_or(0, weight) as f64;
        (weight(&row.after) - weight(&row.before)) / total
    };
    let changes = |row: &DiffRow| {
        let changes = if absolute {
            [
                (row.self_absolutely_significant, by_weight(row, |side| side.self_weight)),
                (row.inherited_absolutely_significant, by_weight(row, |side| side.inherited_weight)),
            ]
        } else {
            [(row.self_significant, row.self_change), (row.inherited_significant, row.inherited_change)]
        };
        changes.map(|(significant, change)| if significant { change * 100.0 } else { 0.0 })
    };
    let grew = |row: &DiffRow| {
        let [own, inherited] = changes(row);
        Grew {
            function: row.function.clone(),
            label: row.label.clone(),
            points: own.max(inherited),
            own: Some(own).filter(|own| *own > percent),
            inherited: row.after.as_ref().map_or(0, |side| side.inherited_weight),
        }
    };
    let mut rows: Vec<Grew> = view.rows.iter().map(grew).filter(|it| it.points > percent).collect();
    rows.sort_by(|a, b| match (a.own, b.own) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        (None, None) => a.inherited.cmp(&b.inherited),
        _ => b.own.is_some().cmp(&a.own.is_some()),
    });
    rows
}

pub fn message(grew: &[Grew], percent: f64, absolute: bool) -> String {
    let name = |it: &Grew| format!("{} ({}) +{:.2}", sanitise(&it.label), sanitise(&it.function.image), it.points);
    let mut names: Vec<String> = grew.iter().take(NAMED).map(name).collect();
    if grew.len() > NAMED {
        names.push(format!("{} more", grew.len() - NAMED));
    }
    let what = counted(grew.len() as u64, "row", "rows");
    let unit = if absolute { "% of the time before" } else { " percentage points" };
    format!("{what} grew significantly by more than {percent}{unit}: {}", names.join(", "))
}
