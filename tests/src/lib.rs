//! Shared code of the end-to-end tests of `ccsd`.
//!
//! Rules for these tests:
//!
//! - They synchronise with fixtures through pipes, and with ccsd's writes through the file system. None waits for a
//!   time to pass, and none asserts how long something took.
//! - Counts and shares are compared with bounds of [`statistics::SIGMAS`] standard deviations, and a stated allowance
//!   for systematic errors.
//! - Profiles are judged by their data; text only where the text is tested.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(missing_docs, reason = "internal to the tests")]

pub mod ccsd;
pub mod cgroup;
pub mod daemon;
pub mod elf;
pub mod fixture;
pub mod readers;
pub mod recorded;
pub mod statistics;
pub mod suite;
pub mod terminal;
pub mod wait;
pub mod watched;
