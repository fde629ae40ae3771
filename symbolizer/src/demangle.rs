//! Demangled names.

mod members;

use std::fmt;

use cpp_demangle::{DemangleOptions, ParseOptions};

use crate::limits;

/// Maximum nesting of types in a C++ name: `cpp_demangle`'s default. Takes less than 256 KiB of stack in release
/// builds, 2 MiB in debug builds.
const CPP_RECURSION: u32 = 96;

/// Demangles a linkage name; `None` if nothing changes. Rust names lose their hash, C++ names keep their parameters;
/// longer results than [`limits::MAX_DISPLAY_NAME`] bytes are cut.
pub(crate) fn demangle(linkage_name: &str) -> Option<String> {
    let display = demangle_rust(linkage_name).or_else(|| demangle_cpp(linkage_name, DemangleOptions::new()));
    let display = match display {
        Some(display) => display,
        None if linkage_name.len() > limits::MAX_DISPLAY_NAME => {
            let mut out = Capped::default();
            // Only the capped writer fails, and keeps what fits.
            let _ = fmt::Write::write_str(&mut out, linkage_name);
            out.finish()
        }
        None => return None,
    };
    (display != linkage_name).then_some(display)
}

fn demangle_rust(name: &str) -> Option<String> {
    let symbol = rustc_demangle::try_demangle(name).ok()?;
    let mut out = Capped::default();
    // The alternate form omits the hash. An error means either the limit or a malformed name.
    match fmt::write(&mut out, format_args!("{symbol:#}")) {
        Err(_) if !out.full => None,
        _ => Some(out.finish()),
    }
}

fn demangle_cpp(name: &str, print: DemangleOptions) -> Option<String> {
    if !name.starts_with("_Z") && !name.starts_with("___Z") {
        return None;
    }
    let print = print.recursion_limit(CPP_RECURSION);
    let rewritten = || parsed_cpp(&members::rewrite_members(name)?, print).map(members::as_members);
    parsed_cpp(name, print).or_else(rewritten)
}

fn parsed_cpp(name: &str, print: DemangleOptions) -> Option<String> {
    let parse = ParseOptions::default().recursion_limit(CPP_RECURSION);
    let symbol = cpp_demangle::BorrowedSymbol::new_with_options(name.as_bytes(), &parse).ok()?;
    let mut out = Capped::default();
    match symbol.structured_demangle(&mut out, &print) {
        Err(_) if !out.full => None,
        _ => Some(out.finish()),
    }
}

/// Demangles a C++ name completely, without the return type; `None` if it is not a C++ name, or too long.
pub(crate) fn cpp_whole(name: &str) -> Option<String> {
    let display = demangle_cpp(name, DemangleOptions::new().no_return_type())?;
    (!display.ends_with(Capped::ELLIPSIS)).then_some(display)
}

/// A string of [`limits::MAX_DISPLAY_NAME`] bytes that then fails, to stop the writer: back references expand
/// exponentially.
#[derive(Default)]
struct Capped {
    text: String,
    full: bool,
}

impl Capped {
    const ELLIPSIS: &'static str = "...";

    fn finish(mut self) -> String {
        if self.full {
            self.text.push_str(Capped::ELLIPSIS);
        }
        self.text
    }
}

impl fmt::Write for Capped {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = (limits::MAX_DISPLAY_NAME - Capped::ELLIPSIS.len()).saturating_sub(self.text.len());
        if part.len() <= room {
            self.text.push_str(part);
            return Ok(());
        }
        self.text.push_str(part.get(..part.floor_char_boundary(room)).unwrap_or_default());
        self.full = true;
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_as_they_were_written() {
        for (name, expected) in [
            ("main", None),
            ("_ZN3foo3barEi", Some("foo::bar(int)")),
            ("_ZN3FooC1Ev", Some("Foo::Foo()")),
            ("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", Some("core::fmt::Write::write_fmt")),
            ("_RNvNtCs1234_7mycrate3foo3bar", Some("mycrate::foo::bar")),
            // Templates, lambdas, ABI tags, operators.
            ("_ZSt4swapIiEvRT_S1_", Some("void std::swap<int>(int&, int&)")),
            ("_ZNSt6vectorIiSaIiEE9push_backEOi", Some("std::vector<int, std::allocator<int> >::push_back(int&&)")),
            ("_ZZ4mainENKUliE_clEi", Some("main::{lambda(int)#1}::operator()(int) const")),
            ("_Z3fooB5cxx11v", Some("foo[abi:cxx11]()")),
            ("_ZN5shapelsERSoRKS_", Some("shape::operator<<(std::ostream&, shape const&)")),
            // Closures and generics of Rust, in both manglings.
            ("_ZN4test4main28_$u7b$$u7b$closure$u7d$$u7d$17h0123456789abcdefE", Some("test::main::{{closure}}")),
            (
                "_ZN4core3ops8function6FnOnce9call_once17h0123456789abcdefE",
                Some("core::ops::function::FnOnce::call_once"),
            ),
            (
                "_ZN52_$LT$T$u20$as$u20$alloc..slice..SpecCloneIntoVec$GT$5clone17h0123456789abcdefE",
                Some("<T as alloc::slice::SpecCloneIntoVec>::clone"),
            ),
            ("_RNCNvCs1234_4test4main0B3_", Some("test::main::{closure#0}")),
            ("_RINvCs1234_4test4worklKj5_EB2_", Some("test::work::<i32, 5>")),
            // Members of types, which GCC mangles in its own form: string ==, and one of GCC itself.
            (
                "_ZSteqIcEN9__gnu_cxx11__enable_ifIXsrSt9__is_charIT_E7__valueEbE6__typeERKNSt7__cxx1112basic_stringIS3_\
                 St11char_traitsIS3_ESaIS3_EEESE_",
                Some(
                    "__gnu_cxx::__enable_if<std::__is_char<char>::__value, bool>::__type std::operator==<char>(\
                     std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > const&, \
                     std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > const&)",
                ),
            ),
            (
                "_ZN2wi3absISt4pairIP7rtx_def12machine_modeEEENS_13binary_traitsIT_S7_XsrNS_10int_traitsIS7_EE14precision_\
                 typeEXsrS9_14precision_typeEE11result_typeERKS7_",
                Some(
                    "wi::binary_traits<std::pair<rtx_def*, machine_mode>, std::pair<rtx_def*, machine_mode>, \
                     wi::int_traits<std::pair<rtx_def*, machine_mode> >::precision_type, \
                     wi::int_traits<std::pair<rtx_def*, machine_mode> >::precision_type>::result_type \
                     wi::abs<std::pair<rtx_def*, machine_mode> >(std::pair<rtx_def*, machine_mode> const&)",
                ),
            ),
            ("_Z", None),
            ("_ZN", None),
            ("_R", None),
            ("_ZTV", None),
            ("", None),
        ] {
            assert_eq!(demangle(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn long_names_are_cut() {
        let long = "é".repeat(limits::MAX_DISPLAY_NAME);
        let cut = demangle(&long).unwrap();
        assert!(cut.len() <= limits::MAX_DISPLAY_NAME && cut.ends_with("é..."));
        // Each type repeats the one before twice, so the expansion has length 2 to the power of 30.
        let twice = |n: u32| {
            let before = if n == 0 { String::from("_") } else { format!("{}_", char::from_digit(n - 1, 36).unwrap()) };
            format!("St4pairIS{before}S{before}E").to_uppercase().replace("ST4PAIR", "St4pair")
        };
        let doubling = format!("_Z1f{}", (0..30).map(twice).collect::<String>());
        assert!(demangle(&doubling).is_none_or(|name| name.len() <= limits::MAX_DISPLAY_NAME));
    }

    #[test]
    fn deeply_nested_names_fit_the_stack_of_a_thread() {
        for name in [
            format!("_Z1f{}i{}", "N1aI".repeat(3000), "EE".repeat(3000)),
            format!("_Z1f{}i", "P".repeat(15_000)),
            format!("_ZN1a{}C2Ev", "C2D0".repeat(1000)),
            format!("_RNv{}C1a1f", "INvC1a1bB2_".repeat(200)),
            format!("_R{}C1a1f", "Nv".repeat(7000)),
            format!("_Z1fI{}i{}Evv", "XsrSt1aI".repeat(2000), "E1bE".repeat(2000)),
        ] {
            // Returning at all is the success, with or without a result.
            assert!(demangle(&name).is_none_or(|display| display.len() <= limits::MAX_DISPLAY_NAME));
        }
    }
}
