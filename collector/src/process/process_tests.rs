//! Processes and threads from records. Except for this process, the pids exist nowhere.

use super::*;
use crate::clock::{TICK_NS, boot_ticks, now_ns};
use crate::perf::record::Mmap;

#[test]
fn permission_is_found_and_inherited() {
    let (mut images, mut table) = (Images::default(), ProcessTable::default().restricted());
    // Pids that no process here has.
    let pid = u32::MAX - 10;
    assert!(table.is_withheld(pid, 100));
    table.read_process(pid, &mut images);
    table.add_thread(pid, pid, "main".to_owned());
    table.fork(Fork { pid: pid + 1, tid: pid + 1, parent_pid: pid, parent_tid: pid }, 90);
    table.permit(pid, 100);
    table.fork(Fork { pid: pid + 2, tid: pid + 2, parent_pid: pid, parent_tid: pid }, 99);
    table.fork(Fork { pid: pid + 3, tid: pid + 3, parent_pid: pid, parent_tid: pid }, 100);
    assert!(table.is_withheld(pid, 99));
    assert!(!table.is_withheld(pid, 100));
    assert!(table.is_withheld(pid + 1, 1000), "forked before its parent was found permitted");
    assert!(table.is_withheld(pid + 2, 1000), "likewise, and told of later");
    assert!(!table.is_withheld(pid + 3, 100));
    // Found in /proc before its fork record.
    table.read_process(pid + 4, &mut images);
    table.permit(pid + 4, 120);
    table.fork(Fork { pid: pid + 4, tid: pid + 4, parent_pid: pid + 1, parent_tid: pid + 1 }, 110);
    assert!(table.is_withheld(pid + 4, 119) && !table.is_withheld(pid + 4, 120));
    // Another process with its number is not.
    table.fork(Fork { pid: pid + 4, tid: pid + 4, parent_pid: pid + 1, parent_tid: pid + 1 }, 130);
    assert!(table.is_withheld(pid + 4, 1000));
    table.exec(pid + 3, pid + 3, "other");
    assert!(!table.is_withheld(pid + 3, 1000));
    table.exec(pid + 1, pid + 1, "other");
    assert!(table.is_withheld(pid + 1, 1000));
    table.permit(pid, NEVER);
    assert!(table.is_withheld(pid, 1000));
    assert!(!ProcessTable::default().is_withheld(pid, 0), "where everything is permitted");
}

#[test]
fn threads_beyond_the_limit_are_their_process_s_others() {
    let mut images = Images::default();
    let mut table = table_of_entered_bytes(PROCESS_BYTES + 8 * THREAD_BYTES);
    let pid = u32::MAX - 1000;
    table.read_process(pid, &mut images);
    be_of_root(&mut table, pid);
    table.add_thread(pid, pid, "main".to_owned());
    for tid in pid + 1..pid + 20 {
        table.fork(Fork { pid, tid, parent_pid: pid, parent_tid: pid }, 0);
    }
    assert_eq!((table.threads.len(), table.left_out().threads), (8, 12));
    assert!(table.entered_bytes() <= table.limit);
    // Whose sample it is still is known, as far as its process.
    let mut whose = |table: &mut ProcessTable, tid| {
        let (thread, process) = table.thread(pid, tid, &mut images).unwrap();
        thread.announced = true;
        (thread.key, thread.is_others, thread.name.clone(), process.key)
    };
    let (own, is_others, _, process) = whose(&mut table, pid + 7);
    assert!(!is_others);
    let (others, is_others, name, same) = whose(&mut table, pid + 8);
    assert!(is_others && others != own && process == same);
    assert_eq!((name.as_str(), whose(&mut table, pid + 19).0), (OTHERS, others));
    assert_eq!(table.left_out().threads, 12, "none is counted by sample");
    // Once it fits again, the next sample of a thread is its own. (The aggregate entry takes space, too.)
    table.exit(pid, pid + 1);
    assert!(whose(&mut table, pid + 8).1);
    table.exit(pid, pid + 2);
    assert!(!whose(&mut table, pid + 8).1);
    // The process lives as long as one of them, followed or not.
    for tid in (pid..pid + 20).filter(|&tid| ![pid + 1, pid + 2, pid + 19].contains(&tid)) {
        table.exit(pid, tid);
    }
    assert!(table.knows_process(pid) && table.threads.is_empty());
    table.exit(pid, pid + 19);
    assert!(table.is_empty() && table.others.is_empty());
    assert!(table.take_ended().any(|ended| ended == others));
    assert_eq!(table.held_bytes(), 0);
}

/// Says that root answers for a process that is none.
fn be_of_root(table: &mut ProcessTable, pid: u32) {
    table.processes.get_mut(&pid).unwrap().user = Some(Principal::Own);
}

/// A table of so many bytes, and a part more for untracked threads.
fn table_of_entered_bytes(bytes: usize) -> ProcessTable {
    ProcessTable::within(bytes * UNTRACKED_PART / (UNTRACKED_PART - 1) + UNTRACKED_PART, 0)
}

#[test]
fn threads_without_room_are_known_by_number_and_counted_once() {
    let mut images = Images::default();
    let mut table = table_of_entered_bytes(PROCESS_BYTES + 8 * THREAD_BYTES);
    let pid = u32::MAX - 2000;
    table.read_process(pid, &mut images);
    be_of_root(&mut table, pid);
    (pid..pid + 8).for_each(|tid| table.add_thread(pid, tid, String::new()));
    assert_eq!((table.threads.len(), table.left_out().threads), (8, 0));
    // One that is sampled before its record, and one whose record comes first.
    assert!(!table.knows_thread(pid + 8));
    assert!(table.thread(pid, pid + 8, &mut images).unwrap().0.is_others);
    table.fork(Fork { pid, tid: pid + 8, parent_pid: pid, parent_tid: pid }, 0);
    table.fork(Fork { pid, tid: pid + 9, parent_pid: pid, parent_tid: pid }, 0);
    assert!(table.thread(pid, pid + 9, &mut images).unwrap().0.is_others);
    assert_eq!((table.left_out().threads, table.processes[&pid].untracked), (2, 2));
    assert!(table.knows_thread(pid + 8) && table.knows_thread(pid + 9) && !table.knows_thread(pid + 10));
    assert!(!table.is_replaced_thread(pid + 9, boot_ticks(now_ns())) && table.is_replaced_thread(pid + 9, NEVER - 1));
    // One whose number another process has by now was the first's.
    table.fork(Fork { pid: pid + 100, tid: pid + 100, parent_pid: pid, parent_tid: pid }, 0);
    table.fork(Fork { pid: pid + 100, tid: pid + 9, parent_pid: pid + 100, parent_tid: pid + 100 }, 0);
    assert_eq!((table.processes[&pid].untracked, table.processes[&(pid + 100)].untracked), (1, 2));
    table.exit(pid + 100, pid + 9);
    table.exit(pid + 100, pid + 100);
    assert!(!table.knows_process(pid + 100) && !table.knows_thread(pid + 9));
    // Beyond the ids that are kept, only a count is known.
    let most = (table.limit / (UNTRACKED_PART - 1) / untracked_threads::UNTRACKED_BYTES) as u32;
    let many = pid + 10..pid + 20 + most;
    many.clone().for_each(|tid| table.fork(Fork { pid, tid, parent_pid: pid, parent_tid: pid }, 0));
    assert!(table.untracked.is_full() && table.untracked.has_nameless() && !table.knows_thread(pid + 19 + most));
    assert_eq!(table.processes[&pid].untracked, 11 + most);
    assert!(table.untracked.held_bytes() <= table.limit / (UNTRACKED_PART - 1) + UNTRACKED_PART);
    many.chain([pid + 8]).for_each(|tid| table.exit(pid, tid));
    assert_eq!((table.processes[&pid].untracked, table.untracked.held_bytes()), (0, 0));
    assert!(!table.untracked.has_nameless());
    // A thread that fits again is tracked, and no longer among the untracked.
    table.fork(Fork { pid, tid: pid + 8, parent_pid: pid, parent_tid: pid }, 0);
    table.exit(pid, pid + 1);
    table.exit(pid, pid + 2);
    assert!(!table.thread(pid, pid + 8, &mut images).unwrap().0.is_others);
    assert_eq!((table.processes[&pid].untracked, table.untracked.held_bytes()), (0, 0));
    table.fork(Fork { pid, tid: pid + 30, parent_pid: pid, parent_tid: pid }, 0);
    table.fork(Fork { pid, tid: pid + 31, parent_pid: pid, parent_tid: pid }, 0);
    table.remove_process(pid);
    assert!(table.held_bytes() == 0 && !table.untracked.has_nameless());
}

#[test]
fn mappings_beyond_the_limit_are_not_entered() {
    let mut images = Images::default();
    let limit = 2 * PROCESS_BYTES + 2 * THREAD_BYTES + 100 * MAPPING_BYTES;
    let mut table = table_of_entered_bytes(limit);
    let pid = u32::MAX - 1000;
    table.read_process(pid, &mut images);
    be_of_root(&mut table, pid);
    table.add_thread(pid, pid, "main".to_owned());
    let map = |table: &mut ProcessTable, images: &mut Images, pid, at: u64| {
        let (start, len, path) = (at << 20, 4096, b"//anon".to_vec());
        let prot = libc::PROT_EXEC as u32;
        table.mmap(
            &Mmap { pid, start, len, path, prot, file_offset: 0, device: (0, 0), inode: 0, build_id: Vec::new() },
            images,
        );
    };
    for at in 1..=80 {
        map(&mut table, &mut images, pid, at);
    }
    assert_eq!((table.mapped, table.left_out().mappings), (80, 0));
    // Its child has as many, which are too many: it starts with none.
    table.fork(Fork { pid: pid + 1, tid: pid + 1, parent_pid: pid, parent_tid: pid }, 0);
    assert_eq!((table.mapped, table.left_out().mappings), (80, 80));
    for at in 1..=80 {
        map(&mut table, &mut images, pid + 1, at);
    }
    // It was looked in /proc whether there are fewer by now, and this process is in none.
    assert!(table.held_bytes() <= limit, "{}", table.held_bytes());
    let mapped = table.processes.values().map(|process| process.mappings.count()).sum::<usize>();
    assert_eq!(table.mapped, mapped);
    table.exit(pid, pid);
    table.exit(pid + 1, pid + 1);
    assert_eq!((table.mapped, table.held_bytes()), (0, 0));
    // One that is there, with more mappings than there may be.
    let mut table = table_of_entered_bytes(3 * MAPPING_BYTES);
    let own = std::process::id();
    table.read_process(own, &mut images);
    let left_out = table.left_out().mappings;
    assert!(table.mapped == 3 && left_out > 0, "{left_out}");
    map(&mut table, &mut images, own, 1);
    assert!(table.mapped == 3 && table.left_out().mappings > left_out);
    // Where it has just been looked at, that is done later, when there may be room.
    let hour = 3_600_000_000_000;
    table.processes.get_mut(&own).unwrap().full.done(now_ns(), now_ns() + hour);
    map(&mut table, &mut images, own, 2);
    let left_out = table.left_out().mappings;
    table.read_missed(&mut images);
    assert_eq!((table.missed.len(), table.left_out().mappings), (1, left_out));
    table.processes.get_mut(&own).unwrap().full = Backoff::default();
    table.limit = 1 << 30;
    table.read_missed(&mut images);
    assert!(table.missed.is_empty() && table.mapped > 3 && table.left_out().mappings == left_out);
}

#[test]
fn identities_outlive_pids() {
    let mut images = Images::default();
    let mut table = ProcessTable::default();
    let pid = u32::MAX - 10;
    table.read_process(pid, &mut images);
    table.add_thread(pid, pid, "main".to_owned());
    table.fork(Fork { pid, tid: pid + 1, parent_pid: pid, parent_tid: pid }, 0);
    table.fork(Fork { pid: pid + 2, tid: pid + 2, parent_pid: pid, parent_tid: pid + 1 }, 50 * TICK_NS);
    let key = |table: &mut ProcessTable, tid| table.thread(pid + 2, tid, &mut Images::default()).unwrap().1.key;
    let first = key(&mut table, pid + 2);
    assert!(table.processes[&(pid + 2)].start_time >= 50);
    assert_eq!(table.processes[&(pid + 2)].parent, Some(table.processes[&pid].key));

    table.exec(pid + 2, pid + 2, "other");
    assert_ne!(key(&mut table, pid + 2), first);
    assert_eq!(table.processes[&(pid + 2)].exec_generation, 1);

    table.exit(pid + 2, pid + 2);
    assert!(!table.processes.contains_key(&(pid + 2)));
    table.fork(Fork { pid: pid + 2, tid: pid + 2, parent_pid: pid, parent_tid: pid }, 60 * TICK_NS);
    assert_eq!(table.processes[&(pid + 2)].exec_generation, 0);

    table.exit(pid, pid);
    assert!(table.processes.contains_key(&pid), "the other thread lives on");
    table.exit(pid, pid + 1);
    table.exit(pid + 2, pid + 2);
    assert!(table.is_empty());
    assert!(table.threads.is_empty());
}

#[test]
fn ended_processes_are_forgotten_after_their_exit_record_is_due() {
    let (mut images, mut table) = (Images::default(), ProcessTable::default());
    let pid = u32::MAX - 30;
    for pid in [pid, pid + 1] {
        table.read_process(pid, &mut images);
        table.add_thread(pid, pid, "main".to_owned());
    }
    table.forget_untold(|ended| ended == pid);
    assert!(table.knows_process(pid));
    // The record of its last fork comes after that, then that of its end.
    table.fork(Fork { pid: pid + 2, tid: pid + 2, parent_pid: pid, parent_tid: pid }, 50 * TICK_NS);
    assert_eq!(table.processes[&(pid + 2)].parent, Some(table.processes[&pid].key));
    table.exit(pid, pid);
    // Another one has its number now, and has ended as well.
    table.fork(Fork { pid, tid: pid, parent_pid: pid + 1, parent_tid: pid + 1 }, 90 * TICK_NS);
    table.forget_untold(|ended| ended == pid);
    assert!(table.knows_process(pid));
    table.forget_untold(|ended| ended == pid);
    assert!(!table.knows_process(pid) && table.knows_process(pid + 1) && table.knows_process(pid + 2));
    for ended in [pid + 1, pid + 2, pid + 1] {
        table.forget_untold(|pid| pid == ended);
    }
    assert!(table.knows_process(pid + 1) && table.knows_process(pid + 2));
}

#[test]
fn another_with_the_same_number_is_told_by_its_start() {
    let mut table = ProcessTable::default();
    let own = std::process::id();
    table.read_process(own, &mut Images::default());
    table.add_thread(own, own, "main".to_owned());
    let now = procfs::stat(own).unwrap().start_time;
    assert!(now > 0 && !table.is_replaced(own, now) && !table.is_replaced_thread(own, now));
    assert!(table.is_replaced(own, now + START_SLACK + 1));
    // A thread that was there when it was entered has started before.
    let entered = boot_ticks(now_ns());
    assert!(!table.is_replaced_thread(own, entered));
    assert!(table.is_replaced_thread(own, entered + START_SLACK + 1));
    // The record of a fork comes a moment after it.
    table.fork(Fork { pid: own + 1, tid: own + 1, parent_pid: own, parent_tid: own }, 50 * TICK_NS);
    let start = table.processes[&(own + 1)].start_time;
    assert!(!table.is_replaced(own + 1, start - 1) && table.is_replaced(own + 1, start + START_SLACK + 1));
    // Of what is not known, and where its start is not, nothing can be said.
    let pid = u32::MAX - 10;
    assert!(!table.is_replaced(pid, now) && !table.is_replaced_thread(pid, now));
    table.read_process(pid, &mut Images::default());
    assert!(!table.is_replaced(pid, now));
}

#[test]
fn announced_threads_end_however_that_becomes_known() {
    let mut table = ProcessTable::default();
    let pid = u32::MAX - 20;
    table.read_process(pid, &mut Images::default());
    let announce = |table: &mut ProcessTable, pid, tid| {
        let (thread, _) = table.thread(pid, tid, &mut Images::default()).unwrap();
        thread.announced = true;
        thread.key
    };
    let ended = |table: &mut ProcessTable| table.take_ended().collect::<Vec<_>>();
    let main = announce(&mut table, pid, pid);
    assert_eq!(ended(&mut table), []);

    // The same number for another thread of the process, and then of another process: exits were lost.
    table.fork(Fork { pid, tid: pid + 1, parent_pid: pid, parent_tid: pid }, 0);
    let first = announce(&mut table, pid, pid + 1);
    table.fork(Fork { pid, tid: pid + 1, parent_pid: pid, parent_tid: pid }, 0);
    assert_eq!((ended(&mut table), table.processes[&pid].threads), (vec![first], 2));
    let second = announce(&mut table, pid, pid + 1);
    table.fork(Fork { pid: pid + 1, tid: pid + 1, parent_pid: pid, parent_tid: pid }, 0);
    assert_eq!((ended(&mut table), table.processes[&pid].threads), (vec![second], 1));

    // A new process in the place of one whose exit was lost.
    let child = announce(&mut table, pid + 1, pid + 1);
    table.fork(Fork { pid: pid + 1, tid: pid + 1, parent_pid: pid, parent_tid: pid }, 0);
    assert_eq!(ended(&mut table), [child]);
    let child = announce(&mut table, pid + 1, pid + 1);
    table.exec(pid + 1, pid + 1, "other");
    assert_eq!(ended(&mut table), [child]);
    table.exit(pid + 1, pid + 1);
    assert_eq!(ended(&mut table), []);
    table.exit(pid, pid);
    assert_eq!((ended(&mut table), table.is_empty()), (vec![main], true));
}

#[test]
fn threads_are_found_by_their_process() {
    let mut table = table_of_entered_bytes(40 * THREAD_BYTES);
    // A xorshift generator: forks, threads, executed programs, and ends, of 6 processes with 12 threads.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) % below
    };
    for step in 0..20_000 {
        let (pid, other) = (random(6) as u32 + 1, random(6) as u32 + 1);
        let tid = if random(2) == 0 { pid } else { 10 + random(12) as u32 };
        match random(6) {
            0 => table.fork(Fork { pid, tid: pid, parent_pid: other, parent_tid: other }, step),
            1 | 2 => table.add_thread(pid, tid, String::new()),
            3 => table.exec(pid, pid, "x"),
            4 => table.remove_process(pid),
            _ => {
                let pid = table.threads.get(&tid).map_or(pid, |thread| thread.pid);
                table.exit(pid, tid);
            }
        }
        let listed: BTreeSet<(u32, u32)> = table.threads.iter().map(|(&tid, thread)| (thread.pid, tid)).collect();
        assert_eq!(table.by_process, listed, "{step}");
        for (&pid, process) in &table.processes {
            assert_eq!(process.threads as usize, table.threads_of(pid).len(), "{step}: {pid}");
        }
    }
}

#[test]
fn however_much_a_user_takes_there_is_room_for_root_and_others() {
    let mut table = table_of_entered_bytes(1_000 * THREAD_BYTES);
    let (user, other) = (Principal::User(7), Principal::User(8));
    let fill = |table: &mut ProcessTable, pid: u32, user| {
        table.fork(Fork { pid, tid: pid, parent_pid: 0, parent_tid: 0 }, 0);
        table.processes.get_mut(&pid).unwrap().user = Some(user);
        (1..2_000).for_each(|thread| table.add_thread(pid, pid + thread, String::new()));
        table.processes[&pid].threads
    };
    // Where there is no such process, it is looked up in vain.
    let no_pid = u32::MAX - 20_000;
    let about = |threads: u32, expected: u32| threads.abs_diff(expected) <= 4;
    let threads = fill(&mut table, no_pid, user);
    assert!(about(threads, 437), "{threads}");
    let threads = fill(&mut table, no_pid + 3_000, other);
    assert!(about(threads, 219), "{threads}");
    let threads = fill(&mut table, no_pid + 6_000, Principal::Own);
    assert!(about(threads, 344), "{threads}");
    assert!(table.left_out().threads > 4_000);
    // What is forked is the parent's user's.
    table.fork(Fork { pid: no_pid + 9_000, tid: no_pid + 9_000, parent_pid: no_pid, parent_tid: no_pid }, 0);
    assert_eq!(table.processes[&(no_pid + 9_000)].user, Some(user));
}

#[test]
fn the_dead_are_their_forebears_where_nothing_else_is_known() {
    let mut table = ProcessTable::default();
    // Where there is no such process, it is looked up in vain.
    let root = u32::MAX - 20_000;
    let (shell, child) = (root + 1, root + 100);
    let fork = |table: &mut ProcessTable, parent_pid, pid| {
        table.fork(Fork { pid, tid: pid, parent_pid, parent_tid: parent_pid }, 0);
        table.processes[&pid].answers_at_death(pid)
    };
    let exec = |table: &mut ProcessTable, pid, user| {
        table.exec(pid, pid, "program");
        table.processes.get_mut(&pid).unwrap().user = Some(user);
        table.processes[&pid].answers_at_death(pid)
    };
    table.add_process(root, None, 0, 0, String::new(), Mappings::default());
    table.processes.get_mut(&root).unwrap().user = Some(Principal::Own);
    // Who has root's rights by a fork alone may have given them up.
    assert_eq!(fork(&mut table, root, shell), children_of(root));
    assert_eq!(exec(&mut table, shell, Principal::SOMEWHERE), children_of(root));
    // However many forks it takes.
    for pid in child..child + 10 {
        assert_eq!(fork(&mut table, if pid == child { shell } else { pid - 1 }, pid), children_of(root));
        assert_eq!(exec(&mut table, pid, Principal::SOMEWHERE), children_of(root));
    }
    // Of a user that is known once, and so is what that user runs with root's rights.
    assert_eq!(exec(&mut table, shell, Principal::User(7)), Principal::User(7));
    assert_eq!(exec(&mut table, shell, Principal::SOMEWHERE), Principal::User(7));
    assert_eq!(fork(&mut table, shell, child), Principal::User(7));
    assert_eq!(exec(&mut table, child, Principal::Own), Principal::User(7));
    assert_eq!(fork(&mut table, child, child + 1), Principal::User(7));
    assert_eq!(exec(&mut table, root, Principal::Own), Principal::Own);
    assert_eq!(fork(&mut table, child + 50, child + 51), children_of(child + 50));
}
