//! Perf records as typed values.
//!
//! Layouts: `linux/perf_event.h` with the `sample_type` of [`super::attr`]: a sample is
//! `identifier, pid/tid, time, period, [group read], callchain, user registers, user stack`; other records end in
//! `pid/tid, time, identifier`. Lengths are checked although they come from the kernel.

use perf_event_open_sys::bindings as sys;

use super::ring_buffer::Bytes;
use super::signals::FatalSignals;

pub use crate::arch::user_regs::UserRegs;

/// `pid/tid, time, identifier` at the end of every record that is not a sample.
const TRAILER: usize = 24;
const HEADER: usize = 8;
/// Entries of a call chain looked at: the kernel's own default limit is 127, settable up to 640.
const MAX_CHAIN: u64 = 1024;
/// Stands in a call chain before the addresses of user code (`PERF_CONTEXT_USER`).
const USER_CONTEXT: u64 = -512i64 as u64;

/// Which optional fields the samples of a session carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleLayout {
    /// `PERF_SAMPLE_READ` with `PERF_FORMAT_GROUP`.
    pub group_read: bool,
    /// Whether each value of a group is followed by the number of records lost (`PERF_FORMAT_LOST`).
    pub tells_lost: bool,
    /// Which of them tell of fatal signals.
    pub fatal: Option<FatalSignals>,
    /// The return address of the sampling interrupt's outermost frame. The kernel chain up to there is not the
    /// target's.
    pub interrupt: Option<u64>,
}

/// One sample, borrowing from the ring.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// The event that took it (inherited events carry their ancestor's).
    pub id: u64,
    /// Process (thread group).
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub time: u64,
    /// Nanoseconds (clock) or cycles that the sample stands for.
    pub period: u64,
    /// Running count of the group's second event, for [`SampleLayout::group_read`].
    pub group_value: Option<u64>,
    /// Kernel addresses, innermost first, as raw little-endian words; context markers included.
    pub kernel_chain: Bytes<'a>,
    /// What the kernel found by the user's frame pointers: the instruction pointer, then the word above each frame
    /// pointer, while memory was readable and there was room. Not necessarily return addresses.
    pub user_chain: Bytes<'a>,
    /// `None` where the thread has no user state (a kernel thread), or that of a 32-bit program.
    pub regs: Option<UserRegs>,
    /// Whether the thread has user state at all.
    pub has_user_state: bool,
    /// Stack bytes from `sp` upwards.
    pub stack: Bytes<'a>,
    /// Whether the copy of the stack ended at the size asked for, so that there may be more.
    pub stack_full: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mmap {
    pub pid: u32,
    pub start: u64,
    pub len: u64,
    /// Offset in the file, bytes.
    pub file_offset: u64,
    /// Of the file system; major and minor number.
    pub device: (u32, u32),
    /// Inode number, 0 for anonymous memory.
    pub inode: u64,
    /// Build id, where a recording has that in place of device and inode; else empty.
    pub build_id: Vec<u8>,
    pub prot: u32,
    /// Path in the process's own root, `[vdso]`, `//anon`, ...
    pub path: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fork {
    pub pid: u32,
    pub tid: u32,
    pub parent_pid: u32,
    pub parent_tid: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetChange {
    Mmap(Mmap),
    Fork(Fork),
    Exit {
        pid: u32,
        tid: u32,
    },
    Comm {
        pid: u32,
        tid: u32,
        exec: bool,
        name: String,
    },
    /// The kernel dropped `count` records of a ring that was full.
    Lost {
        count: u64,
    },
    /// The kernel stopped (`true`) or resumed (`false`) an event that fired too often.
    Throttle {
        stopped: bool,
        /// The one event concerned (`stream_id`): inherited events share their ancestor's identifier, not this.
        stream: u64,
    },
}

/// One record.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "most are samples, and none is kept")]
pub enum Record<'a> {
    /// A stack sample.
    Sample(Sample<'a>),
    /// A signal that kills has been delivered to a thread, which was there.
    Fatal {
        /// The thread's stack. It stands for no time.
        sample: Sample<'a>,
        /// Number of the signal.
        signal: u32,
        /// Its `si_code`.
        code: i32,
    },
    /// Anything else of interest, its time and the event it came from.
    Change {
        /// `CLOCK_MONOTONIC`, nanoseconds.
        time: u64,
        /// Identifier of the event.
        id: u64,
        /// What happened.
        change: TargetChange,
    },
    /// A record of a kind that is not used.
    Other,
    /// A record whose contents do not fit its length.
    Malformed,
}

/// The time of a record, found without parsing the rest.
#[inline]
pub fn time_of(record: Bytes<'_>) -> Option<u64> {
    let kind = record.u64_at(0)? as u32;
    if kind == sys::PERF_RECORD_SAMPLE { record.u64_at(24) } else { record.u64_at(record.len().checked_sub(16)?) }
}

/// Parses one record, header included.
#[inline]
pub fn parse<'a>(record: Bytes<'a>, layout: SampleLayout) -> Record<'a> {
    let Some(header) = record.u64_at(0) else { return Record::Malformed };
    let kind = header as u32;
    if kind == sys::PERF_RECORD_SAMPLE {
        return sample(record, layout).unwrap_or(Record::Malformed);
    }
    let misc = (header >> 32) as u16;
    change(record, kind, misc).unwrap_or(Record::Malformed)
}

fn sample(record: Bytes<'_>, layout: SampleLayout) -> Option<Record<'_>> {
    let mut at = HEADER;
    let mut next = || {
        let word = record.u64_at(at);
        at += 8;
        word
    };
    let id = next()?;
    let pid_tid = next()?;
    let time = next()?;
    let period = next()?;
    let mut group_value = None;
    let fatal = layout.fatal.filter(|fatal| fatal.has(id));
    if layout.group_read && fatal.is_none() {
        for i in 0..next()?.min(8) {
            let value = next()?;
            if layout.tells_lost {
                // That of an inherited event is 0: what those lose is counted by the first.
                next()?;
            }
            if i == 1 {
                group_value = Some(value);
            }
        }
    }
    let entries = usize::try_from(next()?.min(MAX_CHAIN + 1)).ok().filter(|&entries| entries as u64 <= MAX_CHAIN)?;
    let chain = record.slice(at, entries * 8);
    at += entries * 8;
    let kernel_entries = (0..entries).find(|i| chain.u64_at(i * 8) == Some(USER_CONTEXT)).unwrap_or(entries);
    // (A signal may be delivered where an interrupt returns; that is no frame of the sampling's.)
    let interrupt = layout.interrupt.filter(|_| fatal.is_none());
    let interrupt = interrupt.and_then(|entry| (0..kernel_entries).find(|i| chain.u64_at(i * 8) == Some(entry)));
    let from = interrupt.map_or(0, |interrupt| interrupt + 1);
    let kernel_chain = chain.slice(from * 8, (kernel_entries - from) * 8);
    let user_chain = chain.slice((kernel_entries + 1) * 8, chain.len());
    let mut raw = Bytes::new(&[]);
    if fatal.is_some() {
        let size = usize::try_from(record.u32_at(at)?).ok()?;
        raw = record.slice(at + 4, size);
        at = at.checked_add(4)?.checked_add(size)?;
    }
    let mut next = || {
        let word = record.u64_at(at);
        at += 8;
        word
    };
    let abi = next()?;
    let regs = match u32::try_from(abi).ok()? {
        sys::PERF_SAMPLE_REGS_ABI_NONE => None,
        _ => Some(UserRegs::read(&mut next)?),
    };
    let (mut stack, mut stack_full) = (Bytes::new(&[]), false);
    let asked = next()?;
    if asked > 0 {
        let asked = usize::try_from(asked).ok()?;
        let copied = usize::try_from(record.u64_at(at.checked_add(asked)?)?).ok()?;
        stack = record.slice(at, copied.min(asked));
        stack_full = copied >= asked;
    }
    let sample = Sample {
        id,
        pid: pid_tid as u32,
        tid: (pid_tid >> 32) as u32,
        time,
        period,
        group_value,
        kernel_chain,
        user_chain,
        // A 32-bit program's registers say nothing to a 64-bit unwinder.
        has_user_state: regs.is_some(),
        regs: regs.filter(|_| u32::try_from(abi) == Ok(sys::PERF_SAMPLE_REGS_ABI_64)),
        stack,
        stack_full,
    };
    Some(match fatal {
        None => Record::Sample(sample),
        Some(fatal) => {
            let (signal, code) = fatal.signal(raw)?;
            Record::Fatal { sample, signal, code }
        }
    })
}

fn change<'a>(record: Bytes<'a>, kind: u32, misc: u16) -> Option<Record<'a>> {
    let end = record.len().checked_sub(TRAILER).filter(|&end| end >= HEADER)?;
    let (time, id) = (record.u64_at(end + 8)?, record.u64_at(end + 16)?);
    let body = record.slice(HEADER, end - HEADER);
    let change = match kind {
        sys::PERF_RECORD_MMAP2 => TargetChange::Mmap(Mmap {
            pid: body.u32_at(0)?,
            start: body.u64_at(8)?,
            len: body.u64_at(16)?,
            file_offset: body.u64_at(24)?,
            device: (body.u32_at(32)?, body.u32_at(36)?),
            inode: body.u64_at(40)?,
            build_id: Vec::new(),
            prot: body.u32_at(56)?,
            path: body.slice(64, body.len()).terminated(),
        }),
        sys::PERF_RECORD_FORK => TargetChange::Fork(Fork {
            pid: body.u32_at(0)?,
            parent_pid: body.u32_at(4)?,
            tid: body.u32_at(8)?,
            parent_tid: body.u32_at(12)?,
        }),
        sys::PERF_RECORD_EXIT => TargetChange::Exit { pid: body.u32_at(0)?, tid: body.u32_at(8)? },
        sys::PERF_RECORD_COMM => TargetChange::Comm {
            pid: body.u32_at(0)?,
            tid: body.u32_at(4)?,
            exec: u32::from(misc) & sys::PERF_RECORD_MISC_COMM_EXEC != 0,
            name: body.slice(8, body.len()).text(),
        },
        sys::PERF_RECORD_LOST => TargetChange::Lost { count: body.u64_at(8)? },
        sys::PERF_RECORD_THROTTLE => TargetChange::Throttle { stopped: true, stream: body.u64_at(16)? },
        sys::PERF_RECORD_UNTHROTTLE => TargetChange::Throttle { stopped: false, stream: body.u64_at(16)? },
        _ => return Some(Record::Other),
    };
    Some(Record::Change { time, id, change })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, misc: u16, words: &[u64]) -> Vec<u8> {
        let size = (HEADER + words.len() * 8) as u64;
        let header = u64::from(kind) | u64::from(misc) << 32 | size << 48;
        std::iter::once(&header).chain(words).flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn a_sample_with_every_field() {
        let words = [
            7,
            0x14_0000_000a,
            99,
            1_001_001, // id, tid 20 pid 10, time, period
            2,
            5,
            1234, // group of two
            5,
            0xffff_ffff_ffff_ff80,
            0xffff_ffff_8100_0000,
            0xffff_ffff_ffff_fe00,
            0x40,
            0x41, // callchain
            2,
            0xa,
            0xb,
            0xc,
            0xd,
            0x51,
            0xd1, // abi 64, ax, bx, cx, dx, si, di
            0xb0,
            0x70,
            0x40, // bp, sp, ip
            8,
            9,
            10,
            11,
            12,
            13,
            14,
            15, // r8 to r15
            16,
            1,
            2,
            8, // 16 bytes asked, 8 copied
        ];
        let bytes = record(sys::PERF_RECORD_SAMPLE, 0, &words);
        let layout = SampleLayout { group_read: true, ..SampleLayout::default() };
        assert_eq!(time_of(Bytes::new(&bytes)), Some(99));
        let Record::Sample(sample) = parse(Bytes::new(&bytes), layout) else { panic!("not a sample") };
        assert_eq!((sample.id, sample.pid, sample.tid, sample.time, sample.period), (7, 10, 20, 99, 1_001_001));
        assert_eq!(sample.group_value, Some(1234));
        assert_eq!((sample.kernel_chain.len(), sample.kernel_chain.u64_at(8)), (16, Some(0xffff_ffff_8100_0000)));
        assert_eq!([0, 8, 16].map(|at| sample.user_chain.u64_at(at)), [Some(0x40), Some(0x41), None]);
        assert_eq!(
            sample.regs,
            Some(UserRegs {
                ip: 0x40,
                sp: 0x70,
                bp: 0xb0,
                others: [0xa, 0xb, 0xc, 0xd, 0x51, 0xd1, 8, 9, 10, 11, 12, 13, 14, 15]
            })
        );
        assert_eq!((sample.stack.len(), sample.stack_full), (8, false));
        for cut in 0..bytes.len() {
            let _ = parse(Bytes::new(&bytes[..cut]), layout);
        }
    }

    #[test]
    fn values_that_are_followed_by_what_was_lost() {
        let words = [7, 0, 99, 1, 2, 5, 70, 1234, 0, 1, 0xe, 0, 0];
        let bytes = record(sys::PERF_RECORD_SAMPLE, 0, &words);
        let layout = SampleLayout { group_read: true, tells_lost: true, ..SampleLayout::default() };
        let Record::Sample(sample) = parse(Bytes::new(&bytes), layout) else { panic!("not a sample") };
        assert_eq!((sample.group_value, sample.kernel_chain.u64_at(0)), (Some(1234), Some(0xe)));
        // Before the other event of the group is there.
        let bytes = record(sys::PERF_RECORD_SAMPLE, 0, &[7, 0, 99, 1, 1, 5, 70, 1, 0xe, 0, 0]);
        let Record::Sample(sample) = parse(Bytes::new(&bytes), layout) else { panic!("not a sample") };
        assert_eq!((sample.group_value, sample.kernel_chain.u64_at(0)), (None, Some(0xe)));
    }

    #[test]
    fn the_frames_of_an_interrupt_are_left_out() {
        // Context, two frames of the interrupt, its entry, what it interrupted; the user's part.
        let chain = [0xffff_ffff_ffff_ff80, 0xa1, 0xa2, 0xe, 0xb1, 0xe, 0xffff_ffff_ffff_fe00, 0x40];
        let head = [7, 0, 99, 1, chain.len() as u64];
        let bytes = record(sys::PERF_RECORD_SAMPLE, 0, &[&head[..], &chain, &[0, 0]].concat());
        let kernel = |interrupt| {
            let layout = SampleLayout { interrupt, ..SampleLayout::default() };
            let Record::Sample(sample) = parse(Bytes::new(&bytes), layout) else { panic!("not a sample") };
            assert_eq!(sample.user_chain.u64_at(0), Some(0x40));
            (0..sample.kernel_chain.len() / 8).filter_map(|i| sample.kernel_chain.u64_at(i * 8)).collect::<Vec<_>>()
        };
        assert_eq!(kernel(None), chain[..6]);
        // Up to the innermost; the other is that of one before.
        assert_eq!(kernel(Some(0xe)), chain[4..6]);
        assert_eq!(kernel(Some(0xf)), chain[..6]);
        assert_eq!(kernel(Some(0x40)), chain[..6]);
    }

    #[test]
    fn a_sample_without_user_state() {
        let bytes = record(sys::PERF_RECORD_SAMPLE, 0, &[7, 0, 99, 1, 0, 0, 0]);
        let Record::Sample(sample) = parse(Bytes::new(&bytes), SampleLayout::default()) else { panic!("not a sample") };
        assert_eq!(sample.regs, None);
        assert!(sample.stack.is_empty());
    }

    #[test]
    fn changes_carry_time_and_id() {
        let fork = record(sys::PERF_RECORD_FORK, 0, &[0x1_0000_0002, 0x3_0000_0004, 0, 0, 55, 66]);
        assert_eq!(time_of(Bytes::new(&fork)), Some(55));
        match parse(Bytes::new(&fork), SampleLayout::default()) {
            Record::Change { time: 55, id: 66, change } => {
                assert_eq!(change, TargetChange::Fork(Fork { pid: 2, parent_pid: 1, tid: 4, parent_tid: 3 }));
            }
            other => panic!("{other:?}"),
        }
        let name = u64::from_le_bytes(*b"worker\0\0");
        let comm = record(sys::PERF_RECORD_COMM, 1 << 13, &[0x5_0000_0004, name, 0, 55, 66]);
        match parse(Bytes::new(&comm), SampleLayout::default()) {
            Record::Change { change: TargetChange::Comm { pid: 4, tid: 5, exec: true, name }, .. } => {
                assert_eq!(name, "worker");
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(parse(Bytes::new(&comm[..16]), SampleLayout::default()), Record::Malformed));
    }
}
