//! The body of an update as it is stored: deflated, where that makes it shorter.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

use super::wire::{Cursor, Wrong, put_len};
use crate::limits::MAX_RECORD_BYTES;

const PLAIN: u8 = 0;
/// The body's length follows, and then the body by deflate.
const DEFLATED: u8 = 1;

/// Shorter bodies are not worth it.
const LEAST_BYTES: usize = 64;
/// Most bytes that one stored byte may become, so that a small file takes little time and memory to read.
const MOST_GROWTH: usize = 16;
/// A deflate block of no bytes, which makes longer what deflates further than that.
const PADDING: [u8; 5] = [0, 0, 0, 0xff, 0xff];

#[derive(Clone, Copy, Debug)]
pub(super) enum Effort {
    /// For what is written while a session goes on: two thirds of the time of the usual level 6, for one percent more.
    Live = 4,
    Last = 6,
}

pub(super) fn pack(body: &mut Vec<u8>, effort: Effort) {
    let mut packed = vec![DEFLATED];
    put_len(&mut packed, body.len());
    let header = packed.len();
    let mut encoder = DeflateEncoder::new(packed, Compression::new(effort as u32));
    // Writing to memory does not fail.
    let mut packed = encoder.write_all(body).and_then(|()| encoder.finish()).unwrap_or_default();
    let lacking = body.len().div_ceil(MOST_GROWTH).saturating_sub(packed.len());
    let is_packed = packed.len() > header;
    if is_packed {
        packed.splice(header..header, PADDING.repeat(lacking.div_ceil(PADDING.len())));
    }
    let is_shorter = is_packed && body.len() >= LEAST_BYTES && packed.len() < body.len();
    // A body too large for a record stays so: that is reported where it is written.
    if is_shorter && body.len() <= MAX_RECORD_BYTES {
        *body = packed;
    } else {
        body.insert(0, PLAIN);
    }
}

pub(super) fn unpack(payload: &[u8]) -> Result<Vec<u8>, Wrong> {
    let mut from = Cursor::new(payload);
    match from.byte()? {
        PLAIN => Ok(from.rest().to_vec()),
        DEFLATED => {
            let length = usize::try_from(from.get()?).map_err(|_| "number too large")?;
            if length > MAX_RECORD_BYTES || length > MOST_GROWTH * payload.len() {
                return Err("more than so many bytes may hold");
            }
            let mut body = Vec::with_capacity(length);
            let mut decoder = DeflateDecoder::new(from.rest());
            decoder.by_ref().take(length as u64 + 1).read_to_end(&mut body).map_err(|_| "cannot be inflated")?;
            let is_whole = body.len() == length && decoder.total_in() == from.rest().len() as u64;
            if is_whole { Ok(body) } else { Err("not as long as it says") }
        }
        _ => Err("stored in an unknown way"),
    }
}
