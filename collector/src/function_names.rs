//! How functions are entered into a profile.

use std::borrow::Cow;
use std::sync::Arc;

use ccsd_profile::own_names::of_program;
use ccsd_profile::{CostCentre, ImageId};
use ccsd_symbolizer::Function;

/// The cost centre of a function that was found in an image.
pub fn cost_centre(image: ImageId, function: &Function) -> CostCentre {
    let text = |name: &Option<Arc<str>>| name.as_deref().map(str::to_owned);
    CostCentre {
        image,
        linkage_name: text(&function.linkage_name),
        display_name: display_name(function.linkage_name.as_deref(), function.display_name.as_deref()),
        start: function.start,
        file: text(&function.decl_file),
        line: function.decl_line,
        local: function.local,
    }
}

/// What is shown for a function's name, if that is not its linkage name; see [`of_program`].
pub fn display_name(linkage_name: Option<&str>, display_name: Option<&str>) -> Option<String> {
    match display_name.or(linkage_name).map(of_program) {
        Some(Cow::Owned(quoted)) => Some(quoted),
        _ => display_name.map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_function_has_a_name_of_ccsd_s_own() {
        assert_eq!(display_name(Some("[not sampled]"), None).as_deref(), Some("\"[not sampled]\""));
        assert_eq!(display_name(Some(" [elided]"), None).as_deref(), Some("\" [elided]\""));
        assert_eq!(display_name(Some("_Zx"), Some("[kernel]")).as_deref(), Some("\"[kernel]\""));
        assert_eq!(display_name(Some("_Z1fv"), Some("f()")).as_deref(), Some("f()"));
        assert_eq!((display_name(Some("f"), None), display_name(None, None)), (None, None));
    }
}
