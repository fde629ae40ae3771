//! The ring buffer that the kernel shares with a reader of perf events.
//!
//! `struct perf_event_mmap_page` of `linux/perf_event.h`: one page of control words, then 2^n pages of data. The kernel
//! appends at `data_head` and never overwrites what lies from `data_tail` on; when full, it drops records, and a
//! `PERF_RECORD_LOST` follows. A [`Bytes`] borrows a record from the ring; nothing is copied.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use perf_event_open_sys::bindings::perf_event_mmap_page;

pub use crate::arch::PAGE;

/// One ring, its mapping, and the event of ccsd's own that owns it.
pub struct RingBuffer {
    base: NonNull<u8>,
    data_bytes: usize,
    owner: OwnedFd,
    /// Where the next record begins. Kept here so that `data_tail` is written once a round, not once a record.
    tail: u64,
    /// `data_head` at the last [`RingBuffer::refresh`].
    head: u64,
}

// SAFETY:
// - `base` points to a mapping that this value alone owns and unmaps on drop; no other thread of ccsd touches it.
// - The kernel's side synchronises by data_head and data_tail (see ATOMICS below), whichever thread reads.
unsafe impl Send for RingBuffer {}

/// The bytes of a record, in one or two pieces (at the ring's end). Rings and records are multiples of 8 bytes, so an
/// aligned word never straddles the wrap.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a> {
    first: &'a [u8],
    second: &'a [u8],
}

impl<'a> Bytes<'a> {
    /// Bytes in one piece; for tests and benches.
    pub fn new(bytes: &'a [u8]) -> Self {
        Bytes { first: bytes, second: &[] }
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.first.len() + self.second.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What comes before the ring's end, mostly all.
    pub fn first_piece(&self) -> &'a [u8] {
        self.first
    }

    /// The little-endian word at `at`; `None` past the end.
    #[inline]
    pub fn u64_at(&self, at: usize) -> Option<u64> {
        let end = at.checked_add(8)?;
        if let Some(bytes) = self.first.get(at..end) {
            return bytes.try_into().ok().map(u64::from_le_bytes);
        }
        if let Some(skipped) = at.checked_sub(self.first.len()) {
            return self.second.get(skipped..skipped + 8)?.try_into().ok().map(u64::from_le_bytes);
        }
        // Across the wrap: only for an unaligned stack pointer.
        let mut word = [0; 8];
        for (i, byte) in word.iter_mut().enumerate() {
            *byte = self.byte(at + i)?;
        }
        Some(u64::from_le_bytes(word))
    }

    /// The little-endian half word at `at`; `None` past the end.
    pub fn u32_at(&self, at: usize) -> Option<u32> {
        let mut word = [0; 4];
        for (i, byte) in word.iter_mut().enumerate() {
            *byte = self.byte(at + i)?;
        }
        Some(u32::from_le_bytes(word))
    }

    fn byte(&self, at: usize) -> Option<u8> {
        match at.checked_sub(self.first.len()) {
            None => self.first.get(at).copied(),
            Some(at) => self.second.get(at).copied(),
        }
    }

    /// The bytes from `at` on, at most `len`; shorter, or empty, where there are fewer.
    pub fn slice(&self, at: usize, len: usize) -> Bytes<'a> {
        let end = at.saturating_add(len).min(self.len());
        let at = at.min(end);
        let split = self.first.len();
        Bytes {
            first: self.first.get(at.min(split)..end.min(split)).unwrap_or_default(),
            second: self.second.get(at.saturating_sub(split)..end.saturating_sub(split)).unwrap_or_default(),
        }
    }

    /// A copy in one piece.
    pub fn concat(&self) -> Vec<u8> {
        [self.first, self.second].concat()
    }

    /// A copy of the bytes up to the first NUL.
    pub fn terminated(&self) -> Vec<u8> {
        self.first.iter().chain(self.second).copied().take_while(|&b| b != 0).collect()
    }

    /// The same as text; what is not UTF-8 is replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.terminated()).into_owned()
    }
}

impl RingBuffer {
    /// Maps a ring of `data_pages` pages (a power of two) on `owner`.
    ///
    /// # Errors
    /// EPERM where the memory would pass the locked-memory allowance (`perf_event_mlock_kb` and `RLIMIT_MEMLOCK`).
    pub fn map(owner: OwnedFd, data_pages: usize) -> io::Result<RingBuffer> {
        let data_bytes = data_pages * PAGE;
        let length = NonZeroUsize::new(data_bytes + PAGE).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a fresh shared mapping of a perf event at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            mmap(None, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED, owner.as_fd(), 0)
        }?;
        Ok(RingBuffer { base: base.cast(), data_bytes, owner, tail: 0, head: 0 })
    }

    pub fn owner(&self) -> &OwnedFd {
        &self.owner
    }

    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.owner.as_fd()
    }

    fn control(&self) -> *mut perf_event_mmap_page {
        self.base.as_ptr().cast()
    }

    /// Takes note of what the kernel has written since the last call; returns whether there is anything unread.
    pub fn refresh(&mut self) -> bool {
        // SAFETY: the first page of the mapping is a perf_event_mmap_page, whose data_head is an aligned u64 that only
        // the kernel writes.
        // ATOMICS: Acquire pairs with the kernel's write barrier before it stores data_head (perf_output_put_handle):
        // every byte of a record is visible before the head that covers it.
        self.head = unsafe { AtomicU64::from_ptr(&raw mut (*self.control()).data_head) }.load(Ordering::Acquire);
        self.head != self.tail
    }

    /// The next unread record, not taken. `None` at the head, or for an impossible length, which the kernel never
    /// writes: the rest of the ring is then given up as read.
    #[inline]
    pub fn peek(&self) -> Option<Bytes<'_>> {
        let available = self.head.wrapping_sub(self.tail);
        if available < 8 || available > self.data_bytes as u64 {
            return None;
        }
        let header = self.bytes(self.tail, 8).u64_at(0)?;
        let size = header >> 48;
        (size >= 8 && size <= available).then(|| self.bytes(self.tail, size as usize))
    }

    /// Steps over the record that [`RingBuffer::peek`] returned. The kernel may not reuse its room before [`RingBuffer::release`].
    #[inline]
    pub fn advance(&mut self) {
        match self.peek().map(|record| record.len() as u64) {
            Some(size) => self.tail = self.tail.wrapping_add(size),
            None => self.tail = self.head,
        }
    }

    /// Gives the room of all records stepped over back to the kernel.
    pub fn release(&mut self) {
        // SAFETY: as in `refresh`; data_tail is the one word of the page that the reader writes.
        // ATOMICS: Release keeps every read of a record before the store that lets the kernel overwrite it.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.control()).data_tail) }.store(self.tail, Ordering::Release);
    }

    fn bytes(&self, position: u64, len: usize) -> Bytes<'_> {
        let at = (position % self.data_bytes as u64) as usize;
        let first = len.min(self.data_bytes - at);
        // SAFETY:
        // - The data area begins one page after `base` and is `data_bytes` long; `at + first <= data_bytes` and
        //   `len - first <= data_bytes` because callers ask for at most `head - tail <= data_bytes`.
        // - The kernel does not write between tail and head, and tail is published only by `release`, which takes
        //   `&mut self` and so cannot run while a slice borrowed from `&self` lives.
        unsafe {
            let data = self.base.as_ptr().add(PAGE);
            Bytes {
                first: std::slice::from_raw_parts(data.add(at), first),
                second: std::slice::from_raw_parts(data, len - first),
            }
        }
    }
}

impl Drop for RingBuffer {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`; no slice of it can outlive `self`.
        let _ = unsafe { munmap(self.base.cast(), self.data_bytes + PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_in_two_pieces_reads_as_one() {
        let all: Vec<u8> = (0..64).collect();
        for cut in 0..=64 {
            let pieces = Bytes { first: &all[..cut], second: &all[cut..] };
            for at in 0..70 {
                let whole = Bytes::new(&all);
                assert_eq!(pieces.u64_at(at), whole.u64_at(at), "cut {cut} at {at}");
                assert_eq!(pieces.u32_at(at), whole.u32_at(at));
                for len in [0, 1, 8, 30, 100] {
                    let (a, b) = (pieces.slice(at, len), whole.slice(at, len));
                    assert_eq!(a.len(), b.len());
                    assert!((0..a.len()).all(|i| a.byte(i) == b.byte(i)));
                }
            }
        }
        assert_eq!(Bytes::new(b"ab\0c").text(), "ab");
    }
}
