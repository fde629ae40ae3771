//! Durations on the command line: `10`, `1.5s`, `500ms`, `2m`, `1h`.

use std::time::Duration;

/// Maximum duration: a year, far from overflowing any clock.
const MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// Parses a duration. A number without a unit is in seconds.
pub fn parse(text: &str) -> Result<Duration, String> {
    const FORMS: &str = "give a number and ms, s, m or h, as in 500ms, 10, 1.5s, 2m";
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let seconds_per_unit = match unit {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("unknown unit `{unit}`: {FORMS}")),
    };
    // `f64` would also accept signs, exponents, "inf" and "nan".
    let plain = number.chars().all(|c| c.is_ascii_digit() || c == '.') && number.contains(|c: char| c.is_ascii_digit());
    let value: f64 = match number.parse() {
        Ok(value) if plain => value,
        _ => return Err(format!("not a duration: {FORMS}")),
    };
    match Duration::try_from_secs_f64(value * seconds_per_unit) {
        Ok(Duration::ZERO) => Err("a duration of zero collects nothing".to_owned()),
        Ok(duration) if duration <= MAX => Ok(duration),
        _ => Err("more than a year".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_usual_durations() {
        for (text, millis) in [
            ("10", 10_000),
            ("1.5s", 1_500),
            ("500ms", 500),
            ("2m", 120_000),
            ("1h", 3_600_000),
            (".5", 500),
            ("1min", 60_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn refuses_other_text() {
        for text in [
            "",
            "s",
            "-1",
            "0",
            "0ms",
            "1x",
            "1 s",
            "1e3",
            "inf",
            "nan",
            "1.2.3",
            ".",
            "1s2",
            "99999999999999",
            "0.0000000000001",
            "é",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
