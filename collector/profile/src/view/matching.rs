//! Which functions of several profiles are one.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde::Serialize;

use crate::ids::CostCentreId;
use crate::labels::{labelled, tell_apart};
use crate::name::{basename, image_file_name};
use crate::profile::Profile;
use crate::readable;

/// A function of several profiles.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct DiffFunction {
    /// Its name.
    pub name: String,
    /// File name of its image; the path, where one profile has several images of that name and another has this one, too.
    pub image: String,
    /// For a local function: the file name of its declaration, else, within one build, its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definition: Option<String>,
}

/// What functions of several profiles are matched by: name and the image's file name, for local ones also the declaring
/// file. Addresses, build ids and lines differ between builds. The programs run count as one image. Programs of one name that
/// run beside each other are several: those that more than one profile has are matched by their paths.
#[derive(Clone, Debug, Default)]
pub struct Matching {
    /// The file names of programs that count as one, and the last profile's, which they go by.
    programs: Option<(HashSet<String>, String)>,
    /// By file name of image, the build id that all profiles have of it; `None` where they have several or one has none.
    builds: HashMap<String, Option<Vec<u8>>>,
    /// Images that go by their paths.
    by_path: HashSet<String>,
    pub(super) full_names: bool,
}

impl Matching {
    /// Of these profiles.
    #[must_use]
    pub fn of<'a>(profiles: impl IntoIterator<Item = &'a Profile>) -> Self {
        let profiles: Vec<&Profile> = profiles.into_iter().collect();
        let full_names = profiles.iter().any(|profile| profile.flags.full_names);
        let (programs, by_path) = (programs(&profiles), by_path(&profiles));
        let mut matching = Self { programs, builds: HashMap::new(), by_path, full_names };
        for image in profiles.into_iter().flat_map(Profile::images) {
            let build_id = Some(&image.build_id).filter(|build_id| !build_id.is_empty());
            let name = matching.image(&image.name).into_owned();
            let known = matching.builds.entry(name).or_insert_with(|| build_id.cloned());
            if known.as_ref() != build_id {
                *known = None;
            }
        }
        matching
    }

    /// File names of the profiles' programs, in order, if they differ and count as one.
    #[must_use]
    pub fn programs(&self) -> Vec<&str> {
        let names = self.programs.iter().flat_map(|(names, _)| names);
        let mut names: Vec<&str> = names.map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// What an image with this path goes by.
    fn image<'a>(&'a self, path: &'a str) -> Cow<'a, str> {
        match (image_file_name(path), &self.programs) {
            (name, Some((names, one))) if names.contains(&*name) => Cow::Borrowed(one),
            _ if self.by_path.contains(path) => Cow::Borrowed(path),
            (name, _) => name,
        }
    }

    /// What a function is matched by.
    #[must_use]
    pub fn function(&self, profile: &Profile, id: CostCentreId) -> DiffFunction {
        let id = profile.real(id);
        let centre = profile.cost_centre(id);
        let image = centre.and_then(|centre| profile.image(centre.image));
        let image = self.image(image.map_or("[unknown]", |image| &image.name));
        let of_one_build = self.builds.get(&*image).is_some_and(Option::is_some);
        let local = centre.filter(|centre| centre.local);
        let definition = local.and_then(|centre| match centre.file.as_deref() {
            Some(file) => Some(basename(file).to_owned()),
            None => centre.start.filter(|_| of_one_build).map(|start| format!("+{start:#x}")),
        });
        DiffFunction { name: profile.name(id).into_owned(), image: image.into_owned(), definition }
    }
}

/// The paths of images that have a namesake in one of the profiles, and are in several.
fn by_path(profiles: &[&Profile]) -> HashSet<String> {
    let mut namesakes = HashSet::new();
    let mut seen_in: HashMap<&str, usize> = HashMap::new();
    for profile in profiles {
        let paths: HashSet<&str> = profile.images().iter().map(|image| image.name.as_str()).collect();
        let mut names = HashSet::new();
        namesakes.extend(paths.iter().map(|path| image_file_name(path)).filter(|name| !names.insert(name.clone())));
        paths.into_iter().for_each(|path| *seen_in.entry(path).or_default() += 1);
    }
    let in_several = seen_in.into_iter().filter(|&(_, profiles)| profiles > 1).map(|(path, _)| path);
    in_several.filter(|path| namesakes.contains(&image_file_name(path))).map(str::to_owned).collect()
}

/// File names of the profiles' programs, and the last one's, if they differ and none is a second image of another
/// profile.
fn programs(profiles: &[&Profile]) -> Option<(HashSet<String>, String)> {
    let own: Option<Vec<Cow<'_, str>>> = profiles.iter().map(|profile| program(profile)).collect();
    let own = own?;
    let names: HashSet<String> = own.iter().map(|name| name.clone().into_owned()).collect();
    let has_another = |(profile, own): (&&Profile, &Cow<'_, str>)| {
        profile
            .images()
            .iter()
            .map(|image| image_file_name(&image.name))
            .any(|name| name != *own && names.contains(&*name))
    };
    if names.len() < 2 || profiles.iter().zip(&own).any(has_another) {
        return None;
    }
    Some((names, own.last()?.clone().into_owned()))
}

/// The file name of the program that was run or attached to, if it is an image of the profile.
fn program(profile: &Profile) -> Option<Cow<'_, str>> {
    let session = profile.session();
    let name = basename(session.command.first().unwrap_or(&session.target));
    profile.images().iter().find(|image| basename(&image.name) == name).map(|image| image_file_name(&image.name))
}

/// Names as text shows them, with what tells equal ones apart, except the image beside a column with it.
pub(super) fn labels(functions: &[DiffFunction], with_image: bool, full_names: bool) -> Vec<String> {
    let names = functions.iter().map(|function| function.name.as_str()).filter(|_| !full_names);
    let short = readable::shown(names);
    let named = functions.iter().enumerate().map(|(at, function)| (function.name.as_str().into(), at));
    let of = |at: usize| functions.get(at);
    let image = |at| of(at).map(|it| it.image.clone());
    let definition = |at| of(at).and_then(|it| it.definition.clone());
    let apart = tell_apart(named, &[&image, &definition]);
    let label = |(at, function): (usize, &DiffFunction)| {
        let apart = apart.get(&at).and_then(|apart| apart.text(with_image));
        let name = short.get(function.name.as_str()).map_or(function.name.as_str(), |short| short);
        labelled(name.into(), apart.as_deref()).into_owned()
    };
    functions.iter().enumerate().map(label).collect()
}
