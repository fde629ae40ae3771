//! Perf events: which are chosen, how they are opened, and the records they write.
//!
//! `attr`: attributes; `choice`: what the kernel takes; `event`: system calls; `ring_buffer`: shared memory; `record`: its
//! contents; `layout`: how events are spread; `set`: all events of a session; `cgroups`: control groups that events are
//! bound to; `signals`: those that kill; `tick`: the scheduler's tick; `calibrate`: what a sample costs; `closer`: slow
//! closes; `sorter`: one stream in order of time.

pub mod attr;
pub mod calibrate;
pub mod cgroups;
pub mod choice;
mod closer;
pub mod counters;
pub mod event;
pub mod files;
pub mod layout;
pub mod layout_choice;
pub mod record;
pub mod ring_buffer;
pub mod rings;
pub mod set;
pub mod signals;
pub mod sorter;
pub mod tick;
