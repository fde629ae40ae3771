//! Size and cost of the profile: the columns of Spivey's Table I.

use ccsd_profile::OwnCpu;
use ccsd_profile::view::StatsView;

use super::presentation::Presentation;
use crate::format::{bytes, count, nanoseconds, ratio};
use crate::style::Tone;
use crate::table::{TableCell, TableColumn, TextTable};

pub fn view(shown: &Presentation<'_>) -> StatsView {
    StatsView::new(shown.profile, shown.file_bytes)
}

pub fn text(shown: &Presentation<'_>) -> String {
    let view = view(shown);
    let mut table = TextTable::new(vec![TableColumn::text(""), TableColumn::number(""), TableColumn::text("")]);
    let mut row = |name: &str, value: String, remark: String| {
        table.row(vec![name.into(), TableCell::toned(Tone::Strong, value), TableCell::toned(Tone::Faint, remark)]);
    };
    let one = |value: f64| format!("{value:.2}");
    let per = |sum: u64, n: u64| if n == 0 { "-".to_owned() } else { one(sum as f64 / n as f64) };
    let stack = format!("raw stacks: {}", one(view.stack_depth_average));
    row("samples", count(view.samples), String::new());
    row("functions", count(view.functions), "on sampled stacks".to_owned());
    row(
        "pushes",
        count(view.pushes),
        format!("{} a sample; the stacks have {} frames in all", per(view.pushes, view.samples), count(view.frames)),
    );
    row("states", count(view.states), format!("contexts; {} of them were sampled", count(view.charged_states)));
    let table_stats = &view.table;
    let known = table_stats.transition_hits;
    row(
        "transitions",
        count(view.transitions),
        format!("answered {} of {} pushes", ratio(known, table_stats.pushes()), count(table_stats.pushes())),
    );
    row("depth, average", one(view.depth_average), stack);
    row("depth, maximum", count(view.depth_maximum), format!("raw stacks: {}", count(view.stack_depth_maximum)));
    row(
        "context memory",
        bytes(view.context_bytes),
        format!(
            "{} bytes a context; budget {}",
            per(view.context_bytes, table_stats.contexts),
            bytes(table_stats.limit_bytes)
        ),
    );
    let file = view.file_bytes;
    row(
        "file",
        file.map_or_else(|| "-".to_owned(), bytes),
        format!("{} bytes a sample", per(file.unwrap_or(0), view.samples)),
    );
    row(
        "context table",
        count(table_stats.new_contexts),
        format!(
            "contexts made; {} found by their history, {} pushes elided",
            count(table_stats.known_contexts),
            count(table_stats.elided)
        ),
    );
    let accounting = shown.profile.accounting();
    if accounting.own.memory_bytes > 0 {
        let budget = bytes(accounting.own.memory_bytes);
        row(
            "memory of all tables",
            bytes(accounting.own.held_bytes),
            format!("at the end; budget {budget} (--memory)"),
        );
    }
    for (phase, ns) in accounting.own.by_phase.iter().flat_map(OwnCpu::all) {
        let samples = accounting.received;
        let remark = match (phase.is_once(), samples) {
            (true, _) => "once, however long the session is".to_owned(),
            (false, 0) => String::new(),
            (false, samples) => format!("{:.1} us a sample", ns as f64 / 1e3 / samples as f64),
        };
        row(&format!("CPU: {}", phase.text()), nanoseconds(ns), remark);
    }
    for (table, times) in accounting.shed.iter() {
        row(&format!("full: {}", table.key().replace('_', " ")), count(times), format!("times {}", table.text()));
    }
    table.render(shown.layout)
}
