//! `ccsd export`: real readers of each format see the numbers that `ccsd report` shows, function by function; and what is
//! asked for with `--hide` and the like is the same in both.
// A test fails by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use ccsd_profile::import::PERF_SCRIPT;
use ccsd_tests::ccsd::{Ended, Record, ccsd};
use ccsd_tests::fixture::{build, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::suite::{CC, GO, Need, PERF, Suite, find_program};
use serde_json::Value;

const ANNOTATE: Need = Need::Program("callgrind_annotate", "valgrind");
const DOT: Need = Need::Program("dot", "graphviz");
const BROWSER: Need = Need::Program("chromium", "chromium");
const SPEEDSCOPE: Need = Need::Program("speedscope", "npm; npm install -g speedscope");
/// The Firefox Profiler's own code, without its page.
const FIREFOX_PROFILER: Need =
    Need::Program("profiler-cli", "npm; npm install -g @firefox-devtools/profiler-cli@0.10.0");
const GPROF2DOT: Need = Need::Program("gprof2dot", "pipx; pipx install gprof2dot");

const FORMATS: [&str; 10] =
    ["pprof", "callgrind", "folded", "svg", "speedscope", "firefox", "dot", "gprof", "json", "csv"];

/// Self and inherited weight by name.
type Weights = BTreeMap<String, (u64, u64)>;

fn main() -> ExitCode {
    Suite::new()
        .test("pprof_reads_it", &[CC, GO], || {
            for recorded in [plain(), recursive()] {
                let file = export(recorded, "pprof", &[]);
                let args = ["tool", "pprof", "-top", "-unit=ns", "-nodecount=100000", "-nodefraction=0"];
                let top = Ended::of(Command::new("go").args(args).arg(&file));
                assert!(top.status.success(), "{top:?}");
                let rows = top.stdout.lines().skip_while(|line| !line.trim_start().starts_with("flat ")).skip(1);
                let nanoseconds = |text: &str| text.trim_end_matches("ns").parse::<u64>().unwrap();
                let mut found: Weights = rows
                    .map(|line| {
                        let words: Vec<&str> = line.split_whitespace().collect();
                        (words[5..].join(" "), (nanoseconds(words[0]), nanoseconds(words[3])))
                    })
                    .collect();
                let expected = reported(recorded, &[]);
                found.retain(|name, _| expected.contains_key(name));
                assert_eq!(found, expected);
                let raw = Ended::of(Command::new("go").args(["tool", "pprof", "-raw"]).arg(&file));
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
                // The browser may be done before the page has drawn its table: then it is asked again.
                let file = export(recorded, "speedscope", &[]);
                let found = (0..20).map(|_| sandwich(&file)).find(|found| !found.is_empty());
                let mut found = found.expect("speedscope shows functions");
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
                // A gap is no function.
                functions.remove("[...]");
                assert_eq!(functions, reported(recorded, &[]), "{}", file.display());
                assert!(document["meta"]["extra"].to_string().contains("recursion is folded"));
            }
        })
        .test("callgrind_annotate_reads_it", &[CC, ANNOTATE], || {
            for recorded in [plain(), recursive()] {
                let file = export(recorded, "callgrind", &[]);
                let costs = |inclusive: &str| -> BTreeMap<String, u64> {
                    let mut command = Command::new("callgrind_annotate");
                    command.args(["--threshold=100", "--show-percs=no", "--auto=no", inclusive]).arg(&file);
                    let annotated = Ended::of(&mut command);
                    assert!(annotated.status.success(), "{annotated:?}");
                    let rows = annotated.stdout.lines().skip_while(|line| !line.contains("file:function")).skip(2);
                    let mut costs = BTreeMap::new();
                    for line in rows.take_while(|line| !line.is_empty()) {
                        let (cost, place) = line.trim_start().split_once("  ").unwrap();
                        let place = place.rsplit_once(" [").map_or(place, |it| it.0);
                        let name = place.rsplit_once(':').unwrap().1;
                        // A dot stands for nothing. A function with lines of several files has a row for each, with what
                        // was spent there, or the whole with all that it called.
                        let cost: u64 = cost.replace(',', "").replace('.', "0").parse().expect(line);
                        let sum: &mut u64 = costs.entry(name.to_owned()).or_default();
                        *sum = if inclusive.ends_with("yes") { cost.max(*sum) } else { *sum + cost };
                    }
                    costs
                };
                let (own, inclusive) = (costs("--inclusive=no"), costs("--inclusive=yes"));
                for (name, (self_weight, inherited)) in reported(recorded, &[]) {
                    assert_eq!(own.get(&name).copied().unwrap_or(0), self_weight, "{name}");
                    // It adds up the calls into a function, which mutual recursion makes too many of.
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
                let graph = Ended::of(Command::new("gprof2dot").args(args).arg(&file));
                assert!(graph.status.success(), "{format}: {graph:?}");
                // gprof prints hundredths of seconds: of the function, of each callee that is added to it, and of the total
                // that both are divided by. The graph prints hundredths of a percent.
                let tolerance = |functions: usize| match format {
                    "gprof" => 0.01 + 100.0 * 0.005e9 * (functions as f64 + 1.0) / total as f64,
                    _ => 0.01,
                };
                let functions = reported(recorded, &[]).len();
                for (name, (own, inherited)) in reported(recorded, &[]) {
                    // Behind the image or at the beginning: `dl_main` is another function than `main`.
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
            // Circles of calls are what gprof's text must declare.
            let file = export(recursive(), "gprof", &[]);
            let graph = Ended::of(Command::new("gprof2dot").args(["-f", "prof"]).arg(&file));
            assert!(graph.status.success() && graph.stderr.is_empty(), "{graph:?}");
        })
        .test("graphviz_draws_it", &[CC, DOT], || {
            let recorded = recursive();
            let file = export(recorded, "dot", &[]);
            let drawn = Ended::of(Command::new("dot").arg("-Tplain").arg(&file));
            assert!(drawn.status.success() && drawn.stderr.is_empty(), "{drawn:?}");
            let weights = reported(recorded, &[]);
            let total = total(recorded, &[]);
            let is_drawn = |name: &str| {
                drawn.stdout.lines().any(|it| it.starts_with("node ") && it.contains(&format!("\"{name}\\n")))
            };
            for (name, (_, inherited)) in weights {
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
                    // The image has a column of its own, and need not stand behind the name.
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
                let ended = Ended::of(ccsd(["diff"]).args(options).arg(&old.file).arg(&new.file));
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
            // All of it is gone, in whatever unit the table has.
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
            Ended::of(ccsd(["diff", "--min", "5", "--svg", "/nowhere/x.svg"]).arg(&old.file).arg(&new.file))
                .assert_refused(2, &["--min"]);
            let file = new.dir.path().join("difference.svg");
            for options in [&["--svg"][..], &["--absolute", "--svg"]] {
                let ended = Ended::of(ccsd(["diff"]).arg(&old.file).arg(&new.file).args(options).arg(&file));
                assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
                let svg = std::fs::read_to_string(&file).unwrap();
                assert!(
                    svg.contains("<svg") && svg.contains("<title>main (") && svg.contains("samples received"),
                    "{svg}"
                );
            }
            // Two times of one file: nothing is in both.
            let half = format!("+{}ms", old.profile.accounting().duration_ns / 2_000_000);
            let ended = Ended::of(
                ccsd(["diff", "--json", "--against", &format!("+0..{half}"), "--since", &half]).arg(&old.file),
            );
            if ended.status.success() {
                let document: Value = serde_json::from_str(&ended.stdout).unwrap();
                let weight = |side: &str| document[side]["total"]["weight"].as_u64().unwrap();
                assert_eq!(weight("before") + weight("after"), total(old, &[]));
            } else {
                ended.assert_refused(2, &["interval"]);
            }
            Ended::of(ccsd(["diff"]).arg(&old.file)).assert_refused(2, &["two profiles"]);
            Ended::of(ccsd(["diff", "--focus", "weight_12"]).arg(&old.file).arg(&new.file))
                .assert_refused(2, &["the profile after", "weight_12"]);
        })
        .test("what_perf_has_printed", &[CC, PERF], || {
            let program =
                build("recursion.c", &["-O1", "-g", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"]);
            let dir = ccsd_tests::fixture::scratch();
            for graph in ["fp", "dwarf,8192"] {
                let data = dir.path().join(format!("{}.data", &graph[..2]));
                let mut perf = Command::new("perf");
                perf.args(["record", "-q", "-e", "cpu-clock:u", "-F", "999", "--call-graph", graph, "-o"]).arg(&data);
                let recorded = Ended::of(perf.arg("--").arg(&program).args(["three", "30", "10"]));
                assert!(recorded.status.success(), "{recorded:?}");
                let file = dir.path().join(format!("{}.ccsd", &graph[..2]));
                let text = Ended::of(Command::new("perf").arg("script").args(PERF_SCRIPT).arg("-i").arg(&data));
                let printed = dir.path().join("script.txt");
                std::fs::write(&printed, text.stdout).unwrap();
                let imported = Ended::of(ccsd(["import", "-o"]).arg(&file).arg(&printed));
                assert!(imported.status.success() && imported.stderr.is_empty(), "{imported:?}");
                assert!(
                    imported.stdout.contains("complete are those that begin with a process or thread"),
                    "{imported:?}"
                );
                let profile = ccsd_profile::read_profile(std::fs::File::open(&file).unwrap()).unwrap().profile;
                // The same samples, counted by hand from what perf prints of them in other words.
                let mut script = Command::new("perf");
                script.args(["script", "--no-inline", "--max-stack", "10000", "-F", "period,ip,sym", "-i"]).arg(&data);
                let script = Ended::of(&mut script);
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
                    // What has one name in several images is several functions here, and one there.
                    if row.name != "[unknown]" && row.name != "_start" {
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
                |options: &[&str]| Ended::of(ccsd(["import"]).args(options).arg(&text).current_dir(dir.path()));
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
        .test("what_cannot_be_exported", &[CC], || {
            let recorded = plain();
            ask(recorded, &["--only", "no_such_function"]).assert_refused(2, &["no function", "no_such_function"]);
            ask(recorded, &["--hide", "thread:1"]).assert_refused(2, &["thread:1", "--focus"]);
            ask(recorded, &["--only", "/(/"]).assert_refused(2, &["regular expression"]);
            let to = |path: &str| {
                let mut command = ccsd(["export", "folded"]);
                Ended::of(command.arg(&recorded.file).args(["-o", path]))
            };
            to("/nowhere/at/all").assert_refused(2, &["/nowhere/at/all"]);
            to(recorded.file.to_str().unwrap()).assert_refused(2, &["the profile itself"]);
            to("/dev/full").assert_refused(1, &["/dev/full"]);
            assert!(recorded.file.metadata().unwrap().len() > 100);
            // Something else is not lost to a mistyped name; an older export is replaced.
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
                    let ended = Ended::of(ccsd(["export", format]).arg(&recorded.file).arg("-o").arg(&file));
                    assert!(ended.status.success(), "{format} {number}: {ended:?}");
                }
                std::fs::remove_file(file).unwrap();
            }
            assert!(to("-").stdout.contains(";main"));
            assert!(!std::path::Path::new("-").exists());
            let comments = Ended::of(ccsd(["export", "csv", "--comments"]).arg(&recorded.file));
            assert!(comments.stdout.starts_with("# ccsd ") && comments.stderr.is_empty(), "{comments:?}");
            assert!(comments.stdout.contains("\nfunction,image,"), "{comments:?}");
            for format in FORMATS {
                let missing = Ended::of(&mut ccsd(["export", format, "/nowhere.ccsd"]));
                missing.assert_refused(2, &["/nowhere.ccsd"]);
            }
        })
        .run()
}

fn plain() -> &'static Recorded {
    static RECORDED: OnceLock<Recorded> = OnceLock::new();
    RECORDED.get_or_init(|| {
        Record::new(build("weights.c", &["-O1", "-g"]), &["1000"]).options(&["-F", "1999", "--user"]).run()
    })
}

fn recursive() -> &'static Recorded {
    static RECORDED: OnceLock<Recorded> = OnceLock::new();
    RECORDED.get_or_init(|| {
        let program = build("recursion.c", &["-O1", "-fno-optimize-sibling-calls"]);
        Record::new(program, &["three", "30", "20"]).options(&["-F", "1999", "--user"]).run()
    })
}

/// Exports to a file.
fn export(recorded: &Recorded, format: &str, options: &[&str]) -> PathBuf {
    let name: String = options.join("").chars().filter(char::is_ascii_alphanumeric).collect();
    let file = recorded.dir.path().join(format!("{name}.{format}"));
    let ended = Ended::of(ccsd(["export", format]).arg(&recorded.file).args(options).arg("-o").arg(&file));
    assert!(ended.status.success() && ended.stdout.is_empty(), "{format}: {ended:?}");
    // What the format has no place for is said.
    let without_remarks = matches!(format, "folded" | "csv");
    assert_eq!(ended.stderr.contains("samples received"), without_remarks, "{format}: {ended:?}");
    assert_eq!(ended.stderr.lines().count(), usize::from(without_remarks), "{format}: {ended:?}");
    file
}

fn ask(recorded: &Recorded, options: &[&str]) -> Ended {
    Ended::of(ccsd(["export", "folded"]).arg(&recorded.file).args(options))
}

/// What `ccsd report --json` says, by function.
fn reported(recorded: &Recorded, options: &[&str]) -> Weights {
    let ended = Ended::of(ccsd(["report", "--json"]).args(options).arg(&recorded.file));
    assert!(ended.status.success(), "{options:?}: {ended:?}");
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let mut weights = Weights::new();
    for row in document["flat"]["rows"].as_array().unwrap() {
        let number = |field: &str| row[field].as_u64().unwrap();
        // Every program has a `_start`, and so has the dynamic linker: readers that know functions by their names take them
        // for one unless something behind the name tells them apart.
        let name = row["name"].as_str().unwrap();
        let label = row["apart"].as_str().map_or_else(|| name.to_owned(), |apart| format!("{name} ({apart})"));
        let known = weights.insert(label, (number("self_weight"), number("inherited_weight")));
        assert_eq!(known, None, "{name} twice");
    }
    weights
}

/// The whole weight.
fn total(recorded: &Recorded, options: &[&str]) -> u64 {
    let ended = Ended::of(ccsd(["report", "--json"]).args(options).arg(&recorded.file));
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    document["flat"]["total"]["weight"].as_u64().unwrap()
}

/// Self and inherited weight in nanoseconds by name, over all threads, as the Firefox Profiler adds them up: of the
/// functions that have a name of their own.
fn firefox_functions(file: &Path, threads: usize) -> Weights {
    let dir = scratch();
    let reader = || {
        let mut command = Command::new("profiler-cli");
        command.env("PROFILER_CLI_SESSION_DIR", dir.path());
        command
    };
    // A process of it reads the file and answers the others. It is started here, and not by `load`, which gives it half a
    // second to begin; and it is ended whatever becomes of the test.
    struct Server(Child);
    impl Drop for Server {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let mut server = reader();
    server.arg("--daemon").arg(file).args(["--session", "test"]);
    let mut server = Server(server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let end = Instant::now() + Duration::from_secs(120);
    // Not asked before it listens: whoever finds its files without it behind them takes them away, and it is never found.
    let listens = || {
        let files = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        files.into_iter().any(|file| UnixStream::connect(file).is_ok())
    };
    while !listens() {
        assert!(server.0.try_wait().unwrap().is_none() && Instant::now() < end, "the reader does not begin");
        thread::sleep(Duration::from_millis(50));
    }
    let mut ask = |thread: &str| loop {
        let arguments = ["thread", "functions", "--json", "--limit", "100000", "--session", "test", "--thread", thread];
        let ended = Ended::of(reader().args(arguments));
        if ended.status.success() {
            return ended.stdout;
        }
        assert!(server.0.try_wait().unwrap().is_none() && Instant::now() < end, "{ended:?}");
        thread::sleep(Duration::from_millis(50));
    };
    let mut weights = Weights::new();
    for number in 0..threads {
        let mut twice = std::collections::BTreeSet::new();
        let answer = ask(&format!("t-{number}"));
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["weightType"], "tracing-ms");
        let mut seen = std::collections::BTreeSet::new();
        for row in answer["functions"].as_array().unwrap() {
            let nanoseconds = |field: &str| (row[field].as_f64().unwrap() * 1e6).round() as u64;
            let name = row["name"].as_str().unwrap().to_owned();
            if !seen.insert(name.clone()) {
                twice.insert(name.clone());
            }
            let sums = weights.entry(name).or_default();
            (sums.0, sums.1) = (sums.0 + nanoseconds("selfSamples"), sums.1 + nanoseconds("totalSamples"));
        }
        weights.retain(|name, _| !twice.contains(name));
    }
    weights
}

/// A weight as speedscope shows it: a number, and of how many nanoseconds.
type Rounded = (f64, f64);

/// Self and inherited weight by name in speedscope's table of functions, which it calls sandwich.
fn sandwich(file: &Path) -> BTreeMap<String, (Rounded, Rounded)> {
    // Its command line writes such a script, and opens its page with it.
    let page = find_program("speedscope").unwrap().canonicalize().unwrap();
    let page = page.parent().unwrap().join("../dist/release/index.html").canonicalize().unwrap();
    let dir = scratch();
    let script = dir.path().join("load.js");
    let encoded = Ended::of(Command::new("base64").arg("--wrap=0").arg(file)).stdout;
    fs::write(&script, format!("speedscope.loadFileFromBase64(\"profile.json\", \"{encoded}\")")).unwrap();
    let mut browser = Command::new("chromium");
    browser.args(["--headless", "--no-sandbox", "--disable-dev-shm-usage", "--allow-file-access-from-files"]);
    // It draws by WebGL, and only the rows that are in the window.
    browser.args([
        "--enable-unsafe-swiftshader",
        "--window-size=1200,8000",
        "--virtual-time-budget=20000",
        "--dump-dom",
    ]);
    browser.arg(format!("--user-data-dir={}", dir.path().join("browser").display()));
    browser.arg(format!("file://{}#localProfilePath={}&view=sandwich", page.display(), script.display()));
    let document = Ended::of(&mut browser).stdout;
    let text = |cell: &str| -> String {
        let cell = cell.split("</td>").next().unwrap();
        let parts = cell.split('<').map(|part| part.split_once('>').map_or("", |(_, text)| text));
        parts.collect::<String>().replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    };
    let weight = |cell: &str| -> Rounded {
        let shown = text(cell);
        let shown = shown.split(' ').next().unwrap();
        let at = shown.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap();
        let unit = match &shown[at..] {
            "ns" => 1.0,
            "\u{b5}s" | "\u{3bc}s" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            other => panic!("{other} is no unit"),
        };
        (shown[..at].parse().unwrap(), unit)
    };
    let rows = document.split("<tr").skip(1).map(|row| row.split("<td").skip(1).collect::<Vec<_>>());
    let rows = rows.filter(|cells| cells.len() == 3);
    let found: BTreeMap<_, _> = rows
        .map(|cells| {
            (
                text(&format!("<td{}", cells[2])),
                (weight(&format!("<td{}", cells[1])), weight(&format!("<td{}", cells[0]))),
            )
        })
        .collect();
    found
}
