//! Names of C++ and Rust functions as people write them.
//!
//! A demangled name is taken apart at its brackets ([`syntax`]), so that nothing is ever cut inside of them or inside the
//! name of an operator. What does not look like such a name (Go, Java, JavaScript, names that a limit cut) stays as it is.

mod shorten;
mod syntax;
mod types;

use std::borrow::Cow;

use hashbrown::hash_map::Entry;
use hashbrown::{HashMap, HashSet};

use shorten::{long_form, path_form, short_form};
use syntax::parse;

/// What demanglers put before a name.
const SPECIAL: [&str; 6] = [
    "non-virtual thunk to ",
    "virtual thunk to ",
    "covariant return thunk to ",
    "guard variable for ",
    "TLS init function for ",
    "TLS wrapper function for ",
];

/// What demanglers put behind a name that compilers have appended something to.
const CLONE: &str = " [clone ";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Without return type and parameters; long template arguments as `<...>`.
    Short,
    /// The same with all template arguments.
    Path,
    /// With parameters and all template arguments; without return type, default arguments and inline namespaces.
    Long,
    Full,
}

impl Form {
    const fn longer(self) -> Form {
        match self {
            Form::Short => Form::Path,
            Form::Path => Form::Long,
            Form::Long | Form::Full => Form::Full,
        }
    }
}

pub(crate) fn short(name: &str) -> Cow<'_, str> {
    form(name, Form::Short)
}

fn form(name: &str, form: Form) -> Cow<'_, str> {
    if form == Form::Short
        && let Some(short) = shorten_script_name(name)
    {
        return Cow::Owned(short);
    }
    // Every other rule is about something in brackets.
    if form == Form::Full || !name.contains(['<', '(', '{', '[']) {
        return Cow::Borrowed(name);
    }
    let start = SPECIAL.iter().find(|prefix| name.starts_with(**prefix)).map_or(0, |prefix| prefix.len());
    let (prefix, rest) = name.split_at(start);
    let (own, clone) = rest.split_at(rest.find(CLONE).unwrap_or(rest.len()));
    let form = match form {
        Form::Short => short_form,
        Form::Path => path_form,
        Form::Long | Form::Full => long_form,
    };
    match parse(own).and_then(form) {
        Some(text) if text != own => Cow::Owned([prefix, &text, clone].concat()),
        _ => Cow::Borrowed(name),
    }
}

/// A script function's name without its file's directories: `py::f:app.py`, `JS:*f app.js:3:8`.
fn shorten_script_name(name: &str) -> Option<String> {
    let start = match name.split_once(':')? {
        ("py", rest) if rest.starts_with(':') => name.find(":/")? + 1,
        ("JS" | "LazyCompile" | "Function" | "Script" | "Eval" | "Callback", _) => {
            name.find(" /").or_else(|| name.find(" file:///"))? + 1
        }
        _ => return None,
    };
    let (before, path) = name.split_at(start);
    let file = path.rsplit('/').next().filter(|file| !file.is_empty())?;
    Some(format!("{before}{file}"))
}

/// The names to show, if shortened. Names that would collide get a longer form.
#[must_use]
pub fn shown<'n>(names: impl Iterator<Item = &'n str>) -> HashMap<&'n str, Cow<'n, str>> {
    enum FormOwner<'n> {
        One(&'n str, Form),
        /// Two had it, and now have longer ones.
        Nobody,
    }
    let mut known: HashSet<&str> = HashSet::new();
    let mut owners: HashMap<Cow<'n, str>, FormOwner<'n>> = HashMap::new();
    let mut next: Vec<(&str, Form)> = Vec::new();
    for name in names {
        next.extend(known.insert(name).then_some((name, Form::Short)));
        // At most three forms of each name come after its first.
        while let Some((name, at)) = next.pop() {
            match owners.entry(form(name, at)) {
                Entry::Vacant(vacant) => {
                    vacant.insert(FormOwner::One(name, at));
                }
                Entry::Occupied(mut occupied) => {
                    let before =
                        occupied.insert(if at == Form::Full { FormOwner::One(name, at) } else { FormOwner::Nobody });
                    match before {
                        // Another name as it is keeps it.
                        FormOwner::One(other, Form::Full) => {
                            occupied.insert(FormOwner::One(other, Form::Full));
                        }
                        FormOwner::One(other, shorter) => next.push((other, shorter.longer())),
                        FormOwner::Nobody => {}
                    }
                    if at != Form::Full {
                        next.push((name, at.longer()));
                    }
                }
            }
        }
    }
    let shown = owners.into_iter().filter_map(|(text, owner)| match owner {
        FormOwner::One(name, _) => Some((name, text)),
        FormOwner::Nobody => None,
    });
    shown.filter(|(name, text)| text != name).collect()
}

#[cfg(test)]
mod tests;
