//! The same profile with other cost centres: modules, files, groups instead of functions.

use std::str::FromStr;

use hashbrown::{HashMap, HashSet};

use super::group::Groups;
use super::lexical::{Definer, Definers, outer};
use crate::context::ContextTable;
use crate::ids::{ContextId, CostCentreId, ImageId, LineId, RouteId, ThreadId};
use crate::model::{CostCentre, Image, Membership, Process};
use crate::profile::{Charge, NOT_SAMPLED, Profile};
use crate::remap::remap_by_callers;
use crate::view::{Matching, Selection};

/// By what costs are summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grouping {
    /// Functions.
    #[default]
    Function,
    /// Functions with the closures written inside them (Clack, Clayman and Parrott's lexical profile): a closure counts
    /// for its definer, not for the function it is passed to.
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
    /// The systemd unit of the process that ran.
    Unit,
    /// Its container.
    Container,
    /// Its user.
    User,
    /// Allocation, page faults, kernel, start-up, generated code; and the program and its libraries by image.
    Group,
}

impl Grouping {
    /// All of them.
    pub const ALL: [Grouping; 11] = [
        Grouping::Function,
        Grouping::Lexical,
        Grouping::Module,
        Grouping::File,
        Grouping::Line,
        Grouping::Thread,
        Grouping::Process,
        Grouping::Unit,
        Grouping::Container,
        Grouping::User,
        Grouping::Group,
    ];

    /// What one and what several of its cost centres are called.
    #[must_use]
    pub const fn nouns(self) -> (&'static str, &'static str) {
        match self {
            Grouping::Function | Grouping::Lexical => ("function", "functions"),
            Grouping::Module => ("module", "modules"),
            Grouping::File => ("file", "files"),
            Grouping::Line => ("line", "lines"),
            Grouping::Thread => ("thread", "threads"),
            Grouping::Process => ("process", "processes"),
            Grouping::Unit => ("unit", "units"),
            Grouping::Container => ("container", "containers"),
            Grouping::User => ("user", "users"),
            Grouping::Group => ("group", "groups"),
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Grouping::Function => "function",
            Grouping::Lexical => "lexical",
            Grouping::Module => "module",
            Grouping::File => "file",
            Grouping::Line => "line",
            Grouping::Thread => "thread",
            Grouping::Process => "process",
            Grouping::Unit => "unit",
            Grouping::Container => "container",
            Grouping::User => "user",
            Grouping::Group => "group",
        }
    }
}

impl FromStr for Grouping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Grouping::ALL.map(Grouping::name).join(", ");
        Grouping::ALL.into_iter().find(|by| by.name() == text).ok_or_else(|| format!("{text:?} is none of {}", names()))
    }
}

impl Profile {
    /// The profile with `by`'s groups as cost centres, for every view and export.
    ///
    /// Self and inherited are exact (I4), and so are arcs without mutual recursion; others are marked as approximate
    /// (I6). Totals and the accounting stay (I1). [`Grouping::Group`] depends on callers, so with mutual recursion a
    /// group of an earlier activation may be missing, and all arcs of such stacks are marked.
    #[must_use]
    pub fn by(&self, by: Grouping) -> Profile {
        match by {
            Grouping::Function => self.regrouped(|_, centre| centre.clone()),
            Grouping::Lexical => {
                let definers = Definers::of(self);
                self.regrouped(|id, centre| definer(self, &definers, id, centre))
            }
            Grouping::Module => self.regrouped(|id, _| plain(self.image_name(id).into_owned())),
            Grouping::File => self.regrouped(|id, centre| match &centre.file {
                Some(file) => CostCentre { file: Some(file.clone()), ..plain(file.clone()) },
                None => plain(format!("[no file] {}", self.image_name(id))),
            }),
            Grouping::Line => self.recharged(|new, charge, leaf| {
                let centre = line(self, new, leaf, charge.line);
                new.contexts_mut().push(ContextId::ROOT, centre)
            }),
            Grouping::Thread | Grouping::Process | Grouping::Unit | Grouping::Container | Grouping::User => {
                let shared = labels_of_several(self, by);
                self.recharged(|new, charge, _| {
                    let centre = named(new, &runner(self, by, charge.thread, &shared));
                    new.contexts_mut().push(ContextId::ROOT, centre)
                })
            }
            Grouping::Group => {
                let all = Selection::all();
                let walk = self.walk(&all);
                let mut new = self.emptied();
                let mut contexts = std::mem::replace(&mut new.contexts, ContextTable::new(0));
                let group = |mut groups: Groups, function| {
                    let group = named(&mut new, &groups.next(self, function));
                    (groups, group)
                };
                let (places, uncertain) = remap_by_callers(&walk.contexts(), &mut contexts, Groups::default(), group);
                (new.contexts, new.uncertain) = (contexts, uncertain);
                walk.charge_to(new, |new, context, charge| {
                    let context = places.get(context.index())?.context;
                    Some((context, self.copied_line(new, charge.line), RouteId::EMPTY))
                })
            }
        }
    }

    /// The profile of the selection alone. Its weights are those of the views of the selection; the accounting stays.
    #[must_use]
    pub fn selected(&self, selection: &Selection) -> Profile {
        self.walk(selection).remap(self.emptied_with_functions(), |function| function, None)
    }

    /// The same profile with other functions: `group` says which one stands for each. Self and inherited weights are
    /// those of the stacks with every function replaced (I6); a module, a file, the function that defines a closure. Arcs
    /// are, too, where there is no mutual recursion; where there is, a history does not say what stood between two functions
    /// that are now one, and arcs that may be others are marked as approximate.
    #[must_use]
    pub fn regrouped(&self, mut group: impl FnMut(CostCentreId, &CostCentre) -> CostCentre) -> Profile {
        self.with_functions(|id, centre| match centre.image {
            ImageId::CCSD => centre.clone(),
            image => CostCentre { image, ..group(id, centre) },
        })
    }

    /// The profile with all cost centres that are one to `matching` as one: the first of them.
    pub(crate) fn with_namesakes_as_one(&self, matching: &Matching) -> Profile {
        let first = self.namesakes(matching);
        self.with_functions(|id, centre| {
            let first = first.get(id.index()).and_then(|&first| self.cost_centre(first));
            first.unwrap_or(centre).clone()
        })
    }

    /// Whether `matching` equates several cost centres: instances of a generic, or two builds of a library.
    pub(crate) fn has_namesakes(&self, matching: &Matching) -> bool {
        self.namesakes(matching).iter().zip(0..).any(|(&first, id)| first != self.real(CostCentreId(id)))
    }

    /// Of each cost centre, the first one that is the same to `matching`.
    fn namesakes(&self, matching: &Matching) -> Vec<CostCentreId> {
        let mut first = HashMap::new();
        (0..self.cost_centres().len() as u32)
            .map(|id| self.real(CostCentreId(id)))
            .map(|id| *first.entry(matching.function(self, id)).or_insert(id))
            .collect()
    }

    /// The profile with the function that `new_function` returns for each, which is in an image of this profile.
    fn with_functions(&self, mut new_function: impl FnMut(CostCentreId, &CostCentre) -> CostCentre) -> Profile {
        let mut new = self.emptied();
        let mut known = HashSet::new();
        let functions: Vec<CostCentreId> = (0..)
            .map(CostCentreId)
            .zip(self.cost_centres())
            .map(|(id, centre)| match self.real(id) == id {
                true => new.add_cost_centre(new_function(id, centre)),
                false => CostCentreId::ELIDED,
            })
            .collect();
        let mut real = (0..).map(CostCentreId).zip(&functions).filter(|(id, _)| self.real(*id) == *id);
        new.flags.merges_functions = !real.all(|(_, function)| known.insert(*function));
        let function = |id: CostCentreId| functions.get(id.index()).copied().unwrap_or(CostCentreId::ELIDED);
        self.walk(&Selection::all()).remap(new, function, None)
    }

    /// Every charge at a context of its own choice, given the function that ran.
    fn recharged(&self, mut context: impl FnMut(&mut Profile, &Charge<'_>, CostCentreId) -> ContextId) -> Profile {
        let all = Selection::all();
        let walk = self.walk(&all);
        walk.charge_to(self.emptied(), |new, shown, charge| {
            let leaf = walk.table().leaf(shown).unwrap_or(CostCentreId::ROOT);
            Some((context(new, charge, leaf), self.copied_line(new, charge.line), RouteId::EMPTY))
        })
    }

    /// As [`Profile::emptied`], with its functions under the same ids.
    pub(super) fn emptied_with_functions(&self) -> Profile {
        let mut new = self.emptied();
        for centre in self.cost_centres() {
            new.add_cost_centre(centre.clone());
        }
        new
    }
}

fn plain(name: String) -> CostCentre {
    let image = ImageId::CCSD;
    CostCentre::named(image, name)
}

fn named(new: &mut Profile, name: &str) -> CostCentreId {
    let image = new.add_image(Image { name: "[group]".to_owned(), build_id: Vec::new() });
    new.add_cost_centre(CostCentre { image, ..plain(name.to_owned()) })
}

/// The function that a function is written in; itself where that is not known.
fn definer(profile: &Profile, definers: &Definers<'_>, id: CostCentreId, centre: &CostCentre) -> CostCentre {
    let name = profile.name(id);
    let Some(outer) = outer(&name) else { return centre.clone() };
    match definers.find(centre, outer) {
        Definer::Sampled(outer) => outer.clone(),
        Definer::Unsampled => {
            // Another file may have a local function of the name.
            CostCentre { file: centre.file.clone(), local: centre.local, ..plain(outer.to_owned()) }
        }
        Definer::Ambiguous => centre.clone(),
    }
}

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

/// What threads and processes are called that have had their numbers and names from several users, one after the other.
fn labels_of_several(profile: &Profile, by: Grouping) -> HashSet<String> {
    let mut owners: HashMap<String, Vec<(u64, u32)>> = HashMap::new();
    let mut shared = HashSet::new();
    if !matches!(by, Grouping::Thread | Grouping::Process) {
        return shared;
    }
    for thread in profile.threads() {
        let Some(process) = profile.process(thread.process) else { continue };
        let Some(user) = process.membership.as_deref().and_then(|membership| membership.uid) else { continue };
        let label = if by == Grouping::Thread { thread.label() } else { process.label() };
        let owners = owners.entry(label.clone()).or_default();
        let owner = (process.start_time, user);
        // One process may change its user.
        if owners.iter().any(|&(began, other)| other != user && began != process.start_time) {
            shared.insert(label);
        } else if !owners.contains(&owner) {
            owners.push(owner);
        }
    }
    shared
}

fn runner(profile: &Profile, by: Grouping, id: ThreadId, shared: &HashSet<String>) -> String {
    let thread = profile.thread(id);
    let process = thread.and_then(|thread| profile.process(thread.process));
    let membership = process.and_then(|process| process.membership.as_deref());
    let is_unknown = |process: &&Process| process.pid == 0 && process.name == NOT_SAMPLED && membership.is_none();
    let of_user = |label: String| match shared.contains(&label) {
        true => format!("{label} of {}", membership.map_or_else(|| Membership::UNKNOWN.to_owned(), Membership::user)),
        false => label,
    };
    match (by, thread, process) {
        // CPU time of which not even the process is known.
        (Grouping::Unit | Grouping::Container | Grouping::User, _, Some(process)) if is_unknown(&process) => {
            NOT_SAMPLED.to_owned()
        }
        (Grouping::Unit, ..) => membership.map_or_else(|| Membership::UNKNOWN.to_owned(), Membership::unit),
        (Grouping::Container, ..) => membership.map_or_else(|| Membership::UNKNOWN.to_owned(), Membership::container),
        (Grouping::User, ..) => membership.map_or_else(|| Membership::UNKNOWN.to_owned(), Membership::user),
        (Grouping::Thread, Some(thread), _) => of_user(thread.label()),
        (_, _, Some(process)) => of_user(process.label()),
        _ => "[unknown]".to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::limits::ProfileLimits;
    use crate::model::{Metric, SessionInfo, Thread, Unit};

    #[test]
    fn names() {
        for by in Grouping::ALL {
            assert_eq!(by.name().parse(), Ok(by));
        }
        assert!("x".parse::<Grouping>().unwrap_err().contains("function, lexical"));
    }

    #[test]
    fn who_gets_a_number_after_another_user_is_another() {
        let metrics = vec![Metric { name: "cpu-clock".to_owned(), unit: Unit::Nanoseconds }];
        let session = SessionInfo { metrics, ..SessionInfo::default() };
        let mut profile = Profile::new(session, ProfileLimits::default());
        for (start_time, uid) in [(1, 0), (2, 1000), (3, 1000)] {
            let membership = Some(Arc::new(Membership { uid: Some(uid), ..Membership::default() }));
            let process = Process { membership, ..Process::new(7, start_time, "x".to_owned()) };
            let process = profile.add_process(process);
            let thread = profile.add_thread(Thread { process, tid: 7, name: "x".to_owned() });
            let function = named(&mut profile, "f");
            let context = profile.contexts_mut().push(ContextId::ROOT, function);
            profile.charge(thread, context, LineId::UNKNOWN, &[1]);
        }
        for by in [Grouping::Process, Grouping::Thread] {
            let grouped = profile.by(by);
            let mut rows = BTreeMap::new();
            grouped.for_each_charge(|charge| {
                let leaf = grouped.contexts().leaf(charge.context).unwrap();
                *rows.entry(grouped.name(leaf).into_owned()).or_insert(0) += charge.samples;
            });
            let expected = [("x (7) of uid 0", 1), ("x (7) of uid 1000", 2)];
            assert_eq!(rows, BTreeMap::from(expected.map(|(name, samples)| (name.to_owned(), samples))));
        }
    }
}
