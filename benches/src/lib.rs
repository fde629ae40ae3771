//! The benchmarks are in `benches/`, their results in `README.md`.
