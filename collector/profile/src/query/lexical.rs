//! The function that a closure or a lambda is written in, by the structure of its demangled name.
//!
//! A demangled name is a path of segments, each with template or generic arguments and parameters in brackets. Only a closure
//! that is a segment of the path itself is written in what is before it; one within brackets is an argument, and one in front
//! of a space is a type.

use hashbrown::HashMap;

use crate::ids::ImageId;
use crate::model::CostCentre;
use crate::profile::Profile;

/// Starts of closure segments: Rust's in both manglings and in debug information, the lambdas of GCC and clang.
const CLOSURES: [&str; 7] = ["{{closure}}", "{closure#", "{closure:", "{closure_env#", "{lambda", "$_", "'lambda"];

/// The functions of a profile by image and name, and by image and name without parameters.
pub(super) struct Definers<'a> {
    exact: HashMap<(ImageId, &'a str), Namesakes<'a>>,
    short: HashMap<(ImageId, &'a str), Namesakes<'a>>,
}

/// Functions of one name and image, in order of file and line.
#[derive(Default)]
struct Namesakes<'a> {
    all: Vec<&'a CostCentre>,
    /// Those of which a closure of another file may be a part: they are not local, or their file is not known.
    of_any_file: Vec<&'a CostCentre>,
}

#[derive(Clone, Copy)]
pub(super) enum Definer<'a> {
    Sampled(&'a CostCentre),
    /// One that was not sampled itself.
    Unsampled,
    /// One of several of its name.
    Ambiguous,
}

impl<'a> Definers<'a> {
    pub(super) fn of(profile: &'a Profile) -> Definers<'a> {
        let mut definers = Definers { exact: HashMap::new(), short: HashMap::new() };
        for centre in profile.cost_centres() {
            let Some(name) = centre.display_name.as_deref().or(centre.linkage_name.as_deref()) else { continue };
            definers.exact.entry((centre.image, name)).or_default().all.push(centre);
            // What is inside a function is not the function.
            if outer(name).is_none() {
                definers.short.entry((centre.image, without_parameters(name))).or_default().all.push(centre);
            }
        }
        for namesakes in definers.exact.values_mut().chain(definers.short.values_mut()) {
            namesakes.all.sort_by_key(|centre| place(centre));
            let of_any_file = namesakes.all.iter().filter(|centre| !centre.local || centre.file.is_none());
            namesakes.of_any_file = of_any_file.copied().collect();
        }
        definers
    }

    /// The function named `outer` that a closure is written in. Debug information may know the name without parameters.
    pub(super) fn find(&self, closure: &CostCentre, outer: &str) -> Definer<'a> {
        let key = (closure.image, outer);
        let namesakes = self.exact.get(&key).or_else(|| self.short.get(&key));
        namesakes.map_or(Definer::Unsampled, |namesakes| namesakes.find(closure))
    }
}

impl<'a> Namesakes<'a> {
    /// The function of the closure's file that is declared last before it.
    fn find(&self, closure: &CostCentre) -> Definer<'a> {
        let Some(file) = closure.file.as_deref() else { return only(&self.all) };
        let from = self.all.partition_point(|centre| centre.file.as_deref() < Some(file));
        let to = self.all.partition_point(|centre| centre.file.as_deref() <= Some(file));
        let here = self.all.get(from..to).unwrap_or_default();
        if here.is_empty() {
            return only(&self.of_any_file);
        }
        let before = here.get(..here.partition_point(|centre| centre.line <= closure.line)).unwrap_or_default();
        before.last().filter(|last| last.line > 0).map_or_else(|| only(here), |last| Definer::Sampled(last))
    }
}

fn place(centre: &CostCentre) -> (Option<&str>, u32) {
    (centre.file.as_deref(), centre.line)
}

/// The only one of these; or any one of them that are declared in one place, as instances of a generic function are.
fn only<'a>(centres: &[&'a CostCentre]) -> Definer<'a> {
    match centres {
        [] => Definer::Unsampled,
        [one] => Definer::Sampled(one),
        [first, .., last] if first.file.is_some() && place(first) == place(last) => Definer::Sampled(first),
        _ => Definer::Ambiguous,
    }
}

/// The name of the function that a closure is written in; `None` for all that is no closure.
pub(super) fn outer(name: &str) -> Option<&str> {
    let closure = segments(name).find(|&at| {
        let segment = name.get(at..).unwrap_or_default();
        CLOSURES.iter().any(|closure| segment.starts_with(closure)) && !is_type(segment)
    });
    if let Some(at) = closure {
        return name.get(..at.checked_sub(2)?).filter(|outer| !outer.is_empty());
    }
    go(name)
}

/// Whether a closure's name goes on as a type before a function's name: `f()::{lambda()#1} g<int>()`. Unmatched
/// brackets are refused: each further segment would be read to its end.
fn is_type(segment: &str) -> bool {
    let bytes = segment.as_bytes();
    let (mut at, mut depth) = (0, 0u32);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'-' if bytes.get(at + 1) == Some(&b'>') => at += 1,
            b'{' | b'(' | b'<' | b'[' => depth += 1,
            b'}' | b')' | b'>' | b']' => match depth.checked_sub(1) {
                Some(less) => depth = less,
                None => return false,
            },
            _ => {}
        }
        if depth == 0 && matches!(byte, b' ' | b'&' | b'*' | b':') {
            return byte != b':';
        }
        at += 1;
    }
    false
}

/// Where the segments of a path after the first begin, those within brackets left out.
fn segments(name: &str) -> impl Iterator<Item = usize> + '_ {
    let bytes = name.as_bytes();
    let (mut at, mut depth) = (0usize, 0usize);
    std::iter::from_fn(move || {
        while let Some(&byte) = bytes.get(at) {
            let rest = bytes.get(at..).unwrap_or_default();
            if let Some(symbol) = operator(name, at) {
                at = symbol;
                continue;
            }
            if rest.starts_with(b"->") {
                at += 2;
                continue;
            }
            match byte {
                b'(' | b'<' | b'[' | b'{' => depth += 1,
                b')' | b'>' | b']' | b'}' => depth = depth.saturating_sub(1),
                b':' if depth == 0 && rest.starts_with(b"::") => {
                    at += 2;
                    return Some(at);
                }
                _ => {}
            }
            at += 1;
        }
        None
    })
}

/// Where the symbol of a C++ operator ends whose name begins at a place: its brackets are none.
fn operator(name: &str, at: usize) -> Option<usize> {
    const SYMBOLS: [&str; 12] = ["()", "[]", "<=>", "<<=", ">>=", "<<", ">>", "<=", ">=", "->*", "->", "<"];
    let rest = name.get(at..)?.strip_prefix("operator")?;
    let word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    if at > 0 && name.as_bytes().get(at - 1).is_some_and(word) {
        return None;
    }
    let symbol = SYMBOLS.iter().chain(&[">"]).find(|symbol| rest.starts_with(**symbol))?;
    Some(at + "operator".len() + symbol.len())
}

fn without_parameters(name: &str) -> &str {
    let start = segments(name).last().unwrap_or(0);
    let segment = name.get(start..).unwrap_or_default();
    let from = operator(name, start).map_or(0, |end| end - start);
    let mut depth = 0usize;
    for (at, byte) in segment.bytes().enumerate().skip(from) {
        match byte {
            b'(' if depth == 0 && at > 0 => return name.get(..start + at).unwrap_or(name),
            b'<' | b'[' | b'{' | b'(' => depth += 1,
            b'>' | b']' | b'}' | b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    name
}

/// Go: `package.function.func1`, with more numbers below.
fn go(name: &str) -> Option<&str> {
    let (at, _) = name.match_indices(".func").find(|(at, _)| {
        let rest = name.get(at + 5..).unwrap_or_default();
        name.get(..*at).is_some_and(|before| before.contains('.'))
            && rest.starts_with(|c: char| c.is_ascii_digit())
            && rest.chars().all(|c| c.is_ascii_digit() || c == '.')
    })?;
    name.get(..at).filter(|outer| !outer.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closures_belong_to_who_defines_them() {
        for (name, expected) in [
            ("sum::{{closure}}", Some("sum")),
            ("a::b::{closure#0}::{closure#1}", Some("a::b")),
            ("<a::T as b::U>::f::{closure#0}", Some("<a::T as b::U>::f")),
            ("f(int)::{lambda(int)#1}::operator()(int) const", Some("f(int)")),
            ("f::{lambda#1}::operator()", Some("f")),
            ("f()::$_0::operator()(int) const", Some("f()")),
            ("f()::'lambda'(int)::operator()(int) const", Some("f()")),
            ("S::operator<(S const&)::{lambda()#1}::operator()() const", Some("S::operator<(S const&)")),
            ("S::operator()(int)::{lambda()#1}::operator()() const", Some("S::operator()(int)")),
            ("void f<int>(int)::{lambda()#1}::operator()() const", Some("void f<int>(int)")),
            ("main.work.func1", Some("main.work")),
            ("main.(*T).Run.func2.1", Some("main.(*T).Run")),
            // Arguments and types are none.
            ("void apply<void S::method<int>(int)::{lambda()#1}>(void S::method<int>(int)::{lambda()#1})", None),
            ("core::iter::map::<main::{closure#0}>", None),
            ("<main::{closure#0} as core::ops::FnOnce<()>>::call_once", None),
            ("f()::{lambda()#1} make<int>()", None),
            ("f()::{lambda()#1}& make<int>()", None),
            ("apply<fn() -> main::{closure#0}>::run", None),
            ("main.func1", None),
            ("main.functional", None),
            ("{{closure}}", None),
            ("main", None),
            ("a::b>>>((::", None),
        ] {
            assert_eq!(outer(name), expected, "{name}");
        }
    }

    #[test]
    fn a_long_name_is_read_about_once() {
        // Closures that might each be a type, until the very end of the name.
        for closure in ["::$_>", "::$_->", "::{lambda}->"] {
            let name = format!("f{}{} x", closure.repeat(10_000), "( ".repeat(10_000));
            let began = std::time::Instant::now();
            let _ = (outer(&name), without_parameters(&name));
            assert!(began.elapsed().as_millis() < 1_000, "{closure}: {:?}", began.elapsed());
        }
    }

    #[test]
    fn parameters_are_those_of_the_last_segment() {
        for (name, expected) in [
            ("f(int)", "f"),
            ("a::f<g(int)>(int) const", "a::f<g(int)>"),
            ("S::operator()(int)", "S::operator()"),
            ("(anonymous namespace)::f(int)", "(anonymous namespace)::f"),
            ("main", "main"),
        ] {
            assert_eq!(without_parameters(name), expected);
        }
    }
}
