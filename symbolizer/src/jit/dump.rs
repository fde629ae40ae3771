//! `jit-PID.dump`: records of generated code as it is created and moved, with times
//! (linux/tools/perf/Documentation/jitdump-specification.txt). Line numbers and unwind information are not used.

use hashbrown::HashMap;

use super::code_map::{CodeMap, MAX_NAME_BYTES};
use super::parsed::{JitEntry, JitParser, Parsed};
use crate::bytes::{u32_at, u64_at};

/// "JiTD" as a little-endian number.
const MAGIC: u32 = 0x4A69_5444;
/// Magic, version, size, machine, padding, pid, time, flags.
const HEADER_BYTES: usize = 40;
/// Kind, size, time.
const RECORD_BYTES: usize = 16;
/// Maximum bytes of a record that are parsed; the code itself follows.
const MAX_RECORD_BYTES: usize = 16 << 10;
/// `JITDUMP_FLAGS_ARCH_TIMESTAMP`: times are from the processor's counter.
const FLAG_ARCH_TIMESTAMP: u64 = 1;
/// Bytes of a followed name beside its text.
const NAME_ENTRY_BYTES: usize = 48;
/// Maximum names of code whose moves are followed.
const MAX_FOLLOWED: usize = 1 << 18;
/// Maximum bytes of the names of code that may move.
const MAX_FOLLOWED_BYTES: usize = 16 << 20;

const JIT_CODE_LOAD: u32 = 0;
const JIT_CODE_MOVE: u32 = 1;
const JIT_CODE_CLOSE: u32 = 3;

/// The state of reading a jitdump.
#[derive(Debug)]
pub struct JitDump {
    code: CodeMap,
    parser: JitParser,
    names: HashMap<u64, String>,
    name_bytes: usize,
    bad_records: u64,
    latest: u64,
    /// What the clock of its times is ahead of `CLOCK_MONOTONIC`, nanoseconds.
    ahead_ns: i64,
}

impl Default for JitDump {
    fn default() -> JitDump {
        JitDump {
            code: CodeMap::default(),
            parser: JitParser::DumpBegins,
            names: HashMap::new(),
            name_bytes: 0,
            bad_records: 0,
            latest: 0,
            ahead_ns: 0,
        }
    }
}

impl JitDump {
    /// That of a process whose `CLOCK_MONOTONIC` is so many nanoseconds ahead: it is in a time namespace, see
    /// time_namespaces(7).
    #[must_use]
    pub fn of_clock(ahead_ns: i64) -> JitDump {
        JitDump { ahead_ns, ..JitDump::default() }
    }

    /// A time of a record by `CLOCK_MONOTONIC`. 0 and `u64::MAX` are no times.
    fn time(&self, of_record: u64) -> u64 {
        match of_record {
            0 | u64::MAX => of_record,
            time => time.saturating_add_signed(self.ahead_ns.saturating_neg()).max(1),
        }
    }

    /// Parses the next bytes. Returns the number used, possibly more than given (code is skipped); the rest must be
    /// given again.
    pub fn feed(&mut self, bytes: &[u8]) -> u64 {
        self.apply(parse(self.parser, bytes))
    }

    /// Forgets everything, as when a file is rewritten.
    pub fn clear(&mut self) {
        self.code.clear();
        *self = JitDump { code: std::mem::take(&mut self.code), ..JitDump::of_clock(self.ahead_ns) };
    }

    /// The parser's state for the next bytes.
    #[must_use]
    pub fn parser(&self) -> JitParser {
        self.parser
    }

    /// Applies parsed bytes. Returns the number used.
    pub fn apply(&mut self, parsed: Parsed) -> u64 {
        self.parser = parsed.parser;
        self.bad_records = self.bad_records.saturating_add(parsed.bad);
        self.latest = self.latest.max(self.time(parsed.latest));
        for entry in parsed.entries {
            match entry {
                JitEntry::Code { start, size, from, index, name } => {
                    self.code.add(start, size, self.time(from), &name);
                    if let Some(index) = index {
                        self.follow(index, &name[..name.floor_char_boundary(MAX_NAME_BYTES)]);
                    }
                }
                JitEntry::Moved { old, new, size, from, index } => {
                    let from = self.time(from);
                    let from_old = || self.code.find(old, from).name.map(str::to_owned);
                    let name = self.names.get(&index).cloned().or_else(from_old);
                    // The old range is removed, except where the new one covers it.
                    self.code.add(old, size, from, "");
                    self.code.add(new, size, from, name.as_deref().unwrap_or_default());
                }
            }
        }
        parsed.used
    }

    /// Whether nothing more can follow: the file is not a jitdump, or has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.parser == JitParser::DumpOver
    }

    fn follow(&mut self, index: u64, name: &str) {
        let before = self.names.get(&index).map(String::len);
        let bytes = self.name_bytes - before.unwrap_or(0) + name.len();
        if bytes <= MAX_FOLLOWED_BYTES && (before.is_some() || self.names.len() < MAX_FOLLOWED) {
            self.name_bytes = bytes;
            self.names.insert(index, name.to_owned());
        } else if let Some(stale) = self.names.remove(&index) {
            self.name_bytes -= stale.len();
        }
    }

    /// The code so far. Times are `CLOCK_MONOTONIC`, or 0 if the file uses another clock.
    #[must_use]
    pub fn code(&self) -> &CodeMap {
        &self.code
    }

    /// Approximate bytes used.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.code.bytes() + self.name_bytes + self.names.len() * NAME_ENTRY_BYTES
    }

    /// Limits the bytes from now on, beside the names of code that may move. Existing pieces stay.
    pub fn limit(&mut self, bytes: usize) {
        self.code.limit(bytes);
    }

    /// The latest record time, nanoseconds; `u64::MAX` if times do not matter. The file is complete up to it, but for
    /// disorder.
    #[must_use]
    pub fn latest(&self) -> u64 {
        self.latest
    }

    /// Number of invalid records.
    #[must_use]
    pub fn bad_records(&self) -> u64 {
        self.bad_records
    }
}

pub(super) fn parse(parser: JitParser, bytes: &[u8]) -> Parsed {
    let mut parsed = Parsed::new(parser);
    while let Some(rest) = usize::try_from(parsed.used).ok().and_then(|used| bytes.get(used..)) {
        match next(&mut parsed, rest) {
            Some(more) => parsed.used += more,
            None => break,
        }
    }
    parsed
}

/// Parses the header or a record. Returns its length; `None` if it is incomplete.
fn next(parsed: &mut Parsed, bytes: &[u8]) -> Option<u64> {
    let timed = match parsed.parser {
        JitParser::DumpRecords { timed } => timed,
        JitParser::DumpBegins => {
            let header = bytes.get(..HEADER_BYTES)?;
            let size = u64::from(u32_at(header, 8)?);
            let flags = u64_at(header, 32)?;
            parsed.parser = match u32_at(header, 0)? == MAGIC && size >= HEADER_BYTES as u64 {
                true => JitParser::DumpRecords { timed: flags & FLAG_ARCH_TIMESTAMP == 0 },
                false => {
                    parsed.bad += 1;
                    JitParser::DumpOver
                }
            };
            return Some(size.max(HEADER_BYTES as u64));
        }
        JitParser::DumpOver | JitParser::PerfMap { .. } => return (!bytes.is_empty()).then_some(bytes.len() as u64),
    };
    let size = u32_at(bytes, 4)? as usize;
    if size < RECORD_BYTES {
        // The start of the next record is unknown.
        parsed.bad += 1;
        parsed.parser = JitParser::DumpOver;
        return Some(bytes.len() as u64);
    }
    let record = bytes.get(..size.min(MAX_RECORD_BYTES))?;
    let time = if timed { u64_at(record, 8)? } else { 0 };
    parsed.latest = parsed.latest.max(if timed { time } else { u64::MAX });
    match (u32_at(record, 0)?, record.get(RECORD_BYTES..)?) {
        (JIT_CODE_LOAD, body) => push(parsed, load(body, time)),
        (JIT_CODE_MOVE, body) => push(parsed, moved(body, time)),
        (JIT_CODE_CLOSE, _) => parsed.parser = JitParser::DumpOver,
        _ => {}
    }
    Some(size as u64)
}

/// `None` is a record too short for its kind.
fn push(parsed: &mut Parsed, entry: Option<JitEntry>) {
    match entry {
        Some(entry) => parsed.entries.push(entry),
        None => parsed.bad += 1,
    }
}

fn load(body: &[u8], from: u64) -> Option<JitEntry> {
    // pid, tid: u32; vma, address, size, index: u64; name, 0
    let (start, size, index) = (u64_at(body, 16)?, u64_at(body, 24)?, u64_at(body, 32)?);
    let name = body.get(40..)?;
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    let name = String::from_utf8_lossy(&name[..end]);
    let name = name[..name.floor_char_boundary(MAX_NAME_BYTES)].to_owned();
    Some(JitEntry::Code { start, size, from, index: Some(index), name })
}

fn moved(body: &[u8], from: u64) -> Option<JitEntry> {
    // pid, tid: u32; vma, old address, new address, size, index: u64
    let (old, new) = (u64_at(body, 16)?, u64_at(body, 24)?);
    let (size, index) = (u64_at(body, 32)?, u64_at(body, 40)?);
    Some(JitEntry::Moved { old, new, size, from, index })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(flags: u64) -> Vec<u8> {
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        for word in [1u32, 40, 62, 0, 7] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(99u64.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes
    }

    fn record(kind: u32, time: u64, words: &[u64], tail: &[u8]) -> Vec<u8> {
        let size = (RECORD_BYTES + 8 * words.len() + tail.len()) as u32;
        let mut bytes = [kind.to_le_bytes(), size.to_le_bytes()].concat();
        bytes.extend(time.to_le_bytes());
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(tail);
        bytes
    }

    fn demo(flags: u64) -> Vec<u8> {
        let code = [b"f\0".to_vec(), vec![0x90; 40_000]].concat();
        [
            header(flags),
            record(JIT_CODE_LOAD, 10, &[7, 0x1000, 0x1000, 0x100, 1], &code),
            record(2, 11, &[0x1000, 0], &[]),
            record(JIT_CODE_LOAD, 12, &[7, 0x2000, 0x2000, 0x100, 2], b"g\0\x90"),
            record(JIT_CODE_MOVE, 20, &[7, 0x1000, 0x1000, 0x1080, 0x100, 1], &[]),
            record(JIT_CODE_LOAD, 30, &[7, 0x2000, 0x2000, 0x80, 3], b"h\0\x90"),
            record(JIT_CODE_CLOSE, 40, &[], &[]),
            b"and more".to_vec(),
        ]
        .concat()
    }

    fn read(bytes: &[u8], step: usize) -> JitDump {
        let mut dump = JitDump::default();
        let (mut used, mut have) = (0u64, 0);
        while have < bytes.len() {
            have = (have + step).min(bytes.len());
            if let Some(rest) = bytes.get(used as usize..have) {
                used += dump.feed(rest);
            }
        }
        dump
    }

    #[test]
    fn names_depend_on_time() {
        let bytes = demo(0);
        for step in [1, 7, 100, 20_000, 1 << 20] {
            let dump = read(&bytes, step);
            let name = |address, time| dump.code().find(address, time).name;
            assert_eq!(
                (name(0x1000, 9), name(0x1000, 10), name(0x1000, 19), name(0x1000, 20)),
                (None, Some("f"), Some("f"), None)
            );
            assert_eq!(
                (name(0x10ff, 15), name(0x1100, 15), name(0x1100, 20), name(0x117f, 50)),
                (Some("f"), None, Some("f"), Some("f"))
            );
            assert_eq!((name(0x2000, 29), name(0x2000, 30), name(0x2080, 30)), (Some("g"), Some("h"), Some("g")));
            assert_eq!(dump.code().find(0x2000, 15), super::super::CodeAtTime { name: Some("g"), from: 12, until: 30 });
            assert!(dump.is_over() && dump.bad_records() == 0 && dump.latest() == 40);
        }
        // The process may be in a time namespace.
        let mut behind = JitDump::of_clock(-5);
        behind.feed(&demo(0));
        assert_eq!(behind.code().find(0x2000, 20), super::super::CodeAtTime { name: Some("g"), from: 17, until: 35 });
        assert_eq!(behind.latest(), 45);
        let mut ahead = JitDump::of_clock(8);
        ahead.feed(&demo(FLAG_ARCH_TIMESTAMP));
        assert_eq!((ahead.code().find(0x2000, 15).name, ahead.latest()), (Some("h"), u64::MAX));
        // With the processor's counter there are no times, so the last record counts.
        let dump = read(&demo(FLAG_ARCH_TIMESTAMP), 1 << 20);
        assert_eq!(dump.code().find(0x2000, 15).name, Some("h"));
    }

    #[test]
    fn names_take_no_more_than_their_room() {
        let mut dump = JitDump::default();
        dump.feed(&header(0));
        // Bytes that are not UTF-8 take three times their size as text.
        let name = [0xff; 2000];
        for i in 0..6000u64 {
            dump.feed(&record(JIT_CODE_LOAD, 1, &[7, i, 0x1000 * i, 16, i % 5000], &name));
        }
        assert_eq!(dump.name_bytes, dump.names.values().map(String::len).sum());
        assert!((MAX_FOLLOWED_BYTES / 2..=MAX_FOLLOWED_BYTES).contains(&dump.name_bytes));
        assert!(dump.names.values().all(|name| name.len() <= MAX_NAME_BYTES && name.capacity() <= MAX_NAME_BYTES));
    }

    #[test]
    fn damaged_files_do_no_harm() {
        let bytes = demo(0);
        for at in (0..bytes.len()).filter(|&at| !(200..40_000).contains(&at)) {
            for value in [0, 0xff, bytes[at] ^ 0x10] {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                let _ = read(&damaged, 1 << 20);
            }
            let _ = read(&bytes[..at], 1 << 20);
        }
        let dump = read(b"\x7fELF and so on, which is no jitdump at all ........", 8);
        assert!(dump.is_over() && dump.bad_records() == 1 && dump.code().is_empty());
        let short =
            [header(0), record(JIT_CODE_LOAD, 1, &[7, 0x1000], &[]), record(JIT_CODE_MOVE, 1, &[], &[])].concat();
        assert_eq!(read(&short, 1 << 20).bad_records(), 2);
    }
}
