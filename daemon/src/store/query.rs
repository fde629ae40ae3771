//! Reads stored profiles of a time range.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use ccsd_profile::{
    Accounting, DecodeError, Decoded, Decoder, MergeError, Profile, ProfileLimits, TimeColumn, Timeline,
};
use serde::Serialize;

use super::files::{LONGEST, StoreError, StoredSegment, contents, is_being_written};

/// A time range in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRange {
    /// Start.
    pub from: u64,
    /// End.
    pub until: u64,
}

impl TimeRange {
    /// All times.
    pub const ALL: TimeRange = TimeRange { from: 0, until: u64::MAX };
}

/// What a watch has stored of a time range.
#[derive(Debug)]
pub struct StoredProfile {
    /// Charges and accounting of the intervals that overlap the range. `None` if there are none.
    pub profile: Option<Profile>,
    /// From the start of the first to the end of the last of these intervals.
    pub covered: TimeRange,
    /// These intervals in order, in nanoseconds since 1970.
    pub intervals: Vec<TimeColumn>,
    /// Number of segments with data of the range.
    pub segments: usize,
    /// Number of segments opened.
    pub opened: usize,
    /// Bytes read.
    pub bytes: u64,
    /// Times of the range of which nothing is stored, from the watch's first segment on. What may still be written is
    /// none.
    pub gaps: Vec<StoredGap>,
    /// Segments of the range without an end record, because the service was killed or the power failed.
    pub interrupted: Vec<PathBuf>,
    /// Files of the range that could not be read, or not completely, with the reason.
    pub problems: Vec<String>,
    /// Start times of the first and the last segment of the watch, from their names, in seconds since 1970.
    pub available: Option<(i64, i64)>,
}

/// CPU time of the watched processes in one interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuInterval {
    /// Start, nanoseconds since 1970.
    pub from_ns: u64,
    /// End, nanoseconds since 1970.
    pub to_ns: u64,
    /// CPU time, nanoseconds.
    pub cpu_ns: u64,
}

/// A time of which nothing is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StoredGap {
    /// Start, nanoseconds since 1970.
    pub from_unix_ns: u64,
    /// End, nanoseconds since 1970.
    pub until_unix_ns: u64,
}

/// Minimum length of a gap: between two segments, a few milliseconds are never sampled.
const LEAST_GAP_NS: u64 = 1_000_000_000;

/// The times of a range between intervals, which are ordered by their ends, and before and after them.
fn gaps(intervals: &[TimeColumn], range: TimeRange) -> Vec<StoredGap> {
    let mut gaps = Vec::new();
    let mut covered_until = range.from;
    let ends = intervals.iter().map(|it| (it.from_ns, it.to_ns)).chain([(range.until, range.until)]);
    for (from_ns, to_ns) in ends {
        if from_ns.saturating_sub(covered_until) >= LEAST_GAP_NS {
            gaps.push(StoredGap { from_unix_ns: covered_until, until_unix_ns: from_ns });
        }
        covered_until = covered_until.max(to_ns);
    }
    gaps
}

/// The part of a range that can be stored by now: from the first segment (in whole seconds) to the interval under way.
fn storable(range: TimeRange, first: Option<i64>, intervals: &[TimeColumn], now_ns: u64) -> TimeRange {
    let begun = intervals.iter().map(|it| it.from_ns).min().unwrap_or(u64::MAX);
    if range == TimeRange::ALL {
        return TimeRange { from: begun, until: intervals.last().map_or(0, |it| it.to_ns) };
    }
    let first =
        first.and_then(|first| u64::try_from(first).ok()).map_or(begun, |it| (it + 1).saturating_mul(1_000_000_000));
    let longest = intervals.iter().map(|it| it.to_ns.saturating_sub(it.from_ns)).max().unwrap_or(0);
    let until = range.until.min(now_ns.saturating_sub(2 * longest));
    TimeRange { from: range.from.max(first.min(begun)), until }
}

/// Reads what a watch has stored in `dir` of a time range.
///
/// # Errors
/// [`StoreError::Read`] if the directory cannot be read. The answer lists unreadable files.
pub fn query(dir: &Path, range: TimeRange) -> Result<StoredProfile, StoreError> {
    ask(dir, range, None)
}

/// As [`query`], as a profile over time by one metric (by default the first). Columns are of whole intervals, in
/// nanoseconds since 1970.
pub fn query_timeline(dir: &Path, metric: Option<&str>, timeline: &Timeline) -> Result<StoredProfile, StoreError> {
    let (from, until) = timeline.span();
    ask(dir, TimeRange { from, until }, Some(TimelineQuery { metric, timeline }))
}

#[derive(Clone, Copy)]
struct TimelineQuery<'a> {
    metric: Option<&'a str>,
    timeline: &'a Timeline,
}

fn ask(dir: &Path, range: TimeRange, over_time: Option<TimelineQuery<'_>>) -> Result<StoredProfile, StoreError> {
    let found = contents(dir)?.segments;
    let mut answer = StoredProfile {
        profile: None,
        covered: TimeRange { from: u64::MAX, until: 0 },
        intervals: Vec::new(),
        segments: 0,
        opened: 0,
        bytes: 0,
        gaps: Vec::new(),
        interrupted: Vec::new(),
        problems: Vec::new(),
        available: found.first().zip(found.last()).map(|(first, last)| (first.start, last.start)),
    };
    for segment in found.into_iter().filter(|segment| may_overlap(segment, range)) {
        answer.opened += 1;
        // Damage in a file that was last written before the range is not about the range.
        let is_of_range = segment.path.symlink_metadata().and_then(|meta| meta.modified()).is_ok_and(|modified| {
            modified.duration_since(UNIX_EPOCH).is_ok_and(|at| at.as_nanos() >= u128::from(range.from))
        });
        match read(&segment.path, range, over_time) {
            Ok(part) => answer.add(&segment.path, part, is_of_range),
            // Removed between listing and opening.
            Err(DecodeError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if is_of_range => answer.problems.push(format!("{}: {error}", segment.path.display())),
            Err(_) => {}
        }
    }
    answer.intervals.sort_by_key(|it| (it.to_ns, it.from_ns));
    let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let now_ns = u64::try_from(now_ns).unwrap_or(u64::MAX);
    let first = answer.available.map(|(first, _)| first);
    answer.gaps = gaps(&answer.intervals, storable(range, first, &answer.intervals, now_ns));
    Ok(answer)
}

fn may_overlap(segment: &StoredSegment, range: TimeRange) -> bool {
    let start = u64::try_from(segment.start).unwrap_or(0).saturating_mul(1_000_000_000);
    let longest = u64::try_from(LONGEST.as_nanos()).unwrap_or(u64::MAX);
    // Names have whole seconds.
    start <= range.until && start.saturating_add(longest) >= range.from
}

/// CPU time of the watched processes in the intervals that overlap a range, as far as it is known and readable.
///
/// # Errors
/// [`StoreError::Read`] if the directory cannot be read.
pub fn cpu_intervals(dir: &Path, range: TimeRange) -> Result<Vec<CpuInterval>, StoreError> {
    let mut intervals: Vec<CpuInterval> = Vec::new();
    for segment in contents(dir)?.segments.into_iter().filter(|segment| may_overlap(segment, range)) {
        let Ok(mut decoder) =
            open(&segment.path).and_then(|file| Decoder::new(BufReader::with_capacity(1 << 18, file)))
        else {
            continue;
        };
        let started = decoder.session().started_unix_ns;
        let mut before = 0;
        while let Ok(Some(record)) = decoder.next_record() {
            let Decoded::Update(update) = record else { continue };
            let until = update.accounting.target_cpu_ns.unwrap_or(before);
            let cpu_ns = until.saturating_sub(std::mem::replace(&mut before, until));
            let (from_ns, to_ns) = (started.saturating_add(update.from_ns), started.saturating_add(update.to_ns));
            if from_ns < range.until && to_ns > range.from {
                intervals.push(CpuInterval { from_ns, to_ns, cpu_ns });
            }
        }
    }
    Ok(intervals)
}

struct SegmentPart {
    profile: Profile,
    /// `None` if no interval is within the range.
    covered: Option<TimeRange>,
    intervals: Vec<TimeColumn>,
    bytes: u64,
    interrupted: bool,
    problem: Option<DecodeError>,
}

impl StoredProfile {
    fn add(&mut self, path: &Path, part: SegmentPart, is_of_range: bool) {
        let SegmentPart { profile, covered, intervals, bytes, interrupted, problem } = part;
        self.bytes += bytes;
        if let Some(problem) = problem.filter(|_| is_of_range) {
            self.problems.push(format!("{}: {problem}; what comes before is shown", path.display()));
        }
        if interrupted && is_of_range {
            self.interrupted.push(path.to_owned());
        }
        let Some(covered) = covered else { return };
        match &mut self.profile {
            None => self.profile = Some(profile),
            Some(whole) => {
                if let Err(MergeError::Metrics(_, theirs)) = whole.merge(&profile) {
                    self.problems.push(format!("{}: left out, because it measures {theirs}", path.display()));
                    return;
                }
            }
        }
        self.intervals.extend(intervals);
        self.segments += 1;
        self.covered.from = self.covered.from.min(covered.from);
        self.covered.until = self.covered.until.max(covered.until);
    }
}

fn open(path: &Path) -> Result<File, DecodeError> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(DecodeError::NotAProfile);
    }
    Ok(file)
}

fn read(path: &Path, range: TimeRange, over_time: Option<TimelineQuery<'_>>) -> Result<SegmentPart, DecodeError> {
    let file = open(path)?;
    let being_written = is_being_written(&file);
    let mut decoder = Decoder::new(BufReader::with_capacity(1 << 18, file))?;
    let started = decoder.session().started_unix_ns;
    let metrics = &decoder.session().metrics;
    let named = |name: &str| metrics.iter().position(|metric| metric.name == name).unwrap_or(usize::MAX);
    let metric = over_time.and_then(|it| it.metric).map_or(0, named);
    let metrics = metrics.len();
    let mut profile = match over_time {
        Some(it) => it.timeline.new_profile(decoder.session(), metric),
        None => Profile::new(decoder.session().clone(), ProfileLimits::reading()),
    };
    let mut intervals: Vec<TimeColumn> = Vec::new();
    let mut before = Accounting::default();
    let mut covered: Option<TimeRange> = None;
    let (mut interrupted, mut problem) = (false, None);
    loop {
        match decoder.next_record() {
            Ok(Some(Decoded::Update(mut update))) => {
                let (from, until) = (started.saturating_add(update.from_ns), started.saturating_add(update.to_ns));
                if from >= range.until {
                    // Later intervals are outside, too.
                    break;
                }
                if until <= range.from {
                    update.clear_charges();
                    before = update.accounting.clone();
                } else {
                    let known = covered.get_or_insert(TimeRange { from, until });
                    known.until = known.until.max(until);
                    let interval = TimeColumn { from_ns: from, to_ns: until };
                    // A very large update is written as several records of one interval.
                    if until > from && intervals.last() != Some(&interval) {
                        intervals.push(interval);
                    }
                }
                if let Some(TimelineQuery { timeline, .. }) = over_time {
                    let last = timeline.columns().len().saturating_sub(1);
                    timeline.place(&mut update, (metrics, metric), timeline.column_at(until).min(last));
                }
                if let Err(source) = profile.apply(&update) {
                    problem = Some(DecodeError::Update { record: decoder.whole_records(), source });
                    break;
                }
            }
            Ok(Some(Decoded::End(_))) => {}
            Ok(None) => {
                interrupted = !decoder.has_ended() && !being_written;
                break;
            }
            // The last record is still being written, or was never completed.
            Err(DecodeError::CutOff { .. }) => {
                interrupted = !being_written;
                break;
            }
            Err(error) => {
                problem = Some(error);
                break;
            }
        }
    }
    let accounting = profile.accounting().since(&before);
    *profile.accounting_mut() = accounting;
    profile.count_own_elision();
    Ok(SegmentPart { profile, covered, intervals, bytes: decoder.bytes_used(), interrupted, problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn gaps_within_and_at_the_ends() {
        let column = |from, to| TimeColumn { from_ns: from * S, to_ns: to * S };
        let intervals = [column(10, 20), column(20, 30), column(40, 50)];
        let listed = |from, until, first, now: u64| -> Vec<(u64, u64)> {
            let range = TimeRange { from: from * S, until: if until == 0 { u64::MAX } else { until * S } };
            let found = gaps(&intervals, storable(range, Some(first), &intervals, now * S));
            found.iter().map(|gap| (gap.from_unix_ns / S, gap.until_unix_ns / S)).collect()
        };
        assert_eq!(listed(5, 60, 2, 1_000), [(5, 10), (30, 40), (50, 60)]);
        // The watch had not begun, and the last interval may not be written yet.
        assert_eq!(listed(5, 60, 10, 70), [(30, 40)]);
        assert_eq!(listed(5, 0, 10, 100), [(30, 40), (50, 80)]);
        assert_eq!(listed(15, 45, 2, 1_000), [(30, 40)]);
        assert_eq!(listed(0, 0, 2, 1_000), [(30, 40)]);
    }
}
