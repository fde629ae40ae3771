//! Generated code: its functions are named between the native ones, in complete stacks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::process::ExitCode;

use ccsd_profile::view::{Selection, StacksView};
use ccsd_tests::ccsd::{NOBODY, RecordCommand};
use ccsd_tests::fixture::{build, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::statistics::{SIGMAS, wilson};
use ccsd_tests::suite::{CC, Need, Suite, UNSHARE, new_python};

const RATE: [&str; 3] = ["--user", "-F", "1999"];
const NODE: Need = Need::Program("node", "nodejs");
const JAVA: Need = Need::Program("javac", "default-jdk-headless");

fn main() -> ExitCode {
    Suite::new()
        .test("perf_map", &[CC], || assert_named(&generated("map")))
        .test("perf_map_of_an_ordinary_user", &[CC, Need::Root], || {
            let recorded = RecordCommand::new(program(), &["map"]).options(&RATE).user(NOBODY).run();
            assert_named(&finished(recorded));
        })
        .test("perf_map_written_at_the_end", &[CC], || assert_named(&generated("late")))
        .test("perf_map_of_the_parent", &[CC], || assert_named(&generated("fork")))
        .test("memory_mapped_twice", &[CC], || assert_named(&generated("shared")))
        .test("perf_map_in_a_namespace", &[CC, UNSHARE, Need::Root], || {
            let program = program();
            let script = format!(
                "mount -t tmpfs none /mnt && cp {} /mnt/p && mount -t tmpfs none /tmp && exec /mnt/p late",
                program.display()
            );
            let options = ["--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", &script];
            assert_named(&RecordCommand::new("unshare", &options).options(&RATE).run());
        })
        .test("no_map", &[CC], || assert_nameless(&generated("none")))
        .test("perf_map_of_another_user", &[CC, Need::Root], || assert_nameless(&generated("foreign")))
        .test("perf_map_of_an_earlier_process", &[CC], || assert_nameless(&generated("stale")))
        .test("fifo_in_place_of_a_map", &[CC], || assert_nameless(&generated("fifo")))
        .test("device_in_place_of_a_map", &[CC], || assert_nameless(&generated("zero")))
        .test("map_full_of_garbage", &[CC], || {
            let recorded = generated("garbage");
            assert_named(&recorded);
            let notes = &recorded.profile.session().notes;
            assert!(notes.iter().any(|note| note.contains("of its perf map are malformed")), "{notes:?}");
        })
        .test("perf_map_that_uses_addresses_again", &[CC], || {
            for (how, is_noted) in [("reused", true), ("map", false)] {
                let recorded = generated(how);
                recorded.assert_whole().assert_complete();
                let notes = &recorded.profile.session().notes;
                assert_eq!(notes.iter().any(|note| note.contains("sampled addresses to other")), is_noted, "{notes:?}");
            }
        })
        .test("code_in_the_place_of_other_code", &[CC], || {
            let recorded = RecordCommand::new(build("replaced.c", &["-O1"]), &[]).options(&RATE).run();
            // What the old rule leads to may be no code at all, for some of that time.
            let accounting = recorded.assert_whole().profile.accounting();
            assert!(accounting.truncated_total() * 20 <= accounting.received, "{accounting:?}");
            // Of 0.3 and 3 s. For some 0.2 s the new code may still be left like the old.
            let [x, y] = ["x", "y"].map(|name| recorded.samples(name).inherited);
            let ((least, most), expected) = (wilson(y, x + y, SIGMAS), 3.0 / 3.3);
            assert!((x + y) * 100 >= 99 * recorded.total(), "{x} and {y}");
            assert!(most >= expected - 0.2 && least <= expected * 1.05, "{x} and {y}");
        })
        .test("jitdump", &[CC], || assert_moved(&generated("dump")))
        .test("jitdump_written_late", &[CC], || assert_moved_unseen(&generated("dump-late")))
        .test("python", &[Need::NewPython], python)
        .test("node", &[NODE], node)
        .test("node_without_names", &[NODE], || {
            let (recorded, _) = run_node(&[]);
            recorded.assert_complete();
            assert!(recorded.samples("[anon]+?").inherited > 0, "{:?}", recorded.names());
        })
        .test("java", &[JAVA], java)
        .run()
}

fn program() -> std::path::PathBuf {
    build("generated.c", &["-O1"])
}

fn generated(how: &str) -> Recorded {
    finished(RecordCommand::new(program(), &[how]).options(&RATE).run())
}

fn finished(recorded: Recorded) -> Recorded {
    for process in recorded.processes() {
        for path in [format!("/tmp/perf-{}.map", process.pid), format!("/tmp/jit-{}.dump", process.pid)] {
            let _ = fs::remove_file(path);
        }
    }
    recorded
}

/// Asserts that these functions call each other in this order in all stacks of the last.
fn assert_chain(recorded: &Recorded, chain: &[&str]) {
    for pair in chain.windows(2) {
        recorded.assert_only_caller(pair[0], pair[1]);
    }
}

fn assert_named(recorded: &Recorded) {
    recorded.assert_whole().assert_complete();
    assert_chain(recorded, &["main", "run", "caller", "middle", "leaf"]);
    let (leaf, total) = (recorded.samples("leaf").own, recorded.total());
    assert!(leaf >= 100 && leaf * 10 >= total * 8, "{leaf} of {total}: {:?}", recorded.names());
    assert!(recorded.function("[anon]+?").is_none(), "{:?}", recorded.names());
    assert!(recorded.profile.accounting().unsymbolised * 100 <= total, "{:?}", recorded.profile.accounting());
}

/// The code has no names and is one cost centre; stacks are still complete.
fn assert_nameless(recorded: &Recorded) {
    recorded.assert_whole().assert_complete();
    assert!(recorded.function("leaf").is_none() && recorded.function("caller").is_none());
    assert_chain(recorded, &["main", "run"]);
    let (code, total) = (recorded.samples("[anon]+?").own, recorded.total());
    assert!(code >= 100 && code * 10 >= total * 8, "{code} of {total}: {:?}", recorded.names());
    assert!(recorded.profile.accounting().unsymbolised >= code);
    assert!(!recorded.names().iter().any(|name| name.starts_with("[anon]+0x")), "{:?}", recorded.names());
}

/// Each sample has the name of the code at its time.
fn assert_moved(recorded: &Recorded) {
    recorded.assert_whole().assert_complete();
    assert_chain(recorded, &["main", "run", "caller", "middle"]);
    recorded.assert_only_caller("middle", "first");
    recorded.assert_only_caller("middle", "second");
    // The half of `first` before the move ran where `second` is now.
    recorded.assert_proportions(&[("first", 2), ("second", 2)], 0.05);
}

/// The same with a map written only at the end. Early samples at the shared address have no name, but never the
/// other's.
fn assert_moved_unseen(recorded: &Recorded) {
    recorded.assert_whole().assert_complete();
    assert_chain(recorded, &["main", "run", "caller", "middle", "first"]);
    let total = recorded.samples("middle").inherited;
    assert!(total >= 100, "only {total} samples: {:?}", recorded.names());
    let [first, second, nameless] = ["first", "second", "[anon]+?"].map(|name| recorded.samples(name).inherited);
    assert!((first + second + nameless) * 100 >= total * 98, "{first}, {second}, {nameless} of {total}");
    let least = |samples| wilson(samples, total, SIGMAS).0 / 1.05;
    let most = |samples| wilson(samples, total, SIGMAS).1 * 1.05;
    // After its move, `first` had an address of its own.
    assert!(most(first) >= 0.25 && least(first) <= 0.5, "{first} of {total}");
    assert!(least(second) <= 0.5, "{second} of {total}");
}

fn python() {
    let dir = scratch();
    let script = dir.path().join("script.py");
    let source = "def inner(n):\n    s = 0\n    for i in range(n): s = (s * 31 + i) % 65521\n    return s\n\
        def outer():\n    return sum(map(inner, [30000] * 120))\nouter()\n";
    fs::write(&script, source).unwrap();
    let script = script.to_str().unwrap();
    let recorded =
        finished(RecordCommand::new(new_python().unwrap(), &["-S", "-X", "perf", script]).options(&RATE).run());
    recorded.assert_whole().assert_complete();
    let names = ["inner", "outer", "<module>"].map(|name| format!("py::{name}:{script}"));
    let is = |wanted: String| move |text: &str| text == wanted;
    let [inner, outer, module] = names.map(is);
    let interpreter = |text: &str| text == "_PyEval_EvalFrameDefault";
    let all = samples_in_order(&recorded, &[&inner]);
    let start = |text: &str| text == "_start";
    let whole = samples_in_order(&recorded, &[&start, &module, &outer, &inner, &interpreter]);
    assert!(all >= 100 && whole * 100 >= all * 99, "{whole} of {all}: {:?}", recorded.names());
}

fn run_node(options: &[&str]) -> (Recorded, String) {
    let dir = scratch();
    let script = dir.path().join("script.js");
    let source = "function inner(n) { let s = 0; for (let i = 0; i < n; i++) s = (s * 31 + i) % 65521; return s; }\n\
        function outer() { let s = 0; for (let i = 0; i < 60; i++) s += [3e5, 3e5].map(inner)[1]; return s; }\n\
        outer();\n";
    fs::write(&script, source).unwrap();
    let log = format!("--logfile={}", dir.path().join("v8.log").display());
    let args = [options, &[&log, script.to_str().unwrap()]].concat();
    let recorded = finished(RecordCommand::new("node", &args).options(&RATE).run());
    recorded.assert_whole();
    (recorded, script.display().to_string())
}

fn node() {
    // V8 buffers a megabyte of names before writing: they arrive after the samples.
    let (recorded, _) = run_node(&["--perf-basic-prof", "--interpreted-frames-native-stack"]);
    recorded.assert_complete();
    // `JS:*inner /path:1:15`: a mark before the name tells how it was compiled.
    let on_stack = |name: &str| {
        let is = |text: &str| {
            text.starts_with("JS:") && text[3..].trim_start_matches(['~', '^', '+', '*']).starts_with(name)
        };
        samples_in_order(&recorded, &[&is])
    };
    let (inner, outer, total) = (on_stack("inner "), on_stack("outer "), recorded.total());
    assert!(inner >= 50 && outer >= inner, "{inner} and {outer} of {total}: {:?}", recorded.names());
    let is = |name: &'static str| {
        move |text: &str| {
            text.starts_with("JS:") && text[3..].trim_start_matches(['~', '^', '+', '*']).starts_with(name)
        }
    };
    // V8's builtin is between them, and the program's start below all.
    let builtin = |text: &str| text.contains("ArrayMap");
    let root = |text: &str| text == "_start";
    let whole = samples_in_order(&recorded, &[&root, &is("outer "), &builtin, &is("inner ")]);
    // Before it is compiled, `map` may be inlined into `outer`.
    assert!(samples_in_order(&recorded, &[&root, &is("outer ")]) * 100 >= outer * 99, "{outer}");
    assert!(whole > 0, "{:?}", recorded.names());
}

/// Samples whose stacks contain functions in this order, root first.
fn samples_in_order(recorded: &Recorded, wanted: &[&dyn Fn(&str) -> bool]) -> u64 {
    let view = StacksView::new(&recorded.profile, &Selection::all());
    let mut samples = 0;
    for row in &view.rows {
        let mut wanted = wanted.iter().peekable();
        for entry in &row.entries {
            if let Some(next) = wanted.peek()
                && next(&view.names[&entry.function])
            {
                wanted.next();
            }
        }
        samples += if wanted.peek().is_none() { row.samples } else { 0 };
    }
    samples
}

fn run_java(options: &[&str]) -> Recorded {
    let dir = scratch();
    let source = "import java.util.*;\npublic class Demo {\n\
        static int compare(Integer a, Integer b) { return a - b; }\n\
        static int outer() { Integer[] a = new Integer[60000]; for (int i = 0; i < a.length; i++) a[i] = (i * 7919) % 100003;\n\
        Arrays.sort(a, Demo::compare); return a[5]; }\n\
        public static void main(String[] args) { int s = 0; for (int i = 0; i < 25; i++) s += outer(); System.out.println(s); }\n}\n";
    let file = dir.path().join("Demo.java");
    fs::write(&file, source).unwrap();
    let compiled = std::process::Command::new("javac").arg("-d").arg(dir.path()).arg(&file).status().unwrap();
    assert!(compiled.success());
    // Few threads for the compiler and the collector: the program is of interest.
    let more = ["-XX:+UseSerialGC", "-cp", dir.path().to_str().unwrap(), "Demo"];
    let recorded = finished(RecordCommand::new("java", &[options, &more].concat()).options(&RATE).run());
    recorded.assert_whole();
    recorded
}

fn java() {
    let names = ["-XX:+PreserveFramePointer", "-XX:+UnlockDiagnosticVMOptions", "-XX:+DumpPerfMapAtExit"];
    let recorded = run_java(&names);
    recorded.assert_complete();
    let has = |part: &'static str| move |text: &str| text.contains(part);
    let sort = samples_in_order(&recorded, &[&has("TimSort")]);
    // Started by native code through the stub that enters Java, and sorted in Java.
    let whole = samples_in_order(&recorded, &[&has("JavaMain"), &has("StubRoutines"), &has("TimSort")]);
    assert!(sort >= 50 && whole * 100 >= sort * 99, "{whole} of {sort}: {:?}", recorded.names());
}
