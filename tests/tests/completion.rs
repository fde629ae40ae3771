//! Completion: answers of `ccsd __complete`, and completion in a bash on a terminal.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::OnceLock;

use ccsd_tests::ccsd::{EndedProgram, RecordCommand, binary, ccsd};
use ccsd_tests::daemon::Daemon;
use ccsd_tests::fixture::{Running, build, copy_program, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::suite::{CC, Need, Suite};
use ccsd_tests::terminal::Terminal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

const BASH: Need = Need::Program("bash", "bash");
const TAB: &str = "\t";
/// A file name that any user may have created.
const HOSTILE: &str = "evil$(touch ran)`touch ran`'touch ran'";

fn main() -> ExitCode {
    Suite::new()
        .test("functions_of_a_profile_by_their_time", &[CC], || {
            let file = shared().file.to_str().unwrap();
            let all = offered(&["report", file, "--function", ""]);
            assert_eq!(all[0], "values");
            for name in ["weight_12", "weight_11"] {
                assert!(all.iter().any(|it| it == name), "{name} is not in {all:?}");
            }
            assert!(!all.iter().any(|it| it.starts_with('[')), "{all:?}");
            assert_eq!(offered(&["report", file, "--function", "weight_12"]), ["values", "weight_12"]);
            assert_eq!(offered(&["report", file, "--hide=weight_12"]), ["values", "--hide=weight_12"]);
            let program = shared().file.parent().unwrap();
            let modules = offered(&["report", file, "--hide", "module:w"]);
            assert!(modules.iter().any(|it| it.starts_with("module:weights")), "{modules:?} of {program:?}");
        })
        .test("processes_sessions_and_watches", &[CC], || {
            let fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
            let daemon = Daemon::start(&[]);
            let pid = fixture.pid().to_string();
            let ended = daemon.run(&["attach", "--detach", &pid]);
            assert!(ended.status.success(), "{ended:?}");
            let ask = |words: &[&str]| lines(&mut daemon.ccsd([&["__complete"], words].concat()));
            assert_eq!(ask(&["report", "session:"]), ["values", "session:1"]);
            assert_eq!(ask(&["report", &format!("pid:{pid}")]), ["values".to_owned(), format!("pid:{pid}")]);
            assert_eq!(ask(&["daemon", "stop", "1"]), ["values", "1"]);
            let sources = ask(&["top", ""]);
            assert_eq!(sources[0], "files");
            for words in [&["export", "html", "--diff", "session:"][..], &["export", "html", "--diff", "a", "session:"]]
            {
                assert_eq!(ask(words), ["values", "session:1"], "{words:?}");
            }
            assert!(sources.iter().any(|it| it == "session:1"), "{sources:?}");
            assert!(ask(&["dump", &pid]).contains(&pid));
            assert!(ask(&["top", &format!("pid:{pid}")]).contains(&format!("pid:{pid}")));
        })
        .test("names_of_others_reach_no_terminal", &[CC], || {
            let dir = scratch();
            let program = dir.path().join("a\x1b[31mb");
            copy_program(build("forever.c", &["-O1"]), &program);
            let fixture = Running::start(&program, &[]);
            let ended = EndedProgram::of(&mut ccsd(["__complete", "attach", ""]));
            assert!(ended.stdout.contains(&fixture.pid().to_string()) && !ended.stdout.contains('\x1b'), "{ended:?}");
            let names: Vec<&str> = ended.stdout.lines().filter(|line| line.starts_with('a')).collect();
            assert!(names.iter().all(|line| !line.contains("31m")), "{names:?}");
        })
        .test("hanging_or_wrong_requests_give_an_empty_answer", &[], || {
            let dir = scratch();
            let fifo = dir.path().join("fifo");
            mkfifo(&fifo, Mode::S_IRWXU).unwrap();
            let socket = dir.path().join("socket");
            let _listener = UnixListener::bind(&socket).unwrap();
            let garbage = dir.path().join("garbage");
            fs::write(&garbage, b"ccsd\x00\xff\xff").unwrap();
            for words in [
                &["report", fifo.to_str().unwrap(), "--function", ""][..],
                &["report", garbage.to_str().unwrap(), "--function", ""],
                &["report", "/nowhere", "--function", ""],
                &["report", "session:9", "--function", ""],
                &["daemon", "stop", "--socket", socket.to_str().unwrap(), "session:"],
                &["record", "-F", "--nonsense", "--", "--"],
                &["nonsense", "--x=", "-"],
                &["report", "--view", "--", "-="],
                &["--", "--", ""],
                &[],
            ] {
                let ended = EndedProgram::of(ccsd(["__complete"]).args(words));
                assert!(ended.status.success() && ended.stderr.is_empty(), "{words:?}: {ended:?}");
                assert!(!ended.stdout.is_empty(), "{words:?}");
            }
        })
        .test("commands_for_man", &[], || {
            assert_eq!(offered(&["man", "rep"]), ["values", "report"]);
            assert_eq!(offered(&["man", "daemon", "st"]), ["values", "status", "stop"]);
        })
        .test("whole_words_as_zsh_and_fish_pass_them", &[CC], || {
            // Neither shell splits words at `:` or `=`, and both pass them without their quotes.
            let file = shared().file.to_str().unwrap();
            assert_eq!(offered(&["report", "--view=gra"]), ["values", "--view=graph"]);
            assert_eq!(offered(&["report", file, "--hide=weight_12"]), ["values", "--hide=weight_12"]);
            assert_eq!(offered(&["report", "--view", "bot"]), ["values", "bottom-up"]);
            assert_eq!(offered(&["annotate", ""])[0], "values");
            assert_eq!(offered(&["report", "a file"])[0], "files");
            assert_eq!(offered(&["man", "-o", ""])[0], "directories");
            assert_eq!(offered(&["record", "--", "printen"])[0], "commands");
            let with_about = EndedProgram::of(&mut ccsd(["__complete", "daemon", "stat"]));
            assert_eq!(with_about.stdout, "values\nstatus\tList sessions and watches\n");
        })
        .test("scripts_of_zsh_and_fish_are_accepted_where_the_shells_are", &[], || {
            for shell in ["zsh", "fish"] {
                let script = EndedProgram::of(&mut ccsd(["completions", shell])).stdout;
                assert!(script.contains("ccsd __complete"), "{script}");
                let dir = scratch();
                let path = dir.path().join("script");
                fs::write(&path, script).unwrap();
                if let Ok(output) = Command::new(shell).arg("-n").arg(&path).output() {
                    assert!(output.status.success() && output.stderr.is_empty(), "{shell}: {output:?}");
                }
            }
        })
        .test("bash", &[BASH, CC], || {
            let mut shell = Shell::start();
            for (keys, words) in [
                ("ccsd rep\t", "<ccsd><report>"),
                ("ccsd daemon stat\t", "<ccsd><daemon><status>"),
                ("ccsd man anno\t", "<ccsd><man><annotate>"),
                ("ccsd report --view=gra\t", "<ccsd><report><--view=graph>"),
                ("ccsd report --view bot\t", "<ccsd><report><--view><bottom-up>"),
                ("ccsd report pro\t", "<ccsd><report><profile.ccsd>"),
                ("ccsd report a\t", "<ccsd><report><a file>"),
                ("ccsd report \"a\t", "<ccsd><report><a file>"),
                ("ccsd report sub/x\t", "<ccsd><report><sub/xyz>"),
                ("ccsd report -o\t", "<ccsd><report><-o>"),
                ("ccsd annotate weight_12\t", "<ccsd><annotate><weight_12>"),
                ("ccsd report --hide module:wei\t", "<ccsd><report><--hide><module:weights"),
                ("ccsd report --hide=weight_12\t", "<ccsd><report><--hide=weight_12>"),
                ("ccsd daemon stop session:\t", "<ccsd><daemon><stop><session:1>"),
                ("ccsd report session:\t", "<ccsd><report><session:1>"),
                ("ccsd record -o profile.cc\t", "<ccsd><record><-o><profile.ccsd>"),
                ("ccsd record -- printen\t", "<ccsd><record><--><printenv>"),
            ] {
                shell.assert_completes(keys, words);
            }
            // Names are never executed: within quotes, unsafe names are not offered.
            let program = shell.dir.path().join("zq$(touch ran)");
            copy_program(build("forever.c", &["-O1"]), &program);
            let _hostile = Running::start(&program, &[]);
            shell.assert_completes("ccsd dump \"zq\t\"", "<ccsd><dump><zq>");
            shell.assert_completes("ccsd dump 'zq\t'", "<ccsd><dump><zq>");
            shell.assert_completes("ccsd dump zq\t", "<ccsd><dump><zq$(touch ran)>");
            for quote in ["", "\"", "'"] {
                shell.assert_completes(&format!("ccsd report {quote}evi\t"), &format!("<ccsd><report><{HOSTILE}>"));
            }
            assert!(!shell.dir.path().join("ran").exists());
        })
        .run()
}

fn shared() -> &'static Recorded {
    static RECORDED: OnceLock<Recorded> = OnceLock::new();
    RECORDED.get_or_init(|| RecordCommand::new(build("weights.c", &["-O1", "-g"]), &["300"]).run())
}

fn lines(command: &mut Command) -> Vec<String> {
    let ended = EndedProgram::of(command);
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    ended.stdout.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
}

fn offered(words: &[&str]) -> Vec<String> {
    lines(ccsd(["__complete"]).args(words))
}

struct Shell {
    terminal: Terminal,
    _daemon: Daemon,
    _fixture: Running,
    dir: tempfile::TempDir,
}

impl Shell {
    fn start() -> Shell {
        let fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
        let daemon = Daemon::start(&[]);
        assert!(daemon.run(&["attach", "--detach", &fixture.pid().to_string()]).status.success());
        let dir = scratch();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir(path("sub")).unwrap();
        fs::create_dir(path("bin")).unwrap();
        symlink(binary(), path("bin/ccsd")).unwrap();
        for empty in ["a file", "sub/xyz", HOSTILE] {
            fs::write(path(empty), "").unwrap();
        }
        fs::copy(&shared().file, path("profile.ccsd")).unwrap();
        fs::write(path("script"), EndedProgram::of(&mut ccsd(["completions", "bash"])).stdout).unwrap();
        let mut command = Command::new("bash");
        command.args(["--noprofile", "--norc", "-i"]).current_dir(dir.path());
        command.env("PS1", "> ").env("PATH", with_first(&path("bin"))).env("CCSD_SOCKET", &daemon.socket);
        let mut terminal = Terminal::run(&mut command);
        terminal.type_keys("source ./script; echo re''ady\n");
        terminal.expect("ready");
        Shell { terminal, _daemon: daemon, _fixture: fixture, dir }
    }

    /// Types a line and TAB, and lets bash print its words instead of running it.
    fn assert_completes(&mut self, keys: &str, words: &str) {
        assert!(keys.contains(TAB));
        // Ctrl-E and Ctrl-A are read once the completion is done.
        self.terminal.type_keys(&format!("{keys}\x05\x01printf '<%s>' \n"));
        // The quote that was opened is closed by the completion.
        self.terminal.type_keys("echo; echo do''ne\n");
        let shown = self.terminal.expect("done");
        assert!(shown.contains(words), "{keys:?}: {words} is not in {shown}");
    }
}

fn with_first(dir: &Path) -> OsString {
    let rest = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths(std::iter::once(dir.to_owned()).chain(std::env::split_paths(&rest))).unwrap()
}
