//! Bounds on the cost of reading an image's names.
//!
//! A few megabytes of hostile DWARF can take hours (units that share one long range list), overflow the stack (deep
//! inlining), or produce a huge index; a symbol table can have eight million overlapping names. So everything that
//! reads names runs under a [`ReadGrant`] of steps, bytes and CPU time: values are counted by [`Metered`], loops by
//! [`spend`], sections and large tables by [`reserve`], and bytes as [allocated](crate::allocation).

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::allocation;
use gimli::{EndianReader, Error, LittleEndian, Reader, ReaderOffsetId, Result};
use nix::time::{ClockId, clock_gettime};

/// Steps between two looks at the clock, each of which takes about as long as 30 steps.
const LOOK_AT_CLOCK: u64 = 4096;

/// A call that ends before it looks at the clock (a system call) is charged the elapsed time, at most this: it may have
/// waited.
const MAX_BRIEF: Duration = Duration::from_millis(1);

/// What one thread may still spend. Thread-local, because a reader is cloned for every attribute and string.
struct Meter {
    is_running: Cell<bool>,
    steps: Cell<u64>,
    /// Steps left at which the clock is looked at.
    next_look: Cell<u64>,
    /// CPU time of the thread at the first look at its clock; `None` before.
    looked_at: Cell<Option<Duration>>,
    /// CPU time that may pass from then on.
    cpu: Cell<Duration>,
    out_of_time: Cell<bool>,
    /// Bytes that may be allocated, and the balance of the thread at the start.
    bytes: Cell<u64>,
    balance: Cell<u64>,
    /// Bytes from which on the thread needs the memory for large images; see [`MemoryGate`].
    large_from: Cell<u64>,
    /// The lowest stack address allowed; stacks grow downwards.
    floor: Cell<usize>,
    gate: RefCell<Option<Arc<dyn MemoryGate>>>,
}

thread_local! {
    // Outside of `run` nothing is granted.
    static METER: Meter = const { Meter {
        is_running: Cell::new(false),
        steps: Cell::new(0),
        next_look: Cell::new(0),
        looked_at: Cell::new(None),
        cpu: Cell::new(Duration::MAX),
        out_of_time: Cell::new(false),
        bytes: Cell::new(0),
        balance: Cell::new(0),
        large_from: Cell::new(u64::MAX),
        floor: Cell::new(usize::MAX),
        gate: RefCell::new(None),
    } };
}

/// Lets one thread at a time take the memory that a large image needs.
pub trait MemoryGate: Debug + Send + Sync {
    /// Waits until this thread may take that memory. It has it until its question is answered.
    fn enter(&self);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MeterStop {
    OutOfSteps,
    OutOfBytes,
    OutOfTime,
    /// The parser panicked. It must not be called again with the same data.
    Panicked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spent;

#[derive(Debug, Clone)]
pub(crate) struct ReadGrant {
    pub(crate) steps: u64,
    pub(crate) bytes: u64,
    pub(crate) cpu: Duration,
    /// What to wait for before more than [`crate::limits::SMALL_IMAGE_BYTES`] are allocated.
    pub(crate) gate: Option<Arc<dyn MemoryGate>>,
}

/// Calls `parse` with a `grant`, which is reduced by the steps, bytes and time used, and `stack` bytes of stack.
pub(crate) fn run<T>(
    grant: &mut ReadGrant,
    stack: usize,
    parse: impl FnOnce() -> T,
) -> std::result::Result<T, MeterStop> {
    let (value, stop) = run_partly(grant, stack, parse);
    match (value, stop) {
        (_, Some(stop)) => Err(stop),
        (None, None) => Err(MeterStop::Panicked),
        (Some(value), None) => Ok(value),
    }
}

/// As [`run`], with the value of a call that was stopped. There is none after a panic.
pub(crate) fn run_partly<T>(
    grant: &mut ReadGrant,
    stack: usize,
    parse: impl FnOnce() -> T,
) -> (Option<T>, Option<MeterStop>) {
    let (before, began) = (allocation::balance(), Instant::now());
    METER.with(|meter| {
        meter.is_running.set(true);
        meter.steps.set(grant.steps);
        meter.next_look.set(grant.steps.saturating_sub(LOOK_AT_CLOCK));
        meter.looked_at.set(None);
        meter.cpu.set(grant.cpu);
        meter.out_of_time.set(grant.cpu.is_zero());
        meter.bytes.set(grant.bytes);
        meter.balance.set(before);
        meter.large_from.set(if grant.gate.is_some() { crate::limits::SMALL_IMAGE_BYTES } else { u64::MAX });
        meter.floor.set(stack_pointer().saturating_sub(stack));
        *meter.gate.borrow_mut() = grant.gate.clone();
    });
    // Third-party parsers may panic on untrusted data, which costs one image's names. Nothing else is touched, and the
    // parser's state is not used again.
    let result = catch_unwind(AssertUnwindSafe(parse)).ok();
    let (out_of_time, looked_at) = METER.with(|meter| {
        meter.is_running.set(false);
        grant.steps = meter.steps.replace(0);
        grant.bytes = meter.bytes.get().saturating_sub(allocation::held_since(before));
        meter.floor.set(usize::MAX);
        *meter.gate.borrow_mut() = None;
        (meter.out_of_time.get(), meter.looked_at.get())
    });
    let used = looked_at.map_or_else(|| began.elapsed().min(MAX_BRIEF), |first| thread_cpu().saturating_sub(first));
    grant.cpu = grant.cpu.saturating_sub(used);
    let stop = match () {
        () if result.is_none() => Some(MeterStop::Panicked),
        () if grant.bytes == 0 => Some(MeterStop::OutOfBytes),
        () if out_of_time => Some(MeterStop::OutOfTime),
        () if grant.steps == 0 => Some(MeterStop::OutOfSteps),
        () => None,
    };
    (result, stop)
}

/// Calls a third-party parser that reads no [`Metered`] section, such as a demangler; `None` if it panicked.
pub(crate) fn catch_panic<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// CPU time of this thread: a thread that waits for a CPU is not charged for it.
fn thread_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[inline(always)]
fn stack_pointer() -> usize {
    let here = 0u8;
    std::ptr::from_ref(std::hint::black_box(&here)).addr()
}

/// Takes steps: one for decoding a value, and one for every 64 bytes searched or copied. No effect outside of [`run`].
/// Fails if they are not granted; the rest of the [`run`] fails, too.
#[inline]
pub(crate) fn spend(steps: u64) -> std::result::Result<(), Spent> {
    METER.with(|meter| if meter.is_running.get() { meter.take(steps) } else { Ok(()) })
}

pub(crate) fn steps_of(bytes: usize) -> u64 {
    bytes as u64 >> 6
}

pub(crate) fn steps_of_sort(entries: usize) -> u64 {
    let depth = u64::from(entries.checked_ilog2().unwrap_or(0));
    (entries as u64).saturating_mul(depth) / 4
}

/// Call before many bytes are allocated at once. Fails if they are not granted. Fewer bytes may be.
pub(crate) fn reserve(bytes: u64) -> std::result::Result<(), Spent> {
    METER.with(|meter| {
        if !meter.is_running.get() {
            return Ok(());
        }
        let wanted = allocation::held_since(meter.balance.get()).saturating_add(bytes);
        if wanted >= meter.bytes.get() {
            return Err(Spent);
        }
        if wanted >= meter.large_from.get() {
            meter.enter_gate();
        }
        Ok(())
    })
}

pub(crate) fn bytes_left() -> u64 {
    METER.with(|meter| match meter.is_running.get() {
        true => meter.bytes.get().saturating_sub(allocation::held_since(meter.balance.get())),
        false => u64::MAX,
    })
}

impl Meter {
    #[inline]
    fn take(&self, steps: u64) -> std::result::Result<(), Spent> {
        let left = self.steps.get().saturating_sub(steps);
        self.steps.set(left);
        let held = allocation::held_since(self.balance.get());
        if held >= self.large_from.get() {
            self.enter_gate();
        }
        if held >= self.bytes.get() {
            // What was allocated may be freed before the call returns.
            self.bytes.set(0);
            return Err(Spent);
        }
        if left <= self.next_look.get() {
            self.look_at_clock(left);
        }
        if left == 0 || self.out_of_time.get() || stack_pointer() < self.floor.get() {
            return Err(Spent);
        }
        Ok(())
    }

    #[cold]
    fn look_at_clock(&self, left: u64) {
        self.next_look.set(left.saturating_sub(LOOK_AT_CLOCK));
        let now = thread_cpu();
        let first = self.looked_at.get().unwrap_or(now);
        self.looked_at.set(Some(first));
        if now.saturating_sub(first) >= self.cpu.get() {
            self.out_of_time.set(true);
        }
    }

    #[cold]
    fn enter_gate(&self) {
        self.large_from.set(u64::MAX);
        let gate = self.gate.borrow().clone();
        if let Some(gate) = gate {
            gate.enter();
        }
    }
}

/// Takes one step, and those for bytes searched.
#[inline]
fn charge(bytes: usize) -> Result<()> {
    // gimli's errors are a closed set; this is its error for a section that ends here.
    METER
        .with(|meter| if meter.is_running.get() { meter.take(1 + steps_of(bytes)) } else { Err(Spent) })
        .map_err(|Spent| Error::UnexpectedEof(ReaderOffsetId(0)))
}

/// A section of debug information that charges for being read.
#[derive(Debug, Clone)]
pub(crate) struct Metered(EndianReader<LittleEndian, Arc<[u8]>>);

impl Metered {
    pub(crate) fn new(bytes: Arc<[u8]>) -> Metered {
        Metered(EndianReader::new(bytes, LittleEndian))
    }

    pub(crate) fn empty_section() -> Metered {
        Metered::new(Arc::from(Vec::new()))
    }
}

impl Reader for Metered {
    type Endian = LittleEndian;
    type Offset = usize;

    fn endian(&self) -> LittleEndian {
        LittleEndian
    }

    fn len(&self) -> usize {
        Reader::len(&self.0)
    }

    fn empty(&mut self) {
        self.0.empty();
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        self.0.truncate(len)
    }

    fn offset_from(&self, base: &Metered) -> usize {
        self.0.offset_from(&base.0)
    }

    fn offset_id(&self) -> ReaderOffsetId {
        self.0.offset_id()
    }

    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        self.0.lookup_offset_id(id)
    }

    fn find(&self, byte: u8) -> Result<usize> {
        let found = self.0.find(byte);
        charge(*found.as_ref().unwrap_or(&Reader::len(&self.0)))?;
        found
    }

    #[inline]
    fn skip(&mut self, len: usize) -> Result<()> {
        charge(0)?;
        self.0.skip(len)
    }

    fn split(&mut self, len: usize) -> Result<Metered> {
        charge(0)?;
        self.0.split(len).map(Metered)
    }

    fn to_slice(&self) -> Result<Cow<'_, [u8]>> {
        charge(Reader::len(&self.0))?;
        self.0.to_slice()
    }

    fn to_string(&self) -> Result<Cow<'_, str>> {
        charge(Reader::len(&self.0))?;
        self.0.to_string()
    }

    fn to_string_lossy(&self) -> Result<Cow<'_, str>> {
        charge(Reader::len(&self.0))?;
        self.0.to_string_lossy()
    }

    #[inline]
    fn read_slice(&mut self, buf: &mut [u8]) -> Result<()> {
        charge(0)?;
        self.0.read_slice(buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(steps: u64) -> ReadGrant {
        ReadGrant { steps, bytes: u64::MAX, cpu: Duration::MAX, gate: None }
    }

    fn with_bytes(bytes: u64) -> ReadGrant {
        ReadGrant { bytes, ..granted(1000) }
    }

    #[test]
    fn reads_stop_when_the_bytes_are_used_up() {
        let mut grant = with_bytes(100);
        let mut reader = Metered::new(Arc::from(vec![1u8; 100]));
        let read = |reader: &mut Metered| {
            (0..10)
                .map_while(|_| {
                    allocation::allocated(30);
                    reader.read_u8().ok()
                })
                .count()
        };
        let mut done = 0;
        assert_eq!(run(&mut grant, 1 << 20, || done = read(&mut reader)), Err(MeterStop::OutOfBytes));
        assert_eq!(done, 3);
        // Bytes that are freed may be allocated again; those that are kept reduce the grant.
        let mut grant = with_bytes(100);
        let kept = run(&mut grant, 1 << 20, || {
            for _ in 0..10 {
                allocation::allocated(90);
                allocation::freed(60);
                reader.read_u8().ok()?;
                allocation::freed(20);
            }
            Some(())
        });
        assert_eq!((kept, grant.bytes), (Err(MeterStop::OutOfBytes), 0));
        let mut grant = with_bytes(100);
        assert_eq!(run(&mut grant, 1 << 20, || allocation::allocated(40)), Ok(()));
        assert_eq!(grant.bytes, 60);
        assert_eq!(run(&mut grant, 1 << 20, || allocation::freed(400)), Ok(()));
        assert_eq!(grant.bytes, 60);
    }

    #[test]
    fn reads_stop_when_the_steps_are_used_up() {
        let mut grant = granted(10);
        let mut reader = Metered::new(Arc::from(vec![1u8; 100]));
        let read = run(&mut grant, 1 << 20, || (0..100).map_while(|_| reader.read_u8().ok()).count());
        assert_eq!(read, Err(MeterStop::OutOfSteps));
        assert!(reader.read_u8().is_err(), "nothing is granted outside of a run");
        let mut grant = granted(10);
        assert_eq!(run(&mut grant, 1 << 20, || Metered::new(Arc::from([7u8])).read_u8().ok()), Ok(Some(7)));
        assert_eq!(grant.steps, 9);
    }

    #[test]
    fn searching_a_string_costs_by_its_length() {
        let mut grant = granted(1000);
        let reader = Metered::new(Arc::from(vec![1u8; 6400]));
        assert!(run(&mut grant, 1 << 20, || reader.find(0)).is_ok_and(|found| found.is_err()));
        assert_eq!(grant.steps, 1000 - 101);
    }

    #[test]
    fn deep_recursion_stops_before_the_stack_ends() {
        fn recurse(reader: &mut Metered, depth: usize) -> usize {
            match reader.read_u8() {
                Ok(_) => std::hint::black_box(recurse(reader, depth + 1)),
                Err(_) => depth,
            }
        }
        let mut grant = granted(u64::MAX);
        let mut reader = Metered::new(Arc::from(vec![1u8; 10_000_000]));
        let depth = run(&mut grant, 256 << 10, || recurse(&mut reader, 0)).unwrap();
        assert!((10..256 << 10).contains(&depth), "{depth}");
    }

    #[test]
    fn reads_stop_when_the_time_is_used_up() {
        let mut grant = ReadGrant { cpu: Duration::from_millis(20), ..granted(u64::MAX) };
        let endless = || {
            let mut reader = Metered::new(Arc::from(vec![1u8; 8]));
            while reader.clone().read_u8().is_ok() {
                reader = reader.clone();
            }
        };
        assert_eq!(run(&mut grant, 1 << 20, endless), Err(MeterStop::OutOfTime));
        assert_eq!((grant.cpu, run(&mut grant, 1 << 20, || ())), (Duration::ZERO, Err(MeterStop::OutOfTime)));
        let mut grant = ReadGrant { cpu: Duration::from_millis(20), ..granted(u64::MAX) };
        let spending = || while spend(100).is_ok() {};
        assert_eq!(run_partly(&mut grant, 1 << 20, spending), (Some(()), Some(MeterStop::OutOfTime)));
    }

    #[test]
    fn large_images_wait_for_their_turn() {
        #[derive(Debug, Default)]
        struct CountingGate(std::sync::atomic::AtomicU32);
        impl MemoryGate for CountingGate {
            fn enter(&self) {
                self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let gate = Arc::new(CountingGate::default());
        let entered = || gate.0.load(std::sync::atomic::Ordering::Relaxed);
        let shared: Arc<dyn MemoryGate> = Arc::<CountingGate>::clone(&gate);
        let mut grant = ReadGrant { gate: Some(shared), ..with_bytes(u64::MAX) };
        let small = crate::limits::SMALL_IMAGE_BYTES;
        assert_eq!(run(&mut grant, 1 << 20, || reserve(small / 2)), Ok(Ok(())));
        assert_eq!(entered(), 0);
        // Once for each run, by what is announced and by what is allocated.
        assert_eq!(run(&mut grant, 1 << 20, || reserve(small).and(reserve(2 * small))), Ok(Ok(())));
        assert_eq!(entered(), 1);
        let allocate = || {
            allocation::allocated(2 << 30);
            let spent = spend(1).and(spend(1));
            allocation::freed(2 << 30);
            spent
        };
        assert_eq!(run(&mut grant, 1 << 20, allocate), Ok(Ok(())));
        assert_eq!(entered(), 2);
        assert_eq!(run(&mut with_bytes(100), 1 << 20, || (reserve(100), reserve(50))), Ok((Err(Spent), Ok(()))));
    }

    #[test]
    fn a_panic_is_contained() {
        let mut grant = granted(10);
        assert_eq!(run(&mut grant, 1 << 20, || -> u8 { panic!("expected by this test") }), Err(MeterStop::Panicked));
    }
}
