//! The profiler's own CPU time, by what it was spent for.

use serde::ser::{Serialize, SerializeMap, Serializer};

macro_rules! phases {
    ($($(#[$doc:meta])* $name:ident => $key:literal, $text:literal, $once:literal,)*) => {
        /// What the profiler spent CPU time for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Phase {
            $($(#[$doc])* $name,)*
        }

        impl Phase {
            /// All phases, in the order of [`OwnCpu::numbers`]. New ones are added at the end: the order is part of the file
            /// format.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
            /// Number of phases.
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

            /// Whether a session pays it once, or once for each image and function: a longer session does not pay it again.
            #[must_use]
            pub const fn is_once(self) -> bool {
                match self {
                    $(Self::$name => $once,)*
                }
            }
        }
    };
}

phases! {
    /// From the beginning of `main` until sampling begins.
    Start => "start", "start-up", true,
    /// Names of kernel functions: reading the kernel's list, or the file that keeps it.
    KernelNames => "kernel_names", "kernel names", true,
    /// Opening images, and reading their unwind tables, symbols and debug information.
    Images => "images", "images and names", true,
    /// Reading the kernel's records, and unwinding.
    Sampling => "sampling", "reading samples and unwinding", false,
    /// Contexts, charges and updates.
    Aggregating => "aggregating", "aggregating", false,
    /// Everything else while the session runs: writing the file, the line of progress.
    Rest => "rest", "writing and the rest", false,
}

/// CPU time of the profiler, nanoseconds by phase. Their sum is [`Accounting::own_cpu_ns`](crate::Accounting::own_cpu_ns).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnCpu([u64; Phase::COUNT]);

impl OwnCpu {
    /// Splits `total` by phase: each of `parts` takes at most its number, in this order, and [`Phase::Rest`] what is left.
    #[must_use]
    pub fn split(total: u64, parts: &[(Phase, u64)]) -> OwnCpu {
        let (mut split, mut left) = (OwnCpu::default(), total);
        for &(phase, most) in parts.iter().chain(&[(Phase::Rest, u64::MAX)]) {
            let part = most.min(left);
            left -= part;
            if let Some(sum) = split.0.get_mut(phase as usize) {
                *sum = sum.saturating_add(part);
            }
        }
        split
    }

    /// Of one phase.
    #[must_use]
    pub fn get(&self, phase: Phase) -> u64 {
        self.0.get(phase as usize).copied().unwrap_or(0)
    }

    /// Of the phases that a session pays once; see [`Phase::is_once`].
    #[must_use]
    pub fn once(&self) -> u64 {
        self.sum(true)
    }

    /// Of the phases that go on as long as the session does.
    #[must_use]
    pub fn lasting(&self) -> u64 {
        self.sum(false)
    }

    fn sum(&self, once: bool) -> u64 {
        self.iter().filter(|(phase, _)| phase.is_once() == once).fold(0, |sum, (_, ns)| sum.saturating_add(ns))
    }

    /// All phases, and how much of each.
    pub fn iter(&self) -> impl Iterator<Item = (Phase, u64)> + '_ {
        Phase::ALL.iter().copied().zip(self.0)
    }

    /// In the order of [`Phase::ALL`].
    #[must_use]
    pub const fn numbers(&self) -> &[u64; Phase::COUNT] {
        &self.0
    }

    pub(crate) const fn numbers_mut(&mut self) -> &mut [u64; Phase::COUNT] {
        &mut self.0
    }
}

impl Serialize for OwnCpu {
    /// By name, every phase.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(Phase::COUNT))?;
        for (phase, ns) in self.iter() {
            map.serialize_entry(phase.key(), &ns)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_add_up_to_the_whole() {
        let parts = [(Phase::Start, 5), (Phase::Sampling, 20), (Phase::Images, 7)];
        let own = OwnCpu::split(40, &parts);
        assert_eq!(own.numbers(), &[5, 0, 7, 20, 0, 8]);
        assert_eq!((own.once(), own.lasting()), (12, 28));
        // Clocks are read one after the other: the parts may be more than the whole.
        assert_eq!(OwnCpu::split(22, &parts).numbers(), &[5, 0, 0, 17, 0, 0]);
    }
}
