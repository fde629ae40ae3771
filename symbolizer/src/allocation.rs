//! Bytes that the current thread allocates while it parses.
//!
//! Ten bytes of debug information can become 150 bytes of a parser's index. So the program's allocator reports
//! allocations here (`ccsd_worker::Allocator`), and a metered parser stops at its limit. Otherwise only sections, steps
//! and time are limited.

use std::cell::Cell;

thread_local! {
    /// Bytes allocated less bytes freed, modulo 2^64. A thread may free what another has allocated.
    static BALANCE: Cell<u64> = const { Cell::new(0) };
}

/// Reports an allocation by the current thread. Allocates nothing.
#[inline]
pub fn allocated(bytes: usize) {
    // A thread that is ending parses nothing.
    let _ = BALANCE.try_with(|balance| balance.set(balance.get().wrapping_add(bytes as u64)));
}

/// Reports that the current thread frees bytes. Allocates nothing.
#[inline]
pub fn freed(bytes: usize) {
    let _ = BALANCE.try_with(|balance| balance.set(balance.get().wrapping_sub(bytes as u64)));
}

#[inline]
pub(crate) fn balance() -> u64 {
    BALANCE.with(Cell::get)
}

/// Bytes that the current thread holds in addition since its balance was `before`.
#[inline]
pub(crate) fn held_since(before: u64) -> u64 {
    let difference = balance().wrapping_sub(before);
    // A thread that has freed more than it has allocated holds nothing in addition.
    if difference > u64::MAX / 2 { 0 } else { difference }
}
