//! Finds the command and argument at the cursor.

use clap::{Arg, Command};

#[derive(Clone, Copy, Debug)]
pub enum CursorSlot<'a> {
    Option,
    /// A positional argument, or the name of a command if there is none.
    Positional(Option<&'a Arg>),
    Value(&'a Arg),
    ProgramArgument,
}

/// The words of a command line up to the cursor, parsed by the definition of the arguments.
#[derive(Debug)]
pub struct TypedLine<'a> {
    pub root: &'a Command,
    pub command: &'a Command,
    pub slot: CursorSlot<'a>,
    /// The part of the last word that completion keeps, such as `--view=`.
    pub kept: String,
    pub typed: String,
    /// Ids and values of earlier arguments; flags have no value.
    pub given: Vec<(&'a str, String)>,
    /// Whether a positional argument may still be the name of a command.
    pub takes_command: bool,
}

struct PendingOption<'a> {
    option: &'a Arg,
    values: usize,
}

impl PendingOption<'_> {
    fn is_satisfied(&self) -> bool {
        self.values >= self.option.get_num_args().map_or(1, |range| range.min_values())
    }

    fn is_full(&self) -> bool {
        self.values >= max_values(self.option)
    }
}

fn max_values(argument: &Arg) -> usize {
    argument.get_num_args().map_or(1, |range| range.max_values())
}

fn takes_value(argument: &Arg) -> bool {
    max_values(argument) > 0 && argument.get_action().takes_values()
}

fn option_by_name<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|argument| {
        argument.get_long() == Some(name) || argument.get_all_aliases().is_some_and(|all| all.contains(&name))
    })
}

fn option_by_letter(command: &Command, letter: char) -> Option<&Arg> {
    command.get_arguments().find(|argument| {
        argument.get_short() == Some(letter)
            || argument.get_all_short_aliases().is_some_and(|all| all.contains(&letter))
    })
}

struct WordReader<'a> {
    command: &'a Command,
    pending: Option<PendingOption<'a>>,
    position: usize,
    is_escaped: bool,
    is_program_argument: bool,
    given: Vec<(&'a str, String)>,
}

impl<'a> WordReader<'a> {
    fn positional(&self) -> Option<&'a Arg> {
        self.command.get_positionals().nth(self.position)
    }

    fn takes_command(&self) -> bool {
        self.position == 0 && !self.is_escaped
    }

    fn give(&mut self, argument: &'a Arg, value: &str) {
        self.given.push((argument.get_id().as_str(), value.to_owned()));
    }

    fn read(&mut self, word: &str) {
        if self.is_program_argument {
            return;
        }
        if let Some(mut pending) = self.pending.take()
            && !(pending.is_satisfied() && word.starts_with('-'))
        {
            self.give(pending.option, word);
            pending.values += 1;
            self.pending = Some(pending).filter(|pending| !pending.is_full());
            return;
        }
        if self.is_escaped || word == "-" || !word.starts_with('-') {
            self.read_positional(word);
        } else if word == "--" {
            self.is_escaped = true;
        } else if let Some(long) = word.strip_prefix("--") {
            let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            let Some(option) = option_by_name(self.command, name) else { return };
            match value {
                None if takes_value(option) => self.pending = Some(PendingOption { option, values: 0 }),
                _ => self.give(option, value.unwrap_or_default()),
            }
        } else {
            self.read_letters(word);
        }
    }

    fn read_letters(&mut self, word: &str) {
        for (at, letter) in word.char_indices().skip(1) {
            let Some(option) = option_by_letter(self.command, letter) else { return };
            if takes_value(option) {
                match word.get(at + letter.len_utf8()..).unwrap_or_default() {
                    "" => self.pending = Some(PendingOption { option, values: 0 }),
                    value => self.give(option, value.strip_prefix('=').unwrap_or(value)),
                }
                return;
            }
            self.give(option, "");
        }
    }

    fn read_positional(&mut self, word: &str) {
        if self.takes_command()
            && let Some(command) = self.command.find_subcommand(word)
        {
            (self.command, self.position) = (command, 0);
            return;
        }
        let Some(argument) = self.positional() else { return };
        self.give(argument, word);
        self.is_program_argument = argument.is_trailing_var_arg_set();
        if max_values(argument) <= 1 {
            self.position += 1;
        }
    }

    /// The slot at the cursor if the last word is `word`, and the length of the option's name in that word.
    fn slot(&self, word: &str) -> (CursorSlot<'a>, usize) {
        if self.is_program_argument {
            return (CursorSlot::ProgramArgument, 0);
        }
        let is_option = word.starts_with('-') && !self.is_escaped;
        if let Some(pending) = &self.pending
            && !(pending.is_satisfied() && is_option)
        {
            return (CursorSlot::Value(pending.option), 0);
        }
        if !is_option {
            return (CursorSlot::Positional(self.positional()), 0);
        }
        let named = word.strip_prefix("--").and_then(|long| long.split_once('='));
        match named.and_then(|(name, _)| Some((name, option_by_name(self.command, name)?))) {
            Some((name, option)) => (CursorSlot::Value(option), "--=".len() + name.len()),
            None => (CursorSlot::Option, 0),
        }
    }
}

impl<'a> TypedLine<'a> {
    /// Finds the cursor at the last of `words`, which follow `command`'s own name. The command must be built.
    pub fn new(command: &'a Command, mut words: Vec<String>) -> TypedLine<'a> {
        let last = words.pop().unwrap_or_default();
        let mut reader = WordReader {
            command,
            pending: None,
            position: 0,
            is_escaped: false,
            is_program_argument: false,
            given: Vec::new(),
        };
        words.iter().for_each(|word| reader.read(word));
        let (slot, kept) = reader.slot(&last);
        let (kept, typed) = last.split_at_checked(kept).unwrap_or(("", &last));
        TypedLine {
            root: command,
            command: reader.command,
            slot,
            kept: kept.to_owned(),
            typed: typed.to_owned(),
            takes_command: reader.takes_command(),
            given: reader.given,
        }
    }

    pub fn argument(&self) -> Option<&'a Arg> {
        match self.slot {
            CursorSlot::Value(argument) => Some(argument),
            CursorSlot::Positional(argument) => argument,
            CursorSlot::Option | CursorSlot::ProgramArgument => None,
        }
    }

    pub fn value(&self, id: &str) -> Option<&str> {
        self.given.iter().rfind(|(given, _)| *given == id).map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;

    fn at(line: &str) -> (String, String, String) {
        let mut command = Cli::grouped();
        command.build();
        let cursor = TypedLine::new(&command, line.split(' ').map(str::to_owned).collect());
        let slot = match cursor.slot {
            CursorSlot::Option => "an option".to_owned(),
            CursorSlot::ProgramArgument => "an argument".to_owned(),
            CursorSlot::Positional(None) => "nothing".to_owned(),
            CursorSlot::Positional(Some(argument)) => argument.get_id().to_string(),
            CursorSlot::Value(argument) => format!("--{}", argument.get_long().unwrap()),
        };
        (cursor.command.get_name().to_owned(), slot, cursor.typed)
    }

    #[test]
    fn the_argument_at_the_cursor() {
        for (line, command, slot, typed) in [
            ("", "ccsd", "nothing", ""),
            ("rep", "ccsd", "nothing", "rep"),
            ("--color ", "ccsd", "--color", ""),
            ("--color never re", "ccsd", "nothing", "re"),
            ("report ", "report", "source", ""),
            ("report a.ccsd ", "report", "nothing", ""),
            ("report --gr", "report", "an option", "--gr"),
            ("report --view=gr", "report", "--view", "gr"),
            ("report --view gr", "report", "--view", "gr"),
            ("report --total --function pa", "report", "--function", "pa"),
            ("report -n 5 ", "report", "source", ""),
            ("report -n5 --json -", "report", "an option", "-"),
            ("record -F", "record", "an option", "-F"),
            ("record -F ", "record", "--frequency", ""),
            ("record -vF 99 --output x.", "record", "--output", "x."),
            ("record ", "record", "program", ""),
            ("record -- --fo", "record", "program", "--fo"),
            ("record ls --col", "record", "an argument", "--col"),
            ("record -F 99 -- ls ", "record", "an argument", ""),
            ("record -F --nonsense x", "record", "program", "x"),
            ("annotate pa", "annotate", "function", "pa"),
            ("annotate parse ", "annotate", "source", ""),
            ("attach 1 2 ", "attach", "processes", ""),
            ("diff --before a b ", "diff", "--before", ""),
            ("diff --before a --af", "diff", "an option", "--af"),
            ("diff --before a -- x", "diff", "sources", "x"),
            ("daemon st", "daemon", "nothing", "st"),
            ("daemon stop session:", "stop", "sessions", "session:"),
            ("daemon --grace 1s ", "daemon", "nothing", ""),
            ("report --since -", "report", "--since", "-"),
            ("nonsense --x ", "ccsd", "nothing", ""),
        ] {
            assert_eq!(at(line), (command.to_owned(), slot.to_owned(), typed.to_owned()), "{line:?}");
        }
    }

    #[test]
    fn values_given_before() {
        let mut command = Cli::grouped();
        command.build();
        let words = ["report", "--socket=/s", "--hide", "a", "x.ccsd", "--function", ""];
        let cursor = TypedLine::new(&command, words.map(str::to_owned).to_vec());
        assert_eq!(cursor.value("source"), Some("x.ccsd"));
        assert_eq!((cursor.value("socket"), cursor.value("hide")), (Some("/s"), Some("a")));
        assert_eq!(cursor.value("watch"), None);
    }
}
