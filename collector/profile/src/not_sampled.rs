//! CPU time that no sample stands for (I13).

use serde::ser::{Serialize, SerializeMap, Serializer};

macro_rules! causes {
    ($($(#[$doc:meta])* $name:ident => $key:literal, $text:literal,)*) => {
        /// Why CPU time is in no sample.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Unseen {
            $($(#[$doc])* $name,)*
        }

        impl Unseen {
            /// All causes, in the order of [`NotSampled::numbers`]. New ones are added at the end: the order is part of the
            /// file format.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
            /// Number of causes.
            pub const COUNT: usize = Self::ALL.len();

            /// For machines.
            #[must_use]
            pub const fn key(self) -> &'static str {
                match self {
                    $(Self::$name => $key,)*
                }
            }

            /// In words.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

causes! {
    /// Samples that the kernel or ccsd dropped, at what one sample stands for.
    Lost => "lost", "of lost and dropped samples",
    /// Samples that throttling kept from being taken.
    Throttled => "throttled", "of throttled samples",
    /// Threads that ended before their first sample; at most one period for each.
    Ended => "ended", "of threads that ended before their first sample",
    /// Time that the events did not count: they are off while the kernel switches threads, and in programs that they may not
    /// follow because these have got other rights.
    Switching => "switching", "while events were off (the kernel switching threads, or a program that they may not follow)",
    /// System time of the target that is in no sample of the kernel. Timers do not fire while interrupts are off.
    Kernel => "kernel", "in the kernel, where interrupts were off",
    /// Everything else: timers that came late, threads that ended or left a CPU between two samples.
    Unknown => "unknown", "for no known cause",
}

/// CPU time that no sample stands for, nanoseconds by cause. Their sum is charged to the cost centre `[not sampled]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotSampled([u64; Unseen::COUNT]);

impl NotSampled {
    /// Of one cause.
    #[must_use]
    pub fn get(&self, cause: Unseen) -> u64 {
        self.0.get(cause as usize).copied().unwrap_or(0)
    }

    /// Of all causes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().copied().fold(0, u64::saturating_add)
    }

    /// Splits `total` by cause: each of `parts` explains at most its number, in this order, and [`Unseen::Unknown`] the
    /// rest.
    #[must_use]
    pub fn split(total: u64, parts: &[(Unseen, u64)]) -> NotSampled {
        let (mut split, mut rest) = (NotSampled::default(), total);
        for &(cause, most) in parts.iter().chain(&[(Unseen::Unknown, u64::MAX)]) {
            let part = most.min(rest);
            rest -= part;
            if let Some(sum) = split.0.get_mut(cause as usize) {
                *sum = sum.saturating_add(part);
            }
        }
        split
    }

    /// The causes that there are, and how much of each.
    pub fn iter(&self) -> impl Iterator<Item = (Unseen, u64)> + '_ {
        Unseen::ALL.iter().copied().zip(self.0).filter(|&(_, ns)| ns > 0)
    }

    /// In the order of [`Unseen::ALL`].
    #[must_use]
    pub const fn numbers(&self) -> &[u64; Unseen::COUNT] {
        &self.0
    }

    pub(crate) const fn numbers_mut(&mut self) -> &mut [u64; Unseen::COUNT] {
        &mut self.0
    }
}

impl Serialize for NotSampled {
    /// By name, every cause.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(Unseen::COUNT))?;
        for (cause, ns) in Unseen::ALL.iter().zip(self.0) {
            map.serialize_entry(cause.key(), &ns)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_whole() {
        let parts = [(Unseen::Lost, 3), (Unseen::Ended, 4)];
        let causes = |total| NotSampled::split(total, &parts).iter().collect::<Vec<_>>();
        assert_eq!(causes(0), []);
        assert_eq!(causes(5), [(Unseen::Lost, 3), (Unseen::Ended, 2)]);
        assert_eq!(causes(10), [(Unseen::Lost, 3), (Unseen::Ended, 4), (Unseen::Unknown, 3)]);
        assert_eq!(NotSampled::split(u64::MAX, &parts).total(), u64::MAX);
    }
}
