//! Only symbols of code are functions, and labels do not take a part of a function's code.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

use common::{Workshop, have, linkage, open, resolve, run, symbols};

/// Addresses at which symbols of other sections and of none lie: where a linker puts `.text`.
const FROM: u64 = 0x1000;
const TO: u64 = 0x3000;

/// A function with labels inside, one without a size and a label that begins after it. Symbols of a section that is not
/// mapped, as GCC's link-time optimisation leaves them, and absolute ones have values all over the code.
fn assembly() -> String {
    let mut text = String::from(
        ".text\n.globl whole, at_its_start, inside, sized_inside, bare\n.type whole, @function\n\
         at_its_start:\nwhole:\n.fill 100, 1, 0x90\ninside:\n.fill 100, 1, 0x90\n\
         sized_inside:\n.fill 100, 1, 0x90\n.size sized_inside, 100\nret\n.size whole, . - whole\n\
         .p2align 4\nbare:\n.fill 100, 1, 0x90\nret\n.globl after\nafter:\nret\n.section .note.GNU-stack,\"\"\n\
         .section .debug_other,\"\",@progbits\n",
    );
    writeln!(text, ".skip {FROM}").unwrap();
    for at in (FROM..TO).step_by(32) {
        writeln!(text, ".weak elsewhere_{at}\n.hidden elsewhere_{at}\nelsewhere_{at}: .skip 32").unwrap();
        writeln!(text, ".globl absolute_{at}\n.set absolute_{at}, {}", at + 16).unwrap();
    }
    text
}

#[test]
fn code_has_the_names_of_symbols_of_code() {
    if !have(&["cc", "readelf", "nm"]) {
        return;
    }
    let workshop = Workshop::new();
    let (source, main, program) = (workshop.path("a.s"), workshop.path("main.c"), workshop.path("program"));
    std::fs::write(&source, assembly()).unwrap();
    std::fs::write(&main, "int whole(void); int bare(void);\nint main(void) { return whole() + bare(); }\n").unwrap();
    run(Command::new("cc")
        .args(["-g", "-O1", "-no-pie", "-Wl,-Ttext-segment=0"])
        .args([&main, &source])
        .arg("-o")
        .arg(&program));
    let listing = run(Command::new("nm").arg("--defined-only").arg(&program));
    let starts: BTreeMap<&str, u64> = listing
        .lines()
        .filter_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
            [start, _, name] => Some((name, u64::from_str_radix(start, 16).unwrap())),
            _ => None,
        })
        .collect();
    let strange = |svma: u64| {
        starts.iter().any(|(name, start)| *start == svma && (name.starts_with("elsewhere") || name.starts_with("abs")))
    };
    assert!((starts["whole"]..starts["after"]).any(strange), "the test would show nothing: {starts:x?}");
    let mut names = symbols(&program);
    let mut named = |svma: u64| resolve(&mut names, svma).first().map(|it| linkage(it).to_owned());
    for svma in starts["whole"]..=starts["whole"] + 300 {
        assert_eq!(named(svma).as_deref(), Some("whole"), "{svma:#x}");
    }
    for svma in starts["bare"]..starts["after"] {
        assert_eq!(named(svma).as_deref(), Some("bare"), "{svma:#x}");
    }
    assert_eq!(named(starts["after"]).as_deref(), Some("after"));
    assert_eq!(named(starts["main"] + 4).as_deref(), Some("main"));
    // The starts that unwinding uses.
    let found = open(&program).symbol_starts().find(starts["whole"] + 250);
    assert_eq!(found, Some(starts["whole"]));
}
