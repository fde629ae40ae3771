//! Bounds on the cost of parsing debug information.
//!
//! `addr2line` and `gimli` check what they read but not how much work it causes: a few megabytes of hostile DWARF can
//! take hours (many units that share one long range list), overflow the stack (inlined functions nested a million
//! deep), or produce an index many times their size. All of that goes through reads, so this module's reader counts
//! reads, checks the depth of the stack and the bytes [allocated](crate::allocation), and fails beyond the granted
//! limits.

use std::borrow::Cow;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::allocation;
use gimli::{EndianReader, Error, LittleEndian, Reader, ReaderOffsetId, Result};

/// What one thread may still spend. Thread-local, because a reader is cloned for every attribute and string: a pointer
/// in each would be slower and take memory.
struct Meter {
    steps: Cell<u64>,
    /// Bytes that may be allocated, and the balance of the thread at the start.
    bytes: Cell<u64>,
    balance: Cell<u64>,
    /// The lowest stack address allowed; stacks grow downwards.
    floor: Cell<usize>,
}

thread_local! {
    // Outside of `run` nothing is granted.
    static METER: Meter = const { Meter {
        steps: Cell::new(0),
        bytes: Cell::new(0),
        balance: Cell::new(0),
        floor: Cell::new(usize::MAX),
    } };
}

/// Why a metered call was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MeterStop {
    /// All granted steps were used.
    OutOfSteps,
    /// All granted bytes were allocated.
    OutOfBytes,
    /// The parser panicked. It must not be called again with the same data.
    Panicked,
}

/// What parsing may cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    /// Values that may be decoded.
    pub(crate) steps: u64,
    /// Bytes that may be allocated and kept.
    pub(crate) bytes: u64,
}

/// Calls `parse` with a `grant`, which is reduced by the steps and bytes used, and `stack` bytes of stack.
pub(crate) fn run<T>(grant: &mut Grant, stack: usize, parse: impl FnOnce() -> T) -> std::result::Result<T, MeterStop> {
    let before = allocation::balance();
    METER.with(|meter| {
        meter.steps.set(grant.steps);
        meter.bytes.set(grant.bytes);
        meter.balance.set(before);
        meter.floor.set(stack_pointer().saturating_sub(stack));
    });
    // The only place that catches panics: third-party parsers on untrusted data. A panic costs the names of one image,
    // not the profile. The closure touches nothing else, and the parser's state is not used again.
    let result = catch_unwind(AssertUnwindSafe(parse));
    METER.with(|meter| {
        grant.steps = meter.steps.get();
        grant.bytes = meter.bytes.get().saturating_sub(allocation::held_since(before));
        meter.steps.set(0);
        meter.floor.set(usize::MAX);
    });
    match result {
        Err(_) => Err(MeterStop::Panicked),
        Ok(_) if grant.bytes == 0 => Err(MeterStop::OutOfBytes),
        Ok(_) if grant.steps == 0 => Err(MeterStop::OutOfSteps),
        Ok(value) => Ok(value),
    }
}

/// Calls a third-party parser that reads no [`Metered`] section, such as a demangler; `None` if it panicked.
pub(crate) fn catch_panic<T>(work: impl FnOnce() -> T) -> Option<T> {
    // It takes no steps.
    let mut grant = Grant { steps: 1, bytes: u64::MAX };
    run(&mut grant, crate::limits::MAX_DWARF_STACK, work).ok()
}

/// Approximate end of the stack: the address of a local variable.
#[inline(always)]
fn stack_pointer() -> usize {
    let here = 0u8;
    std::ptr::from_ref(std::hint::black_box(&here)).addr()
}

/// Takes one step, and one more for every 64 bytes searched: searching a byte costs much less than decoding a value.
#[inline]
fn charge(bytes: usize) -> Result<()> {
    let cost = 1 + (bytes as u64 >> 6);
    METER.with(|meter| {
        let left = meter.steps.get().saturating_sub(cost);
        meter.steps.set(left);
        if allocation::held_since(meter.balance.get()) >= meter.bytes.get() {
            // What was allocated may be freed before the call returns.
            meter.bytes.set(0);
            return Err(Error::UnexpectedEof(ReaderOffsetId(0)));
        }
        if left == 0 || stack_pointer() < meter.floor.get() {
            // gimli's errors are a closed set; this is its error for a section that ends here.
            return Err(Error::UnexpectedEof(ReaderOffsetId(0)));
        }
        Ok(())
    })
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

    fn granted(steps: u64) -> Grant {
        Grant { steps, bytes: u64::MAX }
    }

    #[test]
    fn reads_stop_when_the_bytes_are_used_up() {
        let mut grant = Grant { steps: 1000, bytes: 100 };
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
        let mut grant = Grant { steps: 1000, bytes: 100 };
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
        let mut grant = Grant { steps: 1000, bytes: 100 };
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
    fn a_panic_is_contained() {
        let mut grant = granted(10);
        assert_eq!(run(&mut grant, 1 << 20, || -> u8 { panic!("expected by this test") }), Err(MeterStop::Panicked));
    }
}
