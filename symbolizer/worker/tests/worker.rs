//! A worker with its daemon, both in this program.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ccsd_symbolizer::{DebugFileFinder, ElfFile, Function, Symbols};
use ccsd_worker::{
    ImageNames, OpenedImage, Patience, Principal, Told, WorkerProgram, Workers, file_key, parse_code, read_in, sandbox,
    worker_pid,
};
use libtest_mimic::{Arguments, Failed, Trial};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const SERVE: &str = "--serve-as-worker";
/// Argument that makes it try the action named next in the sandbox.
const TRY: &str = "--try-in-sandbox";
/// Argument that makes it run the test named next with its own worker.
const ALONE: &str = "--alone";

#[derive(Debug)]
struct ThisProgram;

impl WorkerProgram for ThisProgram {
    fn command(&self) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(SERVE);
        command
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    match words.get(1).map(String::as_str) {
        Some(SERVE) => {
            eprintln!("{}", ccsd_worker::serve().unwrap_err());
            ExitCode::FAILURE
        }
        Some(TRY) => {
            attempt(&words[2]);
            ExitCode::SUCCESS
        }
        Some(ALONE) => {
            // A short time, which suffices on a busy machine, and a long one.
            let (brief, long) = (Duration::from_secs(4), Duration::from_secs(600));
            let patience = match words[2].as_str() {
                "forgiven" => Patience { blame: brief, ..Patience::default() },
                "stopped" => Patience { headers: brief, ..Patience::default() },
                "innocent" => Patience { answer: long, ..Patience::default() },
                _ => Patience::default(),
            };
            read_in(Workers::start(ThisProgram, patience).unwrap());
            match words[2].as_str() {
                "given-up" => given_up(),
                "forgiven" => forgiven(),
                "stopped" => stopped(),
                "innocent" => innocent(),
                "too-often" => too_often(),
                "principals" => principals(),
                "places" => places(),
                "place-of-another" => place_of_another(),
                "headers" => headers_in_time(),
                "namespaces" => namespaces(),
                other => panic!("{other}"),
            }
            ExitCode::SUCCESS
        }
        _ => {
            read_in(Workers::start(ThisProgram, Patience::default()).unwrap());
            let test = |name: &str, body: fn()| {
                Trial::test(name, move || {
                    body();
                    Ok::<(), Failed>(())
                })
            };
            // One after the other: one test kills the worker, and another checks which worker it is.
            let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
            let tests = vec![
                test("names_are_those_of_this_process", names_are_the_same),
                test("headers_are_those_of_this_process", headers_are_the_same),
                test("the_worker_has_no_rights", no_rights),
                test("forbidden_calls_end_it", forbidden),
                test("a_worker_that_is_killed_is_replaced", killed),
                test("other_files_are_no_images", no_image),
                test("images_are_shared", shared),
                test("generated_code_is_the_same", generated_code),
                test("a_file_that_it_dies_of_is_given_up", || alone("given-up")),
                test("a_file_that_is_given_up_is_read_again_later", || alone("forgiven")),
                test("a_worker_that_is_stopped_is_replaced", || alone("stopped")),
                test("files_beside_that_are_not_given_up", || alone("innocent")),
                test("a_worker_that_dies_too_often_is_not_started", || alone("too-often")),
                test("a_user_whose_files_kill_it_costs_only_that_user_names", || alone("principals")),
                test("idle_processes_make_place_for_others", || alone("places")),
                test("a_waiting_worker_gets_the_place_of_the_longest_idle", || alone("place-of-another")),
                test("the_sampling_thread_waits_for_no_stranger", || alone("headers")),
                test("files_of_services_are_this_machine_s_and_of_containers_are_not", || alone("namespaces")),
                test("memory_and_aborts_are_within_the_filter", within_the_filter),
                test("it_is_started_by_a_daemon_only", not_by_hand),
            ];
            libtest_mimic::run(&arguments, tests).exit_code()
        }
    }
}

fn own() -> File {
    File::open(std::env::current_exe().unwrap()).unwrap()
}

fn addresses(elf: &ElfFile) -> Vec<u64> {
    let code = elf.segments().iter().find(|segment| segment.executable).unwrap();
    (0..200).map(|i| code.svma + code.mem_size / 200 * i).collect()
}

fn finder() -> DebugFileFinder {
    DebugFileFinder::system().image_path(std::env::current_exe().unwrap())
}

fn locally(addresses: &[u64]) -> Vec<Vec<Function>> {
    let mut symbols = Symbols::new(Arc::new(ElfFile::open(own()).unwrap()), finder());
    let mut resolve = |&address| {
        let mut functions = Vec::new();
        symbols.resolve(address, &mut functions);
        functions
    };
    addresses.iter().map(&mut resolve).collect()
}

fn names_are_the_same() {
    let image = open(own()).unwrap();
    let addresses = addresses(&image);
    let mut names = names_of(image, finder());
    assert!(names.batch() >= addresses.len());
    let (functions, told) = names.resolve(&addresses, &mut at_once);
    assert_eq!((functions, told), (locally(&addresses), Told::Known));
    assert!(names.cpu_ns() > 0 && names.held_bytes() == 0, "{:?}", names.cpu_ns());
    // This program may be built with less debug information than usual.
    assert!(names.notes().iter().all(|note| note.contains("line tables only")), "{:?}", names.notes());
}

fn headers_are_the_same() {
    let (here, there) = (ElfFile::open(own()).unwrap(), open(own()).unwrap());
    assert_eq!(here.unwind_sections(), there.unwind_sections());
    assert_eq!((here.segments(), here.build_id()), (there.segments(), there.build_id()));
}

fn no_rights() {
    let pid = worker_pid(Principal::Own).unwrap();
    let threads: Vec<_> = fs::read_dir(format!("/proc/{pid}/task")).unwrap().collect();
    assert!(threads.len() > 1);
    for thread in threads {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim_start_matches(':').trim().to_owned()
        };
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(u64::from_str_radix(&field(set), 16).unwrap(), 0, "{set}");
        }
        assert_eq!((field("Seccomp").as_str(), field("NoNewPrivs").as_str()), ("2", "1"), "{status}");
        if nix::unistd::geteuid().is_root() {
            assert_eq!(u64::from_str_radix(&field("CapBnd"), 16).unwrap(), 0);
        }
    }
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().rev().nth(1), Some("0"), "{core}");
}

/// Actions of a compromised parser.
const FORBIDDEN: [&str; 9] = ["open2", "socket", "thread", "fork", "execute", "execve", "kill", "trace", "stat"];

fn forbidden() {
    let run = |what: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([TRY, what]).stderr(Stdio::null()).stdin(Stdio::null()).output().unwrap()
    };
    // The sandbox itself does not end the process.
    let allowed = run("nothing");
    assert_eq!((allowed.status.code(), allowed.stdout.as_slice()), (Some(0), &b"ready"[..]), "{allowed:?}");
    for what in FORBIDDEN {
        let ended = run(what);
        assert_eq!(ended.stdout, b"ready", "{what}");
        assert_eq!(ended.status.signal(), Some(Signal::SIGSYS as i32), "{what}: {ended:?}");
    }
}

/// What the C library's allocator does when its heaps are full, and its end of a process with a damaged heap, are no
/// forbidden system calls.
fn within_the_filter() {
    let run = |what: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        // As a daemon starts it: a backtrace would look at files.
        command.args([TRY, what]).env_clear().stderr(Stdio::null()).stdin(Stdio::null()).output().unwrap()
    };
    for (what, code, signal) in [
        ("heaps", Some(0), None),
        // A refused allocation: this test's program has the standard library's allocator, which aborts.
        ("too-much", None, Some(Signal::SIGABRT as i32)),
        ("abort", None, Some(Signal::SIGABRT as i32)),
        ("panic", Some(101), None),
    ] {
        let ended = run(what);
        assert_eq!(ended.stdout, b"ready", "{what}: {ended:?}");
        assert_eq!((ended.status.code(), ended.status.signal()), (code, signal), "{what}: {ended:?}");
    }
}

/// Fills heaps of several threads, of which each has its own, beyond what one holds (64 MiB), and gives the memory back.
fn fill_heaps(number: usize) {
    for round in 0..3 {
        let mut all: Vec<Vec<u8>> = (0..40_000).map(|i| vec![1; 2_000 + (i * 7 + number + round) % 500]).collect();
        // Reallocations of small and large pieces.
        all.iter_mut().step_by(400).for_each(|piece| piece.resize(300_000, 2));
        let large = vec![3u8; 40 << 20];
        assert_eq!(large[large.len() - 1], 3);
        all.retain(|piece| piece.len() % 2 == 0);
        assert!(!all.is_empty());
    }
}

fn attempt(what: &str) {
    let own = std::process::id().cast_signed();
    sandbox::close_inherited().unwrap();
    let file = own_file();
    sandbox::give_up_rights(768 << 20, 1000).unwrap();
    // Threads cannot be started afterwards.
    let barrier = Arc::new(std::sync::Barrier::new(3));
    for number in (1..3).filter(|_| what == "heaps") {
        let barrier = Arc::clone(&barrier);
        std::thread::spawn(move || -> () {
            // It has begun when the filter comes, as in a worker.
            barrier.wait();
            barrier.wait();
            fill_heaps(number);
            barrier.wait();
            // Those of a worker do not end either.
            loop {
                std::thread::park();
            }
        });
    }
    if what == "heaps" {
        barrier.wait();
    }
    sandbox::filter_system_calls().unwrap();
    let mut out = std::io::stdout();
    out.write_all(b"ready").unwrap();
    out.flush().unwrap();
    match what {
        "nothing" => {
            // Needed for parsing: memory, small and large, and the file.
            let size = file.metadata().unwrap().len() as usize;
            let mut bytes = vec![0; size];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
            drop(file.try_clone().unwrap());
            for path in ["/etc/passwd", "/proc/self/mem", "/dev/null"] {
                assert_eq!(File::open(path).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
            }
            let many: Vec<Vec<u8>> = (0..1000).map(|i| vec![1; i]).collect();
            assert!(many.iter().map(Vec::len).sum::<usize>() > 0);
        }
        "heaps" => {
            barrier.wait();
            fill_heaps(0);
            barrier.wait();
        }
        "too-much" => drop(std::hint::black_box(vec![0u8; 2 << 30])),
        "abort" => std::process::abort(),
        "panic" => panic!("expected by this test"),
        "open2" => {
            let how = nix::fcntl::OpenHow::new();
            drop(nix::fcntl::openat2(nix::fcntl::AT_FDCWD, "/etc/passwd", how));
        }
        "socket" => drop(std::os::unix::net::UnixDatagram::unbound()),
        "thread" => drop(std::thread::Builder::new().spawn(|| {})),
        "fork" => drop(Command::new("/bin/true").status()),
        "execute" => {
            let size = std::num::NonZeroUsize::new(4096).unwrap();
            use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
            let protection = ProtFlags::PROT_READ | ProtFlags::PROT_EXEC;
            // SAFETY: new memory, which nothing uses.
            let _ = unsafe { mmap_anonymous(None, size, protection, MapFlags::MAP_PRIVATE) };
        }
        "execve" => drop(nix::unistd::execv(c"/bin/true", &[c"true"])),
        "kill" => drop(kill(Pid::from_raw(own), None)),
        "trace" => drop(nix::sys::ptrace::traceme()),
        "stat" => drop(fs::metadata("/etc/passwd")),
        _ => panic!("{what}"),
    }
}

fn own_file() -> File {
    File::open("/proc/self/exe").unwrap()
}

fn killed() {
    let image = open(own()).unwrap();
    let addresses = addresses(&image);
    let expected = locally(&addresses);
    let mut names = names_of(image, finder());
    let _ = names.resolve(&addresses[..1], &mut at_once);
    let before = worker_pid(Principal::Own).unwrap();
    kill(Pid::from_raw(before.cast_signed()), Signal::SIGKILL).unwrap();
    // The next question finds the worker gone, and another one answers.
    assert_eq!(names.resolve(&addresses, &mut at_once), (expected, Told::Known));
    assert_ne!(worker_pid(Principal::Own).unwrap(), before);
}

fn no_image() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let before = worker_pid(Principal::Own).unwrap();
    for content in [&b""[..], b"\x7fELF", &[0xff; 5000], b"#!/bin/sh\n"] {
        fs::write(&path, content).unwrap();
        assert!(open(File::open(&path).unwrap()).is_none());
    }
    assert!(open(File::open(dir.path()).unwrap()).is_none() && open(File::open("/dev/null").unwrap()).is_none());
    assert_eq!(worker_pid(Principal::Own).unwrap(), before, "none of them does any harm");
}

/// Runs a test in its own process, because its worker's deaths are remembered.
fn alone(name: &str) {
    let output = Command::new(std::env::current_exe().unwrap()).args([ALONE, name]).stdin(Stdio::null()).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn kill_now() {
    kill(Pid::from_raw(worker_pid(Principal::Own).unwrap().cast_signed()), Signal::SIGKILL).unwrap();
}

fn given_up() {
    let image = open(own()).unwrap();
    let addresses = addresses(&image);
    let mut names = names_of(image, finder());
    let functions = kill_while(|| names.resolve(&addresses, &mut at_once));
    assert_eq!(functions, (vec![Vec::new(); addresses.len()], Told::GivenUp));
    assert!(names.notes().iter().any(|note| note.contains("crashed on it")), "{:?}", names.notes());
    // The file is not asked about again, and other files are not affected.
    let before = worker_pid(Principal::Own);
    let mut again = names_of(open(own()).unwrap(), finder());
    assert_eq!(
        (again.resolve(&addresses[..1], &mut at_once), worker_pid(Principal::Own)),
        ((vec![vec![]], Told::GivenUp), before)
    );
    assert!(open(File::open("/proc/self/exe").unwrap()).is_some());
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    let copy = open(File::open(&copy).unwrap()).unwrap();
    assert!(!names_of(copy, finder()).resolve(&addresses[..1], &mut at_once).0[0].is_empty());
}

/// Kills every new worker until there is an answer; reading this program takes far longer than finding a worker.
fn kill_while<T>(ask: impl FnOnce() -> T) -> T {
    let (done, asked) = std::sync::mpsc::channel::<()>();
    let killer = std::thread::spawn(move || {
        let mut killed = std::collections::BTreeSet::new();
        while let Err(std::sync::mpsc::TryRecvError::Empty) = asked.try_recv() {
            if let Some(pid) = worker_pid(Principal::Own)
                && killed.insert(pid)
            {
                kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).unwrap();
            }
            std::thread::yield_now();
        }
        killed.len()
    });
    let answer = ask();
    drop(done);
    // The first may have been killed before it was asked anything, which counts against no file.
    assert!((2..=3).contains(&killer.join().unwrap()));
    answer
}

fn forgiven() {
    let image = open(own()).unwrap();
    let addresses = addresses(&image);
    let mut names = names_of(image, finder());
    assert_eq!(kill_while(|| names.resolve(&addresses, &mut at_once)).1, Told::GivenUp);
    let functions = loop {
        match names.resolve(&addresses, &mut at_once) {
            (functions, Told::Known) => break functions,
            (_, told) => assert_eq!(told, Told::GivenUp),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(functions, locally(&addresses));
    assert!(names.notes().iter().any(|note| note.contains("crashed on it")), "{:?}", names.notes());
}

/// A hanging worker, simulated by a stopped one.
fn stopped() {
    let pid = worker_pid(Principal::Own).unwrap();
    stop(pid);
    let file = fresh();
    assert!(open(file.try_clone().unwrap()).is_some());
    let next = worker_pid(Principal::Own).unwrap();
    assert_ne!(next, pid);
    stop(next);
    // The second time the file may be the cause. Other files are read.
    assert!(matches!(try_open(file), OpenedImage::NotNow(_)));
    assert!(worker_pid(Principal::Own).is_none() && open(fresh()).is_some());
}

/// Stops a worker, and waits until all its threads are stopped: they continue until one has seen the signal.
fn stop(pid: u32) {
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGSTOP).unwrap();
    while threads_in(pid, 'T') < fs::read_dir(format!("/proc/{pid}/task")).unwrap().count() {
        std::thread::yield_now();
    }
}

fn innocent() {
    // Without CPU for the killer, all questions may be answered before.
    assert!((0..10).any(|_| killed_amid_several()));
}

/// Whether the worker was killed while several files were asked about.
fn killed_amid_several() -> bool {
    let dir = tempfile::tempdir().unwrap();
    let images: Vec<_> = (0..4)
        .map(|number| {
            let path = dir.path().join(number.to_string());
            fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
            open(File::open(path).unwrap()).unwrap()
        })
        .collect();
    let addresses = addresses(&images[0]);
    // All begin at the same moment, and reading takes far longer than finding a worker to kill.
    let together = std::sync::Barrier::new(images.len() + 1);
    let (told, amid) = std::thread::scope(|scope| {
        let asking: Vec<_> = images
            .iter()
            .map(|image| {
                let mut names = names_of(Arc::clone(image), DebugFileFinder::none());
                let (together, addresses) = (&together, &addresses);
                scope.spawn(move || {
                    together.wait();
                    names.resolve(addresses, &mut at_once)
                })
            })
            .collect();
        let first = worker_pid(Principal::Own).unwrap();
        together.wait();
        let answered = || asking.iter().all(|asking| asking.is_finished());
        while !answered() && !is_busy(first) {
            std::thread::yield_now();
        }
        let amid = !answered();
        if amid {
            kill(Pid::from_raw(first.cast_signed()), Signal::SIGKILL).unwrap();
        }
        (asking.into_iter().map(|asking| asking.join().unwrap()).collect::<Vec<_>>(), amid)
    });
    for (functions, told) in told {
        assert_eq!(told, Told::Known);
        assert!(functions.iter().any(|functions| !functions.is_empty()));
    }
    amid
}

fn is_busy(pid: u32) -> bool {
    threads_in(pid, 'R') > 1
}

fn threads_in(pid: u32, state: char) -> usize {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let is_in = |path: std::path::PathBuf| {
        let stat = fs::read_to_string(path.join("stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(state))
    };
    threads.filter(|thread| is_in(thread.path())).count()
}

/// An image that was not asked about before, and whose file stays open.
fn fresh() -> File {
    let file = tempfile::tempfile().unwrap();
    std::io::copy(&mut own(), &mut &file).unwrap();
    file
}

fn open(file: File) -> Option<Arc<ElfFile>> {
    match try_open(file) {
        OpenedImage::Image(elf) => Some(elf),
        OpenedImage::NoImage | OpenedImage::NotNow(_) => None,
    }
}

/// Waits long enough for any worker.
fn try_open(file: File) -> OpenedImage {
    let key = file_key(&file, None).unwrap();
    ccsd_worker::open(file, &key, Duration::from_secs(60))
}

/// Opens files without a deadline.
#[expect(clippy::unnecessary_wraps, reason = "others have one")]
fn at_once(opening: ccsd_worker::Opening) -> Option<Vec<File>> {
    Some(opening())
}

fn names_of(image: Arc<ElfFile>, finder: DebugFileFinder) -> ImageNames {
    let key = file_key(image.file().unwrap(), None).unwrap();
    ImageNames::new(image, Some(&key), finder)
}

fn too_often() {
    let dir = tempfile::tempdir().unwrap();
    // A different file each time, so that none is given up.
    let ask = |name: &str| {
        let path = dir.path().join(name);
        fs::copy("/bin/true", &path).unwrap();
        open(File::open(path).unwrap()).is_some()
    };
    assert!(ask("0"));
    for name in ["1", "2", "3", "4"] {
        kill_now();
        assert!(ask(name), "{name}");
    }
    let image = open(own()).unwrap();
    let address = image.entry();
    let mut names = names_of(image, finder());
    kill_now();
    assert!(!ask("5") && worker_pid(Principal::Own).is_none());
    // The image is not reported as unreadable.
    assert!(matches!(try_open(fresh()), OpenedImage::NotNow(_)));
    // A later question may be answered, so this one has no answer.
    assert_eq!(names.resolve(&[address], &mut at_once), (vec![vec![]], Told::NotNow));
}

/// A new copy of this program that belongs to a user.
fn file_of_user(uid: u32) -> File {
    let file = fresh();
    std::os::unix::fs::fchown(&file, Some(uid), None).unwrap();
    file
}

const ADA: u32 = 54_321;
const BOB: u32 = 54_322;

/// With one worker for all, five deaths leave all users without names, root too.
fn principals() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let own = open(fresh()).unwrap();
    let addresses = addresses(&own);
    let mut own = names_of(own, finder());
    let mut bobs = names_of(open(file_of_user(BOB)).unwrap(), DebugFileFinder::none());
    let known = |names: &mut ImageNames| {
        let (functions, told) = names.resolve(&addresses, &mut at_once);
        assert_eq!(told, Told::Known);
        assert!(functions.iter().any(|functions| !functions.is_empty()));
    };
    known(&mut own);
    known(&mut bobs);
    let before = [Principal::Own, Principal::User(BOB)].map(|who| worker_pid(who).unwrap());
    assert_ne!(before[0], before[1]);
    // A fresh file for each death, so that no single file is given up.
    let mut told = Told::Known;
    for _ in 0..8 {
        let mut names = names_of(open(file_of_user(ADA)).unwrap(), DebugFileFinder::none());
        let mut asked = None;
        kill_first(ADA, || asked = Some(names.resolve(&addresses, &mut at_once).1));
        told = asked.unwrap();
    }
    assert_eq!(told, Told::GivenUp);
    // Headers, which unwinding needs, are still read.
    assert!(open(file_of_user(ADA)).is_some());
    known(&mut own);
    known(&mut bobs);
    assert_eq!([Principal::Own, Principal::User(BOB)].map(|who| worker_pid(who).unwrap()), before);
}

/// Kills the first process of a user's worker that is seen while `ask` runs.
fn kill_first(uid: u32, ask: impl FnOnce()) {
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                // Reading this program takes far longer than finding the process.
                if let Some(pid) = worker_pid(Principal::User(uid))
                    && is_answering(pid)
                {
                    let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
                    return;
                }
                std::thread::yield_now();
            }
        });
        ask();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

fn is_answering(pid: u32) -> bool {
    threads_in(pid, 'R') > 0
}

fn places() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    for uid in ADA..ADA + 8 {
        assert!(open(file_of_user(uid)).is_some(), "{uid}");
    }
    let running = (ADA..ADA + 8).filter(|uid| worker_pid(Principal::User(*uid)).is_some()).count();
    assert_eq!(running, 2);
    assert!(worker_pid(Principal::Own).is_some());
    // The ended ones are started again.
    assert!(open(file_of_user(ADA)).is_some() && worker_pid(Principal::User(ADA)).is_some());
}

/// Two users' files take long to read. A third user waits for a second, not for ever, and no file is blamed.
fn place_of_another() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let busy: Vec<(u32, Arc<ElfFile>)> = [ADA, BOB].map(|uid| (uid, open(file_of_user(uid)).unwrap())).to_vec();
    let addresses = addresses(&busy[0].1);
    std::thread::scope(|scope| {
        let asking: Vec<_> = busy
            .iter()
            .map(|(uid, image)| {
                // A question that is not answered as long as this is so.
                let pid = worker_pid(Principal::User(*uid)).unwrap();
                stop(pid);
                let (mut names, addresses) = (names_of(Arc::clone(image), DebugFileFinder::none()), &addresses);
                scope.spawn(move || names.resolve(addresses, &mut at_once).1)
            })
            .collect();
        // Each of them asks before the third does.
        std::thread::sleep(Duration::from_millis(100));
        let file = file_of_user(ADA + 5);
        let mut tries = 0;
        while open(file.try_clone().unwrap()).is_none() {
            tries += 1;
            assert!(asking.iter().any(|asking| !asking.is_finished()), "{tries}");
            std::thread::sleep(Duration::from_millis(50));
        }
        // At once it was refused.
        assert!(tries > 0 && worker_pid(Principal::User(ADA + 5)).is_some());
        let running: Vec<u32> =
            [ADA, BOB].into_iter().filter(|uid| worker_pid(Principal::User(*uid)).is_some()).collect();
        assert_eq!(running, [BOB], "the first one has run longest");
        assert_eq!(asking.into_iter().next().unwrap().join().unwrap(), Told::NotNow);
        let bobs = worker_pid(Principal::User(BOB)).unwrap();
        kill(Pid::from_raw(bobs.cast_signed()), Signal::SIGCONT).unwrap();
    });
    // It is asked again, and answers.
    let mut names = names_of(Arc::clone(&busy[0].1), DebugFileFinder::none());
    while names.resolve(&addresses, &mut at_once).1 == Told::NotNow {
        std::thread::sleep(Duration::from_millis(50));
    }
    let (functions, told) = names.resolve(&addresses, &mut at_once);
    assert!(told == Told::Known && functions.iter().any(|functions| !functions.is_empty()), "{told:?}");
}

/// A user's worker that does not answer delays neither its own files nor those of this machine.
fn headers_in_time() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let try_at_once = |file: &File| {
        let key = file_key(file, None).unwrap();
        ccsd_worker::open(file.try_clone().unwrap(), &key, Duration::from_millis(20))
    };
    // Its worker is started beside.
    let first = file_of_user(ADA);
    let mut tries = 0;
    while !matches!(try_at_once(&first), OpenedImage::Image(_)) {
        tries += 1;
        assert!(tries < 5_000);
    }
    let pid = worker_pid(Principal::User(ADA)).unwrap();
    stop(pid);
    let second = file_of_user(ADA);
    let began = std::time::Instant::now();
    for _ in 0..10 {
        assert!(matches!(try_at_once(&second), OpenedImage::NotNow(_)));
    }
    // With one that is waited for, this takes five seconds for each.
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(open(fresh()).is_some());
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGCONT).unwrap();
    while !matches!(try_at_once(&second), OpenedImage::Image(_)) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A process that waits, in a mount namespace that a script has changed.
struct Confined(std::process::Child);

impl Confined {
    /// `none` if namespaces are not permitted here.
    fn start(options: &[&str], script: &str) -> Option<Confined> {
        let mut command = Command::new("unshare");
        command.args(options).args(["sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let mut told = [0];
        let output = child.stdout.as_mut().unwrap();
        std::io::Read::read_exact(output, &mut told).ok().map(|()| Confined(child))
    }

    fn principal(&self, path: &str) -> Principal {
        let file = File::open(format!("/proc/{}/root{path}", self.0.id())).unwrap();
        file_key(&file, Some(self.0.id())).unwrap().principal()
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A service with a mount namespace of its own has the machine's libraries, and a container's root has its own, whatever is
/// bound into it.
fn namespaces() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let is_own = |principal| principal == Principal::Own;
    let service = "mount -t tmpfs none /tmp && cp /bin/true /tmp/own && echo && read line";
    let Some(service) = Confined::start(&["-m"], service) else { return };
    assert!(is_own(service.principal("/bin/sh")), "as the machine has it: {:?}", service.principal("/bin/sh"));
    // What the service itself has put in its own mounts is not the machine's.
    assert!(matches!(service.principal("/tmp/own"), Principal::Elsewhere { namespace, .. } if namespace > 0));
    // A directory of the machine that is bound to another place shows something else than the machine does there.
    let bound = "mount -t tmpfs none /mnt && mkdir /mnt/bin && mount --bind /usr/bin /mnt/bin && echo && read line";
    let bound = Confined::start(&["-m"], bound).unwrap();
    assert!(!is_own(bound.principal("/mnt/bin/sh")) && is_own(bound.principal("/bin/sh")));
    // A container without a user namespace: another root, with the whole machine bound into it.
    let container = "mount -t tmpfs none /mnt && mkdir /mnt/usr && mount --bind /usr /mnt/usr && cp -a /bin /lib /lib64 /mnt && \
                     cp /usr/bin/true /mnt/evil && exec chroot /mnt /usr/bin/sh -c 'echo && read line'";
    let container = Confined::start(&["-m"], container).unwrap();
    assert!(!is_own(container.principal("/evil")) && !is_own(container.principal("/usr/bin/sh")));
    // In another user namespace.
    if let Some(user) = Confined::start(&["-m", "-U", "-r"], "mount --bind /usr /mnt && echo && read line") {
        assert!(!is_own(user.principal("/bin/sh")));
        let (Principal::Elsewhere { namespace: theirs, .. }, Principal::Elsewhere { namespace: container, .. }) =
            (user.principal("/bin/sh"), container.principal("/evil"))
        else {
            panic!("{:?}", user.principal("/bin/sh"));
        };
        assert_ne!(theirs, container);
    }
}

fn generated_code() {
    use ccsd_symbolizer::jit::{JitParser, parse};
    let mut dump = Vec::new();
    [0x4A69_5444u32, 1, 40, 62, 0, 7].iter().for_each(|word| dump.extend(word.to_le_bytes()));
    dump.extend([0; 16]);
    let body = [7u64, 0x1000, 0x1000, 0x100, 1];
    dump.extend([0u32, 16 + 40 + 2].iter().flat_map(|word| word.to_le_bytes()));
    dump.extend(10u64.to_le_bytes());
    body.iter().for_each(|word| dump.extend(word.to_le_bytes()));
    dump.extend(b"f\0");
    let key = file_key(&own(), None).unwrap().while_growing();
    let files: [(JitParser, &[u8]); 4] = [
        (JitParser::PerfMap { skipping: false }, b"1000 10 first\nnonsense\n2000 20 second\n30"),
        (JitParser::PerfMap { skipping: true }, b"rest of a line\n1000 10 first\n"),
        (JitParser::DumpBegins, &dump),
        (JitParser::DumpOver, b"more"),
    ];
    for (parser, bytes) in files {
        let parsed = parse_code(&key, parser, bytes).unwrap();
        assert!(parsed.used > 0);
        assert_eq!(parsed, parse(parser, bytes));
    }
}

fn shared() {
    let (one, other) = (open(own()).unwrap(), open(own()).unwrap());
    assert!(Arc::ptr_eq(&one, &other));
}

fn not_by_hand() {
    let output = ThisProgram.command().stdin(Stdio::null()).output().unwrap();
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("ccsd daemon"), "{output:?}");
}
