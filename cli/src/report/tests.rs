//! Every view's text on Morgan and Jarvis' example: {<b,a> 10, <a> 20, <c,a> 10, <c,b,a> 50}, in samples of one
//! millisecond.

use super::*;
use clap::ValueEnum;

use ccsd_profile::{
    Accounting, CostCentre, CostCentreId, ImageId, LineId, Metric as ProfileMetric, Process, ProfileLimits,
    SessionInfo, Thread, Unit, notes,
};

fn example() -> Profile {
    let metrics = vec![ProfileMetric { name: "cpu-clock".to_owned(), unit: Unit::Nanoseconds }];
    let mut profile = Profile::new(SessionInfo { metrics, ..SessionInfo::default() }, ProfileLimits::default());
    let mut function = |name: &str| profile.add_cost_centre(CostCentre::named(ImageId::CCSD, name));
    let (a, b, c) = (function("a"), function("b"), function("c\x1b[31m"));
    let process = profile.add_process(Process { exec_generation: 1, ..Process::new(7, 0, "p") });
    let thread = profile.add_thread(Thread { process, tid: 7, name: "main".to_owned() });
    let line = profile.add_line("x.c", 3);
    for (stack, samples) in [(&[a, b][..], 10), (&[a], 20), (&[a, c], 10), (&[a, b, c], 50)] {
        let table = profile.contexts_mut();
        let context = stack.iter().fold(ccsd_profile::ContextId::ROOT, |context, &f| table.push(context, f));
        let line = if stack.len() == 2 { line } else { LineId::UNKNOWN };
        for _ in 0..samples {
            profile.charge(thread, context, line, &[1_000_000]);
        }
    }
    profile
}

fn shown(profile: &Profile) -> Presentation<'_> {
    Presentation { file_bytes: Some(100), ..Presentation::new(profile, TextLayout::PLAIN) }
}

fn text(view: View) -> String {
    view_text(view, &shown(&example()))
}

#[test]
fn flat() {
    assert_eq!(
        text(View::Flat),
        "self ms      %  95% interval  total ms       %  image   function\n\
         \x20 60.00  66.67  56.42..75.55     60.00   66.67  [ccsd]  c\\u{1b}[31m\n\
         \x20 20.00  22.22  14.87..31.85     90.00  100.00  [ccsd]  a\n\
         \x20 10.00  11.11   6.15..19.26     60.00   66.67  [ccsd]  b\n"
    );
}

#[test]
fn rows_left_out_are_summed_up() {
    let profile = example();
    let text = view_text(View::Flat, &Presentation { limit: Some(1), ..shown(&profile) });
    assert!(
        text.ends_with("  30.00  33.33  24.45..43.58                           [2 more functions; -n 0 shows all]\n"),
        "{text}"
    );
    let text = view_text(View::Stacks, &Presentation { limit: Some(3), ..shown(&profile) });
    assert!(text.ends_with("\n<[1 more stack; -n 0 shows all]> 10000000\n"), "{text}");
    let text = view_text(View::Lines, &Presentation { limit: Some(2), ..shown(&profile) });
    assert!(text.contains("  10.00  11.11  [1 more function; -n 0 shows all]\n"), "{text}");
}

#[test]
fn graph() {
    let profile = example();
    let only_b = Presentation { functions: Some(named("b", &profile)), ..shown(&profile) };
    assert_eq!(
        view_text(View::Graph, &only_b),
        "index      %  self ms  child ms  function\n\
         \x20               10.00     50.00      a [1]\n\
         [3]    66.67    10.00     50.00  b [3]\n\
         \x20               50.00      0.00      c\\u{1b}[31m [2]\n\
         ----------------------------------------------------\n"
    );
    assert!(text(View::Graph).contains("    20.00     70.00      <root>\n[1]    100.00"), "{}", text(View::Graph));
}

#[test]
fn stacks() {
    let text = text(View::Stacks);
    assert!(
        text.starts_with("# <leaf,...,root> weight in ns of cpu-clock\n<c\\u{1b}[31m,b,a> 50000000\n<a> 20000000\n")
    );
}

#[test]
fn lines() {
    let text = text(View::Lines);
    assert!(text.contains("  10.00   11.11    6.15..19.26    10.00  11.11      x.c:3\n"), "{text}");
    assert!(
        text.contains(
            "\n# lines of calls are not known here, or not by this grouping: the total of a line is what ran in it\n"
        ),
        "{text}"
    );
    assert!(text.contains("[line not known]\n"), "{text}");
}

#[test]
fn threads() {
    let text = text(View::Threads);
    assert!(text.contains(" 7  p\n") && text.contains(" 7      main\n"), "{text}");
}

#[test]
fn stats() {
    let text = text(View::Stats);
    assert!(
        text.contains("samples              90\n") && text.contains("file              100 B  1.11 bytes a sample\n"),
        "{text}"
    );
}

fn named(text: &str, profile: &Profile) -> NamedFunctions {
    NamedFunctions::new(&text.parse().unwrap(), profile)
}

#[test]
fn an_exact_name_wins_over_a_part_of_one() {
    let profile = example();
    let matches = |text: &str| -> Vec<String> {
        let named = named(text, &profile);
        let ids = (2u32..).map(CostCentreId::new).take(profile.cost_centres().len() - 2);
        ids.filter(|&id| named.contains(id)).map(|id| profile.name(id).into_owned()).collect()
    };
    assert_eq!(matches("a"), ["a"]);
    assert_eq!(matches("[31m"), ["c\x1b[31m"]);
    assert_eq!((matches("/^[ab]$/"), matches("b*")), (vec!["a".to_owned(), "b".to_owned()], vec!["b".to_owned()]));
    let none = Presentation { functions: Some(named("nosuch", &profile)), ..shown(&profile) };
    assert_eq!(view_text(View::Graph, &none), "no sample was taken in a function that matches \"*nosuch*\"\n");
}

/// `main` calls `run`, which calls a library, and a thread, below start-up code.
fn program() -> Profile {
    let metrics = vec![ProfileMetric { name: "cpu-clock".to_owned(), unit: Unit::Nanoseconds }];
    let mut profile = Profile::new(SessionInfo { metrics, ..SessionInfo::default() }, ProfileLimits::default());
    let mut image = |name: &str| profile.add_image(ccsd_profile::Image { name: name.to_owned(), build_id: Vec::new() });
    let (app, libc) = (image("/srv/app"), image("/usr/lib/libc.so.6"));
    let mut function = |image, name: &str, file: Option<&str>| {
        profile.add_cost_centre(CostCentre { file: file.map(str::to_owned), line: 7, ..CostCentre::named(image, name) })
    };
    let start = [function(app, "_start", None), function(libc, "__libc_start_main", Some("../csu/libc-start.c"))];
    let main = function(app, "main", Some("/src/app.c"));
    let run = function(app, "run", Some("/src/app.c"));
    let copy = function(app, "std::copy", Some("/usr/include/c++/12/copy.h"));
    let memcpy = function(libc, "memcpy", None);
    let process = profile.add_process(Process { exec_generation: 1, ..Process::new(7, 0, "p") });
    let thread = profile.add_thread(Thread { process, tid: 7, name: "main".to_owned() });
    for (stack, samples) in [(&[main][..], 20), (&[main, run], 10), (&[main, run, copy, memcpy], 70)] {
        let table = profile.contexts_mut();
        let context =
            start.iter().chain(stack).fold(ccsd_profile::ContextId::ROOT, |context, &f| table.push(context, f));
        for _ in 0..samples {
            profile.charge(thread, context, LineId::UNKNOWN, &[1_000_000]);
        }
    }
    profile.accounting_mut().received = 100;
    profile
}

#[test]
fn the_summary_answers() {
    let text = view_text(View::Summary, &shown(&program()));
    assert_eq!(
        text,
        "80% of the time is in run (app.c:7), which calls std::copy: 70%\n\
         \n\
         total %  most expensive chain of calls\n\
         \x20100.00  main  app.c:7\n\
         \x20 80.00    run  app.c:7\n\
         \x20 70.00      std::copy\n\
         \n\
         total ms       %  self ms      %  where      function\n\
         \x20 100.00  100.00    20.00  20.00  app.c:7    main\n\
         \x20  80.00   80.00    10.00  10.00  app.c:7    run\n\
         ------------------------------------------------------\n\
         \x20  70.00   70.00    70.00  70.00  libc.so.6  memcpy\n\
         \x20  70.00   70.00     0.00   0.00  app        std::copy\n"
    );
}

#[test]
fn the_summary_names_the_programs_if_there_are_several() {
    let mut profile = program();
    let main = profile.find_cost_centre(ImageId::new(1), Some("main"), None, None).unwrap();
    let context = profile.contexts_mut().push(ccsd_profile::ContextId::ROOT, main);
    let mut run = |pid, name: &str, samples| {
        let name = || name.to_owned();
        let process = profile.add_process(Process { exec_generation: 1, ..Process::new(pid, 0, name()) });
        let thread = profile.add_thread(Thread { process, tid: pid, name: name() });
        (0..samples).for_each(|_| profile.charge(thread, context, LineId::UNKNOWN, &[1_000_000]));
        view_text(View::Summary, &shown(&profile)).lines().next().unwrap().to_owned()
    };
    assert!(run(8, "cc1", 6).starts_with("75% of the time is in run"));
    assert!(run(9, "cc1", 5).starts_with("72% of the time is in run"));
    assert_eq!(run(10, "l\u{1b}d", 4), "87% of the time is in p, 10% in cc1, 3% in 1 other program");
    assert_eq!(run(11, "as", 95), "48% of the time is in p, 45% in as, 5% in cc1, 2% in 1 other program");
}

#[test]
fn nothing_was_sampled() {
    let profile = Profile::new(SessionInfo::default(), ProfileLimits::default());
    let text = short(&profile, None, false, TextLayout::PLAIN);
    assert!(text.contains("no samples"), "{text}");
}

#[test]
fn why_a_view_is_empty() {
    let said = |change: &dyn Fn(&mut Accounting)| {
        let mut profile = Profile::new(SessionInfo::default(), ProfileLimits::default());
        change(profile.accounting_mut());
        shown(&profile).nothing()
    };
    // Interrupted before the expected number was known.
    assert_eq!(said(&|_| ()), "no samples\n");
    assert!(said(&|accounting| accounting.expected = Some(1)).contains("too little CPU time"));
    let mut setuid = Profile::new(SessionInfo::default(), ProfileLimits::default());
    setuid.accounting_mut().expected = Some(400);
    setuid.session_mut().notes.push(format!("{} in a program", notes::OTHER_RIGHTS));
    let why = shown(&setuid).nothing();
    assert_eq!(why, format!("no samples: {} in a program\n", notes::OTHER_RIGHTS));
    let all_left_out = said(&|accounting| (accounting.expected, accounting.received) = (Some(9), 9));
    assert!(all_left_out.contains("nothing is left"), "{all_left_out}");
}

#[test]
fn no_view_shows_raw_escapes() {
    for &view in View::value_variants() {
        assert!(!text(view).contains('\x1b'), "{view:?}");
    }
}

#[test]
fn json_of_every_view_stands_under_its_name() {
    let profile = example();
    for &view in View::value_variants() {
        let file = file::LoadedFile {
            session: None,
            path: "x.ccsd".into(),
            profile: example(),
            recovery: ccsd_profile::Recovery::Whole,
            finished: true,
            records: 3,
            bytes: 100,
            stored: None,
            intervals: None,
        };
        let text =
            json::document(view, &Presentation { limit: Some(1), ..shown(&profile) }, &file, &Question::default())
                .unwrap();
        assert!(!text.contains('\x1b'));
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["view"], view.name());
        assert_eq!(document["metric"]["unit"], "ns");
        let data = &document[view.name()];
        assert!(data.is_object(), "{text}");
        match view {
            View::Summary => {
                assert_eq!((&data["chain"][0]["name"], &data["headline"]), (&"a".into(), &0.into()));
                assert_eq!(data["others"].as_array().map(Vec::len), Some(3));
            }
            View::Flat => {
                assert_eq!(data["rows"][0]["name"], "c\x1b[31m");
                assert_eq!(
                    (&data["rows"][0]["self_weight"], &data["other"]["functions"]),
                    (&60_000_000.into(), &2.into())
                );
            }
            View::Graph => assert_eq!((&data["nodes"][0]["index"], &data["left_out"]), (&1.into(), &2.into())),
            View::Stacks => {
                assert_eq!((&data["rows"][0]["stack"][0]["marked"], &data["left_out"]), (&true.into(), &3.into()));
                let leaf = data["rows"][0]["stack"][2]["function"].to_string();
                assert_eq!(data["names"][leaf], "c\x1b[31m");
            }
            View::Lines => assert_eq!(data["functions"][0]["inherited_weight"], 90_000_000),
            View::Threads => assert_eq!(data["processes"][0]["threads"][0]["tid"], 7),
            View::Cycles => assert_eq!(data["rows"].as_array().map(Vec::len), Some(0)),
            View::Stats => assert_eq!(data["states"], 4),
            View::Tree | View::Flame => {
                assert_eq!((&data["nodes"][0]["weight"], &data["roots"][0]), (&90_000_000.into(), &0.into()))
            }
            View::BottomUp => {
                assert_eq!((&data["nodes"][0]["weight"], &data["other"]["nodes"]), (&60_000_000.into(), &2.into()))
            }
            View::Butterfly => assert_eq!(data["functions"][0]["callers"]["roots"][0], 0),
            // Without a file there are no intervals.
            View::Timeline => assert_eq!(data["columns"], serde_json::json!([])),
            View::Hot => assert_eq!(data["paths"][0]["steps"][0]["name"], "a"),
        }
    }
}
