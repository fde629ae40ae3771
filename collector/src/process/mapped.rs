//! What processes have mapped, from records and /proc. Mappings beyond the limit are not entered.

use std::sync::Arc;

use ccsd_worker::Principal;
use hashbrown::{HashMap, HashSet};

use super::ProcessTable;
use super::entry_bytes::MAPPING_BYTES;
use super::images::{ImageIndex, Images};
use super::jit_code::JitCode;
use super::mapped_file::MappedFile;
use super::mappings::{MAX_MAPPINGS, Mapping, Mappings};
use crate::clock::now_ns;
use crate::perf::record::Mmap;
use crate::procfs::{self, MapEntry};

/// Time between two looks at whether mappings that were not read in time can be now, nanoseconds.
const UNREAD_NS: u64 = 100_000_000;

impl ProcessTable {
    pub(super) fn room_for_mappings(&mut self, pid: u32) -> usize {
        self.room_for(pid) / MAPPING_BYTES
    }

    /// Enters a process that was there before, with its mappings, from /proc; what is unreadable stays empty, or as it was.
    /// Another user's may be read later.
    pub fn read_process(&mut self, pid: u32, images: &mut Images) {
        match images.process_files.read_maps(pid) {
            Ok(maps) => {
                self.unread.remove(&pid);
                self.read_mappings(pid, maps, images);
            }
            Err(user) => {
                self.read_mappings(pid, Vec::new(), images);
                self.read_later(pid, user);
            }
        }
    }

    /// Other users' processes are not waited for.
    fn read_later(&mut self, pid: u32, user: Principal) {
        self.unread.insert(pid, user);
        if let Some(process) = self.processes.get_mut(&pid) {
            self.left_out.late += u64::from(!std::mem::replace(&mut process.is_late, true));
        }
    }

    /// As [`ProcessTable::read_process`], with these mappings.
    pub fn read_mappings(&mut self, pid: u32, mut maps: Vec<MapEntry>, images: &mut Images) {
        let (start_time, name) = match procfs::stat(pid) {
            Ok(stat) => (stat.start_time, stat.comm),
            Err(_) => (0, procfs::comm(pid, pid).unwrap_or_else(|| unnumbered(pid))),
        };
        let mut mappings = Mappings::default();
        // Those that it has had so far go.
        let had = self.processes.get(&pid).map_or(0, |process| process.mappings.count());
        let room = self.room_for_mappings(pid).saturating_add(had);
        let mut code = self.processes.get(&pid).and_then(|process| process.jit.clone());
        if maps.is_empty() && had > 0 {
            // It has ended, or access is denied. Its remaining samples ran in the mappings that are known.
            return;
        }
        // In the order in which they are kept, but for the program itself: there may not be room for all, or files for all.
        maps.reverse();
        if maps.len() > 1 {
            maps.rotate_right(1);
        }
        if maps.len() > room.min(MAX_MAPPINGS) {
            put_each_file_first(&mut maps);
        }
        for map in maps {
            let MapEntry { start, end, device, inode, ref path, .. } = map;
            let file = MappedFile { pid, start, end, device, inode, build_id: &[], path };
            let new = mapping_of(images, &mut code, start_time, file, map.file_offset);
            self.left_out.mappings += u64::from(!mappings.insert_within(new, room));
        }
        match self.processes.get_mut(&pid) {
            Some(process) => {
                self.mapped = (self.mapped + mappings.count()).saturating_sub(had);
                process.mappings.replace(mappings);
            }
            None => {
                self.add_process(pid, None, start_time, 0, name, mappings);
                if self.observes_machine
                    && let Some(process) = self.processes.get_mut(&pid)
                {
                    process.has_unknown_threads = true;
                }
            }
        }
        if let Some(process) = self.processes.get_mut(&pid) {
            process.jit = code;
        }
        if let Some(user) = images.process_files.take_unanswered() {
            self.read_later(pid, user);
        }
    }

    /// `PERF_RECORD_MMAP2`.
    pub fn mmap(&mut self, mmap: &Mmap, images: &mut Images) {
        if u64::from(mmap.prot) & libc::PROT_EXEC as u64 == 0 {
            return;
        }
        if !self.asks_proc && !self.processes.contains_key(&mmap.pid) {
            self.enter_recorded(mmap.pid);
        }
        if !self.processes.contains_key(&mmap.pid) {
            return;
        }
        let room = self.room_for_mappings(mmap.pid);
        let Some(process) = self.processes.get_mut(&mmap.pid) else { return };
        process.awaits_mapping = false;
        let had = process.mappings.count();
        let end = mmap.start.saturating_add(mmap.len);
        let &Mmap { pid, start, device, inode, ref build_id, ref path, .. } = mmap;
        let file = MappedFile { pid, start, end, device, inode, build_id, path };
        let inherited = process.jit.as_ref().map(|code| code.index);
        let mapping = mapping_of(images, &mut process.jit, process.start_time, file, mmap.file_offset);
        if let (Some(before), Some(now)) = (inherited, process.jit.as_ref().map(|code| code.index))
            && before != now
        {
            process.mappings.replace_image(before, now);
        }
        let mut entered = process.mappings.insert_within(mapping, had.saturating_add(room));
        self.mapped = (self.mapped + process.mappings.count()).saturating_sub(had);
        if !entered && !self.asks_proc {
            // What it really has mapped is not known.
        } else if !entered && process.full.is_due(now_ns()) {
            self.read_again(mmap.pid, images);
            let room = self.room_for_mappings(pid);
            if let Some(process) = self.processes.get_mut(&mmap.pid) {
                let had = process.mappings.count();
                entered = process.mappings.insert_within(mapping, had.saturating_add(room));
                self.mapped = (self.mapped + process.mappings.count()).saturating_sub(had);
            }
        } else if !entered {
            self.missed.insert(pid);
        }
        self.left_out.mappings += u64::from(!entered);
        if let Some(user) = images.process_files.take_unanswered() {
            self.read_later(pid, user);
        }
    }

    /// Reads the mappings of a full process again: munmap gives no record. If most remain, it is soon full again.
    fn read_again(&mut self, pid: u32, images: &mut Images) {
        let began = now_ns();
        self.read_process(pid, images);
        if let Some(process) = self.processes.get_mut(&pid) {
            process.full.done(began, now_ns());
        }
    }

    /// To be called now and then: reads the mappings of processes that were due too early before.
    pub fn read_missed(&mut self, images: &mut Images) {
        let now = now_ns();
        if !self.unread.is_empty() && now >= self.unread_at {
            self.unread_at = now.saturating_add(UNREAD_NS);
            self.unread.retain(|pid, _| self.processes.contains_key(pid));
            let unread: Vec<(u32, Principal)> = self.unread.iter().map(|(&pid, &user)| (pid, user)).collect();
            // Where one of a user's processes does not answer, the others are not asked.
            let mut silent = HashSet::new();
            for (pid, user) in unread {
                if silent.contains(&user) || !images.process_files.may_read_again(user) {
                    continue;
                }
                self.read_process(pid, images);
                if self.unread.contains_key(&pid) {
                    silent.insert(user);
                }
            }
        }
        if self.missed.is_empty() {
            return;
        }
        let due = |pid: &u32| self.processes.get(pid).is_none_or(|process| process.full.is_due(now));
        let pids: Vec<u32> = self.missed.iter().copied().filter(due).collect();
        for pid in pids {
            self.missed.remove(&pid);
            if self.processes.contains_key(&pid) {
                self.read_again(pid, images);
            }
        }
    }

    /// An image is known that was not when it was mapped; see [`Images::retry`].
    pub fn translate(&mut self, index: ImageIndex, images: &Images) {
        if images.has_offsets(index) {
            return;
        }
        for process in self.processes.values_mut() {
            process.mappings.translate(index, |start, offset| images.to_svma(index, start, offset));
        }
    }

    /// The images that some process has mapped.
    pub fn mapped_images(&self) -> HashSet<ImageIndex> {
        self.processes.values().flat_map(|process| process.mappings.iter()).map(|mapping| mapping.image).collect()
    }
}

/// A name for a process that /proc lacks. The kernel gives 0 for other namespaces, and `u32::MAX` for a thread at its
/// very end (`perf_event_pid` in kernel/events/core.c).
fn unnumbered(pid: u32) -> String {
    match pid {
        0 => "[other PID namespace]".to_owned(),
        // It may have ended before /proc was looked at.
        _ => "[ended]".to_owned(),
    }
}

/// Puts each file's first mapping before all second ones: mapping one file a hundred thousand times leaves room for
/// libraries.
fn put_each_file_first(maps: &mut [MapEntry]) {
    let mut seen: HashMap<((u32, u32), u64), usize> = HashMap::new();
    maps.sort_by_cached_key(|map| {
        let times = seen.entry((map.device, map.inode)).or_default();
        *times += 1;
        *times
    });
}

fn mapping_of(
    images: &mut Images,
    code: &mut Option<Arc<JitCode>>,
    start_time: u64,
    file: MappedFile<'_>,
    file_offset: u64,
) -> Mapping {
    let image = images.open_mapping(code, start_time, file);
    Mapping {
        start: file.start,
        end: file.end,
        image,
        to_svma: images.to_svma(image, file.start, file_offset),
        has_offsets: images.has_offsets(image),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_is_no_room_for_all_mappings_each_file_has_one() {
        let map = |start: u64, inode| MapEntry {
            start,
            end: start + 1,
            file_offset: 0,
            device: (8, 1),
            inode,
            path: b"/x".to_vec(),
        };
        let mut maps = [map(1, 5), map(3, 7), map(5, 7), map(7, 7), map(9, 5), map(11, 6)];
        put_each_file_first(&mut maps);
        assert_eq!(maps.map(|map| map.start), [1, 3, 11, 5, 9, 7]);
    }
}
