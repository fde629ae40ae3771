//! Frames: a kind byte, a length (u32, little-endian), and so many bytes.
//!
//! No frame is larger than [`MAX_FRAME_BYTES`], whatever its kind, so that a length is either refused or small: nothing is
//! allocated on a stranger's word. The records of a profile, which may be larger, are cut into as many frames as it takes.

use std::io::{self, ErrorKind, Read, Write};

/// Largest payload of a frame, in bytes. Control messages are a few hundred bytes; a list of 1,000 sessions is cut by who
/// sends it.
pub const MAX_FRAME_BYTES: usize = 64 * 1024;

/// Bytes before the payload.
pub const HEADER_BYTES: usize = 5;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A control message, in JSON.
    Control,
    /// A piece of a stream of profile records.
    Stream,
}

impl Kind {
    /// As it is sent. Letters, so that a frame can be recognised in a trace.
    const fn byte(self) -> u8 {
        match self {
            Kind::Control => b'C',
            Kind::Stream => b'S',
        }
    }
}

/// Why there is no frame.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// Reading or writing failed, or took too long.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The stream ends within a frame.
    #[error("the connection ended in the middle of a message")]
    Half,
    /// The first byte is that of no frame: the other side speaks something else.
    #[error("not a ccsd message (kind {0:#04x})")]
    Kind(u8),
    /// More than any frame has.
    #[error("a message of {0} bytes is longer than the {MAX_FRAME_BYTES} that are allowed")]
    TooLong(u64),
}

/// Writes a frame with one call.
///
/// # Errors
/// [`FrameError::TooLong`], or that of the writer; the other side may have got a part of the frame then.
pub fn write_frame(out: &mut impl Write, kind: Kind, payload: &[u8]) -> Result<(), FrameError> {
    let length = u32::try_from(payload.len()).ok().filter(|_| payload.len() <= MAX_FRAME_BYTES);
    let length = length.ok_or(FrameError::TooLong(payload.len() as u64))?;
    let mut frame = Vec::with_capacity(HEADER_BYTES + payload.len());
    frame.push(kind.byte());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(payload);
    out.write_all(&frame)?;
    Ok(out.flush()?)
}

/// Reads a frame into `payload`. `None` where the stream ends between two frames.
///
/// # Errors
/// All of [`FrameError`]; the stream cannot be made sense of any more then.
pub fn read_frame(input: &mut impl Read, payload: &mut Vec<u8>) -> Result<Option<Kind>, FrameError> {
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

/// Reads what follows the first byte of a frame.
///
/// # Errors
/// As [`read_frame`].
pub fn read_rest(first: u8, input: &mut impl Read, payload: &mut Vec<u8>) -> Result<Kind, FrameError> {
    let kind = match first {
        b'C' => Kind::Control,
        b'S' => Kind::Stream,
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

/// A writer whose bytes go out in stream frames.
#[derive(Debug)]
pub struct StreamWriter<W>(pub W);

impl<W: Write> Write for StreamWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = bytes.get(..MAX_FRAME_BYTES).unwrap_or(bytes);
        match write_frame(&mut self.0, Kind::Stream, piece) {
            Ok(()) => Ok(piece.len()),
            Err(FrameError::Io(error)) => Err(error),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
