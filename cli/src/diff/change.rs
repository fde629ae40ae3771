//! A change between two profiles.

use ccsd_profile::view::{DiffRow, DiffSide};

use crate::args::diff::DiffArgs;
use crate::format::UnitScale;
use crate::style::Tone;
use crate::table::TableCell;

pub struct ShownChange {
    pub share: f64,
    pub weights: (u64, u64),
    pub significant: bool,
}

impl ShownChange {
    pub fn of(row: &DiffRow, args: &DiffArgs) -> ShownChange {
        let weights = |weight: fn(&DiffSide) -> u64| {
            (row.before.as_ref().map_or(0, weight), row.after.as_ref().map_or(0, weight))
        };
        if args.inherited {
            ShownChange {
                share: row.inherited_change,
                weights: weights(|side| side.inherited_weight),
                significant: if args.compares_weights() {
                    row.inherited_absolutely_significant
                } else {
                    row.inherited_significant
                },
            }
        } else {
            ShownChange {
                share: row.self_change,
                weights: weights(|side| side.self_weight),
                significant: if args.compares_weights() {
                    row.self_absolutely_significant
                } else {
                    row.self_significant
                },
            }
        }
    }

    pub fn size(&self, absolute: bool) -> f64 {
        if absolute { self.weights.0.abs_diff(self.weights.1) as f64 } else { self.share.abs() }
    }
}

pub fn change_cell(change: &ShownChange, absolute: bool, scale: UnitScale) -> TableCell {
    let (was, is) = change.weights;
    let more = if absolute { is > was } else { change.share > 0.0 };
    let tone = match (change.significant, more) {
        (false, _) => Tone::Faint,
        (true, true) => Tone::Bad,
        (true, false) => Tone::Good,
    };
    let text = if absolute {
        format!("{}{}", if is >= was { "+" } else { "-" }, scale.weight(was.abs_diff(is)))
    } else {
        format!("{:+.2}", change.share * 100.0)
    };
    TableCell::toned(tone, text)
}
