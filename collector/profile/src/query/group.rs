//! Groups of functions that a runtime brings along: what a program spends on allocation, page faults, the kernel, its
//! own start-up.

use std::borrow::Cow;

use crate::ids::{CostCentreId, ImageId};
use crate::profile::Profile;

/// A group that everything called from within it belongs to as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inside {
    Init,
    Allocator,
    Collector,
    PageFault,
}

impl Inside {
    const fn name(self) -> &'static str {
        match self {
            Inside::Init => "[init]",
            Inside::Allocator => "[allocator]",
            Inside::Collector => "[garbage collector]",
            Inside::PageFault => "[page fault]",
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Groups {
    inside: Option<Inside>,
}

/// Names with which allocation begins: malloc(3), the operators of C++, Rust's, jemalloc's, mimalloc's and tcmalloc's.
const ALLOCATORS: [&str; 25] = [
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "free",
    "cfree",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "__libc_malloc",
    "__libc_calloc",
    "__libc_realloc",
    "__libc_free",
    "__libc_memalign",
    "_int_malloc",
    "_int_free",
    "_int_realloc",
    "malloc_consolidate",
    "__rust_alloc",
    "__rust_dealloc",
    "__rust_realloc",
    "__rust_alloc_zeroed",
    "runtime.mallocgc",
    "runtime.newobject",
];
/// Likewise, with arguments behind them.
const ALLOCATOR_STARTS: [&str; 6] = ["operator new", "operator delete", "je_", "mi_malloc", "mi_free", "tc_"];
/// With which garbage collection begins: Go, Python, the JVM (HotSpot).
const COLLECTORS: [&str; 7] = [
    "runtime.gcBgMarkWorker",
    "runtime.gcAssistAlloc",
    "runtime.gcStart",
    "runtime.bgsweep",
    "gc_collect_main",
    "_PyGC_Collect",
    "GangWorker::loop",
];
/// With which start-up begins: the dynamic linker's entry and its calls of constructors, and one-off initialisation.
const INITS: [&str; 10] = [
    "_dl_start",
    "_dl_start_user",
    "_dl_init",
    "_dl_main",
    "dl_main",
    "call_init",
    "__libc_csu_init",
    "_init",
    "__pthread_once_slow",
    "std::sync::once::Once::call",
];
const INIT_STARTS: [&str; 3] = ["_GLOBAL__sub_I_", "__static_initialization_and_destruction", "_dl_relocate_object"];
/// With which the kernel serves a page fault.
const PAGE_FAULTS: [&str; 3] = ["asm_exc_page_fault", "exc_page_fault", "do_user_addr_fault"];

impl Groups {
    /// The group of the next function of the stack, callers first.
    pub fn next<'a>(&mut self, profile: &'a Profile, function: CostCentreId) -> Cow<'a, str> {
        let Some(centre) = profile.cost_centre(function) else { return Cow::Borrowed("[unknown]") };
        let name = centre.display_name.as_deref().or(centre.linkage_name.as_deref()).unwrap_or("");
        if centre.image == ImageId::CCSD {
            return Cow::Borrowed(if name.starts_with("[gap") {
                "[gap]"
            } else if name.starts_with("[truncated") {
                "[truncated]"
            } else if name == "[not sampled]" {
                "[not sampled]"
            } else {
                "[ccsd]"
            });
        }
        let image = profile.image_name(function);
        let kernel = image == "[kernel]" || image == "[kernel.kallsyms]";
        if kernel {
            if PAGE_FAULTS.contains(&name) {
                self.inside = Some(Inside::PageFault);
            }
            let in_fault = self.inside == Some(Inside::PageFault);
            return Cow::Borrowed(if in_fault { Inside::PageFault.name() } else { "[kernel]" });
        }
        // A signal handler, or a callback: the program again, whatever was interrupted.
        if self.inside == Some(Inside::PageFault) {
            self.inside = None;
        }
        let begins = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
        if INITS.contains(&name) || begins(&INIT_STARTS) {
            self.inside = Some(Inside::Init);
        } else if self.inside.is_none() && COLLECTORS.contains(&name) {
            self.inside = Some(Inside::Collector);
        } else if self.inside.is_none() && (ALLOCATORS.contains(&name) || begins(&ALLOCATOR_STARTS)) {
            self.inside = Some(Inside::Allocator);
        }
        match self.inside {
            Some(inside) => Cow::Borrowed(inside.name()),
            None => image,
        }
    }
}
