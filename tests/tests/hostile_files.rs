//! What files made for it do to those who read them: nothing but names of their own that are missing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use ccsd_tests::ccsd::{Collecting, EndedProgram, NOBODY, as_user, binary, ccsd};
use ccsd_tests::daemon::Daemon;
use ccsd_tests::elf::{
    CODE, CraftedSection, ElfSymbolKind, NOBITS, STRTAB, SYMTAB, exhausting_program, symbol, with_sections,
};
use ccsd_tests::fixture::{Running, build, scratch};
use ccsd_tests::suite::{CC, Need, OBJCOPY, Suite, UNSHARE};
use ccsd_tests::watched::{WatchedService, samples};

fn main() -> ExitCode {
    Suite::new()
        .test("functions_without_end", &[CC, OBJCOPY], || read_alone("functions", true, endless_functions))
        .test("symbols_in_very_many_sections", &[CC], || read_alone("symbols", false, many_sections))
        .test("clones_with_overlapping_names", &[CC], || read_alone("clones", true, clones))
        .test("little_address_space_is_an_error", &[CC], little_address_space)
        .test("paranoid_machines_serve_no_strangers", &[CC, Need::Root, UNSHARE], paranoid)
        .test("a_name_service_that_hangs_stops_no_watch", &[CC], name_service)
        .run()
}

/// Peak memory and CPU time of a process, bytes and seconds.
fn cost(pid: u32) -> (u64, f64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    (peak << 10, ticks as f64 / 100.0)
}

/// Attaches to a program with a hostile file: all stacks are complete, in bounded memory and CPU time. `cut`: a note
/// tells of missing names.
fn read_alone(name: &str, cut: bool, craft: fn(&Path, &Path)) {
    let program = build("phases.c", &["-O1"]);
    let dir = scratch();
    let hostile = dir.path().join(name);
    craft(&program, &hostile);
    let mut running = Running::start(&hostile, &[]);
    let mut collecting = Collecting::attach(&[], &[running.pid()]);
    // Samples are written when their names are looked for and not found, or found.
    collecting.wait_for_samples(50);
    running.go();
    collecting.wait_for_samples(20);
    let (peak, cpu) = cost(collecting.child.id());
    running.go();
    let _ = running.finish();
    let recorded = collecting.wait();
    assert!(recorded.ended.status.success(), "{:?}", recorded.ended);
    recorded.assert_whole().assert_complete();
    assert!(peak < 900 << 20, "{name}: {} MiB", peak >> 20);
    assert!(cpu < 240.0, "{name}: {cpu} s");
    println!("{name}: {} MiB, {cpu} s", peak >> 20);
    let notes = &recorded.profile.session().notes;
    let is_cut = notes.iter().any(|note| note.contains("limit"));
    assert_eq!(is_cut, cut, "{name}: {notes:?}");
}

fn endless_functions(program: &Path, to: &Path) {
    let dir = scratch();
    let plain = exhausting_program(program, 20_000_000, dir.path());
    let mut objcopy = Command::new("objcopy");
    assert!(objcopy.arg("--compress-debug-sections=zlib").args([&plain, to]).status().unwrap().success());
}

fn code(program: &Path) -> (u64, u64) {
    let bytes = fs::read(program).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let headers = word(32) as usize;
    let segments = (0..usize::from(bytes[56])).map(|i| headers + 56 * i);
    // PT_LOAD with PF_X; its address and size in memory.
    let code = segments.filter(|&at| bytes[at] == 1 && bytes[at + 4] & 1 != 0).map(|at| (word(at + 16), word(at + 40)));
    code.min().unwrap()
}

/// Two million symbols that are each looked for in sixty thousand sections of code.
fn many_sections(program: &Path, to: &Path) {
    let (address, _) = code(program);
    let far = 1 << 40;
    let mut sections = vec![
        CraftedSection { name: ".strtab", kind: STRTAB, bytes: b"\0f\0".to_vec(), ..CraftedSection::default() },
        CraftedSection { name: ".symtab", kind: SYMTAB, link: 1, ..CraftedSection::default() },
    ];
    sections[1].bytes = (0..2_000_000).flat_map(|at| symbol(1, far + at, 1, ElfSymbolKind::Global)).collect();
    let range = |start: u64, size| Some((start, size));
    sections.extend((0..60_000).map(|number| CraftedSection {
        name: ".text",
        kind: NOBITS,
        flags: CODE,
        range: range(far / 2 + number * 16, 16),
        ..CraftedSection::default()
    }));
    let last = [range(address, 4096), range(far, 4 << 20)];
    sections.extend(last.map(|range| CraftedSection {
        name: ".text",
        kind: NOBITS,
        flags: CODE,
        range,
        ..CraftedSection::default()
    }));
    with_sections(program, &sections, to);
}

/// A part of a function, which is looked for among a million functions of its unit, whose names of 16 KiB overlap.
fn clones(program: &Path, to: &Path) {
    let (address, size) = code(program);
    let mut strings = b"\0a.c\0part.cold\0".to_vec();
    let names = strings.len() as u32;
    strings.resize(strings.len() + (2 << 20), b'p');
    let far = 1 << 40;
    let mut symbols = symbol(1, 0, 0, ElfSymbolKind::File).to_vec();
    symbols.extend(symbol(5, address, size, ElfSymbolKind::Local));
    symbols.extend((0..1_000_000u32).flat_map(|at| symbol(names + at, far + u64::from(at), 1, ElfSymbolKind::Local)));
    let code = |range| CraftedSection {
        name: ".text",
        kind: NOBITS,
        flags: CODE,
        range: Some(range),
        ..CraftedSection::default()
    };
    let sections = [
        CraftedSection { name: ".strtab", kind: STRTAB, bytes: strings, ..CraftedSection::default() },
        CraftedSection { name: ".symtab", kind: SYMTAB, link: 1, bytes: symbols, ..CraftedSection::default() },
        code((address, size)),
        code((far, 1 << 20)),
    ];
    with_sections(program, &sections, to);
}

/// With less and less address space, commands end with a message, never by a signal.
fn little_address_space() {
    let dir = scratch();
    let file = dir.path().join("p.ccsd");
    let recorded =
        EndedProgram::of(ccsd(["record", "-q", "-o"]).arg(&file).arg("--").arg(build("weights.c", &[])).arg("50"));
    assert!(recorded.status.success(), "{recorded:?}");
    let socket = dir.path().join("sock");
    let commands: [Vec<&str>; 3] = [
        vec!["report", file.to_str().unwrap()],
        vec!["record", "--no-output", "--", "true"],
        vec!["daemon", "--socket", socket.to_str().unwrap()],
    ];
    let limited = |megabytes: u64, command: &[&str]| {
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -v $1; shift; exec timeout 20 \"$@\"", "sh"]).arg((megabytes * 1000).to_string());
        EndedProgram::of(limited.arg(binary()).args(command).env("CCSD_SOCKET", ""))
    };
    // With less than the program itself takes, it is the loader that fails.
    let least = (20..200).find(|&megabytes| limited(megabytes, &["--version"]).status.success()).unwrap();
    let mut refused = 0;
    for command in commands {
        for more in [0, 5, 15, 25, 40, 55] {
            let megabytes = least + more;
            let ended = limited(megabytes, &command);
            // 124: the daemon has served until its time was over; 126 and 127: it was not started.
            let code = ended.status.code();
            assert!(matches!(code, Some(0 | 1 | 124 | 126 | 127)), "{command:?} {megabytes}: {ended:?}");
            if code == Some(1) {
                refused += 1;
                assert!(ended.stderr.contains("ccsd: "), "{command:?} {megabytes}: {ended:?}");
            }
        }
    }
    assert!(refused > 0);
}

/// `ccsd daemon` where `kernel.perf_event_paranoid` is 3: for strangers only if the configuration says so.
fn paranoid() {
    let dir = scratch();
    let (three, config) = (dir.path().join("three"), dir.path().join("ccsd.toml"));
    fs::write(&three, "3\n").unwrap();
    let mut running = Running::start_command(as_user(&mut Command::new(build("phases.c", &["-O1"])), NOBODY));
    let script = "mount --bind \"$1\" /proc/sys/kernel/perf_event_paranoid && shift && exec \"$@\"";
    for (text, admits) in [("", false), ("paranoid_users = true\n", true)] {
        fs::write(&config, format!("[sessions]\n{text}")).unwrap();
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, "sh"]).arg(&three).arg(binary());
        let daemon =
            Daemon::start_by(scratch(), command, &["--socket-mode", "666", "--config", config.to_str().unwrap()]);
        let pid = running.pid().to_string();
        let attach = ["attach", "--detach", &pid];
        let ended = EndedProgram::of(as_user(&mut daemon.ccsd(attach), NOBODY));
        if admits {
            assert!(ended.status.success(), "{ended:?}");
        } else {
            ended.assert_refused(2, &["perf_event_paranoid is 3", "paranoid_users"]);
        }
        // Root is served in any case.
        let ended = daemon.run(&attach);
        assert!(ended.status.success(), "{ended:?}");
        daemon.stop();
    }
    running.go();
    running.go();
    let _ = running.finish();
}

/// A library that never answers who a user is.
const SILENT: &str = "
    #include <pwd.h>
    #include <string.h>
    #include <unistd.h>
    #include <errno.h>
    int getpwnam_r(const char *name, struct passwd *p, char *b, size_t n, struct passwd **found) {
        while (strcmp(name, \"silent\") == 0) pause();
        *found = 0;
        return 0;
    }
    int getpwuid_r(uid_t uid, struct passwd *p, char *b, size_t n, struct passwd **found) {
        for (;;) pause();
    }
";

/// The name service does not answer for a watch's user: other watches and sessions go on.
fn name_service() {
    let dir = scratch();
    let (source, library) = (dir.path().join("silent.c"), dir.path().join("silent.so"));
    fs::write(&source, SILENT).unwrap();
    let mut cc = Command::new("cc");
    assert!(cc.args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status().unwrap().success());
    let rules = "\n[[watch]]\nname = \"other\"\ncomm = \"no-such-program\"\nuser = [\"silent\", \"missing\"]\n";
    let mut service = WatchedService::start("");
    service.stop();
    let path = service.path("ccsd.toml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\n[budget]", &format!("{rules}\n[budget]"))).unwrap();
    let mut command = service.command();
    command.env("LD_PRELOAD", &library);
    service.begin(command);
    let mut watched = Command::new(&service.program).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    service.until_status("the watch of another user goes on", |status| samples(status) > 50);
    let hint = || {
        let ended = service.stored(&["daemon", "watches", "--json"]);
        let document: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        document["watches"][1]["status"]["hint"].as_str().unwrap_or_default().to_owned()
    };
    service.until("who it is stays unknown", || hint().contains("not known yet which user \"silent\""));
    service.until("who is missing is said", || service.log().contains("there is no user \"missing\""));
    let ended = EndedProgram::of(&mut service.ccsd(&["attach", "--detach", &watched.id().to_string()]));
    assert!(ended.status.success(), "{ended:?}");
    let _ = watched.kill();
    let _ = watched.wait();
    service.stop();
}
