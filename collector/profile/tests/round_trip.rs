//! A small session through the whole crate.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ccsd_profile::*;

fn session() -> Session {
    Session {
        target: "demo".into(),
        metrics: vec![Metric { name: "cpu-clock".into(), unit: Unit::Nanoseconds }],
        ..Session::default()
    }
}

#[test]
fn a_session_written_and_read() {
    let mut profile = Profile::new(session(), Limits::default());
    let image = profile.add_image(Image { name: "/usr/bin/demo".into(), build_id: vec![1, 2, 3] });
    let process =
        profile.add_process(Process { pid: 7, start_time: 100, exec_generation: 0, parent: None, name: "demo".into() });
    let thread = profile.add_thread(Thread { process, tid: 7, name: "demo".into() });
    let mut encoder = Encoder::new(Vec::new(), profile.session()).unwrap();
    for round in 1..=3u64 {
        let mut context = ContextId::ROOT;
        for name in ["main", "f", "g", "f"].iter().take(round as usize + 1) {
            let function = profile.add_cost_centre(CostCentre {
                image,
                linkage_name: Some((*name).into()),
                display_name: None,
                start: None,
                file: Some("demo.c".into()),
                line: 1,
            });
            context = profile.contexts_mut().push(context, function);
        }
        let line = profile.add_line("demo.c", round as u32);
        profile.charge(thread, context, line, &[1_000_000]);
        profile.accounting_mut().received += 1;
        let update = profile.take_update();
        encoder.write(&update).unwrap();
    }
    let file = encoder.finish().unwrap();
    let loaded = read_profile(&file[..]).unwrap();
    assert!(matches!(loaded.recovery, Recovery::Whole) && loaded.finished);
    assert_eq!(loaded.profile.canonical(), profile.canonical());
    assert_eq!(loaded.profile.accounting(), profile.accounting());
}
