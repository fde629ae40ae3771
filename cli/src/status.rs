//! The status line of a collection, shown on a terminal at standard error.

use std::io::{Write, stderr};
use std::time::Duration;

use ccsd_daemon::Status;
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::{getpgrp, tcgetpgrp};

use crate::format::{count, duration, percent};
use crate::style::{TextLayout, Tone};
use crate::table::cut;

const LEADER: usize = 32;

pub struct StatusLine {
    layout: TextLayout,
    enabled: bool,
    drawn: bool,
    hint: &'static str,
    /// Elapsed time, samples and own CPU time at the last update, for rates.
    last: (Duration, u64, u64),
}

impl StatusLine {
    pub fn new(layout: TextLayout, quiet: bool, hint: &'static str) -> StatusLine {
        let enabled = layout.is_terminal() && !quiet;
        StatusLine { layout, enabled, drawn: false, hint, last: (Duration::ZERO, 0, 0) }
    }

    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    pub fn show(&mut self, status: &Status, leader: Option<&str>) {
        if !self.enabled {
            return;
        }
        let now = (status.elapsed, status.accounting.received, status.accounting.own.cpu_ns);
        let last = std::mem::replace(&mut self.last, now);
        if !is_ours() {
            self.drawn = false;
            return;
        }
        let width = self.layout.width.unwrap_or(usize::MAX).saturating_sub(1);
        let text = with_hint(status, last, leader, self.hint, width);
        let line = self.layout.paint(Tone::Faint, &cut(&text, width));
        // The cursor returns to the start, so that the program's next output starts a line.
        let _ = write!(stderr(), "\r\x1b[K{line}\r");
        self.drawn = true;
    }

    pub fn erase(&mut self) {
        if self.drawn {
            let _ = write!(stderr(), "\r\x1b[K");
            self.drawn = false;
        }
    }
}

/// Whether the terminal may be written now: no program uses the whole screen, and ccsd is in the foreground.
fn is_ours() -> bool {
    let shared = tcgetattr(stderr()).is_ok_and(|settings| settings.local_flags.contains(LocalFlags::ICANON));
    shared && tcgetpgrp(stderr()).is_ok_and(|group| group == getpgrp())
}

/// The numbers, the leading function and the hint, as far as they fit.
fn with_hint(status: &Status, last: (Duration, u64, u64), leader: Option<&str>, hint: &str, width: usize) -> String {
    let leader = leader.map(|leader| cut(leader, LEADER));
    let line = |numbers: &str| {
        let parts = [Some(numbers), leader.as_deref(), Some(hint)];
        parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("  ")
    };
    let all = line(&text(status, last));
    if all.chars().count() <= width || hint.is_empty() && leader.is_none() {
        return all;
    }
    let accounting = &status.accounting;
    line(&format!("{}  {} samples", duration(status.elapsed), count(accounting.received)))
}

fn text(status: &Status, (elapsed, received, own_cpu): (Duration, u64, u64)) -> String {
    let accounting = &status.accounting;
    let seconds = status.elapsed.saturating_sub(elapsed).as_secs_f64().max(1e-3);
    let rate = accounting.received.saturating_sub(received) as f64 / seconds;
    let own = accounting.own.cpu_ns.saturating_sub(own_cpu) as f64 / 1e9 / seconds;
    let lost = accounting.lost.saturating_add(accounting.dropped_by_us).saturating_add(accounting.throttled);
    format!(
        "{}  {} samples  {}/s  {} lost  {} contexts  ccsd {}% CPU",
        duration(status.elapsed),
        count(accounting.received),
        count(rate.round() as u64),
        count(lost),
        count(status.contexts),
        percent(own),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccsd_profile::{Accounting, OwnCost};

    #[test]
    fn rates_are_those_since_the_last_update() {
        let accounting = {
            let own = OwnCost { cpu_ns: 30_000_000, ..OwnCost::default() };
            Accounting { received: 2_500, own, lost: 1, ..Accounting::default() }
        };
        let status = Status { elapsed: Duration::from_secs(3), contexts: 1_234, accounting };
        let text = text(&status, (Duration::from_secs(2), 1_500, 20_000_000));
        assert_eq!(text, "3.00 s  2,500 samples  1,000/s  1 lost  1,234 contexts  ccsd 1.00% CPU");
        let last = (Duration::from_secs(2), 1_500, 20_000_000);
        assert_eq!(with_hint(&status, last, None, "Ctrl-C", 200), format!("{text}  Ctrl-C"));
        assert_eq!(with_hint(&status, last, None, "Ctrl-C", 60), "3.00 s  2,500 samples  Ctrl-C");
        assert_eq!(with_hint(&status, last, None, "", 10), text);
        let leader = Some("34.21% memcpy");
        assert_eq!(with_hint(&status, last, leader, "Ctrl-C", 200), format!("{text}  34.21% memcpy  Ctrl-C"));
        assert_eq!(with_hint(&status, last, leader, "Ctrl-C", 60), "3.00 s  2,500 samples  34.21% memcpy  Ctrl-C");
        assert_eq!(with_hint(&status, last, leader, "", 60), "3.00 s  2,500 samples  34.21% memcpy");
    }
}
