//! Values of the configuration with a unit or a range. Each type parses itself and names the allowed values, so that
//! messages point at the value.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// Maximum duration, far from overflowing any clock.
const MAX_DURATION: Duration = Duration::from_secs(10 * 366 * DAY);
const DAY: u64 = 24 * 3600;

/// Parses `10s`, `500ms`, `2m`, `12h`, `7d`. Errors: A sentence that names the allowed forms.
pub fn duration(text: &str) -> Result<Duration, String> {
    const FORMS: &str = "a whole number with ms, s, m, h or d, as in \"10s\" or \"7d\"";
    let (number, unit) = number_and_unit(text).ok_or_else(|| format!("a time is {FORMS}, not {text:?}"))?;
    let time = match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" | "min" => number.checked_mul(60).map(Duration::from_secs),
        "h" => number.checked_mul(3600).map(Duration::from_secs),
        "d" => number.checked_mul(DAY).map(Duration::from_secs),
        _ => return Err(format!("a time is {FORMS}, not {text:?}")),
    };
    time.filter(|&time| time <= MAX_DURATION).ok_or_else(|| format!("{text:?} is longer than ten years"))
}

/// Parses `512MiB`, `2GiB`, `4096`.
///
/// # Errors
/// A sentence that names the allowed forms.
pub fn bytes(text: &str) -> Result<u64, String> {
    const FORMS: &str = "a whole number with KiB, MiB, GiB or TiB, as in \"512MiB\"";
    let (number, unit) = number_and_unit(text).ok_or_else(|| format!("a size is {FORMS}, not {text:?}"))?;
    let shift = match unit {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return Err(format!("a size is {FORMS}, not {text:?}")),
    };
    number.checked_mul(1 << shift).filter(|&bytes| bytes < 1 << 60).ok_or_else(|| format!("{text:?} is too large"))
}

fn number_and_unit(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.strip_prefix(' ').unwrap_or(unit)))
}

fn ranged_duration<'de, D: Deserializer<'de>>(from: D, least: &str, most: &str) -> Result<Duration, D::Error> {
    let text = text(from, "a time in quotation marks, as in \"10s\"")?;
    let time = duration(&text).map_err(de::Error::custom)?;
    let fits = duration(least).is_ok_and(|least| least <= time) && duration(most).is_ok_and(|most| time <= most);
    if fits { Ok(time) } else { Err(de::Error::custom(format!("{text:?} is not from {least:?} to {most:?}"))) }
}

fn ranged_bytes<'de, D: Deserializer<'de>>(from: D, least: &str, most: &str) -> Result<u64, D::Error> {
    let text = text(from, "a size in quotation marks, as in \"512MiB\"")?;
    let size = bytes(&text).map_err(de::Error::custom)?;
    let fits = bytes(least).is_ok_and(|least| least <= size) && bytes(most).is_ok_and(|most| size <= most);
    if fits { Ok(size) } else { Err(de::Error::custom(format!("{text:?} is not from {least:?} to {most:?}"))) }
}

/// Reads a string, or fails with what is expected.
fn text<'de, D: Deserializer<'de>>(from: D, expected: &'static str) -> Result<String, D::Error> {
    struct TextVisitor(&'static str);
    impl Visitor<'_> for TextVisitor {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }
    }
    from.deserialize_str(TextVisitor(expected))
}

macro_rules! ranged {
    ($($(#[$doc:meta])* $name:ident($type:ty) by $read:ident from $least:literal to $most:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(pub $type);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                $read(from, $least, $most).map($name)
            }
        }
    )*};
}

ranged! {
    /// Time between two updates of a watch. An hourly file holds many updates, and is incomplete until its last.
    Interval(Duration) by ranged_duration from "1s" to "10m";
    /// Time over which CPU use is averaged before rates are changed.
    Window(Duration) by ranged_duration from "1s" to "1h";
    /// Maximum age of profiles.
    Age(Duration) by ranged_duration from "2h" to "3650d";
    /// Maximum bytes of all profiles together.
    StoreBytes(u64) by ranged_bytes from "1MiB" to "1024TiB";
    /// Memory of the daemon or a part of it. Below 64 MiB the rings and the symbols of a single program do not fit.
    MemoryBytes(u64) by ranged_bytes from "64MiB" to "1024GiB";
}

/// Samples per second of CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(pub u32);

impl Rate {
    /// The maximum rate of a watch, which runs all the time and must cost less than a session of a minute.
    pub const MAX: u32 = 9_999;
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let rate = from.deserialize_i64(Number("a whole number from 1 to 9999"))?;
        // Whole numbers of this size are exact.
        if rate.fract() == 0.0 && (1.0..=f64::from(Rate::MAX)).contains(&rate) {
            return Ok(Rate(rate as u32));
        }
        Err(de::Error::custom(format!("a rate of {rate} is no whole number from 1 to {}", Rate::MAX)))
    }
}

/// Maximum cost of sampling in percent of the CPU time of the watched processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchOverhead(pub ccsd_collector::Overhead);

impl<'de> Deserialize<'de> for WatchOverhead {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let percent = from.deserialize_f64(Number("a number of percent from 0.01 to 25"))?;
        ccsd_collector::Overhead::percent(percent).map(WatchOverhead).map_err(de::Error::custom)
    }
}

/// Reads a number, or fails with what is expected.
struct Number(&'static str);

impl Visitor<'_> for Number {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<f64, E> {
        Ok(number as f64)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<f64, E> {
        Ok(number)
    }
}

/// Percent of one CPU.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct CpuPercent(pub f64);

impl<'de> Deserialize<'de> for CpuPercent {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let percent = from.deserialize_f64(Number("a number from 0.1 to 100000"))?;
        if (0.1..=100_000.0).contains(&percent) {
            Ok(CpuPercent(percent))
        } else {
            Err(de::Error::custom(format!("{percent} is not from 0.1 to 100000 percent of one CPU")))
        }
    }
}

/// Name of a watch, of its directory, and on command lines.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatchName(pub String);

impl WatchName {
    /// Whether a name has 1 to 64 letters, digits, `.`, `_` and `-`, beginning with a letter or digit.
    #[must_use]
    pub fn is_valid(name: &str) -> bool {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        name.len() <= 64 && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(plain)
    }
}

impl<'de> Deserialize<'de> for WatchName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = text(from, "a name in quotation marks")?;
        if name.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() {
            let why = "a number means a session or a process on command lines";
            return Err(de::Error::custom(format!("{name:?} cannot name a watch: {why}")));
        }
        if name == "all" {
            return Err(de::Error::custom("\"all\" cannot name a watch: it means all watches on command lines"));
        }
        if WatchName::is_valid(&name) {
            return Ok(WatchName(name));
        }
        let allowed = "1 to 64 letters, digits, `.`, `_` and `-`, the first a letter or digit";
        Err(de::Error::custom(format!("{name:?} cannot name a watch: a name has {allowed}")))
    }
}

/// An absolute path: a service has no directory of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbsolutePath(pub std::path::PathBuf);

impl<'de> Deserialize<'de> for AbsolutePath {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let path = text(from, "a path in quotation marks")?;
        if path.starts_with('/') && path.len() < 4096 && !path.contains('\0') {
            return Ok(AbsolutePath(path.into()));
        }
        Err(de::Error::custom(format!("{path:?} is not an absolute path")))
    }
}

/// A pattern for the text of a selector: `*` matches any characters, `?` one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectorPattern(pub String);

impl<'de> Deserialize<'de> for SelectorPattern {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let pattern = text(from, "a name or pattern in quotation marks")?;
        if (1..=4096).contains(&pattern.len()) {
            return Ok(SelectorPattern(pattern));
        }
        Err(de::Error::custom("a name or pattern has 1 to 4096 bytes"))
    }
}

/// Users whose processes a watch matches, by name or number; `*` matches all. One user or a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserSelector(pub Vec<String>);

impl Default for UserSelector {
    fn default() -> Self {
        UserSelector(vec!["root".to_owned()])
    }
}

impl fmt::Display for UserSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

impl<'de> Deserialize<'de> for UserSelector {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct UserNames;
        impl<'de> Visitor<'de> for UserNames {
            type Value = UserSelector;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name or number of a user, a list of them, or \"*\" for any user")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<UserSelector, E> {
                let plain = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '*' | '?' | ':' | ',');
                if name == "*" || ((1..=256).contains(&name.len()) && name.chars().all(plain)) {
                    return Ok(UserSelector(vec![name.to_owned()]));
                }
                Err(E::custom(format!("{name:?} names no user: a name, a number, or \"*\" for any user")))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<UserSelector, E> {
                let number = u32::try_from(number).map_err(|_| E::custom(format!("{number} is no user's number")))?;
                Ok(UserSelector(vec![number.to_string()]))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<UserSelector, A::Error> {
                let mut users = Vec::new();
                while let Some(UserSelector(user)) = list.next_element()? {
                    users.extend(user);
                }
                match users.len() {
                    1..=100 => Ok(UserSelector(users)),
                    many => Err(de::Error::custom(format!("a list of users has 1 to 100, not {many}"))),
                }
            }
        }
        from.deserialize_any(UserNames)
    }
}

/// The event that a watch samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WatchEvent {
    /// Hardware cycles, or the CPU clock where there are none.
    #[default]
    Auto,
    /// Hardware cycles only.
    Cycles,
    /// The CPU clock.
    Clock,
    /// The scheduler's tick, which costs almost nothing.
    Tick,
}

/// How the events of a watch are spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WatchLayout {
    /// Over threads, until they turn out to live too short to be sampled; then over CPUs.
    #[default]
    Auto,
    /// Over the threads of the matching processes.
    Threads,
    /// Over all CPUs, whatever runs there. Samples of other processes are dropped.
    Cpus,
}

/// A set of processes that has a name of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WatchMatch {
    /// All processes of all users, and the kernel's threads.
    Everything,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (text, ms) in [
            ("500ms", 500),
            ("10s", 10_000),
            ("10 s", 10_000),
            ("2m", 120_000),
            ("12h", 12 * 3_600_000),
            ("7d", 7 * 86_400_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "10", "1.5s", "-1s", "1w", "99999999999999999999s", "18446744073709551615d", "3661d"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes() {
        for (text, size) in [("4096", 4096), ("1KiB", 1024), ("2 GiB", 2 << 30), ("0B", 0)] {
            assert_eq!(bytes(text), Ok(size), "{text}");
        }
        for text in ["", "KiB", "1kb", "1GB", "-1", "1.5GiB", "18446744073709551615", "17592186044416TiB"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn users() {
        #[derive(serde::Deserialize)]
        struct User {
            user: UserSelector,
        }
        let read = |value: &str| toml::from_str::<User>(&format!("user = {value}")).map(|user| user.user.0);
        for (value, users) in [
            ("\"root\"", vec!["root"]),
            ("33", vec!["33"]),
            ("\"*\"", vec!["*"]),
            ("[\"root\", \"www-data\", 7]", vec!["root", "www-data", "7"]),
        ] {
            assert_eq!(read(value).unwrap(), users, "{value}");
        }
        for value in ["\"\"", "[]", "-1", "4294967296", "\"www-*\"", "\"a b\"", "true", "[1.5]", "[[1, 2], 3, {}]"] {
            assert!(read(value).is_err(), "{value}");
        }
    }

    #[test]
    fn names_of_watches() {
        for name in ["nginx", "a", "0-b.c_d"] {
            assert!(WatchName::is_valid(name), "{name}");
        }
        for name in ["", ".", "..", "-x", "a/b", "a b", "é", &"x".repeat(65)] {
            assert!(!WatchName::is_valid(name), "{name}");
        }
    }
}
