//! Patterns put together: what is asked of a profile, and the [`Selection`] of views that answers it.

use std::collections::HashSet;
use std::str::FromStr;

use super::pattern::{Pattern, PatternError, Subject};
use crate::ids::CostCentreId;
use crate::profile::Profile;
use crate::view::{GraphView, Selection, TreeView};

/// Longest specification read, in bytes: a thousand patterns take some tens of kilobytes.
const SPECIFICATION_BYTES: usize = 1 << 20;

/// Choices of cost centres that serve many programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Hides libraries and the kernel: their own time goes to the program's function that called them, or `[root]`.
    /// Bottom up: which library functions cost.
    Libraries,
    /// `main` and what it calls itself: the phases of the program.
    Phases,
}

/// Which functions are shown, and which stacks count.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// All other functions are hidden.
    pub only: Vec<Pattern>,
    /// These are hidden: what they spend themselves counts for their innermost visible caller (I6).
    pub hide: Vec<Pattern>,
    /// Only stacks with one of these functions count, and only what these threads or processes did.
    pub focus: Vec<Pattern>,
    /// Stacks with one of these functions do not count, nor what these threads or processes did.
    pub ignore: Vec<Pattern>,
    /// More functions for `only`.
    pub preset: Option<Preset>,
}

/// Why a filter cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// No function, thread or process is called so.
    #[error("the profile has no {what} that matches {pattern:?}")]
    NoMatch {
        /// What was looked for.
        what: &'static str,
        /// The pattern.
        pattern: String,
    },
    /// Threads and processes are not on stacks.
    #[error("{pattern:?} is not a function, so it cannot be shown or hidden; use --focus or --ignore")]
    NoFunction {
        /// The pattern.
        pattern: String,
    },
    /// The profile has no function `main`.
    #[error("the profile has no function `main`, whose callees would be the phases")]
    NoMain,
    /// A line of a specification is wrong.
    #[error("line {line}: {why}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
}

impl Filter {
    /// Whether everything is shown and counts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        [&self.only, &self.hide, &self.focus, &self.ignore].iter().all(|patterns| patterns.is_empty())
            && self.preset.is_none()
    }

    /// Adds a specification: lines of `only PATTERN`, `hide PATTERN`, `focus PATTERN`, `ignore PATTERN`; empty lines
    /// and `#` comments are skipped.
    ///
    /// # Errors
    /// [`QueryError::Line`] with the first line that is wrong.
    pub fn add_specification(&mut self, text: &str) -> Result<(), QueryError> {
        let wrong = |line, why: String| QueryError::Line { line, why };
        if text.len() > SPECIFICATION_BYTES {
            return Err(wrong(1, format!("a specification has at most {SPECIFICATION_BYTES} bytes")));
        }
        for (number, line) in (1..).zip(text.lines().map(str::trim)) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let patterns = match word {
                "only" => &mut self.only,
                "hide" => &mut self.hide,
                "focus" => &mut self.focus,
                "ignore" => &mut self.ignore,
                _ => return Err(wrong(number, format!("{word:?} is none of only, hide, focus, ignore"))),
            };
            let pattern = Pattern::from_str(rest.trim());
            patterns.push(pattern.map_err(|error: PatternError| wrong(number, error.to_string()))?);
        }
        Ok(())
    }

    /// Selects from a profile.
    ///
    /// # Errors
    /// [`QueryError::NoMatch`] if a pattern matches nothing; [`QueryError::NoFunction`], [`QueryError::NoMain`].
    pub fn select(&self, profile: &Profile) -> Result<Selection, QueryError> {
        let mut selection = Selection::all();
        for pattern in &self.only {
            selection = selection.only(functions(pattern, profile)?);
        }
        for pattern in &self.hide {
            selection = selection.hide(functions(pattern, profile)?);
        }
        for pattern in &self.focus {
            selection = match pattern.threads(profile) {
                Some(threads) => selection.threads(found(threads, pattern)?),
                None => selection.focus(functions(pattern, profile)?),
            };
        }
        for pattern in &self.ignore {
            selection = match pattern.threads(profile) {
                Some(threads) => selection.ignore_threads(found(threads, pattern)?),
                None => selection.ignore(functions(pattern, profile)?),
            };
        }
        Ok(match self.preset {
            None => selection,
            Some(Preset::Libraries) => selection.only(libraries(profile)),
            Some(Preset::Phases) => selection.only(phases(profile)?),
        })
    }
}

fn functions(pattern: &Pattern, profile: &Profile) -> Result<Vec<CostCentreId>, QueryError> {
    match pattern.subject() {
        subject if subject.is_runner() => Err(QueryError::NoFunction { pattern: pattern.text().to_owned() }),
        _ => found(pattern.functions(profile), pattern),
    }
}

fn found<T>(items: Vec<T>, pattern: &Pattern) -> Result<Vec<T>, QueryError> {
    if !items.is_empty() {
        return Ok(items);
    }
    let what = match pattern.subject() {
        Subject::Name => "function",
        Subject::Module => "module",
        Subject::File => "function of a file",
        Subject::Thread => "thread",
        Subject::Process => "process",
        Subject::Unit => "unit",
        Subject::Container => "container",
        Subject::User => "user",
    };
    Err(QueryError::NoMatch { what, pattern: pattern.text().to_owned() })
}

fn ids(profile: &Profile) -> impl Iterator<Item = CostCentreId> {
    (0u32..).map(CostCentreId::new).take(profile.cost_centres().len())
}

fn libraries(profile: &Profile) -> Vec<CostCentreId> {
    let is_library = |id| {
        let name = profile.image_name(id);
        name.starts_with('[') || name.ends_with(".so") || name.contains(".so.")
    };
    ids(profile).filter(|&id| is_library(id)).collect()
}

fn phases(profile: &Profile) -> Result<Vec<CostCentreId>, QueryError> {
    let graph = GraphView::new(profile, &Selection::all());
    let is_main = |name: &str| matches!(name, "main" | "main.main") || name.ends_with("::main");
    let mains: Vec<_> = graph.nodes.iter().filter(|node| is_main(&node.name)).collect();
    // A Rust program has `main` and `program::main`, a Go program `runtime.main` and `main.main`: the innermost counts.
    let tree = TreeView::new(profile, &Selection::all());
    let mut above = vec![false; tree.nodes.len()];
    let mut outer: HashSet<CostCentreId> = HashSet::new();
    let functions: HashSet<CostCentreId> = mains.iter().map(|node| node.function).collect();
    let is_one = |function| functions.contains(&function);
    // Callers come before callees; from the last on, each tells its caller whether another main is below.
    for (at, node) in tree.nodes.iter().enumerate().rev() {
        let below = above.get(at).copied().unwrap_or(false);
        if below && is_one(node.function) {
            outer.insert(node.function);
        }
        if let Some(place) = node.parent.and_then(|parent| above.get_mut(parent)) {
            *place |= below || is_one(node.function);
        }
    }
    let chosen: Vec<_> = mains.iter().copied().filter(|node| !outer.contains(&node.function)).collect();
    if chosen.is_empty() {
        return Err(QueryError::NoMain);
    }
    Ok(chosen.iter().flat_map(|node| node.callees.iter().map(|arc| arc.function).chain([node.function])).collect())
}
