//! What processes belong to: record 130 of a file, and what units, containers and users have used.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use ccsd_profile::query::{Grouping, Pattern};
use ccsd_profile::view::{FlatView, Selection};
use ccsd_profile::*;
use common::session;

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Control group, user and weight of each process; no group where it was not looked at.
type GroupMembers<'a> = [(Option<&'a str>, u32, u64)];

fn charge(profile: &mut Profile, first_pid: u32, members: &GroupMembers<'_>) {
    let image = profile.add_image(Image { name: "/usr/bin/demo".into(), build_id: vec![1] });
    for (pid, (cgroup, uid, weight)) in (first_pid..).zip(members) {
        let user = if *uid == 33 { "www-data".to_owned() } else { String::new() };
        let membership = cgroup.map(|cgroup| {
            let container_name = if cgroup.contains("docker-") { "web".to_owned() } else { String::new() };
            Arc::new(Membership { cgroup: cgroup.to_owned(), uid: Some(*uid), user, container_name })
        });
        let process = profile.add_process(Process { membership, ..Process::new(pid, 100, "demo") });
        let function = profile.add_cost_centre(CostCentre {
            start: Some(0x1000),
            file: Some("demo.c".into()),
            line: 3,
            ..CostCentre::named(image, "main")
        });
        let thread = profile.add_thread(Thread { process, tid: pid, name: "demo".into() });
        let context = profile.contexts_mut().push(ContextId::ROOT, function);
        profile.charge(thread, context, LineId::UNKNOWN, &[*weight]);
        profile.accounting_mut().received += 1;
    }
}

fn members() -> Vec<(Option<String>, u32, u64)> {
    vec![
        (Some("/system.slice/nginx.service".to_owned()), 33, 1),
        (Some("/system.slice/nginx.service/worker".to_owned()), 33, 2),
        (Some(format!("/system.slice/docker-{ID}.scope")), 0, 4),
        (Some("/machine.slice/systemd-nspawn@web.service".to_owned()), 0, 8),
        (Some("/".to_owned()), 0, 16),
        (Some(Membership::KERNEL.to_owned()), 0, 32),
        (None, 0, 64),
    ]
}

fn with_members(profile: &mut Profile, first_pid: u32) {
    let members = members();
    let members: Vec<_> = members.iter().map(|(cgroup, uid, weight)| (cgroup.as_deref(), *uid, *weight)).collect();
    charge(profile, first_pid, &members);
}

fn weights(profile: &Profile, by: Grouping) -> BTreeMap<String, u64> {
    let by = profile.by(by);
    FlatView::new(&by, &Selection::all()).rows.into_iter().map(|row| (row.name, row.self_weight)).collect()
}

fn assert_groups(profile: &Profile, times: u64) {
    let expect = |by: Grouping, rows: &[(&str, u64)]| {
        let rows: BTreeMap<String, u64> =
            rows.iter().map(|(name, weight)| ((*name).to_owned(), times * weight)).collect();
        assert_eq!(weights(profile, by), rows, "{by:?}");
    };
    let scope = format!("docker-{ID}.scope");
    expect(
        Grouping::Unit,
        &[
            ("nginx.service", 3),
            (&scope, 4),
            ("systemd-nspawn@web.service", 8),
            ("[no unit]", 16),
            ("[kernel threads]", 32),
            ("[unknown]", 64),
        ],
    );
    expect(
        Grouping::Container,
        &[
            ("[no container]", 19),
            ("docker 0123456789ab (web)", 4),
            ("nspawn web", 8),
            ("[kernel threads]", 32),
            ("[unknown]", 64),
        ],
    );
    expect(Grouping::User, &[("www-data", 3), ("uid 0", 60), ("[unknown]", 64)]);
    for by in Grouping::ALL {
        assert_eq!(weights(profile, by).values().sum::<u64>(), times * 127, "{by:?}");
    }
}

#[test]
fn sums_by_what_processes_belong_to() {
    let mut profile = Profile::new(session(), ProfileLimits::default());
    with_members(&mut profile, 10);
    assert_groups(&profile, 1);
    // Of another host, or of another time: the same names.
    let mut other = Profile::new(session(), ProfileLimits::default());
    with_members(&mut other, 1_000);
    profile.merge(&other).unwrap();
    assert_groups(&profile, 2);
}

#[test]
fn groups_are_in_the_file() {
    let mut profile = Profile::new(session(), ProfileLimits::default());
    let mut encoder = Encoder::new(Vec::new(), profile.session()).unwrap();
    with_members(&mut profile, 10);
    encoder.write(&profile.take_update()).unwrap();
    let first = encoder.get_ref().len();
    // More processes of the same groups, and of another one, later.
    with_members(&mut profile, 20);
    charge(&mut profile, 40, &[(Some("/system.slice/late.service"), 1, 1_000)]);
    encoder.write(&profile.take_update()).unwrap();
    let bytes = encoder.finish().unwrap();
    let read = |bytes: &[u8]| read_profile(bytes).unwrap().profile;
    let whole = read(&bytes);
    assert_eq!(whole.canonical(), profile.canonical());
    assert_eq!(weights(&whole, Grouping::Unit)["late.service"], 1_000);
    assert_groups(&read(&bytes[..first]), 1);
    for end in first..bytes.len() {
        let units = weights(&read(&bytes[..end]), Grouping::Unit);
        assert!(units["nginx.service"] == 3 || units.get("late.service") == Some(&1_000), "{end}: {units:?}");
    }
}

#[test]
fn a_container_is_chosen_by_its_name() {
    let mut profile = Profile::new(session(), ProfileLimits::default());
    with_members(&mut profile, 10);
    let threads = |text: &str| text.parse::<Pattern>().unwrap().threads(&profile).unwrap().len();
    assert_eq!((threads("container:web"), threads("container:docker 0123456789ab (web)")), (2, 1));
    assert_eq!((threads("container:we?"), threads("container:/^web$/"), threads("container:nothing")), (1, 1, 0));
}
