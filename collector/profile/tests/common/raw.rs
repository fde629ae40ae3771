//! What raw stacks say: computed frame by frame, without histories, contexts or views.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "every test binary uses a part of this")]

use std::collections::{BTreeMap, BTreeSet};

use super::readers::{Edges, Weights};

#[derive(Clone, Debug, PartialEq)]
pub struct RawSample {
    pub tid: u64,
    pub stack: Vec<String>,
    pub line: Option<u64>,
    pub weights: [u64; 2],
}

/// Weight while the callee was running itself, weight while it was waiting, and samples of both.
pub type Arc = (u64, u64, u64);

/// The arcs of a graph by caller and callee. `None` is who calls a root.
#[derive(Debug, Default, PartialEq)]
pub struct RawArcs {
    pub outgoing: BTreeMap<(String, String), Arc>,
    pub incoming: BTreeMap<(Option<String>, String), Arc>,
}

/// Self and inherited weight, each function once for each stack.
pub fn weights(samples: &[RawSample], metric: usize) -> Weights {
    let mut weights = Weights::new();
    for sample in samples {
        weights.entry(sample.stack.last().unwrap().clone()).or_default().0 += sample.weights[metric];
        for name in sample.stack.iter().collect::<BTreeSet<_>>() {
            weights.entry(name.clone()).or_default().1 += sample.weights[metric];
        }
    }
    weights
}

/// The same for samples, each of which weighs 1.
pub fn counts(samples: &[RawSample]) -> Weights {
    let ones: Vec<RawSample> = samples.iter().map(|it| RawSample { weights: [1, 1], ..it.clone() }).collect();
    weights(&ones, 0)
}

pub fn total(samples: &[RawSample], metric: usize) -> u64 {
    samples.iter().map(|it| it.weights[metric]).sum()
}

pub fn by_thread(samples: &[RawSample], metric: usize) -> BTreeMap<u64, u64> {
    let mut threads = BTreeMap::new();
    samples.iter().for_each(|it| *threads.entry(it.tid).or_default() += it.weights[metric]);
    threads
}

/// Self weight by function and line; 0 is a line that is not known.
pub fn by_line(samples: &[RawSample], metric: usize) -> BTreeMap<(String, u64), u64> {
    let mut lines = BTreeMap::new();
    for it in samples {
        *lines.entry((it.stack.last().unwrap().clone(), it.line.unwrap_or(0))).or_default() += it.weights[metric];
    }
    lines
}

pub fn edges(samples: &[RawSample]) -> Edges {
    let pairs = samples.iter().flat_map(|it| it.stack.windows(2));
    pairs.map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}

pub fn arcs(samples: &[RawSample], metric: usize) -> RawArcs {
    let mut arcs = RawArcs::default();
    for RawSample { stack, weights, .. } in samples {
        let leaf = stack.last().unwrap();
        let charge = |arc: &mut Arc, callee: &String| {
            let part = if callee == leaf { &mut arc.0 } else { &mut arc.1 };
            *part += weights[metric];
            arc.2 += 1;
        };
        for function in stack.iter().collect::<BTreeSet<_>>() {
            let latest = stack.iter().rposition(|it| it == function).unwrap();
            let caller = latest.checked_sub(1).map(|it| stack[it].clone());
            charge(arcs.incoming.entry((caller, function.clone())).or_default(), function);
            if let Some(callee) = stack.get(latest + 1) {
                charge(arcs.outgoing.entry((function.clone(), callee.clone())).or_default(), callee);
            }
        }
    }
    arcs
}

/// The cycles that a stack traversed, each from its lowest name on, and whether its last call closed it.
pub fn cycles(stack: &[String]) -> BTreeMap<Vec<String>, bool> {
    let mut cycles = BTreeMap::new();
    for (at, called) in stack.iter().enumerate() {
        let before = &stack[..at];
        if !before.contains(called) {
            continue;
        }
        // From the latest activation of each function on to whom that called.
        let mut cycle: Vec<String> = Vec::new();
        let mut next = Some(called);
        while let Some(function) = next {
            cycle.push(function.clone());
            next = before.get(before.iter().rposition(|it| it == function).unwrap() + 1);
        }
        let lowest = (0..cycle.len()).min_by_key(|&it| &cycle[it]).unwrap();
        cycle.rotate_left(lowest);
        *cycles.entry(cycle).or_default() |= at + 1 == stack.len();
    }
    cycles
}
