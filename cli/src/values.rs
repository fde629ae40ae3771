//! Values that several commands take.

use ccsd_collector::{Budget, system};

/// Where a profile goes, and where it is looked for, if no file is named.
pub const DEFAULT_FILE: &str = "profile.ccsd";

/// Reads a size in bytes: `4096`, `512K`, `5MB`, `2GiB`. All units are powers of 1,024.
pub fn size(text: &str) -> Result<u64, String> {
    let short = text.strip_suffix("iB").or_else(|| text.strip_suffix('B')).unwrap_or(text);
    let digits = short.strip_suffix(['k', 'K', 'm', 'M', 'g', 'G', 't', 'T']).unwrap_or(short);
    let unit = short.strip_prefix(digits).unwrap_or_default().to_ascii_uppercase();
    ccsd_daemon::config::bytes(&format!("{digits}{unit}{}", if unit.is_empty() { "" } else { "iB" }))
}

pub fn memory(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    match bytes >= Budget::MIN_MEMORY {
        true => Ok(bytes),
        false => Err(format!("{text} is too little: {} MiB is the least", Budget::MIN_MEMORY >> 20)),
    }
}

pub fn overhead(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>();
    let percent = number.map_err(|_| "not a number of percent, as in 1 or 0.5".to_owned())?;
    ccsd_collector::Overhead::percent(percent).map_err(|error| error.to_string())?;
    Ok(percent)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frequency {
    Max,
    Hz(u64),
}

pub fn frequency(text: &str) -> Result<Frequency, String> {
    match text {
        "max" => Ok(Frequency::Max),
        _ => text.parse().map(Frequency::Hz).map_err(|_| {
            format!(
                "a rate is `max` or a whole number of samples per second from 1 to {}, the kernel's maximum \
                 (kernel.perf_event_max_sample_rate)",
                system::perf_max_sample_rate()
            )
        }),
    }
}

/// Reads the number of rows that `-n` asks for; 0 for all.
pub fn rows(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "-n takes a number of rows, as in -n 20; 0 shows all".to_owned())
}

pub fn lines(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "not a number of lines, as in 20".to_owned())
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessName {
    Pid(u32),
    Name(String),
}

/// Reads a process id, or else the name of a process.
pub fn process(text: &str) -> Result<ProcessName, String> {
    // A number is never meant as a name.
    if text.is_empty() || text.parse::<f64>().is_ok() {
        return pid(text).map(ProcessName::Pid);
    }
    Ok(ProcessName::Name(text.to_owned()))
}

pub fn pid(text: &str) -> Result<u32, String> {
    // The kernel's pid_t is signed: what does not fit names no process, and 0 would mean ourselves.
    let pid = text.parse::<i32>().ok().filter(|&pid| pid > 0).map(i32::unsigned_abs);
    pid.ok_or_else(|| "not a process id; `pgrep NAME` finds those of a program".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("4096", 4096), ("4k", 4 << 10), ("60K", 60 << 10), ("5MB", 5 << 20), ("5MiB", 5 << 20), ("2GiB", 2 << 30)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "x", "-1", "MB", "1.5M", "5 apples", "99999999999999999999"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers() {
        assert_eq!((frequency("999"), frequency("max")), (Ok(Frequency::Hz(999)), Ok(Frequency::Max)));
        for text in ["-5", "1.5", "", "x", "99999999999999999999"] {
            let message = frequency(text).unwrap_err();
            assert!(message.contains(&format!("1 to {}", system::perf_max_sample_rate())), "{message}");
        }
        assert_eq!((rows("20"), rows("0")), (Ok(20), Ok(0)));
        assert_eq!(process("12"), Ok(ProcessName::Pid(12)));
        assert_eq!(process("12a"), Ok(ProcessName::Name("12a".to_owned())));
        assert!(["", "0", "-1", "1.5", "99999999999"].into_iter().all(|text| process(text).is_err()));
        for text in ["abc", "-1", "1.5", "", "99999999999999999999"] {
            assert!(rows(text).unwrap_err().starts_with("-n takes a number of rows"), "{text}");
            assert!(lines(text).is_err(), "{text}");
        }
    }
}
