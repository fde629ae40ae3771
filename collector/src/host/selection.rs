//! Which of all processes a session is about: by unit, control group, container and user, and which are left out.

use std::fs;
use std::path::{Path, PathBuf};

use ccsd_profile::cgroup;
use wildmatch::WildMatch;

use super::container_names::ContainerNames;
use super::membership::ProcessGroups;
use crate::process::filter::{Executed, ProcessFilter};
use crate::procfs;

const CGROUP_MOUNT: &str = "/sys/fs/cgroup";

/// Processes of the machine. Selected by any of the units, groups, containers and users, or all; excluded by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct ProcessSelection {
    /// systemd's units; `*` and `?` stand for any characters.
    pub units: Vec<String>,
    /// Control groups with all below them, by their paths.
    pub cgroups: Vec<String>,
    /// Containers, by their ids or the beginning of them, or by name.
    pub containers: Vec<String>,
    /// Containers of the names among `containers`, by id; see [`ProcessSelection::with_named_containers`].
    #[serde(skip)]
    pub container_ids: Vec<String>,
    /// Effective users.
    pub users: Vec<u32>,
    /// Names of processes that are left out; `*` and `?` stand for any characters.
    pub excluded: Vec<String>,
}

impl ProcessSelection {
    /// The same with containers that are selected by name also selected by the ids that have the name now.
    #[must_use]
    pub fn with_named_containers(mut self, names: &ContainerNames) -> ProcessSelection {
        let ids: Vec<String> = self.containers.iter().flat_map(|name| names.ids(name)).collect();
        // The first stays: it is what was asked for.
        self.container_ids = ids.into_iter().filter(|id| !self.containers.contains(id)).collect();
        self
    }

    /// Whether no process is left out.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == ProcessSelection::default()
    }

    /// Whether every process is selected whose name is not excluded.
    fn takes_any_group(&self) -> bool {
        self.units.is_empty() && self.cgroups.is_empty() && self.containers.is_empty() && self.users.is_empty()
    }

    /// The selection in words.
    #[must_use]
    pub fn describe(&self) -> String {
        let list = |what: &str, of: &[String]| of.iter().map(|name| format!("{what} {name}")).collect::<Vec<_>>();
        let mut parts = list("unit", &self.units);
        parts.extend(list("cgroup", &self.cgroups));
        parts.extend(list("container", &self.containers));
        parts.extend(self.users.iter().map(|uid| format!("user {uid}")));
        let mut text = if parts.is_empty() { "the whole machine".to_owned() } else { parts.join(", ") };
        if !self.excluded.is_empty() {
            text.push_str(&format!(" without {}", self.excluded.join(", ")));
        }
        text
    }

    /// Whether a process of these groups is selected, whatever its name.
    #[must_use]
    pub fn selects(&self, groups: &ProcessGroups) -> bool {
        self.takes_any_group()
            || groups.uid.is_some_and(|uid| self.users.contains(&uid))
            || groups.cgroups.iter().any(|path| self.selects_path(path))
    }

    fn selects_path(&self, path: &str) -> bool {
        let container = || cgroup::container(path);
        self.cgroups.iter().any(|wanted| is_within(path, wanted))
            || (!self.units.is_empty()
                && cgroup::units(path).any(|name| self.units.iter().any(|unit| WildMatch::new(unit).matches(name))))
            || (!self.containers.is_empty()
                && container().is_some_and(|found| {
                    self.containers.iter().chain(&self.container_ids).any(|name| found.is_called(name))
                }))
    }

    /// The outermost group on a path of version 2 all of whose processes are selected; empty if there is none. Only of
    /// one unit, group or container by its name: processes that a pattern or a user selects may be anywhere.
    fn group_on(&self, path: &str) -> String {
        let one = [&self.units, &self.cgroups, &self.containers].map(|names| names.as_slice()).concat();
        let [name] = one.as_slice() else { return String::new() };
        if !self.users.is_empty() || (!self.units.is_empty() && name.contains(['*', '?'])) {
            return String::new();
        }
        let ends = path.char_indices().filter(|&(at, letter)| at > 0 && letter == '/').map(|(at, _)| at);
        let mut above = ends.chain([path.len()]).filter_map(|end| path.get(..end));
        above.find(|above| self.selects_path(above)).unwrap_or_default().to_owned()
    }

    fn excludes(&self, name: &str) -> bool {
        self.excluded.iter().any(|pattern| WildMatch::new(pattern).matches(name))
    }
}

fn is_within(path: &str, wanted: &str) -> bool {
    let wanted = wanted.trim_matches('/');
    let rest = path.trim_start_matches('/').strip_prefix(wanted);
    wanted.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The path of a control group within its hierarchy, of one that may begin where hierarchies are mounted.
#[must_use]
pub fn path_in_hierarchy(path: &str) -> &str {
    let Some(below) = path.strip_prefix(CGROUP_MOUNT) else { return path };
    // Version 2 alone is mounted there itself; else there is a directory for each hierarchy.
    if Path::new(CGROUP_MOUNT).join("cgroup.controllers").exists() {
        return below;
    }
    below.trim_start_matches('/').split_once('/').map_or("/", |(_, rest)| rest)
}

/// Whether there is a control group of this path in any hierarchy of [`CGROUP_MOUNT`]. True where none is mounted there.
#[must_use]
pub fn cgroup_exists(path: &str) -> bool {
    let has_groups = |dir: &Path| dir.join("cgroup.procs").exists();
    let mut mounts: Vec<PathBuf> = vec![CGROUP_MOUNT.into()];
    mounts.extend(fs::read_dir(CGROUP_MOUNT).into_iter().flatten().flatten().map(|entry| entry.path()));
    let below = path.trim_start_matches('/');
    !mounts.iter().any(|mount| has_groups(mount)) || mounts.iter().any(|mount| has_groups(&mount.join(below)))
}

impl ProcessFilter for ProcessSelection {
    fn keeps(&self, pid: u32) -> Option<bool> {
        let name = procfs::comm(pid, pid)?;
        if !self.keeps_name(&name) {
            return Some(false);
        }
        if self.takes_any_group() {
            return Some(true);
        }
        Some(self.selects(&ProcessGroups::read(pid)?))
    }

    fn keeps_name(&self, name: &str) -> bool {
        !self.excludes(name)
    }

    fn keeps_after_exec(&self, name: &str, was_kept: bool) -> Option<bool> {
        match self.keeps_name(name) {
            false => Some(false),
            // What it belongs to stays, but for a user who changes by executing a privileged program.
            true => (was_kept || self.takes_any_group()).then_some(true),
        }
    }

    fn group_of(&self, pid: u32) -> Option<String> {
        Some(self.group_on(&ProcessGroups::read(pid)?.unified))
    }

    fn keeps_executed(&self, executed: &Executed<'_>) -> Option<bool> {
        if !self.keeps_name(executed.name) {
            return Some(false);
        }
        executed.relatives().find_map(ProcessGroups::read).map(|groups| self.selects(&groups))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(path: &str, uid: u32) -> ProcessGroups {
        ProcessGroups { cgroups: vec![path.to_owned(), "/".to_owned()], uid: Some(uid), unified: path.to_owned() }
    }

    fn list(of: &str) -> Vec<String> {
        vec![of.to_owned()]
    }

    #[test]
    fn selects_processes() {
        let everything = ProcessSelection::default();
        assert!(everything.is_everything() && everything.selects(&ProcessGroups::default()));
        let nginx = groups("/system.slice/nginx.service/worker", 33);
        let id = "0123456789abcdef0123456789abcdef";
        let docker = groups(&format!("/docker/{id}"), 0);
        let unit = ProcessSelection { units: list("ngin?.service"), ..everything.clone() };
        assert!(unit.selects(&nginx) && !unit.selects(&docker));
        let slice = ProcessSelection { units: list("system.slice"), ..everything.clone() };
        assert!(slice.selects(&nginx) && !slice.selects(&docker));
        let container = ProcessSelection { containers: list("012345678"), ..everything.clone() };
        assert!(container.selects(&docker) && !container.selects(&nginx));
        let user = ProcessSelection { users: vec![33], ..everything.clone() };
        assert!(user.selects(&nginx) && !user.selects(&docker));
        let both = ProcessSelection { users: vec![33], ..container };
        assert!(both.selects(&nginx) && both.selects(&docker) && !both.selects(&groups("/", 0)));
        assert_eq!(both.describe(), "container 012345678, user 33");
    }

    #[test]
    fn a_group_and_those_below_it() {
        let of = |path: &str| ProcessSelection { cgroups: list(path), ..ProcessSelection::default() };
        for wanted in ["/a/b", "a/b", "/a/b/", "/a", "/"] {
            assert!(of(wanted).selects(&groups("/a/b", 0)), "{wanted}");
        }
        for wanted in ["/a/b/c", "/a/bc", "/b", "/a/b.service"] {
            assert!(!of(wanted).selects(&groups("/a/b", 0)), "{wanted}");
        }
        assert_eq!(path_in_hierarchy("/a/b"), "/a/b");
        assert!(cgroup_exists("/"));
    }

    #[test]
    fn the_group_around_what_is_selected() {
        let (none, id) = (ProcessSelection::default(), "0123456789abcdef0123456789abcdef");
        let unit = ProcessSelection { units: list("a.service"), ..none.clone() };
        for (path, group) in [
            ("/system.slice/a.service/worker/x", "/system.slice/a.service"),
            ("/system.slice/a.service", "/system.slice/a.service"),
            ("/system.slice/b.service", ""),
            ("/", ""),
            ("", ""),
        ] {
            assert_eq!(unit.group_on(path), group, "{path}");
        }
        let slice = ProcessSelection { units: list("system.slice"), ..none.clone() };
        assert_eq!(slice.group_on("/system.slice/a.service"), "/system.slice");
        let cgroup = ProcessSelection { cgroups: list("a/b/"), ..none.clone() };
        assert_eq!((cgroup.group_on("/a/b/c"), cgroup.group_on("/a/bc")), ("/a/b".to_owned(), String::new()));
        let container = ProcessSelection { containers: list(&id[..12]), ..none.clone() };
        assert_eq!(container.group_on(&format!("/docker/{id}/init.scope")), format!("/docker/{id}"));
        // Names that are left out are left out of a group's, too; what may be anywhere is in no group.
        let without = ProcessSelection { excluded: list("x"), ..unit.clone() };
        assert_eq!(without.group_on("/a.service"), "/a.service");
        for anywhere in [
            none.clone(),
            ProcessSelection { users: vec![0], ..unit.clone() },
            ProcessSelection { units: list("a.*"), ..none.clone() },
            ProcessSelection { cgroups: list("/b"), ..unit },
        ] {
            assert_eq!(anywhere.group_on("/a.service"), "", "{anywhere:?}");
        }
    }

    #[test]
    fn excluded_names() {
        let without = ProcessSelection { excluded: vec!["cc*".to_owned()], ..ProcessSelection::default() };
        assert!(!without.is_everything() && !without.keeps_name("ccsd") && without.keeps_name("make"));
        assert_eq!(without.describe(), "the whole machine without cc*");
        assert_eq!(without.keeps_after_exec("cc1", true), Some(false));
        assert_eq!(without.keeps_after_exec("ld", false), Some(true));
        let unit = ProcessSelection { units: list("a.service"), ..without };
        assert_eq!((unit.keeps_after_exec("ld", true), unit.keeps_after_exec("ld", false)), (Some(true), None));
        let own = std::process::id();
        assert_eq!(unit.keeps(own), Some(false));
        assert_eq!(unit.keeps(u32::MAX), None);
    }
}
