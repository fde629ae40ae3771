//! Flame graphs, drawn by inferno.

use std::collections::BTreeMap;
use std::io::{self, Write};

use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};
use inferno::flamegraph::{self, Direction, Options, TextTruncateDirection};

use super::folded;
use super::palette::{Colour, NEUTRAL, colours};
use super::request::{Export, unit_name};
use super::walk::frame_name;
use crate::view::SQUEEZED_OUT;

/// A flame graph of two profiles: as wide as the second, coloured by how much more (red) or less (blue) weight each
/// stack has than in the first. Without `absolute`, the first is scaled to the total of the second.
///
/// # Errors
/// Those of `out`; and [`io::ErrorKind::InvalidInput`] if nothing of the second profile is selected.
pub fn write_difference(
    before: &Export<'_>,
    after: &Export<'_>,
    absolute: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let (old, new) = (folded::lines(before), folded::lines(after));
    let sum = |lines: &BTreeMap<String, u64>| lines.values().copied().fold(0, u64::saturating_add);
    let (old_total, new_total) = (sum(&old), sum(&new));
    if new_total == 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "no samples are selected after: there is nothing to draw",
        ));
    }
    let scaled = |weight: u64| match old_total {
        _ if absolute => weight,
        0 => 0,
        _ => (u128::from(weight) * u128::from(new_total) / u128::from(old_total)) as u64,
    };
    let mut both: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (stack, &weight) in &old {
        both.entry(stack).or_default().0 = scaled(weight);
    }
    for (stack, &weight) in &new {
        both.entry(stack).or_default().1 = weight;
    }
    let lines: Vec<String> = both.iter().map(|(stack, (was, is))| format!("{stack} {was} {is}")).collect();
    let metric = after.metric();
    let mut options = options();
    options.title = format!("{}: after, and how it differs from before", after.title());
    let how = if absolute { "by weight" } else { "by share" };
    options.subtitle = Some(format!("{}, {how}: red is more, blue is less; recursion is folded (ccsd)", metric.name));
    options.count_name = unit_name(metric.unit).to_owned();
    options.deterministic = true;
    options.notes = notes(after);
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out).map_err(io::Error::other)
}

pub(super) fn write(export: &Export<'_>, out: &mut impl Write) -> io::Result<()> {
    let lines: Vec<String> =
        folded::lines(export).into_iter().map(|(stack, weight)| format!("{stack} {weight}")).collect();
    if lines.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no samples are selected: there is nothing to draw"));
    }
    let metric = export.metric();
    let labels = export.profile.full_labels();
    let mut palette = PaletteMap::default();
    for (function, Colour(r, g, b)) in colours(export) {
        palette.insert(frame_name(&labels, function).replace(';', ":"), Color { r, g, b });
    }
    for name in ["all", SQUEEZED_OUT] {
        let Colour(r, g, b) = NEUTRAL;
        palette.insert(name, Color { r, g, b });
    }
    let mut options = options();
    options.bgcolors = Some(BackgroundColor::Flat(Color { r: 0xfa, g: 0xfa, b: 0xf8 }));
    options.palette_map = Some(&mut palette);
    options.title = export.title();
    options.subtitle = Some(format!("{}; recursion is folded (ccsd)", metric.name));
    options.count_name = unit_name(metric.unit).to_owned();
    options.deterministic = true;
    options.notes = notes(export);
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out).map_err(io::Error::other)
}

/// As in a page: callees below their callers, names cut at their end.
fn options<'a>() -> Options<'a> {
    let mut options = Options::default();
    options.direction = Direction::Inverted;
    options.text_truncate_direction = TextTruncateDirection::Right;
    options
}

/// The remarks as an XML comment, without text that would end it.
fn notes(export: &Export<'_>) -> String {
    export.remarks().join("; ").replace('-', "\u{2010}").replace(['<', '>', '&'], "_")
}
