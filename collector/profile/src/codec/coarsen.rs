//! Merges the older intervals of a stream, so that a file's size has a limit however long the recording is.

use std::io::{Read, Write};

use super::decode::{Decoded, Decoder};
use super::encode::{ChargesWritten, Encoder};
use super::format::MAX_INTERVALS;
use super::join::GenerationJoin;
use super::split::Size;
use crate::error::{DecodeError, EncodeError, UpdateError};
use crate::update::Update;

/// Intervals with many charges are merged from this number on. Leaves a timeline of 32 columns.
const MANY_INTERVALS: usize = 64;
/// Charges per charged place that count as many: the file would be this many times the profile.
const CHARGES_OF_A_PLACE: u64 = 16;
/// Number of charges, some tens of kilobytes, that never count as many.
const FEW_CHARGES: u64 = 1 << 14;

/// Charges of a place from which on a stream that has ended keeps no more than [`MANY_INTERVALS`].
const FINISHED_CHARGES_OF_A_PLACE: u64 = 3;
/// So many charges, a few kilobytes, are not worth the time that fewer intervals would lose.
const FINISHED_FEW_CHARGES: u64 = 1 << 11;

/// Contexts remembered to join generations, as a multiple of the largest generation; the least takes some 2 MiB.
const JOINED_GENERATIONS: usize = 4;
const LEAST_JOINED: u32 = 1 << 14;

/// Limit on the memory of one new interval while it is merged, in bytes. Beyond it, or with generations that cannot be
/// joined, the interval becomes several records.
const MERGED_BYTES: usize = 16 << 20;

/// Why a stream was not coarsened.
#[derive(Debug, thiserror::Error)]
pub enum CoarsenError {
    /// What was written cannot be read.
    #[error("{0}")]
    Read(#[from] DecodeError),
    /// What is read are not updates that follow each other.
    #[error("{0}")]
    Merge(#[from] UpdateError),
    /// The coarser stream cannot be written.
    #[error("{0}")]
    Write(#[from] EncodeError),
    /// The stream is not the one of these intervals.
    #[error("the profile was changed by somebody else")]
    Changed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StreamInterval {
    from_ns: u64,
    to_ns: u64,
    /// Where its records end, in bytes from the stream's start.
    end: u64,
}

/// The intervals that an [`Encoder`] has written, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    intervals: Vec<StreamInterval>,
    charges: ChargesWritten,
    contexts: [u32; 2],
    has_generations: bool,
}

impl Written {
    /// Adds the interval of an update after it was written to `encoder`.
    pub fn add<W: Write>(&mut self, update: &Update, encoder: &Encoder<W>) {
        let Update { from_ns, to_ns, .. } = *update;
        self.intervals.push(StreamInterval { from_ns, to_ns, end: encoder.bytes_written() });
        self.charges = encoder.charges_written();
        let [now, most] = &mut self.contexts;
        self.has_generations |= update.begins_generation(*now);
        *now = update.end().contexts;
        *most = (*most).max(*now);
    }

    /// Whether intervals should be merged: [`MAX_INTERVALS`], or fewer if they mostly repeat each other's charges.
    #[must_use]
    pub fn is_long(&self) -> bool {
        let ChargesWritten { charges, places } = self.charges;
        let repeats = charges > places.saturating_mul(CHARGES_OF_A_PLACE).saturating_add(FEW_CHARGES);
        self.len() >= if repeats { MANY_INTERVALS } else { MAX_INTERVALS }
    }

    /// Number of intervals.
    #[must_use]
    pub fn len(&self) -> usize {
        self.intervals.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.intervals.is_empty()
    }

    /// Number of intervals that are left when the session has ended.
    #[must_use]
    pub fn finished_len(&self) -> usize {
        let ChargesWritten { charges, places } = self.charges;
        let mut len = self.len();
        if charges > places.saturating_mul(FINISHED_CHARGES_OF_A_PLACE).saturating_add(FINISHED_FEW_CHARGES) {
            while len > MANY_INTERVALS {
                len /= 2;
            }
        }
        len
    }

    /// Number of intervals after coarsening: half as many.
    #[must_use]
    pub fn coarsened_len(&self) -> usize {
        (self.len() / 2).min(MAX_INTERVALS / 2)
    }

    /// Merges neighbouring intervals, the shortest and then the oldest first, until at most `most` (at least one)
    /// remain. The older ones end up at most twice as long as the younger.
    #[must_use]
    fn merged(&self, most: usize) -> Written {
        let together = |a: &StreamInterval, b: &StreamInterval| b.to_ns.saturating_sub(a.from_ns);
        let mut intervals = self.intervals.clone();
        let shortest = intervals.windows(2).filter_map(|pair| Some(together(pair.first()?, pair.last()?))).min();
        let mut longest = shortest.unwrap_or(0);
        while intervals.len() > most.max(1) {
            longest = longest.saturating_add(longest / 4 + 1);
            let mut excess = intervals.len() - most.max(1);
            let mut merged: Vec<StreamInterval> = Vec::with_capacity(intervals.len());
            for interval in intervals {
                match merged.last_mut() {
                    // One without a length ends where the one before does: both are of the same windows.
                    Some(last) if interval.to_ns == last.to_ns => last.end = interval.end,
                    Some(last) if excess > 0 && together(last, &interval) <= longest => {
                        (last.to_ns, last.end) = (interval.to_ns, interval.end);
                        excess -= 1;
                    }
                    _ => merged.push(interval),
                }
            }
            intervals = merged;
        }
        Written { intervals, ..Written::default() }
    }
}

/// Writes the unfinished stream of `input`, whose intervals are `written`, with at most `most` intervals. Returns the
/// encoder that continues it, and its intervals. It decodes to the same profile, in all windows that begin and end with
/// the new intervals. Holds the names of source files, one new interval and some contexts in memory.
///
/// # Errors
/// [`CoarsenError`]; the contents of `out` are then unusable.
pub fn coarsen<R: Read, W: Write>(
    input: R,
    out: W,
    written: &Written,
    most: usize,
) -> Result<(Encoder<W>, Written), CoarsenError> {
    let mut rewriting = CoarsenedStream::new(input, out, written)?;
    let mut coarser = Written { contexts: written.contexts, ..Written::default() };
    coarser.has_generations = written.has_generations;
    let mut last = None;
    for interval in written.merged(most).intervals {
        last = rewriting.copy(interval, |encoder, update| Ok(encoder.write(update)?))?.or(last);
        coarser.intervals.push(StreamInterval { end: rewriting.encoder.bytes_written(), ..interval });
    }
    let CoarsenedStream { mut decoder, mut encoder, join } = rewriting;
    if let (Some(join), Some(last)) = (join, last) {
        encoder.write(&join.generation_after(&last))?;
        if let Some(interval) = coarser.intervals.last_mut() {
            interval.end = encoder.bytes_written();
        }
    }
    coarser.charges = encoder.charges_written();
    match decoder.next_record()? {
        None => Ok((encoder, coarser)),
        Some(_) => Err(CoarsenError::Changed),
    }
}

/// Writes the finished stream of `input` as it is kept: fewer intervals ([`Written::finished_len`]), several in one
/// record,
/// best compression. Decodes as with [`coarsen`].
///
/// # Errors
/// [`CoarsenError`]; the contents of `out` are then unusable.
pub fn compact<R: Read, W: Write>(input: R, out: W, written: &Written) -> Result<(), CoarsenError> {
    let mut rewriting = CoarsenedStream::new(input, out, written)?;
    rewriting.encoder.try_harder();
    let mut batch = UpdateBatch::new(rewriting.decoder.session().metrics.len());
    for interval in written.merged(written.finished_len()).intervals {
        rewriting.copy(interval, |encoder, update| batch.add(encoder, update))?;
    }
    let CoarsenedStream { mut decoder, mut encoder, .. } = rewriting;
    batch.write(&mut encoder)?;
    match (decoder.next_record()?, decoder.next_record()?) {
        (Some(Decoded::End(accounting)), None) => {
            encoder.finish_with(&accounting)?;
            Ok(())
        }
        _ => Err(CoarsenError::Changed),
    }
}

struct CoarsenedStream<R, W> {
    decoder: Decoder<R>,
    encoder: Encoder<W>,
    join: Option<GenerationJoin>,
}

impl<R: Read, W: Write> CoarsenedStream<R, W> {
    fn new(input: R, out: W, written: &Written) -> Result<Self, CoarsenError> {
        let decoder = Decoder::new(input)?;
        let encoder = Encoder::new(out, decoder.session())?;
        let joined = JOINED_GENERATIONS * written.contexts[1].max(LEAST_JOINED) as usize;
        let metrics = decoder.session().metrics.len();
        let join = written.has_generations.then(|| GenerationJoin::new(metrics, joined));
        Ok(Self { decoder, encoder, join })
    }

    /// Writes the updates up to the end of `interval` as that interval's. Returns the last one, without charges, if
    /// generations are joined.
    fn copy(
        &mut self,
        interval: StreamInterval,
        mut write: impl FnMut(&mut Encoder<W>, &mut Update) -> Result<(), CoarsenError>,
    ) -> Result<Option<Update>, CoarsenError> {
        let Self { decoder, encoder, join } = self;
        let mut held: Option<Update> = None;
        while decoder.bytes_used() < interval.end {
            let Some(Decoded::Update(mut update)) = decoder.next_record()? else { return Err(CoarsenError::Changed) };
            (update.from_ns, update.to_ns) = (interval.from_ns, interval.to_ns);
            if let Some(join) = join {
                join.translate(&mut update);
            }
            let Some(merged) = &mut held else {
                held = Some(*update);
                continue;
            };
            let fits = merged.approximate_bytes().saturating_add(update.approximate_bytes()) <= MERGED_BYTES;
            if fits && !update.begins_generation(merged.end().contexts) {
                merged.merge(&update)?;
            } else {
                write(encoder, merged)?;
                *merged = *update;
            }
        }
        if decoder.bytes_used() != interval.end {
            return Err(CoarsenError::Changed);
        }
        if let Some(merged) = &mut held {
            write(encoder, merged)?;
            merged.clear_charges();
        }
        Ok(held.filter(|_| join.is_some()))
    }
}

struct UpdateBatch {
    intervals: Vec<Update>,
    /// What they define, and the crashes of the first.
    all: Update,
    size: Size,
    metrics: usize,
}

impl UpdateBatch {
    fn new(metrics: usize) -> Self {
        Self { intervals: Vec::new(), all: Update::default(), size: Size::default(), metrics }
    }

    /// Takes an update's charges. First writes the earlier ones, if this one cannot be in their record.
    fn add<W: Write>(&mut self, encoder: &mut Encoder<W>, update: &mut Update) -> Result<(), CoarsenError> {
        let own = Size::of(update);
        let size = self.size.and(own);
        let follows = !self.intervals.is_empty()
            && self.intervals.len() < MAX_INTERVALS
            && update.crashes.is_empty()
            && !update.begins_generation(self.all.end().contexts)
            && size.fits(self.metrics);
        if !follows {
            self.write(encoder)?;
        }
        if !own.fits(self.metrics) {
            return Ok(encoder.write(update)?);
        }
        let interval = Update {
            from_ns: update.from_ns,
            to_ns: update.to_ns,
            charges: std::mem::take(&mut update.charges),
            weights: std::mem::take(&mut update.weights),
            squares: std::mem::take(&mut update.squares),
            accounting: update.accounting.clone(),
            ..Update::default()
        };
        if follows {
            self.all.merge(update)?;
            self.size = size;
        } else {
            self.all = update.clone();
            self.size = own;
        }
        self.intervals.push(interval);
        Ok(())
    }

    fn write<W: Write>(&mut self, encoder: &mut Encoder<W>) -> Result<(), CoarsenError> {
        if !self.intervals.is_empty() {
            encoder.write_record_of(&self.intervals, &self.all)?;
        }
        *self = Self::new(self.metrics);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lengths: impl IntoIterator<Item = u64>) -> Written {
        let mut at = 0;
        let interval = |length| {
            let from_ns = at;
            at += length;
            StreamInterval { from_ns, to_ns: at, end: at }
        };
        Written { intervals: lengths.into_iter().map(interval).collect(), ..Written::default() }
    }

    fn lengths(written: &Written) -> Vec<u64> {
        written.intervals.iter().map(|it| it.to_ns - it.from_ns).collect()
    }

    #[test]
    fn the_shortest_neighbours_are_merged() {
        assert_eq!(lengths(&of([10; 8]).merged(4)), [20; 4]);
        assert_eq!(lengths(&of([10; 8]).merged(6)), [20, 20, 10, 10, 10, 10]);
        // The longer ones, which have been merged before, stay until all are as long.
        assert_eq!(lengths(&of([20, 20, 20, 20, 10, 10, 10, 10]).merged(6)), [20; 6]);
        assert_eq!(lengths(&of([20, 20, 20, 20, 10, 10, 10, 10]).merged(4)), [40, 40, 20, 20]);
        // A long one is no reason to merge the others further.
        assert_eq!(lengths(&of([10, 10, 1_000_000, 10, 10]).merged(3)), [20, 1_000_000, 20]);
        // Nearly equal ones are equal; the first of a session is short.
        assert_eq!(lengths(&of([1, 100, 101, 100, 99, 103, 100, 100]).merged(4)), [202, 199, 203, 100]);
    }

    #[test]
    fn whatever_the_times_there_are_no_more_than_asked_for() {
        for most in [0, 1, 2, 255, 256] {
            assert_eq!(of([7; 513]).merged(most).len(), most.max(1));
        }
        // No length at all; times that go back, and leap.
        assert_eq!(of([0; 513]).merged(256).len(), 1);
        let times = |at: u64| if at.is_multiple_of(3) { u64::MAX } else { 513 - at };
        let wild = (0..513).map(|at| StreamInterval { from_ns: times(at), to_ns: times(at + 1), end: at });
        assert!(Written { intervals: wild.collect(), ..Written::default() }.merged(256).len() <= 256);
        assert_eq!(Written::default().merged(0).len(), 0);
        // What ends with the one before is of it, even where enough are merged.
        assert_eq!(lengths(&of([1, 1, 5, 0, 9]).merged(3)), [2, 5, 9]);
    }

    #[test]
    fn long_recordings_keep_intervals_of_like_length() {
        let mut written = Written::default();
        for second in 0..20_000 {
            if written.len() == MAX_INTERVALS {
                written = written.merged(MAX_INTERVALS / 2);
            }
            written.intervals.push(StreamInterval {
                from_ns: second * 1_000,
                to_ns: (second + 1) * 1_000,
                end: second + 1,
            });
        }
        let lengths = lengths(&written);
        assert!(lengths.iter().max().is_some_and(|&longest| longest <= 4 * 20_000 * 1_000 / 256), "{lengths:?}");
        assert_eq!(lengths.iter().sum::<u64>(), 20_000 * 1_000);
    }
}
