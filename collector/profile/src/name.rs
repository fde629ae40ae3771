//! How things are called in output.

use std::borrow::Cow;

use crate::ids::CostCentreId;
use crate::model::CostCentre;
use crate::profile::Profile;

impl CostCentre {
    pub(crate) fn name(&self) -> Option<&str> {
        self.display_name.as_deref().or(self.linkage_name.as_deref())
    }
}

impl Profile {
    /// Display name, else linkage name, else `image+0x1234`. Unescaped: see [`sanitise`](crate::sanitise).
    #[must_use]
    pub fn name(&self, id: CostCentreId) -> Cow<'_, str> {
        let Some(cost_centre) = self.cost_centre(id) else { return Cow::Borrowed("[unknown]") };
        if let Some(name) = cost_centre.name() {
            return Cow::Borrowed(name);
        }
        let image = self.image_name(id);
        match cost_centre.start {
            Some(start) => Cow::Owned(format!("{image}+{start:#x}")),
            None => Cow::Owned(format!("{image}+?")),
        }
    }

    /// The file name, without directories, of the image that a function is in.
    #[must_use]
    pub fn image_name(&self, id: CostCentreId) -> &str {
        let image = self.cost_centre(id).and_then(|cost_centre| self.image(cost_centre.image));
        image.map_or("[unknown]", |image| basename(&image.name))
    }
}

/// The part after the last slash; the whole where that is empty or could be taken for a name of ccsd's own.
pub(crate) fn basename(path: &str) -> &str {
    match path.rsplit('/').next() {
        // A file called `[kernel]` is none of it.
        Some(name) if name.starts_with('[') => path,
        Some(name) if !name.is_empty() => name,
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_names() {
        for (path, name) in [
            ("/usr/lib/libc.so.6", "libc.so.6"),
            ("[vdso]", "[vdso]"),
            ("a/", "a/"),
            ("", ""),
            ("/x/[kernel]", "/x/[kernel]"),
        ] {
            assert_eq!(basename(path), name);
        }
    }
}
