//! `annotate` and the page show root only source files that the authors of their paths may read.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};

use ccsd_tests::ccsd::{EndedProgram, NOBODY, as_user, ccsd};
use ccsd_tests::fixture::scratch;
use ccsd_tests::suite::{CC, Need, Suite, UNSHARE};
use tempfile::TempDir;

const OBJDUMP: Need = Need::Program("objdump", "binutils");
const NEEDS: &[Need] = &[CC, Need::Root];
/// A build id that anybody can give to a program.
const BUILD_ID: &str = "-Wl,--build-id=0x00112233445566778899aabbccddeeff00112233";

fn main() -> ExitCode {
    Suite::new()
        .test("a_stranger_s_program_shows_what_he_may_read", NEEDS, strangers_program)
        .test("a_stranger_s_profile_shows_what_he_may_read", NEEDS, strangers_profile)
        .test("a_program_mounted_over_another_is_not_that", &[CC, UNSHARE, Need::Root], mounted_program)
        .test("root_is_shown_the_source_of_root_s_programs", &[CC, OBJDUMP, Need::Root], roots_program)
        .run()
}

/// Files of root's and of a stranger's.
struct Files {
    dir: TempDir,
}

impl Files {
    fn new() -> Files {
        let dir = scratch();
        let files = Files { dir };
        for (name, mode) in [("", 0o755), ("private", 0o700), ("stranger", 0o755), ("root", 0o755)] {
            let path = files.at(name);
            fs::create_dir_all(&path).unwrap();
            fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        }
        files.write("private/secret.c", 0o600, 0);
        files.write("private/open.c", 0o644, 0);
        files.write("root/open.c", 0o644, 0);
        files.write("stranger/own.c", 0o600, NOBODY);
        symlink(files.at("private/secret.c"), files.at("stranger/link.c")).unwrap();
        let fifo = Command::new("mkfifo").arg(files.at("stranger/fifo.c")).status().unwrap();
        assert!(fifo.success());
        File::create(files.at("stranger/sparse.c")).unwrap().set_len(1 << 40).unwrap();
        for name in ["stranger", "stranger/link.c", "stranger/fifo.c", "stranger/sparse.c"] {
            lchown(files.at(name), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        files
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, mode: u32, owner: u32) {
        let path = self.at(name);
        fs::write(&path, format!("text of {name}\n").repeat(20)).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        chown(path, Some(owner), Some(owner)).unwrap();
    }

    /// A stranger's program that says to be made of all of the files.
    fn leak(&self) -> PathBuf {
        let names = ["private/secret.c", "private/open.c", "root/open.c", "stranger/own.c", "stranger/link.c"];
        let odd = ["stranger/fifo.c", "stranger/sparse.c"].map(|name| self.at(name));
        let devices = ["/dev/ptmx", "/etc/shadow"].map(PathBuf::from);
        let paths = names.map(|name| self.at(name)).into_iter().chain(odd).chain(devices);
        let (mut text, mut calls) = ("static volatile long x;\n".to_owned(), String::new());
        for (number, path) in paths.enumerate() {
            text.push_str(&format!(
                "#line 1 \"{}\"\n__attribute__((noinline)) void leak_{number}(void) {{\nfor (long i = 0; i < 30000; i++) x \
                 += i;\n}}\n",
                path.display()
            ));
            calls.push_str(&format!("leak_{number}(); "));
        }
        text.push_str(&format!("int main(void) {{ for (;;) {{ {calls} }} }}\n"));
        fs::write(self.at("stranger/leak_source.c"), text).unwrap();
        let program = self.compile("stranger/leak_source.c", "stranger/leak");
        chown(&program, Some(NOBODY), Some(NOBODY)).unwrap();
        program
    }

    /// A program of root's whose source is private.
    fn work(&self) -> PathBuf {
        let text = "static volatile long x;\nint main(void) { /* private line */\nfor (;;) x += 1;\n}\n";
        fs::write(self.at("private/work.c"), text).unwrap();
        fs::set_permissions(self.at("private/work.c"), PermissionsExt::from_mode(0o600)).unwrap();
        self.compile("private/work.c", "root/work")
    }

    fn compile(&self, source: &str, program: &str) -> PathBuf {
        let program = self.at(program);
        let mut cc = Command::new("cc");
        let status = cc.args(["-g", "-O1", BUILD_ID, "-o"]).arg(&program).arg(self.at(source)).status().unwrap();
        assert!(status.success());
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        program
    }

    /// Root's profile of a running program, which it ends.
    fn attached(&self, mut child: Child) -> PathBuf {
        let file = self.at("root/profile.ccsd");
        let mut attach = ccsd(["attach", "-F", "4999", "-d", "1s", "-q", "-o"]);
        let ended = EndedProgram::of(attach.arg(&file).arg(child.id().to_string()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        file
    }

    fn page(&self, profile: &Path) -> String {
        let page = self.at("root/page.html");
        let mut export = root(&["export", "html", "--force", "-o"]);
        let ended = EndedProgram::of(export.arg(&page).arg(profile));
        assert!(ended.status.success(), "{ended:?}");
        fs::read_to_string(page).unwrap()
    }
}

fn root(args: &[&str]) -> Command {
    let mut command = ccsd(args);
    command.env_remove("SUDO_UID").env_remove("SUDO_GID");
    command
}

fn annotated(function: &str, profile: &Path) -> String {
    let ended = EndedProgram::of(root(&["annotate", function]).arg(profile));
    assert!(ended.status.success(), "{ended:?}");
    ended.stdout
}

fn assert_nothing_private(text: &str) {
    assert!(!text.contains("text of private/secret.c") && !text.contains("text of private/open.c"), "{text}");
    let shadow = fs::read_to_string("/etc/shadow").unwrap_or_default();
    assert!(!shadow.lines().take(8).any(|line| text.contains(line)), "/etc/shadow was read");
}

fn strangers_program() {
    let files = Files::new();
    let leak = files.leak();
    let profile = files.attached(as_user(&mut Command::new(&leak), NOBODY).spawn().unwrap());
    let text = annotated("leak_*", &profile);
    assert_nothing_private(&text);
    assert!(text.contains("text of root/open.c") && text.contains("text of stranger/own.c"), "{text}");
    let who = format!("user {NOBODY}, who could have written {}, may not", leak.display());
    assert!(
        text.matches("source not shown: only some users may read it, and ").count() >= 4 && text.contains(&who),
        "{text}"
    );
    assert!(text.contains("fifo.c: not a regular file") && text.contains("/dev/ptmx: not a regular file"), "{text}");
    assert!(text.contains("sparse.c: larger than 64 MiB"), "{text}");
    let page = files.page(&profile);
    assert_nothing_private(&page);
    assert!(page.contains("text of root/open.c") && page.contains("text of stranger/own.c"), "{page}");
    assert!(page.contains("source not shown: "), "{page}");
    let refused = EndedProgram::of(root(&["annotate", "leak_1", "--asm"]).arg(&profile));
    refused.assert_refused(2, &["objdump does not read", "could have written it"]);
}

fn strangers_profile() {
    let files = Files::new();
    let recorded = files.attached(as_user(&mut Command::new(files.leak()), NOBODY).spawn().unwrap());
    let profile = files.at("stranger/profile.ccsd");
    fs::copy(recorded, &profile).unwrap();
    chown(&profile, Some(NOBODY), Some(NOBODY)).unwrap();
    for text in [annotated("leak_*", &profile), files.page(&profile)] {
        assert_nothing_private(&text);
        assert!(text.contains("text of root/open.c") && text.contains("text of stranger/own.c"), "{text}");
    }
    // A program of root's does not help him.
    let work = files.attached(Command::new(files.work()).spawn().unwrap());
    fs::copy(work, &profile).unwrap();
    let text = annotated("main", &profile);
    assert!(!text.contains("private line"), "{text}");
    assert!(text.contains(&format!("user {NOBODY}, who could have written the profile, may not")), "{text}");
    assert!(!files.page(&profile).contains("private line"));
}

fn mounted_program() {
    let files = Files::new();
    let (leak, work) = (files.leak(), files.work());
    let mut command = Command::new("unshare");
    let script = "mount --bind \"$0\" \"$1\" && exec \"$1\"";
    let profile = files.attached(command.args(["-m", "sh", "-c", script]).args([&leak, &work]).spawn().unwrap());
    let text = annotated("leak_*", &profile);
    assert_nothing_private(&text);
    assert!(!text.contains("text of stranger/own.c"), "{text}");
    // It is not what this machine has there.
    let why = format!("the code that names it, user {NOBODY}:{}, is in no file of this machine", work.display());
    assert!(text.contains(&why), "{text}");
    assert_nothing_private(&files.page(&profile));
}

fn roots_program() {
    let files = Files::new();
    let profile = files.attached(Command::new(files.work()).spawn().unwrap());
    assert!(annotated("main", &profile).contains("private line"));
    assert!(files.page(&profile).contains("private line"));
    let instructions = EndedProgram::of(root(&["annotate", "main", "--asm"]).arg(&profile));
    assert!(instructions.status.success() && instructions.stdout.contains("instructions of main"), "{instructions:?}");
    // With the rights of the user who called sudo.
    let mut sudo = root(&["annotate", "main"]);
    let ids = [("SUDO_UID", NOBODY.to_string()), ("SUDO_GID", NOBODY.to_string())];
    let text = EndedProgram::of(sudo.envs(ids).arg(&profile)).stdout;
    assert!(!text.contains("private line") && text.contains("who called sudo"), "{text}");
    // Where another program is now, nothing says that this one was root's.
    fs::copy(files.leak(), files.at("root/work")).unwrap();
    assert!(!annotated("main", &profile).contains("private line"));
}
