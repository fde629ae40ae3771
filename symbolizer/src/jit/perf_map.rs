//! `perf-PID.map`: lines of `START SIZE NAME`, hexadecimal, without times: later lines replace what they overlap
//! (linux/tools/perf/Documentation/jit-interface.txt).

use super::code_map::{CodeMap, MAX_NAME_BYTES};
use super::parsed::{JitEntry, JitParser, Parsed};

/// Maximum bytes of a line that are parsed: two numbers and the longest name that is kept.
const MAX_LINE_BYTES: usize = 16 << 10;

/// The state of reading a perf map.
#[derive(Debug, Default)]
pub struct PerfMap {
    code: CodeMap,
    bad_lines: u64,
    /// Whether the next bytes continue a line that is too long, whose start was used.
    skipping: bool,
}

impl PerfMap {
    /// Parses the next bytes. Returns the number used; the rest is a line's start and must be given again.
    pub fn feed(&mut self, bytes: &[u8]) -> usize {
        self.apply(parse(self.skipping, bytes)) as usize
    }

    /// The parser's state for the next bytes.
    #[must_use]
    pub fn parser(&self) -> JitParser {
        JitParser::PerfMap { skipping: self.skipping }
    }

    /// Applies parsed bytes. Returns the number used.
    pub fn apply(&mut self, parsed: Parsed) -> u64 {
        self.skipping = parsed.parser == JitParser::PerfMap { skipping: true };
        self.bad_lines = self.bad_lines.saturating_add(parsed.bad);
        for entry in parsed.entries {
            if let JitEntry::Code { start, size, name, .. } = entry {
                self.code.add(start, size, 0, &name);
            }
        }
        parsed.used
    }

    /// The code so far.
    #[must_use]
    pub fn code(&self) -> &CodeMap {
        &self.code
    }

    /// Approximate bytes used.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.code.bytes()
    }

    /// Limits the bytes from now on. Existing pieces stay.
    pub fn limit(&mut self, bytes: usize) {
        self.code.limit(bytes);
    }

    /// Number of invalid lines.
    #[must_use]
    pub fn bad_lines(&self) -> u64 {
        self.bad_lines
    }

    /// Forgets everything, as when the file is rewritten.
    pub fn clear(&mut self) {
        self.code.clear();
        self.skipping = false;
    }
}

pub(super) fn parse(mut skipping: bool, bytes: &[u8]) -> Parsed {
    let mut parsed = Parsed::new(JitParser::PerfMap { skipping });
    let mut used = 0;
    let mut line = |line: &[u8]| match parse_line(line) {
        Some(entry) => parsed.entries.push(entry),
        None => parsed.bad += u64::from(!line.trim_ascii().is_empty()),
    };
    while let Some(rest) = bytes.get(used..).filter(|rest| !rest.is_empty()) {
        let end = rest.iter().position(|&byte| byte == b'\n');
        match end {
            Some(end) => {
                if !std::mem::take(&mut skipping) {
                    line(&rest[..end.min(MAX_LINE_BYTES)]);
                }
                used += end + 1;
            }
            None if skipping => used = bytes.len(),
            None if rest.len() > MAX_LINE_BYTES => {
                line(&rest[..MAX_LINE_BYTES]);
                skipping = true;
                used = bytes.len();
            }
            None => break,
        }
    }
    Parsed { parser: JitParser::PerfMap { skipping }, used: used as u64, ..parsed }
}

fn parse_line(line: &[u8]) -> Option<JitEntry> {
    let line = String::from_utf8_lossy(line);
    let line = line.trim_end_matches('\r');
    let (start, rest) = line.trim_start().split_once(' ')?;
    let (size, name) = rest.trim_start().split_once(' ')?;
    let number = |text: &str| u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok();
    let name = name.trim();
    let (start, size) = (number(start)?, number(size)?);
    let name = name[..name.floor_char_boundary(MAX_NAME_BYTES)].to_owned();
    (!name.is_empty()).then_some(JitEntry::Code { start, size, from: 0, index: None, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_in_pieces() {
        let text =
            b"1000 10 LazyCompile:~f a.js:1:2\n0x2000 0x20 void Foo::bar(int)\r\n\nnonsense\n3000 zz x\n1008 8 g\n40";
        for step in 1..text.len() {
            let mut map = PerfMap::default();
            let (mut used, mut have) = (0, 0);
            while have < text.len() {
                have = (have + step).min(text.len());
                used += map.feed(&text[used..have]);
            }
            assert_eq!(used, text.len() - 2);
            let name = |address| map.code().find(address, 5).name;
            assert_eq!(name(0x1000), Some("LazyCompile:~f a.js:1:2"));
            assert_eq!(name(0x1007), Some("LazyCompile:~f a.js:1:2"));
            assert_eq!((name(0x1008), name(0x100f), name(0x1010)), (Some("g"), Some("g"), None));
            assert_eq!(name(0x201f), Some("void Foo::bar(int)"));
            assert_eq!(map.bad_lines(), 2);
        }
    }

    #[test]
    fn a_line_without_end_is_passed_over() {
        let mut map = PerfMap::default();
        let mut line = b"1000 10 long ".to_vec();
        line.resize(100_000, b'x');
        assert_eq!(map.feed(&line), line.len());
        assert_eq!(map.feed(&line), line.len());
        assert_eq!(map.feed(b"xx\n2000 10 next\n"), 16);
        assert!(map.code().find(0x1000, 0).name.is_some_and(|name| name.starts_with("long xx")));
        assert_eq!(map.code().find(0x2000, 0).name, Some("next"));
        // Zeros, noise, and numbers that are too large are not lines.
        map.feed(&[0; 50_000]);
        map.feed(b"\nffffffffffffffffff 10 a\n10 ffffffffffffffffff a\n\xff\xfe 10 \xff\nffffffffffffffff 10 wraps\n");
        assert_eq!(map.code().len(), 2);
    }
}
