//! Names of the functions that a view mentions, and how much room there is for them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::ids::CostCentreId;
use crate::labels::{Definition, labelled};
use crate::profile::Profile;

/// Names of the functions that a view mentions. Several may have one: [`Definitions`] tell them apart.
pub type FunctionNames = BTreeMap<CostCentreId, String>;

/// Where the functions that a view mentions are defined.
pub type Definitions = BTreeMap<CostCentreId, Definition>;

pub(super) fn names(profile: &Profile, functions: impl Iterator<Item = CostCentreId>) -> (FunctionNames, Definitions) {
    // Marked first and named once: a view of stacks mentions its functions a million times.
    let mut mentioned = vec![false; profile.cost_centres().len()];
    for function in functions {
        if let Some(mentioned) = mentioned.get_mut(function.index()) {
            *mentioned = true;
        }
    }
    let labels = profile.labels();
    (0u32..)
        .map(CostCentreId::new)
        .zip(mentioned)
        .filter(|(_, mentioned)| *mentioned)
        .map(|(id, _)| ((id, profile.name(id).into_owned()), (id, labels.definition(id))))
        .unzip()
}

pub(super) fn named<'a>(
    function: CostCentreId,
    names: &'a FunctionNames,
    definitions: &'a Definitions,
) -> Cow<'a, str> {
    let definition = definitions.get(&function);
    let short = definition.and_then(|it| it.short_name.as_ref());
    let name = short.or_else(|| names.get(&function)).map_or("[unknown]", String::as_str);
    labelled(name.into(), definition.and_then(|it| it.apart.as_deref()))
}

/// Bytes of names in a list of stacks: proportional to the profile, so that a small file cannot make a huge list.
#[must_use]
pub fn room_for_names(profile: &Profile) -> usize {
    let places = profile.contexts().len() + profile.charge_count();
    (4 << 20) + places.saturating_mul(256) + profile.name_bytes().saturating_mul(8)
}

/// The beginning of a name that is longer than `most` bytes, which are three or more.
pub(crate) fn shortened(name: &str, most: usize) -> Cow<'_, str> {
    if name.len() <= most {
        return name.into();
    }
    let mut end = most.saturating_sub('…'.len_utf8());
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", name.get(..end).unwrap_or_default()).into()
}

pub(super) fn listed(
    profile: &Profile,
    names: &FunctionNames,
    mut room: usize,
    lists: impl Iterator<Item = Vec<CostCentreId>>,
) -> usize {
    let mut lengths = vec![0; profile.cost_centres().len()];
    for (function, name) in names {
        if let Some(length) = lengths.get_mut(function.index()) {
            *length = name.len();
        }
    }
    lists
        .take_while(|list| {
            let length = |function: &CostCentreId| lengths.get(function.index()).copied().unwrap_or(0) + 2;
            let bytes: usize = list.iter().map(length).sum();
            let fits = bytes <= room;
            room = room.saturating_sub(bytes);
            fits
        })
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_between_characters() {
        assert_eq!(shortened("name", 4), "name");
        assert_eq!(shortened("names", 4), "n…");
        assert_eq!(shortened("éé", 4), "éé");
        assert_eq!(shortened("ééé", 4), "…");
        assert_eq!(shortened("ééé", 5), "é…");
    }
}
