//! A process that a signal has killed, with names and source lines.

use std::time::{SystemTime, UNIX_EPOCH};

use ccsd_profile::origin::{Origin, Origins};
use ccsd_profile::{
    CostCentreId, Crash, EarlierStack, FrameInfo, LineId, MAX_CRASH_FRAMES, MAX_CRASH_INNER, MAX_CRASH_OUTER, Profile,
    TruncationReason,
};
use hashbrown::{HashMap, HashSet};

use crate::batch::Death;
use crate::clock::now_ns;
use crate::resolve::Resolver;
use crate::unwind::{Frame, StackRoot};

/// Different entries that the inner part of a stack may take, so that some are left for the outer part.
const MAX_INNER_FRAMES: usize = MAX_CRASH_FRAMES / 4 * 3;

/// Frames next to the place where a stack was cut short that are looked for in the thread's last one.
const MAX_COMPARED: usize = 1024;
/// Outermost frames of the last stack that are looked at to see what starts the program or the thread.
const MAX_STARTUP: usize = 16;

pub struct WholeStack {
    pub frames: Vec<Frame>,
    /// After how many of them some may be missing, and why.
    pub gap: Option<(usize, TruncationReason)>,
    pub root: StackRoot,
    /// Where it was cut short: the thread's last stack, outermost first.
    pub earlier: Vec<Frame>,
    /// How old that is, nanoseconds.
    pub age_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum FrameOrGap {
    Frame(Frame),
    Gap(TruncationReason),
}

/// Names what was found at `time` (`CLOCK_MONOTONIC`, nanoseconds).
pub fn tell(death: Death, stack: WholeStack, time: u64, profile: &mut Profile, resolver: &mut Resolver) -> Crash {
    let WholeStack { frames, gap, root, earlier, age_ns } = stack;
    let earlier = callers(&frames, gap.map(|(after, _)| after), &earlier, time, profile, resolver);
    let mut steps: Vec<FrameOrGap> = frames.into_iter().map(FrameOrGap::Frame).collect();
    if let Some((after, why)) = gap {
        steps.insert(after.min(steps.len()), FrameOrGap::Gap(why));
    }
    let mut entries = DistinctFrames { list: Vec::new(), known: HashMap::new(), most: MAX_INNER_FRAMES };
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
    // Functions inlined into omitted frames are not counted: they were not looked up.
    let left_out = end.saturating_sub(next) as u64;
    // Within the limit, even if the last frame was many functions.
    inner.truncate(MAX_CRASH_INNER);
    outer.truncate(MAX_CRASH_OUTER);
    let left_out_after = if left_out > 0 { inner.len() as u32 } else { 0 };
    let mut earliest: Vec<u32> = Vec::new();
    for &frame in earlier.iter().take(MAX_CRASH_OUTER) {
        let Some(found) = entries.of(FrameOrGap::Frame(frame), time, profile, resolver) else { break };
        earliest.extend(found.iter().rev());
    }
    earliest.truncate(MAX_CRASH_OUTER);
    earliest.reverse();
    let earlier = (!earliest.is_empty()).then_some(EarlierStack { age_ns, stack: earliest });
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
            StackRoot::Complete => None,
            StackRoot::Truncated(why) => Some(why.text().to_owned()),
        },
        earlier,
    }
}

/// The part of the last stack `earlier`, outermost first, that may have called the present one: up to the outermost
/// frame of a function that is next to the cut in the present stack. With none in common, the start of the program or
/// thread and the first function after it.
fn callers<'a>(
    frames: &[Frame],
    gap_after: Option<usize>,
    earlier: &'a [Frame],
    time: u64,
    profile: &mut Profile,
    resolver: &mut Resolver,
) -> &'a [Frame] {
    let mut function = |frame: Frame, profile: &mut Profile| {
        let resolved = resolver.resolve(profile, frame, time);
        resolver.cost_centres(&resolved).first().map(|&centre| profile.real(centre))
    };
    // The innermost frames call what is called everywhere.
    let found = frames.len() - gap_after.unwrap_or(0).min(frames.len());
    let compared = found.div_ceil(2).min(MAX_COMPARED);
    let outermost = frames.iter().rev().take(compared);
    let known: HashSet<CostCentreId> = outermost.filter_map(|&frame| function(frame, profile)).collect();
    // Where the last stack was interrupted is called from everywhere, too.
    let calling = earlier.split_last().map_or(earlier, |(_, calling)| calling);
    let common = calling.iter().position(|&frame| function(frame, profile).is_some_and(|id| known.contains(&id)));
    if let Some(at) = common {
        return earlier.get(..=at).unwrap_or_default();
    }
    let first: Vec<Option<CostCentreId>> =
        earlier.iter().take(MAX_STARTUP).map(|&frame| function(frame, profile)).collect();
    let origins = Origins::of(profile);
    let is_startup = |id: &Option<CostCentreId>| id.is_some_and(|id| origins.get(id) == Origin::Startup);
    match first.iter().take_while(|id| is_startup(id)).count() {
        0 => &[],
        startup => earlier.get(..earlier.len().min(startup + 1)).unwrap_or_default(),
    }
}

struct DistinctFrames {
    list: Vec<FrameInfo>,
    known: HashMap<FrameOrGap, Vec<u32>>,
    most: usize,
}

impl DistinctFrames {
    /// The entries of a step, innermost first; `None` if they do not fit.
    fn of(&mut self, step: FrameOrGap, time: u64, profile: &mut Profile, resolver: &mut Resolver) -> Option<&[u32]> {
        if !self.known.contains_key(&step) {
            let new = match step {
                FrameOrGap::Frame(frame) => functions(frame, time, profile, resolver),
                FrameOrGap::Gap(why) => vec![gap(profile, why)],
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

fn gap(profile: &mut Profile, why: TruncationReason) -> FrameInfo {
    let centre = profile.gap_cost_centre(why);
    FrameInfo { image: String::new(), ..named(profile, centre) }
}

fn named(profile: &Profile, centre: CostCentreId) -> FrameInfo {
    let real = profile.real(centre);
    FrameInfo {
        function: profile.name(real).into_owned(),
        image: profile.image_name(real).into_owned(),
        function_id: real.get(),
        ..FrameInfo::default()
    }
}

/// The time of day at a moment of `CLOCK_MONOTONIC`, a short while ago.
fn unix_ns(time: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX).saturating_sub(now_ns().saturating_sub(time))
}
