//! The tables of a session that have a budget, and how often each had no room.

use serde::ser::{Serialize, SerializeMap, Serializer};

macro_rules! tables {
    ($($(#[$doc:meta])* $name:ident => $key:literal, $text:literal,)*) => {
        /// A table that was full. What had no room in it went to a coarser place, or had to be found out again: no weight
        /// is lost (I1).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Shed {
            $($(#[$doc])* $name,)*
        }

        impl Shed {
            /// All of them, in the order of [`ShedCounts::numbers`]. New ones are added at the end: the order is part of the
            /// file format.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
            /// Number of tables.
            pub const COUNT: usize = Self::ALL.len();

            /// For machines.
            #[must_use]
            pub const fn key(self) -> &'static str {
                match self {
                    $(Self::$name => $key,)*
                }
            }

            /// What a count of it says, as in "5 times ...".
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

tables! {
    /// Paths that got no context.
    Contexts => "contexts", "a path got no context and counts below [elided]",
    /// Combinations of thread, context and line that got no row.
    Charges => "charges", "a sample got no row of its own and counts as [elided] of its thread",
    /// Names that were not kept.
    Names => "names", "a name was not kept; its address stands for it, [other] or [elided]",
    /// Functions that got no entry.
    Functions => "functions", "a function got no entry and counts as [elided]",
    /// Source lines that got no entry.
    Lines => "lines", "a source line got no entry and counts as unknown",
    /// Images that got no entry of their own.
    Images => "images", "an image got no entry and counts as [other] or [unknown]",
    /// Processes that got no entry of their own.
    Processes => "processes", "a process got no entry and counts as [other]",
    /// Threads that got no entry of their own.
    Threads => "threads", "a thread got no entry and counts as [other]",
    /// Times that all addresses remembered were forgotten.
    Addresses => "addresses", "what is known of all addresses was forgotten, to be found out again",
    /// Pieces of generated code whose names had no room.
    GeneratedCode => "generated_code", "generated code stays without a name, or is looked up again",
    /// Images whose symbols and debug information were dropped or not read.
    DebugInformation => "debug_information", "an image's symbols or debug information were dropped or not read",
    /// Images whose unwind tables were not read.
    UnwindTables => "unwind_tables", "an image's unwind tables were not read: its stacks are truncated",
    /// Stacks of which less was remembered than would have spared work.
    Stacks => "stacks", "a deep stack was not remembered whole, to be unwound anew",
    /// Samples that the queue between ccsd's threads had no room for.
    Queue => "queue", "a sample was dropped, because ccsd did not keep up",
    /// Times that what was remembered of single addresses for unwinding was forgotten.
    UnwindRules => "unwind_rules", "what is known of unwinding at all addresses was forgotten, to be found out again",
    /// Live threads that were not followed.
    LiveThreads => "live_threads", "a live thread was not followed: its samples count as [other] of its process",
    /// Mappings of live processes that were not entered.
    Mappings => "mappings", "a mapping of a live process was not entered: code in it counts as [unknown]",
    /// Samples some of whose call sites are not known.
    Routes => "call_sites", "a sample's callers have no lines, or only its outer ones have",
}

/// How often each table had no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShedCounts([u64; Shed::COUNT]);

impl ShedCounts {
    /// How often this one had none.
    #[must_use]
    pub fn get(&self, table: Shed) -> u64 {
        self.0.get(table as usize).copied().unwrap_or(0)
    }

    /// Counts more.
    pub fn add(&mut self, table: Shed, times: u64) {
        if let Some(count) = self.0.get_mut(table as usize) {
            *count = count.saturating_add(times);
        }
    }

    /// Sets what is counted elsewhere.
    pub fn set(&mut self, table: Shed, times: u64) {
        if let Some(count) = self.0.get_mut(table as usize) {
            *count = times;
        }
    }

    /// The tables that had no room at some time, and how often.
    pub fn iter(&self) -> impl Iterator<Item = (Shed, u64)> + '_ {
        Shed::ALL.iter().copied().zip(self.0).filter(|&(_, count)| count > 0)
    }

    /// In the order of [`Shed::ALL`].
    #[must_use]
    pub const fn numbers(&self) -> &[u64; Shed::COUNT] {
        &self.0
    }

    pub(crate) const fn numbers_mut(&mut self) -> &mut [u64; Shed::COUNT] {
        &mut self.0
    }
}

impl Serialize for ShedCounts {
    /// By name; those that always had room are left out.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (table, count) in self.iter() {
            map.serialize_entry(table.key(), &count)?;
        }
        map.end()
    }
}
