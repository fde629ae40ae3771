//! The payload of a crash.

use super::wire::{Cursor, Wrong, put, put_len, put_signed, put_str};
use crate::crash::{Crash, EarlierStack, FrameInfo};

/// Longest payload: what a [`Crash`] may hold by its own limits takes less.
pub(super) const MAX_CRASH_BYTES: usize = 1 << 20;

pub(super) fn put_crash(out: &mut Vec<u8>, crash: &Crash) {
    let Crash {
        unix_ns,
        pid,
        tid,
        process,
        thread,
        signal,
        code,
        frames,
        stack,
        left_out_after,
        left_out,
        truncated,
        // In a record of its own: readers that do not know it take the rest.
        earlier: _,
    } = crash;
    put(out, *unix_ns);
    put(out, u64::from(*pid));
    put(out, u64::from(*tid));
    put_str(out, process);
    put_str(out, thread);
    put(out, u64::from(*signal));
    put_signed(out, i64::from(*code));
    put_len(out, frames.len());
    for frame in frames {
        put_str(out, &frame.function);
        put_str(out, &frame.image);
        put_str(out, frame.file.as_deref().unwrap_or_default());
        put(out, u64::from(frame.line));
        out.push(u8::from(frame.inlined));
        put(out, frame.address);
        put(out, u64::from(frame.function_id));
    }
    put_len(out, stack.len());
    for &at in stack {
        put(out, u64::from(at));
    }
    put(out, u64::from(*left_out_after));
    put(out, *left_out);
    put_str(out, truncated.as_deref().unwrap_or_default());
}

pub(super) fn crash(from: &mut Cursor<'_>) -> Result<Crash, Wrong> {
    let (unix_ns, pid, tid) = (from.get()?, from.get_u32()?, from.get_u32()?);
    let (process, thread) = (from.string()?, from.string()?);
    let (signal, code) = (from.get_u32()?, i32::try_from(from.signed()?).map_err(|_| "number too large")?);
    let frames = from.list(|from| {
        Ok(FrameInfo {
            function: from.string()?,
            image: from.string()?,
            file: Some(from.string()?).filter(|file| !file.is_empty()),
            line: from.get_u32()?,
            inlined: from.byte()? != 0,
            address: from.get()?,
            function_id: from.get_u32()?,
        })
    })?;
    let stack = from.list(Cursor::get_u32)?;
    if stack.iter().any(|&at| at as usize >= frames.len()) {
        return Err("an entry of a stack is missing");
    }
    let (left_out_after, left_out) = (from.get_u32()?, from.get()?);
    let truncated = Some(from.string()?).filter(|why| !why.is_empty());
    Ok(Crash {
        unix_ns,
        pid,
        tid,
        process,
        thread,
        signal,
        code,
        frames,
        stack,
        left_out_after,
        left_out,
        truncated,
        earlier: None,
    })
}

pub(super) fn put_earlier(out: &mut Vec<u8>, earlier: &EarlierStack) {
    put(out, earlier.age_ns);
    put_len(out, earlier.stack.len());
    for &at in &earlier.stack {
        put(out, u64::from(at));
    }
}

/// The earlier stack of a crash that has `frames` entries.
pub(super) fn earlier(from: &mut Cursor<'_>, frames: usize) -> Result<EarlierStack, Wrong> {
    let age_ns = from.get()?;
    let stack = from.list(Cursor::get_u32)?;
    if stack.iter().any(|&at| at as usize >= frames) {
        return Err("an entry of an earlier stack is missing");
    }
    Ok(EarlierStack { age_ns, stack })
}
