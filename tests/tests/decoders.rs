//! Readers of strangers' input, with all inputs that fuzzing (`tests/fuzz`) has kept, also changed and cut short.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../fuzz/src/lib.rs"]
mod decoders;

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ccsd_tests::suite::Suite;

/// Changed copies of inputs per target. Fuzzing makes millions.
const CHANGED: usize = 200;

type DecoderRun = fn(&[u8]);

const DECODERS: [(&str, DecoderRun); 8] = [
    ("profile", decoders::profile::run),
    ("perf_data", decoders::perf_data::run),
    ("perf_script", decoders::perf_script::run),
    ("elf", decoders::elf::run),
    ("generated_code", decoders::generated_code::run),
    ("frames", decoders::frames::run),
    ("config", decoders::config::run),
    ("stacks", decoders::stacks::run),
];

fn main() -> ExitCode {
    let mut suite = Suite::new();
    for (name, decoder) in DECODERS {
        suite = suite.test(name, &[], move || read_all(name, decoder));
    }
    suite.test("stacks_are_followed", &[], stacks_are_followed).run()
}

/// What is made for unwinding can be unwound: an image without code or table would find nothing wrong.
fn stacks_are_followed() {
    let longest = inputs("stacks").iter().map(|(_, input)| decoders::stacks::follow(input)).max();
    assert!(longest.is_some_and(|frames| frames >= 5), "{longest:?} frames");
}

fn read_all(name: &str, decoder: DecoderRun) {
    let inputs = inputs(name);
    assert!(inputs.len() > 10, "{name}: {} inputs", inputs.len());
    for (path, input) in &inputs {
        read(decoder, input, &|| path.display().to_string());
    }
    let mut random = Random(1);
    for number in 0..CHANGED {
        let (path, input) = &inputs[random.below(inputs.len())];
        let mut changed = input.clone();
        for _ in 0..=random.below(4) {
            if !changed.is_empty() {
                let at = random.below(changed.len());
                changed[at] = [0, 1, 0x7f, 0x80, 0xff, random.below(256) as u8][random.below(6)];
            }
        }
        if random.below(4) == 0 {
            changed.truncate(random.below(changed.len() + 1));
        }
        read(decoder, &changed, &|| format!("{}, changed ({number})", path.display()));
    }
}

fn read(decoder: DecoderRun, input: &[u8], what: &dyn Fn() -> String) {
    assert!(catch_unwind(|| decoder(input)).is_ok(), "{}", what());
}

fn inputs(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let files = ["corpus", "findings"].into_iter().filter_map(|kind| fs::read_dir(fuzz.join(kind).join(name)).ok());
    let mut paths: Vec<PathBuf> = files.flatten().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// A xorshift generator: the same changes in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}
