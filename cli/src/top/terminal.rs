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

/// The terminal while it is ours.
pub struct FullScreen(pub Terminal<CrosstermBackend<Stdout>>);

impl FullScreen {
    /// Takes it: no line editing, no echo, another screen.
    ///
    /// # Errors
    /// It is none, or has gone.
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
    ///
    /// # Errors
    /// As [`FullScreen::take`].
    pub fn suspend(&mut self) -> io::Result<()> {
        leave();
        raise(Signal::SIGTSTP)?;
        enter()?;
        self.redraw()
    }

    /// Has everything drawn anew. (Not by `Terminal::clear`, which asks the terminal where its cursor is: the answer would
    /// go to the thread that reads the keys.)
    ///
    /// # Errors
    /// The terminal has gone.
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
