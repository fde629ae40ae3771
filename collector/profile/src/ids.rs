//! Handles: small, copyable, dense from 0 in order of creation.

use serde::Serialize;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        pub struct $name(pub(crate) u32);

        impl $name {
            /// The handle with this number. Users of a handle check that it exists.
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

/// A route: the call sites of a stack in a [`RouteTable`](crate::RouteTable). Its lowest bit marks a cut route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteId(pub(crate) u32);

impl RouteId {
    /// The empty route: no call site is known.
    pub const EMPTY: Self = Self(0);
    /// Numbers are below this.
    pub(crate) const MOST: u32 = u32::MAX >> 1;

    /// The route of this number in its table, not cut.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number << 1)
    }

    pub(crate) const fn number(self) -> u32 {
        self.0 >> 1
    }

    /// Its number as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        (self.0 >> 1) as usize
    }

    /// Whether call sites are missing for lack of room.
    #[must_use]
    pub const fn is_cut(self) -> bool {
        self.0 & 1 == 1
    }

    /// The same route, marked as cut.
    #[must_use]
    pub const fn cut(self) -> Self {
        Self(self.0 | 1)
    }
}

impl ImageId {
    /// `[ccsd]`, the image of cost centres that the profiler itself creates. In every profile.
    pub const CCSD: Self = Self(0);
}

impl CostCentreId {
    /// `[elided]`, above samples that do not fit a full context table. In every profile.
    pub const ELIDED: Self = Self(0);
    /// `[root]`, charged by views with weights without a visible function. In every profile, on no stack.
    pub const ROOT: Self = Self(1);
}

impl ContextId {
    /// The handle of position `index`. Tables hold far fewer than `u32::MAX` contexts; a larger position gives the last
    /// handle, which never exists.
    pub(crate) fn at(index: usize) -> Self {
        Self(u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// The empty history.
    pub const ROOT: Self = Self(0);
    /// The context `[elided]` below the empty one; every other context may also have one below it.
    pub const ELIDED: Self = Self(1);
}

impl LineId {
    /// The unknown source line.
    pub const UNKNOWN: Self = Self(0);
}
