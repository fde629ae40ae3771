//! `ccsd export`: other readers of each format find the numbers of `ccsd report`, also with `--hide` and similar
//! options.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::OnceLock;

use ccsd_profile::import::PERF_SCRIPT;
use ccsd_tests::ccsd::{EndedProgram, RecordCommand, ccsd};
use ccsd_tests::fixture::build;
use ccsd_tests::readers::{
    ANNOTATE, BROWSER, DOT, FIREFOX_PROFILER, GAP, GPROF2DOT, SPEEDSCOPE, Weights, callgrind_costs, firefox_functions,
    pprof_top, sandwich,
};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::suite::{CC, GO, PERF, Suite};
use serde_json::Value;

const FORMATS: [&str; 10] =
    ["pprof", "callgrind", "folded", "svg", "speedscope", "firefox", "dot", "gprof", "json", "csv"];

fn main() -> ExitCode {
    Suite::new()
        .test("pprof_reads_it", &[CC, GO], || {
            for recorded in [plain(), recursive()] {
                let file = export(recorded, "pprof", &[]);
                let mut found = pprof_top(&file);
                let expected = reported(recorded, &[]);
                found.retain(|name, _| expected.contains_key(name));
                assert_eq!(found, expected);
                let raw = EndedProgram::of(Command::new("go").args(["tool", "pprof", "-raw"]).arg(&file));
                let is_program = |name: &str| name.contains("/weights") || name.contains("/recursion");
                let program = recorded.profile.images().iter().find(|it| is_program(&it.name)).unwrap();
                assert!(raw.stdout.contains("cpu-clock/nanoseconds[dflt]"), "{}", raw.stdout);
                assert!(raw.stdout.contains("recursion is folded"), "{}", raw.stdout);
                let build_id: String = program.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
                assert!(raw.stdout.contains(&build_id), "{build_id} is not in {}", raw.stdout);
            }
        })
        .test("speedscope_shows_it", &[CC, SPEEDSCOPE, BROWSER], || {
            for recorded in [plain(), recursive()] {
                let file = export(recorded, "speedscope", &[]);
                let mut found = sandwich(&file);
                let expected = reported(recorded, &[]);
                found.retain(|name, _| expected.contains_key(name));
                assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
                for (name, (own, inherited)) in expected {
                    for (exact, (shown, unit)) in [(own, found[&name].0), (inherited, found[&name].1)] {
                        // It prints two decimals.
                        let off = (shown - exact as f64 / unit).abs();
                        assert!(off <= 0.005_001, "{name}: {shown} of {unit} ns, and {exact} ns in the report");
                    }
                }
            }
        })
        .test("firefox_profiler_reads_it", &[CC, FIREFOX_PROFILER], || {
            for recorded in [plain(), recursive()] {
                let file = export(recorded, "firefox", &[]);
                let document: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
                let threads = document["threads"].as_array().unwrap();
                let end = document["meta"]["profilingEndTime"].as_f64().unwrap();
                for thread in threads {
                    let times = thread["samples"]["time"].as_array().unwrap().iter().map(|it| it.as_f64().unwrap());
                    assert!(
                        times.clone().is_sorted() && times.clone().all(|time| time > 0.0 && time <= end),
                        "{thread}"
                    );
                }
                let is_program = |lib: &&Value| {
                    ["weights", "recursion"].iter().any(|it| lib["name"].as_str().unwrap().starts_with(it))
                };
                let lib = document["libs"].as_array().unwrap().iter().find(is_program).unwrap();
                let image = recorded.profile.images().iter().find(|it| lib["path"] == it.name.as_str()).unwrap();
                let build_id: String = image.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
                assert!(!build_id.is_empty() && lib["codeId"] == build_id.as_str(), "{lib}");
                let mut functions = firefox_functions(&file, threads.len());
                // A gap is not a function.
                functions.remove(GAP);
                assert_eq!(functions, reported(recorded, &[]), "{}", file.display());
                assert!(document["meta"]["extra"].to_string().contains("recursion is folded"));
            }
        })
        .test("callgrind_annotate_reads_it", &[CC, ANNOTATE], || {
            for recorded in [plain(), recursive()] {
                let file = export(recorded, "callgrind", &[]);
                let (own, inclusive) = (callgrind_costs(&file, false), callgrind_costs(&file, true));
                for (name, (self_weight, inherited)) in reported(recorded, &[]) {
                    assert_eq!(own.get(&name).copied().unwrap_or(0), self_weight, "{name}");
                    // It adds up the calls into a function, which counts mutual recursion repeatedly.
                    if !matches!(name.as_str(), "p" | "q" | "r") {
                        assert_eq!(inclusive.get(&name).copied(), Some(inherited), "{name}");
                    }
                }
            }
        })
        .test("gprof2dot_reads_it", &[CC, GPROF2DOT], || {
            let recorded = plain();
            let total = total(recorded, &[]);
            for (format, reader) in [("callgrind", "callgrind"), ("folded", "collapse"), ("gprof", "prof")] {
                let file = export(recorded, format, &[]);
                let args = ["-f", reader, "--node-thres=0", "--edge-thres=0"];
                let graph = EndedProgram::of(Command::new("gprof2dot").args(args).arg(&file));
                assert!(graph.status.success(), "{format}: {graph:?}");
                // gprof prints hundredths of seconds of the function, its callees and the total; the graph hundredths
                // of a percent.
                let tolerance = |functions: usize| match format {
                    "gprof" => 0.01 + 100.0 * 0.005e9 * (functions as f64 + 1.0) / total as f64,
                    _ => 0.01,
                };
                let functions = reported(recorded, &[]).len();
                for (name, (own, inherited)) in reported(recorded, &[]) {
                    // After the image or at the start: `dl_main` is another function than `main`.
                    let starts = [format!("\\n{name}\\n"), format!("\"{name}\\n")];
                    let label = |line: &&str| {
                        line.contains("label=") && starts.iter().any(|start| line.contains(start.as_str()))
                    };
                    let line =
                        graph.stdout.lines().find(label).unwrap_or_else(|| panic!("{format}: no {name} in {graph:?}"));
                    let after = starts.iter().find_map(|start| line.split(start.as_str()).nth(1)).unwrap();
                    let mut shares = after.split("\\n").map(|it| it.trim_matches(|c: char| !c.is_ascii_digit()));
                    let shown: Vec<f64> = (0..2).map(|_| shares.next().unwrap().parse().unwrap()).collect();
                    for (shown, weight) in shown.into_iter().zip([inherited, own]) {
                        let share = 100.0 * weight as f64 / total as f64;
                        let tolerance = tolerance(if own == inherited { 1 } else { functions });
                        assert!((shown - share).abs() <= tolerance, "{format} {name}: {shown} is not {share}");
                    }
                }
            }
            // gprof's text must declare cycles.
            let file = export(recursive(), "gprof", &[]);
            let graph = EndedProgram::of(Command::new("gprof2dot").args(["-f", "prof"]).arg(&file));
            assert!(graph.status.success() && graph.stderr.is_empty(), "{graph:?}");
        })
        .test("graphviz_draws_it", &[CC, DOT], || {
            let recorded = recursive();
            let file = export(recorded, "dot", &[]);
            let drawn = EndedProgram::of(Command::new("dot").arg("-Tplain").arg(&file));
            assert!(drawn.status.success() && drawn.stderr.is_empty(), "{drawn:?}");
            let weights = reported(recorded, &[]);
            let total = total(recorded, &[]);
            let is_drawn = |name: &str| {
                drawn.stdout.lines().any(|it| it.starts_with("node ") && it.contains(&format!("\"{name}\\n")))
            };
            // What starts the program is left out.
            let starts = |name: &str| ["_start", "__libc_start", "_dl_"].iter().any(|start| name.starts_with(start));
            for (name, (_, inherited)) in weights.into_iter().filter(|(name, _)| !starts(name)) {
                assert_eq!(is_drawn(&name), inherited * 200 >= total, "{name}: {}", drawn.stdout);
            }
        })
        .test("a_flame_graph_has_all_of_it", &[CC], || {
            let recorded = plain();
            let svg = std::fs::read_to_string(export(recorded, "svg", &[])).unwrap();
            let weights = reported(recorded, &[]);
            let total = total(recorded, &[]);
            let numbers = |name: &str| -> u64 {
                let titles = svg.split("<title>").skip(1).filter_map(|it| it.strip_prefix(&format!("{name} (")));
                titles.map(|it| it.split(' ').next().unwrap().replace(',', "").parse::<u64>().unwrap()).sum()
            };
            assert_eq!(numbers("all"), total);
            assert_eq!(numbers("weight_12"), weights["weight_12"].1);
            // The program's own code has the first of the colours.
            assert!(svg.contains(">all</text>"), "{svg}");
        })
        .test("the_same_question_has_the_same_answer", &[CC], || {
            let recorded = recursive();
            for question in [
                &["--hide", "q"][..],
                &["--only", "/^(main|q)$/"],
                &["--focus", "p"],
                &["--ignore", "r"],
                &["--hide", "module:libc.so.6", "--focus", "main"],
                &["--by", "module"],
                &["--by", "thread"],
                &["--by", "group", "--ignore", "p"],
                &["--preset", "phases"],
            ] {
                let reported = reported(recorded, question);
                let total = total(recorded, question);
                assert!(total > 0, "{question:?}");
                let csv = std::fs::read_to_string(export(recorded, "csv", question)).unwrap();
                for (name, (own, inherited)) in &reported {
                    // The image has its own column, so the name may be without it.
                    let names = [format!("{name},"), format!("{},", name.split(" (").next().unwrap())];
                    let is_row = |row: &str| {
                        names.iter().any(|name| row.starts_with(name)) && row.contains(&format!(",{own},{inherited},"))
                    };
                    assert!(csv.lines().any(is_row), "{question:?}: {name} {own} {inherited} in {csv}");
                }
                let folded = std::fs::read_to_string(export(recorded, "folded", question)).unwrap();
                let sum: u64 = folded.lines().map(|it| it.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
                assert_eq!(sum, total, "{question:?}");
                let mut own: BTreeMap<&str, u64> = BTreeMap::new();
                for line in folded.lines() {
                    let (stack, weight) = line.rsplit_once(' ').unwrap();
                    *own.entry(stack.rsplit(';').next().unwrap()).or_default() += weight.parse::<u64>().unwrap();
                }
                for (name, weight) in own {
                    assert!(reported.get(name).is_none_or(|it| it.0 == weight), "{question:?}: {name}");
                }
            }
        })
        .test("differences", &[CC], || {
            let (old, new) = (plain(), recursive());
            let diff = |options: &[&str]| {
                let ended = EndedProgram::of(ccsd(["diff"]).args(options).arg(&old.file).arg(&new.file));
                assert!(ended.status.success(), "{options:?}: {ended:?}");
                ended.stdout
            };
            let document: Value = serde_json::from_str(&diff(&["--tree", "--json", "--min", "0"])).unwrap();
            let tree = &document["tree"];
            for (side, recorded) in [("before", old), ("after", new)] {
                let sum = |list: &Value| -> u64 {
                    let weight =
                        |at: &Value| tree["nodes"][at.as_u64().unwrap() as usize][side]["weight"].as_u64().unwrap();
                    list.as_array().unwrap().iter().map(weight).sum()
                };
                assert_eq!(sum(&tree["roots"]), total(recorded, &[]), "{side}");
                let own: u64 = tree["nodes"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|node| node[side]["self_weight"].as_u64().unwrap())
                    .sum();
                assert_eq!(own, total(recorded, &[]), "{side}");
            }
            let text = diff(&["--tree"]);
            assert!(text.contains(" weight_12\n") && text.contains("less than 0.5% in both"), "{text}");
            let absolute = diff(&["--absolute"]);
            let main = absolute.lines().find(|line| line.ends_with(" weight_12")).unwrap();
            // All of it is gone, in the unit of the table.
            let weight = reported(old, &[])["weight_12"].0 as f64;
            let forms = [format!("-{:.3} ", weight / 1e9), format!("-{:.2} ", weight / 1e6)];
            assert!(forms.iter().any(|form| main.trim_start().starts_with(form)), "{forms:?}: {main}");
            let cut: Value = serde_json::from_str(&diff(&["--json", "-n", "2", "--by", "module"])).unwrap();
            let own = |side: &str| -> u64 {
                let rows = cut["rows"].as_array().unwrap().iter();
                let shown: u64 = rows.map(|row| row[side]["self_weight"].as_u64().unwrap_or(0)).sum();
                shown + cut["other"][format!("self_weight_{side}")].as_u64().unwrap()
            };
            assert_eq!((own("before"), own("after")), (total(old, &[]), total(new, &[])));
            let pruned: Value = serde_json::from_str(&diff(&["--json", "--min", "5"])).unwrap();
            let sum = |side: &str| -> u64 {
                let rows = pruned["rows"].as_array().unwrap().iter();
                let shown: u64 = rows.map(|row| row[side]["self_weight"].as_u64().unwrap_or(0)).sum();
                shown + pruned["other"][format!("self_weight_{side}")].as_u64().unwrap()
            };
            assert!(pruned["left_out"].as_u64().unwrap() > 0, "{pruned}");
            assert_eq!((sum("before"), sum("after")), (total(old, &[]), total(new, &[])));
            assert!(diff(&["--min", "5"]).contains("more functions; -n 0 without --min shows all]"));
            EndedProgram::of(ccsd(["diff", "--min", "5", "--svg", "/nowhere/x.svg"]).arg(&old.file).arg(&new.file))
                .assert_refused(2, &["--min"]);
            let file = new.dir.path().join("difference.svg");
            for options in [&["--svg"][..], &["--absolute", "--svg"]] {
                let ended = EndedProgram::of(ccsd(["diff"]).arg(&old.file).arg(&new.file).args(options).arg(&file));
                assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
                let svg = std::fs::read_to_string(&file).unwrap();
                assert!(
                    svg.contains("<svg") && svg.contains("<title>main (") && svg.contains("samples received"),
                    "{svg}"
                );
            }
            // Two time ranges of one file: no sample is in both.
            let half = format!("+{}ms", old.profile.accounting().duration_ns / 2_000_000);
            let ended = EndedProgram::of(
                ccsd(["diff", "--json", "--against", &format!("+0..{half}"), "--since", &half]).arg(&old.file),
            );
            if ended.status.success() {
                let document: Value = serde_json::from_str(&ended.stdout).unwrap();
                let weight = |side: &str| document[side]["total"]["weight"].as_u64().unwrap();
                assert_eq!(weight("before") + weight("after"), total(old, &[]));
            } else {
                ended.assert_refused(2, &["interval"]);
            }
            EndedProgram::of(ccsd(["diff"]).arg(&old.file)).assert_refused(2, &["two profiles"]);
            EndedProgram::of(ccsd(["diff", "--focus", "weight_12"]).arg(&old.file).arg(&new.file))
                .assert_refused(2, &["the profile after", "weight_12"]);
        })
        .test("output_of_perf_script", &[CC, PERF], || {
            let program =
                build("recursion.c", &["-O1", "-g", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"]);
            let dir = ccsd_tests::fixture::scratch();
            for graph in ["fp", "dwarf,8192"] {
                let data = dir.path().join(format!("{}.data", &graph[..2]));
                let mut perf = Command::new("perf");
                perf.args(["record", "-q", "-e", "cpu-clock:u", "-F", "999", "--call-graph", graph, "-o"]).arg(&data);
                let recorded = EndedProgram::of(perf.arg("--").arg(&program).args(["three", "30", "10"]));
                assert!(recorded.status.success(), "{recorded:?}");
                let file = dir.path().join(format!("{}.ccsd", &graph[..2]));
                let text = EndedProgram::of(Command::new("perf").arg("script").args(PERF_SCRIPT).arg("-i").arg(&data));
                let printed = dir.path().join("script.txt");
                std::fs::write(&printed, text.stdout).unwrap();
                let imported = EndedProgram::of(ccsd(["import", "-o"]).arg(&file).arg(&printed));
                assert!(imported.status.success() && imported.stderr.is_empty(), "{imported:?}");
                assert!(
                    imported.stdout.contains("complete are those that begin with a process or thread"),
                    "{imported:?}"
                );
                let profile = ccsd_profile::read_profile(std::fs::File::open(&file).unwrap()).unwrap().profile;
                let mut script = Command::new("perf");
                script.args(["script", "--no-inline", "--max-stack", "10000", "-F", "period,ip,sym", "-i"]).arg(&data);
                let script = EndedProgram::of(&mut script);
                let mut expected: Weights = Weights::new();
                let mut samples = 0;
                for block in script.stdout.split("\n\n").filter(|block| !block.trim().is_empty()) {
                    let mut lines = block.trim_start_matches('\n').lines();
                    let period: u64 = lines.next().unwrap().trim().parse().expect(block);
                    let names: Vec<&str> = lines
                        .map(|line| line.trim().split_once(' ').unwrap().1)
                        .map(|name| name.split("@@").next().unwrap().trim())
                        .collect();
                    samples += 1;
                    expected.entry(names[0].to_owned()).or_default().0 += period;
                    let once: std::collections::BTreeSet<&str> = names.into_iter().collect();
                    once.into_iter().for_each(|name| expected.entry(name.to_owned()).or_default().1 += period);
                }
                assert!(samples > 20, "{}", script.stdout);
                let mut found = Weights::new();
                for row in ccsd_profile::view::FlatView::new(&profile, &ccsd_profile::view::Selection::all()).rows {
                    // Functions that share a name in several images are distinct here, and one there.
                    let is_counted_by_hand = !["[unknown]", "_start"].contains(&&*row.name);
                    if is_counted_by_hand && !row.name.starts_with("[truncated") {
                        found.insert(row.name, (row.self_weight, row.inherited_weight));
                    }
                }
                expected.retain(|name, _| name != "[unknown]" && name != "_start");
                assert_eq!(found, expected, "{graph}");
                assert_eq!(profile.accounting().received, samples, "{graph}");
                assert!(found["p"].1 > 0 && found["main"].1 >= found["q"].1, "{found:?}");
            }
            let text = dir.path().join("precious");
            std::fs::write(&text, "dear diary\n").unwrap();
            let import =
                |options: &[&str]| EndedProgram::of(ccsd(["import"]).args(options).arg(&text).current_dir(dir.path()));
            import(&[]).assert_refused(2, &["precious", "without a sample"]);
            import(&["-o", "precious"]).assert_refused(2, &["not a ccsd profile"]);
            assert!(!dir.path().join("profile.ccsd").exists());
        })
        .test("a_file_of_patterns", &[CC], || {
            let recorded = plain();
            let spec = recorded.dir.path().join("spec");
            std::fs::write(&spec, "# what matters\nonly main\nonly weight_1?\n").unwrap();
            let spec = spec.to_str().unwrap();
            let names: Vec<String> = reported(recorded, &["--spec", spec]).into_keys().collect();
            // `[root]`, too, if a sample was taken before main.
            let names: Vec<&str> = names.iter().map(String::as_str).filter(|&name| name != "[root]").collect();
            assert_eq!(names, ["main", "weight_10", "weight_11", "weight_12"]);
            std::fs::write(spec, "only main\nhid x\n").unwrap();
            ask(recorded, &["--spec", spec]).assert_refused(2, &["line 2", "hid"]);
            ask(recorded, &["--spec", "/dev/zero"]).assert_refused(2, &["not a regular file"]);
        })
        .test("impossible_exports", &[CC], || {
            let recorded = plain();
            ask(recorded, &["--only", "no_such_function"]).assert_refused(2, &["no function", "no_such_function"]);
            ask(recorded, &["--hide", "thread:1"]).assert_refused(2, &["thread:1", "--focus"]);
            ask(recorded, &["--only", "/(/"]).assert_refused(2, &["regular expression"]);
            let to = |path: &str| {
                let mut command = ccsd(["export", "folded"]);
                EndedProgram::of(command.arg(&recorded.file).args(["-o", path]))
            };
            to("/nowhere/at/all").assert_refused(2, &["/nowhere/at/all"]);
            to(recorded.file.to_str().unwrap()).assert_refused(2, &["the profile itself"]);
            to("/dev/full").assert_refused(1, &["/dev/full"]);
            assert!(recorded.file.metadata().unwrap().len() > 100);
            // Other files are not overwritten by a mistyped name; an older export is.
            let precious = recorded.dir.path().join("precious.c");
            std::fs::write(&precious, "int main(void) { return 0; }\n").unwrap();
            to(precious.to_str().unwrap()).assert_refused(2, &["precious.c", "--force"]);
            assert!(std::fs::read_to_string(&precious).unwrap().starts_with("int main"));
            let forced = ccsd(["export", "folded", "--force"]).arg(&recorded.file).arg("-o").arg(&precious).status();
            assert!(forced.unwrap().success());
            assert!(std::fs::read_to_string(&precious).unwrap().contains(";main"));
            for format in FORMATS.into_iter().chain(["html"]) {
                let file = recorded.dir.path().join("again");
                for number in 1..=2 {
                    let ended = EndedProgram::of(ccsd(["export", format]).arg(&recorded.file).arg("-o").arg(&file));
                    // gprof's own output looks the same, so ccsd does not overwrite it.
                    let written = number == 1 || format != "gprof";
                    assert_eq!(ended.status.success(), written, "{format} {number}: {ended:?}");
                }
                std::fs::remove_file(file).unwrap();
            }
            assert!(to("-").stdout.contains(";main"));
            assert!(!std::path::Path::new("-").exists());
            for format in ["csv", "folded"] {
                let whole = EndedProgram::of(ccsd(["export", format]).arg(&recorded.file));
                assert!(whole.stdout.contains("# ccsd ") && whole.stdout.contains("samples received"), "{whole:?}");
                let bare = EndedProgram::of(ccsd(["export", format, "--no-comments"]).arg(&recorded.file));
                assert!(bare.stderr.contains("samples received") && bare.stderr.lines().count() == 1, "{bare:?}");
                let rows = whole.stdout.lines().filter(|line| !line.starts_with('#'));
                assert!(rows.eq(bare.stdout.lines()), "{bare:?}");
            }
            for format in FORMATS {
                let missing = EndedProgram::of(&mut ccsd(["export", format, "/nowhere.ccsd"]));
                missing.assert_refused(2, &["/nowhere.ccsd"]);
            }
        })
        .run()
}

fn plain() -> &'static Recorded {
    static RECORDED: OnceLock<Recorded> = OnceLock::new();
    RECORDED.get_or_init(|| {
        RecordCommand::new(build("weights.c", &["-O1", "-g"]), &["1000"]).options(&["-F", "1999", "--user"]).run()
    })
}

fn recursive() -> &'static Recorded {
    static RECORDED: OnceLock<Recorded> = OnceLock::new();
    RECORDED.get_or_init(|| {
        let program = build("recursion.c", &["-O1", "-fno-optimize-sibling-calls"]);
        RecordCommand::new(program, &["three", "30", "20"]).options(&["-F", "1999", "--user"]).run()
    })
}

fn export(recorded: &Recorded, format: &str, options: &[&str]) -> PathBuf {
    let name: String = options.join("").chars().filter(char::is_ascii_alphanumeric).collect();
    let file = recorded.dir.path().join(format!("{name}.{format}"));
    let ended = EndedProgram::of(ccsd(["export", format]).arg(&recorded.file).args(options).arg("-o").arg(&file));
    assert!(ended.status.success() && ended.stdout.is_empty(), "{format}: {ended:?}");
    assert!(ended.stderr.is_empty(), "{format}: {ended:?}");
    file
}

fn ask(recorded: &Recorded, options: &[&str]) -> EndedProgram {
    EndedProgram::of(ccsd(["export", "folded"]).arg(&recorded.file).args(options))
}

fn reported(recorded: &Recorded, options: &[&str]) -> Weights {
    let ended = EndedProgram::of(ccsd(["report", "--json"]).args(options).arg(&recorded.file));
    assert!(ended.status.success(), "{options:?}: {ended:?}");
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let mut weights = Weights::new();
    for row in document["flat"]["rows"].as_array().unwrap() {
        let number = |field: &str| row[field].as_u64().unwrap();
        // Every program and the dynamic linker have a `_start`: readers that go by name need a suffix.
        let name = row["name"].as_str().unwrap();
        let label = row["apart"].as_str().map_or_else(|| name.to_owned(), |apart| format!("{name} ({apart})"));
        let known = weights.insert(label, (number("self_weight"), number("inherited_weight")));
        assert_eq!(known, None, "{name} twice");
    }
    weights
}

fn total(recorded: &Recorded, options: &[&str]) -> u64 {
    let ended = EndedProgram::of(ccsd(["report", "--json"]).args(options).arg(&recorded.file));
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    document["flat"]["total"]["weight"].as_u64().unwrap()
}
