//! gprof's two tables, in the layout that its readers parse.
//!
//! Call counts are unknown: the flat profile leaves them empty, as gprof does, and `called` in the call graph has
//! samples, and says so: gprof2dot divides a function's time among its callers in proportion to it.

use std::io::{self, Write};

use hashbrown::HashMap;

use super::request::Export;
use crate::ids::CostCentreId;
use crate::labels::Labels;
use crate::model::Unit;
use crate::text::sanitise;
use crate::view::{FlatView, GraphArc, GraphNode, GraphView};

pub(super) fn write(export: &Export<'_>, out: &mut impl Write) -> io::Result<()> {
    // gprof prints two decimals, whatever the unit.
    let (scale, name) = match export.metric().unit {
        Unit::Nanoseconds => (1e9, "seconds"),
        Unit::Cycles => (1e6, "Mcycles"),
        Unit::Count | Unit::Unknown => (1.0, "counts"),
    };
    let in_unit = |weight: u64| weight as f64 / scale;
    let flat = FlatView::new(export.profile, export.selection);
    let labels = export.profile.full_labels();
    let total = flat.total.weight;
    let share = |weight: u64| if total == 0 { 0.0 } else { 100.0 * weight as f64 / total as f64 };

    writeln!(out, "Flat profile:\n")?;
    writeln!(out, "Each sample counts as {} {name}.", period(export, in_unit))?;
    writeln!(out, "  %   cumulative   self              self     total           ")?;
    writeln!(out, " time   {name:<7}   {name:<7}    calls  Ts/call  Ts/call  name    ")?;
    let mut cumulative = 0u64;
    for row in &flat.rows {
        cumulative = cumulative.saturating_add(row.self_weight);
        let (self_weight, sum) = (in_unit(row.self_weight), in_unit(cumulative));
        writeln!(
            out,
            "{:6.2} {sum:9.2} {self_weight:8.2}                             {}",
            share(row.self_weight),
            sanitise(&labels.label(row.function))
        )?;
    }

    let graph = GraphView::new(export.profile, export.selection);
    let numbers: HashMap<CostCentreId, usize> = graph.nodes.iter().map(|node| node.function).zip(1..).collect();
    let cycles = GprofCycles::of(&graph);
    let listing = Listing { graph: &graph, labels: &labels, cycles: &cycles, numbers, scale };
    writeln!(out, "\n\x0c\n\t\t     Call graph\n\n")?;
    writeln!(out, "granularity: each sample hit covers 1 byte(s) for 0.00% of {:.2} {name}\n", in_unit(total))?;
    writeln!(out, "the column `called` counts samples, of a callee's samples; calls are not known\n")?;
    writeln!(out, "index % time    self  children    called     name")?;
    for (cycle, at) in cycles.members.iter().zip(0..) {
        listing.cycle(out, cycle, at)?;
    }
    for node in &graph.nodes {
        listing.node(out, node)?;
    }
    writeln!(out)?;
    for remark in export.remarks() {
        writeln!(out, " {remark}")?;
    }
    writeln!(out, "\n\x0c\nIndex by function name\n")?;
    for node in &graph.nodes {
        let number = format!("[{}]", listing.number(node.function));
        writeln!(out, "{number:>6} {}", sanitise(&labels.label(node.function)))?;
    }
    Ok(())
}

struct Listing<'a> {
    graph: &'a GraphView,
    labels: &'a Labels<'a>,
    cycles: &'a GprofCycles,
    numbers: HashMap<CostCentreId, usize>,
    scale: f64,
}

impl Listing<'_> {
    fn number(&self, function: CostCentreId) -> usize {
        self.numbers.get(&function).copied().unwrap_or(0)
    }

    fn in_unit(&self, weight: u64) -> f64 {
        weight as f64 / self.scale
    }

    fn share(&self, weight: u64) -> f64 {
        let total = self.graph.total.weight;
        if total == 0 { 0.0 } else { 100.0 * weight as f64 / total as f64 }
    }

    /// A name in gprof's form: with its cycle and its number.
    fn name(&self, function: CostCentreId, label: &str) -> String {
        let cycle = self.cycles.of.get(&function).map(|at| format!(" <cycle {}>", at + 1)).unwrap_or_default();
        format!("{}{cycle} [{}]", sanitise(label), self.number(function))
    }

    /// An arc, with `of`, the samples of its callee.
    fn arc(&self, out: &mut dyn Write, arc: &GraphArc, of: u64) -> io::Result<()> {
        let (own, child) = (self.in_unit(arc.self_weight), self.in_unit(arc.child_weight));
        let name = self.name(arc.function, &self.graph.in_arc(&self.labels.label(arc.function)));
        writeln!(out, "             {own:8.2} {child:8.2} {:>7}/{of:<11} {name}", arc.samples)
    }

    fn node(&self, out: &mut dyn Write, node: &GraphNode) -> io::Result<()> {
        if node.root_self_weight > 0 || node.root_child_weight > 0 || node.callers.is_empty() {
            writeln!(out, "                                                 <spontaneous>")?;
        }
        for caller in node.callers.iter().rev() {
            self.arc(out, caller, node.samples)?;
        }
        let (number, share) = (format!("[{}]", self.number(node.function)), self.share(node.inherited_weight()));
        let (own, child) = (self.in_unit(node.self_weight), self.in_unit(node.child_weight));
        let name = self.name(node.function, &self.labels.label(node.function));
        writeln!(out, "{number:<6} {share:5.1} {own:8.2} {child:8.2} {:>7}             {name}", node.samples)?;
        for callee in &node.callees {
            let node = self.number(callee.function).checked_sub(1).and_then(|at| self.graph.nodes.get(at));
            let of = node.map_or(0, |it| it.samples);
            self.arc(out, callee, of)?;
        }
        writeln!(out, "-----------------------------------------------")
    }

    /// A cycle of functions as one entry. gprof's readers expect cycles of calls only within such entries.
    fn cycle(&self, out: &mut dyn Write, members: &[usize], at: usize) -> io::Result<()> {
        let members: Vec<&GraphNode> = members.iter().filter_map(|&i| self.graph.nodes.get(i)).collect();
        let own = members.iter().fold(0u64, |sum, node| sum.saturating_add(node.self_weight));
        let samples = members.iter().fold(0u64, |sum, node| sum.saturating_add(node.samples));
        let outside = |arc: &&GraphArc| self.cycles.of.get(&arc.function) != Some(&at);
        let leaving = members.iter().flat_map(|node| node.callees.iter().filter(outside));
        let child = leaving.fold(0u64, |sum, arc| sum.saturating_add(arc.self_weight.saturating_add(arc.child_weight)));
        let number = self.graph.nodes.len() + 1 + at;
        let (share, own, child) = (self.share(own.saturating_add(child)), self.in_unit(own), self.in_unit(child));
        let name = format!("<cycle {} as a whole> [{number}]", at + 1);
        let number = format!("[{number}]");
        writeln!(out, "{number:<6} {share:5.1} {own:8.2} {child:8.2} {samples:>7}+0           {name}")?;
        for node in &members {
            let (own, child) = (self.in_unit(node.self_weight), self.in_unit(node.child_weight));
            let name = self.name(node.function, &self.labels.label(node.function));
            writeln!(out, "             {own:8.2} {child:8.2} {:>7}             {name}", node.samples)?;
        }
        writeln!(out, "-----------------------------------------------")
    }
}

struct GprofCycles {
    members: Vec<Vec<usize>>,
    of: HashMap<CostCentreId, usize>,
}

impl GprofCycles {
    /// Kosaraju's algorithm without recursion: call chains may be very long.
    fn of(graph: &GraphView) -> GprofCycles {
        let places: HashMap<CostCentreId, usize> = graph.nodes.iter().map(|node| node.function).zip(0..).collect();
        let callees: Vec<Vec<usize>> = graph
            .nodes
            .iter()
            .map(|node| node.callees.iter().filter_map(|arc| places.get(&arc.function).copied()).collect())
            .collect();
        // Computed from callees: with mutual recursion, the view may have an arc at only one of its ends.
        let mut callers: Vec<Vec<usize>> = vec![Vec::new(); callees.len()];
        for (caller, list) in callees.iter().enumerate() {
            for &callee in list {
                if let Some(callers) = callers.get_mut(callee) {
                    callers.push(caller);
                }
            }
        }
        // Functions newly reached from `start`, callees before callers.
        let search = |found: &mut Vec<bool>, start: usize, arcs: &[Vec<usize>]| -> Vec<usize> {
            let neighbours = |at: usize| arcs.get(at).cloned().unwrap_or_default();
            let mut order = Vec::new();
            let mut take = |at: usize| found.get_mut(at).is_some_and(|found| !std::mem::replace(found, true));
            if !take(start) {
                return order;
            }
            let mut path = vec![(start, neighbours(start))];
            while let Some((at, rest)) = path.last_mut() {
                match rest.pop() {
                    Some(next) if take(next) => path.push((next, neighbours(next))),
                    Some(_) => {}
                    None => {
                        order.push(*at);
                        path.pop();
                    }
                }
            }
            order
        };
        let mut found = vec![false; graph.nodes.len()];
        let order: Vec<usize> = (0..graph.nodes.len()).flat_map(|at| search(&mut found, at, &callees)).collect();
        let mut found = vec![false; graph.nodes.len()];
        let components = order.into_iter().rev().map(|at| search(&mut found, at, &callers));
        let members: Vec<Vec<usize>> = components.filter(|members| members.len() > 1).collect();
        let mut of = HashMap::new();
        for (cycle, at) in members.iter().zip(0..) {
            of.extend(cycle.iter().filter_map(|&i| Some((graph.nodes.get(i)?.function, at))));
        }
        GprofCycles { members, of }
    }
}

fn period(export: &Export<'_>, in_unit: impl Fn(u64) -> f64) -> String {
    let flat = FlatView::new(export.profile, export.selection).total;
    match flat.samples {
        0 => "0".to_owned(),
        samples => format!("{:.3}", in_unit(flat.weight) / samples as f64),
    }
}
