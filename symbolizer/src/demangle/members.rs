//! A form of C++ names that GCC writes and `cpp_demangle` does not parse.

const MOST: usize = 64;

/// Rewrites members of types, such as `std::is_same<T>::value` in an expression, for `cpp_demangle`; `None` if the name
/// has none.
///
/// GCC mangles `srSt7is_sameIT_E5value`, with a whole type after `sr`, which the ABI's grammar does not allow.
/// Rewritten as the member of a value, `std::is_same<T>{}.value`, substitutions keep their numbers; [`as_members`]
/// turns it back. Linear in the name's length for each occurrence.
pub(super) fn rewrite_members(name: &str) -> Option<String> {
    const OF_TYPE: &str = "sr";
    const OF_VALUE: &str = "dttl";
    let mut text = name.to_owned();
    let mut from = 0;
    for _ in 0..MOST {
        let Some(found) = text.get(from..)?.find(OF_TYPE) else { break };
        let at = from + found;
        from = at + OF_TYPE.len();
        if let Some(end) = after_type(text.as_bytes(), from) {
            text.insert(end, 'E');
            text.replace_range(at..from, OF_VALUE);
            from = at + OF_VALUE.len();
        }
    }
    (text.len() > name.len()).then_some(text)
}

pub(super) fn as_members(mut demangled: String) -> String {
    const OF_VALUE: &str = "{}).";
    while let Some(end) = demangled.find(OF_VALUE) {
        let mut depth = 0usize;
        let opening = demangled.get(..end).unwrap_or_default().rfind(|c| {
            match c {
                ')' => depth += 1,
                '(' if depth == 0 => return true,
                '(' => depth -= 1,
                _ => {}
            }
            false
        });
        demangled.replace_range(end..end + OF_VALUE.len(), "::");
        if let Some(opening) = opening {
            demangled.remove(opening);
        }
    }
    demangled
}

/// End of the type that starts at `at`, if a name follows: `St7is_sameIT_E` or `NS_7is_sameIT_EE` before `5value`.
fn after_type(name: &[u8], at: usize) -> Option<usize> {
    let mut at = if name.get(at..)?.starts_with(b"St") { at + 2 } else { at };
    if name.get(at) != Some(&b'N') {
        at = after_source_name(name, at)?;
        if name.get(at) != Some(&b'I') {
            return None;
        }
    }
    let mut depth = 0usize;
    loop {
        let byte = *name.get(at)?;
        at = match (byte, name.get(at + 1).copied().unwrap_or_default()) {
            (b'0'..=b'9', _) => after_source_name(name, at)?,
            // Well-known names, numbered substitutions, template parameters.
            (b'S', b't' | b'a' | b'b' | b's' | b'i' | b'o' | b'd') => at + 2,
            (b'S' | b'T' | b'A', _) => at + name.get(at..)?.iter().position(|&byte| byte == b'_')? + 1,
            // A literal of a built-in type: type and value.
            (b'L', b'a'..=b'z') => at + name.get(at..)?.iter().position(|&byte| byte == b'E')? + 1,
            (b'L', _) => return None,
            (b'I' | b'J' | b'N' | b'F' | b'X', _) => {
                depth += 1;
                at + 1
            }
            (b'D', b't' | b'T') => {
                depth += 1;
                at + 2
            }
            (b'D', _) => at + 2,
            (b'E', _) => {
                depth = depth.checked_sub(1)?;
                at + 1
            }
            _ => at + 1,
        };
        if depth == 0 {
            return name.get(at).is_some_and(u8::is_ascii_digit).then_some(at);
        }
    }
}

fn after_source_name(name: &[u8], at: usize) -> Option<usize> {
    let digits = name.get(at..)?.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let length: usize = str::from_utf8(name.get(at..at + digits)?).ok()?.parse().ok()?;
    (at + digits).checked_add(length).filter(|&end| end <= name.len())
}
