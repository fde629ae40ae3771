#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::{FileExt, symlink};

use nix::fcntl::AT_FDCWD;
use nix::sys::stat::Mode;
use nix::unistd::geteuid;

use super::*;

const TEXT: AllowedContents =
    AllowedContents { known: |start| start.starts_with(b"text"), unlike: "no text", remedy: "" };

#[test]
fn destinations_opened_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let written = |path: &Path| -> Result<(), DestinationError> {
        open(path, TEXT)?.file().write_all(b"text").unwrap();
        Ok(())
    };
    written(&at("new")).unwrap();
    fs::set_permissions(at("new"), Permissions::from_mode(0o640)).unwrap();
    written(&at("new")).unwrap();
    assert_eq!(
        (fs::read(at("new")).unwrap(), fs::metadata(at("new")).unwrap().mode() & 0o777),
        (b"text".into(), 0o640)
    );
    fs::write(at("other"), "other").unwrap();
    assert!(matches!(written(&at("other")), Err(DestinationError::Foreign { .. })));
    assert_eq!(fs::read(at("other")).unwrap(), b"other");
    symlink("new", at("link")).unwrap();
    symlink("later", at("dangling")).unwrap();
    symlink(dir.path(), at("middle")).unwrap();
    for (name, at_end) in [("link", "new"), ("dangling", "later"), ("middle/./middle/x", "x")] {
        written(&at(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(fs::read(at(at_end)).unwrap(), b"text");
    }
    symlink("loop", at("loop")).unwrap();
    assert!(matches!(written(&at("loop")), Err(DestinationError::Open { .. })));
    for name in ["", ".", "new/", "none/", "..", "middle", "middle/."] {
        assert!(written(&at(name)).is_err(), "{name}");
    }
    assert!(!at("none").exists());
    nix::unistd::mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
    assert!(matches!(written(&at("fifo")), Err(DestinationError::NotAFile { kind: "a FIFO", .. })));
    fs::hard_link(at("new"), at("hard")).unwrap();
    written(&at("hard")).unwrap();
    for mode in [0o1777, 0o777, 0o770] {
        fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
        assert!(matches!(written(&at("hard")), Err(DestinationError::Linked { names: 2, .. })));
        // The link leads to the same file.
        written(&at("link")).unwrap_err();
    }
    written(Path::new("/dev/null")).unwrap();
    assert!(written(Path::new("/dev/null/x")).is_err());
}

#[test]
fn a_link_that_others_may_have_linked_there_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let shared = dir.path().join("shared");
    fs::create_dir(&shared).unwrap();
    symlink(dir.path().join("x"), dir.path().join("own")).unwrap();
    fs::hard_link(dir.path().join("own"), shared.join("link")).unwrap();
    for (mode, followed) in [(0o755, true), (0o775, false), (0o757, false), (0o1777, false)] {
        fs::set_permissions(&shared, Permissions::from_mode(mode)).unwrap();
        match open(&shared.join("link"), TEXT) {
            Ok(_) => assert!(followed, "{mode:o}"),
            Err(error) => assert!(!followed && matches!(error, DestinationError::Link { .. }), "{mode:o}: {error}"),
        }
    }
}

#[test]
fn a_file_that_is_being_written_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let first = open(&path, TEXT).unwrap();
    assert!(matches!(open(&path, TEXT), Err(DestinationError::Busy { .. })));
    assert!(matches!(replace(&path, Some(TEXT)), Err(DestinationError::Busy { .. })));
    drop(first);
    // Devices have no owner check and no lock.
    let null = Path::new("/dev/null");
    let _two = (open(null, TEXT).unwrap(), open(null, TEXT).unwrap());
}

#[test]
fn files_are_replaced_whole() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("x"), "text 1").unwrap();
    fs::set_permissions(at("x"), Permissions::from_mode(0o604)).unwrap();
    let replacement = replace(&at("x"), Some(TEXT)).unwrap();
    replacement.file().write_all_at(b"text 2", 0).unwrap();
    assert_eq!(fs::read(at("x")).unwrap(), b"text 1");
    drop(replacement);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    symlink("x", at("link")).unwrap();
    write(&at("link"), b"text 3", Some(TEXT)).unwrap();
    assert!(at("link").is_symlink());
    assert_eq!((fs::read(at("x")).unwrap(), fs::metadata(at("x")).unwrap().mode() & 0o777), (b"text 3".into(), 0o604));
    fs::write(at("x"), "other").unwrap();
    assert!(matches!(write(&at("x"), b"text", Some(TEXT)), Err(DestinationError::Foreign { .. })));
    write(&at("x"), b"text 4", None).unwrap();
    assert_eq!(fs::read(at("x")).unwrap(), b"text 4");
    assert!(matches!(write(dir.path(), b"", None), Err(DestinationError::NotAFile { .. })));
    // A name of the maximum length.
    write(&at(&"x".repeat(255)), b"text", Some(TEXT)).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
}

#[test]
fn a_new_file_is_nobody_else_s_before_it_has_the_group_of_the_old_one() {
    if !geteuid().is_root() {
        return;
    }
    const GROUP: u32 = 54_321;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    fs::write(&path, "text").unwrap();
    std::os::unix::fs::chown(&path, None, Some(GROUP)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let temporary = dir.path().join(format!(".ccsd-{}-0", std::process::id()));
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let Ok(meta) = fs::symlink_metadata(&temporary) else { continue };
                assert!(meta.mode() & 0o070 == 0 || meta.gid() == GROUP, "{:o} of group {}", meta.mode(), meta.gid());
            }
        });
        for _ in 0..4_000 {
            drop(replace(&path, Some(TEXT)).unwrap());
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        looking.join().unwrap();
    });
    write(&path, b"text 2", Some(TEXT)).unwrap();
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.mode() & 0o777, meta.gid()), (0o640, GROUP));
}

#[test]
fn somebody_who_swaps_the_temporary_file_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let replacement = replace(&path, None).unwrap();
    let temporary = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    fs::remove_file(&temporary).unwrap();
    symlink("/etc/passwd", &temporary).unwrap();
    assert!(matches!(replacement.commit(), Err(DestinationError::Changed { .. })));
}

struct Swapper(std::sync::Arc<std::sync::atomic::AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl Swapper {
    fn start(one: PathBuf, other: PathBuf) -> Swapper {
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stopped = std::sync::Arc::clone(&stop);
        let swap = move || {
            while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
                nix::fcntl::renameat2(AT_FDCWD, &one, AT_FDCWD, &other, nix::fcntl::RenameFlags::RENAME_EXCHANGE)
                    .unwrap();
            }
        };
        Swapper(stop, Some(std::thread::spawn(swap)))
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
        self.1.take().unwrap().join().unwrap();
    }
}

#[test]
fn a_name_that_changes_never_leads_elsewhere() {
    if !geteuid().is_root() {
        return;
    }
    const STRANGER: Option<u32> = Some(65_534);
    let dir = tempfile::tempdir().unwrap();
    let theirs = dir.path().join("theirs");
    let own = dir.path().join("own");
    for directory in [&theirs, &own, &theirs.join("sub")] {
        fs::create_dir(directory).unwrap();
    }
    fs::create_dir(own.join("sub")).unwrap();
    std::os::unix::fs::chown(&theirs, STRANGER, STRANGER).unwrap();
    let victim = own.join("victim");
    fs::write(&victim, "text of root").unwrap();
    let stranger_link = |to: &Path, name: &str| {
        symlink(to, theirs.join(name)).unwrap();
        std::os::unix::fs::lchown(theirs.join(name), STRANGER, STRANGER).unwrap();
    };
    stranger_link(&victim, "link");
    stranger_link(&own.join("created"), "dangling");
    stranger_link(&own.join("sub"), "directory");
    let mut opened = 0;
    for (file, owner) in [("empty", STRANGER), ("mine", None)] {
        fs::write(theirs.join(file), "").unwrap();
        std::os::unix::fs::chown(theirs.join(file), owner, owner).unwrap();
        fs::hard_link(&victim, theirs.join("hard")).unwrap();
        for link in ["link", "dangling", "hard"] {
            let _swapper = Swapper::start(theirs.join(file), theirs.join(link));
            for _ in 0..400 {
                opened += u32::from(open(&theirs.join(file), TEXT).is_ok());
                let _ = replace(&theirs.join(file), Some(TEXT));
                let _ = check(&theirs.join(file), TEXT, Some(WriteMode::InPlace));
            }
        }
        fs::remove_file(theirs.join("hard")).unwrap();
    }
    assert!(opened > 0, "root's own file is one that may be written");
    // Under either of the two names.
    let _swapper = Swapper::start(theirs.join("sub"), theirs.join("directory"));
    for _ in 0..400 {
        if let Ok(Replacement { pending: Some(pending), .. }) = replace(&theirs.join("sub/new"), None) {
            assert!(fs::symlink_metadata(own.join("sub").join(&pending.temporary)).is_err());
        }
        drop(open(&theirs.join("sub/opened"), TEXT));
    }
    assert_eq!(fs::read(&victim).unwrap(), b"text of root");
    assert!(!own.join("created").exists());
    assert_eq!(fs::read_dir(own.join("sub")).unwrap().count(), 0);
}
