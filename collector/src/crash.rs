//! A process that a signal has killed, with names and source lines.

use std::time::{SystemTime, UNIX_EPOCH};

use ccsd_profile::{
    CostCentreId, Crash, FrameInfo, LineId, MAX_CRASH_FRAMES, MAX_CRASH_INNER, MAX_CRASH_OUTER, Profile,
    TruncationReason,
};
use hashbrown::HashMap;

use crate::batch::Death;
use crate::clock::now_ns;
use crate::resolve::Resolver;
use crate::unwind::{Frame, Root};

/// Different entries that the inner part of a stack may take, so that some are left for the outer part.
const MAX_INNER_FRAMES: usize = MAX_CRASH_FRAMES / 4 * 3;

/// All of a thread's stack.
pub struct WholeStack {
    /// Innermost first.
    pub frames: Vec<Frame>,
    /// After how many of them some may be missing, and why.
    pub gap: Option<(usize, TruncationReason)>,
    /// Where it ends.
    pub root: Root,
}

/// One frame, or the place where some are missing.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    Frame(Frame),
    Gap(TruncationReason),
}

/// Names what was found at `time` (`CLOCK_MONOTONIC`, nanoseconds).
pub fn tell(death: Death, stack: WholeStack, time: u64, profile: &mut Profile, resolver: &mut Resolver) -> Crash {
    let WholeStack { frames, gap, root } = stack;
    let mut steps: Vec<Step> = frames.into_iter().map(Step::Frame).collect();
    if let Some((after, why)) = gap {
        steps.insert(after.min(steps.len()), Step::Gap(why));
    }
    let mut entries = Entries { list: Vec::new(), known: HashMap::new(), most: MAX_INNER_FRAMES };
    let mut inner = Vec::new();
    let mut next = 0;
    while let Some(&step) = steps.get(next).filter(|_| inner.len() < MAX_CRASH_INNER) {
        let Some(found) = entries.of(step, time, profile, resolver) else { break };
        inner.extend_from_slice(found);
        next += 1;
    }
    entries.most = MAX_CRASH_FRAMES;
    let mut outer: Vec<u32> = Vec::new();
    let mut end = steps.len();
    while let Some(&step) = steps.get(end.wrapping_sub(1)).filter(|_| end > next && outer.len() < MAX_CRASH_OUTER) {
        let Some(found) = entries.of(step, time, profile, resolver) else { break };
        outer.extend(found.iter().rev());
        end -= 1;
    }
    // What is inlined into frames that are left out is not counted: nobody has looked.
    let left_out = end.saturating_sub(next) as u64;
    // Not more than there is room for, even if the last frame was many functions.
    inner.truncate(MAX_CRASH_INNER);
    outer.truncate(MAX_CRASH_OUTER);
    let left_out_after = if left_out > 0 { inner.len() as u32 } else { 0 };
    let Death { pid, tid, process, thread, signal, code } = death;
    Crash {
        unix_ns: unix_ns(time),
        pid,
        tid,
        process,
        thread,
        signal,
        code,
        frames: entries.list,
        stack: inner.into_iter().chain(outer.into_iter().rev()).collect(),
        left_out_after,
        left_out,
        truncated: match root {
            Root::Complete => None,
            Root::Truncated(why) => Some(why.text().to_owned()),
        },
    }
}

/// Every different entry once.
struct Entries {
    list: Vec<FrameInfo>,
    /// The entries of a step, innermost first.
    known: HashMap<Step, Vec<u32>>,
    /// How many there may be.
    most: usize,
}

impl Entries {
    /// The entries of a step, innermost first; `None` if there is no room for them.
    fn of(&mut self, step: Step, time: u64, profile: &mut Profile, resolver: &mut Resolver) -> Option<&[u32]> {
        if !self.known.contains_key(&step) {
            let new = match step {
                Step::Frame(frame) => functions(frame, time, profile, resolver),
                Step::Gap(why) => vec![gap(profile, why)],
            };
            if self.list.len() + new.len() > self.most {
                return None;
            }
            let first = self.list.len() as u32;
            let numbers = (first..).take(new.len()).collect();
            self.list.extend(new);
            self.known.insert(step, numbers);
        }
        self.known.get(&step).map(Vec::as_slice)
    }
}

/// The functions of a frame, innermost first.
fn functions(frame: Frame, time: u64, profile: &mut Profile, resolver: &mut Resolver) -> Vec<FrameInfo> {
    let resolved = resolver.resolve(profile, frame, time);
    let centres: Vec<CostCentreId> = resolver.cost_centres(&resolved).iter().rev().copied().collect();
    let functions = resolver.functions(frame);
    let innermost = profile.line(resolved.line).filter(|_| resolved.line != LineId::UNKNOWN);
    let fallback = innermost.map(|line| (line.file.to_string(), line.line));
    centres
        .iter()
        .enumerate()
        .map(|(at, &centre)| {
            let function = functions.get(at).filter(|_| functions.len() == centres.len());
            let (file, line) = match function {
                Some(function) => (function.file.as_deref().map(str::to_owned), function.line),
                None => fallback.clone().filter(|_| at == 0).map_or((None, 0), |(file, line)| (Some(file), line)),
            };
            let inlined = function.is_some_and(|function| function.inlined);
            FrameInfo { file, line, inlined, address: frame.address, ..named(profile, centre) }
        })
        .collect()
}

/// The place where frames may be missing.
fn gap(profile: &mut Profile, why: TruncationReason) -> FrameInfo {
    let centre = profile.gap_cost_centre(why);
    FrameInfo { image: String::new(), ..named(profile, centre) }
}

fn named(profile: &Profile, centre: CostCentreId) -> FrameInfo {
    let real = profile.real(centre);
    FrameInfo {
        function: profile.name(real).into_owned(),
        image: profile.image_name(real).to_owned(),
        function_id: real.get(),
        ..FrameInfo::default()
    }
}

/// The time of day at a moment of `CLOCK_MONOTONIC`, a short while ago.
fn unix_ns(time: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX).saturating_sub(now_ns().saturating_sub(time))
}
