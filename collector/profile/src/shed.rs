//! The tables of a session that have a budget, and how often each had no room.

use crate::causes::{ByCause, causes};

causes! {
    /// A table that was full. What had no room in it went to a coarser place, or had to be found out again: no weight is
    /// lost (I1). Its text follows a number, as in "5 times ...".
    Shed, zeros in JSON: false;
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
    Processes => "processes", "a process got no entry of its own and counts with others of its name",
    /// Threads that got no entry of their own.
    Threads => "threads", "a thread got no entry of its own and counts as [other] of its process",
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
    /// Frames of functions without names whose offset in the function was not kept.
    Offsets => "offsets", "a frame without a name keeps no offset: inlined functions and lines cannot be found later",
}

/// How often each table had no room.
pub type ShedCounts = ByCause<Shed, { Shed::COUNT }>;
