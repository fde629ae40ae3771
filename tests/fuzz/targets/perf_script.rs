#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ccsd_fuzz::perf_script::run(data));
