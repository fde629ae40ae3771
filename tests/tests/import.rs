//! `ccsd import`: imported recordings match perf's own output.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use ccsd_tests::ccsd::{EndedProgram, binary, ccsd};
use ccsd_tests::fixture::{build, copy_program, scratch};
use ccsd_tests::suite::{CC, PERF, PYTHON, Suite};
use ccsd_tests::wait::until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Samples in which a function runs, and in which it is on the stack.
type FunctionCounts = BTreeMap<String, (u64, u64)>;

/// Flags of the program that takes pages.
const PAGES: [&str; 5] = ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread"];
const FLAGS: [&str; 4] = ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"];

fn main() -> ExitCode {
    Suite::new()
        .test("frame_pointers_as_perf_has_them", &[CC, PERF], || {
            let dir = scratch();
            let data = record(dir.path(), &["-g"]);
            agree(&data, &import(&data));
        })
        .test("recordings_match_this_perf", &[PERF, PYTHON], || {
            let script: PathBuf = [env!("CARGO_MANIFEST_DIR"), "recordings", "check.py"].iter().collect();
            let ended = EndedProgram::of(Command::new("python3").arg(script).arg(binary()));
            assert!(ended.status.success() && ended.stdout.contains("as perf has them"), "{ended:?}");
        })
        .test("stacks_that_begin_at_no_entry_are_truncated", &[CC, PERF], || {
            let dir = scratch();
            let without = ["-O2", "-g", "-fomit-frame-pointer"];
            for (source, flags, is_whole) in
                [("recursion.c", &FLAGS[..], true), ("pages.c", &PAGES, true), ("recursion.c", &without, false)]
            {
                let data = record_of(&build(source, flags), dir.path(), &["-g"]);
                let (complete, truncated) = outermost(&data);
                let document = report(&import(&data));
                let accounting = &document["accounting"];
                let reasons = accounting["truncated_by_reason"].as_object().unwrap();
                assert_eq!(accounting["truncated"].as_u64(), Some(truncated), "{source} {flags:?} {accounting}");
                assert_eq!(accounting["received"].as_u64(), Some(complete + truncated), "{source} {flags:?}");
                assert!(reasons.keys().all(|reason| reason == "no entry point"), "{accounting}");
                let few = (complete + truncated) / 5;
                let (many, few_are) = if is_whole { (complete, truncated) } else { (truncated, complete) };
                assert!(many > few && (few_are <= few || !is_whole), "{source} {flags:?} {complete} {truncated}");
            }
        })
        .test("stack_bytes_as_perf_unwinds_them", &[CC, PERF], || {
            let dir = scratch();
            let data = record(dir.path(), &["--call-graph", "dwarf,32768"]);
            let profile = import(&data);
            agree(&data, &profile);
            let document = report(&profile);
            let accounting = &document["accounting"];
            assert_eq!((&accounting["truncated"], &accounting["with_gap"]), (&0.into(), &0.into()), "{accounting}");
        })
        .test("without_stacks", &[CC, PERF], || {
            let dir = scratch();
            let data = record(dir.path(), &[]);
            agree(&data, &import(&data));
        })
        .test("through_a_pipe", &[CC, PERF], || {
            let dir = scratch();
            for options in [&["-g"][..], &["--call-graph", "dwarf,32768"]] {
                let data = record_to_pipe(dir.path(), options);
                agree(&data, &import(&data));
                let profile = dir.path().join("at-once.ccsd");
                let mut command = ccsd(["import", "-", "-o"]);
                let output = command.arg(&profile).stdin(fs::File::open(&data).unwrap()).output().unwrap();
                assert!(output.status.success(), "{output:?}");
                agree(&data, &profile);
                // Ctrl-C goes to what writes, too: what that has written is read.
                let mut command = ccsd(["import", "-", "-o"]);
                let mut child = command.arg(&profile).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
                let whole = fs::read(&data).unwrap();
                let mut pipe = child.stdin.take().unwrap();
                pipe.write_all(&whole[..whole.len() / 2]).unwrap();
                until(|| catches_interrupt(child.id()));
                kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
                pipe.write_all(&whole[whole.len() / 2..]).unwrap();
                drop(pipe);
                assert!(child.wait().unwrap().success());
                agree(&data, &profile);
                for part in 0..8 {
                    import_damaged(dir.path(), &whole[..whole.len() * part / 8]);
                }
            }
        })
        .test("compressed", &[CC, PERF], || {
            let dir = scratch();
            if !perf_compresses() {
                return;
            }
            for options in [&["-z", "-g"][..], &["-z", "--call-graph", "dwarf,32768"]] {
                let data = record(dir.path(), options);
                agree(&data, &import(&data));
                let whole = fs::read(&data).unwrap();
                for part in 0..8 {
                    let mut bytes = whole.clone();
                    bytes[200 + (whole.len() - 208) * part / 8] ^= 0x55;
                    import_damaged(dir.path(), &bytes);
                    import_damaged(dir.path(), &whole[..whole.len() * part / 8]);
                }
                let data = record_to_pipe(dir.path(), options);
                agree(&data, &import(&data));
            }
        })
        .test("one_of_several_events", &[CC, PERF], || {
            let dir = scratch();
            let data = record(dir.path(), &["-e", "page-faults", "-g"]);
            let counts = events(&data);
            assert_eq!(counts.len(), 2, "{counts:?}");
            let profile = data.with_extension("ccsd");
            for (event, samples) in &counts {
                let ended = EndedProgram::of(ccsd(["import", "-e", event]).arg(&data).arg("-o").arg(&profile));
                assert!(ended.status.success(), "{ended:?}");
                let document = report(&profile);
                assert_eq!(document["accounting"]["received"].as_u64(), Some(*samples), "{event}");
            }
            let ended = EndedProgram::of(ccsd(["import"]).arg(&data).arg("-o").arg(&profile));
            assert!(ended.stdout.contains("--event chooses one of cpu-clock, page-faults"), "{ended:?}");
            let ended = EndedProgram::of(ccsd(["import", "-e", "other"]).arg(&data).arg("-o").arg(&profile));
            ended.assert_refused(2, &["no event other", "cpu-clock, page-faults"]);
        })
        .test("events_of_a_group_are_metrics", &[CC, PERF], || {
            let dir = scratch();
            // The leader samples for all; each event samples itself; with stack bytes between and after the counters.
            for (group, options) in [
                ("{cpu-clock,page-faults}:S", &["-g"][..]),
                ("{task-clock,page-faults,context-switches}:S", &["--call-graph", "dwarf,4096"]),
                ("{page-faults,cpu-clock}:S", &["-c", "10"]),
                ("{cpu-clock,page-faults}", &["-g"]),
                // perf before 6.12 merges the counters of threads that inherit an event.
                ("cpu-clock:S", &["-g", "--no-inherit"]),
                ("{cpu-clock,page-faults}:S", &["-a", "-g"]),
            ] {
                let data = record_events(dir.path(), group, options);
                let counts = weights(&data);
                let profile = import(&data);
                let events: Vec<&str> = group.trim_end_matches(":S").trim_matches(['{', '}']).split(',').collect();
                for event in &events {
                    // perf emits no sample for an event that has counted nothing.
                    let (samples, sum) = counts.get(*event).copied().unwrap_or_default();
                    assert_eq!(weight(&profile, event), sum, "{event} of {group}: {counts:?}");
                    let alone = dir.path().join("alone.ccsd");
                    let ended = EndedProgram::of(ccsd(["import", "-e", event]).arg(&data).arg("-o").arg(&alone));
                    if samples == 0 {
                        ended.assert_refused(2, &["has no samples"]);
                        continue;
                    }
                    assert!(ended.status.success(), "{ended:?}");
                    let document = report(&alone);
                    assert_eq!(document["accounting"]["received"].as_u64(), Some(samples), "{event} of {group}");
                    assert_eq!(weight(&alone, event), sum, "{event} of {group}, alone");
                }
                assert!(counts.values().all(|&(samples, sum)| samples > 0 && sum > 0), "{counts:?}");
                assert!(counts[events[0]].0 > 20, "{counts:?}");
            }
        })
        .test("groups_through_pipes_and_compressed", &[CC, PERF], || {
            let dir = scratch();
            let mut ways = vec![&["-g"][..]];
            if perf_compresses() {
                ways.push(&["-z", "-g"]);
            }
            for options in ways {
                let data = events_to_pipe(dir.path(), "{cpu-clock,page-faults}:S", options);
                let counts = weights(&data);
                let profile = import(&data);
                for (event, (_, sum)) in &counts {
                    assert_eq!(weight(&profile, event), *sum, "{event} of {options:?}: {counts:?}");
                }
                assert_eq!(counts.len(), 2, "{counts:?}");
            }
        })
        .test("text_with_few_fields", &[CC, PERF], || {
            let dir = scratch();
            let data = record(dir.path(), &["-g", "--sample-cpu"]);
            let (counts, samples) = perf_script(&data);
            for fields in ["comm,pid,ip,sym,dso", "comm,pid,tid,ip,sym", "comm,tid,cpu,time,event,ip,sym,symoff,dso"] {
                let mut perf = Command::new("perf");
                perf.args(["script", "--no-inline", "--max-stack", "1000", "-F", fields, "-i"]).arg(&data);
                let text = dir.path().join("text");
                fs::write(&text, EndedProgram::of(&mut perf).stdout).unwrap();
                let document = report(&import(&text));
                assert_eq!(document["accounting"]["received"].as_u64(), Some(samples), "{fields}");
                let rows = document["flat"]["rows"].as_array().unwrap();
                for (name, (own, inherited)) in &counts {
                    let row = rows.iter().find(|row| row["name"] == name.as_str());
                    let row = row.unwrap_or_else(|| panic!("no {name} by {fields}"));
                    assert_eq!(row["samples_self"].as_u64(), Some(*own), "{name} by {fields}");
                    assert_eq!(row["samples_inherited"].as_u64(), Some(*inherited), "{name} by {fields}");
                }
            }
        })
        .test("a_program_that_was_built_anew_gives_no_names", &[CC, PERF], || {
            let dir = scratch();
            let program = dir.path().join("program");
            copy_program(build("recursion.c", &FLAGS), &program);
            let data = record_of(&program, dir.path(), &["-g"]);
            fs::remove_file(&program).unwrap();
            fs::copy(build("weights.c", &["-O1"]), &program).unwrap();
            let ended = EndedProgram::of(ccsd(["import"]).arg(&data).arg("-o").arg(dir.path().join("p.ccsd")));
            assert!(ended.status.success(), "{ended:?}");
            let note = ended.stdout.lines().find(|line| line.contains("changed since the recording"));
            assert!(note.is_some_and(|note| note.contains("program")), "{}", ended.stdout);
            assert!(!ended.stdout.contains("weight_"), "{}", ended.stdout);
        })
        .test("damage_is_reported", &[CC, PERF], || {
            let dir = scratch();
            let data = record(dir.path(), &["-g"]);
            let whole = fs::read(&data).unwrap();
            let damaged = dir.path().join("damaged.data");
            let profile = dir.path().join("damaged.ccsd");
            let import = |bytes: &[u8]| {
                fs::write(&damaged, bytes).unwrap();
                let _ = fs::remove_file(&profile);
                let ended = EndedProgram::of(ccsd(["import"]).arg(&damaged).arg("-o").arg(&profile));
                match ended.status.code() {
                    Some(0) => {}
                    Some(2) => {
                        ended.assert_refused(2, &["damaged.data"]);
                        assert!(!profile.exists(), "{ended:?}");
                    }
                    _ => panic!("{ended:?}"),
                }
                ended
            };
            for part in 0..10 {
                import(&whole[..whole.len() * part / 10]);
            }
            // Every word of the header, and some of the rest.
            let mut seed = 1u64;
            for at in (0..104).step_by(8).chain((104..whole.len() - 8).step_by(whole.len() / 15 / 8 * 8)) {
                let mut bytes = whole.clone();
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let word = [seed.to_le_bytes(), u64::MAX.to_le_bytes()][at / 8 % 2];
                bytes[at..at + 8].copy_from_slice(&word);
                import(&bytes);
            }
            let is_none = import(
                b"this is no perf.data file, and long enough for the header of one, which has a hundred and four bytes",
            );
            is_none.assert_refused(2, &["no perf.data file", "text without a sample"]);
        })
        .test("every_command_reads_recordings_of_perf", &[CC, PERF], || {
            let dir = scratch();
            let data = record(dir.path(), &["-g"]);
            let mut perf = Command::new("perf");
            perf.args(["script", "--header", "--no-inline", "--max-stack", "65535", "-F"]);
            let text = dir.path().join("script.txt");
            let printed =
                EndedProgram::of(perf.args(["comm,pid,tid,time,event,period,ip,sym,dso", "-i"]).arg(&data)).stdout;
            fs::write(&text, printed).unwrap();
            for recording in [&data, &text, &record_to_pipe(dir.path(), &["-g"])] {
                let profile = import(recording);
                let same = |words: &[&str]| {
                    let output = |file: &Path| {
                        let words: Vec<&str> = words
                            .iter()
                            .map(|&word| if word == "FILE" { file.to_str().unwrap() } else { word })
                            .collect();
                        let ended = EndedProgram::of(&mut ccsd(&words));
                        assert!(ended.status.success(), "{ended:?}");
                        assert!(!ended.stdout.is_empty(), "{ended:?}");
                        let lines = ended.stdout.lines().filter(|line| !line.contains(file.to_str().unwrap()));
                        lines.map(str::to_owned).collect::<Vec<_>>()
                    };
                    assert_eq!(output(recording), output(&profile), "{words:?} of {}", recording.display());
                };
                same(&["report", "FILE"]);
                same(&["report", "--view", "tree", "FILE"]);
                same(&["report", "--view", "timeline", "FILE"]);
                same(&["report", "--since", "+0s", "--until", "+10s", "FILE"]);
                same(&["diff", "FILE", "FILE"]);
                same(&["diff", "--before", "FILE", "--after", "FILE"]);
                same(&["export", "folded", "FILE"]);
                same(&["top", "--plain", "FILE"]);
                same(&["annotate", "r", "FILE"]);
                let json = |file: &Path| report(file)["file"]["bytes"].as_u64();
                assert_eq!(json(recording), Some(recording.metadata().unwrap().len()));
            }
            // A recording is never overwritten, not even by an export of that name.
            let ended = EndedProgram::of(ccsd(["export", "folded"]).arg(&data).arg("-o").arg(&data));
            ended.assert_refused(2, &["is the profile itself"]);
        })
        .test("recordings_that_are_damaged_are_named_by_every_command", &[CC, PERF], || {
            let dir = scratch();
            let whole = fs::read(record(dir.path(), &["-g"])).unwrap();
            let damaged = dir.path().join("damaged.data");
            for part in 0..10 {
                fs::write(&damaged, &whole[..whole.len() * part / 10]).unwrap();
                let ended = EndedProgram::of(ccsd(["report"]).arg(&damaged));
                match ended.status.code() {
                    Some(0) => assert!(ended.stdout.contains("cut short"), "{ended:?}"),
                    _ => ended.assert_refused(2, &["damaged.data"]),
                }
            }
            fs::write(&damaged, &whole[..200]).unwrap();
            for words in [
                &["report"][..],
                &["top", "--plain"],
                &["export", "json"],
                &["annotate", "x"],
                &["diff", "--against", "+0..+1s", "--since", "+1s"],
            ] {
                let ended = EndedProgram::of(ccsd(words).arg(&damaged));
                ended.assert_refused(2, &["damaged.data is a recording of perf (perf.data), and cannot be read"]);
            }
        })
        .run()
}

fn catches_interrupt(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() & 1 << (Signal::SIGINT as u32 - 1) != 0
}

fn record(dir: &Path, options: &[&str]) -> PathBuf {
    record_of(&build("recursion.c", &FLAGS), dir, options)
}

/// perf's output to a pipe, in a file.
fn record_to_pipe(dir: &Path, options: &[&str]) -> PathBuf {
    events_to_pipe(dir, "cpu-clock", options)
}

fn events_to_pipe(dir: &Path, events: &str, options: &[&str]) -> PathBuf {
    let data = dir.join("pipe.data");
    let program = build("recursion.c", &FLAGS);
    // The program itself must not write there.
    let script =
        r#"perf record -q -e "$EVENTS" -F 999 "$@" -o - -- sh -c 'exec "$0" three 30 20 >&2' "$PROGRAM" | cat"#;
    let mut shell = Command::new("sh");
    shell
        .args(["-c", script, "sh"])
        .args(options)
        .env("PROGRAM", program)
        .env("EVENTS", events)
        .stdout(fs::File::create(&data).unwrap());
    let status = shell.stderr(std::process::Stdio::null()).status().unwrap();
    assert!(status.success(), "{status}");
    data
}

fn import_damaged(dir: &Path, bytes: &[u8]) {
    let damaged = dir.join("damaged.data");
    fs::write(&damaged, bytes).unwrap();
    let ended = EndedProgram::of(ccsd(["import"]).arg(&damaged).arg("-o").arg(dir.join("damaged.ccsd")));
    match ended.status.code() {
        Some(0) => {}
        Some(2) => ended.assert_refused(2, &["damaged.data"]),
        _ => panic!("{ended:?}"),
    }
}

fn perf_compresses() -> bool {
    let ended = EndedProgram::of(Command::new("perf").args(["version", "--build-options"]));
    ended.stdout.lines().any(|line| line.contains("zstd") && line.contains("on"))
}

fn record_events(dir: &Path, events: &str, options: &[&str]) -> PathBuf {
    let data = dir.join("events.data");
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-e", events]).arg("-o").arg(&data);
    if !options.contains(&"-c") {
        perf.args(["-F", "999"]);
    }
    let ended = EndedProgram::of(perf.args(options).arg("--").arg(build("pages.c", &PAGES)));
    assert!(ended.status.success(), "{ended:?}");
    data
}

/// Numbers of stacks in perf's output that begin with the first function of a process or thread, and that do not.
fn outermost(data: &Path) -> (u64, u64) {
    let mut perf = Command::new("perf");
    let ended = EndedProgram::of(perf.args(["script", "-G", "-F", "event", "-i"]).arg(data));
    let all = ended.stdout.lines().count() as u64;
    let mut perf = Command::new("perf");
    perf.args(["script", "--no-inline", "-F", "ip,sym,dso", "--max-stack", "1000", "-i"]).arg(data);
    let entries = ["main", "_start", "__libc_start_call_main", "__libc_start_main", "start_thread", "clone3"];
    let others = ["_dl_start_user", "ret_from_fork_asm", "ret_from_fork"];
    let text = EndedProgram::of(&mut perf).stdout;
    // A C library may have nameless functions between its entry and what it calls.
    let is_nameless = |line: &&str| line.contains("[unknown]") && line.contains("libc.");
    let last = |stack: &str| {
        let line = stack.lines().rev().find(|line| !is_nameless(line))?;
        line.split_whitespace().nth(1).map(str::to_owned)
    };
    let is_entry = |stack: &&str| {
        last(stack).is_some_and(|name| entries.iter().chain(&others).any(|entry| name.split('@').next() == Some(entry)))
    };
    let complete = text.split("\n\n").filter(is_entry).count() as u64;
    (complete, all - complete)
}

fn weight(profile: &Path, metric: &str) -> u64 {
    let ended = EndedProgram::of(ccsd(["report", "--json", "--metric", metric]).arg(profile));
    assert!(ended.status.success(), "{ended:?}");
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    document["flat"]["rows"].as_array().unwrap().iter().map(|row| row["self_weight"].as_u64().unwrap()).sum()
}

/// Number and weight of the samples of each event, from perf.
fn weights(data: &Path) -> BTreeMap<String, (u64, u64)> {
    let ended = EndedProgram::of(Command::new("perf").args(["script", "-G", "-F", "event,period", "-i"]).arg(data));
    let mut counts: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let words: Vec<&str> = ended.stdout.split_whitespace().collect();
    for (period, event) in words.iter().zip(words.iter().skip(1)) {
        let Some(event) = event.strip_suffix(':') else { continue };
        let count = counts.entry(event.trim_end_matches(":S").to_owned()).or_default();
        count.0 += 1;
        count.1 += period.parse::<u64>().unwrap();
    }
    counts
}

fn events(data: &Path) -> BTreeMap<String, u64> {
    let ended = EndedProgram::of(Command::new("perf").args(["script", "-G", "-F", "event", "-i"]).arg(data));
    let mut counts = BTreeMap::new();
    for event in ended.stdout.split_whitespace().filter_map(|word| word.strip_suffix(':')) {
        *counts.entry(event.to_owned()).or_default() += 1;
    }
    counts
}

fn record_of(program: &Path, dir: &Path, options: &[&str]) -> PathBuf {
    let data = dir.join("perf.data");
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-e", "cpu-clock", "-F", "999"]).args(options).arg("-o").arg(&data);
    let ended = EndedProgram::of(perf.arg("--").arg(program).args(["three", "30", "20"]));
    assert!(ended.status.success(), "{ended:?}");
    data
}

fn import(data: &Path) -> PathBuf {
    let profile = data.with_extension("ccsd");
    let ended = EndedProgram::of(ccsd(["import"]).arg(data).arg("-o").arg(&profile));
    assert!(ended.status.success(), "{ended:?}");
    profile
}

fn report(profile: &Path) -> Value {
    let ended = EndedProgram::of(ccsd(["report", "--json"]).arg(profile));
    assert!(ended.status.success(), "{ended:?}");
    serde_json::from_str(&ended.stdout).unwrap()
}

fn agree(data: &Path, profile: &Path) {
    let document = report(profile);
    let mut ours = FunctionCounts::new();
    for row in document["flat"]["rows"].as_array().unwrap() {
        let number = |field: &str| row[field].as_u64().unwrap();
        if row["image"].as_str().unwrap().starts_with("recursion") {
            let name = row["name"].as_str().unwrap().to_owned();
            ours.insert(name, (number("samples_self"), number("samples_inherited")));
        }
    }
    let theirs = perf_script(data);
    assert_eq!(document["accounting"]["received"].as_u64().unwrap(), theirs.1);
    assert!(ours.len() > 3, "{ours:?}");
    // perf omits the outermost function of some stacks; these functions are never outermost.
    for name in ["p", "q", "r"] {
        assert_eq!(ours.get(name), theirs.0.get(name), "{name}: {ours:?} {:?}", theirs.0);
    }
}

/// From `perf script`: functions of the program by name, and the number of samples.
fn perf_script(data: &Path) -> (FunctionCounts, u64) {
    let mut perf = Command::new("perf");
    perf.args(["script", "--no-inline", "-F", "ip,sym,dso", "--max-stack", "1000", "-i"]).arg(data);
    let ended = EndedProgram::of(&mut perf);
    assert!(ended.status.success(), "{ended:?}");
    let (mut counts, mut samples) = (FunctionCounts::new(), 0);
    // Each sample is a paragraph; without call chains, a line.
    let is_chain = ended.stdout.contains("\n\n");
    let separator = if is_chain { "\n\n" } else { "\n" };
    for sample in ended.stdout.split(separator).filter(|sample| !sample.trim().is_empty()) {
        samples += 1;
        let mut seen = BTreeSet::new();
        for (depth, line) in sample.lines().filter(|line| !line.trim().is_empty()).enumerate() {
            // ADDRESS NAME (IMAGE)
            let mut words = line.split_whitespace().skip(1);
            let (Some(name), Some(image)) = (words.next(), words.next()) else { continue };
            if !image.rsplit('/').next().unwrap().starts_with("recursion") {
                continue;
            }
            let count = counts.entry(name.to_owned()).or_default();
            count.0 += u64::from(depth == 0);
            count.1 += u64::from(seen.insert(name.to_owned()));
        }
    }
    (counts, samples)
}
