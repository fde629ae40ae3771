//! The invariants I1 to I7 and I9, each against raw stacks.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use ccsd_profile::view::{FlatView, GraphView, Selection};
use ccsd_profile::{
    ContextId, ContextTable, CostCentreId, History, NotSampled, OwnCpu, Phase, Profile, ProfileLimits, Unseen,
};
use common::{Maker, session};
use proptest::prelude::*;

type Stack = Vec<u32>;

fn stack(functions: u32, depth: usize) -> impl Strategy<Value = Stack> {
    prop::collection::vec(0..functions, 1..depth)
}

fn samples() -> impl Strategy<Value = Vec<(Stack, u64)>> {
    prop::collection::vec((stack(6, 12), 1..1000u64), 1..40)
}

fn id(function: u32) -> CostCentreId {
    CostCentreId::new(function + 2) // after [elided] and [root]
}

fn push(table: &mut ContextTable, stack: &Stack) -> ContextId {
    stack.iter().fold(ContextId::ROOT, |context, &function| table.push(context, id(function)))
}

fn name(function: u32) -> String {
    format!("f{function}")
}

fn names(stack: &Stack) -> String {
    stack.iter().map(|&function| name(function)).collect::<Vec<_>>().join(" ")
}

fn profile(samples: &[(Stack, u64)]) -> Maker {
    let mut maker = Maker::new();
    for (stack, weight) in samples {
        maker.charge(&names(stack), *weight);
    }
    maker
}

fn own(profile: &Profile, selection: &Selection) -> BTreeMap<String, (u64, u64)> {
    let view = FlatView::new(profile, selection);
    view.rows.iter().map(|row| (row.name.clone(), (row.self_weight, row.inherited_weight))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// I2, with stacks so long and so recursive that contexts chain up and checkpoints are made.
    #[test]
    fn i2_the_table_is_the_oracle(stacks in prop::collection::vec(stack(9, 300), 1..8)) {
        let mut table = ContextTable::new(1 << 24);
        let mut contexts = BTreeMap::new();
        for stack in &stacks {
            let mut context = ContextId::ROOT;
            let mut history = History::new();
            for &function in stack {
                context = table.push(context, id(function));
                history.push(id(function));
                prop_assert_eq!(&table.history(context), &history);
                // One history, one context.
                prop_assert_eq!(*contexts.entry(history.clone()).or_insert(context), context);
            }
        }
        // Whatever came before: the same stacks again lead to the same contexts and make nothing new.
        let before = table.stats();
        for stack in stacks.iter().rev() {
            let context = push(&mut table, stack);
            prop_assert_eq!(table.history(context), History::of(stack.iter().map(|&f| id(f))));
        }
        let after = table.stats();
        prop_assert_eq!(before.contexts, after.contexts);
        prop_assert_eq!(before.transitions, after.transitions);
        prop_assert_eq!(after.pushes(), after.transition_hits + after.known_contexts + after.new_contexts);
    }

    #[test]
    fn i2_resuming_is_starting_over(prefix in stack(6, 40), a in stack(6, 40), b in stack(6, 40)) {
        let mut table = ContextTable::new(1 << 24);
        let at = push(&mut table, &prefix);
        let finish = |table: &mut ContextTable, from, rest: &Stack| rest.iter().fold(from, |c, &f| table.push(c, id(f)));
        finish(&mut table, at, &a);
        let resumed = finish(&mut table, at, &b);
        let whole = [prefix, b].concat();
        prop_assert_eq!(table.history(resumed), History::of(whole.iter().map(|&f| id(f))));
        prop_assert_eq!(push(&mut table, &whole), resumed);
    }

    /// I3: repeating a recursion adds nothing to the history, and after the second time no context either.
    #[test]
    fn i3_recursion_is_finite(stem in stack(6, 6), cycle in stack(6, 6)) {
        let mut table = ContextTable::new(1 << 24);
        let mut context = push(&mut table, &stem);
        let mut contexts = 0;
        for round in 0..50 {
            context = cycle.iter().fold(context, |c, &f| table.push(c, id(f)));
            prop_assert!(table.history(context).len() <= 3 * 6);
            if round == 3 {
                contexts = table.len();
            }
        }
        prop_assert_eq!(table.len(), contexts);
    }

    /// I4: the marked entries are the functions on the stack, by most recent activation.
    #[test]
    fn i4_the_active_set(stack in stack(8, 60)) {
        let history = History::of(stack.iter().map(|&f| id(f)));
        let mut expected = Vec::new();
        for &function in stack.iter().rev() {
            if !expected.contains(&id(function)) {
                expected.push(id(function));
            }
        }
        expected.reverse();
        prop_assert_eq!(history.active().collect::<Vec<_>>(), expected);
        prop_assert!(history.len() <= 3 * 8);
    }

    /// Sums of squares are the raw samples', in every view, through updates, files and merged profiles (I5, I7, I8).
    #[test]
    fn i5_squares(samples in samples(), cut in 0..40usize) {
        let square = |weight: u64| u128::from(weight) * u128::from(weight);
        let mut expected: BTreeMap<String, (u128, u128)> = BTreeMap::new();
        for (stack, weight) in &samples {
            expected.entry(name(*stack.last().unwrap())).or_default().0 += square(*weight);
            for function in stack.iter().collect::<BTreeSet<_>>() {
                expected.entry(name(*function)).or_default().1 += square(*weight);
            }
        }
        let total: u128 = samples.iter().map(|(_, weight)| square(*weight)).sum();
        let check = |profile: &Profile| {
            let view = FlatView::new(profile, &Selection::all());
            let found: BTreeMap<_, _> =
                view.rows.iter().map(|row| (row.name.clone(), (row.self_squares, row.inherited_squares))).collect();
            assert_eq!(&found, &expected);
            assert_eq!(view.total.squares, total);
        };
        let (first, second) = samples.split_at(cut.min(samples.len()));
        let mut whole = profile(&samples);
        check(&whole.profile);
        let mut merged = profile(first).profile;
        merged.merge(&profile(second).profile).unwrap();
        check(&merged);
        check(&merged.regrouped(|_, centre| centre.clone()));
        // In two updates: merged, applied one by one, and as a snapshot.
        let mut maker = profile(first);
        let mut earlier = maker.profile.take_update();
        let mut reader = Profile::new(session(), ProfileLimits::default());
        reader.apply(&earlier).unwrap();
        for (stack, weight) in second {
            maker.charge(&names(stack), *weight);
        }
        let later = maker.profile.take_update();
        reader.apply(&later).unwrap();
        check(&reader);
        earlier.merge(&later).unwrap();
        prop_assert_eq!(&earlier.squares, &maker.profile.snapshot().squares);
        prop_assert_eq!(&earlier.squares, &whole.profile.take_update().squares);
        let mut encoder = ccsd_profile::Encoder::new(Vec::new(), &session()).unwrap();
        encoder.write(&earlier).unwrap();
        check(&ccsd_profile::read_profile(&encoder.finish().unwrap()[..]).unwrap().profile);
    }

    /// I1 and I5 against raw stacks.
    #[test]
    fn i1_i5_weights(samples in samples()) {
        let maker = profile(&samples);
        let total: u64 = samples.iter().map(|(_, weight)| weight).sum();
        let mut charged = 0;
        maker.profile.for_each_charge(|charge| charged += charge.weights[0]);
        prop_assert_eq!(charged, total);
        let mut expected: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for (stack, weight) in &samples {
            expected.entry(name(*stack.last().unwrap())).or_default().0 += weight;
            for function in stack.iter().collect::<BTreeSet<_>>() {
                expected.entry(name(*function)).or_default().1 += weight;
            }
        }
        let found = own(&maker.profile, &Selection::all());
        prop_assert_eq!(&found, &expected);
        for (own, inherited) in found.values() {
            prop_assert!(own <= inherited && *inherited <= total);
        }
    }

    /// I1 and I13: charges are the samples' weights and what is not sampled, which is below its thread's root, counts
    /// as no sample, and can be left out; in files and merged profiles, too.
    #[test]
    fn i1_i13_what_is_not_sampled(
        samples in samples(),
        unseen in prop::collection::vec((0..3u32, 1..100_000u64), 0..5),
        cut in 0..5usize,
    ) {
        let split = NotSampled::split(unseen.iter().map(|(_, ns)| ns).sum(), &[(Unseen::Ended, 1_000)]);
        let mut maker = profile(&samples);
        let mut first = Profile::new(session(), ProfileLimits::default());
        let charge = |maker: &mut Maker, unseen: &[(u32, u64)]| {
            for &(tid, ns) in unseen {
                let thread = maker.thread(tid);
                maker.profile.charge_not_sampled(thread, &[ns]);
            }
        };
        let (before, after) = unseen.split_at(cut.min(unseen.len()));
        charge(&mut maker, before);
        first.apply(&maker.profile.take_update()).unwrap();
        charge(&mut maker, after);
        maker.profile.accounting_mut().not_sampled = Some(split);
        let own_cpu = OwnCpu::split(1_000, &[(Phase::Start, split.total()), (Phase::Aggregating, 3)]);
        maker.profile.accounting_mut().own.by_phase = Some(own_cpu);
        maker.profile.accounting_mut().own.cpu_ns = 1_000;
        let update = maker.profile.take_update();
        first.apply(&update).unwrap();
        let mut encoder = ccsd_profile::Encoder::new(Vec::new(), &session()).unwrap();
        encoder.write(&maker.profile.snapshot()).unwrap();
        let read = ccsd_profile::read_profile(&encoder.finish().unwrap()[..]).unwrap().profile;
        let mut merged = profile(&samples).profile;
        let mut rest = Maker::new();
        charge(&mut rest, &unseen);
        rest.profile.accounting_mut().not_sampled = Some(split);
        rest.profile.accounting_mut().own.by_phase = Some(own_cpu);
        merged.merge(&rest.profile).unwrap();

        let sampled: u64 = samples.iter().map(|(_, weight)| weight).sum();
        for profile in [&maker.profile, &first, &read, &merged] {
            prop_assert_eq!(profile.accounting().not_sampled, Some(split));
            prop_assert_eq!(profile.accounting().own.by_phase, Some(own_cpu));
            let view = FlatView::new(profile, &Selection::all());
            prop_assert_eq!(view.total.weight, sampled + split.total());
            prop_assert_eq!(view.total.samples, samples.len() as u64);
            let row = view.rows.iter().find(|row| row.name == "[not sampled]");
            let sums = row.map(|row| (row.self_weight, row.inherited_weight, row.samples_inherited, row.inherited_squares));
            prop_assert_eq!(sums, (split.total() > 0).then(|| (split.total(), split.total(), 0, 0)));
            let graph = GraphView::new(profile, &Selection::all());
            for node in graph.nodes.iter().filter(|node| node.name == "[not sampled]") {
                prop_assert!(node.callers.is_empty() && node.callees.is_empty());
                prop_assert_eq!(node.root_self_weight, split.total());
            }
            // Without it, everything is as if it were not there.
            let of_sampled = Selection::all().ignore(profile.not_sampled_cost_centre());
            let raw = self::profile(&samples);
            prop_assert_eq!(own(profile, &of_sampled), own(&raw.profile, &Selection::all()));
            let shares = |profile: &Profile, selection| {
                let view = FlatView::new(profile, selection);
                view.rows.into_iter().map(|row| (row.name, row.self_share.low.to_bits())).collect::<BTreeMap<_, _>>()
            };
            prop_assert_eq!(shares(profile, &of_sampled), shares(&raw.profile, &Selection::all()));
        }
        prop_assert_eq!(first.canonical(), maker.profile.canonical());
    }

    /// I6: hiding in the view is hiding in the raw stacks.
    #[test]
    fn i6_selection_commutes(samples in samples(), hidden in prop::collection::btree_set(0..6u32, 0..7)) {
        let maker = profile(&samples);
        let present: BTreeSet<u32> = samples.iter().flat_map(|(stack, _)| stack.iter().copied()).collect();
        let hide: Vec<CostCentreId> = hidden.intersection(&present).map(|&f| maker.find(&name(f))).collect();
        let found = own(&maker.profile, &Selection::all().hide(hide.iter().copied()));

        let visible: Vec<(Stack, u64)> = samples
            .iter()
            .map(|(stack, weight)| (stack.iter().copied().filter(|f| !hidden.contains(f)).collect(), *weight))
            .collect();
        let mut raw = Maker::new();
        for (stack, weight) in &visible {
            raw.charge(if stack.is_empty() { "[root]".to_owned() } else { names(stack) }.as_str(), *weight);
        }
        prop_assert_eq!(&found, &own(&raw.profile, &Selection::all()));

        // Arcs that are not marked as approximate are those of the raw stacks, if none of the functions' arcs is marked.
        let (of_view, of_raw) =
            (GraphView::new(&maker.profile, &Selection::all().hide(hide)), GraphView::new(&raw.profile, &Selection::all()));
        for node in &of_view.nodes {
            if node.callers.iter().chain(&node.callees).any(|arc| arc.approximate) {
                continue;
            }
            let other = of_raw.nodes.iter().find(|other| other.name == node.name).unwrap();
            let arcs = |arcs: &[ccsd_profile::view::GraphArc]| {
                arcs.iter().map(|a| (a.name.clone(), (a.self_weight, a.child_weight))).collect::<BTreeMap<_, _>>()
            };
            let exact = other.callers.iter().chain(&other.callees).all(|arc| {
                of_view.nodes.iter().any(|n| n.name == arc.name)
            });
            prop_assert!(exact);
            prop_assert_eq!(arcs(&node.callees), arcs(&other.callees));
            prop_assert_eq!(arcs(&node.callers), arcs(&other.callers));
        }
    }

    /// I6: hiding one function changes no other's inherited weight, and self weight only of its nearest callers.
    #[test]
    fn i6_hiding_is_local(samples in samples(), hidden in 0..6u32) {
        let maker = profile(&samples);
        let all = own(&maker.profile, &Selection::all());
        let gone = name(hidden);
        prop_assume!(all.contains_key(&gone));
        let found = own(&maker.profile, &Selection::all().hide([maker.find(&gone)]));
        let callers: BTreeSet<String> = samples
            .iter()
            .filter(|(stack, _)| stack.last() == Some(&hidden))
            .map(|(stack, _)| stack.iter().rev().find(|&&f| f != hidden).map_or("[root]".to_owned(), |&f| name(f)))
            .collect();
        for (function, weights) in all.iter().filter(|(function, _)| **function != gone) {
            prop_assert_eq!(found[function].1, weights.1);
            if !callers.contains(function) {
                prop_assert_eq!(found[function].0, weights.0);
            }
        }
        let moved: u64 = found.iter().map(|(function, (own, _))| own - all.get(function).map_or(0, |w| w.0)).sum();
        prop_assert_eq!(moved, all[&gone].0);
    }

    /// I9: arcs add up, with mutual recursion and with hidden functions.
    #[test]
    fn i9_arcs(samples in samples(), hidden in prop::collection::btree_set(0..6u32, 0..3)) {
        let maker = profile(&samples);
        let present: BTreeSet<u32> = samples.iter().flat_map(|(stack, _)| stack.iter().copied()).collect();
        let hide = hidden.intersection(&present).map(|&f| maker.find(&name(f)));
        let view = GraphView::new(&maker.profile, &Selection::all().hide(hide));
        let sum = |arcs: &[ccsd_profile::view::GraphArc]| arcs.iter().map(|a| a.self_weight + a.child_weight).sum::<u64>();
        for node in &view.nodes {
            prop_assert_eq!(node.child_weight, sum(&node.callees));
            let callers_self: u64 = node.callers.iter().map(|arc| arc.self_weight).sum();
            prop_assert_eq!(callers_self + node.root_self_weight, node.self_weight);
            prop_assert_eq!(
                sum(&node.callers) + node.root_self_weight + node.root_child_weight,
                node.inherited_weight()
            );
        }
    }

    /// I9: without mutual recursion both kinds of arc are the same.
    #[test]
    fn i9_without_recursion(samples in prop::collection::vec((prop::collection::btree_set(0..8u32, 1..8), 1..100u64), 1..20)) {
        // An order of calls that is the same everywhere makes recursion impossible.
        let samples: Vec<_> = samples.into_iter().map(|(set, weight)| (set.into_iter().collect::<Stack>(), weight)).collect();
        let view = GraphView::new(&profile(&samples).profile, &Selection::all());
        let (mut outgoing, mut incoming) = (BTreeMap::new(), BTreeMap::new());
        for node in &view.nodes {
            for arc in &node.callees {
                outgoing.insert((node.function, arc.function), (arc.self_weight, arc.child_weight, arc.samples));
            }
            for arc in &node.callers {
                incoming.insert((arc.function, node.function), (arc.self_weight, arc.child_weight, arc.samples));
            }
        }
        prop_assert_eq!(outgoing, incoming);
    }

    /// I7: merging is associative and commutative, and two half sessions are the whole.
    #[test]
    fn i7_merge(a in samples(), b in samples(), c in samples()) {
        let [pa, pb, pc] = [&a, &b, &c].map(|samples| profile(samples).profile);
        let merged = |parts: &[&Profile]| {
            let mut sum = Profile::new(session(), ProfileLimits::default());
            for part in parts {
                sum.merge(part).unwrap();
            }
            sum
        };
        let ab_c = merged(&[&merged(&[&pa, &pb]), &pc]);
        let a_bc = merged(&[&pa, &merged(&[&pb, &pc])]);
        let cba = merged(&[&pc, &pb, &pa]);
        let whole = profile(&[a, b, c].concat()).profile;
        prop_assert_eq!(ab_c.canonical(), whole.canonical());
        prop_assert_eq!(a_bc.canonical(), whole.canonical());
        prop_assert_eq!(cba.canonical(), whole.canonical());
        prop_assert_eq!(ab_c.accounting(), a_bc.accounting());
        prop_assert_eq!(ab_c.accounting().received, whole.accounting().received);
    }

    /// I7: a snapshot at any time and the updates after it are the whole, and so are all updates.
    #[test]
    fn i7_snapshot_and_updates(intervals in prop::collection::vec(samples(), 1..5), joined in 0..5usize) {
        let mut maker = Maker::new();
        let mut early = Profile::new(session(), ProfileLimits::default());
        let mut late: Option<Profile> = None;
        for (i, interval) in intervals.iter().enumerate() {
            for (stack, weight) in interval {
                maker.charge_at(stack[0] % 3, &names(stack), ccsd_profile::LineId::UNKNOWN, *weight);
            }
            // A charge that is not in any update yet must not be in the snapshot either.
            if i == joined.min(intervals.len() - 1) {
                let mut profile = Profile::new(session(), ProfileLimits::default());
                profile.apply(&maker.profile.snapshot()).unwrap();
                late = Some(profile);
            }
            let thread = maker.thread(1);
            maker.profile.rename_thread(thread, &format!("round {i}"));
            maker.profile.accounting_mut().duration_ns += 1_000;
            let update = maker.profile.take_update();
            early.apply(&update).unwrap();
            if let Some(late) = &mut late {
                late.apply(&update).unwrap();
            }
        }
        let late = late.unwrap();
        prop_assert_eq!(early.canonical(), maker.profile.canonical());
        prop_assert_eq!(late.canonical(), maker.profile.canonical());
        prop_assert_eq!(late.accounting(), maker.profile.accounting());
        prop_assert_eq!(late.threads(), maker.profile.threads());
        prop_assert!(maker.profile.take_update().is_empty());
    }

    /// I7: updates merged in any grouping are the updates one after the other, and the grouping leaves no trace.
    #[test]
    fn i7_merged_updates(intervals in prop::collection::vec(samples(), 3..7), cuts in prop::collection::vec(any::<bool>(), 7)) {
        let mut maker = Maker::new();
        let mut one_by_one = Profile::new(session(), ProfileLimits::default());
        let mut updates = Vec::new();
        for (i, interval) in intervals.iter().enumerate() {
            for (stack, weight) in interval {
                maker.charge_at(stack[0] % 3, &names(stack), ccsd_profile::LineId::UNKNOWN, *weight);
            }
            let thread = maker.thread(u32::try_from(i % 2).unwrap());
            maker.profile.rename_thread(thread, &format!("round {i}"));
            maker.profile.add_note(&format!("note {i}"));
            maker.profile.accounting_mut().duration_ns += 1_000;
            let update = maker.profile.take_update();
            one_by_one.apply(&update).unwrap();
            updates.push(update);
        }
        let all = |parts: &[ccsd_profile::Update]| {
            let mut sum = parts[0].clone();
            parts[1..].iter().for_each(|part| sum.merge(part).unwrap());
            sum
        };
        let mut groups: Vec<ccsd_profile::Update> = Vec::new();
        for (update, cut) in updates.iter().zip(cuts) {
            match groups.last_mut() {
                Some(group) if !cut => group.merge(update).unwrap(),
                _ => groups.push(update.clone()),
            }
        }
        let mut grouped = Profile::new(session(), ProfileLimits::default());
        groups.iter().for_each(|group| grouped.apply(group).unwrap());
        prop_assert_eq!(grouped.canonical(), one_by_one.canonical());
        prop_assert_eq!(grouped.threads(), one_by_one.threads());
        prop_assert_eq!(&grouped.session().notes, &one_by_one.session().notes);
        prop_assert_eq!(grouped.accounting(), one_by_one.accounting());
        let merged = all(&updates);
        prop_assert_eq!(&all(&groups), &merged);
        let mut right = updates[updates.len() - 2].clone();
        right.merge(&updates[updates.len() - 1]).unwrap();
        let mut left = all(&updates[..updates.len() - 2]);
        left.merge(&right).unwrap();
        prop_assert_eq!(&left, &merged);
        // No larger than a snapshot, and as good: the charges are those of the whole, each once.
        let snapshot = one_by_one.snapshot();
        prop_assert_eq!(&merged.charges, &snapshot.charges);
        prop_assert_eq!(&merged.weights, &snapshot.weights);
        // What does not follow is refused, and leaves no trace.
        let mut again = merged.clone();
        if merged.end() != merged.base {
            prop_assert!(again.merge(&updates[0]).is_err());
            prop_assert_eq!(&again, &merged);
        }
    }

    /// Regrouping functions is regrouping them on the raw stacks.
    #[test]
    fn regrouping_commutes(samples in samples()) {
        let maker = profile(&samples);
        let grouped = maker.profile.regrouped(|_, function| {
            let number: u32 = function.linkage_name.as_deref().unwrap()[1..].parse().unwrap();
            ccsd_profile::CostCentre { linkage_name: Some(name(number / 2)), ..function.clone() }
        });
        let raw: Vec<(Stack, u64)> =
            samples.iter().map(|(stack, weight)| (stack.iter().map(|f| f / 2).collect(), *weight)).collect();
        prop_assert_eq!(own(&grouped, &Selection::all()), own(&profile(&raw).profile, &Selection::all()));
    }
}

#[test]
fn recursion_100_000_deep_is_bounded() {
    let mut table = ContextTable::new(1 << 20);
    let direct = (0..100_000).fold(table.push(ContextId::ROOT, id(0)), |c, _| table.push(c, id(1)));
    assert_eq!(table.history(direct).len(), 2);
    let mutual = (0..100_000).fold(ContextId::ROOT, |c, i| table.push(c, id(i % 7)));
    assert!(table.history(mutual).len() <= 3 * 7, "{}", table.history(mutual));
    assert!(table.len() < 100, "{}", table.len());
    assert_eq!(table.stats().elided, 0);
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((self.0 >> 33) % u64::from(n)).unwrap()
    }
}

#[test]
fn a_full_table_keeps_its_budget_and_all_weight() {
    for budget in [64 << 10, 1 << 20] {
        let mut maker = Maker::with(session(), ProfileLimits { context_bytes: budget, ..ProfileLimits::default() });
        let functions: Vec<_> = (0..200).map(|i| maker.function(&name(i))).collect();
        let thread = maker.thread(1);
        let mut random = Random(1);
        let mut total = 0;
        let mut last = Vec::new();
        for i in 0..3_000 {
            let mut context = ContextId::ROOT;
            last.clear();
            for _ in 0..1 + random.below(60) {
                let function = functions[random.below(200) as usize];
                last.push(function);
                context = maker.profile.contexts_mut().push(context, function);
                let contexts = maker.profile.contexts();
                assert!(contexts.is_elided(context) || contexts.leaf(context) == Some(function), "sample {i}");
            }
            maker.profile.charge(thread, context, ccsd_profile::LineId::UNKNOWN, &[i]);
            total += i;
            assert!(maker.profile.contexts().bytes() <= budget);
        }
        let stats = maker.profile.contexts().stats();
        assert!(stats.elided > 0 && maker.profile.accounting().elided > 0, "{stats:?}");
        // The budget is used, not merely kept.
        assert!(stats.bytes as usize > budget / 3, "{stats:?}");
        let view = FlatView::new(&maker.profile, &Selection::all());
        assert_eq!(view.total.weight, total);
        assert_eq!(view.rows.iter().map(|row| row.self_weight).sum::<u64>(), total);
        let mut reader = Profile::new(session(), ProfileLimits::reading());
        reader.apply(&maker.profile.take_update()).unwrap();
        assert_eq!(reader.canonical(), maker.profile.canonical());
    }
}

#[test]
fn contexts_are_small() {
    // Whenever asked, above all just after a table has doubled; the first thousand pay for what every table has.
    let check = |stats: ccsd_profile::ContextStats| {
        let each = stats.bytes as f64 / stats.contexts as f64;
        assert!(stats.contexts < 1_000 || each <= 48.0, "{each} bytes a context: {stats:?}");
        each
    };
    let mut table = ContextTable::new(1 << 30);
    let mut random = Random(2);
    let mut worst: f64 = 0.0;
    for _ in 0..1_000 {
        (0..200).fold(ContextId::ROOT, |c, _| table.push(c, id(random.below(200))));
        if table.len() > 1_000 {
            worst = worst.max(check(table.stats()));
        }
    }
    println!("recursion: {worst:.1} bytes a context at worst: {:?}", table.stats());
    let mut table = ContextTable::new(1 << 30);
    let mut worst: f64 = 0.0;
    for _ in 0..10_000 {
        let mut function = 0;
        (0..24).fold(ContextId::ROOT, |c, _| {
            function =
                if random.below(20) == 0 { random.below(50) } else { function * 7 % 1_000 + random.below(12) / 11 + 1 };
            table.push(c, id(function))
        });
        if table.len() > 1_000 {
            worst = worst.max(check(table.stats()));
        }
    }
    println!("usual: {worst:.1} bytes a context at worst: {:?}", table.stats());
    let mut table = ContextTable::new(1 << 30);
    for _ in 0..20_000 {
        (0..30).fold(ContextId::ROOT, |c, _| table.push(c, id(random.below(5))));
    }
    println!("all recursion: {:?}", table.stats());
}

#[test]
fn a_chain_of_contexts_is_not_quadratic() {
    // Every push makes a context below the last one: without stored histories, rebuilding would take 200,000 pushes each.
    let mut table = ContextTable::new(1 << 28);
    let mut random = Random(3);
    let mut context = ContextId::ROOT;
    let mut path = Vec::new();
    for _ in 0..200_000 {
        context = table.push(context, id(random.below(100)));
        path.push(context);
    }
    let stats = table.stats();
    assert!(stats.checkpoints > 100 && stats.bytes / stats.contexts <= 48, "{stats:?}");
    // Every context by itself, without the help of its neighbours.
    for i in (0..path.len()).step_by(997) {
        let mut seen = History::new();
        let start = i.saturating_sub(700);
        // 100 functions: a history is settled by far fewer than 700 pushes but for its oldest entries.
        for c in &path[start..=i] {
            seen.push(table.leaf(*c).unwrap());
        }
        let history = table.history(path[i]);
        assert_eq!(history.leaf(), seen.leaf());
        assert!(seen.active().collect::<BTreeSet<_>>().is_subset(&history.active().collect()));
    }
}

#[test]
fn unknown_contexts_are_elided() {
    let mut table = ContextTable::new(0);
    for (from, function) in [(99, 5), (0, u32::MAX), (u32::MAX, u32::MAX), (0, 1 << 31), (0, 0), (1, 7)] {
        let context = table.push(ContextId::new(from), CostCentreId::new(function));
        assert!(table.is_elided(context), "{from} {function}");
    }
    assert!(table.history(ContextId::new(12345)).is_empty());
}
