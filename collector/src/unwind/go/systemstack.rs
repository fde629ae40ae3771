//! Frames of Go's runtime whose caller is on another stack.
//!
//! Where the runtime moves to the thread's stack no table is right, because the new stack pointer comes from memory.
//! `nanotime1` and its like keep the old one in a register. `systemstack` does not; but its callee has saved the
//! goroutine's frame pointer, and below that is a return address of a call of `systemstack`, at the one place from
//! where the caller's frame ends just where the frame pointer says.

use crate::arch::registers::Registers;
use crate::arch::step::CallerPointers;

/// Bytes of the largest frame of a function of Go's runtime that calls `systemstack`; the largest that is known has 400.
const LARGEST_CALLER: u64 = 4096;

/// The registers of `systemstack`'s caller, by its frame pointer. `calls` knows return addresses of such calls,
/// `frame_end` where the caller's frame ends, just above its return address.
pub fn caller(
    saved_bp: u64,
    read: &impl Fn(u64) -> Option<u64>,
    mut calls: impl FnMut(u64) -> bool,
    mut frame_end: impl FnMut(&Registers) -> Option<u64>,
) -> Option<Registers> {
    if !saved_bp.is_multiple_of(8) {
        return None;
    }
    let end = saved_bp.checked_add(16)?;
    // From the lowest on, because memory is read in pieces from there upwards.
    let mut found = None;
    for slot in (saved_bp.checked_sub(LARGEST_CALLER)?..saved_bp).step_by(8) {
        let Some(address) = read(slot).filter(|&address| calls(address)) else { continue };
        let caller = CallerPointers { ip: address, sp: slot.wrapping_add(8), bp: saved_bp }.registers();
        if frame_end(&caller) == Some(end) {
            // Two would leave it open which is the one.
            if found.replace(caller).is_some() {
                return None;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use gimli::X86_64 as R;

    use super::*;

    #[test]
    fn systemstack_is_left_for_the_goroutine() {
        const BP: u64 = 0xc000_2000;
        // The caller's frame is of 64 bytes; further down an old call has left its return address, and another address.
        let words = [(BP - 56, 0x1005), (BP - 200, 0x1005), (BP - 8, 0x2000)];
        let read = |address: u64| match words.iter().find(|word| word.0 == address) {
            Some(&(_, word)) => Some(word),
            None => (BP - 5000..BP + 100).contains(&address).then_some(0),
        };
        let calls = |address| address == 0x1005;
        let end = |size: u64| move |caller: &Registers| Some(caller.get(R::RSP)? + size);
        let caller = super::caller(BP, &read, calls, end(64)).unwrap();
        assert_eq!([R::RA, R::RSP, R::RBP].map(|r| caller.get(r)), [0x1005, BP - 48, BP].map(Some));
        // Of another size, nowhere called, or not to be read: not found.
        assert!(super::caller(BP, &read, calls, end(80)).is_none());
        assert!(super::caller(BP, &read, |_| false, end(64)).is_none());
        assert!(super::caller(BP, &|_| None, calls, end(64)).is_none());
        // More than one fits: unknown.
        assert!(super::caller(BP, &read, calls, |_| Some(BP + 16)).is_none());
        for odd in [0, 8, BP + 4, u64::MAX - 7] {
            assert!(super::caller(odd, &|_| Some(u64::MAX), |_| true, end(64)).is_none());
        }
    }
}
