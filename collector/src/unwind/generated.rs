//! Leaving frames without unwind table by the stack pointer and the frame pointer alone, as fast as framehop.
//!
//! Most such frames are generated code and V8's builtins. [`code`](crate::arch::code) tells from the instructions how
//! they are left; where two registers are enough, the answer is a [`PointerRule`], kept by address.
//!
//! Generated code is read from the target's memory. This matters most without frame pointers: Python's trampolines, and
//! HotSpot's compiled code with frames of fixed size. Where instructions do not tell (V8's functions take a variable
//! number of arguments off the stack, interpreters jump through tables) the runtimes need a frame pointer themselves.
//!
//! Nothing of this is proof: a rule is believed only if it leads outwards, to executable memory, behind a call where
//! that can be seen. And a compiler may put other code at the same address, where the old rule finds a return address that
//! is plausible and wrong. So the start of the code is looked at again, and a rule for other code is made anew.

use std::cell::Cell;
use std::sync::Arc;

use hashbrown::HashMap;
use nix::errno::Errno;
use rustc_hash::FxBuildHasher;

use crate::arch::code::{self, FrameLayout};
use crate::arch::pointer_rule::PointerRule;
use crate::arch::step::CallerPointers;
use crate::process::images::ImageIndex;

/// Rules kept, 88 bytes each: one for each address of generated code that is met.
const MAX_RULES: usize = 1 << 16;
/// Instructions followed for one address, in 100 us at most. The way out of generated code is near or not to be found.
const MAX_INSTRUCTIONS: usize = 1024;
/// Times that code is looked at for one sample. Further frames are left by the old rule, or the frame pointer.
const MAX_LOOKS: usize = 32;
/// Nanoseconds after which the start of the code is looked at again.
const LOOK_NS: u64 = 200_000_000;
/// The same of code whose rule has failed.
const FAILED_LOOK_NS: u64 = 25_000_000;
/// Nanoseconds from one such look to the next in a process. Each is two system calls, in a process of another user made by
/// another thread.
const LOOKS_APART_NS: u64 = 10_000_000;
/// Nanoseconds after which a rule is made anew, which takes some 60 us: the code behind its start may be another.
const MAX_AGE_NS: u64 = 10_000_000_000;
/// The same of a rule that has failed.
const MAX_FAILED_AGE_NS: u64 = 250_000_000;

/// The start of the code at an address, and zeros where there is no more.
type CodeStart = [u8; 16];

#[derive(Clone, Copy, Debug)]
struct Rule {
    plain: Option<PointerRule>,
    start: CodeStart,
    /// When the code was followed, nanoseconds.
    made: u64,
    /// When its start is looked at again, nanoseconds.
    due: u64,
    has_failed: bool,
}

impl Rule {
    fn new(plain: Option<PointerRule>, start: CodeStart, time: u64) -> Rule {
        Rule { plain, start, made: time, due: time, has_failed: false }
    }

    /// Whether it holds as long as the code starts the same.
    fn is_young(&self, time: u64) -> bool {
        time < self.made.saturating_add(if self.has_failed { MAX_FAILED_AGE_NS } else { MAX_AGE_NS })
    }
}

#[derive(Debug, Default)]
pub struct GeneratedRules {
    known: HashMap<(ImageIndex, u64), Rule, FxBuildHasher>,
    /// Until when no known code of a process is looked at again, nanoseconds.
    quiet_until: HashMap<ImageIndex, u64, FxBuildHasher>,
    pid: u32,
    /// When the sample was taken, nanoseconds.
    time: u64,
    /// The last process whose memory may not be read.
    refused: u32,
    left: usize,
}

impl GeneratedRules {
    pub fn bytes(&self) -> usize {
        self.known.allocation_size() + self.quiet_until.allocation_size()
    }

    /// Begins with a sample of a process, taken at `time` (nanoseconds).
    pub fn begin(&mut self, pid: u32, time: u64) {
        (self.pid, self.time, self.left) = (pid, time, MAX_LOOKS);
    }

    /// Whether the code at the next instruction of a frame will be read.
    pub fn is_due(&self, place: (ImageIndex, u64)) -> bool {
        self.may_look() && self.fresh(place).is_none()
    }

    fn fresh(&self, place: (ImageIndex, u64)) -> Option<&Rule> {
        let is_quiet = || self.quiet_until.get(&place.0).is_some_and(|&until| self.time < until);
        self.known.get(&place).filter(|rule| self.time < rule.due || is_quiet())
    }

    fn may_look(&self) -> bool {
        self.left > 0 && self.refused != self.pid
    }

    /// No more code is looked at for this sample.
    pub fn look_no_more(&mut self) {
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
        let place = (image, address);
        let rule = match self.fresh(place) {
            Some(rule) => rule.plain,
            None => self.renew(place, code),
        };
        let mut missing = None;
        match rule.map(|rule| rule.apply(sp, bp, read)) {
            Some(Ok(caller)) if believed(caller.ip) => return Ok(caller),
            Some(Err(address)) => missing = address,
            _ => {}
        }
        match PointerRule::FRAME_POINTER.apply(sp, bp, read) {
            Ok(caller) if believed(caller.ip) => return Ok(caller),
            Err(address) => missing = missing.or(address.filter(|_| bp >= sp)),
            Ok(_) => {}
        }
        if let Some(rule) = self.known.get_mut(&place) {
            rule.due = rule.due.min(self.time.saturating_add(FAILED_LOOK_NS));
            rule.has_failed = true;
        }
        Err(missing)
    }

    #[cold]
    pub fn rows(
        &mut self,
        (_, address): (ImageIndex, u64),
        code: &impl Fn(u64, u64) -> nix::Result<Arc<[u8]>>,
    ) -> Vec<FrameLayout> {
        self.follow(address, code).ok().and_then(|(row, _)| row).into_iter().collect()
    }

    /// The rule for what is in memory now; the old one where that cannot be read.
    #[cold]
    fn renew(
        &mut self,
        place: (ImageIndex, u64),
        code: &impl Fn(u64, u64) -> nix::Result<Arc<[u8]>>,
    ) -> Option<PointerRule> {
        let (time, old) = (self.time, self.known.get(&place).copied());
        if old.is_some() {
            self.quiet_until.insert(place.0, time.saturating_add(LOOKS_APART_NS));
        }
        let plain = old.and_then(|old| old.plain);
        let seen = match old.filter(|old| old.is_young(time)) {
            None => None,
            Some(old) => match self.start(place.1, code) {
                Ok(start) => Some(old).filter(|old| old.start == start),
                Err(Errno::EPERM | Errno::EAGAIN) => return plain,
                // What is not in memory may come.
                Err(_) => Some(old),
            },
        };
        let rule = match seen {
            Some(old) => old,
            None => match self.follow(place.1, code) {
                Ok((row, Some(start))) => Rule::new(row.and_then(|row| row.plain()), start, time),
                Ok((_, None)) => old.unwrap_or(Rule::new(None, CodeStart::default(), time)),
                Err(_) => return plain,
            },
        };
        if old.is_none() && self.known.len() >= MAX_RULES {
            self.known.clear();
        }
        self.known.insert(place, Rule { due: time.saturating_add(LOOK_NS), ..rule });
        rule.plain
    }

    /// Errors: those of `code`; EPERM and EAGAIN where it may not be read, or no more of it now.
    fn start(&mut self, address: u64, code: &impl Fn(u64, u64) -> nix::Result<Arc<[u8]>>) -> nix::Result<CodeStart> {
        self.look()?;
        let bytes = code(address, size_of::<CodeStart>() as u64).inspect_err(|&error| self.fail(error))?;
        Ok(start_of(&bytes))
    }

    /// The nearest way out of the frame, and how its code starts, if that is in memory. Errors: EPERM and EAGAIN where instructions may not be read, or no more of
    /// them now.
    fn follow(
        &mut self,
        address: u64,
        code: &impl Fn(u64, u64) -> nix::Result<Arc<[u8]>>,
    ) -> nix::Result<(Option<FrameLayout>, Option<CodeStart>)> {
        self.look()?;
        let (refusal, start) = (Cell::new(None), Cell::new(None));
        let code = |at: u64, len: u64| {
            let bytes = code(at, len);
            match &bytes {
                Ok(bytes) if at == address => start.set(Some(start_of(bytes))),
                Err(error @ (Errno::EPERM | Errno::EAGAIN)) => refusal.set(Some(*error)),
                _ => {}
            }
            bytes.ok()
        };
        let row = code::nearest(address, &code, MAX_INSTRUCTIONS);
        match refusal.get() {
            None => Ok((row, start.get())),
            Some(error) => {
                self.fail(error);
                Err(error)
            }
        }
    }

    fn look(&mut self) -> nix::Result<()> {
        if !self.may_look() {
            return Err(Errno::EAGAIN);
        }
        self.left -= 1;
        Ok(())
    }

    /// Looks at no more code of this sample, or of this process if that is not permitted.
    fn fail(&mut self, error: Errno) {
        match error {
            Errno::EPERM => self.refused = self.pid,
            Errno::EAGAIN => self.left = 0,
            _ => {}
        }
    }

    pub fn forget(&mut self, image: ImageIndex) {
        self.known.retain(|&(of, _), _| of != image);
        self.quiet_until.remove(&image);
    }
}

fn start_of(code: &[u8]) -> CodeStart {
    let mut start = CodeStart::default();
    start.iter_mut().zip(code).for_each(|(to, from)| *to = *from);
    start
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
        rules.forget(IMAGE);
        assert_eq!(leave(&mut rules, &code[4..], &words), Ok(expected));
        rules.forget(IMAGE);
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

    /// Where it leads, and how often code was looked at: twice where another rule is made.
    fn looks(rules: &mut GeneratedRules, time: u64, code: &[u8], words: &[u64]) -> (Option<u64>, usize) {
        let caller = leave_at(rules, time, code, words);
        (caller.ok().map(|caller| caller.ip), MAX_LOOKS - rules.left)
    }

    #[test]
    fn code_that_is_replaced_gets_a_new_rule() {
        let (old, new) = ([0xc3u8; 32], [[0x5b].as_slice(), &[0xc3; 31]].concat());
        let mut rules = GeneratedRules::default();
        let mut at = |time, code: &[u8]| looks(&mut rules, time, code, &[0x200, 0x300]);
        assert_eq!(at(0, &old), (Some(0x200), 1));
        assert_eq!(at(LOOK_NS, &old), (Some(0x200), 1));
        assert_eq!(at(2 * LOOK_NS - 1, &new), (Some(0x200), 0));
        assert_eq!(at(2 * LOOK_NS, &new), (Some(0x300), 2));
        rules.forget(IMAGE);
        assert!(rules.known.is_empty());
    }

    #[test]
    fn much_code_of_a_process_is_looked_at_again_in_turn() {
        let mut rules = GeneratedRules::default();
        let code = |_: u64, _: u64| Ok(Arc::from([0xc3; 32]));
        let mut looks = |image, time| {
            rules.begin(1, time);
            for address in 0..MAX_LOOKS as u64 {
                let left = rules.leave((image, address), (0x7000, 0x7010), &stack(&[0x200]), &code, |_| true);
                assert_eq!(left.map(|caller| caller.ip), Ok(0x200));
            }
            MAX_LOOKS - rules.left
        };
        let other = ImageIndex(IMAGE.0 + 1);
        assert_eq!([looks(IMAGE, 0), looks(other, 0)], [MAX_LOOKS, MAX_LOOKS]);
        assert_eq!([looks(IMAGE, LOOK_NS), looks(other, LOOK_NS)], [1, 1]);
        assert_eq!(looks(IMAGE, LOOK_NS + LOOKS_APART_NS - 1), 0);
        let later = (1..MAX_LOOKS as u64).map(|step| looks(IMAGE, LOOK_NS + step * LOOKS_APART_NS));
        assert!(later.sum::<usize>() >= MAX_LOOKS - 4);
    }

    #[test]
    fn code_that_changes_behind_its_start_gets_a_new_rule_later() {
        let mut code = [0x90u8; 32];
        (code[20], code[21]) = (0xc3, 0xc3);
        let mut rules = GeneratedRules::default();
        assert_eq!(looks(&mut rules, 0, &code, &[0x200, 0x300]), (Some(0x200), 1));
        code[20] = 0x5b;
        assert_eq!(looks(&mut rules, MAX_AGE_NS - 1, &code, &[0x200, 0x300]), (Some(0x200), 1));
        assert_eq!(looks(&mut rules, MAX_AGE_NS + LOOK_NS, &code, &[0x200, 0x300]), (Some(0x300), 1));
        // Sooner where the rule leads nowhere.
        let time = 3 * MAX_AGE_NS;
        assert_eq!(looks(&mut rules, time, &code, &[1, 2, 3, 4]), (None, 1));
        code[20] = 0xc3;
        assert_eq!(looks(&mut rules, time + FAILED_LOOK_NS, &code, &[0x200, 2, 3, 4]), (None, 1));
        assert_eq!(looks(&mut rules, time + MAX_FAILED_AGE_NS, &code, &[0x200, 2, 3, 4]), (Some(0x200), 1));
    }

    #[test]
    fn code_whose_rule_leads_nowhere_is_looked_at_again_sooner() {
        let mut rules = GeneratedRules::default();
        assert_eq!(looks(&mut rules, 0, &[0xc3; 32], &[1, 2, 3, 4]), (None, 1));
        let new = [[0x5b].as_slice(), &[0xc3; 31]].concat();
        assert_eq!(looks(&mut rules, FAILED_LOOK_NS - 1, &new, &[1, 0x300]), (None, 0));
        assert_eq!(looks(&mut rules, FAILED_LOOK_NS, &new, &[1, 0x300]), (Some(0x300), 2));
    }

    #[test]
    fn code_that_is_not_in_memory_is_looked_at_again_in_time() {
        let mut rules = GeneratedRules::default();
        let words = [1, 0x300];
        assert_eq!(looks(&mut rules, 0, &[0x5b, 0xc3], &words), (Some(0x300), 1));
        // The old rule stays, and other frames can be looked at.
        assert_eq!(looks(&mut rules, LOOK_NS, &[], &words), (Some(0x300), 1));
        assert_eq!(looks(&mut rules, LOOK_NS + 1, &[], &words), (Some(0x300), 0));
        rules.forget(IMAGE);
        assert_eq!(looks(&mut rules, 0, &[], &words), (None, 1));
        assert_eq!(looks(&mut rules, 1, &[0x5b, 0xc3], &words), (None, 0));
        assert_eq!(looks(&mut rules, FAILED_LOOK_NS + 1, &[0x5b, 0xc3], &words), (Some(0x300), 2));
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
