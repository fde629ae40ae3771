//! A flame graph as text.

use ccsd_profile::sanitise;

use super::presentation::Presentation;
use super::tree;
use crate::flame::{Borders, CallOrigin, Content, FlameTree, text_row};
use crate::format::{UnitScale, counted, percent};
use crate::style::{Tone, has_unicode};

const WIDTH: usize = 100;

/// The graph as wide as the terminal, then what a column is and what is not drawn.
pub fn text(shown: &Presentation<'_>) -> String {
    text_in(shown, has_unicode())
}

fn text_in(shown: &Presentation<'_>, unicode: bool) -> String {
    let view = tree::whole(shown);
    if view.total.samples == 0 {
        return shown.nothing();
    }
    let flame = FlameTree::from_view(view, shown.profile);
    let columns = shown.layout.width.unwrap_or(WIDTH).saturating_sub(1);
    let layout = flame.layout(None, columns);
    let rows = shown.rows(layout.rows.len());
    let borders = Borders::new(unicode);
    let mut text = String::new();
    for (depth, row) in layout.rows.iter().take(rows).enumerate() {
        for (number, piece) in text_row(&flame, row, borders, unicode).into_iter().enumerate() {
            text.push_str(&match piece.span.map(|span| span.content) {
                Some(Content::Call(at)) => {
                    shown.layout.paint_on(background(flame.module(at), depth + number), &piece.text)
                }
                Some(Content::Narrow(_)) => shown.layout.paint(Tone::Faint, &piece.text),
                None => piece.text,
            });
        }
        text.push('\n');
    }
    let scale = UnitScale::new(shown.metric.unit, flame.total.weight);
    let column = flame.total.weight / columns.max(1) as u64;
    let mut remark = format!(
        "# the width is {} {} of {}; a column is {} {} ({}%)",
        scale.weight(flame.total.weight),
        scale.unit,
        sanitise(&shown.metric.name),
        scale.weight(column),
        scale.unit,
        percent(1.0 / columns.max(1) as f64),
    );
    if layout.hidden > 0 {
        let hidden = counted(layout.hidden as u64, "call is", "calls are");
        remark.push_str(&format!("; {hidden} narrower and not drawn: --focus or --tree shows them"));
    }
    let below: usize = layout.rows.iter().skip(rows).map(Vec::len).sum();
    if below > 0 {
        let depth = layout.rows.len() - rows;
        let rows = counted(depth as u64, "row", "rows");
        remark.push_str(&format!("; {rows} more below{}", shown.hint()));
    }
    for line in crate::table::wrap(&remark, columns.saturating_sub("# ".len())) {
        let line = if line.starts_with('#') { line } else { format!("# {line}") };
        text.push_str(&shown.layout.paint(Tone::Faint, &line));
        text.push('\n');
    }
    text
}

/// Colours by where functions come from, two for each, so that neighbours differ: the program's own warm, libraries muted.
pub fn background(module: CallOrigin, place: usize) -> u8 {
    let (even, odd) = match module {
        CallOrigin::Own => (215, 222),
        CallOrigin::Library => (151, 152),
        CallOrigin::Kernel => (146, 147),
        CallOrigin::Generated => (182, 218),
        CallOrigin::Special => (250, 252),
    };
    if place.is_multiple_of(2) { even } else { odd }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::style::TextLayout;
    use crate::top::TestProfile;

    fn source() -> TestProfile {
        let mut source = TestProfile::new();
        source.charge(&["main", "parse", "read"], 60);
        source.charge(&["main", "parse"], 20);
        source.charge(&["main", "write"], 19);
        source.charge(&["main", "rare"], 1);
        source
    }

    #[test]
    fn as_wide_as_the_terminal_with_a_line_about_what_is_hidden() {
        let source = source();
        let layout = TextLayout { width: Some(61), colour: false };
        let shown = Presentation::new(&source.profile, layout);
        let text = text_in(&shown, false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], format!("|main  100.0%{}|", " ".repeat(47)), "{text}");
        assert_eq!(lines[1], format!("|parse  80.0%{}|write{}:|", " ".repeat(35), " ".repeat(5)));
        assert_eq!(lines[2], format!("|read  60.0%{}|", " ".repeat(24)));
        assert_eq!(lines[3], "# the width is 100.00 ms of cpu-clock; a column is 1.67 ms");
        assert!(text.replace("\n# ", " ").contains("1 call is narrower"), "{text}");
        assert!(lines.iter().all(|line| line.len() <= 61), "{text}");
        let limited = text_in(&Presentation { limit: Some(1), ..shown }, false);
        assert!(!limited.contains("read") && limited.replace("\n# ", " ").contains("2 rows more below"), "{limited}");
    }

    #[test]
    fn colours_are_beside_the_text() {
        let source = source();
        let plain = Presentation::new(&source.profile, TextLayout { width: Some(80), colour: false });
        let coloured = Presentation::new(&source.profile, TextLayout { width: Some(80), colour: true });
        let (plain, coloured) = (text_in(&plain, true), text_in(&coloured, true));
        let mut bare = String::new();
        for (number, part) in coloured.split('\x1b').enumerate() {
            bare.push_str(if number == 0 { part } else { part.split_once('m').unwrap().1 });
        }
        assert_eq!(bare, plain);
        assert!(coloured.contains("\x1b[38;5;16;48;5;"), "{coloured:?}");
    }
}
