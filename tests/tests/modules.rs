//! Modules import each other in one direction. Reads the `use` declarations and paths of all sources.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

type ModulePath = Vec<String>;
type Imports = BTreeMap<ModulePath, BTreeSet<ModulePath>>;

/// Crates, and their modules and folders in import cycles (a folder is a module directly below the root). Lower a
/// number when you remove a cycle; do not raise one.
const CRATES: [(&str, usize, usize); 6] = [
    ("collector", 0, 0),
    ("collector/profile", 0, 0),
    ("symbolizer", 0, 0),
    ("symbolizer/worker", 0, 0),
    ("daemon", 0, 0),
    ("cli", 0, 0),
];

fn read_sources(folder: &Path, module: &ModulePath, sources: &mut BTreeMap<ModulePath, String>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        if path.is_dir() {
            read_sources(&path, &[&module[..], &[name]].concat(), sources);
        } else if let Some(stem) = name.strip_suffix(".rs") {
            let own = match stem {
                "lib" | "main" | "mod" => module.clone(),
                stem => [&module[..], &[stem.to_owned()]].concat(),
            };
            sources.insert(own, code(&fs::read_to_string(path).unwrap()));
        }
    }
}

fn code(source: &str) -> String {
    let lines = source.lines().map(|line| line.find("//").map_or(line, |at| &line[..at]));
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    let mut parts = text.split("#[cfg(test)]");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // The item ends with its outermost brace, or with a semicolon before any.
        let mut depth = 0;
        let end = part.char_indices().find(|&(_, c)| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0 && (c == '}' || c == ';')
        });
        kept.push_str(end.map_or("", |(at, _)| &part[at + 1..]));
    }
    kept
}

/// Expands the tree of a `use` declaration to paths.
fn expand(tree: &str, prefix: &str, paths: &mut Vec<String>) {
    let Some(open) = tree.find('{') else {
        let tree = tree.trim();
        return paths.push(format!("{prefix}{}", tree.split(" as ").next().unwrap_or(tree)));
    };
    let prefix = format!("{prefix}{}", tree[..open].trim());
    let (mut depth, mut start) = (0, 0);
    let close = tree.rfind('}').filter(|&close| close > open).unwrap_or(tree.len());
    let body = tree[open + 1..close].to_owned() + ",";
    for (at, c) in body.char_indices() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if c == ',' && depth == 0 {
            if !body[start..at].trim().is_empty() {
                expand(body[start..at].trim(), &prefix, paths);
            }
            start = at + 1;
        }
    }
}

fn imports(sources: &BTreeMap<ModulePath, String>) -> Imports {
    let mut all = Imports::new();
    for (module, text) in sources {
        let mut paths = Vec::new();
        for (at, word) in text.match_indices("use ") {
            let before = text[..at].rsplit('\n').next().unwrap_or_default().trim();
            if before.is_empty() || before == "pub" || before.starts_with("pub(") {
                expand(text[at + word.len()..].split(';').next().unwrap_or_default(), "", &mut paths);
            }
        }
        let children = sources.keys().filter(|child| child.len() == module.len() + 1 && child.starts_with(module));
        let starts = ["crate", "super", "self"].into_iter().chain(children.map(|child| child[module.len()].as_str()));
        for start in starts.map(|name| format!("{name}::")) {
            let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            for (at, _) in text.match_indices(&start).filter(|&(at, _)| !text[..at].ends_with(is_name)) {
                let written = text[at..].split(|c| !is_name(c)).next().unwrap_or_default();
                if !written.ends_with("::") {
                    paths.push(written.to_owned());
                }
            }
        }
        let found = all.entry(module.clone()).or_default();
        for path in paths {
            let mut names = path.split("::").map(str::trim).peekable();
            let mut at = module.clone();
            match names.peek().copied() {
                Some("crate") => {
                    at.clear();
                    names.next();
                }
                Some("self") => _ = names.next(),
                Some("super") => {
                    while names.next_if_eq(&"super").is_some() {
                        at.pop();
                    }
                }
                _ => {}
            }
            let mut is_own = at != *module || path.starts_with("self");
            for name in names {
                let child = [&at[..], &[name.to_owned()]].concat();
                if !sources.contains_key(&child) {
                    break;
                }
                (at, is_own) = (child, true);
            }
            if is_own && at != *module && sources.contains_key(&at) {
                found.insert(at);
            }
        }
    }
    all
}

fn in_circles(imports: &Imports) -> Vec<&ModulePath> {
    let reaches_itself = |module: &&ModulePath| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![*module]);
        while let Some(at) = next.pop() {
            next.extend(imports.get(at).into_iter().flatten().filter(|to| seen.insert(*to)));
        }
        seen.contains(*module)
    };
    imports.keys().filter(reaches_itself).collect()
}

fn group_by_folder(imports: &Imports) -> Imports {
    let mut all = Imports::new();
    let folder = |module: &ModulePath| module.iter().take(1).cloned().collect::<ModulePath>();
    for (module, to) in imports.iter().filter(|(module, _)| !module.is_empty()) {
        let others = to.iter().map(folder).filter(|to| !to.is_empty() && *to != folder(module));
        all.entry(folder(module)).or_default().extend(others);
    }
    all
}

fn imports_of(folder: &Path) -> Imports {
    let mut sources = BTreeMap::new();
    read_sources(folder, &ModulePath::new(), &mut sources);
    sources.retain(|module, _| !module.last().is_some_and(|name| name == "tests" || name.ends_with("_tests")));
    assert!(sources.len() > 5, "{}", folder.display());
    imports(&sources)
}

fn circles_of(imports: &Imports) -> Vec<String> {
    in_circles(imports).into_iter().map(|module| format!("crate::{}", module.join("::"))).collect()
}

#[test]
fn no_new_circle_of_modules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut new = Vec::new();
    for (name, most, most_folders) in CRATES {
        let imports = imports_of(&root.join(name).join("src"));
        let (modules, folders) = (circles_of(&imports), circles_of(&group_by_folder(&imports)));
        println!("{name}: in circles are {} modules and {} folders", modules.len(), folders.len());
        new.extend([(most, modules), (most_folders, folders)].into_iter().filter(|(most, found)| found.len() > *most));
    }
    assert!(new.is_empty(), "more are in circles than were: {new:#?}");
}

#[test]
fn a_circle_is_found() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\nmod e;\nfn f() { e::g() }\n"),
        ("a.rs", "use crate::{b::{X, Y}, c};\n"),
        ("b.rs", "use super::c::Z;\n"),
        ("c.rs", "pub fn f() { super::a::g() }\n"),
        ("d.rs", "use crate::a; // and crate::e\n#[cfg(test)]\nmod tests { use crate::e; }\n"),
        ("e.rs", "use crate::d;\n"),
    ] {
        fs::write(dir.path().join(name), text).unwrap();
    }
    assert_eq!(circles_of(&imports_of(dir.path())), ["crate::a", "crate::b", "crate::c"]);
}

#[test]
fn a_circle_of_folders_is_found() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("a")).unwrap();
    for (name, text) in [
        ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\nfn f() { c::g() }\n"),
        ("a/mod.rs", "mod above;\nmod below;\n"),
        ("a/above.rs", "use crate::b;\n"),
        ("a/below.rs", ""),
        ("b.rs", "use crate::a::below;\n"),
        ("c.rs", "use crate::a::above;\n"),
        ("d.rs", "use crate::c;\n"),
    ] {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let imports = imports_of(dir.path());
    assert!(circles_of(&imports).is_empty());
    assert_eq!(circles_of(&group_by_folder(&imports)), ["crate::a", "crate::b"]);
}

/// One architecture's registers, relocations, instructions and system calls, as libraries and the kernel name them.
const OF_ARCHITECTURES: [&str; 7] = [
    "X86_64",
    "x86_64",
    "iced_x86",
    "user_regs_struct",
    "PERF_REG_X86",
    "orig_rax",
    // Later architectures have `epoll_pwait` alone.
    "SYS_epoll_wait",
];

#[test]
fn only_arch_names_registers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for name in ["collector", "symbolizer"] {
        let mut sources = BTreeMap::new();
        read_sources(&root.join(name).join("src"), &ModulePath::new(), &mut sources);
        // `recorded` is compiled only for tests.
        sources.retain(|module, _| !module.last().is_some_and(|name| name == "recorded" || name.ends_with("_tests")));
        let is_within = |module: &ModulePath| module.first().is_some_and(|first| first == "arch");
        assert!(sources.keys().any(is_within), "{name}");
        let named = sources
            .iter()
            .filter(|(module, text)| !is_within(module) && OF_ARCHITECTURES.iter().any(|word| text.contains(word)));
        let found: Vec<String> = named.map(|(module, _)| module.join("::")).collect();
        assert!(found.is_empty(), "{name}: {found:?}");
    }
}
