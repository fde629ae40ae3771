//! Callgrind's profile format (<https://valgrind.org/docs/manual/cl-format.html>).
//!
//! Calls are the outgoing arcs of a graph view (I9). Call counts are unknown: `calls=` has samples, and the description
//! says so. It cannot be 0: callgrind_annotate would add the call's cost to the caller's own, and gprof2dot divides a
//! function's cost among its callers in proportion to it.

use std::collections::BTreeSet;
use std::io::{self, Write};

use hashbrown::HashMap;

use super::request::{Export, unit_name};
use crate::ids::CostCentreId;
use crate::labels::Labels;
use crate::text::sanitise;
use crate::view::{GraphView, LineRow, LinesView, call_lines};

pub(super) fn write(export: &Export<'_>, out: &mut impl Write) -> io::Result<()> {
    let profile = export.profile;
    let graph = GraphView::new(profile, export.selection);
    let lines = LinesView::new(profile, export.selection).functions;
    let lines: HashMap<CostCentreId, Vec<LineRow>> = lines.into_iter().map(|it| (it.function, it.lines)).collect();
    let (calls, unknown_weight) = call_lines(profile, export.selection);
    let metric = export.metric();
    writeln!(out, "# callgrind format\nversion: 1\ncreator: ccsd {}", sanitise(&profile.session().version))?;
    for pid in profile.session().pids.iter().take(1) {
        writeln!(out, "pid: {pid}")?;
    }
    writeln!(out, "cmd: {}", export.title())?;
    for remark in export.remarks() {
        writeln!(out, "desc: ccsd: {remark}")?;
    }
    if let Some(remark) = export.unknown_lines(unknown_weight) {
        writeln!(out, "desc: ccsd: {remark}")?;
    }
    writeln!(out, "desc: ccsd: the calls counted are samples")?;
    // An event's name is one word; its long name has the unit.
    let event: String = metric.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    writeln!(out, "positions: line\nevent: {event} : {} in {}", sanitise(&metric.name), unit_name(metric.unit))?;
    writeln!(out, "events: {event}\nsummary: {}\n", graph.total.weight)?;

    let mut names = IndexedNames { labels: profile.full_labels(), known: BTreeSet::new() };
    for node in &graph.nodes {
        let declared = profile.cost_centre(node.function).map_or(0, |it| it.line);
        let own_file = names.file(node.function);
        let (image, function) = (names.image(node.function), names.function(node.function));
        writeln!(out, "ob={image}\nfl={own_file}\nfn={function}")?;
        // Lines with calls only are listed, too: readers show the source around listed lines.
        for line in lines.get(&node.function).into_iter().flatten() {
            let number = if line.line == 0 { declared } else { line.line };
            // A part of the body included from another file.
            let elsewhere = line.line > 0 && !line.file.is_empty() && sanitise(&line.file) != own_file;
            if elsewhere {
                writeln!(out, "fi={}", sanitise(&line.file))?;
            }
            writeln!(out, "{number} {}", line.weight)?;
            if elsewhere {
                writeln!(out, "fe={own_file}")?;
            }
        }
        for arc in &node.callees {
            let file = names.file(arc.function);
            let (mut image, mut function) = (names.image(arc.function), names.function(arc.function));
            if arc.approximate {
                writeln!(out, "# approximate: the callee may be another in a part of this")?;
            }
            for (line, sums) in calls.get(&(node.function, arc.function)).into_iter().flatten() {
                let line = profile.line(*line).filter(|line| line.line > 0);
                let elsewhere = line.filter(|line| !line.file.is_empty() && sanitise(&line.file) != own_file);
                if let Some(line) = elsewhere {
                    writeln!(out, "fi={}", sanitise(&line.file))?;
                }
                writeln!(out, "cob={image}\ncfi={file}\ncfn={function}\ncalls={} 0", sums.samples.max(1))?;
                writeln!(out, "{} {}", line.map_or(declared, |line| line.line), sums.weight)?;
                if elsewhere.is_some() {
                    writeln!(out, "fe={own_file}")?;
                }
                (image, function) = (names.image(arc.function), names.function(arc.function));
            }
        }
        writeln!(out)?;
    }
    writeln!(out, "totals: {}", graph.total.weight)
}

struct IndexedNames<'a> {
    labels: Labels<'a>,
    known: BTreeSet<(char, usize)>,
}

impl IndexedNames<'_> {
    fn name(&mut self, kind: char, number: usize, name: impl FnOnce() -> String) -> String {
        let number = number + 1;
        if self.known.insert((kind, number)) { format!("({number}) {}", name()) } else { format!("({number})") }
    }

    fn function(&mut self, id: CostCentreId) -> String {
        let name = sanitise(&self.labels.label(id)).into_owned();
        self.name('n', id.index(), || name)
    }

    fn image(&mut self, id: CostCentreId) -> String {
        let profile = self.labels.profile();
        let image = profile.cost_centre(id).map(|it| it.image).unwrap_or(crate::ids::ImageId::CCSD);
        let name = || profile.image(image).map_or_else(|| "???".to_owned(), |it| sanitise(&it.name).into_owned());
        self.name('o', image.index(), name)
    }

    /// The source file, else the image: readers merge functions with the same file and name, such as every `_start`.
    fn file(&self, id: CostCentreId) -> String {
        let profile = self.labels.profile();
        let file = profile.cost_centre(id).and_then(|it| it.file.as_deref());
        file.map_or_else(|| format!("[{}]", sanitise(&profile.image_name(id))), |file| sanitise(file).into_owned())
    }
}
