//! What clients and daemon say to each other: [`frame`]s with control [`message`]s and pieces of profile streams.
//!
//! ```text
//! client                                   daemon
//! Hello {protocol, newest, ccsd, pid} ->
//!                                    <-    Hello with the version chosen, or Refused if there is none
//! Asked {id, request}                ->
//!                                    <-    Answered {id, reply}
//! Subscribe                          ->
//!                                    <-    Stream, S-frames..., [Stream, S-frames...], StreamEnd
//! ```
//!
//! The bytes of the S-frames of one stream, put together, are a profile file (`ccsd_profile::codec`): the session, a
//! snapshot, updates, and the end record if the session has ended. One reader reads both.

pub mod frame;
pub mod in_time;
pub mod message;

use std::io::Write;

use serde::Serialize;
use serde::de::DeserializeOwned;

use frame::{FrameError, FrameKind, write_frame};

/// Sends a control message.
///
/// # Errors
/// [`FrameError::TooLong`], or that of the writer.
pub fn send(out: &mut impl Write, message: &impl Serialize) -> Result<(), FrameError> {
    let payload = serde_json::to_vec(message).map_err(std::io::Error::other)?;
    write_frame(out, FrameKind::Control, &payload)
}

/// Parses a control message from a frame's payload.
///
/// # Errors
/// A sentence that describes the mistake.
pub fn parse<T: DeserializeOwned>(kind: FrameKind, payload: &[u8]) -> Result<T, String> {
    match kind {
        FrameKind::Control => {
            serde_json::from_slice(payload).map_err(|error| format!("a message is not understood: {error}"))
        }
        FrameKind::Stream => Err("a piece of a profile came where a message was due".to_owned()),
    }
}

#[cfg(test)]
mod golden_tests;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::frame::{MAX_FRAME_BYTES, read_frame};
    use super::message::{Collect, Hello, Refusal, RefusalKind, Reply, Request, SessionEnd, SessionSummary, WhichCode};
    use super::*;
    use ccsd_collector::{Options, Overhead, ProcessSelection};
    use proptest::prelude::*;

    fn collect() -> impl Strategy<Value = Collect> {
        let scope = prop::sample::select(vec![WhichCode::Auto, WhichCode::Kernel, WhichCode::User]);
        let rate = any::<(u32, Option<u32>, bool)>();
        (".*", scope, rate, any::<(bool, bool, bool)>(), any::<(u64, u64)>()).prop_map(
            |(event, scope, (rate_hz, overhead_ppm, adapts), (inherit, per_cpu, arguments), (interval_ms, memory))| {
                Collect {
                    event,
                    scope,
                    rate_hz,
                    overhead_ppm,
                    adapts,
                    inherit,
                    per_cpu,
                    interval_ms,
                    memory,
                    arguments,
                }
            },
        )
    }

    fn request() -> impl Strategy<Value = Request> {
        let cpu = prop::option::of(any::<(u64, u64)>());
        prop_oneof![
            (prop::collection::vec(any::<u32>(), 0..9), collect(), prop::option::of(any::<u64>()), any::<bool>())
                .prop_map(|(pids, collect, duration_ms, detach)| Request::Attach {
                    starts: pids.iter().map(|&pid| u64::from(pid) * 3).collect(),
                    pids,
                    collect,
                    duration_ms,
                    detach
                }),
            (prop::collection::vec(".*", 0..3), any::<u32>(), collect()).prop_map(|(units, user, collect)| {
                let selection = ProcessSelection { units, users: vec![user], ..ProcessSelection::default() };
                Request::Machine { selection, collect, duration_ms: None, detach: true }
            }),
            (any::<u32>(), prop::collection::vec(".*", 0..5), collect())
                .prop_map(|(pid, command, collect)| Request::Adopt { pid, command, collect }),
            Just(Request::List),
            any::<(u32, u64)>().prop_map(|(pid, start)| Request::Dump { pid, start }),
            (any::<u32>(), cpu, any::<bool>()).prop_map(|(session, target_cpu_ns, forget)| Request::Stop {
                session,
                target_cpu_ns,
                forget
            }),
            any::<u32>().prop_map(|session| Request::Forget { session }),
            (any::<u32>(), any::<bool>()).prop_map(|(session, follow)| Request::Subscribe { session, follow }),
        ]
    }

    fn pass<T: Serialize + DeserializeOwned>(message: &T) -> T {
        let (mut bytes, mut payload) = (Vec::new(), Vec::new());
        send(&mut bytes, message).unwrap();
        let kind = read_frame(&mut bytes.as_slice(), &mut payload).unwrap().unwrap();
        parse(kind, &payload).unwrap()
    }

    proptest! {
        #[test]
        fn requests_arrive_as_they_were(request in request()) {
            prop_assert_eq!(pass(&request), request);
        }

        #[test]
        fn whatever_comes_is_a_message_or_a_sentence(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for kind in [FrameKind::Control, FrameKind::Stream] {
                if let Err(why) = parse::<Request>(kind, &bytes) {
                    prop_assert!(why.len() < 1000);
                }
                let _ = parse::<Reply>(kind, &bytes);
                let _ = parse::<Hello>(kind, &bytes);
            }
        }
    }

    #[test]
    fn a_list_fits_whatever_the_sessions_are_called() {
        // A maximum-size message: many, long fields, each character escaped to six in JSON.
        let summary = SessionSummary {
            id: u32::MAX,
            owner_uid: u32::MAX,
            target: "\u{1}".repeat(200),
            pids: vec![u32::MAX; 64],
            starts: vec![u64::MAX; 64],
            detached: false,
            ended: Some(SessionEnd::NotPermitted("x".repeat(300))),
            started_unix_ns: u64::MAX,
            duration_ns: u64::MAX,
            event: "cpu-clock+tsc:u".to_owned(),
            rate_hz: u32::MAX,
            received: u64::MAX,
            lost: u64::MAX,
            contexts: u64::MAX,
            readers: u32::MAX,
            bytes: u64::MAX,
        };
        let reply = Reply::Sessions { sessions: vec![summary; 16], more: true };
        assert!(serde_json::to_vec(&reply).unwrap().len() < MAX_FRAME_BYTES);
        assert_eq!(pass(&reply), reply);
        let refused = Reply::Refused(Refusal::new(RefusalKind::Busy, "no"));
        assert_eq!(pass(&refused), refused);
    }

    #[test]
    fn a_message_of_a_later_version_may_say_more() {
        let later = br#"{"attach":{"pids":[7],"collect":{"rate_hz":99,"colour":"red"},"mood":{"good":[1,2]}}}"#;
        let Ok(Request::Attach { pids, collect, detach, .. }) = parse(FrameKind::Control, later) else { panic!() };
        assert_eq!((pids, collect.rate_hz, detach), (vec![7], 99, false));
        assert!(collect.options().is_ok());
        assert_eq!((collect.overhead_ppm, collect.adapts), (None, true));
        assert!(Collect { overhead_ppm: Some(0), ..collect.clone() }.options().is_err());
    }

    #[test]
    fn options_survive() {
        let budget = ccsd_collector::Budget::of(100 << 20);
        let overhead = Some(Overhead::percent(0.5).unwrap());
        let rate = Options { rate_hz: 49, overhead, adapts: false, ..Options::default() };
        let options = Options { per_cpu: true, inherit: false, budget, ..rate };
        let back = Collect::of(&options).options().unwrap();
        assert_eq!((back.rate_hz, back.per_cpu, back.inherit), (49, true, false));
        assert_eq!((back.overhead, back.adapts), (overhead, false));
        assert_eq!((back.event, back.scope, back.interval), (options.event, options.scope, options.interval));
        assert_eq!(back.budget, options.budget);
    }
}
