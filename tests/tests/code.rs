//! Stacks are complete for any kind of running code.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::ExitCode;

use ccsd_profile::TruncationReason;
use ccsd_tests::ccsd::RecordCommand;
use ccsd_tests::fixture::{build, build_with};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::suite::{CC, CXX, MUSL, Need, OPENSSL, Suite};

const ASSEMBLY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/code.S");
/// As on a system built without unwind tables.
const NO_TABLES: [&str; 2] = ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];
const RATE: [&str; 3] = ["-F", "3999", "--user"];
const KEEP_CALLS: [&str; 2] = ["-O1", "-fno-optimize-sibling-calls"];

fn main() -> ExitCode {
    let small = |name, extra: &'static [&'static str]| {
        (name, move || {
            let recorded = record("small", &[&NO_TABLES, extra].concat());
            recorded.assert_only_caller("main", "small_outer");
            recorded.assert_only_caller("small_outer", "small_middle");
            recorded.assert_only_caller("small_middle", "small_leaf");
        })
    };
    let mut suite = Suite::new();
    for (name, body) in [
        small("no_tables_frame_pointers", &["-fno-omit-frame-pointer"]),
        small("no_tables_frame_pointers_unoptimised", &["-O0"]),
        small("no_tables_no_frame_pointers", &["-fomit-frame-pointer"]),
        small("no_tables_branch_tracking", &["-fno-omit-frame-pointer", "-fcf-protection=full"]),
    ] {
        suite = suite.test(name, &[CC], body);
    }
    suite
        .test("tables_branch_tracking", &[CC], || {
            let recorded = record("small", &["-fcf-protection=full"]);
            recorded.assert_only_caller("small_middle", "small_leaf");
        })
        .test("static", &[CC], || linked(&["-static"]))
        .test("static_pie", &[CC], || linked(&["-static-pie"]))
        .test("static_without_a_table_of_tables", &[CC], || linked(&["-static", "-Wl,--no-eh-frame-hdr"]))
        .test("no_tables_odd_frames", &[CC], || {
            let recorded = record("frames", &[&NO_TABLES[..], &["-fno-omit-frame-pointer"]].concat());
            recorded.assert_only_caller("aligned_frame", "sized_frame");
            recorded.assert_only_caller("main", "aligned_frame");
        })
        .test("odd_frames", &[CC], || {
            let recorded = record("frames", &["-fomit-frame-pointer"]);
            recorded.assert_only_caller("aligned_frame", "sized_frame");
            recorded.assert_only_caller("main", "aligned_frame");
        })
        .test("signal_handler", &[CC], || {
            let recorded = record("signal", &[]);
            recorded.assert_only_caller("on_signal", "handler_loop");
            recorded.assert_only_caller("main", "signalled");
            let (inside, all) = (recorded.samples("signalled").inherited, recorded.samples("on_signal").inherited);
            assert!(inside >= all, "the handler's stack goes on in what was interrupted: {inside} of {all}");
        })
        .test("signal_handler_on_its_own_stack", &[CC], || {
            let program = build("code.c", &[&KEEP_CALLS[..], &["-ldl"]].concat());
            let recorded = RecordCommand::new(program, &["sigaltstack"]).options(&RATE).run();
            recorded.assert_whole();
            recorded.assert_only_caller("on_signal", "handler_loop");
            // The interrupted code is known. Its callers are on another stack: the program's if memory could be read,
            // else marked.
            let handler = recorded.callers("on_signal");
            assert_eq!(handler.len(), 1, "{handler:?}");
            let interrupted = recorded.samples("on_signal").inherited;
            let accounting = recorded.profile.accounting();
            let unreadable: u64 = [TruncationReason::StackUnreadable, TruncationReason::StackCopyTooSmall]
                .map(|reason| accounting.stacks.truncated.get(reason))
                .iter()
                .sum();
            assert_eq!(accounting.truncated_total(), unreadable, "{:?}", accounting.stacks.truncated);
            let rooted = recorded.samples("signalled").inherited;
            // Beyond a gap is what its thread had there before: at first nothing of `signalled`.
            let marked = unreadable + accounting.stacks.with_gap;
            assert!(rooted + marked >= interrupted, "{rooted} + {marked} of {interrupted}");
            // The handler runs for half a millisecond, and mostly still runs when its stack is read.
            assert!(rooted * 2 > interrupted, "{rooted} of {interrupted}");
        })
        .test("parents_in_vfork", &[CC, Need::Root], || {
            // Most of the time is in the kernel, so only root sees them there.
            let recorded = RecordCommand::new(build("vfork.c", &["-O1"]), &["250"]).options(&["-F", "9999"]).run();
            recorded.assert_whole().assert_complete();
            let samples = recorded.samples("vfork").inherited;
            assert!(samples > 100, "{samples} samples of vfork in {:?}", recorded.names());
            recorded.assert_only_caller("one_child", "vfork");
            recorded.assert_only_caller("main", "one_child");
        })
        .test("shells_in_vfork", &[Need::Root], || {
            let script = "i=0; while [ $i -lt 100 ]; do /bin/true; i=$((i+1)); done";
            let recorded = RecordCommand::new("sh", &["-c", script]).options(&["-F", "9999"]).run();
            recorded.assert_whole().assert_complete();
        })
        .test("coroutines", &[CC], || {
            let recorded = record("coroutines", &[]);
            recorded.assert_only_caller("coroutine_main", "coroutine_loop");
            // Where the C library starts a coroutine, without callers. (Its name is in the debug information.)
            let callers = recorded.callers("coroutine_main");
            assert_eq!(callers.len(), 1, "{callers:?}");
            let start = &callers[0].0;
            assert!(start == "__start_context" || start.starts_with("libc.so.6+0x"), "{start}");
            assert_eq!(recorded.callers(start), []);
        })
        .test("vdso", &[CC], || {
            let recorded = record("clocks", &[]);
            let flat = recorded.flat();
            let own: u64 = flat.rows.iter().filter(|row| row.image == "[vdso]").map(|row| row.samples_self).sum();
            assert!(own * 4 > recorded.total(), "{own} of {} samples are in the vdso", recorded.total());
            recorded.assert_only_caller("main", "clocks");
        })
        .test("stubs_bound_late", &[CC], || stubs(&["-Wl,-z,lazy", "-fcf-protection=none"]))
        .test("stubs_bound_early", &[CC], || stubs(&["-Wl,-z,now", "-fcf-protection=none"]))
        .test("stubs_with_branch_tracking", &[CC], || stubs(&["-Wl,-z,lazy,-z,ibtplt", "-fcf-protection=full"]))
        .test("binding", &[CC], || {
            for flags in [["-Wl,-z,lazy", "-fcf-protection=none"], ["-Wl,-z,lazy,-z,ibtplt", "-fcf-protection=full"]] {
                let library = build("lazy.c", &[&["-O1", "-fPIC", "-shared"], &flags[..]].concat());
                let program = build("code.c", &[&KEEP_CALLS[..], &["-ldl"]].concat());
                let recorded =
                    RecordCommand::new(program, &["binding", library.to_str().unwrap()]).options(&RATE).run();
                assert_complete(&recorded);
                let (bound, resolver) = (recorded.samples("lazy_calls"), recorded.samples("_dl_fixup"));
                assert!(resolver.inherited > 50, "{:?}", recorded.names());
                assert!(bound.inherited >= resolver.inherited, "{bound:?} {resolver:?}");
            }
        })
        .test("assembly", &[CC], || {
            let recorded = record("assembly", &["-DASSEMBLY", ASSEMBLY]);
            for function in ["asm_leaf", "asm_pushes", "asm_calls_back", "asm_other_register"] {
                recorded.assert_only_caller("assembly", function);
            }
            for function in ["asm_kept_in_frame", "asm_kept_in_scratch", "asm_enters"] {
                recorded.assert_only_caller("assembly", function);
            }
            for function in ["asm_unrolled", "asm_lies", "asm_lies_and_calls"] {
                recorded.assert_only_caller("assembly", function);
            }
            recorded.assert_only_caller("asm_lies_and_calls", "called_by_a_liar");
            recorded.assert_only_caller("asm_kept_in_scratch", "asm_scratch_inner");
            recorded.assert_only_caller("asm_calls_back", "called_back");
            recorded.assert_only_caller("asm_other_register", "called_back_too");
            recorded.assert_only_caller("main", "assembly");
            recorded.assert_proportions(&[("asm_calls_back", 1), ("asm_other_register", 1)], 0.15);
        })
        .test("musl", &[MUSL], || musl(&[]))
        .test("musl_static", &[MUSL], || musl(&["-static"]))
        .test("musl_without_tables", &[MUSL], || musl(&NO_TABLES))
        .test("musl_stripped", &[MUSL], || {
            assert_complete(&record_musl(&["-s"]));
            assert_complete(&record_musl(&["-s", "-static"]));
        })
        .test("openssl", &[OPENSSL], || {
            // AES-GCM and SHA-512 depend on the processor: with 256-bit vectors, and without.
            let mut recordings = Vec::new();
            for capabilities in ["", "OPENSSL_ia32cap=~0x1000000000000000:~0x20"] {
                for algorithm in ["aes-128-gcm", "sha512", "sha256", "chacha20-poly1305"] {
                    let speed = ["openssl", "speed", "-seconds", "1", "-bytes", "16384", "-evp", algorithm];
                    let arguments = Some(capabilities).filter(|set| !set.is_empty()).into_iter().chain(speed);
                    recordings.push(RecordCommand::new("env", &arguments.collect::<Vec<_>>()).options(&RATE).run());
                }
            }
            // Each runs for a second of real time, which has few samples on a busy machine.
            assert_all_complete(&recordings);
        })
        .test("exceptions_in_flight", &[CXX], || {
            let recorded = RecordCommand::new(build("throw.cpp", &["-O1"]), &[]).options(&RATE).run();
            assert_complete(&recorded);
            let (raised, resumed) = (recorded.samples("_Unwind_RaiseException"), recorded.samples("_Unwind_Resume"));
            let unwinding = raised.inherited + resumed.inherited;
            assert!(unwinding * 2 > recorded.total(), "{raised:?} {resumed:?} of {}", recorded.total());
            // The unwinder and the C++ library work on behalf of the program.
            let (inside, all) = (recorded.samples("catcher").inherited, recorded.samples("main").inherited);
            assert!(inside * 100 >= all * 95, "{inside} of {all}");
            assert!(recorded.samples("thrower").inherited * 2 > all);
        })
        .run()
}

fn record(kind: &str, flags: &[&str]) -> Recorded {
    // The file's own flags come last and take precedence.
    let program = build("code.c", &[&KEEP_CALLS[..], &["-ldl"], flags].concat());
    let recorded = RecordCommand::new(program, &[kind]).options(&RATE).run();
    assert_complete(&recorded);
    recorded
}

fn record_musl(flags: &[&str]) -> Recorded {
    let program = build_with("musl-gcc", "musl.c", &[&KEEP_CALLS[..], flags].concat());
    RecordCommand::new(program, &[]).options(&RATE).run()
}

fn musl(flags: &[&str]) {
    let recorded = record_musl(flags);
    assert_complete(&recorded);
    recorded.assert_only_caller("main", "main_loop");
    recorded.assert_only_caller("thread", "thread_loop");
    recorded.assert_only_caller("main", "sorts");
}

fn assert_complete(recorded: &Recorded) {
    assert_all_complete(std::slice::from_ref(recorded));
}

/// Asserts that at most one in 200 of all stacks of these recordings is truncated.
fn assert_all_complete(recordings: &[Recorded]) {
    let (mut truncated, mut all, mut cut) = (0, 0, Vec::new());
    for recorded in recordings {
        recorded.assert_whole();
        let accounting = recorded.profile.accounting();
        truncated += accounting.truncated_total();
        all += accounting.received;
        let rows = recorded.stacks();
        cut.extend(rows.rows.iter().map(|row| rows.text(row)).filter(|text| text.contains("[truncated")).take(10));
    }
    assert!(all >= 200, "only {all} samples");
    assert!(truncated * 200 <= all, "{truncated} of {all} are truncated: {cut:#?}");
}

fn linked(flags: &[&str]) {
    let recorded = record("small", flags);
    recorded.assert_only_caller("main", "small_outer");
    recorded.assert_only_caller("small_outer", "small_middle");
    recorded.assert_only_caller("small_middle", "small_leaf");
    assert_complete(&recorded);
}

fn stubs(flags: &[&str]) {
    let recorded = record("stubs", &[&["-fno-builtin"], flags].concat());
    recorded.assert_only_caller("main", "stubs");
    let stub = recorded.samples("abs@plt").own;
    assert!(stub > 20, "{:?}", recorded.names());
    recorded.assert_only_caller("stubs", "abs@plt");
}
