//! Tables: columns fit their content, and the last one is cut to the terminal.

use std::ops::Range;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::style::{TextLayout, Tone};

const GAP: &str = "  ";
const MIN_CUT: usize = 16;
/// Width of the last column below which optional columns are dropped.
const ENOUGH: usize = 40;

/// Longer names are cut without parsing them, bytes.
const LONGEST_NAME: usize = 2_048;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Align {
    Left,
    Right,
}

#[derive(Clone, Debug)]
pub struct TableColumn {
    title: String,
    align: Align,
    most: usize,
    /// Dropped on a terminal if the last column needs the room.
    if_room: bool,
}

impl TableColumn {
    pub fn number(title: impl Into<String>) -> TableColumn {
        TableColumn { title: title.into(), align: Align::Right, most: usize::MAX, if_room: false }
    }

    pub fn text(title: impl Into<String>) -> TableColumn {
        TableColumn { title: title.into(), align: Align::Left, most: usize::MAX, if_room: false }
    }

    /// On a terminal cut to `most` columns.
    pub fn at_most(self, most: usize) -> TableColumn {
        TableColumn { most, ..self }
    }

    /// Dropped on a terminal so narrow that the last column would cut common names.
    pub fn if_room(self) -> TableColumn {
        TableColumn { if_room: true, ..self }
    }
}

#[derive(Clone, Debug, Default)]
pub struct TableCell {
    text: String,
    tone: Tone,
}

impl TableCell {
    pub fn toned(tone: Tone, text: impl Into<String>) -> TableCell {
        TableCell { text: text.into(), tone }
    }
}

impl<T: Into<String>> From<T> for TableCell {
    fn from(text: T) -> TableCell {
        TableCell { text: text.into(), tone: Tone::Plain }
    }
}

/// A table. The last column is never padded; on a terminal it gets the remaining width, and longer text loses its
/// middle.
#[derive(Clone, Debug)]
pub struct TextTable {
    columns: Vec<TableColumn>,
    rows: Vec<TableRow>,
}

#[derive(Clone, Debug)]
enum TableRow {
    Cells(Vec<TableCell>),
    Rule,
}

impl TextTable {
    pub fn new(columns: Vec<TableColumn>) -> TextTable {
        TextTable { columns, rows: Vec::new() }
    }

    pub fn row(&mut self, cells: Vec<TableCell>) {
        self.rows.push(TableRow::Cells(cells));
    }

    pub fn rule(&mut self) {
        self.rows.push(TableRow::Rule);
    }

    pub fn render(&self, layout: TextLayout) -> String {
        let terminal = layout.is_terminal();
        let widths: Vec<usize> = (0..self.columns.len()).map(|i| self.width(i, terminal)).collect();
        let shown = self.with_room(&widths, layout);
        let fixed = fixed(&shown, &widths);
        let last = self.columns.len().saturating_sub(1);
        let room = layout.width.map(|width| width.saturating_sub(fixed).max(MIN_CUT));
        let limit = |i: usize| if i == last { room } else { terminal.then(|| widths.get(i).copied()).flatten() };

        let mut text = String::new();
        let head: Vec<TableCell> =
            self.columns.iter().map(|c| TableCell::toned(Tone::Strong, c.title.as_str())).collect();
        if self.columns.iter().any(|column| !column.title.is_empty()) {
            self.line(&mut text, layout, &head, (&shown, &widths), limit);
        }
        for row in &self.rows {
            match row {
                TableRow::Cells(cells) => self.line(&mut text, layout, cells, (&shown, &widths), limit),
                TableRow::Rule => {
                    let whole = fixed + widths.last().copied().unwrap_or(0).min(RULE);
                    let rule = "-".repeat(layout.width.map_or(whole, |width| whole.min(width)));
                    text.push_str(&layout.paint(Tone::Faint, &rule));
                    text.push('\n');
                }
            }
        }
        text
    }

    fn line(
        &self,
        text: &mut String,
        layout: TextLayout,
        cells: &[TableCell],
        (columns, widths): (&[usize], &[usize]),
        limit: impl Fn(usize) -> Option<usize>,
    ) {
        let mut pending = 0;
        for &i in columns {
            let (Some(column), Some(&width)) = (self.columns.get(i), widths.get(i)) else { continue };
            let cell = cells.get(i).cloned().unwrap_or_default();
            let shown = match limit(i) {
                Some(limit) if columns.last() == Some(&i) => cut_name(&cut_remark(cell.text, limit), limit),
                Some(limit) => cut(&cell.text, limit),
                None => cell.text,
            };
            let space = width.saturating_sub(shown.width());
            let (before, after) = match column.align {
                Align::Left => (0, space),
                Align::Right => (space, 0),
            };
            // Blanks are written only before text, so no line ends in blanks.
            pending += before;
            if !shown.is_empty() {
                text.extend(std::iter::repeat_n(' ', pending));
                pending = 0;
                text.push_str(&layout.paint(cell.tone, &shown));
            }
            pending += after + GAP.len();
        }
        text.push('\n');
    }

    /// The columns to show: on a terminal, optional columns are dropped if the last one has too little room.
    fn with_room(&self, widths: &[usize], layout: TextLayout) -> Vec<usize> {
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let Some(width) = layout.width else { return shown };
        let needed = widths.last().copied().unwrap_or(0).min(ENOUGH);
        let dispensable = |&i: &usize| self.columns.get(i).is_some_and(|column| column.if_room);
        while fixed(&shown, widths) + needed > width
            && let Some(at) = shown.iter().rposition(dispensable)
        {
            shown.remove(at);
        }
        shown
    }

    fn width(&self, i: usize, terminal: bool) -> usize {
        let Some(column) = self.columns.get(i) else { return 0 };
        let cells = self.rows.iter().filter_map(|row| match row {
            TableRow::Cells(cells) => cells.get(i),
            TableRow::Rule => None,
        });
        let widest = cells.map(|cell| cell.text.width()).max().unwrap_or(0).max(column.title.width());
        if terminal { widest.min(column.most) } else { widest }
    }
}

fn fixed(shown: &[usize], widths: &[usize]) -> usize {
    shown.iter().rev().skip(1).filter_map(|&i| widths.get(i)).map(|width| width + GAP.len()).sum()
}

const RULE: usize = 40;

/// Cuts `text` to `width` columns in its middle: the ends of a name say most.
pub fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let room = width.saturating_sub(1);
    let tail_room = room / 2;
    let head = taken(text.chars(), room - tail_room);
    let tail: String = taken(text.chars().rev(), tail_room).chars().rev().collect();
    format!("{head}\u{2026}{tail}")
}

/// Cuts a remark such as `[9 more functions; -n 0 shows all]` that is wider than `width` to its first part.
fn cut_remark(text: String, width: usize) -> String {
    match text.split_once("; ") {
        Some((first, rest)) if text.width() > width && first.trim_start().starts_with('[') && rest.ends_with(']') => {
            format!("{first}]")
        }
        _ => text,
    }
}

/// Cuts a function's name to `width` columns: first template arguments, then the end of parameters or scope, last its
/// middle.
pub fn cut_name(text: &str, width: usize) -> String {
    // Parsing the structure of a name this long takes too much time; no source has one.
    if text.len() > LONGEST_NAME {
        return cut(text, width);
    }
    let mut text = text.to_owned();
    while text.width() > width
        && let Some(group) = arguments(&text).into_iter().rfind(|group| text.get(group.clone()) != Some("\u{2026}"))
    {
        text.replace_range(group, "\u{2026}");
    }
    if text.width() <= width {
        return text;
    }
    if let Some(open) = parameters(&text) {
        let path = text.get(..open).unwrap_or_default();
        return match width.checked_sub("\u{2026})".width()) {
            Some(room) if room > path.width() => format!("{}\u{2026})", taken(text.chars(), room)),
            _ => cut_name(path, width),
        };
    }
    // A suffix may distinguish namesakes, as in `a::f (b.c:9)`.
    let path = text.get(..text.rfind(" (").unwrap_or(text.len())).unwrap_or_default();
    let (head, own) = text.split_at(path.rfind("::").unwrap_or(0));
    match width.checked_sub(own.width() + 1) {
        Some(room) if !own.is_empty() && !head.is_empty() => {
            format!("{}\u{2026}{own}", taken(head.chars(), room).trim_end_matches(':'))
        }
        _ => cut(&text, width),
    }
}

/// Where a function's parameters begin, ignoring `operator()` and parentheses after a blank.
fn parameters(name: &str) -> Option<usize> {
    name.match_indices('(').map(|(at, _)| at).find(|&at| {
        let (before, after) = name.split_at(at);
        let own =
            before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '>') || before.ends_with("operator()");
        own && !before.ends_with("operator") && !after.starts_with("(anon)")
    })
}

/// Ranges within the outermost angle brackets of a name; empty if they do not match.
fn arguments(name: &str) -> Vec<Range<usize>> {
    let (mut groups, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (at, c) in name.char_indices() {
        let before = name.get(..at).unwrap_or_default().trim_end_matches('<');
        match c {
            '<' if !before.ends_with("operator") => {
                if depth == 0 {
                    start = at + 1;
                }
                depth += 1;
            }
            '>' if depth > 0 && !before.ends_with('-') => {
                depth -= 1;
                if depth == 0 {
                    groups.push(start..at);
                }
            }
            _ => {}
        }
    }
    if depth == 0 { groups } else { Vec::new() }
}

/// Wraps `text` at blanks into lines of at most `width` columns.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0usize;
    for word in text.split(' ') {
        let length = word.width();
        let Some(line) = lines.last_mut() else { break };
        if used > 0 && used.saturating_add(length).saturating_add(1) > width {
            lines.push(word.to_owned());
            used = length;
            continue;
        }
        if used > 0 {
            line.push(' ');
            used += 1;
        }
        line.push_str(word);
        used += length;
    }
    lines
}

fn taken(chars: impl Iterator<Item = char>, width: usize) -> String {
    let mut used = 0;
    chars
        .take_while(|c| {
            used += c.width().unwrap_or(0);
            used <= width
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TextTable {
        let mut table = TextTable::new(vec![
            TableColumn::number("self"),
            TableColumn::text("image"),
            TableColumn::text("function"),
        ]);
        table.row(vec!["1.5".into(), "a.out".into(), "main".into()]);
        table.row(vec!["10.25".into(), "".into(), "a_function_with_quite_a_long_name".into()]);
        table.row(vec!["7".into()]);
        table
    }

    #[test]
    fn columns_line_up_and_no_line_ends_in_blanks() {
        let text = table().render(TextLayout::PLAIN);
        assert_eq!(
            text,
            " self  image  function\n  1.5  a.out  main\n10.25         a_function_with_quite_a_long_name\n    7\n"
        );
    }

    #[test]
    fn a_terminal_cuts_the_last_column() {
        let text = table().render(TextLayout { width: Some(34), colour: false });
        assert!(text.contains("10.25         a_function\u{2026}long_name\n"), "{text}");
        assert!(text.lines().all(|line| line.width() <= 34), "{text}");
    }

    #[test]
    fn dispensable_columns_make_room_for_names() {
        let mut table = TextTable::new(vec![
            TableColumn::number("self"),
            TableColumn::number("95% interval").if_room(),
            TableColumn::text("function"),
        ]);
        table.row(vec!["1.5".into(), "0.50..2.50".into(), "a_function_with_quite_a_long_name".into()]);
        let render = |width| table.render(TextLayout { width: Some(width), colour: false });
        assert!(render(53).contains("0.50..2.50  a_function_with_quite_a_long_name\n"), "{}", render(53));
        assert_eq!(render(52), "self  function\n 1.5  a_function_with_quite_a_long_name\n");
        assert!(table.render(TextLayout::PLAIN).contains("0.50..2.50"));
    }

    #[test]
    fn colour_does_not_count() {
        let mut table = TextTable::new(vec![TableColumn::number("n"), TableColumn::text("what")]);
        table.row(vec![TableCell::toned(Tone::Bad, "5"), "x".into()]);
        let text = table.render(TextLayout { width: None, colour: true });
        assert_eq!(text, "\x1b[1mn\x1b[0m  \x1b[1mwhat\x1b[0m\n\x1b[31m5\x1b[0m  x\n");
    }

    #[test]
    fn functions_keep_their_own_name() {
        let name = "std::map<std::string, Widget>::find";
        for (width, expected) in [
            (35, name),
            (34, "std::map<\u{2026}>::find"),
            (17, "std::map<\u{2026}>::find"),
            (16, "std::map<\u{2026}::find"),
            (10, "std\u{2026}::find"),
            (7, "\u{2026}::find"),
            (6, "::f\u{2026}nd"),
        ] {
            let shown = cut_name(name, width);
            assert!(shown.width() <= width, "{shown}");
            if width != 6 {
                assert_eq!(shown, expected, "{width}");
            }
        }
        for (name, width, expected) in [
            ("main", 3, "m\u{2026}n"),
            ("shape::operator<<", 15, "sh\u{2026}::operator<<"),
            ("<Vec<u8> as Drop>::drop", 9, "<\u{2026}>::drop"),
            ("a::b::walk_of_trees (b.c:9)", 24, "\u{2026}::walk_of_trees (b.c:9)"),
            ("f<int>::g<a->b>::h", 12, "f<\u{2026}>::g<\u{2026}::h"),
            ("a::b::f(int, c::d const&)", 14, "a::b::f(int,\u{2026})"),
            ("a::b::f(int, c::d const&)", 8, "a::b::f"),
            ("a::b::operator()(int)", 16, "a::b::operator()"),
            ("std::tree<...>::_M_erase", 22, "std::tree<\u{2026}>::_M_erase"),
            ("    outer::inner::f", 15, "    outer\u{2026}::f"),
        ] {
            let shown = cut_name(name, width);
            assert!(shown.width() <= width, "{shown}");
            assert_eq!(shown, expected);
        }
    }

    #[test]
    fn remarks_are_cut_at_their_end() {
        let remark = || "[140 more functions; -n 0 shows all]".to_owned();
        assert_eq!(cut_remark(remark(), 36), remark());
        assert_eq!(cut_remark(remark(), 35), "[140 more functions]");
        assert_eq!(cut_remark("f(int; long)".to_owned(), 4), "f(int; long)");
    }

    #[test]
    fn cutting() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdefg", 6), "abc\u{2026}fg");
        assert_eq!(cut("日本語の関数", 6), "日\u{2026}数");
        assert_eq!(cut("abc", 1), "\u{2026}");
        assert_eq!(cut("abc", 0), "\u{2026}");
    }
}
