//! The flame graph: what is chosen in it, what keys do there, and how it looks.

use ccsd_profile::CostCentreId;
use ratatui::crossterm::event::KeyCode;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthStr;

use super::terminal::TerminalFeatures;
use crate::flame::{Borders, Content, FlameLayout, FlameTree, ShareChange, text_row};
use crate::format::{UnitScale, count, counted, percent};
use crate::report::flame_background;
use crate::style::Tone;
use crate::table::cut;

/// The flame graph on the screen. Cursor and zooms are chains of calls, because positions change with every update.
#[derive(Default)]
pub struct FlameState {
    tree: Option<FlameTree>,
    /// Calls zoomed into. The last one fills the width.
    zooms: Vec<u64>,
    cursor: Option<u64>,
    layout: FlameLayout,
    top: usize,
    height: usize,
}

type CallPosition = (usize, usize);

impl FlameState {
    pub fn show(&mut self, tree: FlameTree) {
        self.tree = Some(tree);
        self.arrange(self.layout.columns);
    }

    /// Forgets the calls until there are others.
    pub fn hide(&mut self) {
        self.tree = None;
    }

    pub fn clear(&mut self) {
        *self = FlameState::default();
    }

    fn zoom(&self) -> Option<usize> {
        let tree = self.tree.as_ref()?;
        // The profile may lack the call, for example in the last interval.
        self.zooms.last().and_then(|&chain| tree.find(chain))
    }

    fn arrange(&mut self, columns: usize) {
        let zoom = self.zoom();
        let Some(tree) = &self.tree else { return };
        self.layout = tree.layout(zoom, columns);
        if self.position().is_none() {
            // The chosen call is not drawn: choose its nearest caller that is drawn, else the first call.
            let chosen = self.cursor.and_then(|chain| tree.find(chain));
            let above = chosen.map(|at| tree.path_to(at)).unwrap_or_default();
            let drawn = above.into_iter().rev().find(|&at| self.place(at).is_some());
            let first = self.layout.rows.first().and_then(|row| row.first()).and_then(|span| call(span.content));
            let chosen = drawn.or(first).and_then(|at| tree.calls.get(at));
            if columns > 0 && chosen.is_some() {
                self.cursor = chosen.map(|call| call.chain);
            }
        }
    }

    fn place(&self, at: usize) -> Option<CallPosition> {
        let tree = self.tree.as_ref()?;
        let row = tree.path_to(at).len().checked_sub(1 + self.zoom().map_or(0, |zoom| tree.path_to(zoom).len() - 1))?;
        let place = self.layout.rows.get(row)?.iter().position(|span| span.content == Content::Call(at))?;
        Some((row, place))
    }

    fn chosen(&self) -> Option<usize> {
        self.tree.as_ref()?.find(self.cursor?)
    }

    fn position(&self) -> Option<CallPosition> {
        self.place(self.chosen()?)
    }

    fn choose(&mut self, at: usize) {
        self.cursor = self.tree.as_ref().and_then(|tree| tree.calls.get(at)).map(|call| call.chain);
    }

    pub fn function(&self) -> Option<(CostCentreId, String)> {
        let (tree, at) = (self.tree.as_ref()?, self.chosen()?);
        Some((tree.function(at)?, tree.label(at)))
    }

    /// Does what a key means here; false if it means nothing special.
    pub fn key(&mut self, code: KeyCode) -> bool {
        match code {
            KeyCode::Up | KeyCode::Char('k') => self.go_up(1),
            KeyCode::Down | KeyCode::Char('j') => self.go_down(1),
            KeyCode::PageUp => self.go_up(self.height),
            KeyCode::PageDown => self.go_down(self.height),
            KeyCode::Home | KeyCode::Char('g') => self.go_up(usize::MAX),
            KeyCode::End | KeyCode::Char('G') => self.go_down(usize::MAX),
            KeyCode::Right | KeyCode::Char('l') => self.go_beside(true),
            KeyCode::Left | KeyCode::Char('h') => self.go_beside(false),
            KeyCode::Char('n') => self.go_to_match(true),
            KeyCode::Char('N') => self.go_to_match(false),
            KeyCode::Enter => self.zoom_in(),
            KeyCode::Backspace => {
                self.zoom_out();
            }
            _ => return false,
        }
        true
    }

    fn go_up(&mut self, steps: usize) {
        let (Some(tree), Some(at)) = (&self.tree, self.chosen()) else { return };
        let rows = self.position().map_or(0, |(row, _)| row.min(steps));
        let path = tree.path_to(at);
        if let Some(&above) = path.len().checked_sub(rows + 1).and_then(|depth| path.get(depth)) {
            self.choose(above);
        }
    }

    /// Always to the heaviest callee.
    fn go_down(&mut self, steps: usize) {
        let (Some(tree), Some(mut at)) = (&self.tree, self.chosen()) else { return };
        let Some((row, _)) = self.position() else { return };
        for row in self.layout.rows.iter().skip(row + 1).take(steps) {
            let is_below = |at: &usize| tree.calls.get(*at).and_then(|call| call.parent);
            let mut drawn = row.iter().filter_map(|span| call(span.content));
            let Some(next) = drawn.find(|below| is_below(below) == Some(at)) else { break };
            at = next;
        }
        self.choose(at);
    }

    fn go_beside(&mut self, right: bool) {
        let Some((row, place)) = self.position() else { return };
        let Some(row) = self.layout.rows.get(row) else { return };
        let next = match right {
            true => row.iter().skip(place + 1).find_map(|span| call(span.content)),
            false => row.iter().take(place).rev().find_map(|span| call(span.content)),
        };
        if let Some(next) = next {
            self.choose(next);
        }
    }

    fn matches(&self, tree: &FlameTree) -> Vec<(CallPosition, usize)> {
        let all = self.layout.rows.iter().enumerate().flat_map(|(row, spans)| {
            spans.iter().enumerate().filter_map(move |(place, span)| Some(((row, place), call(span.content)?)))
        });
        all.filter(|&(_, at)| tree.is_match(at)).collect()
    }

    /// To the next call that is searched for, and from the last one to the first.
    fn go_to_match(&mut self, forward: bool) {
        let Some(tree) = &self.tree else { return };
        let matches = self.matches(tree);
        let here = self.position().unwrap_or_default();
        let next = match forward {
            true => matches.iter().find(|(place, _)| *place > here).or_else(|| matches.first()),
            false => matches.iter().rev().find(|(place, _)| *place < here).or_else(|| matches.last()),
        };
        if let Some(&(_, next)) = next {
            self.choose(next);
        }
    }

    fn zoom_in(&mut self) {
        if let Some(chain) = self.cursor.filter(|chain| self.zooms.last() != Some(chain)) {
            self.zooms.push(chain);
            self.arrange(self.layout.columns);
        }
    }

    /// Shows what was shown before the last zoom. False if there was none.
    pub fn zoom_out(&mut self) -> bool {
        let was_zoomed = self.zooms.pop().is_some();
        if was_zoomed {
            self.arrange(self.layout.columns);
        }
        was_zoomed
    }

    /// Calls that are searched for, in percent of the whole, and which of those that are drawn is chosen, if a search is on.
    pub fn matched(&self, filter: &str) -> Option<String> {
        let tree = self.tree.as_ref().filter(|_| !filter.is_empty())?;
        let share = tree.matched_weight as f64 / tree.total.weight.max(1) as f64;
        let (matches, here) = (self.matches(tree), self.position());
        let places = match matches.iter().position(|(place, _)| Some(*place) == here) {
            _ if matches.is_empty() => String::new(),
            Some(at) => format!(", {} of {}", at + 1, matches.len()),
            None => format!(", {}", counted(matches.len() as u64, "place", "places")),
        };
        Some(format!("matched {:.1}%{places}", share * 100.0))
    }

    pub fn draw(
        &mut self,
        look: TerminalFeatures,
        scale: &UnitScale,
        (width, height): (usize, usize),
    ) -> Vec<Line<'static>> {
        self.arrange(width.saturating_sub(1));
        self.height = height.saturating_sub(2).max(1);
        let cursor = self.position();
        if let Some((row, _)) = cursor {
            self.top = self.top.min(row).max((row + 1).saturating_sub(self.height));
        }
        self.top = self.top.min(self.layout.rows.len().saturating_sub(self.height));
        let Some(tree) = &self.tree else { return Vec::new() };
        let mut lines = vec![self.above(tree, look, width)];
        let borders = Borders::new(look.unicode);
        for (number, row) in self.layout.rows.iter().enumerate().skip(self.top).take(self.height) {
            let mut spans = Vec::new();
            for (place, piece) in text_row(tree, row, borders, look.unicode).into_iter().enumerate() {
                let style = match piece.span.map(|span| span.content) {
                    Some(content) => {
                        let is_chosen = piece.span
                            == cursor
                                .filter(|(chosen, _)| *chosen == number)
                                .and_then(|(_, place)| row.get(place).copied());
                        style(tree, content, (number + place, is_chosen), look)
                    }
                    None => Style::new(),
                };
                spans.push(Span::styled(piece.text, style));
            }
            lines.push(Line::from(spans));
        }
        lines.resize(height.saturating_sub(1), Line::default());
        lines.push(self.about(tree, look, scale, width));
        lines
    }

    fn above(&self, tree: &FlameTree, look: TerminalFeatures, width: usize) -> Line<'static> {
        let all = self.layout.rows.len();
        let mut beside = String::new();
        if all > self.height {
            let last = (self.top + self.height).min(all);
            beside.push_str(&format!("  rows {}-{last} of {all}", self.top + 1));
        }
        if self.layout.hidden > 0 {
            beside.push_str(&format!("  {} too narrow", count(self.layout.hidden as u64)));
        }
        let room = width.saturating_sub(beside.width());
        let path = match self.zoom() {
            None => "all".to_owned(),
            Some(zoom) => {
                // The nearest callers that fit.
                let path = tree.path_to(zoom);
                let mut text = tree.label(zoom);
                for &caller in path.iter().rev().skip(1) {
                    let label = tree.label(caller);
                    if text.width() + label.width() + " > ".len() * 2 > room {
                        text = format!("... > {text}");
                        break;
                    }
                    text = format!("{label} > {text}");
                }
                text
            }
        };
        let path = cut(&path, room);
        let gap = " ".repeat(room.saturating_sub(path.width()));
        Line::from(vec![
            Span::styled(path, look.style(Tone::Strong)),
            Span::styled(format!("{gap}{beside}"), look.style(Tone::Faint)),
        ])
    }

    fn about(&self, tree: &FlameTree, look: TerminalFeatures, scale: &UnitScale, width: usize) -> Line<'static> {
        let Some((at, call)) = self.chosen().and_then(|at| Some((at, tree.calls.get(at)?))) else {
            return Line::default();
        };
        let share = |weight: u64| percent(weight as f64 / tree.total.weight.max(1) as f64);
        let mut numbers = format!(
            "  {}%, {} {}; self {}%; {} samples",
            share(call.weight),
            scale.weight(call.weight),
            scale.unit,
            share(call.own),
            count(call.samples),
        );
        if let Some(ShareChange { share, significant }) = call.change {
            let mark = if significant { "*" } else { "" };
            numbers.push_str(&format!("; {:+.2}{mark}", share * 100.0));
        }
        let image = format!("  {}", cut(tree.image(at), 20));
        // In a narrow terminal the end of the numbers is the lesser loss.
        let room = width.saturating_sub(numbers.width()).max(width / 3);
        let name = cut(&tree.label(at), room);
        let mut spans = Vec::new();
        let image = if name.width() + image.width() + numbers.width() <= width { image } else { String::new() };
        spans.push(Span::styled(name, look.style(Tone::Strong)));
        spans.push(Span::styled(image, look.style(Tone::Faint)));
        spans.push(Span::raw(numbers));
        Line::from(spans)
    }
}

fn call(content: Content) -> Option<usize> {
    match content {
        Content::Call(at) => Some(at),
        Content::Narrow(_) => None,
    }
}

/// The style of a call at a place: the cursor is reversed, a match is underlined, too, for terminals without colour.
fn style(tree: &FlameTree, content: Content, (place, is_chosen): (usize, bool), look: TerminalFeatures) -> Style {
    let Content::Call(at) = content else { return look.style(Tone::Faint) };
    let is_match = tree.is_match(at);
    let mut style = Style::new();
    if look.colour {
        let background = match tree.calls.get(at).and_then(|call| call.change) {
            _ if is_match => 213,
            Some(change) => change_background(change),
            None => flame_background(tree.module(at), place),
        };
        style = style.fg(Color::Indexed(16)).bg(Color::Indexed(background));
    }
    if is_match {
        style = style.add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
    }
    if is_chosen {
        style = match look.colour {
            true => style.fg(Color::Indexed(231)).bg(Color::Indexed(16)).add_modifier(Modifier::BOLD),
            false => style.add_modifier(Modifier::REVERSED),
        };
    }
    style
}

/// Background of a call in a comparison: orange if it grew significantly, blue if it shrank; no red and green.
fn change_background(change: ShareChange) -> u8 {
    match change {
        ShareChange { significant: false, .. } => 252,
        ShareChange { share, .. } if share >= 0.1 => 208,
        ShareChange { share, .. } if share > 0.0 => 216,
        ShareChange { share, .. } if share <= -0.1 => 75,
        ShareChange { .. } => 153,
    }
}
