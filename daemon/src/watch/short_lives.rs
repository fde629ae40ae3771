//! Whether the processes of a watch end too soon for events on threads.

use ccsd_profile::Accounting;

/// Samples expected of a session from which on it is judged whether enough arrive: those of some seconds of CPU time.
pub const ENOUGH_EXPECTED: u64 = 100;

#[derive(Clone, Copy, Default)]
pub struct Turnover {
    scans: u32,
    seen: u64,
    /// Of these, those that had gone at the next scan.
    gone: u64,
}

impl Turnover {
    /// Scans with ended processes from which on their lives are judged.
    const ENOUGH: u32 = 6;

    pub fn add(&mut self, found: usize, gone: usize) {
        if self.seen > 10_000 {
            *self = Turnover { seen: self.seen / 2, gone: self.gone / 2, ..*self };
        }
        self.scans = self.scans.saturating_add(u32::from(gone > 0));
        self.seen = self.seen.saturating_add(found as u64);
        self.gone = self.gone.saturating_add(gone as u64);
    }

    /// Why most of the CPU time passes before processes are found, if it does: most live for less than two scans.
    pub fn describe_if_high(self) -> Option<String> {
        let Turnover { scans, seen, gone } = self;
        (scans >= Turnover::ENOUGH && gone > seen / 2)
            .then(|| format!("processes are short: of {seen} seen, {gone} had gone a scan later"))
    }
}

/// Samples received and expected, where fewer than half of them arrived.
pub fn shortage(accounting: &Accounting) -> Option<(u64, u64)> {
    let expected = accounting.expected.filter(|&expected| expected >= ENOUGH_EXPECTED)?;
    (accounting.received < expected / 2).then_some((accounting.received, expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_are_soon_gone_are_short() {
        let of = |scans: &[(usize, usize)]| {
            let mut turnover = Turnover::default();
            scans.iter().for_each(|&(found, gone)| turnover.add(found, gone));
            turnover.describe_if_high()
        };
        assert_eq!(of(&[(1, 1); 6]).unwrap(), "processes are short: of 6 seen, 6 had gone a scan later");
        assert_eq!(of(&[(1, 1); 5]), None, "too few to tell");
        assert_eq!(of(&[(21, 1); 1_000]), None);
        assert_eq!(of(&[(50, 0), (0, 50), (0, 0)]), None);
        // What was long ago counts less.
        assert!(of(&[[(300, 0); 100], [(300, 290); 100]].concat()).is_some());
    }

    #[test]
    fn fewer_than_half_are_few() {
        let of = |expected, received| shortage(&Accounting { expected, received, ..Accounting::default() });
        assert_eq!(of(Some(838), 2), Some((2, 838)));
        assert_eq!(of(Some(838), 419), None);
        assert_eq!((of(Some(99), 0), of(None, 0)), (None, None));
    }
}
