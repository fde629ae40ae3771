//! Recursion is folded into short histories, and shares stay right.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::ExitCode;

use ccsd_profile::view::{CyclesView, Selection};
use ccsd_tests::ccsd::RecordCommand;
use ccsd_tests::fixture::build;
use ccsd_tests::recorded::Recorded;
use ccsd_tests::statistics::assert_share;
use ccsd_tests::suite::{CC, Suite};

/// Other programs slow down some turns of a loop: at most a tenth, over two hundred turns.
const ALLOWANCE: f64 = 0.1;

fn main() -> ExitCode {
    Suite::new()
        .test("direct", &[CC], || {
            let recorded = record("direct", 1_000);
            assert_own_shares(&recorded, &[("direct", 1), ("bottom", 3)]);
            recorded.assert_only_caller("direct", "bottom");
            // A1: direct recursion makes no arc.
            recorded.assert_only_caller("main", "direct");
            assert_eq!(recorded.through("direct", "direct"), 0);
            recorded.assert_complete();
            assert!(recorded.profile.accounting().stacks.max_depth > 1_000);
            assert_short_histories(&recorded);
        })
        .test("direct_100000_deep", &[CC], || {
            // 3 MB of stack, of which the kernel copies 63 KiB.
            let recorded = record_at("999", "direct", 100_000, 60);
            // Descending and returning through 100,000 frames takes time, too.
            assert_share("bottom", recorded.samples("bottom").own, own_of(&recorded, &["bottom", "direct"]), 0.7, 0.2);
            // The first stacks, and those not read in time: 1% on a quiet machine, more in a debug build that shares
            // its CPUs.
            let accounting = recorded.profile.accounting();
            assert!(accounting.truncated_total() * 5 <= accounting.received, "{accounting:?}");
            assert!(accounting.stacks.max_depth > 100_000);
            // Stacks read after the end of the program have a gap: of as many samples as ccsd is behind.
            assert!(accounting.stacks.with_gap * 2 <= accounting.received, "{accounting:?}");
            let known = accounting.received - accounting.truncated_total();
            assert_share("main", recorded.samples("main").inherited, known, 1.0, 0.02);
            assert_short_histories(&recorded);
        })
        .test("direct_10000_deep_of_realigned_frames", &[CC], || {
            let recorded = record_at("999", "realigned", 10_000, 100);
            recorded.assert_complete();
            let accounting = recorded.profile.accounting();
            assert!(accounting.stacks.max_depth > 10_000);
            assert!(accounting.stacks.with_gap <= 100 + accounting.received / 100, "{accounting:?}");
            let all = accounting.received;
            assert_share("main", recorded.samples("main").inherited, all, 1.0, 0.02);
            assert_short_histories(&recorded);
        })
        .test("frames_larger_than_the_copied_stack", &[CC], || {
            // Functions with frames of 40 KB call themselves and each other, and return before the stack is read: a
            // gap, nothing else.
            let recorded = record_at("1999", "large", 4, 60);
            let accounting = recorded.profile.accounting();
            recorded.assert_complete();
            let gaps = recorded.samples("[gap: stack copy too small]");
            // A missing stack page is another reason, once or twice.
            assert!(
                gaps.own == 0 && (gaps.inherited..=gaps.inherited + 3).contains(&accounting.stacks.with_gap),
                "{gaps:?}"
            );
            // `_start` is also the name of the dynamic linker's first function.
            let started = recorded.samples("__libc_start_main").inherited;
            assert_share("__libc_start_main", started, accounting.received, 1.0, 0.02);
            assert_share(
                "large",
                recorded.samples("large_a").own,
                own_of(&recorded, &["large_a", "large_b"]),
                0.5,
                0.1,
            );
            assert!(accounting.stacks.max_depth < 40, "a frame has been made up");
        })
        .test("mutual_of_two", &[CC], || {
            let recorded = record("two", 100);
            assert_own_shares(&recorded, &[("even", 1), ("odd", 2)]);
            // Both are on every stack of either, each counted once.
            assert_share(
                "odd within even",
                recorded.samples("odd").inherited,
                recorded.samples("even").inherited,
                1.0,
                0.01,
            );
            assert_cycle(&recorded, &["even", "odd"]);
            recorded.assert_complete();
            assert_short_histories(&recorded);
        })
        .test("mutual_of_three", &[CC], || {
            let recorded = record("three", 300);
            assert_own_shares(&recorded, &[("p", 1), ("q", 2), ("r", 3)]);
            for function in ["q", "r"] {
                let within = (recorded.samples(function).inherited, recorded.samples("p").inherited);
                assert_share(format!("{function} within p"), within.0, within.1, 1.0, 0.01);
            }
            assert_cycle(&recorded, &["p", "q", "r"]);
            recorded.assert_complete();
            assert_short_histories(&recorded);
        })
        .test("shared_callee_costs_its_callers_1_and_9", &[CC], || {
            let recorded = record("shared", 0);
            let (cheap, costly) =
                (recorded.through("cheap_caller", "shared"), recorded.through("costly_caller", "shared"));
            let all = recorded.samples("shared").inherited;
            assert!((cheap + costly) * 100 >= all * 99, "{:?}", recorded.callers("shared"));
            assert_share("costly", costly, cheap + costly, 0.9, ALLOWANCE);
            assert_share("cheap", cheap, cheap + costly, 0.1, ALLOWANCE);
            recorded.assert_only_caller("main", "cheap_caller");
        })
        .test("jump_out_of_recursion", &[CC], || {
            let recorded = record("jump", 200);
            assert_own_shares(&recorded, &[("thrower", 1), ("after_the_jump", 2)]);
            recorded.assert_only_caller("catcher", "after_the_jump");
            recorded.assert_only_caller("catcher", "thrower");
            recorded.assert_complete();
            assert_short_histories(&recorded);
        })
        .test("recursions_that_follow_each_other_are_not_joined", &[CC], || {
            let recorded = record_late("turns", 40_000);
            assert_callers(&recorded, "rec", &["rec", "alpha", "beta"]);
            assert_callers(&recorded, "even", &["odd", "main"]);
            assert_callers(&recorded, "odd", &["even"]);
            assert_callers(&recorded, "alpha", &["main"]);
        })
        .test("recursions_in_turn_do_not_stand_outside_each_other_s_gaps", &[CC], || {
            let recorded = record_at("1999", "in_turn", 10_000, 30);
            let of = |functions: &[&str]| recorded.samples_with(functions);
            let gap = "[gap: stack copy too small]";
            let (a, b) = (of(&["in_turn_a", gap]), of(&["in_turn_b", gap]));
            assert!(a.min(b) > 100, "{a} and {b} stacks with a gap");
            // By chance about 1%: see the unwinder on steady frames. It was a third to a half.
            let false_callers = of(&["in_turn_a", "in_turn_b"]);
            assert!(false_callers * 25 <= a + b, "{false_callers} of {a} and {b} stacks with a gap have both");
            // What has called both is on each stack that has a root.
            let accounting = recorded.profile.accounting();
            let known = accounting.received - accounting.truncated_total();
            assert_share("in_turn", recorded.samples("in_turn").inherited, known, 1.0, 0.05);
        })
        .test("callers_of_a_deep_recursion_are_not_exchanged", &[CC], || {
            let recorded = record_at("999", "callers", 500, 40);
            let of = |functions: &[&str]| recorded.samples_with(functions);
            let right = of(&["caller_a", "bottom_of_a"]) + of(&["caller_b", "bottom_of_b"]);
            let wrong = of(&["caller_a", "bottom_of_b"]) + of(&["caller_b", "bottom_of_a"]);
            // On a busy machine some turns pass between two looks. Without comparing looks it is a third.
            assert!(
                right > 100 && wrong * 20 <= recorded.profile.accounting().received,
                "{right} right, {wrong} wrong"
            );
        })
        .test("callers_of_a_frame_larger_than_the_copy_are_known_where_they_last", &[CC], || {
            let recorded = record_at("999", "buffer", 0, 500);
            let known = recorded.samples_with(&["main", "caller_x", "with_buffer"]);
            let all = recorded.samples("with_buffer").inherited;
            assert!(all > 500, "{all}");
            // What is read after the end of the program has a gap.
            assert_share("caller_x", known, all, 1.0, 0.15);
            // Where two take turns faster than ccsd looks, none of them is shown.
            let recorded = record_at("999", "buffers", 0, 500);
            let of = |functions: &[&str]| recorded.samples_with(functions);
            let wrong = of(&["caller_x", "bottom_of_y"]) + of(&["caller_y", "bottom_of_x"]);
            let all = recorded.samples("with_buffer").inherited;
            // By chance some have the wrong one, until looks have disagreed; nearly all have a gap.
            let gap =
                of(&["[gap: stack unreadable]", "with_buffer"]) + of(&["[gap: stack copy too small]", "with_buffer"]);
            assert!(all > 500 && gap * 2 >= all && wrong * 5 <= all, "{gap} with a gap and {wrong} wrong of {all}");
            assert_share("main", recorded.samples("main").inherited, recorded.profile.accounting().received, 1.0, 0.15);
        })
        .test("frames_on_another_stack_have_no_other_callers", &[CC], || {
            let recorded = record_late("stack", 12_000);
            assert_callers(&recorded, "inner", &["on_stack"]);
            assert_callers(&recorded, "on_stack", &["grow"]);
            assert_callers(&recorded, "grow", &["sender"]);
            assert_callers(&recorded, "third", &["second"]);
        })
        .test("handlers_on_another_stack_have_no_other_callers", &[CC], || {
            let recorded = record_late("signal", 24_000);
            assert_callers(&recorded, "handler", &["__restore_rt"]);
            assert_callers(&recorded, "raise", &["raiser"]);
            assert_callers(&recorded, "third", &["second"]);
            recorded.assert_complete();
            // Nor one that calls another function of the library, to return to the same place.
            let recorded = record_late("library", 24_000);
            let of = |functions: &[&str]| recorded.samples_with(functions);
            let (right, wrong) = (of(&["handler", "raiser"]), of(&["handler", "sorter"]));
            assert!(right > 100 && wrong * 50 <= right, "{right} right, {wrong} wrong");
        })
        .run()
}

fn record_late(mode: &str, rounds: u32) -> Recorded {
    let program = build("late.c", &["-O1", "-g", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"]);
    let recorded = RecordCommand::new(program, &[mode, &rounds.to_string()]).options(&["-F", "1999"]).run();
    recorded.assert_whole();
    recorded
}

/// Who calls a function, but for gaps and stacks that are cut, which are no callers. One stack in 500 may be of a kind that
/// is not known.
fn assert_callers(recorded: &Recorded, function: &str, expected: &[&str]) {
    let callers = recorded.callers(function);
    let all: u64 = callers.iter().map(|(_, samples)| samples).sum();
    let others: Vec<_> = callers
        .iter()
        .filter(|(name, _)| !name.starts_with('[') && !expected.contains(&ccsd_tests::recorded::short_name(name)))
        .collect();
    let samples: u64 = others.iter().map(|(_, samples)| samples).sum();
    assert!(all > 100, "{function} in {all} samples: {callers:?}");
    assert!(samples * 500 <= all, "{function} of {others:?}; all: {callers:?}");
}

fn record(mode: &str, depth: u32) -> Recorded {
    record_at("1999", mode, depth, 200)
}

fn record_at(rate: &str, mode: &str, depth: u32, rounds: u32) -> Recorded {
    let program = build("recursion.c", &["-O1", "-fno-optimize-sibling-calls"]);
    let arguments = [mode, &depth.to_string(), &rounds.to_string()];
    let recorded = RecordCommand::new(program, &arguments).options(&["-F", rate]).run();
    recorded.assert_whole();
    recorded
}

/// As [`Recorded::assert_proportions`], for self samples. (The kernel's part is omitted, and small.)
fn assert_own_shares(recorded: &Recorded, parts: &[(&str, u64)]) {
    let names: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
    let total = own_of(recorded, &names);
    let whole: u64 = parts.iter().map(|(_, part)| part).sum();
    assert!(total > 200, "{:?}", recorded.names());
    for (name, part) in parts {
        assert_share(name, recorded.samples(name).own, total, *part as f64 / whole as f64, ALLOWANCE);
    }
}

fn own_of(recorded: &Recorded, functions: &[&str]) -> u64 {
    functions.iter().map(|name| recorded.samples(name).own).sum()
}

/// I3: six functions below the recursion, two in it, and the kernel's: far from a hundred, the least depth here.
fn assert_short_histories(recorded: &Recorded) {
    let stacks = recorded.stacks();
    let longest = stacks.rows.iter().max_by_key(|row| row.entries.len()).unwrap();
    assert!(longest.entries.len() < 50, "{}", stacks.text(longest));
    let contexts = recorded.profile.contexts().len();
    assert!(contexts < 5_000, "{contexts} contexts");
}

fn assert_cycle(recorded: &Recorded, functions: &[&str]) {
    let cycles = CyclesView::new(&recorded.profile, &Selection::all());
    let found = cycles.rows.iter().any(|row| {
        let mut names: Vec<&str> = row.cycle.iter().map(|function| cycles.names[function].as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names == functions
    });
    assert!(found, "{cycles:?}");
}
