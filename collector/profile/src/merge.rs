//! Merging profiles (I7), regrouping their functions, and comparing them.

use std::collections::BTreeMap;

use crate::error::MergeError;
use crate::ids::{ContextId, CostCentreId, ImageId, LineId, ProcessId, ThreadId};
use crate::limits::Limits;
use crate::model::{CostCentre, Metric};
use crate::profile::Profile;

impl Profile {
    /// Adds another profile of the same metrics. What it charged is pending then, for the next `take_update`.
    ///
    /// Associative and commutative up to the numbering of ids (compare [`Profile::canonical`]) as long as the limits hold
    /// both. The session described is this one's; pids and notes of the other are added, and the earlier start holds.
    ///
    /// # Errors
    ///
    /// If the metrics differ; nothing is changed then.
    pub fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        if self.session.metrics != other.session.metrics {
            return Err(MergeError::Metrics(metric_names(&self.session.metrics), metric_names(&other.session.metrics)));
        }
        let mut accounting = other.accounting.clone();
        accounting.contexts = other.collected_contexts();
        self.accounting.contexts = self.collected_contexts();
        self.collecting = false;
        let elided_apart = self.accounting.elided.saturating_add(other.accounting.elided);
        let functions = self.add_charges(other, |profile, _, image, cost_centre| {
            profile.add_cost_centre(CostCentre { image, ..cost_centre.clone() })
        });
        let here = |id: CostCentreId| functions.get(id.index()).copied().unwrap_or(CostCentreId::ELIDED);
        for &(unnamed, function) in other.namings.list() {
            self.name_later(here(unnamed), here(function));
        }
        // Charging counted what went to `[elided]`, of which the other's own count is a part.
        let elided = self.accounting.elided.max(elided_apart);
        let (mine, theirs) = (&mut self.session, &other.session);
        for pid in &theirs.pids {
            if !mine.pids.contains(pid) {
                mine.pids.push(*pid);
            }
        }
        mine.started_unix_ns = match (mine.started_unix_ns, theirs.started_unix_ns) {
            (0, started) | (started, 0) => started,
            (a, b) => a.min(b),
        };
        for note in &theirs.notes {
            self.add_note(note);
        }
        for crash in other.crashes() {
            // Each is one of a watch's many; those that there is no room for are the latest.
            let _ = self.add_crash(crash.clone());
        }
        self.accounting.merge(&accounting);
        self.accounting.elided = elided;
        Ok(())
    }

    /// What the table of contexts did while collecting, wherever that was.
    fn collected_contexts(&self) -> crate::ContextStats {
        if self.collecting { self.contexts.stats() } else { self.accounting.contexts }
    }

    /// The same profile with other functions: `group` says which one stands for each. Self and inherited weights are
    /// those of the stacks with every function replaced (I6); a module, a file, the function that defines a closure.
    #[must_use]
    pub fn regrouped(&self, mut group: impl FnMut(CostCentreId, &CostCentre) -> CostCentre) -> Self {
        let mut grouped = Self::with_all_metrics(self.session.clone(), Limits::reading());
        grouped.add_charges(self, |profile, id, image, cost_centre| {
            let real = self.real(id);
            let (cost_centre, image) = match self.cost_centre(real).filter(|_| real != id) {
                Some(named) => (named, self.image(named.image).map_or(image, |it| profile.add_image(it.clone()))),
                None => (cost_centre, image),
            };
            if cost_centre.image == ImageId::CCSD {
                return profile.add_cost_centre(cost_centre.clone());
            }
            profile.add_cost_centre(CostCentre { image, ..group(real, cost_centre) })
        });
        grouped.accounting = self.accounting.clone();
        grouped.crashes.clone_from(&self.crashes);
        grouped.collecting = false;
        grouped
    }

    /// Adds definitions, contexts and charges of another profile, its functions mapped by `function(self, id there, image
    /// here, cost centre there)`, called in order of their ids. Returns what they are here.
    fn add_charges(
        &mut self,
        other: &Self,
        mut function: impl FnMut(&mut Self, CostCentreId, ImageId, &CostCentre) -> CostCentreId,
    ) -> Vec<CostCentreId> {
        let images: Vec<ImageId> = other.images().iter().map(|image| self.add_image(image.clone())).collect();
        let functions: Vec<CostCentreId> = other
            .cost_centres()
            .iter()
            .zip(0..)
            .map(|(cost_centre, id)| {
                let image = images.get(cost_centre.image.index()).copied().unwrap_or(ImageId::CCSD);
                function(self, CostCentreId(id), image, cost_centre)
            })
            .collect();
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
        // Parents come before children, and a history does not depend on which of its paths it is reached by.
        let mut contexts: Vec<ContextId> = vec![ContextId::ROOT];
        for id in (1..other.contexts.len()).map(ContextId::at) {
            let parent = other.contexts.parent(id).and_then(|parent| contexts.get(parent.index()).copied());
            let leaf = other.contexts.leaf(id).and_then(|leaf| functions.get(leaf.index()).copied());
            contexts.push(match (parent, leaf) {
                (Some(parent), Some(leaf)) => self.contexts.push(parent, leaf),
                _ => ContextId::ELIDED,
            });
        }
        other.for_each_charge(|charge| {
            let thread = threads.get(charge.thread.index()).copied().unwrap_or(ThreadId(u32::MAX));
            let context = contexts.get(charge.context.index()).copied().unwrap_or(ContextId::ELIDED);
            let line = lines.get(charge.line.index()).copied().unwrap_or(LineId::UNKNOWN);
            self.charge_many(thread, context, line, charge.samples, charge.weights);
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
        let named = self.named();
        for (id, entries) in &mut histories {
            *entries = named
                .contexts()
                .history(named.context(*id))
                .entries()
                .iter()
                .map(|e| (self.key(e.function), e.marked))
                .collect();
        }
        let mut charges = BTreeMap::new();
        self.for_each_charge(|charge| {
            let thread = self.thread(charge.thread);
            let process = thread.and_then(|thread| self.process(thread.process));
            let line = self.line(charge.line);
            let key = ChargeKey {
                process: process.map(|p| (p.pid, p.start_time, p.exec_generation)).unwrap_or_default(),
                tid: thread.map(|thread| thread.tid).unwrap_or_default(),
                history: histories.get(&charge.context).cloned().unwrap_or_default(),
                line: line.map(|line| (line.file.to_string(), line.line)).unwrap_or_default(),
            };
            let (samples, weights) = charges.entry(key).or_insert_with(|| (0u64, vec![0u64; charge.weights.len()]));
            *samples = samples.saturating_add(charge.samples);
            for (sum, weight) in weights.iter_mut().zip(charge.weights) {
                *sum = sum.saturating_add(*weight);
            }
        });
        charges.retain(|_, (samples, weights)| *samples > 0 || weights.iter().any(|&weight| weight > 0));
        Canonical { metrics: self.session.metrics.clone(), charges }
    }

    fn key(&self, id: CostCentreId) -> CostCentreKey {
        let Some(cost_centre) = self.cost_centre(id) else { return CostCentreKey::default() };
        let image = self.image(cost_centre.image);
        CostCentreKey {
            image: image.map(|image| (image.name.clone(), image.build_id.clone())).unwrap_or_default(),
            linkage_name: cost_centre.linkage_name.clone(),
            start: if cost_centre.linkage_name.is_some() { None } else { cost_centre.start },
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
    /// Samples and weights by place.
    pub charges: BTreeMap<ChargeKey, (u64, Vec<u64>)>,
}

/// Where something was charged, by identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChargeKey {
    /// Pid, start time, exec generation.
    pub process: (u32, u64, u32),
    /// Thread id.
    pub tid: u32,
    /// Functions and marks, oldest first.
    pub history: Vec<(CostCentreKey, bool)>,
    /// File and line.
    pub line: (String, u32),
}

/// Identity of a cost centre.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CostCentreKey {
    /// Name and build id of the image.
    pub image: (String, Vec<u8>),
    /// Name in the symbol table.
    pub linkage_name: Option<String>,
    /// Address, where there is no name.
    pub start: Option<u64>,
}
