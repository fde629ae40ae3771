//! Times and time ranges on the command line: `03:10`, `-1h`, `2026-11-21 03:10`, `-25h..-24h`. Without an offset they
//! are local, including days of 23 and 25 hours.

use std::ops::Deref;
use std::str::FromStr;

use ccsd_daemon::store::TimeRange;
use ccsd_profile::TimeWindow;
use jiff::civil::{Date, DateTime, Time};
use jiff::{Span, Timestamp, ToSpan, Zoned};

/// A time of day may be up to this long before the start of its file.
const HALF_A_DAY_NS: u64 = 12 * 3600 * 1_000_000_000;

const FILE_FORMS: &str = "of a file, a time is +10s from its start, -10s before its end, 03:10, 2026-11-21T03:10, with Z or \
                          +02:00 if it is not local, or @ and seconds since 1970";

const FORMS: &str = "a time is 03:10, -1h, -2d, today, yesterday, 2026-11-21, 2026-11-21T03:10, with Z or +02:00 if it is not \
                     local, or @ and seconds since 1970";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct When(String);

impl Deref for When {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<When, String> {
        let now = Zoned::now();
        let is_offset = |text: &str| text.strip_prefix(['+', '-']).is_some_and(|offset| offset_ns(offset).is_some());
        for end in text.splitn(2, "..").filter_map(some).filter(|end| !is_offset(end)) {
            point(end, &now).map_err(|_| format!("{end:?} is no time: {FORMS}; {FILE_FORMS}"))?;
        }
        Ok(When(text.to_owned()))
    }
}

enum TimePoint {
    At(Timestamp),
    /// A time of day, whose date depends on the context.
    OfDay(Time),
}

/// Parses `--since` and `--until`; `since` may also be a range. A missing end is open.
pub fn range(since: Option<&str>, until: Option<&str>, now: &Zoned) -> Result<TimeRange, String> {
    let (since, until) = ends(since, until)?;
    let from = match since.map(|text| point(text, now)).transpose()? {
        None => None,
        Some(TimePoint::At(at)) => Some(at),
        Some(TimePoint::OfDay(time)) => Some(last(time, now)?),
    };
    let end = match until.map(|text| point(text, now)).transpose()? {
        None => None,
        Some(TimePoint::At(at)) => Some(at),
        Some(TimePoint::OfDay(time)) => Some(match from {
            Some(from) => first_after(time, &from.to_zoned(now.time_zone().clone()))?,
            None => last(time, now)?,
        }),
    };
    let range = TimeRange { from: from.map_or(0, nanoseconds), until: end.map_or(u64::MAX, nanoseconds) };
    if range.from >= range.until {
        return Err(swapped(since.unwrap_or_default(), until.unwrap_or_default()));
    }
    if let (Some(Ok(since)), Some(Ok(until))) = (since.map(str::parse::<Time>), until.map(str::parse::<Time>))
        && until < since
        && end.is_some_and(|end| end > now.timestamp())
        && range.until - range.from > HALF_A_DAY_NS
    {
        // The end is on the next day, as for an evening until the next morning; but that is yet to come.
        return Err(swapped(&since.to_string(), &until.to_string()));
    }
    if from.is_some_and(|from| from > now.timestamp()) {
        return Err(format!("{} is in the future", since.unwrap_or_default()));
    }
    Ok(range)
}

/// Parses `--since` and `--until` for a file of `length_ns` from `started_unix_ns`: the times of [`range`], offsets
/// from its start (`+1m30s`) and its end (`-10s`). A time of day is the one nearest to the start.
pub fn window(
    since: Option<&str>,
    until: Option<&str>,
    (started_unix_ns, length_ns): (u64, u64),
    now: &Zoned,
) -> Result<TimeWindow, String> {
    let (since, until) = ends(since, until)?;
    let at = |text: &str| -> Result<u64, String> {
        let wrong = || format!("{text:?} is no time: {FILE_FORMS}");
        if let Some(offset) = text.strip_prefix('+') {
            return offset_ns(offset).ok_or_else(wrong);
        }
        if let Some(offset) = text.strip_prefix('-') {
            return Ok(length_ns.saturating_sub(offset_ns(offset).ok_or_else(wrong)?));
        }
        let unix_ns = match point(text, now).map_err(|_| wrong())? {
            TimePoint::At(at) => nanoseconds(at),
            TimePoint::OfDay(time) => {
                let from = Timestamp::from_nanosecond(started_unix_ns.saturating_sub(HALF_A_DAY_NS).into());
                let from = from.map_err(|error| error.to_string())?;
                nanoseconds(first_after(time, &from.to_zoned(now.time_zone().clone()))?)
            }
        };
        Ok(unix_ns.saturating_sub(started_unix_ns))
    };
    let from_ns = since.map(at).transpose()?.unwrap_or(0);
    let until_ns = until.map(at).transpose()?.unwrap_or(u64::MAX);
    if from_ns >= until_ns {
        return Err(swapped(since.unwrap_or("its start"), until.unwrap_or_default()));
    }
    Ok(TimeWindow { from_ns, until_ns })
}

fn swapped(since: &str, until: &str) -> String {
    format!("the time from {since} until {until} is empty: the end is not after the beginning; are the ends swapped?")
}

/// `10`, `10s`, `1.5s`, `500ms`, `1m30s`; the default unit is seconds.
fn offset_ns(text: &str) -> Option<u64> {
    let mut sum = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let unit = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let number: f64 = number.parse().ok().filter(|number| (0.0..=1e9).contains(number))?;
        sum += number
            * match unit {
                "ms" => 1e6,
                "s" => 1e9,
                "" if after.is_empty() && text.len() == digits => 1e9,
                "m" | "min" => 60e9,
                "h" => 3600e9,
                "d" => 86_400e9,
                _ => return None,
            };
        rest = after;
    }
    // Rounded, so that a time given to the nanosecond is exact.
    (!text.is_empty()).then_some(sum.round() as u64)
}

fn nanoseconds(at: Timestamp) -> u64 {
    u64::try_from(at.as_nanosecond()).unwrap_or(0)
}

/// Splits into both ends; `since` may be a range.
fn ends<'a>(since: Option<&'a str>, until: Option<&'a str>) -> Result<(Option<&'a str>, Option<&'a str>), String> {
    match since.and_then(|text| text.split_once("..")) {
        Some(_) if until.is_some() => Err("a range has its end already: --until is one too many".to_owned()),
        Some((since, until)) => Ok((some(since), some(until))),
        None => Ok((since, until)),
    }
}

fn some(text: &str) -> Option<&str> {
    Some(text.trim()).filter(|text| !text.is_empty())
}

fn point(text: &str, now: &Zoned) -> Result<TimePoint, String> {
    let as_printed = text.trim().strip_suffix(" UTC").map(|text| format!("{text}Z"));
    let text = as_printed.as_deref().unwrap_or(text.trim());
    let wrong = || format!("{text:?} is no time: {FORMS}");
    let midnight = |date: Date| date.to_zoned(now.time_zone().clone()).map(|at| TimePoint::At(at.timestamp()));
    match text {
        "now" => return Ok(TimePoint::At(now.timestamp())),
        "today" => return midnight(now.date()).map_err(|_| wrong()),
        "yesterday" => {
            let date = now.date().yesterday().map_err(|_| wrong())?;
            return midnight(date).map_err(|_| wrong());
        }
        _ => {}
    }
    if let Some(ago) = text.strip_prefix('-') {
        let ago = span(ago).ok_or_else(wrong)?;
        return now.checked_sub(ago).map(|at| TimePoint::At(at.timestamp())).map_err(|_| wrong());
    }
    if let Some(seconds) = text.strip_prefix('@') {
        let seconds = seconds.parse().map_err(|_| wrong())?;
        return Timestamp::from_second(seconds).map(TimePoint::At).map_err(|_| wrong());
    }
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(TimePoint::At(at));
    }
    if text.len() <= "03:10:30.123456789".len() && text.contains(':') && !text.contains('-') {
        return text.parse().map(TimePoint::OfDay).map_err(|_| wrong());
    }
    let at: DateTime = text.parse().map_err(|_| wrong())?;
    at.to_zoned(now.time_zone().clone()).map(|at| TimePoint::At(at.timestamp())).map_err(|_| wrong())
}

/// `1h`, `1h30m`, `2d`, `1w`. Days are calendar days.
fn span(text: &str) -> Option<Span> {
    let mut span = Span::new();
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, after) = rest.split_at(digits);
        let unit = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let number: i64 = number.parse().ok().filter(|number| (0..=1_000_000).contains(number))?;
        let more = match unit {
            "s" => number.seconds(),
            "m" | "min" => number.minutes(),
            "h" => number.hours(),
            "d" => number.days(),
            "w" => number.weeks(),
            _ => return None,
        };
        // Parts are added as written: a day and an hour are not 25 hours where the clock changes.
        span = add(span, more)?;
        rest = after;
    }
    (!text.is_empty()).then_some(span)
}

fn add(span: Span, more: Span) -> Option<Span> {
    Span::new()
        .try_weeks(span.get_weeks().checked_add(more.get_weeks())?)
        .and_then(|sum| sum.try_days(span.get_days().saturating_add(more.get_days())))
        .and_then(|sum| sum.try_hours(span.get_hours().saturating_add(more.get_hours())))
        .and_then(|sum| sum.try_minutes(span.get_minutes().saturating_add(more.get_minutes())))
        .and_then(|sum| sum.try_seconds(span.get_seconds().saturating_add(more.get_seconds())))
        .ok()
}

/// The last time that the clock showed `time`.
fn last(time: Time, now: &Zoned) -> Result<Timestamp, String> {
    let on = |date: Date| date.to_datetime(time).to_zoned(now.time_zone().clone()).map(|at| at.timestamp());
    let today = on(now.date()).map_err(|error| error.to_string())?;
    if today <= now.timestamp() {
        return Ok(today);
    }
    now.date().yesterday().and_then(on).map_err(|error| error.to_string())
}

/// The first time after `from` that the clock shows `time`.
fn first_after(time: Time, from: &Zoned) -> Result<Timestamp, String> {
    let on = |date: Date| date.to_datetime(time).to_zoned(from.time_zone().clone()).map(|at| at.timestamp());
    let same_day = on(from.date()).map_err(|error| error.to_string())?;
    if same_day > from.timestamp() {
        return Ok(same_day);
    }
    from.date().tomorrow().and_then(on).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::tz::TimeZone;

    /// 12:15 in a zone an hour east of Greenwich with the clock changes of Berlin.
    fn now() -> Zoned {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        "2026-11-21T12:15".parse::<DateTime>().unwrap().to_zoned(zone).unwrap()
    }

    fn shown(since: &str, until: &str) -> Result<(String, String), String> {
        let now = now();
        let range = range(some(since), some(until), &now)?;
        let text = |ns: u64| match ns {
            0 | u64::MAX => String::new(),
            ns => {
                let at = Timestamp::from_nanosecond(ns.into()).unwrap().to_zoned(now.time_zone().clone());
                at.strftime("%Y-%m-%d %H:%M:%S").to_string()
            }
        };
        Ok((text(range.from), text(range.until)))
    }

    #[test]
    fn accepts_usual_times() {
        for (since, until, from, end) in [
            ("", "", "", ""),
            ("-1h", "", "2026-11-21 11:15:00", ""),
            ("-1h30m", "-30m", "2026-11-21 10:45:00", "2026-11-21 11:45:00"),
            ("-25h..-24h", "", "2026-11-20 11:15:00", "2026-11-20 12:15:00"),
            ("-1h..", "", "2026-11-21 11:15:00", ""),
            ("..-1h", "", "", "2026-11-21 11:15:00"),
            ("-1w", "", "2026-11-14 12:15:00", ""),
            ("03:10", "03:12", "2026-11-21 03:10:00", "2026-11-21 03:12:00"),
            ("03:10..03:12", "", "2026-11-21 03:10:00", "2026-11-21 03:12:00"),
            // Not reached today, so yesterday.
            ("18:00", "19:00", "2026-11-20 18:00:00", "2026-11-20 19:00:00"),
            ("23:50", "00:10", "2026-11-20 23:50:00", "2026-11-21 00:10:00"),
            // Until later today is until now.
            ("09:00", "18:00", "2026-11-21 09:00:00", "2026-11-21 18:00:00"),
            ("", "18:00", "", "2026-11-20 18:00:00"),
            ("yesterday", "today", "2026-11-20 00:00:00", "2026-11-21 00:00:00"),
            ("2026-11-01", "2026-11-02 03:10:30", "2026-11-01 00:00:00", "2026-11-02 03:10:30"),
            ("2026-11-01T03:10", "2026-11-01T03:10Z", "2026-11-01 03:10:00", "2026-11-01 04:10:00"),
            ("2026-11-01T03:10+05:00", "now", "2026-10-31 23:10:00", "2026-11-21 12:15:00"),
            ("@1793000000", "", "2026-10-26 08:33:20", ""),
            ("2026-11-01 03:10:00+05:00", "2026-11-01 03:10:00 UTC", "2026-10-31 23:10:00", "2026-11-01 04:10:00"),
        ] {
            assert_eq!(shown(since, until), Ok((from.to_owned(), end.to_owned())), "{since} {until}");
        }
    }

    #[test]
    fn swapped_ends_are_told() {
        for (since, until) in [("-1h", "-2h"), ("-1h..-2h", ""), ("03:12", "03:10"), ("2026-11-02", "2026-11-01")] {
            assert!(shown(since, until).unwrap_err().contains("are the ends swapped?"), "{since} {until}");
        }
        let file = window(Some("+20s"), Some("+10s"), (0, 60_000_000_000), &now()).unwrap_err();
        assert!(file.contains("are the ends swapped?"), "{file}");
    }

    #[test]
    fn times_of_a_file() {
        // The file starts at 23:59:50 and lasts a minute.
        let now = now();
        let started = nanoseconds("2026-11-20T23:59:50+01:00".parse().unwrap());
        let shown = |since, until| window(some(since), some(until), (started, 60_000_000_000), &now);
        let millis = |since, until| shown(since, until).map(|it| (it.from_ns / 1_000_000, it.until_ns / 1_000_000));
        let end = u64::MAX / 1_000_000;
        for (since, until, from, to) in [
            ("", "", 0, end),
            ("+10s", "+20", 10_000, 20_000),
            ("+1.5s..+1m30s", "", 1_500, 90_000),
            ("+500ms", "-10s", 500, 50_000),
            ("-10s", "", 50_000, end),
            ("-2m", "", 0, end),
            ("23:59:55", "00:00:05", 5_000, 15_000),
            ("2026-11-20T23:00:00Z..", "", 10_000, end),
            ("2026-11-20", "", 0, end),
        ] {
            assert_eq!(millis(since, until), Ok((from, to)), "{since} {until}");
        }
        for (since, until, part) in [
            ("10s", "", "is no time: of a file"),
            ("+", "", "is no time"),
            ("+1x", "", "is no time"),
            ("+1s5", "", "is no time"),
            ("+1e3", "", "is no time"),
            ("+20s", "+10s", "is empty"),
            ("+1s..+2s", "+3s", "one too many"),
        ] {
            let error = shown(since, until).unwrap_err();
            assert!(error.contains(part), "{since} {until}: {error}");
        }
    }

    #[test]
    fn where_the_clock_changes() {
        // Summer time ended on October 25th: that day had 25 hours.
        assert_eq!(shown("2026-10-25", "2026-10-26").unwrap().0, "2026-10-25 00:00:00");
        let now = now();
        let day = range(Some("2026-10-25"), Some("2026-10-26"), &now).unwrap();
        assert_eq!((day.until - day.from) / 1_000_000_000, 25 * 3600);
        // Four weeks ago it was 12:15, too.
        assert_eq!(shown("-4w", "").unwrap().0, "2026-10-24 12:15:00");
        assert_eq!(shown("-28d", "").unwrap().0, "2026-10-24 12:15:00");
        assert_eq!(shown("-672h", "").unwrap().0, "2026-10-24 13:15:00");
    }

    #[test]
    fn refuses_other_text() {
        for text in [
            "1h",
            "--1h",
            "-",
            "-h",
            "-1",
            "-1x",
            "-1h30",
            "-99999999h",
            "25:00",
            "03:60",
            "3",
            "soon",
            "2026-13-01",
            "2026-02-30",
            "@",
            "@x",
            "@99999999999999999999",
            "03:10 Z",
            "é",
            "-1h..-2h..-3h",
        ] {
            let error = shown(text, "").unwrap_err();
            assert!(error.contains("is no time"), "{text}: {error}");
        }
        for (since, until, part) in [
            ("-1h", "-2h", "is empty"),
            ("-1h", "-1h", "is empty"),
            ("-1h..now", "now", "one too many"),
            ("2026-12-01", "", "in the future"),
        ] {
            let error = shown(since, until).unwrap_err();
            assert!(error.contains(part), "{since} {until}: {error}");
        }
    }
}
