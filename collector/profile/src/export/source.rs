//! Source with what its lines cost, for an HTML file.

use crate::ids::CostCentreId;

/// The lines of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceExcerpt {
    /// The function.
    pub function: CostCentreId,
    /// The files that it has lines in: of functions inlined into it, or of macros, more than one.
    pub files: Vec<ExcerptFile>,
}

/// Lines of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExcerptFile {
    /// As in the debug information.
    pub path: String,
    /// What is to be known about it, safe to print.
    pub remarks: Vec<String>,
    /// In the order of their numbers.
    pub lines: Vec<ExcerptLine>,
}

/// A line and what it cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExcerptLine {
    /// Its number, from 1.
    pub number: u32,
    /// Weight of what ran in it.
    pub self_weight: u64,
    /// With what was called from it.
    pub inherited_weight: u64,
    /// Its text, safe to print; `None` if the file cannot be read.
    pub text: Option<String>,
}
