//! Recursion is folded into short histories, and shares stay right.
// A test fails by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::ExitCode;

use ccsd_profile::TruncationReason;
use ccsd_profile::view::{CyclesView, Selection};
use ccsd_tests::ccsd::Record;
use ccsd_tests::fixture::build;
use ccsd_tests::recorded::Recorded;
use ccsd_tests::statistics::assert_share;
use ccsd_tests::suite::{CC, Suite};

/// Others use the machine, too, and slow down some turns of a loop more than others: by a tenth at most, over two
/// hundred turns of each.
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
            assert!(recorded.profile.accounting().max_stack_depth > 1_000);
            assert_short_histories(&recorded);
        })
        .test("direct_deeper_than_the_copied_stack", &[CC], || {
            // 10,000 frames are more than the 63 KiB that the kernel copies, however small they are.
            // Each sample takes as much of the ring as can be, and as long to unwind: at a lower rate none is lost.
            let recorded = record_at("499", "direct", 10_000);
            assert_own_shares(&recorded, &[("direct", 1), ("bottom", 3)]);
            let accounting = recorded.profile.accounting();
            let too_small = accounting.truncated[TruncationReason::StackCopyTooSmall.index()];
            assert_eq!(too_small, accounting.truncated_total());
            // Whatever ran at the bottom could not be unwound, and says so: it has no root that it did not show.
            assert_eq!(recorded.through("main", "direct") + too_small, recorded.samples("direct").inherited);
            assert!(too_small >= recorded.samples("bottom").inherited);
            let truncated = recorded.samples("[truncated: stack copy too small]");
            assert_eq!((truncated.own, truncated.inherited), (0, too_small));
            assert_short_histories(&recorded);
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
        .run()
}

fn record(mode: &str, depth: u32) -> Recorded {
    record_at("1999", mode, depth)
}

fn record_at(rate: &str, mode: &str, depth: u32) -> Recorded {
    let program = build("recursion.c", &["-O1", "-fno-optimize-sibling-calls"]);
    let recorded = Record::new(program, &[mode, &depth.to_string(), "200"]).options(&["-F", rate]).run();
    recorded.assert_whole();
    recorded
}

/// As [`Recorded::assert_proportions`], but of what the functions did themselves. (What the kernel did on top is left
/// out, and small.)
fn assert_own_shares(recorded: &Recorded, parts: &[(&str, u64)]) {
    let total: u64 = parts.iter().map(|(name, _)| recorded.samples(name).own).sum();
    let whole: u64 = parts.iter().map(|(_, part)| part).sum();
    assert!(total > 200, "{:?}", recorded.names());
    for (name, part) in parts {
        assert_share(name, recorded.samples(name).own, total, *part as f64 / whole as f64, ALLOWANCE);
    }
}

/// I3. User code has six functions below the recursion and two in it, and the kernel adds what interrupts do: far from a
/// hundred, which is the least depth of recursion here.
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
