//! The package on a real systemd, booted by systemd-nspawn in a Debian userland; `fixtures/systemd.sh` runs inside.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::panic::{catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use ccsd_tests::ccsd::{EndedProgram, binary, ccsd};
use ccsd_tests::elf::exhausting_program;
use ccsd_tests::fixture::{build, scratch};
use ccsd_tests::suite::{CC, Need, OBJCOPY, Suite, UNSHARE};
use tempfile::TempDir;

const CARGO_DEB: Need = Need::Program("cargo-deb", "cargo-deb, or cargo install cargo-deb");
const NEEDS: [Need; 7] = [
    Need::Root,
    CC,
    OBJCOPY,
    UNSHARE,
    CARGO_DEB,
    Need::Program("debootstrap", "debootstrap"),
    Need::Program("systemd-nspawn", "systemd-container"),
];
/// What the service's capabilities are, and nothing else is.
const CAPABILITIES: [(u32, &str); 6] = [
    (2, "CAP_DAC_READ_SEARCH"),
    (19, "CAP_SYS_PTRACE"),
    (23, "CAP_SYS_NICE"),
    (34, "CAP_SYSLOG"),
    (38, "CAP_PERFMON"),
    (40, "CAP_CHECKPOINT_RESTORE"),
];

fn main() -> ExitCode {
    Suite::new()
        .test("the_package_has_what_the_service_needs", &[CARGO_DEB], package_content)
        .test("the_sandbox_lets_little_out", &[Need::Program("systemd-analyze", "systemd")], sandbox)
        .test(
            "it_runs_as_its_own_user",
            &NEEDS,
            booted(|| {
                is("state", "active active");
                is("user", "ccsd:ccsd");
                let mask: u64 = CAPABILITIES.iter().map(|(bit, _)| 1 << bit).sum();
                is("capabilities", &format!("{mask:016x}"));
                is("new_privileges", "1");
                assert_eq!(told("worker").split_whitespace().collect::<Vec<_>>(), ["1", "2"]);
                is("directories", "755:ccsd:ccsd 750:ccsd:ccsd");
                // Keys that systemd before 254 does not know are ignored.
                let verified = told("verify");
                let other: Vec<&str> = verified
                    .split(" | ")
                    .filter(|line| !line.contains("RestartSteps") && !line.contains("RestartMaxDelaySec"))
                    .collect();
                assert_eq!(other, ["good"], "{verified}");
                assert!(told("exposure").parse::<f64>().unwrap() <= 3.0);
            }),
        )
        .test(
            "permissions_of_users",
            &NEEDS,
            booted(|| {
                is("attach_root", "0");
                is("attach_alice", "0");
                is("attach_bob", "2");
                is("metrics_root", "0");
                is("metrics_alice", "0");
                is("metrics_bob", "2");
                is("dump_root", "0");
                is("dump_alice", "0");
                is("dump_bob", "2");
                is("owner_alice", "alice");
                assert!(told("report_alice").parse::<u64>().unwrap() > 100);
                assert!(told("sessions_bob").contains("not permitted to use the daemon"), "{}", told("sessions_bob"));
                // Where the socket is for all, each has his own.
                assert!(told("open_sessions_bob").starts_with("no sessions"), "{}", told("open_sessions_bob"));
                is("open_attach_bob", "2");
                is("open_record_bob", "0");
            }),
        )
        .test(
            "attacks_change_nothing_beside_them",
            &NEEDS,
            booted(|| {
                let as_ever = "forever received";
                is("beside_nothing", as_ever);
                // Sessions, or memory that may be locked, where systemd cannot lift its limit.
                is("greedy_sessions", "1");
                is("beside_greedy", as_ever);
                is("beside_hostile", as_ever);
                is("attach_hostile", "0");
                is("complete_hostile", "1");
                is("same_service", "yes");
                is("beside_killed", as_ever);
            }),
        )
        .test(
            "a_service_that_hangs_is_started_again",
            &NEEDS,
            booted(|| {
                is("hung", "active 1");
                is("beside_hung", "forever received");
            }),
        )
        .test(
            "a_full_disk_is_said_and_passes",
            &NEEDS,
            booted(|| {
                is("full_disk", "active less than 16 MiB are free");
                is("room_again", "good");
            }),
        )
        .test(
            "it_watches_and_reloads",
            &NEEDS,
            booted(|| {
                is("watch_processes", "1");
                is("segment", "640:ccsd:ccsd");
                is("kernel", "1");
                let journal = told("journal");
                assert!(journal.contains("/etc/ccsd/ccsd.toml:7:1: duplicate key"), "{journal}");
                is("priority", "1");
                is("state_after_bad", "active");
                is("reload_of_bad", "1");
                let status = told("status_after_bad");
                assert!(
                    status.contains("configuration refused") && status.contains("ccsd.toml:7:1: duplicate key"),
                    "{status}"
                );
                assert!(told("watches_after_bad").contains("# configuration refused"));
            }),
        )
        .test(
            "it_starts_with_the_last_good_configuration",
            &NEEDS,
            booted(|| {
                is("started_with_bad", "active 1");
                let status = told("status_with_bad");
                assert!(status.contains("configuration refused, the last good one is in force"), "{status}");
            }),
        )
        .test("socket_and_service_are_restarted_together", &NEEDS, booted(|| is("restarted_together", "6")))
        .test(
            "it_is_restarted_after_any_number_of_failures",
            &NEEDS,
            booted(|| {
                is("after_many_failures", "active active");
            }),
        )
        .test(
            "others_read_its_metrics",
            &NEEDS,
            booted(|| {
                let refused = told("status_without_drop_in");
                assert!(refused.contains("cannot write the metrics file"), "{refused}");
                is("metrics_file", "644:ccsd");
                assert!(told("metrics_of_nobody").ends_with("# EOF"), "{}", told("metrics_of_nobody"));
                assert!(!told("status_with_drop_in").contains("metrics file"), "{}", told("status_with_drop_in"));
            }),
        )
        .test(
            "an_upgrade_leaves_the_socket_open",
            &NEEDS,
            booted(|| {
                is("upgrade", "same socket, other service");
            }),
        )
        .test(
            "restarted_killed_and_stopped",
            &NEEDS,
            booted(|| {
                is("restart", "good");
                is("interrupted_after_restart", "1");
                is("kill", "good");
                is("interrupted_after_kill", "1");
                assert!(told("status").starts_with("1 of 1 watches profile 1 processes"), "{}", told("status"));
                assert!(told("stopped_ms").parse::<u64>().unwrap() < 10_000);
                is("result", "success");
            }),
        )
        .test(
            "removed_and_purged",
            &NEEDS,
            booted(|| {
                is("removed", "inactive configuration stays");
                is("kept", "busy");
                is("purged", "nothing left");
            }),
        )
        .run()
}

fn root_of_sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The package, with the binary under test.
static PACKAGE: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
    let dir = scratch();
    // cargo-deb takes what a release build would have left.
    let release = dir.path().join("target/release");
    fs::create_dir_all(release.join("man")).unwrap();
    fs::copy(binary(), release.join("ccsd")).unwrap();
    assert!(EndedProgram::of(ccsd(["man", "--output"]).arg(release.join("man"))).status.success());
    let pages = fs::read_dir(release.join("man")).unwrap().map(|entry| entry.unwrap().path());
    run(Command::new("gzip").arg("-9nf").args(pages));
    let package = dir.path().join("ccsd.deb");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["deb", "--package=ccsd", "--no-build", "--fast", "--offline", "--output"]).arg(&package);
    cargo.current_dir(root_of_sources()).env("CARGO_TARGET_DIR", dir.path().join("target"));
    let ended = EndedProgram::of(&mut cargo);
    assert!(ended.status.success(), "{ended:?}");
    (dir, package)
});

/// What the script told. A test that finds it wrong is run again, and sees what it tells the second time, as do all after it.
static RESULT: Mutex<Told> = Mutex::new(Told { boots: 0, text: None });

struct Told {
    boots: u8,
    text: Option<Arc<str>>,
}

/// Boots the userland and runs the script in it.
fn boot() -> String {
    let dir = scratch();
    let root = dir.path().join("root");
    // Fetched once for all runs in this target directory.
    let base = Path::new(env!("CARGO_TARGET_TMPDIR")).join("debian-bookworm");
    if !base.join("usr/bin/journalctl").exists() {
        let fresh = base.with_extension("part");
        let _ = fs::remove_dir_all(&fresh);
        let include = "--include=systemd,systemd-sysv,dbus,init-system-helpers";
        run(Command::new("debootstrap").args(["--variant=minbase", include, "bookworm"]).arg(&fresh));
        let _ = fs::remove_dir_all(&base);
        fs::rename(&fresh, &base).unwrap();
    }
    run(Command::new("cp").arg("-a").arg(&base).arg(&root));
    fs::copy(&PACKAGE.1, root.join("root/ccsd.deb")).unwrap();
    run(Command::new("chroot").arg(&root).args(["dpkg", "-i", "/root/ccsd.deb"]));
    let program = build("forever.c", &["-O1"]);
    fs::copy(&program, root.join("root/forever")).unwrap();
    fs::copy(exhausting_program(&program, 12_000_000, dir.path()), root.join("root/hostile")).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/systemd.sh");
    fs::copy(script, root.join("root/test.sh")).unwrap();
    let unit = "[Unit]\nAfter=multi-user.target\n[Service]\nType=oneshot\nExecStart=/bin/sh /root/test.sh\n\
                [Install]\nWantedBy=multi-user.target\n";
    fs::write(root.join("etc/systemd/system/test.service"), unit).unwrap();
    run(Command::new("chroot").arg(&root).args(["systemctl", "enable", "test.service"]));
    // A /run of its own: systemd-nspawn wants a temporary file system there. Without the system calls perf events are
    // refused inside.
    let capabilities: Vec<&str> = CAPABILITIES.iter().map(|(_, name)| *name).collect();
    let mut nspawn = Command::new("timeout");
    nspawn.args(["900", "unshare", "--mount", "sh", "-c", "mount -t tmpfs tmpfs /run && exec \"$@\"", "sh"]);
    nspawn.args(["systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit", "--private-network"]);
    nspawn.arg(format!("--capability={}", capabilities.join(",")));
    nspawn.arg("--system-call-filter=perf_event_open process_vm_readv ptrace").arg("--console=pipe");
    nspawn.arg("--directory").arg(&root);
    let ended = EndedProgram::of(nspawn.stdin(Stdio::null()));
    let text = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
    let result = text("root/result");
    assert!(result.lines().any(|line| line == "done"), "{result}\n{}\n{ended:?}", text("root/errors"));
    // For finding out what went wrong.
    eprintln!("{}", text("root/errors"));
    result
}

fn run(command: &mut Command) {
    let ended = EndedProgram::of(command);
    assert!(ended.status.success(), "{command:?}: {ended:?}");
}

fn all() -> Arc<str> {
    let mut result = RESULT.lock().unwrap_or_else(PoisonError::into_inner);
    if result.text.is_none() {
        result.boots += 1;
        result.text = Some(boot().into());
    }
    Arc::clone(result.text.as_ref().unwrap())
}

fn told(name: &str) -> String {
    let result = all();
    let line = result.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is not in {result}")).trim().to_owned()
}

/// A test of what the script told.
fn booted(test: fn()) -> impl Fn() + Send + 'static {
    move || {
        if let Err(panic) = catch_unwind(test) {
            let mut result = RESULT.lock().unwrap_or_else(PoisonError::into_inner);
            if result.boots < 2 {
                result.text = None;
            }
            drop(result);
            resume_unwind(panic);
        }
    }
}

fn is(name: &str, value: &str) {
    assert_eq!(told(name), value, "{name}; all: {}", all());
}

fn package_content() {
    let listed = EndedProgram::of(Command::new("dpkg-deb").arg("--contents").arg(&PACKAGE.1)).stdout;
    for (mode, path) in [
        ("-rwxr-xr-x", "./usr/bin/ccsd"),
        ("-rw-r--r--", "./etc/ccsd/ccsd.toml"),
        ("-rw-r--r--", "./usr/lib/systemd/system/ccsd.service"),
        ("-rw-r--r--", "./usr/lib/systemd/system/ccsd.socket"),
        ("-rw-r--r--", "./usr/lib/sysusers.d/ccsd.conf"),
        ("-rw-r--r--", "./usr/lib/tmpfiles.d/ccsd.conf"),
        ("-rw-r--r--", "./usr/share/bash-completion/completions/ccsd"),
        ("-rw-r--r--", "./usr/share/zsh/vendor-completions/_ccsd"),
        ("-rw-r--r--", "./usr/share/fish/vendor_completions.d/ccsd.fish"),
        ("-rw-r--r--", "./usr/share/doc/ccsd/systemd/node-exporter.conf"),
        ("-rw-r--r--", "./usr/share/man/man1/ccsd-daemon-watches.1.gz"),
    ] {
        let line = listed.lines().find(|line| line.ends_with(path)).unwrap_or_else(|| panic!("{path}: {listed}"));
        assert!(line.starts_with(mode) && line.contains(" 0/0 ") | line.contains(" root/root "), "{line}");
    }
    let field = |name: &str| EndedProgram::of(Command::new("dpkg-deb").arg("--field").arg(&PACKAGE.1).arg(name)).stdout;
    assert!(field("Depends").contains("init-system-helpers") && field("Depends").contains("libc6"));
    assert_eq!(field("Recommends").trim(), "systemd");
    // The binary is stripped; its debug symbols are in a package beside it.
    let unpacked = PACKAGE.0.path().join("unpacked");
    run(Command::new("dpkg-deb").arg("--extract").arg(&PACKAGE.1).arg(&unpacked));
    let sections = EndedProgram::of(Command::new("readelf").args(["-SW"]).arg(unpacked.join("usr/bin/ccsd"))).stdout;
    assert!(
        sections.contains(".text") && !sections.contains(".debug_line") && !sections.contains(".symtab"),
        "{sections}"
    );
    let beside = PACKAGE.1.with_extension("ddeb");
    let debug = EndedProgram::of(Command::new("dpkg-deb").arg("--contents").arg(beside)).stdout;
    assert!(debug.lines().any(|line| line.contains("./usr/lib/debug/") && line.ends_with(".debug")), "{debug}");
    let control = EndedProgram::of(Command::new("dpkg-deb").args(["--info"]).arg(&PACKAGE.1).arg("conffiles")).stdout;
    assert_eq!(control.trim(), "/etc/ccsd/ccsd.toml");
}

fn sandbox() {
    let unit = root_of_sources().join("systemd/ccsd.service");
    let ended =
        EndedProgram::of(Command::new("systemd-analyze").args(["security", "--offline=true", "--no-pager"]).arg(unit));
    let line = ended.stdout.lines().find(|line| line.contains("exposure level")).unwrap_or_else(|| panic!("{ended:?}"));
    let exposure: f64 = line.split(": ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(exposure <= 3.0, "{line}");
}
