use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ccsd_profile::view::{FlatView, Selection};
use ccsd_profile::{CostCentre, Image, Metric, Process, Profile, ProfileLimits, SessionInfo, Thread, Unit, Update};
use proptest::prelude::*;
use tempfile::TempDir;

use super::files::{name, parse_name};
use super::segment::WriteError;
use super::*;
use crate::config::{Age, Retention, StoreBytes};

const HOUR: u64 = 3600;
const SECOND: u64 = 1_000_000_000;

fn session(start: u64) -> SessionInfo {
    SessionInfo {
        target: "watch".to_owned(),
        event: "cpu-clock".to_owned(),
        rate_hz: 49,
        started_unix_ns: start * SECOND,
        metrics: vec![Metric { name: "cpu-clock".to_owned(), unit: Unit::Nanoseconds }],
        ..SessionInfo::default()
    }
}

/// Charges one sample to a function called `name` and ends an interval of ten seconds.
fn interval(profile: &mut Profile, name: &str) -> Update {
    let image = profile.add_image(Image { name: "/bin/x".to_owned(), build_id: Vec::new() });
    let process = profile.add_process(Process::new(7, 1, "x"));
    let thread = profile.add_thread(Thread { process, tid: 7, name: "x".to_owned() });
    let function = profile.add_cost_centre(CostCentre::named(image, name));
    let context = profile.contexts_mut().push(ccsd_profile::ContextId::ROOT, function);
    profile.charge(thread, context, ccsd_profile::LineId::UNKNOWN, &[20]);
    let accounting = profile.accounting_mut();
    accounting.received += 1;
    accounting.duration_ns += 10 * SECOND;
    profile.take_update()
}

fn write(dir: &Path, start: u64, names: &[&str], finish: bool) -> PathBuf {
    let mut profile = Profile::new(session(start), ProfileLimits::default());
    let mut writer = SegmentWriter::create(dir, profile.session()).unwrap();
    for name in names {
        writer.write(&interval(&mut profile, name)).unwrap();
    }
    let path = writer.path().to_owned();
    assert_eq!(fs::metadata(&path).unwrap().len(), writer.bytes());
    if finish {
        writer.finish().unwrap();
    }
    path
}

fn ask(dir: &Path, from: u64, until: u64) -> StoredProfile {
    query(dir, TimeRange { from: from * SECOND, until: until * SECOND }).unwrap()
}

fn samples(answer: &StoredProfile) -> Vec<(String, u64)> {
    answer.profile.as_ref().map_or_else(Vec::new, samples_of)
}

fn samples_of(profile: &Profile) -> Vec<(String, u64)> {
    let view = FlatView::new(profile, &Selection::all());
    assert_eq!(view.total.samples, profile.accounting().received);
    let mut rows: Vec<_> = view.rows.iter().map(|row| (row.name.clone(), row.samples_self)).collect();
    rows.sort();
    rows
}

fn of(rows: &[(&str, u64)]) -> Vec<(String, u64)> {
    rows.iter().map(|&(name, samples)| (name.to_owned(), samples)).collect()
}

fn dir() -> (TempDir, PathBuf) {
    let state = tempfile::tempdir().unwrap();
    let dir = state.path().join("nginx");
    (state, dir)
}

#[test]
fn names_say_when() {
    assert_eq!(name(1_795_278_859, 0), "20261121T163419Z.ccsd");
    assert_eq!(name(1_795_278_859, 2), "20261121T163419Z-2.ccsd");
    for (start, number) in [(0, 0), (1_795_278_859, 0), (1_795_278_859, 17), (4_102_444_800, 999)] {
        assert_eq!(parse_name(&name(start, number)), Some(start));
    }
    for name in
        ["", ".ccsd", "x.ccsd", "20261121T163419Z", "20261321T163419Z.ccsd", "20261121T163419Z-x.ccsd", ".probe"]
    {
        assert_eq!(parse_name(name), None, "{name}");
    }
}

#[test]
fn only_the_service_and_its_group_may_read() {
    let (_state, dir) = dir();
    let path = write(&dir, 1000, &["a"], true);
    // Independent of the umask.
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o137, 0);
    assert_eq!(fs::metadata(dir).unwrap().permissions().mode() & 0o027, 0);
}

#[test]
fn a_query_opens_only_the_segments_of_its_time() {
    let (_state, dir) = dir();
    for hour in 0..24 {
        write(&dir, hour * HOUR, &["a", "b"], true);
    }
    let answer = ask(&dir, 10 * HOUR, 10 * HOUR + 20);
    assert_eq!(samples(&answer), of(&[("a", 1), ("b", 1)]));
    // The segment of the hour, and the one before, which might have been a little longer.
    assert_eq!((answer.segments, answer.opened), (1, 2));
    assert_eq!(answer.covered, TimeRange { from: 10 * HOUR * SECOND, until: (10 * HOUR + 20) * SECOND });
    assert_eq!(answer.available, Some((0, 23 * HOUR as i64)));
    let answer = ask(&dir, 0, 24 * HOUR);
    assert_eq!((samples(&answer), answer.segments), (of(&[("a", 24), ("b", 24)]), 24));
    let answer = ask(&dir, 100 * HOUR, 101 * HOUR);
    assert_eq!((samples(&answer), answer.opened), (vec![], 0));
}

#[test]
fn within_a_segment_only_the_intervals_of_the_time() {
    let (_state, dir) = dir();
    write(&dir, 1000, &["a", "b", "c", "a"], true);
    assert_eq!(samples(&ask(&dir, 1010, 1030)), of(&[("b", 1), ("c", 1)]));
    // An interval belongs to every range that overlaps it: a minute asked for is never a part of a minute.
    assert_eq!(samples(&ask(&dir, 1009, 1031)), of(&[("a", 2), ("b", 1), ("c", 1)]));
    for cut in 1000..=1040 {
        let [before, after] = [ask(&dir, 0, cut), ask(&dir, cut, 5000)].map(|answer| answer.intervals.len() as u64);
        assert_eq!((before, after), ((cut - 1000).div_ceil(10), (1040 - cut).div_ceil(10)), "cut at {cut}");
    }
}

#[test]
fn gaps_are_the_times_without_intervals() {
    let (_state, dir) = dir();
    write(&dir, 1000, &["a", "b"], true);
    write(&dir, 1020, &["c"], true);
    write(&dir, 1100, &["a"], true);
    // A clock set back: two segments of one time.
    write(&dir, 1025, &["d", "d"], true);
    let gap = |from: u64, until: u64| StoredGap { from_unix_ns: from * SECOND, until_unix_ns: until * SECOND };
    assert_eq!(ask(&dir, 0, 2000).gaps, [gap(1045, 1100), gap(1110, 2000)]);
    assert_eq!(ask(&dir, 0, 1040).gaps, []);
}

#[test]
fn cpu_time_of_a_range() {
    let (_state, dir) = dir();
    for start in [1000, 1100] {
        let mut profile = Profile::new(session(start), ProfileLimits::default());
        let mut writer = SegmentWriter::create(&dir, profile.session()).unwrap();
        for cpu in [3, 4] {
            let mut update = interval(&mut profile, "a");
            // The accounting counts from the start of its segment.
            update.accounting.target_cpu_ns = Some(cpu * SECOND);
            writer.write(&update).unwrap();
        }
    }
    let used = |from, until| -> Vec<(u64, u64)> {
        let range = TimeRange { from: from * SECOND, until: until * SECOND };
        let intervals = cpu_intervals(&dir, range).unwrap();
        intervals.iter().map(|it| (it.from_ns / SECOND, it.cpu_ns / SECOND)).collect()
    };
    assert_eq!(used(0, 5000), [(1000, 3), (1010, 1), (1100, 3), (1110, 1)]);
    assert_eq!(used(1010, 1100), [(1010, 1)]);
}

#[test]
fn only_damage_of_the_time_is_told() {
    let (_state, dir) = dir();
    let modified = |path: &Path, second: u64| {
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(second)).unwrap();
    };
    modified(&write(&dir, 1000, &["a", "b"], false), 1020);
    let foreign = dir.join(name(1100, 0));
    fs::write(&foreign, "this is no profile").unwrap();
    modified(&foreign, 1110);
    modified(&write(&dir, 1200, &["c"], true), 1210);
    let told = |from, until| {
        let answer = ask(&dir, from, until);
        (answer.interrupted.len(), answer.problems.len())
    };
    assert_eq!(told(0, 5000), (1, 1));
    assert_eq!(told(1200, 5000), (0, 0));
    assert_eq!(told(1105, 5000), (0, 1));
    assert_eq!(told(0, 1050), (1, 0));
}

#[test]
fn a_crash_leaves_all_but_the_last_interval() {
    let (_state, dir) = dir();
    let path = write(&dir, 1000, &["a", "b"], false);
    let whole = fs::read(&path).unwrap();
    let answer = ask(&dir, 0, 2000);
    assert_eq!((samples(&answer), answer.interrupted.len()), (of(&[("a", 1), ("b", 1)]), 1));
    // Cut within the last record.
    fs::write(&path, &whole[..whole.len() - 3]).unwrap();
    let answer = ask(&dir, 0, 2000);
    assert_eq!((samples(&answer), answer.interrupted.len()), (of(&[("a", 1)]), 1));
    assert!(answer.problems.is_empty(), "{:?}", answer.problems);
}

#[test]
fn one_that_is_being_written_is_not_interrupted() {
    let (_state, dir) = dir();
    let mut profile = Profile::new(session(1000), ProfileLimits::default());
    let mut writer = SegmentWriter::create(&dir, profile.session()).unwrap();
    writer.write(&interval(&mut profile, "a")).unwrap();
    let answer = ask(&dir, 0, 2000);
    assert_eq!((samples(&answer), answer.interrupted.len()), (of(&[("a", 1)]), 0));
    drop(writer);
    assert_eq!(ask(&dir, 0, 2000).interrupted.len(), 1);
}

#[test]
fn foreign_and_damaged_files_are_told_and_left_alone() {
    let (state, dir) = dir();
    write(&dir, 1000, &["a"], true);
    let damaged = write(&dir, 2000, &["b", "c"], true);
    let mut bytes = fs::read(&damaged).unwrap();
    let last = bytes.len() - 30;
    bytes[last] ^= 1;
    fs::write(&damaged, bytes).unwrap();
    fs::write(dir.join(name(3000, 0)), "this is no profile").unwrap();
    fs::write(dir.join("notes.txt"), "mine").unwrap();
    fs::create_dir(dir.join(name(4000, 0))).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", dir.join(name(5000, 0))).unwrap();
    nix::unistd::mkfifo(&dir.join(name(6000, 0)), nix::sys::stat::Mode::S_IRWXU).unwrap();

    let answer = ask(&dir, 0, 10_000);
    assert_eq!(samples(&answer)[0], ("a".to_owned(), 1));
    assert_eq!(answer.problems.len(), 2, "{:?}", answer.problems);
    let found = contents(&dir).unwrap();
    assert_eq!((found.segments.len(), found.foreign.len()), (3, 4));

    // All files are old. Segments are removed even if damaged; nothing else is.
    let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
    let removed = retain(state.path(), retention(2 * HOUR, 1 << 30), now, 0, || {}).unwrap();
    assert_eq!((removed.segments.len(), removed.foreign.len()), (2, 5), "{removed:?}");
    assert!(removed.failed.is_empty());
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 5);
}

fn retention(age: u64, bytes: u64) -> Retention {
    Retention { age: Age(Duration::from_secs(age)), bytes: StoreBytes(bytes) }
}

#[test]
fn old_data_is_removed_by_whole_segments() {
    let (state, dir) = dir();
    for hour in 0..10 {
        write(&dir, hour * HOUR, &["a"], true);
    }
    let now = UNIX_EPOCH + Duration::from_secs(10 * HOUR);
    let removed = retain(state.path(), retention(5 * HOUR, 1 << 30), now, 0, || {}).unwrap();
    assert_eq!(removed.segments.len(), 4);
    assert_eq!(contents(&dir).unwrap().segments[0].start, 4 * HOUR as i64);
    assert_eq!(retain(state.path(), retention(5 * HOUR, 1 << 30), now, 0, || {}).unwrap().segments.len(), 0);
}

fn starts(dir: &Path) -> Vec<i64> {
    contents(dir).unwrap().segments.iter().map(|segment| segment.start).collect()
}

#[test]
fn excess_data_is_removed_oldest_first() {
    let (state, dir) = dir();
    let each = fs::metadata(write(&dir, 100, &["a"], true)).unwrap().len();
    (2..5).for_each(|hundred| drop(write(&dir, hundred * 100, &["a"], true)));
    let writer = SegmentWriter::create(&dir, &session(50)).unwrap();
    let limit = 2 * each + writer.bytes();
    let removed = retain(state.path(), retention(7 * 24 * HOUR, limit), UNIX_EPOCH, 1, || {}).unwrap();
    assert_eq!(removed.segments, [100, 200].map(|start| dir.join(name(start, 0))));
    assert!(writer.path().exists(), "one that is being written stays");
    assert_eq!((starts(&dir), removed.bytes), (vec![50, 300, 400], limit));
    // Even if the remaining segment exceeds the limit.
    let removed = retain(state.path(), retention(7 * 24 * HOUR, 1), UNIX_EPOCH, 1, || {}).unwrap();
    assert_eq!((removed.segments.len(), starts(&dir)), (2, vec![50]));
}

#[test]
fn a_noisy_watch_costs_only_its_own_history() {
    let (state, noisy) = dir();
    let (quiet, middle) = (state.path().join("quiet"), state.path().join("middle"));
    // The quiet watch has the oldest segment of all.
    let each = fs::metadata(write(&quiet, 100, &["a"], true)).unwrap().len();
    (0..2).for_each(|i| drop(write(&middle, 200 + i, &["a"], true)));
    let limit = 9 * each;
    let mut kept = Vec::new();
    for second in 1000..1030 {
        write(&noisy, second, &["a"], true);
        let removed = retain(state.path(), retention(7 * 24 * HOUR, limit), UNIX_EPOCH, 3, || {}).unwrap();
        assert!(removed.segments.iter().all(|path| path.starts_with(&noisy)) && removed.bytes <= limit, "{removed:?}");
        kept = starts(&noisy);
    }
    assert_eq!((starts(&quiet), starts(&middle)), (vec![100], vec![200, 201]));
    // A watch may use what others leave unused; when they grow, it shrinks to its share.
    assert_eq!(kept, [1024, 1025, 1026, 1027, 1028, 1029]);
    for second in 1100..1110 {
        write(&middle, second, &["a"], true);
        retain(state.path(), retention(7 * 24 * HOUR, limit), UNIX_EPOCH, 3, || {}).unwrap();
    }
    assert_eq!((starts(&quiet), starts(&noisy).len(), starts(&middle).len()), (vec![100], 4, 4));
    let late = UNIX_EPOCH + Duration::from_secs(1_000_000);
    assert_eq!(retain(state.path(), retention(2 * HOUR, limit), late, 3, || {}).unwrap().segments.len(), 9);
}

#[test]
fn what_is_free_is_shared() {
    let limit = 1 << 30;
    // More is free than the limit keeps: it holds no watch back.
    assert_eq!(writable(&[0, 0], 4 << 30, limit), [2 << 30, 2 << 30]);
    // One watch has all.
    assert_eq!(writable(&[70], 30, limit), [30]);
    // One has had more than its share; the others have all that is left, one of them nothing yet.
    assert_eq!(writable(&[70, 0, 10], 40, limit), [0, 40, 30]);
    assert_eq!(writable(&[30, 30], 0, limit), [0, 0]);
    assert_eq!(writable(&[], 100, limit), [0; 0]);
}

proptest! {
    #[test]
    fn no_watch_takes_what_another_has_not_used_yet(
        stored in prop::collection::vec(0u64..1000, 1..6), free in 0u64..3000, limit in 1u64..4000,
    ) {
        let writable = writable(&stored, free, limit);
        let share = (stored.iter().sum::<u64>() + free).min(limit) / stored.len() as u64;
        for (stored, writable) in stored.iter().zip(&writable) {
            prop_assert!(stored + writable >= share);
        }
        // All that some may write leaves what the others lack, if that is there at all.
        let lacks: u64 = stored.iter().map(|stored| share.saturating_sub(*stored)).sum();
        prop_assert!(writable.iter().sum::<u64>() <= free.max(lacks));
    }
}

#[test]
fn unremovable_data_of_one_watch_costs_no_other() {
    let (state, noisy) = dir();
    let quiet = state.path().join("quiet");
    let each = fs::metadata(write(&quiet, 100, &["a"], true)).unwrap().len();
    let writers: Vec<_> = (0..20).map(|_| SegmentWriter::create(&noisy, &session(200)).unwrap()).collect();
    let removed = retain(state.path(), retention(7 * 24 * HOUR, 2 * each), UNIX_EPOCH, 2, || {}).unwrap();
    assert!(removed.segments.is_empty() && removed.bytes > 2 * each, "{removed:?}");
    assert!(writers.iter().all(|writer| writer.path().exists()));
    // Watches that are no longer configured keep their share.
    drop(writers);
    let removed = retain(state.path(), retention(7 * 24 * HOUR, 2 * each), UNIX_EPOCH, 0, || {}).unwrap();
    assert!(!removed.segments.is_empty() && starts(&quiet) == [100], "{removed:?}");
}

#[test]
fn foreign_files_cost_no_profile() {
    let (state, dir) = dir();
    let each = fs::metadata(write(&dir, 100, &["a"], true)).unwrap().len();
    write(&dir, 300, &["a"], true);
    // Named like a segment, and larger than the limit.
    fs::File::create(dir.join(name(200, 0))).unwrap().set_len(1 << 40).unwrap();
    let removed = retain(state.path(), retention(7 * 24 * HOUR, 3 * each), UNIX_EPOCH, 0, || {}).unwrap();
    assert_eq!((removed.segments.len(), removed.bytes), (0, 2 * each));
    assert_eq!(removed.foreign, [dir.join(name(200, 0))]);
}

#[test]
fn the_clock_is_set_back() {
    let (_state, dir) = dir();
    write(&dir, 10_000, &["a"], true);
    // The same second again, and an hour earlier.
    let again = write(&dir, 10_000, &["b"], true);
    assert!(again.to_string_lossy().ends_with("-1.ccsd"));
    write(&dir, 10_000 - HOUR, &["c"], true);
    assert_eq!(samples(&ask(&dir, 0, 20_000)), of(&[("a", 1), ("b", 1), ("c", 1)]));
    assert_eq!(samples(&ask(&dir, 9_000, 10_010)), of(&[("a", 1), ("b", 1)]));
    let state = dir.parent().unwrap();
    assert!(retain(state, retention(2 * HOUR, 1 << 30), UNIX_EPOCH, 0, || {}).unwrap().segments.is_empty());
}

#[test]
fn profiles_of_other_metrics_are_named() {
    let (_state, dir) = dir();
    write(&dir, 1000, &["a"], true);
    let cycles = vec![Metric { name: "cycles".to_owned(), unit: Unit::Cycles }];
    let mut profile = Profile::new(SessionInfo { metrics: cycles, ..session(2000) }, ProfileLimits::default());
    let mut writer = SegmentWriter::create(&dir, profile.session()).unwrap();
    writer.write(&interval(&mut profile, "b")).unwrap();
    writer.finish().unwrap();
    let answer = ask(&dir, 0, 10_000);
    assert_eq!((samples(&answer), answer.segments), (of(&[("a", 1)]), 1));
    assert!(answer.problems[0].contains("cycles"), "{:?}", answer.problems);
}

#[test]
fn watches_that_there_are_not() {
    let (state, dir) = dir();
    let error = watch_dir(state.path(), "nginx").unwrap_err().to_string();
    assert!(error.contains("none has stored anything yet"), "{error}");
    write(&dir, 1000, &["a"], true);
    fs::create_dir(state.path().join(".hidden")).unwrap();
    assert_eq!(watches(state.path()).unwrap(), ["nginx"]);
    let error = watch_dir(state.path(), "../nginx").unwrap_err().to_string();
    assert!(error.contains("there are: nginx"), "{error}");
    assert!(watch_dir(&state.path().join("x"), "nginx").unwrap_err().to_string().contains("has the service run?"));
}

#[test]
fn a_file_that_is_removed_while_it_is_written() {
    let (_state, dir) = dir();
    let mut profile = Profile::new(session(1000), ProfileLimits::default());
    let mut writer = SegmentWriter::create(&dir, profile.session()).unwrap();
    fs::remove_file(writer.path()).unwrap();
    let written = writer.write(&interval(&mut profile, "a"));
    assert!(matches!(written, Err(WriteError::Removed { .. })), "{written:?}");
}

#[test]
fn a_directory_that_cannot_be_written_to() {
    let (state, dir) = dir();
    assert!(room(&dir).is_ok());
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "the probe is gone");
    // Not even root can make a directory below a file.
    let file = state.path().join("file");
    fs::write(&file, "").unwrap();
    let error = room(&file.join("x")).unwrap_err().to_string();
    assert!(error.contains("cannot create a profile"), "{error}");
    let created = SegmentWriter::create(&file.join("x"), &session(0)).map(drop);
    assert!(matches!(created, Err(WriteError::Create { .. })));
    assert!(retain(&file, retention(2 * HOUR, 1), SystemTime::now(), 0, || {}).is_err());
}
