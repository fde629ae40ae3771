//! Numbers as people read them.

/// `1234567` as `1,234,567`.
#[must_use]
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A duration with three significant digits: `4.32 s`, `38.1 ms`, `2 min 05 s`, `3 h 04 min`.
#[must_use]
pub fn nanoseconds(ns: u64) -> String {
    // From here on, rounding to three digits would carry into the next unit.
    const MINUTE: u64 = 59_950_000_000;
    match ns {
        0..=999 => format!("{ns} ns"),
        1_000..=999_499 => three_digits(ns as f64 / 1e3, "us"),
        999_500..=999_499_999 => three_digits(ns as f64 / 1e6, "ms"),
        999_500_000..MINUTE => three_digits(ns as f64 / 1e9, "s"),
        _ => {
            let seconds = ns / 1_000_000_000 + u64::from(ns % 1_000_000_000 >= 500_000_000);
            let minutes = seconds / 60;
            if minutes < 60 {
                format!("{minutes} min {:02} s", seconds % 60)
            } else {
                format!("{} h {:02} min", count(minutes / 60), minutes % 60)
            }
        }
    }
}

fn three_digits(value: f64, unit: &str) -> String {
    let decimals = match value {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(12_345_678), "12,345,678");
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn durations() {
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 us"),
            (999_499, "999 us"),
            (999_500, "1.00 ms"),
            (38_100_000, "38.1 ms"),
            (999_600_000, "1.00 s"),
            (9_994_000_000, "9.99 s"),
            (9_996_000_000, "10.0 s"),
            (59_940_000_000, "59.9 s"),
            (59_960_000_000, "1 min 00 s"),
            (125_000_000_000, "2 min 05 s"),
            (11_040_000_000_000, "3 h 04 min"),
        ] {
            assert_eq!(nanoseconds(ns), text);
        }
        assert_eq!(nanoseconds(u64::MAX), "5,124,095 h 34 min");
    }
}
