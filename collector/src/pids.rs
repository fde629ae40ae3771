//! Numbers of processes and threads.

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

/// Whether no process or thread has a number any more, without a look into /proc. When a process has been waited for, the
/// kernel drops what it remembers of its directories there. Who looks one up meanwhile has to help, and where the CPU that
/// drops them is busy with others, that means to spin until it goes on, for a second (`shrink_dcache_parent` in fs/dcache.c).
pub fn is_free(pid: u32) -> bool {
    let Ok(number) = i32::try_from(pid) else { return true };
    let there = kill(Pid::from_raw(number), None);
    there == Err(Errno::ESRCH) && is_ours()
}

/// Whether `/proc` is of our PID namespace: it is not if it was mounted outside.
pub fn is_ours() -> bool {
    std::fs::read_link("/proc/self").is_ok_and(|link| link.to_str() == Some(&std::process::id().to_string()))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_number_is_free_once_its_process_was_waited_for() {
        let mut child = std::process::Command::new("true").stdout(std::process::Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        assert!(
            !is_free(pid) && !is_free(std::process::id()) && !is_free(nix::unistd::gettid().as_raw().cast_unsigned())
        );
        child.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
        assert!(!is_free(pid), "it was not waited for");
        child.wait().unwrap();
        assert!(is_free(pid) && is_free(u32::MAX) && is_free(i32::MAX.cast_unsigned()));
    }
}
