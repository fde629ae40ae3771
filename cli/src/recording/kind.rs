//! Recognises files by their first bytes.

use ccsd_profile::codec::MAGIC;

pub const START_BYTES: u64 = 512;

/// Magic numbers of `perf record`, in both byte orders.
const PERF_DATA: [&[u8]; 2] = [b"PERFILE2", b"2ELIFREP"];

const OTHERS: [(&[u8], &str); 18] = [
    (b"\x7fELF", "a program, library or core dump (ELF)"),
    (b"\x1f\x8b", "compressed with gzip, as pprof profiles are"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
    (b"\xfd7zXZ", "compressed with xz"),
    (b"BZh", "compressed with bzip2"),
    (b"PK\x03\x04", "a zip archive"),
    (b"!<arch>", "an archive of object files"),
    (b"PERFFILE", "a recording of a perf older than 2.6.36"),
    (b"gmon", "a profile of gprof (gmon.out)"),
    (b"FLR\0", "a recording of Java Flight Recorder"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\x89PNG", "a picture (PNG)"),
    (b"# callgrind format", "a profile of callgrind"),
    (b"<!doctype html", "a web page"),
    (b"<html", "a web page"),
    (b"<", "XML, as flame graphs (SVG) are"),
    (b"{", "JSON"),
    (b"#!", "a script"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Profile,
    PerfData,
    Text,
    Other,
}

impl FileKind {
    pub fn of(start: &[u8]) -> FileKind {
        if start.starts_with(&MAGIC) || MAGIC.starts_with(start) {
            FileKind::Profile
        } else if PERF_DATA.iter().any(|magic| start.starts_with(magic)) {
            FileKind::PerfData
        } else if is_text(start) {
            FileKind::Text
        } else {
            FileKind::Other
        }
    }
}

pub fn describe(start: &[u8]) -> &'static str {
    let known = OTHERS
        .iter()
        .find(|(magic, _)| start.get(..magic.len()).is_some_and(|start| start.eq_ignore_ascii_case(magic)));
    match known {
        Some((_, what)) => what,
        None if is_text(start) => "text without a sample of `perf script`",
        None => "in no format that ccsd knows",
    }
}

/// Command and function names may contain any bytes except these.
fn is_text(start: &[u8]) -> bool {
    !start.iter().any(|&byte| byte < 8)
        && !OTHERS.iter().any(|(magic, _)| !magic.is_ascii() && start.starts_with(magic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds() {
        for (start, kind) in [
            (&b""[..], FileKind::Profile),
            (b"\x89ccs", FileKind::Profile),
            (b"\x89ccsd\r\n\x1a\x03\0\0\0", FileKind::Profile),
            (b"PERFILE2h\0", FileKind::PerfData),
            (b"2ELIFREP", FileKind::PerfData),
            (b"PERFIL", FileKind::Text),
            (b"prog 12 3.4: 1 cycles: \n", FileKind::Text),
            (b"caf\xe9 12 3.4: 1 cycles: \n", FileKind::Text),
            (b"\x7fELF\x02\x01\x01\0", FileKind::Other),
            (b"\x1f\x8b\x08\x08abcdef", FileKind::Other),
            (b"\x89PNG\r\n\x1a\n", FileKind::Other),
            (b"\x01\x02\x03\0", FileKind::Other),
        ] {
            assert_eq!(FileKind::of(start), kind, "{start:?}");
        }
    }

    #[test]
    fn descriptions() {
        for (start, what) in [
            (&b"\x7fELF\x02"[..], "a program, library or core dump (ELF)"),
            (b"<!DOCTYPE html>", "a web page"),
            (b"<svg>", "XML, as flame graphs (SVG) are"),
            (b"hello\n", "text without a sample of `perf script`"),
            (b"\x01\0", "in no format that ccsd knows"),
        ] {
            assert_eq!(describe(start), what, "{start:?}");
        }
    }
}
