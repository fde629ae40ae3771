//! Flame graphs, drawn by inferno.

use std::collections::BTreeMap;
use std::io::{self, Write};

use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};
use inferno::flamegraph::{self, Direction, Options, TextTruncateDirection};

use super::folded;
use super::palette::{Colour, NEUTRAL, Palette};
use super::request::{Export, unit_name};
use super::walk::frame_name;
use crate::text::sanitise;
use crate::view::{SQUEEZED_OUT, TreeView};

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
    // Three times the text is held: of both, and of all lines.
    let most = folded::MOST_BYTES / 2;
    let (old, new) = (folded::lines(before, most)?, folded::lines(after, most)?);
    let (old_total, new_total) = (total(&old)?, total(&new)?);
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
    options.subtitle =
        Some(format!("{}, {how}: red is more, blue is less; recursion is folded (ccsd)", sanitise(&metric.name)));
    options.count_name = unit_name(metric.unit).to_owned();
    options.deterministic = true;
    options.notes = notes(after);
    drawn(&mut options, &lines, out)
}

pub(super) fn write(export: &Export<'_>, out: &mut impl Write) -> io::Result<()> {
    let (profile, labels) = (export.profile, export.profile.full_labels());
    let palette = Palette::of(profile, &TreeView::new(profile, export.selection));
    // As in a page, what only starts the program is left out.
    let selection = export.selection.clone().hide(profile.startup_functions());
    let export = &Export { selection: &selection, ..*export };
    let (stacks, cut) = folded::cut_lines(export, folded::MOST_BYTES)?;
    let all = total(&stacks)?.max(1);
    let lines: Vec<String> = stacks.into_iter().map(|(stack, weight)| format!("{stack} {weight}")).collect();
    if lines.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no samples are selected: there is nothing to draw"));
    }
    let metric = export.metric();
    let mut colours = PaletteMap::default();
    for (function, Colour(r, g, b)) in palette.colours() {
        colours.insert(frame_name(&labels, function).replace(';', ":"), Color { r, g, b });
    }
    // inferno's frame below all others has no name.
    for name in ["", SQUEEZED_OUT] {
        let Colour(r, g, b) = NEUTRAL.light;
        colours.insert(name, Color { r, g, b });
    }
    let mut options = options();
    options.bgcolors = Some(BackgroundColor::Flat(Color { r: 0xfa, g: 0xfa, b: 0xf8 }));
    options.palette_map = Some(&mut colours);
    options.title = export.title();
    options.subtitle =
        Some(format!("{}; recursion is folded, and what starts the program (ccsd)", sanitise(&metric.name)));
    options.count_name = unit_name(metric.unit).to_owned();
    options.deterministic = true;
    options.notes = notes(export);
    if cut > 0 {
        let share = 100.0 * cut as f64 / all as f64;
        options.notes.push_str(&format!(
            "; of stacks with {share:.1}% of the weight the middle has no room here and is [elided]"
        ));
    }
    drawn(&mut options, &lines, out)
}

/// The sum of the weights, which a damaged profile may not have: inferno adds them up unchecked, and subtracts them with a sign.
fn total(stacks: &BTreeMap<String, u64>) -> io::Result<u64> {
    let sum = stacks.values().copied().fold(0, u64::saturating_add);
    if i64::try_from(sum).is_err() {
        let why = "the weights add up to more than can be drawn: is the profile damaged?";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(sum)
}

/// Draws, and names the frame that holds all others. inferno names it in a tip and, where scripts run, on the frame.
fn drawn(options: &mut Options<'_>, lines: &[String], out: &mut impl Write) -> io::Result<()> {
    let mut svg = Vec::new();
    flamegraph::from_lines(options, lines.iter().map(String::as_str), &mut svg).map_err(io::Error::other)?;
    let svg = String::from_utf8_lossy(&svg);
    let frame = svg.find("<title>all (");
    let text = frame.and_then(|frame| Some(frame + svg.get(frame..)?.find("></text>")?));
    let (before, after) = svg.split_at(text.map_or(0, |text| text + 1));
    let name = if before.is_empty() { "" } else { "all" };
    [before, name, after].into_iter().try_for_each(|part| out.write_all(part.as_bytes()))
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
