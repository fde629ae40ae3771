//! Numbers and strings as bytes.

use super::split::RECORD_ITEMS;

pub(super) type Wrong = &'static str;

pub(super) const MAX_VARINT_BYTES: usize = 10;
pub(super) const MAX_LARGE_BYTES: usize = 19;

pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn put_large(out: &mut Vec<u8>, mut value: u128) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn put_len(out: &mut Vec<u8>, len: usize) {
    put(out, len as u64);
}

pub(super) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(out, ((value << 1) ^ (value >> 63)) as u64);
}

pub(super) fn put_delta(out: &mut Vec<u8>, value: u32, before: u32) {
    put_signed(out, i64::from(value) - i64::from(before));
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_len(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Text, cut to what a reader takes.
pub(super) fn put_str(out: &mut Vec<u8>, text: &str) {
    put_bytes(out, crate::symbols::clip(text).as_bytes());
}

/// 0 for nothing, else the value + 1; the largest value is one less.
pub(super) fn put_option(out: &mut Vec<u8>, value: Option<u64>) {
    put(out, value.map_or(0, |value| value.saturating_add(1)));
}

pub(super) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) const fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload }
    }

    pub(super) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) const fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn byte(&mut self) -> Result<u8, Wrong> {
        let (&byte, rest) = self.rest.split_first().ok_or("ends early")?;
        self.rest = rest;
        Ok(byte)
    }

    pub(super) fn get(&mut self) -> Result<u64, Wrong> {
        let mut value = 0u64;
        for i in 0..MAX_VARINT_BYTES {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if i == MAX_VARINT_BYTES - 1 && bits > 1 {
                return Err("number too large");
            }
            value |= bits << (7 * i);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("number too long")
    }

    pub(super) fn large(&mut self) -> Result<u128, Wrong> {
        let mut value = 0u128;
        for i in 0..MAX_LARGE_BYTES {
            let byte = self.byte()?;
            let bits = u128::from(byte & 0x7f);
            if i == MAX_LARGE_BYTES - 1 && bits > 3 {
                return Err("number too large");
            }
            value |= bits << (7 * i);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("number too long")
    }

    pub(super) fn get_u32(&mut self) -> Result<u32, Wrong> {
        u32::try_from(self.get()?).map_err(|_| "number too large")
    }

    pub(super) fn signed(&mut self) -> Result<i64, Wrong> {
        let value = self.get()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    pub(super) fn delta(&mut self, before: u32) -> Result<u32, Wrong> {
        let value = self.signed()?.checked_add(i64::from(before)).ok_or("id out of range")?;
        u32::try_from(value).map_err(|_| "id out of range")
    }

    pub(super) fn option(&mut self) -> Result<Option<u64>, Wrong> {
        Ok(self.get()?.checked_sub(1))
    }

    /// A number of items, each of which takes at least one byte. Nobody reserves by it.
    pub(super) fn count(&mut self) -> Result<usize, Wrong> {
        let count = usize::try_from(self.get()?).map_err(|_| "count too large")?;
        if count > self.rest.len() { Err("more items than bytes") } else { Ok(count) }
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Wrong> {
        let count = self.count()?;
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or("ends early")?;
        self.rest = rest;
        Ok(bytes)
    }

    pub(super) fn str(&mut self) -> Result<&'a str, Wrong> {
        std::str::from_utf8(self.bytes()?).map_err(|_| "text is not UTF-8")
    }

    pub(super) fn string(&mut self) -> Result<String, Wrong> {
        let text = self.str()?;
        if text.len() > crate::limits::MAX_STRING_BYTES { Err("text too long") } else { Ok(text.to_owned()) }
    }

    /// Several of the same, no more than any record of ours has: names of files come with functions and with lines.
    pub(super) fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T, Wrong>) -> Result<Vec<T>, Wrong> {
        let count = self.count()?;
        if count > 2 * RECORD_ITEMS {
            return Err("more items than a record may have");
        }
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }
}
