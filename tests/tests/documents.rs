//! The documents: every `ccsd` command in them works, and every link resolves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use ccsd_tests::ccsd::{EndedProgram, RecordCommand, binary, ccsd};
use ccsd_tests::daemon::Daemon;
use ccsd_tests::fixture::{Running, build, copy_program, scratch};
use ccsd_tests::suite::{CC, Need, PERF, Suite};
use ccsd_tests::wait::until;
use serde_json::Value;
use tempfile::TempDir;

/// Paths from the repository's root.
const DOCUMENTS: [&str; 14] = [
    "README.md",
    "cli/docs/guide.md",
    "cli/docs/views.md",
    "cli/docs/terminal.md",
    "collector/docs/numbers.md",
    "collector/docs/permissions.md",
    "collector/docs/memory.md",
    "collector/profile/docs/file-format.md",
    "collector/docs/architecture.md",
    "daemon/docs/protocol.md",
    "daemon/docs/security.md",
    "daemon/docs/service.md",
    "systemd/README.md",
    "benches/README.md",
];

/// Prefixes of commands that are not run here, with the reason.
const NOT_RUN: [(&str, &str); 7] = [
    ("ccsd top ", "needs a terminal: tests/top.rs"),
    ("ccsd open --serve", "ends by Ctrl-C: tests/open.rs"),
    ("ccsd record -- python", "tests/generated.rs runs interpreters with names"),
    ("ccsd record -- node", "tests/generated.rs runs interpreters with names"),
    ("ccsd record -- java", "tests/generated.rs runs interpreters with names"),
    ("ccsd daemon run --config ccsd.toml &", "runs already, with the configuration of the document"),
    ("target/release/ccsd man", "tests/systemd.rs makes the package"),
];

const PERL: Need = Need::Program("perl", "perl");

fn main() -> ExitCode {
    Suite::new()
        .test("every_command_works", &[CC, PERF, PERL, Need::Root], every_command_works)
        .test("every_command_that_is_named_exists", &[], every_command_that_is_named_exists)
        .test("every_link_leads_somewhere", &[], every_link_leads_somewhere)
        .test("every_test_that_is_named_exists", &[], every_test_that_is_named_exists)
        .run()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn text_of(document: &str) -> String {
    fs::read_to_string(root().join(document)).unwrap_or_else(|error| panic!("{document}: {error}"))
}

/// The command in a line of an indented block, without an explanation after two or more spaces.
fn command_of(line: &str) -> Option<String> {
    let code = line.strip_prefix("    ")?;
    let code = code.split("  ").next()?.trim();
    let code = code.replace("cargo run --release -- ", "ccsd ");
    let is_command = ["ccsd ", "target/release/ccsd ", "perf "].iter().any(|start| code.starts_with(start));
    is_command.then_some(code)
}

struct DocumentWorld {
    dir: TempDir,
    _server: Running,
    /// The daemon used by `attach`.
    sessions: Daemon,
    /// The daemon with the watch of the service's guide.
    watching: Daemon,
}

impl DocumentWorld {
    fn new() -> DocumentWorld {
        let dir = scratch();
        let path = |name: &str| dir.path().join(name);
        let built = build("documented.c", &["-g", "-O1"]);
        copy_program(&built, path("prog"));
        copy_program(&built, path("server"));
        let server = Running::start(&path("server"), &["serve"]);
        fs::write(path("pgrep"), format!("#!/bin/sh\necho {}\n", server.pid())).unwrap();
        fs::set_permissions(path("pgrep"), fs::Permissions::from_mode(0o755)).unwrap();
        let ended = EndedProgram::of(&mut RecordCommand::new(path("prog"), &[]).command(&path("profile.ccsd")));
        assert!(ended.status.success(), "{ended:?}");
        for profile in ["before", "after", "b1", "b2", "a1", "a2"] {
            fs::copy(path("profile.ccsd"), path(&format!("{profile}.ccsd"))).unwrap();
        }
        let guide = text_of("daemon/docs/service.md");
        let from = guide.find("    socket = ").expect("the guide has a configuration");
        let lines = guide[from..].lines().take_while(|line| line.is_empty() || line.starts_with("    "));
        let mut configuration: String = lines.flat_map(|line| [line.trim(), "\n"]).collect();
        configuration = configuration.replace("/tmp/w", dir.path().to_str().unwrap());
        // A debug build on a busy machine may need more than the budget of a service.
        configuration.push_str("[budget]\ncpu_percent = 100000.0\n");
        fs::write(path("ccsd.toml"), configuration).unwrap();
        fs::create_dir(path("state")).unwrap();
        let watching = Daemon::start(&["--config", path("ccsd.toml").to_str().unwrap()]);
        until(|| has_stored(&watching));
        DocumentWorld { dir, _server: server, sessions: Daemon::start(&[]), watching }
    }

    fn run(&self, document: &str, command: &str) -> EndedProgram {
        let socket = match command {
            _ if command.contains("watch") || command.contains("metrics") => self.watching.socket.clone(),
            _ if document == "daemon/docs/service.md" => self.sessions.socket.clone(),
            _ => PathBuf::new(),
        };
        let programs = std::iter::once(self.dir.path().to_owned())
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap()))
            .collect::<Vec<_>>();
        let mut shell = Command::new("sh");
        // The README's example runs long; a shorter run is enough here.
        shell.arg("-c").arg(command.replace("60000000", "600000")).current_dir(self.dir.path());
        shell.env("PATH", std::env::join_paths(programs).unwrap()).env("CCSD_SOCKET", socket);
        // No browser opens the pages.
        shell
            .env("BROWSER", "true")
            .env("TMPDIR", self.dir.path())
            .env_remove("XDG_RUNTIME_DIR")
            .env_remove("SUDO_UID");
        EndedProgram::of(&mut shell)
    }
}

fn has_stored(daemon: &Daemon) -> bool {
    let ended = daemon.run(&["daemon", "watches", "--json"]);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let is_sampling = document["watches"][0]["status"]["samples"].as_u64().is_some_and(|samples| samples > 20);
    is_sampling
        && EndedProgram::of(&mut daemon.ccsd(["report", "--watch", "server", "--since", "-1h"])).status.success()
}

fn every_command_works() {
    let world = DocumentWorld::new();
    std::os::unix::fs::symlink(binary(), world.dir.path().join("ccsd")).unwrap();
    let mut reasons: BTreeSet<&str> = NOT_RUN.iter().map(|(start, _)| *start).collect();
    let (mut count, mut failed) = (0, Vec::new());
    for document in DOCUMENTS {
        let text = text_of(document);
        for command in text.lines().filter_map(command_of) {
            if let Some((start, _)) = NOT_RUN.iter().find(|(start, _)| command.starts_with(start)) {
                reasons.remove(start);
                continue;
            }
            let ended = world.run(document, &command);
            let status = ended.status.code();
            let is_good = if command.contains("--fail-above") {
                matches!(status, Some(0 | 3))
            } else if command.contains("--against") || command.contains("--since 03:10") {
                status == Some(0) || ended.stderr.contains("has nothing of that time")
            } else {
                status == Some(0)
            };
            if !is_good {
                failed.push(format!("{document}: {command}\n{}\n{}", ended.stdout, ended.stderr));
            }
            count += 1;
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(count > 60, "only {count} commands");
    assert!(reasons.is_empty(), "in no document: {reasons:?}");
}

fn every_command_that_is_named_exists() {
    let help = EndedProgram::of(&mut ccsd(["--help"])).stdout;
    for document in DOCUMENTS {
        let text = text_of(document);
        for (at, _) in text.match_indices("`ccsd ") {
            let word: String = text[at + 6..].chars().take_while(|c| c.is_alphanumeric() || *c == '-').collect();
            if word.starts_with('-') {
                continue;
            }
            assert!(help.contains(&format!("  {word} ")), "{document}: there is no `ccsd {word}`");
        }
    }
}

fn every_link_leads_somewhere() {
    let mut count = 0;
    for document in DOCUMENTS {
        let text = text_of(document);
        let folder = root().join(document).parent().unwrap().to_owned();
        for (at, _) in text.match_indices("](") {
            let link = text[at + 2..].split(')').next().unwrap();
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { root().join(document) } else { folder.join(file) };
            assert!(target.exists(), "{document}: {link}");
            if !heading.is_empty() {
                let headings = fs::read_to_string(&target).unwrap();
                let mut headings = headings.lines().filter_map(|line| line.strip_prefix("## ").map(anchor));
                assert!(headings.any(|anchor| anchor == heading), "{document}: {link}");
            }
            count += 1;
        }
    }
    assert!(count > 20, "only {count} links");
}

fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    kept.chars().filter(|c| c.is_alphanumeric() || " -".contains(*c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn every_test_that_is_named_exists() {
    let text = text_of("daemon/docs/security.md");
    let named = text.split('`').skip(1).step_by(2).filter_map(|code| code.split_once("::"));
    let mut count = 0;
    // The first explains the notation.
    for (place, name) in named.filter(|(place, _)| !["suite", "path.rs"].contains(place)) {
        let (path, mark) = match place.ends_with(".rs") {
            true => (place.to_owned(), format!("fn {name}()")),
            false => (format!("tests/tests/{place}.rs"), format!("\"{name}\"")),
        };
        assert!(text_of(&path).contains(&mark), "{path} has no {name}");
        count += 1;
    }
    assert!(count > 40, "{count}");
}
