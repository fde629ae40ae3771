//! Records that `perf record -z` has compressed.
//!
//! `PERF_RECORD_COMPRESSED` holds a piece of a zstd stream, `PERF_RECORD_COMPRESSED2` the same behind its length. A
//! record may continue in the next piece.

use std::io;

use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

use super::error::ImportError;

const COMPRESSED: u32 = 81;
const COMPRESSED2: u32 = 83;
/// Bytes of a record's header: type, flags, size.
pub(super) const HEADER: usize = 8;

/// Maximum growth of a recording beyond [`FREE_BYTES`]. Copies of stacks, mostly zeros, compress a hundredfold.
const MAX_RATIO: u64 = 200;
const FREE_BYTES: u64 = 64 << 20;
const PIECE_BYTES: usize = 256 << 10;

/// Gives on records as they are, or what they have compressed.
#[derive(Default)]
pub struct Expander {
    decoder: Option<Decoder<'static>>,
    /// Decompressed, and not given on yet: less than a record, between two pieces.
    waiting: Vec<u8>,
    piece: Vec<u8>,
    taken: u64,
    given: u64,
}

pub(super) fn head(bytes: &[u8]) -> Option<(u32, usize)> {
    let head = bytes.first_chunk::<HEADER>()?;
    let [a, b, c, d, _, _, low, high] = *head;
    Some((u32::from_le_bytes([a, b, c, d]), usize::from(u16::from_le_bytes([low, high]))))
}

impl Expander {
    pub fn take(
        &mut self,
        record: &[u8],
        give: &mut dyn FnMut(&[u8]) -> Result<(), ImportError>,
    ) -> Result<(), ImportError> {
        let body = record.get(HEADER..).unwrap_or_default();
        let compressed = match head(record) {
            Some((COMPRESSED, _)) => body,
            Some((COMPRESSED2, _)) => {
                let size = body.first_chunk::<8>().map(|size| u64::from_le_bytes(*size));
                let data = size.and_then(|size| body.get(8..)?.get(..usize::try_from(size).ok()?));
                data.ok_or_else(|| damaged("a compressed record is larger than itself"))?
            }
            _ => return self.give(record, give),
        };
        self.taken += compressed.len() as u64;
        let mut input = InBuffer::around(compressed);
        loop {
            let decoder = match &mut self.decoder {
                Some(decoder) => decoder,
                none => none.insert(Decoder::new().map_err(|error| ImportError::Damaged(error.to_string()))?),
            };
            self.piece.resize(PIECE_BYTES, 0);
            let mut output = OutBuffer::around(self.piece.as_mut_slice());
            decoder
                .run(&mut input, &mut output)
                .map_err(|error| damaged(&format!("it does not decompress: {error}")))?;
            let (made, is_full) = (output.pos(), output.pos() == PIECE_BYTES);
            let piece = std::mem::take(&mut self.piece);
            self.waiting.extend_from_slice(piece.get(..made).unwrap_or_default());
            self.piece = piece;
            self.give_whole(give)?;
            if !is_full && input.pos() == compressed.len() {
                return Ok(());
            }
        }
    }

    fn give_whole(&mut self, give: &mut dyn FnMut(&[u8]) -> Result<(), ImportError>) -> Result<(), ImportError> {
        let waiting = std::mem::take(&mut self.waiting);
        let mut rest = waiting.as_slice();
        while let Some((kind, size)) = head(rest) {
            if size < HEADER || kind == COMPRESSED || kind == COMPRESSED2 {
                return Err(damaged("what it has compressed are no records"));
            }
            let Some((record, after)) = rest.split_at_checked(size) else { break };
            self.give(record, give)?;
            rest = after;
        }
        self.waiting = rest.to_vec();
        Ok(())
    }

    fn give(
        &mut self,
        record: &[u8],
        give: &mut dyn FnMut(&[u8]) -> Result<(), ImportError>,
    ) -> Result<(), ImportError> {
        if self.taken > 0 {
            self.given += record.len() as u64;
            if self.given > FREE_BYTES.saturating_add(self.taken.saturating_mul(MAX_RATIO)) {
                return Err(damaged("what it has compressed is too large"));
            }
        }
        give(record)
    }
}

fn damaged(what: &str) -> ImportError {
    ImportError::Damaged(format!("it is damaged: {what}"))
}

pub(super) fn io_error(error: &io::Error) -> ImportError {
    ImportError::Damaged(format!("it cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        let size = u16::try_from(HEADER + body.len()).unwrap();
        [&kind.to_le_bytes()[..], &[0, 0], &size.to_le_bytes(), body].concat()
    }

    fn expand(records: &[Vec<u8>]) -> Result<Vec<u8>, ImportError> {
        let (mut expander, mut all) = (Expander::default(), Vec::new());
        for record in records {
            expander.take(record, &mut |record| {
                all.extend_from_slice(record);
                Ok(())
            })?;
        }
        Ok(all)
    }

    #[test]
    fn records_are_whole_again_wherever_they_were_cut() {
        let plain: Vec<u8> = (0..3_000u32).flat_map(|i| record(9, &i.to_le_bytes().repeat(i as usize % 50))).collect();
        let stream = zstd::bulk::compress(&plain, 3).unwrap();
        for (size, kind) in [(7, COMPRESSED), (1_000, COMPRESSED), (60_000, COMPRESSED2)] {
            let pieces: Vec<Vec<u8>> = stream
                .chunks(size)
                .map(|chunk| match kind {
                    COMPRESSED => record(kind, chunk),
                    _ => record(kind, &[&(chunk.len() as u64).to_le_bytes(), chunk, &[0; 5]].concat()),
                })
                .collect();
            assert!(expand(&pieces).unwrap() == plain, "{size}");
        }
        assert_eq!(expand(&[record(9, &[1; 8]), record(68, &[])]).unwrap().len(), 24);
    }

    #[test]
    fn a_recording_without_rounds_may_be_of_any_size() {
        // As `perf inject` writes it: 1.2 GB of one record. What has to be kept of it is for the reader to bound.
        let (one, mut expander, mut bytes) = (record(9, &[0; 60_000]), Expander::default(), 0u64);
        for _ in 0..20_000 {
            let taken = expander.take(&one, &mut |record| {
                bytes += record.len() as u64;
                Ok(())
            });
            taken.unwrap();
        }
        assert_eq!(bytes, 20_000 * one.len() as u64);
    }

    #[test]
    fn bombs_and_nonsense_are_refused() {
        let bomb = zstd::bulk::compress(&record(9, &[0; 60_000]).repeat(1_300), 1).unwrap();
        let pieces: Vec<Vec<u8>> = bomb.chunks(60_000).map(|chunk| record(COMPRESSED, chunk)).collect();
        assert!(expand(&pieces).unwrap_err().to_string().contains("too large"));
        for nonsense in [
            record(COMPRESSED, b"this is no zstd stream"),
            record(COMPRESSED2, &[1]),
            record(COMPRESSED2, &u64::MAX.to_le_bytes()),
            record(COMPRESSED, &zstd::bulk::compress(&[0; 64], 1).unwrap()),
            record(COMPRESSED, &zstd::bulk::compress(&record(COMPRESSED, &bomb[..100]), 1).unwrap()),
        ] {
            assert!(expand(&[nonsense]).is_err());
        }
    }
}
