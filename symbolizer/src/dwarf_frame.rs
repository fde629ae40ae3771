//! A function as described by debug information.

use std::sync::Arc;

/// A function at an address, innermost first.
#[derive(Debug, Default)]
pub(crate) struct DwarfFrame {
    /// The linkage name, or else the name.
    pub(crate) name: Option<String>,
    /// Source position of the address; for an outer function, of the call inlined there.
    pub(crate) file: Option<Arc<str>>,
    pub(crate) line: u32,
    pub(crate) declaration: Declaration,
    /// Whether only its compilation unit sees the function, if known.
    pub(crate) local: Option<bool>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Declaration {
    pub(crate) file: Option<Arc<str>>,
    /// 0 if unknown.
    pub(crate) line: u32,
}
