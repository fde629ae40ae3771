//! One HTML file that needs nothing else: opened from disk, it shows the stacks as a flame graph, functions, callers and
//! callees, the call graph, the hot path and what ran when, and answers questions (hide, focus, ignore, of which time) itself.
//!
//! Names come into the page as JSON in an element that is not executed, with `<`, `>` and `&` escaped, and from there only
//! as text, never as markup; a content security policy forbids every request.

mod timeline;

use std::borrow::Cow;
use std::io::{self, Write};

use hashbrown::HashMap;
use serde::Serialize;

use super::{Export, unit_name};
use crate::ids::CostCentreId;
use crate::labels::Labels;
use crate::sanitise;
use crate::view::TreeView;

use timeline::{Packed, Timeline};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
/// In the order in which they need each other.
const SCRIPTS: [&str; 5] = [
    include_str!("model.js"),
    include_str!("flame.js"),
    include_str!("graph.js"),
    include_str!("times.js"),
    include_str!("page.js"),
];
/// A timeline is made coarser down to so many columns before stacks are summed up.
const FEWEST_COLUMNS: usize = 20;

/// Functions that the page knows by number: `[elided]` and `[root]` are 0 and 1 in every profile.
const PRUNED: &str = "[pruned]";

#[derive(Serialize)]
struct Data {
    facts: String,
    remarks: Vec<String>,
    unit: &'static str,
    images: Vec<String>,
    /// Name, image, file and line of the declaration.
    functions: Vec<(String, usize, Option<String>, u32)>,
    /// The functions that only start the program or its threads: the page folds them until it is asked for them.
    startup: Vec<u32>,
    /// Of every node of the tree of stacks: the node of its caller, before it, or -1.
    parents: Vec<i64>,
    /// Its function * 2, + 1 if the entry is marked.
    entries: Vec<u32>,
    /// The nodes that their parent may not have called: recursion was squeezed out between the two.
    gaps: Vec<usize>,
    /// The nodes whose call by their parent may be another in part, because functions are hidden or merged.
    unsure: Vec<usize>,
    /// What was spent in exactly this stack.
    weights: Vec<u64>,
    /// And when.
    timeline: Option<Packed>,
}

pub(super) fn write(export: &Export<'_>, out: &mut impl Write) -> io::Result<()> {
    let tree = TreeView::new(export.profile, export.selection);
    let title = escape(&export.title());
    let frame = PAGE.len() + STYLE.len() + SCRIPTS.iter().map(|it| it.len()).sum::<usize>() + 2 * title.len();
    let most = export.max_bytes.saturating_sub(frame);
    let mut nodes = tree.nodes.len();
    let mut timeline = Timeline::new(export, &tree);
    let json = loop {
        let json = data(export, &tree, nodes, timeline.as_ref())?;
        if json.len() <= most || (nodes == 0 && timeline.is_none()) {
            break json;
        }
        timeline = match timeline {
            Some(fine) if fine.len() > FEWEST_COLUMNS => Some(fine.coarser()),
            _ if nodes == 0 => None,
            coarse => {
                // Names are not in proportion to nodes, so more than one round may be needed.
                nodes = (nodes as u64 * most as u64 * 9 / (json.len() as u64 * 10).max(1)) as usize;
                coarse
            }
        };
    };
    if json.len() > most {
        let least = frame.saturating_add(json.len());
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a page takes at least {least} bytes, and {} are allowed", export.max_bytes),
        ));
    }
    let script = SCRIPTS.concat();
    // One pass, so that nothing that is put in is looked at for placeholders.
    let mut rest = PAGE;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((name, after)) = after.split_once("}}") else { break };
        out.write_all(before.as_bytes())?;
        let text = match name {
            "title" => title.as_str(),
            "style" => STYLE,
            "data" => json.as_str(),
            _ => script.as_str(),
        };
        out.write_all(text.as_bytes())?;
        rest = after;
    }
    out.write_all(rest.as_bytes())
}

/// The data of the page, with the `most` heaviest nodes of the tree.
fn data(export: &Export<'_>, tree: &TreeView, most: usize, timeline: Option<&Timeline>) -> io::Result<String> {
    let profile = export.profile;
    let metric = export.metric();
    let mut kept: Vec<usize> = (0..tree.nodes.len()).collect();
    let weight = |i: usize| tree.nodes.get(i).map_or(0, |node| node.weight);
    // Callers are at least as heavy as their callees, and come first among equals.
    kept.sort_by(|&a, &b| weight(b).cmp(&weight(a)).then(a.cmp(&b)));
    kept.truncate(most);
    kept.sort_unstable();
    let place: HashMap<usize, i64> = kept.iter().copied().zip(0..).collect();
    let mut numbers = Numbers::default();
    let labels = export.profile.labels();
    // They stand for something in the page, at these places.
    numbers.function(&labels, CostCentreId::ELIDED);
    numbers.function(&labels, CostCentreId::ROOT);
    let (mut parents, mut entries, mut weights) = (Vec::new(), Vec::new(), Vec::new());
    let (mut gaps, mut unsure) = (Vec::new(), Vec::new());
    for node in kept.iter().filter_map(|&i| tree.nodes.get(i)) {
        gaps.extend(node.gap.then_some(parents.len()));
        unsure.extend(node.approximate.then_some(parents.len()));
        parents.push(node.parent.and_then(|parent| place.get(&parent).copied()).unwrap_or(-1));
        entries.push(numbers.function(&labels, node.function) * 2 + u32::from(node.marked));
        weights.push(node.self_weight);
    }
    // What was left out stays within its caller.
    let mut pruned: HashMap<i64, u64> = HashMap::new();
    // The nearest caller that is there, which for a node that is there is the node itself. Callers come before callees.
    let mut callers: Vec<i64> = Vec::with_capacity(tree.nodes.len());
    let (mut left_out, mut left_out_weight) = (0u64, 0u64);
    for (i, node) in tree.nodes.iter().enumerate() {
        let caller = node.parent.and_then(|parent| callers.get(parent).copied()).unwrap_or(-1);
        let here = place.get(&i).copied();
        callers.push(here.unwrap_or(caller));
        if here.is_none() {
            left_out += 1;
            left_out_weight = left_out_weight.saturating_add(node.self_weight);
            let sum = pruned.entry(caller).or_default();
            *sum = sum.saturating_add(node.self_weight);
        }
    }
    let mut pruned: Vec<(i64, u64)> = pruned.into_iter().filter(|(_, weight)| *weight > 0).collect();
    pruned.sort_unstable();
    let mut stands: HashMap<i64, usize> = HashMap::new();
    for (parent, weight) in pruned {
        stands.insert(parent, parents.len());
        parents.push(parent);
        entries.push(numbers.pruned() * 2 + 1);
        weights.push(weight);
    }
    let mut startup: Vec<u32> =
        profile.startup_functions().iter().filter_map(|id| numbers.known.get(id).copied()).collect();
    startup.sort_unstable();
    let mut remarks = export.remarks();
    if left_out > 0 {
        let share = 100.0 * left_out_weight as f64 / (tree.total.weight.max(1)) as f64;
        let all = tree.nodes.len();
        remarks.push(format!(
            "{left_out} of {all} stacks, {share:.2}% of the weight, are too many for this file and stand as {PRUNED} in their \
             callers; --max-size allows more"
        ));
    }
    let all = export.columns.len();
    match timeline {
        Some(timeline) if timeline.len() < all => remarks.push(format!(
            "the timeline has {} parts of at most {:.3} s: {all} are too many for this file; --max-size allows more",
            timeline.len(),
            timeline.longest_ns() as f64 / 1e9,
        )),
        None if all >= 2 => {
            remarks.push("the timeline is left out for the size of this file; --max-size allows more".to_owned())
        }
        _ => {}
    }
    let at = |node: usize| match place.get(&node) {
        Some(&at) => usize::try_from(at).ok(),
        None => stands.get(callers.get(node)?).copied(),
    };
    let timeline = timeline.map(|timeline| timeline.packed(at));
    let seconds = profile.accounting().duration_ns as f64 / 1e9;
    let data = Data {
        facts: format!(
            "{} samples of {} at {} Hz in {seconds:.2} s; {} lost, {} truncated",
            tree.total.samples,
            sanitise(&metric.name),
            profile.session().rate_hz,
            profile.accounting().lost,
            profile.accounting().truncated_total(),
        ),
        remarks,
        unit: unit_name(metric.unit),
        images: numbers.images,
        functions: numbers.functions,
        startup,
        parents,
        entries,
        gaps,
        unsure,
        weights,
        timeline,
    };
    Ok(serde_json::to_string(&data)
        .map_err(io::Error::from)?
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026"))
}

/// Functions and images by their numbers in the page, which has only those that it needs.
#[derive(Default)]
struct Numbers {
    functions: Vec<(String, usize, Option<String>, u32)>,
    known: HashMap<CostCentreId, u32>,
    images: Vec<String>,
    known_images: HashMap<String, usize>,
    pruned: Option<u32>,
}

impl Numbers {
    fn function(&mut self, labels: &Labels<'_>, id: CostCentreId) -> u32 {
        if let Some(&number) = self.known.get(&id) {
            return number;
        }
        let profile = labels.profile();
        let image = self.image(&sanitise(profile.image_name(id)));
        let centre = profile.cost_centre(id);
        let file = centre.and_then(|it| it.file.as_deref()).map(|it| sanitise(it).into_owned());
        let line = centre.map_or(0, |it| it.line);
        let number = self.functions.len() as u32;
        self.functions.push((sanitise(&labels.label(id)).into_owned(), image, file, line));
        self.known.insert(id, number);
        number
    }

    fn pruned(&mut self) -> u32 {
        if let Some(number) = self.pruned {
            return number;
        }
        let image = self.image("[ccsd]");
        let number = self.functions.len() as u32;
        self.functions.push((PRUNED.to_owned(), image, None, 0));
        self.pruned = Some(number);
        number
    }

    fn image(&mut self, name: &str) -> usize {
        let next = self.images.len();
        let number = *self.known_images.entry_ref(name).or_insert(next);
        if number == next {
            self.images.push(name.to_owned());
        }
        number
    }
}

/// Text within an element or an attribute.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        let entity: Cow<'_, str> = match c {
            '&' => "&amp;".into(),
            '<' => "&lt;".into(),
            '>' => "&gt;".into(),
            '"' => "&quot;".into(),
            '\'' => "&#39;".into(),
            c => c.to_string().into(),
        };
        safe.push_str(&entity);
    }
    safe
}
