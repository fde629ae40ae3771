//! Decompression of sections, within size limits.
//!
//! gABI, "Section Compression" (`SHF_COMPRESSED`, zlib or zstd); GNU tools' older form by name (`.zdebug_info`); and
//! `.gnu_debugdata`, an ELF file compressed by `xz(1)`. Claimed sizes are checked before allocating: against the
//! caller's limit and [`limits::MAX_COMPRESSION_RATIO`].

use std::io::Read;
use std::sync::Arc;

use object::LittleEndian as LE;
use object::elf;
use object::pod;
use object::read::CompressionFormat;

use crate::error::ImageError;
use crate::limits;
use crate::meter;

/// Name prefix of sections in the older form.
pub(crate) const LEGACY_PREFIX: &[u8] = b".zdebug_";

pub(crate) const LEGACY_HEADER: u64 = 12;

pub(crate) const HEADER: u64 = size_of::<elf::CompressionHeader64<LE>>() as u64;

pub(crate) fn stated_size(header: &[u8]) -> Option<u64> {
    let (header, _) = pod::from_bytes::<elf::CompressionHeader64<LE>>(header).ok()?;
    Some(header.ch_size.get(LE))
}

/// The size stated in the header of a `.zdebug_` section; `None` if it is not compressed.
pub(crate) fn legacy_stated_size(header: &[u8]) -> Option<u64> {
    let size = header.strip_prefix(b"ZLIB")?.first_chunk::<8>()?;
    Some(u64::from_be_bytes(*size))
}

pub(crate) fn section(raw: &[u8], limit: u64) -> Result<Arc<[u8]>, ImageError> {
    let (header, data) = pod::from_bytes::<elf::CompressionHeader64<LE>>(raw)
        .map_err(|()| ImageError::Compression("no compression header"))?;
    let format = match header.ch_type.get(LE) {
        elf::ELFCOMPRESS_ZLIB => CompressionFormat::Zlib,
        elf::ELFCOMPRESS_ZSTD => CompressionFormat::Zstandard,
        _ => return Err(ImageError::Compression("unknown method")),
    };
    expand(format, data, header.ch_size.get(LE), limit)
}

/// Decompresses a `.zdebug_` section; without the header it is not compressed.
pub(crate) fn legacy_section(raw: Arc<[u8]>, limit: u64) -> Result<Arc<[u8]>, ImageError> {
    match (legacy_stated_size(&raw), raw.get(LEGACY_HEADER as usize..)) {
        (Some(size), Some(data)) => expand(CompressionFormat::Zlib, data, size, limit),
        _ => Ok(raw),
    }
}

fn expand(format: CompressionFormat, data: &[u8], size: u64, limit: u64) -> Result<Arc<[u8]>, ImageError> {
    within(size, data, limit)?;
    reserve(size)?;
    match format {
        CompressionFormat::Zlib => inflate(data, size),
        _ => zstandard(data, size),
    }
}

/// Bytes decompressed between two looks at what is left of the grant.
const PIECE: usize = 1 << 20;
/// Maximum window of a zstd stream; debug information is compressed at level 3, with 2 MiB. (`zstd -19` has 8 MiB.)
const MAX_ZSTD_WINDOW: usize = 64 << 20;

fn reserve(size: u64) -> Result<(), ImageError> {
    meter::reserve(size).map_err(|meter::Spent| ImageError::Spent)
}

fn spend(bytes: usize) -> Result<(), ImageError> {
    // Decompressing takes about as long as ten steps for 64 bytes.
    meter::spend(10 * meter::steps_of(bytes)).map_err(|meter::Spent| ImageError::Spent)
}

fn room(size: u64) -> Result<Arc<[u8]>, ImageError> {
    let size = usize::try_from(size).map_err(|_| damaged())?;
    Ok(std::iter::repeat_n(0, size).collect())
}

fn damaged() -> ImageError {
    ImageError::Compression("damaged data")
}

/// Decompresses a zlib stream in place: copying a large section takes a third of the time of decompressing it.
fn inflate(data: &[u8], size: u64) -> Result<Arc<[u8]>, ImageError> {
    let mut bytes = room(size)?;
    let all = Arc::get_mut(&mut bytes).ok_or_else(damaged)?;
    let mut stream = flate2::Decompress::new(true);
    loop {
        let (read, written) = (position(stream.total_in()), position(stream.total_out()));
        let input = data.get(read..).unwrap_or_default();
        let rest = all.get_mut(written..).unwrap_or_default();
        let piece = rest.len().min(PIECE);
        spend(piece)?;
        let piece = rest.get_mut(..piece).unwrap_or_default();
        let status = stream.decompress(input, piece, flate2::FlushDecompress::None).map_err(|_| damaged())?;
        if status == flate2::Status::StreamEnd {
            break;
        }
        if (read, written) == (position(stream.total_in()), position(stream.total_out())) {
            return Err(damaged());
        }
    }
    if stream.total_out() == size { Ok(bytes) } else { Err(damaged()) }
}

fn position(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn zstandard(mut data: &[u8], size: u64) -> Result<Arc<[u8]>, ImageError> {
    let mut bytes = room(size)?;
    let mut rest = Arc::get_mut(&mut bytes).ok_or_else(damaged)?;
    while !data.is_empty() {
        if let Some(after) = after_skippable(data) {
            data = after;
            continue;
        }
        let frame = ruzstd::decoding::StreamingDecoder::new_with_max_window_size(&mut data, MAX_ZSTD_WINDOW as u64);
        let mut frame = frame.map_err(|_| damaged())?;
        loop {
            let piece = rest.len().min(PIECE);
            spend(PIECE)?;
            // A byte beyond the stated size shows that there is more.
            let mut beyond = [0];
            let count = match rest.get_mut(..piece) {
                Some(piece) if !piece.is_empty() => frame.read(piece),
                _ => frame.read(&mut beyond),
            };
            match count.map_err(|_| damaged())? {
                0 => break,
                _ if piece == 0 => return Err(damaged()),
                count => rest = rest.get_mut(count..).unwrap_or_default(),
            }
        }
    }
    if rest.is_empty() { Ok(bytes) } else { Err(damaged()) }
}

fn after_skippable(data: &[u8]) -> Option<&[u8]> {
    let (magic, rest) = data.split_first_chunk::<4>()?;
    let (size, rest) = rest.split_first_chunk::<4>()?;
    let is_skippable = (0x184D_2A50..=0x184D_2A5F).contains(&u32::from_le_bytes(*magic));
    is_skippable.then(|| rest.get(u32::from_le_bytes(*size) as usize..).unwrap_or_default())
}

/// Decompresses a stream of `xz(1)`, whose header does not state its size.
pub(crate) fn xz(data: &[u8], limit: u64) -> Result<Vec<u8>, ImageError> {
    let limit = limit.min((data.len() as u64).saturating_mul(limits::MAX_COMPRESSION_RATIO));
    let mut bytes = Vec::new();
    let read = meter::catch_panic(|| {
        let memory = u32::try_from(meter::bytes_left() >> 10).unwrap_or(u32::MAX);
        let mut reader = lzma_rust2::XzReader::new_mem_limit(data, false, memory.min(limits::MAX_XZ_MEMORY_KIB));
        loop {
            spend(PIECE)?;
            let before = bytes.len();
            (&mut reader).take(PIECE as u64).read_to_end(&mut bytes).map_err(|_| damaged())?;
            if bytes.len() == before || bytes.len() as u64 > limit {
                return Ok(());
            }
        }
    });
    read.unwrap_or_else(|| Err(damaged()))?;
    within(bytes.len() as u64, data, limit)?;
    Ok(bytes)
}

fn within(size: u64, data: &[u8], limit: u64) -> Result<(), ImageError> {
    let limit = limit.min((data.len() as u64).saturating_mul(limits::MAX_COMPRESSION_RATIO));
    if size > limit {
        return Err(ImageError::TooLarge { what: "decompressed section", size, limit });
    }
    Ok(())
}
