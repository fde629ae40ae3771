//! Files that are written for other programs: whole or not at all, and never over something else by mistake.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use nix::fcntl::OFlag;

use crate::exit::Failure;

/// How the formats begin that ccsd exports to, and what else is in their first bytes, without regard to case. `folded` has
/// nothing of the kind: see [`is_ours`].
const FORMATS: [(&[u8], &[u8]); 10] = [
    // gzip of no named file, of no time, by no known system.
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

/// Writes `bytes` to a path, through a file beside it that takes its place when it is whole: a full disk leaves what was there.
///
/// # Errors
/// A file that is nothing that ccsd exports is left alone unless `force` says otherwise; so are directories, FIFOs and the
/// like. What is a device is written to.
pub fn write(path: &Path, bytes: &[u8], force: bool) -> Result<(), Failure> {
    let name = path.display();
    let cannot_write = || format!("cannot write {name}");
    match fs::metadata(path) {
        Err(_) => {}
        Ok(meta) if meta.is_file() => {
            if !force && meta.len() > 0 && !is_ours(path) {
                return Err(Failure::bad_request(anyhow!(
                    "{name} exists and is nothing that ccsd exports: not overwritten; choose another name, or --force"
                )));
            }
        }
        Ok(meta) if meta.is_dir() => {
            return Err(Failure::bad_request(anyhow!("{name} is a directory")));
        }
        // Nothing can be put in the place of /dev/stdout, or of a FIFO that somebody reads.
        Ok(_) => {
            let opened = OpenOptions::new().write(true).open(path).with_context(|| format!("cannot open {name}"));
            let mut file = opened.map_err(Failure::bad_request)?;
            return file.write_all(bytes).with_context(cannot_write).map_err(Failure::at_run_time);
        }
    }
    // What a link leads to is written, not the link.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let (beside, mut file) =
        create_beside(&target).with_context(|| format!("cannot create {name}")).map_err(Failure::bad_request)?;
    let written = file.write_all(bytes).and_then(|()| {
        if let Ok(meta) = fs::metadata(&target) {
            file.set_permissions(meta.permissions())?;
        }
        fs::rename(&beside, &target)
    });
    written.with_context(cannot_write).map_err(|error| {
        // It is ours, and holds a part of something.
        let _ = fs::remove_file(&beside);
        Failure::at_run_time(error)
    })
}

/// Whether a file is what ccsd exports, by its beginning.
fn is_ours(path: &Path) -> bool {
    let mut start = [0u8; 4096];
    let opened = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
    let Ok(read) = opened.and_then(|mut file| file.read(&mut start)) else { return false };
    let start = start.get(..read).unwrap_or_default().to_ascii_lowercase();
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

/// Creates a file of some new name in the same directory.
fn create_beside(path: &Path) -> std::io::Result<(PathBuf, File)> {
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
    for number in 0..100u32 {
        let mut beside = OsString::from(".");
        beside.push(name);
        beside.push(format!(".{}-{number}", std::process::id()));
        let beside = path.with_file_name(beside);
        match OpenOptions::new().write(true).create_new(true).open(&beside) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            result => return result.map(|file| (beside, file)),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_overwritten() {
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
        // Nothing is left beside it.
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
