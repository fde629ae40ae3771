//! Fixtures: small programs, built by the tests that use them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{LazyLock, Mutex};

use tempfile::TempDir;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures");

/// A directory of this process, readable by every user.
static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| {
    // Statics have no destructor: the next run removes it if its process has gone.
    let all = std::env::temp_dir().join("ccsd-tests");
    fs::create_dir_all(&all).unwrap();
    for entry in fs::read_dir(&all).unwrap().flatten() {
        let pid = entry.file_name().to_string_lossy().into_owned();
        if !Path::new("/proc").join(&pid).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let own = all.join(std::process::id().to_string());
    let _ = fs::remove_dir_all(&own);
    fs::create_dir_all(&own).unwrap();
    for path in [&all, &own] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    own
});

#[must_use]
pub fn scratch() -> TempDir {
    let dir = TempDir::new_in(&*DIRECTORY).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    dir
}

pub(crate) fn once(key: String, make: impl FnOnce(&Path)) -> PathBuf {
    static MADE: LazyLock<Mutex<HashMap<String, PathBuf>>> = LazyLock::new(Mutex::default);
    let mut made = MADE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let number = made.len();
    made.entry(key)
        .or_insert_with_key(|key| {
            let name: String = key.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            let path = DIRECTORY.join(format!("{name}-{number}"));
            make(&path);
            path
        })
        .clone()
}

/// Copies a program that will be executed, in a separate process: a child forked meanwhile by another test would hold
/// the copy open, and executing it would fail with ETXTBSY.
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (from, to) = (from.as_ref(), to.as_ref());
    let status = Command::new("cp").arg("--preserve=mode").args([from, to]).status().unwrap();
    assert!(status.success(), "cp {} {}: {status}", from.display(), to.display());
}

/// Builds `fixtures/SOURCE` with the compiler for its extension and these flags, once for each combination.
#[must_use]
pub fn build(source: &str, flags: &[&str]) -> PathBuf {
    build_with("cc", source, flags)
}

#[must_use]
pub fn build_with(cc: &str, source: &str, flags: &[&str]) -> PathBuf {
    once(format!("{source} {cc} {}", flags.join(" ")), |program| {
        let path = Path::new(SOURCES).join(source);
        let mut compiler = match path.extension().and_then(OsStr::to_str) {
            Some("c") => Command::new(cc),
            Some("cpp") => Command::new("c++"),
            Some("f90") => {
                let mut fortran = Command::new("gfortran");
                fortran.arg("-J").arg(&*DIRECTORY);
                fortran
            }
            Some("go") => {
                let mut go = Command::new("go");
                // Flags come first, and there is no module around the file.
                go.arg("build").args(flags).env("GO111MODULE", "off");
                go
            }
            Some("rs") => {
                let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
                rustc.args(["--edition=2024", "-Cdebug-assertions=off"]);
                // For tests of unstable flags, such as the former default mangling.
                if flags.contains(&"-Zunstable-options") {
                    rustc.env("RUSTC_BOOTSTRAP", "1");
                }
                rustc
            }
            _ => panic!("no compiler for {source}"),
        };
        let output = match path.extension().and_then(OsStr::to_str) {
            Some("go") => compiler.arg("-o").arg(program).arg(&path).output(),
            _ => compiler.arg(&path).arg("-o").arg(program).args(flags).output(),
        };
        let output = output.unwrap();
        assert!(output.status.success(), "{compiler:?}: {}", String::from_utf8_lossy(&output.stderr));
    })
}

pub struct Running {
    pub child: Child,
}

impl Running {
    #[must_use]
    pub fn start(program: &Path, args: &[&str]) -> Running {
        Running::start_command(Command::new(program).args(args))
    }

    #[must_use]
    pub fn start_command(command: &mut Command) -> Running {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut running = Running { child };
        running.wait_until_told();
        running
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn wait_until_told(&mut self) {
        let mut byte = [0];
        self.child.stdout.as_mut().unwrap().read_exact(&mut byte).expect("the fixture has ended early");
        assert_eq!(byte, *b"r");
    }

    pub fn go(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"g").unwrap();
    }

    #[must_use]
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    #[must_use]
    pub fn rest_of_output(&mut self) -> String {
        let mut text = String::new();
        self.child.stdout.as_mut().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    #[must_use]
    pub fn end(&mut self) -> (String, ExitStatus) {
        (self.rest_of_output(), self.child.wait().unwrap())
    }

    #[must_use]
    pub fn finish(&mut self) -> String {
        let (text, status) = self.end();
        assert_eq!((status.code(), status.signal()), (Some(0), None), "{text}");
        text
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
