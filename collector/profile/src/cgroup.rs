//! Unit and container of a control group path.
//!
//! A user or a container names the groups below its own, so the outermost name counts.

use std::borrow::Cow;

const SHORT_ID: usize = 12;
/// Shortest id of a container: `docker` and others give 64 hexadecimal digits.
const LEAST_ID: usize = 32;

/// A container, by the path of its control group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Container<'a> {
    /// What runs it: `docker`, `podman`, `kubernetes`, `containerd`, `nspawn`, `machine` or `lxc`.
    pub runtime: &'static str,
    /// Its id, or the name of a machine.
    pub id: Cow<'a, str>,
    /// Where it is, if others than root may choose the names there: the number of the user whose slice it is, or the outermost
    /// group that is neither a slice nor a runtime's, such as a service whose groups are delegated.
    pub within: Option<&'a str>,
}

impl Container<'_> {
    /// The runtime and the id, shortened if it is a number.
    #[must_use]
    pub fn label(&self) -> String {
        let shown = if is_id(&self.id) { self.id.get(..SHORT_ID).unwrap_or(&self.id) } else { &self.id };
        match self.within {
            Some(within) => format!("{} {within}/{shown}", self.runtime),
            None => format!("{} {shown}", self.runtime),
        }
    }

    /// Whether `name` means this one: a name, or the beginning of an id; after `USER/` or `GROUP/` if it is [within](Self::within)
    /// one.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        match (self.within, name.split_once('/')) {
            (None, _) => self.has_id(name),
            (Some(within), Some((of, name))) => within == of && self.has_id(name),
            (Some(_), None) => false,
        }
    }

    fn has_id(&self, name: &str) -> bool {
        self.id == name || (is_id(&self.id) && name.len() >= SHORT_ID / 2 && self.id.starts_with(name))
    }
}

/// The system manager's units of a control group: slices from the root on, then the first other unit.
pub fn units(cgroup: &str) -> impl Iterator<Item = &str> {
    let (mut done, mut of_user) = (false, None);
    cgroup.split('/').filter(|name| !name.is_empty()).map_while(move |name| {
        // systemd escapes names that the kernel could take for its own files with `_`.
        let name = name.strip_prefix('_').unwrap_or(name);
        // A user's slice holds the user's manager and sessions, and system services for this user only.
        let is_misplaced = of_user.is_some_and(|user| is_service_of_nobody(name, user));
        of_user = user_of_slice(name).or(of_user);
        (!std::mem::replace(&mut done, !name.ends_with(".slice")) && !is_misplaced).then_some(name)
    })
}

/// The number of the user whose slice has this name.
fn user_of_slice(name: &str) -> Option<&str> {
    name.strip_prefix("user-").and_then(|name| name.strip_suffix(".slice"))
}

/// Whether a service in the slice of user id `user` does not belong there; services such as `user@NUMBER.service` do.
fn is_service_of_nobody(name: &str, user: &str) -> bool {
    let instance = name.strip_suffix(".service").map(|name| name.split_once('@').map(|(_, instance)| instance));
    instance.is_some_and(|instance| instance != Some(user))
}

/// The unit of a control group: its service, scope or socket, else the innermost slice.
#[must_use]
pub fn unit(cgroup: &str) -> Option<&str> {
    let is_unit = |name: &str| {
        [".slice", ".service", ".scope", ".socket", ".mount", ".swap"].iter().any(|kind| name.ends_with(kind))
    };
    units(cgroup).filter(|name| is_unit(name)).last()
}

/// The outermost container of a control group.
#[must_use]
pub fn container(cgroup: &str) -> Option<Container<'_>> {
    let mut of_kubernetes = false;
    let mut before = "";
    let mut within = None;
    // In a control group namespace, paths begin with `..` for each group above it.
    for name in cgroup.split('/').filter(|name| !name.is_empty() && *name != "..") {
        of_kubernetes |= name.starts_with("kubepods");
        if let Some(found) = container_of(before, name, of_kubernetes) {
            return Some(Container { within, ..found });
        }
        let user = if before == "user.slice" { user_of_slice(name) } else { None };
        // pam_cgfs has users' groups below `/user`.
        let is_trusted = is_of_runtime(name, of_kubernetes) || before.is_empty() && name == "user";
        within = within.or(user).or((!is_trusted).then_some(name));
        before = name;
    }
    None
}

/// Whether root's tools alone make containers in a group of this name.
fn is_of_runtime(name: &str, of_kubernetes: bool) -> bool {
    let names = [
        ["docker", "libpod_parent", "default", "moby", "k8s.io", "nerdctl", "lxc", "machine", "kubelet"].as_slice(),
        // Where containers are among the runtime's own groups.
        &["docker.service", "containerd.service", "crio.service", "kubelet.service", "k3s.service"],
    ]
    .concat();
    let of_pod =
        || name.starts_with("kubepods") || name.starts_with("pod") || ["burstable", "besteffort"].contains(&name);
    name.ends_with(".slice") || names.contains(&name) || of_kubernetes && of_pod()
}

/// The container that a part of a path names; `before` is the part before it.
fn container_of<'a>(before: &str, name: &'a str, of_kubernetes: bool) -> Option<Container<'a>> {
    let found = |runtime, id: &'a str| Some(Container { runtime, id: Cow::Borrowed(id), within: None });
    let scope = name.strip_suffix(".scope").unwrap_or(name);
    if of_kubernetes {
        // `cri-containerd-ID.scope`, `crio-ID.scope`, `docker-ID.scope`, or the id alone below the pod.
        let id = scope.rsplit(['-', ':']).next().unwrap_or(scope);
        return if is_id(id) && !scope.contains("conmon") { found("kubernetes", id) } else { None };
    }
    let prefixes = [
        ("docker-", "docker"),
        ("libpod-", "podman"),
        ("cri-containerd-", "containerd"),
        ("nerdctl-", "containerd"),
        ("crio-", "cri-o"),
    ];
    for (prefix, runtime) in prefixes {
        if let Some(id) = scope.strip_prefix(prefix).filter(|id| is_id(id)) {
            return found(runtime, id);
        }
    }
    if is_id(name) {
        match before {
            "docker" => return found("docker", name),
            "libpod_parent" => return found("podman", name),
            "default" | "moby" | "k8s.io" | "nerdctl" => return found("containerd", name),
            _ => {}
        }
    }
    if let Some(machine) = name.strip_suffix(".service").and_then(|name| name.strip_prefix("systemd-nspawn@")) {
        return Some(Container { runtime: "nspawn", id: unescaped(machine), within: None });
    }
    if let Some(machine) = name.strip_suffix(".scope").and_then(|name| name.strip_prefix("machine-")) {
        return Some(Container { runtime: "machine", id: unescaped(machine), within: None });
    }
    match name.strip_prefix("lxc.payload.") {
        Some(machine) => found("lxc", machine),
        None if before == "lxc" => found("lxc", name),
        None => None,
    }
}

/// Whether a text is a container's id, as `docker` and others give them.
#[must_use]
pub fn is_container_id(text: &str) -> bool {
    is_id(text)
}

fn is_id(text: &str) -> bool {
    text.len() >= LEAST_ID && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A name as systemd escapes it in the name of a unit: `\x2d` for `-`.
fn unescaped(name: &str) -> Cow<'_, str> {
    if !name.contains("\\x") {
        return Cow::Borrowed(name);
    }
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some(at) = rest.find("\\x") {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        let code = rest.get(at + 2..at + 4).and_then(|code| u8::from_str_radix(code, 16).ok());
        let taken = if let Some(code) = code {
            bytes.push(code);
            at + 4
        } else {
            bytes.extend_from_slice(b"\\x");
            at + 2
        };
        rest = rest.get(taken..).unwrap_or_default();
    }
    bytes.extend_from_slice(rest.as_bytes());
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn nobody_below_a_unit_can_claim_another() {
        let of = |path| units(path).collect::<Vec<_>>();
        assert_eq!(
            of("/user.slice/user-1000.slice/user@1000.service/app.slice/nginx.service"),
            ["user.slice", "user-1000.slice", "user@1000.service"]
        );
        assert_eq!(of("/system.slice/_x.service/y.service"), ["system.slice", "x.service"]);
        assert_eq!(of("/init.scope"), ["init.scope"]);
        assert_eq!(of("/user.slice/user-1000.slice/nginx.service"), ["user.slice", "user-1000.slice"]);
        assert_eq!(of("/user.slice/user-1000.slice/user@0.service"), ["user.slice", "user-1000.slice"]);
        assert_eq!(of("/user.slice/user-1000.slice/x.slice/nginx.service").last(), Some(&"x.slice"));
        assert_eq!(of("/user.slice/user-7.slice/session-1.scope/a.service").last(), Some(&"session-1.scope"));
        assert_eq!(of("/docker/nginx.service"), ["docker"]);
        assert_eq!(of("/../nginx.service"), [".."]);
        assert_eq!(of("/"), [""; 0]);
    }

    #[test]
    fn the_unit_of_a_group() {
        assert_eq!(unit("/system.slice/nginx.service/worker"), Some("nginx.service"));
        assert_eq!(unit("/system.slice"), Some("system.slice"));
        assert_eq!(unit("/docker/nginx.service"), None);
        assert_eq!((unit("/"), unit("")), (None, None));
    }

    #[test]
    fn containers_of_all_runtimes() {
        for (path, runtime, id) in [
            (format!("/system.slice/docker-{ID}.scope"), "docker", ID),
            (format!("/docker/{ID}/init.scope"), "docker", ID),
            (format!("/machine.slice/libpod-{ID}.scope/container"), "podman", ID),
            (format!("/libpod_parent/libpod-{ID}"), "podman", ID),
            (format!("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope"), "podman", ID),
            (format!("/system.slice/nerdctl-{ID}.scope"), "containerd", ID),
            (format!("/default/{ID}"), "containerd", ID),
            (
                format!(
                    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/cri-containerd-{ID}.scope"
                ),
                "kubernetes",
                ID,
            ),
            (format!("/kubepods.slice/kubepods-pod1.slice/crio-{ID}.scope"), "kubernetes", ID),
            (format!("/kubepods/besteffort/pod0a-1b/{ID}"), "kubernetes", ID),
            ("/machine.slice/machine-web\\x2d1.scope/payload".to_owned(), "machine", "web-1"),
            ("/machine.slice/systemd-nspawn@web.service/payload".to_owned(), "nspawn", "web"),
            ("/lxc.payload.web/init.scope".to_owned(), "lxc", "web"),
            ("/lxc/web".to_owned(), "lxc", "web"),
            (format!("/docker/{ID}/docker/{}", ID.replace('0', "f")), "docker", ID),
        ] {
            let found = container(&path).unwrap_or_else(|| panic!("{path}"));
            assert_eq!((found.runtime, &*found.id), (runtime, id), "{path}");
        }
        for path in [
            "/",
            "/system.slice/docker.service",
            "/docker",
            "/docker/abc",
            &format!("/machine.slice/libpod-conmon-{ID}.scope"),
            &format!("/kubepods.slice/crio-conmon-{ID}.scope"),
            &format!("/system.slice/{ID}"),
            "/kubepods/burstable/pod0a-1b",
        ] {
            assert_eq!(container(path), None, "{path}");
        }
    }

    #[test]
    fn how_containers_are_called() {
        let path = format!("/docker/{ID}");
        let docker = container(&path).unwrap();
        assert_eq!(docker.label(), "docker 0123456789ab");
        assert!(docker.is_called(ID) && docker.is_called("0123456789ab") && docker.is_called("012345"));
        assert!(!docker.is_called("01234") && !docker.is_called("1234567") && !docker.is_called(""));
        // In a slice of their own, users call groups what they like.
        let path = format!("/user.slice/user-1000.slice/user@1000.service/docker-{ID}.scope");
        let of_user = container(&path).unwrap();
        assert_eq!(of_user.label(), "docker 1000/0123456789ab");
        assert!(of_user.is_called("1000/012345") && of_user.has_id(ID));
        assert!(!of_user.is_called(ID) && !of_user.is_called("100/012345") && !docker.is_called("1000/012345"));
        let path = format!("/user.slice/user-1000.slice/user@1000.service/user.slice/user-0.slice/docker-{ID}.scope");
        assert_eq!(container(&path).unwrap().within, Some("1000"));
        // So they do where a service's groups, or groups of version 1, are theirs.
        for (path, within) in [
            (format!("/system.slice/bob.service/docker-{ID}.scope"), "bob.service"),
            (format!("/system.slice/bob.service/kubepods/pod1/{ID}"), "bob.service"),
            ("/system.slice/run-u1.scope/machine.slice/machine-web.scope".to_owned(), "run-u1.scope"),
            (format!("/user/bob/0/docker-{ID}.scope"), "bob"),
            (format!("/mine/docker/{ID}"), "mine"),
            (format!("/mine/user/docker/{ID}"), "mine"),
            (format!("/pod1/kubepods/{ID}"), "pod1"),
        ] {
            let found = container(&path).unwrap();
            assert_eq!(found.within, Some(within), "{path}");
            assert!(found.label().contains(&format!(" {within}/")) && !found.is_called(&found.id), "{path}");
        }
        for path in [
            format!("/kubelet/kubepods/burstable/pod1/{ID}"),
            format!("/my.slice/docker-{ID}.scope"),
            format!("/../../system.slice/docker-{ID}.scope"),
            format!("/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:{ID}"),
        ] {
            assert_eq!(container(&path).unwrap().within, None, "{path}");
        }
        let machine = container("/machine.slice/machine-web\\x2d1.scope").unwrap();
        assert!(machine.is_called("web-1") && !machine.is_called("web") && machine.label() == "machine web-1");
    }

    #[test]
    fn hostile_names() {
        for path in
            ["/machine-\\x.scope", "/machine-\\xzz\\x2.scope", "/machine-é\\x2d\\xff.scope", "/machine-\\x\u{e9}.scope"]
        {
            let _ = container(path).map(|container| container.label());
        }
    }
}
