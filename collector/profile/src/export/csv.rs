//! The flat profile as comma-separated values (RFC 4180).
//!
//! The format has no comments, so a remark is a row after the functions with numbers 0 and a name that begins with `#`.
//! Function names that begin with `#` are quoted; remarks are not.

use std::borrow::Cow;
use std::io::{self, Write};

use super::request::{Export, unit_name};
use crate::text::sanitise;
use crate::view::FlatView;

pub(super) fn write(export: &Export<'_>, out: &mut impl Write) -> io::Result<()> {
    let metric = export.metric();
    let unit = unit_name(metric.unit);
    write!(out, "function,image,self_{unit},inherited_{unit},self_samples,inherited_samples\r\n")?;
    let mut view = FlatView::new(export.profile, export.selection);
    if let Some(column) = export.sort {
        view.sort(column);
    }
    let labels = export.profile.full_labels();
    for row in view.rows {
        let (name, image) = (labels.label_beside_image(row.function), sanitise(&row.image));
        let name = sanitise(&name);
        write!(
            out,
            "{},{},{},{},{},{}\r\n",
            field(&name, export.spreadsheet),
            field(&image, export.spreadsheet),
            row.self_weight,
            row.inherited_weight,
            row.samples_self,
            row.samples_inherited
        )?;
    }
    if export.comments {
        for remark in export.remarks() {
            write!(out, "# {},,0,0,0,0\r\n", remark.replace(',', ";").replace('"', "'"))?;
        }
    }
    Ok(())
}

fn field(text: &str, spreadsheet: bool) -> Cow<'_, str> {
    // A spreadsheet would compute such a text; an apostrophe prevents that.
    let formula = spreadsheet && text.starts_with(['=', '+', '-', '@']);
    if !formula && !text.starts_with('#') && !text.contains([',', '"', '\n', '\r']) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("\"{}{}\"", if formula { "'" } else { "" }, text.replace('"', "\"\"")))
}
