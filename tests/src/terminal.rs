//! A program on a pseudo-terminal of its own, as a user has it.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};

pub const CTRL_C: &str = "\x03";
pub const CTRL_Z: &str = "\x1a";
/// How long to wait for what must come, milliseconds.
const PATIENCE: u16 = 60_000;

pub struct Terminal {
    pub child: Child,
    master: File,
    shown: String,
}

impl Terminal {
    /// Runs a command on a terminal of 200 columns.
    #[must_use]
    pub fn run(command: &mut Command) -> Terminal {
        // Close-on-exec from the start: a program of another test that had it open would keep this terminal alive.
        let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname_r(&master).unwrap();
        let slave = || File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open(&name).unwrap();
        let size = libc::winsize { ws_row: 50, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: TIOCSWINSZ reads one winsize, which is live.
        assert_eq!(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }, 0);
        command.env("TERM", "xterm").env_remove("NO_COLOR");
        command.stdin(slave()).stdout(slave()).stderr(slave());
        // SAFETY: between fork and exec this makes two system calls and nothing else.
        unsafe {
            command.pre_exec(|| {
                nix::unistd::setsid()?;
                if libc::ioctl(0, libc::TIOCSCTTY, 0) == -1 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Terminal { child, master: File::from(OwnedFd::from(master)), shown: String::new() }
    }

    pub fn type_keys(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until a text is shown, and returns all that was shown before, with it.
    pub fn expect(&mut self, text: &str) -> String {
        self.expect_one_of(&[text]).1
    }

    /// The same with the first that comes of several texts. Which it was comes first.
    pub fn expect_one_of(&mut self, texts: &[&str]) -> (usize, String) {
        loop {
            let found = texts.iter().enumerate().filter_map(|(which, text)| Some((self.shown.find(text)?, which)));
            if let Some((at, which)) = found.min() {
                let rest = self.shown.split_off(at + texts[which].len());
                return (which, std::mem::replace(&mut self.shown, rest));
            }
            assert!(self.read(), "{texts:?} is not in what was shown: {}", self.shown);
        }
    }

    /// Types Ctrl-C until it is taken for the second of two. Returns what was shown up to `text`.
    pub fn type_ctrl_c_twice(&mut self, dumped: &str, text: &str) -> String {
        loop {
            self.type_keys(CTRL_C);
            if let (1, shown) = self.expect_one_of(&[dumped, text]) {
                return shown;
            }
        }
    }

    /// Waits until everything has ended that has the terminal open. Returns what was shown last, and how the program ended.
    pub fn end(mut self) -> (String, ExitStatus) {
        while self.read() {}
        let status = self.child.wait().unwrap();
        (std::mem::take(&mut self.shown), status)
    }

    fn read(&mut self) -> bool {
        let mut fds = [PollFd::new(self.master.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut fds, PollTimeout::from(PATIENCE)).unwrap();
        assert!(ready > 0, "nothing comes any more after: {}", self.shown);
        let mut bytes = [0; 4096];
        // EIO once no process has it open.
        let got = nix::unistd::read(&self.master, &mut bytes).unwrap_or(0);
        self.shown.push_str(&String::from_utf8_lossy(&bytes[..got]));
        got > 0
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
