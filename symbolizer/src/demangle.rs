//! Names as people wrote them.

use std::fmt;

use cpp_demangle::{DemangleOptions, ParseOptions};

use crate::limits;

/// How deep the types in a C++ name may nest, while parsing and while printing. Real names stay below 100; each level
/// takes about a kilobyte of stack.
const CPP_RECURSION: u32 = 160;

/// The demangled form of a linkage name; `None` if it is the same, or the name is not mangled.
///
/// Rust names lose their hash suffix; C++ names keep their parameters. Names longer than
/// [`limits::MAX_DISPLAY_NAME`] bytes are cut and end in an ellipsis.
pub(crate) fn demangle(linkage_name: &str) -> Option<String> {
    let display = demangle_rust(linkage_name).or_else(|| demangle_cpp(linkage_name, DemangleOptions::new()));
    let display = match display {
        Some(display) => display,
        None if linkage_name.len() > limits::MAX_DISPLAY_NAME => {
            let mut out = Capped::default();
            // Only the capped writer fails, and it has then what fits.
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
    // The alternate form leaves the hash out. An error is either the limit, or a name that lies about its structure.
    match fmt::write(&mut out, format_args!("{symbol:#}")) {
        Err(_) if !out.full => None,
        _ => Some(out.finish()),
    }
}

fn demangle_cpp(name: &str, print: DemangleOptions) -> Option<String> {
    if !name.starts_with("_Z") && !name.starts_with("___Z") {
        return None;
    }
    let parse = ParseOptions::default().recursion_limit(CPP_RECURSION);
    let symbol = cpp_demangle::BorrowedSymbol::new_with_options(name.as_bytes(), &parse).ok()?;
    let mut out = Capped::default();
    match symbol.structured_demangle(&mut out, &print.recursion_limit(CPP_RECURSION)) {
        Err(_) if !out.full => None,
        _ => Some(out.finish()),
    }
}

/// The whole demangled form of a C++ name, without the return type; `None` if it is not one, or too long.
pub(crate) fn cpp_whole(name: &str) -> Option<String> {
    let display = demangle_cpp(name, DemangleOptions::new().no_return_type())?;
    (!display.ends_with(Capped::ELLIPSIS)).then_some(display)
}

/// A string that takes [`limits::MAX_DISPLAY_NAME`] bytes and then fails, which stops the writer: back references make
/// the demangled form of a short name exponentially long.
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
