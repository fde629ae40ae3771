//! How it looks.

use ccsd_profile::sanitise;
use ratatui::Frame;
use ratatui::layout::{Position, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthStr;

use super::model::TopModel;
use super::rows::{Sort, TopRow, TopView};
use super::state::{Prompt, ScreenState, TextPage};
use super::terminal::TerminalFeatures;
use crate::format::{UnitScale, count, nanoseconds, percent};
use crate::style::Tone;
use crate::table::{cut, cut_name};

const IMAGE: usize = 14;
const HOT: f64 = 0.1;
const WARM: f64 = 0.02;

pub fn draw(frame: &mut Frame<'_>, state: &mut ScreenState, model: &TopModel, look: TerminalFeatures) {
    let area = frame.area();
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let mut lines = Vec::with_capacity(height);
    lines.push(head(model, look, width));
    if let Some(page) = &mut state.page {
        state.height = height.saturating_sub(3);
        push_page(&mut lines, page, look, width, height);
    } else {
        lines.push(strip(model, look, width));
        lines.push(tabs(state, model, look, width));
        push_rows(&mut lines, state, model, look, (width, height));
    }
    lines.truncate(height.saturating_sub(1));
    lines.resize(height.saturating_sub(1), Line::default());
    lines.push(last_line(state, look, width));
    for (y, mut line) in (area.y..area.y.saturating_add(area.height)).zip(lines) {
        if !look.unicode {
            line.spans.iter_mut().for_each(only_ascii);
        }
        frame.render_widget(line, Rect { y, height: 1, ..area });
    }
    if let Some((prompt, text)) = &state.prompt {
        let x = label(*prompt).width() + sanitise(text).width();
        let x = u16::try_from(x.min(width.saturating_sub(1))).unwrap_or(0);
        frame.set_cursor_position(Position { x: area.x + x, y: area.y + area.height.saturating_sub(1) });
    }
}

fn head(model: &TopModel, look: TerminalFeatures, width: usize) -> Line<'static> {
    let accounting = model.profile().accounting();
    let lost = accounting.known_missing();
    let state = match (model.is_paused(), model.has_ended()) {
        (true, _) => "  PAUSED",
        (false, true) => "  ENDED",
        (false, false) => "",
    };
    let died = match model.profile().crashes().len() {
        0 => String::new(),
        died => format!("  {} died: c", count(died as u64)),
    };
    let tail = format!(
        "  {}  {} samples  {} lost",
        nanoseconds(accounting.duration_ns),
        count(accounting.received),
        count(lost)
    );
    let begin = "ccsd top  ";
    let room = width.saturating_sub(begin.width() + tail.width() + died.width() + state.width());
    let target = cut(&sanitise(&model.target()), room.max(8));
    let tone = if lost > 0 { Tone::Warning } else { Tone::Plain };
    Line::from(vec![
        Span::styled(begin, look.style(Tone::Faint)),
        Span::styled(target, look.style(Tone::Strong)),
        Span::styled(tail, look.style(tone)),
        Span::styled(died, look.style(Tone::Bad)),
        Span::styled(state, look.style(Tone::Warning)),
    ])
}

fn only_ascii(span: &mut Span<'static>) {
    if !span.content.is_ascii() {
        let character = |c: char| match c {
            '\u{2026}' => '~',
            c if c.is_ascii() => c,
            _ => '?',
        };
        span.content = span.content.chars().map(character).collect::<String>().into();
    }
}

/// The last intervals, the newest on the right, as high as the highest of them.
fn strip(model: &TopModel, look: TerminalFeatures, width: usize) -> Line<'static> {
    let rate = |point: &super::model::StripInterval| point.weight as f64 / point.length.max(1) as f64;
    let points = model.points();
    let (unit, now) = match points.last() {
        Some(point) if model.weighs_time() => ("CPUs", format!("{:.2}", rate(point))),
        _ => ("load", String::new()),
    };
    let label = format!("{unit} {now:>6} ");
    let room = width.saturating_sub(label.width() + 8);
    let shown = points.get(points.len().saturating_sub(room)..).unwrap_or(&[]);
    let most = shown.iter().map(rate).fold(0.0, f64::max);
    let levels = look.levels();
    let full = levels.len() - 1;
    let bar = |point: &super::model::StripInterval| {
        let part = if most > 0.0 { rate(point) / most } else { 0.0 };
        let level = ((part * full as f64).round() as usize).clamp(usize::from(point.weight > 0), full);
        levels.get(level).copied().unwrap_or(' ')
    };
    let bars: String = shown.iter().map(bar).collect();
    let most = if model.weighs_time() && !shown.is_empty() { format!(" {most:.2}") } else { String::new() };
    Line::from(vec![
        Span::styled(label, look.style(Tone::Faint)),
        Span::styled(bars, look.style(Tone::Good)),
        Span::styled(most, look.style(Tone::Faint)),
    ])
}

fn tabs(state: &ScreenState, model: &TopModel, look: TerminalFeatures, width: usize) -> Line<'static> {
    let question = &state.question;
    let mut asked = Vec::new();
    if ![TopView::Tree, TopView::Flame].contains(&question.view) {
        asked.push(format!("by {}", question.sort.name()));
    }
    if model.shows_last() {
        asked.push("last interval".to_owned());
    }
    if let Some(frozen) = model.frozen() {
        asked.push(format!("since {}", nanoseconds(frozen.at)));
    }
    if !question.filter.is_empty() {
        asked.push(format!("/{}", sanitise(&question.filter)));
        if question.view == TopView::Flame {
            asked.extend(state.flame.matched(&question.filter));
        }
    }
    if let Some((_, name)) = &question.focus {
        asked.push(format!("focus {}", cut(name, 24)));
    }
    if !question.hidden.is_empty() {
        asked.push(format!("{} hidden", question.hidden.len()));
    }
    if let Some((_, name)) = &question.threads {
        asked.push(format!("only {}", cut(name, 20)));
    }
    let asked = asked.join("  ");
    // Where there is little room, what is asked is worth more than the names of the other views.
    let tabs = |with_names: bool| -> Vec<Span<'static>> {
        let tab = |(number, view): (usize, TopView)| {
            let chosen = view == question.view;
            let style = if chosen { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
            let name = if chosen || with_names { format!(" {number} {} ", view.name()) } else { format!(" {number} ") };
            Span::styled(name, style)
        };
        (1..).zip(TopView::ALL).map(tab).collect()
    };
    let wide = |spans: &[Span<'_>]| spans.iter().map(|span| span.width()).sum::<usize>();
    let mut spans = tabs(true);
    if wide(&spans) + 2 + asked.width() > width {
        spans = tabs(false);
    }
    let text = cut(&asked, width.saturating_sub(wide(&spans) + 2));
    spans.push(Span::styled(format!("  {text}"), look.style(Tone::Faint)));
    Line::from(spans)
}

fn push_rows(
    lines: &mut Vec<Line<'static>>,
    state: &mut ScreenState,
    model: &TopModel,
    look: TerminalFeatures,
    (width, height): (usize, usize),
) {
    let unit = model.profile().session().metrics.first().map(|metric| metric.unit).unwrap_or_default();
    let scale = UnitScale::new(unit, state.total.weight);
    let compares = model.frozen().is_some() && state.question.view == TopView::Flat;
    if state.question.view == TopView::Flame && state.total.weight > 0 {
        let room = height.saturating_sub(lines.len() + 1);
        lines.extend(state.flame.draw(look, &scale, (width, room)));
        return;
    }
    let bars = bar_width(width, compares);
    let mut titles = format!("{:>6} ", "self%");
    if compares {
        titles.push_str(&format!("{:>8} ", "change"));
    }
    titles.push_str(&format!("{:>6} {:>9}  ", "total%", format!("self {}", scale.unit)));
    if bars > 0 {
        titles.push_str(&" ".repeat(bars + 1));
    }
    titles.push_str(match state.question.view {
        TopView::Flame => "",
        TopView::Threads => "process, thread",
        TopView::Flat | TopView::Callers => "function",
        TopView::Tree => "calls",
    });
    if state.question.view == TopView::Flame {
        titles.clear();
    }
    lines.push(Line::styled(titles, look.style(Tone::Strong)));
    let room = height.saturating_sub(lines.len() + 1);
    let first = state.scroll(room);
    if state.rows.is_empty() {
        let why = match state.question.filter.is_empty() {
            true if model.profile().accounting().received == 0 => "no samples yet",
            true if model.frozen().is_some() => "no samples since then",
            true if model.shows_last() => "nothing in this interval",
            true => "nothing here",
            false if state.question.view == TopView::Flame => "nothing here",
            false => "no name contains that",
        };
        lines.push(Line::styled(format!("       {why}"), look.style(Tone::Faint)));
    }
    let total = state.total.weight.max(1) as f64;
    let by_total = state.question.view == TopView::Tree || state.question.sort == Sort::Inherited;
    let length = |row: &TopRow| if by_total { row.inherited } else { row.own };
    let longest = state.rows.iter().map(length).max().unwrap_or(0).max(1) as f64;
    let page = state.rows.iter().skip(first).take(room);
    let widest = page.map(|row| row.name.width() + row.depth).max().unwrap_or(0);
    for (at, row) in state.rows.iter().enumerate().skip(first).take(room) {
        let mut line = String::new();
        let share = |weight: u64| percent(weight as f64 / total);
        line.push_str(&format!("{:>6} ", share(row.own)));
        if compares {
            let change = row.change.map_or_else(String::new, |(change, significant)| {
                format!("{:+.2}{}", change * 100.0, if significant { '*' } else { ' ' })
            });
            line.push_str(&format!("{change:>8} "));
        }
        line.push_str(&format!("{:>6} {:>9}  ", share(row.inherited), scale.weight(row.own)));
        let heat = heat(row, state.question.view, total, look);
        let mut spans = vec![Span::styled(line.clone(), heat)];
        if bars > 0 {
            let tone = if heat == Style::new() { look.style(Tone::Good) } else { heat };
            spans.push(Span::styled(bar(length(row) as f64 / longest, bars, look), tone));
            line.push_str(&" ".repeat(bars + 1));
        }
        spans.extend(name(row, state.question.view, look, (width.saturating_sub(line.width()), widest), heat));
        let mut line = Line::from(spans);
        if at == state.cursor {
            let used = line.width();
            line.push_span(Span::raw(" ".repeat(width.saturating_sub(used))));
            line = line.style(Style::new().add_modifier(Modifier::REVERSED));
        }
        lines.push(line);
    }
}

/// Columns of the bar beside the name; 0 where there is no room.
fn bar_width(width: usize, compares: bool) -> usize {
    match width {
        160.. => 20,
        110.. => 12,
        96.. => 8,
        72.. if compares => 5,
        72.. => 8,
        _ => 0,
    }
}

/// A bar of `columns` and a blank. What is more than nothing is seen, where the terminal has parts of a column.
fn bar(share: f64, columns: usize, look: TerminalFeatures) -> String {
    let parts = look.parts();
    let full = parts.len() - 1;
    let all = share * (columns * full) as f64;
    let filled = if all > 0.0 && look.unicode { all.round().max(1.0) } else { all.round() };
    let filled = (filled as usize).min(columns * full);
    let column = |at: usize| parts.get(filled.saturating_sub(at * full).min(full)).copied().unwrap_or(' ');
    (0..columns).map(column).chain([' ']).collect()
}

fn heat(row: &TopRow, view: TopView, total: f64, look: TerminalFeatures) -> Style {
    match row.own as f64 / total {
        // Of one process that is all there is.
        _ if view == TopView::Threads => Style::new(),
        share if share >= HOT => look.style(Tone::Bad),
        share if share >= WARM && look.colour => look.style(Tone::Warning),
        _ => Style::new(),
    }
}

/// The name and where it is from, in `room` columns. The image has what the name leaves.
fn name(
    row: &TopRow,
    view: TopView,
    look: TerminalFeatures,
    (room, widest): (usize, usize),
    heat: Style,
) -> Vec<Span<'static>> {
    let image_room = room.saturating_sub(widest + 4).clamp(IMAGE, 40);
    let deep = row.depth.min(room / 4);
    let mut begin = match view {
        TopView::Tree => format!("{}{}", " ".repeat(deep), look.fold(row.open)),
        TopView::Callers | TopView::Threads => "  ".repeat(row.depth),
        TopView::Flat | TopView::Flame => String::new(),
    };
    if row.depth > deep && view == TopView::Tree {
        begin = format!("{}{}", row.depth, begin.get(row.depth.to_string().len()..).unwrap_or(" "));
    }
    let image =
        if row.image.is_empty() || view == TopView::Threads { String::new() } else { cut(&row.image, image_room) };
    let room = room.saturating_sub(begin.width());
    let beside = if image.is_empty() { 0 } else { image.width() + 2 };
    let text = cut_name(&row.name, room);
    let left = room.saturating_sub(text.width());
    let style = if row.strong { heat.add_modifier(Modifier::BOLD) } else { heat };
    let mut spans = vec![Span::raw(begin), Span::styled(text, style)];
    if beside > 0 && beside <= left {
        spans.push(Span::styled(format!("  {image}"), look.style(Tone::Faint)));
    }
    spans
}

fn push_page(lines: &mut Vec<Line<'static>>, page: &mut TextPage, look: TerminalFeatures, width: usize, height: usize) {
    lines.push(Line::styled(cut(&page.title, width), look.style(Tone::Strong)));
    let room = height.saturating_sub(lines.len() + 1);
    page.top = page.top.min(page.lines.len().saturating_sub(room));
    let shown = page.lines.iter().skip(page.top).take(room);
    lines.extend(shown.map(|line| Line::raw(cut(line, width))));
}

fn label(prompt: Prompt) -> &'static str {
    match prompt {
        Prompt::Filter => "/",
        Prompt::Save => "save as: ",
    }
}

fn last_line(state: &ScreenState, look: TerminalFeatures, width: usize) -> Line<'static> {
    if let Some((prompt, text)) = &state.prompt {
        return Line::raw(format!("{}{}", label(*prompt), sanitise(text)));
    }
    if let Some(message) = &state.message {
        return Line::styled(cut(&sanitise(message), width), look.style(Tone::Warning));
    }
    let hints: &[&str] = match &state.page {
        Some(page) if page.lines.len() > state.height => &["q: quit", "up, down: scroll", "any other key: back"],
        Some(_) => &["q: quit", "any key: back"],
        None if state.question.view == TopView::Flame => {
            &["q: quit", "?: help", "Enter: zoom", "Backspace: out", "/: search", "n: next", "p: pause"]
        }
        None => &["q: quit", "?: help", "/: filter", "o: order", "p: pause", "f: freeze", "d: dump", "s: save"],
    };
    Line::styled(whole_hints(hints, width), look.style(Tone::Faint))
}

/// As many hints as fit, the first of them at the end.
fn whole_hints(hints: &[&str], width: usize) -> String {
    let mut room = width;
    let fitting = hints.iter().take_while(|hint| {
        let fits = hint.len() <= room;
        room = room.saturating_sub(hint.len() + 2);
        fits
    });
    let mut shown: Vec<&str> = fitting.copied().collect();
    if !shown.is_empty() {
        shown.rotate_left(1);
    }
    shown.join("  ")
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};

    use super::super::model::tests::TestProfile;
    use super::super::state::Wish;
    use super::*;
    use ratatui::style::Color;

    const LOOK: TerminalFeatures = TerminalFeatures { colour: true, unicode: true };

    fn screen(state: &mut ScreenState, model: &TopModel, look: TerminalFeatures, size: (u16, u16)) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
        terminal.draw(|frame| draw(frame, state, model, look)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..size.0).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..size.1).map(line).collect()
    }

    fn shown(source: &mut TestProfile, update: u64) -> (ScreenState, TopModel) {
        let (mut state, mut model) = (ScreenState::new(), TopModel::new(false));
        model.begin(source.profile.session());
        model.update(&source.update(update)).unwrap();
        state.refresh(&model);
        (state, model)
    }

    fn press(state: &mut ScreenState, model: &mut TopModel, keys: &str) {
        for key in keys.chars() {
            let code = if key == '\n' { KeyCode::Enter } else { KeyCode::Char(key) };
            assert_eq!(state.key(KeyEvent::from(code), model), Wish::None, "{key}");
        }
    }

    #[test]
    fn hostile_names_are_inert_and_cut() {
        let evil = "\x1b[2J\x1b]0;title\x07\u{202e}evil\u{9b}31m\r\n<script>";
        let (long, wide) = ("n".repeat(100_000), "\u{65e5}\u{672c}".repeat(300));
        let mut source = TestProfile::new();
        source.charge(&["main", evil, &long], 60);
        source.charge(&["main", &wide], 30);
        let (mut state, mut model) = shown(&mut source, 200_000_000);
        for size in [(80, 24), (200, 50), (20, 5)] {
            for look in [LOOK, TerminalFeatures { colour: false, unicode: false }] {
                for view in "12345".chars() {
                    press(&mut state, &mut model, &view.to_string());
                    let shown = screen(&mut state, &model, look, size);
                    let bad = |c: char| c.is_control() || c == '\u{202e}' || (!look.unicode && !c.is_ascii());
                    assert!(!shown.iter().any(|line| line.contains(bad)), "{view}: {shown:?}");
                    assert_eq!(shown.len(), usize::from(size.1));
                    if size.0 >= 80 && view == '1' {
                        assert!(shown.iter().any(|line| line.contains("\\u{1b}[2J\\u{1b}]0;title")), "{shown:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_view_at_80_columns() {
        let mut source = TestProfile::new();
        source.charge(&["main", "parse", "read"], 60);
        source.charge(&["main", "parse"], 30);
        source.charge(&["main"], 10);
        let (mut state, mut model) = shown(&mut source, 200_000_000);
        let flat = screen(&mut state, &model, LOOK, (80, 10));
        assert_eq!(
            flat,
            [
                "ccsd top  ./prog  200 ms  0 samples  0 lost",
                "CPUs   0.50 \u{2588} 0.50",
                " 1 flat  2 tree  3 callers  4 threads  5 flame   by self",
                " self% total%   self ms           function",
                " 60.00  60.00     60.00  \u{2588}\u{2588}\u{2588}\u{2588}\u{2588}\u{2588}\u{2588}\u{2588} read  prog",
                " 30.00  90.00     30.00  \u{2588}\u{2588}\u{2588}\u{2588}     parse  prog",
                " 10.00 100.00     10.00  \u{2588}\u{258d}       main  prog",
                "",
                "",
                "?: help  /: filter  o: order  p: pause  f: freeze  d: dump  s: save  q: quit",
            ]
        );
        let full = "\u{2588}";
        press(&mut state, &mut model, "2");
        assert_eq!(
            screen(&mut state, &model, LOOK, (80, 10))[4..7],
            [
                format!(" 10.00 100.00     10.00  {} \u{25be} main  prog", full.repeat(8)),
                format!(" 30.00  90.00     30.00  {}\u{258e}  \u{25be} parse  prog", full.repeat(7)),
                format!(" 60.00  60.00     60.00  {}\u{258a}        read  prog", full.repeat(4)),
            ]
        );
        press(&mut state, &mut model, "jh");
        assert_eq!(
            screen(&mut state, &model, TerminalFeatures { colour: false, unicode: false }, (80, 10))[4..7],
            [" 10.00 100.00     10.00  ######## - main  prog", " 30.00  90.00     30.00  #######   + parse  prog", ""]
        );
        press(&mut state, &mut model, "3");
        assert_eq!(
            screen(&mut state, &model, LOOK, (80, 10))[4..7],
            [
                format!(" 30.00  90.00     30.00  {}     main  prog", full.repeat(4)),
                format!(" 30.00  90.00     30.00  {}       parse  prog", full.repeat(4)),
                format!(" 60.00  60.00     60.00  {}     read  prog", full.repeat(8)),
            ]
        );
        press(&mut state, &mut model, "4\n/par\n");
        let only = screen(&mut state, &model, LOOK, (80, 10));
        assert_eq!(only[2], " 1 flat  2 tree  3 callers  4 threads  5 flame   by self  /par  only 10 (prog)");
        assert_eq!(only[4..6], [format!(" 30.00  90.00     30.00  {} parse  prog", full.repeat(8)), String::new()]);
    }

    #[test]
    fn bars_are_relative_to_the_largest_row_and_hot_rows_stand_out() {
        let mut source = TestProfile::new();
        for function in 0..100 {
            source.charge(&["main", &format!("f{function:02}")], if function == 7 { 300 } else { 10 });
        }
        let (mut state, model) = shown(&mut source, 1_000_000_000);
        let text = screen(&mut state, &model, LOOK, (80, 24));
        // A quarter of the time fills the bar.
        assert!(text[4].contains(&format!(" {} f07", "\u{2588}".repeat(8))), "{text:#?}");
        assert!(text[5].contains(" \u{258e}        f00"), "{text:#?}");
        let colours = |look| {
            let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
            terminal.draw(|frame| draw(frame, &mut state, &model, look)).unwrap();
            let buffer = terminal.backend().buffer();
            [4, 5].map(|y| (buffer[(1, y)].fg, buffer[(1, y)].modifier.contains(Modifier::BOLD)))
        };
        let mut colours = colours;
        assert_eq!(colours(LOOK), [(Color::Red, false), (Color::Reset, false)]);
        let plain = TerminalFeatures { colour: false, unicode: true };
        assert_eq!(colours(plain), [(Color::Reset, true), (Color::Reset, false)]);
    }

    #[test]
    fn q_ends_from_every_overlay() {
        let mut source = TestProfile::new();
        source.charge(&["main"], 1);
        let (mut state, mut model) = shown(&mut source, 1_000_000_000);
        press(&mut state, &mut model, "?");
        assert!(state.page.is_some());
        assert_eq!(state.key(KeyEvent::from(KeyCode::Char('q')), &mut model), Wish::Quit);
        state.page = None;
        press(&mut state, &mut model, "/q");
        assert_eq!(state.question.filter, "q");
    }

    fn program() -> TestProfile {
        let mut source = TestProfile::new();
        source.charge(&["main", "parse", "read"], 50);
        source.charge(&["main", "parse"], 10);
        source.charge(&["main", "write"], 30);
        source.charge(&["main"], 10);
        source
    }

    #[test]
    fn the_flame_graph_is_walked_zoomed_and_searched() {
        let (mut state, mut model) = shown(&mut program(), 1_000_000_000);
        press(&mut state, &mut model, "5");
        let ascii = TerminalFeatures { colour: false, unicode: false };
        let see = |state: &mut ScreenState, model: &TopModel| screen(state, model, ascii, (41, 9));
        let text = see(&mut state, &model);
        assert_eq!(
            text[3..8],
            [
                "all",
                "|main  100.0%                           |",
                "|parse  60.0%           |write      |",
                "|read  50.0%        |",
                "main  100.00%, 100.00 ms; self 10.00%; 10",
            ]
            .map(str::to_owned)
        );
        press(&mut state, &mut model, "jl");
        assert!(see(&mut state, &model)[7].starts_with("write  30.00%"));
        press(&mut state, &mut model, "hj");
        assert!(see(&mut state, &model)[7].starts_with("read  50.00%"));
        press(&mut state, &mut model, "k\n");
        let zoomed = see(&mut state, &model);
        assert_eq!(
            zoomed[3..6],
            ["main > parse", "|parse  60.0%                           |", "|read  50.0%                     |"]
        );
        press(&mut state, &mut model, "/re\n");
        let found = see(&mut state, &model);
        assert!(found[4].starts_with("|parse"), "{found:#?}");
        let found = screen(&mut state, &model, ascii, (80, 9));
        assert!(found[2].ends_with("/re  matched 50.0%, 1 place"), "{found:#?}");
        press(&mut state, &mut model, "n");
        assert!(see(&mut state, &model)[7].starts_with("read  50.00%"));
        for _ in 0..2 {
            state.key(KeyEvent::from(KeyCode::Esc), &mut model);
        }
        assert_eq!(state.question.filter, "");
        assert_eq!(see(&mut state, &model)[3], "all");
        press(&mut state, &mut model, "H");
        assert!(!see(&mut state, &model).concat().contains("|read"));
    }

    #[test]
    fn a_frozen_flame_graph_says_what_grew() {
        let mut source = TestProfile::new();
        source.charge(&["main", "old"], 5_000);
        source.charge(&["main", "same"], 5_000);
        let (mut state, mut model) = shown(&mut source, 10_000_000_000);
        press(&mut state, &mut model, "5f");
        assert!(screen(&mut state, &model, LOOK, (80, 9))[4].contains("no samples"));
        source.charge(&["main", "new"], 5_000);
        source.charge(&["main", "same"], 5_000);
        model.update(&source.update(20_000_000_000)).unwrap();
        state.refresh(&model);
        let text = screen(&mut state, &model, LOOK, (80, 9));
        assert!(text[2].ends_with("since 10.0 s"), "{text:#?}");
        assert!(text[5].contains("+new") && text[5].contains("\u{2502}same"), "{text:#?}");
        assert!(text[3].ends_with("1 too narrow"), "{text:#?}");
        press(&mut state, &mut model, "f");
        assert!(screen(&mut state, &model, LOOK, (80, 9))[5].contains("\u{2502}old"));
    }

    #[test]
    fn a_deep_flame_graph_scrolls_and_keeps_the_choice() {
        let mut source = TestProfile::new();
        let names: Vec<String> = (0..2_000).map(|i| format!("f{i}")).collect();
        let stack: Vec<&str> = names.iter().map(String::as_str).collect();
        source.charge(&stack, 1);
        let (mut state, mut model) = shown(&mut source, 1_000_000_000);
        press(&mut state, &mut model, "5");
        // Keys go by what was drawn.
        screen(&mut state, &model, LOOK, (80, 24));
        press(&mut state, &mut model, "G");
        let text = screen(&mut state, &model, LOOK, (80, 24));
        assert!(text[3].contains("rows 1983-2000 of 2000") && text[22].starts_with("f1999 "), "{text:#?}");
        source.charge(&stack, 1);
        model.update(&source.update(2_000_000_000)).unwrap();
        state.refresh(&model);
        press(&mut state, &mut model, "\n");
        let text = screen(&mut state, &model, LOOK, (80, 24));
        assert!(text[3].contains("... > ") && text[3].contains(" > f1999"), "{text:#?}");
        assert!(text[4].contains("f1999") && text[5].is_empty(), "{text:#?}");
    }

    #[test]
    fn frozen_it_says_what_has_changed() {
        let mut source = TestProfile::new();
        source.charge(&["main", "old"], 5_000);
        source.charge(&["main", "same"], 5_000);
        let (mut state, mut model) = shown(&mut source, 10_000_000_000);
        press(&mut state, &mut model, "f");
        source.charge(&["main", "new"], 5_000);
        source.charge(&["main", "same"], 5_000);
        model.update(&source.update(20_000_000_000)).unwrap();
        state.refresh(&model);
        press(&mut state, &mut model, "ooo");
        let text = screen(&mut state, &model, LOOK, (80, 10));
        assert!(text[2].ends_with("by change  since 10.0 s"), "{text:#?}");
        let rows: Vec<Vec<&str>> = text[4..8].iter().map(|line| line.split_whitespace().collect()).collect();
        let full = "\u{2588}".repeat(5);
        assert_eq!(rows[0], ["50.00", "+50.00*", "50.00", "5.000", &full, "new", "prog"]);
        assert_eq!(rows[1], ["0.00", "-50.00*", "0.00", "0.000", "old", "prog"]);
        assert!(rows[2..].iter().all(|row| row[1] == "+0.00"), "{text:#?}");
        press(&mut state, &mut model, "f");
        assert!(screen(&mut state, &model, LOOK, (80, 10))[2].ends_with("by self"));
    }

    #[test]
    fn hostile_names_and_small_terminals_are_harmless() {
        let mut source = TestProfile::new();
        let long = "x".repeat(100_000);
        source.charge(&["\x1b[31mred\x07", "\u{202e}right", long.as_str(), "\u{1f600}wide\u{65e5}\u{672c}"], 1);
        let (mut state, mut model) = shown(&mut source, 1_000_000_000);
        for keys in ["1", "2", "3", "4", "5", "/x\n", "f", "?"] {
            press(&mut state, &mut model, keys);
            for size in [(80, 24), (200, 50), (1, 1), (3, 2), (20, 5), (8, 40)] {
                let text = screen(&mut state, &model, LOOK, size).concat();
                assert!(!text.contains(['\x1b', '\x07', '\u{202e}']), "{text:?}");
                let plain = TerminalFeatures { colour: false, unicode: false };
                assert!(screen(&mut state, &model, plain, size).concat().is_ascii());
            }
        }
    }

    #[test]
    fn deep_chains_stay_readable() {
        let mut source = TestProfile::new();
        let names: Vec<String> = (0..500).map(|i| format!("f{i}")).collect();
        source.charge(&names.iter().map(String::as_str).collect::<Vec<_>>(), 1);
        let (mut state, mut model) = shown(&mut source, 1_000_000_000);
        press(&mut state, &mut model, "2*G");
        let text = screen(&mut state, &model, LOOK, (80, 24));
        assert!(text.iter().any(|line| line.contains("f499")), "{text:#?}");
        press(&mut state, &mut model, "/f498\n");
        let text = screen(&mut state, &model, LOOK, (80, 24));
        assert!(text.iter().any(|line| line.contains("f498")), "{text:#?}");
    }
}
