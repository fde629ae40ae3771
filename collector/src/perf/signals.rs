//! Signals that kill, at delivery: the tracepoint `signal:signal_deliver`.
//!
//! For a signal that dumps core by default, the kernel fires it in the thread that has it, before the process dies; for
//! others that kill it reports SIGKILL to every thread. A kernel filter passes only unhandled signals of the first
//! kind, so
//! that programs with many signals pay nothing.

use std::ffi::CStr;
use std::fs;
use std::io;

use super::ring_buffer::Bytes;

/// No handler (`SIG_DFL` is 0), and a signal that dumps core: `SIG_KERNEL_COREDUMP_MASK` of `linux/signal.h`, or
/// [`ccsd_profile::CORE_SIGNALS`].
pub const FILTER: &CStr =
    c"sa_handler == 0 && (sig == 3 || sig == 4 || sig == 5 || sig == 6 || sig == 7 || sig == 8 || \
                            sig == 11 || sig == 24 || sig == 25 || sig == 31)";
/// Where the tracepoint is described: where tracefs is, and where it was before Linux 4.1.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// Bytes of a description at most; this one has 600.
const MAX_FORMAT: usize = 16 << 10;

#[derive(Debug, thiserror::Error)]
pub enum Unwatched {
    #[error("tracefs may not be read: that takes root or CAP_DAC_READ_SEARCH")]
    TracefsDenied,
    #[error("this kernel shows no tracepoint signal:signal_deliver (is tracefs mounted at /sys/kernel/tracing?)")]
    NoTracepoint,
    /// The kernel does not give the event.
    #[error("the kernel refuses the tracepoint signal:signal_deliver: that takes root or CAP_PERFMON")]
    Refused,
    /// A daemon's session for somebody whom it does not trust with the whole machine.
    #[error("a daemon shows them to root and members of group ccsd only")]
    Untrusted,
    #[error("cannot trace signals: {0}")]
    System(io::Error),
}

impl From<io::Error> for Unwatched {
    fn from(error: io::Error) -> Unwatched {
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => Unwatched::Refused,
            _ => Unwatched::System(error),
        }
    }
}

/// The tracepoint: its number, and where in its data the signal and its code are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalPoint {
    number: u64,
    signal_at: usize,
    code_at: usize,
}

impl SignalPoint {
    /// Reads what tracefs says of it.
    ///
    /// # Errors
    /// [`Unwatched::TracefsDenied`], [`Unwatched::NoTracepoint`].
    pub fn find() -> Result<SignalPoint, Unwatched> {
        let mut why = Unwatched::NoTracepoint;
        for place in PLACES {
            match fs::read_to_string(format!("{place}/events/signal/signal_deliver/format")) {
                Ok(format) => return SignalPoint::parse(&format).ok_or(Unwatched::NoTracepoint),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => why = Unwatched::TracefsDenied,
                Err(_) => {}
            }
        }
        Err(why)
    }

    fn parse(format: &str) -> Option<SignalPoint> {
        let format = format.get(..format.len().min(MAX_FORMAT))?;
        let number = format.lines().find_map(|line| line.strip_prefix("ID: "))?.trim().parse().ok()?;
        // `field:int sig;	offset:8;	size:4;	signed:1;`
        let offset = |name: &str| -> Option<usize> {
            let field = format.lines().find(|line| line.trim_start().starts_with(&format!("field:int {name};")))?;
            let offset = field.split(';').find_map(|part| part.trim().strip_prefix("offset:"))?;
            offset.parse().ok()
        };
        Some(SignalPoint { number, signal_at: offset("sig")?, code_at: offset("code")? })
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// What events of these identifiers, which no others lie between, will tell.
    pub fn of(self, ids: &[u64]) -> FatalSignals {
        let (first, last) = (ids.iter().min().copied().unwrap_or(1), ids.iter().max().copied().unwrap_or(0));
        FatalSignals { point: self, first, last }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatalSignals {
    point: SignalPoint,
    /// Identifiers of the first and of the last. They were opened one after the other, and the kernel counts upwards.
    first: u64,
    last: u64,
}

impl FatalSignals {
    #[inline]
    pub fn has(&self, id: u64) -> bool {
        id >= self.first && id <= self.last
    }

    /// Signal and code, of a tracepoint's data.
    pub(super) fn signal(&self, raw: Bytes<'_>) -> Option<(u32, i32)> {
        Some((raw.u32_at(self.point.signal_at)?, raw.u32_at(self.point.code_at)?.cast_signed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: signal_deliver\nID: 260\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\tfield:int sig;\toffset:8;\tsize:4;\tsigned:1;\n\
        \tfield:int errno;\toffset:12;\tsize:4;\tsigned:1;\n\tfield:int code;\toffset:16;\tsize:4;\tsigned:1;\n\
        \tfield:unsigned long sa_handler;\toffset:24;\tsize:8;\tsigned:0;\n";

    #[test]
    fn the_description_is_read() {
        let point = SignalPoint::parse(FORMAT).unwrap();
        assert_eq!(point, SignalPoint { number: 260, signal_at: 8, code_at: 16 });
        assert_eq!(SignalPoint::parse(""), None);
        assert_eq!(SignalPoint::parse(&FORMAT.replace("int sig;", "int sag;")), None);
        let fatal = point.of(&[8, 7, 9]);
        assert!(fatal.has(7) && fatal.has(9) && !fatal.has(6) && !fatal.has(10));
        let raw: Vec<u8> =
            [0u32, 0, 11, 0, (-6i32).cast_unsigned(), 0].iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(fatal.signal(Bytes::new(&raw)), Some((11, -6)));
        assert_eq!(fatal.signal(Bytes::new(&raw[..12])), None);
        assert!(!point.of(&[]).has(0));
    }

    #[test]
    fn the_filter_is_the_list() {
        let list: Vec<String> =
            ccsd_profile::CORE_SIGNALS.iter().map(|(signal, _)| format!("sig == {signal}")).collect();
        assert_eq!(FILTER.to_str().unwrap(), format!("sa_handler == 0 && ({})", list.join(" || ")));
    }
}
