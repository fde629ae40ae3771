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
    pub fn image_name(&self, id: CostCentreId) -> Cow<'_, str> {
        let image = self.cost_centre(id).and_then(|cost_centre| self.image(cost_centre.image));
        image.map_or(Cow::Borrowed("[unknown]"), |image| image_file_name(&image.name))
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

/// What an image goes by: its file name. What a user shows to his processes at a path keeps his number: of
/// `user 1000:/usr/bin/server` it is `user 1000:server`.
pub(crate) fn image_file_name(path: &str) -> Cow<'_, str> {
    let name = basename(path);
    let whose = path.strip_prefix("user ").and_then(|rest| rest.split_once(":/")).filter(|_| name.len() < path.len());
    whose.map_or(Cow::Borrowed(name), |(user, _)| Cow::Owned(format!("user {user}:{name}")))
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
            assert_eq!((basename(path), &*image_file_name(path)), (name, name));
        }
        for (path, name) in [
            ("user 1000:/usr/bin/server", "user 1000:server"),
            ("user 1000:/x/[kernel]", "user 1000:/x/[kernel]"),
            ("/user 1:/x", "x"),
        ] {
            assert_eq!(image_file_name(path), name);
        }
    }
}
