//! `ccsd report`: its views of a recorded profile agree, as text and as JSON, and are safe to print.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;

use ccsd_tests::ccsd::{EndedProgram, RecordCommand, ccsd};
use ccsd_tests::fixture::{build, scratch};
use ccsd_tests::recorded::{Recorded, with_commas};
use ccsd_tests::suite::{CC, Need, Suite};
use serde_json::Value;

const OBJDUMP: Need = Need::Program("objdump", "binutils");

const VIEWS: [&str; 10] = [
    "--flat",
    "--graph",
    "--stacks",
    "--lines",
    "--threads",
    "--cycles",
    "--stats",
    "--view=tree",
    "--view=bottom-up",
    "--view=hot",
];

/// A name that sets a colour and the window's title, rings, and begins a line.
const EVIL: &str = "evil\x1b[31m\x1b]0;title\x07\nforged!!!!";

/// What the accounting must speak of.
const PARTS: [&str; 11] = [
    "target",
    "event",
    "1,999 Hz",
    "expected",
    "lost",
    "throttled",
    "truncated",
    "unsymbolised",
    "elided",
    "CPU",
    "peak",
];

fn main() -> ExitCode {
    Suite::new()
        .test("every_view_begins_with_the_accounting", &[CC], || {
            let recorded = shared();
            let received = with_commas(recorded.profile.accounting().received);
            for view in VIEWS {
                let text = report(recorded, &[view]).stdout;
                let head: Vec<&str> = text.lines().take_while(|line| line.starts_with('#')).collect();
                for part in PARTS.into_iter().chain([received.as_str()]) {
                    assert!(head.iter().any(|line| line.contains(part)), "{view}: {part} is not in {head:#?}");
                }
                assert!(text.lines().count() > head.len() + 1, "{view}: {text}");
            }
        })
        .test("the_summary_is_the_default_and_a_table_where_one_is_asked_for", &[CC], || {
            assert_eq!(report(shared(), &[]).stdout, report(shared(), &["--summary"]).stdout);
            for options in [&["--json"][..], &["--sort", "total"], &["--by", "module"], &["--function", "main"]] {
                assert_eq!(report(shared(), options).stdout, report(shared(), &[&["--flat"], options].concat()).stdout);
            }
        })
        .test("text_begins_at_main", &[CC], || {
            for view in ["--graph", "--tree", "--bottom-up", "--hot"] {
                // The dynamic linker has a `_start` of its own, and functions whose names end so.
                let has_start = |options: &[&str]| {
                    let text = report(shared(), &[&[view], options].concat()).stdout;
                    let mut lines = text.lines().filter(|line| !line.contains("ld-linux"));
                    lines
                        .any(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "_start"))
                };
                assert!(!has_start(&[]), "{view}");
                let json = report(shared(), &[view, "--json"]).stdout;
                assert!(view == "--hot" || json.contains("\"_start\""), "{view}");
                assert!(has_start(&["--only", "_start"]), "{view}");
            }
        })
        .test("text_has_what_the_profile_has", &[CC], || {
            let recorded = shared();
            let flat = report(recorded, &["--flat"]).stdout;
            let order: Vec<&str> = flat.lines().filter(|line| line.contains("weight_")).collect();
            assert_eq!(order.len(), 12, "{flat}");
            assert!(order[0].ends_with("weight_12") && order[11].ends_with("weight_01"), "{flat}");
            let stacks = report(recorded, &["--stacks"]).stdout;
            assert!(stacks.lines().any(|line| line.starts_with("<weight_12,main,")), "{stacks}");
            let graph = report(recorded, &["--graph"]).stdout;
            assert!(graph.lines().any(|line| line.starts_with('[') && line.contains("weight_12")), "{graph}");
            assert!(report(recorded, &["--lines"]).stdout.contains("weights.c:"), "built with -g");
            assert!(report(recorded, &["--threads"]).stdout.contains(&recorded.processes()[0].name));
        })
        .test("json_of_every_view_adds_up", &[CC], || {
            let recorded = shared();
            let samples = recorded.profile.accounting().received;
            let weight = recorded.flat().total.weight;
            for view in VIEWS {
                let document = json(recorded, view);
                assert_eq!(document["accounting"]["received"], samples, "{view}");
                assert_eq!(document["file"]["finished"], true);
                let name = view.trim_start_matches("--view=").trim_start_matches("--");
                assert_eq!(document["view"], name);
                let data = &document[name];
                let sum = |rows: &str, field: &str| -> u64 {
                    data[rows].as_array().unwrap().iter().map(|row| row[field].as_u64().unwrap()).sum()
                };
                match name {
                    "flat" => assert_eq!(sum("rows", "self_weight"), weight),
                    "graph" => assert_eq!(sum("nodes", "self_weight"), weight),
                    "stacks" => assert_eq!(sum("rows", "weight"), weight),
                    "lines" => assert_eq!(sum("functions", "self_weight"), weight),
                    "threads" => assert_eq!(sum("processes", "weight"), weight),
                    "stats" => assert_eq!(data["samples"], samples),
                    "tree" | "bottom-up" => {
                        let roots = data["roots"].as_array().unwrap().iter();
                        let shown: u64 = roots
                            .map(|at| data["nodes"][at.as_u64().unwrap() as usize]["weight"].as_u64().unwrap())
                            .sum();
                        assert_eq!(shown + data["other"]["weight"].as_u64().unwrap_or(0), weight, "{view}");
                    }
                    "hot" => assert!(data["paths"][0]["steps"][0]["weight"].as_u64().unwrap() <= weight),
                    _ => assert_eq!(data["rows"].as_array().map(Vec::len), Some(0)),
                }
                if name != "stats" {
                    assert_eq!(data["total"]["weight"], weight, "{view}");
                    assert_eq!(data["total"]["samples"], samples, "{view}");
                }
            }
        })
        .test("limit_keeps_the_totals", &[CC], || {
            let document: Value = serde_json::from_str(&report(shared(), &["--json", "-n", "3"]).stdout).unwrap();
            let flat = &document["flat"];
            let rows = flat["rows"].as_array().unwrap();
            assert_eq!(rows.len(), 3);
            let shown: u64 = rows.iter().map(|row| row["self_weight"].as_u64().unwrap()).sum();
            assert_eq!(shown + flat["other"]["self_weight"].as_u64().unwrap(), flat["total"]["weight"]);
        })
        .test("the_question_is_in_the_answer", &[CC], || {
            let recorded = shared();
            let line = |options: &[&str], label: &str| {
                let text = report(recorded, options).stdout;
                text.lines().find(|line| line.starts_with(&format!("# {label:8} "))).unwrap_or_default().to_owned()
            };
            let samples = with_commas(recorded.profile.accounting().received);
            let all = line(&["--flat"], "view");
            assert!(
                all.contains("flat in order of self") && all.contains(&format!("% of all {samples} samples")),
                "{all}"
            );
            assert_eq!(line(&[], "selected"), "");
            let graph = line(&["--graph", "--by", "module", "--sort", "name", "--min", "2.5"], "view");
            for part in ["graph by module in order of name", "less than 2.5% is summed up", "cpu-clock"] {
                assert!(graph.contains(part), "{part}: {graph}");
            }
            let some = line(&["--focus", "weight_12", "--hide", "module:libc.so.6"], "selected");
            let weight = with_commas(recorded.samples("weight_12").inherited);
            assert!(some.contains("--hide module:libc.so.6 --focus weight_12: "), "{some}");
            assert!(
                some.contains(&format!("{weight} of {samples} samples")) && some.ends_with("; % of these"),
                "{some}"
            );
            let document = json_of(recorded, &["--focus", "weight_12", "--by", "module"]);
            let selected = &document["question"]["selected"];
            assert_eq!(selected["samples"], recorded.samples("weight_12").inherited);
            assert_eq!(selected["whole_samples"], recorded.profile.accounting().received);
        })
        .test("rows_below_the_least_share_are_one", &[CC], || {
            let recorded = shared();
            let least = recorded.samples("weight_09").inherited as f64 / recorded.total() as f64 * 100.0;
            let min = format!("{least:.3}");
            let whole = json_of(recorded, &[]);
            let total = &whole["flat"]["total"];
            let rows = |document: &Value| document["flat"]["rows"].as_array().unwrap().clone();
            let document = json_of(recorded, &["--min", &min]);
            assert_eq!(&document["flat"]["total"], total);
            let kept = rows(&document);
            assert!(kept.len() > 4 && kept.len() < rows(&whole).len(), "{kept:?}");
            let last = kept.last().unwrap()["name"].as_str().unwrap();
            assert!(last.starts_with("[other: "), "{kept:?}");
            let sum: u64 = kept.iter().map(|row| row["self_weight"].as_u64().unwrap()).sum();
            assert_eq!(sum, total["weight"].as_u64().unwrap());
            for row in &kept[..kept.len() - 1] {
                let before = rows(&whole).into_iter().find(|it| it["name"] == row["name"]).unwrap();
                assert_eq!(row["inherited_weight"], before["inherited_weight"]);
            }
            let stacks = json_of(recorded, &["--stacks", "--min", "5"]);
            let stacks = &stacks["stacks"];
            let shown: u64 = stacks["rows"].as_array().unwrap().iter().map(|row| row["weight"].as_u64().unwrap()).sum();
            assert_eq!(shown + stacks["other_weight"].as_u64().unwrap(), total["weight"]);
        })
        .test("trees", &[CC], || {
            let recorded = shared();
            let rows = |options: &[&str]| -> Vec<String> {
                let text = report(recorded, options).stdout;
                text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(str::to_owned).collect()
            };
            let depth = |line: &str, name: &str| line.find(name).unwrap_or_else(|| panic!("{name} is not in {line}"));
            let find = |rows: &[String], name: &str| {
                rows.iter()
                    .position(|row| row.trim_end().ends_with(name))
                    .unwrap_or_else(|| panic!("{name}: {rows:#?}"))
            };
            let tree = rows(&["--view", "tree"]);
            let (main, heavy) = (find(&tree, " main"), find(&tree, " weight_12"));
            assert!(main < heavy && depth(&tree[main], "main") < depth(&tree[heavy], "weight_12"), "{tree:#?}");
            // The function that ran stands above its caller.
            let up = rows(&["--view", "bottom-up"]);
            let heavy = find(&up, " weight_12");
            assert!(up[heavy + 1].trim_end().ends_with(" main"), "{up:#?}");
            assert!(depth(&up[heavy], "weight_12") < depth(&up[heavy + 1], "main"), "{up:#?}");
            let butterfly = rows(&["--view", "butterfly", "--function", "main"]);
            let sections = [find(&butterfly, "was for"), find(&butterfly, "it went"), find(&butterfly, " weight_12")];
            assert!(butterfly[0].starts_with("main (") && sections.is_sorted(), "{butterfly:#?}");
            let mut hot = rows(&["--view", "hot", "-n", "2"]);
            // On a busy machine some time is in no sample.
            hot.retain(|row| !row.ends_with("or [not sampled]"));
            assert!(find(&hot, " weight_12") < find(&hot, " main") + 2, "{hot:#?}");
            assert!(hot.iter().any(|row| row.contains("or weight_11")) && hot.iter().any(|row| row.starts_with("2. ")));
            let document = json_of(recorded, &["--view", "butterfly", "--function", "weight_12"]);
            let found = &document["butterfly"]["functions"];
            assert_eq!(found.as_array().map(Vec::len), Some(1), "{found}");
            assert_eq!(found[0]["callers"]["nodes"][0]["weight"], found[0]["inherited_weight"]);
            let refuse = |options: &[&str]| EndedProgram::of(ccsd(["report"]).args(options).arg(&recorded.file));
            refuse(&["--view", "butterfly"]).assert_refused(2, &["--function NAME"]);
            refuse(&["--view", "tree", "--function", "main"]).assert_refused(2, &["--focus"]);
        })
        .test("time_in_columns", &[CC], || {
            let recorded = shared();
            let flat = json_of(recorded, &["--flat"]);
            let document = json_of(recorded, &["--view", "timeline", "-n", "3"]);
            let view = &document["timeline"];
            let sum = |list: &Value| list.as_array().unwrap().iter().map(|it| it.as_u64().unwrap()).sum::<u64>();
            assert_eq!(sum(&view["weights"]), recorded.flat().total.weight);
            let bands = view["bands"].as_array().unwrap();
            for (band, row) in bands.iter().zip(flat["flat"]["rows"].as_array().unwrap()) {
                assert_eq!(
                    (&band["name"], sum(&band["weights"])),
                    (&row["name"], row["self_weight"].as_u64().unwrap())
                );
            }
            let shown: u64 = bands.iter().map(|band| sum(&band["weights"])).sum();
            assert_eq!(shown + sum(&view["other"]), recorded.flat().total.weight);
            // That of the columns; they are none themselves.
            assert_eq!(document["session"]["metrics"].as_array().map(Vec::len), Some(1));
            for (locale, block) in [("C", '@'), ("C.UTF-8", '\u{2588}')] {
                let ended =
                    EndedProgram::of(ccsd(["report", "--view", "timeline"]).arg(&recorded.file).env("LC_ALL", locale));
                assert!(ended.stdout.contains(block) && ended.stdout.contains(" weight_12"), "{ended:?}");
                assert_eq!(ended.stdout.is_ascii(), locale == "C");
            }
            EndedProgram::of(&mut ccsd(["report", "--view", "timeline", "session:77777"]))
                .assert_refused(2, &["no intervals", "watch:NAME"]);
        })
        .test("a_name_that_is_none", &[CC], || {
            let recorded = shared();
            for options in [&["--graph"][..], &["--lines"], &["--view", "butterfly"], &["--json"]] {
                let ask =
                    |name| EndedProgram::of(ccsd(["report", "--function", name]).args(options).arg(&recorded.file));
                ask("wieght_12").assert_refused(2, &["wieght_12", "did you mean weight_12 or"]);
                let nothing = ask("quicksilver");
                nothing.assert_refused(2, &["quicksilver"]);
                assert!(!nothing.stderr.contains("did you mean"), "{nothing:?}");
                assert!(ask("eight_12").status.success());
            }
            let annotate = EndedProgram::of(ccsd(["annotate", "wieght_12"]).arg(&recorded.file));
            annotate.assert_refused(2, &["did you mean weight_12"]);
        })
        .test("source_with_costs", &[CC], || {
            let recorded = shared();
            let annotate = |options: &[&str]| {
                let ended = EndedProgram::of(ccsd(["annotate", "weight_12"]).arg(&recorded.file).args(options));
                assert!(ended.status.success() && ended.stderr.is_empty(), "{options:?}: {ended:?}");
                ended.stdout
            };
            let document: Value = serde_json::from_str(&annotate(&["--json"])).unwrap();
            let function = &document["functions"][0];
            assert_eq!(function["samples"], recorded.samples("weight_12").own);
            let file = &function["files"][0];
            let path = file["path"].as_str().unwrap();
            let source: Vec<String> =
                fs::read_to_string(path).unwrap().lines().map(|line| line.replace('\t', "        ")).collect();
            let lines = file["lines"].as_array().unwrap();
            let mut sum = function["without_line"].as_u64().unwrap();
            for line in function["files"].as_array().unwrap().iter().flat_map(|it| it["lines"].as_array().unwrap()) {
                sum += line["weight"].as_u64().unwrap();
            }
            assert_eq!(sum, function["self_weight"].as_u64().unwrap());
            for line in lines {
                let number = line["line"].as_u64().unwrap() as usize;
                assert_eq!(line["text"], source[number - 1].trim_end(), "{number}");
            }
            assert!(lines.iter().any(|line| line["weight"].as_u64() == Some(0)), "no context: {lines:?}");
            // Elsewhere, newer, and nowhere.
            let name = path.rsplit('/').next().unwrap();
            let elsewhere = scratch();
            let copy = elsewhere.path().join(name);
            fs::copy(path, &copy).unwrap();
            let root = elsewhere.path().to_str().unwrap();
            let text = annotate(&["--source-root", root]);
            assert!(text.contains(&format!("# read from {}", copy.display())), "{text}");
            assert!(text.contains("was changed after the profile was begun"), "{text}");
            assert!(text.contains("no addresses"), "{text}");
            let from = format!("{}=/nowhere", path.strip_suffix(name).unwrap().trim_end_matches('/'));
            let substituted = format!("{}={root}", path.strip_suffix(name).unwrap().trim_end_matches('/'));
            let text = annotate(&["--substitute", &substituted]);
            assert!(text.contains(&format!("# read from {}", copy.display())), "{text}");
            assert!(!annotate(&["--substitute", &from]).contains("read from"));
            let refused = EndedProgram::of(ccsd(["annotate", "no_such_function"]).arg(&recorded.file));
            refused.assert_refused(2, &["no_such_function"]);
            let refused = EndedProgram::of(ccsd(["annotate", "main", "--by", "module"]).arg(&recorded.file));
            refused.assert_refused(2, &["--by"]);
        })
        .test("instructions_with_the_costs_of_their_lines", &[CC, OBJDUMP], || {
            let recorded = shared();
            let ask = |options: &[&str]| {
                EndedProgram::of(ccsd(["annotate", "weight_12", "--asm"]).arg(&recorded.file).args(options))
            };
            let ended = ask(&["--json"]);
            assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
            let document: Value = serde_json::from_str(&ended.stdout).unwrap();
            let function = &document["functions"][0];
            let assembly = &function["assembly"];
            let groups = assembly["groups"].as_array().unwrap();
            // Each line's cost once, as the report has it, and all of it.
            let mut costs = std::collections::BTreeMap::new();
            let mut sum = assembly["elsewhere"].as_u64().unwrap();
            for group in groups {
                if let Some(weight) = group["weight"].as_u64() {
                    sum += weight;
                    assert!(costs.insert(group["line"].as_u64().unwrap(), weight).is_none(), "{assembly}");
                }
            }
            assert_eq!(sum, function["self_weight"].as_u64().unwrap());
            assert!(!costs.is_empty());
            for line in function["files"][0]["lines"].as_array().unwrap() {
                let found = costs.get(&line["line"].as_u64().unwrap()).copied();
                assert!(found.is_none() || found == line["weight"].as_u64(), "{line}: {assembly}");
            }
            // Every instruction of the function, in order.
            let instructions = groups.iter().flat_map(|group| group["instructions"].as_array().unwrap());
            let addresses: Vec<u64> = instructions.map(|it| it["address"].as_u64().unwrap()).collect();
            let nm = EndedProgram::of(Command::new("nm").arg("--print-size").arg(assembly["image"].as_str().unwrap()));
            let symbol = nm.stdout.lines().find(|line| line.ends_with(" weight_12")).unwrap();
            let mut numbers = symbol.split(' ').map(|it| u64::from_str_radix(it, 16).unwrap_or(0));
            let (start, size) = (numbers.next().unwrap(), numbers.next().unwrap());
            assert!(addresses.is_sorted() && addresses[0] == start && *addresses.last().unwrap() < start + size);
            let text = ask(&[]).stdout;
            assert!(
                text.contains("instructions of weight_12 in ") && text.contains("costs are of source lines"),
                "{text}"
            );
            // Without objdump, and of another program of that name.
            let nothing = EndedProgram::of(
                ccsd(["annotate", "weight_12", "--asm"]).arg(&recorded.file).env("PATH", recorded.dir.path()),
            );
            nothing.assert_refused(2, &["objdump is not there"]);
            let program = build("weights.c", &["-O1", "-g", "-DTO_BE_REPLACED"]);
            let replaced = RecordCommand::new(&program, &["200"]).options(&["-F", "1999"]).run();
            fs::copy("/bin/true", &program).unwrap();
            let other = EndedProgram::of(ccsd(["annotate", "weight_12", "--asm"]).arg(&replaced.file));
            other.assert_refused(2, &["not what was profiled", "build id"]);
        })
        .test("columns_to_sort_by", &[CC], || {
            let recorded = shared();
            for (column, field) in
                [("self", "self_weight"), ("inherited", "inherited_weight"), ("samples", "samples_self")]
            {
                let document = json_of(recorded, &["--sort", column]);
                let rows = document["flat"]["rows"].as_array().unwrap();
                assert!(rows.iter().map(|row| u64::MAX - row[field].as_u64().unwrap()).is_sorted(), "{column}");
            }
            let names = json_of(recorded, &["--sort", "name"]);
            let names = names["flat"]["rows"].as_array().unwrap();
            assert!(names.iter().map(|row| row["name"].as_str().unwrap()).is_sorted());
            let refused = EndedProgram::of(ccsd(["report", "--sort", "id"]).arg(&recorded.file));
            refused.assert_refused(2, &["flat", "no column id", "self, total"]);
            let refused = EndedProgram::of(ccsd(["report", "--stats", "--sort", "self"]).arg(&recorded.file));
            refused.assert_refused(2, &["stats", "order of its own"]);
        })
        .test("a_part_of_the_time", &[CC], || {
            let recorded = shared();
            let whole = json_of(recorded, &["--since", "+0"]);
            let all = whole["file"]["intervals"]["all"].as_u64().unwrap();
            assert_eq!(whole["accounting"]["received"], recorded.profile.accounting().received);
            assert_eq!(whole["file"]["intervals"]["taken"], all);
            // After its first interval, and up to it: the two add up.
            let end = recorded.profile.accounting().duration_ns;
            let intervals = |since: &str, until: &str| {
                let ended = EndedProgram::of(
                    ccsd(["report", "--json", "--since", since, "--until", until]).arg(&recorded.file),
                );
                ended.status.success().then(|| serde_json::from_str::<Value>(&ended.stdout).unwrap())
            };
            let middle = format!("+{}ms", end / 2_000_000);
            let parts = [intervals("+0", &middle), intervals(&middle, "+1h")];
            let sum = |field: fn(&Value) -> &Value| -> u64 {
                parts.iter().flatten().map(|part| field(part).as_u64().unwrap()).sum()
            };
            assert_eq!(sum(|part| &part["file"]["intervals"]["taken"]), all);
            assert_eq!(sum(|part| &part["accounting"]["received"]), recorded.profile.accounting().received);
            assert_eq!(sum(|part| &part["flat"]["total"]["weight"]), recorded.flat().total.weight);
            let text = report(recorded, &["--since", "-1h"]).stdout;
            assert!(text.lines().any(|line| line.starts_with("# time     +0 ns to +")), "{text}");
            let refuse = |options: &[&str]| EndedProgram::of(ccsd(["report"]).args(options).arg(&recorded.file));
            refuse(&["--since", "+1h"]).assert_refused(2, &["no interval", "interval"]);
            refuse(&["--since", "10s"]).assert_refused(2, &["is no time", "+10s"]);
            refuse(&["--since", "+2s", "--until", "+1s"]).assert_refused(2, &["is empty"]);
            EndedProgram::of(&mut ccsd(["report", "--since", "+1s", "session:77777"]))
                .assert_refused(2, &["no intervals"]);
            let csv = EndedProgram::of(ccsd(["export", "csv", "--since", "+0", "--by", "process"]).arg(&recorded.file));
            assert!(csv.stdout.contains(&format!(",{},", recorded.flat().total.weight)), "{csv:?}");
        })
        .test("a_part_of_the_time_of_a_long_recording", &[], || {
            // A sample each second, for well over half an hour: more intervals than a file has. A descriptor gets all of them.
            let dir = scratch();
            let text: String = (0..2_001u32)
                .map(|second| {
                    let function = second / 250;
                    format!(
                        "prog 7/7 {}.000000: 1000000 cpu-clock:\n\t{function}000 f{function} (/prog)\n\n",
                        second + 5
                    )
                })
                .collect();
            let at = |name: &str| dir.path().join(name);
            fs::write(at("script.txt"), text).unwrap();
            let import = ccsd(["import"]);
            let mut shell = Command::new("sh");
            shell.args(["-c", "\"$@\" -o file.ccsd && exec \"$@\" -o /dev/fd/3 3>stream.ccsd", "sh"]);
            shell.arg(import.get_program()).args(import.get_args()).arg("script.txt").current_dir(dir.path());
            shell.envs(import.get_envs().filter_map(|(name, value)| Some((name, value?))));
            let ended = EndedProgram::of(&mut shell);
            assert!(ended.status.success(), "{ended:?}");
            let json = |name: &str, options: &[&str]| -> Value {
                let ended = EndedProgram::of(ccsd(["report", "--json"]).args(options).arg(at(name)));
                assert!(ended.status.success(), "{ended:?}");
                serde_json::from_str(&ended.stdout).unwrap()
            };
            for options in [&[][..], &["--stacks"], &["--threads"], &["--lines"]] {
                let (mut file, mut stream) = (json("file.ccsd", options), json("stream.ccsd", options));
                for it in [&mut file, &mut stream] {
                    it.as_object_mut().unwrap().remove("file").unwrap();
                }
                assert_eq!(file, stream);
            }
            let intervals = |part: &Value, field: &str| part["file"]["intervals"][field].as_u64().unwrap();
            let all = ["file.ccsd", "stream.ccsd"].map(|name| intervals(&json(name, &["--since", "+0s"]), "all"));
            assert!(all[0] <= 512 && all[1] > 1_900, "{all:?}");
            let mut sum = 0;
            for cut in ["+0s..+333s", "+333s..+1000s", "+1000s..+1h"] {
                let (since, until) = cut.split_once("..").unwrap();
                let part = json("file.ccsd", &["--since", since, "--until", until]);
                let (from, to) = (intervals(&part, "from_ns"), intervals(&part, "to_ns"));
                let received = part["accounting"]["received"].as_u64().unwrap();
                sum += received;
                assert!(received.abs_diff((to - from) / 1_000_000_000) <= 1, "{cut} {part}");
                assert!(intervals(&part, "longest_ns") <= 20_000_000_000, "{part}");
            }
            assert_eq!(sum, 2_001);
        })
        .test("names_are_inert_on_a_terminal", &[CC], || {
            // No assembler takes such a name; a linker and a hex editor do.
            let mut program = fs::read(build("escape.c", &["-O1"])).unwrap();
            let plain = b"placeholder_for_a_hostile_name";
            assert_eq!(plain.len(), EVIL.len());
            let places: Vec<usize> = (0..program.len()).filter(|&at| program[at..].starts_with(plain)).collect();
            assert!(!places.is_empty());
            for at in places {
                program[at..at + EVIL.len()].copy_from_slice(EVIL.as_bytes());
            }
            let dir = scratch();
            let path = dir.path().join("evil");
            fs::write(&path, program).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            let recorded = RecordCommand::new(path, &[]).options(&["-F", "1999"]).run();
            assert!(recorded.samples(EVIL).own > 100, "{:?}", recorded.names());
            let inert = |text: &str| text.chars().all(|c| c == '\n' || !c.is_control());
            for view in VIEWS {
                for json in [false, true] {
                    let options: &[&str] = if json { &[view, "--json"] } else { &[view] };
                    let text = report(&recorded, options).stdout;
                    assert!(inert(&text), "{view}: {text:?}");
                    assert!(!text.lines().any(|line| line.starts_with("forged")), "{view}: {text:?}");
                }
            }
            assert!(report(&recorded, &["--flat"]).stdout.contains("evil\\u{1b}[31m"));
            assert!(inert(&recorded.ended.stderr), "{:?}", recorded.ended.stderr);
            let flat = json(&recorded, "--flat");
            let rows = flat["flat"]["rows"].as_array().unwrap();
            assert!(rows.iter().any(|row| row["name"] == EVIL));
        })
        .test("a_reader_that_leaves_early", &[CC], || {
            // As in `ccsd report | head -1`, and also where the output is larger than a pipe holds.
            for view in VIEWS {
                let mut child = ccsd(["report", view])
                    .arg(&shared().file)
                    .stdin(Stdio::null())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .unwrap();
                let mut line = String::new();
                let mut reader = BufReader::with_capacity(1, child.stdout.take().unwrap());
                reader.read_line(&mut line).unwrap();
                drop(reader);
                assert!(line.starts_with("# target"), "{line}");
                let output = child.wait_with_output().unwrap();
                assert!(output.stderr.is_empty(), "{view}: {}", String::from_utf8_lossy(&output.stderr));
                let status = output.status;
                assert!(status.success() || status.signal() == Some(libc::SIGPIPE), "{view}: {status}");
            }
        })
        .test("an_output_that_is_full", &[CC], || {
            let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
            let output = ccsd(["report"]).arg(&shared().file).stdout(full).output().unwrap();
            let ended = EndedProgram {
                status: output.status,
                stdout: String::new(),
                stderr: String::from_utf8(output.stderr).unwrap(),
            };
            ended.assert_no_panic();
            ended.assert_refused(1, &["standard output"]);
        })
        .test("a_file_beyond_the_limit_of_its_size", &[CC], || {
            let dir = scratch();
            let kept = dir.path().join("kept");
            let export = "# ccsd 0.1.0 0\n# 1 samples received 0\na;b 1\n";
            fs::write(&kept, export).unwrap();
            // A block of the shell's is 512 bytes: the page is larger.
            let mut limited = Command::new("sh");
            limited.args(["-c", "ulimit -f 2; exec \"$@\"", "sh"]).arg(ccsd([""; 0]).get_program());
            limited.args(["export", "html"]).arg(&shared().file).arg("-o").arg(&kept);
            let ended = EndedProgram::of(&mut limited);
            ended.assert_no_panic();
            ended.assert_refused(1, &["kept"]);
            assert_eq!(fs::read_to_string(&kept).unwrap(), export);
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        })
        .test("help_manual_and_completions", &[], || {
            for args in [&["--help"][..], &["record", "--help"], &["attach", "--help"], &["report", "--help"]] {
                let ended = EndedProgram::of(&mut ccsd(args));
                assert!(ended.status.success() && ended.stdout.contains("Examples:"), "{args:?}: {ended:?}");
            }
            for shell in ["bash", "zsh", "fish"] {
                let ended = EndedProgram::of(&mut ccsd(["completions", shell]));
                assert!(ended.status.success() && ended.stdout.contains("ccsd __complete"), "{shell}: {ended:?}");
            }
            let manual = EndedProgram::of(&mut ccsd(["man"]));
            assert!(manual.status.success() && manual.stdout.contains(".TH ccsd 1"), "{manual:?}");
            let dir = scratch();
            let of_record = EndedProgram::of(ccsd(["man", "record"]).current_dir(&dir));
            assert!(
                of_record.stdout.contains(".TH ccsd-record 1") && of_record.stdout.contains("fIHZ"),
                "{of_record:?}"
            );
            let of_status = EndedProgram::of(&mut ccsd(["man", "daemon", "status"]));
            assert!(of_status.stdout.contains(".TH ccsd-daemon-status 1"), "{of_status:?}");
            assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "only --output writes files");
            EndedProgram::of(&mut ccsd(["man", "nonsense"])).assert_refused(2, &["no command \"nonsense\""]);
            assert!(EndedProgram::of(ccsd(["man", "--output", "pages"]).current_dir(&dir)).status.success());
            assert!(dir.path().join("pages/ccsd-record.1").exists());
            let version = EndedProgram::of(&mut ccsd(["--version"]));
            assert_eq!(version.stdout, format!("ccsd {}\n", env!("CARGO_PKG_VERSION")));
        })
        .test("doctor", &[], || {
            let text = EndedProgram::of(&mut ccsd(["doctor"]));
            assert!(text.stdout.contains("perf_event_paranoid"), "{text:?}");
            let json = EndedProgram::of(&mut ccsd(["doctor", "--json"]));
            assert_eq!(json.status, text.status);
            let document: Value =
                serde_json::from_str(&json.stdout).unwrap_or_else(|error| panic!("{error}: {json:?}"));
            assert!(document["checks"].as_array().is_some_and(|checks| !checks.is_empty()), "{document}");
        })
        .run()
}

fn shared() -> &'static Recorded {
    static RECORDED: OnceLock<Recorded> = OnceLock::new();
    RECORDED.get_or_init(|| {
        let program = build("weights.c", &["-O1", "-g"]);
        let recorded = RecordCommand::new(program, &["1000"]).options(&["-F", "1999"]).run();
        recorded.assert_whole();
        recorded
    })
}

fn report(recorded: &Recorded, options: &[&str]) -> EndedProgram {
    let ended = EndedProgram::of(ccsd(["report"]).args(options).arg(&recorded.file));
    assert!(ended.status.success() && ended.stderr.is_empty(), "{options:?}: {ended:?}");
    ended
}

fn json_of(recorded: &Recorded, options: &[&str]) -> Value {
    serde_json::from_str(&report(recorded, &[&["--json"], options].concat()).stdout).unwrap()
}

fn json(recorded: &Recorded, view: &str) -> Value {
    serde_json::from_str(&report(recorded, &[view, "--json"]).stdout).unwrap()
}
