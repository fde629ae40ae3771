//! What clients and daemon say to each other: [`frame`]s with control [`message`]s and pieces of profile streams.
//!
//! ```text
//! client                                   daemon
//! Hello {protocol, ccsd, pid}        ->
//!                                    <-    Hello, and Refused if it is of another protocol
//! Request                            ->
//!                                    <-    Reply
//! Subscribe                          ->
//!                                    <-    Stream, S-frames..., [Stream, S-frames...], StreamEnd
//! ```
//!
//! The bytes of the S-frames of one stream, put together, are a profile file (`ccsd_profile::codec`): the session, a
//! snapshot, updates, and the end record if the session has ended. One reader reads both.

pub mod frame;
pub mod message;

use std::io::Write;

use serde::Serialize;
use serde::de::DeserializeOwned;

use frame::{FrameError, Kind, write_frame};

/// Sends a control message.
///
/// # Errors
/// [`FrameError::TooLong`], or that of the writer.
pub fn send(out: &mut impl Write, message: &impl Serialize) -> Result<(), FrameError> {
    let payload = serde_json::to_vec(message).map_err(std::io::Error::other)?;
    write_frame(out, Kind::Control, &payload)
}

/// Reads a control message out of a frame's payload.
///
/// # Errors
/// A sentence that says what is wrong with it.
pub fn parse<T: DeserializeOwned>(kind: Kind, payload: &[u8]) -> Result<T, String> {
    match kind {
        Kind::Control => {
            serde_json::from_slice(payload).map_err(|error| format!("a message is not understood: {error}"))
        }
        Kind::Stream => Err("a piece of a profile came where a message was due".to_owned()),
    }
}
