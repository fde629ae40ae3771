//! Stacks of Go programs: see [`super`].

use super::super::full_registers::MAX_SWITCHES;
use super::*;

const TOP: u8 = 1;
const WRITES_SP: u8 = 2;
/// push rbp; mov rbp, rsp; sub rsp, 8; call; add rsp, 8; pop rbp; ret
const FUNCTION: &[u8] =
    &[0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x08, 0xe8, 0, 0, 0, 0, 0x48, 0x83, 0xc4, 0x08, 0x5d, 0xc3];
const CALLED: u64 = 13;
/// nop; call; nop: the beginning of a goroutine, returned to at its second byte.
const EXIT: &[u8] = &[0x90, 0xe8, 0, 0, 0, 0, 0x90];
/// nop; call; mov rsp, [rax]; ret: as `systemstack` and the like go on elsewhere, and back.
const SWITCH: &[u8] = &[0x90, 0xe8, 0, 0, 0, 0, 0x48, 0x8b, 0x20, 0xc3];
const SWITCHED: u64 = 6;
/// A frame pointer on the goroutine's stack.
const GOROUTINE: u64 = 0xc000_1000;

/// The table of functions of a Go program, of version 1.20, with these flags.
fn go_table(module: &ModuleBuilder, flags: &[u8]) -> Vec<u8> {
    let mut table = vec![0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8];
    let word = |table: &mut Vec<u8>, value: u64| table.extend(value.to_le_bytes());
    for value in [flags.len() as u64, 0, CODE, 72, 0, 0, 0, 80] {
        word(&mut table, value);
    }
    table.extend(b"\0f\0\0\0\0\0\0");
    let list = 8 * flags.len() + 4;
    let starts = module.starts.iter().map(|start| start - CODE);
    for (i, start) in starts.enumerate() {
        table.extend((start as u32).to_le_bytes());
        table.extend(((list + 44 * i) as u32).to_le_bytes());
    }
    table.extend((module.sections[0].2.len() as u32).to_le_bytes());
    for &flags in flags {
        let mut record = [0; 44];
        (record[4], record[41]) = (1, flags);
        table.extend(record);
    }
    table
}

#[test]
fn goroutines() {
    for last in [TOP, WRITES_SP] {
        let module = ModuleBuilder::new(&[(FUNCTION, None), (FUNCTION, None), (EXIT, None)]);
        let table = go_table(&module, &[0, 0, last]);
        let module = module.with(".gopclntab", 0x9000, table);
        // The one beginning is returned to without a call, the switch of stacks by one.
        let back = if last == TOP { 1 } else { 6 };
        let words = [1, SP + 40, module.address(1, 13), 2, SP + 56, module.address(2, back), 0, 0];
        let (frames, root) = module.unwind((0, 13), &words, &[(R::RBP, SP + 8)]);
        assert_eq!(frames, [(0, 13), (1, 12), (2, back - 1)]);
        let expected = match last {
            TOP => StackRoot::Complete,
            _ => StackRoot::Truncated(TruncationReason::StackUnreadable),
        };
        assert_eq!(root, expected);
    }
}

#[test]
fn go_keeps_the_other_stack_in_a_register() {
    // nop; call; mov rsp, r12; ret: as nanotime1 does it for the time of a call. What its table says is not believed.
    let switch: &[u8] = &[0x90, 0xe8, 0, 0, 0, 0, 0x4c, 0x89, 0xe4, 0xc3];
    let ret: &[u8] = &[0xc3];
    let module = ModuleBuilder::new(&[(ret, Some(LEAF)), (switch, Some(LEAF)), (CALLER, Some(OUTERMOST))]);
    let table = go_table(&module, &[0, 2, 0]);
    let module = module.with(".gopclntab", 0x9000, table);
    let words = [module.address(1, 6), 0, 0, 0, module.address(2, 5)];
    let (expected, r12) = ((vec![(0, 0), (1, 5), (2, IN_CALL)], StackRoot::Complete), (R::R12, SP + 32));
    assert_eq!(module.unwind((0, 0), &words, &[r12]), expected);
    let cut = (vec![(0, 0), (1, 5)], StackRoot::Truncated(TruncationReason::StackUnreadable));
    assert_eq!(module.unwind((0, 0), &words, &[(R::R12, 0xc000_0000)]), cut);
}

#[test]
fn stacks_that_move_too_often_are_cut() {
    // As above, and between two of these one that saves the register: call; pop r12; ret
    let switch: &[u8] = &[0x90, 0xe8, 0, 0, 0, 0, 0x4c, 0x89, 0xe4, 0xc3];
    let between: &[u8] = &[0xe8, 0, 0, 0, 0, 0x41, 0x5c, 0xc3];
    let table: &[u8] = &[0x0e, 16, 0x8c, 2];
    let functions =
        [(&[0xc3][..], Some(LEAF)), (switch, Some(LEAF)), (between, Some(table)), (CALLER, Some(OUTERMOST))];
    let module = ModuleBuilder::new(&functions);
    let table = go_table(&module, &[0, WRITES_SP, 0, 0]);
    let module = module.with(".gopclntab", 0x9000, table);
    let mut unwinder = StackUnwinder::default();
    let mut unwind = |switches: usize| {
        let mut words = vec![module.address(1, SWITCHED)];
        for _ in 1..switches {
            let next = SP + 8 * (words.len() as u64 + 3);
            words.extend([module.address(2, 5), next, module.address(1, SWITCHED)]);
        }
        words.push(module.address(3, 5));
        // Later than in the first moment, when there is no time for so many frames.
        let later = 1_000_000_000;
        let (frames, root, _) = module.unwind_by(&mut unwinder, later, (0, 0), &words, &[(R::R12, SP + 8)]);
        assert_eq!(unwinder.stats().cut_stacks, 0);
        (frames.len(), root)
    };
    assert_eq!(unwind(MAX_SWITCHES), (2 * MAX_SWITCHES + 1, StackRoot::Complete));
    // The frame that moves once too often is the last.
    assert_eq!(unwind(MAX_SWITCHES + 1), (2 * MAX_SWITCHES + 2, StackRoot::Truncated(TruncationReason::TooDeep)));
}

/// A function of Go: its code, its flags, the offsets of its calls and which function each of them calls.
type GoModuleFunction<'a> = (&'a [u8], u8, &'a [(usize, usize)]);

fn program(functions: &[GoModuleFunction<'_>]) -> ModuleBuilder {
    let empty: Vec<ModuleFunction<'_>> = functions.iter().map(|function| (function.0, None)).collect();
    let starts = ModuleBuilder::new(&empty).starts;
    let mut codes: Vec<Vec<u8>> = functions.iter().map(|function| function.0.to_vec()).collect();
    for ((code, function), start) in codes.iter_mut().zip(functions).zip(&starts) {
        for &(at, target) in function.2 {
            let distance = starts[target].wrapping_sub(start + at as u64 + 5) as i32;
            code[at + 1..at + 5].copy_from_slice(&distance.to_le_bytes());
        }
    }
    let module = ModuleBuilder::new(&codes.iter().map(|code| (&code[..], None)).collect::<Vec<_>>());
    let flags: Vec<u8> = functions.iter().map(|function| function.1).collect();
    let table = go_table(&module, &flags);
    module.with(".gopclntab", 0x9000, table)
}

impl ModuleBuilder {
    /// A sample in function 0 on the thread's stack, called by the switch, function 1; its frame is at `bp`. `chain`
    /// follows of the goroutine's stack.
    fn on_thread(&mut self, bp: u64, chain: &[u64]) -> (Vec<(usize, u64)>, StackRoot, Option<u32>) {
        let back = self.address(1, SWITCHED);
        self.chain = [&[back], chain].concat();
        let (frames, root) = self.unwind((0, CALLED), &[1, GOROUTINE, back, 0, 0, 0, 0, 0], &[(R::RBP, bp)]);
        (frames, root, self.gap.get())
    }
}

const UNREADABLE: StackRoot = StackRoot::Truncated(TruncationReason::StackUnreadable);
/// The part of the stack that is on the thread's.
const ON_THREAD: [(usize, u64); 2] = [(0, CALLED), (1, SWITCHED - 1)];
const ROOT: (usize, u64) = (4, 0);

/// 0 on the thread's stack, called by 1, the switch, called by 2, called by 3, called by 4.
fn switched(calls_of_2: &[(usize, usize)]) -> ModuleBuilder {
    program(&[
        (FUNCTION, 0, &[]),
        (SWITCH, WRITES_SP, &[]),
        (if calls_of_2.len() == 1 { FUNCTION } else { TWO_CALLS }, 0, calls_of_2),
        (FUNCTION, 0, &[(8, 2)]),
        (EXIT, TOP, &[]),
    ])
}

const TWO_CALLS: &[u8] = &[0x55, 0x48, 0x89, 0xe5, 0xe8, 0, 0, 0, 0, 0xe8, 0, 0, 0, 0, 0x5d, 0xc3];

#[test]
fn goroutines_by_the_chain_of_frame_pointers() {
    let mut module = switched(&[(8, 1)]);
    let (behind_2, behind_3, root) = (module.address(2, CALLED), module.address(3, CALLED), module.address(4, 1));
    let whole = [&ON_THREAD[..], &[(2, CALLED - 1), (3, CALLED - 1), ROOT]].concat();
    // The switch has no frame of its own, and its caller calls it at one place; or it has one.
    for chain in [&[behind_3, root][..], &[behind_2, behind_3, root]] {
        assert_eq!(module.on_thread(SP + 8, chain), (whole.clone(), StackRoot::Complete, None));
    }
    // No function calls its caller, so that is unknown: one frame lies outside a gap.
    let gap = [&ON_THREAD[..], &[ROOT]].concat();
    assert_eq!(module.on_thread(SP + 8, &[root]), (gap, StackRoot::Complete, Some(1)));
    // Where the chain ends, and nothing can be read.
    let cut = [&ON_THREAD[..], &[(2, CALLED - 1), (3, CALLED - 1)]].concat();
    assert_eq!(module.on_thread(SP + 8, &[behind_3]), (cut, UNREADABLE, None));
    // At two places: then the function stands with its beginning.
    let mut module = switched(&[(4, 1), (9, 1)]);
    let somewhere = [&ON_THREAD[..], &[(2, 0), (3, CALLED - 1), ROOT]].concat();
    let chain = [module.address(3, CALLED), module.address(4, 1)];
    assert_eq!(module.on_thread(SP + 8, &chain), (somewhere, StackRoot::Complete, None));
}

#[test]
fn a_chain_that_is_not_of_frame_pointers_is_not_followed() {
    let mut module = switched(&[(8, 1)]);
    let (behind_3, root) = (module.address(3, CALLED), module.address(4, 1));
    let nothing = (ON_THREAD.to_vec(), UNREADABLE, None);
    // The register is none: it leads past the frame that the switch has called, or nowhere.
    for bp in [SP, SP + 16, SP + 24, 0, GOROUTINE, u64::MAX] {
        assert_eq!(module.on_thread(bp, &[behind_3, root]), nothing, "{bp:#x}");
    }
    // Code, but not behind a call; or no code.
    for wrong in [module.address(3, CALLED + 1), module.address(3, 0), 7, GOROUTINE] {
        assert_eq!(module.on_thread(SP + 8, &[wrong, root]).1, UNREADABLE, "{wrong:#x}");
    }
    // What the chain says of the copied part is not what is there.
    let words = [1, GOROUTINE, module.address(1, SWITCHED), 0, 0];
    module.chain = vec![module.address(1, SWITCHED) + 1, behind_3, root];
    assert_eq!(module.unwind((0, CALLED), &words, &[(R::RBP, SP + 8)]), (ON_THREAD.to_vec(), UNREADABLE));
}

#[test]
fn c_that_leaves_the_frame_pointer_alone() {
    let mut module = program(&[
        (&[0xc3], 0, &[]),
        (SWITCH, WRITES_SP, &[]),
        (FUNCTION, 0, &[(8, 1)]),
        (FUNCTION, 0, &[(8, 2)]),
        (EXIT, TOP, &[]),
    ]);
    let (behind_3, root) = (module.address(3, CALLED), module.address(4, 1));
    let words = [module.address(1, SWITCHED), 0, 0, 0];
    let mut unwind = |bp: u64, chain: &[u64]| {
        module.chain = chain.to_vec();
        module.unwind((0, 0), &words, &[(R::RBP, bp)])
    };
    let inner = vec![(0, 0), (1, SWITCHED - 1)];
    let whole = [&inner[..], &[(2, CALLED - 1), (3, CALLED - 1), ROOT]].concat();
    assert_eq!(unwind(GOROUTINE, &[behind_3, root]), (whole, StackRoot::Complete));
    // It does not go on from what calls the switch: then the register was used for something else.
    for chain in [&[root][..], &[behind_3 + 1, root], &[7]] {
        assert_eq!(unwind(GOROUTINE, chain), (inner.clone(), UNREADABLE), "{chain:x?}");
    }
}

#[test]
fn stack_pointers_that_are_noted() {
    // nop; call; mov rsi, [rsp + 16]; mov rsp, rsi; ret: as asmcgocall finds back where it need not leave the stack.
    let switch: &[u8] = &[0x90, 0xe8, 0, 0, 0, 0, 0x48, 0x8b, 0x74, 0x24, 0x10, 0x48, 0x89, 0xf4, 0xc3];
    let module =
        program(&[(&[0xc3], 0, &[]), (switch, WRITES_SP, &[(1, 0)]), (FUNCTION, 0, &[(8, 1)]), (EXIT, TOP, &[])]);
    let behind_2 = module.address(2, CALLED);
    let words = [module.address(1, SWITCHED), 0, 0, SP + 40, 0, behind_2, 1, 0xb, module.address(3, 1)];
    let expected = (vec![(0, 0), (1, SWITCHED - 1), (2, CALLED - 1), (3, 0)], StackRoot::Complete);
    assert_eq!(module.unwind((0, 0), &words, &[]), expected);
    // There is no return address of a call of the function, or nothing.
    for wrong in [module.address(3, 1), behind_2 + 1, 0] {
        let mut words = words;
        words[5] = wrong;
        assert_eq!(module.unwind((0, 0), &words, &[]), (expected.0[..2].to_vec(), UNREADABLE), "{wrong:#x}");
    }
    assert_eq!(module.unwind((0, 0), &words[..4], &[]), (expected.0[..2].to_vec(), UNREADABLE));
}

#[test]
fn functions_without_frames_are_known_by_their_calls() {
    // sub rsp, 8; call; add rsp, 8; ret: it leaves rbp alone, so what it returns to is not in the chain.
    let frameless: &[u8] = &[0x48, 0x83, 0xec, 0x08, 0xe8, 0, 0, 0, 0, 0x48, 0x83, 0xc4, 0x08, 0xc3];
    for (calls_of_4, known) in [(&[(8, 3)][..], true), (&[], false)] {
        let mut module = program(&[
            (FUNCTION, 0, &[]),
            (SWITCH, WRITES_SP, &[]),
            (FUNCTION, 0, &[(8, 1)]),
            (frameless, 0, &[(4, 2)]),
            (FUNCTION, 0, calls_of_4),
            (FUNCTION, 0, &[(8, 4)]),
            (EXIT, TOP, &[]),
        ]);
        // 2 returns to 3; what 4 returns to comes next.
        let chain = [module.address(3, 9), module.address(5, CALLED), module.address(6, 1)];
        let (frames, root, gap) = module.on_thread(SP + 8, &chain);
        let inner = [&ON_THREAD[..], &[(2, CALLED - 1), (3, 8)]].concat();
        let middle = if known { vec![(4, CALLED - 1)] } else { vec![] };
        assert_eq!(frames, [&inner[..], &middle, &[(5, CALLED - 1), (6, 0)]].concat());
        assert_eq!((root, gap), (StackRoot::Complete, (!known).then_some(2)));
    }
}

#[test]
fn holes_in_a_goroutines_stack_are_bridged() {
    // The copy ends between the frames of 0 and 1.
    let mut module = program(&[(FUNCTION, 0, &[]), (FUNCTION, 0, &[(8, 0)]), (EXIT, TOP, &[])]);
    let words = [1, SP + 0x20, module.address(1, CALLED), 2];
    module.chain = vec![module.address(1, CALLED), module.address(2, 1)];
    let whole = vec![(0, CALLED), (1, CALLED - 1), (2, 0)];
    assert_eq!(module.unwind((0, CALLED), &words, &[(R::RBP, SP + 8)]), (whole, StackRoot::Complete));
    // Not by a chain of something else.
    let cut = (vec![(0, CALLED), (1, CALLED - 1)], UNREADABLE);
    assert_eq!(module.unwind((0, CALLED), &words, &[(R::RBP, SP + 16)]), cut);
}
