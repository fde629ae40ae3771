//! Text from profiled programs, made safe to print.

use std::borrow::Cow;
use std::fmt::Write;

/// Makes text from a profiled program safe to print: `\u{...}` for everything not plainly visible and in reading order.
///
/// These are control characters, line and paragraph separators, bidirectional overrides, zero-width and other invisible
/// characters, spaces other than ` `, marks that strike out others, tag characters, variation selectors, private use and
/// non-characters. A backslash stays: escapes are for
/// the eye, not for reading back.
#[must_use]
pub fn sanitise(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unsafe(c) {
            let _ = write!(safe, "\\u{{{:x}}}", u32::from(c));
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

fn is_unsafe(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    matches!(u32::from(c),
        0x80..=0x9f            // C1 controls; 0x9b is CSI
        | 0xa0                 // no-break space
        | 0xad                 // soft hyphen
        | 0x335..=0x338        // strokes through what stands before
        | 0x34f                // combining grapheme joiner
        | 0x488..=0x489        // signs around what stands before
        | 0x61c                // Arabic letter mark
        | 0x115f..=0x1160      // Hangul fillers
        | 0x17b4..=0x17b5      // Khmer invisible vowels
        | 0x1680               // Ogham space
        | 0x180b..=0x180f      // Mongolian selectors
        | 0x2000..=0x200f      // wide and narrow spaces, zero width, direction marks
        | 0x2028..=0x202f      // line and paragraph separator, embeddings, overrides, narrow space
        | 0x205f..=0x206f      // mathematical space, joiners, isolates, invisible operators
        | 0x20d0..=0x20f0      // signs through and around what stands before
        | 0x2800               // Braille without dots
        | 0x3000               // ideographic space
        | 0x3164               // Hangul filler
        | 0xe000..=0xf8ff      // private use
        | 0xfdd0..=0xfdef      // non-characters
        | 0xfe00..=0xfe0f      // variation selectors
        | 0xfeff               // byte order mark
        | 0xffa0               // half-width Hangul filler
        | 0xfff0..=0xffff      // specials: interlinear annotation, replacement, non-characters
        | 0x13430..=0x1345f    // Egyptian format controls
        | 0x1bca0..=0x1bca3    // shorthand format controls
        | 0x1d159              // musical null note
        | 0x1d173..=0x1d17a    // musical format controls
        | 0xe0000..=0x10_ffff  // tags, variation selectors, private use
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_stay() {
        for name in ["main", "std::vec<int, std::allocator<int>>::push_back(int&&)", "größe", "函数", "f\\n", "🦀"]
        {
            assert!(matches!(sanitise(name), Cow::Borrowed(same) if same == name));
        }
    }

    #[test]
    fn control_and_invisible_characters_are_escaped() {
        for (name, safe) in [
            ("a\x1b[31mb", "a\\u{1b}[31mb"),
            ("a\nb\tc\r\0", "a\\u{a}b\\u{9}c\\u{d}\\u{0}"),
            ("\u{9b}2J\u{7f}", "\\u{9b}2J\\u{7f}"),
            ("a\u{202e}b\u{2066}c\u{200b}d\u{feff}", "a\\u{202e}b\\u{2066}c\\u{200b}d\\u{feff}"),
            ("a\u{a0}b\u{336}\u{1bca0}\u{1d173}\u{2800}", "a\\u{a0}b\\u{336}\\u{1bca0}\\u{1d173}\\u{2800}"),
            ("\u{2028}\u{e0041}\u{10ffff}", "\\u{2028}\\u{e0041}\\u{10ffff}"),
        ] {
            assert_eq!(sanitise(name), safe);
        }
    }
}
