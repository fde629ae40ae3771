//! What is right where the tables are full: every function on the part of a stack that is kept has its inherited time.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;

use ccsd_profile::view::{FlatView, Selection};
use ccsd_profile::*;
use common::{Maker, session};
use proptest::prelude::*;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((self.0 >> 33) % u64::from(n)).unwrap()
    }
}

/// Stacks of random recursion below one function, charged as the collector does it.
struct ElisionRun {
    profile: Profile,
    main: CostCentreId,
    /// What raw stacks say of each function: weight as the innermost, weight on the stack, weight on the part kept.
    raw: BTreeMap<CostCentreId, [u64; 3]>,
    total: u64,
}

fn run(limits: ProfileLimits, functions: u32, depth: u32, samples: u32, seed: u64) -> ElisionRun {
    let mut maker = Maker::with(session(), limits);
    let main = maker.function("main");
    let others: Vec<CostCentreId> = (0..functions).map(|i| maker.function(&format!("f{i}"))).collect();
    let thread = maker.thread(1);
    let mut random = Random(seed);
    let (mut raw, mut total) = (BTreeMap::<CostCentreId, [u64; 3]>::new(), 0);
    for weight in 1..=u64::from(samples) {
        let below = (0..random.below(depth)).map(|_| others[random.below(functions) as usize]);
        let stack: Vec<CostCentreId> = std::iter::once(main).chain(below).collect();
        let contexts = maker.profile.contexts_mut();
        let (mut context, mut kept) = (ContextId::ROOT, 0);
        for &function in &stack {
            context = contexts.descend(context, function);
            kept += usize::from(!contexts.is_elided(context));
        }
        let leaf = *stack.last().unwrap();
        if contexts.is_elided(context) {
            context = contexts.push(context, leaf);
        }
        // The part kept is the outer part of the stack; nothing is elided where it is the whole.
        let history = contexts.history(context);
        let mut expected = History::of(stack[..kept].iter().copied());
        assert_eq!(kept < stack.len(), contexts.is_elided(context));
        if kept < stack.len() {
            expected.push(CostCentreId::ELIDED);
            if contexts.leaf(context) != Some(CostCentreId::ELIDED) {
                expected.push(leaf);
            }
        }
        assert_eq!(history, expected);
        assert!(contexts.bytes() <= contexts.stats().limit_bytes as usize);
        maker.profile.charge(thread, context, LineId::UNKNOWN, &[weight]);
        for (functions, column) in [(&stack[stack.len() - 1..], 0), (&stack[..], 1), (&stack[..kept], 2)] {
            let once: std::collections::BTreeSet<CostCentreId> = functions.iter().copied().collect();
            once.into_iter().for_each(|function| raw.entry(function).or_default()[column] += weight);
        }
        total += weight;
    }
    ElisionRun { profile: maker.profile, main, raw, total }
}

impl ElisionRun {
    /// Sums are conserved (I1), nothing has more than the raw stacks say (I5), all of them call `main`, and a reader sees the same.
    fn check(&mut self, callers_kept: bool) {
        let view = FlatView::new(&self.profile, &Selection::all());
        assert_eq!(view.total.weight, self.total);
        assert_eq!(view.rows.iter().map(|row| row.self_weight).sum::<u64>(), self.total);
        for row in view.rows.iter().filter(|row| row.function != CostCentreId::ELIDED) {
            let [own, inherited, kept] = self.raw[&row.function];
            assert!(row.self_weight <= own && row.inherited_weight <= inherited, "{:?}", row.function);
            assert!(!callers_kept || row.inherited_weight >= kept, "{:?}", row.function);
        }
        if callers_kept {
            assert_eq!(view.row(self.main).unwrap().inherited_weight, self.total);
        }
        let mut reader = Profile::new(session(), ProfileLimits::reading());
        reader.apply(&self.profile.take_update()).unwrap();
        assert_eq!(reader.canonical(), self.profile.canonical());
        let mut merged = Profile::new(session(), ProfileLimits::reading());
        merged.merge(&reader).unwrap();
        assert_eq!(merged.canonical(), self.profile.canonical());
        assert_eq!(merged.accounting().elided, self.profile.accounting().elided);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn callers_keep_their_time_where_contexts_are_elided(
        seed in any::<u64>(),
        functions in 2..100u32,
        depth in 2..120u32,
        kib in 64..400usize,
    ) {
        let limits = ProfileLimits { context_bytes: kib << 10, ..ProfileLimits::default() };
        run(limits, functions, depth, 1_500, seed).check(true);
    }
}

#[test]
fn a_full_table_has_still_an_elided_context_for_each() {
    let mut table = ContextTable::new(MIN_CONTEXT_BYTES);
    let mut random = Random(5);
    let id = |function: u32| CostCentreId::new(function + 2);
    let mut contexts = vec![ContextId::ROOT];
    while table.stats().elided < 5_000 {
        let from = contexts[random.below(u32::try_from(contexts.len()).unwrap()) as usize];
        let context = table.push(from, id(random.below(60)));
        if !table.is_elided(context) {
            contexts.push(context);
        }
    }
    contexts.sort_unstable();
    contexts.dedup();
    for &context in &contexts {
        let elided = table.push(context, CostCentreId::ELIDED);
        assert_eq!((table.parent(elided), table.leaf(elided)), (Some(context), Some(CostCentreId::ELIDED)));
        assert_eq!(table.push(elided, CostCentreId::ELIDED), elided);
        assert!(table.bytes() <= MIN_CONTEXT_BYTES);
    }
    assert!(contexts.len() > 200, "{}", contexts.len());
}

#[test]
fn callers_keep_their_time_where_charges_have_no_row() {
    let limits = ProfileLimits { charge_bytes: 64 << 10, ..ProfileLimits::default() };
    let mut run = run(limits, 12, 60, 20_000, 7);
    let elided = run.profile.accounting().elided;
    assert!(elided > 15_000, "{elided}");
    run.check(false);
    let view = FlatView::new(&run.profile, &Selection::all());
    let main = view.row(run.main).unwrap().inherited_weight;
    assert!(main * 1_000 >= run.total * 999, "{main} of {}", run.total);
    // The rows for callers reach further in: 128 of them, and a dozen functions at every level.
    let shares: Vec<u64> = view.rows.iter().map(|row| row.inherited_weight * 100 / run.total).collect();
    assert!(shares.iter().filter(|&&share| share >= 10).count() == 14, "{shares:?}");
}

#[test]
fn a_table_may_grow_later() {
    let limits = ProfileLimits { context_bytes: MIN_CONTEXT_BYTES, charge_bytes: 8 << 10, ..ProfileLimits::default() };
    let mut maker = Maker::with(session(), limits.clone());
    assert!(!maker.profile.is_tight());
    let mut random = Random(9);
    let mut charge = |maker: &mut Maker| {
        let stack: Vec<String> = (0..30).map(|_| format!("f{}", random.below(20))).collect();
        maker.charge(&format!("main {}", stack.join(" ")), 1);
    };
    while !maker.profile.is_tight() {
        charge(&mut maker);
    }
    assert_eq!(maker.profile.accounting().elided, 0, "it is known before");
    (0..500).for_each(|_| charge(&mut maker));
    let elided = maker.profile.accounting().elided;
    assert!(elided > 0);
    maker.profile.set_limits(ProfileLimits::default());
    assert!(!maker.profile.is_tight());
    (0..500).for_each(|_| charge(&mut maker));
    assert_eq!(maker.profile.accounting().elided, elided);
}
