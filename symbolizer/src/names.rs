//! Rules that give each logical function one name. Suffixes for how the compiler placed a function are removed here,
//! and only here.

use std::borrow::Cow;

use crate::demangle;

/// Order among symbols at one address; the smallest is chosen, ties are broken by the name's bytes.
///
/// 1. Visible symbols before local ones: they are what programmers call.
/// 2. Fewer leading underscores: the C library exports `write`, `__write` and `__libc_write` for one function.
/// 3. Global before weak. (After underscores, because the C library makes just its public names weak.)
/// 4. Shorter before longer.
pub(crate) type AliasRank = (bool, u8, bool, u32);

pub(crate) fn alias_rank(name: &[u8], local: bool, weak: bool) -> AliasRank {
    // The leading underscores of mangled names have no meaning.
    let underscores = if is_mangled(name) { 0 } else { name.iter().take_while(|&&byte| byte == b'_').count() };
    (local, underscores.min(255) as u8, weak, u32::try_from(name.len()).unwrap_or(u32::MAX))
}

/// Suffixes for functions that compilers split, clone or move; in one unit, the name before is the logical function.
const CLONE_SUFFIXES: [(&str, Follow); 12] = [
    // GCC and LLVM: the rarely executed part, moved away (-freorder-blocks-and-partition, hot-cold splitting).
    (".cold", Follow::OptionalNumber),
    // GCC: the part left after inlining the beginning into callers (-fpartial-inlining).
    (".part", Follow::Number),
    // GCC: parameters removed or split (-fipa-sra).
    (".isra", Follow::Number),
    // GCC: specialised for constant arguments (-fipa-cp-clone).
    (".constprop", Follow::Number),
    // GCC: local alias for calls inside the image.
    (".localalias", Follow::OptionalNumber),
    // GCC 4 and older: any clone.
    (".clone", Follow::Number),
    // LLVM: specialised for constant arguments.
    (".specialized", Follow::Number),
    // LLVM: parameters passed by value instead of by reference (older versions).
    (".argprom", Follow::OptionalNumber),
    // LLVM: unused parameters removed (older versions).
    (".argelim", Follow::OptionalNumber),
    // C++ coroutines, the part run on resumption: GCC and LLVM.
    (".actor", Follow::OptionalNumber),
    (".resume", Follow::OptionalNumber),
    // C++ coroutines, the part run at destruction. (LLVM's `.cleanup` has other uses, too.)
    (".destroy", Follow::OptionalNumber),
];

/// Suffixes that distinguish local functions of one name in different units: not part of the name.
const UNIT_SUFFIXES: [(&str, Follow); 3] = [
    // GCC: local symbol made unique for link-time optimisation.
    (".lto_priv", Follow::Number),
    // LLVM ThinLTO: local symbol made global, with a hash of its module.
    (".llvm", Follow::Number),
    // LLVM: the same by -funique-internal-linkage-names.
    (".__uniq", Follow::Number),
];

#[derive(Clone, Copy)]
enum Follow {
    Number,
    OptionalNumber,
}

/// Removes clone and part suffixes within the compilation unit: `walk.lto_priv.0` for `walk.lto_priv.0.isra.0.cold`.
pub(crate) fn without_clone_suffixes(mut name: &str) -> &str {
    while let Some(shorter) = without_clone_suffix(name) {
        name = shorter;
    }
    name
}

/// Removes the last such suffix; `None` if there is none.
pub(crate) fn without_clone_suffix(name: &str) -> Option<&str> {
    without_suffix(name, &CLONE_SUFFIXES)
}

/// Removes all suffixes that compilers append, regardless of the unit: for user functions and for the kernel's.
pub(crate) fn without_suffixes(mut name: &str) -> &str {
    // Suffixes accumulate: `foo.isra.0.constprop.1.cold`.
    while let Some(shorter) = without_clone_suffix(name).or_else(|| without_suffix(name, &UNIT_SUFFIXES)) {
        name = shorter;
    }
    name
}

/// Removes glibc's prefix for internal aliases: `__libc_write` for `__GI___libc_write`.
pub(crate) fn without_internal_prefix(name: &str) -> &str {
    name.strip_prefix("__GI_").filter(|rest| !rest.is_empty()).unwrap_or(name)
}

/// Whether a symbol's name says that other compilation units may have functions of that name.
pub(crate) fn is_of_unit(symbol: &str) -> bool {
    without_suffix(without_clone_suffixes(symbol), &UNIT_SUFFIXES).is_some()
}

/// Whether another unit of the image may have a function of this name: not if C++ or Rust made it unique.
pub(crate) fn may_be_local(name: &str) -> bool {
    if name.starts_with("_R") {
        return false;
    }
    !name.starts_with("_Z") || name.contains("_GLOBAL__N_") || name.starts_with("_ZZ") || is_internal(name)
}

/// Suffix of the names of PLT stubs. A stub is not the function: its time is spent in this image.
pub(crate) const PLT_SUFFIX: &str = "@plt";

/// Whether a function is a stub that the linker made, by its linkage name: no source line belongs to it.
#[must_use]
pub fn is_stub(linkage_name: &str) -> bool {
    linkage_name.ends_with(PLT_SUFFIX)
}

/// The linkage name of a symbol's logical function: without version and clone suffixes, constructor variants unified.
pub(crate) fn logical(symbol: &str) -> Cow<'_, str> {
    if is_stub(symbol) {
        return Cow::Borrowed(symbol);
    }
    // `memcpy@@GLIBC_2.14`: never part of a name, as neither C, C++ nor Rust allow it.
    let mut name = match symbol.find('@') {
        Some(at) if at > 0 => symbol.get(..at).unwrap_or(symbol),
        _ => symbol,
    };
    name = without_internal_prefix(without_suffixes(name));
    match file_local_path(name) {
        Some(path) => Cow::Owned(path),
        None => one_structor(name),
    }
}

/// The path that identifies a C++ function local to its file: `(anonymous namespace)::helper` for
/// `_ZN12_GLOBAL__N_16helperEi`.
///
/// GCC writes no linkage name where it is inlined, but both copies have the path. Without parameters, so overloads are
/// one function. Names with template arguments stay mangled: spellings of types differ.
fn file_local_path(name: &str) -> Option<String> {
    // A quick check: an unnamed namespace, an internal name (`L`), an entity local to a function (`Z`).
    if !name.starts_with("_Z") || !(name.contains("_GLOBAL__N_") || name.starts_with("_ZZ") || is_internal(name)) {
        return None;
    }
    plain_path(&demangle::cpp_whole(name)?)
}

/// Whether a mangled name's path has a component internal to its file: an `L` before its length.
fn is_internal(name: &str) -> bool {
    let mut rest = name.strip_prefix("_Z").unwrap_or_default().as_bytes();
    if let Some(nested) = rest.strip_prefix(b"N") {
        // Qualifiers of member functions.
        let qualifiers = nested.iter().take_while(|byte| b"VKRO".contains(byte)).count();
        rest = nested.get(qualifiers..).unwrap_or_default();
    }
    loop {
        if rest.first() == Some(&b'L') {
            return rest.get(1).is_some_and(u8::is_ascii_digit);
        }
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let length = rest.get(..digits).and_then(|digits| str::from_utf8(digits).ok()?.parse::<usize>().ok());
        let Some(after) = length.and_then(|length| rest.get(digits.checked_add(length)?..)) else { return false };
        rest = after;
    }
}

/// Removes parameters and qualifiers: `f::{lambda#1}::operator()` for `f(int)::{lambda(char)#1}::operator()(char)
/// const`. `None` with template arguments.
fn plain_path(demangled: &str) -> Option<String> {
    const UNNAMED: &str = "(anonymous namespace)";
    // Operators whose names contain `<` or `(`.
    const OPERATORS: [&str; 6] = ["operator<=>", "operator<<=", "operator<<", "operator<=", "operator<", "operator()"];
    let mut path = String::new();
    let mut rest = demangled;
    while let Some(first) = rest.chars().next() {
        let whole = OPERATORS.iter().chain(&[UNNAMED]).find(|whole| rest.starts_with(**whole));
        if let Some(whole) = whole {
            path.push_str(whole);
            rest = rest.get(whole.len()..)?;
        } else if first == '<' {
            return None;
        } else if first == '(' {
            let mut depth = 0usize;
            let end = rest.char_indices().find_map(|(at, c)| {
                match c {
                    '(' => depth += 1,
                    ')' => depth -= 1,
                    _ => {}
                }
                (depth == 0).then_some(at + 1)
            })?;
            rest = rest.get(end..)?;
            for qualifier in [" const", " volatile", " &", " &&"] {
                rest = rest.strip_prefix(qualifier).unwrap_or(rest);
            }
        } else {
            path.push(first);
            rest = rest.get(first.len_utf8()..)?;
        }
    }
    (!path.is_empty()).then_some(path)
}

pub(crate) fn is_mangled(name: &[u8]) -> bool {
    name.starts_with(b"_Z") || name.starts_with(b"_R")
}

/// Gives the variants of a constructor or destructor the name of the "complete object" one, `C1` or `D1`.
///
/// One in the source becomes several functions (Itanium C++ ABI, section 5.1.4.3): `C1`, `C2` for base classes, `D0`
/// for `delete`; GCC calls the declaration and inlined copies `C4` or `D4`. Which exist depends on optimisation.
///
/// The variant's position is found without a parser: change a digit and compare the demangled names.
fn one_structor(name: &str) -> Cow<'_, str> {
    // A name has several only if it is a function local to a constructor.
    const MAX_CANDIDATES: usize = 8;
    if !name.starts_with("_Z") {
        return Cow::Borrowed(name);
    }
    let variant = |pair: &[u8]| matches!(pair, [b'C', b'2'..=b'5'] | [b'D', b'0' | b'2'..=b'5']);
    let candidates: Vec<usize> =
        name.as_bytes().windows(2).enumerate().filter(|(_, pair)| variant(pair)).map(|(at, _)| at + 1).collect();
    if candidates.is_empty() {
        return Cow::Borrowed(name);
    }
    let Some(meaning) = demangle::cpp_whole(name) else { return Cow::Borrowed(name) };
    let mut result = Cow::Borrowed(name);
    for &at in candidates.iter().rev().take(MAX_CANDIDATES) {
        let mut changed = result.to_string();
        changed.replace_range(at..=at, "1");
        if demangle::cpp_whole(&changed).as_ref() == Some(&meaning) {
            result = Cow::Owned(changed);
        }
    }
    result
}

fn without_suffix<'a>(name: &'a str, suffixes: &[(&str, Follow)]) -> Option<&'a str> {
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let numbered = name.get(..name.len() - digits)?.strip_suffix('.').filter(|_| digits > 0);
    suffixes.iter().find_map(|(suffix, follow)| {
        let from_number = numbered.and_then(|head| head.strip_suffix(suffix));
        let bare = match follow {
            Follow::Number => None,
            Follow::OptionalNumber => name.strip_suffix(suffix),
        };
        from_number.or(bare).filter(|rest| !rest.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clone_suffixes_and_versions_are_removed() {
        for (symbol, expected) in [
            ("foo", "foo"),
            ("foo.cold", "foo"),
            ("foo.cold.3", "foo"),
            ("foo.part.0", "foo"),
            ("foo.isra.0", "foo"),
            ("foo.constprop.12", "foo"),
            ("foo.lto_priv.0", "foo"),
            ("foo.llvm.13182346578234", "foo"),
            ("foo.__uniq.2345", "foo"),
            ("foo.__uniq.2345.llvm.678.cold", "foo"),
            ("_Z3runv.resume", "_Z3runv"),
            ("_Z3runP12_Z3runv.Frame.actor", "_Z3runP12_Z3runv.Frame"),
            ("foo.localalias", "foo"),
            ("foo.localalias.2", "foo"),
            ("foo.isra.0.constprop.1.cold", "foo"),
            ("_ZN3abc3defEv.part.0.cold.1", "_ZN3abc3defEv"),
            ("memcpy@GLIBC_2.2.5", "memcpy"),
            ("memcpy@@GLIBC_2.14", "memcpy"),
            // Not suffixes of clones: an outlined OpenMP region is a function of its own, and these have no number.
            ("main._omp_fn.0", "main._omp_fn.0"),
            ("foo.part", "foo.part"),
            ("foo.avx2", "foo.avx2"),
            ("foo.1", "foo.1"),
            (".cold", ".cold"),
            ("@x", "@x"),
            ("", ""),
            ("foo@plt", "foo@plt"),
            ("__GI_abort", "abort"),
            ("__GI___libc_write", "__libc_write"),
            ("__GI_abort.cold", "abort"),
            ("__GI_", "__GI_"),
            ("_ZN3FooC2Ei", "_ZN3FooC1Ei"),
            ("_ZN3FooC1Ei", "_ZN3FooC1Ei"),
            ("_ZN3FooC4Ei", "_ZN3FooC1Ei"),
            ("_ZN3FooD0Ev", "_ZN3FooD1Ev"),
            ("_ZN3FooD2Ev.cold", "_ZN3FooD1Ev"),
            ("_ZN3FooIiEC2Ev", "_ZN3FooIiEC1Ev"),
            // Local to one file; GCC omits the linkage names of their inlined copies.
            ("_ZZN3FooC4EvENKUlvE_clEv", "Foo::Foo::{lambda#1}::operator()"),
            ("_ZZ4mainENKUlRKSt6vectorIiSaIiEEE0_clES3_", "main::{lambda#2}::operator()"),
            ("_ZL13local_to_filem", "local_to_file"),
            ("_ZL13local_to_filem.constprop.0", "local_to_file"),
            ("_ZN12_GLOBAL__N_16hiddenEm", "(anonymous namespace)::hidden"),
            ("_ZN12_GLOBAL__N_1lsERK3FooS2_", "(anonymous namespace)::operator<<"),
            ("_ZN6shapesL5localEv", "shapes::local"),
            // Local to one file because of a template argument; spellings of types vary too much.
            ("_ZN3BoxIN12_GLOBAL__N_13FooEE4pushEv", "_ZN3BoxIN12_GLOBAL__N_13FooEE4pushEv"),
            ("_ZN5L3FooC1Ev", "_ZN5L3FooC1Ev"),
            ("_ZNK3Foo4Lazy3getEv", "_ZNK3Foo4Lazy3getEv"),
            // Not variants: an identifier, and a name with the same letters.
            ("_ZN5FooC2Ei", "_ZN5FooC2Ei"),
            ("_ZN2C24nameEv", "_ZN2C24nameEv"),
            ("_ZN2C2C2Ev", "_ZN2C2C1Ev"),
        ] {
            assert_eq!(logical(symbol), expected, "{symbol}");
        }
    }

    #[test]
    fn names_that_tell_units_apart_are_kept() {
        for (symbol, own) in [
            ("walk", "walk"),
            ("walk.cold", "walk"),
            ("walk.isra.0.constprop.1", "walk"),
            ("walk.lto_priv.0", "walk.lto_priv.0"),
            ("walk.lto_priv.0.isra.0.cold", "walk.lto_priv.0"),
            ("walk.llvm.77.cold.1", "walk.llvm.77"),
        ] {
            assert_eq!(without_clone_suffixes(symbol), own);
            assert_eq!(is_of_unit(symbol), own != "walk", "{symbol}");
        }
        for (name, local) in [
            ("walk", true),
            ("_Z4walki", false),
            ("_ZL4walki", true),
            ("_ZN12_GLOBAL__N_14walkEi", true),
            ("_ZN3foo4walk17h0123456789abcdefE", false),
            ("_RNvCs1_3foo4walk", false),
        ] {
            assert_eq!(may_be_local(name), local, "{name}");
        }
    }

    #[test]
    fn public_names_are_preferred_among_aliases() {
        let best = |symbols: &[(&'static str, bool, bool)]| {
            let key = |s: &(&'static str, bool, bool)| (alias_rank(s.0.as_bytes(), s.1, s.2), s.0);
            symbols.iter().min_by_key(|s| key(s)).map(|s| s.0)
        };
        // As in a static glibc: the public name is weak.
        assert_eq!(
            best(&[("__libc_write", false, false), ("__write", false, true), ("write", false, true)]),
            Some("write")
        );
        assert_eq!(best(&[("a_local", true, false), ("__global", false, false)]), Some("__global"));
        assert_eq!(best(&[("bb", false, true), ("cc", false, false)]), Some("cc"));
        assert_eq!(best(&[("bbb", false, false), ("cc", false, false)]), Some("cc"));
        assert_eq!(best(&[("b", false, false), ("a", false, false)]), Some("a"));
    }
}
