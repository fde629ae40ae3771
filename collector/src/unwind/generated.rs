//! Leaving frames without unwind table by the stack pointer and the frame pointer alone, as fast as framehop.
//!
//! Most such frames are generated code and V8's builtins. [`code`](crate::arch::code) tells from the instructions how
//! they are left; where two registers are enough, the answer is a [`PointerRule`], kept by address.
//!
//! Generated code is read from the target's memory, once for each address. This matters most without frame pointers:
//! Python's trampolines, and HotSpot's compiled code with frames of fixed size. Where instructions do not tell (V8's
//! functions take a variable number of arguments off the stack, interpreters jump through tables) the runtimes need a
//! frame pointer themselves.
//!
//! Nothing of this is proof: a rule is believed only if it leads outwards, to executable memory, behind a call where
//! that can be seen. A rule that fails is made again, as memory may hold other code by then.

use std::cell::Cell;
use std::sync::Arc;

use hashbrown::HashMap;
use nix::errno::Errno;
use rustc_hash::FxBuildHasher;

use crate::arch::code::{self, FrameLayout};
use crate::arch::pointer_rule::PointerRule;
use crate::arch::step::CallerPointers;
use crate::process::images::ImageIndex;

/// Rules kept, 48 bytes each: one for each address of generated code that is met.
const MAX_RULES: usize = 1 << 16;
/// Instructions followed for one address, in 100 us at most. The way out of generated code is near or not to be found.
const MAX_INSTRUCTIONS: usize = 1024;
/// New rules made for one sample. More are taken to leave by the frame pointer, this time.
const MAX_NEW: usize = 32;
/// Nanoseconds after which a rule is made again that failed twice.
const PAUSE_NS: u64 = 250_000_000;

#[derive(Clone, Copy, Debug)]
struct Rule {
    plain: Option<PointerRule>,
    /// It is not made again before this time, nanoseconds.
    stays_until: u64,
}

#[derive(Debug, Default)]
pub struct GeneratedRules {
    known: HashMap<(ImageIndex, u64), Rule, FxBuildHasher>,
    pid: u32,
    /// When the sample was taken, nanoseconds.
    time: u64,
    /// The last process whose memory may not be read.
    refused: u32,
    left: usize,
}

impl GeneratedRules {
    pub fn bytes(&self) -> usize {
        self.known.allocation_size()
    }

    /// Begins with a sample of a process, taken at `time` (nanoseconds).
    pub fn begin(&mut self, pid: u32, time: u64) {
        (self.pid, self.time, self.left) = (pid, time, MAX_NEW);
    }

    /// Whether a rule will be made for the next instruction of a frame.
    pub fn is_new(&self, place: (ImageIndex, u64)) -> bool {
        self.left > 0 && self.refused != self.pid && !self.known.contains_key(&place)
    }

    /// No more are made for this sample.
    pub fn make_no_more(&mut self) {
        self.left = 0;
    }

    /// Leaves the frame whose next instruction is at `address`: by its instructions, else by its frame pointer, if
    /// `believed` accepts the result. `code` reads the process's memory: up to so many bytes at an address. Errors: the
    /// unreadable stack address, if that is all.
    pub fn leave(
        &mut self,
        (image, address): (ImageIndex, u64),
        (sp, bp): (u64, u64),
        read: &impl Fn(u64) -> Option<u64>,
        code: &impl Fn(u64, u64) -> nix::Result<Arc<[u8]>>,
        mut believed: impl FnMut(u64) -> bool,
    ) -> Result<CallerPointers, Option<u64>> {
        let key = (image, address);
        let known = self.known.get(&key).copied();
        let mut missing = None;
        // Whether a rule that fails is made again.
        let due = known.is_some_and(|known| known.plain.is_some() && self.time >= known.stays_until);
        for rule in [known.map(Some), (known.is_none() || due).then_some(None)].into_iter().flatten() {
            let plain = match rule {
                Some(rule) => rule.plain,
                None => self.make(key, code),
            };
            match plain.map(|plain| plain.apply(sp, bp, read)) {
                Some(Ok(caller)) if believed(caller.ip) => return Ok(caller),
                Some(Err(address)) => missing = missing.or(address),
                _ => {}
            }
        }
        // Neither the old one nor the new: another would not be better.
        if let Some(rule) = self.known.get_mut(&key).filter(|_| due) {
            rule.stays_until = self.time.saturating_add(PAUSE_NS);
        }
        match PointerRule::FRAME_POINTER.apply(sp, bp, read) {
            Ok(caller) if believed(caller.ip) => Ok(caller),
            Err(address) => Err(missing.or(address.filter(|_| bp >= sp))),
            Ok(_) => Err(missing),
        }
    }

    #[cold]
    pub fn rows(
        &mut self,
        (_, address): (ImageIndex, u64),
        code: &impl Fn(u64, u64) -> nix::Result<Arc<[u8]>>,
    ) -> Vec<FrameLayout> {
        self.follow(address, code).ok().flatten().into_iter().collect()
    }

    #[cold]
    fn make(
        &mut self,
        key: (ImageIndex, u64),
        code: &impl Fn(u64, u64) -> nix::Result<Arc<[u8]>>,
    ) -> Option<PointerRule> {
        // What could not be read says nothing.
        let plain = self.follow(key.1, code).ok()?.and_then(|row| row.plain());
        if self.known.len() >= MAX_RULES {
            self.known.clear();
        }
        self.known.insert(key, Rule { plain, stays_until: 0 });
        plain
    }

    /// The nearest way out of the frame. Errors: EPERM and EAGAIN where instructions may not be read, or no more of
    /// them now.
    fn follow(
        &mut self,
        address: u64,
        code: &impl Fn(u64, u64) -> nix::Result<Arc<[u8]>>,
    ) -> nix::Result<Option<FrameLayout>> {
        if self.refused == self.pid {
            return Err(Errno::EPERM);
        }
        self.left = self.left.checked_sub(1).ok_or(Errno::EAGAIN)?;
        let refusal = Cell::new(None);
        let code = |address: u64, len: u64| {
            let bytes = code(address, len);
            if let Err(error @ (Errno::EPERM | Errno::EAGAIN)) = bytes {
                refusal.set(Some(error));
            }
            bytes.ok()
        };
        let row = code::nearest(address, &code, MAX_INSTRUCTIONS);
        match refusal.get() {
            None => Ok(row),
            Some(error) => {
                if error == Errno::EPERM {
                    self.refused = self.pid;
                }
                self.left = 0;
                Err(error)
            }
        }
    }

    pub fn forget(&mut self, image: ImageIndex) {
        self.known.retain(|&(of, _), _| of != image);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: ImageIndex = ImageIndex(9);
    const CODE: u64 = 0x40_0000;

    fn stack(words: &[u64]) -> impl Fn(u64) -> Option<u64> {
        move |address| words.get(usize::try_from(address.checked_sub(0x7000)? / 8).ok()?).copied()
    }

    /// Leaves code of this process itself, with the stack at 0x7000 and the frame pointer at 0x7010.
    fn leave(rules: &mut GeneratedRules, code: &[u8], words: &[u64]) -> Result<CallerPointers, Option<u64>> {
        leave_at(rules, 0, code, words)
    }

    fn leave_at(
        rules: &mut GeneratedRules,
        time: u64,
        code: &[u8],
        words: &[u64],
    ) -> Result<CallerPointers, Option<u64>> {
        rules.begin(1, time);
        let read_code = |address: u64, len: u64| {
            let at = (address - CODE) as usize;
            let bytes = code.get(at..).filter(|bytes| !bytes.is_empty()).ok_or(Errno::EFAULT)?;
            Ok(Arc::from(&bytes[..bytes.len().min(len as usize)]))
        };
        rules.leave((IMAGE, CODE), (0x7000, 0x7010), &stack(words), &read_code, |ip| ip >= 0x100)
    }

    #[test]
    fn pythons_trampoline_needs_no_frame_pointer() {
        // sub rsp, 8; call rcx; add rsp, 8; ret, then padding: of 3.12
        let code = [0x48, 0x83, 0xec, 8, 0xff, 0xd1, 0x48, 0x83, 0xc4, 8, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc];
        let mut rules = GeneratedRules::default();
        let words = [1, 0x200, 2, 0x300];
        // The frame pointer is that of an outer frame, and stays.
        let expected = CallerPointers { ip: 0x200, sp: 0x7010, bp: 0x7010 };
        assert_eq!(leave(&mut rules, &code[6..], &words), Ok(expected));
        // Before the call, before the frame.
        assert_eq!(leave(&mut rules, &code[4..], &words), Ok(expected));
        assert_eq!(leave(&mut rules, &code, &[0x200]), Ok(CallerPointers { ip: 0x200, sp: 0x7008, bp: 0x7010 }));
    }

    #[test]
    fn hotspots_frames_have_a_fixed_size() {
        // add rsp, 16; pop rbp; cmp rsp, [r15+0x388]; ja +1; ret; ud2
        let code =
            [0x48, 0x83, 0xc4, 16, 0x5d, 0x49, 0x3b, 0xa7, 0x88, 3, 0, 0, 0x77, 1, 0xc3, 0x0f, 0x0b, 0, 0, 0, 0, 0, 0];
        let words = [1, 2, 0x7abc, 0x200];
        let caller = leave(&mut GeneratedRules::default(), &code, &words);
        assert_eq!(caller, Ok(CallerPointers { ip: 0x200, sp: 0x7020, bp: 0x7abc }));
    }

    #[test]
    fn where_instructions_do_not_tell_there_is_a_frame_pointer() {
        // mov rsp, rbp; pop rbp; pop r10; lea rsp, [rsp+rcx*8]; push r10; ret: the end of a function of V8
        let code = [0x48, 0x8b, 0xe5, 0x5d, 0x41, 0x5a, 0x48, 0x8d, 0x24, 0xcc, 0x41, 0x52, 0xc3, 0xcc, 0xcc, 0xcc];
        let words = [1, 2, 0x7abc, 0x200];
        let mut rules = GeneratedRules::default();
        assert_eq!(leave(&mut rules, &code, &words), Ok(CallerPointers { ip: 0x200, sp: 0x7020, bp: 0x7abc }));
        assert_eq!(leave(&mut rules, &code, &[1, 2, 3, 4]), Err(None));
        assert_eq!(leave(&mut rules, &code, &[1, 2, 3]), Err(Some(0x7018)));
    }

    #[test]
    fn code_that_is_replaced_gets_a_new_rule() {
        let mut code = [0xc3u8; 32];
        let mut rules = GeneratedRules::default();
        assert_eq!(leave(&mut rules, &code, &[0x200, 0x300]).unwrap().sp, 0x7008);
        code[0] = 0x5b;
        assert_eq!(
            leave(&mut rules, &code, &[7, 0x300]).unwrap(),
            CallerPointers { ip: 0x300, sp: 0x7010, bp: 0x7010 }
        );
        rules.forget(IMAGE);
        assert!(rules.known.is_empty());
    }

    #[test]
    fn a_rule_that_is_not_believed_is_not_made_for_each_sample() {
        let mut code = [0xc3u8; 32];
        let mut rules = GeneratedRules::default();
        let left = |rules: &mut GeneratedRules, time, code: &[u8], words: &[u64]| {
            let caller = leave_at(rules, time, code, words);
            (MAX_NEW - rules.left, caller.map(|caller| caller.ip))
        };
        let nowhere = [1, 2, 3, 4];
        assert_eq!(left(&mut rules, 0, &code, &nowhere), (1, Err(None)));
        assert_eq!(left(&mut rules, 1, &code, &nowhere), (1, Err(None)));
        code[0] = 0x5b;
        assert_eq!(left(&mut rules, 2, &code, &nowhere), (0, Err(None)));
        assert_eq!(left(&mut rules, PAUSE_NS, &code, &[1, 0x300]), (0, Err(Some(0x7018))));
        // A rule that works stays, and one that fails is made again some time, however often it fails.
        assert_eq!(left(&mut rules, PAUSE_NS, &code, &[0x200, 0x300]), (0, Ok(0x200)));
        let later = PAUSE_NS + 1;
        assert_eq!(left(&mut rules, later, &code, &[1, 0x300]), (1, Ok(0x300)));
        assert_eq!(left(&mut rules, later, &code, &[1, 0x400]), (0, Ok(0x400)));
    }

    #[test]
    fn unreadable_code_is_read_again() {
        let mut rules = GeneratedRules::default();
        rules.begin(1, 0);
        let believed = |ip| ip >= 0x100;
        let none = |_: u64, _: u64| Err(Errno::EAGAIN);
        let words = [0x200, 2, 3, 4];
        assert!(rules.leave((IMAGE, CODE), (0x7000, 0x7010), &stack(&words), &none, believed).is_err());
        assert_eq!((rules.known.len(), rules.left), (0, 0));
        assert_eq!(leave(&mut rules, &[0xc3; 32], &words).unwrap().ip, 0x200);
        // Nor from a process that may not be read, until there is another.
        rules.refused = 1;
        assert_eq!(leave(&mut rules, &[0xc3; 32], &words).unwrap().ip, 0x200);
        rules.forget(IMAGE);
        assert!(leave(&mut rules, &[0xc3; 32], &words).is_err());
    }
}
