#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;

use ccsd_profile::{ContextId, LineId, Metric, Process, Profile, ProfileLimits, Thread, ThreadId, Unit, read_window};
use ccsd_profile::{CostCentre, Recovery, TimeWindow};

use ccsd_profile::codec::MAX_INTERVALS;

use super::*;

struct TestRecording {
    profile: Profile,
    thread: ThreadId,
}

impl TestRecording {
    fn new() -> TestRecording {
        let metrics = vec![Metric { name: "cpu-clock".to_owned(), unit: Unit::Nanoseconds }];
        let session = SessionInfo { metrics, target: "demo".to_owned(), ..SessionInfo::default() };
        let mut profile = Profile::new(session, ProfileLimits::default());
        let name = || "demo".to_owned();
        let process = profile.add_process(Process::new(7, 1, name()));
        let thread = profile.add_thread(Thread { process, tid: 7, name: name() });
        TestRecording { profile, thread }
    }

    fn update(&mut self) -> Update {
        let second = self.profile.accounting().duration_ns / 1_000;
        let function = self.profile.add_cost_centre(CostCentre {
            file: Some(format!("{}.c", second / 100)),
            line: 1,
            ..CostCentre::named(ccsd_profile::ImageId::CCSD, format!("f{}", second % 10))
        });
        let context = self.profile.contexts_mut().push(ContextId::ROOT, function);
        self.profile.charge(self.thread, context, LineId::UNKNOWN, &[second + 1]);
        let accounting = self.profile.accounting_mut();
        accounting.received += 1;
        accounting.duration_ns += 1_000;
        self.profile.take_update()
    }

    fn write(&mut self, output: &mut OutputFile, updates: usize) {
        for _ in 0..updates {
            output.write(&self.update());
        }
        assert!(output.error().is_none(), "{:?}", output.error());
    }

    /// Asserts that a file holds this whole recording, and returns its number of intervals.
    fn check(&self, path: &Path) -> u64 {
        let (loaded, intervals) = read_window(File::open(path).unwrap(), TimeWindow::ALL).unwrap();
        assert!(matches!(loaded.recovery, Recovery::Whole), "{:?}", loaded.recovery);
        assert_eq!(loaded.profile.canonical(), self.profile.canonical());
        assert_eq!(loaded.profile.accounting(), self.profile.accounting());
        assert_eq!((intervals.from_ns, intervals.to_ns), (0, self.profile.accounting().duration_ns));
        intervals.all
    }
}

fn names(dir: &Path) -> Vec<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_long_recording_has_a_bounded_number_of_intervals() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let mut recording = TestRecording::new();
    let mut output = OutputFile::create(&path, recording.profile.session()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let first = fs::metadata(&path).unwrap().ino();
    recording.write(&mut output, MAX_INTERVALS);
    assert_eq!(recording.check(&path), 512);
    assert_eq!(fs::metadata(&path).unwrap().ino(), first);
    let large = fs::metadata(&path).unwrap().len();
    // A reader keeps the older file to its end.
    let reader = File::open(&path).unwrap();
    recording.write(&mut output, 1);
    assert_eq!(recording.check(&path), 257);
    let meta = fs::metadata(&path).unwrap();
    assert!(meta.ino() != first && meta.len() < large && meta.len() == output.bytes(), "{meta:?}");
    assert_eq!((meta.mode() & 0o777, names(dir.path())), (0o640, vec!["x".to_owned()]));
    assert_eq!(reader.metadata().unwrap().len(), large);
    let other = OutputFile::create(&path, recording.profile.session());
    assert!(matches!(other, Err(OutputError::Destination(DestinationError::Busy { .. }))));
    for _ in 0..40 {
        recording.write(&mut output, 50);
        assert!(recording.check(&path) <= 512);
    }
    output.finish();
    assert!(output.error().is_none() && output.unmerged().is_none(), "{:?}", output.error());
    recording.check(&path);
    assert_eq!(output.bytes(), fs::metadata(&path).unwrap().len());
}

#[test]
fn a_finished_file_gives_way_to_a_shorter_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    for in_place in [true, false] {
        let mut recording = TestRecording::new();
        let session = recording.profile.session();
        let create = if in_place { OutputFile::create } else { OutputFile::replace };
        let mut output = create(&path, session).unwrap();
        recording.write(&mut output, 60);
        // Who reads the longer file comes to its end.
        let reader = output.sink.as_ref().unwrap().file().try_clone().unwrap();
        output.finish();
        assert!(output.error().is_none());
        let meta = fs::metadata(&path).unwrap();
        assert!(4 * meta.len() < reader.metadata().unwrap().len() && meta.len() == output.bytes(), "{meta:?}");
        assert_eq!((recording.check(&path), names(dir.path())), (60, vec!["x".to_owned()]));
        let longer = read_window(FromStart { file: &reader, at: 0 }, TimeWindow::ALL).unwrap().0;
        assert!(longer.finished && longer.profile.canonical() == recording.profile.canonical());
    }
    // One that cannot be replaced stays.
    let mut recording = TestRecording::new();
    let mut output = OutputFile::create(&path, recording.profile.session()).unwrap();
    fs::hard_link(&path, dir.path().join("y")).unwrap();
    recording.write(&mut output, 60);
    output.finish();
    assert!(output.error().is_none());
    assert_eq!((recording.check(&path), recording.check(&dir.path().join("y"))), (60, 60));
    assert_eq!(output.bytes(), fs::metadata(&path).unwrap().len());
}

#[test]
fn one_that_appears_when_it_is_whole_is_bounded_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let mut recording = TestRecording::new();
    let mut output = OutputFile::replace(&path, recording.profile.session()).unwrap();
    recording.write(&mut output, 2 * MAX_INTERVALS);
    assert!(!path.exists());
    assert_eq!(names(dir.path()).len(), 1);
    output.finish();
    assert!(output.error().is_none());
    assert!(recording.check(&path) <= 512);
    assert_eq!(names(dir.path()), ["x"]);
    fs::remove_file(&path).unwrap();
    let mut recording = TestRecording::new();
    let mut output = OutputFile::replace(&path, recording.profile.session()).unwrap();
    recording.write(&mut output, 2 * MAX_INTERVALS);
    drop(output);
    assert!(names(dir.path()).is_empty());
}

#[test]
fn a_kill_at_any_moment_leaves_a_whole_profile() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let mut recording = TestRecording::new();
    let mut output = OutputFile::create(&path, recording.profile.session()).unwrap();
    recording.write(&mut output, MAX_INTERVALS);
    let Some(Sink::InPlace(opened)) = &mut output.sink else { panic!() };
    for bytes in [0, 1, 1_000] {
        let killed = opened.successor().unwrap().unwrap();
        killed.file().write_all_at(&fs::read(&path).unwrap()[..bytes], 0).unwrap();
        std::mem::forget(killed);
        assert_eq!(recording.check(&path), 512);
    }
    assert_eq!(names(dir.path()).len(), 4);
    // Killed before and after the rename, and before anything is added.
    let successor = opened.successor().unwrap().unwrap();
    let input = FromStart { file: opened.file(), at: 0 };
    let (encoder, _) = coarsen(input, successor.file().try_clone().unwrap(), &output.written, 256).unwrap();
    assert_eq!(recording.check(&path), 512);
    opened.replace_with(successor).unwrap();
    assert_eq!(recording.check(&path), 256);
    drop(encoder);
    let mut output = OutputFile::create(&dir.path().join("y"), recording.profile.session()).unwrap();
    let mut recording = TestRecording::new();
    recording.write(&mut output, MAX_INTERVALS + 1);
    assert_eq!((recording.check(&dir.path().join("y")), names(dir.path()).len()), (257, 5));
}

#[test]
fn a_file_that_cannot_be_replaced_goes_on_growing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let mut recording = TestRecording::new();
    let mut output = OutputFile::create(&path, recording.profile.session()).unwrap();
    // Two names of one file must not become two files.
    fs::hard_link(&path, dir.path().join("y")).unwrap();
    recording.write(&mut output, MAX_INTERVALS + 100);
    assert_eq!(recording.check(&path), 612);
    let Some((612, RewriteError::Destination(DestinationError::Displaced { .. }))) = output.unmerged() else {
        panic!()
    };
    fs::remove_file(dir.path().join("y")).unwrap();
    // No temporary name is free, as in a directory without permission.
    let taken = |number| dir.path().join(format!(".ccsd-{}-{number}", std::process::id()));
    (0..100).for_each(|number| fs::write(taken(number), "").unwrap());
    recording.write(&mut output, 100);
    assert_eq!(recording.check(&path), 712);
    let Some((712, RewriteError::Destination(DestinationError::Open { .. }))) = output.unmerged() else { panic!() };
    (0..100).for_each(|number| fs::remove_file(taken(number)).unwrap());
    // Attempts become rarer: the next is at 800.
    recording.write(&mut output, 800 - 712);
    assert_eq!(recording.check(&path), 800);
    recording.write(&mut output, 1);
    assert_eq!(recording.check(&path), 257);
    assert!(output.unmerged().is_none());
    // A renamed file is still written; a new file under the name is another program's.
    fs::rename(&path, dir.path().join("moved")).unwrap();
    fs::write(&path, "new").unwrap();
    recording.write(&mut output, 300);
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(recording.check(&dir.path().join("moved")), 557);
    // A file that another process wrote to is not merged.
    fs::remove_file(&path).unwrap();
    fs::rename(dir.path().join("moved"), &path).unwrap();
    let good = fs::read(&path).unwrap();
    File::options().write(true).open(&path).unwrap().write_all_at(b"x", 5_000).unwrap();
    recording.write(&mut output, 700);
    assert!(matches!(output.unmerged(), Some((_, RewriteError::Coarsen(CoarsenError::Read(_))))));
    File::options().write(true).open(&path).unwrap().write_all_at(&good[5_000..5_001], 5_000).unwrap();
    assert_eq!(recording.check(&path), 557 + 700);
    assert_eq!(names(dir.path()), ["x"]);
}

#[test]
fn files_changed_while_coarsened_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let mut opened = destination::open(&path, PROFILE).unwrap();
    let successor = opened.successor().unwrap().unwrap();
    fs::rename(&path, dir.path().join("moved")).unwrap();
    fs::write(&path, "new").unwrap();
    assert!(matches!(opened.replace_with(successor), Err(DestinationError::Displaced { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(names(dir.path()).len(), 2);
}

#[test]
fn descriptors_are_only_appended_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let file = File::create(&path).unwrap();
    let mut recording = TestRecording::new();
    let of_caller = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    for replaced in [false, true] {
        file.set_len(0).unwrap();
        let session = recording.profile.session();
        let output = if replaced { OutputFile::replace } else { OutputFile::create }(&of_caller, session);
        let mut output = output.unwrap();
        recording.write(&mut output, 2 * MAX_INTERVALS);
        assert_eq!(recording.check(&path), 1024);
        assert!(output.unmerged().is_none() && output.written.is_empty());
        output.finish();
        recording = TestRecording::new();
    }
    assert_eq!(names(dir.path()), ["x"]);
}

/// A long-running program like real ones: few stacks most of the time, thousands of others sometimes.
#[test]
fn ten_times_the_time_gives_at_most_half_as_much_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let metrics = vec![
        Metric { name: "cpu-clock".to_owned(), unit: Unit::Nanoseconds },
        Metric { name: "tsc".to_owned(), unit: Unit::Cycles },
    ];
    let mut recording = TestRecording::new();
    let thread = recording.profile.threads()[0].clone();
    let process = recording.profile.processes()[0].clone();
    recording.profile = Profile::new(SessionInfo { metrics, ..SessionInfo::default() }, ProfileLimits::default());
    recording.profile.add_process(process);
    recording.profile.add_thread(thread);
    let mut output = OutputFile::create(&path, recording.profile.session()).unwrap();
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 40) as f64 / (1u64 << 24) as f64
    };
    // Some thousand stacks, more frequent near 0.
    let mut stacks = std::collections::HashMap::new();
    let mut sizes = Vec::new();
    for second in 1..=4_000u64 {
        for _ in 0..150 {
            let stack = (3_000f64.powf(random()) * 1.2) as u32;
            let context = *stacks.entry(stack).or_insert_with(|| {
                [stack % 7, stack % 91, stack].into_iter().fold(ContextId::ROOT, |context, function| {
                    let function = recording.profile.add_cost_centre(CostCentre {
                        line: 1,
                        ..CostCentre::named(ccsd_profile::ImageId::CCSD, format!("a_function_{function}"))
                    });
                    recording.profile.contexts_mut().push(context, function)
                })
            });
            let cycles = 2_600_000 / 32_768 * 32_768 + (random() * 3.0) as u64 * 32_768;
            recording.profile.charge(recording.thread, context, LineId::UNKNOWN, &[1_001_001, cycles]);
        }
        recording.profile.accounting_mut().duration_ns = second * 1_000;
        output.write(&recording.profile.take_update());
        if second == 400 || second == 4_000 {
            sizes.push(fs::metadata(&path).unwrap().len());
        }
    }
    // Merging loses no stack, and time is still known to a few percent.
    let intervals = recording.check(&path);
    assert!((32..=64).contains(&intervals), "{intervals} {sizes:?}");
    assert!(sizes[1] * 2 <= sizes[0] * 3, "{sizes:?}");
}
