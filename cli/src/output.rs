//! Exported files: written whole or not at all, and never over unrelated files.

use std::path::Path;

use ccsd_daemon::destination::{self, AllowedContents, DestinationError};

use crate::exit::Failure;

/// First bytes of the export formats, and text near the start, ignoring case. `folded` has none: see [`is_ours`].
const FORMATS: [(&[u8], &[u8]); 10] = [
    // A gzip header without file name and time, from an unknown system.
    (b"\x1f\x8b\x08\0\0\0\0\0\0\xff", b""),
    (b"<!doctype html>", b"ccsd"),
    (b"<?xml", b"<!doctype svg"),
    (b"{", b"\"schema\""),
    (b"{", b"\"$schema\":\"https://www.speedscope.app/"),
    (b"# callgrind format", b""),
    (b"{\"meta\":{\"importedfrom\":\"ccsd\"", b""),
    (b"// ccsd ", b"digraph"),
    (b"flat profile:", b""),
    (b"# ccsd ", b"samples received"),
];

/// Contents that may be overwritten without `--force`.
const EXPORTS: AllowedContents =
    AllowedContents { known: is_ours, unlike: "nothing that ccsd exports", remedy: ", or --force" };

/// Writes `bytes` through a temporary file that replaces `path`: a full disk leaves the old file. Refuses directories,
/// files and links of other users and, unless `force`, files that ccsd did not export. Writes devices and FIFOs.
pub fn write(path: &Path, bytes: &[u8], force: bool) -> Result<(), Failure> {
    destination::write(path, bytes, (!force).then_some(EXPORTS)).map_err(|error| match error {
        DestinationError::Write { .. } => Failure::at_run_time(error),
        error => Failure::bad_request(error),
    })
}

fn is_ours(start: &[u8]) -> bool {
    let start = start.to_ascii_lowercase();
    let has = |part: &[u8]| part.is_empty() || start.windows(part.len()).any(|it| it == part);
    if FORMATS.iter().any(|(beginning, part)| start.starts_with(beginning) && has(part)) {
        return true;
    }
    if start.starts_with(b"function,image,self_") {
        return true;
    }
    // Folded stacks: `a;b;c 12`.
    let line = start.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let number = line.rsplit(|&byte| byte == b' ').next().unwrap_or_default();
    line.len() < start.len() && number.len() < line.len() && !number.is_empty() && number.iter().all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn overwrites_only_exports() {
        let dir = std::env::temp_dir().join(format!("ccsd-output-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("x");
        for (old, ours) in [
            (&b"a;b;c 12\nd 1\n"[..], true),
            (b"function,image,self_nanoseconds", true),
            (b"<?xml version?><!DOCTYPE svg", true),
            (b"<?xml version?><project>", false),
            (b"<!DOCTYPE html><title>x - ccsd", true),
            (b"<!DOCTYPE html><title>x", false),
            (b"{\"schema\":1}", true),
            (b"{\"name\":1}", false),
            (b"\x1f\x8b\x08\0\0\0\0\0\0\xffx", true),
            (b"\x1f\x8b\x08\0\0\0\0\0\0\x03x", false),
            (b"int main(void) { return 0; }\n", false),
            (b"dear diary\n", false),
            (b"12", false),
            (b"\x7fELF", false),
        ] {
            fs::write(&path, old).unwrap();
            assert_eq!(write(&path, b"new", false).is_ok(), ours, "{}", String::from_utf8_lossy(old));
            assert_eq!(fs::read(&path).unwrap(), if ours { b"new" } else { old });
            fs::write(&path, old).unwrap();
            write(&path, b"new", true).unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"new");
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        let link = dir.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        write(&link, b"x 1\n", true).unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"x 1\n");
        assert!(write(&dir, b"", true).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}
