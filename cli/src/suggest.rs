//! Suggestions for names without a match.

use std::collections::HashSet;

use ccsd_profile::query::{Pattern, Subject};
use ccsd_profile::{CostCentreId, Membership, Profile, sanitise};

const MAX_SUGGESTIONS: usize = 3;
const MIN_LIKENESS: f64 = 0.6;
const MAX_COMPARED: usize = 200;
/// Maximum distinct names compared, which takes a second or two.
const MAX_NAMES: usize = 100_000;

/// Suggests names similar to a pattern without matches, most similar first, as a question; empty if there are none.
pub fn question(pattern: &Pattern, profile: &Profile) -> String {
    let file_name = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    let (prefix, names): (&str, Vec<String>) = match pattern.subject() {
        Subject::Name => {
            let ids = (0u32..).map(CostCentreId::new).take(profile.cost_centres().len());
            ("", ids.map(|id| profile.name(id).into_owned()).collect())
        }
        Subject::Module => ("module:", profile.images().iter().map(|image| file_name(&image.name)).collect()),
        Subject::File => {
            let files = profile.cost_centres().iter().filter_map(|centre| centre.file.as_deref());
            ("file:", files.map(file_name).collect())
        }
        Subject::Thread => ("thread:", profile.threads().iter().map(|thread| thread.name.clone()).collect()),
        Subject::Process => ("process:", profile.processes().iter().map(|process| process.name.clone()).collect()),
        Subject::Unit => ("unit:", memberships(profile, Membership::unit)),
        Subject::Container => ("container:", memberships(profile, Membership::container)),
        Subject::User => ("user:", memberships(profile, Membership::user)),
    };
    let text = pattern.text();
    let text = text.strip_prefix(prefix).or_else(|| text.strip_prefix("name:")).unwrap_or(text);
    let similar = similar_names(text, names.into_iter());
    let similar: Vec<String> = similar.iter().map(|name| format!("{prefix}{}", sanitise(name))).collect();
    if similar.is_empty() { String::new() } else { format!("; did you mean {}?", similar.join(" or ")) }
}

fn memberships(profile: &Profile, name: impl Fn(&Membership) -> String) -> Vec<String> {
    profile.processes().iter().filter_map(|process| process.membership.as_deref().map(&name)).collect()
}

fn similar_names(text: &str, names: impl Iterator<Item = String>) -> Vec<String> {
    let text = text.to_lowercase();
    let mut known = HashSet::new();
    let names = names.filter(|name| known.insert(name.clone())).take(MAX_NAMES);
    let mut found: Vec<(f64, String)> = names.map(|name| (likeness(&text, &name), name)).collect();
    found.retain(|(likeness, _)| *likeness >= MIN_LIKENESS);
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    found.into_iter().take(MAX_SUGGESTIONS).map(|(_, name)| name).collect()
}

/// Similarity from 0 to 1 with the whole name or a word in it: `prase` is similar to `json::parse(char const*)`.
fn likeness(text: &str, name: &str) -> f64 {
    let text: String = text.chars().take(MAX_COMPARED).collect();
    let length = text.chars().count();
    let name: String = name.chars().take(MAX_COMPARED).collect::<String>().to_lowercase();
    let words = name.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| word.len() > 2);
    let like = |word: &str| {
        let word_length = word.chars().count();
        let (longer, shorter) = (length.max(word_length), length.min(word_length));
        // Upper bound: all letters of the shorter text are in the longer one.
        if (shorter as f64) < MIN_LIKENESS * longer as f64 {
            return 0.0;
        }
        1.0 - strsim::osa_distance(&text, word) as f64 / longer.max(1) as f64
    };
    words.chain([name.as_str()]).map(like).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_alike_first() {
        let names = ["memcpy", "json::parse(char const*)", "parse_number", "main", "Parser::prase_all", "sort"];
        let names = || names.iter().map(|name| (*name).to_owned());
        assert_eq!(similar_names("prase", names()), ["json::parse(char const*)", "Parser::prase_all"]);
        assert_eq!(similar_names("mian", names()), ["main"]);
        assert_eq!(similar_names("quicksilver", names()), Vec::<String>::new());
    }
}
