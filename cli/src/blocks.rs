//! Heights as block characters.

use crate::style::has_unicode;

#[derive(Clone, Copy)]
pub struct Blocks(&'static [char]);

impl Blocks {
    const UNICODE: Blocks =
        Blocks(&[' ', '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}']);
    const ASCII: Blocks = Blocks(&[' ', '.', ':', '-', '=', '+', '*', '#', '@']);

    pub fn from_locale() -> Blocks {
        if has_unicode() { Self::UNICODE } else { Self::ASCII }
    }

    /// Draws any weight above zero visibly.
    pub fn draw(self, heights: &[f64], most: f64) -> String {
        let steps = self.0.len() - 1;
        let level = |height: f64| match height {
            h if h <= 0.0 || most <= 0.0 => 0,
            h => ((h / most * steps as f64).round() as usize).clamp(1, steps),
        };
        heights.iter().filter_map(|&height| self.0.get(level(height))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_show_what_is_not_nothing() {
        assert_eq!(Blocks::ASCII.draw(&[0.0, 0.001, 0.5, 1.0], 1.0), " .=@");
        assert_eq!(Blocks::UNICODE.draw(&[0.0, 0.001, 0.5, 1.0], 1.0), " \u{2581}\u{2584}\u{2588}");
        assert_eq!(Blocks::ASCII.draw(&[0.0], 0.0), " ");
    }
}
