//! Readers of strangers' input, each as a function of bytes that panics on contradictions. For fuzzers and for the test
//! `decoders`, with everything in `corpus` and `findings`.

pub mod config;
pub mod elf;
pub mod frames;
pub mod generated_code;
pub mod perf_data;
pub mod perf_script;
pub mod profile;
pub mod stacks;
