//! The target's stack: the bytes that the sample copied, and beyond them the target's memory as it is now.
//!
//! The kernel copies at most 64 KiB of stack, up to the first page not in memory. The rest is read with
//! `process_vm_readv(2)`, which does not stop the target, as far as it is in memory ([`pages`](super::pages)). The
//! target may have run on, so this is believed only if
//!
//! - the *anchors*, the last slots of the copy on the way out (the boundary frame's return address among them), hold
//!   the same words now, read by the same system call, and
//! - from there the stack leads to a real root, and each return address follows a call that may have led to the frame
//!   within ([`calls`](crate::arch::calls)); [`StackUnwinder`](super::StackUnwinder) drops it otherwise. A zero is no
//!   root there: it may have taken the place of a return address.
//!
//! If the anchors have changed, the thread may have returned to the boundary frame and called another function: then
//! the slot of the last copied return address holds another one *of the same function*, which becomes the anchor
//! ([`UserStack::anchor_now`]).
//!
//! Frames that have returned leave their words until other calls overwrite them, those of their callers first. Then the
//! chain read is that of a later call: a real chain of the same thread, moments later. The frames between the common
//! function and the boundary are wrong then, and are believed only if their sizes agree to the byte. Where what lies
//! beyond the copy has changed since it was looked at last, no stack between the two looks is called complete
//! ([`ShadowStack`](super::shadow::ShadowStack)); what changes and changes back between them is not seen, but where it
//! does so often, other looks find it changed ([`steady`](super::steady)). The sampler keeps the delay short where stacks
//! are deep.

use std::cell::{Cell, RefCell};
use std::io::IoSliceMut;
use std::sync::Arc;
use std::time::Duration;

use ccsd_worker::Principal;
use hashbrown::HashMap;
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use rustc_hash::FxBuildHasher;

use crate::clock::now_ns;
use crate::deadline::Deadline;
use crate::perf::ring_buffer::Bytes;
use crate::process::ProcessKey;
use crate::time_budget::{Owner, SampleTimeBudget};
use crate::unwind::pages::Pages;

/// The first piece that is read beyond the copy. Most stacks that pass the copy pass it by less.
const FIRST_PIECE: usize = 16 << 10;
const LARGEST_PIECE: usize = 1 << 20;
/// Bytes read for one sample at most: twice the usual limit of a stack (`ulimit -s`, 8 MiB).
const MAX_BYTES_PER_SAMPLE: u64 = 16 << 20;
/// One in so many parts of the time may go to reading: a call waits while the target changes its mappings.
const SHARE_OF_TIME: u32 = 20;
/// Time that reading may take at once, after a pause. (A test that is kept waiting in the midst of it goes on.)
const MAX_AT_ONCE: Duration = if cfg!(test) { Duration::from_secs(3600) } else { Duration::from_millis(50) };
const MAX_CODE_BYTES: usize = 4096;
/// Processes of which it is kept whose they are.
const MAX_USERS: usize = 1024;
/// Words that [`UserStack::compare`] looks at at most.
pub const MAX_PROBES: usize = 16;
/// Words so close together are read as one piece: the number of pieces costs, not their bytes.
const PROBE_SPAN: usize = 1024;

/// Bytes of a stack that are [touched](UserStack::touch): most stacks are smaller, and of larger ones much is not looked at.
const MAX_TOUCHED: usize = 8 << 10;
const CACHE_LINE: usize = 64;

/// What lies so close below the stack pointer belongs to no frame, but for the 128 bytes of the red zone.
pub const BELOW_STACK: u64 = 64 << 10;

/// The usual limit of a stack (`ulimit -s`). What is further away is another one.
pub const STACK_BYTES: u64 = 8 << 20;

pub type StackWord = (u64, u64);

/// In place of a slot.
pub const NOTHING_READ: StackWord = (0, 0);

/// Reads the memory of targets, within a budget. What it holds belongs to one sample at a time.
#[derive(Debug)]
pub struct Memory {
    pid: i32,
    process: Option<ProcessKey>,
    owner: Owner,
    /// Of processes that were read, whether they are another user's.
    users: HashMap<ProcessKey, Option<Principal>, FxBuildHasher>,
    deadline: Deadline,
    piece: Vec<u8>,
    piece_start: u64,
    next_piece: usize,
    pages: Pages,
    probed: Vec<u8>,
    /// When the sample was taken, and when memory was last read, nanoseconds.
    time: u64,
    read_at: u64,
    /// Slots that must not have changed.
    anchors: Option<[StackWord; 2]>,
    left: u64,
    /// Time that reading may take.
    budget: SampleTimeBudget,
    /// Whether no more is to be read beyond the copy for this sample.
    closed: bool,
    moved: bool,
    /// The sample's thread is dying: it does not run again, so its stack stays as it is, or goes.
    dying: bool,
    refusals: MemoryRefusals,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Now {
    /// All hold the same words.
    Same,
    /// The last one that holds another word.
    Changed(usize),
    /// The process or the thread has ended, and its stack is gone.
    Gone,
    /// Nothing: it may not be read, or not now.
    Unknown,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryRefusals {
    pub not_permitted: u64,
    pub over_budget: u64,
    /// The anchors had changed: the target had moved on.
    pub moved_on: u64,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory {
            pid: 0,
            process: None,
            owner: None,
            users: HashMap::default(),
            deadline: Deadline::default().in_turns(),
            piece: Vec::new(),
            piece_start: 0,
            next_piece: 0,
            pages: Pages::default(),
            probed: Vec::new(),
            time: 0,
            read_at: 0,
            anchors: None,
            left: 0,
            budget: SampleTimeBudget::new(MAX_AT_ONCE, SHARE_OF_TIME),
            closed: false,
            moved: false,
            dying: false,
            refusals: MemoryRefusals::default(),
        }
    }
}

impl Memory {
    /// Begins with a sample of `pid`, taken at `time` (nanoseconds).
    pub fn begin(&mut self, pid: u32, time: u64) {
        self.pid = i32::try_from(pid).unwrap_or(0);
        self.process = None;
        self.time = time;
        self.read_at = 0;
        self.piece.clear();
        self.next_piece = FIRST_PIECE;
        self.anchors = None;
        self.left = MAX_BYTES_PER_SAMPLE;
        self.closed = false;
        self.moved = false;
        self.dying = false;
    }

    /// For a session of this user.
    pub fn set_user(&mut self, user: u32) {
        self.deadline = Deadline::of(user).in_turns();
    }

    /// Says which process the sample is of, and whose that is.
    pub fn set_process(&mut self, process: ProcessKey, owner: Owner) {
        (self.process, self.owner) = (Some(process), owner);
    }

    /// Says that the sample's thread will not run again. There is no later sample to read its stack for, so the budget does
    /// not bound it.
    pub fn set_dying(&mut self) {
        self.dying = true;
    }

    pub fn refusals(&self) -> MemoryRefusals {
        self.refusals
    }

    /// The word at `address`. `recent` are the last slots that the copy held; the first call makes them the anchors.
    #[cold]
    fn word(&mut self, address: u64, recent: [StackWord; 2]) -> Option<u64> {
        let end = address.checked_add(8)?;
        let held = self.piece_start..self.piece_start.saturating_add(self.piece.len() as u64);
        if !(held.contains(&address) && end <= held.end) {
            self.fetch(address, recent)?;
        }
        let at = usize::try_from(address.checked_sub(self.piece_start)?).ok()?;
        self.piece.get(at..at.checked_add(8)?)?.try_into().ok().map(u64::from_le_bytes)
    }

    /// Forgets the anchors, and allows to read again what they forbade.
    fn reopen(&mut self) {
        self.refusals.moved_on = self.refusals.moved_on.saturating_sub(1);
        self.anchors = None;
        self.closed = false;
        self.moved = false;
        self.piece.clear();
        self.next_piece = FIRST_PIECE;
    }

    /// Reads the next piece, from `address` on.
    fn fetch(&mut self, address: u64, recent: [StackWord; 2]) -> Option<()> {
        let anchors = *self.anchors.get_or_insert(recent);
        if self.closed {
            return None;
        }
        let size = self.next_piece;
        self.next_piece = (2 * size).min(LARGEST_PIECE);
        let mut words = [[0u8; 8]; 2];
        let mut piece = std::mem::take(&mut self.piece);
        piece.resize(size, 0);
        let [first, second] = &mut words;
        let mut local = [IoSliceMut::new(first), IoSliceMut::new(second), IoSliceMut::new(&mut piece)];
        let word = |slot: StackWord| RemoteIoVec { base: slot.0 as usize, len: 8 };
        let mut remote = [word(anchors[0]), word(anchors[1]), RemoteIoVec { base: address as usize, len: size }];
        let got = self.call_for_stack(size, &mut local, &mut remote).unwrap_or(0);
        self.piece = piece;
        self.piece_start = address;
        // The stack may end before the piece does.
        self.piece.truncate(got.saturating_sub(16));
        let same = words.iter().zip(anchors).all(|(word, anchor)| u64::from_le_bytes(*word) == anchor.1);
        self.moved = got >= 16 && !same;
        self.refusals.moved_on += u64::from(self.moved);
        if got < 16 || !same {
            self.piece.clear();
            self.closed = true;
            return None;
        }
        Some(())
    }

    #[cold]
    fn compare(&mut self, slots: &[StackWord; MAX_PROBES]) -> Now {
        let mut places = [0; MAX_PROBES];
        let mut remote = [RemoteIoVec { base: 0, len: 0 }; MAX_PROBES];
        let (mut pieces, mut bytes) = (0usize, 0);
        for (place, slot) in places.iter_mut().zip(slots) {
            let address = slot.0 as usize;
            let last = pieces.checked_sub(1).and_then(|last| remote.get_mut(last));
            let distance = last.as_ref().and_then(|last| address.checked_sub(last.base));
            if let (Some(last), Some(distance)) = (last, distance.filter(|distance| *distance <= PROBE_SPAN - 8)) {
                *place = bytes - last.len + distance;
                bytes += (distance + 8).saturating_sub(last.len);
                last.len = last.len.max(distance + 8);
            } else {
                *place = bytes;
                bytes += 8;
                remote[pieces] = RemoteIoVec { base: address, len: 8 };
                pieces += 1;
            }
        }
        let mut probed = std::mem::take(&mut self.probed);
        probed.resize(MAX_PROBES * PROBE_SPAN, 0);
        let read = self.call_for_stack(bytes, &mut [IoSliceMut::new(&mut probed[..bytes])], &mut remote[..pieces]);
        let now = match read {
            Ok(read) if read == bytes => {
                let held = |place: usize| probed.get(place..place + 8);
                let changed = |(&place, slot): (&usize, &StackWord)| held(place) != Some(&slot.1.to_le_bytes());
                places.iter().zip(slots).rposition(changed).map_or(Now::Same, Now::Changed)
            }
            // A thread's stack goes with the thread; or some pages of it have been given back.
            Ok(_) | Err(Errno::ESRCH | Errno::EFAULT) => Now::Gone,
            Err(_) => Now::Unknown,
        };
        self.probed = probed;
        now
    }

    /// `process_vm_readv`, if the budget allows for `bytes` more, else EAGAIN. Pages not in memory end it like unmapped
    /// ones.
    fn call(&mut self, bytes: usize, local: &mut [IoSliceMut<'_>], remote: &mut [RemoteIoVec]) -> nix::Result<usize> {
        if self.left < bytes as u64 {
            return Err(Errno::EAGAIN);
        }
        if !self.dying && self.budget.left(self.owner, self.time).is_zero() {
            self.refusals.over_budget += 1;
            self.left = 0;
            return Err(Errno::EAGAIN);
        }
        self.left -= bytes as u64;
        self.read_at = now_ns();
        let read = match self.other_user() {
            None => read_pages(&mut self.pages, (self.pid, self.time, self.read_at), local, remote),
            Some(user) => self.ask_for_pages(user, local, remote),
        };
        self.budget.spend(self.owner, Duration::from_nanos(now_ns().saturating_sub(self.read_at)));
        read
    }

    /// Whose process the sample is of, if another user's, who can make reading it last for ever.
    fn other_user(&mut self) -> Option<Principal> {
        let pid = self.pid.unsigned_abs();
        let Some(process) = self.process else { return self.deadline.other_user(pid) };
        if self.users.len() >= MAX_USERS {
            self.users.clear();
        }
        *self.users.entry(process).or_insert_with(|| self.deadline.other_user(pid))
    }

    /// [`read_pages`] of another user's process, within a deadline, else EAGAIN.
    fn ask_for_pages(
        &mut self,
        user: Principal,
        local: &mut [IoSliceMut<'_>],
        remote: &[RemoteIoVec],
    ) -> nix::Result<usize> {
        let (sample, mut remote) = ((self.pid, self.time, self.read_at), remote.to_vec());
        let (mut pages, mut bytes) =
            (std::mem::take(&mut self.pages), vec![0; local.iter().map(|piece| piece.len()).sum()]);
        let answer = self.deadline.ask(user, move || {
            let read = read_pages(&mut pages, sample, &mut [IoSliceMut::new(&mut bytes)], &mut remote);
            (pages, bytes, read)
        });
        let Some((pages, bytes, read)) = answer else {
            self.refusals.over_budget += 1;
            self.left = 0;
            return Err(Errno::EAGAIN);
        };
        self.pages = pages;
        let mut rest = bytes.as_slice();
        for piece in local {
            let (filled, more) = rest.split_at(piece.len().min(rest.len()));
            piece[..filled.len()].copy_from_slice(filled);
            rest = more;
        }
        read
    }

    fn call_for_stack(
        &mut self,
        bytes: usize,
        local: &mut [IoSliceMut<'_>],
        remote: &mut [RemoteIoVec],
    ) -> nix::Result<usize> {
        let read = self.call(bytes, local, remote);
        if read == Err(Errno::EPERM) {
            self.refusals.not_permitted += 1;
            self.left = 0;
        }
        read
    }

    #[cold]
    fn peek(&mut self, address: u64) -> Option<[u64; 2]> {
        let mut words = [[0; 8]; 2];
        let [first, second] = &mut words;
        let mut local = [IoSliceMut::new(first), IoSliceMut::new(second)];
        let mut remote = [RemoteIoVec { base: usize::try_from(address).ok()?, len: 16 }];
        let read = self.call_for_stack(16, &mut local, &mut remote).ok()?;
        (read == 16).then(|| words.map(u64::from_le_bytes))
    }

    /// Up to `len` bytes of code at `address`, fewer where a page is missing. Errors: those of `process_vm_readv`;
    /// EAGAIN where the budget does not allow for it.
    #[cold]
    fn code(&mut self, address: u64, len: u64) -> nix::Result<Arc<[u8]>> {
        let mut bytes = [0; MAX_CODE_BYTES];
        let len = usize::try_from(len).unwrap_or(MAX_CODE_BYTES).min(MAX_CODE_BYTES);
        let local = bytes.get_mut(..len).ok_or(Errno::EFAULT)?;
        let at = usize::try_from(address).map_err(|_| Errno::EFAULT)?;
        // Two pieces, so that a missing second page does not take the first with it.
        let first = len.min(4096 - at % 4096);
        let mut remote =
            [RemoteIoVec { base: at, len: first }, RemoteIoVec { base: at.saturating_add(first), len: len - first }];
        let read = self.call(len, &mut [IoSliceMut::new(local)], &mut remote)?;
        bytes.get(..read).filter(|bytes| !bytes.is_empty()).map(Arc::from).ok_or(Errno::EFAULT)
    }
}

/// Reads the pieces of the process `pid` up to the first page that is not there; `time` is the sample's. Errors: EFAULT where
/// the first is not; those of [`Pages::cut`] and process_vm_readv(2).
fn read_pages(
    pages: &mut Pages,
    (pid, time, now): (i32, u64, u64),
    local: &mut [IoSliceMut<'_>],
    remote: &mut [RemoteIoVec],
) -> nix::Result<usize> {
    match pages.cut(pid, time, now, remote)? {
        0 => Err(Errno::EFAULT),
        pieces => process_vm_readv(Pid::from_raw(pid), local, &remote[..pieces]),
    }
}

pub struct UserStack<'a> {
    copied: Bytes<'a>,
    piece: &'a [u8],
    sp: u64,
    memory: RefCell<&'a mut Memory>,
    recent: Cell<[StackWord; 2]>,
    late: Cell<Option<u64>>,
}

impl<'a> UserStack<'a> {
    /// `copied` are the bytes from `sp` upwards; `memory` has begun with the sample.
    pub fn new(copied: Bytes<'a>, sp: u64, memory: &'a mut Memory) -> UserStack<'a> {
        UserStack {
            copied,
            piece: copied.first_piece(),
            sp,
            memory: RefCell::new(memory),
            recent: Cell::new([NOTHING_READ; 2]),
            late: Cell::new(None),
        }
    }

    /// Reads the copy once, out to `outermost`, where the last stack ended, so that the caches fetch its lines at once
    /// and not one at each frame.
    pub fn touch(&self, outermost: u64) {
        let used = usize::try_from(outermost.saturating_sub(self.sp)).unwrap_or(0).min(MAX_TOUCHED);
        let used = self.piece.get(..used).unwrap_or(self.piece);
        let lines = used.iter().step_by(CACHE_LINE);
        std::hint::black_box(lines.fold(0u8, |sum, byte| sum ^ byte));
    }

    #[inline]
    pub fn copied(&self, address: u64) -> Option<u64> {
        let offset = usize::try_from(address.checked_sub(self.sp)?).ok()?;
        let word = self.piece.get(offset..).and_then(<[u8]>::first_chunk);
        word.map_or_else(|| self.copied.u64_at(offset), |&word| Some(u64::from_le_bytes(word)))
    }

    #[inline]
    pub fn read(&self, address: u64) -> Option<u64> {
        let word = match self.copied(address) {
            Some(word) => word,
            None => self.beyond(address)?,
        };
        let [last, _] = self.recent.get();
        self.recent.set([(address, word), last]);
        Some(word)
    }

    #[cold]
    fn beyond(&self, address: u64) -> Option<u64> {
        let recent = self.recent.get();
        // Below the stack pointer, up to where the kernel lets a signal's frame lie, is what calls have left behind.
        if (self.sp.saturating_sub(BELOW_STACK)..self.sp).contains(&address) {
            return None;
        }
        let mut memory = self.memory.borrow_mut();
        let anchors = match recent {
            [NOTHING_READ, _]
                if memory.dying || !self.copied.is_empty() && address.wrapping_sub(self.sp) < STACK_BYTES =>
            {
                [(address, memory.peek(address)?[0]); 2]
            }
            [NOTHING_READ, _] => return None,
            [last, NOTHING_READ] => [last; 2],
            anchors => anchors,
        };
        let word = memory.word(address, anchors)?;
        if self.late.get().is_none() {
            self.late.set(Some(address));
        }
        Some(word)
    }

    /// The first address that was read beyond the copy, since [`UserStack::begin_late`].
    pub fn first_late(&self) -> Option<u64> {
        self.late.get()
    }

    /// The same of a thread that may have run on since.
    pub fn first_unsure(&self) -> Option<u64> {
        self.late.get().filter(|_| !self.memory.borrow().dying)
    }

    pub fn begin_late(&self) {
        self.late.set(None);
    }

    /// The last two slots that were read, the later one first; [`NOTHING_READ`] for less than two.
    pub fn recent(&self) -> [StackWord; 2] {
        self.recent.get()
    }

    /// When the sample was taken (nanoseconds).
    pub fn time(&self) -> u64 {
        self.memory.borrow().time
    }

    /// When the target's memory was last read for the sample, or a little before (nanoseconds).
    pub fn read_at(&self) -> u64 {
        self.memory.borrow().read_at
    }

    /// Whether the target's memory was read for the sample.
    pub fn has_read(&self) -> bool {
        self.read_at() != 0
    }

    /// The part of the copy that is in one piece, mostly all, and its address.
    pub fn piece(&self) -> (u64, &'a [u8]) {
        (self.sp, self.piece)
    }

    /// Says that a slot outside the copy held a word at the sample. Later reads beyond the copy are believed only while
    /// it still does.
    pub fn expect(&self, slot: StackWord) {
        self.recent.set([slot; 2]);
    }

    /// A copied slot's word in memory now, if nothing was read beyond the copy because the anchors had changed.
    #[cold]
    pub fn word_now(&self, slot: u64) -> Option<u64> {
        self.copied(slot)?;
        let mut memory = self.memory.borrow_mut();
        if !memory.moved {
            return None;
        }
        memory.peek(slot).map(|[now, _]| now)
    }

    /// Takes a slot that has changed, and the word that it holds now, for the anchor of what is read beyond the copy.
    pub fn anchor_now(&self, slot: StackWord) {
        self.expect(slot);
        self.memory.borrow_mut().reopen();
    }

    /// Whether slots hold the same words in the target's memory now. They are best given in order of their addresses.
    pub fn compare(&self, slots: &[StackWord; MAX_PROBES]) -> Now {
        self.memory.borrow_mut().compare(slots)
    }

    /// The two words that are at an address of the target's memory now.
    pub fn peek(&self, address: u64) -> Option<[u64; 2]> {
        self.memory.borrow_mut().peek(address)
    }

    /// Up to `len` bytes of the process's code at `address`, fewer where a page is missing.
    pub fn code(&self, address: u64, len: u64) -> nix::Result<Arc<[u8]>> {
        self.memory.borrow_mut().code(address, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_read_to_the_end_of_what_is_mapped_and_within_the_budget() {
        let mut memory = Memory::default();
        memory.begin(std::process::id(), 1_000_000_000_000);
        assert_eq!(memory.code(8, 16), Err(Errno::EFAULT));
        let bytes = [7u8; 5000];
        let address = bytes.as_ptr() as u64;
        assert_eq!(memory.code(address, 100).unwrap()[..], bytes[..100]);
        // Over the end of a page, and no more than a page.
        assert_eq!(memory.code(address, 5000).unwrap()[..], bytes[..MAX_CODE_BYTES]);
        assert_eq!(memory.refusals(), MemoryRefusals::default());
        memory.budget.spend(None, MAX_AT_ONCE);
        assert_eq!(memory.code(address, 100), Err(Errno::EAGAIN));
        assert_eq!(memory.refusals().over_budget, 1);
        memory.begin(u32::MAX, 2_000_000_000_000);
        assert!(memory.code(address, 16).is_err());
    }
}
