//! What the end-to-end tests of `ccsd` share: building fixtures, running the binary, reading what it wrote, and judging
//! it with stated bounds.
//!
//! Rules for these tests:
//!
//! - They speak with their fixtures through pipes and learn from the file system when ccsd has begun to write. None waits
//!   for a time to pass, and none asserts how long something took.
//! - Counts and shares are compared with bounds of [`statistics::SIGMAS`] standard deviations, and a stated allowance
//!   where there is a systematic error.
//! - Profiles are judged by their data; text only where the text is what is tested.
// A test fails by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod ccsd;
pub mod daemon;
pub mod fixture;
pub mod readers;
pub mod recorded;
pub mod statistics;
pub mod suite;
pub mod terminal;
pub mod watched;
