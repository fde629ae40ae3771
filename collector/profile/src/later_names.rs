//! Names, inlined functions and lines that debug information tells later of functions of stripped images.
//!
//! A profile keeps [offsets](crate::Profile::offset) of frames in functions without names, and in those that have only the
//! name by which a stripped library exports them. Debug information that is found
//! later tells for each of them the functions that were inlined there, from the outermost in, and their lines
//! ([`LaterNames`]). With these the contexts, routes and lines are rebuilt, each frame as a collector with that debug
//! information would have pushed it.
//!
//! A context and a route say of a function which call sites it has on the stack, and which is that of its latest
//! activation; but not which of several sites belongs to which of several activations. So the functions on a stack, and
//! the one that runs, are exact, and with them all self and inherited weights; in which order functions that were inlined
//! into several activations of one function were called is a guess, which views mark as uncertain.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use crate::error::UpdateError;
use crate::gaps::MARK;
use crate::ids::{ContextId, CostCentreId, ImageId, LineId, ProcessId, RouteId, ThreadId};
use crate::limits::ProfileLimits;
use crate::model::{CostCentre, SessionInfo};
use crate::profile::{Charge, Profile};
use crate::routed::CallBudget;
use crate::update::Update;

/// A function at a place in code: out of line, or inlined there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedSite {
    /// The function; its image is that of the function with the offset.
    pub function: CostCentre,
    /// The source file of the place or, of an outer function, of the inlined call; empty if not known.
    pub file: Arc<str>,
    /// The line in that file; 0 if not known.
    pub line: u32,
}

/// A [`NamedSite`] with the number of its function.
type NumberedSite = (u32, Arc<str>, u32);

/// Functions at all offsets together that are kept: those of a hundred thousand addresses of `cc1` are half a million. What
/// a hostile profile and debug file make more of takes no memory; it has the names of the outermost functions alone.
const MAX_SITES: usize = 1 << 22;

/// The functions at places in functions of stripped images, as debug information tells them.
#[derive(Clone, Debug, Default)]
pub struct LaterNames {
    /// By their numbers in `known`.
    functions: HashMap<CostCentreId, u32>,
    sites: HashMap<(CostCentreId, u32), Arc<[NumberedSite]>>,
    total: usize,
    /// Offsets whose functions exceeded a limit.
    left_out: u64,
    known: Vec<Arc<CostCentre>>,
    numbers: HashMap<Arc<CostCentre>, u32>,
}

impl LaterNames {
    /// Adds the name of a function that has none, or the declaration of one that has.
    pub fn name(&mut self, id: CostCentreId, function: CostCentre) {
        let number = self.number(function);
        self.functions.insert(id, number);
    }

    /// Adds the functions at an offset of a function that [`LaterNames::name`] names, outermost first.
    pub fn add_site(&mut self, id: CostCentreId, offset: u32, chain: Vec<NamedSite>) {
        if self.total.saturating_add(chain.len()) > MAX_SITES {
            self.left_out += 1;
        } else if !chain.is_empty() {
            self.total += chain.len();
            let site = |NamedSite { function, file, line }| (self.number(function), file, line);
            let chain: Vec<_> = chain.into_iter().map(site).collect();
            self.sites.insert((id, offset), chain.into());
        }
    }

    fn number(&mut self, function: CostCentre) -> u32 {
        if let Some(known) = self.numbers.get(&function) {
            return *known;
        }
        let (number, function) = (self.known.len() as u32, Arc::new(function));
        self.known.push(Arc::clone(&function));
        self.numbers.insert(function, number);
        number
    }

    /// Offsets whose inlined functions and lines were left out, because there were too many.
    #[must_use]
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }

    fn function(&self, id: CostCentreId) -> Option<&CostCentre> {
        let number = self.functions.get(&id)?;
        self.known.get(*number as usize).map(|known| &**known)
    }

    /// Adds the names that others have.
    pub fn extend(&mut self, others: LaterNames) {
        let numbers: Vec<u32> = others.known.iter().map(|function| self.number(CostCentre::clone(function))).collect();
        let here = |number: u32| numbers.get(number as usize).copied().unwrap_or(0);
        self.functions.extend(others.functions.into_iter().map(|(id, number)| (id, here(number))));
        self.left_out += others.left_out;
        for (place, chain) in others.sites {
            if self.total.saturating_add(chain.len()) > MAX_SITES {
                self.left_out += 1;
                continue;
            }
            self.total += chain.len();
            let chain: Vec<_> =
                chain.iter().map(|(number, file, line)| (here(*number), Arc::clone(file), *line)).collect();
            self.sites.insert(place, chain.into());
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }
}

impl Profile {
    /// The functions of which debug information that is found later tells more, with the offsets at which they have frames:
    /// those without names, and those with names that have offsets. Only of images with a build id.
    #[must_use]
    pub fn stripped_functions(&self) -> BTreeMap<CostCentreId, BTreeSet<u32>> {
        let may_be_found = |id: CostCentreId, it: &CostCentre| {
            it.start.is_some()
                && it.image != ImageId::CCSD
                && self.real(id) == id
                && self.image(it.image).is_some_and(|image| !image.build_id.is_empty())
        };
        let centres = (0..).map(CostCentreId).zip(self.cost_centres());
        let unnamed = centres.filter(|&(id, it)| it.linkage_name.is_none() && may_be_found(id, it));
        let mut found: BTreeMap<CostCentreId, BTreeSet<u32>> = unnamed.map(|(id, _)| (id, BTreeSet::new())).collect();
        let mut add = |function: Option<CostCentreId>, line: LineId| {
            let Some((id, offset)) = function.zip(self.offset(line)) else { return };
            if let Some(offsets) = found.get_mut(&id) {
                offsets.insert(offset);
            } else if self.cost_centre(id).is_some_and(|it| may_be_found(id, it)) {
                found.insert(id, BTreeSet::from([offset]));
            }
        };
        self.for_each_charge(|charge| add(self.contexts.leaf(charge.context), charge.line));
        for site in self.routes.range(1, u32::MAX) {
            add(Some(site.function), site.line);
        }
        found
    }

    /// The profile with names that were found later.
    #[must_use]
    pub fn with_later_names(&self, names: &LaterNames) -> Profile {
        let mut new = self.emptied();
        new.flags.full_names = self.flags.full_names;
        new.flags.merges_functions = self.flags.merges_functions;
        let mut rewriting = Rewriting::new(names, new);
        rewriting.budget = CallBudget::new(self.charge_count());
        self.for_each_charge(|charge| rewriting.charge(self, charge.thread, &charge));
        rewriting.copy_namings(self);
        rewriting.mark_guesses();
        let named_samples = rewriting.named_samples;
        let mut new = rewriting.finish();
        new.accounting = self.accounting.clone();
        new.accounting.unsymbolised = new.accounting.unsymbolised.saturating_sub(named_samples);
        new.crashes.clone_from(&self.crashes);
        new.flags.collecting = false;
        new
    }
}

/// Gives the updates of a stream names that were found later.
#[derive(Debug)]
pub struct RenamedStream {
    from: Profile,
    rewriting: Rewriting,
}

impl RenamedStream {
    /// A stream of a session, from its beginning.
    #[must_use]
    pub fn new(session: &SessionInfo, names: &LaterNames) -> RenamedStream {
        let profile = || Profile::new(session.clone(), ProfileLimits::reading());
        RenamedStream { from: profile(), rewriting: Rewriting::new(names, profile()) }
    }

    /// The next update with names.
    ///
    /// # Errors
    /// As [`Profile::apply`].
    pub fn rename(&mut self, update: &Update) -> Result<Update, UpdateError> {
        self.rename_with(update, |_| LaterNames::default())
    }

    /// As [`RenamedStream::rename`], where names are looked for as the stream goes on: `find` gives those of functions and
    /// offsets that the profile with this update has for the first time. What gets no name then keeps none.
    ///
    /// # Errors
    /// As [`Profile::apply`].
    pub fn rename_with(
        &mut self,
        update: &Update,
        find: impl FnOnce(&Profile) -> LaterNames,
    ) -> Result<Update, UpdateError> {
        let RenamedStream { from, rewriting } = self;
        from.apply(update)?;
        rewriting.names.extend(find(from));
        let to = &mut rewriting.to;
        for image in &update.images {
            to.add_image(image.clone());
        }
        to.copy_runners(&update.processes, &update.threads);
        for (id, name) in &update.renamed_processes {
            to.rename_process(ProcessId(id.0), name);
        }
        for (id, name) in &update.renamed_threads {
            to.rename_thread(ThreadId(id.0), name);
        }
        for note in &update.notes {
            to.add_note(note);
        }
        for crash in &update.crashes {
            // As in reading: what does not fit is left out.
            let _ = to.add_crash(crash.clone());
        }
        rewriting.budget = CallBudget::new(update.charges.len());
        let metrics = from.session.metrics.len();
        for (i, (delta, weights)) in update.charges_with_weights(metrics).enumerate() {
            let (context, route) = from.own_place(delta.context, delta.route);
            let squares = update.squares_of(i, metrics);
            let place = rewriting.place(from, context, delta.line, route);
            rewriting.count_named(&place, delta.samples);
            let to = (delta.thread, place.context, place.line, place.route);
            rewriting.to.charge_squares(to, delta.samples, weights, squares);
        }
        rewriting.copy_namings(from);
        let to = &mut rewriting.to;
        to.accounting = update.accounting.clone();
        to.accounting.unsymbolised = to.accounting.unsymbolised.saturating_sub(rewriting.named_samples);
        to.flags.collecting = false;
        let mut new = to.take_update();
        (new.from_ns, new.to_ns) = (update.from_ns, update.to_ns);
        Ok(new)
    }
}

#[derive(Clone, Copy, Debug)]
struct NewPlace {
    context: ContextId,
    line: LineId,
    route: RouteId,
    /// Whether the function that ran had no name and gets one.
    gets_name: bool,
}

/// A frame in the new profile: its functions, outermost first, with their lines.
type Chain = Arc<[(CostCentreId, LineId)]>;

#[derive(Debug)]
struct Rewriting {
    names: LaterNames,
    to: Profile,
    functions: HashMap<CostCentreId, CostCentreId>,
    chains: HashMap<(CostCentreId, LineId), Chain>,
    /// Contexts whose functions need no call site, in the new profile.
    plain: HashMap<ContextId, ContextId>,
    /// Of each context of the old profile, whether debug information tells more of a function on its path.
    told: Vec<bool>,
    routes: Vec<RouteId>,
    places: HashMap<(ContextId, LineId, RouteId), NewPlace>,
    budget: CallBudget,
    named_samples: u64,
    namings: usize,
    /// Contexts of the new profile in which the order of inlined functions is a guess.
    guesses: HashSet<ContextId>,
}

impl Rewriting {
    fn new(names: &LaterNames, to: Profile) -> Rewriting {
        Rewriting {
            names: names.clone(),
            to,
            functions: HashMap::new(),
            chains: HashMap::new(),
            plain: HashMap::new(),
            told: vec![false],
            routes: vec![RouteId::EMPTY],
            places: HashMap::new(),
            budget: CallBudget::new(0),
            named_samples: 0,
            namings: 0,
            guesses: HashSet::new(),
        }
    }

    fn finish(self) -> Profile {
        self.to
    }

    fn charge(&mut self, from: &Profile, thread: ThreadId, charge: &Charge<'_>) {
        let place = self.place(from, charge.context, charge.line, charge.route);
        self.count_named(&place, charge.samples);
        self.to.charge_sums((thread, place.context, place.line, place.route), charge);
    }

    fn count_named(&mut self, place: &NewPlace, samples: u64) {
        if place.gets_name {
            self.named_samples = self.named_samples.saturating_add(samples);
        }
    }

    /// Copies namings of generated code.
    fn copy_namings(&mut self, from: &Profile) {
        let new = from.namings.list().get(self.namings..).unwrap_or(&[]);
        self.namings += new.len();
        for &(unnamed, function) in new {
            let (unnamed, function) = (self.function(from, unnamed), self.function(from, function));
            // One that does not fit here did not fit there, either.
            let _ = self.to.name_later(unnamed, function);
        }
    }

    /// Whether debug information tells more of a function.
    fn is_told(&self, id: CostCentreId) -> bool {
        self.names.functions.contains_key(&id)
    }

    fn function(&mut self, from: &Profile, id: CostCentreId) -> CostCentreId {
        if let Some(known) = self.functions.get(&id) {
            return *known;
        }
        let function = self.names.function(id).or_else(|| from.cost_centre(id)).cloned();
        let new = function.map_or(CostCentreId::ELIDED, |function| match function.image {
            ImageId::CCSD => self.to.add_special(function.linkage_name.as_deref().unwrap_or_default()),
            _ => self.to.add_cost_centre(function),
        });
        self.functions.insert(id, new);
        new
    }

    fn chain(&mut self, from: &Profile, id: CostCentreId, line: LineId) -> Chain {
        if let Some(known) = self.chains.get(&(id, line)) {
            return Arc::clone(known);
        }
        let offset = from.offset(line).filter(|_| self.is_told(id));
        let sites = offset.and_then(|offset| self.names.sites.get(&(id, offset)).cloned());
        let chain: Chain = match sites {
            Some(sites) => sites
                .iter()
                .filter_map(|(number, file, line)| {
                    let function = self.names.known.get(*number as usize)?;
                    Some((self.to.add_cost_centre(CostCentre::clone(function)), self.to.add_line(file, *line)))
                })
                .collect(),
            None => {
                let function = self.function(from, id);
                // Debug information says nothing of this offset.
                let line = if offset.is_some() { LineId::UNKNOWN } else { from.copied_line(&mut self.to, line) };
                Arc::new([(function, line)])
            }
        };
        self.chains.insert((id, line), Arc::clone(&chain));
        chain
    }

    fn route(&mut self, from: &Profile, id: RouteId) -> RouteId {
        if self.routes.len() <= id.index() {
            let known = self.routes.len() as u32;
            for site in from.routes.range(known, u32::MAX) {
                let mut route = self.routes.get(site.parent.index()).copied().unwrap_or(RouteId::EMPTY);
                for &(function, line) in self.chain(from, site.function, site.line).iter() {
                    route = self.to.push_known_site(route, function, line);
                }
                self.routes.push(route);
            }
        }
        let route = self.routes.get(id.index()).copied().unwrap_or(RouteId::EMPTY);
        if id.is_cut() { route.cut() } else { route }
    }

    fn is_path_told(&mut self, from: &Profile, id: ContextId) -> bool {
        for number in self.told.len()..=id.index().min(from.contexts.len().saturating_sub(1)) {
            let id = ContextId::at(number);
            let parent = from.contexts.parent(id).and_then(|parent| self.told.get(parent.index()).copied());
            let leaf = from.contexts.leaf(id).is_some_and(|leaf| self.is_told(leaf));
            self.told.push(leaf || parent.unwrap_or(false));
        }
        self.told.get(id.index()).copied().unwrap_or(false)
    }

    fn plain_context(&mut self, from: &Profile, id: ContextId) -> ContextId {
        let mut path = Vec::new();
        let (mut at, mut new) = (id, ContextId::ROOT);
        while let Some((parent, function)) = from.contexts.parent(at).zip(from.contexts.leaf(at)) {
            if let Some(known) = self.plain.get(&at) {
                new = *known;
                break;
            }
            path.push((at, function));
            at = parent;
        }
        for (old, function) in path.into_iter().rev() {
            let function = self.function(from, function);
            new = self.to.contexts.graft(new, function);
            self.plain.insert(old, new);
        }
        new
    }

    fn place(&mut self, from: &Profile, context: ContextId, line: LineId, route: RouteId) -> NewPlace {
        if let Some(known) = self.places.get(&(context, line, route)) {
            return *known;
        }
        let leaf = from.contexts.leaf(context);
        let is_told = leaf.is_some_and(|leaf| self.is_told(leaf));
        let was_nameless = || leaf.and_then(|leaf| from.cost_centre(leaf)).is_some_and(|it| it.linkage_name.is_none());
        let gets_name = is_told && was_nameless();
        let mut place =
            NewPlace { context: ContextId::ROOT, line: LineId::UNKNOWN, route: self.route(from, route), gets_name };
        let expanded = if self.is_path_told(from, context) { self.expand(from, context, line, route) } else { None };
        if let Some(context) = expanded {
            place.context = context;
        } else {
            place.context = self.plain_context(from, context);
        }
        if let Some(leaf) = leaf.filter(|_| expanded.is_some() || !is_told) {
            let chain = self.chain(from, leaf, line);
            if let [outer @ .., (_, innermost)] = &*chain {
                for &(function, line) in outer {
                    place.route = self.to.push_known_site(place.route, function, line);
                }
                place.line = *innermost;
            }
        }
        self.places.insert((context, line, route), place);
        place
    }

    /// The context with the functions that were inlined at the call sites of a route and in the line that ran; `None` if
    /// that is more work than a profile may cause.
    fn expand(&mut self, from: &Profile, context: ContextId, line: LineId, route: RouteId) -> Option<ContextId> {
        let mut path: Vec<CostCentreId> = Vec::new();
        let mut at = context;
        while let Some((parent, function)) = from.contexts.parent(at).zip(from.contexts.leaf(at)) {
            path.push(function);
            at = parent;
        }
        path.reverse();
        if !self.budget.take(path.len() as u64 + from.routes.depth(route), 0) {
            return None;
        }
        // Call sites of the functions that get later names, outermost first, and how many of their calls follow.
        let mut sites: HashMap<CostCentreId, (Vec<LineId>, usize)> = HashMap::new();
        for (depth, &function) in path.iter().enumerate().filter(|(_, function)| self.is_told(**function)) {
            let runs = depth + 1 == path.len();
            sites.entry(function).or_default().1 += usize::from(!runs);
        }
        for (function, line) in from.routes.sites(route) {
            if let Some((lines, _)) = sites.get_mut(&function) {
                lines.push(line);
            }
        }
        sites.values_mut().for_each(|(lines, _)| lines.reverse());
        let (mut new, mut is_guess) = (ContextId::ROOT, false);
        let mut seen = HashSet::new();
        for (depth, &function) in path.iter().enumerate() {
            let Some((lines, left)) = sites.get_mut(&function) else {
                let function = self.function(from, function);
                new = self.to.contexts.graft(new, function);
                continue;
            };
            let is_first = seen.insert(function);
            let mut pushed: Vec<LineId> = Vec::new();
            if depth + 1 == path.len() {
                // Calls of activations that are one with this in the context.
                pushed.extend(lines.iter().filter(|_| is_first));
                is_guess |= is_first && !lines.is_empty();
                pushed.push(line);
            } else {
                *left -= 1;
                is_guess |= lines.len() > 1;
                let (latest, earlier) = lines.split_last().map_or((LineId::UNKNOWN, &[][..]), |(it, rest)| (*it, rest));
                pushed.extend(earlier.iter().filter(|_| is_first));
                if *left == 0 || pushed.is_empty() {
                    pushed.push(latest);
                }
            }
            for line in pushed {
                let chain = self.chain(from, function, line);
                if !self.budget.take(chain.len() as u64, 0) {
                    return None;
                }
                for &(function, _) in chain.iter() {
                    new = self.to.contexts.graft(new, function);
                }
            }
        }
        if is_guess {
            self.guesses.insert(new);
        }
        Some(new)
    }

    fn mark_guesses(&mut self) {
        let Profile { contexts, uncertain, .. } = &mut self.to;
        let is_guess = |id: ContextId| self.guesses.contains(&id);
        contexts.visit_of(is_guess, |id, entries| {
            for entry in entries.iter().filter(|&&entry| entry & MARK != 0) {
                uncertain.add(id, CostCentreId(entry & !MARK), true, true);
            }
        });
    }
}
