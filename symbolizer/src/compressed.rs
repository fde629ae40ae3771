//! Decompression of sections, within size limits.
//!
//! Three forms exist: gABI, "Section Compression" (`SHF_COMPRESSED`, zlib or zstd); the older form of GNU tools, marked
//! by the section's name (`.zdebug_info`); and `.gnu_debugdata`, a whole ELF file compressed by `xz(1)`.
//!
//! Claimed sizes are checked before anything is allocated: against the caller's limit, and against
//! [`limits::MAX_COMPRESSION_RATIO`] times the compressed size.

use std::io::Read;
use std::sync::Arc;

use object::LittleEndian as LE;
use object::elf;
use object::pod;
use object::read::{CompressedData, CompressionFormat};

use crate::error::ImageError;
use crate::limits;
use crate::meter;

/// Name prefix of sections in the older form.
pub(crate) const LEGACY_PREFIX: &[u8] = b".zdebug_";

/// Header of a section in the older form: `ZLIB`, and the size as a big-endian 64-bit number.
pub(crate) const LEGACY_HEADER: u64 = 12;

/// Header size of a section with `SHF_COMPRESSED`.
pub(crate) const HEADER: u64 = size_of::<elf::CompressionHeader64<LE>>() as u64;

/// The size stated in the header of a section with `SHF_COMPRESSED`.
pub(crate) fn stated_size(header: &[u8]) -> Option<u64> {
    let (header, _) = pod::from_bytes::<elf::CompressionHeader64<LE>>(header).ok()?;
    Some(header.ch_size.get(LE))
}

/// The size stated in the header of a `.zdebug_` section; `None` if it is not compressed.
pub(crate) fn legacy_stated_size(header: &[u8]) -> Option<u64> {
    let size = header.strip_prefix(b"ZLIB")?.first_chunk::<8>()?;
    Some(u64::from_be_bytes(*size))
}

/// Decompresses a section with `SHF_COMPRESSED`.
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
    if format == CompressionFormat::Zlib {
        return inflate(data, size);
    }
    let compressed = CompressedData { format, data, uncompressed_size: size };
    // Allocates exactly `size`, checked above, and stops when that is full.
    let bytes = compressed.decompress().map_err(|_| ImageError::Compression("damaged data"))?;
    Ok(Arc::from(&*bytes))
}

/// Decompresses a zlib stream in place: copying a large section takes a third of the time of decompressing it.
fn inflate(data: &[u8], size: u64) -> Result<Arc<[u8]>, ImageError> {
    let damaged = || ImageError::Compression("damaged data");
    let size = usize::try_from(size).map_err(|_| damaged())?;
    let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, size).collect();
    let room = Arc::get_mut(&mut bytes).ok_or_else(damaged)?;
    let mut stream = flate2::Decompress::new(true);
    let status = stream.decompress(data, room, flate2::FlushDecompress::Finish).map_err(|_| damaged())?;
    let whole = status == flate2::Status::StreamEnd && stream.total_out() == size as u64;
    if whole { Ok(bytes) } else { Err(damaged()) }
}

/// Decompresses a stream of `xz(1)`, whose header does not state its size.
pub(crate) fn xz(data: &[u8], limit: u64) -> Result<Vec<u8>, ImageError> {
    let limit = limit.min((data.len() as u64).saturating_mul(limits::MAX_COMPRESSION_RATIO));
    let mut bytes = Vec::new();
    let read = meter::catch_panic(|| {
        let reader = lzma_rust2::XzReader::new_mem_limit(data, false, limits::MAX_XZ_MEMORY_KIB);
        reader.take(limit.saturating_add(1)).read_to_end(&mut bytes)
    });
    match read {
        Some(Ok(_)) => {}
        _ => return Err(ImageError::Compression("damaged data")),
    }
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
