//! Offsets within functions without debug information.
//!
//! A function of a stripped image has no lines. In a charge or in a call site of it, the *line* is an offset from the
//! function's start instead: a line of the file [`OFFSET_FILE`], whose number is the offset + 1. Debug information that is
//! found later tells from it which functions were inlined there, and the source line; see [`later_names`](crate::later_names).
//! Views take offsets for lines that are not known.
//!
//! Offsets are the first to go where memory is short: there are none from when the table of call sites, or that of charges,
//! is half full, and they are at most a quarter of the lines.

use crate::ids::LineId;
use crate::model::Line;
use crate::profile::Profile;
use crate::shed::Shed;

/// The file of lines that are offsets. No compiler calls a file so.
pub(crate) const OFFSET_FILE: &str = "[offset]";

/// One in this many lines may be an offset.
const PART_OF_LINES: usize = 4;

impl Line {
    /// The offset from a function's start, if this line is such an offset and not of a source file.
    fn offset(&self) -> Option<u32> {
        self.line.checked_sub(1).filter(|_| &*self.file == OFFSET_FILE)
    }
}

impl Profile {
    /// The line that stands for an offset in a function without debug information; [`LineId::UNKNOWN`] where there are too many.
    pub fn add_offset(&mut self, offset: u64) -> LineId {
        let number = u32::try_from(offset).ok().and_then(|offset| offset.checked_add(1));
        let Some(number) = number else { return LineId::UNKNOWN };
        if let Some(known) = self.lines.find(&(OFFSET_FILE, number)) {
            return LineId(known);
        }
        let taken = (self.offset_lines, self.limits.lines / PART_OF_LINES);
        if !self.shares.has(Shed::Offsets, taken, 1) {
            self.accounting.count_shed(Shed::Offsets);
            return LineId::UNKNOWN;
        }
        let line = self.add_line(OFFSET_FILE, number);
        if line != LineId::UNKNOWN {
            self.offset_lines += 1;
            self.shares.add(Shed::Offsets, 1);
        }
        line
    }

    /// The offset that a line stands for; `None` of source lines.
    #[must_use]
    pub fn offset(&self, id: LineId) -> Option<u32> {
        self.lines.get(id.0).and_then(Line::offset)
    }

    /// The line for people: [`LineId::UNKNOWN`] where it is an offset.
    pub(crate) fn source_line(&self, id: LineId) -> LineId {
        if self.offset(id).is_some() { LineId::UNKNOWN } else { id }
    }
}
