//! Small programs built when the tests run, and the binutils that results are compared with.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use ccsd_symbolizer::{DebugFileFinder, ElfFile, Function, Symbols};

pub struct Workshop {
    pub dir: tempfile::TempDir,
}

fn package_of(tool: &str) -> &'static str {
    match tool {
        "cc" => "gcc",
        "c++" => "g++",
        "rustc" => "rustc",
        "dwz" => "dwz",
        "xz" => "xz-utils",
        _ => "binutils",
    }
}

pub fn have(tools: &[&str]) -> bool {
    tools.iter().all(|tool| {
        let found = Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
        if !found {
            assert!(
                std::env::var_os("CCSD_TESTS_SKIP_NOTHING").is_none(),
                "needs {tool} (package {})",
                package_of(tool)
            );
            eprintln!("SKIPPED: needs {tool} (package {})", package_of(tool));
        }
        found
    })
}

pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

impl Workshop {
    pub fn new() -> Workshop {
        Workshop { dir: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Builds a fixture; the language is that of its extension. Arguments are separated by spaces.
    pub fn build(&self, source: &str, args: &str, name: &str) -> PathBuf {
        let out = self.path(name);
        let tool = match source.rsplit('.').next().unwrap() {
            "c" => "cc",
            "cpp" => "c++",
            "rs" => "rustc",
            other => panic!("no compiler for .{other}"),
        };
        run(Command::new(tool).args(args.split_whitespace()).arg("-o").arg(&out).arg(fixture(source)));
        out
    }

    pub fn objcopy(&self, args: &[&str], from: &Path, to: &str) -> PathBuf {
        let out = self.path(to);
        run(Command::new("objcopy").args(args).arg(from).arg(&out));
        out
    }
}

pub fn open(path: &Path) -> Arc<ElfFile> {
    Arc::new(ElfFile::open(File::open(path).unwrap()).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

pub fn symbols(path: &Path) -> Symbols {
    Symbols::new(open(path), DebugFileFinder::none())
}

pub fn resolve(symbols: &mut Symbols, svma: u64) -> Vec<Function> {
    let mut functions = Vec::new();
    symbols.resolve(svma, &mut functions);
    for (index, function) in functions.iter().enumerate() {
        assert!(function.linkage_name.is_some() || function.start.is_some(), "{svma:#x}: {function:?}");
        assert_eq!(function.inlined, index + 1 < functions.len(), "{svma:#x}: the last one was called");
    }
    functions
}

pub fn linkage(function: &Function) -> &str {
    function.linkage_name.as_deref().unwrap_or("?")
}

/// Address and size of sections by name, from `readelf`.
pub fn sections(path: &Path) -> BTreeMap<String, (u64, u64)> {
    let listing = run(Command::new("readelf").arg("-SW").arg(path));
    let lines = listing.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(']').nth(1)?.split_whitespace().collect();
        let hex = |at: usize| u64::from_str_radix(fields.get(at)?, 16).ok();
        Some((fields.first()?.to_string(), (hex(2)?, hex(4)?)))
    });
    lines.collect()
}

/// Every `step`th address of `.text`.
pub fn text_addresses(path: &Path, step: usize) -> Vec<u64> {
    let (start, size) = sections(path)[".text"];
    (start..start + size).step_by(step).collect()
}

pub fn nm(path: &Path) -> Vec<(u64, u64, String)> {
    let listing = run(Command::new("nm").args(["-S", "--defined-only"]).arg(path));
    let lines = listing.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [start, size, kind, name] = fields[..] else { return None };
        let hex = |text| u64::from_str_radix(text, 16).ok();
        "tTwWi".contains(kind).then_some((hex(start)?, hex(size)?, name.to_owned()))
    });
    lines.collect()
}

/// The frames of each address, innermost first, as (name, file, line), from `addr2line`.
pub fn addr2line(path: &Path, addresses: &[u64]) -> Vec<Vec<(String, String, u32)>> {
    let list = tempfile::NamedTempFile::new().unwrap();
    let text: String = addresses.iter().map(|address| format!("{address:#x}\n")).collect();
    std::fs::write(list.path(), text).unwrap();
    let input = File::open(list.path()).unwrap();
    let output = run(Command::new("addr2line").args(["-f", "-i", "-a", "-e"]).arg(path).stdin(input));
    let mut result: Vec<Vec<(String, String, u32)>> = Vec::new();
    let mut lines = output.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            result.push(Vec::new());
            continue;
        }
        let place = lines.next().unwrap();
        let place = place.split(" (discriminator").next().unwrap();
        let (file, number) = place.rsplit_once(':').unwrap();
        result.last_mut().unwrap().push((line.to_owned(), file.to_owned(), number.parse().unwrap_or(0)));
    }
    assert_eq!(result.len(), addresses.len());
    result
}
