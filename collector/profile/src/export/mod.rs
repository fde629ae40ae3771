//! Exports profiles to formats of other tools.
//!
//! Recursion is folded in them (see [`History`](crate::History)): every function is on a stack once for its latest
//! activation, and as often as callers and callees need. `[...]` marks a call that may have others between. A consumer
//! that counts a function once for each stack gets ccsd's own self and inherited weights. Names are made safe
//! ([`sanitise`](crate::sanitise)) in all formats but JSON, which has escapes of its own.

mod callgrind;
mod csv;
mod dot;
mod firefox;
mod folded;
mod gprof;
mod html;
mod json;
mod package;
mod palette;
mod pprof;
mod remarks;
mod request;
mod source;
mod speedscope;
mod svg;
mod walk;

pub use request::{DEFAULT_MAX_BYTES, Export};
pub use source::{ExcerptFile, ExcerptLine, SourceExcerpt};
pub use svg::write_difference;

use std::io::{self, Write};
use std::str::FromStr;

/// A format to export to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// pprof's protobuf, compressed: `go tool pprof`, pprof.me, Grafana.
    Pprof,
    /// Callgrind's: KCachegrind, callgrind_annotate.
    Callgrind,
    /// An HTML page with all views.
    Html,
    /// One line per stack: flamegraph.pl, inferno, speedscope.
    Folded,
    /// A flame graph.
    Svg,
    /// speedscope's JSON.
    Speedscope,
    /// The Firefox Profiler's JSON: profiler.firefox.com.
    Firefox,
    /// Graphviz' language: `dot -Tsvg`.
    Dot,
    /// gprof's two tables, in its layout.
    Gprof,
    /// The whole profile as JSON.
    Json,
    /// Functions as comma-separated values.
    Csv,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 11] = [
        Format::Html,
        Format::Pprof,
        Format::Callgrind,
        Format::Folded,
        Format::Svg,
        Format::Speedscope,
        Format::Firefox,
        Format::Dot,
        Format::Gprof,
        Format::Json,
        Format::Csv,
    ];

    /// Name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Format::Html => "html",
            Format::Pprof => "pprof",
            Format::Callgrind => "callgrind",
            Format::Folded => "folded",
            Format::Svg => "svg",
            Format::Speedscope => "speedscope",
            Format::Firefox => "firefox",
            Format::Dot => "dot",
            Format::Gprof => "gprof",
            Format::Json => "json",
            Format::Csv => "csv",
        }
    }

    /// Whether remarks are rows of the export, which [`Export::comments`] can omit.
    #[must_use]
    pub const fn has_comments(self) -> bool {
        matches!(self, Format::Folded | Format::Csv)
    }

    /// Whether it shows weights over time.
    #[must_use]
    pub const fn shows_time(self) -> bool {
        matches!(self, Format::Html | Format::Firefox | Format::Speedscope)
    }

    /// Whether it is text.
    #[must_use]
    pub const fn is_text(self) -> bool {
        !matches!(self, Format::Pprof)
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Format::ALL.map(Format::name).join(", ");
        Format::ALL.into_iter().find(|it| it.name() == text).ok_or_else(|| format!("{text:?} is none of {}", names()))
    }
}

impl Export<'_> {
    /// Writes the export.
    ///
    /// # Errors
    /// Those of `out`; [`io::ErrorKind::InvalidInput`] if the format cannot express it, such as an empty flame graph.
    pub fn write(&self, format: Format, out: &mut impl Write) -> io::Result<()> {
        match format {
            Format::Html => html::write(self, out),
            Format::Pprof => pprof::write(self, out),
            Format::Callgrind => callgrind::write(self, out),
            Format::Folded => folded::write(self, out),
            Format::Svg => svg::write(self, out),
            Format::Speedscope => speedscope::write(self, out),
            Format::Firefox => firefox::write(self, out),
            Format::Dot => dot::write(self, out),
            Format::Gprof => gprof::write(self, out),
            Format::Json => json::write(self, out),
            Format::Csv => csv::write(self, out),
        }
    }
}

/// Writes an HTML file that compares two profiles, of the size that `after` allows.
///
/// # Errors
/// As [`Export::write`].
pub fn write_difference_page(before: &Export<'_>, after: &Export<'_>, out: &mut impl Write) -> io::Result<()> {
    html::write_difference(before, after, out)
}
