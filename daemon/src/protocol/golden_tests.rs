//! Every message of every version on the wire. `golden` never changes: clients and daemons of that version exist.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;

use ccsd_collector::{Options, ProcessSelection};
use serde_json::Value;

use super::message::{
    Answered, Asked, Collect, Hello, Refusal, RefusalKind, Reply, Request, SessionEnd, SessionSummary,
};
use crate::watch::WatchStatus;

type Messages = BTreeMap<String, Value>;

const V1: &str = include_str!("golden/v1.json");
const V2: &str = include_str!("golden/v2.json");

fn hello() -> Hello {
    Hello { protocol: 1, newest: 2, codec: 3, ccsd: "0.1.0".to_owned(), pid: 7 }
}

fn requests() -> Vec<(&'static str, Request)> {
    let collect = || Collect { overhead_ppm: Some(5_000), ..Collect::of(&Options::default()) };
    let selection = ProcessSelection { units: vec!["nginx.service".to_owned()], ..ProcessSelection::default() };
    let attach = Request::Attach {
        pids: vec![7, 8],
        starts: vec![70, 0],
        collect: collect(),
        duration_ms: Some(1_000),
        detach: true,
    };
    vec![
        ("attach", attach),
        ("machine", Request::Machine { selection, collect: collect(), duration_ms: None, detach: false }),
        ("adopt", Request::Adopt { pid: 9, command: vec!["./prog".to_owned()], collect: collect() }),
        ("list", Request::List),
        ("stop", Request::Stop { session: 3, target_cpu_ns: Some((1, 2)), forget: true }),
        ("forget", Request::Forget { session: 3 }),
        ("watches", Request::Watches),
        ("metrics", Request::Metrics),
        ("dump", Request::Dump { pid: 7, start: 70 }),
        ("subscribe", Request::Subscribe { session: 3, follow: true }),
    ]
}

fn ends() -> Vec<(&'static str, Option<SessionEnd>)> {
    vec![
        ("stream_end", None),
        ("stream_end_target", Some(SessionEnd::Target)),
        ("stream_end_stopped", Some(SessionEnd::Stopped)),
        ("stream_end_duration", Some(SessionEnd::Duration)),
        ("stream_end_client_gone", Some(SessionEnd::ClientGone)),
        ("stream_end_shutdown", Some(SessionEnd::Shutdown)),
        ("stream_end_not_permitted", Some(SessionEnd::NotPermitted("su".to_owned()))),
        ("stream_end_failed", Some(SessionEnd::Failed("no memory".to_owned()))),
    ]
}

fn replies() -> Vec<(&'static str, Reply)> {
    let summary = SessionSummary {
        id: 3,
        owner_uid: 1000,
        target: "prog".to_owned(),
        pids: vec![7],
        starts: Vec::new(),
        detached: false,
        ended: Some(SessionEnd::Stopped),
        started_unix_ns: 1,
        duration_ns: 2,
        event: "cpu-clock".to_owned(),
        rate_hz: 999,
        received: 4,
        lost: 5,
        contexts: 6,
        readers: 7,
        bytes: 8,
    };
    let watches = vec![WatchStatus { name: "web".to_owned(), ..WatchStatus::default() }];
    let mut all = vec![
        ("started", Reply::Started { session: 3 }),
        ("sessions", Reply::Sessions { sessions: vec![summary], more: false }),
        (
            "watches",
            Reply::Watches { watches, more: false, state_dir: Some("/var/lib/ccsd".to_owned()), problems: Vec::new() },
        ),
        ("metrics", Reply::Metrics { text: "# EOF\n".to_owned(), more: false }),
        ("dump", Reply::Dump { text: "{}".to_owned(), more: true }),
        ("done", Reply::Done),
        ("stream", Reply::Stream),
    ];
    all.extend(ends().into_iter().map(|(name, ended)| (name, Reply::StreamEnd { ended })));
    for (name, kind) in [
        ("refused_bad_request", RefusalKind::BadRequest),
        ("refused_not_permitted", RefusalKind::NotPermitted),
        ("refused_busy", RefusalKind::Busy),
        ("refused_version", RefusalKind::Version),
        ("refused_failed", RefusalKind::Failed),
    ] {
        all.push((name, Reply::Refused(Refusal::new(kind, "why"))));
    }
    all
}

fn newest() -> Messages {
    let mut all = Messages::new();
    all.insert("hello".to_owned(), serde_json::to_value(hello()).unwrap());
    for (name, request) in requests() {
        all.insert(format!("request {name}"), serde_json::to_value(Asked { id: 5, request }).unwrap());
    }
    for (name, reply) in replies() {
        all.insert(format!("reply {name}"), serde_json::to_value(Answered { id: 5, reply }).unwrap());
    }
    all
}

#[test]
fn messages_are_on_the_wire_as_they_have_been() {
    let golden: Messages = serde_json::from_str(V2).unwrap();
    let before: Messages = serde_json::from_str(V1).unwrap();
    for (name, reply) in replies() {
        let (now, golden) = (serde_json::to_value(reply).unwrap(), &before[&format!("reply {name}")]);
        assert!(says_all_of(&now, golden), "{name}: {now} is not {golden}");
    }
    let now = newest();
    assert_eq!(now.keys().collect::<Vec<_>>(), golden.keys().collect::<Vec<_>>());
    for (name, message) in &golden {
        assert!(says_all_of(&now[name], message), "{name}: {} is not {message}", now[name]);
    }
}

fn says_all_of(message: &Value, golden: &Value) -> bool {
    match (message, golden) {
        (Value::Object(message), Value::Object(golden)) => {
            golden.iter().all(|(field, value)| message.get(field).is_some_and(|it| says_all_of(it, value)))
        }
        (Value::Array(message), Value::Array(golden)) => {
            message.len() == golden.len() && message.iter().zip(golden).all(|(it, value)| says_all_of(it, value))
        }
        (message, golden) => message == golden,
    }
}

#[test]
fn messages_of_every_version_are_understood() {
    for (version, text) in [(1, V1), (2, V2)] {
        let golden: Messages = serde_json::from_str(text).unwrap();
        let of = |name: &str, field: &str| {
            let message = golden.get(name).unwrap_or_else(|| panic!("version {version} has no {name}"));
            if version == 1 { message.clone() } else { message[field].clone() }
        };
        for (name, mut request) in requests() {
            let found: Request = serde_json::from_value(of(&format!("request {name}"), "request")).unwrap();
            match &mut request {
                // Version 1 has no times.
                Request::Attach { starts, .. } if version == 1 => starts.clear(),
                Request::Dump { start, .. } if version == 1 => *start = 0,
                _ => {}
            }
            assert_eq!(found, request, "version {version}: {name}");
        }
        for (name, reply) in replies() {
            let found: Reply = serde_json::from_value(of(&format!("reply {name}"), "reply")).unwrap();
            assert_eq!(found, reply, "version {version}: {name}");
        }
        let found: Hello = serde_json::from_value(golden["hello"].clone()).unwrap();
        assert_eq!((found.pid, found.common_version()), (7, Some(version)));
    }
}

#[test]
fn messages_of_later_versions_are_understood() {
    let reply = |text: &str| serde_json::from_str::<Reply>(text).unwrap();
    let refused = reply(r#"{"refused":{"kind":"too_hot","message":"later"}}"#);
    assert_eq!(refused, Reply::Refused(Refusal::new(RefusalKind::Failed, "later")));
    for ended in [r#""eaten""#, r#"{"eaten":"by a bear"}"#] {
        let Reply::StreamEnd { ended: Some(why) } = reply(&format!(r#"{{"stream_end":{{"ended":{ended}}}}}"#)) else {
            panic!("{ended}")
        };
        assert!(why.text().contains("eaten"), "{}", why.text());
    }
    let hello = |text: &str| serde_json::from_str::<Hello>(text).unwrap().common_version();
    for (text, version) in [
        (r#"{"protocol":1,"ccsd":"0.1.0","pid":7}"#, Some(1)),
        (r#"{"protocol":2,"ccsd":"later","pid":7,"newest":9,"mood":"good"}"#, Some(2)),
        (r#"{"protocol":3,"ccsd":"later","pid":7,"newest":9}"#, None),
        (r#"{"protocol":0,"ccsd":"never","pid":7}"#, None),
        (r#"{"protocol":0,"ccsd":"never","pid":7,"newest":1}"#, Some(1)),
    ] {
        assert_eq!(hello(text), version, "{text}");
    }
}
