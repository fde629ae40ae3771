//! Merging profiles (I7), and comparing them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashSet;

use crate::error::MergeError;
use crate::ids::{ContextId, CostCentreId, ImageId, LineId, ProcessId, RouteId, ThreadId};
use crate::model::{CostCentre, Membership, Metric};
use crate::profile::Profile;
use crate::remap::remap;
use crate::squares::Squares;
use crate::symbols::Identity;
use crate::view::Selection;

impl Profile {
    /// Adds another profile of the same metrics; its charges are pending for the next `take_update`.
    ///
    /// Associative and commutative up to ids (compare [`Profile::canonical`]) while the limits hold both. Keeps this
    /// session's description, with the other's pids and notes and the earlier start.
    ///
    /// # Errors
    /// If the metrics differ; nothing is changed then.
    pub fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        if self.session.metrics != other.session.metrics {
            return Err(MergeError::Metrics(metric_names(&self.session.metrics), metric_names(&other.session.metrics)));
        }
        let mut accounting = other.accounting.clone();
        let rates_known = !self.accounting.pace.rates.is_empty() || !accounting.pace.rates.is_empty();
        if self.session.rate_hz != other.session.rate_hz || rates_known {
            // The session's rate is not that of all.
            for (it, rate_hz) in
                [(&mut self.accounting, self.session.rate_hz), (&mut accounting, other.session.rate_hz)]
            {
                if it.pace.rates.is_empty() && rate_hz > 0 && it.received > 0 {
                    it.pace.spend(rate_hz, it.duration_ns);
                }
            }
        }
        accounting.contexts = other.collected_contexts();
        self.accounting.contexts = self.collected_contexts();
        self.flags.collecting = false;
        let elided_apart = self.accounting.elided.saturating_add(other.accounting.elided);
        let functions = self.add_charges(other);
        let here = |id: CostCentreId| functions.get(id.index()).copied().unwrap_or(CostCentreId::ELIDED);
        for &(unnamed, function) in other.namings.list() {
            self.name_later(here(unnamed), here(function));
        }
        // Charging counted what went to `[elided]`, of which the other's own count is a part.
        let elided = self.accounting.elided.max(elided_apart);
        let (mine, theirs) = (&mut self.session, &other.session);
        let mut known: HashSet<u32> = mine.pids.iter().copied().collect();
        mine.pids.extend(theirs.pids.iter().filter(|pid| known.insert(**pid)));
        mine.started_unix_ns = match (mine.started_unix_ns, theirs.started_unix_ns) {
            (0, started) | (started, 0) => started,
            (a, b) => a.min(b),
        };
        for note in &theirs.notes {
            self.add_note(note);
        }
        for crash in other.crashes() {
            // A watch has many of these; the latest are dropped at the limit.
            let _ = self.add_crash(crash.clone());
        }
        self.accounting.merge(&accounting);
        self.accounting.elided = elided;
        Ok(())
    }

    fn collected_contexts(&self) -> crate::context::ContextStats {
        if self.flags.collecting { self.context_stats() } else { self.accounting.contexts }
    }

    /// Adds definitions, contexts and charges of another profile. Returns what its functions are here.
    fn add_charges(&mut self, other: &Self) -> Vec<CostCentreId> {
        let images: Vec<ImageId> = other.images().iter().map(|image| self.add_image(image.clone())).collect();
        let add_function = |cost_centre: &CostCentre| {
            let image = images.get(cost_centre.image.index()).copied().unwrap_or(ImageId::CCSD);
            self.add_cost_centre(CostCentre { image, ..cost_centre.clone() })
        };
        let functions: Vec<CostCentreId> = other.cost_centres().iter().map(add_function).collect();
        let lines: Vec<LineId> = other.lines().iter().map(|line| self.add_line(&line.file, line.line)).collect();
        let mut processes: Vec<ProcessId> = Vec::new();
        for process in other.processes() {
            let parent = process.parent.and_then(|parent| processes.get(parent.index()).copied());
            processes.push(self.add_process(crate::model::Process { parent, ..process.clone() }));
        }
        let threads: Vec<ThreadId> = other
            .threads()
            .iter()
            .map(|thread| {
                let process = processes.get(thread.process.index()).copied().unwrap_or(ProcessId(u32::MAX));
                self.add_thread(crate::model::Thread { process, ..thread.clone() })
            })
            .collect();
        let function = |id: CostCentreId| Some(functions.get(id.index()).copied().unwrap_or(CostCentreId::ELIDED));
        let (contexts, uncertain) = remap(&other.recorded_contexts(), &mut self.contexts, function);
        self.uncertain.extend(uncertain);
        let mut known = HashSet::new();
        self.flags.merges_functions |= other.flags.merges_functions || !functions.iter().all(|it| known.insert(*it));
        let routes = other.copied_routes(self, function);
        other.for_each_charge(|charge| {
            let thread = threads.get(charge.thread.index()).copied().unwrap_or(ThreadId(u32::MAX));
            let context = contexts.get(charge.context.index()).map_or(ContextId::ELIDED, |it| it.context);
            let line = lines.get(charge.line.index()).copied().unwrap_or(LineId::UNKNOWN);
            self.charge_sums((thread, context, line, routes.of(charge.route)), &charge);
        });
        functions
    }

    /// What the profile says, independent of the numbering of ids: two profiles are equal if their canonical forms are.
    #[must_use]
    pub fn canonical(&self) -> Canonical {
        let mut histories: BTreeMap<ContextId, Vec<(CostCentreKey, bool)>> = BTreeMap::new();
        self.for_each_charge(|charge| {
            histories.entry(charge.context).or_default();
        });
        let all = Selection::all();
        let named = self.walk(&all);
        for (id, entries) in &mut histories {
            *entries = named
                .table()
                .history(named.context(*id))
                .entries()
                .iter()
                .map(|e| (self.key(e.function), e.marked))
                .collect();
        }
        let mut routes: BTreeMap<RouteId, Vec<SiteKey>> = BTreeMap::new();
        let mut charges = BTreeMap::new();
        self.for_each_charge(|charge| {
            let thread = self.thread(charge.thread);
            let process = thread.and_then(|thread| self.process(thread.process));
            let line = self.line(charge.line);
            let key = ChargeKey {
                process: process
                    .map(Identity::key)
                    .map(|(pid, start, generation, _)| (pid, start, generation))
                    .unwrap_or_default(),
                group: process.filter(|it| it.is_grouped()).map(|it| (it.name.clone(), it.membership.clone())),
                tid: thread.map(|thread| thread.tid).unwrap_or_default(),
                history: histories.get(&charge.context).cloned().unwrap_or_default(),
                line: line.map(|line| (line.file.to_string(), line.line)).unwrap_or_default(),
                sites: routes.entry(charge.route).or_insert_with(|| self.site_keys(charge.route)).clone(),
                cut: charge.route.is_cut(),
            };
            let sums: &mut ChargeSums = charges.entry(key).or_default();
            sums.weights.resize(charge.weights.len(), 0);
            sums.squares.resize(charge.squares.len(), 0);
            sums.samples = sums.samples.saturating_add(charge.samples);
            for (sum, weight) in sums.weights.iter_mut().zip(charge.weights) {
                *sum = sum.saturating_add(*weight);
            }
            for (sum, square) in sums.squares.iter_mut().zip(charge.squares) {
                *sum = sum.saturating_add(*square);
            }
        });
        charges.retain(|_, sums| sums.samples > 0 || sums.weights.iter().any(|&weight| weight > 0));
        Canonical { metrics: self.session.metrics.clone(), charges }
    }

    fn site_keys(&self, route: RouteId) -> Vec<SiteKey> {
        let mut latest = HashSet::new();
        let mut sites = BTreeSet::new();
        let mut seen = HashSet::new();
        for (function, line) in self.routes.sites(route) {
            let is_latest = latest.insert(function);
            if seen.insert((function, line)) {
                let line = self.line(line).map(|line| (line.file.to_string(), line.line)).unwrap_or_default();
                sites.insert(SiteKey { function: self.key(function), line, is_latest });
            }
        }
        sites.into_iter().collect()
    }

    fn key(&self, id: CostCentreId) -> CostCentreKey {
        let Some(cost_centre) = self.cost_centre(id) else { return CostCentreKey::default() };
        let image = self.image(cost_centre.image);
        let (_, _, definition) = cost_centre.key();
        CostCentreKey {
            image: image.map(|image| (image.name.clone(), image.build_id.clone())).unwrap_or_default(),
            linkage_name: cost_centre.linkage_name.clone(),
            definition: definition.0.map(str::to_owned),
            place: definition.1,
        }
    }
}

fn metric_names(metrics: &[Metric]) -> String {
    let names: Vec<&str> = metrics.iter().map(|metric| metric.name.as_str()).collect();
    names.join(", ")
}

/// A profile without ids, see [`Profile::canonical`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canonical {
    /// What the weights mean.
    pub metrics: Vec<Metric>,
    /// What was charged by place.
    pub charges: BTreeMap<ChargeKey, ChargeSums>,
}

/// All that was charged in one place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChargeSums {
    /// Number of samples.
    pub samples: u64,
    /// One weight for each metric.
    pub weights: Vec<u64>,
    /// Sums of squared weights.
    pub squares: Vec<Squares>,
}

/// Where something was charged, by identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChargeKey {
    /// Pid, start time, exec generation.
    pub process: (u32, u64, u32),
    /// Name and membership of processes that share an entry.
    pub group: Option<(String, Option<Arc<Membership>>)>,
    /// Thread id.
    pub tid: u32,
    /// Functions and marks, oldest first.
    pub history: Vec<(CostCentreKey, bool)>,
    /// File and line.
    pub line: (String, u32),
    /// From where its callers made their calls.
    pub sites: Vec<SiteKey>,
    /// Whether some of them are missing.
    pub cut: bool,
}

/// Identity of a call site.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SiteKey {
    /// The function.
    pub function: CostCentreKey,
    /// File and line.
    pub line: (String, u32),
    /// Whether the latest activation of the function made its call there.
    pub is_latest: bool,
}

/// Identity of a cost centre.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CostCentreKey {
    /// Name and build id of the image.
    pub image: (String, Vec<u8>),
    /// Name in the symbol table.
    pub linkage_name: Option<String>,
    /// Of a local function: the file of its declaration.
    pub definition: Option<String>,
    /// For a local function: its line, or its address if the file is unknown. Also the address if there is no name.
    pub place: Option<u64>,
}
