//! Output goes only to the intended file, whoever owns the directory and changes it meanwhile.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::cell::OnceCell;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use ccsd_profile::read_profile;
use ccsd_tests::ccsd::{EndedProgram, NOBODY, as_user, ccsd};
use ccsd_tests::daemon::Daemon;
use ccsd_tests::fixture::{Running, build, scratch};
use ccsd_tests::suite::{CC, Need, Suite, UNSHARE};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;

const SECRET: &str = "for root alone\n";
const OTHER: u32 = 65_533;
const TRIES: usize = 300;
const RECORDINGS: usize = 40;
/// Starts of a daemon: before the fix, one in four made a file of root's accessible to everyone.
const SOCKETS: usize = 20;

/// Ways of writing a file, by command.
const WAYS: [&str; 4] = ["record", "import", "export", "save"];

fn main() -> ExitCode {
    Suite::new()
        .test("a_name_that_is_exchanged_with_a_link", &[CC, Need::Root], || {
            for own in [NOBODY, 0] {
                let place = RootDirectory::new();
                let (name, link) = (place.theirs("p.ccsd"), place.theirs("other"));
                place.file(&name, "", own);
                place.link(&place.secret(), &link, NOBODY);
                let attacker = Exchange::start(&name, &link);
                (0..RECORDINGS).for_each(|_| drop(place.run("record", &name, None)));
                (0..TRIES).for_each(|_| drop(place.run("import", &name, None)));
                (0..TRIES / 3).for_each(|_| drop(place.run("export", &name, None)));
                attacker.end();
                place.assert_untouched();
            }
        })
        .test("a_file_that_others_lock", &[CC, Need::Root], || {
            let place = RootDirectory::new();
            let name = place.own("p.ccsd");
            assert!(place.run("record", &name, None).status.success());
            let before = fs::metadata(&name).unwrap();
            // Who may read it may lock it: `flock FILE sh` says when it has.
            let mut command = Command::new("flock");
            command.arg(&name).args(["sh", "-c", "echo held; read line"]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut stranger = as_user(&mut command, NOBODY).spawn().unwrap();
            let mut said = String::new();
            BufReader::new(stranger.stdout.take().unwrap()).read_line(&mut said).unwrap();
            assert_eq!(said, "held\n");
            assert!(place.run("record", &name, None).status.success());
            let after = fs::metadata(&name).unwrap();
            assert!(before.ino() != after.ino() && before.mode() == after.mode());
            read_profile(fs::File::open(&name).unwrap()).unwrap();
            assert!(place.run("import", &name, None).status.success());
            drop(stranger.stdin.take());
            stranger.wait().unwrap();
        })
        .test("a_directory_that_is_exchanged_with_a_link", &[CC, Need::Root], || {
            let place = RootDirectory::new();
            let (directory, link) = (place.theirs("d"), place.theirs("other"));
            fs::create_dir(&directory).unwrap();
            chown(&directory, Some(NOBODY), Some(NOBODY)).unwrap();
            place.link(&place.own(""), &link, NOBODY);
            let attacker = Exchange::start(&directory, &link);
            (0..TRIES).for_each(|_| drop(place.run("import", &directory.join("new"), None)));
            (0..RECORDINGS).for_each(|_| drop(place.run("record", &directory.join("new"), None)));
            attacker.end();
            place.assert_untouched();
        })
        .test("a_socket_that_is_exchanged_with_a_link", &[CC, Need::Root], || {
            let place = RootDirectory::new();
            let (name, link) = (place.theirs("s.sock"), place.theirs("other"));
            for _ in 0..SOCKETS {
                let _ = (fs::remove_file(&name), fs::remove_file(&link));
                drop(UnixListener::bind(&name).unwrap());
                lchown(&name, Some(NOBODY), Some(NOBODY)).unwrap();
                place.link(&place.secret(), &link, NOBODY);
                let attacker = Exchange::start(&name, &link);
                let mut daemon = ccsd(["daemon", "--socket-mode", "666", "--socket"]);
                let mut daemon = daemon.arg(&name).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
                // The daemon listens, or reports why not.
                let mut said = String::new();
                BufReader::new(daemon.stderr.take().unwrap()).read_line(&mut said).unwrap();
                attacker.end();
                daemon.kill().unwrap();
                daemon.wait().unwrap();
                assert_eq!(fs::metadata(place.secret()).unwrap().mode() & 0o7777, 0o600, "{said}");
            }
            place.assert_untouched();
        })
        .test("links_of_root_that_others_may_have_moved", &[CC, Need::Root], || {
            for (mode, followed) in [(0o777, false), (0o775, true), (0o1777, true), (0o755, true)] {
                for way in WAYS {
                    let place = RootDirectory::new();
                    let shared = place.own("shared");
                    fs::create_dir(&shared).unwrap();
                    fs::set_permissions(&shared, Permissions::from_mode(mode)).unwrap();
                    place.link(&place.own("new"), &shared.join("link"), 0);
                    let ended = place.run(way, &shared.join("link"), None);
                    assert_eq!(ended.status.success(), followed, "{way} {mode:o} {ended:?}");
                    assert_eq!(place.own("new").exists(), followed);
                }
            }
        })
        .test("links_of_others_are_not_followed", &[CC, Need::Root], || {
            for way in WAYS {
                let place = RootDirectory::new();
                // To an existing file, to a missing one, and through a directory.
                place.link(&place.secret(), &place.theirs("there"), NOBODY);
                place.link(&place.own("new"), &place.theirs("dangling"), NOBODY);
                place.link(&place.own(""), &place.theirs("directory"), NOBODY);
                place.link(&place.theirs("dangling"), &place.own("by-way-of-theirs"), 0);
                for name in ["there", "dangling", "directory/new"].map(|name| place.theirs(name)) {
                    place.run(way, &name, None).assert_refused(2, &["symbolic link", "nobody"]);
                }
                place.run(way, &place.own("by-way-of-theirs"), None).assert_refused(2, &["symbolic link"]);
                fs::remove_file(place.own("by-way-of-theirs")).unwrap();
                place.assert_untouched();
            }
        })
        .test("own_links_are_followed", &[CC, Need::Root], || {
            for way in WAYS {
                for user in [None, Some(NOBODY)] {
                    let place = RootDirectory::new();
                    let at = |name: &str| if user.is_some() { place.theirs(name) } else { place.own(name) };
                    let owner = user.unwrap_or(0);
                    place.link(Path::new("later"), &at("dangling"), owner);
                    place.link(&at(""), &at("directory"), owner);
                    for (name, written) in [("dangling", "later"), ("dangling", "later"), ("directory/x", "x")] {
                        let ended = place.run(way, &at(name), user);
                        assert!(ended.status.success(), "{way} {name} {ended:?}");
                        assert!(at("dangling").is_symlink());
                        assert_eq!(fs::symlink_metadata(at(written)).unwrap().uid(), owner);
                        place.assert_written(way, &at(written));
                    }
                }
            }
        })
        .test("hard_links_to_files_of_root", &[CC, Need::Root], || {
            for way in WAYS {
                let place = RootDirectory::new();
                for (file, contents) in [("secret", SECRET), ("empty", "")] {
                    place.file(&place.own(file), contents, 0);
                    let _ = fs::remove_file(place.theirs("hard"));
                    fs::hard_link(place.own(file), place.theirs("hard")).unwrap();
                    place.run(way, &place.theirs("hard"), None).assert_refused(2, &["hard"]);
                    assert_eq!(fs::read_to_string(place.own(file)).unwrap(), contents);
                }
                fs::remove_file(place.own("empty")).unwrap();
                place.assert_untouched();
            }
        })
        .test("files_of_others_in_a_directory_for_all", &[CC, Need::Root], || {
            for way in WAYS {
                let place = RootDirectory::new();
                let sticky = place.own("sticky");
                fs::create_dir(&sticky).unwrap();
                fs::set_permissions(&sticky, Permissions::from_mode(0o1777)).unwrap();
                for (user, owner, named) in [(None, NOBODY, "nobody"), (Some(NOBODY), OTHER, "65533")] {
                    let name = sticky.join(format!("of-{owner}"));
                    place.file(&name, "", owner);
                    fs::set_permissions(&name, Permissions::from_mode(0o666)).unwrap();
                    place.run(way, &name, user).assert_refused(2, &["belongs to", named]);
                    assert_eq!(fs::read(&name).unwrap(), b"");
                    // A new file belongs to the caller, who may overwrite it.
                    let new = sticky.join(format!("for-{owner}"));
                    for _ in 0..2 {
                        assert!(place.run(way, &new, user).status.success());
                        assert_eq!(fs::metadata(&new).unwrap().uid(), user.unwrap_or(0));
                    }
                }
            }
        })
        .test("other_than_regular_files", &[CC, Need::Root], || {
            for way in WAYS {
                let place = RootDirectory::new();
                mkfifo(&place.theirs("fifo"), Mode::S_IRWXU).unwrap();
                chown(place.theirs("fifo"), Some(NOBODY), Some(NOBODY)).unwrap();
                let ended = place.run(way, &place.theirs("fifo"), None);
                assert_eq!(ended.status.code(), Some(2), "{way} {ended:?}");
                place.run(way, &place.theirs(""), None).assert_refused(2, &["a directory"]);
                place.run(way, &place.own("none/x"), None).assert_refused(2, &["none/x"]);
                place.assert_untouched();
            }
        })
        .test("mode_and_umask_are_kept", &[CC, Need::Root], || {
            for way in WAYS {
                let place = RootDirectory::new();
                let name = place.own("kept");
                place.file(&name, "", 0);
                for mode in [0o600, 0o644, 0o660] {
                    fs::set_permissions(&name, Permissions::from_mode(mode)).unwrap();
                    assert!(place.run(way, &name, None).status.success());
                    assert_eq!(fs::metadata(&name).unwrap().mode() & 0o7777, mode, "{way}");
                    place.assert_written(way, &name);
                }
                let mut command = Command::new("sh");
                command.args(["-c", "umask 077; exec \"$@\"", "sh"]).env("CCSD_SOCKET", "");
                let plain = place.command(way, &place.own("private"), None);
                command.arg(plain.get_program()).args(plain.get_args());
                command.envs(plain.get_envs().map(|(name, value)| (name, value.unwrap_or_default())));
                let ended = EndedProgram::of(&mut command);
                assert!(ended.status.success(), "{ended:?}");
                assert_eq!(fs::metadata(place.own("private")).unwrap().mode() & 0o7777, 0o600, "{way}");
            }
        })
        .test("devices_and_descriptors", &[CC, Need::Root], || {
            let place = RootDirectory::new();
            for way in WAYS {
                for user in [None, Some(NOBODY)] {
                    let ended = place.run(way, Path::new("/dev/null"), user);
                    assert!(ended.status.success(), "{way} {ended:?}");
                }
                let mut command = Command::new("sh");
                command.args(["-c", "exec 3>&1; \"$@\" 3>&3 >/dev/null | cat", "sh"]).env("CCSD_SOCKET", "");
                let plain = place.command(way, Path::new("/dev/fd/3"), None);
                command.arg(plain.get_program()).args(plain.get_args());
                command.envs(plain.get_envs().map(|(name, value)| (name, value.unwrap_or_default())));
                command.stdin(Stdio::null());
                let output = command.output().unwrap();
                assert!(output.status.success() && !output.stdout.is_empty(), "{way} {output:?}");
                place.assert_contents(way, &output.stdout);
            }
            for way in ["export", "save"] {
                let stdout = |file: &Path, append: bool| {
                    let file = fs::OpenOptions::new().create(true).append(append).write(true).open(file).unwrap();
                    let mut command = place.command(way, Path::new("/dev/stdout"), None);
                    assert!(command.stdin(Stdio::null()).stdout(file).status().unwrap().success());
                };
                let (new, old) = (place.own("redirected"), place.own("appended"));
                stdout(&new, false);
                place.assert_written(way, &new);
                fs::write(&old, "before\n").unwrap();
                stdout(&old, true);
                let all = fs::read(&old).unwrap();
                assert!(all.starts_with(b"before\n"));
                place.assert_contents(way, &all[7..]);
                for file in [new, old] {
                    fs::remove_file(file).unwrap();
                }
                let ended = place.run(way, Path::new("-"), None);
                assert!(ended.status.success() && !ended.stdout.is_empty(), "{ended:?}");
            }
            place.run("record", Path::new("-"), None).assert_refused(2, &["standard output"]);
            place.assert_untouched();
        })
        .test("permissions_of_a_replaced_file_do_not_matter", &[CC, Need::Root], || {
            let place = RootDirectory::new();
            let name = place.theirs("read-only");
            place.file(&name, "", NOBODY);
            fs::set_permissions(&name, Permissions::from_mode(0o400)).unwrap();
            let imported = place.run("import", &name, Some(NOBODY));
            assert!(imported.status.success(), "{imported:?}");
            place.assert_written("import", &name);
            place.run("record", &name, Some(NOBODY)).assert_refused(2, &["Permission denied"]);
            let directory = place.theirs("directory");
            fs::create_dir(&directory).unwrap();
            let name = directory.join("file");
            place.file(&name, "", NOBODY);
            let refused = place.run("import", &name, Some(NOBODY));
            refused.assert_refused(2, &["Permission denied"]);
            assert!(place.run("record", &name, Some(NOBODY)).status.success());
            place.assert_untouched();
        })
        .test("a_device_that_is_not_there", &[CC], || {
            // The terminal of a session without one.
            let place = RootDirectory::new();
            for way in ["record", "export"] {
                let plain = place.command(way, Path::new("/dev/tty"), None);
                let mut command = Command::new("setsid");
                command.arg("-w").arg(plain.get_program()).args(plain.get_args());
                command.envs(plain.get_envs().map(|(name, value)| (name, value.unwrap_or_default())));
                let ended = EndedProgram::of(command.stdin(Stdio::null()));
                assert!(!ended.status.success(), "{way} {ended:?}");
                assert!(ended.stderr.contains("/dev/tty: No such device or address"), "{way} {ended:?}");
            }
        })
        .test("a_full_disk_leaves_what_was_there", &[CC, Need::Root, UNSHARE], || {
            for way in ["import", "export", "save"] {
                let place = RootDirectory::new();
                let (disk, kept) = (place.own("disk"), place.own("kept"));
                fs::create_dir(&disk).unwrap();
                let old = place.own("old");
                assert!(place.run(way, &old, None).status.success());
                let script = "mount -t tmpfs -o size=16k none \"$1\" && cp \"$2\" \"$1/x\" && \
                              { cat /dev/zero > \"$1/full\" 2>/dev/null; shift 3; \"$@\"; }; status=$?; \
                              cp \"$DISK/x\" \"$KEPT\"; ls -A \"$DISK\"; exit $status";
                let plain = place.command(way, &disk.join("x"), None);
                let mut command = Command::new("unshare");
                command.args(["-m", "sh", "-c", script, "sh"]).arg(&disk).arg(&old).arg(&kept);
                command.arg(plain.get_program()).args(plain.get_args());
                command.envs(plain.get_envs().map(|(name, value)| (name, value.unwrap_or_default())));
                let ended = EndedProgram::of(command.env("DISK", &disk).env("KEPT", &kept));
                assert_eq!(ended.status.code(), Some(1), "{way} {ended:?}");
                assert_eq!(fs::read(&old).unwrap(), fs::read(&kept).unwrap());
                assert_eq!(ended.stdout.lines().collect::<Vec<_>>(), ["full", "x"], "{way}");
            }
        })
        .test("other_files_are_left_alone", &[CC, Need::Root], || {
            for way in WAYS {
                let place = RootDirectory::new();
                let name = place.own("thesis");
                place.file(&name, "years of work", 0);
                place.run(way, &name, None).assert_refused(2, &["thesis", "not overwritten"]);
                assert_eq!(fs::read_to_string(&name).unwrap(), "years of work");
                fs::remove_file(name).unwrap();
                place.assert_untouched();
            }
        })
        .run()
}

/// A directory of root, with a private file of root, and a directory of another user.
struct RootDirectory {
    dir: TempDir,
    session: OnceCell<(Daemon, Running)>,
}

impl RootDirectory {
    fn new() -> RootDirectory {
        let dir = scratch();
        // Like root's directories: only root can create names here.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        for (name, owner) in [("own", 0), ("theirs", NOBODY)] {
            fs::create_dir(dir.path().join(name)).unwrap();
            chown(dir.path().join(name), Some(owner), Some(owner)).unwrap();
        }
        let place = RootDirectory { dir, session: OnceCell::new() };
        place.file(&place.secret(), SECRET, 0);
        fs::set_permissions(place.secret(), Permissions::from_mode(0o600)).unwrap();
        fs::write(place.dir.path().join("script.txt"), SCRIPT).unwrap();
        let ended =
            EndedProgram::of(ccsd(["import"]).arg(place.dir.path().join("script.txt")).arg("-o").arg(place.profile()));
        assert!(ended.status.success(), "{ended:?}");
        place
    }

    fn own(&self, name: &str) -> PathBuf {
        self.dir.path().join("own").join(name)
    }

    fn theirs(&self, name: &str) -> PathBuf {
        self.dir.path().join("theirs").join(name)
    }

    fn secret(&self) -> PathBuf {
        self.own("secret")
    }

    fn profile(&self) -> PathBuf {
        self.dir.path().join("profile.ccsd")
    }

    fn file(&self, path: &Path, contents: &str, owner: u32) {
        fs::write(path, contents).unwrap();
        chown(path, Some(owner), Some(owner)).unwrap();
    }

    fn link(&self, to: &Path, name: &Path, owner: u32) {
        symlink(to, name).unwrap();
        lchown(name, Some(owner), Some(owner)).unwrap();
    }

    fn command(&self, way: &str, output: &Path, user: Option<u32>) -> Command {
        let mut command = match way {
            "record" => ccsd(["record"]),
            "import" => ccsd(["import"]),
            "export" => ccsd(["export", "folded"]),
            _ => self.session.get_or_init(session).0.ccsd(["daemon", "save", "1"]),
        };
        match way {
            "import" => drop(command.arg(self.dir.path().join("script.txt"))),
            "export" => drop(command.arg(self.profile())),
            _ => {}
        }
        command.arg("-o").arg(output);
        if way == "record" {
            command.args(["--", "true"]);
        }
        if let Some(user) = user {
            as_user(&mut command, user);
        }
        command
    }

    fn run(&self, way: &str, output: &Path, user: Option<u32>) -> EndedProgram {
        EndedProgram::of(&mut self.command(way, output, user))
    }

    /// Asserts that root's files are unchanged, and none was created.
    fn assert_untouched(&self) {
        assert_eq!(fs::read_to_string(self.secret()).unwrap(), SECRET);
        let names: Vec<_> = fs::read_dir(self.own("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["secret"]);
    }

    fn assert_written(&self, way: &str, file: &Path) {
        self.assert_contents(way, &fs::read(file).unwrap());
    }

    fn assert_contents(&self, way: &str, bytes: &[u8]) {
        if way == "export" {
            let text = String::from_utf8_lossy(bytes);
            assert!(text.contains("outer;inner 2"), "{text}");
        } else {
            assert!(read_profile(bytes).unwrap().finished, "{way}");
        }
    }
}

const SCRIPT: &str = "prog 7/7 1.000000: 1000000 cpu-clock:\n\t1000 inner (/prog)\n\t2000 outer (/prog)\n\n\
                      prog 7/7 1.100000: 1000000 cpu-clock:\n\t1000 inner (/prog)\n\t2000 outer (/prog)\n\n";

/// A daemon with a session of the ordinary user, which root may also see.
fn session() -> (Daemon, Running) {
    let mut command = Command::new(build("forever.c", &["-O1"]));
    let target = Running::start_command(as_user(&mut command, NOBODY));
    let daemon = Daemon::start(&["--socket-mode", "666"]);
    let mut attach = daemon.ccsd(["attach", "--detach"]);
    let ended = EndedProgram::of(as_user(attach.arg(target.pid().to_string()), NOBODY));
    assert_eq!(ended.stdout.trim(), "1", "{ended:?}");
    (daemon, target)
}

/// Another user who swaps two names continuously.
struct Exchange(Child);

impl Exchange {
    fn start(one: &Path, other: &Path) -> Exchange {
        let mut command = Command::new(build("exchange.c", &["-O1"]));
        command.arg(one).arg(other).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = as_user(&mut command, NOBODY).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        Exchange(child)
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
