//! Charges, column by column: what repeats is in one place, where deflate finds it.
//!
//! A *place* is a context, a line of its running function, and a route. The first charge of a place in a generation of contexts defines
//! it; later ones name its number. So a charge that repeats takes a few bits: the step to its place, the number of samples,
//! and how much they weigh beside the usual.

use hashbrown::HashMap;

use super::split::record_charges;
use super::wire::{Cursor, Wrong, put, put_delta, put_large, put_len};
use crate::ids::{ContextId, LineId, RouteId, ThreadId};
use crate::limits::{MAX_METRICS, MAX_PLACES};
use crate::squares::{Squares, equal_squares, squared_metrics};
use crate::stream::sort_charges;
use crate::update::{ChargeDelta, Update};

const PLAIN: u64 = 1;
const SQUARES: u64 = 1 << 1;
/// Bits of flags below the number of samples.
const FLAG_BITS: u32 = 2;

pub(super) type ChargePlace = (u32, u32, u32);

#[derive(Debug, Default)]
pub(super) struct PlaceNumbers(HashMap<ChargePlace, u32>);

impl PlaceNumbers {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// A charge as it is written, its update, and its number in that.
struct WrittenCharge<'a> {
    place: u32,
    samples: u64,
    update: &'a Update,
    at: usize,
}

impl<'a> WrittenCharge<'a> {
    fn weights(&self, metrics: usize) -> &'a [u64] {
        self.update.weights.get(self.at * metrics..(self.at + 1) * metrics).unwrap_or(&[])
    }

    /// The sums of squares, if they do not all follow from samples and weights.
    fn squares(&self, metrics: usize) -> Option<&'a [Squares]> {
        let squares = self.update.squares_of(self.at, metrics)?;
        let follow = |(&square, &weight): (&Squares, &u64)| square <= equal_squares(self.samples, weight);
        Some(squares).filter(|squares| !squares.iter().zip(self.weights(metrics)).all(follow))
    }
}

#[derive(Clone, Copy, Debug)]
struct WeightScale {
    usual: u64,
    /// What most weights are multiples of.
    unit: u64,
}

impl WeightScale {
    /// A difference of weights: in units, or + 1 if it is none of them.
    fn put(self, out: &mut Vec<u8>, difference: i64) {
        let unit = i64::try_from(self.unit).unwrap_or(1);
        let (value, is_apart) = match difference % unit {
            0 => (difference / unit, 0),
            _ => (difference, 1),
        };
        put_large(out, u128::from(((value << 1) ^ (value >> 63)) as u64) << 1 | is_apart);
    }

    fn get(self, from: &mut Cursor<'_>) -> Result<i64, Wrong> {
        let value = from.large()?;
        let zigzag = u64::try_from(value >> 1).map_err(|_| "number too large")?;
        let signed = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        Ok(if value & 1 == 1 { signed } else { signed.wrapping_mul(self.unit as i64) })
    }

    /// By how much a sum of squares is above that of samples of equal weight: in squared units, or + 1.
    fn put_squares(self, out: &mut Vec<u8>, squares: Squares, samples: u64, weight: u64) {
        let square = Squares::from(self.unit) * Squares::from(self.unit);
        let in_units = weight.is_multiple_of(self.unit) && squares.is_multiple_of(square);
        let above = match in_units {
            true => (squares / square).saturating_sub(equal_squares(samples, weight / self.unit)),
            false => squares.saturating_sub(equal_squares(samples, weight)),
        };
        put_large(out, above.min(Squares::MAX >> 1) << 1 | Squares::from(!in_units));
    }

    fn get_squares(self, from: &mut Cursor<'_>, samples: u64, weight: u64) -> Result<Squares, Wrong> {
        let value = from.large()?;
        if value & 1 == 1 {
            return Ok(equal_squares(samples, weight).saturating_add(value >> 1));
        }
        let square = Squares::from(self.unit) * Squares::from(self.unit);
        Ok(equal_squares(samples, weight / self.unit).saturating_add(value >> 1).saturating_mul(square))
    }
}

/// Writes the charges of updates, those of an interval after the other.
pub(super) fn put_charges(out: &mut Vec<u8>, numbers: &mut PlaceNumbers, updates: &[Update], metrics: usize) {
    let scales: Vec<WeightScale> = (0..metrics).map(|metric| scale(updates, metric, metrics)).collect();
    for scale in &scales {
        put(out, scale.usual);
        put(out, scale.unit);
    }
    let count = updates.iter().map(|update| update.charges.len()).sum();
    put_len(out, count);

    let mut new: Vec<ChargePlace> = Vec::new();
    // Of each interval, the number of its runs; of each run, its thread and the number of its charges.
    let mut intervals: Vec<usize> = Vec::new();
    let mut runs: Vec<(u32, usize)> = Vec::new();
    let mut rows: Vec<WrittenCharge<'_>> = Vec::with_capacity(count);
    for update in updates {
        let (mut at, runs_before) = (0, runs.len());
        for run in update.charges.chunk_by(|a, b| a.thread == b.thread) {
            let first = rows.len();
            for charge in run {
                let place = (charge.context.0, charge.line.0, charge.route.0);
                let next = numbers.0.len() as u32;
                let number = *numbers.0.entry(place).or_insert(next);
                if number == next {
                    new.push(place);
                }
                rows.push(WrittenCharge { place: number, samples: charge.samples, update, at });
                at += 1;
            }
            if let Some(rows) = rows.get_mut(first..) {
                rows.sort_unstable_by_key(|row| row.place);
            }
            runs.extend(run.first().map(|charge| (charge.thread.0, run.len())));
        }
        intervals.push(runs.len() - runs_before);
    }
    put_len(out, new.len());
    let columns: [fn(&ChargePlace) -> u32; 3] = [|place| place.0, |place| place.1, |place| place.2];
    for column in columns {
        let mut before = 0;
        for value in new.iter().map(column) {
            put_delta(out, value, before);
            before = value;
        }
    }
    for runs in intervals {
        put_len(out, runs);
    }
    for &(thread, length) in &runs {
        put(out, u64::from(thread));
        put_len(out, length);
    }
    let mut rest = rows.iter();
    for &(_, length) in &runs {
        let mut before = 0;
        for row in rest.by_ref().take(length) {
            put(out, u64::from(row.place - before));
            before = row.place;
        }
    }

    let difference = |row: &WrittenCharge<'_>, metric: usize, scale: &WeightScale| {
        let weight = row.weights(metrics).get(metric).copied().unwrap_or(0);
        weight.wrapping_sub(row.samples.wrapping_mul(scale.usual)) as i64
    };
    let is_plain =
        |row: &WrittenCharge<'_>| scales.iter().enumerate().all(|(metric, scale)| difference(row, metric, scale) == 0);
    for row in &rows {
        // Samples are counted one by one and never reach 2^62; saturating keeps even that from wrapping.
        let flags = if is_plain(row) { PLAIN } else { 0 } | if row.squares(metrics).is_some() { SQUARES } else { 0 };
        put(out, row.samples.min(u64::MAX >> FLAG_BITS) << FLAG_BITS | flags);
    }
    for (metric, scale) in scales.iter().enumerate() {
        for row in rows.iter().filter(|row| !is_plain(row)) {
            scale.put(out, difference(row, metric, scale));
        }
    }
    for (metric, scale) in scales.iter().enumerate() {
        for row in &rows {
            let value = row.squares(metrics).and_then(|squares| squares.get(metric));
            if let (Some(&square), Some(&weight)) = (value, row.weights(metrics).get(metric)) {
                scale.put_squares(out, square, row.samples, weight);
            }
        }
    }
}

/// What has charges: keys, weights, and sums of squares where they do not all follow.
pub(super) type ChargeLists = (Vec<ChargeDelta>, Vec<u64>, Vec<Squares>);

pub(super) fn charges(
    from: &mut Cursor<'_>,
    places: &mut Vec<ChargePlace>,
    metrics: usize,
    intervals: usize,
) -> Result<Vec<ChargeLists>, Wrong> {
    let mut scales = Vec::new();
    for _ in 0..metrics {
        let (usual, unit) = (from.get()?, from.get()?);
        if unit == 0 || i64::try_from(unit).is_err() {
            return Err("a unit of weights that is none");
        }
        scales.push(WeightScale { usual, unit });
    }
    let count = from.count()?;
    if count > record_charges(metrics) {
        return Err("more charges than a record may have");
    }
    let new = from.count()?;
    if new > count {
        return Err("more places than charges");
    }
    if new > MAX_PLACES.saturating_sub(places.len()) {
        return Err("more places than a generation may have");
    }
    let mut columns = [Vec::new(), Vec::new(), Vec::new()];
    for column in &mut columns {
        let mut before = 0;
        for _ in 0..new {
            before = from.delta(before)?;
            column.push(before);
        }
    }
    let [contexts, lines, routes] = columns;
    let new = contexts.into_iter().zip(lines).zip(routes);
    places.extend(new.map(|((context, line), route)| (context, line, route)));

    let runs = (0..intervals).map(|_| from.count()).collect::<Result<Vec<usize>, Wrong>>()?;
    let mut threads: Vec<u32> = Vec::new();
    let mut lengths: Vec<usize> = Vec::new();
    // Where the charges of each interval end.
    let mut ends: Vec<usize> = Vec::new();
    for runs in runs {
        for _ in 0..runs {
            let (thread, length) = (from.get_u32()?, from.count()?);
            if length == 0 || length > count - threads.len() {
                return Err("runs of charges do not add up");
            }
            threads.resize(threads.len() + length, thread);
            lengths.push(length);
        }
        ends.push(threads.len());
    }
    if threads.len() != count {
        return Err("runs of charges do not add up");
    }
    let mut charges: Vec<ChargeDelta> = Vec::new();
    let mut threads = threads.into_iter();
    for length in lengths {
        let mut number = 0u64;
        for thread in threads.by_ref().take(length) {
            number = number.saturating_add(from.get()?);
            let place = usize::try_from(number).ok().and_then(|number| places.get(number));
            let &(context, line, route) = place.ok_or("unknown place")?;
            let (thread, context, line, route) = (ThreadId(thread), ContextId(context), LineId(line), RouteId(route));
            charges.push(ChargeDelta { thread, context, line, route, samples: 0 });
        }
    }

    let mut flags = Vec::new();
    for charge in &mut charges {
        let value = from.get()?;
        charge.samples = value >> FLAG_BITS;
        flags.push(value);
    }
    let mut weights = vec![0u64; count * metrics];
    for (metric, scale) in scales.iter().enumerate() {
        let rows = charges.iter().zip(&flags).zip(weights.chunks_exact_mut(metrics.max(1)));
        for ((charge, flags), row) in rows {
            let difference = if flags & PLAIN == 0 { scale.get(from)? } else { 0 };
            if let Some(weight) = row.get_mut(metric) {
                *weight = charge.samples.wrapping_mul(scale.usual).wrapping_add(difference as u64);
            }
        }
    }
    let squared = squared_metrics(metrics);
    let mut squares = Vec::new();
    if flags.iter().any(|flags| flags & SQUARES != 0) {
        squares = vec![0; count * squared];
        for (metric, scale) in scales.iter().enumerate().take(MAX_METRICS) {
            let rows = charges.iter().zip(&flags).zip(weights.chunks_exact(metrics.max(1)));
            for (((charge, flags), weights), row) in rows.zip(squares.chunks_exact_mut(squared.max(1))) {
                let weight = weights.get(metric).copied().unwrap_or(0);
                if let Some(square) = row.get_mut(metric) {
                    *square = match flags & SQUARES {
                        0 => equal_squares(charge.samples, weight),
                        _ => scale.get_squares(from, charge.samples, weight)?,
                    };
                }
            }
        }
    }
    let mut all = Vec::new();
    // From the last one on, so that each is cut off the end.
    for end in ends.iter().rev().skip(1).copied().chain([0]) {
        let mut charges = charges.split_off(end);
        let mut weights = weights.split_off(end * metrics);
        let mut squares = squares.split_off(squares.len().min(end * squared));
        if !charges.is_sorted() {
            sort_charges(&mut charges, (&mut weights, metrics), (&mut squares, squared));
        }
        all.push((charges, weights, squares));
    }
    all.reverse();
    Ok(all)
}

/// The weight of the majority of samples (Boyer-Moore vote), and the largest power of two that most weights are
/// multiples of.
fn scale(updates: &[Update], metric: usize, metrics: usize) -> WeightScale {
    let (mut usual, mut votes) = (0, 0u64);
    let mut multiples = [0u32; UNIT_BITS];
    let mut weighed = 0;
    for (charge, weights) in updates.iter().flat_map(|update| update.charges_with_weights(metrics)) {
        let weight = weights.get(metric).copied().unwrap_or(0);
        let each = weight.checked_div(charge.samples).unwrap_or(0);
        if each == usual {
            votes += 1;
        } else if votes == 0 {
            (usual, votes) = (each, 1);
        } else {
            votes -= 1;
        }
        if weight > 0 {
            weighed += 1;
            let bits = (weight.trailing_zeros() as usize).min(UNIT_BITS - 1);
            multiples.iter_mut().take(bits + 1).for_each(|count| *count += 1);
        }
    }
    if weighed == 0 {
        return WeightScale { usual, unit: 1 };
    }
    let bits = multiples.iter().rposition(|&count| u64::from(count) * 10 >= weighed * 9).unwrap_or(0);
    let unit = 1 << bits;
    WeightScale { usual: usual / unit * unit, unit }
}

/// Units are below two to this: a sample that weighs a second in nanoseconds or cycles is some 2^30.
const UNIT_BITS: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_has_so_many_places_and_no_more() {
        let place = |context| ChargeDelta {
            thread: ThreadId(0),
            context: ContextId(context),
            line: LineId::UNKNOWN,
            route: RouteId::EMPTY,
            samples: 1,
        };
        let update = Update { charges: vec![place(2), place(3)], weights: vec![5, 5], ..Update::default() };
        let mut bytes = Vec::new();
        put_charges(&mut bytes, &mut PlaceNumbers::default(), std::slice::from_ref(&update), 1);
        let mut places = Vec::new();
        let (read, ..) = charges(&mut Cursor::new(&bytes), &mut places, 1, 1).unwrap().remove(0);
        assert_eq!((read, &places[..]), (update.charges, &[(2, 0, 0), (3, 0, 0)][..]));
        // Memory that is zero and never touched.
        let mut full = vec![(0, 0, 0); MAX_PLACES - 1];
        let refused = charges(&mut Cursor::new(&bytes), &mut full, 1, 1);
        assert_eq!((refused, full.len()), (Err("more places than a generation may have"), MAX_PLACES - 1));
    }
}
