//! What somebody may have meant by a name that is none.

use ccsd_profile::{CostCentreId, Profile, sanitise};

/// As many are offered.
const MOST: usize = 3;
/// What is less like what was typed, from 0 to 1, is nothing.
const LEAST: f64 = 0.6;
/// Of longer names only the beginning is compared.
const LONGEST: usize = 200;

/// Names of functions that are like `text`, the most alike first, as a question: empty if none is.
pub fn question(text: &str, profile: &Profile) -> String {
    let names =
        (0u32..).map(CostCentreId::new).take(profile.cost_centres().len()).map(|id| profile.name(id).into_owned());
    let near: Vec<String> = near(text, names).iter().map(|name| sanitise(name).into_owned()).collect();
    if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(" or ")) }
}

fn near(text: &str, names: impl Iterator<Item = String>) -> Vec<String> {
    let text = text.to_lowercase();
    let mut found: Vec<(f64, String)> = names.map(|name| (likeness(&text, &name), name)).collect();
    found.retain(|(likeness, _)| *likeness >= LEAST);
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    found.dedup_by(|a, b| a.1 == b.1);
    found.into_iter().take(MOST).map(|(_, name)| name).collect()
}

/// With the whole name, or a word of it: `prase` is like `json::parse(char const*)`.
fn likeness(text: &str, name: &str) -> f64 {
    let text: Vec<char> = text.chars().take(LONGEST).collect();
    let name: String = name.chars().take(LONGEST).collect::<String>().to_lowercase();
    let words = name.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| word.len() > 2);
    let like = |word: &str| {
        let word: Vec<char> = word.chars().collect();
        1.0 - distance(&text, &word) as f64 / text.len().max(word.len()).max(1) as f64
    };
    words.chain([name.as_str()]).map(like).fold(0.0, f64::max)
}

/// How many letters are to be put in, left out, changed, or exchanged with their neighbour (each once) to make one of the other.
fn distance(a: &[char], b: &[char]) -> usize {
    let (mut before, mut last): (Vec<usize>, Vec<usize>) = (Vec::new(), (0..=b.len()).collect());
    for (i, &x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &y) in b.iter().enumerate() {
            let at = |row: &[usize], j: usize| row.get(j).copied().unwrap_or(usize::MAX / 2);
            let mut least = (at(&row, j) + 1).min(at(&last, j + 1) + 1).min(at(&last, j) + usize::from(x != y));
            let exchanged = i > 0 && j > 0 && a.get(i - 1) == Some(&y) && b.get(j - 1) == Some(&x);
            if exchanged {
                least = least.min(at(&before, j - 1) + 1);
            }
            row.push(least);
        }
        (before, last) = (last, row);
    }
    last.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_alike_first() {
        let names = ["memcpy", "json::parse(char const*)", "parse_number", "main", "Parser::prase_all", "sort"];
        let names = || names.iter().map(|name| (*name).to_owned());
        assert_eq!(near("prase", names()), ["json::parse(char const*)", "Parser::prase_all"]);
        assert_eq!(near("mian", names()), ["main"]);
        let distance = |a: &str, b: &str| distance(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>());
        assert_eq!([distance("kitten", "sitting"), distance("prase", "parse"), distance("", "abc")], [3, 1, 3]);
        assert_eq!(near("quicksilver", names()), Vec::<String>::new());
    }
}
