//! `ccsd export html` in a browser: the numbers of `ccsd report` with the same options; hostile names are inert.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use ccsd_profile::{
    ContextId, CostCentre, Encoder, Image, LineId, Membership, Metric, Process, Profile, ProfileLimits, SessionInfo,
    Thread, ThreadId, Unit,
};
use ccsd_tests::ccsd::{EndedProgram, RecordCommand, ccsd};
use ccsd_tests::fixture::{build, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::suite::{CC, CXX, Need, Suite, axe};
use serde_json::Value;
use tempfile::TempDir;

const BROWSER: Need = Need::Program("chromium", "chromium");
const NODE: Need = Need::Program("node", "nodejs");

type Weights = BTreeMap<String, (u64, u64)>;

fn main() -> ExitCode {
    Suite::new()
        .test("its_functions_are_those_of_the_report", &[CC, BROWSER], || {
            let recorded = recursive();
            let page = page(recorded, &[]);
            let questions = [
                ("", &[][..]),
                ("hide=q", &["--hide", "q"]),
                ("hide=q%20%3B%3B%20module%3Alibc.so.6", &["--hide", "q", "--hide", "module:libc.so.6"]),
                ("focus=%2F%5E(p%7Cr)%24%2F", &["--focus", "/^(p|r)$/"]),
                ("ignore=calib*", &["--ignore", "calib*"]),
            ];
            let documents = at_each(&page, questions.iter().map(|it| format!("view=table&startup=1&{}", it.0)));
            for (document, (address, options)) in documents.iter().zip(questions) {
                assert_eq!(rows(document), reported(recorded, options), "{address}");
            }
        })
        .test("startup_functions_are_folded", &[CC, BROWSER], || {
            let recorded = recursive();
            let page = page(recorded, &[]);
            let all = reported(recorded, &[]);
            let first = |document: &str| {
                let list = document.split("<table id=\"hot\">").nth(1).unwrap();
                cells(list.split("</table>").next().unwrap()).next().unwrap().1
            };
            let scripts = [
                "at('view=hot')",
                "document.getElementById('startup').click()",
                "document.dispatchEvent(new KeyboardEvent('keydown', { key: 's', bubbles: true }))",
                "at('view=table')",
            ];
            // As key presses in the page's elements: the page saves its focus.
            let scripts = scripts.map(|script| script.replace("document.dispatchEvent", "document.body.dispatchEvent"));
            let [folded, shown, again, table] = driven(&page, &scripts).try_into().unwrap();
            // The image follows where a sample met the dynamic linker's own `_start` too.
            let firsts = [&folded, &shown, &again].map(|it| first(it));
            assert_eq!(firsts.each_ref().map(|name| name.split(' ').next().unwrap()), ["main", "_start", "main"]);
            let is_pressed =
                |document: &str| document.contains("<button type=\"button\" id=\"startup\" aria-pressed=\"true\"");
            assert!(!is_pressed(&folded) && is_pressed(&shown) && !is_pressed(&again), "{folded}");
            let rows = rows(&table);
            let is_start = |name: &String| name == "_start" || (name.starts_with("_start (") && !name.contains("(ld-"));
            let has_start = |rows: &Weights| rows.keys().any(is_start);
            assert!(!has_start(&rows) && has_start(&all), "{rows:?}");
            for name in ["main", "p", "q", "r"] {
                assert_eq!(rows.get(name), all.get(name), "{name}");
            }
            let total = |rows: &Weights| rows.values().map(|row| row.0).sum::<u64>();
            assert_eq!(total(&rows), total(&all));
        })
        .test("its_arcs_are_those_of_the_report", &[CC, BROWSER], || {
            let recorded = recursive();
            let page = page(recorded, &[]);
            let number = function(&page, "p");
            let document = open(&page, &format!("view=butterfly&function={number}"));
            let graph = recorded.graph();
            let node = graph.nodes.iter().find(|it| it.name == "p").unwrap();
            let arcs = |list: &[ccsd_profile::view::GraphArc]| -> Vec<(String, u64)> {
                list.iter().map(|it| (it.name.clone(), it.self_weight + it.child_weight)).collect()
            };
            let (callers, callees) = document.split_once("id=\"middle\"").unwrap();
            let found =
                |part: &str| -> Vec<(String, u64)> { cells(part).map(|(weights, name)| (name, weights[0])).collect() };
            let callees = callees.split_once("data-view=\"graph\"").unwrap().0;
            let sorted = |mut list: Vec<(String, u64)>| {
                list.sort();
                list
            };
            let callers = callers.rsplit_once("called by").unwrap().1;
            assert_eq!(sorted(found(callers)), sorted(arcs(&node.callers)));
            assert_eq!(sorted(found(callees)), sorted(arcs(&node.callees)));
        })
        .test("a_part_of_the_time_is_that_of_the_report", &[BROWSER], || {
            let file = timed(12, 6);
            let page = page_of(&file.path, &file.dir, &[]);
            let questions = [
                ("time=0-4", &[][..]),
                ("time=7-7", &[]),
                ("time=3-11&hide=p", &["--hide", "p"]),
                ("time=2-9&hide=q%20%3B%3B%20alone", &["--hide", "q", "--hide", "alone"]),
                ("time=2-9&focus=%2F%5E(p%7Cq)%24%2F", &["--focus", "/^(p|q)$/"]),
                ("time=5-8&ignore=busy_2", &["--ignore", "busy_2"]),
            ];
            let documents = at_each(&page, questions.iter().map(|it| format!("view=table&{}", it.0)));
            for (document, (address, question)) in documents.iter().zip(questions) {
                let (since, until) = (attribute(document, "since"), attribute(document, "until"));
                let time = ["--since", &since, "--until", &until];
                let expected = reported_of(&file.path, &[&time[..], question].concat());
                assert!(!expected.is_empty() && expected != reported_of(&file.path, question), "{address}");
                assert_eq!(rows(document), expected, "{address}: {since} to {until}");
            }
            // An invalid range means the whole time.
            let nonsense = ["7-3", "0-99", "x", "0-11"];
            for document in at_each(&page, nonsense.iter().map(|it| format!("view=table&time={it}"))) {
                assert_eq!(rows(&document), reported_of(&file.path, &[]), "{document}");
            }
        })
        .test("a_part_of_the_time_is_chosen_by_hand", &[BROWSER], || {
            let file = timed(12, 6);
            let page = page_of(&file.path, &file.dir, &[]);
            // All columns have equal length: from the middle of the third to that of the seventh.
            let drag = "point('pointerdown', 2.5 / 12); point('pointermove', 4 / 12); point('pointermove', 6.5 / 12); \
                        point('pointerup', 6.5 / 12)";
            let back = "point('pointerdown', 6.5 / 12); point('pointermove', 2.5 / 12); point('pointerup', 2.5 / 12)";
            // The first, two further, then extended by four.
            let keys =
                "for (let i = 0; i < 3; i++) key('ArrowRight'); for (let i = 0; i < 4; i++) key('ArrowRight', true)";
            let part = reported_of(&file.path, &["--since", "+2s", "--until", "+7s"]);
            let all = reported_of(&file.path, &[]);
            let steps = [
                (drag.to_owned(), &part),
                ("key('Escape')".to_owned(), &all),
                (keys.to_owned(), &part),
                ("point('pointerdown', 0.5); point('pointerup', 0.5)".to_owned(), &all),
                (back.to_owned(), &part),
            ];
            let mut scripts: Vec<String> = steps.iter().map(|it| it.0.clone()).collect();
            scripts[0] = format!("at('view=table'); {drag}");
            scripts.push("document.querySelector('#tabs [data-view=hot]').click()".to_owned());
            let documents = driven(&page, &scripts);
            for (document, (script, expected)) in documents.iter().zip(&steps) {
                assert_eq!(&&rows(document), expected, "{script}");
            }
            // Other views show that time range, too.
            let hot = documents.last().unwrap();
            assert!(hot.contains("--since +2s --until +7s"), "{hot}");
            let table = hot.split("<table id=\"hot\">").nth(1).unwrap();
            assert!(table.contains(&format!("data-weight=\"{}\"", part["main"].1)), "{hot}");
        })
        .test("its_bands_are_those_of_the_report", &[BROWSER], || {
            let file = timed(12, 6);
            let page = page_of(&file.path, &file.dir, &[]);
            let questions = [
                ("", &[][..]),
                ("&sort=inherited", &["--inherited"]),
                ("&hide=q", &["--hide", "q"]),
                ("&sort=inherited&focus=p", &["--inherited", "--focus", "p"]),
            ];
            let documents = at_each(&page, questions.iter().map(|it| format!("view=time{}", it.0)));
            for (document, (address, options)) in documents.iter().zip(questions) {
                let drawn = document.split("data-weights=\"").skip(1).map(|it| it.split('"').next().unwrap());
                let drawn = drawn.map(|it| it.split(' ').map(|it| it.parse().unwrap()).collect()).collect();
                let mut report = ccsd(["report", "--view", "timeline", "-n", "30", "--json"]);
                let ended = EndedProgram::of(report.args(options).arg(&file.path));
                let timeline: Value = serde_json::from_str(&ended.stdout).unwrap();
                let list =
                    |it: &Value| it.as_array().unwrap().iter().map(|it| it.as_u64().unwrap()).collect::<Vec<_>>();
                let bands = timeline["timeline"]["bands"].as_array().unwrap();
                let mut expected: Vec<Vec<u64>> = bands.iter().map(|band| list(&band["weights"])).collect();
                expected.push(list(&timeline["timeline"]["weights"]));
                assert!(expected.len() > 3 && expected[0].len() == 12, "{ended:?}");
                let sorted = |mut bands: Vec<Vec<u64>>| {
                    bands.sort();
                    bands
                };
                assert_eq!(sorted(drawn), sorted(expected), "{address}");
            }
        })
        .test("a_timeline_is_coarser_in_a_small_page", &[BROWSER], || {
            let file = timed(500, 40);
            let whole = page_of(&file.path, &file.dir, &[]);
            let size = whole.metadata().unwrap().len();
            let document = open(&whole, "view=table");
            assert!(
                document.contains("in 500 parts of at most 1.00 s") && !document.contains("--max-size"),
                "{document}"
            );
            let small = page_of(&file.path, &file.dir, &["--max-size", &(size - 8_000).to_string()]);
            assert!(small.metadata().unwrap().len() <= size - 8_000);
            let document = open(&small, "view=table&time=1-3");
            let parts = document.split(" parts of at most ").next().unwrap().rsplit(' ').next().unwrap();
            let parts: usize = parts.parse().unwrap();
            assert!((20..500).contains(&parts) && document.contains("500 are too many for this file"), "{document}");
            assert!(!document.contains("[pruned]"), "{document}");
            let (since, until) = (attribute(&document, "since"), attribute(&document, "until"));
            assert_eq!(rows(&document), reported_of(&file.path, &["--since", &since, "--until", &until]));
        })
        .test("every_view_opens", &[CC, BROWSER], || {
            let page = page(recursive(), &[]);
            for (view, part) in [
                ("graph", "class=\"node"),
                ("hot", "<table id=\"hot\"><colgroup"),
                ("flame", "Most expensive"),
                ("nonsense", "Most expensive"),
            ] {
                for theme in ["light", "dark"] {
                    let document = open(&page, &format!("view={view}&theme={theme}"));
                    assert!(document.contains(part), "{view}: {document}");
                    assert_eq!(document.contains("class=\"dark\""), theme == "dark");
                }
            }
            let document = open(&page, "hide=no_such_function");
            assert!(document.contains("nothing is called no_such_function"), "{document}");
        })
        .test("its_picture_is_drawn", &[CXX, BROWSER], || {
            // A compiler: the picture in the README.
            let recorded = RecordCommand::new("c++", &["-O2", "-c", "-o", "/dev/null", "fixtures/languages.cpp"]).run();
            let page = page(&recorded, &[]);
            for theme in ["light", "dark"] {
                let picture = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("page-{theme}.png"));
                let _ = fs::remove_file(&picture);
                let shot = format!("--screenshot={}", picture.display());
                browse(
                    &page,
                    &format!("view=flame&theme={theme}"),
                    &["--window-size=1280,720", "--hide-scrollbars", &shot],
                );
                let png = fs::read(&picture).unwrap();
                assert!(png.starts_with(b"\x89PNG\r\n\x1a\n"));
                // IHDR: width and height (RFC 2083, 4.1.1). An empty page has 4 kB.
                assert_eq!((&png[16..20], &png[20..24]), (&1280u32.to_be_bytes()[..], &720u32.to_be_bytes()[..]));
                assert!(png.len() > 30_000, "{} bytes in {}", png.len(), picture.display());
            }
        })
        .test("nothing_keeps_people_from_using_it", &[CC, BROWSER, NODE, Need::Axe], || {
            let (before, after) = (timed(12, 6), timed(9, 4));
            let difference = after.dir.path().join("difference.html");
            let mut export = ccsd(["export", "html", "--diff"]);
            let ended = EndedProgram::of(export.arg(&before.path).arg(&after.path).arg("-o").arg(&difference));
            assert!(ended.status.success(), "{ended:?}");
            let source = page(recursive(), &[]);
            for (page, views) in [(&page_of(&before.path, &before.dir, &[]), 6), (&difference, 6), (&source, 6)] {
                let looks = looked_at(page, None);
                assert!(looks.len() >= views * 6, "{} of {}", looks.len(), page.display());
                for look in &looks {
                    assert!(look["width"].as_u64() >= look["wide"].as_u64(), "{look}");
                    // A quarter of a screen is enough for everything else; at the size between, tabs and toggles take two lines.
                    let most = if look["width"] == 1000 { 270.0 } else { 240.0 };
                    assert!(look["begins"].as_f64().unwrap() < most, "{look}");
                    let severe = |it: &&Value| ["serious", "critical"].contains(&it["impact"].as_str().unwrap());
                    assert_eq!(look["violations"].as_array().unwrap().iter().find(severe), None, "{look}");
                    assert!(look["width"] == 1000 || look["passes"].as_u64().unwrap() > 20, "{look}");
                }
            }
            let html = fs::read_to_string(&source).unwrap().replace("aria-label=\"previous match\"", "");
            let silent = source.with_file_name("silent.html");
            fs::write(&silent, html.replace(" title=\"previous match (p)\"", "").replace(">\u{2039}</button>", "></button>"))
                .unwrap();
            let found = looked_at(&silent, Some("table"));
            assert!(found.iter().all(|look| look["width"] == 1000 || look["violations"][0]["id"] == "button-name"), "{found:?}");
        })
        .test("colours_are_those_of_the_svg", &[CC, CXX, BROWSER], || {
            let compiler = RecordCommand::new("c++", &["-O2", "-c", "-o", "/dev/null", "fixtures/languages.cpp"]).run();
            for recorded in [recursive(), &compiler] {
                let document = open(&page(recorded, &["--full-names"]), "view=table&theme=light&startup=1");
                let shown: BTreeMap<String, String> = document
                    .split("<tr tabindex=\"0\"")
                    .skip(1)
                    .map(|row| {
                        let colour = row.split("background: rgb(").nth(1).unwrap().split(')').next().unwrap();
                        let name = row.split("</tr>").next().unwrap().rsplit_once("</td>").unwrap().0.rsplit_once('>').unwrap().1;
                        (name.to_owned(), colour.replace(' ', ""))
                    })
                    .collect();
                let file = recorded.dir.path().join("flame.svg");
                let ended = EndedProgram::of(ccsd(["export", "svg", "--force", "-o"]).arg(&file).arg(&recorded.file));
                assert!(ended.status.success(), "{ended:?}");
                let svg = fs::read_to_string(&file).unwrap();
                let mut compared = 0;
                for frame in svg.split("<title>").skip(1) {
                    let (title, rest) = frame.split_once("</title>").unwrap();
                    let name = title.rsplit_once(" (").unwrap().0;
                    let colour = rest.split("rgb(").nth(1).unwrap().split(')').next().unwrap();
                    if name == "all" {
                        assert_eq!(colour, "228,230,232");
                        assert!(rest.split("</text>").next().unwrap().ends_with(">all"), "{rest}");
                    } else if let Some(shown) = shown.get(name) {
                        assert_eq!(shown, colour, "{name}");
                        compared += 1;
                    }
                    // What starts the program is folded.
                    assert!(name != "_start" && name != "__libc_start_main", "{svg}");
                }
                assert!(compared > 3 && shown.len() > 3, "{compared} of {}", shown.len());
            }
        })
        .test("functions_of_scripts_have_their_names_and_packages", &[BROWSER], || {
            // The interpreter enters itself again for each function; the page folds it.
            let file = written(2, |profile, _| {
                let (thread, eval) = (profile.threads[0], ("/usr/bin/python3.13", "_PyEval_EvalFrameDefault"));
                let python = |name| ("[jit]", name);
                let (run, dumps) = (python("py::run:/srv/app.py"), python("py::dumps:/usr/lib/python3.13/json/__init__.py"));
                let findall = python("py::findall:/usr/lib/python3.13/re/__init__.py");
                for (callee, samples) in [(dumps, 5), (findall, 3)] {
                    let context = stack_of(profile, &[run, eval, callee, eval]);
                    (0..samples).for_each(|_| profile.charge(thread, context, LineId::UNKNOWN, &[1_001_001, 7]));
                }
            });
            let page = page_of(&file.path, &file.dir, &[]);
            let [hot, table] = at_each(&page, ["view=hot", "view=table"].iter().map(|&it| it.to_owned())).try_into().unwrap();
            let part = |document: &str, id: &str| {
                document.split(&format!("<table id=\"{id}\"")).nth(1).unwrap().split("</table>").next().unwrap().to_owned()
            };
            let names = |part: &str| cells(part).map(|(_, name)| name).collect::<Vec<_>>();
            assert_eq!(names(&part(&hot, "hot")), ["run (app.py)", "dumps (json)"]);
            let rows = part(&table, "table");
            assert_eq!(names(&rows), ["dumps (json)", "findall (re)", "run (app.py)"]);
            for module in ["json", "re", "app.py"] {
                assert!(rows.contains(&format!("<td class=\"faint module\">{module}</td>")), "{rows}");
            }
            // Where the page folds, the call may be another, which is marked.
            assert!(hot.contains("name unsure"), "{hot}");
        })
        .test("escape_takes_back_one_thing_at_a_time", &[BROWSER], || {
            let file = timed(12, 6);
            let page = page_of(&file.path, &file.dir, &[]);
            let mut steps = vec!["at('view=flame&search=p&zoom=0&time=2-5&hide=q&focus=main')"];
            steps.extend(["press('Escape')"; 6]);
            let documents = driven(&page, &steps.iter().map(|&it| it.to_owned()).collect::<Vec<_>>());
            let fields = |document: &str| -> Vec<String> {
                let address = attribute(document, "address");
                let fields = address.trim_start_matches('#').split("&amp;").map(|it| it.split('=').next().unwrap().to_owned());
                fields.filter(|field| field != "view").collect()
            };
            let left: Vec<usize> = documents.iter().skip(1).map(|document| fields(document).len()).collect();
            assert_eq!(left, [4, 3, 2, 1, 0, 0], "{:?}", documents.iter().map(|it| fields(it)).collect::<Vec<_>>());
            assert_eq!([1, 2, 3, 4].map(|at| fields(&documents[at]).contains(&"hide".to_owned())), [true, true, true, true]);
            let is_disabled = |document: &str| {
                let button = document.split("id=\"reset\"").nth(1).unwrap().split('>').next().unwrap();
                button.contains("disabled")
            };
            assert!(!is_disabled(&documents[1]) && is_disabled(&documents[6]));
        })
        .test("hostile_names_are_text", &[CC, BROWSER], || {
            let mut program = std::fs::read(build("escape.c", &["-O1"])).unwrap();
            let evil: &[u8; 30] = b"<script>window.evil=1</script>";
            let plain = b"placeholder_for_a_hostile_name";
            assert_eq!(plain.len(), evil.len());
            for at in 0..program.len() - plain.len() {
                if program[at..].starts_with(plain) {
                    program[at..at + evil.len()].copy_from_slice(evil);
                }
            }
            let dir = scratch();
            let path = dir.path().join("evil<img src=x onerror=alert(1)>");
            std::fs::write(&path, program).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            let recorded = RecordCommand::new(path, &[]).options(&["-F", "1999", "--user"]).run();
            let document = open(&page(&recorded, &[]), "view=table");
            assert!(rows(&document).contains_key("<script>window.evil=1</script>"), "{document}");
            assert!(!document.contains("<script>window") && !document.contains("<img"), "{document}");
        })
        .test("names_cannot_turn_the_text_around", &[BROWSER], || {
            let names = ["a\u{202e}b", "c\u{1b}[31md", "<b>bold</b>", "e\u{2066}f\u{0}g"];
            let file = written(2, |profile, second| {
                let thread = profile.threads[0];
                for name in names {
                    let context = stack(profile, &["main", name]);
                    profile.charge(thread, context, LineId::UNKNOWN, &[1_001_001 * (second + 1), 7]);
                }
            });
            let page = page_of(&file.path, &file.dir, &[]);
            let html = fs::read_to_string(&page).unwrap();
            let document = open(&page, "view=table");
            for text in [&html, &document] {
                assert!(!text.contains(['\u{202e}', '\u{1b}', '\u{2066}', '\u{0}']), "{text}");
            }
            assert!(document.contains("a\\u{202e}b") && document.contains("&lt;b&gt;bold"), "{document}");
            assert!(!document.contains("<b>"), "{document}");
        })
        .test("search_says_how_much_it_matched", &[BROWSER], || {
            let file = timed(12, 6);
            let page = page_of(&file.path, &file.dir, &[]);
            let whole: u64 = reported_of(&file.path, &[]).values().map(|row| row.0).sum();
            let patterns = ["q", "busy_", "/^busy_[12]$/", "module:timed", "thread:helper", "process:1", "alone", "(?"];
            let searches = patterns.map(|pattern| format!("type('search', {pattern:?})"));
            let documents = driven(&page, &searches);
            for (document, pattern) in documents.iter().zip(patterns) {
                let focus = ["--focus", pattern];
                if pattern == "(?" {
                    assert_eq!(matched(document), "no match");
                    continue;
                }
                let part: u64 = reported_of(&file.path, &focus).values().map(|row| row.0).sum();
                let share = format!("matched {:.2}%", 100.0 * part as f64 / whole as f64);
                assert!(matched(document).starts_with(&share), "{pattern}: {} is not {share}", matched(document));
            }
            let steps = [
                "at('view=flame&search=busy_1')",
                "press('n')",
                "press('n')",
                "press('p')",
                "type('search', '/(/')",
                "type('search', 'no such function')",
                "at('hide=/[z-a]/')",
                "at('hide=thread:helper')",
            ];
            let documents = driven(&page, &steps.map(str::to_owned));
            let places: Vec<String> = documents[..4].iter().map(|it| matched(it)).collect();
            let place = |text: &str| text.rsplit_once(", ").unwrap().1.to_owned();
            assert_eq!(place(&places[0]), "2 places");
            assert_eq!([&places[1], &places[2], &places[3]].map(|it| place(it)), ["1 of 2", "2 of 2", "1 of 2"]);
            assert!(matched(&documents[4]).contains("/(/ is no regular expression"), "{}", matched(&documents[4]));
            assert_eq!(matched(&documents[5]), "no match");
            assert!(documents[6].contains("/[z-a]/ is no regular expression"), "{}", documents[6]);
            assert!(documents[7].contains("thread:helper names no function"), "{}", documents[7]);
        })
        .test("threads_and_metrics_are_those_of_the_report", &[BROWSER], || {
            let file = timed(12, 6);
            let page = page_of(&file.path, &file.dir, &[]);
            let questions = [
                ("focus=thread%3Ahelper", &["--focus", "thread:helper"][..]),
                ("ignore=thread%3Ahel*", &["--ignore", "thread:hel*"]),
                ("focus=process%3A2&hide=q", &["--focus", "process:2", "--hide", "q"]),
                ("focus=unit%3Aweb<b>.service", &["--focus", "unit:web<b>.service"]),
                ("ignore=unit%3Adocker-*", &["--ignore", "unit:docker-*"]),
                ("focus=container%3Adocker%200123456789ab", &["--focus", "container:docker 0123456789ab"]),
                ("focus=container%3A0123456", &["--focus", "container:0123456"]),
                ("ignore=container%3A[no container]", &["--ignore", "container:[no container]"]),
                ("focus=user%3Awww-data", &["--focus", "user:www-data"]),
                ("focus=user%3A1000", &["--focus", "user:1000"]),
                ("ignore=user%3A/uid/", &["--ignore", "user:/uid/"]),
                ("focus=thread%3A1%20%3B%3B%20p", &["--focus", "thread:1", "--focus", "p"]),
                ("focus=thread%3A1%20%3B%3B%20thread%3A2", &["--focus", "thread:1", "--focus", "thread:2"]),
                ("only=busy_*", &["--only", "busy_*"]),
                ("metric=1", &["--metric", "tsc"]),
                ("metric=1&time=0-4", &["--metric", "tsc", "--since", "+0s", "--until", "+5s"]),
                ("metric=1&ignore=process%3A1", &["--metric", "tsc", "--ignore", "process:1"]),
            ];
            let documents = at_each(&page, questions.iter().map(|it| format!("view=table&{}", it.0)));
            let mut answers = Vec::new();
            for (document, (address, options)) in documents.iter().zip(questions) {
                assert_eq!(rows(document), reported_of(&file.path, options), "{address}");
                answers.push(rows(document));
            }
            // The two processes are of different units, containers and users, so each question leaves one of them.
            let of = |process: &str| reported_of(&file.path, &["--focus", &format!("process:{process}")]);
            for (answer, (address, _)) in answers.iter().zip(questions) {
                let is_of_group = ["=unit", "=container", "=user"].iter().any(|kind| address.contains(kind));
                assert!(!is_of_group || [of("1"), of("2")].contains(answer), "{address}");
            }
            let tracks = at_each(&page, ["thread", "process"].iter().map(|it| format!("view=time&tracks={it}")));
            for (document, kind) in tracks.iter().zip(["thread", "process"]) {
                let drawn = cells(document).filter(|(_, name)| name.ends_with(')'));
                let drawn: Vec<(u64, String)> = drawn.map(|(weights, name)| (weights[0], name)).collect();
                let names = ["timed (1)", "helper (2)"];
                for (weight, name) in &drawn {
                    let number = name.rsplit_once('(').unwrap().1.trim_end_matches(')');
                    let rows = reported_of(&file.path, &["--focus", &format!("{kind}:{number}")]);
                    assert_eq!(*weight, rows.values().map(|row| row.0).sum::<u64>(), "{name}");
                }
                assert_eq!(drawn.len(), names.len(), "{drawn:?}");
            }
        })
        .test("every_step_is_in_the_history", &[BROWSER], || {
            let file = timed(12, 6);
            let page = page_of(&file.path, &file.dir, &[]);
            let steps = [
                "click('flame', 0.3, 30)",
                "press('2')",
                "type('search', 'busy_1')",
                "press('m')",
                "history.back()",
                "history.back()",
                "history.back()",
                "history.forward()",
                "history.back()",
                "history.back()",
            ];
            let documents = driven(&page, &steps.map(str::to_owned));
            let addresses: Vec<String> = documents.iter().map(|it| attribute(it, "address")).collect();
            let zoomed = &addresses[0];
            assert!(zoomed.starts_with("#view=flame&amp;zoom="), "{addresses:?}");
            assert!(addresses[1].starts_with("#view=table") && addresses[1].contains("zoom="), "{addresses:?}");
            assert!(addresses[2].contains("search=busy_1") && addresses[3].contains("metric=1"), "{addresses:?}");
            let again = [4, 5, 6, 7, 8].map(|at| &addresses[at]);
            assert_eq!(again, [2, 1, 0, 1, 0].map(|at| &addresses[at]), "{addresses:?}");
            assert!(!addresses[9].contains("zoom="), "{addresses:?}");
            assert!(matched(&documents[2]).starts_with("matched"), "{}", matched(&documents[2]));
            assert_eq!([&documents[5], &documents[6]].map(|it| matched(it)), ["", ""]);
            let opened = open(&page, &zoomed[1..].replace("&amp;", "&"));
            let name_and_weight = |document: &str| {
                let area = document.split_once("id=\"zoomed\"").unwrap().1.split_once("</p>").unwrap().0;
                area.contains("total ").then(|| area.to_owned())
            };
            let shown = name_and_weight(&opened);
            assert!(shown.is_some(), "{opened}");
            assert_eq!(shown, name_and_weight(&documents[0]));
            assert_eq!(name_and_weight(&documents[9]), None);
        })
        .test("keys_do_what_the_help_says", &[BROWSER], || {
            let file = timed(12, 6);
            let page = page_of(&file.path, &file.dir, &[]);
            let flame = "document.getElementById('flame').dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowDown', bubbles: true }))";
            let steps = [
                "press('?')",
                "document.getElementById('close').click()",
                "press('4')",
                "press('1')",
                &format!("{flame}; {flame}; press('h')"),
                "press('Escape')",
                &format!("{flame}; {flame}; press('f')"),
                "press('Escape'); press('i'); press('o')",
                "press('m')",
                "press('o')",
            ];
            let documents = driven(&page, &steps.map(str::to_owned));
            let is_open = |document: &str| document.split("<dialog").nth(1).unwrap().split('>').next().unwrap().contains("open");
            assert!(is_open(&documents[0]) && !is_open(&documents[1]));
            let addresses: Vec<String> = documents.iter().map(|it| attribute(it, "address")).collect();
            assert!(addresses[2].starts_with("#view=graph") && addresses[3].starts_with("#view=flame"), "{addresses:?}");
            // The root and its heaviest callee.
            assert!(addresses[4].contains("hide=") && addresses[6].contains("focus="), "{addresses:?}");
            assert!(!addresses[5].contains("hide="), "{addresses:?}");
            assert!(addresses[7].contains("flip=1") && addresses[7].contains("order=name"), "{addresses:?}");
            assert!(addresses[8].contains("metric=1") && addresses[9].contains("order=time"), "{addresses:?}");
        })
        .test("a_part_of_the_width_is_shown", &[BROWSER], || {
            let file = timed(12, 6);
            let page = page_of(&file.path, &file.dir, &[]);
            let steps = [
                "for (let i = 0; i < 4; i++) wheel('flame', 0.5, -100 * Math.LN2); await later()",
                "press('.'); await later()",
                "press('-'); press('-'); press('-'); press('-'); await later()",
                "history.back()",
                "press('z')",
                "at('part=0.9-0.3')",
                "at('part=0.5-1')",
            ];
            let documents = driven(&page, &steps.map(str::to_owned));
            let address = |at: usize| attribute(&documents[at], "address");
            let part = |at: usize| {
                let part = address(at).split("part=").nth(1).map(|it| it.split('&').next().unwrap().to_owned());
                part.map(|it| it.split('-').map(|it| it.parse().unwrap()).collect::<Vec<f64>>())
            };
            let is = |at: usize, wanted: [f64; 2]| {
                let part = part(at).unwrap();
                // A pointer is at a whole pixel.
                assert!((part[0] - wanted[0]).abs() < 2e-3 && (part[1] - wanted[1]).abs() < 2e-3, "{at}: {part:?}");
            };
            // A quarter of the width, a quarter of that further.
            is(0, [0.375, 0.625]);
            is(1, [0.4375, 0.6875]);
            assert_eq!(part(2), None);
            is(3, [0.4375, 0.6875]);
            assert_eq!(part(4), None);
            let says = |at: usize| {
                let text = documents[at].split("id=\"zoomed\"").nth(1).unwrap();
                text.split("</p>").next().unwrap().to_owned()
            };
            assert!(says(0).contains("25.00% of the width") && says(6).contains("50.00% of the width"), "{}", says(6));
            assert!(!says(5).contains("of the width"), "{}", says(5));
        })
        .test("functions_stand_beside_the_flame_graph", &[BROWSER], || {
            let file = timed(12, 6);
            let page = page_of(&file.path, &file.dir, &[]);
            let steps =
                ["press('b')", "document.querySelectorAll('#beside tbody tr')[1].click()", "at('beside=1&sort=inherited')"];
            let documents = driven(&page, &steps.map(str::to_owned));
            let all = reported_of(&file.path, &[]);
            let whole: u64 = all.values().map(|row| row.0).sum();
            let share = |weight: u64| format!("{:.2}", 100.0 * weight as f64 / whole as f64);
            let beside = |document: &str| -> Vec<[String; 3]> {
                let table = document.split("id=\"beside\"").nth(1).unwrap().split("</table>").next().unwrap();
                let rows = table.split("<tr tabindex=\"0\"").skip(1).map(|row| {
                    let cells = row.split("</td>").map(|cell| cell.rsplit('>').next().unwrap().to_owned());
                    let cells: Vec<String> = cells.collect();
                    [cells[2].clone(), cells[0].clone(), cells[1].clone()]
                });
                rows.collect()
            };
            let mut shown = beside(&documents[0]);
            let second = shown[1][0].clone();
            shown.sort();
            let expected = all.iter().map(|(name, &(own, total))| [name.clone(), share(own), share(total)]);
            assert_eq!(shown, expected.collect::<Vec<_>>());
            assert!(attribute(&documents[1], "address").contains(&format!("search={second}")));
            let matched = matched(&documents[1]);
            assert!(matched.starts_with(&format!("matched {}%", share(all[&second].1))), "{second}: {matched}");
            assert_eq!(beside(&documents[2])[0][0], "main");
        })
        .test("calls_in_short_times_are_seen_in_the_order_of_time", &[BROWSER], || {
            let file = written(500, |profile, second| {
                let (thread, turn) = (profile.threads[0], format!("turn_{}", second / 50));
                for (name, samples) in [(turn.as_str(), 5), ("short", 1), ("shorter", 1)] {
                    let context = stack(profile, &["main", name]);
                    (0..samples).for_each(|_| profile.charge(thread, context, LineId::UNKNOWN, &[1_001_001, 7]));
                }
            });
            let page = page_of(&file.path, &file.dir, &[]);
            let places = "Array.from({ length: 300 }, (_, at) => hover('flame', (at + 0.5) / 300, 30)).join('|')";
            let steps = ["", "&part=0.5-0.51"].map(|part| format!("at('order=time{part}'); document.body.dataset.tips = {places}"));
            let [all, part] = driven(&page, &steps).try_into().unwrap();
            let names = |document: &str| -> Vec<String> {
                let tips = attribute(document, "tips");
                let tips = tips.split('|').filter(|name| !name.is_empty());
                tips.map(str::to_owned).collect()
            };
            // A column of time has less than two pixels, a seventh of it less than one can see.
            let names_of_all = names(&all);
            assert!(!names_of_all.iter().any(|name| name.contains("too narrow")), "{names_of_all:?}");
            let count = |name: &str| names_of_all.iter().filter(|it| *it == name).count();
            assert!((25..=65).contains(&count("short")) && (25..=65).contains(&count("shorter")), "{names_of_all:?}");
            let mut turns = names_of_all.clone();
            turns.retain(|name| name.starts_with("turn_"));
            turns.dedup();
            assert_eq!(turns, (0..10).map(|at| format!("turn_{at}")).collect::<Vec<_>>());
            // Zoomed in, every single second: five of them. What runs last in one and first in the next is one box.
            let mut seconds = names(&part);
            seconds.dedup();
            assert_eq!(seconds.iter().filter(|name| *name == "short").count(), 5, "{seconds:?}");
        })
        .test("a_difference_is_that_of_the_diff", &[BROWSER], || {
            let (before, after) = (timed(12, 6), timed(9, 4));
            let file = after.dir.path().join("difference.html");
            let exported = |options: &[&str]| {
                let mut export = ccsd(["export", "html", "--force", "--diff"]);
                EndedProgram::of(export.arg(&before.path).arg(&after.path).args(options).arg("-o").arg(&file))
            };
            for (address, options) in [
                ("", &[][..]),
                ("&hide=q", &["--hide", "q"]),
                ("&focus=p", &["--focus", "p"]),
                ("&focus=thread%3Ahelper", &["--focus", "thread:helper"]),
                ("&ignore=process%3A2&hide=q", &["--ignore", "process:2", "--hide", "q"]),
            ] {
                let ended = exported(&[]);
                assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
                for absolute in [false, true] {
                    let flag = if absolute { "&absolute=1" } else { "" };
                    let document = open(&file, &format!("view=table{address}{flag}"));
                    let report = EndedProgram::of(ccsd(["diff", "--json"]).args(options).arg(&before.path).arg(&after.path));
                    let report: Value = serde_json::from_str(&report.stdout).unwrap();
                    assert_eq!(changes(&document), differences(&report, absolute), "{address} {absolute}");
                }
            }
            let document = open(&file, "view=time");
            let table = document.split("id=\"threads\"").nth(1).unwrap().split("</table>").next().unwrap();
            let shown: Vec<Vec<&str>> = table
                .split("<tr tabindex=\"0\"")
                .skip(1)
                .map(|row| row.split("</td>").map(|cell| cell.rsplit('>').next().unwrap()).take(4).collect())
                .collect();
            let share = |path: &Path, thread: &str| {
                let part = |options: &[&str]| reported_of(path, options).values().map(|row| row.0).sum::<u64>() as f64;
                format!("{:.2}", 100.0 * part(&["--focus", &format!("thread:{thread}")]) / part(&[]))
            };
            assert_eq!(shown.len(), 2, "{table}");
            assert!(document.contains("<h1 title=\"timed, before and after\">"), "{document}");
            for row in &shown {
                assert_eq!([row[1], row[2]], [&before.path, &after.path].map(|path| share(path, row[3])), "{row:?}");
            }
            let document = open(&file, "view=graph");
            assert!(document.contains("class=\"node") && document.contains("points"), "{document}");
            let document = open(&file, "view=butterfly");
            assert!(document.contains("before ") && document.contains("class=\"number change"), "{document}");
            let refused = |args: &[&str]| EndedProgram::of(ccsd(args).arg("--diff").arg(&before.path).arg(&after.path));
            refused(&["export", "svg"]).assert_refused(2, &["ccsd diff --svg"]);
            refused(&["export", "html", "--min", "1"]).assert_refused(2, &["--min"]);
            refused(&["export", "html", "--metric", "x"]).assert_refused(2, &["\"x\""]);
        })
        .test("its_source_is_that_of_annotate", &[CC, BROWSER], || {
            let program = build("recursion.c", &["-O1", "-g", "-fno-optimize-sibling-calls"]);
            let recorded = RecordCommand::new(program, &["three", "30", "20"]).options(&["-F", "1999", "--user"]).run();
            let page = page_of(&recorded.file, &recorded.dir, &[]);
            let heaviest = reported(&recorded, &[]).into_iter().max_by_key(|(_, row)| row.0).unwrap().0;
            let number = function(&page, &heaviest);
            let document = open(&page, &format!("view=source&function={number}"));
            let annotated = EndedProgram::of(ccsd(["annotate", "--json"]).arg(format!("/^{heaviest}$/")).arg(&recorded.file));
            let annotated: Value = serde_json::from_str(&annotated.stdout).unwrap();
            let lines = annotated["functions"][0]["files"].as_array().unwrap().iter();
            let lines = lines.flat_map(|file| file["lines"].as_array().unwrap());
            let field = |line: &Value, name: &str| line[name].as_u64().unwrap();
            let mut expected: Vec<(u64, u64, u64, String)> = lines
                .filter(|line| field(line, "inherited_weight") > 0)
                .map(|line| {
                    let text = line["text"].as_str().unwrap().to_owned();
                    (field(line, "line"), field(line, "inherited_weight"), field(line, "weight"), text)
                })
                .collect();
            expected.sort();
            assert!(expected.len() > 1, "{annotated}");
            let mut shown = source_lines(&document);
            shown.retain(|line| line.1 > 0);
            shown.sort();
            assert_eq!(shown, expected);
            let without = page_of(&recorded.file, &recorded.dir, &["--no-source"]);
            let html = fs::read_to_string(&without).unwrap();
            assert!(html.contains("\"sources\":[]"), "{html}");
            let secret = scratch();
            let path = secret.path().join("id_rsa");
            fs::write(&path, "secret one\nsecret two\n").unwrap();
            let file = written(2, |profile, _| {
                let line = profile.add_line(path.to_str().unwrap(), 1);
                let (thread, context) = (profile.threads[0], stack(profile, &["main"]));
                profile.charge(thread, context, line, &[1_001_001, 7]);
            });
            let html = fs::read_to_string(page_of(&file.path, &file.dir, &[])).unwrap();
            assert!(!html.contains("secret one"), "{html}");
        })
        .test("source_in_a_difference_is_that_of_both", &[CC, BROWSER], || {
            let program = build("recursion.c", &["-O1", "-g", "-fno-optimize-sibling-calls"]);
            let record = |depth: &str| {
                let recorded = RecordCommand::new(&program, &["three", depth, "20"]).options(&["-F", "1999", "--user"]).run();
                fs::set_permissions(recorded.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
                recorded
            };
            let (before, after) = (record("20"), record("30"));
            let page = after.dir.path().join("difference.html");
            let export = |options: &[&str]| {
                let mut export = ccsd(["export", "html", "--force", "--diff"]);
                export.env_remove("SUDO_UID").env_remove("SUDO_GID").arg(&before.file).arg(&after.file).args(options);
                let ended = EndedProgram::of(export.arg("-o").arg(&page));
                assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
                fs::read_to_string(&page).unwrap()
            };
            assert!(export(&["--no-source"]).contains("\"sources\":[]"));
            export(&[]);
            let heaviest = reported(&after, &[]).into_iter().max_by_key(|(_, row)| row.0).unwrap().0;
            let document = open(&page, &format!("view=source&function={}", function(&page, &heaviest)));
            let part = document.split("id=\"source\"").nth(1).unwrap();
            let annotated = |file: &Path| -> BTreeMap<u64, [u64; 2]> {
                let ended = EndedProgram::of(ccsd(["annotate", "--json"]).arg(format!("/^{heaviest}$/")).arg(file));
                let json: Value = serde_json::from_str(&ended.stdout).unwrap();
                let lines = json["functions"][0]["files"].as_array().unwrap().iter();
                let lines = lines.flat_map(|file| file["lines"].as_array().unwrap());
                let field = |line: &Value, name: &str| line[name].as_u64().unwrap();
                let lines = lines.map(|line| (field(line, "line"), [field(line, "inherited_weight"), field(line, "weight")]));
                lines.filter(|(_, weights)| weights[0] > 0).collect()
            };
            // One program: a line has the costs of both.
            let shown = |names: [&str; 2]| -> BTreeMap<u64, [u64; 2]> {
                let rows = part.split("<tr").skip(1).filter(|row| row.contains("data-line=\""));
                let number = |row: &str, name: &str| -> u64 { attribute(row, name).parse().unwrap() };
                let rows = rows.map(|row| (number(row, "line"), names.map(|name| number(row, name))));
                rows.filter(|(_, weights)| weights[0] > 0).collect()
            };
            assert!(annotated(&after.file).len() > 1, "{part}");
            assert_eq!(shown(["total", "self"]), annotated(&after.file));
            assert_eq!(shown(["total-before", "self-before"]), annotated(&before.file));
        })
        .test("a_link_does_not_make_source_of_a_file", &[], || {
            let dir = scratch();
            let [secret, link, linked, source] =
                ["id_rsa", "link.c", "linked.c", "source.c"].map(|name| dir.path().join(name));
            fs::write(&secret, "secret one\n").unwrap();
            fs::write(&source, "text of source.c\n").unwrap();
            std::os::unix::fs::symlink(&secret, &link).unwrap();
            std::os::unix::fs::symlink(&source, &linked).unwrap();
            let file = written(2, |profile, _| {
                for path in [&link, &linked] {
                    let name = path.file_name().unwrap().to_str().unwrap();
                    let line = profile.add_line(path.to_str().unwrap(), 1);
                    let (thread, context) = (profile.threads[0], stack(profile, &["main", name]));
                    profile.charge(thread, context, line, &[1_001_001, 7]);
                }
            });
            let html = fs::read_to_string(page_of(&file.path, &file.dir, &[])).unwrap();
            assert!(html.contains("text of source.c") && !html.contains("secret one"), "{html}");
            assert!(html.contains("link.c: the name of the file that this leads to is not that of source"), "{html}");
        })
        .test("root_shows_what_everybody_may_read", &[Need::Root], || {
            let dir = scratch();
            fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
            let source = |name: &str, mode: u32| {
                let path = dir.path().join(name);
                fs::write(&path, format!("text of {name}\n")).unwrap();
                fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
                path
            };
            let paths = [source("public.c", 0o644), source("private.c", 0o600)];
            let file = written(2, |profile, _| {
                for path in &paths {
                    let name = path.file_name().unwrap().to_str().unwrap();
                    let line = profile.add_line(path.to_str().unwrap(), 1);
                    let (thread, context) = (profile.threads[0], stack(profile, &["main", name]));
                    profile.charge(thread, context, line, &[1_001_001, 7]);
                }
            });
            let shown_to = |ids: &[(&str, &str)]| {
                let mut export = ccsd(["export", "html", "-o", "-"]);
                export.env_remove("SUDO_UID").env_remove("SUDO_GID").envs(ids.iter().copied());
                let ended = EndedProgram::of(export.arg(&file.path));
                assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
                ["text of public.c", "text of private.c"].map(|text| ended.stdout.contains(text))
            };
            let (nobody, root) = ([("SUDO_UID", "65534"), ("SUDO_GID", "65534")], [("SUDO_UID", "0"), ("SUDO_GID", "0")]);
            let mode_of_folder =
                |mode: u32| fs::set_permissions(file.dir.path(), PermissionsExt::from_mode(mode)).unwrap();
            mode_of_folder(0o755);
            // No program here names them.
            let public = [true, false];
            assert_eq!([shown_to(&[]), shown_to(&root), shown_to(&nobody)], [public; 3]);
            // All users could have written the profile, or one of them.
            mode_of_folder(0o777);
            assert_eq!([shown_to(&[]), shown_to(&nobody)], [public; 2]);
            mode_of_folder(0o755);
            std::os::unix::fs::chown(&file.path, Some(65_534), Some(65_534)).unwrap();
            assert_eq!([shown_to(&[]), shown_to(&root)], [public; 2]);
        })
        .test("a_size_is_kept", &[CC], || {
            let recorded = recursive();
            let small = page(recorded, &["--max-size", "176K"]);
            assert!(small.metadata().unwrap().len() <= 176 << 10);
            let refused = EndedProgram::of(ccsd(["export", "html", "--max-size", "1000"]).arg(&recorded.file));
            refused.assert_refused(2, &["1000"]);
            let none = recorded.dir.path().join("none.html");
            let refused =
                EndedProgram::of(ccsd(["export", "html", "--max-size", "1K", "-o"]).arg(&none).arg(&recorded.file));
            refused.assert_refused(2, &["1024"]);
            assert!(!none.exists());
            EndedProgram::of(ccsd(["export", "html", "--max-size", "x"]).arg(&recorded.file))
                .assert_refused(2, &["max-size"]);
        })
        .run()
}

fn recursive() -> &'static Recorded {
    static RECORDED: OnceLock<Recorded> = OnceLock::new();
    RECORDED.get_or_init(|| {
        let program = build("recursion.c", &["-O1", "-fno-optimize-sibling-calls"]);
        RecordCommand::new(program, &["three", "30", "20"]).options(&["-F", "1999", "--user"]).run()
    })
}

struct Timed {
    path: PathBuf,
    dir: TempDir,
}

struct Filled {
    profile: Profile,
    threads: [ThreadId; 2],
}

impl std::ops::Deref for Filled {
    type Target = Profile;

    fn deref(&self) -> &Profile {
        &self.profile
    }
}

impl std::ops::DerefMut for Filled {
    fn deref_mut(&mut self) -> &mut Profile {
        &mut self.profile
    }
}

/// The context of a stack of functions of one program.
fn stack(profile: &mut Profile, names: &[&str]) -> ContextId {
    let image = profile.add_image(Image { name: "/usr/bin/timed".into(), build_id: vec![7; 20] });
    names.iter().fold(ContextId::ROOT, |at, name| {
        let id = profile.add_cost_centre(CostCentre::named(image, *name));
        profile.contexts_mut().push(at, id)
    })
}

/// The same of several programs: file names and functions.
fn stack_of(profile: &mut Profile, functions: &[(&str, &str)]) -> ContextId {
    functions.iter().fold(ContextId::ROOT, |at, (image, name)| {
        let image = profile.add_image(Image { name: (*image).to_owned(), build_id: Vec::new() });
        let id = profile.add_cost_centre(CostCentre::named(image, *name));
        profile.contexts_mut().push(at, id)
    })
}

/// A file of so many intervals of a second, each as `fill` makes it.
fn written(intervals: u64, mut fill: impl FnMut(&mut Filled, u64)) -> Timed {
    let metrics = vec![
        Metric { name: "cpu-clock".into(), unit: Unit::Nanoseconds },
        Metric { name: "tsc".into(), unit: Unit::Cycles },
    ];
    let session = SessionInfo { metrics, rate_hz: 999, target: "timed".into(), ..SessionInfo::default() };
    let mut profile = Profile::new(session, ProfileLimits::default());
    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    let groups = [
        ("/system.slice/web<b>.service".to_owned(), 33, "www-data"),
        (format!("/system.slice/docker-{ID}.scope"), 1000, ""),
    ];
    let threads = [(1, "timed"), (2, "helper")].map(|(number, name)| {
        let (cgroup, uid, user) = groups[number as usize - 1].clone();
        let membership = Membership { cgroup, uid: Some(uid), user: user.into(), container_name: String::new() };
        let process = Process { membership: Some(membership.into()), ..Process::new(number, 1, name) };
        let process = profile.add_process(process);
        profile.add_thread(Thread { process, tid: number, name: name.into() })
    });
    let mut filled = Filled { profile, threads };
    let dir = scratch();
    let path = dir.path().join("timed.ccsd");
    let mut encoder = Encoder::new(fs::File::create(&path).unwrap(), filled.session()).unwrap();
    for second in 0..intervals {
        fill(&mut filled, second);
        filled.accounting_mut().duration_ns = (second + 1) * 1_000_000_000;
        encoder.write(&filled.take_update()).unwrap();
    }
    encoder.finish_with(filled.accounting()).unwrap();
    Timed { path, dir }
}

/// A file of intervals of a second, each with another of the functions `busy_0` to `busy_N`, and `p` and `q`, which
/// call each other. The second thread runs in every third.
fn timed(intervals: u64, functions: u64) -> Timed {
    written(intervals, |profile, second| {
        let busy = format!("busy_{}", second % functions);
        let thread = profile.threads[usize::from(second % 3 == 2)];
        for (names, samples) in [
            (&["main", &busy][..], 10 + second),
            (&["main", "p", "q"], 3),
            (&["main", "p", "q", "p", &busy], second % 3),
            (&["main", "q", "p", "q"], second % 5),
            (&["alone"], u64::from(second % 4 == 1)),
        ] {
            let context = stack(profile, names);
            for sample in 0..samples {
                profile.charge(thread, context, LineId::UNKNOWN, &[1_001_001, 1_000 + 7 * sample]);
                profile.accounting_mut().received += 1;
            }
        }
    })
}

fn matched(document: &str) -> String {
    let status = document.split("id=\"matched\"").nth(1).unwrap().split_once('>').unwrap().1;
    status.split('<').next().unwrap().to_owned()
}

/// Changes of self and total of the rows of a difference, in thousandths of a point, by name.
fn changes(document: &str) -> BTreeMap<String, [i64; 2]> {
    let rows = document.split("<tr tabindex=\"0\"").skip(1).map(|row| {
        let row = row.split("</tr>").next().unwrap();
        let numbers =
            row.split("data-change=\"").skip(1).map(|it| it.split('"').next().unwrap().parse::<f64>().unwrap());
        let numbers: Vec<i64> = numbers.map(|it| (it * 1e5).round() as i64).collect();
        let name = row.rsplit_once("</td>").unwrap().0.rsplit_once('>').unwrap().1;
        (name.to_owned(), [numbers[0], numbers[1]])
    });
    rows.collect()
}

/// The same by `ccsd diff --json`; by weight of the larger total if `absolute`.
fn differences(report: &Value, absolute: bool) -> BTreeMap<String, [i64; 2]> {
    let total = |side: &str| report[side]["total"]["weight"].as_f64().unwrap();
    let most = total("before").max(total("after"));
    let rows = report["rows"].as_array().unwrap().iter().map(|row| {
        let change = |which: &str| {
            let weight = |side: &str| row[side][format!("{which}_weight")].as_f64().unwrap_or(0.0);
            let share = row[format!("{which}_change")].as_f64().unwrap();
            let it = if absolute { (weight("after") - weight("before")) / most } else { share };
            (it * 1e5).round() as i64
        };
        (row["name"].as_str().unwrap().to_owned(), [change("self"), change("inherited")])
    });
    rows.collect()
}

fn source_lines(document: &str) -> Vec<(u64, u64, u64, String)> {
    let part = document.split("id=\"source\"").nth(1).unwrap();
    let lines = part.split("<tr").skip(1).filter(|row| row.contains("data-line=\""));
    let number = |row: &str, name: &str| -> u64 { attribute(row, name).parse().unwrap() };
    lines
        .map(|row| {
            let text = row.split("<code>").nth(1).unwrap().split("</code>").next().unwrap();
            let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&nbsp;", "\u{a0}").replace("&amp;", "&");
            (number(row, "line"), number(row, "total"), number(row, "self"), text)
        })
        .collect()
}

fn attribute(document: &str, name: &str) -> String {
    let value = document.split(&format!("data-{name}=\"")).nth(1).unwrap();
    value.split('"').next().unwrap().to_owned()
}

fn page(recorded: &Recorded, options: &[&str]) -> PathBuf {
    page_of(&recorded.file, &recorded.dir, options)
}

fn page_of(profile: &Path, dir: &TempDir, options: &[&str]) -> PathBuf {
    let file = dir.path().join(format!("{}.html", options.concat()));
    let mut export = ccsd(["export", "html"]);
    // Root shows source with the rights of the user who called sudo, and only if nobody else can exchange the profile.
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    export.env_remove("SUDO_UID").env_remove("SUDO_GID");
    let ended = EndedProgram::of(export.arg(profile).args(options).arg("-o").arg(&file));
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    file
}

/// The document after each script, which stands in for hands: `at(address)`, `point(event, part of the timeline's
/// width)`, `key(key, with shift)` on the timeline, `press(key)`, `type(field, text)`, `click(element, part of its
/// width, pixels from its top)`, `wheel(element, part of its width, turn)` with Ctrl, and `hover`, which gives the
/// tip's first line; `later()` waits for a gesture to end.
fn driven(page: &Path, scripts: &[String]) -> Vec<String> {
    let html = fs::read_to_string(page).unwrap();
    let (before, after) = html.rsplit_once("</body>").unwrap();
    let names = "const strip = document.getElementById('strip'), answers = [];
        const at = address => { history.replaceState(null, '', '#' + address); window.dispatchEvent(new Event('hashchange')); };
        const point = (kind, part) => { const area = strip.getBoundingClientRect(); strip.dispatchEvent(new PointerEvent(kind,
          { clientX: area.left + part * area.width, clientY: area.top + 9, pointerId: 1, bubbles: true })); };
        const key = (key, shiftKey) => strip.dispatchEvent(new KeyboardEvent('keydown', { key, shiftKey, bubbles: true }));
        const press = (key, shiftKey) => document.body.dispatchEvent(new KeyboardEvent('keydown', { key, shiftKey, bubbles: true }));
        const type = (id, text) => { const field = document.getElementById(id); field.value = text;
          field.dispatchEvent(new Event('input', { bubbles: true })); };
        const click = (id, part, down) => { const it = document.getElementById(id), area = it.getBoundingClientRect();
          it.dispatchEvent(new MouseEvent('click', { clientX: area.left + part * area.width, clientY: area.top + down, bubbles: true })); };
        const wheel = (id, part, deltaY) => { const it = document.getElementById(id), area = it.getBoundingClientRect();
          it.dispatchEvent(new WheelEvent('wheel', { clientX: area.left + part * area.width, deltaY, ctrlKey: true, bubbles: true, cancelable: true })); };
        const hover = (id, part, down) => { const it = document.getElementById(id), area = it.getBoundingClientRect();
          it.dispatchEvent(new MouseEvent('mousemove', { clientX: area.left + part * area.width, clientY: area.top + down }));
          const tip = document.getElementById('tip'); return tip.hidden ? '' : tip.textContent.split('\\n')[0]; };
        const later = () => new Promise(done => setTimeout(done, 300));
        const settled = () => new Promise(done => setTimeout(done, 100));
        const answer = () => { const copy = document.documentElement.cloneNode(true);
          copy.querySelectorAll('script').forEach(it => it.remove()); copy.dataset.address = location.hash;
          answers.push(copy.outerHTML); };";
    let each: String = scripts.iter().map(|script| format!("{script}; await settled(); answer();\n")).collect();
    let last = "const given = document.createElement('pre'); given.id = 'given'; given.textContent = JSON.stringify(answers); \
                document.body.append(given);";
    // Several tests drive one page concurrently.
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let file = page.with_file_name(format!("driven-{}.html", NUMBER.fetch_add(1, Ordering::Relaxed)));
    fs::write(&file, format!("{before}<script>(async () => {{ {names}{each}{last} }})();</script></body>{after}"))
        .unwrap();
    let document = open(&file, "");
    let given = document.split("<pre id=\"given\">").nth(1).unwrap().split("</pre>").next().unwrap();
    let given = given.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").replace("&nbsp;", "\u{a0}");
    let answers: Vec<String> = serde_json::from_str(&given).unwrap();
    assert_eq!(answers.len(), scripts.len());
    answers
}

/// What `look.mjs` says of a page: of each view at each size, light and dark; or of one view.
fn looked_at(page: &Path, view: Option<&str>) -> Vec<Value> {
    let dir = scratch();
    let mut look = Command::new("node");
    look.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/look.mjs")).arg(page).arg(axe().unwrap());
    let ended = EndedProgram::of(look.arg(dir.path()).args(view));
    assert!(ended.status.success(), "{ended:?}");
    serde_json::from_str(&ended.stdout).unwrap()
}

fn at_each(page: &Path, addresses: impl Iterator<Item = String>) -> Vec<String> {
    let scripts: Vec<String> = addresses.map(|address| format!("at('{address}')")).collect();
    driven(page, &scripts)
}

/// The document that a browser renders for the page at an address, without scripts and data.
fn open(page: &Path, address: &str) -> String {
    let ended = browse(page, address, &["--dump-dom"]);
    let document = ended.stdout;
    assert!(document.contains("data-ready=\"1\""), "{address}: {document} {}", ended.stderr);
    let (before, rest) = document.split_once("<script type=\"application/json\"").unwrap();
    let (_, after) = rest.rsplit_once("</script>").unwrap();
    assert!(document.contains("default-src 'none'"), "nothing may be fetched");
    format!("{before}{after}")
}

fn browse(page: &Path, address: &str, options: &[&str]) -> EndedProgram {
    let dir = scratch();
    let mut browser = Command::new("chromium");
    browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]).args(options);
    browser.arg("--virtual-time-budget=10000").arg(format!("--user-data-dir={}", dir.path().display()));
    EndedProgram::of(browser.arg(format!("file://{}#{address}", page.display())))
}

fn cells(document: &str) -> impl Iterator<Item = (Vec<u64>, String)> {
    document.split("<tr tabindex=\"0\"").skip(1).map(|row| {
        let row = row.split("</tr>").next().unwrap();
        let weights = row.split("data-weight=\"").skip(1);
        let weights = weights.map(|it| it.split('"').next().unwrap().parse().unwrap_or(0)).collect();
        // Of a track it stands before what is drawn.
        let named = row.split('>').next().unwrap().split("data-name=\"").nth(1).map(|it| it.split('"').next().unwrap());
        let name = named.unwrap_or_else(|| row.rsplit_once("</td>").unwrap().0.rsplit_once('>').unwrap().1);
        let name = name.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
        (weights, name)
    })
}

fn rows(document: &str) -> Weights {
    let table = document.split("<table id=\"table\"").nth(1).unwrap().split("</table>").next().unwrap();
    unique(cells(table).map(|(weights, name)| (name, (weights[0], weights[1]))))
}

fn reported(recorded: &Recorded, options: &[&str]) -> Weights {
    reported_of(&recorded.file, options)
}

fn reported_of(file: &Path, options: &[&str]) -> Weights {
    let ended = EndedProgram::of(ccsd(["report", "--json"]).args(options).arg(file));
    assert!(ended.status.success(), "{ended:?}");
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let rows = document["flat"]["rows"].as_array().unwrap();
    let number = |row: &Value, field: &str| row[field].as_u64().unwrap();
    unique(rows.iter().map(|row| {
        let name = row["name"].as_str().unwrap();
        let label = row["apart"].as_str().map_or_else(|| name.to_owned(), |apart| format!("{name} ({apart})"));
        (label, (number(row, "self_weight"), number(row, "inherited_weight")))
    }))
}

/// Numbers functions that share a name, such as the `_start` of the program and of the dynamic linker.
fn unique(rows: impl Iterator<Item = (String, (u64, u64))>) -> Weights {
    let mut rows: Vec<_> = rows.collect();
    rows.sort();
    let mut weights = Weights::new();
    for (name, row) in rows {
        let mut key = name.clone();
        let mut number = 1;
        while weights.contains_key(&key) {
            number += 1;
            key = format!("{name} #{number}");
        }
        weights.insert(key, row);
    }
    weights
}

fn function(page: &Path, name: &str) -> usize {
    let html = std::fs::read_to_string(page).unwrap();
    let data = html.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
    let data: Value = serde_json::from_str(data).unwrap();
    data["functions"].as_array().unwrap().iter().position(|it| it[0] == name).unwrap()
}
