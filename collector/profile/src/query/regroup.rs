//! The same profile with other cost centres: modules, files, groups instead of functions.

use std::str::FromStr;

use super::group::Groups;
use super::lexical::{Definer, Definers, outer};
use crate::gaps::MARK;
use crate::ids::{ContextId, CostCentreId, ImageId, LineId, RouteId, ThreadId};
use crate::limits::Limits;
use crate::model::{CostCentre, Image};
use crate::profile::{Charge, Profile};
use crate::uncertain::Uncertain;
use crate::view::Selection;

/// By what costs are summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// Functions.
    #[default]
    Function,
    /// Functions with the closures and lambdas that are written inside them (Clack, Clayman and Parrott's lexical profile).
    /// Names say where a closure is written, not which function passes it on: its time counts for the former, and one that
    /// calls back through another function stands below that one as a call of its definer.
    Lexical,
    /// Images.
    Module,
    /// The source files in which functions are declared.
    File,
    /// The source line that ran, without its callers.
    Line,
    /// The thread that ran.
    Thread,
    /// The process that ran.
    Process,
    /// Allocation, page faults, kernel, start-up, generated code; and the program and its libraries by image.
    Group,
}

impl By {
    /// All of them.
    pub const ALL: [By; 8] =
        [By::Function, By::Lexical, By::Module, By::File, By::Line, By::Thread, By::Process, By::Group];

    /// What one and what several of its cost centres are called.
    #[must_use]
    pub const fn nouns(self) -> (&'static str, &'static str) {
        match self {
            By::Function | By::Lexical => ("function", "functions"),
            By::Module => ("module", "modules"),
            By::File => ("file", "files"),
            By::Line => ("line", "lines"),
            By::Thread => ("thread", "threads"),
            By::Process => ("process", "processes"),
            By::Group => ("group", "groups"),
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            By::Function => "function",
            By::Lexical => "lexical",
            By::Module => "module",
            By::File => "file",
            By::Line => "line",
            By::Thread => "thread",
            By::Process => "process",
            By::Group => "group",
        }
    }
}

impl FromStr for By {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || By::ALL.map(By::name).join(", ");
        By::ALL.into_iter().find(|by| by.name() == text).ok_or_else(|| format!("{text:?} is none of {}", names()))
    }
}

impl Profile {
    /// The profile with what `by` says as cost centres, for every view and export.
    ///
    /// The active set of a stack is that of the raw stack under these names (I4), so self and inherited are exact, and so
    /// are arcs where there is no mutual recursion. With it, an arc whose true neighbour may be another is marked as
    /// approximate (I6). Totals and the accounting stay (I1).
    ///
    /// [`By::Group`] is less exact: which group a function belongs to depends on its callers, and of a function that was
    /// entered again only the last activation is known. Under mutual recursion a group that an earlier activation belonged to can
    /// be missing from the stack, so all arcs of such stacks are marked.
    #[must_use]
    pub fn by(&self, by: By) -> Profile {
        match by {
            By::Function => self.regrouped(|_, centre| centre.clone()),
            By::Lexical => {
                let definers = Definers::of(self);
                self.regrouped(|id, centre| definer(self, &definers, id, centre))
            }
            By::Module => self.regrouped(|id, _| plain(self.image_name(id).to_owned())),
            By::File => self.regrouped(|id, centre| match &centre.file {
                Some(file) => CostCentre { file: Some(file.clone()), ..plain(file.clone()) },
                None => plain(format!("[no file] {}", self.image_name(id))),
            }),
            By::Line => self.recharged(|new, charge, leaf| {
                let centre = line(self, new, leaf, charge.line);
                new.contexts_mut().push(ContextId::ROOT, centre)
            }),
            By::Thread | By::Process => self.recharged(|new, charge, _| {
                let centre = named(new, &runner(self, by, charge.thread));
                new.contexts_mut().push(ContextId::ROOT, centre)
            }),
            By::Group => {
                let shown = self.named();
                let mut new = self.emptied();
                let root = (ContextId::ROOT, Groups::default());
                let elided = (ContextId::ELIDED, Groups::default());
                let contexts = shown.contexts().replay(root, elided, |_, (parent, mut groups), leaf| {
                    let group = named(&mut new, groups.next(self, leaf));
                    (new.contexts_mut().graft(parent, group), groups)
                });
                let mut uncertain = Uncertain::default();
                let charged = shown.charged();
                let mut recursive = vec![false; new.contexts().len()];
                shown.contexts().visit(|id, entries| {
                    if charged.get(id.index()).is_some_and(|is_charged| *is_charged)
                        && entries.iter().any(|entry| entry & MARK == 0)
                        && let Some(place) = contexts.get(id.index()).and_then(|(id, _)| recursive.get_mut(id.index()))
                    {
                        *place = true;
                    }
                });
                new.contexts().visit(|id, entries| {
                    if recursive.get(id.index()).copied().unwrap_or(false) {
                        for entry in entries.iter().filter(|&&entry| entry & MARK != 0) {
                            uncertain.add(id, CostCentreId(entry & !MARK), true, true);
                        }
                    }
                });
                new.uncertain = uncertain;
                self.charge_to(new, |new, charge| {
                    let &(context, _) = contexts.get(shown.context(charge.context).index())?;
                    Some((context, self.copied_line(new, charge.line), RouteId::EMPTY))
                })
            }
        }
    }

    /// The profile of what is selected alone: hidden functions are gone from its stacks, other stacks and threads from its
    /// charges. Its weights are those of the views of the selection, for every metric; the accounting stays that of the
    /// whole.
    #[must_use]
    pub fn selected(&self, selection: &Selection) -> Profile {
        let shown = self.shown(selection);
        let mut new = self.emptied_with_functions();
        let contexts = shown.remap(&mut new, |function| function);
        let visible = selection.visible(self);
        let routes = self.copied_routes(&mut new, |id| {
            let real = self.real(id);
            let shows = |visible: &Vec<bool>| visible.get(real.index()).copied().unwrap_or(false);
            visible.as_ref().is_none_or(shows).then_some(real)
        });
        new.flags.merges_functions = self.flags.merges_functions;
        let root = new.contexts_mut().push(ContextId::ROOT, CostCentreId::ROOT);
        self.charge_to(new, |new, charge| {
            if !selection.takes_thread(charge.thread) || !shown.counts(charge.context) {
                return None;
            }
            let context = contexts.get(shown.context(charge.context).index()).copied()?;
            let line = self.copied_line(new, shown.line(charge));
            Some((if context == ContextId::ROOT { root } else { context }, line, routes.of(charge.route)))
        })
    }

    /// Every charge at a context of its own choice, given the function that ran.
    fn recharged(&self, mut context: impl FnMut(&mut Profile, &Charge<'_>, CostCentreId) -> ContextId) -> Profile {
        let named = self.named();
        self.charge_to(self.emptied(), |new, charge| {
            let leaf = named.contexts().leaf(named.context(charge.context)).unwrap_or(CostCentreId::ROOT);
            Some((context(new, charge, leaf), self.copied_line(new, charge.line), RouteId::EMPTY))
        })
    }

    /// A profile of the same session, processes and threads, under the same ids, without charges.
    pub(super) fn emptied(&self) -> Profile {
        let mut new = Profile::with_all_metrics(self.session.clone(), Limits::reading());
        for process in self.processes() {
            new.add_process(process.clone());
        }
        for thread in self.threads() {
            new.add_thread(thread.clone());
        }
        new
    }

    /// As [`Profile::emptied`], with its images and functions under the same ids.
    pub(super) fn emptied_with_functions(&self) -> Profile {
        let mut new = self.emptied();
        for image in self.images() {
            new.add_image(image.clone());
        }
        for centre in self.cost_centres() {
            new.add_cost_centre(centre.clone());
        }
        new
    }

    /// Charges everything to `new`; `place` chooses context, line and route.
    pub(super) fn charge_to(
        &self,
        mut new: Profile,
        mut place: impl FnMut(&mut Profile, &Charge<'_>) -> Option<(ContextId, LineId, RouteId)>,
    ) -> Profile {
        self.for_each_charge(|charge| {
            let Some((context, line, route)) = place(&mut new, &charge) else { return };
            new.charge_sums((charge.thread, context, line, route), &charge);
        });
        new.accounting = self.accounting.clone();
        new.crashes.clone_from(&self.crashes);
        new.flags.collecting = false;
        new
    }
}

/// A cost centre that is nothing but a name. (Its image is what it was.)
fn plain(name: String) -> CostCentre {
    let image = ImageId::CCSD;
    CostCentre { image, linkage_name: Some(name), display_name: None, start: None, file: None, line: 0, local: false }
}

/// A cost centre that is in no image of the program.
fn named(new: &mut Profile, name: &str) -> CostCentreId {
    let image = new.add_image(Image { name: "[group]".to_owned(), build_id: Vec::new() });
    new.add_cost_centre(CostCentre { image, ..plain(name.to_owned()) })
}

/// The function that a function is written in; itself where that is not known.
fn definer(profile: &Profile, definers: &Definers<'_>, id: CostCentreId, centre: &CostCentre) -> CostCentre {
    let name = profile.name(id);
    let Some(outer) = outer(&name) else { return centre.clone() };
    match definers.find(centre, outer) {
        // Under its own identity.
        Definer::Sampled(outer) => outer.clone(),
        Definer::Unsampled => {
            // Another file may have a local function of the name.
            CostCentre { file: centre.file.clone(), local: centre.local, ..plain(outer.to_owned()) }
        }
        Definer::Ambiguous => centre.clone(),
    }
}

/// The cost centre of a source line.
fn line(profile: &Profile, new: &mut Profile, leaf: CostCentreId, id: LineId) -> CostCentreId {
    let image = profile.cost_centre(leaf).and_then(|it| profile.image(it.image)).cloned();
    let image = new.add_image(image.unwrap_or_default());
    let line = profile.line(id).filter(|_| id != LineId::UNKNOWN);
    new.add_cost_centre(match line {
        Some(line) => CostCentre {
            image,
            file: Some(line.file.to_string()),
            line: line.line,
            ..plain(format!("{}:{}", line.file, line.line))
        },
        None => CostCentre { image, ..plain(format!("[line not known] {}", profile.name(leaf))) },
    })
}

/// What to call who ran.
fn runner(profile: &Profile, by: By, id: ThreadId) -> String {
    let thread = profile.thread(id);
    let process = thread.and_then(|thread| profile.process(thread.process));
    match (by, thread, process) {
        (By::Thread, Some(thread), _) => format!("{} ({})", thread.name, thread.tid),
        (_, _, Some(process)) => format!("{} ({})", process.name, process.pid),
        _ => "[unknown]".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for by in By::ALL {
            assert_eq!(by.name().parse(), Ok(by));
        }
        assert!("x".parse::<By>().unwrap_err().contains("function, lexical"));
    }
}
