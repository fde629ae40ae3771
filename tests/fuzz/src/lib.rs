//! What reads the input of strangers, each as a function of bytes. It panics where the reader does, and where what was read
//! contradicts itself. Fuzzers call these functions, and so does the test `decoders` of the main workspace, with
//! everything in `corpus` and `findings`.

pub mod config;
pub mod elf;
pub mod frames;
pub mod generated_code;
pub mod perf_data;
pub mod perf_script;
pub mod profile;
pub mod stacks;
