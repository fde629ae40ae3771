//! Names of code that is replaced while it is sampled.

use std::fs::File;
use std::io::Write;

use ccsd_profile::{CostCentreId, ProfileLimits, SessionInfo};
use ccsd_symbolizer::{Door, FileRoot};
use ccsd_worker::Principal;
use tempfile::NamedTempFile;

use super::*;
use crate::budget::Budget;
use crate::clock::now_ns;
use crate::process::images::MappedImage;
use crate::process::jit_code::JitSource;

const INDEX: ImageIndex = ImageIndex(0);
const ADDRESS: u64 = 0x1000;

struct Generating {
    profile: Profile,
    resolver: Resolver,
    dump: NamedTempFile,
}

impl Generating {
    fn new() -> Generating {
        Generating::within(&Budget::default(), None)
    }

    /// One of a process with this `/tmp`.
    fn within(budget: &Budget, tmp: Option<FileRoot>) -> Generating {
        let mut generating = Generating {
            profile: Profile::new(SessionInfo::default(), ProfileLimits::default()),
            resolver: Resolver::new(false, budget),
            dump: NamedTempFile::new().unwrap(),
        };
        generating.begin(INDEX, tmp, None);
        generating
    }

    /// The next process that generates code, of this user.
    fn begin(&mut self, index: ImageIndex, tmp: Option<FileRoot>, other_user: Option<Principal>) {
        let Generating { profile, resolver, .. } = self;
        let image = MappedImage::new("[anon]", None, other_user.unwrap_or_default());
        resolver.add_image(profile, image);
        let pid = std::process::id();
        let user = Some(nix::unistd::geteuid().as_raw());
        let door = Door::default();
        let source =
            JitSource { pid, own_pid: pid, user, other_user, tmp, door, start_time: 0, ahead_ns: 0, inherited: None };
        resolver.jit_event(profile, JitEvent::Begin(index, Box::new(source)));
        self.dump = NamedTempFile::new().unwrap();
        resolver.jit_event(profile, JitEvent::Dump(index, File::open(self.dump.path()).unwrap()));
        // Magic, version, bytes, machine, padding, pid, time, flags.
        let words = [0x4A69_5444u32, 1, 40, 62, 0, pid, 0, 0, 0, 0];
        self.write(&words.map(u32::to_le_bytes).concat());
    }

    fn write(&mut self, bytes: &[u8]) {
        self.dump.write_all(bytes).unwrap();
    }

    /// The runtime says that there is code of this name at the address since `time`.
    fn load(&mut self, name: &str, time: u64) {
        let size = (16 + 40 + name.len() + 1) as u32;
        let words = [time, 0, ADDRESS, ADDRESS, 0x40, 1];
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.write(&[&0u32.to_le_bytes(), &size.to_le_bytes(), &words[..], name.as_bytes(), &[0]].concat());
    }

    /// The names that samples of these times get in a batch.
    fn batch<const N: usize>(&mut self, times: [u64; N]) -> [Option<String>; N] {
        self.resolver.begin_batch(&mut self.profile, &[]);
        times.map(|time| {
            let centre = self.function_in(INDEX, time);
            self.profile.cost_centre(centre).unwrap().linkage_name.clone()
        })
    }

    fn function_in(&mut self, image: ImageIndex, time: u64) -> CostCentreId {
        let resolved = self.resolver.resolve(&mut self.profile, Frame { image, address: ADDRESS }, time);
        // An answer without a name may be for this sample alone.
        assert!(time < resolved.until || !resolved.named);
        self.resolver.cost_centres(&resolved)[0]
    }

    fn notes(mut self) -> Vec<String> {
        self.resolver.finish_names(&mut self.profile);
        self.resolver.notes().collect()
    }
}

fn some<const N: usize>(names: [&str; N]) -> [Option<String>; N] {
    names.map(|name| Some(name.to_owned()))
}

#[test]
fn code_that_replaces_known_code_has_its_own_name() {
    let mut generating = Generating::new();
    let start = now_ns();
    generating.load("first", start);
    assert_eq!(generating.batch([start, start + 1]), some(["first"; 2]));
    // Nothing in the samples says that anything has happened, and some are from before it.
    let replaced = now_ns();
    generating.load("second", replaced);
    let names = generating.batch([replaced - 1, replaced, replaced + 1, replaced - 1]);
    assert_eq!(names, some(["first", "second", "second", "first"]));
    assert_eq!(generating.batch([now_ns()]), some(["second"]));
    assert_eq!(generating.notes(), [""; 0]);
}

#[test]
fn late_names_are_noted() {
    let mut generating = Generating::new();
    generating.load("first", 1);
    assert_eq!(generating.batch([10, 30]), some(["first"; 2]));
    // It was there when the last batch was charged, and the runtime kept that to itself.
    generating.load("second", 20);
    assert_eq!(generating.batch([40]), some(["second"]));
    let notes = generating.notes();
    assert!(notes.len() == 1 && notes[0].contains("samples at 1 addresses may have the name"), "{notes:?}");
}

#[test]
fn files_are_read_within_the_budget_from_the_first_look_on() {
    const BYTES: usize = 1 << 20;
    let budget = Budget { generated_code: BYTES, ..Budget::default() };
    let tmp = tempfile::tempdir().unwrap();
    // Each line is on 255 pages.
    let lines: String = (1..1000u64).map(|number| format!("{:x} ff000 f\n", number << 20)).collect();
    std::fs::write(tmp.path().join(format!("perf-{}.map", std::process::id())), lines).unwrap();
    let mut generating = Generating::within(&budget, Some(FileRoot::at(tmp.path()).unwrap()));
    (0..20_000).for_each(|_| generating.load("first", now_ns()));
    assert_eq!(generating.batch([now_ns()]), some(["first"]));
    let bytes = generating.resolver.generated_bytes();
    assert!((BYTES / 4..BYTES).contains(&bytes), "{bytes}");
    // It is rewritten.
    generating.dump.as_file().set_len(40).unwrap();
    std::io::Seek::seek(&mut generating.dump, std::io::SeekFrom::Start(40)).unwrap();
    (0..10_000).for_each(|_| generating.load("second", now_ns()));
    assert_eq!(generating.batch([now_ns()]), some(["second"]));
    let bytes = generating.resolver.generated_bytes();
    assert!((BYTES / 4..BYTES).contains(&bytes), "{bytes}");
}

#[test]
fn names_of_users_leave_room_for_root_s_and_are_others() {
    const BYTES: usize = 1 << 17;
    let mut generating = Generating::within(&Budget { generated_code: BYTES, ..Budget::default() }, None);
    generating.load("first", 1);
    assert_eq!(generating.batch([10]), some(["first"]));
    let mut functions = vec![generating.function_in(INDEX, 10)];
    for number in 1..12 {
        let index = ImageIndex(number);
        generating.begin(index, None, Some(Principal::User(number / 4 + 1)));
        // More than there is room for.
        (0..2_000).for_each(|time| generating.load("first", 1_000 + time));
        generating.resolver.begin_batch(&mut generating.profile, &[]);
        functions.push(generating.function_in(index, 1_000));
    }
    let bytes = generating.resolver.generated_bytes();
    assert!(bytes < BYTES, "{bytes}");
    // It has a name, too, and is another user's.
    let label = |at: usize| generating.profile.labels().label(functions[at]).into_owned();
    assert_eq!([0, 1, 4].map(label), ["first", "first (user 1)", "first (user 2)"]);
    let index = ImageIndex(12);
    generating.begin(index, None, None);
    (0..100).for_each(|number| generating.load(&format!("own {number}"), 1_000 + number));
    generating.resolver.begin_batch(&mut generating.profile, &[]);
    let own = generating.function_in(index, 1_050);
    assert_eq!(generating.profile.name(own), "own 50");
}
