//! The benchmarks stand in `benches/`; what they measured, in `README.md`.
