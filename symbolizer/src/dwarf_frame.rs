//! A function as described by debug information.

use std::sync::Arc;

#[derive(Debug, Default)]
pub(crate) struct DwarfFrame {
    pub(crate) name: Option<String>,
    pub(crate) file: Option<Arc<str>>,
    pub(crate) line: u32,
    pub(crate) declaration: Declaration,
    pub(crate) local: Option<bool>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Declaration {
    pub(crate) file: Option<Arc<str>>,
    pub(crate) line: u32,
}
