//! Processes and their threads.

use std::collections::HashMap;

use ccsd_profile::sanitise;
use ccsd_profile::view::{Share, ThreadsView};

use super::flat::interval;
use super::presentation::Presentation;
use crate::format::{UnitScale, count, counted, percent};
use crate::style::Tone;
use crate::table::{TableCell, TableColumn, TextTable};

pub fn view(shown: &Presentation<'_>) -> ThreadsView {
    let mut view = ThreadsView::new(shown.profile, &shown.selection);
    if let Some(column) = shown.sort {
        view.sort(column);
    }
    view
}

pub fn text(shown: &Presentation<'_>) -> String {
    let view = view(shown);
    let scale = UnitScale::new(shown.metric.unit, view.total.weight);
    let mut table = TextTable::new(vec![
        TableColumn::number(scale.unit),
        TableColumn::number("%"),
        TableColumn::number("95% interval").if_room(),
        TableColumn::number("samples"),
        TableColumn::number("id"),
        TableColumn::text("process and threads"),
    ]);
    let row = |table: &mut TextTable, tone, (weight, samples, share): (u64, u64, Share), id: String, name: String| {
        table.row(vec![
            TableCell::toned(tone, scale.weight(weight)),
            TableCell::toned(tone, percent(share.fraction)),
            interval(&share),
            TableCell::toned(tone, count(samples)),
            TableCell::toned(tone, id),
            TableCell::toned(tone, name),
        ]);
    };
    let mut left = shown.limit.unwrap_or(usize::MAX);
    // Number, weight and samples of the omitted threads.
    let mut other = (0u64, 0u64, 0u64);
    let mut programs: HashMap<u32, u32> = HashMap::new();
    view.processes.iter().for_each(|process| *programs.entry(process.pid).or_default() += 1);
    for process in &view.processes {
        let mut name = sanitise(&process.name).into_owned();
        // Name the program if a process ran several.
        if !process.grouped && programs.get(&process.pid).is_some_and(|&count| count > 1) {
            name.push_str(&format!(" (program {})", process.exec_generation));
        }
        if left > 0 {
            let numbers = (process.weight, process.samples, process.share);
            let pid = if process.grouped { "many".to_owned() } else { process.pid.to_string() };
            row(&mut table, Tone::Strong, numbers, pid, name);
        }
        for thread in &process.threads {
            if thread.share.fraction < shown.min {
                other = (other.0 + 1, other.1.saturating_add(thread.weight), other.2.saturating_add(thread.samples));
                continue;
            }
            if left > 0 {
                let name = format!("    {}", sanitise(&thread.name));
                let tid = if process.grouped { "many".to_owned() } else { thread.tid.to_string() };
                let numbers = (thread.weight, thread.samples, thread.share);
                row(&mut table, Tone::Plain, numbers, tid, name);
            } else {
                other = (other.0 + 1, other.1.saturating_add(thread.weight), other.2.saturating_add(thread.samples));
            }
            left = left.saturating_sub(1);
        }
    }
    if other.0 > 0 {
        let more = counted(other.0, "more thread", "more threads");
        let numbers = (other.1, other.2, Share::from_weight(other.1, &view.total));
        row(&mut table, Tone::Faint, numbers, String::new(), format!("[{more}{}]", shown.hint()));
    }
    if view.processes.is_empty() { shown.nothing() } else { table.render(shown.layout) }
}
