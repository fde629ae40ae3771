//! `ccsd import` of `perf record` files with altered numbers: an error or the valid part, in bounded memory and time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use ccsd_tests::ccsd::{EndedProgram, binary};
use ccsd_tests::fixture::{build, scratch};
use ccsd_tests::suite::{CC, Need, PERF, Suite};
use tempfile::TempDir;

const PRLIMIT: Need = Need::Program("prlimit", "util-linux");
/// Limits of one import: address space and CPU time.
const LIMITS: [&str; 2] = ["--as=1073741824", "--cpu=20"];
const MOST: usize = 50;
const HEADER: usize = 104;

fn main() -> ExitCode {
    Suite::new()
        .test("numbers_of_the_header", &[CC, PERF, PRLIMIT], || {
            let file = PerfFile::new(&["-g"]);
            file.alter_all(&(8..HEADER).step_by(8).collect::<Vec<_>>(), 8);
        })
        .test("places_of_attributes_and_features", &[CC, PERF, PRLIMIT], || {
            let file = PerfFile::new(&["-e", "cpu-clock:u,task-clock:u"]);
            let [attributes, table] = [file.attributes(), file.table()];
            file.alter_all(&attributes.chain(table).step_by(8).collect::<Vec<_>>(), 8);
        })
        .test("numbers_of_features", &[CC, PERF, PRLIMIT], || {
            let file = PerfFile::new(&["-g", "-e", "cpu-clock:u,task-clock:u"]);
            let features = file.features();
            assert!(features.len() > 5, "{features:?}");
            let first = features.iter().flat_map(|at| at.clone().take(32));
            let rest = features.iter().flat_map(|at| at.clone().skip(32).step_by(at.len() / 6 + 4));
            let places: Vec<usize> = first.step_by(4).chain(rest).collect();
            file.alter_all(&places, 4);
        })
        .test("numbers_of_records", &[CC, PERF, PRLIMIT], || {
            for options in [&["-g"][..], &["--call-graph", "dwarf,4096"]] {
                let file = PerfFile::new(options);
                let data = file.data();
                let places: Vec<usize> = data.clone().step_by((data.len() / 40).next_multiple_of(8)).collect();
                file.alter_all(&places, 8);
                let headers = file.records();
                file.alter_all(&headers.iter().take(10).flat_map(|at| [*at, at + 4]).collect::<Vec<_>>(), 4);
            }
        })
        .test("a_count_of_arguments_that_are_not_there", &[CC, PERF, PRLIMIT], || {
            let file = PerfFile::new(&["-g"]);
            const CMDLINE: usize = 11;
            let section = file.feature(CMDLINE).expect("perf notes its command line");
            let mut bytes = file.bytes.clone();
            bytes[section.start..section.start + 4].fill(0xff);
            let ended = file.import(&bytes);
            assert!(ended.status.success(), "{ended:?}");
            assert!(ended.stdout.contains("recursion"), "{}", ended.stdout);
        })
        .test("records_that_claim_more_than_there_is", &[CC, PERF, PRLIMIT], || {
            const AUXTRACE: u32 = 71;
            const COMPRESSED: u32 = 81;
            let file = PerfFile::new(&["-g"]);
            for kind in [AUXTRACE, COMPRESSED, 83, 64, u32::MAX] {
                for size in [0, 1, 1 << 32, i64::MAX as u64, u64::MAX, u64::MAX - 7] {
                    let mut record = kind.to_le_bytes().to_vec();
                    record.extend([0, 0, 48, 0]);
                    record.extend(size.to_le_bytes());
                    record.resize(48, 0);
                    let at = file.records()[0];
                    let mut bytes = file.bytes.clone();
                    bytes[at..at + 48].copy_from_slice(&record);
                    file.import(&bytes);
                }
            }
        })
        .test("a_long_name_that_many_children_have", &[CC, PERF, PRLIMIT], || {
            // A name of 60 kB, and 200,000 forks: 12 GB if each had a copy.
            let mut records = record(3, &[&words32(&[7, 7]), &vec![b'x'; 60_000][..], &[0; 8]].concat());
            for pid in 8..200_008 {
                records.extend(record(7, &words32(&[pid, 7, pid, 7, 0, 0])));
            }
            let _ = made(records);
        })
        .test("mappings_that_many_children_copy", &[CC, PERF, PRLIMIT], || {
            let mut records = Vec::new();
            for number in 0..60_000u64 {
                let addresses = [0x1000 * (200_000 - 2 * number), 0x1000, 0].map(u64::to_le_bytes).concat();
                records.extend(record(1, &[&words32(&[7, 7]), &addresses[..], b"/nowhere"].concat()));
            }
            for pid in 8..50_008 {
                records.extend(record(7, &words32(&[pid, 7, pid, 7, 0, 0])));
                records.extend(record(4, &words32(&[pid, 7, pid, 7, 0, 0])));
            }
            let _ = made(records);
        })
        .test("more_threads_than_there_is_room_for", &[CC, PERF, PRLIMIT], || {
            // Threads of one process, and processes; all their samples count.
            for process in [Some(6), None] {
                let sample = |thread: u32| {
                    let address = 0x1000u64.to_le_bytes();
                    record(9, &[&address[..], &words32(&[process.unwrap_or(thread), thread])].concat())
                };
                let ended = made((8..250_008).flat_map(sample).collect());
                assert!(ended.stdout.contains(" 250,001 received"), "{}", ended.stdout);
                assert!(
                    ended.stdout.contains("there was no room for a mapping, thread or process"),
                    "{}",
                    ended.stdout
                );
            }
        })
        .test("many_small_records_without_rounds", &[CC, PERF, PRLIMIT], || {
            // 64 MB of records of 8 bytes.
            let _ = made(record(5, &[]).repeat(8 << 20));
        })
        .run()
}

fn words32(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn record(kind: u32, body: &[u8]) -> Vec<u8> {
    let misc = 2u16;
    let size = u16::try_from(8 + body.len()).unwrap();
    [&kind.to_le_bytes()[..], &misc.to_le_bytes(), &size.to_le_bytes(), body].concat()
}

fn made(records: Vec<u8>) -> EndedProgram {
    let words = |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let mut attribute = words(&[1 | 136 << 32, 0, 1_000_000, 3, 0, 0]);
    attribute.resize(136, 0);
    attribute.extend(words(&[0, 0]));
    let sample = record(9, &[&words(&[0x1000])[..], &words32(&[7, 7])].concat());
    let size = (records.len() + sample.len()) as u64;
    let mut bytes = words(&[u64::from_le_bytes(*b"PERFILE2"), 104, 152, 104, 152, 256, size, 0, 0, 0, 0, 0, 0]);
    bytes.extend(attribute);
    bytes.extend(records);
    bytes.extend(sample);
    let dir = scratch();
    let ended = import(&dir, &bytes);
    assert!(ended.status.success(), "{ended:?}");
    ended
}

struct PerfFile {
    bytes: Vec<u8>,
    dir: TempDir,
}

impl PerfFile {
    fn new(options: &[&str]) -> PerfFile {
        let dir = scratch();
        let data = dir.path().join("perf.data");
        let mut perf = Command::new("perf");
        perf.args(["record", "-q", "-F", "199"]);
        if !options.contains(&"-e") {
            perf.args(["-e", "cpu-clock:u"]);
        }
        let program = build("recursion.c", &["-O1", "-fno-omit-frame-pointer"]);
        let ended = EndedProgram::of(
            perf.args(options).arg("-o").arg(&data).arg("--").arg(program).args(["three", "30", "10"]),
        );
        assert!(ended.status.success(), "{ended:?}");
        let file = PerfFile { bytes: fs::read(data).unwrap(), dir };
        let whole = file.import(&file.bytes);
        assert!(whole.status.success(), "{whole:?}");
        file
    }

    fn word(&self, at: usize) -> usize {
        usize::try_from(u64::from_le_bytes(self.bytes[at..at + 8].try_into().unwrap())).unwrap()
    }

    fn place(&self, at: usize) -> Range<usize> {
        self.word(at)..self.word(at) + self.word(at + 8)
    }

    fn attributes(&self) -> Range<usize> {
        self.place(24)
    }

    fn data(&self) -> Range<usize> {
        self.place(40)
    }

    fn table(&self) -> Range<usize> {
        let count: u32 = self.bytes[72..HEADER].iter().map(|byte| byte.count_ones()).sum();
        self.data().end..self.data().end + 16 * count as usize
    }

    fn features(&self) -> Vec<Range<usize>> {
        self.table().step_by(16).map(|at| self.place(at)).filter(|at| !at.is_empty()).collect()
    }

    fn feature(&self, number: usize) -> Option<Range<usize>> {
        let present = |feature: &usize| self.bytes[72 + feature / 8] >> (feature % 8) & 1 == 1;
        present(&number).then(|| self.place(self.data().end + 16 * (0..number).filter(present).count()))
    }

    fn records(&self) -> Vec<usize> {
        let mut at = self.data().start;
        let mut all = Vec::new();
        while at < self.data().end {
            all.push(at);
            at += usize::from(u16::from_le_bytes([self.bytes[at + 6], self.bytes[at + 7]]));
        }
        all
    }

    fn import(&self, bytes: &[u8]) -> EndedProgram {
        import(&self.dir, bytes)
    }

    /// Imports it with each number at these positions altered in several ways.
    fn alter_all(&self, places: &[usize], width: usize) {
        let all = places.len() * 8;
        for number in 0..all.min(MOST) {
            // If there are too many, a selection from everywhere.
            let (at, value) = match all > MOST {
                true => (places[number * places.len() / MOST], (number + number / 8) % 8),
                false => (places[number / 8], number % 8),
            };
            let Some(old) = self.bytes.get(at..at + width) else { continue };
            let mut old_word = [0; 8];
            old_word[..width].copy_from_slice(old);
            let old_word = u64::from_le_bytes(old_word);
            let size = self.bytes.len() as u64;
            let values =
                [0, 1, 0x7fff_ffff, 0xffff_ffff, u64::MAX, old_word.wrapping_add(1), old_word.wrapping_sub(1), size];
            let mut bytes = self.bytes.clone();
            bytes[at..at + width].copy_from_slice(&values[value].to_le_bytes()[..width]);
            self.import(&bytes);
        }
    }
}

fn import(dir: &TempDir, bytes: &[u8]) -> EndedProgram {
    let (data, profile): (PathBuf, PathBuf) = (dir.path().join("altered.data"), dir.path().join("altered.ccsd"));
    fs::write(&data, bytes).unwrap();
    let _ = fs::remove_file(&profile);
    let ended = run(&data, &profile);
    match ended.status.code() {
        Some(0) => assert!(profile.exists()),
        Some(2) => {
            ended.assert_refused(2, &["altered.data"]);
            assert!(!profile.exists(), "{ended:?}");
        }
        _ => {
            let kept = std::env::temp_dir().join("ccsd-import-hostile.data");
            fs::copy(&data, &kept).unwrap();
            panic!("{} (signal {:?}): {ended:?}", kept.display(), ended.status.signal());
        }
    }
    ended
}

fn run(data: &Path, profile: &Path) -> EndedProgram {
    let mut command = Command::new("prlimit");
    command.args(LIMITS).arg(binary()).arg("import").arg(data).arg("-o").arg(profile);
    EndedProgram::of(command.env("CCSD_SOCKET", ""))
}
