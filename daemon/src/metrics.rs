//! The service's own metrics as OpenMetrics text.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
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
    /// Symbol workers that died or were killed for hanging.
    pub worker_failures: u64,
    /// Running sessions, without those of watches.
    pub sessions_running: u64,
    /// Ended sessions kept for their owners.
    pub sessions_ended: u64,
    /// Memory charged to users other than root and the group, bytes.
    pub users_bytes: u64,
    /// Reloads of the configuration that succeeded, and that were refused.
    pub reloads: (u64, u64),
    /// Whether the configuration in force is the file's last version.
    pub configuration_good: bool,
}

/// Renders all metrics as OpenMetrics text, only gauges and counters, so that node_exporter can read it, too.
#[must_use]
pub fn render(own: &ServiceMetrics, overview: &Overview) -> String {
    let mut text = MetricsText(String::with_capacity(4096));
    let version = env!("CARGO_PKG_VERSION");
    text.metric("ccsd_build_info", MetricKind::Gauge, "Version of ccsd.");
    text.line("ccsd_build_info", &[("version", version)], 1);
    text.gauge("ccsd_start_time_seconds", "When the service began, seconds since 1970.", own.started);
    text.counter("ccsd_cpu_seconds", "CPU time that the service has used.", own.cpu_seconds);
    text.gauge("ccsd_resident_memory_bytes", "Memory of the service.", own.resident_bytes);
    text.counter("ccsd_worker_failures", "Symbol workers that died or hung, and were replaced.", own.worker_failures);
    text.metric("ccsd_sessions", MetricKind::Gauge, "Sessions that clients have asked for.");
    text.line("ccsd_sessions", &[("state", "running")], own.sessions_running);
    text.line("ccsd_sessions", &[("state", "ended")], own.sessions_ended);
    let help = "Memory that the sessions and streams of users other than root and the group take.";
    text.gauge("ccsd_users_memory_bytes", help, own.users_bytes);
    text.metric("ccsd_config_reloads", MetricKind::Counter, "Times that the configuration was reloaded.");
    text.line("ccsd_config_reloads_total", &[("result", "taken_up")], own.reloads.0);
    text.line("ccsd_config_reloads_total", &[("result", "refused")], own.reloads.1);
    let good = u8::from(own.configuration_good);
    text.gauge("ccsd_config_good", "1 if the configuration file was good when it was last read.", good);
    let limits = &overview.limits;
    text.gauge("ccsd_budget_cpu_percent", "Configured maximum use of one CPU.", limits.cpu_percent);
    text.gauge("ccsd_budget_memory_bytes", "Configured maximum memory of the service.", limits.memory);
    text.gauge("ccsd_budget_step", "Steps by which watches do less to stay within the budget.", overview.step);
    let over = u8::from(overview.over_budget);
    text.gauge("ccsd_budget_exceeded", "1 if the budget is exceeded and all steps are taken.", over);
    text.gauge("ccsd_retention_bytes", "Configured maximum size of all stored profiles.", limits.stored_bytes);
    text.gauge("ccsd_retention_age_seconds", "Configured maximum age of stored profiles.", limits.age_seconds);
    text.gauge("ccsd_stored_bytes", "Bytes of the stored profiles.", overview.stored_bytes);
    let removed = overview.removed_segments;
    text.counter("ccsd_removed_segments", "Segments removed for their age or for want of room.", removed);
    text.counter("ccsd_looks", "Looks for processes.", overview.looks);
    text.counter("ccsd_look_cpu_seconds", "CPU time that these took.", overview.look_seconds);
    for (name, kind, help, value) in OF_WATCHES {
        let family = format!("ccsd_watch_{name}");
        text.metric(&family, kind, help);
        let sample = kind.sample(&family);
        for watch in &overview.watches {
            if let Some(value) = value(watch) {
                text.line(&sample, &[("watch", &watch.name)], value);
            }
        }
    }
    text.0.push_str("# EOF\n");
    text.0
}

/// A metric of every watch: suffix of the family's name, type, help, and value.
type OfWatches = (&'static str, MetricKind, &'static str, fn(&WatchStatus) -> Option<f64>);

const OF_WATCHES: [OfWatches; 15] = [
    ("processes", MetricKind::Gauge, "Processes that fit the rule.", |watch| Some(watch.processes as f64)),
    ("refused_processes", MetricKind::Gauge, "Processes that the kernel refuses.", |watch| Some(watch.refused as f64)),
    ("profiling", MetricKind::Gauge, "1 while a session runs.", |watch| Some(f64::from(u8::from(watch.profiling)))),
    ("rate_hz", MetricKind::Gauge, "Samples per second of CPU time.", |watch| Some(watch.rate_hz.into())),
    ("configured_rate_hz", MetricKind::Gauge, "The same as configured.", |watch| Some(watch.configured_rate_hz.into())),
    ("expected_samples", MetricKind::Counter, "Samples that should have been received.", |watch| {
        Some(watch.expected() as f64)
    }),
    ("samples", MetricKind::Counter, "Samples received.", |watch| Some(watch.samples as f64)),
    ("missing_samples", MetricKind::Counter, "Samples lost, throttled, dropped or undelivered.", |watch| {
        Some(watch.missing as f64)
    }),
    ("unstored_samples", MetricKind::Counter, "Samples that could not be written.", |watch| {
        Some(watch.unstored as f64)
    }),
    ("target_cpu_seconds", MetricKind::Counter, "CPU time of its processes.", |watch| {
        Some(watch.target_cpu_ns as f64 / 1e9)
    }),
    ("uncovered_seconds", MetricKind::Counter, "Time in which processes matched and nothing was stored.", |watch| {
        Some(watch.uncovered_ns as f64 / 1e9)
    }),
    ("segments", MetricKind::Counter, "Segments begun.", |watch| Some(watch.segments as f64)),
    ("written_bytes", MetricKind::Counter, "Bytes written.", |watch| Some(watch.bytes as f64)),
    ("last_written_time_seconds", MetricKind::Gauge, "When a profile was last written, seconds since 1970.", |watch| {
        (watch.last_written > 0).then_some(watch.last_written as f64)
    }),
    ("problem", MetricKind::Gauge, "1 if nothing is collected or stored.", |watch| {
        Some(f64::from(u8::from(watch.problem.is_some())))
    }),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum MetricKind {
    Gauge,
    Counter,
}

impl MetricKind {
    fn sample(self, family: &str) -> String {
        match self {
            MetricKind::Gauge => family.to_owned(),
            MetricKind::Counter => format!("{family}_total"),
        }
    }
}

struct MetricsText(String);

impl MetricsText {
    fn metric(&mut self, family: &str, kind: MetricKind, help: &str) {
        let kind = if kind == MetricKind::Gauge { "gauge" } else { "counter" };
        let _ = writeln!(self.0, "# TYPE {family} {kind}\n# HELP {family} {help}");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let labels: Vec<String> = labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
        let _ = writeln!(self.0, "{name}{{{}}} {value}", labels.join(","));
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.metric(name, MetricKind::Gauge, help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn counter(&mut self, family: &str, help: &str, value: impl std::fmt::Display) {
        self.metric(family, MetricKind::Counter, help);
        let _ = writeln!(self.0, "{family}_total {value}");
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
    // Readable by others despite the umask. Not synced: after a power failure the metrics are outdated anyway.
    let written = file
        .set_permissions(fs::Permissions::from_mode(0o644))
        .and_then(|()| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::ServiceLimits;

    #[test]
    fn every_metric_is_explained_and_every_line_is_one() {
        let watch = WatchStatus {
            name: "nginx".to_owned(),
            samples: 7,
            missing: 3,
            target_cpu_ns: 1_500_000_000,
            ..Default::default()
        };
        let limits = ServiceLimits::of(&crate::config::Config::default());
        let overview = Overview { watches: vec![watch], step: 2, limits, ..Overview::default() };
        assert!(
            !render(&ServiceMetrics::default(), &overview).contains("last_written_time_seconds{"),
            "nothing is written yet"
        );
        let text = render(&ServiceMetrics { reloads: (3, 1), ..ServiceMetrics::default() }, &overview);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.last(), Some(&"# EOF"));
        let (mut family, mut kind, mut families) = ("", "", std::collections::HashSet::new());
        for line in lines.iter().rev().skip(1).rev() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                (family, kind) = rest.split_once(' ').unwrap();
                assert!(families.insert(family), "{family} appears twice");
                assert!(!family.ends_with("_total"), "{family}: OpenMetrics adds the suffix to the samples");
            } else if let Some(rest) = line.strip_prefix("# HELP ") {
                assert_eq!(rest.split(' ').next(), Some(family));
            } else {
                let (name, value) = line.rsplit_once(' ').unwrap();
                let sample = name.split('{').next().unwrap();
                assert_eq!(sample, if kind == "counter" { format!("{family}_total") } else { family.to_owned() });
                assert!(value.parse::<f64>().is_ok(), "{line}");
            }
        }
        for line in [
            "ccsd_budget_step 2",
            "ccsd_watch_samples_total{watch=\"nginx\"} 7",
            "ccsd_watch_target_cpu_seconds_total{watch=\"nginx\"} 1.5",
            "ccsd_config_reloads_total{result=\"refused\"} 1",
            "ccsd_watch_expected_samples_total{watch=\"nginx\"} 10",
            "ccsd_retention_bytes 1073741824",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in {text}");
        }
    }

    #[test]
    fn a_file_is_replaced_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ccsd.prom");
        write_file(&path, "a 1\n").unwrap();
        // A left-over temporary file that is another user's link.
        let temporary = dir.path().join("ccsd.prom.tmp");
        std::os::unix::fs::symlink("/nonexistent/x", &temporary).unwrap();
        write_file(&path, "a 2\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "a 2\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(write_file(&dir.path().join("none/ccsd.prom"), "").is_err());
    }
}
