//! Questions about a profile: patterns, filters, presets, other cost centres. Each against what is known of the raw stacks.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use ccsd_profile::query::{Filter, Grouping, Preset, QueryError};
use ccsd_profile::view::{FlatView, Selection, ThreadsView};
use ccsd_profile::{ContextId, CostCentre, CostCentreId, Image, LineId, Profile};
use common::{Maker, made, samples};
use proptest::prelude::*;

fn weights(profile: &Profile, selection: &Selection) -> BTreeMap<String, (u64, u64)> {
    let rows = FlatView::new(profile, selection).rows;
    let rows = rows.into_iter().filter(|row| row.self_weight > 0 || row.inherited_weight > 0);
    rows.map(|row| (row.name, (row.self_weight, row.inherited_weight))).collect()
}

fn example() -> Maker {
    let mut maker = Maker::new();
    for (stack, weight) in [("main read parse", 50), ("main read memcpy", 10), ("main write memset", 30), ("main", 5)] {
        maker.charge(stack, weight);
    }
    maker
}

fn filter(specification: &str) -> Filter {
    let mut filter = Filter::default();
    filter.add_specification(specification).unwrap();
    filter
}

fn asked(maker: &Maker, specification: &str) -> BTreeMap<String, (u64, u64)> {
    weights(&maker.profile, &filter(specification).select(&maker.profile).unwrap())
}

fn table(rows: &[(&str, u64, u64)]) -> BTreeMap<String, (u64, u64)> {
    rows.iter().map(|&(name, own, inherited)| (name.to_owned(), (own, inherited))).collect()
}

#[test]
fn a_function_whose_name_is_a_glob_is_meant_alone() {
    let mut maker = Maker::new();
    for (stack, weight) in [("main f(char*)", 1), ("main f(charm)", 2), ("main g?", 4)] {
        maker.charge(stack, weight);
    }
    let own = |text: &str| -> u64 { asked(&maker, text).values().map(|weights| weights.1).max().unwrap() };
    assert_eq!(own("focus f(char*)"), 1);
    assert_eq!(own("focus f(cha*)"), 3);
    assert_eq!(own("focus g?"), 4);
    assert_eq!(own("focus ??"), 4);
}

#[test]
fn filters() {
    let maker = example();
    let all = table(&[
        ("main", 5, 95),
        ("read", 0, 60),
        ("write", 0, 30),
        ("parse", 50, 50),
        ("memcpy", 10, 10),
        ("memset", 30, 30),
    ]);
    assert_eq!(asked(&maker, "# nothing\n\n"), all);
    assert_eq!(
        asked(&maker, "hide mem*"),
        table(&[("main", 5, 95), ("read", 10, 60), ("write", 30, 30), ("parse", 50, 50)])
    );
    assert_eq!(asked(&maker, "only /^(read|write)$/"), table(&[("[root]", 5, 5), ("read", 60, 60), ("write", 30, 30)]));
    assert_eq!(asked(&maker, "focus memcpy"), table(&[("main", 0, 10), ("read", 0, 10), ("memcpy", 10, 10)]));
    assert_eq!(asked(&maker, "ignore read"), table(&[("main", 5, 35), ("write", 0, 30), ("memset", 30, 30)]));
    assert_eq!(asked(&maker, "focus mems\nhide write"), table(&[("main", 0, 30), ("memset", 30, 30)]));
    assert_eq!(asked(&maker, "hide module:demo").keys().collect::<Vec<_>>(), ["[root]"]);
    assert_eq!(asked(&maker, "focus file:demo.c"), all);
}

#[test]
fn threads_and_processes() {
    let mut maker = example();
    maker.charge_at(8, "main work", ccsd_profile::LineId::UNKNOWN, 7);
    assert_eq!(asked(&maker, "focus thread:8"), table(&[("main", 0, 7), ("work", 7, 7)]));
    assert_eq!(asked(&maker, "ignore thread:worker 7"), table(&[("main", 0, 7), ("work", 7, 7)]));
    assert_eq!(asked(&maker, "focus process:demo\nignore thread:7").len(), 2);
    let selection = filter("ignore thread:8").select(&maker.profile).unwrap();
    let threads = ThreadsView::new(&maker.profile, &selection);
    assert_eq!((threads.total.weight, threads.total.whole_weight), (95, 102));
}

#[test]
fn refuses_impossible_queries() {
    let maker = example();
    let ask = |text: &str| filter(text).select(&maker.profile).unwrap_err();
    assert_eq!(
        ask("only nothing_like_it"),
        QueryError::NoMatch { what: "function", pattern: "nothing_like_it".into() }
    );
    assert_eq!(ask("focus thread:99"), QueryError::NoMatch { what: "thread", pattern: "thread:99".into() });
    assert_eq!(ask("hide thread:7"), QueryError::NoFunction { pattern: "thread:7".into() });
    for (text, part) in [("show x", "line 1: \"show\""), ("\nonly", "line 2"), ("hide a\nhide /(/", "line 2")] {
        let error = Filter::default().add_specification(text).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let long = "#".repeat(2 << 20);
    assert!(matches!(Filter::default().add_specification(&long), Err(QueryError::Line { .. })));
    let without_main = Filter { preset: Some(Preset::Phases), ..Filter::default() };
    let mut other = Maker::new();
    other.charge("a b", 1);
    assert_eq!(without_main.select(&other.profile).unwrap_err(), QueryError::NoMain);
}

#[test]
fn presets() {
    let mut maker = example();
    let image = maker.profile.add_image(Image { name: "/usr/lib/libz.so.1".into(), build_id: vec![] });
    let inflate = maker.profile.add_cost_centre(CostCentre::named(image, "inflate"));
    let thread = maker.thread(7);
    let main = maker.find("main");
    let table_ = maker.profile.contexts_mut();
    let context = [main, inflate].iter().fold(ccsd_profile::ContextId::ROOT, |at, &it| table_.push(at, it));
    maker.profile.charge(thread, context, ccsd_profile::LineId::UNKNOWN, &[20]);
    let preset = |preset| Filter { preset: Some(preset), ..Filter::default() }.select(&maker.profile).unwrap();
    assert_eq!(weights(&maker.profile, &preset(Preset::Libraries)), table(&[("[root]", 95, 95), ("inflate", 20, 20)]));
    assert_eq!(
        weights(&maker.profile, &preset(Preset::Phases)),
        table(&[("main", 5, 115), ("read", 60, 60), ("write", 30, 30), ("inflate", 20, 20)])
    );
    let modules = maker.profile.by(Grouping::Module);
    assert_eq!(weights(&modules, &Selection::all()), table(&[("demo", 95, 115), ("libz.so.1", 20, 20)]));
}

#[test]
fn other_cost_centres() {
    let mut maker = Maker::new();
    let line = maker.profile.add_line("demo.c", 12);
    maker.charge_at(7, "main work::{{closure}}", line, 3);
    maker.charge_at(8, "main work", line, 4);
    maker.charge_at(8, "main malloc memset", ccsd_profile::LineId::UNKNOWN, 5);
    let by = |by| weights(&maker.profile.by(by), &Selection::all());
    assert_eq!(by(Grouping::Function).len(), 5);
    assert_eq!(by(Grouping::Lexical), table(&[("main", 0, 12), ("work", 7, 7), ("malloc", 0, 5), ("memset", 5, 5)]));
    assert_eq!(by(Grouping::File), table(&[("demo.c", 12, 12)]));
    assert_eq!(by(Grouping::Line), table(&[("demo.c:12", 7, 7), ("[line not known] memset", 5, 5)]));
    assert_eq!(by(Grouping::Thread), table(&[("worker 7 (7)", 3, 3), ("worker 8 (8)", 9, 9)]));
    assert_eq!(by(Grouping::Process), table(&[("demo (7)", 12, 12)]));
    assert_eq!(by(Grouping::Group), table(&[("demo", 7, 12), ("[allocator]", 5, 5)]));
    for it in Grouping::ALL {
        let grouped = maker.profile.by(it);
        assert_eq!(grouped.accounting(), maker.profile.accounting(), "{it:?}");
        assert_eq!(
            FlatView::new(&grouped, &Selection::all()).total,
            FlatView::new(&maker.profile, &Selection::all()).total
        );
    }
}

#[test]
fn a_hidden_function_hides_its_line() {
    let mut maker = Maker::new();
    let line = maker.profile.add_line("demo.c", 5);
    maker.charge_at(7, "main leaf", line, 3);
    maker.charge_at(7, "main", line, 4);
    let selected = maker.profile.selected(&filter("hide leaf").select(&maker.profile).unwrap());
    let lines = weights(&selected.by(Grouping::Line), &Selection::all());
    assert_eq!(lines, table(&[("demo.c:5", 4, 4), ("[line not known] main", 3, 3)]));
}

#[test]
fn the_innermost_main_has_phases() {
    let mut maker = Maker::new();
    for (stack, weight) in
        [("main lang_start prog::main read", 5), ("main lang_start prog::main write", 6), ("main lang_start", 1)]
    {
        maker.charge(stack, weight);
    }
    let phases = Filter { preset: Some(Preset::Phases), ..Filter::default() }.select(&maker.profile).unwrap();
    assert_eq!(
        weights(&maker.profile, &phases),
        table(&[("[root]", 1, 1), ("prog::main", 0, 11), ("read", 5, 5), ("write", 6, 6)])
    );
}

#[test]
fn startup_functions_are_known_by_name() {
    let mut maker = Maker::new();
    maker.charge("_start __libc_start_main@@GLIBC_2.34 main std::rt::lang_start::<()> prog::main start", 5);
    maker.charge("clone3 start_thread work", 3);
    maker.charge("_start Py_BytesMain py_function", 2);
    let shown = |maker: &Maker| {
        let profile = &maker.profile;
        weights(profile, &Selection::all().hide(profile.startup_functions()))
    };
    // A program may have functions that are called as those that start threads in C libraries.
    let of_program = [("clone3", 0, 3), ("start_thread", 0, 3)];
    let rows = [("main", 0, 5), ("prog::main", 0, 5), ("start", 5, 5), ("work", 3, 3), ("py_function", 2, 2)];
    let rows = [&rows[..], &of_program].concat();
    assert_eq!(shown(&maker), table(&[&rows[..], &[("Py_BytesMain", 0, 2)]].concat()));
    // Where Python functions have names, what starts Python says no more.
    maker.charge("_start Py_BytesMain py::<module>:/a.py", 4);
    assert_eq!(shown(&maker), table(&[&rows[..], &[("py::<module>:/a.py", 4, 4)]].concat()));
    // One with time of its own holds what the compiler has inlined into it.
    maker.charge("_start", 5);
    assert!(maker.profile.startup_functions().iter().all(|&id| maker.profile.name(id) != "_start"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// A selected profile has the weights of the views of the selection, whatever is hidden, focussed and ignored.
    #[test]
    fn a_selected_profile_is_the_view_of_the_selection(
        samples in samples(),
        hidden in prop::collection::btree_set(0..6u32, 0..4),
        focus in prop::option::of(0..6u32),
        ignored in prop::option::of(0..6u32),
    ) {
        let maker = made(&samples);
        let id = |function: &u32| {
            let name = format!("f{function}");
            let at = maker.profile.cost_centres().iter().position(|it| it.linkage_name.as_deref() == Some(&name))?;
            Some(CostCentreId::new(at as u32))
        };
        let mut selection = Selection::all().hide(hidden.iter().filter_map(id));
        if let Some(focus) = focus {
            selection = selection.focus(id(&focus));
        }
        if let Some(ignored) = ignored {
            selection = selection.ignore(id(&ignored));
        }
        let selected = maker.profile.selected(&selection);
        prop_assert_eq!(weights(&selected, &Selection::all()), weights(&maker.profile, &selection));
        let mut raw: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for (stack, weight) in &samples {
            if focus.is_some_and(|it| !stack.contains(&it)) || ignored.is_some_and(|it| stack.contains(&it)) {
                continue;
            }
            let shown: Vec<_> = stack.iter().filter(|it| !hidden.contains(it)).map(|it| format!("f{it}")).collect();
            let shown = if shown.is_empty() { vec!["[root]".to_owned()] } else { shown };
            raw.entry(shown.last().unwrap().clone()).or_default().0 += weight;
            for name in shown.into_iter().collect::<BTreeSet<_>>() {
                raw.entry(name).or_default().1 += weight;
            }
        }
        prop_assert_eq!(weights(&selected, &Selection::all()), raw);
    }

    #[test]
    fn any_text(text in "\\PC{0,40}") {
        let _ = text.parse::<ccsd_profile::query::Pattern>();
        let _ = Filter::default().add_specification(&text);
    }
}

#[test]
fn a_lambda_counts_for_the_function_that_it_is_written_in() {
    let mut maker = Maker::new();
    let image = maker.image;
    let push = |maker: &mut Maker, stack: &[(&str, Option<&str>)], weight| {
        let mut at = ContextId::ROOT;
        for &(linkage, display) in stack {
            let function = maker.profile.add_cost_centre(CostCentre {
                image,
                linkage_name: Some(linkage.into()),
                display_name: display.map(Into::into),
                start: None,
                file: None,
                line: 0,
                local: false,
            });
            at = maker.profile.contexts_mut().push(at, function);
        }
        let thread = maker.thread(7);
        maker.profile.charge(thread, at, LineId::UNKNOWN, &[weight]);
    };
    let (main, bar) = (("main", None), ("_Z3bari", Some("bar(int)")));
    let apply = ("_Z5applyI", Some("void apply<void S::method<int>(int)::{lambda()#1}>(int)"));
    // With its linkage name, as compilers give it to what is not local, and as the debug information knows it.
    push(
        &mut maker,
        &[main, bar, ("_ZZ3bariENKUliE_clEi", Some("bar(int)::{lambda(int)#1}::operator()(int) const"))],
        20,
    );
    push(&mut maker, &[main, bar, ("bar::{lambda#2}::operator()", None)], 5);
    push(&mut maker, &[main, apply], 75);
    let lexical = weights(&maker.profile.by(Grouping::Lexical), &Selection::all());
    assert_eq!(lexical["bar(int)"], (25, 25));
    assert_eq!(lexical[apply.1.unwrap()], (75, 75));
    assert_eq!(lexical.len(), 3, "{lexical:?}");
}

#[test]
fn a_lambda_counts_for_the_function_of_its_file() {
    let mut maker = Maker::new();
    let image = maker.image;
    let centre = |name: &str, file: Option<&str>, line: u32, start: u64| CostCentre {
        start: Some(start),
        file: file.map(Into::into),
        line,
        local: true,
        ..CostCentre::named(image, name)
    };
    let charge = |maker: &mut Maker, stack: &[CostCentre], weight| {
        let mut at = ContextId::ROOT;
        for function in stack {
            let function = maker.profile.add_cost_centre(function.clone());
            at = maker.profile.contexts_mut().push(at, function);
        }
        let thread = maker.thread(7);
        maker.profile.charge(thread, at, LineId::UNKNOWN, &[weight]);
    };
    let (a, b, c) = (Some("/src/a.cc"), Some("/src/b.cc"), Some("/src/c.cc"));
    let lambda = "walk()::{lambda()#1}::operator()() const";
    // Of one name: in a.cc and b.cc functions that were sampled, in c.cc one that was not.
    charge(&mut maker, &[centre("walk()", a, 10, 0x10)], 1);
    charge(&mut maker, &[centre("walk()", a, 10, 0x10), centre(lambda, a, 12, 0x20)], 2);
    charge(&mut maker, &[centre("walk()", b, 10, 0x30)], 4);
    charge(&mut maker, &[centre("walk()", b, 10, 0x30), centre(lambda, b, 12, 0x40)], 8);
    charge(&mut maker, &[centre(lambda, c, 12, 0x50)], 16);
    // Two in one file: the lambda is in the one before it.
    charge(&mut maker, &[centre("turn(int)", a, 30, 0x60), centre("turn::{lambda#1}::operator()", a, 34, 0x70)], 32);
    charge(&mut maker, &[centre("turn(char)", a, 40, 0x80), centre("turn::{lambda#1}::operator()", a, 44, 0x90)], 64);
    // Unknown without debug information.
    charge(&mut maker, &[centre("hop()", None, 0, 0xa0)], 128);
    charge(&mut maker, &[centre("hop()", None, 0, 0xb0)], 256);
    charge(&mut maker, &[centre("hop()::{lambda()#1}::operator()() const", None, 0, 0xc0)], 512);
    let mut lexical = maker.profile.by(Grouping::Lexical);
    lexical.set_full_names(true);
    let labels = lexical.labels();
    let rows = FlatView::new(&lexical, &Selection::all()).rows;
    let mut found: Vec<_> = rows.iter().map(|row| (row.self_weight, labels.label(row.function).into_owned())).collect();
    found.sort();
    let expected = [
        (3, "walk() (a.cc:10)"),
        (12, "walk() (b.cc:10)"),
        (16, "walk() (c.cc)"),
        (32, "turn(int)"),
        (64, "turn(char)"),
        (128, "hop() (+0xa0)"),
        (256, "hop() (+0xb0)"),
        (512, "hop()::{lambda()#1}::operator()() const"),
    ];
    let found: Vec<_> = found.iter().map(|(weight, label)| (*weight, label.as_str())).collect();
    assert_eq!(found, expected);
}
