//! Flame graphs in columns of text: `ccsd report --flame`, and the flame graph of `ccsd top`.
//!
//! [`FlameTree`] holds the calls, [`FlameTree::layout`] gives each the columns that its weight fills, and [`text_row`]
//! writes
//! the names. Callers stand above callees, the heaviest first. Calls of less than a column are counted, not drawn.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use ccsd_profile::origin::{Origin, Origins, is_generated};
use ccsd_profile::view::{DiffTree, Selection, Total, TreeView};
use ccsd_profile::{CostCentreId, Profile, sanitise};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOrigin {
    Own,
    Library,
    Kernel,
    Generated,
    Special,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShareChange {
    /// From -1 to 1.
    pub share: f64,
    pub significant: bool,
}

#[derive(Debug)]
struct FlameFunction {
    /// In a difference, functions have no number.
    id: Option<CostCentreId>,
    image: String,
    module: CallOrigin,
}

#[derive(Debug)]
pub struct FlameCall {
    pub parent: Option<usize>,
    /// The heaviest first.
    pub children: Vec<usize>,
    /// With all that it calls.
    pub weight: u64,
    pub own: u64,
    pub samples: u64,
    /// Weight of the children that the view has left out, and how many they are.
    other: (u64, usize),
    pub change: Option<ShareChange>,
    function: usize,
    /// Hash of the functions from the root to this one. Identifies the call in later trees of the same profile.
    pub chain: u64,
}

#[derive(Debug)]
enum LabelSource {
    One(TreeView),
    Two(DiffTree),
}

#[derive(Debug)]
pub struct FlameTree {
    labels: LabelSource,
    functions: Vec<FlameFunction>,
    pub calls: Vec<FlameCall>,
    roots: Vec<usize>,
    other: (u64, usize),
    pub total: Total,
    /// Calls of functions that are searched for; empty without a search.
    matches: Vec<bool>,
    /// Weight of all stacks with such a function.
    pub matched_weight: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Call(usize),
    Narrow(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub content: Content,
    pub from: usize,
    /// The column behind the last one; a span has at least one.
    pub to: usize,
}

#[derive(Clone, Debug, Default)]
pub struct FlameLayout {
    /// From the root down.
    pub rows: Vec<Vec<Span>>,
    pub columns: usize,
    pub drawn: usize,
    pub hidden: usize,
}

fn chain(above: u64, entry: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    (above, entry).hash(&mut hasher);
    hasher.finish()
}

impl FlameTree {
    pub fn new(profile: &Profile, selection: &Selection, least: f64) -> FlameTree {
        FlameTree::from_view(TreeView::top_down(profile, selection, least), profile)
    }

    pub fn from_view(view: TreeView, profile: &Profile) -> FlameTree {
        let origins = Origins::of(profile);
        let mut numbers: HashMap<CostCentreId, usize> = HashMap::new();
        let mut functions = Vec::new();
        let mut calls: Vec<FlameCall> = Vec::with_capacity(view.nodes.len());
        for node in &view.nodes {
            let function = *numbers.entry(node.function).or_insert_with(|| {
                let image = profile.image_name(node.function);
                let module = match origins.get(node.function) {
                    Origin::Special => CallOrigin::Special,
                    _ if image.starts_with("[kernel") => CallOrigin::Kernel,
                    _ if is_generated(&image) => CallOrigin::Generated,
                    Origin::Own => CallOrigin::Own,
                    _ => CallOrigin::Library,
                };
                functions.push(FlameFunction { id: Some(node.function), image: sanitise(&image).into_owned(), module });
                functions.len() - 1
            });
            let above = node.parent.and_then(|parent| calls.get(parent)).map_or(0, |call| call.chain);
            calls.push(FlameCall {
                parent: node.parent,
                children: node.children.clone(),
                weight: node.weight,
                own: node.self_weight,
                samples: node.samples,
                other: (node.other.weight, node.other.nodes),
                change: None,
                function,
                chain: chain(above, (node.function, node.marked)),
            });
        }
        let (roots, other, total) = (view.roots.clone(), (view.other.weight, view.other.nodes), view.total);
        FlameTree::sorted(LabelSource::One(view), functions, calls, (roots, other), total)
    }

    /// The calls of the second of two profiles, and how their shares differ from those in the first.
    pub fn difference(before: &Profile, after: &Profile, selection: &Selection) -> FlameTree {
        let view = DiffTree::new((before, selection), (after, selection), 0.0);
        let functions = view.functions.iter().map(|function| FlameFunction {
            id: None,
            image: sanitise(&function.image).into_owned(),
            module: CallOrigin::Library,
        });
        let functions = functions.collect();
        let mut calls: Vec<FlameCall> = Vec::with_capacity(view.nodes.len());
        for node in &view.nodes {
            let above = node.parent.and_then(|parent| calls.get(parent)).map_or(0, |call| call.chain);
            calls.push(FlameCall {
                parent: node.parent,
                children: node.children.clone(),
                weight: node.after.weight,
                own: node.after.self_weight,
                samples: node.after.samples,
                other: (node.other.after, node.other.nodes),
                change: Some(ShareChange { share: node.change, significant: node.significant }),
                function: node.function,
                chain: chain(above, (view.functions.get(node.function), node.marked)),
            });
        }
        let (roots, other, total) = (view.roots.clone(), (view.other.after, view.other.nodes), view.after);
        FlameTree::sorted(LabelSource::Two(view), functions, calls, (roots, other), total)
    }

    fn sorted(
        labels: LabelSource,
        functions: Vec<FlameFunction>,
        mut calls: Vec<FlameCall>,
        (mut roots, other): (Vec<usize>, (u64, usize)),
        total: Total,
    ) -> FlameTree {
        let weights: Vec<u64> = calls.iter().map(|call| call.weight).collect();
        let sort = |list: &mut Vec<usize>| {
            list.sort_by_key(|&at| std::cmp::Reverse(weights.get(at).copied().unwrap_or(0)));
        };
        calls.iter_mut().for_each(|call| sort(&mut call.children));
        sort(&mut roots);
        FlameTree { labels, functions, calls, roots, other, total, matches: Vec::new(), matched_weight: 0 }
    }

    fn call(&self, at: usize) -> Option<&FlameCall> {
        self.calls.get(at)
    }

    fn function_of(&self, at: usize) -> Option<&FlameFunction> {
        self.functions.get(self.call(at)?.function)
    }

    /// The name of a call's function, safe to print: in parentheses if entered again further in, after `[...]` or `~`
    /// if uncertain.
    pub fn label(&self, at: usize) -> String {
        let label = match &self.labels {
            LabelSource::One(view) => view.nodes.get(at).map(|node| view.label(node)),
            LabelSource::Two(view) => view.nodes.get(at).map(|node| view.label(node)),
        };
        sanitise(&label.unwrap_or_default()).into_owned()
    }

    /// The share of a call in percent of the whole, and in a difference by how many points it has changed.
    fn share_text(&self, at: usize) -> String {
        let Some(call) = self.call(at) else { return String::new() };
        let share = 100.0 * call.weight as f64 / self.total.weight.max(1) as f64;
        match call.change {
            Some(ShareChange { share: change, .. }) => format!("  {share:.1}% {:+.1}", 100.0 * change),
            None => format!("  {share:.1}%"),
        }
    }

    pub fn image(&self, at: usize) -> &str {
        self.function_of(at).map_or("", |function| &function.image)
    }

    pub fn module(&self, at: usize) -> CallOrigin {
        self.function_of(at).map_or(CallOrigin::Special, |function| function.module)
    }

    pub fn function(&self, at: usize) -> Option<CostCentreId> {
        self.function_of(at)?.id
    }

    pub fn find(&self, chain: u64) -> Option<usize> {
        self.calls.iter().position(|call| call.chain == chain)
    }

    /// From the root to a call.
    pub fn path_to(&self, at: usize) -> Vec<usize> {
        let mut path: Vec<usize> = std::iter::successors(Some(at), |&at| self.call(at)?.parent).collect();
        path.reverse();
        path
    }

    /// Searches the functions. `is_meant` is asked once for each, with its number (but of a difference) and its name.
    pub fn search(&mut self, is_meant: impl Fn(Option<CostCentreId>, &str) -> bool) {
        let mut known: Vec<Option<bool>> = vec![None; self.functions.len()];
        let mut matches = Vec::with_capacity(self.calls.len());
        // Whether a call, or one above it, matches: a stack counts once.
        let mut covered: Vec<bool> = Vec::with_capacity(self.calls.len());
        let mut weight = 0u64;
        for (at, call) in self.calls.iter().enumerate() {
            let name = || match &self.labels {
                LabelSource::One(view) => view.nodes.get(at).map(|node| view.name(node).into_owned()),
                LabelSource::Two(view) => view.labels.get(call.function).cloned(),
            };
            let is_match = match known.get_mut(call.function) {
                Some(known) => *known.get_or_insert_with(|| is_meant(self.function(at), &name().unwrap_or_default())),
                None => false,
            };
            let above = call.parent.is_some_and(|parent| covered.get(parent).copied().unwrap_or(false));
            if is_match && !above {
                weight = weight.saturating_add(call.weight);
            }
            covered.push(is_match || above);
            matches.push(is_match);
        }
        (self.matches, self.matched_weight) = (matches, weight);
    }

    pub fn is_match(&self, at: usize) -> bool {
        self.matches.get(at).copied().unwrap_or(false)
    }

    /// The columns of each call, where `zoom` (or all of it) fills `columns`.
    pub fn layout(&self, zoom: Option<usize>, columns: usize) -> FlameLayout {
        let zoom = zoom.and_then(|at| Some((at, self.call(at)?)));
        let whole = zoom.map_or(self.total.weight, |(_, call)| call.weight);
        let mut layout = FlameLayout { columns, ..FlameLayout::default() };
        if whole == 0 || columns == 0 {
            return layout;
        }
        let scale = ColumnScale { whole, columns };
        let only = zoom.map(|(at, _)| vec![at]);
        let mut row = Vec::new();
        match &only {
            Some(only) => self.place(only, (0, 0), 0, scale, &mut row),
            None => self.place(&self.roots, self.other, 0, scale, &mut row),
        }
        while !row.is_empty() {
            let mut next = Vec::new();
            for (span, start) in &row {
                if let Content::Call(at) = span.content
                    && let Some(call) = self.call(at)
                {
                    layout.drawn += 1;
                    self.place(&call.children, call.other, *start, scale, &mut next);
                }
            }
            layout.rows.push(row.into_iter().map(|(span, _)| span).collect());
            row = next;
        }
        let all = match zoom {
            None => self.calls.iter().map(|call| call.other.1).sum::<usize>() + self.other.1 + self.calls.len(),
            Some((zoom, _)) => {
                let mut within = vec![false; self.calls.len()];
                let mut all = 0;
                for (at, call) in self.calls.iter().enumerate().skip(zoom) {
                    let is_within =
                        at == zoom || call.parent.is_some_and(|parent| within.get(parent).copied().unwrap_or(false));
                    if let Some(within) = within.get_mut(at).filter(|_| is_within) {
                        *within = true;
                        all += 1 + call.other.1;
                    }
                }
                all
            }
        };
        layout.hidden = all.saturating_sub(layout.drawn);
        layout
    }

    fn place(&self, list: &[usize], other: (u64, usize), start: u64, scale: ColumnScale, row: &mut Vec<(Span, u64)>) {
        let mut offset = start;
        let mut calls = list.iter().filter_map(|&at| Some((at, self.call(at)?))).peekable();
        while let Some((at, call)) = calls.next_if(|(_, call)| scale.is_visible(call.weight)) {
            let end = offset.saturating_add(call.weight);
            row.push((Span { content: Content::Call(at), from: scale.column(offset), to: scale.column(end) }, offset));
            offset = end;
        }
        // The lightest come last.
        let (mut weight, mut narrow) = other;
        for (_, call) in calls {
            weight = weight.saturating_add(call.weight);
            narrow += 1;
        }
        let (from, to) = (scale.column(offset), scale.column(offset.saturating_add(weight)));
        if to > from {
            row.push((Span { content: Content::Narrow(narrow), from, to }, offset));
        }
    }
}

#[derive(Clone, Copy)]
struct ColumnScale {
    whole: u64,
    columns: usize,
}

impl ColumnScale {
    /// The column where a weight from the left ends, rounded: spans that follow each other share their edge.
    fn column(self, weight: u64) -> usize {
        let (weight, whole) = (u128::from(weight.min(self.whole)), u128::from(self.whole));
        ((2 * weight * self.columns as u128 + whole) / (2 * whole)) as usize
    }

    fn is_visible(self, weight: u64) -> bool {
        u128::from(weight) * self.columns as u128 >= u128::from(self.whole)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Borders {
    call: char,
    narrow: char,
    grown: char,
    shrunk: char,
    cut: char,
}

impl Borders {
    pub const UNICODE: Borders =
        Borders { call: '\u{2502}', narrow: '\u{2506}', grown: '+', shrunk: '-', cut: '\u{2026}' };
    pub const ASCII: Borders = Borders { call: '|', narrow: ':', grown: '+', shrunk: '-', cut: '~' };

    pub fn new(unicode: bool) -> Borders {
        if unicode { Borders::UNICODE } else { Borders::ASCII }
    }

    /// The border on the left of a span. In a difference it says what has changed, colour or not.
    fn of(self, tree: &FlameTree, span: Span) -> char {
        let Content::Call(at) = span.content else { return self.narrow };
        match tree.call(at).and_then(|call| call.change) {
            Some(ShareChange { significant: true, share }) if share > 0.0 => self.grown,
            Some(ShareChange { significant: true, .. }) => self.shrunk,
            _ => self.call,
        }
    }
}

pub struct RowPiece {
    pub text: String,
    /// `None` of what lies between calls.
    pub span: Option<Span>,
}

/// A row as text, in one column more than its layout: the last call has a border on its right.
pub fn text_row(tree: &FlameTree, row: &[Span], borders: Borders, unicode: bool) -> Vec<RowPiece> {
    let mut pieces: Vec<RowPiece> = Vec::new();
    let mut column = 0;
    for (number, &span) in row.iter().enumerate() {
        if span.from > column {
            pieces.push(RowPiece { text: " ".repeat(span.from - column), span: None });
        }
        let name = match span.content {
            Content::Call(at) => tree.label(at),
            Content::Narrow(calls) => format!("[{calls} more]"),
        };
        let name = if unicode { name } else { ascii(&name) };
        let room = (span.to - span.from).saturating_sub(1);
        let mut text = String::from(borders.of(tree, span));
        text.push_str(&cut_end(&name, room, borders.cut));
        if let Content::Call(at) = span.content {
            let share = tree.share_text(at);
            if name.width() + share.len() <= room {
                text.push_str(&share);
            }
        }
        text.push_str(&" ".repeat((room + 1).saturating_sub(text.width())));
        pieces.push(RowPiece { text, span: Some(span) });
        column = span.to;
        if row.get(number + 1).is_none_or(|next| next.from > column) {
            pieces.push(RowPiece { text: borders.call.to_string(), span: None });
            column += 1;
        }
    }
    pieces
}

/// The beginning of a name in at most `room` columns.
fn cut_end(name: &str, room: usize, mark: char) -> String {
    if name.width() <= room {
        return name.to_owned();
    }
    // Two letters and a mark say nothing.
    if room < 4 {
        return String::new();
    }
    let mut used = 0;
    let fits = |c: &char| {
        used += c.width().unwrap_or(0);
        used < room
    };
    let mut text: String = name.chars().take_while(fits).collect();
    text.push(mark);
    text
}

/// Text for a terminal that has no other characters.
fn ascii(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::TestProfile;

    fn tree(source: &TestProfile) -> FlameTree {
        FlameTree::new(&source.profile, &Selection::all(), 0.0)
    }

    fn lines(tree: &FlameTree, zoom: Option<usize>, columns: usize, unicode: bool) -> Vec<String> {
        let layout = tree.layout(zoom, columns);
        let text = |row: &Vec<Span>| {
            text_row(tree, row, Borders::new(unicode), unicode).into_iter().map(|piece| piece.text).collect::<String>()
        };
        layout.rows.iter().map(text).collect()
    }

    fn program() -> TestProfile {
        let mut source = TestProfile::new();
        source.charge(&["main", "parse", "read"], 50);
        source.charge(&["main", "parse"], 10);
        source.charge(&["main", "write"], 30);
        source.charge(&["main", "rare"], 1);
        source.charge(&["main", "seldom"], 1);
        source.charge(&["main"], 8);
        source
    }

    #[test]
    fn columns_are_in_proportion_and_what_is_narrow_is_counted() {
        let tree = tree(&program());
        assert_eq!(
            lines(&tree, None, 40, false),
            [
                "|main  100.0%                           |",
                "|parse  60.0%           |write      :|",
                "|read  50.0%        |",
            ]
        );
        let layout = tree.layout(None, 40);
        assert_eq!((layout.drawn, layout.hidden), (4, 2));
        let all: Vec<(usize, usize)> = layout.rows[1].iter().map(|span| (span.from, span.to)).collect();
        assert_eq!(all, [(0, 24), (24, 36), (36, 37)]);
        assert_eq!(layout.rows[1][2].content, Content::Narrow(2));
        // Wide enough, each has its place.
        let layout = tree.layout(None, 200);
        assert_eq!((layout.drawn, layout.hidden), (6, 0));
    }

    #[test]
    fn a_zoomed_call_fills_the_width() {
        let tree = tree(&program());
        let parse = (0..tree.calls.len()).find(|&at| tree.label(at) == "parse").unwrap();
        assert_eq!(
            lines(&tree, Some(parse), 30, true),
            ["\u{2502}parse  60.0%                 \u{2502}", "\u{2502}read  50.0%             \u{2502}",]
        );
        let layout = tree.layout(Some(parse), 30);
        assert_eq!((layout.drawn, layout.hidden), (2, 0));
        assert_eq!(tree.path_to(parse).len(), 2);
        assert_eq!(tree.find(tree.calls[parse].chain), Some(parse));
    }

    #[test]
    fn a_stack_with_a_match_counts_once() {
        let mut source = program();
        // An unmarked entry of main comes first here: it is the same stack.
        source.charge(&["main", "read", "main", "write"], 100);
        let mut tree = tree(&source);
        let search = |tree: &mut FlameTree, part: &str| {
            let part = part.to_owned();
            tree.search(|_, name| name.contains(&part));
            tree.matched_weight / 1_000_000
        };
        let focused = |name: &str| {
            let function = source.profile.cost_centres().iter().position(|it| it.linkage_name.as_deref() == Some(name));
            let function = CostCentreId::new(u32::try_from(function.unwrap()).unwrap());
            Total::of(&source.profile, &Selection::all().focus([function])).weight / 1_000_000
        };
        for name in ["main", "parse", "read", "write", "rare"] {
            assert_eq!(search(&mut tree, name), focused(name), "{name}");
        }
        assert_eq!(search(&mut tree, "r"), 50 + 10 + 30 + 1 + 100);
        assert_eq!(search(&mut tree, "nothing"), 0);
    }

    #[test]
    fn hostile_names_keep_the_columns() {
        let mut source = TestProfile::new();
        let combining = "e\u{301}".repeat(50);
        let wide = "\u{65e5}\u{672c}".repeat(50);
        let long = "x".repeat(100_000);
        source.charge(&["\x1b[31mred\x07\n", "\u{202e}right", &combining], 3);
        source.charge(&["\x1b[31mred\x07\n", &wide, &long], 2);
        let tree = tree(&source);
        for columns in [1, 2, 3, 7, 40, 200] {
            for unicode in [true, false] {
                for line in lines(&tree, None, columns, unicode) {
                    assert!(line.width() <= columns + 1, "{columns}: {line:?}");
                    assert!(!line.contains(['\x1b', '\x07', '\n', '\u{202e}']), "{line:?}");
                    assert!(unicode || line.is_ascii(), "{line:?}");
                }
            }
        }
    }

    #[test]
    fn deep_stacks_and_none_at_all() {
        let mut source = TestProfile::new();
        let empty = tree(&source);
        assert!(empty.layout(None, 80).rows.is_empty());
        let names: Vec<String> = (0..2_000).map(|i| format!("f{i}")).collect();
        source.charge(&names.iter().map(String::as_str).collect::<Vec<_>>(), 1);
        let tree = tree(&source);
        let layout = tree.layout(None, 80);
        assert_eq!((layout.rows.len(), layout.drawn, layout.hidden), (2_000, 2_000, 0));
        assert!(tree.layout(None, 0).rows.is_empty());
    }

    #[test]
    fn a_difference_has_the_weights_of_the_second() {
        let (mut before, mut after) = (TestProfile::new(), TestProfile::new());
        before.charge(&["main", "old"], 5_000);
        before.charge(&["main", "same"], 5_000);
        after.charge(&["main", "new"], 5_000);
        after.charge(&["main", "same"], 5_000);
        let tree = FlameTree::difference(&before.profile, &after.profile, &Selection::all());
        let rows = lines(&tree, None, 40, false);
        assert_eq!(rows[0], "|main  100.0% +0.0                      |");
        assert!(
            rows[1].contains("+new  50.0% +50.0") && rows[1].contains("|same") && !rows[1].contains("old"),
            "{rows:?}"
        );
        assert_eq!(tree.layout(None, 40).hidden, 1);
        assert!(tree.calls.iter().all(|call| call.change.is_some()));
    }
}
