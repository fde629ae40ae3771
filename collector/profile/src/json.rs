//! JSON that a terminal can be shown: what it could take amiss is written as `\u` escapes, which a JSON reader turns back.

use std::borrow::Cow;
use std::io;

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

use crate::text::sanitise;

/// Any value as JSON that is safe on a terminal, with a line end.
pub fn to_text(value: &impl Serialize) -> Result<String, serde_json::Error> {
    let mut out = Vec::new();
    write(value, &mut out)?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// The same, written.
///
/// # Errors
/// As [`serde_json`], those of `out` among them.
pub fn write(value: &impl Serialize, out: &mut impl io::Write) -> Result<(), serde_json::Error> {
    value.serialize(&mut Serializer::with_formatter(&mut *out, TerminalSafe))?;
    out.write_all(b"\n").map_err(serde_json::Error::io)
}

/// Escapes in strings whatever [`sanitise`] would.
struct TerminalSafe;

impl Formatter for TerminalSafe {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        if matches!(sanitise(fragment), Cow::Borrowed(_)) {
            return writer.write_all(fragment.as_bytes());
        }
        for c in fragment.chars() {
            let mut bytes = [0; 4];
            let text: &str = c.encode_utf8(&mut bytes);
            if matches!(sanitise(text), Cow::Borrowed(_)) {
                writer.write_all(text.as_bytes())?;
            } else {
                // As JSON has it: UTF-16, a pair where one unit is not enough.
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(writer, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_escapes_are_escaped_and_come_back() {
        let name = "a\x1b[2J\u{9b}31m\u{202e}\u{e0041}\"\\\né";
        let text = to_text(&name).unwrap();
        assert_eq!(text, "\"a\\u001b[2J\\u009b31m\\u202e\\udb40\\udc41\\\"\\\\\\né\"\n");
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), name);
    }
}
