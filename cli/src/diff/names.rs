//! Profiles of one program, of which one has its functions' names and the other has not: their rows cannot match.

use std::collections::BTreeMap;

use ccsd_profile::sanitise;
use ccsd_profile::view::{FlatView, Matching, Selection};

use super::runs::{LoadedRun, RunSide};
use crate::format::shell_word;

/// Share of a side's self time in an image from which on it is worth a word.
const NOTABLE: f64 = 0.05;

/// Self time of an image's functions with and without a name, as shares of a run's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct NamedShares {
    named: f64,
    nameless: f64,
}

impl NamedShares {
    fn are_named(self) -> bool {
        self.named > NOTABLE && self.named > self.nameless
    }

    fn are_nameless(self) -> bool {
        self.nameless > NOTABLE && self.nameless > self.named
    }
}

fn shares(run: &LoadedRun, matching: &Matching) -> BTreeMap<String, NamedShares> {
    let view = FlatView::new(&run.profile, &Selection::all());
    let mut images: BTreeMap<String, NamedShares> = BTreeMap::new();
    for row in view.rows {
        let Some(centre) = run.profile.cost_centre(run.profile.real(row.function)) else { continue };
        let shares = images.entry(matching.function(&run.profile, row.function).image).or_default();
        let sum = if centre.linkage_name.is_some() { &mut shares.named } else { &mut shares.nameless };
        *sum += row.self_share.fraction;
    }
    images
}

/// What to do where functions of an image have names in one run and none in another.
pub fn one_sided(before: &RunSide, after: &RunSide) -> Option<String> {
    let runs = || before.runs.iter().chain(&after.runs);
    if runs().all(|run| run.profile.accounting().unsymbolised == 0) {
        return None;
    }
    let matching = Matching::of(runs().map(|run| &run.profile));
    let by_run: Vec<(&LoadedRun, BTreeMap<String, NamedShares>)> =
        runs().map(|run| (run, shares(run, &matching))).collect();
    let (nameless, image) = by_run.iter().find_map(|(run, images)| {
        let is_named = |image: &str| by_run.iter().any(|(_, it)| it.get(image).is_some_and(|it| it.are_named()));
        let mut found = images.iter().filter(|(_, shares)| shares.are_nameless()).map(|(image, _)| image);
        found.find(|image| is_named(image)).map(|image| (run, image))
    })?;
    let (image, remedy) = (
        sanitise(image),
        match &nameless.file {
            Some(file) => {
                format!("`ccsd symbolize {}` names them from debug files", shell_word(&file.to_string_lossy()))
            }
            None => "debug files of its build in /usr/lib/debug name them".to_owned(),
        },
    );
    Some(format!(
        "functions of {image} have no names in {}, and have names in another: their rows cannot match; {remedy}",
        nameless.what
    ))
}
