//! The allocator of processes that read images.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write;

use ccsd_symbolizer::allocation::{allocated, freed};

/// The system's allocator. It reports to [`ccsd_symbolizer::allocation`], by which parsers stop at their limits, and
/// ends the process with an error where the system has no more memory (`RLIMIT_AS`, `RLIMIT_DATA`): the standard
/// library would abort it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator;

/// Exit status of a process without memory.
const OUT_OF_MEMORY: i32 = 1;

// SAFETY: every call is passed on unchanged to `System`, which keeps the contract; a null pointer is never returned,
// because the process ends instead. Reporting allocates nothing and does not panic.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocated(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is that of `System`.
        checked(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        allocated(layout.size());
        // SAFETY: as in `alloc`.
        checked(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        freed(layout.size());
        // SAFETY: `pointer` is from this allocator, so from `System`, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        freed(layout.size());
        allocated(size);
        // SAFETY: as in `dealloc`; the caller keeps the contract of `realloc` for `size`.
        checked(unsafe { System.realloc(pointer, layout, size) }, size)
    }
}

#[inline]
fn checked(pointer: *mut u8, bytes: usize) -> *mut u8 {
    if pointer.is_null() {
        end(bytes);
    }
    pointer
}

struct Message {
    text: [u8; 160],
    length: usize,
}

impl Write for Message {
    fn write_str(&mut self, part: &str) -> std::fmt::Result {
        let room = self.text.get_mut(self.length..self.length + part.len()).ok_or(std::fmt::Error)?;
        room.copy_from_slice(part.as_bytes());
        self.length += part.len();
        Ok(())
    }
}

#[cold]
fn end(bytes: usize) -> ! {
    let mut message = Message { text: [0; 160], length: 0 };
    let _ = writeln!(
        message,
        "ccsd: out of memory: the system refused {bytes} bytes (see `ulimit -v` and `ulimit -d`); ccsd ends"
    );
    // SAFETY: write(2) reads `length` initialised bytes of `text`, which is live. _exit(2) ends the process at once: exit
    // handlers may need memory.
    unsafe {
        libc::write(libc::STDERR_FILENO, message.text.as_ptr().cast(), message.length);
        libc::_exit(OUT_OF_MEMORY)
    }
}
