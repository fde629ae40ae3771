//! Demangled names as words and brackets.

/// Brackets deeper than this are not looked into: demanglers stop at 96, and a name may come from anywhere.
const DEEPEST: usize = 96;
/// Longer names are not looked into.
const LONGEST: usize = 8 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NamePiece<'a> {
    /// Anything outside of brackets, with blanks and `::`; names of operators whole.
    Word(&'a str),
    /// Brackets, and between them parts that commas separate.
    Group(Group<'a>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group<'a> {
    pub open: char,
    pub items: Vec<Vec<NamePiece<'a>>>,
}

impl Group<'_> {
    pub(super) const fn close(&self) -> char {
        closing(self.open)
    }

    pub(super) fn word(&self) -> Option<&str> {
        match self.items.as_slice() {
            [item] => match item.as_slice() {
                [NamePiece::Word(word)] => Some(word),
                _ => None,
            },
            _ => None,
        }
    }

    pub(super) fn is_unnamed_namespace(&self) -> bool {
        self.open == '(' && self.word() == Some("anonymous namespace")
    }
}

const fn closing(open: char) -> char {
    match open {
        '<' => '>',
        '(' => ')',
        '[' => ']',
        _ => '}',
    }
}

/// Takes a name apart. `None` if its brackets do not match, or it is not of C++ or Rust.
pub(super) fn parse(name: &str) -> Option<Vec<NamePiece<'_>>> {
    if name.len() > LONGEST {
        return None;
    }
    let mut parser = NameParser { name, at: 0 };
    let pieces = parser.pieces(0, None)?;
    (parser.at == name.len() && pieces.iter().all(is_of_path)).then_some(pieces)
}

/// Whether an unbracketed part may be C++ or Rust: other languages have dots, slashes, single colons or brackets there.
fn is_of_path(piece: &NamePiece<'_>) -> bool {
    match piece {
        NamePiece::Word(word) => {
            let path = word.replace("::", "");
            let symbols = |c: char| c.is_alphanumeric() || "_$~*&' ".contains(c) || !c.is_ascii();
            path.contains("operator") || path.chars().all(symbols)
        }
        NamePiece::Group(group) if group.open == '[' => group.word().is_some_and(|it| it.starts_with("abi:")),
        NamePiece::Group(_) => true,
    }
}

struct NameParser<'a> {
    name: &'a str,
    at: usize,
}

impl<'a> NameParser<'a> {
    fn rest(&self) -> &'a str {
        self.name.get(self.at..).unwrap_or_default()
    }

    fn pieces(&mut self, depth: usize, within: Option<char>) -> Option<Vec<NamePiece<'a>>> {
        let mut pieces = Vec::new();
        let mut word = self.at;
        loop {
            let rest = self.rest();
            let before = self.name.get(..self.at).unwrap_or_default();
            let Some(c) = rest.chars().next() else { break };
            if rest.starts_with("operator") && !before.ends_with(is_of_identifier) {
                self.at += "operator".len();
                self.at += symbol_length(self.rest());
                continue;
            }
            match c {
                '(' | '[' | '{' => {}
                // `(a)<(b)` and `(a)<<(b)` in an expression.
                '<' if before.ends_with(')') && !before.ends_with("operator()") => {
                    self.at += rest.len() - rest.trim_start_matches('<').len();
                    continue;
                }
                '<' => {}
                ')' | ']' | '}' => break,
                '>' if within == Some('<') && !before.ends_with('-') => break,
                ',' if within.is_some() => break,
                _ => {
                    self.at += c.len_utf8();
                    continue;
                }
            }
            if depth == DEEPEST {
                return None;
            }
            push_word(&mut pieces, self.name.get(word..self.at)?);
            pieces.push(NamePiece::Group(self.group(depth, c)?));
            word = self.at;
        }
        push_word(&mut pieces, self.name.get(word..self.at)?);
        Some(pieces)
    }

    fn group(&mut self, depth: usize, open: char) -> Option<Group<'a>> {
        self.at += 1;
        let mut items = Vec::new();
        loop {
            let item = self.pieces(depth + 1, Some(open))?;
            let end = self.rest().chars().next()?;
            self.at += 1;
            if !item.is_empty() || end == ',' {
                items.push(item);
            }
            match end {
                ',' => self.at += usize::from(self.rest().starts_with(' ')),
                end if end == closing(open) => return Some(Group { open, items }),
                _ => return None,
            }
        }
    }
}

fn push_word<'a>(pieces: &mut Vec<NamePiece<'a>>, word: &'a str) {
    // `> >`
    if !word.trim().is_empty() {
        pieces.push(NamePiece::Word(word));
    }
}

fn is_of_identifier(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

/// Length of the symbol of an operator, behind `operator`; 0 for a name that goes on, or `operator int`.
fn symbol_length(rest: &str) -> usize {
    const SYMBOLS: [&str; 45] = [
        "->*",
        "<=>",
        "<<=",
        ">>=",
        "()",
        "[]",
        "->",
        "++",
        "--",
        "<=",
        ">=",
        "==",
        "!=",
        "&&",
        "||",
        "+=",
        "-=",
        "*=",
        "/=",
        "%=",
        "&=",
        "|=",
        "^=",
        ">>",
        "<<",
        "<",
        ">",
        "+",
        "-",
        "*",
        "/",
        "%",
        "&",
        "|",
        "^",
        "~",
        "!",
        "=",
        ",",
        " new[]",
        " delete[]",
        " new",
        " delete",
        "\"\"",
        " co_await",
    ];
    let Some(symbol) = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) else { return 0 };
    // `operator<<int>(...)` is `operator<` of `int`, if it is not an operator that nothing follows but its parameters.
    let after = rest.get(symbol.len()..).unwrap_or_default();
    if *symbol == "<<" && after.starts_with(is_of_identifier) { 1 } else { symbol.len() }
}
