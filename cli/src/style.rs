//! Where output goes: whether it may have colour, and how wide it may be.

use std::env;
use std::io::IsTerminal;
use std::os::fd::AsFd;

use terminal_size::{Width, terminal_size_of};

/// When to use colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// What a piece of text means; colours follow from that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Nothing special.
    #[default]
    Plain,
    /// Heads of columns, the function that others are listed around.
    Strong,
    /// What one may skip.
    Faint,
    /// Fine.
    Good,
    /// To be noticed.
    Warning,
    /// Wrong.
    Bad,
}

/// How to lay out text for one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Columns of the terminal; `None` where there is none and nothing is to be cut.
    pub width: Option<usize>,
    pub colour: bool,
}

/// Narrower terminals are treated as this wide: below it a table is no table, and wrapped lines are the lesser evil.
const MIN_WIDTH: usize = 60;
/// Width of a terminal that does not say.
const DEFAULT_WIDTH: usize = 80;

impl Layout {
    /// The layout for a stream of ours.
    pub fn of(stream: &(impl IsTerminal + AsFd), choice: ColorChoice) -> Layout {
        let terminal = stream.is_terminal();
        let width = terminal.then(|| {
            let told = terminal_size_of(stream).map(|(Width(columns), _)| usize::from(columns)).filter(|&w| w > 0);
            told.unwrap_or(DEFAULT_WIDTH).max(MIN_WIDTH)
        });
        let set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
        let colour = match choice {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            // https://no-color.org; and a terminal that calls itself dumb is believed.
            ColorChoice::Auto => terminal && !set("NO_COLOR") && env::var_os("TERM").is_none_or(|term| term != "dumb"),
        };
        Layout { width, colour }
    }

    /// For text that goes to a file: nothing cut, no colour.
    #[cfg(test)]
    pub const PLAIN: Layout = Layout { width: None, colour: false };

    /// Whether a person is looking, who would rather have a page than everything.
    pub fn is_terminal(self) -> bool {
        self.width.is_some()
    }

    /// `text` in the colour of `tone`.
    pub fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Plain => "",
            Tone::Strong => "1",
            Tone::Faint => "2",
            Tone::Good => "32",
            Tone::Warning => "33",
            Tone::Bad => "31",
        };
        if self.colour && !code.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
