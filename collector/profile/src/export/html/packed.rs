//! Lists of numbers as text: variable-length bytes (LEB128) in base64. A third shorter than digits with commas.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(super) fn pack(numbers: impl IntoIterator<Item = u64>) -> String {
    let mut bytes = Vec::new();
    for mut number in numbers {
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
    }
    base64(&bytes)
}

/// Numbers in ascending order, packed as differences. One that is less than those before it counts as equal to them.
pub(super) fn pack_ascending(numbers: impl IntoIterator<Item = u64>) -> String {
    let mut last = 0u64;
    let step = |number: u64| {
        let step = number.saturating_sub(last);
        last += step;
        step
    };
    pack(numbers.into_iter().map(step))
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let sextet = (bits >> (18 - 6 * at)) as usize & 0x3f;
            let digit = ALPHABET.get(sextet).filter(|_| at <= group.len());
            text.push(digit.map_or('=', |&digit| char::from(digit)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_rfc() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn numbers_of_several_bytes() {
        // 0; 0x7f; 300 is 0xac 0x02; 2^53 is seven bytes 0x80 and 0x10.
        assert_eq!(pack([0, 127, 300]), base64(&[0, 0x7f, 0xac, 0x02]));
        assert_eq!(pack([1 << 53]), base64(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10]));
        assert_eq!(pack_ascending([3, 3, 10]), pack([3, 0, 7]));
        assert_eq!(pack_ascending([3, 2, u64::MAX]), pack([3, 0, u64::MAX - 3]));
    }
}
