//! `ccsd open`: the page in a private file and in the user's browser, and the server of a page under attack.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ccsd_tests::ccsd::{EndedProgram, RecordCommand, ccsd};
use ccsd_tests::daemon::Daemon;
use ccsd_tests::fixture::{Running, build, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::suite::{CC, Need, Suite};
use ccsd_tests::wait::until;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use tempfile::TempDir;

/// How long a page may take to follow its session: for a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(60);
/// What decides whether a browser is started.
const ENVIRONMENT: [&str; 11] = [
    "BROWSER",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "SSH_CONNECTION",
    "SSH_CLIENT",
    "SSH_TTY",
    "SUDO_UID",
    "SUDO_USER",
    "DOAS_USER",
    "PKEXEC_UID",
    "XDG_RUNTIME_DIR",
];

fn main() -> ExitCode {
    Suite::new()
        .test("a_page_in_a_private_file", &[CC], private_file)
        .test("a_browser_is_started_where_there_can_be_one", &[CC], browsers)
        .test("no_browser_as_root_for_another_user", &[CC, Need::Root], by_sudo)
        .test("record_opens_what_it_has_recorded", &[CC], record_opens)
        .test("pages_that_cannot_be_opened", &[CC], refused)
        .test("a_server_sends_the_page_to_who_has_the_address", &[CC], served)
        .test("a_server_under_attack", &[CC], attacked)
        .test("a_client_that_is_slow_is_left", &[CC], slow)
        .test("a_browser_gets_no_token_by_its_arguments", &[CC], redirected)
        .test("signals_end_a_server_unless_they_are_ignored", &[CC], signals)
        .test("the_page_of_a_file_follows_it", &[CC], followed)
        .test("the_page_of_a_session_follows_it", &[CC], live)
        .test("the_page_of_a_session_that_is_lost_stays", &[CC], lost)
        .run()
}

fn recorded() -> &'static Recorded {
    static RECORDED: OnceLock<Recorded> = OnceLock::new();
    RECORDED.get_or_init(|| {
        let recorded = RecordCommand::new(build("weights.c", &["-O1", "-g"]), &["300"]).run();
        // Root shows no source of a profile in a folder that others can write to.
        fs::set_permissions(recorded.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        recorded
    })
}

/// `ccsd` without anything that says where a browser is, and with a runtime folder of its own.
struct BrowserWorld {
    dir: TempDir,
}

impl BrowserWorld {
    fn new() -> BrowserWorld {
        let dir = scratch();
        for name in ["runtime", "tmp", "bin"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::set_permissions(dir.path().join("runtime"), fs::Permissions::from_mode(0o700)).unwrap();
        BrowserWorld { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn prepare<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        ENVIRONMENT.iter().for_each(|name| {
            command.env_remove(name);
        });
        command.env("XDG_RUNTIME_DIR", self.path("runtime")).env("TMPDIR", self.path("tmp"))
    }

    fn ccsd(&self, args: &[&OsStr]) -> Command {
        let mut command = ccsd(args);
        self.prepare(&mut command);
        command
    }

    fn open(&self, options: &[&str]) -> Command {
        let mut command = self.ccsd(&[OsStr::new("open")]);
        command.args(options).arg(&recorded().file);
        command
    }

    fn browser(&self, name: &str) -> PathBuf {
        let path = self.path("bin").join(name);
        let seen = self.path("seen");
        let script = format!("#!/bin/sh\nprintf '%s\\n' \"$@\" >{0}.part && mv {0}.part {0}\n", seen.display());
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn seen(&self) -> Vec<String> {
        let seen = self.path("seen");
        until(|| seen.exists());
        let text = fs::read_to_string(&seen).unwrap();
        fs::remove_file(seen).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

fn page_of(ended: &EndedProgram) -> PathBuf {
    assert!(ended.status.success(), "{ended:?}");
    let path = PathBuf::from(ended.stdout.trim_end());
    assert_private(&path);
    path
}

fn assert_private(path: &Path) {
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode() & 0o777;
    assert_eq!((mode(path), mode(path.parent().unwrap())), (0o600, 0o700), "{}", path.display());
}

fn exported() -> Vec<u8> {
    let output = ccsd(["export", "html"]).arg(&recorded().file).output().unwrap();
    assert!(output.status.success() && output.stdout.len() > 10_000, "{output:?}");
    output.stdout
}

fn private_file() {
    let world = BrowserWorld::new();
    let ended = EndedProgram::of(&mut world.open(&["--no-browser"]));
    let path = page_of(&ended);
    assert_eq!(path.parent().unwrap(), world.path("runtime/ccsd"));
    assert_eq!(fs::read(&path).unwrap(), exported());
    assert_eq!(ended.stderr, "");
    assert_ne!(page_of(&EndedProgram::of(&mut world.open(&["--no-browser"]))), path);
    // A runtime folder that others could read, or that is a link, is not taken, nor is one of another user's.
    for spoil in ["mode", "link", "none"] {
        let runtime = world.path("runtime");
        match spoil {
            "mode" => fs::set_permissions(&runtime, fs::Permissions::from_mode(0o755)).unwrap(),
            "link" => {
                fs::rename(&runtime, world.path("real")).unwrap();
                std::os::unix::fs::symlink(world.path("real"), &runtime).unwrap();
            }
            _ => fs::remove_file(&runtime).unwrap(),
        }
        let path = page_of(&EndedProgram::of(&mut world.open(&["--no-browser"])));
        assert_eq!(path.parent().unwrap().parent().unwrap(), world.path("tmp"), "{spoil}");
    }
    // What is asked of the profile is asked of its page.
    let some = page_of(&EndedProgram::of(&mut world.open(&["--no-browser", "--only", "weight_12"])));
    let text = fs::read_to_string(some).unwrap();
    assert!(text.contains("weight_12") && !text.contains("\"weight_11\""), "{}", text.len());
    let page = |options: &[&str]| {
        let args = [&["--no-browser"], options].concat();
        fs::read_to_string(page_of(&EndedProgram::of(&mut world.open(&args)))).unwrap()
    };
    let line = "BURN(weight_07) BURN(weight_08)";
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/weights.c");
    assert!(page(&[]).contains(line) && !page(&["--no-source"]).contains(line));
    let root = world.path("root");
    let copy = root.join(source.strip_prefix("/").unwrap());
    fs::create_dir_all(copy.parent().unwrap()).unwrap();
    let text = fs::read_to_string(source).unwrap();
    fs::write(&copy, text.replace(line, &format!("{line} /* of the root */"))).unwrap();
    assert!(page(&["--source-root", root.to_str().unwrap()]).contains("/* of the root */"));
}

fn browsers() {
    let world = BrowserWorld::new();
    let own = world.browser("own");
    world.browser("xdg-open");
    let path = std::env::join_paths([world.path("bin"), "/usr/bin".into(), "/bin".into()]).unwrap();
    let seen = |variables: &[(&str, &OsStr)]| {
        let mut command = world.open(&[]);
        let ended = EndedProgram::of(command.env("PATH", &path).envs(variables.iter().copied()));
        let page = page_of(&ended);
        (page.to_str().unwrap().to_owned(), ended.stderr)
    };
    let (page, said) = seen(&[("DISPLAY", OsStr::new(":7"))]);
    assert_eq!((world.seen(), said), (vec![page], String::new()));
    let list = format!("/nonexistent/x:{} --new=%s -x", own.display());
    let ssh = ("SSH_CONNECTION", OsStr::new("192.0.2.1 1 192.0.2.2 22"));
    let (page, said) = seen(&[("BROWSER", OsStr::new(&list)), ssh]);
    assert_eq!((world.seen(), said), (vec![format!("--new={page}"), "-x".to_owned()], String::new()));
    // Where there is none to be started, it says how to see the page, and starts none.
    for (variables, why) in [
        (&[ssh, ("DISPLAY", OsStr::new(":7"))][..], "over ssh"),
        (&[], "without a display"),
        (&[("DISPLAY", OsStr::new(":7")), ("PATH", OsStr::new("/nonexistent"))], "no xdg-open"),
    ] {
        let (page, said) = seen(variables);
        assert!(said.contains(why) && said.contains("scp ") && said.contains(&page), "{said}");
        assert!(said.contains("ccsd open --serve") && said.contains("ssh -L 8123:127.0.0.1:8123"), "{said}");
        assert!(!world.path("seen").exists());
    }
    // One that fails is not passed over in silence.
    let ended = EndedProgram::of(world.open(&[]).env("BROWSER", "false"));
    ended.assert_refused(1, &["with false", "the page is"]);
    assert_private(Path::new(ended.stdout.trim_end()));
}

fn by_sudo() {
    let world = BrowserWorld::new();
    let browser = world.browser("own");
    let ended = EndedProgram::of(world.open(&[]).env("SUDO_UID", "1000").env("BROWSER", browser));
    ended.assert_refused(2, &["as root", "sudo ccsd open --serve", "sudo ccsd export html"]);
    assert!(!world.path("seen").exists() && ended.stdout.is_empty());
    assert!(!world.path("runtime/ccsd").exists());
    let mut served = ServedBrowserPage::start(world.open(&["--serve"]).env("SUDO_UID", "1000"));
    assert!(served.get("").starts_with("HTTP/1.1 200 "));
    served.end();
}

fn record_opens() {
    let world = BrowserWorld::new();
    let browser = world.browser("own");
    let file = world.path("x.ccsd");
    let mut command = world.ccsd(&[OsStr::new("record"), OsStr::new("--open"), OsStr::new("-o"), file.as_os_str()]);
    let ended =
        EndedProgram::of(command.arg("--").arg(build("weights.c", &["-O1", "-g"])).arg("50").env("BROWSER", browser));
    assert!(ended.status.success(), "{ended:?}");
    assert!(ended.stdout.starts_with("weight_01 ") && !ended.stdout.contains("page-"), "{ended:?}");
    let [page] = world.seen().try_into().unwrap();
    assert!(ended.stderr.contains(&page), "{ended:?}");
    assert_private(Path::new(&page));
    let exported = ccsd(["export", "html"]).arg(&file).output().unwrap().stdout;
    assert_eq!(fs::read(page).unwrap(), exported);
    let mut command = world.ccsd(&[OsStr::new("record"), OsStr::new("--open"), OsStr::new("-o"), file.as_os_str()]);
    let ended = EndedProgram::of(command.args(["--", "sh", "-c", "exit 7"]).env("BROWSER", "false"));
    assert_eq!(ended.status.code(), Some(7), "{ended:?}");
    assert!(ended.stderr.contains("with false"), "{ended:?}");
}

fn refused() {
    let world = BrowserWorld::new();
    let open = |args: &[&str]| EndedProgram::of(world.ccsd(&[OsStr::new("open")]).args(args));
    open(&["/nonexistent.ccsd"]).assert_refused(2, &["/nonexistent.ccsd"]);
    open(&["--serve", "/etc/hostname"]).assert_refused(2, &["/etc/hostname"]);
    let ended = open(&["--port", "80", "x"]);
    ended.assert_refused(2, &["required arguments"]);
    assert!(ended.stderr.contains("--serve"), "{ended:?}");
    let file = recorded().file.to_str().unwrap();
    open(&["--max-size", "1K", file]).assert_refused(2, &["a page takes at least"]);
    open(&["--sort", "self", file]).assert_refused(2, &["--sort is for csv"]);
    open(&["--focus", "no_such_function", file]).assert_refused(2, &["no_such_function"]);
    assert!(!world.path("runtime/ccsd").exists());
}

struct ServedBrowserPage {
    child: Child,
    port: u16,
    token: String,
    errors: BufReader<std::process::ChildStderr>,
}

impl ServedBrowserPage {
    fn start(command: &mut Command) -> ServedBrowserPage {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let rest = address.trim_end().strip_prefix("http://127.0.0.1:").unwrap_or_else(|| panic!("{address:?}"));
        let (port, path) = rest.split_once('/').unwrap();
        let token = path.strip_suffix('/').unwrap().to_owned();
        assert!(token.len() >= 32 && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "{token}");
        ServedBrowserPage { child, port: port.parse().unwrap(), token, errors }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn answer(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        // A server that has seen enough need not read the rest.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    fn get(&self, name: &str) -> String {
        self.answer(format!("GET /{}/{name} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\r\n", self.token, self.port).as_bytes())
    }

    fn end(&mut self) {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT).unwrap();
        let status = self.child.wait().unwrap();
        let mut said = String::new();
        self.errors.read_to_string(&mut said).unwrap();
        assert!(status.success() && !said.contains("panicked"), "{status}: {said}");
    }
}

impl Drop for ServedBrowserPage {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn split(answer: &str) -> (&str, &str) {
    answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"))
}

fn served() {
    let world = BrowserWorld::new();
    let mut served = ServedBrowserPage::start(&mut world.open(&["--serve", "--no-browser"]));
    let answer = served.get("");
    let (head, body) = split(&answer);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert_eq!(unfollowing(body).as_bytes(), exported());
    for field in [
        &format!("Content-Length: {}", body.len())[..],
        "Content-Type: text/html; charset=utf-8",
        "Cache-Control: no-store",
        "Connection: close",
        "X-Content-Type-Options: nosniff",
        "Referrer-Policy: no-referrer",
        "Cross-Origin-Resource-Policy: same-origin",
    ] {
        assert!(head.lines().any(|line| line == field), "{field}: {head}");
    }
    let policy = head.lines().find_map(|line| line.strip_prefix("Content-Security-Policy: ")).unwrap();
    assert!(policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(policy.contains("; connect-src 'self'; ") && body.contains("follows the file"), "{policy}");
    // From a tunnel the address has another port, and perhaps another name.
    for host in ["localhost:9000", "[::1]:80", "127.0.0.1"] {
        let request = format!("GET /{}/ HTTP/1.1\r\nHost: {host}\r\n\r\n", served.token);
        assert!(served.answer(request.as_bytes()).starts_with("HTTP/1.1 200 "), "{host}");
    }
    // It listens on the loopback interface alone.
    let port = format!(":{:04X} ", served.port);
    let listens = |table: &str| {
        let table = fs::read_to_string(table).unwrap_or_default();
        let own = table.lines().filter(|line| line.contains(&port) && line.contains(" 0A "));
        own.map(|line| line.split_whitespace().nth(1).unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(listens("/proc/net/tcp"), [format!("0100007F{}", port.trim_end())]);
    assert_eq!(listens("/proc/net/tcp6"), Vec::<String>::new());
    let options = ["--serve", "--no-browser", "--port", &served.port.to_string()];
    EndedProgram::of(&mut world.open(&options)).assert_refused(2, &["cannot listen on 127.0.0.1:"]);
    let mut other = ServedBrowserPage::start(&mut world.open(&["--serve", "--no-browser"]));
    assert_ne!(other.token, served.token);
    other.end();
    served.end();
    assert!(TcpStream::connect(("127.0.0.1", served.port)).is_err());
}

fn unfollowing(page: &str) -> String {
    let (before, rest) = page.split_once("<script>\nconst LIVE = ").unwrap();
    let (_, after) = rest.split_once("</script>\n").unwrap();
    format!("{before}{after}").replacen("; connect-src 'self'", "", 1)
}

fn followed() {
    let world = BrowserWorld::new();
    let file = world.path("profile.ccsd");
    fs::copy(&recorded().file, &file).unwrap();
    let mut served = ServedBrowserPage::start(
        &mut world.ccsd(&["open", "--serve", "--no-browser", file.to_str().unwrap()].map(OsStr::new)),
    );
    let number = |served: &ServedBrowserPage| split(&served.get("live")).1.to_owned();
    let page = |served: &ServedBrowserPage| split(&served.get("")).1.to_owned();
    let first = page(&served);
    assert!(first.contains("const LIVE = { version: 1, every: 2000, says: \"follows the file\" };"), "{}", first.len());
    assert_eq!(number(&served), "1\n");
    let other = RecordCommand::new(build("weights.c", &["-O1", "-g"]), &["30"]).run();
    fs::rename(&other.file, &file).or_else(|_| fs::copy(&other.file, &file).map(|_| ())).unwrap();
    assert_eq!(number(&served), "2\n");
    let second = page(&served);
    assert!(second.contains("const LIVE = { version: 2,"), "{}", second.len());
    let exported = ccsd(["export", "html"]).arg(&file).output().unwrap().stdout;
    assert_eq!(unfollowing(&second).as_bytes(), exported);
    // What is no profile, and a file that is gone, leave the page as it is.
    fs::write(&file, "no profile").unwrap();
    assert_eq!((number(&served).as_str(), page(&served) == second), ("2\n", true));
    fs::remove_file(&file).unwrap();
    assert_eq!((number(&served).as_str(), page(&served) == second), ("2\n", true));
    fs::copy(&recorded().file, &file).unwrap();
    assert_eq!(number(&served), "3\n");
    assert!(page(&served).contains("const LIVE = { version: 3,"));
    served.end();
}

fn attacked() {
    let world = BrowserWorld::new();
    let mut served = ServedBrowserPage::start(&mut world.open(&["--serve", "--no-browser"]));
    let token = served.token.clone();
    let good = format!("GET /{token}/ HTTP/1.1\r\nHost: localhost\r\n");
    let page = served.get("");
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut wrong = token.clone().into_bytes();
    let last = wrong.last_mut().unwrap();
    *last = if *last == b'0' { b'1' } else { b'0' };
    let wrong = String::from_utf8(wrong).unwrap();
    // Neither a wrong token nor a path beside the page tells anything of the right one.
    let nothing = served.answer(get("/").as_bytes());
    assert!(nothing.starts_with("HTTP/1.1 404 ") && !nothing.contains(&token), "{nothing}");
    for path in [
        &format!("/{wrong}/")[..],
        &format!("/{}/", &token[1..]),
        &format!("/{token}0/"),
        &format!("/{}/", token.to_uppercase() + "x"),
        &format!("/{token}"),
        &format!("//{token}/"),
        &format!("/{token}//"),
        &format!("/{token}/../{token}/"),
        &format!("/{token}/../../etc/passwd"),
        &format!("/{token}/%2e%2e/etc/passwd"),
        &format!("/{token}/?x"),
        &format!("/{token}/live/"),
        &format!("/%{:02x}{}/", token.as_bytes()[0], &token[1..]),
        "/etc/passwd",
        "/../../../../etc/passwd",
        "/favicon.ico",
    ] {
        assert_eq!(served.answer(get(path).as_bytes()), nothing, "{path}");
    }
    let status = |request: &[u8]| {
        let answer = served.answer(request);
        assert!(!answer.contains("evil") && !answer.contains("<!doctype"), "{answer}");
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    let host = |host: &str| status(format!("GET /{token}/ HTTP/1.1\r\n{host}\r\n\r\n").as_bytes());
    // DNS rebinding: the browser sends the name that the attacker has.
    for name in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "evil@localhost", "0.0.0.0", ""]
    {
        assert!(["421", "400"].contains(&&*host(&format!("Host: {name}"))), "{name}");
    }
    assert_eq!(host("X: y"), "400");
    assert_eq!(host("Host: localhost\r\nHost: evil.example"), "400");
    for method in ["POST", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "evil"] {
        let request = format!("{}\r\n", good.replacen("GET", method, 1));
        assert_eq!(status(request.as_bytes()), "405", "{method}");
    }
    for fields in [
        "Content-Length: 5\r\n\r\nevil!",
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        " folded\r\n\r\n",
        "X y\r\n\r\n",
    ] {
        assert_eq!(status(format!("{good}{fields}").as_bytes()), "400", "{fields:?}");
    }
    assert_eq!(status(format!("{good}X: {}\r\n\r\n", "x".repeat(100_000)).as_bytes()), "431");
    assert_eq!(status(format!("GET /{} HTTP/1.1\r\n", "x".repeat(1 << 20)).as_bytes()), "431");
    assert_eq!(status(format!("{good}{}\r\n", "X: y\r\n".repeat(200)).as_bytes()), "431");
    assert_eq!(status(b"GET / HTTP/9\r\nHost: localhost\r\n\r\n"), "505");
    for garbage in
        [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"[..], b"\r\n\r\n", b"\0\0\0\0\r\n\r\n", b"GET\r\n\r\n"]
    {
        assert_eq!(status(garbage), "400", "{garbage:?}");
    }
    // A request that is smuggled behind another is none: one connection, one answer.
    let twice = served.answer(format!("{good}\r\n{good}\r\n").as_bytes());
    assert_eq!(twice, page);
    // A client that leaves in the middle does no harm.
    for part in [0, 1, 10, good.len()] {
        let mut stream = served.connect();
        stream.write_all(&good.as_bytes()[..part]).unwrap();
        stream.shutdown(Shutdown::Both).unwrap();
    }
    for _ in 0..20 {
        served.connect().write_all(format!("{good}\r\n").as_bytes()).unwrap();
    }
    assert_eq!(served.get(""), page);
    served.end();
}

/// Connections that send nothing, or little at a time, do not block others.
fn slow() {
    let world = BrowserWorld::new();
    let mut served = ServedBrowserPage::start(&mut world.open(&["--serve", "--no-browser"]));
    let mut idle: Vec<TcpStream> = (0..200)
        .map(|number| {
            let mut stream = served.connect();
            if number % 2 == 0 {
                // The server may have left it already.
                let _ = stream.write_all(b"GET / HT");
            }
            stream
        })
        .collect();
    assert!(served.get("").starts_with("HTTP/1.1 200 "));
    assert!(served.get("live").ends_with("\r\n\r\n1\n"));
    // The oldest had to go; the latest are told that they take too long.
    let mut end_of = |number: usize| {
        let mut text = Vec::new();
        match idle[number].read_to_end(&mut text) {
            Ok(_) => String::from_utf8(text).unwrap(),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => String::new(),
            Err(error) => panic!("{number}: {error}"),
        }
    };
    assert_eq!(end_of(0), "");
    assert!(end_of(198).starts_with("HTTP/1.1 408 "));
    assert!(served.get("").starts_with("HTTP/1.1 200 "));
    served.end();
}

fn redirected() {
    let world = BrowserWorld::new();
    let browser = world.browser("own");
    let mut served = ServedBrowserPage::start(world.open(&["--serve"]).env("BROWSER", browser));
    let [file] = world.seen().try_into().unwrap();
    assert!(!file.contains(&served.token), "{file}");
    assert_private(Path::new(&file));
    let page = fs::read_to_string(&file).unwrap();
    assert!(page.contains(&format!("url=http://127.0.0.1:{}/{}/\"", served.port, served.token)), "{page}");
    served.end();
    assert!(!Path::new(&file).exists());
    let world = BrowserWorld::new();
    let browser = world.browser("own");
    let mut served =
        ServedBrowserPage::start(world.open(&["--serve"]).env("BROWSER", browser).env_remove("XDG_RUNTIME_DIR"));
    let [file] = world.seen().try_into().unwrap();
    assert!(Path::new(&file).starts_with(world.path("tmp")), "{file}");
    served.end();
    assert_eq!(fs::read_dir(world.path("tmp")).unwrap().count(), 0);
    // Over ssh it says how.
    let mut command = world.open(&["--serve"]);
    let mut served = ServedBrowserPage::start(command.env("SSH_TTY", "/dev/pts/1"));
    let mut said = String::new();
    while !said.contains("ssh -N -L") {
        assert!(served.errors.read_line(&mut said).unwrap() > 0, "{said}");
    }
    assert!(said.contains(&format!("-L {0}:127.0.0.1:{0} ", served.port)), "{said}");
    served.end();
}

fn signals() {
    let world = BrowserWorld::new();
    let plain = world.open(&["--serve", "--no-browser"]);
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(plain.get_program()).args(plain.get_args());
    let mut served = ServedBrowserPage::start(world.prepare(&mut command));
    let status = fs::read_to_string(format!("/proc/{}/status", served.child.id())).unwrap();
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    let bit = |signal: Signal| 1_u64 << (signal as u32 - 1);
    let (ignored, caught) = (mask("SigIgn:"), mask("SigCgt:"));
    assert!(ignored & bit(Signal::SIGHUP) != 0 && caught & bit(Signal::SIGHUP) == 0, "{status}");
    assert!(caught & bit(Signal::SIGINT) != 0 && caught & bit(Signal::SIGTERM) != 0, "{status}");
    kill(Pid::from_raw(served.child.id().cast_signed()), Signal::SIGHUP).unwrap();
    assert!(served.get("").starts_with("HTTP/1.1 200 "));
    served.end();
    // While the page is made, Ctrl-C ends it at once.
    let pipe = world.path("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    let mut command = world.ccsd(&[OsStr::new("open"), OsStr::new("--serve"), pipe.as_os_str()]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // Waits until ccsd reads.
    let writer = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::SIGINT as i32));
    drop(writer);
}

fn lost() {
    let fixture = Running::start(&build("forever.c", &["-O1", "-g"]), &[]);
    let daemon = Daemon::start(&[]);
    let session = format!("session:{}", daemon.detached(&[], fixture.pid()));
    let world = BrowserWorld::new();
    let mut command = daemon.ccsd(["open", "--serve", "--no-browser", &session]);
    let mut served = ServedBrowserPage::start(world.prepare(&mut command));
    assert!(served.get("").contains("location.reload()"));
    let (_dir, _) = daemon.kill();
    let end = Instant::now() + PATIENCE;
    let last = loop {
        let page = served.get("");
        if !page.contains("location.reload()") {
            break page;
        }
        assert!(Instant::now() < end, "the page still loads itself anew");
        std::thread::sleep(Duration::from_millis(50));
    };
    let (head, body) = split(&last);
    assert!(!head.contains("connect-src") && !body.contains("; connect-src"), "{head}");
    assert!(body.contains("no longer live") && body.len() > 10_000, "{}", body.len());
    served.end();
}

fn live() {
    let fixture = Running::start(&build("forever.c", &["-O1", "-g"]), &[]);
    let daemon = Daemon::start(&[]);
    let id = daemon.detached(&[], fixture.pid());
    let session = format!("session:{id}");
    let world = BrowserWorld::new();
    let mut command = daemon.ccsd(["open", "--serve", "--no-browser", &session]);
    let mut served = ServedBrowserPage::start(world.prepare(&mut command));
    let first = served.get("");
    assert!(first.contains("connect-src 'self'") && first.contains("location.reload()"), "{}", first.len());
    let samples = |page: &str| -> u64 {
        let facts = page.split("\"facts\":\"").nth(1).unwrap_or_else(|| panic!("no facts in {} bytes", page.len()));
        facts.split(' ').next().unwrap().replace(',', "").parse().unwrap()
    };
    let until = |what: &str, good: &dyn Fn(&str) -> bool| {
        let end = Instant::now() + PATIENCE;
        loop {
            let page = served.get("");
            if good(&page) {
                return page;
            }
            assert!(Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let before = samples(&first);
    until("the page follows", &|page| samples(page) > before);
    let stopped = daemon.run(&["daemon", "stop", &session]);
    assert!(stopped.status.success(), "{stopped:?}");
    let last = until("the page of the end", &|page| !page.contains("location.reload()"));
    let (head, body) = split(&last);
    assert!(!head.contains("connect-src"), "{head}");
    let exported = daemon.run(&["export", "html", &session]);
    assert_eq!(body, exported.stdout);
    served.end();
}
