//! `ccsd open`: the page of a profile, in a browser.
//!
//! The page of `ccsd export html` goes into a file of this user ([`private`]), or a server on the loopback interface
//! sends it ([`server`], [`http`]) and updates it when its source changes. [`browser`] starts a browser, or says why
//! it cannot.

mod browser;
mod http;
mod live;
mod private;
mod server;

use std::fs;
use std::io::{Write, stdout};
use std::path::Path;

use anyhow::{Context, anyhow};
use ccsd_profile::export::Format;
use ccsd_profile::sanitise;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::open::{OpenArgs, page_of};
use crate::exit::{Exit, Failure};
use crate::export;
use crate::format::shell_word;
use crate::message::warn;
use crate::signals;
use crate::source::ProfileSource;

use browser::{Browser, Obstacle};
use live::Follows;
use server::PageServer;

pub fn run(args: OpenArgs) -> Result<Exit, Failure> {
    export::check_sort(&args.query, Format::Html)?;
    let browser = if args.no_browser { Err(Obstacle::NotAsked) } else { browser::find() };
    if args.serve {
        return serve(args, &browser);
    }
    let source = args.source.to_string();
    if let Err(Obstacle::Sudo) = browser {
        return Err(Failure::bad_request(anyhow!(sudo_hint(&source))));
    }
    let page = export::page(&args.into_export())?;
    let path = private::write(&page.bytes).context("cannot write the page").map_err(Failure::at_run_time)?;
    let mut out = stdout().lock();
    writeln!(out, "{}", path.display()).and_then(|()| out.flush())?;
    show(&browser, &path, &source)
}

/// Opens the page of a profile file that has just been written, for `--open` of the commands that collect.
pub fn open_file(path: &Path) -> Result<(), Failure> {
    let browser = browser::find();
    let name = path.display().to_string();
    if let Err(Obstacle::Sudo) = browser {
        return Err(Failure::bad_request(anyhow!(sudo_hint(&name))));
    }
    let page = export::page(&page_of(ProfileSource::File(path.to_owned())))?;
    let page = private::write(&page.bytes).context("cannot write the page").map_err(Failure::at_run_time)?;
    warn(format_args!("the page is {}", page.display()));
    show(&browser, &page, &name).map(|_| ())
}

fn show(browser: &Result<Browser, Obstacle>, path: &Path, source: &str) -> Result<Exit, Failure> {
    let browser = match browser {
        Ok(browser) => browser,
        Err(obstacle) => {
            if let Some(why) = obstacle.text() {
                warn(format_args!("{why}; to see the page elsewhere:\n{}", file_elsewhere(path, source)));
            }
            return Ok(Exit::SUCCESS);
        }
    };
    browser.open(path.as_os_str()).map_err(|error| {
        Failure::at_run_time(anyhow!("{error}; the page is {}, and --serve serves it at an address", path.display()))
    })?;
    Ok(Exit::SUCCESS)
}

fn file_elsewhere(path: &Path, source: &str) -> String {
    let host = host();
    let path = shell_word(&path.to_string_lossy());
    format!(
        "  scp {host}:{path} .\n  or here `ccsd open --serve --port 8123 {}`, and there `ssh -L 8123:127.0.0.1:8123 {host}`",
        shell_word(&sanitise(source))
    )
}

fn sudo_hint(source: &str) -> String {
    let source = shell_word(&sanitise(source));
    format!(
        "no browser is started as root; `sudo ccsd open --serve {source}` prints an address for your own browser, and `sudo \
         ccsd export html -o page.html {source}` writes the page"
    )
}

fn host() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "HOST" } else { host.trim() };
    match std::env::var("USER").or_else(|_| std::env::var("LOGNAME")) {
        Ok(user) if !user.is_empty() => shell_word(&sanitise(&format!("{user}@{host}"))),
        _ => shell_word(&sanitise(host)),
    }
}

fn serve(args: OpenArgs, browser: &Result<Browser, Obstacle>) -> Result<Exit, Failure> {
    let port = args.port;
    let server = PageServer::bind(args.into_export(), port)?;
    // After the page is made, so that Ctrl-C ends that, and before the browser's file exists, so that no signal leaves
    // it. Ignored signals stay ignored.
    let signals = Signals::new(signals::not_ignored(&[SIGINT, SIGTERM, SIGHUP])).context("cannot catch signals");
    let mut signals = signals.map_err(Failure::at_run_time)?;
    let address = server.address();
    let follows = server.follows();
    let port = server.port();
    server.start()?;
    let mut out = stdout().lock();
    writeln!(out, "{address}").and_then(|()| out.flush())?;
    let live = match follows {
        Some(Follows::Session) => "; the page follows the session",
        Some(Follows::File) => "; the page follows the file",
        None => "",
    };
    warn(format_args!("serving it on this machine until Ctrl-C{live}"));
    // Arguments of processes are public: the browser gets a private file that redirects, so that the token stays
    // secret.
    let redirect = match browser {
        Ok(browser) => {
            let redirect = private::Redirect::write(&address);
            let redirect = redirect.context("cannot write a file for the browser").map_err(Failure::at_run_time)?;
            if let Err(error) = browser.open(redirect.path().as_os_str()) {
                warn(format_args!("{error}; open the address above yourself"));
            }
            Some(redirect)
        }
        Err(obstacle) => {
            if let Some(why) = obstacle.text() {
                let host = host();
                warn(format_args!(
                    "{why}; to see the page elsewhere, run there `ssh -N -L {port}:127.0.0.1:{port} {host}` and open the address"
                ));
            }
            None
        }
    };
    let _ = signals.forever().next();
    drop(redirect);
    Ok(Exit::SUCCESS)
}
