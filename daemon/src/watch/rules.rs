//! Which processes a watch is about.

use wildmatch::WildMatch;

use crate::config::{Pattern, Watch};

/// What is known of a process. A process names itself and its files as it likes; nothing here is more than text to compare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Path of its control group.
    pub cgroup: String,
    /// Path of its executable, if it may be read.
    pub exe: Option<String>,
    /// Name of its command.
    pub comm: String,
    /// The user that it runs as.
    pub user: Option<u32>,
}

/// A rule in the form in which it is applied: everything that it gives must fit.
#[derive(Clone, Debug)]
pub struct Rule {
    unit: Option<WildMatch>,
    cgroup: Option<WildMatch>,
    exe: Option<WildMatch>,
    comm: Option<WildMatch>,
    /// As text: a name that is no user's yet may become one.
    user: Option<(WildMatch, Option<u32>)>,
}

impl Rule {
    /// The rule of a watch. `users` gives the number of a user's name.
    pub fn new(watch: &Watch, users: impl Fn(&str) -> Option<u32>) -> Rule {
        let wild = |pattern: &Option<Pattern>| pattern.as_ref().map(|pattern| WildMatch::new(&pattern.0));
        // The kernel keeps 15 bytes of a name, of which an administrator need not know.
        let comm = watch.comm.as_ref().map(|Pattern(comm)| match comm.contains(['*', '?']) {
            true => WildMatch::new(comm),
            false => WildMatch::new(clip(comm, COMM_BYTES)),
        });
        let user =
            watch.user.as_ref().map(|Pattern(user)| (WildMatch::new(user), user.parse().ok().or_else(|| users(user))));
        Rule { unit: wild(&watch.unit), cgroup: wild(&watch.cgroup), exe: wild(&watch.exe), comm, user }
    }

    /// Whether it asks for the path of the executable, which not every process shows to everyone.
    #[must_use]
    pub fn needs_exe(&self) -> bool {
        self.exe.is_some()
    }

    /// Whether a process fits. `name` gives the name of a user's number.
    pub fn fits(&self, facts: &Facts, name: impl Fn(u32) -> Option<String>) -> bool {
        let fits = |wild: &Option<WildMatch>, text: &str| wild.as_ref().is_none_or(|wild| wild.matches(text));
        fits(&self.comm, &facts.comm)
            && fits(&self.cgroup, &facts.cgroup)
            && self.unit.as_ref().is_none_or(|unit| units(&facts.cgroup).any(|name| unit.matches(name)))
            && self.exe.as_ref().is_none_or(|exe| facts.exe.as_deref().is_some_and(|path| exe.matches(path)))
            && self.user.as_ref().is_none_or(|(wild, number)| {
                let Some(user) = facts.user else { return false };
                number.map_or_else(|| name(user).is_some_and(|name| wild.matches(&name)), |number| number == user)
            })
    }
}

/// `TASK_COMM_LEN` without the final zero.
const COMM_BYTES: usize = 15;

fn clip(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or(text)
}

/// The units of systemd's system manager that a control group belongs to: the slices from the root on, and the first
/// that is none. What comes below may be named by the service itself, or by a user.
fn units(cgroup: &str) -> impl Iterator<Item = &str> {
    let mut done = false;
    cgroup.split('/').filter(|name| !name.is_empty()).map_while(move |name| {
        // A name that the kernel might take for a file of its own has a `_` before it.
        let name = name.strip_prefix('_').unwrap_or(name);
        (!std::mem::replace(&mut done, !name.ends_with(".slice"))).then_some(name)
    })
}

/// The path of a process's control group, as `/proc/PID/cgroup` has it: systemd's own, or that of version 2.
#[must_use]
pub fn cgroup_path(file: &[u8]) -> String {
    let (mut named, mut unified) = (None, None);
    for line in file.split(|&byte| byte == b'\n') {
        // number:controllers:path, and the path may have colons.
        let mut parts = line.splitn(3, |&byte| byte == b':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        match (number, controllers) {
            (_, b"name=systemd") => named = Some(path),
            (b"0", b"") => unified = Some(path),
            _ => {}
        }
    }
    // Where both are there, systemd may use either; in the other all are in the root.
    let path = named.filter(|path| *path != b"/").or(unified).or(named);
    String::from_utf8_lossy(path.unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use std::path::Path;

    fn rule(selectors: &str) -> Rule {
        let text = format!("[[watch]]\nname = \"x\"\n{selectors}");
        let config = Config::parse(text.as_bytes(), Path::new("x")).unwrap();
        Rule::new(&config.watches[0], |name| (name == "www-data").then_some(33))
    }

    fn nginx() -> Facts {
        Facts {
            cgroup: "/system.slice/nginx.service".to_owned(),
            exe: Some("/usr/sbin/nginx".to_owned()),
            comm: "nginx".to_owned(),
            user: Some(33),
        }
    }

    fn fits(selectors: &str, facts: &Facts) -> bool {
        rule(selectors).fits(facts, |user| (user == 33).then(|| "www-data".to_owned()))
    }

    #[test]
    fn each_selector() {
        for selectors in [
            "unit = \"nginx.service\"",
            "unit = \"nginx*\"",
            "unit = \"system.slice\"",
            "cgroup = \"/system.slice/*\"",
            "exe = \"/usr/*bin/nginx\"",
            "comm = \"ngin?\"",
            "user = \"www-data\"",
            "user = \"www-*\"",
            "user = \"33\"",
            "unit = \"nginx.service\"\nuser = \"www-data\"",
        ] {
            assert!(fits(selectors, &nginx()), "{selectors}");
        }
        for selectors in [
            "unit = \"nginx\"",
            "unit = \"*.service\"\nuser = \"root\"",
            "cgroup = \"nginx.service\"",
            "exe = \"nginx\"",
            "comm = \"ngin\"",
            "user = \"3\"",
            "user = \"www\"",
        ] {
            assert!(!fits(selectors, &nginx()), "{selectors}");
        }
    }

    #[test]
    fn what_is_not_known_does_not_fit() {
        let unknown = Facts { exe: None, user: None, ..nginx() };
        assert!(fits("comm = \"nginx\"", &unknown));
        assert!(!fits("exe = \"*\"", &unknown));
        assert!(!fits("user = \"*\"", &unknown));
        assert!(!fits("unit = \"*\"", &Facts::default()));
    }

    #[test]
    fn a_long_name_of_a_command_fits_what_the_kernel_keeps_of_it() {
        let facts = Facts { comm: "systemd-journal".to_owned(), ..Facts::default() };
        assert!(fits("comm = \"systemd-journald\"", &facts));
        let facts = Facts { comm: "aaaaaaaaaaaaaa".to_owned(), ..Facts::default() };
        assert!(fits("comm = \"aaaaaaaaaaaaaaé\"", &facts), "cut before a character, not within it");
    }

    #[test]
    fn nobody_below_a_unit_can_claim_another() {
        let of = |path| units(path).collect::<Vec<_>>();
        assert_eq!(
            of("/user.slice/user-1000.slice/user@1000.service/app.slice/nginx.service"),
            ["user.slice", "user-1000.slice", "user@1000.service"]
        );
        assert_eq!(of("/system.slice/_x.service/y.service"), ["system.slice", "x.service"]);
        assert_eq!(of("/init.scope"), ["init.scope"]);
        assert_eq!(of("/"), [""; 0]);
    }

    #[test]
    fn control_groups_of_all_versions() {
        assert_eq!(cgroup_path(b"0::/system.slice/a.service\n"), "/system.slice/a.service");
        let hybrid = b"12:cpu:/x\n1:name=systemd:/system.slice/a:b.service\n0::/system.slice/other\n";
        assert_eq!(cgroup_path(hybrid), "/system.slice/a:b.service");
        assert_eq!(cgroup_path(b"1:name=systemd:/\n0::/system.slice/b.service\n"), "/system.slice/b.service");
        assert_eq!(cgroup_path(b"1:name=systemd:/\n"), "/");
        for hostile in [&b""[..], b":", b"::::", b"0", b"x:y:z\n\n\n", b"0:\xff:\xff"] {
            assert_eq!(cgroup_path(hostile), "", "{hostile:?}");
        }
    }

    #[test]
    fn patterns_take_no_more_than_linear_time() {
        let facts = Facts { comm: "a".repeat(100_000), ..Facts::default() };
        let pattern = "a*".repeat(1_000);
        assert!(fits(&format!("comm = \"{pattern}\""), &facts));
        assert!(!fits(&format!("comm = \"{pattern}b\""), &facts));
    }
}
