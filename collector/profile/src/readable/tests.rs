//! Names as demanglers print them, and what is shown for them.

use proptest::prelude::*;

use super::*;

const STRING: &str = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";

/// Short forms of C++ names; `STRING` stands for [`STRING`].
const CPP: [(&str, &str); 42] = [
    ("foo(int)", "foo"),
    ("void std::swap<int>(int&, int&)", "std::swap<int>"),
    ("std::vector<int, std::allocator<int> >::push_back(int&&)", "std::vector<int>::push_back"),
    ("std::__1::vector<int, std::__1::allocator<int> >::push_back(int)", "std::vector<int>::push_back"),
    ("STRING::basic_string(char const*)", "std::string::basic_string"),
    (
        "std::__cxx11::basic_stringstream<wchar_t, std::char_traits<wchar_t>, std::allocator<wchar_t> >::str() const",
        "std::wstringstream::str",
    ),
    (
        "std::map<STRING, Widget, std::less<STRING >, std::allocator<std::pair<STRING const, Widget> > >::find(STRING const&)",
        "std::map<std::string, Widget>::find",
    ),
    (
        "std::map<int, Widget, std::greater<int>, std::allocator<std::pair<int const, Widget> > >::find(int const&)",
        "std::map<int, Widget, std::greater<int>>::find",
    ),
    (
        "std::unordered_map<int, int, std::hash<int>, std::equal_to<int>, std::allocator<std::pair<int const, int> > >::operator[](int&&)",
        "std::unordered_map<int, int>::operator[]",
    ),
    (
        "std::priority_queue<int, std::vector<int, std::allocator<int> >, std::less<int> >::pop()",
        "std::priority_queue<int>::pop",
    ),
    ("std::unique_ptr<Foo, std::default_delete<Foo> >::~unique_ptr()", "std::unique_ptr<Foo>::~unique_ptr"),
    ("std::filesystem::__cxx11::path::path(STRING const&)", "std::filesystem::path::path"),
    ("(anonymous namespace)::helper(int)", "(anon)::helper"),
    ("void (anonymous namespace)::helper<int>(int)", "(anon)::helper<int>"),
    ("foo[abi:cxx11]()", "foo"),
    // Lambdas, and what is local to functions.
    ("main::{lambda(int)#1}::operator()(int) const", "main::{lambda#1}::operator()"),
    ("main::{lambda(auto:1)#1}::operator()<int>(int) const", "main::{lambda#1}::operator()<int>"),
    ("f(int) const::Local::run() &&::{lambda()#2}::operator()() const", "f::Local::run::{lambda#2}::operator()"),
    // Operators.
    ("shape::operator<<(std::ostream&, shape const&)", "shape::operator<<"),
    ("bool operator< <A>(A const&, A const&)", "operator< <A>"),
    ("bool operator<<int>(A<int> const&)", "operator<<int>"),
    ("P<T>::operator->() const", "P<T>::operator->"),
    ("S::operator<=>(S const&) const", "S::operator<=>"),
    ("Foo::operator int() const", "Foo::operator int"),
    ("Foo::operator std::vector<int, std::allocator<int> >() const", "Foo::operator std::vector<int>"),
    ("operator new[](unsigned long, std::nothrow_t const&)", "operator new[]"),
    ("void Foo::operator()<int>(int) const", "Foo::operator()<int>"),
    // What a function returns.
    ("unsigned long foo<int>(char const*)", "foo<int>"),
    ("std::vector<int, std::allocator<int> >& foo<int>(char const*)", "foo<int>"),
    ("decltype (fp.x) get<int>(int)", "get<int>"),
    ("void (*)(char) f<int>(int)", "f<int>"),
    ("std::enable_if<((a)<(b))&&((c)>(d)), int>::type foo<int>(int)", "foo<int>"),
    ("std::enable_if<(a)<<(b), int>::type foo<int>(int)", "foo<int>"),
    ("int myoperator<int>(int)", "myoperator<int>"),
    // Arguments that are too long: the innermost go first.
    ("std::function<void (int)>::operator()(int) const", "std::function<void (int)>::operator()"),
    (
        "a::B<std::pair<int, std::vector<some::long_name, std::allocator<some::long_name> > > >::c()",
        "a::B<std::pair<...>>::c",
    ),
    ("a::B<one_name_that_is_long, another_name_that_is_long>::c()", "a::B<...>::c"),
    ("non-virtual thunk to Foo::bar(int)", "non-virtual thunk to Foo::bar"),
    ("Foo::bar(int) [clone .warm]", "Foo::bar [clone .warm]"),
    ("{virtual override thunk({offset(-16)}, Foo::bar())}", "{virtual override thunk({offset(-16)}, Foo::bar())}"),
    // A function around whose name its type stands.
    ("void (*foo<int>(int))(char)", "void (*foo<int>(int))(char)"),
    ("Foo<int, cut by a limi...", "Foo<int, cut by a limi..."),
];

const RUST: [(&str, &str); 9] = [
    ("test::main::{{closure}}", "test::main::{{closure}}"),
    ("test::main::{closure#1}", "test::main::{{closure}}"),
    ("core::ops::function::FnOnce::call_once{{vtable.shim}}", "core::ops::function::FnOnce::call_once{{vtable.shim}}"),
    ("<alloc::vec::Vec<T> as core::ops::drop::Drop>::drop", "<Vec<T> as Drop>::drop"),
    ("<<I as core::iter::Iterator>::Item as core::fmt::Debug>::fmt", "<<I as Iterator>::Item as Debug>::fmt"),
    ("<dyn core::ops::Fn(usize) -> u8 as foo::Bar>::call", "<dyn Fn(usize) -> u8 as Bar>::call"),
    ("core::str::<impl core::fmt::Display for str>::fmt", "core::str::<impl Display for str>::fmt"),
    ("core::ptr::drop_in_place<alloc::vec::Vec<alloc::string::String>>", "core::ptr::drop_in_place<Vec<String>>"),
    ("test::work::<i32, 5>", "test::work::<i32, 5>"),
];

const OTHER: [&str; 10] = [
    "main.(*T).Method",
    "main.Map[go.shape.int,go.shape.string]",
    "type:.eq.main.T",
    "Foo.bar(int)",
    "Ljava/util/HashMap;::get(Ljava/lang/Object;)",
    "void [mscorlib] System.Foo::Bar(class A)[Optimized]",
    "-[NSObject init(x)]",
    "foo(int)@plt",
    "[not sampled]",
    "[other: 3 (x)]",
];

#[test]
fn functions_of_scripts_lose_the_directories_of_their_files() {
    for (name, expected) in [
        ("py::f:/srv/app/run.py", "py::f:run.py"),
        ("py::<module>:/srv/run.py", "py::<module>:run.py"),
        ("JS:*slowSort /srv/app.js:5:18", "JS:*slowSort app.js:5:18"),
        ("JS:* file:///srv/app.mjs:1:1", "JS:* app.mjs:1:1"),
    ] {
        assert_eq!(short(name), expected);
    }
    for name in [
        "py::join:<frozen posixpath>",
        "JS:^require node:internal/bootstrap:1:2",
        "py::detail::cast(int)",
        "JS:f /srv/",
    ] {
        assert!(!short(name).is_empty() && (name.contains('(') || short(name) == name), "{name}");
    }
    // Two files of one name keep their directories.
    let names = ["py::f:/a/run.py", "py::f:/b/run.py", "py::g:/b/run.py"];
    let shown = shown(names.into_iter());
    assert_eq!((shown.get(names[0]), shown.get(names[1])), (None, None));
    assert_eq!(shown[names[2]], "py::g:run.py");
}

#[test]
fn names_are_as_people_write_them() {
    for (name, expected) in CPP.into_iter().chain(RUST) {
        let name = name.replace("STRING", STRING);
        assert_eq!(short(&name), expected, "{name}");
        // Once is enough.
        assert_eq!(short(&short(&name)), expected, "{name}");
    }
    for name in OTHER {
        assert_eq!(short(name), name);
    }
}

#[test]
fn names_of_which_one_form_stands_for_two_have_longer_ones() {
    let shown = |names: &[&str]| -> Vec<String> {
        let shown = super::shown(names.iter().copied());
        names
            .iter()
            .map(|name| shown.get(name).map_or_else(|| (*name).to_owned(), |it| it.clone().into_owned()))
            .collect()
    };
    assert_eq!(shown(&["f(int)", "g(int)", "f(int)"]), ["f", "g", "f"]);
    assert_eq!(shown(&["void f<int>(int)", "int f<int>(long)", "g()"]), ["f<int>(int)", "f<int>(long)", "g"]);
    // All three, whatever came first.
    assert_eq!(shown(&["f(int)", "f(long)", "f(char)"]), ["f(int)", "f(long)", "f(char)"]);
    assert_eq!(shown(&["void f<1>(int)", "int f<1>(int)"]), ["void f<1>(int)", "int f<1>(int)"]);
    // One is called as another is shown.
    assert_eq!(shown(&["f(int)", "f"]), ["f(int)", "f"]);
    assert_eq!(shown(&["f", "f(int)"]), ["f", "f(int)"]);
    // Template arguments tell apart before parameters do.
    let apply = |of: &str| format!("void apply<Box<{of}>::each_of_them()::{{lambda()#1}}>(Box<{of}>::each_of_them())");
    assert_eq!(
        shown(&[&apply("int"), &apply("long")]),
        ["apply<Box<int>::each_of_them()::{lambda#1}>", "apply<Box<long>::each_of_them()::{lambda#1}>"]
    );
    assert_eq!(shown(&["a::{closure#0}", "a::{closure#1}"]), ["a::{closure#0}", "a::{closure#1}"]);
}

/// Parts of which names are made, well formed or not.
fn name() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        "f",
        "g",
        "::",
        "std::",
        "std::vector",
        "<",
        ">",
        "int",
        "(",
        ")",
        ", ",
        " ",
        " const",
        "operator",
        "operator<",
        "operator()",
        "{lambda(",
        ")#1}",
        "std::allocator<int>",
        "->",
        "[abi:cxx11]",
        "{closure#0}",
        "__1::",
        "é",
        "(anonymous namespace)",
    ]);
    prop::collection::vec(part, 1..12).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn two_names_are_never_shown_as_one(names in prop::collection::vec(name(), 1..40)) {
        let shown = super::shown(names.iter().map(String::as_str));
        let distinct: HashSet<&str> = names.iter().map(String::as_str).collect();
        let texts: HashSet<&str> = distinct.iter().map(|name| shown.get(name).map_or(*name, |text| text)).collect();
        prop_assert_eq!(texts.len(), distinct.len());
    }

    #[test]
    fn brackets_are_never_cut(parts in prop::collection::vec(name(), 1..4), any in ".{0,60}") {
        for name in [parts.concat(), any] {
            for shown in [short(&name), form(&name, Form::Long)] {
                prop_assert!(syntax::parse(&name).is_none() || syntax::parse(&shown).is_some() || shown == name, "{} {}", name, shown);
            }
        }
    }
}

#[test]
fn deep_and_long_names_take_little_stack_and_time() {
    for name in [
        "a<".repeat(5000) + &">".repeat(5000),
        "a<".repeat(2000) + &">".repeat(2000),
        "(".repeat(8000),
        format!("{}f()", "a::".repeat(2500)),
        format!("f<{}>()", "a<b, ".repeat(90) + &">".repeat(90)),
    ] {
        let _ = (short(&name), form(&name, Form::Long));
    }
}
