//! Records about processes, threads, names and mappings, as the tracker takes them from the rings.

use linux_perf_event_reader::{CpuMode, EventRecord, Mmap2FileId};

use crate::perf::record::{Fork, Mmap, TargetChange};

/// Bytes of a name; the kernel has 16. Children have those of their parents.
const MAX_NAME: usize = 64;

fn is_kernel(mode: CpuMode, pid: i32) -> bool {
    mode == CpuMode::Kernel || pid == -1
}

pub fn kernel_text(record: &EventRecord<'_>) -> Option<u64> {
    let (is_kernel, path, offset) = match record {
        EventRecord::Mmap(mmap) => (is_kernel(mmap.cpu_mode, mmap.pid), &mmap.path, mmap.page_offset),
        EventRecord::Mmap2(mmap) => (is_kernel(mmap.cpu_mode, mmap.pid), &mmap.path, mmap.page_offset),
        _ => return None,
    };
    (is_kernel && path.as_slice().starts_with(b"[kernel.kallsyms]")).then_some(offset)
}

pub fn change(record: &EventRecord<'_>) -> Option<TargetChange> {
    Some(match record {
        // The record of older kernels for a mapping.
        EventRecord::Mmap(mmap) if !is_kernel(mmap.cpu_mode, mmap.pid) => TargetChange::Mmap(Mmap {
            pid: mmap.pid.cast_unsigned(),
            start: mmap.address,
            len: mmap.length,
            file_offset: mmap.page_offset,
            device: (0, 0),
            inode: 0,
            build_id: Vec::new(),
            prot: if mmap.is_executable { libc::PROT_EXEC.cast_unsigned() } else { 0 },
            path: mmap.path.as_slice().to_vec(),
        }),
        EventRecord::Mmap2(mmap) if !is_kernel(mmap.cpu_mode, mmap.pid) => {
            let (device, inode, build_id) = match &mmap.file_id {
                Mmap2FileId::InodeAndVersion(id) => ((id.major, id.minor), id.inode, Vec::new()),
                Mmap2FileId::BuildId(build_id) => ((0, 0), 0, build_id.clone()),
            };
            TargetChange::Mmap(Mmap {
                pid: mmap.pid.cast_unsigned(),
                start: mmap.address,
                len: mmap.length,
                file_offset: mmap.page_offset,
                device,
                inode,
                build_id,
                prot: mmap.protection,
                path: mmap.path.as_slice().to_vec(),
            })
        }
        EventRecord::Comm(comm) => {
            let name = comm.name.as_slice();
            let name = String::from_utf8_lossy(name.get(..MAX_NAME).unwrap_or(&name)).into_owned();
            let (pid, tid) = (comm.pid.cast_unsigned(), comm.tid.cast_unsigned());
            TargetChange::Comm { pid, tid, exec: comm.is_execve, name }
        }
        EventRecord::Fork(fork) => TargetChange::Fork(Fork {
            pid: fork.pid.cast_unsigned(),
            tid: fork.tid.cast_unsigned(),
            parent_pid: fork.ppid.cast_unsigned(),
            parent_tid: fork.ptid.cast_unsigned(),
        }),
        EventRecord::Exit(exit) => TargetChange::Exit { pid: exit.pid.cast_unsigned(), tid: exit.tid.cast_unsigned() },
        _ => return None,
    })
}
