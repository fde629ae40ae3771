//! The files of one process: found, opened, and read as they grow.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant, SystemTime};

use ccsd_worker::FileKey;
use nix::time::{ClockId, clock_gettime};

use crate::deadline::Deadline;
use crate::process::jit_code::JitSource;

/// Bytes read in one look, so that an endless file does not hold up samples. A map of 100,000 functions has 10 MiB.
const LOOK_BYTES: u64 = 16 << 20;
const MAX_FILE_BYTES: u64 = 512 << 20;
/// Bytes read at a time; any line or record that a parser wants whole is shorter.
const CHUNK: usize = 128 << 10;
/// Bytes before the place reached that must be unchanged, or the file was rewritten.
const TAIL: usize = 64;
/// How much a file's time may lie before the start of its process: clocks of file systems tick more coarsely.
const CLOCK_SLACK: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileGrowth {
    No,
    Yes,
    /// It is another file than before: forget what was read, and start from its beginning.
    Anew,
}

#[derive(Debug)]
pub struct GrowingFile {
    file: File,
    /// Which file it is, however it grows.
    key: FileKey,
    /// Where the next look begins. May lie behind the end, where what is passed over has not been written as a whole.
    offset: u64,
    len: u64,
    read: u64,
    tail: Vec<u8>,
}

impl GrowingFile {
    /// From its beginning, as the process `pid` has it. A file that is served by others is not read.
    pub fn new(file: File, pid: u32) -> io::Result<GrowingFile> {
        let key = ccsd_worker::file_key(&file, Some(pid))?.while_growing();
        if key.is_remote() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(GrowingFile { file, key, offset: 0, len: 0, read: 0, tail: Vec::new() })
    }

    pub fn key(&self) -> &FileKey {
        &self.key
    }

    pub fn is_same(&self, other: &File) -> bool {
        let identity = |file: &File| file.metadata().map(|meta| (meta.dev(), meta.ino())).ok();
        identity(&self.file).is_some_and(|own| identity(other) == Some(own))
    }

    /// Opens the perf map of a process, if there is one to be believed. Errors: it is not read, as others serve it, as
    /// ([`io::ErrorKind::InvalidInput`]) it is no file, which another user may have made before the process could, or
    /// ([`io::ErrorKind::PermissionDenied`]) as it is that user's.
    pub fn perf_map(source: &JitSource, deadline: &mut Deadline) -> Option<io::Result<GrowingFile>> {
        match source.other_user {
            None => GrowingFile::find_perf_map(source),
            Some(user) => {
                let source = source.clone();
                deadline.ask(user, move || GrowingFile::find_perf_map(&source)).flatten()
            }
        }
    }

    fn find_perf_map(source: &JitSource) -> Option<io::Result<GrowingFile>> {
        let name = format!("perf-{}.map", source.own_pid);
        let file = match source.door.open_entry(source.tmp.as_ref()?, &name) {
            Ok(file) => file,
            Err(error) => {
                if error.kind() == io::ErrorKind::PermissionDenied {
                    source.door.withhold(&format!("/tmp/{name}"));
                }
                let is_there = matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported);
                return is_there.then_some(Err(error));
            }
        };
        let is_another_s = |meta: &Metadata| meta.uid() != 0 && source.user.is_some_and(|user| meta.uid() != user);
        match file.metadata().ok().filter(|meta| is_fresh(meta, source))? {
            meta if is_another_s(&meta) => Some(Err(io::ErrorKind::PermissionDenied.into())),
            meta => is_trusted(&meta, source).then(|| GrowingFile::new(file, source.pid)),
        }
    }

    /// A jitdump that the process has mapped, if it is to be believed. `None` where it could not be looked at in time.
    pub fn dump(file: File, source: &JitSource, deadline: &mut Deadline) -> Option<Option<GrowingFile>> {
        let of = |file: File, source: &JitSource| {
            is_believed(&file, source).then(|| GrowingFile::new(file, source.pid).ok()).flatten()
        };
        match source.other_user {
            None => Some(of(file, source)),
            Some(user) => {
                let source = source.clone();
                deadline.ask(user, move || of(file, &source))
            }
        }
    }

    /// Reads on, until then. `feed` returns how many bytes it used, possibly more than it got. True if a whole look was
    /// not enough.
    pub fn look(&mut self, until: Instant, mut feed: impl FnMut(&[u8]) -> u64) -> (FileGrowth, bool) {
        let Ok(len) = self.file.metadata().map(|meta| meta.len()) else { return (FileGrowth::No, false) };
        if len < self.len || !self.tail_holds() {
            (self.offset, self.len, self.tail) = (0, 0, Vec::new());
            return (FileGrowth::Anew, true);
        }
        self.len = len;
        let mut buffer = vec![0; if len > self.offset { CHUNK } else { 0 }];
        let mut left = LOOK_BYTES;
        let mut grown = FileGrowth::No;
        while self.offset < len && left > 0 && self.read < MAX_FILE_BYTES {
            let Ok(got) = self.file.read_at(&mut buffer, self.offset) else { break };
            let Some(bytes) = buffer.get(..got).filter(|bytes| !bytes.is_empty()) else { break };
            let used = feed(bytes);
            if used == 0 {
                // Any line or record fits into a whole piece: no worker has answered.
                left = if got == CHUNK { 0 } else { left };
                break;
            }
            grown = FileGrowth::Yes;
            let of_these = bytes.get(..usize::try_from(used).unwrap_or(got).min(got)).unwrap_or(bytes);
            self.tail.clear();
            if used as usize == of_these.len() {
                self.tail.extend_from_slice(&of_these[of_these.len().saturating_sub(TAIL)..]);
            }
            self.offset = self.offset.saturating_add(used);
            self.read = self.read.saturating_add(of_these.len() as u64);
            left = left.saturating_sub(of_these.len() as u64);
            if self.offset < len && Instant::now() >= until {
                left = 0;
            }
        }
        (grown, left == 0)
    }

    pub fn is_exhausted(&self) -> bool {
        self.read >= MAX_FILE_BYTES
    }

    fn tail_holds(&self) -> bool {
        if self.tail.is_empty() {
            return true;
        }
        let mut now = vec![0; self.tail.len()];
        let start = self.offset.saturating_sub(self.tail.len() as u64);
        self.file.read_exact_at(&mut now, start).is_ok() && now == self.tail
    }
}

fn is_believed(file: &File, source: &JitSource) -> bool {
    file.metadata().is_ok_and(|meta| is_fresh(&meta, source) && is_trusted(&meta, source))
}

/// Whether a file belongs to the process's user, or to root and is readable by all.
fn is_trusted(meta: &Metadata, source: &JitSource) -> bool {
    source.user == Some(meta.uid()) || meta.uid() == 0 && meta.mode() & 0o004 != 0
}

/// Whether a file is one that was written since the process started.
fn is_fresh(meta: &Metadata, source: &JitSource) -> bool {
    let started = started(source.start_time);
    meta.is_file() && started.is_none_or(|started| meta.modified().is_ok_and(|time| time + CLOCK_SLACK >= started))
}

/// The wall clock at a time in clock ticks since boot.
fn started(ticks: u64) -> Option<SystemTime> {
    let since_boot = clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?;
    let since_boot = Duration::from(since_boot);
    let ago = since_boot.checked_sub(Duration::from_millis(ticks.saturating_mul(10)))?;
    (ticks > 0).then(|| SystemTime::now().checked_sub(ago)).flatten()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_is_read_on_and_anew() {
        let path = std::env::temp_dir().join(format!("ccsd-growing-{}", std::process::id()));
        let mut out = File::create(&path).unwrap();
        let mut file = GrowingFile::new(File::open(&path).unwrap(), std::process::id()).unwrap();
        let mut seen = Vec::new();
        let mut look = |seen: &mut Vec<u8>| {
            let (grown, _) = file.look(Instant::now() + Duration::from_secs(60), |bytes| {
                // Whole lines, as the parser of maps has it.
                let used = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
                seen.extend_from_slice(&bytes[..used]);
                used as u64
            });
            grown
        };
        assert_eq!(look(&mut seen), FileGrowth::No);
        out.write_all(b"one\ntw").unwrap();
        assert_eq!((look(&mut seen), seen.as_slice()), (FileGrowth::Yes, &b"one\n"[..]));
        assert_eq!(look(&mut seen), FileGrowth::No);
        out.write_all(b"o\n").unwrap();
        assert_eq!((look(&mut seen), seen.as_slice()), (FileGrowth::Yes, &b"one\ntwo\n"[..]));
        for text in ["x\n", "xyz\nand much more than there was before\n"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(look(&mut seen), FileGrowth::Anew);
            seen.clear();
            assert_eq!((look(&mut seen), seen.as_slice()), (FileGrowth::Yes, text.as_bytes()));
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn skipped_bytes_may_not_be_there_yet() {
        let path = std::env::temp_dir().join(format!("ccsd-passed-over-{}", std::process::id()));
        let mut out = File::create(&path).unwrap();
        let mut file = GrowingFile::new(File::open(&path).unwrap(), std::process::id()).unwrap();
        let mut seen = Vec::new();
        // A digit says how many bytes follow that are of no interest.
        let mut look = |seen: &mut Vec<u8>| {
            let (grown, _) = file.look(Instant::now() + Duration::from_secs(60), |bytes| {
                seen.push(bytes[0]);
                1 + u64::from(bytes[0] - b'0')
            });
            grown
        };
        out.write_all(b"2xx5x").unwrap();
        assert_eq!((look(&mut seen), seen.as_slice()), (FileGrowth::Yes, &b"25"[..]));
        assert_eq!(look(&mut seen), FileGrowth::No);
        out.write_all(b"xx").unwrap();
        assert_eq!(look(&mut seen), FileGrowth::No);
        out.write_all(b"xx1").unwrap();
        assert_eq!((look(&mut seen), seen.as_slice()), (FileGrowth::Yes, &b"251"[..]));
        std::fs::write(&path, b"3").unwrap();
        assert_eq!(look(&mut seen), FileGrowth::Anew);
        std::fs::remove_file(&path).unwrap();
    }
}
