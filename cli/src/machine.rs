//! Which processes of the machine are sampled where none is named: `--all`, `--unit` and the like.

use anyhow::anyhow;
use ccsd_collector::{
    ContainerNames, FileRoot, ProcessFilter, ProcessSelection, cgroup_exists, path_in_hierarchy, procfs,
};
use ccsd_daemon::watch::user_number;
use ccsd_profile::sanitise;

use crate::args::collect::MachineArgs;
use crate::exit::Failure;
use crate::message::warn;

/// The selection that the arguments mean; `None` if they select nothing. Warns where no process fits now.
pub fn selection(args: &MachineArgs) -> Result<Option<ProcessSelection>, Failure> {
    if !args.is_given() {
        return Ok(None);
    }
    let users = args.uid.iter().map(|user| user_id(user)).collect::<Result<Vec<u32>, Failure>>()?;
    let groups = ProcessSelection {
        units: args.unit.iter().map(|unit| unit_name(unit)).collect(),
        cgroups: args.cgroup.iter().map(|path| path_in_hierarchy(path).to_owned()).collect(),
        containers: args.container.clone(),
        users,
        excluded: args.exclude.clone(),
        ..ProcessSelection::default()
    };
    if !args.all {
        let named = groups.clone().with_named_containers(&ContainerNames::below(FileRoot::own()));
        let fits = |pid: &u32| named.keeps(*pid) == Some(true);
        if !procfs::processes().iter().any(fits) {
            for missing in groups.cgroups.iter().filter(|path| !cgroup_exists(path)) {
                warn(format_args!("there is no control group {} now: ccsd waits for it", sanitise(missing)));
            }
            let what = sanitise(&groups.describe()).into_owned();
            warn(format_args!("no process of {what} runs now; those that start are sampled"));
        }
        return Ok(Some(groups));
    }
    if args.selects_groups() {
        return Err(Failure::bad_request(anyhow!(
            "--all samples everything: leave it out to sample a unit, a control group, a container or a user alone"
        )));
    }
    Ok(Some(groups))
}

fn user_id(user: &str) -> Result<u32, Failure> {
    user.parse()
        .ok()
        .or_else(|| user_number(user))
        .ok_or_else(|| Failure::bad_request(anyhow!("there is no user {}; `getent passwd` lists them", sanitise(user))))
}

/// A unit's name, to which systemd's tools add `.service` where it has no type.
fn unit_name(unit: &str) -> String {
    if unit.contains(['.', '*', '?']) { unit.to_owned() } else { format!("{unit}.service") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_arguments() {
        let of = |args: MachineArgs| selection(&args).map_err(|failure| failure.to_string());
        assert_eq!(of(MachineArgs::default()), Ok(None));
        let all = MachineArgs { all: true, ..MachineArgs::default() };
        assert_eq!(of(all.clone()), Ok(Some(ProcessSelection::default())));
        let unit = vec!["nginx".to_owned(), "a.slice".to_owned()];
        let both = of(MachineArgs { unit: unit.clone(), ..all }).unwrap_err();
        assert!(both.contains("--all"), "{both}");
        let found = of(MachineArgs { unit, uid: vec!["0".to_owned()], ..MachineArgs::default() }).unwrap().unwrap();
        assert_eq!((found.units.join(" "), found.users), ("nginx.service a.slice".to_owned(), vec![0]));
        let nobody = MachineArgs { uid: vec!["no such user".to_owned()], ..MachineArgs::default() };
        assert!(of(nobody).unwrap_err().contains("there is no user no such user"));
    }
}
