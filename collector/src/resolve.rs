//! From frames to cost centres, each distinct frame once.
//!
//! The answer is a run of cost centres, because of inlining. Up to [`Budget::addresses`] answers are remembered; then
//! all are
//! forgotten.

mod generated;
mod image_symbols;
mod images;
mod kernel;
mod kernel_store;
mod reading_time;

use std::hash::BuildHasher;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ccsd_profile::{CostCentre, CostCentreId, Image, ImageId, LineId, Payer, Profile, ProfileLimits, Shed, notes};
use ccsd_symbolizer::{DebugFileFinder, Door, Function};
use ccsd_worker::{Principal, Told};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::budget::{Budget, Used};
use crate::deadline::Deadline;
use crate::function_names::cost_centre;
use crate::process::images::{ImageIndex, MappedImage};
use crate::process::shared_room::SharedRoom;
use crate::system;
use crate::unwind::Frame;
use crate::usage::{Aside, aside, aside_briefly};
use image_symbols::{DroppedImages, ImageSymbols, Rereading, SymbolBatch};
use kernel::KernelNames;
use reading_time::ReadingTime;

/// Frames resolved between checks of what images hold: adding up costs as much as resolving ten. Also checked after
/// reading an image.
const FRAMES_PER_CHECK: u64 = 512;

/// Addresses of an image that stand for themselves if neither symbols nor unwind tables tell the function. All others
/// are one function.
const MAX_BARE_ADDRESSES: u32 = 1024;

/// For how long a frame goes without a name where there was nobody to ask, nanoseconds.
const RETRY_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug)]
pub struct Resolved {
    centres: Centres,
    pub line: LineId,
    pub named: bool,
    /// Until when this is right, nanoseconds: code that is generated may be replaced.
    pub until: u64,
}

/// The cost centres of a frame. Most have one, which is then not to be fetched from elsewhere.
#[derive(Clone, Copy, Debug)]
enum Centres {
    One(CostCentreId),
    /// Their place in the arena, outermost first.
    Run {
        first: u32,
        count: u16,
    },
}

// There is one for each address, and each new frame of a sample looks for one.
const _: () = assert!(size_of::<Resolved>() == 24);

/// Resolves frames, and enters images, cost centres and lines into a profile.
pub struct Resolver {
    budget: Budget,
    images: Vec<ImageSymbols>,
    /// `None` where no kernel frames are expected.
    kernel: Option<KernelNames>,
    known: HashMap<Frame, Resolved, FxBuildHasher>,
    arena: Vec<CostCentreId>,
    arena_lines: Vec<LineId>,
    functions: Vec<Function>,
    batch: SymbolBatch,
    /// Frames resolved so far, each once.
    resolved: u64,
    /// Images of generated code whose process lives.
    jit_images: Vec<ImageIndex>,
    /// Bytes that their names take.
    generated: SharedRoom,
    /// Changes whenever frames of generated code may have got another answer.
    generation: u32,
    /// Samples that ended in code that has got a name since, and were counted as nameless.
    named_later: u64,
    left: DroppedImages,
    rereading: Rereading,
    reading_time: ReadingTime,
    /// By which other users' processes are asked for the files with the names of their code.
    deadline: Deadline,
    /// The same for debug files, where this process opens them while it reads images.
    deadline_of_files: Arc<Mutex<Deadline>>,
    /// Through which the session opens files; it knows what was withheld.
    door: Door,
}

impl Resolved {
    fn one(centre: CostCentreId, named: bool, until: u64) -> Resolved {
        Resolved { centres: Centres::One(centre), line: LineId::UNKNOWN, named, until }
    }
}

impl Resolver {
    /// A resolver; `kernel` says whether there will be kernel frames.
    pub fn new(kernel: bool, budget: &Budget) -> Resolver {
        Resolver {
            budget: budget.clone(),
            images: Vec::new(),
            kernel: kernel.then(|| aside(Aside::KernelNames, KernelNames::new)),
            known: HashMap::default(),
            arena: Vec::new(),
            arena_lines: Vec::new(),
            functions: Vec::new(),
            batch: SymbolBatch::default(),
            resolved: 0,
            jit_images: Vec::new(),
            generated: SharedRoom::new(budget.generated_code as u64),
            generation: 0,
            named_later: 0,
            left: DroppedImages::default(),
            rereading: Rereading::default(),
            reading_time: ReadingTime::default(),
            deadline: Deadline::default(),
            deadline_of_files: Arc::default(),
            door: Door::default(),
        }
    }

    /// Says through which door the session opens files. A user who may not know kernel addresses gets no kernel names.
    #[must_use]
    pub fn through(mut self, door: Door) -> Resolver {
        if door.user().is_some() && !system::kernel_symbols_are_public() && self.kernel.take().is_some() {
            door.withhold("/proc/kallsyms, with the names of the kernel's functions");
        }
        if let Some(user) = door.user() {
            self.reading_time.set_user(user.uid);
            self.deadline = Deadline::of(user.uid);
            self.deadline_of_files = Arc::new(Mutex::new(Deadline::of(user.uid)));
        }
        self.door = door;
        self
    }

    /// Says that samples are taken from now on: what names cost, the session's target pays.
    pub fn begin(&mut self) {
        self.rereading.began = Some(Instant::now());
        self.reading_time.begin();
    }

    /// Enters the next image, in order of [`ImageIndex`].
    pub fn add_image(&mut self, profile: &mut Profile, image: MappedImage) {
        let id = self.enter_image(profile, &image);
        let MappedImage { name, elf, key, debug, debug_user, payer, .. } = image;
        let was_read = elf.is_some();
        self.images.push(ImageSymbols {
            id,
            name,
            lacks_lines: ImageSymbols::lines_may_come(elf.as_ref()),
            elf,
            key,
            payer,
            was_read,
            debug,
            debug_user,
            names: None,
            jit: None,
            used: 0,
            bare_addresses: 0,
            drops: 0,
            is_slow: false,
        });
    }

    /// Frees what is kept of an image. What is known of its frames stays known.
    pub fn close(&mut self, index: ImageIndex) {
        if let Some(image) = self.images.get_mut(index.0 as usize) {
            self.left.drop_names(image);
            (image.elf, image.debug) = (None, DebugFileFinder::none());
        }
    }

    /// Gives an image its files back, or those that it could not be read from before.
    pub fn reopen(&mut self, profile: &mut Profile, index: ImageIndex, from: MappedImage) {
        let Some(image) = self.images.get(index.0 as usize) else { return };
        // Addresses in one that was not read were offsets in its file, and nameless; who paid before may have had no room for
        // names.
        let is_new = !image.was_read || image.payer != from.payer;
        let id = is_new.then(|| self.enter_image(profile, &from));
        let Some(image) = self.images.get_mut(index.0 as usize) else { return };
        self.left.drop_names(image);
        image.payer = from.payer;
        (image.elf, image.key) = (from.elf, from.key);
        (image.debug, image.debug_user) = (from.debug, from.debug_user);
        image.lacks_lines = ImageSymbols::lines_may_come(image.elf.as_ref());
        image.was_read |= image.elf.is_some();
        if let Some(id) = id {
            image.id = id;
            self.known.retain(|frame, _| frame.image != index);
        }
    }

    /// Enters an image into the profile, where path and build id identify it. What a user shows to his processes at a path is
    /// not what this machine has there: it is known by his number, too, and no path begins so.
    fn enter_image(&self, profile: &mut Profile, image: &MappedImage) -> ImageId {
        let build_id = image.elf.as_ref().and_then(|elf| elf.build_id()).map(<[u8]>::to_vec).unwrap_or_default();
        let name = match image.shown_by {
            Some(Principal::User(user)) => format!("user {user}:{}", image.name),
            _ => image.name.clone(),
        };
        profile.paid_by(self.payer(image.payer), |profile| profile.add_image(Image { name, build_id }))
    }

    /// Who pays in the profile for what somebody has it enter; `None` for root and the session's own user.
    pub fn payer(&self, principal: Principal) -> Option<Payer> {
        self.deadline.is_other(principal).then(|| Payer(FxBuildHasher.hash_one(principal)))
    }

    /// What is remembered and kept of images in this process, bytes, about. The kernel's names are shared by all sessions.
    pub fn held_bytes(&self) -> u64 {
        let known = self.known.capacity() * size_of::<(Frame, Resolved)>();
        let arena = self.arena.capacity() * (size_of::<CostCentreId>() + size_of::<LineId>());
        self.image_bytes().saturating_add((known + arena + self.generated_bytes()) as u64)
    }

    /// Gives room that is not used here to the contexts and charges of `profile`, whose limits then are these.
    pub fn lend(&mut self, profile: &Profile) -> ProfileLimits {
        let used = Used {
            name_bytes: profile.name_bytes(),
            functions: profile.cost_centres().len(),
            generated_code: self.generated_bytes(),
            debug_information: self.image_bytes(),
        };
        self.budget.lend(&used).clone()
    }

    /// What a frame is.
    #[inline]
    pub fn resolve(&mut self, profile: &mut Profile, frame: Frame, time: u64) -> Resolved {
        match self.known.get(&frame) {
            Some(resolved) => *resolved,
            None if self.is_jit(frame.image) => self.resolve_jit(profile, frame, time),
            None => self.resolve_new(profile, frame, time),
        }
    }

    fn is_jit(&self, index: ImageIndex) -> bool {
        self.images.get(index.0 as usize).is_some_and(|image| image.jit.is_some())
    }

    /// The cost centres of a frame, outermost first, until the next one is resolved.
    #[inline]
    pub fn cost_centres<'a>(&'a self, resolved: &'a Resolved) -> &'a [CostCentreId] {
        match &resolved.centres {
            Centres::One(centre) => std::slice::from_ref(centre),
            Centres::Run { first, count } => {
                let first = *first as usize;
                self.arena.get(first..first + usize::from(*count)).unwrap_or_default()
            }
        }
    }

    /// The same with their source lines: where each ran or, of all but the innermost, called the next.
    #[inline]
    pub fn sites<'a>(&'a self, resolved: &'a Resolved) -> impl Iterator<Item = (CostCentreId, LineId)> + 'a {
        let lines = match &resolved.centres {
            Centres::One(_) => std::slice::from_ref(&resolved.line),
            Centres::Run { first, count } => {
                let first = *first as usize;
                self.arena_lines.get(first..first + usize::from(*count)).unwrap_or_default()
            }
        };
        self.cost_centres(resolved).iter().copied().zip(lines.iter().copied())
    }

    /// The functions of a frame, innermost first, with source lines: its own and those inlined. None without symbols.
    /// Not remembered.
    pub fn functions(&mut self, frame: Frame) -> &[Function] {
        self.find_functions(frame);
        &self.functions
    }

    /// Whether two frames are of one function, whatever was inlined there.
    pub fn is_one_function(&mut self, a: Frame, b: Frame) -> bool {
        let mut start = |frame| self.functions(frame).last().and_then(|function| function.start);
        a == b || a.image == b.image && start(a).is_some_and(|function| start(b) == Some(function))
    }

    #[cold]
    fn resolve_new(&mut self, profile: &mut Profile, frame: Frame, time: u64) -> Resolved {
        let payer = self.images.get(frame.image.0 as usize).map_or(Principal::Own, |image| image.payer);
        profile.paid_by(self.payer(payer), |profile| self.resolve_in_image(profile, frame, time))
    }

    fn resolve_in_image(&mut self, profile: &mut Profile, frame: Frame, time: u64) -> Resolved {
        if self.known.len() >= self.budget.addresses || self.arena.len() >= 2 * self.budget.addresses {
            self.known.clear();
            self.arena.clear();
            self.arena_lines.clear();
            profile.accounting_mut().count_shed(Shed::Addresses);
        }
        self.resolved += 1;
        if std::mem::take(&mut self.left.loaded) || self.resolved.is_multiple_of(FRAMES_PER_CHECK) {
            self.bound_symbols(profile);
        }
        let first = self.arena.len();
        let (line, named) = if frame.image == ImageIndex::KERNEL {
            self.kernel_frame(profile, frame.address)
        } else if aside_briefly(Aside::Images, || self.find_functions(frame)) != Told::Known {
            let (centre, _) = self.bare(profile, frame);
            return Resolved::one(centre, false, time.saturating_add(RETRY_NS));
        } else {
            self.user_frame(profile, frame)
        };
        let centres = match self.arena.len() - first {
            1 => {
                self.arena_lines.pop();
                Centres::One(self.arena.pop().unwrap_or(CostCentreId::ELIDED))
            }
            // The symbolizer gives a few hundred at most.
            count => Centres::Run { first: first as u32, count: u16::try_from(count).unwrap_or(u16::MAX) },
        };
        let resolved = Resolved { centres, line, named, until: u64::MAX };
        self.known.insert(frame, resolved);
        resolved
    }

    fn nameless(&self, frame: Frame) -> CostCentre {
        let image = self.images.get(frame.image.0 as usize).map_or(ImageId::new(0), |image| image.id);
        CostCentre { image, linkage_name: None, display_name: None, start: None, file: None, line: 0, local: false }
    }

    /// The function of a frame that is in none known: its address stands for it, as long as they are few.
    fn bare(&mut self, profile: &mut Profile, frame: Frame) -> (CostCentreId, LineId) {
        let nameless = self.nameless(frame);
        let known = profile.find_cost_centre(nameless.image, None, Some(frame.address), None);
        let image = self.images.get_mut(frame.image.0 as usize).filter(|image| image.elf.is_some());
        let is_told = image.is_some_and(|image| {
            let has_room = image.bare_addresses < MAX_BARE_ADDRESSES;
            image.bare_addresses += u32::from(has_room && known.is_none());
            has_room || known.is_some()
        });
        let start = is_told.then_some(frame.address);
        let line = if is_told { profile.add_offset(0) } else { LineId::UNKNOWN };
        (profile.add_cost_centre(CostCentre { start, ..nameless }), line)
    }

    fn user_frame(&mut self, profile: &mut Profile, frame: Frame) -> (LineId, bool) {
        if self.functions.is_empty() {
            let (centre, line) = self.bare(profile, frame);
            self.arena.push(centre);
            self.arena_lines.push(line);
            return (line, false);
        }
        let Some(image) = self.images.get_mut(frame.image.0 as usize) else { return (LineId::UNKNOWN, false) };
        image.lacks_lines &= self.functions.iter().all(|function| function.file.is_none());
        let mut line = LineId::UNKNOWN;
        for function in self.functions.iter().rev() {
            // Most are known already, by other addresses.
            let local = function.local.then_some((function.decl_file.as_deref(), function.decl_line));
            let known = profile.find_cost_centre(image.id, function.linkage_name.as_deref(), function.start, local);
            let centre = known.unwrap_or_else(|| profile.add_cost_centre(cost_centre(image.id, function)));
            self.arena.push(centre);
            // An offset counts from the start that the profile keeps: the first of several functions of one name.
            let keeps_offset = || match &function.linkage_name {
                None => true,
                Some(name) => {
                    let start = || profile.cost_centre(centre).and_then(|centre| centre.start);
                    image.lacks_lines && !ccsd_symbolizer::is_stub(name) && start() == function.start
                }
            };
            line = match (&function.file, function.start) {
                (Some(file), _) if function.line > 0 => profile.add_line(file, function.line),
                // For debug information that is found later.
                (None, Some(start)) if frame.address >= start && keeps_offset() => {
                    profile.add_offset(frame.address - start)
                }
                _ => LineId::UNKNOWN,
            };
            self.arena_lines.push(line);
        }
        (line, self.functions[0].linkage_name.is_some())
    }

    fn kernel_frame(&mut self, profile: &mut Profile, address: u64) -> (LineId, bool) {
        let symbols = self.kernel.as_mut().map(|names| aside_briefly(Aside::KernelNames, || names.symbols(address)));
        // What the names of a module, or those that were kept, need is made when the first is looked for.
        let lookup = || symbols.as_ref().and_then(|symbols| symbols.as_ref().as_ref().ok()?.lookup(address));
        let function = aside_briefly(Aside::KernelNames, lookup);
        let image = self.images.get(ImageIndex::KERNEL.0 as usize).map_or(ImageId::new(0), |image| image.id);
        let named = function.is_some();
        self.arena.push(profile.add_cost_centre(CostCentre {
            image,
            linkage_name: function.as_ref().map(|function| match function.module {
                Some(module) => format!("{} [{module}]", function.name),
                None => function.name.to_owned(),
            }),
            display_name: None,
            start: Some(function.as_ref().map_or(address, |function| function.definition.unwrap_or(function.offset))),
            file: None,
            line: 0,
            local: function.as_ref().is_some_and(|function| function.definition.is_some()),
        }));
        self.arena_lines.push(LineId::UNKNOWN);
        (LineId::UNKNOWN, named)
    }

    /// What the images' symbols could not give, one line each.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        let kernel = self.kernel.as_ref().and_then(KernelNames::trouble);
        let kernel = kernel.map(|why| format!("{}: {why}", notes::NAMELESS_KERNEL));
        kernel.into_iter().chain(self.door.notes()).chain(self.reading_time.notes()).chain(self.image_notes())
    }
}
