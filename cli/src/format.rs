//! Formats counts, bytes, durations, dates, shares, and weights in a common unit.

use std::time::Duration;

use ccsd_profile::Unit;
pub use ccsd_profile::numbers::{count, nanoseconds};
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// A count with its noun: `1 sample`, `2,000 samples`.
pub fn counted(n: u64, singular: &str, plural: &str) -> String {
    format!("{} {}", count(n), if n == 1 { singular } else { plural })
}

/// `34.2 KiB`; bytes below 1 KiB without a fraction.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        // 1023.95 would print as 1024.0.
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

pub fn duration(duration: Duration) -> String {
    nanoseconds(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

pub fn moment(unix_ns: u64) -> String {
    moment_in(unix_ns, &TimeZone::system())
}

pub fn moment_in(unix_ns: u64, zone: &TimeZone) -> String {
    let at = Timestamp::from_nanosecond(unix_ns.into()).unwrap_or(Timestamp::MAX).to_zoned(zone.clone());
    let form = if at.offset().is_zero() { "%Y-%m-%d %H:%M:%S UTC" } else { "%Y-%m-%d %H:%M:%S%:z" };
    at.strftime(form).to_string()
}

/// A fraction as percent with two decimals, without the sign: `45.12`.
pub fn percent(fraction: f64) -> String {
    format!("{:.2}", fraction * 100.0)
}

/// `a` in percent of `b`: `0.88%`; `-` where there is nothing to compare with.
pub fn ratio(a: u64, b: u64) -> String {
    if b == 0 { "-".to_owned() } else { format!("{}%", percent(a as f64 / b as f64)) }
}

const DEEPEST_INDENT: usize = 40;

pub fn indent(depth: usize) -> String {
    match depth.checked_sub(DEEPEST_INDENT) {
        None | Some(0) => " ".repeat(depth),
        Some(more) => format!("{}+{more} ", " ".repeat(DEEPEST_INDENT)),
    }
}

/// The common unit of the weights in a table, so that they compare at a glance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnitScale {
    pub unit: &'static str,
    divisor: f64,
    decimals: usize,
}

impl UnitScale {
    pub fn new(unit: Unit, largest: u64) -> UnitScale {
        let in_steps = |steps: [(u64, &'static str, usize); 4]| {
            let [.., last] = steps;
            let (divisor, unit, decimals) = steps.into_iter().find(|step| largest >= step.0).unwrap_or(last);
            UnitScale { unit, divisor: divisor as f64, decimals }
        };
        // Three decimals of a second or a gigacycle are about one sample at the default rate.
        match unit {
            Unit::Nanoseconds => {
                in_steps([(1_000_000_000, "s", 3), (1_000_000, "ms", 2), (1_000, "us", 2), (1, "ns", 0)])
            }
            Unit::Cycles => in_steps([
                (1_000_000_000, "Gcycles", 3),
                (1_000_000, "Mcycles", 2),
                (1_000, "kcycles", 2),
                (1, "cycles", 0),
            ]),
            Unit::Count => UnitScale { unit: "count", divisor: 1.0, decimals: 0 },
            Unit::Unknown => UnitScale { unit: "", divisor: 1.0, decimals: 0 },
        }
    }

    /// Total and self weight of a function, each with its share: `total 1.20 s (60.00%), self 0.40 s (20.00%)`.
    pub fn total_and_self(&self, total: (u64, f64), own: (u64, f64)) -> String {
        let of = |(weight, share)| format!("{} {} ({}%)", self.weight(weight), self.unit, percent(share));
        format!("total {}, self {}", of(total), of(own))
    }

    pub fn weight(&self, weight: u64) -> String {
        if self.decimals == 0 {
            return count(weight);
        }
        let text = format!("{:.*}", self.decimals, weight as f64 / self.divisor);
        match text.split_once('.') {
            Some((whole, fraction)) => match whole.parse() {
                Ok(whole) => format!("{}.{fraction}", count(whole)),
                Err(_) => text,
            },
            None => text,
        }
    }
}

pub fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Nanoseconds => "ns",
        Unit::Cycles => "cycles",
        Unit::Count => "count",
        Unit::Unknown => "",
    }
}

pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%^".contains(c) || !c.is_ascii();
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        assert_eq!(counted(1, "sample", "samples"), "1 sample");
        assert_eq!(counted(1000, "sample", "samples"), "1,000 samples");
    }

    #[test]
    fn sizes() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024), "1.0 KiB");
        assert_eq!(bytes(1024 * 1024 - 1), "1.0 MiB");
        assert_eq!(bytes(u64::MAX), "16384.0 PiB");
    }

    #[test]
    fn moments() {
        assert_eq!(moment_in(0, &TimeZone::UTC), "1970-01-01 00:00:00 UTC");
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        assert_eq!(moment_in(951_782_400_000_000_000, &zone), "2000-02-29 01:00:00+01:00");
        assert_eq!(moment_in(1_750_000_000_000_000_000, &zone), "2025-06-15 17:06:40+02:00");
        assert_eq!(moment_in(u64::MAX, &TimeZone::UTC), "2554-07-21 23:34:33 UTC");
    }

    #[test]
    fn scales() {
        let seconds = UnitScale::new(Unit::Nanoseconds, 4_312_000_000);
        assert_eq!((seconds.unit, seconds.weight(1_001_001)), ("s", "0.001".to_owned()));
        assert_eq!(seconds.weight(4_312_000_000_000), "4,312.000");
        let millis = UnitScale::new(Unit::Nanoseconds, 999_000_000);
        assert_eq!((millis.unit, millis.weight(1_001_001)), ("ms", "1.00".to_owned()));
        assert_eq!(UnitScale::new(Unit::Nanoseconds, 0).weight(0), "0");
        assert_eq!(UnitScale::new(Unit::Cycles, 5_000_000_000).unit, "Gcycles");
        assert_eq!(UnitScale::new(Unit::Count, 5_000_000_000).weight(5_000), "5,000");
    }

    #[test]
    fn words() {
        assert_eq!(shell_word("-O2"), "-O2");
        assert_eq!(shell_word("a b"), "'a b'");
        assert_eq!(shell_word("it's"), r"'it'\''s'");
        assert_eq!(shell_word(""), "''");
    }
}
