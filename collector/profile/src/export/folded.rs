//! Brendan Gregg's folded stacks: `root;caller;leaf weight`, a line for each.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::Export;
use super::walk::walk;
use crate::sanitise;

/// Every stack with its weight, in order of the text.
pub(super) fn lines(export: &Export<'_>) -> BTreeMap<String, u64> {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    let names: Vec<String> = (0..export.profile.cost_centres().len())
        .map(|i| word(&export.profile.name(crate::CostCentreId::new(i as u32))))
        .collect();
    walk(export, |stack| {
        let names: Vec<&str> =
            stack.functions.iter().map(|id| names.get(id.index()).map_or("[unknown]", String::as_str)).collect();
        let sum = lines.entry(names.join(";")).or_default();
        *sum = sum.saturating_add(stack.weight);
    });
    lines
}

/// A name in a folded stack: the semicolon is what separates names.
fn word(name: &str) -> String {
    sanitise(name).replace(';', ":")
}

pub(super) fn write(export: &Export<'_>, out: &mut impl Write) -> io::Result<()> {
    for (stack, weight) in lines(export) {
        writeln!(out, "{stack} {weight}")?;
    }
    Ok(())
}
