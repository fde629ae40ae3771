//! Watches: processes that are profiled for as long as they run, and what is kept of it.

mod rules;
mod scan;
