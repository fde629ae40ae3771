//! Stacks of every kind of code without a process: registers, stack words and a module of a few bytes each. Code is
//! written as bytes, so that each case is exact; end-to-end tests have the same kinds in running programs.

use std::cell::Cell;

use ccsd_symbolizer::ElfFile;
use gimli::X86_64 as R;

use super::table_bytes::{push_cie, push_fde};
use super::*;
use crate::arch::user_regs::{OTHERS, UserRegs};
use crate::process::ProcessKey;
use crate::process::mappings::Mapping;

#[path = "recorded_go.rs"]
mod go;

/// Where the module is loaded; its code has the stated address `CODE`.
const BASE: u64 = 0x5555_0000_0000;
const CODE: u64 = 0x1000;
const SP: u64 = 0x7ffe_0000_1000;

/// A function of the module: code, and its unwind table's instructions, if any. All begin at multiples of 16 with traps
/// between, as compilers lay them out.
type ModuleFunction<'a> = (&'a [u8], Option<&'a [u8]>);

/// `DW_CFA_undefined rip`: nothing calls the function.
const OUTERMOST: &[u8] = &[0x07, 16];
const LEAF: &[u8] = &[];

#[derive(Default)]
struct ModuleBuilder {
    sections: Vec<(&'static str, u64, Vec<u8>)>,
    starts: Vec<u64>,
    /// What the kernel finds at the return addresses that frame pointers lead to, after the instruction pointer.
    chain: Vec<u64>,
    gap: Cell<Option<u32>>,
}

impl ModuleBuilder {
    fn new(functions: &[ModuleFunction<'_>]) -> ModuleBuilder {
        let (mut code, mut frames, mut starts) = (Vec::new(), Vec::new(), Vec::new());
        let cie = push_cie(&mut frames);
        for (bytes, table) in functions {
            let start = CODE + code.len() as u64;
            starts.push(start);
            if let Some(table) = table {
                push_fde(&mut frames, cie, start, bytes.len() as u64, table);
            }
            code.extend(*bytes);
            // There are always traps between two.
            code.push(0xcc);
            code.resize(code.len().next_multiple_of(16), 0xcc);
        }
        ModuleBuilder {
            sections: vec![(".text", CODE, code), (".debug_frame", 0, frames)],
            starts,
            ..ModuleBuilder::default()
        }
    }

    fn with(mut self, name: &'static str, svma: u64, bytes: Vec<u8>) -> ModuleBuilder {
        self.sections.push((name, svma, bytes));
        self
    }

    fn elf(&self) -> ElfFile {
        let put = |file: &mut Vec<u8>, fields: &[(usize, u64)]| {
            for &(size, value) in fields {
                file.extend(&value.to_le_bytes()[..size]);
            }
        };
        let mut body = vec![0u8; CODE as usize];
        let mut placed = Vec::new();
        for (_, _, bytes) in &self.sections {
            body.resize(body.len().next_multiple_of(16), 0);
            placed.push(body.len() as u64);
            body.extend(bytes);
        }
        let names_at = body.len() as u64;
        let mut name_offsets = Vec::new();
        body.push(0);
        for name in self.sections.iter().map(|section| section.0).chain([".shstrtab"]) {
            name_offsets.push(body.len() as u64 - names_at);
            body.extend(name.as_bytes());
            body.push(0);
        }
        let names_size = body.len() as u64 - names_at;
        let headers_at = body.len() as u64;
        put(&mut body, &[(8, 0); 8]);
        let section = |name, kind, flags, svma, at, size| {
            [(4, name), (4, kind), (8, flags), (8, svma), (8, at), (8, size), (4, 0), (4, 0), (8, 1), (8, 0)]
        };
        for (i, (name, svma, bytes)) in self.sections.iter().enumerate() {
            let flags = if *name == ".text" { 6 } else { 2 };
            put(&mut body, &section(name_offsets[i], 1, flags, *svma, placed[i], bytes.len() as u64));
        }
        let last = self.sections.len();
        put(&mut body, &section(name_offsets[last], 3, 0, 0, names_at, names_size));
        let mut header = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        put(&mut header, &[(2, 3), (2, 62), (4, 1), (8, 0), (8, 64), (8, headers_at), (4, 0)]);
        put(&mut header, &[(2, 64), (2, 56), (2, 1), (2, 64), (2, last as u64 + 2), (2, last as u64 + 1)]);
        // PT_LOAD, readable and executable: the whole code, at its own offset.
        let code = self.sections[0].2.len() as u64;
        put(&mut header, &[(4, 1), (4, 5), (8, CODE), (8, CODE), (8, CODE), (8, code), (8, code), (8, 0x1000)]);
        body[..header.len()].copy_from_slice(&header);
        ElfFile::from_bytes(body).unwrap()
    }

    /// Unwinds a sample at an offset in a function with these stack words from `SP` on and other registers. Returns
    /// frames as (function, offset), and the root.
    fn unwind(
        &self,
        at: (usize, u64),
        words: &[u64],
        registers: &[(gimli::Register, u64)],
    ) -> (Vec<(usize, u64)>, StackRoot) {
        let (frames, root, _) = self.unwind_twice(at, words, registers);
        (frames, root)
    }

    /// The same, and how many frames were unwound for the same sample again: all others must be shared.
    fn unwind_twice(
        &self,
        at: (usize, u64),
        words: &[u64],
        registers: &[(gimli::Register, u64)],
    ) -> (Vec<(usize, u64)>, StackRoot, usize) {
        self.unwind_by(&mut StackUnwinder::default(), 0, at, words, registers)
    }

    /// The same by an unwinder, which may have done other things before, at a time (nanoseconds).
    fn unwind_by(
        &self,
        unwinder: &mut StackUnwinder,
        time: u64,
        at: (usize, u64),
        words: &[u64],
        registers: &[(gimli::Register, u64)],
    ) -> (Vec<(usize, u64)>, StackRoot, usize) {
        let (images, mut mappings) = self.load();
        let mut regs = UserRegs { ip: BASE + self.starts[at.0] + at.1, sp: SP, ..UserRegs::default() };
        for &(register, value) in registers {
            match OTHERS.iter().position(|&number| number == register.0) {
                Some(position) => regs.others[position] = value,
                None => regs.bp = value,
            }
        }
        let chain: Vec<u8> = [&regs.ip].into_iter().chain(&self.chain).flat_map(|word| word.to_le_bytes()).collect();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let sample = Sample {
            id: 1,
            pid: u32::MAX - 10,
            tid: u32::MAX - 10,
            time,
            period: 1,
            group_value: None,
            kernel_chain: Bytes::new(&[]),
            user_chain: Bytes::new(&chain),
            regs: Some(regs),
            has_user_state: true,
            stack: Bytes::new(&bytes),
            stack_full: false,
        };
        let (mut frames, mut again) = (Vec::new(), Vec::new());
        let mut shadow = ShadowStack::default();
        let mut goroutines = GoroutineTable::default();
        let mut unwind = |frames: &mut Vec<Frame>| {
            let target = UnwindTarget {
                mappings: &mut mappings,
                process: ProcessKey(0),
                owner: None,
                goroutines: &mut goroutines,
                images: &images,
            };
            unwinder.unwind(&sample, target, &mut shadow, true, frames)
        };
        let Unwound { root, gap, .. } = unwind(&mut frames);
        // Frames met for the first time are left in another way.
        unwind(&mut again);
        let Unwound { root: root_again, common, gap: gap_again } = unwind(&mut again);
        assert_eq!((root_again, gap_again, common.shared), (root, gap, 0));
        self.gap.set(gap.map(|gap| gap.outer));
        assert_eq!(again, frames[..frames.len() - common.own as usize]);
        (frames.iter().map(|frame| self.place(frame.address)).collect(), root, again.len())
    }

    fn load(&self) -> (Images, Mappings) {
        let mut images = Images::default();
        let image = images.insert_for_test(self.elf());
        let mut mappings = Mappings::default();
        let (start, end) = (BASE + CODE, BASE + CODE + self.sections[0].2.len() as u64);
        mappings.insert(Mapping { start, end, image, to_svma: BASE.wrapping_neg(), has_offsets: false });
        (images, mappings)
    }

    fn unwind_sample(&self, regs: UserRegs, pid: u32, stack: &[u8]) -> (Vec<(usize, u64)>, StackRoot) {
        let (images, mut mappings) = self.load();
        let sample = Sample {
            id: 1,
            pid,
            tid: pid,
            time: crate::clock::now_ns(),
            period: 1,
            group_value: None,
            kernel_chain: Bytes::new(&[]),
            user_chain: Bytes::new(&[]),
            regs: Some(regs),
            has_user_state: true,
            stack: Bytes::new(stack),
            stack_full: false,
        };
        let mut goroutines = GoroutineTable::default();
        let target = UnwindTarget {
            mappings: &mut mappings,
            process: ProcessKey(0),
            owner: None,
            goroutines: &mut goroutines,
            images: &images,
        };
        let mut frames = Vec::new();
        let unwound = StackUnwinder::default().unwind(&sample, target, &mut ShadowStack::default(), true, &mut frames);
        (frames.iter().map(|frame| self.place(frame.address)).collect(), unwound.root)
    }

    fn place(&self, address: u64) -> (usize, u64) {
        let function = self.starts.partition_point(|&start| start <= address) - 1;
        (function, address - self.starts[function])
    }

    fn address(&self, function: usize, offset: u64) -> u64 {
        BASE + self.starts[function] + offset
    }
}

/// `call` of something, five bytes, and `hlt`: what calls others in these modules returns to 5.
const CALLER: &[u8] = &[0xe8, 0, 1, 0, 0, 0xf4];
/// The same by a register: it may call anything.
const BY_REGISTER: &[u8] = &[0x90, 0x90, 0x90, 0xff, 0xd0, 0x90];
/// A function that calls none but itself.
const CALLS_ITSELF: &[u8] = &[0xe8, 0xfb, 0xff, 0xff, 0xff, 0xf4];
/// The address that [`CALLER`] is found at.
const IN_CALL: u64 = 4;

#[test]
fn tables() {
    // sub rsp, 24; nop; add rsp, 24; ret, with the table that a compiler gives it
    let framed: &[u8] = &[0x48, 0x83, 0xec, 0x18, 0x90, 0x48, 0x83, 0xc4, 0x18, 0xc3];
    let table: &[u8] = &[0x44, 0x0e, 32, 0x45, 0x0e, 8];
    let module = ModuleBuilder::new(&[(framed, Some(table)), (CALLER, Some(OUTERMOST))]);
    let caller = module.address(1, 5);
    for (offset, words) in [(0, &[caller][..]), (4, &[1, 2, 3, caller]), (5, &[1, 2, 3, caller]), (9, &[caller])] {
        let expected = (vec![(0, offset), (1, IN_CALL)], StackRoot::Complete);
        assert_eq!(module.unwind((0, offset), words, &[]), expected, "{offset}");
    }
    let cut = (vec![(0, 4)], StackRoot::Truncated(TruncationReason::UnknownMapping));
    assert_eq!(module.unwind((0, 4), &[1, 2, 3, 4], &[]), cut);
    let cut = (vec![(0, 4)], StackRoot::Truncated(TruncationReason::StackUnreadable));
    assert_eq!(module.unwind((0, 4), &[1, 2, 3], &[]), cut);
}

#[test]
fn frame_pointers_without_tables() {
    // endbr64; push rbp; mov rbp, rsp; sub rsp, 16; call; leave; ret
    let framed: &[u8] =
        &[0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10, 0xe8, 0, 0, 0, 0, 0xc9, 0xc3];
    let module = ModuleBuilder::new(&[(framed, None), (framed, None), (CALLER, Some(OUTERMOST))]);
    let (middle, caller) = (module.address(1, 17), module.address(2, 5));
    // Where the sample is, the words of the function's own frame, and whether the caller's frame pointer is above these.
    for (offset, own, pushed) in
        [(0, 0, false), (4, 0, false), (5, 0, true), (8, 0, true), (12, 2, true), (17, 2, true), (18, 0, false)]
    {
        let middle_bp = SP + 8 * (own + u64::from(pushed) + 1 + 2);
        let mut words = vec![1; own as usize];
        words.extend(pushed.then_some(middle_bp));
        words.extend([middle, 0, 0, 0xb, caller]);
        // The register is the function's own between the second instruction and the last but one.
        let bp = if (8..18).contains(&offset) { SP + 8 * own } else { middle_bp };
        let expected = (vec![(0, offset), (1, 16), (2, IN_CALL)], StackRoot::Complete);
        assert_eq!(module.unwind((0, offset), &words, &[(R::RBP, bp)]), expected, "{offset}");
    }
}

#[test]
fn assembly_without_tables_between_tables() {
    // push rbx; push rbp; sub rsp, 8; xor ebp, ebp; call rax; add rsp, 8; pop rbp; pop rbx; ret
    let assembly: &[u8] =
        &[0x53, 0x55, 0x48, 0x83, 0xec, 0x08, 0x31, 0xed, 0xff, 0xd0, 0x48, 0x83, 0xc4, 0x08, 0x5d, 0x5b, 0xc3];
    let ret: &[u8] = &[0xc3];
    // call; pop rbp; ret, whose frame is found through rbp: DW_CFA_def_cfa rbp, 16; rbp and rip below
    let through_rbp: &[u8] = &[0xe8, 0, 0, 0, 0, 0x5d, 0xc3];
    let table: &[u8] = &[0x0c, 6, 16, 0x86, 2];
    let module = ModuleBuilder::new(&[
        (ret, Some(LEAF)),
        (assembly, None),
        (through_rbp, Some(table)),
        (CALLER, Some(OUTERMOST)),
    ]);
    let words = [
        module.address(1, 10),
        7,
        SP + 48, // rbp, saved
        3,       // rbx, saved
        module.address(2, 5),
        9,
        0xb,
        module.address(3, 5),
    ];
    let expected = (vec![(0, 0), (1, 9), (2, IN_CALL), (3, IN_CALL)], StackRoot::Complete);
    assert_eq!(module.unwind((0, 0), &words, &[(R::RBP, 0)]), expected);
    // What is not behind a call is not believed, though it is code.
    let mut wrong = words;
    wrong[4] = module.address(2, 6);
    let cut = (vec![(0, 0), (1, 9)], StackRoot::Truncated(TruncationReason::NoUnwindInfo));
    assert_eq!(module.unwind((0, 0), &wrong, &[(R::RBP, 0)]), cut);
}

#[test]
fn stubs() {
    // A lazy stub's parts: jmp [rip]; push 0; jmp, with the linkers' table for `.plt`: the frame is at rsp + 8 up to
    // the 11th byte of 16, then at rsp + 16.
    let stub: &[u8] = &[0xff, 0x25, 0, 0, 0, 0, 0x68, 0, 0, 0, 0, 0xe9, 0, 0, 0, 0];
    let table: &[u8] = &[0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
    for table in [Some(table), None] {
        let module = ModuleBuilder::new(&[(stub, table), (CALLER, Some(OUTERMOST))]);
        let caller = module.address(1, 5);
        let expected = |offset| (vec![(0, offset), (1, IN_CALL)], StackRoot::Complete);
        assert_eq!(module.unwind((0, 0), &[caller], &[]), expected(0));
        if table.is_some() {
            assert_eq!(module.unwind((0, 11), &[0, caller], &[]), expected(11));
        }
    }
}

#[test]
fn realigned_frames() {
    // lea r10, [rsp + 8]; and rsp, -64; push [r10 - 8]; push rbp; mov rbp, rsp; push r10; ...; call: GCC's realignment.
    // In the body: DW_CFA_def_cfa_expression (rbp - 8) deref; DW_CFA_expression rbp: rbp + 0
    let code: &[u8] = &[0x90, 0xe8, 0, 0, 0, 0, 0xc3];
    let table: &[u8] = &[0x0f, 3, 0x76, 0x78, 0x06, 0x10, 6, 2, 0x76, 0];
    let module = ModuleBuilder::new(&[(code, Some(table)), (CALLER, Some(OUTERMOST))]);
    // The frame of the function is at SP + 64: it is stored at rbp - 8, and the return address is below it.
    let words = [1, 2, SP + 64, 0xb, 0, 0, 0, module.address(1, 5)];
    let expected = (vec![(0, 0), (1, IN_CALL)], StackRoot::Complete, 1);
    assert_eq!(module.unwind_twice((0, 0), &words, &[(R::RBP, SP + 24)]), expected);
    // What does not lead outwards, or lies elsewhere, is not believed.
    for (at, wrong) in [(2, SP + 16), (2, SP - 8), (7, 0x99)] {
        let mut words = words;
        words[at] = wrong;
        assert!(matches!(module.unwind((0, 0), &words, &[(R::RBP, SP + 24)]).1, StackRoot::Truncated(_)), "{at}");
    }
}

#[test]
fn stacks_that_take_too_long_are_cut() {
    // Frames found by rbx: DW_CFA_def_cfa rbx, 16; rbx at CFA - 16. Each has called the same function.
    let module = ModuleBuilder::new(&[(CALLER, Some(&[0x0c, 3, 16, 0x83, 2])), (CALLER, Some(OUTERMOST))]);
    let frames = |count: u64| -> Vec<u64> {
        (1..=count).flat_map(|i| [SP + 16 * i, module.address(usize::from(i == count), 5)]).collect()
    };
    let mut unwinder = StackUnwinder::default();
    unwinder.allowance.exhaust();
    let mut unwind = |time, count| {
        let (found, root, _) = module.unwind_by(&mut unwinder, time, (0, 5), &frames(count), &[(R::RBX, SP)]);
        (found.len() as u64, root, unwinder.stats().cut_stacks)
    };
    // There is no time at all: a short stack is followed, of a long one the first frames.
    assert_eq!(unwind(0, 20), (21, StackRoot::Complete, 0));
    let (found, root, cut) = unwind(0, 100);
    assert_eq!((root, cut), (StackRoot::Truncated(TruncationReason::TooDeep), 3));
    assert!((20..40).contains(&found), "{found}");
    assert_eq!(unwind(10_000_000_000, 100), (101, StackRoot::Complete, 3));
}

#[test]
fn frames_in_any_register() {
    // DW_CFA_def_cfa r9, 16: OpenSSL has frames in registers that a call would lose.
    let module = ModuleBuilder::new(&[(&[0x90, 0xc3], Some(&[0x0c, 9, 16])), (CALLER, Some(OUTERMOST))]);
    let words = [1, 2, 3, module.address(1, 5)];
    let expected = (vec![(0, 0), (1, IN_CALL)], StackRoot::Complete);
    assert_eq!(module.unwind((0, 0), &words, &[(R::R9, SP + 16)]), expected);
}

#[test]
fn registers_are_carried_through_frames_that_do_not_need_them() {
    // One saves rbx at CFA - 16, one has only its return address, one's frame is at rbx: DW_CFA_def_cfa_offset 24,
    // DW_CFA_offset rbx, 2; nothing; DW_CFA_def_cfa rbx, 16.
    let saves: &[u8] = &[0x0e, 24, 0x83, 2];
    let by_rbx: &[u8] = &[0x0c, 3, 16];
    let module = ModuleBuilder::new(&[
        (CALLER, Some(saves)),
        (CALLER, Some(LEAF)),
        (CALLER, Some(by_rbx)),
        (CALLER, Some(OUTERMOST)),
    ]);
    // At this time there are 32 steps: one for each frame is enough.
    const TIMES: usize = 6;
    let (mut words, mut expected) = (Vec::new(), Vec::new());
    for time in 1..=TIMES {
        // The frame that needs the register is three frames further out than the one that has saved it.
        let rbx = SP + 8 * (words.len() as u64 + 5);
        words.extend([0, rbx, module.address(1, 5), module.address(1, 5), module.address(2, 5)]);
        words.extend([0, module.address(if time < TIMES { 0 } else { 3 }, 5)]);
        expected.extend([(0, IN_CALL), (1, IN_CALL), (1, IN_CALL), (2, IN_CALL)]);
    }
    expected[0] = (0, 5);
    expected.push((3, IN_CALL));
    assert_eq!(module.unwind((0, 5), &words, &[(R::RBX, 7)]), (expected.clone(), StackRoot::Complete));
    words[1] = 7;
    let (frames, root) = module.unwind((0, 5), &words, &[(R::RBX, 7)]);
    assert_eq!((&frames[..], root), (&expected[..4], StackRoot::Truncated(TruncationReason::StackUnreadable)));
}

/// pop rdi; mov eax, 58; syscall; push rdi; ret: `vfork` of glibc and musl. Its child would overwrite the return
/// address.
const VFORK: &[u8] = &[0x5f, 0xb8, 0x3a, 0, 0, 0, 0x0f, 0x05, 0x57, 0xc3];
/// glibc's table for it: the frame is at rsp + 8, then at rsp with rip in rdi; after the push at rsp + 8 again.
const VFORK_TABLE: &[u8] = &[0x41, 0x0e, 0, 0x09, 16, 5, 0x48, 0x0e, 8];

#[test]
fn return_addresses_in_registers() {
    // call; add rsp, 16; ret
    let middle: &[u8] = &[0xe8, 0, 0, 0, 0, 0x48, 0x83, 0xc4, 0x10, 0xc3];
    let module =
        ModuleBuilder::new(&[(VFORK, Some(VFORK_TABLE)), (middle, Some(&[0x0e, 24])), (CALLER, Some(OUTERMOST))]);
    let (back, outer) = (module.address(1, 5), module.address(2, 5));
    for offset in [0, 1, 6, 8, 9] {
        let on_stack = offset == 0 || offset == 9;
        let words: Vec<u64> = on_stack.then_some(back).into_iter().chain([1, 2, outer]).collect();
        let rdi = (R::RDI, if offset == 0 { 7 } else { back });
        let expected = (vec![(0, offset), (1, IN_CALL), (2, IN_CALL)], StackRoot::Complete);
        assert_eq!(module.unwind((0, offset), &words, &[rdi]), expected, "{offset}");
    }
}

#[test]
fn return_addresses_in_registers_lead_nowhere_twice() {
    let functions = [(VFORK, Some(VFORK_TABLE)), (CALLER, Some(&[0x0e, 0, 0x09, 16, 5][..]))];
    let module = ModuleBuilder::new(&functions);
    let bad = StackRoot::Truncated(TruncationReason::BadUnwindInfo);
    let words = [module.address(1, 5); 8];
    let rdi = (R::RDI, module.address(1, 5));
    assert_eq!(module.unwind((0, 8), &words, &[rdi]), (vec![(0, 8), (1, IN_CALL)], bad));
    // One that is kept for callers could be followed for ever: DW_CFA_def_cfa_offset 0; DW_CFA_register rip, rbx
    let module = ModuleBuilder::new(&[(CALLER, Some(&[0x0e, 0, 0x09, 16, 3]))]);
    let rbx = (R::RBX, module.address(0, 5));
    assert_eq!(module.unwind((0, 5), &[0; 8], &[rbx]), (vec![(0, 5)], bad));
}

/// push rbx; push r12; push r13; nop; pop r13; pop r12; pop rbx; ret
const PUSHES: &[u8] = &[0x53, 0x41, 0x54, 0x41, 0x55, 0x90, 0x41, 0x5d, 0x41, 0x5c, 0x5b, 0xc3];

#[test]
fn rows_that_are_wrong_where_the_program_is() {
    // The table says nothing of the pushes, as those of assembly may: the row finds a saved register, whatever that holds.
    let module = ModuleBuilder::new(&[(PUSHES, Some(LEAF)), (CALLER, Some(OUTERMOST))]);
    let outer = module.address(1, 5);
    let expected = (vec![(0, 5), (1, IN_CALL)], StackRoot::Complete);
    // No code; none; code that no call returns to.
    for saved in [1, 0, module.address(1, 2)] {
        assert_eq!(module.unwind((0, 5), &[saved, 2, 3, outer], &[]), expected, "{saved:#x}");
    }
    // Where the row is right it is believed.
    for offset in [0, 11] {
        let expected = (vec![(0, offset), (1, IN_CALL)], StackRoot::Complete);
        assert_eq!(module.unwind((0, offset), &[outer], &[]), expected, "{offset}");
    }
}

#[test]
fn rows_of_callers_that_are_wrong() {
    // push rbx; call; pop rbx; ret, with a table that knows of no push.
    let caller: &[u8] = &[0x53, 0xe8, 0, 0, 0, 0, 0x5b, 0xc3];
    let module = ModuleBuilder::new(&[(CALLER, Some(LEAF)), (caller, Some(LEAF)), (CALLER, Some(OUTERMOST))]);
    let (inner, outer) = (module.address(1, 6), module.address(2, 5));
    let expected = (vec![(0, 5), (1, 5), (2, IN_CALL)], StackRoot::Complete);
    assert_eq!(module.unwind((0, 5), &[inner, 7, outer], &[]), expected);
    let nowhere = StackRoot::Truncated(TruncationReason::UnknownMapping);
    assert_eq!(module.unwind((0, 5), &[inner, 7, 8, 9, 10], &[]), (vec![(0, 5), (1, 5)], nowhere));
}

#[test]
fn frame_pointers_that_the_table_alone_believes_in() {
    // DW_CFA_def_cfa rbp, 16; DW_CFA_offset rbp, 2, in a function that has rbp for something else.
    let module = ModuleBuilder::new(&[(PUSHES, Some(&[0x0c, 6, 16, 0x86, 2])), (CALLER, Some(OUTERMOST))]);
    let outer = module.address(1, 5);
    for bp in [3, 0, SP - 64, SP + (1 << 40)] {
        let found = module.unwind((0, 5), &[1, 2, 3, outer], &[(R::RBP, bp)]);
        assert_eq!(found, (vec![(0, 5), (1, IN_CALL)], StackRoot::Complete), "{bp:#x}");
    }
}

/// A module with the C library's signal trampoline at function 1: augmentation `S`, registers in the kernel's frame.
fn with_signal_frame(functions: &[ModuleFunction<'_>]) -> ModuleBuilder {
    let module = ModuleBuilder::new(functions);
    let start = module.starts[1];
    let mut entry = Vec::new();
    // DW_CFA_def_cfa_expression: (rsp + 160) deref; DW_CFA_expression rip: rsp + 168, rbp: rsp + 120, rsp: rsp + 160
    entry.extend([0x0f, 4, 0x77, 0xa0, 0x01, 0x06]);
    for (register, low, high) in [(16, 0xa8, 0x01), (6, 0xf8, 0x00), (7, 0xa0, 0x01)] {
        entry.extend([0x10, register, 3, 0x77, low, high]);
    }
    // id, version 1, "zRS", alignments 1 and -8, return address in 16, an augmentation of one byte: absolute pointers
    let mut section = vec![20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', b'S', 0, 1, 0x78, 16, 1, 0, 0, 0, 0, 0, 0, 0];
    let length = 4 + 8 + 8 + 1 + entry.len();
    section.extend((length as u32).to_le_bytes());
    section.extend((section.len() as u32).to_le_bytes());
    // From the byte before on, because what is interrupted is looked up at its own address and this at the one before.
    section.extend((start - 1).to_le_bytes());
    section.extend(10u64.to_le_bytes());
    section.push(0);
    section.extend(entry);
    section.extend([0; 4]);
    module.with(".eh_frame", 0x8000, section)
}

/// mov rax, 15; syscall
const RESTORER: &[u8] = &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

/// The words of a signal's frame above the trampoline's return address: those that matter at their places.
fn signal_frame(ip: u64, sp: u64, bp: u64) -> Vec<u64> {
    let mut words = vec![0; 64];
    for (offset, value) in [(168, ip), (160, sp), (120, bp)] {
        words[offset / 8] = value;
    }
    words
}

#[test]
fn signals() {
    let ret: &[u8] = &[0xc3];
    let module =
        with_signal_frame(&[(ret, Some(LEAF)), (RESTORER, None), (ret, Some(LEAF)), (CALLER, Some(OUTERMOST))]);
    let mut words = vec![module.address(1, 0)];
    let interrupted_sp = SP + 8 * 65;
    words.extend(signal_frame(module.address(2, 0), interrupted_sp, 0));
    words.push(module.address(3, 5));
    let (frames, root) = module.unwind((0, 0), &words, &[]);
    // The interrupted function is where it was, at its first instruction.
    assert_eq!(root, StackRoot::Complete);
    assert_eq!((frames[0], &frames[2..]), ((0, 0), &[(2, 0), (3, IN_CALL)][..]));
}

#[test]
fn an_interrupted_function_is_unwound_once() {
    // Below the interrupted function is a deep recursion: `call`, `ret`.
    let ret: &[u8] = &[0xc3];
    let recursive: &[u8] = &[0xe8, 0, 1, 0, 0, 0xc3];
    let functions = [(ret, Some(LEAF)), (RESTORER, None), (recursive, Some(LEAF)), (CALLER, Some(OUTERMOST))];
    let module = with_signal_frame(&functions);
    let mut words = vec![module.address(1, 0)];
    words.extend(signal_frame(module.address(2, 5), SP + 8 * 65, 0));
    words.extend([module.address(2, 5); 1000]);
    words.push(module.address(3, 5));
    let (frames, root, again) = module.unwind_twice((0, 0), &words, &[]);
    assert_eq!((frames.len(), root), (1004, StackRoot::Complete));
    assert_eq!(again, 3, "the handler, the signal's frame, and what that interrupted");
}

#[test]
fn signals_without_a_table() {
    // As in musl, and in Go: the trampoline is known by its instructions.
    let ret: &[u8] = &[0xc3];
    let module =
        ModuleBuilder::new(&[(ret, Some(LEAF)), (RESTORER, None), (ret, Some(LEAF)), (CALLER, Some(OUTERMOST))]);
    let mut words = vec![module.address(1, 0)];
    words.extend(signal_frame(module.address(2, 0), SP + 8 * 65, 0));
    words.push(module.address(3, 5));
    let expected = (vec![(0, 0), (1, 0), (2, 0), (3, IN_CALL)], StackRoot::Complete);
    assert_eq!(module.unwind((0, 0), &words, &[]), expected);
}

#[test]
fn signals_on_their_own_stack() {
    let ret: &[u8] = &[0xc3];
    let module =
        with_signal_frame(&[(ret, Some(LEAF)), (RESTORER, None), (ret, Some(LEAF)), (CALLER, Some(OUTERMOST))]);
    for other_stack in [SP - 0x10_0000, SP + 0x10_0000] {
        let mut words = vec![module.address(1, 0)];
        words.extend(signal_frame(module.address(2, 0), other_stack, 0));
        let (frames, root) = module.unwind((0, 0), &words, &[]);
        // What was interrupted is known from its registers, and its caller is not: its stack is not in the sample.
        assert_eq!((frames.len(), frames[2]), (3, (2, 0)));
        assert!(matches!(root, StackRoot::Truncated(_)), "{root:?}");
    }
}

#[test]
fn coroutines() {
    // What begins a coroutine is returned to at its first instruction: mov rsp, rbx; ...
    let first: &[u8] = &[0x48, 0x89, 0xdc, 0x48, 0x8b, 0x3c, 0x24, 0xf4];
    let ret: &[u8] = &[0xc3];
    for table in [LEAF, OUTERMOST] {
        let module = ModuleBuilder::new(&[(ret, Some(LEAF)), (first, Some(table)), (CALLER, Some(OUTERMOST))]);
        // Above is what the coroutine returns to when it ends: no code, or none at all.
        for link in [0, SP + 0x100] {
            let expected = (vec![(0, 0), (1, 0)], StackRoot::Complete);
            assert_eq!(module.unwind((0, 0), &[module.address(1, 0), link], &[]), expected);
        }
    }
    // One that was made to look as if it had been called goes on there.
    let module = ModuleBuilder::new(&[(ret, Some(LEAF)), (first, Some(LEAF)), (CALLER, Some(OUTERMOST))]);
    let expected = (vec![(0, 0), (1, 0), (2, IN_CALL)], StackRoot::Complete);
    assert_eq!(module.unwind((0, 0), &[module.address(1, 0), module.address(2, 5)], &[]), expected);
}

#[test]
fn runtimes_end_their_stacks_with_zero() {
    let module = ModuleBuilder::new(&[(&[0xc3], Some(LEAF))]);
    assert_eq!(module.unwind((0, 0), &[0], &[]), (vec![(0, 0)], StackRoot::Complete));
    // Without a table, nothing says that this is where a return address would be.
    let module = ModuleBuilder::new(&[(&[0xc3], None)]);
    let (frames, root) = module.unwind((0, 0), &[0], &[]);
    assert_eq!((frames.len(), root), (1, StackRoot::Truncated(TruncationReason::NoUnwindInfo)));
}

/// What lies beyond the copy is read later, when the thread has returned from the innermost functions.
#[test]
fn a_later_call_of_the_same_function_leads_outwards() {
    // Its frame takes 32 bytes; it calls from two places. The other function has the same frame.
    let two_calls: &[u8] = &[0x48, 0x83, 0xec, 0x18, 0x90, 0x90, 0x90, 0xff, 0xd0, 0x90, 0x90, 0x90, 0xff, 0xd0, 0x90];
    let table: &[u8] = &[0x44, 0x0e, 32];
    let module = ModuleBuilder::new(&[
        (&[0xc3], Some(LEAF)),
        (two_calls, Some(table)),
        (two_calls, Some(table)),
        (BY_REGISTER, Some(OUTERMOST)),
        (BY_REGISTER, Some(LEAF)),
    ]);
    let (first, second) = (module.address(1, 9), module.address(1, 14));
    let caller = module.address(3, 5);
    let whole = (vec![(0, 0), (4, IN_CALL), (1, 8), (3, IN_CALL)], StackRoot::Complete);
    let cut = (vec![(0, 0), (4, IN_CALL), (1, 8)], StackRoot::Truncated(TruncationReason::StackUnreadable));
    for (now, expected) in [
        (first, &whole),
        (second, &whole),
        // Another function, no return address, and no code.
        (module.address(2, 14), &cut),
        (module.address(1, 11), &cut),
        (7, &cut),
    ] {
        let mut memory = vec![module.address(4, 5), first, 1, 2, 3, caller];
        memory.resize(4096, 0);
        let copied: Vec<u8> = memory[..3].iter().flat_map(|word| word.to_le_bytes()).collect();
        memory[1] = now;
        let sp = memory.as_ptr() as u64;
        let regs = UserRegs { ip: module.address(0, 0), sp, ..UserRegs::default() };
        let found = module.unwind_sample(regs, std::process::id(), &copied);
        assert_eq!(found, *expected, "{now:x}");
    }
}

/// Where a return address was at the time of the sample, there may be a zero or another later.
#[test]
fn what_is_read_late_is_no_stack_of_another_call() {
    let table: &[u8] = &[0x44, 0x0e, 32];
    let code: &[u8] = &[0x48, 0x83, 0xec, 0x18, 0x90, 0x90, 0x90, 0xff, 0xd0, 0x90];
    let module = ModuleBuilder::new(&[
        (&[0xc3], Some(LEAF)),
        (code, Some(table)),
        (BY_REGISTER, Some(OUTERMOST)),
        (BY_REGISTER, Some(LEAF)),
        (CALLS_ITSELF, Some(OUTERMOST)),
    ]);
    let frames = vec![(0, 0), (3, IN_CALL), (1, 8)];
    for (outer, copied, expected) in [
        (0, 6, (frames.clone(), StackRoot::Complete)),
        (0, 3, (frames.clone(), StackRoot::Truncated(TruncationReason::StackUnreadable))),
        (module.address(2, 5), 3, ([frames.clone(), vec![(2, IN_CALL)]].concat(), StackRoot::Complete)),
        // What a call of another function has left there.
        (module.address(4, 5), 3, (frames.clone(), StackRoot::Truncated(TruncationReason::StackUnreadable))),
        (module.address(4, 5), 6, ([frames.clone(), vec![(4, IN_CALL)]].concat(), StackRoot::Complete)),
    ] {
        let mut memory = vec![module.address(3, 5), module.address(1, 9), 1, 2, 3, outer];
        memory.resize(4096, 0);
        let copied: Vec<u8> = memory[..copied].iter().flat_map(|word| word.to_le_bytes()).collect();
        let regs = UserRegs { ip: module.address(0, 0), sp: memory.as_ptr() as u64, ..UserRegs::default() };
        assert_eq!(module.unwind_sample(regs, std::process::id(), &copied), expected);
    }
}

/// A frame that ends beyond what can be read is not left by its frame pointer instead.
#[test]
fn a_frame_that_is_not_copied_whole_is_not_left() {
    // 540,088 bytes; and one that begins 32 bytes above `rbp`, which has been saved 16 bytes below that.
    let tables: [&[u8]; 2] = [&[0x0e, 0xb8, 0xfb, 0x20], &[0x0c, 6, 32, 0x86, 2]];
    let modules = tables.map(|table| ModuleBuilder::new(&[(&[0x90, 0x90], Some(table)), (CALLER, Some(OUTERMOST))]));
    let caller = modules[0].address(1, 5);
    let words = [SP + 16, caller, 1, caller];
    let mut unwinders = [StackUnwinder::default(), StackUnwinder::default()];
    let mut unwind = |which: usize, words: &[u64]| {
        let (module, unwinder) = (&modules[which], &mut unwinders[which]);
        let (frames, root, _) = module.unwind_by(unwinder, 0, (0, 1), words, &[(R::RBP, SP)]);
        (frames, root)
    };
    let cut = (vec![(0, 1)], StackRoot::Truncated(TruncationReason::StackUnreadable));
    assert_eq!([unwind(0, &words), unwind(1, &words[..2])], [cut.clone(), cut]);
    assert_eq!(unwind(1, &words), (vec![(0, 1), (1, IN_CALL)], StackRoot::Complete));
}
