//! Handles: small, copyable, dense from 0 in order of creation.

use serde::Serialize;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        pub struct $name(pub(crate) u32);

        impl $name {
            /// The handle with this number. Whoever takes a handle checks that it exists.
            #[must_use]
            pub const fn new(index: u32) -> Self {
                Self(index)
            }

            /// Position in order of creation, from 0.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }

            /// The number itself, as written to a file.
            #[must_use]
            pub const fn get(self) -> u32 {
                self.0
            }
        }
    };
}

id! {
    /// An image: an ELF file, the kernel, the vdso, a JIT region.
    ImageId
}
id! {
    /// A cost centre: one logical function.
    CostCentreId
}
id! {
    /// A context: one history in a [`ContextTable`](crate::ContextTable).
    ContextId
}
id! {
    /// A thread of a process.
    ThreadId
}
id! {
    /// A process: pid, start time and exec generation.
    ProcessId
}
id! {
    /// A source line.
    LineId
}

impl ImageId {
    /// `[ccsd]`, the image of the cost centres that the profiler makes up itself. In every profile.
    pub const CCSD: Self = Self(0);
}

impl CostCentreId {
    /// `[elided]`, below which samples go that a full context table has no place for. In every profile.
    pub const ELIDED: Self = Self(0);
    /// `[root]`, to which a view charges what has no visible function. In every profile, on no stack.
    pub const ROOT: Self = Self(1);
}

impl ContextId {
    /// The handle of position `index`. Tables hold far fewer than `u32::MAX` contexts; a position beyond that gives the
    /// last possible handle, which exists nowhere.
    pub(crate) fn at(index: usize) -> Self {
        Self(u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// The empty history.
    pub const ROOT: Self = Self(0);
    /// The context `[elided]` below the empty one; there may be one below every other context, too.
    pub const ELIDED: Self = Self(1);
}

impl LineId {
    /// No source line is known.
    pub const UNKNOWN: Self = Self(0);
}
