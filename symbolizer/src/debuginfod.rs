//! Debug files of debuginfod servers, by build id.
//!
//! Nothing is asked unless the caller names servers: a build id tells them which program runs. Answers are kept in a cache
//! with the layout of elfutils' client, so that both share it. Only `http:` is spoken.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Variable with the servers, separated by blanks, as elfutils has it.
pub const URLS_VARIABLE: &str = "DEBUGINFOD_URLS";
/// Variable with the cache directory, as elfutils has it.
const CACHE_VARIABLE: &str = "DEBUGINFOD_CACHE_PATH";
/// Maximum bytes of a debug file. Those of web browsers have two or three gigabytes.
const MAX_BYTES: u64 = 4 << 30;
/// Maximum time for one answer.
const MAX_TIME: Duration = Duration::from_secs(300);
/// Maximum time for a server to accept a connection.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Build ids have 8 to 20 bytes; longer ones are not asked for.
const MAX_BUILD_ID: usize = 64;

/// Why a server cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum DebuginfodError {
    /// Only plain HTTP is supported.
    #[error(
        "{url:?} is no address of a debuginfod server that can be asked: it begins with http:// (https is not supported)"
    )]
    Url { url: String },
    /// There is neither a home nor a cache directory.
    #[error("there is no place for a cache: set DEBUGINFOD_CACHE_PATH")]
    NoCache,
}

/// A client of debuginfod servers.
#[derive(Debug)]
pub struct Debuginfod {
    urls: Vec<String>,
    cache: PathBuf,
    agent: ureq::Agent,
}

/// The path of a cached debug file.
fn cached(cache: &Path, build_id: &[u8]) -> Option<PathBuf> {
    let in_range = (2..=MAX_BUILD_ID).contains(&build_id.len());
    in_range.then(|| cache.join(hexadecimal(build_id)).join("debuginfo"))
}

fn hexadecimal(build_id: &[u8]) -> String {
    build_id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The directory in which clients keep debug files.
#[must_use]
pub fn cache_dir() -> Option<PathBuf> {
    let path = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    path(CACHE_VARIABLE)
        .or_else(|| path("XDG_CACHE_HOME").map(|dir| dir.join("debuginfod_client")))
        .or_else(|| path("HOME").map(|dir| dir.join(".cache/debuginfod_client")))
}

/// A debug file that was fetched before.
#[must_use]
pub fn fetched_before(build_id: &[u8]) -> Option<File> {
    // elfutils keeps an empty file for what no server has.
    let file = File::open(cached(&cache_dir()?, build_id)?).ok()?;
    file.metadata().is_ok_and(|meta| meta.len() > 0).then_some(file)
}

impl Debuginfod {
    /// A client of these servers, separated by blanks.
    ///
    /// # Errors
    /// [`DebuginfodError`].
    pub fn new(urls: &str) -> Result<Debuginfod, DebuginfodError> {
        let urls: Vec<String> = urls.split_whitespace().map(|url| url.trim_end_matches('/').to_owned()).collect();
        if let Some(url) = urls.iter().find(|url| !url.starts_with("http://")) {
            return Err(DebuginfodError::Url { url: url.clone() });
        }
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(MAX_TIME))
            .timeout_connect(Some(CONNECT_TIME))
            .user_agent(concat!("ccsd/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Debuginfod { urls, cache: cache_dir().ok_or(DebuginfodError::NoCache)?, agent: config.into() })
    }

    /// The debug file with a build id, from the cache or the first server that has it; `None` if no server has it.
    ///
    /// # Errors
    /// In words, why servers did not answer, or why there is no room for the answer.
    pub fn fetch(&self, build_id: &[u8]) -> Result<Option<File>, String> {
        if let Some(file) = fetched_before(build_id) {
            return Ok(Some(file));
        }
        let Some(path) = cached(&self.cache, build_id) else { return Ok(None) };
        let mut problem = None;
        for server in &self.urls {
            let url = format!("{server}/buildid/{}/debuginfo", hexadecimal(build_id));
            match self.agent.get(&url).call() {
                Ok(answer) => {
                    let body = answer.into_body().into_with_config().limit(MAX_BYTES).reader();
                    let kept = keep(&path, body).and_then(|()| File::open(&path));
                    return kept.map(Some).map_err(|error| format!("{url}: {error}"));
                }
                Err(ureq::Error::StatusCode(404)) => {}
                Err(error) => problem = Some(format!("{url}: {error}")),
            }
        }
        problem.map_or(Ok(None), Err)
    }
}

/// Writes a file of the cache, which appears when it is complete.
fn keep(path: &Path, mut body: impl Read) -> io::Result<()> {
    let dir = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(dir)?;
    let temporary = dir.join(format!("debuginfo.{}", std::process::id()));
    let written = File::create(&temporary)
        .and_then(|mut file| io::copy(&mut body, &mut file))
        .and_then(|_| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_asked() {
        assert!(matches!(Debuginfod::new("https://x"), Err(DebuginfodError::Url { .. })));
        assert!(matches!(Debuginfod::new("http://x file:///y"), Err(DebuginfodError::Url { .. })));
        let cache = Path::new("/c");
        assert_eq!(cached(cache, &[0xab, 0x0c]).unwrap(), Path::new("/c/ab0c/debuginfo"));
        assert!(cached(cache, &[]).is_none() && cached(cache, &[0; 65]).is_none());
    }

    #[test]
    fn an_answer_that_is_cut_off_leaves_nothing() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::UnexpectedEof.into())
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ab/debuginfo");
        assert!(keep(&path, &b"ELF"[..]).is_ok() && fs::read(&path).unwrap() == b"ELF");
        let other = dir.path().join("cd/debuginfo");
        assert!(keep(&other, Broken).is_err());
        assert_eq!(fs::read_dir(dir.path().join("cd")).unwrap().count(), 0);
    }
}
