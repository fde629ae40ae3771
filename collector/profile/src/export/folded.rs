//! Brendan Gregg's folded stacks: `root;caller;leaf weight`, one per line.
//!
//! The format has no comments, and readers differ in handling other lines: flamegraph.pl skips them, difffolded.pl and
//! gprof2dot fail. So a remark is a stack of one frame, which begins with `#`, with weight 0.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::request::Export;
use super::walk::{GAP_FRAME, frame_index, frame_name, walk};

/// Bytes of text that are held at once to put it in order and to add up what has the same text.
const MOST_BYTES: usize = 256 << 20;

/// Every stack with its weight, ordered by text; if that is more than [`MOST_BYTES`], some of the stacks, each time that
/// it is. Semicolons in names become colons.
fn chunks(export: &Export<'_>, mut done: impl FnMut(BTreeMap<String, u64>)) {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    let mut bytes = 0;
    let profile = export.profile;
    let labels = profile.full_labels();
    let mut names: Vec<String> = (0..profile.cost_centres().len())
        .map(|i| frame_name(&labels, crate::ids::CostCentreId::new(i as u32)).replace(';', ":"))
        .collect();
    names.push(frame_name(&labels, GAP_FRAME).into_owned());
    walk(export, |stack| {
        let name = |&id: &_| names.get(frame_index(profile, id)).map_or("[unknown]", String::as_str);
        let names: Vec<&str> = stack.functions.iter().map(name).collect();
        let text = names.join(";");
        let length = text.len();
        let sum = lines.entry(text).or_insert_with(|| {
            bytes += length;
            0
        });
        *sum = sum.saturating_add(stack.weight);
        if bytes > MOST_BYTES {
            bytes = 0;
            done(std::mem::take(&mut lines));
        }
    });
    done(lines);
}

/// Every stack with its weight, ordered by text.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] if that is too much to draw.
pub(super) fn lines(export: &Export<'_>) -> io::Result<BTreeMap<String, u64>> {
    let (mut all, mut count) = (BTreeMap::new(), 0);
    chunks(export, |lines| {
        all = lines;
        count += 1;
    });
    if count > 1 {
        let why = format!(
            "the stacks are more than {} MiB of text, too much to draw: choose some of them (--focus, --hide), or another format",
            MOST_BYTES >> 20
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(all)
}

/// Of very many stacks, some may come more than once: readers add them up.
pub(super) fn write(export: &Export<'_>, out: &mut impl Write) -> io::Result<()> {
    if export.comments {
        for remark in export.remarks() {
            writeln!(out, "# {} 0", remark.replace(';', ","))?;
        }
    }
    let mut written = Ok(());
    chunks(export, |lines| {
        let mut write = |(stack, weight)| writeln!(out, "{stack} {weight}");
        if written.is_ok() {
            written = lines.into_iter().try_for_each(&mut write);
        }
    });
    written
}
