//! What of a name is left out.

use super::syntax::{Group, NamePiece};
use super::types;

/// Names that are longer have shorter template arguments.
const NAME: usize = 64;
/// What a list of template arguments may have, and what it gets in a name that is too long with it.
const ARGUMENTS: [usize; 3] = [32, 16, 0];
const LEFT_OUT: &str = "...";
const QUALIFIERS: [&str; 6] = [" const", " volatile", " noexcept", " restrict", " &&", " &"];

pub(super) fn long_form(pieces: Vec<NamePiece<'_>>) -> Option<String> {
    Some(Style::LONG.text(&without_type(pieces)?))
}

pub(super) fn short_form(pieces: Vec<NamePiece<'_>>) -> Option<String> {
    let rust = !pieces.iter().any(is_parameters);
    let path = without_parameters(without_type(pieces)?);
    let mut text = String::new();
    for arguments in ARGUMENTS {
        text = Style { arguments, rust, ..Style::SHORT }.text(&path);
        if text.chars().count() <= NAME {
            break;
        }
    }
    Some(text)
}

pub(super) fn path_form(pieces: Vec<NamePiece<'_>>) -> Option<String> {
    let rust = !pieces.iter().any(is_parameters);
    let path = without_parameters(without_type(pieces)?);
    Some(Style { arguments: usize::MAX, rust, ..Style::SHORT }.text(&path))
}

fn is_parameters(piece: &NamePiece<'_>) -> bool {
    matches!(piece, NamePiece::Group(group) if group.open == '(' && !group.is_unnamed_namespace())
}

/// The name and its parameters without what the function returns; `None` where that stands around the name.
fn without_type(mut pieces: Vec<NamePiece<'_>>) -> Option<Vec<NamePiece<'_>>> {
    // Without parameters there is no type either.
    if !pieces.iter().any(is_parameters) {
        return Some(pieces);
    }
    let mut start = (0, 0);
    let mut after_parameters = false;
    for (at, piece) in pieces.iter().enumerate() {
        if let NamePiece::Word(word) = piece {
            let rest = if after_parameters { without_qualifiers(word) } else { word };
            // `operator new`, `operator int`
            let path = rest.find("operator").map_or(rest, |operator| &rest[..operator]);
            if let Some(space) = path.rfind(' ') {
                start = (at, word.len() - rest.len() + space + 1);
            }
        }
        after_parameters = is_parameters(piece);
    }
    let mut own = pieces.split_off(start.0);
    if let Some(NamePiece::Word(word)) = own.first_mut() {
        *word = word.get(start.1..)?;
        if word.is_empty() {
            own.remove(0);
        }
    }
    // `void (*f(int))(char)`
    own.first().is_some_and(|first| !is_parameters(first)).then_some(own)
}

fn without_parameters(pieces: Vec<NamePiece<'_>>) -> Vec<NamePiece<'_>> {
    let mut after_parameters = false;
    let mut path = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let parameters = is_parameters(&piece);
        match piece {
            NamePiece::Word(word) if after_parameters => path.push(NamePiece::Word(without_qualifiers(word))),
            _ if parameters => {}
            piece => path.push(piece),
        }
        after_parameters = parameters;
    }
    path
}

fn without_qualifiers(mut word: &str) -> &str {
    while let Some(rest) = QUALIFIERS.iter().find_map(|qualifier| word.strip_prefix(qualifier)) {
        word = rest;
    }
    word
}

#[derive(Clone, Copy)]
struct Style {
    /// Characters of a list of template arguments outside of others; longer ones are left out, the innermost first.
    arguments: usize,
    left_out: bool,
    parameters: bool,
    /// A name of Rust: those have no parameters.
    rust: bool,
    /// Of paths only the last name: `Vec` of `alloc::vec::Vec`.
    last_names: bool,
}

impl Style {
    const LONG: Style =
        Style { arguments: usize::MAX, left_out: false, parameters: true, rust: false, last_names: false };
    const SHORT: Style = Style { arguments: 0, parameters: false, ..Style::LONG };

    fn text(self, pieces: &[NamePiece<'_>]) -> String {
        let mut text = String::new();
        for piece in pieces {
            match piece {
                NamePiece::Word(word) if self.last_names => push_last_names(&mut text, word),
                NamePiece::Word(word) => types::push_word(&mut text, word),
                NamePiece::Group(group) if group.open == '<' => self.push_arguments(&mut text, group),
                NamePiece::Group(group) if group.is_unnamed_namespace() => text.push_str("(anon)"),
                NamePiece::Group(group) if group.word().is_some_and(|word| word.starts_with("abi:")) => {}
                NamePiece::Group(group) if group.open == '{' => self.push_braces(&mut text, group),
                NamePiece::Group(group) => {
                    text.push(group.open);
                    text.push_str(&self.items(group).join(", "));
                    text.push(group.close());
                }
            }
        }
        text
    }

    fn items(self, group: &Group<'_>) -> Vec<String> {
        group.items.iter().map(|item| self.text(item).trim().to_owned()).collect()
    }

    /// `{lambda(int)#1}`, `{closure#0}`, `{{closure}}`
    fn push_braces(self, text: &mut String, group: &Group<'_>) {
        let inner: Vec<String> = match (self.parameters, group.items.as_slice()) {
            (false, [item]) if item.first() == Some(&NamePiece::Word("lambda")) => {
                vec![self.text(&item.iter().filter(|it| !is_parameters(it)).cloned().collect::<Vec<_>>())]
            }
            _ => self.items(group),
        };
        let inner = inner.join(", ");
        let closure = !self.parameters && inner.starts_with("closure#");
        text.push_str(&if closure { "{{closure}}".to_owned() } else { format!("{{{inner}}}") });
    }

    fn push_arguments(self, text: &mut String, group: &Group<'_>) {
        // What stands before says whose arguments they are.
        let template = text.rsplit(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).next().unwrap_or_default();
        // `<T as Trait>::f`, `<impl Trait for T>::f`: which function it is.
        let of_rust = self.rust && (text.is_empty() || starts_with_impl(group));
        let inner = Style { arguments: usize::MAX, last_names: self.rust, ..self };
        let mut args = inner.items(group);
        types::drop_defaults(template, &mut args);
        if let Some(name) = types::well_known(template, &args) {
            text.truncate(text.len() - template.len());
            text.push_str(&name);
            return;
        }
        let kept = args.len();
        let fits = |args: &[String]| args.join(", ").chars().count() <= self.arguments;
        if self.left_out {
            args = vec![LEFT_OUT.to_owned()];
        } else if !fits(&args) {
            // Without the arguments of arguments, else without them.
            args = Style { left_out: true, ..inner }.items(group);
            args.truncate(kept);
            if !of_rust && !fits(&args) {
                args = vec![LEFT_OUT.to_owned()];
            }
        }
        text.push('<');
        text.push_str(&args.join(", "));
        text.push('>');
    }
}

fn starts_with_impl(group: &Group<'_>) -> bool {
    let first = group.items.first().and_then(|item| item.first());
    matches!(first, Some(NamePiece::Word(word)) if word.starts_with("impl "))
}

/// `<Vec<T> as Drop>`
fn push_last_names(text: &mut String, word: &str) {
    for (at, path) in word.split(' ').enumerate() {
        if at > 0 {
            text.push(' ');
        }
        // `::Item` of a type before; `std::string` of C++.
        let whole = path.starts_with("::") || path.strip_prefix("std::").is_some_and(|rest| !rest.contains("::"));
        text.push_str(if whole { path } else { path.rsplit("::").next().unwrap_or(path) });
    }
}
