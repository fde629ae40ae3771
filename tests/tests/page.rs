//! `ccsd export html` in a browser: its numbers are those of `ccsd report` under the same question, and hostile names are
//! inert.
// A test fails by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::OnceLock;

use ccsd_tests::ccsd::{Ended, Record, ccsd};
use ccsd_tests::fixture::{build, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::suite::{CC, CXX, Need, Suite};
use serde_json::Value;

const BROWSER: Need = Need::Program("chromium", "chromium");

/// Self and inherited weight by name.
type Weights = BTreeMap<String, (u64, u64)>;

fn main() -> ExitCode {
    Suite::new()
        .test("its_functions_are_those_of_the_report", &[CC, BROWSER], || {
            let recorded = recursive();
            let page = page(recorded, &[]);
            for (address, options) in [
                ("", &[][..]),
                ("hide=q", &["--hide", "q"]),
                ("hide=q%20%3B%3B%20module%3Alibc.so.6", &["--hide", "q", "--hide", "module:libc.so.6"]),
                ("focus=%2F%5E(p%7Cr)%24%2F", &["--focus", "/^(p|r)$/"]),
                ("ignore=calib*", &["--ignore", "calib*"]),
            ] {
                let document = open(&page, &format!("view=table&{address}"));
                assert_eq!(rows(&document), reported(recorded, options), "{address}");
            }
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
            let (callers, callees) = document.split_once("class=\"middle\"").unwrap();
            let found =
                |part: &str| -> Vec<(String, u64)> { cells(part).map(|(weights, name)| (name, weights[1])).collect() };
            let sorted = |mut list: Vec<(String, u64)>| {
                list.sort();
                list
            };
            let callers = callers.rsplit_once("called by").unwrap().1;
            assert_eq!(sorted(found(callers)), sorted(arcs(&node.callers)));
            assert_eq!(sorted(found(callees)), sorted(arcs(&node.callees)));
        })
        .test("every_view_opens", &[CC, BROWSER], || {
            let page = page(recursive(), &[]);
            for (view, part) in [
                ("graph", "class=\"node"),
                ("hot", "<li>"),
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
            // A compiler: the picture in the README is this one.
            let recorded = Record::new("c++", &["-O2", "-c", "-o", "/dev/null", "fixtures/languages.cpp"]).run();
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
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
            let recorded = Record::new(path, &[]).options(&["-F", "1999", "--user"]).run();
            let document = open(&page(&recorded, &[]), "view=table");
            assert!(rows(&document).contains_key("<script>window.evil=1</script>"), "{document}");
            assert!(!document.contains("<script>window") && !document.contains("<img"), "{document}");
        })
        .test("a_size_is_kept", &[CC], || {
            let recorded = recursive();
            let small = page(recorded, &["--max-size", "60K"]);
            assert!(small.metadata().unwrap().len() <= 60 << 10);
            let refused = Ended::of(ccsd(["export", "html", "--max-size", "1000"]).arg(&recorded.file));
            refused.assert_refused(2, &["1000"]);
            let none = recorded.dir.path().join("none.html");
            let refused = Ended::of(ccsd(["export", "html", "--max-size", "1K", "-o"]).arg(&none).arg(&recorded.file));
            refused.assert_refused(2, &["1024"]);
            assert!(!none.exists());
            Ended::of(ccsd(["export", "html", "--max-size", "x"]).arg(&recorded.file)).assert_refused(2, &["max-size"]);
        })
        .run()
}

fn recursive() -> &'static Recorded {
    static RECORDED: OnceLock<Recorded> = OnceLock::new();
    RECORDED.get_or_init(|| {
        let program = build("recursion.c", &["-O1", "-fno-optimize-sibling-calls"]);
        Record::new(program, &["three", "30", "20"]).options(&["-F", "1999", "--user"]).run()
    })
}

fn page(recorded: &Recorded, options: &[&str]) -> PathBuf {
    let file = recorded.dir.path().join(format!("{}.html", options.concat()));
    let ended = Ended::of(ccsd(["export", "html"]).arg(&recorded.file).args(options).arg("-o").arg(&file));
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    file
}

/// The document that a browser makes of the page at an address, without its own scripts and data.
fn open(page: &Path, address: &str) -> String {
    let ended = browse(page, address, &["--dump-dom"]);
    let document = ended.stdout;
    assert!(document.contains("data-ready=\"1\""), "{address}: {document} {}", ended.stderr);
    let (before, rest) = document.split_once("<script type=\"application/json\"").unwrap();
    let (_, after) = rest.rsplit_once("</script>").unwrap();
    assert!(document.contains("default-src 'none'"), "nothing may be fetched");
    format!("{before}{after}")
}

fn browse(page: &Path, address: &str, options: &[&str]) -> Ended {
    let dir = scratch();
    let mut browser = Command::new("chromium");
    browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]).args(options);
    browser.arg("--virtual-time-budget=10000").arg(format!("--user-data-dir={}", dir.path().display()));
    Ended::of(browser.arg(format!("file://{}#{address}", page.display())))
}

/// Rows of tables: their weights, and the name.
fn cells(document: &str) -> impl Iterator<Item = (Vec<u64>, String)> {
    document.split("<tr tabindex=\"0\"").skip(1).map(|row| {
        let row = row.split("</tr>").next().unwrap();
        let weights = row.split("data-weight=\"").skip(1);
        let weights = weights.map(|it| it.split('"').next().unwrap().parse().unwrap_or(0)).collect();
        let name = row.rsplit_once("</td>").unwrap().0.rsplit_once('>').unwrap().1;
        let name = name.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
        (weights, name)
    })
}

fn rows(document: &str) -> Weights {
    unique(cells(document).map(|(weights, name)| (name, (weights[0], weights[1]))))
}

/// What `ccsd report --json` says.
fn reported(recorded: &Recorded, options: &[&str]) -> Weights {
    let ended = Ended::of(ccsd(["report", "--json"]).args(options).arg(&recorded.file));
    assert!(ended.status.success(), "{ended:?}");
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let rows = document["flat"]["rows"].as_array().unwrap();
    let number = |row: &Value, field: &str| row[field].as_u64().unwrap();
    unique(rows.iter().map(|row| {
        (row["name"].as_str().unwrap().to_owned(), (number(row, "self_weight"), number(row, "inherited_weight")))
    }))
}

/// Functions of one name, such as the `_start` of the program and of the dynamic linker, by number.
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

/// Number of a function in a page.
fn function(page: &Path, name: &str) -> usize {
    let html = std::fs::read_to_string(page).unwrap();
    let data = html.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
    let data: Value = serde_json::from_str(data).unwrap();
    data["functions"].as_array().unwrap().iter().position(|it| it[0] == name).unwrap()
}
