//! Brendan Gregg's folded stacks: `root;caller;leaf weight`, one per line.
//!
//! The format has no comments, and readers differ in handling other lines: flamegraph.pl skips them, difffolded.pl and
//! gprof2dot fail. So a remark is a stack of one frame, which begins with `#`, with weight 0.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::request::Export;
use super::walk::{GAP_FRAME, frame_index, frame_name, walk};

/// Every stack with its weight, ordered by text. Semicolons in names become colons.
pub(super) fn lines(export: &Export<'_>) -> BTreeMap<String, u64> {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    let profile = export.profile;
    let labels = profile.full_labels();
    let mut names: Vec<String> = (0..profile.cost_centres().len())
        .map(|i| frame_name(&labels, crate::ids::CostCentreId::new(i as u32)).replace(';', ":"))
        .collect();
    names.push(frame_name(&labels, GAP_FRAME).into_owned());
    walk(export, |stack| {
        let name = |&id: &_| names.get(frame_index(profile, id)).map_or("[unknown]", String::as_str);
        let names: Vec<&str> = stack.functions.iter().map(name).collect();
        let sum = lines.entry(names.join(";")).or_default();
        *sum = sum.saturating_add(stack.weight);
    });
    lines
}

pub(super) fn write(export: &Export<'_>, out: &mut impl Write) -> io::Result<()> {
    if export.comments {
        for remark in export.remarks() {
            writeln!(out, "# {} 0", remark.replace(';', ","))?;
        }
    }
    for (stack, weight) in lines(export) {
        writeln!(out, "{stack} {weight}")?;
    }
    Ok(())
}
