//! Which events of a recording become metrics of the profile: one, or those of one group.

use std::fs::File;

use ccsd_profile::{MAX_METRICS, Metric, Unit, sanitise};
use linux_perf_event_reader::{HardwareEventId, PerfEventType, RecordType, SoftwareCounterType};

use super::error::ImportError;
use super::header::{RecordedEvent, RecordingHeader};
use super::records::{FileRecord, Records};

pub struct MetricEvents {
    events: Vec<usize>,
    left_out: usize,
}

impl MetricEvents {
    /// The event of this name alone; without a name the first event that has samples, and those of its group. Fails if
    /// there is no such event, or none at all.
    pub fn of(file: &File, header: &RecordingHeader, event: Option<&str>) -> Result<MetricEvents, ImportError> {
        let attributes = &header.attributes;
        let mut events = match event {
            Some(event) => vec![named(attributes, event)?],
            None if attributes.len() > 1 => first_group(file, header),
            None if attributes.is_empty() => return Err(ImportError::Empty),
            None => vec![0],
        };
        let left_out = events.len().saturating_sub(MAX_METRICS);
        events.truncate(MAX_METRICS);
        Ok(MetricEvents { events, left_out })
    }

    pub fn first<'a>(&self, header: &'a RecordingHeader) -> Option<&'a RecordedEvent> {
        header.attributes.get(*self.events.first()?)
    }

    pub fn metric(&self, event: usize) -> Option<usize> {
        self.events.iter().position(|&it| it == event)
    }

    pub fn metrics(&self, header: &RecordingHeader) -> Vec<Metric> {
        let events = || self.events.iter().filter_map(|&event| header.attributes.get(event));
        let mut metrics: Vec<Metric> = events().map(metric).collect();
        let names: Vec<String> = metrics.iter().map(|metric| metric.name.clone()).collect();
        // `cpu-clock:u` and `cpu-clock:k` are not both `cpu-clock`; of what has one name even so, each is told by its number.
        for (at, (metric, event)) in metrics.iter_mut().zip(events()).enumerate() {
            if names.iter().filter(|&name| *name == metric.name).count() > 1 {
                let number = || format!("{}#{}", metric.name, at + 1);
                metric.name = event.name.clone().filter(|name| !names.contains(name)).unwrap_or_else(number);
            }
        }
        metrics
    }

    /// Notes about omitted events, given the number of their samples.
    pub fn notes(&self, header: &RecordingHeader, samples: u64) -> impl Iterator<Item = String> {
        let names =
            |metrics: &mut dyn Iterator<Item = Metric>| metrics.map(|it| it.name).collect::<Vec<_>>().join(", ");
        let others = (samples > 0).then(|| {
            let chosen = names(&mut self.metrics(header).into_iter());
            let all = names(&mut header.attributes.iter().map(metric));
            format!("{samples} samples of other events than {chosen} are left out; `ccsd import` --event chooses one of {all}")
        });
        let beyond = (self.left_out > 0).then(|| {
            format!("{} events of the group are left out: a profile has {MAX_METRICS} metrics at most", self.left_out)
        });
        others.into_iter().chain(beyond)
    }
}

/// The first event that has samples (those of tracers, intel_pt and dummy, have none), and those of its group.
fn first_group(file: &File, header: &RecordingHeader) -> Vec<usize> {
    let records = file.try_clone().map_err(|error| error.to_string()).and_then(|file| Records::new(file, header));
    let Ok(mut records) = records else { return vec![0] };
    let mut first: Option<(usize, Vec<usize>)> = None;
    while let Ok(Some(record)) = records.next() {
        if record.raw.record_type == RecordType::SAMPLE && first.as_ref().is_none_or(|(first, _)| record.event < *first)
        {
            first = Some((record.event, counted(&record)));
        }
        if first.as_ref().is_some_and(|(first, _)| *first == 0) {
            break;
        }
    }
    let (first, counted) = first.unwrap_or_default();
    if counted.len() > 1 {
        return counted;
    }
    let group = header.groups.iter().find(|&&(leader, end)| (leader..end).contains(&first));
    group.map_or(vec![first], |&(leader, end)| (leader..end.min(header.attributes.len())).collect())
}

fn counted(record: &FileRecord<'_>) -> Vec<usize> {
    let mut events: Vec<usize> = record.counters.iter().filter_map(|counter| record.event_of(counter)).collect();
    events.sort_unstable();
    events.dedup();
    events
}

/// The number of the event with this name, with or without its modifiers.
fn named(attributes: &[RecordedEvent], event: &str) -> Result<usize, ImportError> {
    let names =
        || attributes.iter().map(|attribute| (metric(attribute).name, attribute.name.clone().unwrap_or_default()));
    let is_it = |name: &str| name == event || name.strip_prefix(event).is_some_and(|rest| rest.starts_with([':', '/']));
    names().position(|(metric, name)| metric == event || is_it(&name)).ok_or_else(|| {
        let names: Vec<String> = names().map(|(metric, _)| metric).collect();
        ImportError::Unsupported(format!("it has no event {event}; it has {}", sanitise(&names.join(", "))))
    })
}

pub fn metric(event: &RecordedEvent) -> Metric {
    let named = event.name.clone();
    let (unit, name) = match event.attr.type_ {
        PerfEventType::Software(SoftwareCounterType::CpuClock) => (Unit::Nanoseconds, "cpu-clock".to_owned()),
        PerfEventType::Software(SoftwareCounterType::TaskClock) => (Unit::Nanoseconds, "task-clock".to_owned()),
        PerfEventType::Software(counter) => (Unit::Count, named.unwrap_or_else(|| software_name(counter).to_owned())),
        PerfEventType::Hardware(counter, _) => {
            let name = named.unwrap_or_else(|| hardware_name(counter).to_owned());
            (if name.starts_with("cycles") { Unit::Cycles } else { Unit::Count }, name)
        }
        _ => (Unit::Count, named.unwrap_or_else(|| "event".to_owned())),
    };
    Metric { name, unit }
}

/// What perf calls an event of the kernel (`perf list sw`); a recording through a pipe need not say.
const fn software_name(counter: SoftwareCounterType) -> &'static str {
    match counter {
        SoftwareCounterType::PageFaults => "page-faults",
        SoftwareCounterType::PageFaultsMin => "minor-faults",
        SoftwareCounterType::PageFaultsMaj => "major-faults",
        SoftwareCounterType::ContextSwitches => "context-switches",
        SoftwareCounterType::CpuMigrations => "cpu-migrations",
        SoftwareCounterType::AlignmentFaults => "alignment-faults",
        SoftwareCounterType::EmulationFaults => "emulation-faults",
        SoftwareCounterType::CgroupSwitches => "cgroup-switches",
        SoftwareCounterType::BpfOutput => "bpf-output",
        _ => "software event",
    }
}

/// The same of a hardware counter (`perf list hw`).
const fn hardware_name(counter: HardwareEventId) -> &'static str {
    match counter {
        HardwareEventId::CpuCycles => "cycles",
        HardwareEventId::Instructions => "instructions",
        HardwareEventId::CacheReferences => "cache-references",
        HardwareEventId::CacheMisses => "cache-misses",
        HardwareEventId::BranchInstructions => "branches",
        HardwareEventId::BranchMisses => "branch-misses",
        HardwareEventId::BusCycles => "bus-cycles",
        HardwareEventId::StalledCyclesFrontend => "stalled-cycles-frontend",
        HardwareEventId::StalledCyclesBackend => "stalled-cycles-backend",
        HardwareEventId::RefCpuCycles => "ref-cycles",
        _ => "hardware event",
    }
}
