//! Debug files of debuginfod servers, by build id.
//!
//! Only servers that the caller names are asked, as a build id tells which program runs. The cache is shared with
//! elfutils' client. Certificates of `https:` servers must be trusted by the system (or `SSL_CERT_FILE`).

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hashbrown::HashSet;
use ureq::tls::{RootCerts, TlsConfig};

use crate::door::Door;
use crate::elf_file::ElfFile;
use crate::root::FileRoot;

/// Variable with the servers, separated by blanks, as elfutils has it.
pub const URLS_VARIABLE: &str = "DEBUGINFOD_URLS";
const CACHE_VARIABLE: &str = "DEBUGINFOD_CACHE_PATH";
/// Maximum bytes of a debug file. Those of web browsers have two or three gigabytes.
const MAX_BYTES: u64 = 4 << 30;
const MAX_TIME: Duration = Duration::from_secs(300);
/// Maximum time and bytes of one run. What is missing then is asked for by the next one.
const MAX_RUN: Duration = Duration::from_secs(1800);
const MAX_RUN_BYTES: u64 = 8 << 30;
const MAX_CACHE_BYTES: u64 = 16 << 30;
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// How the names begin of files that are being written; elfutils' own begin so, too.
const PARTIAL: &str = "debuginfo.";
/// Build ids have 8 to 20 bytes; longer ones are not asked for.
const MAX_BUILD_ID: usize = 64;

#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum DebuginfodError {
    #[error("{url:?} is no address of a debuginfod server that can be asked: it begins with https:// or http://")]
    Url { url: String },
    #[error("there is no place for a cache: set DEBUGINFOD_CACHE_PATH")]
    NoCache,
    #[error("other users may write to {}, and could have files written anywhere: set DEBUGINFOD_CACHE_PATH", path.display())]
    OthersCache { path: PathBuf },
}

/// A client of debuginfod servers.
#[derive(Debug)]
pub struct Debuginfod {
    servers: Vec<DebuginfodServer>,
    cache: PathBuf,
    agent: ureq::Agent,
    missing: HashSet<Vec<u8>>,
    began: Instant,
    fetched: u64,
}

#[derive(Debug)]
struct DebuginfodServer {
    url: String,
    /// Whether it can be connected to, as far as is known.
    answers: bool,
}

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

/// A debug file that was fetched before, if one is there.
///
/// # Errors
/// Where it is, if others could have put it there.
pub fn fetched_before(build_id: &[u8]) -> Result<Option<File>, PathBuf> {
    cache_dir().map_or(Ok(None), |cache| kept(&cache, build_id))
}

/// The file of a build in a cache.
///
/// # Errors
/// Its path, if others could have put it there.
fn kept(cache: &Path, build_id: &[u8]) -> Result<Option<File>, PathBuf> {
    let Some(path) = cached(cache, build_id) else { return Ok(None) };
    let Some(file) = open_if_build(&path, build_id) else { return Ok(None) };
    let dir = path.parent().and_then(|dir| fs::symlink_metadata(dir).ok());
    let has_own_dirs = check_owner(cache).is_ok() && dir.is_some_and(|dir| dir.is_dir() && is_own(&dir));
    let is_own_file = file.metadata().is_ok_and(|file| own_users().contains(&file.uid()));
    if has_own_dirs && is_own_file { Ok(Some(file)) } else { Err(path) }
}

/// The file at a path, if it is one with this build id. (elfutils keeps an empty file for what no server has.)
fn open_if_build(path: &Path, build_id: &[u8]) -> Option<File> {
    // Others may write to the cache: a FIFO there must not hang.
    let file = Door::default().open(&FileRoot::own(), path).ok()?;
    let elf = ElfFile::open_debug(file.try_clone().ok()?).ok()?;
    (elf.build_id() == Some(build_id)).then_some(file)
}

impl Debuginfod {
    /// Whether a server can be asked: by `https:` or `http:`.
    #[must_use]
    pub fn can_ask(url: &str) -> bool {
        url.starts_with("https://") || url.starts_with("http://")
    }

    /// A client of these servers, separated by blanks.
    ///
    /// # Errors
    /// [`DebuginfodError`].
    pub fn new(urls: &str) -> Result<Debuginfod, DebuginfodError> {
        let urls: Vec<String> = urls.split_whitespace().map(|url| url.trim_end_matches('/').to_owned()).collect();
        if let Some(url) = urls.iter().find(|url| !Debuginfod::can_ask(url)) {
            return Err(DebuginfodError::Url { url: url.clone() });
        }
        let cache = cache_dir().ok_or(DebuginfodError::NoCache)?;
        check_owner(&cache)?;
        Ok(Debuginfod::with_cache(urls, cache))
    }

    fn with_cache(urls: Vec<String>, cache: PathBuf) -> Debuginfod {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(MAX_TIME))
            .timeout_connect(Some(CONNECT_TIME))
            .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
            .user_agent(concat!("ccsd/", env!("CARGO_PKG_VERSION")))
            .build();
        bound(&cache, Path::new(""));
        Debuginfod {
            servers: urls.into_iter().map(|url| DebuginfodServer { url, answers: true }).collect(),
            cache,
            agent: config.into(),
            missing: HashSet::new(),
            began: Instant::now(),
            fetched: 0,
        }
    }

    /// The debug file with a build id, from the cache or the first server that has it. Servers that cannot be reached,
    /// and files that no server has, are not asked for again.
    ///
    /// # Errors
    /// Why servers did not answer, or why the answer does not fit.
    pub fn fetch(&mut self, build_id: &[u8]) -> Result<Option<File>, String> {
        let Some(path) = cached(&self.cache, build_id) else { return Ok(None) };
        // What others have put there is asked for, and replaced if that may be.
        if let Ok(Some(file)) = kept(&self.cache, build_id) {
            return Ok(Some(file));
        }
        // What those may have that are not asked any more is not known.
        let silent = self.servers.iter().find(|server| !server.answers);
        let absent = silent.map_or(Ok(None), |server| Err(format!("not asked for: {} has failed before", server.url)));
        if self.missing.contains(build_id) {
            return absent;
        }
        if self.began.elapsed() >= MAX_RUN || self.fetched >= MAX_RUN_BYTES {
            return Err(format!(
                "not asked for: this run has already spent {} s and {} MiB on servers",
                self.began.elapsed().as_secs(),
                self.fetched >> 20
            ));
        }
        let mut problem = None;
        for server in self.servers.iter_mut().filter(|server| server.answers) {
            let url = format!("{}/buildid/{}/debuginfo", server.url, hexadecimal(build_id));
            match self.agent.get(&url).call() {
                Ok(answer) => {
                    let body = answer.into_body().into_with_config().limit(MAX_BYTES).reader();
                    match keep(&path, build_id, body, &mut self.fetched) {
                        Ok(Some(file)) => {
                            bound(&self.cache, &path);
                            return Ok(Some(file));
                        }
                        Ok(None) => problem = Some(format!("{url}: the answer is no file of that build")),
                        Err(error) => problem = Some(format!("{url}: {error}")),
                    }
                }
                Err(ureq::Error::StatusCode(404)) => {}
                Err(error) => {
                    // One that answers with an error may have other files.
                    server.answers = matches!(error, ureq::Error::StatusCode(_));
                    problem = Some(format!("{url}: {error}"));
                }
            }
        }
        match problem {
            Some(problem) => Err(problem),
            None => {
                self.missing.insert(build_id.to_vec());
                absent
            }
        }
    }
}

/// Refuses a cache that others could put links into, as with `sudo -E`.
fn check_owner(cache: &Path) -> Result<(), DebuginfodError> {
    // The first of them that there is. What is above is not looked at.
    let dir = cache.ancestors().find_map(|dir| fs::metadata(dir).ok());
    if dir.is_some_and(|meta| is_own(&meta)) {
        Ok(())
    } else {
        Err(DebuginfodError::OthersCache { path: cache.to_owned() })
    }
}

/// Whether only the owner of a file can replace it in this directory, which is this user's or root's. `/tmp` is one.
fn is_own(dir: &fs::Metadata) -> bool {
    own_users().contains(&dir.uid()) && (dir.mode() & 0o002 == 0 || dir.mode() & 0o1000 != 0)
}

/// This user and root.
pub(crate) fn own_users() -> [u32; 2] {
    [nix::unistd::geteuid().as_raw(), 0]
}

/// Keeps an answer at a path of the cache, if it is a file of that build; adds its bytes to `fetched`. Nothing that is there is
/// written to.
fn keep(path: &Path, build_id: &[u8], mut body: impl Read, fetched: &mut u64) -> io::Result<Option<File>> {
    let dir = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(dir)?;
    let meta = fs::symlink_metadata(dir)?;
    if !meta.is_dir() || !is_own(&meta) {
        return Err(io::Error::other(format!("{} is a link, or another user's", dir.display())));
    }
    // Others may read the cache, as elfutils' client has it.
    let readable = fs::Permissions::from_mode(0o644);
    let mut temporary = tempfile::Builder::new().prefix(PARTIAL).permissions(readable).tempfile_in(dir)?;
    let copied = io::copy(&mut body, &mut temporary);
    // What has come counts, too, if the rest does not.
    *fetched = fetched.saturating_add(temporary.as_file().metadata()?.len());
    copied?;
    let file = open_if_build(temporary.path(), build_id);
    if file.is_some() {
        temporary.persist(path)?;
    }
    Ok(file)
}

/// Removes what runs that were interrupted have left, and the files of the cache that were written longest ago, but for
/// `new`, until the rest fits.
fn bound(cache: &Path, new: &Path) {
    let is_dir = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let files_of = |entry: fs::DirEntry| fs::read_dir(entry.path()).into_iter().flatten().flatten();
    let file = |entry: fs::DirEntry| {
        let (name, meta) = (entry.file_name(), entry.metadata().ok().filter(fs::Metadata::is_file)?);
        let (is_partial, modified) = (name.as_encoded_bytes().starts_with(PARTIAL.as_bytes()), meta.modified().ok()?);
        if is_partial && modified.elapsed().is_ok_and(|age| age > MAX_TIME) {
            let _ = fs::remove_file(entry.path());
            return None;
        }
        (is_partial || name == "debuginfo").then(|| (modified, meta.len(), entry.path()))
    };
    let entries = fs::read_dir(cache).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries.filter(is_dir).flat_map(files_of).filter_map(file).collect();
    files.sort();
    let mut total: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, bytes, path) in files.iter().filter(|(_, _, path)| path != new) {
        if total <= MAX_CACHE_BYTES {
            return;
        }
        if fs::remove_file(path).is_ok() {
            total -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn only_what_can_be_asked() {
        assert!(matches!(Debuginfod::new("ftp://x"), Err(DebuginfodError::Url { .. })));
        assert!(matches!(Debuginfod::new("https://x file:///y"), Err(DebuginfodError::Url { .. })));
        let cache = Path::new("/c");
        assert_eq!(cached(cache, &[0xab, 0x0c]).unwrap(), Path::new("/c/ab0c/debuginfo"));
        assert!(cached(cache, &[]).is_none() && cached(cache, &[0; 65]).is_none());
    }

    fn serve(answers: Vec<Vec<u8>>) -> (String, std::sync::Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = std::sync::Arc::new(AtomicUsize::new(0));
        let counter = std::sync::Arc::clone(&asked);
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                counter.fetch_add(1, Ordering::Relaxed);
                let mut question = [0; 4096];
                let _ = stream.read(&mut question);
                let _ = stream.write_all(&answer);
            }
        });
        (url, asked)
    }

    fn answer(status: &str, body: &[u8], length: usize) -> Vec<u8> {
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
        [head.as_bytes(), body].concat()
    }

    fn own() -> (Vec<u8>, Vec<u8>) {
        let exe = std::env::current_exe().unwrap();
        let id = ElfFile::open(File::open(&exe).unwrap()).unwrap().build_id().unwrap().to_vec();
        (fs::read(exe).unwrap(), id)
    }

    #[test]
    fn broken_answers_and_other_builds_are_not_kept_and_the_next_server_is_asked() {
        let (program, id) = own();
        let broken = answer("200 OK", &program[..1000], program.len());
        let other = answer("200 OK", b"something else", 14);
        let (bad, asked_bad) = serve(vec![broken, other, answer("404 Not Found", b"", 0)]);
        let (good, asked_good) =
            serve(vec![answer("404 Not Found", b"", 0), answer("200 OK", &program, program.len())]);
        let dir = tempfile::tempdir().unwrap();
        let mut client = Debuginfod::with_cache(vec![bad, good], dir.path().to_owned());
        // A cut-off answer and no file; the second time the other server has it.
        assert!(client.fetch(&id).is_err());
        assert!(client.fetch(&id).unwrap().is_some());
        assert_eq!((asked_bad.load(Ordering::Relaxed), asked_good.load(Ordering::Relaxed)), (2, 2));
        assert!(client.fetch(&id).unwrap().is_some());
        assert_eq!(asked_bad.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn absent_files_and_silent_servers_are_asked_once() {
        let (url, asked) = serve(vec![answer("404 Not Found", b"", 0); 3]);
        // Nothing listens there any more.
        let gone = format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
        let dir = tempfile::tempdir().unwrap();
        let mut client = Debuginfod::with_cache(vec![gone, url], dir.path().to_owned());
        assert!(client.fetch(&[1; 20]).is_err());
        assert!(!client.servers[0].answers && client.servers[1].answers);
        for _ in 0..2 {
            assert!(client.fetch(&[1; 20]).unwrap_err().starts_with("not asked for: http://"));
        }
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        let (url, asked) = serve(vec![answer("404 Not Found", b"", 0); 3]);
        let mut client = Debuginfod::with_cache(vec![url], dir.path().to_owned());
        for _ in 0..2 {
            assert!(client.fetch(&[1; 20]).unwrap().is_none());
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_cache_may_hold_anything() {
        let (program, id) = own();
        let dir = tempfile::tempdir().unwrap();
        let path = cached(dir.path(), &id).unwrap();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(open_if_build(&path, &id).is_none());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert!(open_if_build(&path, &id).is_none());
        fs::write(&path, &program).unwrap();
        assert!(open_if_build(&path, &id).is_some() && open_if_build(&path, &[1; 20]).is_none());
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
        let (program, id) = own();
        let (path, mut fetched) = (dir.path().join("ab/debuginfo"), 0);
        assert!(keep(&path, &id, &program[..], &mut fetched).unwrap().is_some());
        assert!(fs::read(&path).unwrap() == program && fetched == program.len() as u64);
        let other = dir.path().join("cd/debuginfo");
        let before = fetched;
        assert!(keep(&other, &id, program[..1000].chain(Broken), &mut fetched).is_err());
        assert_eq!(fetched, before + 1000);
        assert!(keep(&other, &[1; 20], &program[..], &mut fetched).unwrap().is_none());
        assert_eq!(fs::read_dir(dir.path().join("cd")).unwrap().count(), 0);
    }

    #[test]
    fn nothing_is_written_through_links_and_what_was_left_is_removed() {
        let (program, id) = own();
        let dir = tempfile::tempdir().unwrap();
        let [secret, aside] = ["secret", "aside"].map(|name| dir.path().join(name));
        fs::write(&secret, "secret").unwrap();
        fs::create_dir(&aside).unwrap();
        let cache = dir.path().join("cache");
        let path = cached(&cache, &id).unwrap();
        let of_build = path.parent().unwrap();
        fs::create_dir_all(of_build).unwrap();
        for name in ["debuginfo".to_owned(), format!("debuginfo.{}", std::process::id())] {
            std::os::unix::fs::symlink(&secret, of_build.join(name)).unwrap();
        }
        let mut fetched = 0;
        assert!(keep(&path, &id, &program[..], &mut fetched).unwrap().is_some());
        assert_eq!(fs::read(&secret).unwrap(), b"secret");
        std::os::unix::fs::symlink(&aside, cache.join("ef")).unwrap();
        assert!(keep(&cache.join("ef/debuginfo"), &id, &program[..], &mut fetched).is_err());
        assert_eq!(fs::read_dir(&aside).unwrap().count(), 0);
        assert!(check_owner(&cache.join("new")).is_ok());
        // Nor is read what others could have put there.
        assert!(kept(&cache, &id).unwrap().is_some() && kept(&cache, &[7; 20]).unwrap().is_none());
        for shared in [of_build, &cache] {
            fs::set_permissions(shared, fs::Permissions::from_mode(0o777)).unwrap();
            assert_eq!(kept(&cache, &id).unwrap_err(), path);
            fs::set_permissions(shared, fs::Permissions::from_mode(0o755)).unwrap();
        }
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(1), None).unwrap();
            assert_eq!(kept(&cache, &id).unwrap_err(), path);
        }
        fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(check_owner(&cache), Err(DebuginfodError::OthersCache { .. })));
        // A download that was last written to long ago was interrupted.
        let left = |age: u64| {
            let partial = File::create(of_build.join(format!("debuginfo.{age}"))).unwrap();
            partial.set_modified(std::time::SystemTime::now() - Duration::from_secs(age)).unwrap();
            bound(&cache, &path);
            of_build.join(format!("debuginfo.{age}")).exists()
        };
        assert!(!left(MAX_TIME.as_secs() + 60) && left(0) && path.exists());
    }
}
