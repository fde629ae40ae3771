//! Names of ccsd's own, and those that programs choose.

use std::borrow::Cow;

/// What is shown for a name that a program has chosen: in quotes if it begins with a bracket, as names of ccsd's own do:
/// `[not sampled]`.
#[must_use]
pub fn of_program(name: &str) -> Cow<'_, str> {
    match name.trim_start().starts_with('[') {
        true => Cow::Owned(format!("\"{name}\"")),
        false => Cow::Borrowed(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_program_s_name_is_ccsd_s_own() {
        for (name, shown) in [("[elided]", "\"[elided]\""), (" [x", "\" [x\""), ("a[0]", "a[0]"), ("", "")] {
            assert_eq!(of_program(name), shown);
        }
    }
}
