//! Types: default arguments of the standard library's templates, and the names that everyone knows them by.

/// Namespaces that the standard libraries put between, for their versions.
const INLINE: [&str; 6] = ["__cxx11", "__1", "__ndk1", "__Cr", "_V2", "__8"];

pub(super) fn push_word(text: &mut String, word: &str) {
    for (at, component) in word.split("::").enumerate() {
        // A namespace has something on both sides.
        let inline = at > 0 && INLINE.contains(&component) && !word.ends_with(component);
        if !inline {
            if at > 0 {
                text.push_str("::");
            }
            text.push_str(component);
        }
    }
}

/// Arguments of a template of the standard library without those that are the default.
pub(super) fn drop_defaults(template: &str, args: &mut Vec<String>) {
    if !template.starts_with("std::") {
        return;
    }
    while let [first, .., last] = args.as_slice() {
        // Where arguments of arguments are left out, what they are is not known.
        let of_first = |template: &str| {
            let args = last.strip_prefix(template).and_then(|args| args.strip_prefix('<')?.strip_suffix('>'));
            args.is_some_and(|args| args == first || args == "...")
        };
        let default = last.starts_with("std::allocator<")
            || [
                "std::char_traits",
                "std::less",
                "std::hash",
                "std::equal_to",
                "std::default_delete",
                "std::regex_traits",
            ]
            .into_iter()
            .any(of_first)
            || (matches!(template, "std::stack" | "std::queue") && of_first("std::deque"))
            || (template == "std::priority_queue" && of_first("std::vector"));
        if !default {
            break;
        }
        args.pop();
    }
}

/// The name that everyone uses for a template with these arguments: `std::string` for `std::basic_string<char>`.
pub(super) fn well_known(template: &str, args: &[String]) -> Option<String> {
    const STREAMS: [&str; 15] = [
        "string_view",
        "ostream",
        "istream",
        "iostream",
        "ios",
        "streambuf",
        "stringbuf",
        "filebuf",
        "fstream",
        "ifstream",
        "ofstream",
        "stringstream",
        "istringstream",
        "ostringstream",
        "regex",
    ];
    let name = template.strip_prefix("std::basic_")?;
    let [character] = args else { return None };
    let strings = matches!(name, "string" | "string_view");
    let prefix = match character.as_str() {
        "char" => "",
        "wchar_t" => "w",
        "char8_t" if strings => "u8",
        "char16_t" if strings => "u16",
        "char32_t" if strings => "u32",
        _ => return None,
    };
    let known = name == "string" || STREAMS.contains(&name);
    known.then(|| format!("std::{prefix}{name}"))
}
