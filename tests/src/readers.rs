//! Third-party readers of `ccsd export`'s formats, and their results.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::ccsd::EndedProgram;
use crate::fixture::scratch;
use crate::suite::{Need, find_program};

pub const ANNOTATE: Need = Need::Program("callgrind_annotate", "valgrind");
pub const DOT: Need = Need::Program("dot", "graphviz");
pub const BROWSER: Need = Need::Program("chromium", "chromium");
pub const SPEEDSCOPE: Need = Need::Program("speedscope", "npm; npm install -g speedscope");
/// The Firefox Profiler's own code, without its page.
pub const FIREFOX_PROFILER: Need =
    Need::Program("profiler-cli", "npm; npm install -g @firefox-devtools/profiler-cli@0.10.0");
pub const GPROF2DOT: Need = Need::Program("gprof2dot", "pipx; pipx install gprof2dot");

pub type Weights = BTreeMap<String, (u64, u64)>;

/// The name between two functions that may not have called each other.
pub const GAP: &str = "[...]";

/// Self and inherited weight in nanoseconds by name, from `go tool pprof -top`.
#[must_use]
pub fn pprof_top(file: &Path) -> Weights {
    let args = ["tool", "pprof", "-top", "-unit=ns", "-nodecount=100000", "-nodefraction=0"];
    let top = EndedProgram::of(Command::new("go").args(args).arg(file));
    assert!(top.status.success(), "{top:?}");
    let rows = top.stdout.lines().skip_while(|line| !line.trim_start().starts_with("flat ")).skip(1);
    let nanoseconds = |text: &str| text.trim_end_matches("ns").parse::<u64>().unwrap();
    rows.map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[5..].join(" "), (nanoseconds(words[0]), nanoseconds(words[3])))
    })
    .collect()
}

/// Cost by name from `callgrind_annotate`: of the function alone, or with its calls.
#[must_use]
pub fn callgrind_costs(file: &Path, inclusive: bool) -> BTreeMap<String, u64> {
    let mut command = Command::new("callgrind_annotate");
    let inclusive_option = if inclusive { "--inclusive=yes" } else { "--inclusive=no" };
    command.args(["--threshold=100", "--show-percs=no", "--auto=no", inclusive_option]).arg(file);
    let annotated = EndedProgram::of(&mut command);
    assert!(annotated.status.success(), "{annotated:?}");
    let rows = annotated.stdout.lines().skip_while(|line| !line.contains("file:function")).skip(2);
    let mut costs = BTreeMap::new();
    for line in rows.take_while(|line| !line.is_empty()) {
        let (cost, name) = callgrind_row(line.trim_start());
        // A function with lines in several files has a row for each file, with the cost there, or the inclusive total.
        let sum: &mut u64 = costs.entry(name).or_default();
        *sum = if inclusive { cost.max(*sum) } else { *sum + cost };
    }
    costs
}

/// Cost and count of calls by caller and callee, from `callgrind_annotate`.
#[must_use]
pub fn callgrind_calls(file: &Path) -> BTreeMap<(String, String), (u64, u64)> {
    let mut command = Command::new("callgrind_annotate");
    command.args(["--threshold=100", "--show-percs=no", "--auto=no", "--tree=calling"]).arg(file);
    let annotated = EndedProgram::of(&mut command);
    assert!(annotated.status.success(), "{annotated:?}");
    let (mut caller, mut calls) = (String::new(), BTreeMap::new());
    for line in annotated.stdout.lines().skip_while(|line| !line.contains("file:function")) {
        if let Some((cost, place)) = line.split_once(" * ") {
            caller = callgrind_row(&format!("{}  {}", cost.trim(), place.trim())).1;
        } else if let Some((cost, place)) = line.split_once(" > ") {
            let (place, count) = place.rsplit_once(" (").unwrap();
            let (cost, callee) = callgrind_row(&format!("{}  {}", cost.trim(), place.trim()));
            calls.insert((caller.clone(), callee), (cost, count.split('x').next().unwrap().parse().unwrap()));
        }
    }
    calls
}

fn callgrind_row(line: &str) -> (u64, String) {
    let (cost, place) = line.split_once("  ").unwrap();
    let place = place.trim().rsplit_once(" [").map_or(place.trim(), |it| it.0);
    let name = place.rsplit_once(':').unwrap().1;
    (cost.replace(',', "").replace('.', "0").parse().expect(line), name.to_owned())
}

/// Self and inherited weight in nanoseconds by name, over all threads, from the Firefox Profiler, for functions with
/// unique names.
#[must_use]
pub fn firefox_functions(file: &Path, threads: usize) -> Weights {
    let dir = scratch();
    let reader = || {
        let mut command = Command::new("profiler-cli");
        command.env("PROFILER_CLI_SESSION_DIR", dir.path());
        command
    };
    // One process reads the file and answers the others. Started here, because `load` gives it only half a second.
    struct ProfilerServer(Child);
    impl Drop for ProfilerServer {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let mut server = reader();
    server.arg("--daemon").arg(file).args(["--session", "test"]);
    let mut server =
        ProfilerServer(server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let end = Instant::now() + Duration::from_secs(120);
    // Only asked once it listens: a client that finds its files without a listener removes them.
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
        let ended = EndedProgram::of(reader().args(arguments));
        if ended.status.success() {
            return ended.stdout;
        }
        assert!(server.0.try_wait().unwrap().is_none() && Instant::now() < end, "{ended:?}");
        thread::sleep(Duration::from_millis(50));
    };
    let mut weights = Weights::new();
    for number in 0..threads {
        let mut twice = BTreeSet::new();
        let answer = ask(&format!("t-{number}"));
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["weightType"], "tracing-ms");
        let mut seen = BTreeSet::new();
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

/// A weight as speedscope shows it: a number, and its unit in nanoseconds.
pub type Rounded = (f64, f64);

/// Self and inherited weight by name in speedscope's table of functions ("sandwich").
#[must_use]
pub fn sandwich(file: &Path) -> BTreeMap<String, (Rounded, Rounded)> {
    // The browser may finish before the page has drawn its table: try again.
    let found = (0..20).map(|_| sandwich_once(file)).find(|found| !found.is_empty());
    found.expect("speedscope shows functions")
}

fn sandwich_once(file: &Path) -> BTreeMap<String, (Rounded, Rounded)> {
    // speedscope's command line writes such a script and opens its page with it.
    let page = find_program("speedscope").unwrap().canonicalize().unwrap();
    let page = page.parent().unwrap().join("../dist/release/index.html").canonicalize().unwrap();
    let dir = scratch();
    let script = dir.path().join("load.js");
    let encoded = EndedProgram::of(Command::new("base64").arg("--wrap=0").arg(file)).stdout;
    fs::write(&script, format!("speedscope.loadFileFromBase64(\"profile\", \"{encoded}\")")).unwrap();
    let mut browser = Command::new("chromium");
    browser.args(["--headless", "--no-sandbox", "--disable-dev-shm-usage", "--allow-file-access-from-files"]);
    // It draws with WebGL, and only the visible rows.
    browser.args([
        "--enable-unsafe-swiftshader",
        "--window-size=1200,8000",
        "--virtual-time-budget=20000",
        "--dump-dom",
    ]);
    browser.arg(format!("--user-data-dir={}", dir.path().join("browser").display()));
    browser.arg(format!("file://{}#localProfilePath={}&view=sandwich", page.display(), script.display()));
    let document = EndedProgram::of(&mut browser).stdout;
    let text = |cell: &str| -> String {
        let cell = cell.split("</td>").next().unwrap();
        let parts = cell.split('<').map(|part| part.split_once('>').map_or("", |(_, text)| text));
        parts.collect::<String>().replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    };
    let weight = |cell: &str| -> Rounded {
        let shown = text(cell);
        let shown = shown.split(' ').next().unwrap();
        let shown = shown.replace(',', "");
        let at = shown.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(shown.len());
        let unit = match &shown[at..] {
            // Folded stacks have no unit.
            "" | "ns" => 1.0,
            "\u{b5}s" | "\u{3bc}s" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            other => panic!("{other} is no unit"),
        };
        (shown[..at].parse().unwrap(), unit)
    };
    let rows = document.split("<tr").skip(1).map(|row| row.split("<td").skip(1).collect::<Vec<_>>());
    // The list of threads is a table of three columns, too.
    let is_weight = |cell: &str| text(&format!("<td{cell}")).starts_with(|c: char| c.is_ascii_digit());
    let rows = rows.filter(|cells| cells.len() == 3 && is_weight(cells[0]) && is_weight(cells[1]));
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
