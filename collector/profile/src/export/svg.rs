//! Flame graphs, drawn by inferno.

use std::io::{self, Write};

use inferno::flamegraph::{self, Options};

use super::{Export, folded, unit_name};

pub(super) fn write(export: &Export<'_>, out: &mut impl Write) -> io::Result<()> {
    let lines: Vec<String> =
        folded::lines(export).into_iter().map(|(stack, weight)| format!("{stack} {weight}")).collect();
    if lines.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no samples are selected: there is nothing to draw"));
    }
    let metric = export.metric();
    let mut options = Options::default();
    options.title = export.title();
    options.subtitle = Some(format!("{}; recursion is folded (ccsd)", metric.name));
    options.count_name = unit_name(metric.unit).to_owned();
    options.deterministic = true;
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out).map_err(io::Error::other)
}
