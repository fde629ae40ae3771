//! What comes over the daemon's socket, in either direction.

use ccsd_daemon::protocol::frame::{FrameKind, MAX_FRAME_BYTES, read_frame, write_frame};
use ccsd_daemon::protocol::message::{Hello, Reply, Request};
use ccsd_daemon::protocol::{parse, send};

/// Reads frames to the end, and each as every message that it may be. What can be read can be sent, and is then the same.
pub fn run(data: &[u8]) {
    let mut rest = data;
    let (mut payload, mut same_payload) = (Vec::new(), Vec::new());
    while let Ok(Some(kind)) = read_frame(&mut rest, &mut payload) {
        assert!(payload.len() <= MAX_FRAME_BYTES);
        let mut again = Vec::new();
        write_frame(&mut again, kind, &payload).expect("a frame that was read can be written");
        let same_kind = read_frame(&mut &again[..], &mut same_payload).expect("it can be read again");
        assert_eq!((same_kind, &same_payload), (Some(kind), &payload));
        assert_stable::<Hello>(kind, &payload);
        assert_stable::<Request>(kind, &payload);
        assert_stable::<Reply>(kind, &payload);
    }
}

fn assert_stable<T: serde::Serialize + serde::de::DeserializeOwned>(kind: FrameKind, payload: &[u8]) {
    let Ok(message) = parse::<T>(kind, payload) else { return };
    let (mut first, mut second) = (Vec::new(), Vec::new());
    // Times and lists may have grown by their defaults.
    if send(&mut first, &message).is_err() {
        return;
    }
    let mut payload = Vec::new();
    let Ok(Some(kind)) = read_frame(&mut &first[..], &mut payload) else { panic!("what was sent cannot be read") };
    let again = parse::<T>(kind, &payload).expect("what was sent is understood");
    send(&mut second, &again).expect("it was sent before");
    assert_eq!(first, second);
}
