//! Opening a profile.

use std::fs::{File, OpenOptions};
use std::io::BufReader;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use ccsd_profile::{DecodeError, Loaded, Profile, Recovery, read_profile};
use nix::fcntl::OFlag;

use crate::args::DEFAULT_FILE;
use crate::args::service::SocketArgs;
use crate::exit::Failure;
use crate::format::{count, counted, nanoseconds};
use crate::service;
use crate::stored::{About, Stored};

/// A profile and how much of its file it is.
pub struct LoadedFile {
    /// Where it was read from.
    pub path: PathBuf,
    /// The number of the daemon's session that it is of, if it is from no file.
    pub session: Option<u32>,
    /// The profile.
    pub profile: Profile,
    /// How much of the file could be read.
    pub recovery: Recovery,
    /// Whether the file ends as a finished collection ends it.
    pub finished: bool,
    /// Whole records.
    pub records: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// What part of a watch it is, if it is none of a file.
    pub stored: Option<About>,
}

impl From<Stored> for LoadedFile {
    fn from(stored: Stored) -> LoadedFile {
        let Stored { profile, dir, about } = stored;
        let (recovery, finished, records, bytes) = (Recovery::Whole, true, 0, about.bytes);
        LoadedFile { path: dir, session: None, profile, recovery, finished, records, bytes, stored: Some(about) }
    }
}

/// The profile of a file or, where `name` is a number and there is no such file, of a daemon's session.
///
/// # Errors
/// As [`load`], and those of the daemon.
pub fn load_any(name: &Path, socket: &SocketArgs) -> Result<LoadedFile, Failure> {
    let Some(number) = service::session_number(name) else { return load(name) };
    let (client, session) = service::find_session(number, socket)?;
    let path = PathBuf::from(format!("session {session}"));
    let (profile, ended) = client.subscribe(session, false)?.read_all()?;
    let finished = ended.is_some();
    let recovery = Recovery::Whole;
    Ok(LoadedFile { path, session: Some(session), profile, recovery, finished, records: 0, bytes: 0, stored: None })
}

/// Opens a profile.
///
/// # Errors
/// Whatever makes it no profile is a bad request; only failing to read an open file is not.
pub fn load(path: &Path) -> Result<LoadedFile, Failure> {
    let name = path.display();
    let file = open(path)?;
    match read_profile(BufReader::with_capacity(1 << 18, file)) {
        Ok(Loaded { profile, recovery, finished, records, bytes }) => {
            let (path, session, stored) = (path.to_owned(), None, None);
            Ok(LoadedFile { path, session, profile, recovery, finished, records, bytes, stored })
        }
        Err(DecodeError::Io(error)) => {
            Err(Failure::at_run_time(anyhow::Error::from(error).context(format!("cannot read {name}"))))
        }
        Err(error) => Err(Failure::bad_request(anyhow!("{name}: {error}"))),
    }
}

/// Opens what may be a profile.
///
/// # Errors
/// If it cannot be opened, or is no regular file.
pub fn open(path: &Path) -> Result<File, Failure> {
    let name = path.display();
    // Not to be held by a FIFO: only regular files are read.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
    let hint = if path == Path::new(DEFAULT_FILE) { " (`ccsd record -- PROGRAM` makes one)" } else { "" };
    let file = file.with_context(|| format!("cannot open {name}{hint}")).map_err(Failure::bad_request)?;
    let meta = file.metadata().with_context(|| format!("cannot read {name}")).map_err(Failure::at_run_time)?;
    if meta.is_dir() {
        return Err(Failure::bad_request(anyhow!("{name} is a directory, not a profile")));
    }
    if !meta.is_file() {
        return Err(Failure::bad_request(anyhow!("{name} is not a regular file")));
    }
    Ok(file)
}

impl LoadedFile {
    /// All that is to be said about it.
    pub fn messages(&self) -> Vec<String> {
        self.stored.as_ref().map_or_else(|| self.message().into_iter().collect(), About::messages)
    }

    /// What is to be said about a file that does not end as it should.
    pub fn message(&self) -> Option<String> {
        if self.session.is_some() {
            return None;
        }
        let name = self.path.display();
        let shown = match self.profile.accounting().duration_ns {
            0 => "it holds no sample".to_owned(),
            ns => format!("its first {} are shown", nanoseconds(ns)),
        };
        match &self.recovery {
            Recovery::Cut { whole_records, bytes_used, why, .. } => {
                let what = if matches!(why, DecodeError::CutOff { .. }) { "is cut short" } else { "is damaged" };
                Some(format!(
                    "{name} {what} ({why}): {}, {} of {} bytes used; {shown}",
                    counted(*whole_records, "whole record", "whole records"),
                    count(*bytes_used),
                    count(self.bytes),
                ))
            }
            Recovery::Whole if !self.finished => {
                Some(format!("{name} has no end yet: the collection still runs or was interrupted; {shown}"))
            }
            Recovery::Whole => None,
        }
    }
}
