//! Deaths by signals: which process, which signal, which stack.
//!
//! A crash names its functions itself, not by ids: it is shown at once, by readers that have not followed the session,
//! and no merge or selection changes it.

use serde::{Deserialize, Serialize};

use crate::text::sanitise;

/// Innermost, and likewise outermost, stack entries kept. 63 KiB of stack hold at most 4,000 frames.
pub const MAX_CRASH_INNER: usize = 12 << 10;
/// See [`MAX_CRASH_INNER`].
pub const MAX_CRASH_OUTER: usize = 4 << 10;
/// Different entries of one stack: even generated parsers have fewer functions and lines.
pub const MAX_CRASH_FRAMES: usize = 1 << 10;
/// Crashes of one session: a server whose workers die all the time dies of the same again and again.
pub const MAX_SESSION_CRASHES: usize = 64;
/// Limit on crashes in a profile, which may be merged from many sessions.
pub(crate) const MAX_CRASHES: usize = 1 << 10;
pub(crate) const MAX_CRASHES_BYTES: usize = 64 << 20;

const MAX_FUNCTION: usize = 512;
/// Longest name of a file, an image, a process or a thread in a crash, bytes.
const MAX_NAME: usize = 192;

/// One entry of a stack: a function, or a copy of one inlined into the next entry outwards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameInfo {
    /// Its name, else `image+0x1234`. As the program gives it: not fit for a terminal as it is.
    pub function: String,
    /// File name of its image, or `[jit]`, `[vdso]` and the like.
    pub image: String,
    /// Source file of the instruction (or of the inlined call in it).
    pub file: Option<String>,
    /// The line there; 0 if unknown.
    pub line: u32,
    /// Whether it is inlined into the next entry.
    pub inlined: bool,
    /// Address in the image (SVMA); of a caller, inside the call instruction.
    pub address: u64,
    /// Entries with the same number are of the same function, whatever their lines and addresses.
    pub function_id: u32,
}

/// The outer part of a stack as a thread's last sample found it, before the thread died.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierStack {
    /// Nanoseconds between that sample and the signal.
    pub age_ns: u64,
    /// Its outermost frames, the innermost of them first, as positions in [`Crash::frames`].
    pub stack: Vec<u32>,
}

/// A process that died of a signal whose default is to leave a core dump, as its thread was when the signal was delivered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crash {
    /// When, nanoseconds since 1970.
    pub unix_ns: u64,
    /// The process.
    pub pid: u32,
    /// The thread that the signal was delivered to.
    pub tid: u32,
    /// Name of the process.
    pub process: String,
    /// Name of the thread.
    pub thread: String,
    /// The signal's number.
    pub signal: u32,
    /// `si_code`: why it was sent (sigaction(2)).
    pub code: i32,
    /// Every different entry of the stack.
    pub frames: Vec<FrameInfo>,
    /// The stack, innermost first, as positions in `frames`.
    pub stack: Vec<u32>,
    /// Entries of the stack after which some were left out.
    pub left_out_after: u32,
    /// How many.
    pub left_out: u64,
    /// Why it does not reach the thread's first function, if it does not.
    pub truncated: Option<String>,
    /// If the stack was cut short: the outer part of the thread's last sample, whose calls may have returned since.
    pub earlier: Option<EarlierStack>,
}

impl Crash {
    /// Cuts names to what a crash may hold; the stack is its maker's.
    pub fn clip(&mut self) {
        cut(&mut self.process, MAX_NAME);
        cut(&mut self.thread, MAX_NAME);
        if let Some(why) = &mut self.truncated {
            cut(why, MAX_NAME);
        }
        for frame in &mut self.frames {
            cut(&mut frame.function, MAX_FUNCTION);
            cut(&mut frame.image, MAX_NAME);
            if let Some(file) = &mut frame.file {
                cut_front(file, MAX_NAME);
            }
        }
    }

    /// The entry that the thread was in: that of the innermost function.
    #[must_use]
    pub fn innermost(&self) -> Option<&FrameInfo> {
        self.frames.get(*self.stack.first()? as usize)
    }

    /// `prog (PID 7) died of SIGSEGV in f`, fit for a log.
    #[must_use]
    pub fn summary(&self) -> String {
        let signal = signal_name(self.signal).map_or_else(|| format!("signal {}", self.signal), str::to_owned);
        let place = self.innermost().map_or_else(String::new, |frame| format!(" in {}", sanitise(&frame.function)));
        format!("{} (PID {}) died of {signal}{place}", sanitise(&self.process), self.pid)
    }

    /// Bytes that it takes in memory, about.
    #[must_use]
    pub fn approximate_bytes(&self) -> usize {
        let texts =
            |frame: &FrameInfo| frame.function.len() + frame.image.len() + frame.file.as_ref().map_or(0, String::len);
        size_of::<Self>()
            + self.process.len()
            + self.thread.len()
            + (self.stack.len() + self.earlier.as_ref().map_or(0, |earlier| earlier.stack.len())) * size_of::<u32>()
            + self.frames.iter().map(|frame| size_of::<FrameInfo>() + texts(frame)).sum::<usize>()
    }
}

/// The usual name of a signal whose default is to leave a core dump (x86-64, signal(7)); of no other.
#[must_use]
pub fn signal_name(signal: u32) -> Option<&'static str> {
    CORE_SIGNALS.iter().find(|(number, _)| *number == signal).map(|(_, name)| *name)
}

/// Signals whose default action is a core dump. For others that kill, the kernel sends SIGKILL to every thread,
/// wherever it is.
pub const CORE_SIGNALS: [(u32, &str); 10] = [
    (3, "SIGQUIT"),
    (4, "SIGILL"),
    (5, "SIGTRAP"),
    (6, "SIGABRT"),
    (7, "SIGBUS"),
    (8, "SIGFPE"),
    (11, "SIGSEGV"),
    (24, "SIGXCPU"),
    (25, "SIGXFSZ"),
    (31, "SIGSYS"),
];

/// What a signal's code says, where that says more than the signal (`asm-generic/siginfo.h`).
#[must_use]
pub fn signal_reason(signal: u32, code: i32) -> Option<&'static str> {
    Some(match (signal, code) {
        (_, ..=0) => "sent by a program",
        (11, 1) => "no memory at the address",
        (11, 2) => "memory may not be used so",
        (11, 0x80) => "no such address",
        (11, 4) | (7, 4 | 5) => "protection key or hardware memory error",
        (7, 1) => "address not aligned",
        (7, 2) => "beyond the end of a mapped file",
        (8, 1) => "integer division by zero",
        (8, 2) => "integer overflow",
        (8, 3) => "floating-point division by zero",
        (8, 4) => "floating-point overflow",
        (8, 5) => "floating-point underflow",
        (8, 6) => "inexact floating-point result",
        (8, 7) => "invalid floating-point operation",
        (4, 1..=8) => "illegal instruction",
        (31, 1) => "system call forbidden by seccomp",
        (5, 1) => "breakpoint",
        _ => return None,
    })
}

fn cut(text: &mut String, most: usize) {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most - '\u{2026}'.len_utf8()));
        text.push('\u{2026}');
    }
}

fn cut_front(text: &mut String, most: usize) {
    if text.len() > most {
        let from = text.ceil_char_boundary(text.len() - (most - '\u{2026}'.len_utf8()));
        text.replace_range(..from, "\u{2026}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut() {
        let file = format!("{}/end.c", "x".repeat(1000));
        let frame = FrameInfo { function: "\u{e9}".repeat(1000), file: Some(file), ..FrameInfo::default() };
        let mut crash = Crash { frames: vec![frame], stack: vec![0], ..Crash::default() };
        crash.clip();
        let frame = crash.innermost().unwrap();
        assert!(frame.function.len() <= MAX_FUNCTION && frame.function.ends_with("\u{e9}\u{2026}"), "{frame:?}");
        let file = frame.file.as_deref().unwrap();
        assert!(file.len() <= MAX_NAME && file.starts_with('\u{2026}') && file.ends_with("/end.c"), "{file}");
        let before = crash.clone();
        crash.clip();
        assert_eq!(crash, before);
    }

    #[test]
    fn signals_have_names() {
        assert_eq!(signal_name(11), Some("SIGSEGV"));
        assert_eq!(signal_name(15), None);
        assert_eq!(signal_reason(11, 1), Some("no memory at the address"));
        assert_eq!(signal_reason(6, -6), Some("sent by a program"));
        assert_eq!(signal_reason(11, 99), None);
    }
}
