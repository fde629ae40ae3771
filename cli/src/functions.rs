//! Functions selected by `--function`.

use std::collections::HashSet;

use ccsd_profile::query::{Pattern, Subject};
use ccsd_profile::view::{DiffFunction, Matching};
use ccsd_profile::{CostCentreId, Profile, sanitise};

pub fn parse(text: &str) -> Result<Pattern, String> {
    let pattern: Pattern = text.parse().map_err(|error: ccsd_profile::query::PatternError| error.to_string())?;
    if pattern.subject().is_runner() {
        return Err(
            "a function is asked for here; --focus selects threads, processes, units, containers and users".to_owned()
        );
    }
    Ok(pattern)
}

/// The functions of this exact name or, if there is none, those whose names contain it.
#[derive(Clone, Debug)]
pub struct NamedFunctions {
    ids: HashSet<CostCentreId>,
    text: String,
    is_part: bool,
}

impl NamedFunctions {
    pub fn new(pattern: &Pattern, profile: &Profile) -> NamedFunctions {
        let ids: HashSet<CostCentreId> = pattern.functions(profile).into_iter().collect();
        let text = sanitise(pattern.text()).into_owned();
        let is_plain = pattern.subject() == Subject::Name
            && !pattern.text().contains(['*', '?'])
            && !(pattern.text().starts_with('/') && pattern.text().ends_with('/'));
        let name = pattern.text().strip_prefix("name:").unwrap_or(pattern.text());
        let is_part = is_plain && {
            let labels = profile.labels();
            !ids.iter().any(|&id| labels.any(id, |own| own == name))
        };
        NamedFunctions { ids, text, is_part }
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    pub fn contains(&self, function: CostCentreId) -> bool {
        self.ids.contains(&function)
    }

    /// The pattern, safe to print, with `*` around a part of names.
    pub fn text(&self) -> String {
        let star = if self.is_part { "*" } else { "" };
        format!("{star}{}{star}", self.text)
    }
}

/// The functions that match a pattern in any of several profiles, as identified in a comparison.
pub fn named_in_all(pattern: &Pattern, profiles: &[&Profile]) -> HashSet<DiffFunction> {
    let matching = Matching::of(profiles.iter().copied());
    let named: Vec<NamedFunctions> = profiles.iter().map(|profile| NamedFunctions::new(pattern, profile)).collect();
    // If one profile has an exact match, partial matches in the others are not meant.
    let has_exact = named.iter().any(|it| !it.is_empty() && !it.is_part);
    let meant = profiles.iter().zip(&named).filter(|(_, it)| !(has_exact && it.is_part));
    meant.flat_map(|(profile, it)| it.ids.iter().map(|&id| matching.function(profile, id))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_unknown_functions() {
        assert!(parse("parse").is_ok() && parse("mem*").is_ok() && parse("module:libc.so.6").is_ok());
        for (text, part) in [("", "names nothing"), ("thread:main", "--focus"), ("/(/", "expression")] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
