//! Whose processes are, and the names of users as far as this machine's own file has them: asking its name service may mean
//! asking another daemon.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;

use hashbrown::HashMap;

use crate::pids::is_free;

const PASSWD: &str = "/etc/passwd";
const MAX_BYTES: u64 = 4 << 20;
const MAX_NAME: usize = 256;

/// The effective user of a process: always the owner of its directory, see `task_dump_owner` in the kernel's fs/proc/base.c.
pub fn user_of_process(pid: u32) -> Option<u32> {
    if is_free(pid) {
        return None;
    }
    Some(fs::metadata(format!("/proc/{pid}")).ok()?.uid())
}

#[derive(Debug, Default)]
pub struct PasswdUsers(HashMap<u32, String>);

impl PasswdUsers {
    pub fn read() -> PasswdUsers {
        let mut bytes = Vec::new();
        let read = File::open(PASSWD).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes));
        if read.is_ok() { PasswdUsers::parse(&String::from_utf8_lossy(&bytes)) } else { PasswdUsers::default() }
    }

    /// Lines of `name:password:uid:...`; the first of a number counts.
    fn parse(text: &str) -> PasswdUsers {
        let mut users = HashMap::new();
        for line in text.lines() {
            let mut fields = line.split(':');
            let (Some(name), Some(uid)) = (fields.next(), fields.nth(1)) else { continue };
            let Ok(uid) = uid.parse() else { continue };
            if !name.is_empty() && name.len() <= MAX_NAME {
                users.entry(uid).or_insert_with(|| name.to_owned());
            }
        }
        PasswdUsers(users)
    }

    /// The name of a user; empty if it is not known.
    pub fn name(&self, uid: u32) -> &str {
        self.0.get(&uid).map_or("", String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_by_number() {
        let users = PasswdUsers::parse(
            "root:x:0:0:root:/root:/bin/sh\ntoor:x:0:0::/:\n# a comment\n:x:7:7::/:\nweb:x:33:33\nx:y:z\n",
        );
        assert_eq!((users.name(0), users.name(33), users.name(7), users.name(1)), ("root", "web", "", ""));
        assert_eq!(PasswdUsers::read().name(0), "root");
    }
}
