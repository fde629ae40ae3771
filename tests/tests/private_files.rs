//! A daemon does not read files for a user who may not read them, whatever paths the user's programs prepare.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use ccsd_tests::ccsd::{EndedProgram, NOBODY, as_user};
use ccsd_tests::daemon::Daemon;
use ccsd_tests::fixture::{Running, build, copy_program, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::suite::{CC, NM, Need, PYTHON, Suite, UNSHARE};
use ccsd_tests::wait::until;
use tempfile::TempDir;

/// A map of the code in `generated.c`, with a word that only root may see.
const SECRET: &str = "10000000 40 caller\n10000040 40 word_of_root\n";
const WORD: &str = "word_of_root";

const NEEDS: &[Need] = &[CC, UNSHARE, Need::Root];
const LISTED: &[Need] = &[CC, UNSHARE, PYTHON, Need::Root];

fn main() -> ExitCode {
    Suite::new()
        .test("a_mount_over_the_perf_map", NEEDS, || map_is_mounted(0, 0o600))
        .test("a_mount_of_what_a_group_may_read", NEEDS, || map_is_mounted(4, 0o640))
        .test("a_mount_of_what_all_but_a_group_may_read", NEEDS, || map_is_mounted(NOBODY, 0o604))
        .test("a_mount_of_what_a_list_keeps_from_him", LISTED, listed)
        .test("a_link_to_what_is_out_of_reach", NEEDS, link_out_of_reach)
        .test("a_mount_over_the_debug_file", &[CC, NM, UNSHARE, Need::Root], debug_file_is_mounted)
        .test("a_mount_over_a_library", NEEDS, library_is_mounted)
        .test("a_jitdump_that_is_not_his_any_more", NEEDS, private_dump)
        .test("an_own_map_in_a_namespace_names", NEEDS, own_map)
        .test("a_public_map_of_root_names", NEEDS, public_map)
        .run()
}

/// A user's session on a program that waits for it.
struct WatchedProgram<'a> {
    daemon: &'a Daemon,
    user: u32,
    id: String,
    dump: String,
}

impl WatchedProgram<'_> {
    fn start<'a>(daemon: &'a Daemon, user: u32, running: &Running) -> WatchedProgram<'a> {
        let pid = running.pid().to_string();
        let run = |args: &[&str]| EndedProgram::of(as_user(&mut daemon.ccsd(args), user));
        let dumped = run(&["dump", "--daemon", "--json", &pid]);
        assert!(dumped.status.success(), "{dumped:?}");
        let ended = run(&["attach", "--detach", "-F", "1999", &pid]);
        assert!(ended.status.success(), "{ended:?}");
        WatchedProgram { daemon, user, id: ended.stdout.trim().to_owned(), dump: dumped.stdout }
    }

    fn finish(self, running: &mut Running) -> (Recorded, String) {
        running.go();
        let number: u32 = self.id.parse().unwrap();
        // Its mounts disappear with it, so the session must look before. (Some programs end by themselves.)
        until(|| self.daemon.session(number)["received"].as_u64() >= Some(100));
        let _ = running.child.stdin.as_mut().unwrap().write_all(b"g");
        let _ = running.finish();
        until(|| !self.daemon.session(number)["ended"].is_null());
        assert_eq!(self.daemon.session(number)["ended"], "target");
        let dir = scratch();
        let file = dir.path().join("profile.ccsd");
        let mut save = self.daemon.ccsd(["daemon", "save", &self.id, "-o", file.to_str().unwrap()]);
        let ended = EndedProgram::of(as_user(&mut save, self.user));
        assert!(ended.status.success(), "{ended:?}");
        let report = self.daemon.run(&["report", "--json", file.to_str().unwrap()]);
        assert!(report.status.success(), "{report:?}");
        let recorded = Recorded::open(dir, &file, ended);
        assert!(recorded.total() > 100, "{}", recorded.total());
        let shown =
            format!("{}{}{:?}{:?}", self.dump, report.stdout, recorded.names(), recorded.profile.session().notes);
        (recorded, shown)
    }
}

/// A program of nobody in its own mount namespace after `prepare`. It drops its rights there: with capabilities, only
/// root could profile it.
fn in_namespace(prepare: &str, program: &str) -> Running {
    let script = format!("set -e; {prepare} exec unshare --user --map-user=1000 {program}");
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]).current_dir("/");
    Running::start_command(as_user(&mut command, NOBODY))
}

/// A file left in `/tmp`, removed at the end.
struct InTmp(PathBuf);

impl InTmp {
    fn map(running: &Running) -> InTmp {
        InTmp(PathBuf::from(format!("/tmp/perf-{}.map", running.pid())))
    }
}

impl Drop for InTmp {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn generated() -> String {
    build("generated.c", &["-O1"]).to_str().unwrap().to_owned()
}

/// A file of root's with this mode and group.
fn file_of_root(dir: &TempDir, group: u32, mode: u32) -> PathBuf {
    let path = dir.path().join("file-of-root");
    fs::write(&path, SECRET).unwrap();
    chown(&path, Some(0), Some(group)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

fn daemon() -> Daemon {
    Daemon::start(&["--socket-mode", "666"])
}

fn assert_withheld(recorded: &Recorded, shown: &str, what: &str) {
    assert_noted(recorded, shown, ["withheld", what]);
}

fn assert_noted(recorded: &Recorded, shown: &str, words: [&str; 2]) {
    assert!(!shown.contains(WORD), "{shown}");
    let notes = &recorded.profile.session().notes;
    assert!(notes.iter().any(|note| words.iter().all(|word| note.contains(word))), "{words:?}: {notes:?}");
}

fn map_is_mounted(group: u32, mode: u32) {
    let (daemon, dir) = (daemon(), scratch());
    let secret = file_of_root(&dir, group, mode);
    let mount = format!("touch /tmp/perf-$$.map; mount --bind {} /tmp/perf-$$.map;", secret.display());
    let mut running = in_namespace(&mount, &format!("{} none wait", generated()));
    let map = InTmp::map(&running);
    // As recent as a growing log.
    fs::write(&secret, SECRET).unwrap();
    let (recorded, shown) = WatchedProgram::start(&daemon, NOBODY, &running).finish(&mut running);
    assert_withheld(&recorded, &shown, map.0.to_str().unwrap());
    recorded.assert_only_caller("main", "run");
}

/// A file open to everyone, except to users named by an access control list.
fn listed() {
    let (daemon, dir) = (daemon(), scratch());
    let secret = dir.path().join("file");
    fs::write(&secret, SECRET).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    let prepare = format!("touch /tmp/perf-$$.map; mount --bind {} /tmp/perf-$$.map;", secret.display());
    let mut running = in_namespace(&prepare, &format!("{} none wait", generated()));
    let map = InTmp::map(&running);
    deny(&secret, NOBODY);
    assert!(!as_user(Command::new("cat").arg(&secret), NOBODY).output().unwrap().status.success());
    fs::write(&secret, SECRET).unwrap();
    let (recorded, shown) = WatchedProgram::start(&daemon, NOBODY, &running).finish(&mut running);
    assert_withheld(&recorded, &shown, map.0.to_str().unwrap());
}

/// Adds an access control list that denies one user and changes nothing for others.
fn deny(path: &Path, user: u32) {
    const SCRIPT: &str = "import os, struct, sys\n\
        path, user = sys.argv[1], int(sys.argv[2])\n\
        mode, nobody = os.stat(path).st_mode, 0xffffffff\n\
        entries = [(1, mode >> 6 & 7, nobody), (2, 0, user), (4, mode >> 3 & 7, nobody),\n\
                   (16, mode >> 3 & 7, nobody), (32, mode & 7, nobody)]\n\
        entries = b''.join(struct.pack('<HHI', *entry) for entry in entries)\n\
        os.setxattr(path, 'system.posix_acl_access', struct.pack('<I', 2) + entries)\n";
    let mode = fs::metadata(path).unwrap().permissions().mode();
    let given = Command::new("python3").args(["-c", SCRIPT]).arg(path).arg(user.to_string()).status().unwrap();
    assert!(given.success());
    assert_eq!(fs::metadata(path).unwrap().permissions().mode(), mode);
}

fn link_out_of_reach() {
    let (daemon, dir) = (daemon(), scratch());
    let closed = dir.path().join("closed");
    fs::create_dir(&closed).unwrap();
    let mut running = in_namespace("", &format!("{} none wait", generated()));
    let map = InTmp::map(&running);
    // The user's own file, readable by everyone, in a directory that the user cannot enter.
    let file = closed.join("file");
    fs::write(&file, SECRET).unwrap();
    chown(&file, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let target = file.strip_prefix("/tmp").expect("the directory for temporary files is /tmp");
    symlink(target, &map.0).unwrap();
    let (recorded, shown) = WatchedProgram::start(&daemon, NOBODY, &running).finish(&mut running);
    // Another user could have made the link.
    assert_noted(&recorded, &shown, ["its perf map is not read", "it is a link"]);
    assert!(recorded.function("caller").is_none());
}

/// A stripped program, and its debug file, which is not at the expected path.
fn stripped(dir: &Path) -> (PathBuf, PathBuf) {
    let whole = build("images.c", &["-O1", "-g"]);
    let (program, debug) = (dir.join("program"), dir.join("program.debug"));
    let objcopy = |args: &[&str], to: &Path| {
        assert!(Command::new("objcopy").args(args).arg(&whole).arg(to).status().unwrap().success());
    };
    objcopy(&["--only-keep-debug"], &debug);
    objcopy(&["--strip-all", &format!("--add-gnu-debuglink={}", debug.display())], &program);
    let hidden = dir.join("hidden");
    fs::rename(&debug, &hidden).unwrap();
    fs::write(&debug, "").unwrap();
    (program, hidden)
}

fn debug_file_is_mounted() {
    let (daemon, dir) = (daemon(), scratch());
    let (program, hidden) = stripped(dir.path());
    let mount = format!("mount --bind {} {}/program.debug;", hidden.display(), dir.path().display());
    // First for root: the daemon's cached symbols are not for everyone.
    for (mode, user, named) in [(0o600, 0, true), (0o600, NOBODY, false), (0o644, NOBODY, true)] {
        fs::set_permissions(&hidden, fs::Permissions::from_mode(mode)).unwrap();
        let mut running = in_namespace(&mount, &format!("{} wait", program.display()));
        let (recorded, shown) = WatchedProgram::start(&daemon, user, &running).finish(&mut running);
        assert_eq!(shown.contains("image_loop"), named, "{mode:o} for {user}: {shown}");
        if !named {
            assert_withheld(&recorded, &shown, "program.debug");
        }
    }
}

fn library_is_mounted() {
    let (daemon, dir) = (daemon(), scratch());
    let library = build("plugin.c", &["-O1", "-shared", "-fPIC"]);
    let (own, hidden) = (dir.path().join("library.so"), dir.path().join("hidden.so"));
    copy_program(&library, &own);
    copy_program(&library, &hidden);
    let program = build("images.c", &["-O1"]);
    for (mode, user) in [(0o600, NOBODY), (0o600, 0)] {
        fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
        let mut running = in_namespace("", &format!("{} wait {}", program.display(), own.display()));
        // Another file mounted over the user's mapped file is not the user's; and the mapped file is now root's alone.
        let namespace = format!("--mount=/proc/{}/ns/mnt", running.pid());
        let mut mount = Command::new("nsenter");
        let mounted = mount.args([&namespace, "mount", "--bind"]).args([&hidden, &own]).status().unwrap();
        assert!(mounted.success());
        fs::set_permissions(&hidden, fs::Permissions::from_mode(mode)).unwrap();
        fs::set_permissions(&own, fs::Permissions::from_mode(mode)).unwrap();
        let (recorded, shown) = WatchedProgram::start(&daemon, user, &running).finish(&mut running);
        assert_eq!(shown.contains("plugin_work"), user == 0, "{shown}");
        if user != 0 {
            assert_withheld(&recorded, &shown, "library.so");
        }
    }
}

fn private_dump() {
    let daemon = daemon();
    for mode in [0o600, 0o644] {
        let mut running = in_namespace("", &format!("{} dump wait", generated()));
        let dump = InTmp(PathBuf::from(format!("/tmp/jit-{}.dump", running.pid())));
        chown(&dump.0, Some(0), Some(0)).unwrap();
        fs::set_permissions(&dump.0, fs::Permissions::from_mode(mode)).unwrap();
        let (recorded, shown) = WatchedProgram::start(&daemon, NOBODY, &running).finish(&mut running);
        assert_eq!(recorded.function("second").is_some(), mode == 0o644, "{shown}");
    }
}

fn own_map() {
    let daemon = daemon();
    for user in [NOBODY, 0] {
        let mut running = in_namespace("", &format!("{} map wait", generated()));
        let _map = InTmp::map(&running);
        let (recorded, shown) = WatchedProgram::start(&daemon, user, &running).finish(&mut running);
        assert!(shown.contains("middle") && !shown.contains("withheld"), "{shown}");
        recorded.assert_only_caller("caller", "middle");
        recorded.assert_only_caller("middle", "leaf");
    }
}

fn public_map() {
    let (daemon, dir) = (daemon(), scratch());
    let public = file_of_root(&dir, 0, 0o644);
    let mount = format!("touch /tmp/perf-$$.map; mount --bind {} /tmp/perf-$$.map;", public.display());
    let mut running = in_namespace(&mount, &format!("{} none wait", generated()));
    let _map = InTmp::map(&running);
    fs::write(&public, SECRET).unwrap();
    let (_, shown) = WatchedProgram::start(&daemon, NOBODY, &running).finish(&mut running);
    assert!(shown.contains(WORD), "everybody may know that: {shown}");
}
