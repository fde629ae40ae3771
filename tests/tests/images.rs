//! Wherever a program's files are, and whatever happens to them, its functions are named and its stacks complete.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use ccsd_tests::ccsd::{Collecting, NOBODY, RecordCommand, as_user};
use ccsd_tests::fixture::{Running, build, copy_program, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::suite::{CC, Need, Suite, UNSHARE};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

const RATE: [&str; 2] = ["-F", "1999"];
const CHROOT: Need = Need::Program("chroot", "coreutils");

fn main() -> ExitCode {
    Suite::new()
        .test("deleted_program", &[CC, Need::Root], || deleted_program(None))
        .test("deleted_program_of_an_ordinary_user", &[CC, Need::Root], || deleted_program(Some(NOBODY)))
        .test("replaced_program", &[CC, Need::Root], || replaced_program(None))
        .test("replaced_program_of_an_ordinary_user", &[CC, Need::Root], || replaced_program(Some(NOBODY)))
        .test("deleted_library", &[CC, Need::Root], || {
            library(|path| fs::remove_file(path).unwrap());
        })
        .test("replaced_library", &[CC, Need::Root], || {
            library(|path| replace(path, &build("forever.c", &["-O1"])));
        })
        .test("rewritten_library", &[CC, Need::Root], || {
            for is_rewritten in [false, true] {
                let dir = scratch();
                let (path, mut fixture) = start_with_library(dir.path());
                let collecting = Collecting::attach_as(None, &RATE, &[fixture.pid()]);
                if is_rewritten {
                    let bytes = fs::read(&path).unwrap();
                    // Without truncation, so that the program lives.
                    File::options().write(true).open(&path).unwrap().write_all(&bytes).unwrap();
                }
                fixture.go();
                let _ = fixture.finish();
                let recorded = collecting.wait();
                let notes = &recorded.profile.session().notes;
                let is_noted = notes.iter().any(|note| note.contains("library.so: the file was written to since"));
                assert_eq!(is_noted, is_rewritten, "{notes:?}");
            }
        })
        .test("program_in_memory", &[CC, Need::Root], || in_memory(None))
        .test("program_in_memory_of_an_ordinary_user", &[CC, Need::Root], || in_memory(Some(NOBODY)))
        .test("mount_namespace", &[CC, UNSHARE, Need::Root], || {
            // Outside, the same path leads to another file.
            let dir = scratch();
            let path = dir.path().join("program");
            copy_program(build("forever.c", &["-O1"]), &path);
            let script = format!(
                "mount -t tmpfs none {dir} && cp {program} {path} && exec {path} now",
                dir = dir.path().display(),
                program = program().display(),
                path = path.display()
            );
            let recorded = RecordCommand::new("unshare", &["--mount", "sh", "-c", &script]).options(&RATE).run();
            assert_works(&recorded, "program");
        })
        .test("mount_namespace_attached_to", &[CC, UNSHARE, Need::Root], || {
            let dir = scratch();
            let path = dir.path().join("program");
            let script = format!(
                "mount -t tmpfs none {dir} && cp {program} {path} && exec {path} wait",
                dir = dir.path().display(),
                program = program().display(),
                path = path.display()
            );
            let fixture = Running::start_command(Command::new("unshare").args(["--mount", "sh", "-c", &script]));
            assert_works(&attach(None, fixture), "program");
        })
        .test("changed_root", &[CC, CHROOT, Need::Root], || {
            let dir = scratch();
            copy_program(build("images.c", &["-O1", "-static"]), dir.path().join("program"));
            let root = dir.path().to_str().unwrap();
            let recorded = RecordCommand::new("chroot", &[root, "/program", "now"]).options(&RATE).run();
            assert_works(&recorded, "program");
            let fixture = Running::start_command(Command::new("chroot").args([root, "/program", "wait"]));
            assert_works(&attach(None, fixture), "program");
        })
        .test("path_of_any_bytes", &[CC, Need::Root], || {
            for name in [b"new\nline".as_slice(), b"back\\012slash", b"\xff\xfe\x80", b"called (deleted)", b" blank "] {
                let (_dir, path) = copy(OsStr::from_bytes(name));
                let shown = String::from_utf8_lossy(name.strip_suffix(b" (deleted)").unwrap_or(name)).into_owned();
                let shown = shown.replace("\\012", "\n");
                let recorded = RecordCommand::new(&path, &["now"]).options(&RATE).user(NOBODY).run();
                assert_works(&recorded, &shown);
                let fixture = Running::start_command(as_user(Command::new(&path).arg("wait"), NOBODY));
                assert_works(&attach(Some(NOBODY), fixture), &shown);
            }
        })
        .test("hostile_directory", &[CC, Need::Root], || {
            // Opening one of these would block until a writer comes.
            for user in [None, Some(NOBODY)] {
                let (dir, path) = copy(OsStr::new("program"));
                let mut command = Command::new(&path);
                command.arg("wait");
                if let Some(user) = user {
                    as_user(&mut command, user);
                }
                let fixture = Running::start_command(&mut command);
                fs::remove_file(&path).unwrap();
                fs::create_dir(dir.path().join(".debug")).unwrap();
                let names = ["program", "program (deleted)", "program.debug", "program.dwp", ".debug/program.debug"];
                for name in names {
                    mkfifo(&dir.path().join(name), Mode::from_bits_truncate(0o666)).unwrap();
                }
                assert_works(&attach(user, fixture), "program");
            }
        })
        .run()
}

fn program() -> PathBuf {
    build("images.c", &["-O1"])
}

fn copy(name: &OsStr) -> (tempfile::TempDir, PathBuf) {
    let dir = scratch();
    let path = dir.path().join(name);
    copy_program(program(), &path);
    (dir, path)
}

fn replace(path: &Path, by: &Path) {
    let new = path.with_extension("new");
    copy_program(by, &new);
    fs::rename(&new, path).unwrap();
}

fn attach(user: Option<u32>, mut fixture: Running) -> Recorded {
    let collecting = Collecting::attach_as(user, &RATE, &[fixture.pid()]);
    fixture.go();
    let _ = fixture.finish();
    collecting.wait()
}

fn assert_works(recorded: &Recorded, image: &str) {
    assert_work(recorded, image, ["image_work", "image_loop"]);
    recorded.assert_only_caller("main", "image_work");
}

fn assert_work(recorded: &Recorded, image: &str, [work, inner]: [&str; 2]) {
    recorded.assert_whole().assert_complete();
    recorded.assert_only_caller(work, inner);
    let flat = recorded.flat();
    let row = flat.row(recorded.function(inner).unwrap()).unwrap();
    assert_eq!(row.image, image);
    // 300 ms of work beside the calibration of 1 to 3 ms per attempt, and the start.
    assert!(row.samples_self > 300, "{row:?}");
}

fn start_as(user: Option<u32>, path: &Path) -> Running {
    let mut command = Command::new(path);
    command.arg("wait");
    if let Some(user) = user {
        as_user(&mut command, user);
    }
    Running::start_command(&mut command)
}

fn deleted_program(user: Option<u32>) {
    let (_dir, path) = copy(OsStr::new("program"));
    let fixture = start_as(user, &path);
    fs::remove_file(&path).unwrap();
    assert_works(&attach(user, fixture), "program");
}

fn replaced_program(user: Option<u32>) {
    let (_dir, path) = copy(OsStr::new("program"));
    let fixture = start_as(user, &path);
    replace(&path, &build("forever.c", &["-O1"]));
    assert_works(&attach(user, fixture), "program");
}

fn start_with_library(dir: &Path) -> (PathBuf, Running) {
    let path = dir.join("library.so");
    fs::copy(build("plugin.c", &["-O1", "-shared", "-fPIC"]), &path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let fixture = Running::start(&program(), &["wait", path.to_str().unwrap()]);
    (path, fixture)
}

fn library(spoil: impl FnOnce(&Path)) {
    let dir = scratch();
    let (path, fixture) = start_with_library(dir.path());
    spoil(&path);
    let recorded = attach(None, fixture);
    assert_work(&recorded, "library.so", ["plugin_work", "plugin_loop"]);
    recorded.assert_only_caller("main", "plugin_work");
}

fn in_memory(user: Option<u32>) {
    let (memfd, program) = (build("memfd.c", &["-O1"]), program());
    let mut record = RecordCommand::new(memfd, &[program.to_str().unwrap(), "now"]).options(&RATE);
    if let Some(user) = user {
        record = record.user(user);
    }
    // There may be two called main, because the copying program is recorded, too.
    assert_work(&record.run(), "memfd:in_memory", ["image_work", "image_loop"]);
}
