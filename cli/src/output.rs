//! Exported files: written whole or not at all, and never over unrelated files.

use std::path::Path;

use ccsd_daemon::destination::{self, AllowedContents, DestinationError};

use crate::exit::Failure;

/// First bytes of the export formats, and text near the start that only ccsd writes, ignoring case. `gprof` and, without
/// comments, `folded` have none: they are like files of others.
const FORMATS: [(&[u8], &[u8]); 10] = [
    // A gzip header without file name and time, from an unknown system.
    (b"\x1f\x8b\x08\0\0\0\0\0\0\xff", b""),
    (b"<!doctype html>", b"<meta name=\"generator\" content=\"ccsd\">"),
    (b"<?xml", b"<!--notes: ccsd "),
    (b"{\"schema\":", b"\"remarks\":[\"ccsd "),
    (b"{\"$schema\":\"https://www.speedscope.app/", b"\"exporter\":\"ccsd "),
    (b"# callgrind format", b"\ncreator: ccsd "),
    (b"{\"meta\":{\"importedfrom\":\"ccsd\"", b""),
    (b"// ccsd ", b"digraph"),
    (b"# ccsd ", b"samples received"),
    (b"function,image,self_", b",inherited_"),
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
    FORMATS.iter().any(|(beginning, part)| start.starts_with(beginning) && has(part))
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
            (&b"# ccsd 0.1.0: cpu-clock of x 0\n# 7 samples received 0\na;b;c 12\n"[..], true),
            (b"a;b;c 12\nd 1\n", false),
            (b"Meeting notes, Nov 28\n", false),
            (b"# ccsd notes\n", false),
            (b"function,image,self_nanoseconds,inherited_nanoseconds", true),
            (b"<?xml version?><!DOCTYPE svg><!--NOTES: ccsd 0.1.0", true),
            (b"<?xml version?><!DOCTYPE svg", false),
            (b"<!DOCTYPE html><meta name=\"generator\" content=\"ccsd\">", true),
            (b"<!DOCTYPE html><title>x - ccsd", false),
            (b"{\"schema\":1,\"remarks\":[\"ccsd 0.1.0", true),
            (b"{\"schema\":1}", false),
            (b"# callgrind format\nversion: 1\ncreator: ccsd 0.1.0", true),
            (b"# callgrind format\nversion: 1\ncreator: callgrind-3.19", false),
            (b"Flat profile:\n\nEach sample counts as 0.01 seconds.\n", false),
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
