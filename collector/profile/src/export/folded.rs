//! Brendan Gregg's folded stacks: `root;caller;leaf weight`, one per line.
//!
//! The format has no comments, and readers differ in handling other lines: flamegraph.pl skips them, difffolded.pl and
//! gprof2dot fail. So a remark is a stack of one frame, which begins with `#`, with weight 0.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::request::Export;
use super::walk::{ChargedStack, GAP_FRAME, frame_index, frame_name, walk, walk_within};

/// Bytes of text that are held at once to put it in order and to add up what has the same text.
pub(super) const MOST_BYTES: usize = 256 << 20;

/// Every stack with its weight, ordered by text. Semicolons in names become colons. Stacks of more than `most` bytes are first
/// given to `full`, which makes room, or says that no more are wanted. With `is_cut` the middle of the longest is left out, so
/// that all have about half of that. Returns the weight of those, too.
fn stacks(
    export: &Export<'_>,
    most: usize,
    is_cut: bool,
    mut full: impl FnMut(&mut BTreeMap<String, u64>) -> bool,
) -> (BTreeMap<String, u64>, u64) {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    let (mut bytes, mut are_wanted) = (0, true);
    let profile = export.profile;
    let labels = profile.full_labels();
    let mut names: Vec<String> = (0..profile.cost_centres().len())
        .map(|i| frame_name(&labels, crate::ids::CostCentreId::new(i as u32)).replace(';', ":"))
        .collect();
    names.push(frame_name(&labels, GAP_FRAME).into_owned());
    let visit = |stack: &ChargedStack<'_>| {
        if !are_wanted {
            return;
        }
        let name = |&id: &_| names.get(frame_index(profile, id)).map_or("[unknown]", String::as_str);
        let names: Vec<&str> = stack.functions.iter().map(name).collect();
        let text = names.join(";");
        let length = text.len();
        let sum = lines.entry(text).or_insert_with(|| {
            bytes += length;
            0
        });
        *sum = sum.saturating_add(stack.weight);
        if bytes > most {
            bytes = 0;
            are_wanted = full(&mut lines);
        }
    };
    let cut = if is_cut {
        walk_within(export, most / 2, visit)
    } else {
        walk(export, visit);
        0
    };
    (lines, cut)
}

/// Every stack with its weight, ordered by text.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] if they have more than `most` bytes: too much to draw.
pub(super) fn lines(export: &Export<'_>, most: usize) -> io::Result<BTreeMap<String, u64>> {
    all_lines(export, most, false).map(|(lines, _)| lines)
}

/// The same, without the middle of the longest if they have more, and the weight of those.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] if they are too many even so.
pub(super) fn cut_lines(export: &Export<'_>, most: usize) -> io::Result<(BTreeMap<String, u64>, u64)> {
    all_lines(export, most, false).or_else(|_| all_lines(export, most, true))
}

fn all_lines(export: &Export<'_>, most: usize, is_cut: bool) -> io::Result<(BTreeMap<String, u64>, u64)> {
    let mut fits = true;
    let lines = stacks(export, most, is_cut, |lines| {
        lines.clear();
        fits = false;
        false
    });
    if !fits {
        let why = format!(
            "the stacks are more than {} MiB of text, too much to draw: choose some of them (--focus, --hide), or another format",
            most >> 20
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(lines)
}

/// Of very many stacks, some may come more than once: readers add them up.
pub(super) fn write(export: &Export<'_>, out: &mut impl Write) -> io::Result<()> {
    write_within(export, MOST_BYTES, out)
}

fn write_within(export: &Export<'_>, most: usize, out: &mut impl Write) -> io::Result<()> {
    if export.comments {
        for remark in export.remarks() {
            writeln!(out, "# {} 0", remark.replace(';', ","))?;
        }
    }
    let mut write = |lines: &mut BTreeMap<String, u64>| {
        std::mem::take(lines).into_iter().try_for_each(|(stack, weight)| writeln!(out, "{stack} {weight}"))
    };
    let mut written = Ok(());
    let (mut rest, _) = stacks(export, most, false, |lines| {
        written = write(lines);
        written.is_ok()
    });
    written?;
    write(&mut rest)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::view::Selection;
    use crate::{ContextId, ImageId};
    use crate::{CostCentre, Image, LineId, Metric, Process, Profile, ProfileLimits, SessionInfo, Thread, Unit};

    /// Two threads with the same stacks.
    fn profile(between: &[String]) -> Profile {
        let metrics = vec![Metric { name: "cpu-clock".to_owned(), unit: Unit::Nanoseconds }];
        let mut profile = Profile::new(SessionInfo { metrics, ..SessionInfo::default() }, ProfileLimits::default());
        let name = || "demo".to_owned();
        let (parent, membership) = (None, None);
        let process = Process { pid: 1, start_time: 1, exec_generation: 0, parent, membership, name: name() };
        let process = profile.add_process(process);
        let image: ImageId = profile.add_image(Image { name: name(), build_id: Vec::new() });
        for tid in 1..3 {
            let thread = profile.add_thread(Thread { process, tid, name: name() });
            for number in 0..20u32 {
                let names = [&["main".to_owned()], between, &[format!("f{number}")]].concat();
                let context = names.into_iter().fold(ContextId::ROOT, |context, name| {
                    let function = profile.add_cost_centre(CostCentre {
                        image,
                        linkage_name: Some(name),
                        display_name: None,
                        start: None,
                        file: None,
                        line: 0,
                        local: false,
                    });
                    profile.contexts_mut().push(context, function)
                });
                profile.charge(thread, context, LineId::UNKNOWN, &[u64::from(number + 1)]);
            }
        }
        profile
    }

    /// The same weights by stack, however little text is held at once.
    #[test]
    fn few_bytes_at_once_give_the_same_sums() {
        let profile = profile(&[]);
        let selection = Selection::all();
        let export = Export { comments: false, ..Export::new(&profile, &selection) };
        let written = |most| {
            let mut out = Vec::new();
            write_within(&export, most, &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            let mut sums: BTreeMap<String, u64> = BTreeMap::new();
            for line in text.lines() {
                let (stack, weight) = line.rsplit_once(' ').unwrap();
                *sums.entry(stack.to_owned()).or_default() += weight.parse::<u64>().unwrap();
            }
            (text.lines().count(), sums)
        };
        let (whole, pieces) = (written(MOST_BYTES), written(0));
        assert_eq!(whole.1.len(), 20);
        assert!(pieces.0 > whole.0, "{pieces:?}");
        assert_eq!(pieces.1, whole.1);
        assert!(lines(&export, MOST_BYTES).is_ok());
        assert_eq!(lines(&export, 0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn long_stacks_are_cut_to_be_drawn() {
        let profile = profile(&["x".repeat(300), "y".repeat(300)]);
        let selection = Selection::all();
        let export = Export::new(&profile, &selection);
        assert!(lines(&export, 10_000).is_err());
        // Not even the function that ran has room.
        assert_eq!(cut_lines(&export, 100).unwrap(), (BTreeMap::from([("[elided]".to_owned(), 420)]), 420));
        let (cut, weight) = cut_lines(&export, 10_000).unwrap();
        assert_eq!((cut.len(), cut.values().sum::<u64>(), weight), (20, 2 * 210, 2 * 210));
        assert!(cut.keys().all(|stack| stack.starts_with("main;[elided];f")), "{cut:?}");
        let (whole, weight) = cut_lines(&export, MOST_BYTES).unwrap();
        assert!(weight == 0 && whole.keys().all(|stack| stack.len() > 600));
    }
}
