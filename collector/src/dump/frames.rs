//! From registers and stack bytes to what a dump shows of them: by the tracker, unwinder and resolver of samples.

use ccsd_profile::{CostCentreId, Profile, ProfileLimits, SessionInfo};
use hashbrown::HashMap;

use crate::budget::Budget;
use crate::clock::now_ns;
use crate::perf::record::Sample;
use crate::perf::ring_buffer::Bytes;
use crate::process::images::{ImageIndex, Images};
use crate::process::owner::Owner;
use crate::procfs::MapEntry;
use crate::resolve::Resolver;
use crate::tracker::Tracker;
use crate::unwind::{Frame, StackRoot};
use crate::unwinding::Unwinding;

use super::model::{Dump, End, FrameInfo, TaskState, ThreadDump};
use super::take::{KnownRegisters, Taken};

/// Frames of all threads together: 64 MiB of numbers. A thousand ordinary threads have some 30,000.
const MAX_FRAMES_IN_ALL: usize = 1 << 24;

const NO_PROCESS: u32 = u32::MAX;

struct FrameNumbers {
    frames: Vec<u32>,
    end: End,
}

#[derive(Default)]
struct Frames {
    numbers: HashMap<Frame, u32>,
    list: Vec<Frame>,
}

impl Frames {
    fn number(&mut self, frame: Frame) -> u32 {
        *self.numbers.entry(frame).or_insert_with(|| {
            self.list.push(frame);
            self.list.len() as u32 - 1
        })
    }
}

/// Unwinds and names what was taken into the dump. For an owner by these mappings alone: the process may run another
/// program by now.
pub fn read(taken: Vec<Taken>, (owner, maps): (Option<Owner>, Option<Vec<MapEntry>>), dump: &mut Dump) {
    let pid = dump.pid;
    let mut tracker = Tracker::for_process(pid, owner, maps);
    // With the main thread its memory is no longer to be found under its number.
    let main_has_ended = taken.iter().any(|thread| thread.tid == pid && thread.look.state == TaskState::Zombie);
    let mut unwinding = Unwinding::within(&Budget::default());
    let mut frames = Frames::default();
    let mut in_all = 0;
    let mut stacks = Vec::with_capacity(taken.len());
    for thread in &taken {
        let stack = match &thread.registers {
            Err(why) => FrameNumbers { frames: Vec::new(), end: End::Missing(why.clone()) },
            Ok(_) if in_all >= MAX_FRAMES_IN_ALL => FrameNumbers {
                frames: Vec::new(),
                end: End::Missing("the other threads have too many frames".to_owned()),
            },
            Ok(known) => {
                let memory = match owner {
                    Some(_) => NO_PROCESS,
                    None if main_has_ended => thread.tid,
                    None => pid,
                };
                unwind(&mut unwinding, &mut tracker, &mut frames, (pid, memory), thread, known)
            }
        };
        in_all += stack.frames.len();
        stacks.push(stack);
    }
    let images = &mut tracker.images;
    let entries = name(images, &frames.list, dump);
    // Each frame may stand for many inlined functions.
    let mut left = MAX_FRAMES_IN_ALL;
    if owner.is_some() && taken.iter().any(|thread| !thread.look.kernel_stack.is_empty()) {
        // The kernel shows it only with CAP_SYS_ADMIN.
        images.door().withhold(&format!("/proc/{pid}/task/*/stack, where threads wait in the kernel"));
    }
    let kernel_stack = |lines: Vec<String>| if owner.is_some() { Vec::new() } else { lines };
    for (thread, FrameNumbers { frames, mut end }) in taken.into_iter().zip(stacks) {
        let entries_of = |&frame: &u32| entries.get(frame as usize).map_or(&[][..], Vec::as_slice);
        let count = frames.iter().fold(0, |sum: usize, frame| sum.saturating_add(entries_of(frame).len()));
        let mut stack = Vec::new();
        match left.checked_sub(count) {
            Some(rest) => {
                left = rest;
                stack.extend(frames.iter().flat_map(entries_of).copied());
            }
            None => end = End::Missing("the stacks of all threads have too many entries".to_owned()),
        }
        let Taken { tid, look, method, .. } = thread;
        dump.threads.push(ThreadDump {
            tid,
            name: look.name,
            state: look.state,
            wait: look.wait,
            kernel_stack: kernel_stack(look.kernel_stack),
            stack,
            end,
            method,
        });
    }
}

fn unwind(
    unwinding: &mut Unwinding,
    tracker: &mut Tracker,
    all: &mut Frames,
    (pid, memory): (u32, u32),
    thread: &Taken,
    known: &KnownRegisters,
) -> FrameNumbers {
    let missing = || FrameNumbers { frames: Vec::new(), end: End::Missing("its process has ended".to_owned()) };
    let Some((entered, process, images)) = tracker.thread(pid, thread.tid) else { return missing() };
    let (KnownRegisters::All(regs) | KnownRegisters::Pointers(regs)) = *known;
    let sample = Sample {
        id: 0,
        pid: memory,
        tid: thread.tid,
        time: now_ns(),
        period: 0,
        group_value: None,
        kernel_chain: Bytes::new(&[]),
        user_chain: Bytes::new(&[]),
        regs: Some(regs),
        has_user_state: true,
        stack: Bytes::new(&thread.stack.bytes),
        stack_full: thread.stack.more,
    };
    let unwound = unwinding.unwind(&sample, entered, process, images, false);
    let end = match (unwound.root, known) {
        (StackRoot::Complete, _) => End::Complete,
        (StackRoot::Truncated(reason), KnownRegisters::All(_)) => End::Truncated(reason.text().to_owned()),
        (StackRoot::Truncated(reason), KnownRegisters::Pointers(_)) => {
            End::Truncated(format!("{}; most registers are not known without stopping the thread", reason.text()))
        }
    };
    FrameNumbers { frames: unwinding.frames().iter().map(|&frame| all.number(frame)).collect(), end }
}

/// Names all frames. For each the positions of its entries in the dump, innermost first.
fn name(images: &mut Images, frames: &[Frame], dump: &mut Dump) -> Vec<Vec<u32>> {
    let mut profile = Profile::new(SessionInfo::default(), ProfileLimits::default());
    let mut resolver = Resolver::new(false, &Budget::default()).through(images.door().clone());
    for index in 0..images.count() {
        if let Some(image) = images.get(ImageIndex(index as u32)) {
            resolver.add_image(&mut profile, image.clone());
        }
    }
    for event in images.jit.take_events() {
        resolver.jit_event(&mut profile, event);
    }
    resolver.begin_batch(&mut profile, frames);
    resolver.look_for_names(&mut profile);
    let now = now_ns();
    // Position, cost centre and all else but the name, which may come last.
    let mut entries: Vec<(CostCentreId, FrameInfo)> = Vec::new();
    let mut positions = Vec::with_capacity(frames.len());
    for &frame in frames {
        let resolved = resolver.resolve(&mut profile, frame, now);
        let centres: Vec<CostCentreId> = resolver.cost_centres(&resolved).iter().rev().copied().collect();
        let functions = resolver.functions(frame);
        let first = entries.len();
        for (at, &centre) in centres.iter().enumerate() {
            let function = functions.get(at).filter(|_| functions.len() == centres.len());
            let info = FrameInfo {
                function: String::new(),
                image: String::new(),
                file: function.and_then(|function| function.file.as_deref()).map(str::to_owned),
                line: function.map_or(0, |function| function.line),
                inlined: function.is_some_and(|function| function.inlined),
                address: frame.address,
                function_id: 0,
            };
            entries.push((centre, info));
        }
        positions.push((first as u32..entries.len() as u32).collect());
    }
    resolver.finish_names(&mut profile);
    dump.frames = entries
        .into_iter()
        .map(|(centre, info)| {
            let real = profile.real(centre);
            let (function, image) = (profile.name(real).into_owned(), profile.image_name(real).into_owned());
            FrameInfo { function, image, function_id: real.get(), ..info }
        })
        .collect();
    dump.notes.extend(resolver.notes());
    positions
}
