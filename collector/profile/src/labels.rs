//! What functions are called where several have one name.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hash::Hash;

use hashbrown::HashMap;
use serde::Serialize;

use crate::ids::CostCentreId;
use crate::model::CostCentre;
use crate::name::{basename, image_file_name};
use crate::profile::Profile;
use crate::readable;

/// The names of a profile's functions as text shows them: short ones of C++ and Rust (`std::map<std::string, int>::find`),
/// no two of which are equal. A name that several functions of the profile have is followed by what tells each from the
/// others, as in `walk (b.c:12)`; other names stay bare.
#[derive(Debug)]
pub struct Labels<'a> {
    profile: &'a Profile,
    /// What is shown for names that are not shown as they are.
    short: HashMap<&'a str, Cow<'a, str>>,
    apart: HashMap<CostCentreId, Apart>,
}

/// What tells a function from the others of its name.
#[derive(Debug, Default)]
pub(crate) struct Apart {
    image: Option<String>,
    /// What tells it from those of images of the same file name.
    rest: Vec<String>,
}

impl Apart {
    /// As text, without the image beside a column that shows it.
    pub(crate) fn text(&self, with_image: bool) -> Option<String> {
        let image = self.image.iter().filter(|_| with_image);
        let parts: Vec<&str> = image.chain(&self.rest).map(String::as_str).collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// Where a function is defined, for programs that have to tell functions of one name apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Definition {
    /// File of its declaration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Line of its declaration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Where it begins in its image (SVMA); of a function without a name, perhaps only an address in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<u64>,
    /// The GNU build id of its image, if the function has no name. With it and `start`, debug information that is installed
    /// later can name the function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build_id: Option<String>,
    /// What text shows behind its name, in parentheses; `None` where no other function has the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apart: Option<String>,
    /// What text shows for its name; `None` where it shows the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub short_name: Option<String>,
}

impl Profile {
    /// The names of all functions, for text. Takes time linear in the number of functions.
    #[must_use]
    pub fn labels(&self) -> Labels<'_> {
        let mut labels = self.full_labels();
        if !self.flags.full_names {
            labels.short = readable::shown(self.cost_centres().iter().filter_map(CostCentre::name));
        }
        labels
    }

    /// Whether [`Profile::labels`], and with it all text, has names as they are.
    pub const fn set_full_names(&mut self, full: bool) {
        self.flags.full_names = full;
    }

    /// Whether that was asked for.
    #[must_use]
    pub const fn has_full_names(&self) -> bool {
        self.flags.full_names
    }

    /// The names of all functions as they are, for other programs.
    #[must_use]
    pub(crate) fn full_labels(&self) -> Labels<'_> {
        let functions = (0u32..).map(CostCentreId::new).take(self.cost_centres().len());
        let named = functions.filter(|&id| self.real(id) == id).map(|id| (self.name(id), id));
        let of = |id, attribute: fn(&Profile, &CostCentre) -> Option<String>| {
            self.cost_centre(id).and_then(|centre| attribute(self, centre))
        };
        let apart = tell_apart(
            named,
            &[
                &|id| of(id, image_name),
                &|id| of(id, image_path),
                &|id| of(id, build_id),
                &|id| of(id, declaration),
                &|id| of(id, declaration_path),
                &|id| of(id, start),
                &|id| of(id, linkage),
            ],
        );
        Labels { profile: self, short: HashMap::new(), apart }
    }
}

impl<'a> Labels<'a> {
    /// The name of a function, and what tells it from others of that name.
    #[must_use]
    pub fn label(&self, id: CostCentreId) -> Cow<'_, str> {
        self.with(id, true)
    }

    /// The same for a table with a column for the image: an image that the column shows is left out.
    #[must_use]
    pub fn label_beside_image(&self, id: CostCentreId) -> Cow<'_, str> {
        self.with(id, false)
    }

    pub(crate) const fn profile(&self) -> &'a Profile {
        self.profile
    }

    pub(crate) fn name(&self, id: CostCentreId) -> Cow<'_, str> {
        self.profile.name(id)
    }

    /// Whether any of the names of a function is meant: the whole, a short one, or either with what tells it from others.
    pub fn any(&self, id: CostCentreId, is_meant: impl Fn(&str) -> bool) -> bool {
        let name = self.profile.name(id);
        is_meant(&name)
            || is_meant(&readable::short(&name))
            || is_meant(&self.label(id))
            || self.apart(id).is_some_and(|apart| is_meant(&labelled(name, Some(&apart))))
    }

    fn with(&self, id: CostCentreId, with_image: bool) -> Cow<'_, str> {
        let apart = self.apart.get(&id).and_then(|apart| apart.text(with_image));
        let name = self.profile.name(id);
        labelled(self.short.get(&*name).cloned().unwrap_or(name), apart.as_deref())
    }

    /// What is shown for the name of a function; `None` where that is its name.
    pub(crate) fn short_name(&self, id: CostCentreId) -> Option<String> {
        self.short.get(&*self.profile.name(id)).map(|short| short.clone().into_owned())
    }

    /// What stands behind the name of a function, in parentheses; `None` where no other function has the name.
    pub(crate) fn apart(&self, id: CostCentreId) -> Option<String> {
        self.apart.get(&id).and_then(|apart| apart.text(true))
    }

    pub(crate) fn definition(&self, id: CostCentreId) -> Definition {
        let centre = self.profile.cost_centre(id);
        Definition {
            file: centre.and_then(|it| it.file.clone()),
            line: centre.map(|it| it.line).filter(|&line| line > 0),
            start: centre.and_then(|it| it.start),
            build_id: centre.filter(|it| it.name().is_none()).and_then(|it| build_id(self.profile, it)),
            apart: self.apart(id),
            short_name: self.short_name(id),
        }
    }
}

/// A name, and behind it what tells its function from others of that name.
pub(crate) fn labelled<'a>(name: Cow<'a, str>, apart: Option<&str>) -> Cow<'a, str> {
    match apart {
        Some(apart) => Cow::Owned(format!("{name} ({apart})")),
        None => name,
    }
}

/// Bytes of an image's name that are compared: a hostile file may have a million functions in one of a long name.
const IMAGE_NAME_BYTES: usize = 512;

fn image_name(profile: &Profile, centre: &CostCentre) -> Option<String> {
    profile.image(centre.image).map(|image| clipped(&image_file_name(&image.name)))
}

fn image_path(profile: &Profile, centre: &CostCentre) -> Option<String> {
    profile.image(centre.image).map(|image| clipped(&image.name))
}

fn clipped(name: &str) -> String {
    name[..name.floor_char_boundary(IMAGE_NAME_BYTES)].to_owned()
}

fn build_id(profile: &Profile, centre: &CostCentre) -> Option<String> {
    let image = profile.image(centre.image)?;
    if image.is_generated() && !image.build_id.is_empty() {
        return Some(image.generated_by().map_or_else(|| "a container".to_owned(), |user| format!("user {user}")));
    }
    let build_id = &image.build_id;
    let hex = || build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    (!build_id.is_empty()).then(hex)
}

fn declaration(_: &Profile, centre: &CostCentre) -> Option<String> {
    centre.file.as_deref().map(|file| at_line(basename(file), centre.line))
}

fn declaration_path(_: &Profile, centre: &CostCentre) -> Option<String> {
    centre.file.as_deref().map(|file| at_line(file, centre.line))
}

fn start(_: &Profile, centre: &CostCentre) -> Option<String> {
    centre.start.map(|start| format!("+{start:#x}"))
}

/// The linkage name, where another is printed; of Rust's older ones the hash, which is all that the printed name leaves out.
fn linkage(_: &Profile, centre: &CostCentre) -> Option<String> {
    let name = centre.linkage_name.as_deref().filter(|_| centre.display_name.is_some())?;
    let hash = name.strip_suffix('E').and_then(|it| it.get(it.len().checked_sub(19)?..)?.strip_prefix("17"));
    let is_hash = |text: &&str| text.starts_with('h') && text.bytes().skip(1).all(|byte| byte.is_ascii_hexdigit());
    Some(hash.filter(is_hash).unwrap_or(name).to_owned())
}

fn at_line(file: &str, line: u32) -> String {
    if line > 0 { format!("{file}:{line}") } else { file.to_owned() }
}

/// Something that may tell a function from others of its name.
type Distinction<'a, T> = &'a dyn Fn(T) -> Option<String>;

/// Finds what tells functions of one name apart: of each attribute in which they differ the value, until no two are left with
/// the same. The first attribute is the file name of the image, the others the most telling first.
pub(crate) fn tell_apart<'n, T: Copy + Eq + Hash>(
    functions: impl Iterator<Item = (Cow<'n, str>, T)>,
    attributes: &[Distinction<'_, T>],
) -> HashMap<T, Apart> {
    let mut named: HashMap<Cow<'_, str>, Vec<T>> = HashMap::new();
    for (name, function) in functions {
        named.entry(name).or_default().push(function);
    }
    let mut apart = HashMap::new();
    for functions in named.into_values().filter(|functions| functions.len() > 1) {
        split(functions, attributes, true, &mut apart);
    }
    apart
}

/// Tells these functions, which are the same in all attributes before, apart by `attributes`.
fn split<T: Copy + Eq + Hash>(
    functions: Vec<T>,
    attributes: &[Distinction<'_, T>],
    is_image: bool,
    apart: &mut HashMap<T, Apart>,
) {
    let Some((attribute, others)) = attributes.split_first() else { return };
    let alone = functions.len() == 1;
    let mut values: BTreeMap<Option<String>, Vec<T>> = BTreeMap::new();
    for function in functions {
        values.entry(attribute(function)).or_default().push(function);
    }
    let differ = values.len() > 1;
    for (value, functions) in values {
        if let Some(value) = value.filter(|_| differ || alone) {
            for &function in &functions {
                let apart = apart.entry(function).or_default();
                if is_image {
                    apart.image = Some(value.clone());
                } else {
                    apart.rest.push(value.clone());
                }
            }
        }
        // One that has no value of this attribute is told apart by the next that it has.
        if functions.len() > 1 || functions.iter().any(|function| !apart.contains_key(function)) {
            split(functions, others, false, apart);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::ProfileLimits;
    use crate::model::{Image, SessionInfo};

    /// Adds a function: image, name as printed, linkage name, file and line, start.
    fn add(
        profile: &mut Profile,
        image: (&str, u8),
        name: (&str, &str),
        (file, line): (Option<&str>, u32),
        start: Option<u64>,
    ) -> CostCentreId {
        let image = profile.add_image(Image { name: image.0.to_owned(), build_id: vec![image.1; 4] });
        profile.add_cost_centre(CostCentre {
            image,
            linkage_name: Some(name.1.to_owned()),
            display_name: Some(name.0.to_owned()),
            start,
            file: file.map(str::to_owned),
            line,
            local: true,
        })
    }

    #[test]
    fn names_are_told_apart_by_the_first_thing_that_differs() {
        let mut profile = Profile::new(SessionInfo::default(), ProfileLimits::default());
        let (prog, lib, other) = (("/bin/prog", 1), ("/lib/lib.so", 2), ("/opt/lib.so", 3));
        let newer = ("/opt/lib.so", 4);
        let none = (None, 0);
        let functions = [
            (prog, ("main", "main"), (Some("/src/main.c"), 3), Some(16), "main"),
            (prog, ("walk", "walk"), (Some("/src/a.c"), 5), Some(32), "walk (a.c:5)"),
            (prog, ("walk", "walk"), (Some("/src/b.c"), 5), Some(48), "walk (b.c:5)"),
            (prog, ("walk", "walk"), (Some("/src/b.c"), 9), None, "walk (b.c:9)"),
            // Debug information of one file alone.
            (prog, ("walk", "walk"), none, Some(64), "walk (+0x40)"),
            (prog, ("turn", "turn"), none, Some(80), "turn (+0x50)"),
            (prog, ("turn", "turn"), none, Some(96), "turn (+0x60)"),
            (prog, ("hop", "hop"), (Some("/src/x/u.c"), 5), Some(112), "hop (u.c:5, /src/x/u.c:5)"),
            (prog, ("hop", "hop"), (Some("/src/y/u.c"), 5), Some(128), "hop (u.c:5, /src/y/u.c:5)"),
            (prog, ("hop", "hop"), (Some("/src/z.c"), 5), Some(144), "hop (z.c:5)"),
            (prog, ("init", "init"), (Some("/src/a.c"), 1), Some(160), "init (prog)"),
            (lib, ("init", "init"), (Some("/src/l.c"), 1), Some(160), "init (lib.so)"),
            (prog, ("fini", "fini"), (Some("/src/a.c"), 2), Some(176), "fini (prog, a.c:2)"),
            (prog, ("fini", "fini"), (Some("/src/b.c"), 2), Some(192), "fini (prog, b.c:2)"),
            (lib, ("fini", "fini"), none, Some(176), "fini (lib.so)"),
            (lib, ("both", "both"), none, Some(208), "both (/lib/lib.so)"),
            (other, ("both", "both"), none, Some(208), "both (/opt/lib.so, 03030303)"),
            (newer, ("both", "both"), none, Some(208), "both (/opt/lib.so, 04040404)"),
            // Two instances of a generic function.
            (prog, ("f", "_ZN1f17h0123456789abcdefE"), (Some("f.rs"), 7), None, "f (h0123456789abcdef)"),
            (prog, ("f", "_ZN1f17hfedcba9876543210E"), (Some("f.rs"), 7), None, "f (hfedcba9876543210)"),
            (prog, ("g", "_Z1gi"), none, None, "g (_Z1gi)"),
            (prog, ("g", "_Z1gd"), none, None, "g (_Z1gd)"),
        ];
        let ids = functions.map(|(image, name, declared, start, _)| add(&mut profile, image, name, declared, start));
        let labels = profile.labels();
        for (id, (_, (name, _), .., expected)) in ids.into_iter().zip(functions) {
            assert_eq!(labels.label(id), expected);
            assert_eq!(profile.name(id), name);
        }
        let beside = |label: &str| {
            let at = functions.iter().position(|it| it.4 == label).map(|at| ids[at]);
            labels.label_beside_image(at.unwrap_or(CostCentreId::ROOT)).into_owned()
        };
        assert_eq!(beside("init (prog)"), "init");
        assert_eq!(beside("fini (prog, b.c:2)"), "fini (b.c:2)");
        assert_eq!(beside("fini (lib.so)"), "fini");
        assert_eq!(beside("both (/lib/lib.so)"), "both (/lib/lib.so)");
        let mut all: Vec<_> = ids.iter().map(|&id| labels.label(id)).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), ids.len());
    }

    #[test]
    fn an_address_that_got_its_name_later_is_no_namesake() {
        let mut profile = Profile::new(SessionInfo::default(), ProfileLimits::default());
        let function = add(&mut profile, ("[jit]", 0), ("f", "f"), (None, 0), None);
        let image = profile.add_image(Image { name: "[jit]".to_owned(), build_id: vec![0; 4] });
        let nameless = CostCentre {
            image,
            linkage_name: None,
            display_name: None,
            start: Some(8),
            file: None,
            line: 0,
            local: false,
        };
        let id = profile.add_cost_centre(nameless);
        assert!(profile.name_later(id, function));
        assert_eq!(profile.labels().label(function), "f");
    }

    #[test]
    fn functions_have_short_names_and_answer_to_all_of_them() {
        let mut profile = Profile::new(SessionInfo::default(), ProfileLimits::default());
        let prog = ("/bin/prog", 1);
        let mut function = |name: &str, line| add(&mut profile, prog, (name, name), (Some("/a.cc"), line), None);
        let push = function("std::vector<int, std::allocator<int> >::push_back(int&&)", 1);
        let (narrow, wide) = (function("f(int)", 2), function("f(long)", 3));
        let labels = profile.labels();
        assert_eq!(labels.label(push), "std::vector<int>::push_back");
        assert_eq!(labels.definition(narrow).short_name, None);
        assert_eq!([labels.label(narrow), labels.label(wide)], ["f(int)", "f(long)"]);
        let answer = |text: &str| labels.any(push, |name| name == text);
        assert!(answer("std::vector<int>::push_back") && !answer("push_back"));
        assert!(answer("std::vector<int, std::allocator<int> >::push_back(int&&)"));
        // The name that two would share stands for both.
        assert!([narrow, wide].iter().all(|&id| labels.any(id, |name| name == "f")));
        assert_eq!(labels.definition(push).short_name.as_deref(), Some("std::vector<int>::push_back"));
        drop(labels);
        profile.set_full_names(true);
        assert_eq!(profile.labels().label(push), "std::vector<int, std::allocator<int> >::push_back(int&&)");
    }
}
