//! The service's own metrics in the Prometheus text format.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::watch::{Overview, WatchStatus};

/// Metrics of the service itself, without its watches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceMetrics {
    /// Start time, seconds since 1970.
    pub started: u64,
    /// CPU time used, seconds.
    pub cpu_seconds: f64,
    /// Resident memory, bytes.
    pub resident_bytes: u64,
    /// Running sessions, without those of watches.
    pub sessions_running: u64,
    /// Ended sessions kept for their owners.
    pub sessions_ended: u64,
    /// Reloads of the configuration that succeeded, and that were refused.
    pub reloads: (u64, u64),
    /// Whether the configuration in force is the file's last version.
    pub configuration_good: bool,
}

/// Renders all metrics as text.
#[must_use]
pub fn render(own: &ServiceMetrics, overview: &Overview) -> String {
    let mut text = MetricsText(String::with_capacity(4096));
    let version = env!("CARGO_PKG_VERSION");
    text.metric("ccsd_build_info", "gauge", "Version of ccsd.");
    text.line("ccsd_build_info", &[("version", version)], 1);
    text.one("ccsd_start_time_seconds", "gauge", "When the service began, seconds since 1970.", own.started);
    text.one("ccsd_cpu_seconds_total", "counter", "CPU time that the service has used.", own.cpu_seconds);
    text.one("ccsd_resident_memory_bytes", "gauge", "Memory of the service.", own.resident_bytes);
    text.metric("ccsd_sessions", "gauge", "Sessions that clients have asked for.");
    text.line("ccsd_sessions", &[("state", "running")], own.sessions_running);
    text.line("ccsd_sessions", &[("state", "ended")], own.sessions_ended);
    text.metric("ccsd_config_reloads_total", "counter", "Times that the configuration was read anew.");
    text.line("ccsd_config_reloads_total", &[("result", "taken_up")], own.reloads.0);
    text.line("ccsd_config_reloads_total", &[("result", "refused")], own.reloads.1);
    let good = u8::from(own.configuration_good);
    text.one("ccsd_config_good", "gauge", "1 if the configuration file was good when it was last read.", good);
    let step = overview.step;
    text.one("ccsd_budget_step", "gauge", "Steps by which watches do less to stay within the budget.", step);
    let over = u8::from(overview.over_budget);
    text.one("ccsd_budget_exceeded", "gauge", "1 if the budget is exceeded and all steps are taken.", over);
    text.one("ccsd_stored_bytes", "gauge", "Bytes of the stored profiles.", overview.stored_bytes);
    let removed = overview.removed_segments;
    text.one("ccsd_removed_segments_total", "counter", "Segments removed for their age or for want of room.", removed);
    text.one("ccsd_looks_total", "counter", "Looks for processes.", overview.looks);
    text.one("ccsd_look_cpu_seconds_total", "counter", "CPU time that these took.", overview.look_seconds);
    let of_watches: [OfWatches; 11] = [
        ("processes", "gauge", "Processes that fit the rule.", |watch| watch.processes as f64),
        ("refused_processes", "gauge", "Processes that the kernel refuses.", |watch| watch.refused as f64),
        ("profiling", "gauge", "1 while a session runs.", |watch| f64::from(u8::from(watch.profiling))),
        ("rate_hz", "gauge", "Samples per second of CPU time.", |watch| watch.rate_hz.into()),
        ("configured_rate_hz", "gauge", "The same as configured.", |watch| watch.configured_rate_hz.into()),
        ("samples_total", "counter", "Samples received.", |watch| watch.samples as f64),
        ("missing_samples_total", "counter", "Samples lost, throttled, dropped or undelivered.", |watch| {
            watch.missing as f64
        }),
        ("target_cpu_seconds_total", "counter", "CPU time of its processes.", |watch| watch.target_cpu_ns as f64 / 1e9),
        ("segments_total", "counter", "Segments begun.", |watch| watch.segments as f64),
        ("written_bytes_total", "counter", "Bytes written.", |watch| watch.bytes as f64),
        ("problem", "gauge", "1 if nothing is collected or stored.", |watch| {
            f64::from(u8::from(watch.problem.is_some()))
        }),
    ];
    for (name, kind, help, value) in of_watches {
        let name = format!("ccsd_watch_{name}");
        text.metric(&name, kind, help);
        for watch in &overview.watches {
            text.line(&name, &[("watch", &watch.name)], value(watch));
        }
    }
    text.0
}

/// A metric of every watch: suffix of the name, type, help, and value.
type OfWatches = (&'static str, &'static str, &'static str, fn(&WatchStatus) -> f64);

struct MetricsText(String);

impl MetricsText {
    fn metric(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Label names and values need no escapes: see `WatchName`.
    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let labels: Vec<String> = labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
        let _ = writeln!(self.0, "{name}{{{}}} {value}", labels.join(","));
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.metric(name, kind, help);
        let _ = writeln!(self.0, "{name} {value}");
    }
}

/// Replaces a file atomically: a reader finds the old or the new text, never a part.
///
/// # Errors
/// Those of writing the file.
pub fn write_file(path: &Path, text: &str) -> io::Result<()> {
    // node_exporter reads names that end in .prom.
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let options = || OpenOptions::new().write(true).create_new(true).mode(0o644).open(&temporary);
    let mut file = match options() {
        // Left by a process that was killed while writing.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(&temporary)?;
            options()?
        }
        other => other?,
    };
    // Not synced: after a power failure the metrics are outdated anyway.
    let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_explained_and_every_line_is_one() {
        let watch =
            WatchStatus { name: "nginx".to_owned(), samples: 7, target_cpu_ns: 1_500_000_000, ..Default::default() };
        let overview = Overview { watches: vec![watch], step: 2, ..Overview::default() };
        let text = render(&ServiceMetrics { reloads: (3, 1), ..ServiceMetrics::default() }, &overview);
        let mut explained = "";
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                explained = rest.split(' ').next().unwrap();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert_eq!(name, explained);
                assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            } else {
                let (name, value) = line.rsplit_once(' ').unwrap();
                assert_eq!(name.split('{').next().unwrap(), explained);
                assert!(value.parse::<f64>().is_ok(), "{line}");
            }
        }
        for line in [
            "ccsd_budget_step 2",
            "ccsd_watch_samples_total{watch=\"nginx\"} 7",
            "ccsd_watch_target_cpu_seconds_total{watch=\"nginx\"} 1.5",
            "ccsd_config_reloads_total{result=\"refused\"} 1",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in {text}");
        }
    }

    #[test]
    fn a_file_is_replaced_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ccsd.prom");
        write_file(&path, "a 1\n").unwrap();
        // A left-over temporary file that is somebody's link.
        let temporary = dir.path().join("ccsd.prom.tmp");
        std::os::unix::fs::symlink("/nonexistent/x", &temporary).unwrap();
        write_file(&path, "a 2\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "a 2\n");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(write_file(&dir.path().join("none/ccsd.prom"), "").is_err());
    }
}
