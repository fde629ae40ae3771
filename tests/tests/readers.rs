//! A profile of known stacks in the real readers of each format: sums, stacks and calls equal the raw stacks'.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::OnceLock;

use ccsd_profile::{
    ContextId, CostCentre, Encoder, Image, LineId, Metric, Process, Profile, ProfileLimits, SessionInfo, Thread, Unit,
};
use ccsd_tests::ccsd::{EndedProgram, ccsd};
use ccsd_tests::fixture::scratch;
use ccsd_tests::readers::{
    ANNOTATE, BROWSER, DOT, FIREFOX_PROFILER, GAP, GPROF2DOT, SPEEDSCOPE, Weights, callgrind_calls, callgrind_costs,
    firefox_functions, pprof_top, sandwich,
};
use ccsd_tests::suite::{GO, PYTHON, Suite};
use serde_json::Value;
use tempfile::TempDir;

const PERIOD: u64 = 10_000_000;

/// Thread, functions from the root on, and samples.
const STACKS: [(u32, &str, u64); 15] = [
    (1, "main", 3),
    (1, "main parse", 20),
    (1, "main parse read", 31),
    (1, "main parse read", 6),
    (1, "main walk visit", 12),
    (1, "main walk visit walk visit walk", 25),
    (1, "main walk visit visit leaf walk", 9),
    (1, "main a b c b c a", 14),
    (1, "main a b a c a b", 11),
    (2, "start pool job parse read", 40),
    (2, "start pool job job job", 17),
    (2, "start pool job task parse", 8),
    (3, "start pool", 2),
    (3, "start pool walk leaf walk visit leaf", 21),
    // Below the threshold of graphs.
    (3, "start rare", 1),
];

/// Functions in cycles. Readers of calls compute their inherited weights differently.
const IN_CIRCLES: [&str; 6] = ["walk", "visit", "leaf", "a", "b", "c"];

type CallCounts = BTreeSet<(String, String)>;

fn main() -> ExitCode {
    Suite::new()
        .test("go_tool_pprof", &[GO], || {
            let file = export("pprof");
            assert_eq!(without_gap(pprof_top(&file)), weights());
            let raw = EndedProgram::of(Command::new("go").args(["tool", "pprof", "-raw"]).arg(&file)).stdout;
            let (samples, locations) = raw.split_once("\nLocations\n").unwrap();
            let names: BTreeMap<&str, &str> = locations
                .lines()
                .take_while(|line| *line != "Mappings")
                .map(|line| line.trim().split_once(": ").unwrap())
                .map(|(number, place)| (number, place.rsplit(' ').nth(2).unwrap()))
                .collect();
            let mut stacks: Vec<(Vec<String>, u64)> = Vec::new();
            for line in samples.lines() {
                let Some((values, ids)) = line.split_once(": ") else { continue };
                let Ok(values) = values.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>() else {
                    continue;
                };
                let frames = ids.split_whitespace().rev().map(|id| names[id].to_owned()).collect();
                stacks.push((frames, values[1]));
            }
            assert_stacks(stacks);
        })
        .test("speedscope", &[SPEEDSCOPE, BROWSER], || {
            // It shows one thread at a time, first the one with the most time; folded stacks have no threads.
            let of_thread: Vec<_> = samples().into_iter().filter(|it| it.0 == 1).collect();
            for (format, expected) in [("speedscope", weights_of(&of_thread)), ("folded", weights())] {
                let mut found = sandwich(&export(format));
                // It omits functions without weight.
                found.remove(GAP);
                assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{format}");
                for (name, (own, inherited)) in expected {
                    for (exact, (shown, unit)) in [(own, found[&name].0), (inherited, found[&name].1)] {
                        // It prints two decimals.
                        assert!((shown - exact as f64 / unit).abs() <= 0.005_001, "{format}: {name}: {shown} of {unit}");
                    }
                }
            }
        })
        .test("firefox_profiler", &[FIREFOX_PROFILER], || {
            assert_eq!(without_gap(firefox_functions(&export("firefox"), 3)), weights());
        })
        .test("callgrind_annotate", &[ANNOTATE], || {
            let file = export("callgrind");
            let (own, inclusive) = (callgrind_costs(&file, false), callgrind_costs(&file, true));
            for (name, (self_weight, inherited)) in weights() {
                assert_eq!(own.get(&name).copied().unwrap_or(0), self_weight, "{name}");
                if !IN_CIRCLES.contains(&name.as_str()) {
                    assert_eq!(inclusive.get(&name).copied(), Some(inherited), "{name}");
                }
            }
            // Each call by the latest activation of its caller.
            let mut calls: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
            for (_, stack, weight) in samples() {
                for caller in stack.iter().collect::<BTreeSet<_>>() {
                    let latest = stack.iter().rposition(|it| it == caller).unwrap();
                    if let Some(callee) = stack.get(latest + 1) {
                        let sum = calls.entry((caller.clone(), callee.clone())).or_default();
                        *sum = (sum.0 + weight, sum.1 + weight / PERIOD);
                    }
                }
            }
            assert_eq!(callgrind_calls(&file), calls);
        })
        .test("graphviz", &[DOT], || {
            let drawn = EndedProgram::of(Command::new("dot").arg("-Tjson").arg(export("dot")));
            assert!(drawn.status.success() && drawn.stderr.is_empty(), "{drawn:?}");
            let graph: Value = serde_json::from_str(&drawn.stdout).unwrap();
            let objects = graph["objects"].as_array().unwrap();
            let label = |at: usize| objects[at]["label"].as_str().unwrap();
            let name = |at: usize| label(at).split("\\n").next().unwrap().to_owned();
            let (weights, total) = (weights(), total());
            let share = |weight: u64| format!("{:.2}%", 100.0 * weight as f64 / total as f64);
            let mut labels: BTreeSet<String> = (0..objects.len()).map(|at| label(at).to_owned()).collect();
            assert!(labels.remove(&format!("[other: 1 functions]\\nself {}", share(weights["rare"].0))), "{labels:?}");
            let drawn = |(name, (own, inherited)): (&String, &(u64, u64))| {
                format!("{name}\\ntotal {}  self {}", share(*inherited), share(*own))
            };
            assert_eq!(labels, weights.iter().filter(|it| it.0 != "rare").map(drawn).collect());
            let at = |edge: &Value, end: &str| name(edge[end].as_u64().unwrap() as usize);
            let arcs = graph["edges"].as_array().unwrap().iter().map(|edge| (at(edge, "tail"), at(edge, "head")));
            let arcs: CallCounts = arcs.filter(|(_, callee)| !callee.starts_with("[other")).collect();
            // Calls between the latest activations of functions.
            let mut expected = CallCounts::new();
            for (_, stack, _) in samples() {
                for function in &stack {
                    let latest = stack.iter().rposition(|it| it == function).unwrap();
                    let ends = [latest.checked_sub(1), Some(latest)].into_iter().flatten();
                    let calls = ends.filter_map(|at| Some((stack[at].clone(), stack.get(at + 1)?.clone())));
                    expected.extend(calls.filter(|(_, callee)| callee != "rare"));
                }
            }
            assert_eq!(arcs, expected);
        })
        .test("gprof2dot", &[GPROF2DOT], || {
            for (format, reader) in [("callgrind", "callgrind"), ("folded", "collapse"), ("gprof", "prof")] {
                let args = ["-f", reader, "--node-thres=0", "--edge-thres=0"];
                let graph = EndedProgram::of(Command::new("gprof2dot").args(args).arg(export(format)));
                assert!(graph.status.success() && graph.stderr.is_empty(), "{format}: {graph:?}");
                let mut names: BTreeMap<&str, String> = BTreeMap::new();
                let mut arcs = CallCounts::new();
                for line in graph.stdout.lines().filter(|line| line.contains("label=")) {
                    let (ends, rest) = line.trim().split_once(" [").unwrap();
                    if let Some((caller, callee)) = ends.split_once(" -> ") {
                        arcs.insert((caller.to_owned(), callee.to_owned()));
                        continue;
                    }
                    let label = rest.split_once("label=\"").unwrap().1.split_once('"').unwrap().0;
                    let lines: Vec<&str> = label.split("\\n").collect();
                    let at = lines.iter().position(|line| line.ends_with('%')).unwrap();
                    names.insert(ends, lines[at - 1].split(" <cycle").next().unwrap().to_owned());
                    let shown = |at: usize| lines[at].trim_matches(['(', ')', '%']).parse::<f64>().unwrap();
                    let name = &names[ends];
                    if let Some((own, inherited)) = weights().get(name) {
                        let share = |weight: &u64| 100.0 * *weight as f64 / total() as f64;
                        assert!((shown(at + 1) - share(own)).abs() <= 0.011, "{format}: {line}");
                        // A cycle's total is divided among its callers, in gprof's text by numbers of calls.
                        let calls_circle = ["main", "pool", "start"].contains(&name.as_str());
                        let is_divided = IN_CIRCLES.contains(&name.as_str()) || (format == "gprof" && calls_circle);
                        assert!(is_divided || (shown(at) - share(inherited)).abs() <= 0.011, "{format}: {line}");
                    } else {
                        assert!(name == GAP || (name.starts_with("# ") && shown(at) == 0.0), "{format}: {line}");
                    }
                }
                let arcs = arcs.iter().map(|(a, b)| (names[a.as_str()].clone(), names[b.as_str()].clone()));
                let arcs: CallCounts = arcs.filter(|(a, b)| a != GAP && b != GAP).collect();
                assert!(arcs.is_subset(&edges()) && arcs.len() > 12, "{format}: {arcs:?}");
            }
        })
        .test("python_csv", &[PYTHON], || {
            // Every row has numbers, even for readers that do not know comments.
            let script = "import csv, json, sys\n\
                rows = list(csv.DictReader(open(sys.argv[1], newline='')))\n\
                print(json.dumps([[r['function'], *[int(r[c]) for c in r if c not in ('function', 'image')]] for r in rows]))";
            let read = EndedProgram::of(Command::new("python3").args(["-c", script]).arg(export("csv")));
            assert!(read.status.success(), "{read:?}");
            let rows: Vec<(String, u64, u64, u64, u64)> = serde_json::from_str(&read.stdout).unwrap();
            let (remarks, rows): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.0.starts_with("# "));
            assert!(remarks.iter().any(|row| row.0.contains("220 samples received")), "{remarks:?}");
            assert!(remarks.iter().all(|row| (row.1, row.2, row.3, row.4) == (0, 0, 0, 0)), "{remarks:?}");
            let found: Weights = rows.into_iter().map(|row| (row.0, (row.1, row.2))).collect();
            assert_eq!(found, weights());
        })
        .test("json", &[], || {
            let document: Value = serde_json::from_str(&fs::read_to_string(export("json")).unwrap()).unwrap();
            let stack = |stack: &Value| {
                let name = |at: &Value| document["functions"][at.as_u64().unwrap() as usize]["name"].as_str().unwrap();
                let names = stack["functions"].as_array().unwrap().iter().map(|at| name(at).to_owned());
                (names.collect(), stack["weights"][0].as_u64().unwrap())
            };
            assert_stacks(document["stacks"].as_array().unwrap().iter().map(stack).collect());
        })
        .run()
}

/// The samples, with weights in nanoseconds and direct recursion folded.
fn samples() -> Vec<(u32, Vec<String>, u64)> {
    let sample = |&(tid, stack, weight): &(u32, &str, u64)| {
        let mut names: Vec<String> = stack.split(' ').map(str::to_owned).collect();
        names.dedup();
        (tid, names, weight * PERIOD)
    };
    STACKS.iter().map(sample).collect()
}

fn weights_of(samples: &[(u32, Vec<String>, u64)]) -> Weights {
    let mut weights = Weights::new();
    for (_, stack, weight) in samples {
        weights.entry(stack.last().unwrap().clone()).or_default().0 += weight;
        for name in stack.iter().collect::<BTreeSet<_>>() {
            weights.entry(name.clone()).or_default().1 += weight;
        }
    }
    weights
}

fn weights() -> Weights {
    weights_of(&samples())
}

fn total() -> u64 {
    samples().iter().map(|it| it.2).sum()
}

fn edges() -> CallCounts {
    let pairs = |stack: &[String]| stack.windows(2).map(|it| (it[0].clone(), it[1].clone())).collect::<Vec<_>>();
    samples().iter().flat_map(|(_, stack, _)| pairs(stack)).collect()
}

fn without_gap(mut weights: Weights) -> Weights {
    weights.remove(GAP).expect("a stack with a gap");
    weights
}

/// Asserts that stacks have the functions' weights and only calls that occurred; without indirect recursion the raw
/// stacks.
fn assert_stacks(stacks: Vec<(Vec<String>, u64)>) {
    let plain = |stack: &[String]| stack.iter().collect::<BTreeSet<_>>().len() == stack.len();
    let mut expected: BTreeMap<Vec<String>, u64> = BTreeMap::new();
    for (_, stack, weight) in samples().into_iter().filter(|it| plain(&it.1)) {
        *expected.entry(stack).or_default() += weight;
    }
    let mut found: BTreeMap<Vec<String>, u64> = BTreeMap::new();
    let (mut shown, mut sums) = (CallCounts::new(), Weights::new());
    for (stack, weight) in stacks {
        let pairs = stack.windows(2).filter(|pair| !pair.contains(&GAP.to_owned()));
        shown.extend(pairs.map(|it| (it[0].clone(), it[1].clone())));
        sums.entry(stack.last().unwrap().clone()).or_default().0 += weight;
        for name in stack.iter().filter(|name| *name != GAP).collect::<BTreeSet<_>>() {
            sums.entry(name.clone()).or_default().1 += weight;
        }
        if plain(&stack) {
            *found.entry(stack).or_default() += weight;
        }
    }
    assert_eq!((found, sums), (expected, weights()));
    assert!(shown.is_subset(&edges()), "{:?}", shown.difference(&edges()).collect::<Vec<_>>());
}

fn export(format: &str) -> PathBuf {
    static FIXED: OnceLock<TempDir> = OnceLock::new();
    let dir = FIXED.get_or_init(|| {
        let dir = scratch();
        fs::write(dir.path().join("fixed.ccsd"), profile()).unwrap();
        dir
    });
    let file = dir.path().join(format!("fixed.{format}"));
    let profile = dir.path().join("fixed.ccsd");
    let ended = EndedProgram::of(ccsd(["export", format, "--force"]).arg(profile).arg("-o").arg(&file));
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    file
}

fn profile() -> Vec<u8> {
    let session = SessionInfo {
        target: "fixed".to_owned(),
        event: "cpu-clock".to_owned(),
        rate_hz: 100,
        metrics: vec![Metric { name: "cpu-clock".to_owned(), unit: Unit::Nanoseconds }],
        ..SessionInfo::default()
    };
    let mut profile = Profile::new(session.clone(), ProfileLimits::default());
    let image = profile.add_image(Image { name: "/usr/bin/fixed".to_owned(), build_id: vec![1, 2, 3] });
    let process = profile.add_process(Process::new(7, 1, "fixed"));
    for (tid, stack, weight) in STACKS {
        let thread = profile.add_thread(Thread { process, tid, name: format!("thread {tid}") });
        let context = stack.split(' ').fold(ContextId::ROOT, |context, name| {
            let function = profile.add_cost_centre(CostCentre {
                file: Some("/src/fixed.c".to_owned()),
                line: 1,
                ..CostCentre::named(image, name)
            });
            profile.contexts_mut().push(context, function)
        });
        for _ in 0..weight {
            profile.charge(thread, context, LineId::UNKNOWN, &[PERIOD]);
        }
        profile.accounting_mut().received += weight;
    }
    profile.accounting_mut().duration_ns = 1_000_000_000;
    let mut encoder = Encoder::new(Vec::new(), &session).unwrap();
    encoder.write(&profile.take_update()).unwrap();
    encoder.finish().unwrap()
}
