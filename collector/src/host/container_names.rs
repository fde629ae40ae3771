//! Names of containers, from the files in which docker, podman and containerd keep them.
//!
//! The daemons of these tools are not asked. A file counts only if root owns it and alone may write it, because root's
//! sessions believe it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ccsd_profile::cgroup::is_container_id;
use ccsd_symbolizer::{Door, FileRoot};
use hashbrown::HashMap;
use serde::Deserialize;

const DOCKER: &str = "/var/lib/docker/containers";
/// Containers that outlive a reboot, and those that do not.
const PODMAN: [&str; 2] = [
    "/var/lib/containers/storage/overlay-containers/containers.json",
    "/var/lib/containers/storage/overlay-containers/volatile-containers.json",
];
const CONTAINERD: &str = "/run/containerd/io.containerd.runtime.v2.task";

/// Largest file: podman's has some 500 bytes for each container.
const MAX_BYTES: u64 = 8 << 20;
const MAX_NAME: usize = 512;
/// Directories that are looked at for one name, and names that are kept.
const MAX_CONTAINERS: usize = 8192;

/// Names of containers by their ids, each looked for once.
#[derive(Debug)]
pub struct ContainerNames {
    /// Where the files are below.
    root: FileRoot,
    known: HashMap<String, String>,
}

/// docker's `config.v2.json`.
#[derive(Deserialize)]
struct DockerContainer {
    #[serde(rename = "Name")]
    name: String,
}

/// An entry of podman's list.
#[derive(Deserialize)]
struct StoredContainer {
    id: String,
    #[serde(default)]
    names: Vec<String>,
}

/// The `config.json` of a bundle.
#[derive(Deserialize)]
struct Bundle {
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl Bundle {
    /// `NAMESPACE/POD/CONTAINER` of Kubernetes, else what nerdctl calls it.
    fn name(&self) -> Option<String> {
        let annotation = |name: &str| self.annotations.get(name).map(String::as_str).filter(|name| !name.is_empty());
        let of_pod = || {
            let pod = annotation("io.kubernetes.cri.sandbox-name")?;
            let namespace = annotation("io.kubernetes.cri.sandbox-namespace")?;
            // The container that holds the pod's namespaces has no name of its own.
            let name = annotation("io.kubernetes.cri.container-name").unwrap_or("[pod]");
            Some(format!("{namespace}/{pod}/{name}"))
        };
        of_pod().or_else(|| annotation("nerdctl/name").map(str::to_owned))
    }
}

impl ContainerNames {
    /// Names by the files of this root.
    pub fn below(root: FileRoot) -> ContainerNames {
        ContainerNames { root, known: HashMap::new() }
    }

    /// The name of a container; empty if it has none, or none that can be known.
    pub fn name(&mut self, id: &str) -> &str {
        if !is_container_id(id) {
            return "";
        }
        if !self.known.contains_key(id) {
            if self.known.len() >= MAX_CONTAINERS {
                self.known.clear();
            }
            let name = self.find(id).filter(|name| name.len() <= MAX_NAME).unwrap_or_default();
            self.known.insert(id.to_owned(), name);
        }
        self.known.get(id).map_or("", String::as_str)
    }

    fn find(&self, id: &str) -> Option<String> {
        self.docker(id).or_else(|| self.podman(|it| it.id == id).pop()?.names.pop()).or_else(|| self.containerd(id))
    }

    /// The ids of the containers of this name.
    pub fn ids(&self, name: &str) -> BTreeSet<String> {
        let is_docker = |id: &String| self.docker(id).as_deref() == Some(name);
        let is_containerd = |id: &String| self.containerd(id).as_deref() == Some(name);
        let of_docker = self.containers(DOCKER).into_iter().filter(is_docker);
        let of_containerd = self.namespaces().flat_map(|dir| self.containers(&dir)).filter(is_containerd);
        let of_podman = self.podman(|it| it.names.iter().any(|it| it == name)).into_iter().map(|it| it.id);
        of_docker.chain(of_podman).chain(of_containerd).filter(|id| is_container_id(id)).collect()
    }

    fn docker(&self, id: &str) -> Option<String> {
        let container: DockerContainer = self.read(&format!("{DOCKER}/{id}/config.v2.json"))?;
        Some(container.name.trim_start_matches('/').to_owned()).filter(|name| !name.is_empty())
    }

    fn podman(&self, wanted: impl Fn(&StoredContainer) -> bool) -> Vec<StoredContainer> {
        let lists = PODMAN.iter().filter_map(|path| self.read::<Vec<StoredContainer>>(path));
        lists.flatten().filter(|container| wanted(container)).collect()
    }

    fn containerd(&self, id: &str) -> Option<String> {
        let bundles = self.namespaces().filter_map(|dir| self.read::<Bundle>(&format!("{dir}/{id}/config.json")));
        bundles.filter_map(|bundle| bundle.name()).next()
    }

    /// The directories of containerd's namespaces.
    fn namespaces(&self) -> impl Iterator<Item = String> + use<> {
        self.entries(CONTAINERD).into_iter().map(|name| format!("{CONTAINERD}/{name}"))
    }

    fn containers(&self, dir: &str) -> Vec<String> {
        let mut names = self.entries(dir);
        names.retain(|name| is_container_id(name));
        names
    }

    fn entries(&self, dir: &str) -> Vec<String> {
        let Ok(path) = self.root.path_of_directory(Path::new(dir)) else { return Vec::new() };
        let entries = fs::read_dir(path).into_iter().flatten().flatten().take(MAX_CONTAINERS);
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn read<T: for<'a> Deserialize<'a>>(&self, path: &str) -> Option<T> {
        let is_of_root = |meta: &fs::Metadata| meta.uid() == 0 && meta.mode() & 0o022 == 0 && meta.len() <= MAX_BYTES;
        let file = Door::default().open_if(&self.root, Path::new(path), is_of_root).ok()?;
        let mut bytes = Vec::new();
        // It may have grown since.
        file.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
        serde_json::from_slice(&bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use tempfile::TempDir;

    use super::*;

    const IDS: [&str; 4] = [
        "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "1123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "2123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "3123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    ];

    struct Files(TempDir);

    impl Files {
        fn write(&self, path: &str, text: &str) -> PathBuf {
            let path = self.0.path().join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            path
        }

        fn names(&self) -> ContainerNames {
            ContainerNames::below(FileRoot::at(self.0.path()).unwrap())
        }
    }

    #[test]
    fn names_of_all_runtimes() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("only root's files count");
            return;
        }
        let files = Files(tempfile::tempdir().unwrap());
        let [docker, podman, kubernetes, other] = IDS;
        files.write(&format!("{DOCKER}/{docker}/config.v2.json"), r#"{"ID":"x","Name":"/web","State":{"Pid":7}}"#);
        files.write(PODMAN[1], &format!(r#"[{{"id":"{podman}","names":["db"],"layer":"x"}},{{"id":"{other}"}}]"#));
        files.write(
            &format!("{CONTAINERD}/k8s.io/{kubernetes}/config.json"),
            r#"{"ociVersion":"1.1.0","annotations":{"io.kubernetes.cri.container-name":"app",
               "io.kubernetes.cri.sandbox-name":"shop-1","io.kubernetes.cri.sandbox-namespace":"prod"}}"#,
        );
        let mut names = files.names();
        for (id, name) in [(docker, "web"), (podman, "db"), (kubernetes, "prod/shop-1/app"), (other, "")] {
            assert_eq!(names.name(id), name, "{id}");
            let ids: Vec<String> = names.ids(name).into_iter().collect();
            assert_eq!(ids, if name.is_empty() { vec![] } else { vec![id.to_owned()] }, "{name}");
        }
        for none in ["../../etc", "", "web"] {
            assert_eq!(names.name(none), "", "{none:?}");
        }
        assert!(names.ids("/web").is_empty() && names.ids("nothing").is_empty());
        // A known name is not looked up again.
        fs::remove_dir_all(files.0.path().join("var/lib/docker")).unwrap();
        assert_eq!((names.name(docker), files.names().name(docker)), ("web", ""));
    }

    #[test]
    fn only_files_that_are_root_s_alone() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("only root's files count");
            return;
        }
        let files = Files(tempfile::tempdir().unwrap());
        let id = IDS[0];
        let place = format!("{DOCKER}/{id}/config.v2.json");
        let good = r#"{"Name":"/web"}"#;
        let path = files.write(&place, good);
        let name = || files.names().name(id).to_owned();
        assert_eq!(name(), "web");
        for mode in [0o664, 0o646] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(name(), "", "{mode:o}");
        }
        files.write(&place, good);
        nix::unistd::chown(&path, Some(65_534.into()), None).unwrap();
        assert_eq!(name(), "");
        nix::unistd::chown(&path, Some(0.into()), None).unwrap();
        for bad in ["", "{", "[]", r#"{"Name":7}"#, r#"{"Name":"/"}"#, &"[".repeat(100_000)] {
            files.write(&place, bad);
            assert_eq!(name(), "", "{:?}", &bad[..bad.len().min(20)]);
        }
        files.write(&place, &format!(r#"{{"Name":"/{}"}}"#, "x".repeat(MAX_NAME + 1)));
        assert_eq!(name(), "");
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o644)).unwrap();
        assert_eq!(name(), "");
        // A link does not lead out of the root.
        fs::remove_file(&path).unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("file"), good).unwrap();
        std::os::unix::fs::symlink(outside.path().join("file"), &path).unwrap();
        assert_eq!(name(), "");
    }
}
