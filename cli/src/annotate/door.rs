//! Opens the source files that a profile names.
//!
//! Any program and any profile can name any file, and root may read them all. A user who reads with no more than his
//! own rights can open what the kernel lets him. Root gets what everybody may read, and else only what all of these
//! users may read:
//!
//! - who called `sudo`;
//! - who could have written the profile;
//! - who could have written the program whose debug information names the file;
//! - who could have put the file where it is.
//!
//! A profile says of a program what its path was, perhaps in a mount namespace of a stranger. So the program must be
//! here as it was profiled, and what it names is read in the program itself.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::env;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;

use ccsd_collector::system::reads_any_file;
use ccsd_collector::{Authors, Door, ElfFile, FileRoot, ForUser, source_files};
use ccsd_profile::{Image, sanitise};
use nix::unistd::{getgid, getuid};

/// A source file as debug information names it.
#[derive(Clone, Copy)]
pub struct NamedSource<'a> {
    pub path: &'a str,
    /// The image that names it, if known.
    pub image: Option<&'a Image>,
}

pub enum NotOpened {
    Absent,
    /// It cannot or shall not be read, for this reason.
    Unreadable(String),
}

impl From<io::Error> for NotOpened {
    fn from(error: io::Error) -> NotOpened {
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => NotOpened::Absent,
            // The answer of `Door` for other kinds of files.
            ErrorKind::InvalidInput => NotOpened::Unreadable("not a regular file".to_owned()),
            _ => NotOpened::Unreadable(error.to_string()),
        }
    }
}

/// Opens source files for one profile.
#[derive(Default)]
pub struct SourceDoor {
    /// `None` if this process has no more rights than its user.
    rights: Option<ReaderRights>,
}

struct ReaderRights {
    /// Who called `sudo` and who could have written the profile; or why that is not known.
    readers: Result<Readers, String>,
    programs: RefCell<HashMap<Image, Result<Rc<Program>, String>>>,
}

/// Users who must be able to read a file, by number, with what they have to do with it.
type Readers = BTreeMap<u32, (ForUser, String)>;

/// A program of the profile that is here.
struct Program {
    authors: Vec<ForUser>,
    /// The source files that its debug information names.
    sources: HashSet<String>,
}

impl SourceDoor {
    /// A door for the profile at `path`, which may be a folder of profiles; `None` if it is not in a file.
    pub fn of_profile(path: Option<&Path>) -> SourceDoor {
        let rights = reads_any_file().then(|| ReaderRights { readers: readers(path), programs: RefCell::default() });
        SourceDoor { rights }
    }

    /// Opens the file at `path`, where `source` was looked for. Never anything but a regular file.
    pub fn open(&self, path: &Path, source: NamedSource<'_>) -> Result<File, NotOpened> {
        let path = &std::path::absolute(path)?;
        let open = |door: Door| door.open(&FileRoot::own(), path);
        let Some(rights) = &self.rights else { return Ok(open(Door::default())?) };
        match open(Door::of(ForUser::ANYBODY)) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
            opened => return Ok(opened?),
        }
        let mut last: Option<(File, (u64, u64))> = None;
        for (user, part) in rights.readers_of(path, source)?.into_values() {
            let file = open(Door::of(user)).map_err(|error| match error.kind() {
                ErrorKind::PermissionDenied => NotOpened::withheld(&format!("user {}, {part}, may not", user.uid)),
                _ => error.into(),
            })?;
            let meta = file.metadata()?;
            let identity = (meta.dev(), meta.ino());
            if last.as_ref().is_some_and(|(_, other)| *other != identity) {
                return Err(NotOpened::Unreadable("it has just been exchanged".to_owned()));
            }
            last = Some((file, identity));
        }
        match last {
            Some((file, _)) => Ok(file),
            None => Ok(open(Door::default())?),
        }
    }

    /// Whether a program of the profile may be given to another program that reads it with the rights of this process.
    pub fn check_program(path: &Path) -> Result<(), String> {
        if !reads_any_file() {
            return Ok(());
        }
        let caller = caller()?.map(|user| user.uid);
        match authors(path)?.iter().find(|user| Some(user.uid) != caller) {
            Some(user) => {
                Err(format!("user {} could have written it, and it would be read with root's rights", user.uid))
            }
            None => Ok(()),
        }
    }
}

impl NotOpened {
    fn withheld(why: &str) -> NotOpened {
        NotOpened::Unreadable(format!(
            "source not shown: only some users may read it, and {why}; --source-root DIR finds a copy that everybody \
             may read"
        ))
    }
}

impl ReaderRights {
    fn readers_of(&self, path: &Path, source: NamedSource<'_>) -> Result<Readers, NotOpened> {
        let withheld = |why: String| NotOpened::withheld(&why);
        let mut readers = self.readers.clone().map_err(withheld)?;
        let image = source.image.ok_or_else(|| withheld("no program names it".to_owned()))?;
        let program = self.program(image).map_err(withheld)?;
        let name = sanitise(&image.name);
        if !program.sources.contains(source.path) {
            return Err(withheld(format!("the debug information in {name} does not name it")));
        }
        add(&mut readers, &program.authors, &format!("who could have written {name}"));
        // A file that is not there has no authors.
        match Authors::of(path)? {
            Authors::Users(users) => add(&mut readers, &users, "who could have put it there"),
            Authors::Anybody => {
                return Err(withheld("others than its owner may write to it, or to a folder on its path".to_owned()));
            }
        }
        Ok(readers)
    }

    fn program(&self, image: &Image) -> Result<Rc<Program>, String> {
        let mut programs = self.programs.borrow_mut();
        programs.entry(image.clone()).or_insert_with(|| Program::read(image).map(Rc::new)).clone()
    }
}

impl Program {
    fn read(image: &Image) -> Result<Program, String> {
        let (path, name) = (Path::new(&image.name), sanitise(&image.name));
        if !path.is_absolute() {
            return Err(format!("the code that names it, {name}, is in no file of this machine"));
        }
        let authors = authors(path)?;
        let not_here =
            |error: &dyn std::fmt::Display| format!("the program that names it cannot be read: {name}: {error}");
        let file = Door::default().open(&FileRoot::own(), path).map_err(|error| not_here(&error))?;
        let elf = ElfFile::open(file).map_err(|error| not_here(&error))?;
        if elf.build_id().unwrap_or_default() != image.build_id {
            return Err(format!("{name} is not the program that was profiled: its build id differs"));
        }
        let sources = source_files(&elf).map_err(|error| not_here(&error))?;
        Ok(Program { authors, sources })
    }
}

fn readers(profile: Option<&Path>) -> Result<Readers, String> {
    let mut readers = Readers::new();
    add(&mut readers, caller()?.as_slice(), "who called sudo");
    let profile = profile.ok_or("nothing says who has written the profile")?;
    let profile = std::path::absolute(profile).map_err(|error| error.to_string())?;
    add(&mut readers, &authors(&profile)?, "who could have written the profile");
    Ok(readers)
}

fn add(readers: &mut Readers, users: &[ForUser], part: &str) {
    for user in users {
        readers.entry(user.uid).or_insert_with(|| (*user, part.to_owned()));
    }
}

/// The user with whose rights root reads, if that is not root.
fn caller() -> Result<Option<ForUser>, String> {
    let real = ForUser { uid: getuid().as_raw(), gid: getgid().as_raw() };
    if real.uid != 0 {
        return Ok(Some(real));
    }
    match env::var("SUDO_UID") {
        Ok(uid) if uid != "0" => {
            let uid = uid.parse().ok();
            let gid = env::var("SUDO_GID").ok().and_then(|gid| gid.parse().ok());
            let user = uid.zip(gid).map(|(uid, gid)| ForUser { uid, gid });
            user.map(Some).ok_or_else(|| "SUDO_UID and SUDO_GID do not say who called sudo".to_owned())
        }
        _ => Ok(None),
    }
}

fn authors(path: &Path) -> Result<Vec<ForUser>, String> {
    let name = || sanitise(&path.to_string_lossy()).into_owned();
    match Authors::of(path) {
        Ok(Authors::Users(users)) => Ok(users),
        Ok(Authors::Anybody) => {
            Err(format!("others than its owner may write to {}, or to a folder on its path", name()))
        }
        Err(error) => Err(format!("nothing says who has written {}: {error}", name())),
    }
}
