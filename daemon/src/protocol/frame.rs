//! Frames: a kind byte, a length (u32, little-endian), and a payload.
//!
//! No frame exceeds [`MAX_FRAME_BYTES`], so allocations are bounded. Larger profile records are split.

use std::io::{self, ErrorKind, Read, Write};

/// Maximum payload of a frame in bytes. Control messages take a few hundred bytes; the sender splits longer lists.
pub const MAX_FRAME_BYTES: usize = 64 * 1024;

/// Bytes before the payload.
pub const HEADER_BYTES: usize = 5;

/// The content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A control message, in JSON.
    Control,
    /// A part of a stream of profile records.
    Stream,
}

impl FrameKind {
    /// The byte on the wire: a letter, so that frames can be recognised in a trace.
    const fn byte(self) -> u8 {
        match self {
            FrameKind::Control => b'C',
            FrameKind::Stream => b'S',
        }
    }
}

/// Why a frame could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// Reading or writing failed, or took too long.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The stream ends within a frame.
    #[error("the connection ended in the middle of a message")]
    Half,
    /// The first byte is not a frame kind: the peer speaks another protocol.
    #[error("not a ccsd message (kind {0:#04x})")]
    Kind(u8),
    /// The length exceeds the maximum.
    #[error("a message of {0} bytes is longer than the {MAX_FRAME_BYTES} that are allowed")]
    TooLong(u64),
}

/// Writes a frame with one call.
///
/// # Errors
/// [`FrameError::TooLong`], or that of the writer; part of the frame may then have been sent.
pub fn write_frame(out: &mut impl Write, kind: FrameKind, payload: &[u8]) -> Result<(), FrameError> {
    let length = u32::try_from(payload.len()).ok().filter(|_| payload.len() <= MAX_FRAME_BYTES);
    let length = length.ok_or(FrameError::TooLong(payload.len() as u64))?;
    let mut frame = Vec::with_capacity(HEADER_BYTES + payload.len());
    frame.push(kind.byte());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(payload);
    out.write_all(&frame)?;
    Ok(out.flush()?)
}

/// Reads a frame into `payload`. `None` if the stream ends between two frames.
///
/// # Errors
/// All of [`FrameError`]; the stream is then unusable.
pub fn read_frame(input: &mut impl Read, payload: &mut Vec<u8>) -> Result<Option<FrameKind>, FrameError> {
    let mut first = [0];
    loop {
        match input.read(&mut first) {
            Ok(0) => return Ok(None),
            Ok(_) => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    read_rest(first[0], input, payload).map(Some)
}

/// Reads a frame after its first byte.
pub fn read_rest(first: u8, input: &mut impl Read, payload: &mut Vec<u8>) -> Result<FrameKind, FrameError> {
    let kind = match first {
        b'C' => FrameKind::Control,
        b'S' => FrameKind::Stream,
        other => return Err(FrameError::Kind(other)),
    };
    let mut length = [0; 4];
    fill(input, &mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_FRAME_BYTES {
        return Err(FrameError::TooLong(length as u64));
    }
    payload.clear();
    payload.resize(length, 0);
    fill(input, payload)?;
    Ok(kind)
}

fn fill(input: &mut impl Read, buffer: &mut [u8]) -> Result<(), FrameError> {
    input.read_exact(buffer).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => FrameError::Half,
        _ => FrameError::Io(error),
    })
}

/// A writer that sends its bytes as stream frames.
#[derive(Debug)]
pub struct StreamWriter<W>(pub W);

impl<W: Write> Write for StreamWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = bytes.get(..MAX_FRAME_BYTES).unwrap_or(bytes);
        match write_frame(&mut self.0, FrameKind::Stream, piece) {
            Ok(()) => Ok(piece.len()),
            Err(FrameError::Io(error)) => Err(error),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A reader that returns a given number of bytes at a time, and counts the bytes requested.
    struct Drops<'a> {
        bytes: &'a [u8],
        at_once: usize,
    }

    impl Read for Drops<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.at_once.max(1).min(buffer.len()).min(self.bytes.len());
            let (now, rest) = self.bytes.split_at(count);
            buffer[..count].copy_from_slice(now);
            self.bytes = rest;
            Ok(count)
        }
    }

    proptest! {
        /// Frames are read back from pieces of any size; every prefix is an incomplete frame or empty.
        #[test]
        fn round_trip(payload in prop::collection::vec(any::<u8>(), 0..3000), at_once in 1..600usize, control: bool) {
            let kind = if control { FrameKind::Control } else { FrameKind::Stream };
            let mut bytes = Vec::new();
            write_frame(&mut bytes, kind, &payload).unwrap();
            let mut read = Vec::new();
            let mut input = Drops { bytes: &bytes, at_once };
            prop_assert_eq!(read_frame(&mut input, &mut read).unwrap(), Some(kind));
            prop_assert_eq!(&read, &payload);
            prop_assert_eq!(read_frame(&mut input, &mut read).unwrap(), None);
            for end in [1, 3, HEADER_BYTES, bytes.len() - 1] {
                let half = read_frame(&mut Drops { bytes: &bytes[..end.min(bytes.len() - 1)], at_once }, &mut read);
                prop_assert!(matches!(half, Err(FrameError::Half)), "{half:?}");
            }
        }

        /// Any input is a frame or an error, and takes no more memory than a frame may.
        #[test]
        fn anything(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in prop::sample::select(vec![b'C', b'S', b'X'])) {
            let mut payload = Vec::new();
            let mut input = bytes.as_slice();
            while let Ok(Some(_)) = read_frame(&mut input, &mut payload) {}
            let mut framed = vec![kind];
            framed.extend_from_slice(&bytes);
            let _ = read_frame(&mut framed.as_slice(), &mut payload);
            prop_assert!(payload.capacity() <= 2 * MAX_FRAME_BYTES);
        }

        /// A length beyond the limit is refused before anything is read or reserved.
        #[test]
        fn long(length in MAX_FRAME_BYTES as u32 + 1..=u32::MAX) {
            let mut bytes = vec![b'C'];
            bytes.extend_from_slice(&length.to_le_bytes());
            let mut payload = Vec::new();
            let refused = read_frame(&mut bytes.as_slice(), &mut payload);
            prop_assert!(matches!(refused, Err(FrameError::TooLong(found)) if found == u64::from(length)));
            prop_assert_eq!(payload.capacity(), 0);
        }

        /// A stream split into frames is read back whole.
        #[test]
        fn streams(pieces in prop::collection::vec(0..200_000usize, 0..4)) {
            let mut out = StreamWriter(Vec::new());
            let mut sent = Vec::new();
            for (i, piece) in pieces.iter().enumerate() {
                let bytes = vec![i as u8; *piece];
                out.write_all(&bytes).unwrap();
                sent.extend_from_slice(&bytes);
            }
            let (mut input, mut payload, mut got) = (out.0.as_slice(), Vec::new(), Vec::new());
            while let Some(kind) = read_frame(&mut input, &mut payload).unwrap() {
                prop_assert_eq!(kind, FrameKind::Stream);
                got.extend_from_slice(&payload);
            }
            prop_assert_eq!(got, sent);
        }
    }

    #[test]
    fn too_long_frames_are_not_written() {
        let mut out = Vec::new();
        let refused = write_frame(&mut out, FrameKind::Control, &vec![0; MAX_FRAME_BYTES + 1]);
        assert!(matches!(refused, Err(FrameError::TooLong(_))));
        assert_eq!(out, Vec::<u8>::new());
    }
}
