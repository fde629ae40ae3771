//! Reading ELF: headers, segments, sections, build id.

mod code_sections;
pub(crate) mod decode;
pub(crate) mod links;
pub(crate) mod reader;

pub(crate) use code_sections::CodeSections;
pub(crate) use decode::Section;
pub use decode::Segment;
pub(crate) use reader::{DecodedHeaders, string_at};
