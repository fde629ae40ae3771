//! The terminal: taken at the beginning, given back however it ends.

use std::io::{self, Stdout, stdout};
use std::panic;

use nix::sys::signal::{Signal, raise};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::style::{Color, Modifier, Style};

use crate::style::Tone;

#[derive(Clone, Copy, Debug)]
pub struct TerminalFeatures {
    pub colour: bool,
    pub unicode: bool,
}

impl TerminalFeatures {
    pub fn levels(self) -> &'static [char] {
        if self.unicode {
            &[' ', '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}']
        } else {
            &[' ', '.', ':', '-', '=', '+', '*', '#']
        }
    }

    pub fn parts(self) -> &'static [char] {
        if self.unicode {
            &[' ', '\u{258f}', '\u{258e}', '\u{258d}', '\u{258c}', '\u{258b}', '\u{258a}', '\u{2589}', '\u{2588}']
        } else {
            &[' ', '#']
        }
    }

    pub fn fold(self, open: Option<bool>) -> &'static str {
        match (open, self.unicode) {
            (None, _) => "  ",
            (Some(true), true) => "\u{25be} ",
            (Some(false), true) => "\u{25b8} ",
            (Some(true), false) => "- ",
            (Some(false), false) => "+ ",
        }
    }

    pub fn style(self, tone: Tone) -> Style {
        let style = Style::new();
        match tone {
            Tone::Plain => style,
            Tone::Strong => style.add_modifier(Modifier::BOLD),
            Tone::Faint => style.add_modifier(Modifier::DIM),
            Tone::Good if self.colour => style.fg(Color::Green),
            Tone::Warning if self.colour => style.fg(Color::Yellow),
            Tone::Bad if self.colour => style.fg(Color::Red),
            Tone::Good | Tone::Warning | Tone::Bad => style.add_modifier(Modifier::BOLD),
        }
    }
}

pub struct FullScreen(pub Terminal<CrosstermBackend<Stdout>>);

impl FullScreen {
    /// Takes it: no line editing, no echo, another screen.
    pub fn take() -> io::Result<FullScreen> {
        enter()?;
        let before = panic::take_hook();
        // What is said of a panic must be seen.
        panic::set_hook(Box::new(move |info| {
            leave();
            before(info);
        }));
        Ok(FullScreen(Terminal::new(CrosstermBackend::new(stdout()))?))
    }

    /// Stops this process, as Ctrl-Z does, and takes the terminal again when it goes on.
    pub fn suspend(&mut self) -> io::Result<()> {
        leave();
        raise(Signal::SIGTSTP)?;
        enter()?;
        self.redraw()
    }

    /// Draws everything again. (`Terminal::clear` would ask the terminal for its cursor; the key reader would get
    /// the answer.)
    pub fn redraw(&mut self) -> io::Result<()> {
        execute!(stdout(), Clear(ClearType::All))?;
        self.0 = Terminal::new(CrosstermBackend::new(stdout()))?;
        Ok(())
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        leave();
    }
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen)
}

fn leave() {
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}
