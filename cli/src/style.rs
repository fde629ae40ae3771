//! Colour and width of output streams.

use std::env;
use std::io::IsTerminal;
use std::os::fd::AsFd;

use terminal_size::{Height, Width, terminal_size_of};

/// Whether the locale has more than ASCII: `LC_ALL`, `LC_CTYPE`, `LANG`, the first that is set (locale(7)).
pub fn has_unicode() -> bool {
    let set = |name: &&str| env::var_os(name).filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set);
    let locale = locale.map(|locale| locale.to_string_lossy().to_ascii_lowercase());
    locale.is_some_and(|locale| locale.contains("utf-8") || locale.contains("utf8"))
}

pub fn terminal_rows(stream: &(impl IsTerminal + AsFd)) -> Option<usize> {
    let size = stream.is_terminal().then(|| terminal_size_of(stream)).flatten();
    size.map(|(_, Height(rows))| usize::from(rows)).filter(|&rows| rows > 0)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    Always,
    Never,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Plain,
    /// Heads of columns, and the function that others are listed around.
    Strong,
    Faint,
    Good,
    Warning,
    Bad,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextLayout {
    /// Columns of the terminal; `None` without a terminal, where nothing is cut.
    pub width: Option<usize>,
    pub colour: bool,
}

/// Minimum width: on narrower terminals, wrapped lines are better than cut tables.
const MIN_WIDTH: usize = 60;
const DEFAULT_WIDTH: usize = 80;

impl TextLayout {
    pub fn of(stream: &(impl IsTerminal + AsFd), choice: ColorChoice) -> TextLayout {
        let terminal = stream.is_terminal();
        let width = terminal.then(|| {
            let told = terminal_size_of(stream).map(|(Width(columns), _)| usize::from(columns)).filter(|&w| w > 0);
            told.unwrap_or(DEFAULT_WIDTH).max(MIN_WIDTH)
        });
        let set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
        let colour = match choice {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            // https://no-color.org and TERM=dumb disable colour.
            ColorChoice::Auto => terminal && !set("NO_COLOR") && env::var_os("TERM").is_none_or(|term| term != "dumb"),
        };
        TextLayout { width, colour }
    }

    /// For files: nothing cut, no colour.
    #[cfg(test)]
    pub const PLAIN: TextLayout = TextLayout { width: None, colour: false };

    pub fn is_terminal(self) -> bool {
        self.width.is_some()
    }

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

    /// `text` in black on one of the 256 colours of terminals.
    pub fn paint_on(self, background: u8, text: &str) -> String {
        if self.colour { format!("\x1b[38;5;16;48;5;{background}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
