//! The packages and parts of programs that functions belong to.

use std::collections::HashSet;

use serde::Serialize;

use crate::ids::CostCentreId;
use crate::name::basename;
use crate::origin::{Origin, Origins, SCRIPTS, is_interpreter};
use crate::profile::Profile;
use crate::readable;

const PYTHON: &str = "py::";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum PackageKind {
    Own,
    Library,
    Generated,
    Kernel,
    /// ccsd's own entries, such as `[truncated]`.
    Mark,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LegendPlace {
    pub(super) kind: PackageKind,
    pub(super) package: String,
    pub(super) part: Option<String>,
}

pub(super) struct Places<'a> {
    profile: &'a Profile,
    origins: Origins,
    startup: HashSet<CostCentreId>,
    has_scripts: bool,
}

impl<'a> Places<'a> {
    pub(super) fn of(profile: &'a Profile) -> Self {
        let origins = Origins::of(profile);
        let has_scripts = origins.all(Origin::Interpreter).next().is_some();
        let startup = profile.startup_functions().into_iter().collect();
        Self { profile, origins, startup, has_scripts }
    }

    /// Whether a page folds a function until it is asked for.
    pub(super) fn is_folded(&self, id: CostCentreId) -> bool {
        self.startup.contains(&id) || self.origins.get(id) == Origin::Interpreter
    }

    pub(super) fn place(&self, id: CostCentreId) -> LegendPlace {
        let place = |kind, package: &str| LegendPlace { kind, package: package.to_owned(), part: None };
        // Parts are the same whether whole names are shown or short ones.
        let name = self.profile.name(id);
        let (image, origin) = (self.profile.image_name(id), self.origins.get(id));
        // Whose it is does not matter here.
        let image = image.strip_prefix("user ").and_then(|rest| Some(rest.split_once(':')?.1)).unwrap_or(&image);
        let label = readable::short(&name);
        let file = self.profile.cost_centre(id).and_then(|it| it.file.as_deref());
        if origin == Origin::Special {
            return place(PackageKind::Mark, image);
        }
        if is_kernel(image) {
            return place(PackageKind::Kernel, "kernel");
        }
        if image.starts_with('[') {
            let kind = if origin == Origin::Own { PackageKind::Own } else { PackageKind::Library };
            let package = script_package(&name);
            return package.map_or_else(|| place(PackageKind::Generated, image), |package| place(kind, &package));
        }
        let is_shared = image.ends_with(".so") || image.contains(".so.");
        // Where its scripts have no names, an interpreter is what the program is.
        let is_bare_interpreter = !self.has_scripts && is_interpreter(image);
        if is_shared && !is_bare_interpreter {
            return place(PackageKind::Library, extension_module(image).unwrap_or(image));
        }
        if let Some(library) = standard_library(&label) {
            return place(PackageKind::Library, library);
        }
        match origin {
            Origin::Interpreter => place(PackageKind::Library, image),
            Origin::Library if label.ends_with("@plt") => place(PackageKind::Library, "stubs"),
            Origin::Library if !is_bare_interpreter => {
                place(PackageKind::Library, go_package(&label).or_else(|| namespace(&label)).unwrap_or(image))
            }
            _ => {
                // An image's name has no words that are parts of a program.
                let has_name = self.profile.cost_centre(id).is_some_and(|it| it.name().is_some());
                let part = if has_name { part(&label, file) } else { None };
                LegendPlace { kind: PackageKind::Own, package: image.to_owned(), part }
            }
        }
    }

    /// What of a package has one hue, where the package has several.
    pub(super) fn detail(&self, id: CostCentreId, place: &LegendPlace, is_named: bool) -> String {
        if let Some(part) = place.part.as_ref().filter(|_| !is_named) {
            return part.clone();
        }
        match self.profile.cost_centre(id).and_then(|it| it.start.filter(|_| it.name().is_none())) {
            // What is linked together was often written together.
            Some(start) => format!("+{:x}", start >> 16),
            None => self.profile.name(id).into_owned(),
        }
    }
}

fn is_kernel(image: &str) -> bool {
    image == "[vdso]" || image.ends_with(".ko") || (image.starts_with('[') && image.contains("kernel"))
}

/// The standard library that a function is of, which is linked in or compiled as a part of the program.
fn standard_library(name: &str) -> Option<&str> {
    const GO: [&str; 14] = [
        "runtime", "fmt", "sort", "strings", "bytes", "sync", "time", "net", "os", "io", "bufio", "strconv", "reflect",
        "syscall",
    ];
    let name = name.strip_prefix('<').unwrap_or(name);
    if let Some((scope, _)) = name.split_once("::") {
        match scope {
            "std" | "core" | "alloc" => return Some(scope),
            // What the C++ library's own templates are made of.
            "__gnu_cxx" | "__cxxabiv1" => return Some("std"),
            _ => {}
        }
    }
    let (package, _) = name.split_once(['.', '/'])?;
    GO.contains(&package).then_some(package)
}

/// The module that a Python extension is: `json` of `_json.cpython-313-x86_64-linux-gnu.so`.
fn extension_module(image: &str) -> Option<&str> {
    let (module, _) = image.split_once(".cpython-")?;
    Some(module.strip_prefix('_').unwrap_or(module)).filter(|module| !module.is_empty())
}

/// The package of a function of a script, by the name that its runtime gives it.
pub(super) fn script_package(name: &str) -> Option<String> {
    if let Some(python) = name.strip_prefix(PYTHON) {
        return python.split_once(':').map(|(_, path)| python_package(path));
    }
    if let Some((kind, rest)) = name.split_once(':')
        && SCRIPTS.contains(&kind)
    {
        let package = node_package(rest.split_once(' ').map_or("", |(_, path)| path));
        return Some(package.unwrap_or_else(|| "node".to_owned()));
    }
    java_package(name)
}

/// `json` for `/usr/lib/python3.13/json/decoder.py`, `importlib` for `<frozen importlib._bootstrap>`; for the program's
/// own `/srv/app.py` the file, for `/srv/app/__init__.py` the folder.
fn python_package(path: &str) -> String {
    if let Some(frozen) = path.strip_prefix("<frozen ") {
        return frozen.split(['.', '>']).next().unwrap_or(frozen).to_owned();
    }
    let parts: Vec<&str> = path.split('/').collect();
    let is_root = |part: &str| {
        matches!(part, "site-packages" | "dist-packages")
            || part
                .strip_prefix("python3")
                .is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || ".zip".contains(c)))
    };
    let module = |part: &str| part.strip_suffix(".py").unwrap_or(part).to_owned();
    let below = parts.iter().rposition(|part| is_root(part)).filter(|at| at + 1 < parts.len());
    if let Some(package) = below.and_then(|at| parts.get(at + 1)) {
        return module(package);
    }
    match parts.as_slice() {
        [.., folder, "__init__.py" | "__main__.py"] if !folder.is_empty() && *folder != "." => (*folder).to_owned(),
        [.., file] => (*file).to_owned(),
        [] => path.to_owned(),
    }
}

/// `lodash` of `/srv/node_modules/lodash/x.js:3:8`, `node:fs` of `node:fs:1:2`, else the file.
fn node_package(path: &str) -> Option<String> {
    if let Some(built_in) = path.strip_prefix("node:") {
        return Some(format!("node:{}", built_in.split([':', '/']).next().unwrap_or(built_in)));
    }
    let path = path.trim_start_matches("file://");
    let path = path.split(':').next().filter(|path| !path.is_empty())?;
    if let Some((_, rest)) = path.rsplit_once("/node_modules/") {
        let mut parts = rest.split('/');
        let first = parts.next()?;
        // A scope has packages.
        return Some(if first.starts_with('@') { format!("{first}/{}", parts.next()?) } else { first.to_owned() });
    }
    Some(basename(path).to_owned())
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

/// First words of names that say nothing of where a function belongs.
const VERBS: [&str; 22] = [
    "add", "alloc", "check", "create", "delete", "do", "find", "finish", "free", "get", "handle", "has", "init",
    "insert", "is", "make", "new", "print", "process", "remove", "set", "update",
];

/// A part of a program: a namespace, a package of Go, the source file, or the first word of a name.
fn part(name: &str, file: Option<&str>) -> Option<String> {
    let thunk = name.strip_prefix("virtual thunk to ").or_else(|| name.strip_prefix("non-virtual thunk to "));
    let name = thunk.unwrap_or(name);
    if let Some(package) = go_package(name) {
        return Some(package.to_owned());
    }
    if let Some(scope) = namespace(name) {
        return Some(format!("{scope}::"));
    }
    if let Some(file) = file {
        return Some(basename(file).to_owned());
    }
    let (word, _) = name.trim_start_matches('_').split_once('_')?;
    let is_word = word.len() > 1 && word.starts_with(|c: char| c.is_ascii_alphabetic()) && !VERBS.contains(&word);
    (is_word && word.chars().all(|c| c.is_ascii_alphanumeric())).then(|| format!("{word}_*"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::ids::{ContextId, LineId};
    use crate::limits::ProfileLimits;
    use crate::model::{CostCentre, Image, Metric, Process, SessionInfo, Thread, Unit};

    /// Stacks of `image function` or `image function file`, root first, with their self weights.
    pub(in super::super) fn profile(stacks: &[(&[&str], u64)]) -> Profile {
        let metrics = vec![Metric { name: "cpu-clock".into(), unit: Unit::Nanoseconds }];
        let mut profile = Profile::new(SessionInfo { metrics, ..SessionInfo::default() }, ProfileLimits::default());
        let process = Process::new(1, 1, "p");
        let process = profile.add_process(process);
        let thread = profile.add_thread(Thread { process, tid: 1, name: "p".into() });
        for (stack, weight) in stacks {
            let context = stack.iter().fold(ContextId::ROOT, |at, function| {
                let mut words = function.splitn(3, ' ');
                let (image, name, file) = (words.next().unwrap(), words.next().unwrap(), words.next());
                let image = profile.add_image(Image { name: image.to_owned(), build_id: Vec::new() });
                let start = name.strip_prefix("+0x").map(|start| u64::from_str_radix(start, 16).unwrap());
                let centre = CostCentre {
                    image,
                    linkage_name: start.is_none().then(|| name.to_owned()),
                    display_name: None,
                    start,
                    file: file.map(str::to_owned),
                    line: 0,
                    local: false,
                };
                let function = profile.add_cost_centre(centre);
                profile.contexts_mut().push(at, function)
            });
            profile.charge(thread, context, LineId::UNKNOWN, &[*weight]);
        }
        profile
    }

    pub(in super::super) fn number(profile: &Profile, name: &str) -> CostCentreId {
        let ids = (0..).map(CostCentreId::new).take(profile.cost_centres().len());
        ids.into_iter().find(|&id| profile.name(id) == name).unwrap()
    }

    #[test]
    fn kinds_of_code_and_packages() {
        for (function, kind, package) in [
            ("/srv/server parse", PackageKind::Own, "server"),
            ("/srv/server std::sort<int>", PackageKind::Library, "std"),
            ("/srv/server __gnu_cxx::f", PackageKind::Library, "std"),
            ("/srv/server memcpy@plt", PackageKind::Library, "stubs"),
            ("/srv/server boost::f /usr/include/boost/f.hpp", PackageKind::Library, "boost"),
            ("/usr/lib/libc.so.6 qsort", PackageKind::Library, "libc.so.6"),
            ("/srv/liba.so a::f", PackageKind::Library, "liba.so"),
            ("/usr/lib/_json.cpython-313-x86_64-linux-gnu.so scan", PackageKind::Library, "json"),
            ("[kernel] ksys_read", PackageKind::Kernel, "kernel"),
            ("[guest.kernel.kallsyms] ksys_read", PackageKind::Kernel, "kernel"),
            ("[vdso] clock_gettime", PackageKind::Kernel, "kernel"),
            ("/lib/modules/xfs.ko xfs_read", PackageKind::Kernel, "kernel"),
            ("[jit] stub", PackageKind::Generated, "[jit]"),
            ("[jit] Lcom/example/App;::run", PackageKind::Own, "com.example"),
            ("[jit] com.example.App::run", PackageKind::Own, "com.example"),
            ("[jit] py::run:/srv/app.py", PackageKind::Own, "app.py"),
            ("[jit] py::<module>:/usr/lib/python3.13/json/decoder.py", PackageKind::Library, "json"),
            ("[jit] JS:*run_/srv/app.js:3:8", PackageKind::Library, "node"),
        ] {
            let profile = profile(&[(&[function], 1)]);
            let id = number(&profile, function.split(' ').nth(1).unwrap());
            let place = Places::of(&profile).place(id);
            assert_eq!((place.kind, place.package.as_str()), (kind, package), "{function}");
        }
    }

    #[test]
    fn packages_of_scripts() {
        for (name, expected) in [
            ("py::f:/usr/lib/python3.13/json/__init__.py", "json"),
            ("py::f:/usr/lib/python3.13/re/_compiler.py", "re"),
            ("py::f:/usr/lib/python3.13/random.py", "random"),
            ("py::f:/srv/venv/lib/python3.12/site-packages/numpy/core/x.py", "numpy"),
            ("py::f:/usr/lib/python3/dist-packages/six.py", "six"),
            ("py::join:<frozen posixpath>", "posixpath"),
            ("py::f:<frozen importlib._bootstrap>", "importlib"),
            ("py::f:<string>", "<string>"),
            ("py::run:/srv/app.py", "app.py"),
            ("py::run:/srv/app/__init__.py", "app"),
            ("py::f:__init__.py", "__init__.py"),
            ("JS:*run /srv/app.js:3:8", "app.js"),
            ("JS:^f /srv/node_modules/lodash/chunk.js:1:2", "lodash"),
            ("JS:^f /srv/node_modules/@a/b/x.js:1:2", "@a/b"),
            ("JS:~require node:internal/loader:1:2", "node:internal"),
            ("Lcom/example/App;::run", "com.example"),
        ] {
            assert_eq!(script_package(name).as_deref(), Some(expected), "{name}");
        }
        assert_eq!(script_package("stub"), None);
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
            ("ira_color", None, Some("ira_*")),
            ("__bitmap_set", None, Some("bitmap_*")),
            ("get_value", None, None),
            ("main", None, None),
            ("main.parse", None, Some("main")),
            ("net/http.(*conn).serve", None, Some("net/http")),
            ("a/b.f[go.shape.x/y.z]", None, Some("a/b")),
            ("<T as X>::f", Some("/src/x.rs"), Some("x.rs")),
            ("<server::Parser as core::iter::Iterator>::next", None, Some("server::")),
            ("<&server::Parser>::next", None, Some("server::")),
            ("non-virtual thunk to server::f()", None, Some("server::")),
        ] {
            assert_eq!(part(name, file).as_deref(), expected, "{name}");
        }
    }
}
