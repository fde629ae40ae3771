#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ccsd_fuzz::config::run(data));
