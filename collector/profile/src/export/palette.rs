//! Colours of functions in pictures, by the same rules as in a page (`html/palette.js`): the hue is the package, the program's own
//! code is saturated, libraries are muted, the kernel and generated code have colours of their own.

use std::collections::HashMap;

use super::request::Export;
use crate::ids::CostCentreId;
use crate::name::basename;
use crate::view::FlatView;

/// Paul Tol's "light" scheme: hues that the colour-blind can tell apart and that text can stand on.
const OWN: [Colour; 8] = [
    Colour(0x77, 0xaa, 0xdd),
    Colour(0xee, 0x88, 0x66),
    Colour(0x44, 0xbb, 0x99),
    Colour(0xee, 0xdd, 0x88),
    Colour(0xff, 0xaa, 0xbb),
    Colour(0xbb, 0xcc, 0x33),
    Colour(0x99, 0xdd, 0xff),
    Colour(0xaa, 0xaa, 0x00),
];
const OTHER_OWN: Colour = Colour(0xa9, 0xbc, 0xcb);
const LIBRARY: Colour = Colour(0xc4, 0xc9, 0xce);
const KERNEL: Colour = Colour(0xb9, 0xa3, 0xd6);
const GENERATED: Colour = Colour(0xd6, 0xbf, 0x9a);
pub(super) const NEUTRAL: Colour = Colour(0xe4, 0xe6, 0xe8);
/// Libraries with a hue of their own, and how grey it is.
const LIBRARY_HUES: usize = 5;
const MUTED: f64 = 0.72;
/// Parts of a program below this share of the picture count as the rest of the program.
const LEAST_PART: f64 = 0.005;
/// The trunk of the stacks, which is wide and does little, counts as no more than a branch of this share.
const MOST_AREA: f64 = 0.02;

/// Before the names of Python functions.
const PYTHON: &str = "py::";
const OWN_IMAGE: &str = "[ccsd]";

/// Red, green and blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Colour(pub(super) u8, pub(super) u8, pub(super) u8);

impl Colour {
    fn mix(self, other: Self, part: f64) -> Self {
        let channel = |a: u8, b: u8| (f64::from(a) * (1.0 - part) + f64::from(b) * part).round() as u8;
        Self(channel(self.0, other.0), channel(self.1, other.1), channel(self.2, other.2))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    Own,
    Library,
    Kernel,
    Generated,
    /// What ccsd says itself, such as `[truncated]`.
    Mark,
}

/// The colour of each function with weight.
pub(super) fn colours(export: &Export<'_>) -> HashMap<CostCentreId, Colour> {
    let flat = FlatView::new(export.profile, export.selection);
    let total = flat.total.weight.max(1) as f64;
    let labels = export.profile.labels();
    // Where Python functions have names, the rest of the program is the interpreter.
    let is_python = flat.rows.iter().any(|row| row.name.starts_with(PYTHON));
    let mut functions: Vec<(CostCentreId, Kind, String, Option<String>, f64)> = Vec::new();
    let mut parts: HashMap<String, f64> = HashMap::new();
    for row in &flat.rows {
        let image = export.profile.image_name(row.function);
        let label = labels.label(row.function);
        let (kind, image) = package(image, &label, &row.name, is_python);
        let file = export.profile.cost_centre(row.function).and_then(|it| it.file.as_deref());
        let part = if kind == Kind::Own { part(&label, file) } else { None };
        let area = (row.inherited_weight as f64 / total).min(MOST_AREA);
        if let Some(part) = &part {
            *parts.entry(part.clone()).or_default() += area;
        }
        functions.push((row.function, kind, image, part, area));
    }
    let all: f64 = functions.iter().map(|it| it.4).sum();
    let package_or_part = |image: &str, part: &Option<String>| match part {
        Some(part) if parts.get(part).is_some_and(|area| *area > all * LEAST_PART) => part.clone(),
        _ => image.to_owned(),
    };
    let mut packages: HashMap<(Kind, String), f64> = HashMap::new();
    for (_, kind, image, part, area) in &functions {
        *packages.entry((*kind, package_or_part(image, part))).or_default() += area;
    }
    let mut order: Vec<((Kind, String), f64)> = packages.into_iter().collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let (mut own, mut libraries) = (0, 0);
    let inks: HashMap<(Kind, String), Colour> = order
        .into_iter()
        .map(|(key, _)| {
            let ink = match key.0 {
                Kind::Own => {
                    own += 1;
                    OWN.get(own - 1).copied().unwrap_or(OTHER_OWN)
                }
                Kind::Library => {
                    libraries += 1;
                    let hue = OWN.get((libraries + 2) % OWN.len()).filter(|_| libraries <= LIBRARY_HUES);
                    hue.map_or(LIBRARY, |hue| hue.mix(LIBRARY, MUTED))
                }
                Kind::Kernel => KERNEL,
                Kind::Generated => GENERATED,
                Kind::Mark => NEUTRAL,
            };
            (key, ink)
        })
        .collect();
    let ink = |(id, kind, image, part, _): (CostCentreId, Kind, String, Option<String>, f64)| {
        Some((id, inks.get(&(kind, package_or_part(&image, &part))).copied()?))
    };
    functions.into_iter().filter_map(ink).collect()
}

/// The standard library that a function is of, which is linked in or compiled as a part of the program.
fn standard_library(name: &str) -> Option<&str> {
    const GO: [&str; 14] = [
        "runtime", "fmt", "sort", "strings", "bytes", "sync", "time", "net", "os", "io", "bufio", "strconv", "reflect",
        "syscall",
    ];
    let name = name.strip_prefix('<').unwrap_or(name);
    if let Some((scope, _)) = name.split_once("::")
        && matches!(scope, "std" | "core" | "alloc")
    {
        return Some(scope);
    }
    let (package, _) = name.split_once(['.', '/'])?;
    GO.contains(&package).then_some(package)
}

/// The kind of a function's code, and its package.
fn package(image: &str, label: &str, name: &str, is_python: bool) -> (Kind, String) {
    if image == OWN_IMAGE {
        return (Kind::Mark, image.to_owned());
    }
    if let Some(file) = python_file(name) {
        let is_library = file.starts_with("<frozen") || file == "__init__.py" || file.contains("/lib/");
        let kind = if is_library { Kind::Library } else { Kind::Own };
        return (kind, basename(file).to_owned());
    }
    if matches!(image, "[kernel]" | "[vdso]")
        || image.ends_with(".ko")
        || (image.starts_with('[') && image.ends_with(']') && image.contains("kernel"))
    {
        return (Kind::Kernel, "kernel".to_owned());
    }
    if image.starts_with('[') {
        return java_package(label).map_or((Kind::Generated, image.to_owned()), |package| (Kind::Own, package));
    }
    if image.ends_with(".so") || image.contains(".so.") {
        return (Kind::Library, image.to_owned());
    }
    if let Some(library) = standard_library(label) {
        return (Kind::Library, library.to_owned());
    }
    (if is_python { Kind::Library } else { Kind::Own }, image.to_owned())
}

/// The file of a Python function, such as `/srv/app.py` of `py::run:/srv/app.py`.
fn python_file(name: &str) -> Option<&str> {
    name.strip_prefix(PYTHON)?.rsplit_once(':').map(|(_, file)| file)
}

/// The first two words of a Java package: `com.example` of `Lcom/example/App;::run`.
fn java_package(name: &str) -> Option<String> {
    let name = name.strip_prefix('L').unwrap_or(name);
    let is_path = |c: char| is_word(c) || "$./".contains(c);
    let (path, rest) = name.split_at(name.find(|c| !is_path(c)).unwrap_or(name.len()));
    let class = if rest.starts_with([';', ':']) { path } else { path.rsplit_once('.')?.0 };
    let mut words = class.split(['.', '/']);
    let (first, second) = (words.next()?, words.next()?);
    (!first.is_empty() && !second.is_empty()).then(|| format!("{first}.{second}"))
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// A Go package: `net/http` of `net/http.(*conn).serve`, and `main`.
fn go_package(name: &str) -> Option<&str> {
    if name.strip_prefix("main.").is_some_and(|rest| !rest.is_empty()) {
        return Some("main");
    }
    let is_path = |c: char| is_word(c) || "./-".contains(c);
    let path = name.get(..name.find(|c| !is_path(c)).unwrap_or(name.len()))?;
    let slash = path.rfind('/').filter(|&at| at > 0 && !path.starts_with('/'))?;
    let dot = slash + path.get(slash..)?.find('.')?;
    path.get(..dot).filter(|_| dot > slash + 1)
}

/// The outermost namespace: `a` of `a::b::f`, `<a::T>::f` and `<a::T as X>::f`.
fn namespace(name: &str) -> Option<&str> {
    let name = name.strip_prefix('<').unwrap_or(name);
    let name = name.strip_prefix("impl ").unwrap_or(name);
    let (scope, _) = name.strip_prefix('&').unwrap_or(name).split_once("::")?;
    let is_name =
        !scope.starts_with(|c: char| c.is_ascii_digit() || c == '$') && scope.chars().all(|c| is_word(c) || c == '$');
    (is_name && !scope.is_empty()).then_some(scope)
}

/// A part of a program: a namespace, a package of Go, the source file, the megabyte of an address, the first word of a name.
fn part(name: &str, file: Option<&str>) -> Option<String> {
    let thunk = name.strip_prefix("virtual thunk to ").or_else(|| name.strip_prefix("non-virtual thunk to "));
    let name = thunk.unwrap_or(name);
    if name.starts_with(PYTHON) {
        return None;
    }
    if let Some(package) = go_package(name) {
        return Some(package.to_owned());
    }
    if let Some(scope) = namespace(name) {
        return Some(format!("{scope}::"));
    }
    if let Some(file) = file {
        return Some(basename(file).to_owned());
    }
    if let Some((image, address)) = name.split_once("+0x")
        && address.chars().all(|c| c.is_ascii_hexdigit())
    {
        let high = address.get(..address.len().saturating_sub(5)).filter(|high| !high.is_empty()).unwrap_or("0");
        return Some(format!("{image}+0x{high}..."));
    }
    let (word, _) = name.trim_start_matches('_').split_once('_')?;
    let is_word = word.len() > 1 && word.starts_with(|c: char| c.is_ascii_alphabetic());
    (is_word && word.chars().all(|c| c.is_ascii_alphanumeric())).then(|| format!("{word}_*"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_code_and_packages() {
        for (image, name, expected) in [
            ("server", "parse", (Kind::Own, "server")),
            ("server", "std::sort<int>", (Kind::Library, "std")),
            ("libc.so.6", "qsort", (Kind::Library, "libc.so.6")),
            ("liba.so", "a::f", (Kind::Library, "liba.so")),
            ("[kernel]", "ksys_read", (Kind::Kernel, "kernel")),
            ("[kernel.kallsyms]", "ksys_read", (Kind::Kernel, "kernel")),
            ("[guest.kernel.kallsyms]", "ksys_read", (Kind::Kernel, "kernel")),
            ("[vdso]", "clock_gettime", (Kind::Kernel, "kernel")),
            ("xfs.ko", "xfs_read", (Kind::Kernel, "kernel")),
            ("[jit]", "stub", (Kind::Generated, "[jit]")),
            ("[jit]", "Lcom/example/App;::run", (Kind::Own, "com.example")),
            ("[jit]", "com.example.App::run", (Kind::Own, "com.example")),
            ("[jit]", "java.util.List get", (Kind::Own, "java.util")),
            ("[jit]", "a/b stub", (Kind::Generated, "[jit]")),
            ("[jit]", "py::run:/srv/app.py", (Kind::Own, "app.py")),
            ("[jit]", "py::<module>:/usr/lib/python3.13/json/decoder.py", (Kind::Library, "decoder.py")),
            ("[jit]", "py::join:<frozen posixpath>", (Kind::Library, "<frozen posixpath>")),
            ("[jit]", "py::f:__init__.py", (Kind::Library, "__init__.py")),
            ("[ccsd]", "[truncated]", (Kind::Mark, "[ccsd]")),
        ] {
            let (kind, own) = package(image, name, name, false);
            assert_eq!((kind, own.as_str()), expected, "{name} in {image}");
        }
        let interpreter = package("python3.13", "_PyEval_EvalFrameDefault", "_PyEval_EvalFrameDefault", true);
        assert_eq!(interpreter, (Kind::Library, "python3.13".to_owned()));
    }

    #[test]
    fn standard_libraries() {
        for (name, expected) in [
            ("std::sort<int>", Some("std")),
            ("<alloc::vec::Vec<T>>::push", Some("alloc")),
            ("runtime.mallocgc", Some("runtime")),
            ("net/http.(*conn).serve", Some("net")),
            ("cmd/compile/internal/ssa.cse", None),
            ("stdlib::f", None),
        ] {
            assert_eq!(standard_library(name), expected, "{name}");
        }
    }

    #[test]
    fn parts_of_a_program() {
        for (name, file, expected) in [
            ("std::sort<int>", None, Some("std::")),
            ("cmd/compile/internal/ssa.(*Func).x", None, Some("cmd/compile/internal/ssa")),
            ("parse", Some("/src/parse.c"), Some("parse.c")),
            ("cc1+0x7e9360", None, Some("cc1+0x7...")),
            ("cc1+0x936", None, Some("cc1+0x0...")),
            ("ira_color", None, Some("ira_*")),
            ("__bitmap_set", None, Some("bitmap_*")),
            ("main", None, None),
            ("main.parse", None, Some("main")),
            ("net/http.(*conn).serve", None, Some("net/http")),
            ("a/b.f[go.shape.x/y.z]", None, Some("a/b")),
            ("<T as X>::f", Some("/src/x.rs"), Some("x.rs")),
            ("<server::Parser as core::iter::Iterator>::next", None, Some("server::")),
            ("<&server::Parser>::next", None, Some("server::")),
            ("non-virtual thunk to server::f()", None, Some("server::")),
            ("py::run:/srv/app.py", Some("/srv/app.py"), None),
        ] {
            assert_eq!(part(name, file).as_deref(), expected, "{name}");
        }
    }
}
