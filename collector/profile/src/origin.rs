//! Where functions come from: the program itself, libraries, an interpreter, what starts a program.
//!
//! The first screen shows a program's own functions first, because those are what its author can change.

use crate::ids::{CostCentreId, ImageId};
use crate::model::CostCentre;
use crate::name::basename;
use crate::profile::Profile;

/// Where a function comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The program: defined in a file, else an image, that is no library's. For generated code: a script that is no
    /// library's.
    Own,
    /// A library, the kernel, a language's runtime.
    Library,
    /// An interpreter or virtual machine. Counts as a library if its scripts' functions have no names.
    Interpreter,
    /// What runs above `main`, or above the first function of a thread.
    Startup,
    /// What a language's runtime puts around a call of the program's own: it says nothing of its own in a list of functions.
    Wrapper,
    /// `[truncated]`, `[not sampled]` and the like.
    Special,
}

/// The origins of a profile's functions.
#[derive(Debug)]
pub struct Origins {
    by_function: Vec<Origin>,
}

/// What begins a process, or a thread of Rust and Go: C libraries, and the runtimes of these languages.
const STARTUP: [&str; 19] = [
    "_start",
    "_start_c",
    "__libc_start_main",
    "__libc_start_main_impl",
    "__libc_start_call_main",
    "libc_start_main_stage2",
    "generic_start_main",
    "execute_native_thread_routine",
    "__rust_begin_short_backtrace",
    "runtime.main",
    "runtime.goexit",
    "runtime.goexit.abi0",
    "runtime.mstart",
    "runtime.mstart0",
    "runtime.mstart1",
    "runtime.rt0_go",
    "runtime.rt0_go.abi0",
    "_rt0_amd64_linux",
    "_rt0_amd64",
];
/// The same, with versions, generic arguments and closures behind them.
const STARTUP_STARTS: [&str; 6] = [
    "__libc_start_main@",
    "lang_start",
    "std::rt::lang_start",
    "<std::rt::lang_start",
    "std::sys::backtrace::__rust_begin_short_backtrace",
    "std::sys_common::backtrace::__rust_begin_short_backtrace",
];
/// What begins a thread, in C libraries alone: programs have functions of these names, too.
const THREAD_STARTUP: [&str; 6] = ["start_thread", "start", "clone", "clone3", "__clone", "__clone3"];
/// Those of the same that no program has for something else, wherever they are: in C libraries that are part of the program.
const THREAD_ENTRIES: [&str; 4] = ["start_thread", "clone3", "__clone", "__clone3"];
/// Where the dynamic linker begins, and later calls a program's initialisers from.
const DYNAMIC_LINKER_ENTRY: &str = "_dl_start_user";
/// What begins a thread of the kernel, and what an idle CPU does.
const KERNEL_ENTRIES: [&str; 9] = [
    "ret_from_fork",
    "ret_from_fork_asm",
    "kthread",
    "start_kernel",
    "start_secondary",
    "cpu_startup_entry",
    "common_startup_64",
    "secondary_startup_64",
    "secondary_startup_64_no_verify",
];
/// What stands between the start of a program or thread and its first function, but also between functions of its own.
const WRAPPERS: [&str; 3] = [
    "core::ops::function::FnOnce::call_once",
    "<alloc::boxed::Box<F,A> as core::ops::function::FnOnce<Args>>::call_once",
    "core::ops::function::FnOnce::call_once{{vtable.shim}}",
];
/// The same, with generic arguments and closures behind them.
const WRAPPER_STARTS: [&str; 10] = [
    "std::panic::catch_unwind",
    "std::panicking::try",
    "std::panicking::catch_unwind",
    "std::thread::Builder::spawn",
    "std::thread::lifecycle::spawn",
    "std::thread::thread_start",
    "std::sys::thread::unix::Thread::new",
    "std::sys::pal::unix::thread::Thread::new",
    "<&dyn core::ops::function::Fn<(), Output = i32>",
    "<core::panic::unwind_safe::AssertUnwindSafe<",
];
/// Where the files of compilers, languages and packages lie.
const LIBRARY_ROOTS: [&str; 10] = [
    "/usr/include/",
    "/usr/local/include/",
    "/usr/lib/",
    "/usr/local/lib/",
    "/usr/share/",
    "/usr/src/",
    "/usr/local/go/",
    "/rustc/",
    "/rust/deps/",
    "<",
];
/// The same, anywhere in a path.
const LIBRARY_PARTS: [&str; 11] = [
    "/.cargo/registry/",
    "/.cargo/git/",
    "/.rustup/",
    "/node_modules/",
    "/site-packages/",
    "/dist-packages/",
    "/lib/python",
    "/lib/ruby/",
    "/pkg/mod/",
    "/include/c++/",
    "/lib/rustlib/",
];
/// File names of interpreters and virtual machines, up to a version.
const INTERPRETERS: [&str; 14] = [
    "python",
    "libpython",
    "pypy",
    "node",
    "java",
    "libjvm.so",
    "ruby",
    "libruby",
    "php",
    "luajit",
    "libluajit",
    "dotnet",
    "libcoreclr.so",
    "libmono",
];

impl Origins {
    /// Of all functions of a profile. Takes time linear in their number.
    #[must_use]
    pub fn of(profile: &Profile) -> Origins {
        let centres = profile.cost_centres();
        let mut by_function: Vec<Origin> = centres.iter().map(|centre| origin(profile, centre)).collect();
        let image = |centre: &CostCentre| profile.image(centre.image).map_or("", |image| image.name.as_str());
        let mut own = centres.iter().zip(&by_function).filter(|(_, origin)| **origin == Origin::Own);
        let has_scripts = own.any(|(centre, _)| is_generated(image(centre)));
        let is_rust =
            centres.iter().any(|centre| name(centre).is_some_and(|name| name.starts_with("std::rt::lang_start")));
        for (centre, origin) in centres.iter().zip(&mut by_function) {
            if matches!(origin, Origin::Startup | Origin::Wrapper | Origin::Special) {
                continue;
            }
            if is_interpreter(basename(image(centre))) {
                *origin = if has_scripts { Origin::Interpreter } else { Origin::Library };
            } else if is_rust && centre.file.is_none() && name(centre) == Some("main") {
                // The compiler makes it, to call `lang_start`.
                *origin = Origin::Startup;
            }
        }
        Origins { by_function }
    }

    /// Of one function.
    #[must_use]
    pub fn get(&self, function: CostCentreId) -> Origin {
        self.by_function.get(function.index()).copied().unwrap_or(Origin::Library)
    }

    /// The functions of an origin.
    pub fn all(&self, origin: Origin) -> impl Iterator<Item = CostCentreId> + '_ {
        let ids = (0u32..).map(CostCentreId::new);
        ids.zip(&self.by_function).filter(move |(_, it)| **it == origin).map(|(id, _)| id)
    }
}

/// Whether a stack begins where a process or thread does, by the names of its functions, `root_first`: its outermost
/// function is `main`, comes before `main`, or begins a thread. In C libraries without symbols, an unnamed caller of
/// those counts.
pub fn begins_at_entry(profile: &Profile, root_first: impl IntoIterator<Item = CostCentreId>) -> bool {
    for function in root_first {
        let Some(centre) = profile.cost_centre(function) else { return false };
        let image = profile.image(centre.image).map_or("", |image| image.name.as_str());
        let is_libc = is_libc(basename(image));
        let Some(name) = name(centre).filter(|&name| name != "[unknown]") else {
            if is_libc {
                continue;
            }
            return false;
        };
        // perf writes versions behind names.
        let name = name.split('@').next().unwrap_or(name);
        return match image {
            _ if centre.image == ImageId::CCSD || is_generated(image) => false,
            _ if image.starts_with("[kernel") => KERNEL_ENTRIES.contains(&name),
            _ => {
                name == "main"
                    || STARTUP.contains(&name)
                    || THREAD_ENTRIES.contains(&name)
                    || STARTUP_STARTS.iter().any(|start| name.starts_with(start))
                    || is_libc && THREAD_STARTUP.contains(&name)
                    || name == DYNAMIC_LINKER_ENTRY && basename(image).starts_with("ld-")
            }
        };
    }
    false
}

fn is_libc(file_name: &str) -> bool {
    ["libc.", "libc-", "libpthread", "ld-musl"].iter().any(|start| file_name.starts_with(start))
}

/// Whether an image is an interpreter or virtual machine, by its file name.
#[must_use]
pub fn is_interpreter(file_name: &str) -> bool {
    INTERPRETERS.iter().any(|name| {
        let rest = file_name.strip_prefix(name);
        // `python3.13`, `libpython3.13.so.1.0`, `php-fpm`; but not `nodetool` or `node-agent`.
        rest.is_some_and(|rest| {
            let is_version = rest.starts_with(|c: char| c.is_ascii_digit() || c == '.');
            rest.is_empty() || is_version || ["-fpm", "-cgi", "-dbg"].contains(&rest)
        })
    })
}

/// Whether an image is code that was generated at run time.
#[must_use]
pub fn is_generated(image: &str) -> bool {
    matches!(image, "[jit]" | "[anon]")
}

fn name(centre: &CostCentre) -> Option<&str> {
    centre.display_name.as_deref().or(centre.linkage_name.as_deref())
}

fn origin(profile: &Profile, centre: &CostCentre) -> Origin {
    if centre.image == ImageId::CCSD {
        return Origin::Special;
    }
    let name = name(centre);
    let image = profile.image(centre.image).map_or("", |image| image.name.as_str());
    if is_generated(image) {
        return name.map_or(Origin::Library, script_origin);
    }
    if image.starts_with('[') {
        return Origin::Library;
    }
    let file_name = basename(image);
    let shared = file_name.ends_with(".so") || file_name.contains(".so.");
    // The dynamic linker has a `_start` of its own, where real work begins; and a program may call a function `clone`.
    let is_linker = file_name.starts_with("ld-") && !file_name.starts_with("ld-musl");
    let is_libc = is_libc(file_name);
    if let Some(name) = name.filter(|_| !is_linker) {
        let starts = |list: &[&str]| list.iter().any(|start| name.starts_with(start));
        if STARTUP.contains(&name) || starts(&STARTUP_STARTS) || is_libc && THREAD_STARTUP.contains(&name) {
            return Origin::Startup;
        }
        if WRAPPERS.contains(&name) || starts(&WRAPPER_STARTS) {
            return Origin::Wrapper;
        }
    }
    let installed = shared && (image.starts_with("/usr/") || image.starts_with("/lib"));
    let stub = name.is_some_and(|name| name.ends_with("@plt"));
    let own = match centre.file.as_deref() {
        _ if installed || stub => false,
        Some(file) => !is_library_file(file),
        None => !shared,
    };
    if own { Origin::Own } else { Origin::Library }
}

fn is_library_file(path: &str) -> bool {
    LIBRARY_ROOTS.iter().any(|root| path.starts_with(root)) || LIBRARY_PARTS.iter().any(|part| path.contains(part))
}

/// By runtime's name: `py::run:/srv/app.py` (Python), `JS:*run /srv/app.js:3:8` (Node), `Lcom/example/App;::run` (JVM).
fn script_origin(name: &str) -> Origin {
    let own = if let Some(python) = name.strip_prefix("py::") {
        python.split_once(':').is_none_or(|(_, path)| !is_library_file(path))
    } else if let Some((kind, rest)) = name.split_once(':').filter(|(kind, _)| SCRIPTS.contains(kind)) {
        let path = rest.split_once(' ').map_or("", |(_, path)| path);
        kind != "RegExp" && !path.is_empty() && !path.starts_with("node:") && !is_library_file(path)
    } else {
        let class = name.strip_prefix('L').unwrap_or(name);
        let runtime = ["java", "javax", "jdk", "sun", "scala", "kotlin"];
        let package = class.split(['/', '.']).next().unwrap_or(class);
        (class.contains("::") || class.contains(";")) && !runtime.contains(&package)
    };
    if own { Origin::Own } else { Origin::Library }
}

/// With which names of generated JavaScript begin (V8).
pub(crate) const SCRIPTS: [&str; 7] = ["JS", "LazyCompile", "Function", "Script", "Eval", "RegExp", "Callback"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::ProfileLimits;
    use crate::model::{Image, SessionInfo};

    #[test]
    fn files_of_libraries() {
        for path in [
            "/usr/include/c++/12/bits/stl_vector.h",
            "/rustc/0123/library/core/src/str/mod.rs",
            "/home/me/.cargo/registry/src/index/serde-1.0/src/lib.rs",
            "/srv/app/node_modules/lodash/lodash.js",
            "/srv/venv/lib/python3.13/site-packages/x.py",
            "<frozen importlib._bootstrap>",
        ] {
            assert!(is_library_file(path), "{path}");
        }
        for path in ["/home/me/src/main.cpp", "src/main.rs", "./pp_hot.c", "/srv/app/server.js"] {
            assert!(!is_library_file(path), "{path}");
        }
    }

    #[test]
    fn scripts() {
        for name in ["py::f:/srv/app.py", "JS:*run /srv/app.js:3:8", "Lcom/example/App;::run", "com.example.App::run"] {
            assert_eq!(script_origin(name), Origin::Own, "{name}");
        }
        for name in [
            "py::join:<frozen posixpath>",
            "JS:^require node:internal/bootstrap:1:2",
            "JS:~f /srv/node_modules/x/i.js:1:2",
            "RegExp:\\s+",
            "Ljava/util/HashMap;::get",
            "java.util.HashMap::get",
            "Interpreter",
        ] {
            assert_eq!(script_origin(name), Origin::Library, "{name}");
        }
    }

    #[test]
    fn entries() {
        let begins = |root_first: &[(&str, Option<&str>)]| {
            let mut profile = Profile::new(SessionInfo::default(), ProfileLimits::default());
            let functions: Vec<CostCentreId> = root_first
                .iter()
                .map(|&(image, name)| {
                    let image = profile.add_image(Image { name: image.to_owned(), build_id: Vec::new() });
                    profile.add_cost_centre(CostCentre {
                        image,
                        linkage_name: name.map(str::to_owned),
                        display_name: None,
                        start: name.is_none().then_some(0x1000),
                        file: None,
                        line: 0,
                        local: false,
                    })
                })
                .collect();
            begins_at_entry(&profile, functions)
        };
        let (libc, program) = ("/usr/lib/x86_64-linux-gnu/libc.so.6", "/srv/program");
        for (image, name) in [
            (program, "_start"),
            (program, "main"),
            (program, "clone3"),
            (program, "std::rt::lang_start::{{closure}}"),
            (program, "runtime.goexit.abi0"),
            (libc, "__libc_start_call_main"),
            (libc, "__libc_start_main@@GLIBC_2.34"),
            (libc, "start_thread"),
            (libc, "clone"),
            ("/usr/lib64/ld-linux-x86-64.so.2", "_dl_start_user"),
            ("[kernel]", "ret_from_fork_asm"),
            ("[kernel.kallsyms]", "kthread"),
        ] {
            assert!(begins(&[(image, Some(name)), (program, Some("work"))]), "{name} of {image}");
            assert!(!begins(&[(program, Some("work")), (image, Some(name))]), "{name} of {image}");
        }
        for (image, name) in [
            (program, "work"),
            (program, "clone"),
            (program, "_dl_start_user"),
            (program, "kthread"),
            (program, "mainly"),
            (libc, "qsort_r"),
            ("[kernel]", "entry_SYSCALL_64_after_hwframe"),
            ("[kernel]", "main"),
            ("[jit]", "main"),
        ] {
            assert!(!begins(&[(image, Some(name)), (program, Some("work"))]), "{name} of {image}");
        }
        // A C library without symbols that calls main; one that calls something else may be in the middle of anything.
        assert!(begins(&[(libc, None), (libc, Some("[unknown]")), (program, Some("main"))]));
        assert!(!begins(&[(libc, None), (program, Some("compare"))]));
        assert!(!begins(&[(program, None), (program, Some("main"))]));
        assert!(!begins(&[]) && !begins(&[(libc, None)]));
    }

    #[test]
    fn interpreters() {
        for name in ["python3.13", "python", "libpython3.11.so.1.0", "node", "java", "libjvm.so", "ruby3.1"] {
            assert!(is_interpreter(name), "{name}");
        }
        for name in ["nodetool", "node-agent", "javac", "my-python", "pythonize"] {
            assert!(!is_interpreter(name), "{name}");
        }
    }
}
