//! What the user has chosen, and what each key does.

use std::path::PathBuf;

use ccsd_profile::CostCentreId;
use ccsd_profile::view::Total;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::flame::FlameState;
use super::model::TopModel;
use super::rows::{RowKey, TopQuery, TopRow, TopView};
use crate::dump::crash;
use crate::style::TextLayout;

/// Longest text that is typed: a name of a function or a file.
const LONGEST_INPUT: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    None,
    Quit,
    Suspend,
    Redraw,
    Dump,
    Save(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompt {
    Filter,
    Save,
}

pub struct TextPage {
    pub title: String,
    pub lines: Vec<String>,
    pub top: usize,
}

pub struct ScreenState {
    pub question: TopQuery,
    pub rows: Vec<TopRow>,
    pub flame: FlameState,
    pub total: Total,
    pub cursor: usize,
    pub top: usize,
    pub height: usize,
    pub prompt: Option<(Prompt, String)>,
    pub page: Option<TextPage>,
    /// Said on the last line until the next key.
    pub message: Option<String>,
    /// Whether the cursor was moved: then it stays with what it is on.
    moved: bool,
    /// What the file of a saved profile is called if nothing else is typed.
    file: String,
    /// Of the session that the question is about; see [`TopModel::generation`].
    generation: u32,
}

impl ScreenState {
    pub fn new() -> ScreenState {
        ScreenState {
            question: TopQuery::default(),
            rows: Vec::new(),
            flame: FlameState::default(),
            total: Total::default(),
            cursor: 0,
            top: 0,
            height: 1,
            prompt: None,
            page: None,
            message: None,
            moved: false,
            file: "top.ccsd".to_owned(),
            generation: 0,
        }
    }

    pub fn refresh(&mut self, model: &TopModel) {
        if self.generation != model.generation() {
            self.generation = model.generation();
            let TopQuery { view, sort, filter, .. } = std::mem::take(&mut self.question);
            self.question = TopQuery { view, sort, filter, ..TopQuery::default() };
            (self.cursor, self.top, self.moved) = (0, 0, false);
            self.flame.clear();
        }
        if self.question.view == TopView::Flame {
            let tree = self.question.flame(model);
            (self.rows, self.total) = (Vec::new(), tree.as_ref().map_or_else(Total::default, |tree| tree.total));
            match tree {
                Some(tree) => self.flame.show(tree),
                None => self.flame.hide(),
            }
            return;
        }
        let chosen = self.rows.get(self.cursor).map(|row| row.key.clone()).filter(|key| *key != RowKey::None);
        (self.rows, self.total) = self.question.answer(model);
        let found = chosen.filter(|_| self.moved).and_then(|key| self.rows.iter().position(|row| row.key == key));
        self.cursor = found.unwrap_or(self.cursor).min(self.rows.len().saturating_sub(1));
    }

    /// The first row to be shown, so that the cursor is on a page of `height` rows.
    pub fn scroll(&mut self, height: usize) -> usize {
        self.height = height.max(1);
        if self.cursor < self.top {
            self.top = self.cursor;
        }
        if self.cursor >= self.top.saturating_add(self.height) {
            self.top = self.cursor + 1 - self.height;
        }
        // No empty lines below while there is something above.
        self.top = self.top.min(self.rows.len().saturating_sub(self.height));
        self.top
    }

    pub fn key(&mut self, key: KeyEvent, model: &mut TopModel) -> Wish {
        self.message = None;
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return Wish::Quit,
            KeyCode::Char('z') if control => return Wish::Suspend,
            KeyCode::Char('l') if control => return Wish::Redraw,
            _ => {}
        }
        if self.prompt.is_some() {
            return self.typed(key.code, control, model);
        }
        if self.page.is_some() {
            return self.turned(key.code);
        }
        let wish = self.command(key.code, control, model);
        if let Err(error) = wish.as_ref() {
            self.message = Some(format!("the profile is broken: {error}"));
        }
        self.refresh(model);
        wish.unwrap_or(Wish::None)
    }

    fn typed(&mut self, code: KeyCode, control: bool, model: &TopModel) -> Wish {
        let Some((prompt, mut text)) = self.prompt.take() else { return Wish::None };
        match code {
            KeyCode::Esc => {
                text.clear();
                if prompt == Prompt::Save {
                    return Wish::None;
                }
            }
            KeyCode::Enter if prompt == Prompt::Save => {
                return if text.is_empty() { Wish::None } else { Wish::Save(PathBuf::from(text)) };
            }
            KeyCode::Backspace => {
                text.pop();
            }
            KeyCode::Char('u') if control => text.clear(),
            KeyCode::Char(c) if !control && text.len() < LONGEST_INPUT => text.push(c),
            _ => {}
        }
        let goes_on = !matches!(code, KeyCode::Esc | KeyCode::Enter);
        if prompt == Prompt::Filter {
            self.question.filter.clone_from(&text);
            self.refresh(model);
        }
        self.prompt = goes_on.then_some((prompt, text));
        Wish::None
    }

    fn turned(&mut self, code: KeyCode) -> Wish {
        let Some(page) = &mut self.page else { return Wish::None };
        let last = page.lines.len().saturating_sub(self.height);
        page.top = match code {
            KeyCode::Up | KeyCode::Char('k') => page.top.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => page.top + 1,
            KeyCode::PageUp => page.top.saturating_sub(self.height),
            KeyCode::PageDown | KeyCode::Char(' ') => page.top + self.height,
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => last,
            KeyCode::Char('q') => return Wish::Quit,
            _ => {
                self.page = None;
                return Wish::None;
            }
        }
        .min(last);
        Wish::None
    }

    fn command(
        &mut self,
        code: KeyCode,
        control: bool,
        model: &mut TopModel,
    ) -> Result<Wish, ccsd_profile::UpdateError> {
        let last = self.rows.len().saturating_sub(1);
        if self.question.view == TopView::Flame && !control && self.flame.key(code) {
            return Ok(Wish::None);
        }
        match code {
            KeyCode::Char('q') => return Ok(Wish::Quit),
            KeyCode::Up | KeyCode::Char('k') => self.go(self.cursor.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.go(self.cursor + 1),
            KeyCode::PageUp => self.go(self.cursor.saturating_sub(self.height)),
            KeyCode::PageDown => self.go(self.cursor + self.height),
            KeyCode::Home | KeyCode::Char('g') => {
                self.go(0);
                self.moved = false;
            }
            KeyCode::End | KeyCode::Char('G') => self.go(last),
            KeyCode::Char(digit @ '1'..='5') => {
                let at = digit.to_digit(10).map_or(0, |digit| digit as usize - 1);
                self.show(TopView::ALL.get(at).copied().unwrap_or(TopView::Flat));
            }
            KeyCode::Tab => self.turn(1),
            KeyCode::BackTab => self.turn(TopView::ALL.len() - 1),
            KeyCode::Right | KeyCode::Char('l' | '+') => self.fold(Some(true)),
            KeyCode::Left | KeyCode::Char('h' | '-') => self.fold(Some(false)),
            KeyCode::Char('*') => self.unfold_below(model),
            KeyCode::Enter => self.enter(),
            KeyCode::Esc => self.back(),
            KeyCode::Char('o') => {
                self.question.sort = self.question.sort.next(model.frozen().is_some());
                self.go(0);
                self.moved = false;
            }
            KeyCode::Char('/') => self.prompt = Some((Prompt::Filter, self.question.filter.clone())),
            KeyCode::Char('F') => {
                self.question.focus = self.chosen().or(self.question.focus.take());
            }
            KeyCode::Char('H') => {
                self.question.hidden.extend(self.chosen().map(|(function, _)| function));
            }
            KeyCode::Char('p' | ' ') => model.toggle_pause()?,
            KeyCode::Char('i') => model.toggle_last(),
            KeyCode::Char('f') => {
                model.toggle_frozen()?;
                let compares = [TopView::Flat, TopView::Flame].contains(&self.question.view);
                if model.frozen().is_some() {
                    self.show(if compares { self.question.view } else { TopView::Flat });
                } else if self.question.sort == super::rows::Sort::Change {
                    self.question.sort = super::rows::Sort::Own;
                }
            }
            KeyCode::Char('d') => return Ok(Wish::Dump),
            KeyCode::Char('c') => self.crashes(model),
            KeyCode::Char('s') if !control => self.prompt = Some((Prompt::Save, self.file.clone())),
            KeyCode::Char('?') => self.page = Some(help()),
            _ => {}
        }
        Ok(Wish::None)
    }

    fn crashes(&mut self, model: &TopModel) {
        let crashes = model.profile().crashes();
        if crashes.is_empty() {
            self.message = Some("no process has died of a fault".to_owned());
            return;
        }
        let layout = TextLayout { width: None, colour: false };
        let texts = crashes.iter().map(|crash| crash::text(crash, layout));
        let lines = texts.flat_map(|text| text.lines().map(str::to_owned).chain([String::new()]).collect::<Vec<_>>());
        self.page = Some(TextPage { title: "Who died, and where".to_owned(), lines: lines.collect(), top: 0 });
    }

    fn go(&mut self, to: usize) {
        self.cursor = to.min(self.rows.len().saturating_sub(1));
        self.moved = true;
    }

    fn chosen(&self) -> Option<(CostCentreId, String)> {
        if self.question.view == TopView::Flame {
            return self.flame.function();
        }
        self.rows.get(self.cursor).and_then(|row| Some((row.function()?, row.name.clone())))
    }

    fn show(&mut self, view: TopView) {
        if view == TopView::Callers {
            let function = self.chosen().map(|(function, _)| function);
            self.question.looked_at = function.or(self.question.looked_at);
        }
        self.question.view = view;
        (self.cursor, self.top, self.moved) = (0, 0, false);
    }

    fn turn(&mut self, by: usize) {
        let at = TopView::ALL.iter().position(|view| *view == self.question.view).unwrap_or(0);
        self.show(TopView::ALL.get((at + by) % TopView::ALL.len()).copied().unwrap_or(TopView::Flat));
    }

    /// Folds or unfolds; folding what has nothing unfolded goes to the caller.
    fn fold(&mut self, open: Option<bool>) {
        let Some(&TopRow { key: RowKey::Chain(chain, _), open: is, depth, .. }) = self.rows.get(self.cursor) else {
            return;
        };
        let wanted = open.unwrap_or(is != Some(true));
        match is {
            Some(is) if is != wanted => {
                self.moved = true;
                self.question.open.insert(chain, wanted);
            }
            _ if wanted => self.go(self.cursor + 1),
            _ => {
                let above = self.rows.iter().take(self.cursor).rposition(|row| row.depth < depth);
                self.go(above.unwrap_or(self.cursor));
            }
        }
    }

    /// Unfolds everything below, level by level as long as there is something to unfold.
    fn unfold_below(&mut self, model: &TopModel) {
        let Some(&TopRow { depth, .. }) = self.rows.get(self.cursor) else { return };
        self.moved = true;
        loop {
            let below = self.rows.iter().enumerate().skip(self.cursor);
            let below = below.take_while(|(at, row)| *at == self.cursor || row.depth > depth);
            let folded = below.filter_map(|(_, row)| match (&row.key, row.open) {
                (RowKey::Chain(chain, _), Some(false)) => Some((*chain, true)),
                _ => None,
            });
            let folded: Vec<_> = folded.collect();
            let before = self.rows.len();
            if folded.is_empty() {
                return;
            }
            self.question.open.extend(folded);
            self.refresh(model);
            if self.rows.len() == before {
                return;
            }
        }
    }

    fn enter(&mut self) {
        match self.rows.get(self.cursor).map(|row| (row.key.clone(), row.name.clone())) {
            Some((RowKey::Chain(..), _)) => self.fold(None),
            Some((RowKey::Function(_) | RowKey::Neighbour(..), _)) => self.show(TopView::Callers),
            Some((RowKey::Threads(threads), name)) => {
                self.question.threads = Some((threads, name));
                self.show(TopView::Flat);
            }
            Some((RowKey::None, _)) | None => {}
        }
    }

    fn back(&mut self) {
        let is_zoomed = self.question.filter.is_empty() && self.question.view == TopView::Flame;
        if is_zoomed && self.flame.zoom_out() {
            return;
        }
        let question = &mut self.question;
        if !question.filter.is_empty() {
            question.filter.clear();
        } else if question.view == TopView::Callers {
            self.show(TopView::Flat);
        } else if question.focus.is_some() {
            question.focus = None;
        } else if question.hidden.pop().is_none() {
            question.threads = None;
        }
    }
}

fn help() -> TextPage {
    let lines = "\
1 2 3 4 5, Tab    functions; tree; callers and callees; threads; flame graph
up down j k       choose a row (also PgUp, PgDn, Home, End)
right left l h    unfold, fold; * unfolds all below; Enter does either
Enter             a function's callers and callees; only a thread or a process
/                 only names that contain what is typed
F                 only stacks with the chosen function
H                 hide the chosen function: its time counts for its callers
Esc               back: take the last of these back
o                 order by self, total, name, change
p, space          pause: what comes meanwhile is shown afterwards
i                 the last interval only, or everything so far
f                 freeze: compare what comes from now on with what came before
d                 stacks of all threads, now
c                 who died of a fault, and where
s                 save the profile so far
Ctrl-L, Ctrl-Z    draw anew; go to the background
q, Ctrl-C         end, from here, too

In the flame graph
arrows            up to the caller, down to the heaviest callee, beside
Enter, Backspace  zoom into the chosen call; back (also Esc)
/                 search: calls that match stand out, with their share of all time
n N               the next match, the one before
+ and - at a call it grew or shrank since the freeze, by more than chance

self              on top of the stack there: it was running
total             it, or anything that it called
bars              relative to the largest row
colours           red: 10% self or more; yellow: 2% or more
(name)            not active any more: named because it called the next one
change            in points of percent of self; * where chance hardly explains it
line at the top   how many CPUs were busy, interval by interval";
    TextPage { title: "Keys".to_owned(), lines: lines.lines().map(str::to_owned).collect(), top: 0 }
}
