//! The payload of what processes belong to.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;

use super::wire::{Cursor, Wrong, put_len, put_option, put_str};
use crate::model::{Membership, Process};

/// Writes what new processes belong to. False if nothing is known of any.
pub(super) fn put_memberships(out: &mut Vec<u8>, processes: &[Process]) -> bool {
    let mut numbers: HashMap<&Membership, usize> = HashMap::new();
    let mut groups: Vec<&Membership> = Vec::new();
    let mut members = Vec::new();
    for (position, process) in processes.iter().enumerate() {
        let Some(membership) = process.membership.as_deref() else { continue };
        let number = *numbers.entry(membership).or_insert_with(|| {
            groups.push(membership);
            groups.len() - 1
        });
        members.push((position, number));
    }
    if members.is_empty() {
        return false;
    }
    put_len(out, groups.len());
    for Membership { cgroup, uid, user, container_name: _ } in groups {
        put_str(out, cgroup);
        put_option(out, uid.map(u64::from));
        put_str(out, user);
    }
    put_len(out, members.len());
    for (position, number) in members {
        put_len(out, position);
        put_len(out, number);
    }
    true
}

pub(super) fn memberships(from: &mut Cursor<'_>) -> Result<Vec<(u32, Arc<Membership>)>, Wrong> {
    let groups = from.list(|from| {
        let cgroup = from.string()?;
        let uid = from.option()?.map(|uid| u32::try_from(uid).map_err(|_| "number too large")).transpose()?;
        Ok(Arc::new(Membership { cgroup, uid, user: from.string()?, container_name: String::new() }))
    })?;
    from.list(|from| {
        let (position, number) = (from.get_u32()?, from.get_u32()?);
        let group = groups.get(number as usize).ok_or("a process belongs to what is missing")?;
        Ok((position, Arc::clone(group)))
    })
}

/// Writes the names of containers of new processes, by their control groups. False if none has one.
pub(super) fn put_container_names(out: &mut Vec<u8>, processes: &[Process]) -> bool {
    let memberships = processes.iter().filter_map(|process| process.membership.as_deref());
    let named = memberships.filter(|it| !it.container_name.is_empty());
    let names: BTreeMap<&str, &str> = named.map(|it| (it.cgroup.as_str(), it.container_name.as_str())).collect();
    if names.is_empty() {
        return false;
    }
    put_len(out, names.len());
    for (cgroup, name) in names {
        put_str(out, cgroup);
        put_str(out, name);
    }
    true
}

/// Reads them into memberships read before. Those of other groups are passed over.
pub(super) fn container_names(from: &mut Cursor<'_>, members: &mut [(u32, Arc<Membership>)]) -> Result<(), Wrong> {
    let names: HashMap<String, String> = from.list(|from| Ok((from.string()?, from.string()?)))?.into_iter().collect();
    let mut named: HashMap<Arc<Membership>, Arc<Membership>> = HashMap::new();
    for (_, membership) in members {
        let Some(name) = names.get(&membership.cgroup) else { continue };
        let new = || Arc::new(Membership { container_name: name.clone(), ..Membership::clone(membership) });
        *membership = Arc::clone(named.entry(Arc::clone(membership)).or_insert_with(new));
    }
    Ok(())
}
