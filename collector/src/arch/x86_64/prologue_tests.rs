//! Tests of [`prologue`](super).

use gimli::X86_64;

use super::super::registers::Registers;
use super::*;

/// Code is from here on, behind 16 bytes: a return and padding.
const START: u64 = 0x1010;
const BEFORE: [u8; 16] = [0xc3, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x0f, 0x1f, 0x40, 0];

fn image(code: &[u8]) -> impl Fn(u64, u64) -> Option<Arc<[u8]>> {
    let bytes: Vec<u8> = [&[0x90; 16][..], &BEFORE, code, &[0x90; 32]].concat();
    move |address, len| {
        let at = usize::try_from(address.checked_sub(START - 32)?).ok()?;
        let end = bytes.len().min(at.saturating_add(len as usize));
        bytes.get(at..end).filter(|bytes| !bytes.is_empty()).map(Arc::from)
    }
}

/// Where the return address is above the stack pointer, and where the function begins.
fn found(code: &[u8], at: u64) -> Option<(i64, u64)> {
    let entered = entered(START + at, true, &image(code))?;
    Some((entered.row.return_address.offset, entered.start - START))
}

/// push r13; push rbp; mov rbp, rdi; push rbx; sub rsp, 16; call rbp; mov edi, eax; call +0x100, padding, push r12; ret:
/// what calls `main` and then `exit`, and another function.
const CALLS_MAIN: [u8; 35] = [
    0x41, 0x55, 0x55, 0x48, 0x89, 0xfd, 0x53, 0x48, 0x83, 0xec, 0x10, 0xff, 0xd5, 0x89, 0xc7, 0xe8, 0xfb, 0, 0, 0,
    0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x90, 0x41, 0x54, 0xc3,
];

#[test]
fn a_function_that_does_not_return_has_begun() {
    assert_eq!(found(&CALLS_MAIN, 13), Some((40, 0)));
    assert_eq!(found(&CALLS_MAIN, 20), Some((40, 0)));
    // A call before it that ends where a function could begin.
    let aligned =
        [&[0x55, 0x48, 0x83, 0xec, 0x10, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xe8, 0, 1, 0, 0][..], &[0xff, 0xd7]];
    assert_eq!(found(&aligned.concat(), 18), Some((24, 0)));
    assert_eq!(entered(START + 3, false, &image(&CALLS_MAIN)).unwrap().row.return_address.offset, 16);
    // Where nothing is called with such a stack.
    assert_eq!(found(&CALLS_MAIN, 3), None);
    // Where it begins nothing has been done; but what returns there was called in the function before.
    assert_eq!(entered(START, false, &image(&CALLS_MAIN)).unwrap().row.return_address, SymbolicAddress::of(RSP));
    assert_eq!(entered(START, true, &image(&CALLS_MAIN)), None);
    // Registers are where they were saved.
    let entered = entered(START + 13, true, &image(&CALLS_MAIN)).unwrap();
    let words = [0, 0, 1, 6, 2, 0x200, 0];
    let read = |address: u64| words.get(usize::try_from(address.checked_sub(0x7000)? / 8).ok()?).copied();
    let mut before = Registers::default();
    before.set(X86_64::RSP, 0x7000);
    // Of these two the function has made no other use yet.
    for (register, value) in [(X86_64::R12, 12), (X86_64::R13, 13), (X86_64::RBX, 3)] {
        before.set(register, value);
    }
    let after = entered.row.apply_upwards(&before, &read).unwrap();
    let registers = [X86_64::RA, X86_64::RSP, X86_64::RBX, X86_64::RBP, X86_64::R12, X86_64::R13];
    assert_eq!(registers.map(|register| after.get(register)), [0x200, 0x7030, 3, 6, 12, 13].map(Some));
    assert!(!entered.allows(0x7038) && entered.allows(0x7030));
}

#[test]
fn the_middle_of_a_function_is_not_its_beginning() {
    // push r13; push rbx; sub rsp, 24; jmp 2f, padding; 1: mov rdi, [rbx]; 2: call rdi; mov edi, eax; call +0x100
    let uses_callers = [
        0x41, 0x55, 0x53, 0x48, 0x83, 0xec, 0x18, 0xeb, 0x0a, 0x0f, 0x1f, 0x80, 0, 0, 0, 0, 0x48, 0x8b, 0x3b, 0xff,
        0xd7, 0x89, 0xc7, 0xe8, 0xfb, 0, 0, 0, 0x0f, 0x1f, 0x40, 0, 0x41, 0x54, 0xc3,
    ];
    assert_eq!(found(&uses_callers, 21), Some((40, 0)));
    // push rbx; sub rsp, 16; jmp 2f, padding; 1: xor edi, edi; 2: call rdx; test eax, eax; jz 3f; call +0x100;
    // 3: add rsp, 16; pop rbx; ret
    let returns = [
        0x53, 0x48, 0x83, 0xec, 0x10, 0xeb, 0x0b, 0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x31, 0xff, 0xff, 0xd2, 0x85,
        0xc0, 0x74, 0x05, 0xe8, 0xfb, 0, 0, 0, 0x48, 0x83, 0xc4, 0x10, 0x5b, 0xc3,
    ];
    assert_eq!(found(&returns, 20), Some((24, 0)));
    // sub rsp, 24; jmp 2f, padding; 1: xor edi, edi; 2: call rdx; jmp 1b
    let mut again = [0x90u8; 24];
    again[..6].copy_from_slice(&[0x48, 0x83, 0xec, 0x18, 0xeb, 0x0c]);
    again[15..22].copy_from_slice(&[0x90, 0x31, 0xff, 0xff, 0xd2, 0xeb, 0xfa]);
    assert_eq!(found(&again, 20), Some((24, 0)));
    // Behind code that goes on, and not where functions are aligned.
    let mut goes_on = CALLS_MAIN.to_vec();
    goes_on.splice(0..0, [0x90; 8]);
    assert_eq!(found(&goes_on, 21), Some((40, 0)));
    let goes_on = |address: u64, len: u64| {
        image(&CALLS_MAIN)(address, len).map(|code| {
            code.iter()
                .map(|byte| match byte {
                    0xc3 => 0x90,
                    byte => *byte,
                })
                .collect()
        })
    };
    assert_eq!(entered(START + 13, true, &goes_on), None);
    // and rsp, -16: the old value is unknown.
    let mut moves = CALLS_MAIN;
    moves[7..11].copy_from_slice(&[0x48, 0x83, 0xe4, 0xf0]);
    assert_eq!(found(&moves, 13), None);
}

#[test]
fn a_frame_that_was_realigned_tells_where_its_address_is_kept() {
    // mov rax, rsp; push rbx; sub rsp, 64; and rsp, -64; mov [rsp+40], rax; xor eax, eax
    let code = [
        0x48, 0x89, 0xe0, 0x53, 0x48, 0x83, 0xec, 0x40, 0x48, 0x83, 0xe4, 0xc0, 0x48, 0x89, 0x44, 0x24, 0x28, 0x31,
        0xc0,
    ];
    let at = |at: u64| entered_from(START, START + at, &image(&code)).map(|entered| entered.row.return_address);
    let place = |register, stored, offset| Some(SymbolicAddress { register, stored, offset });
    assert_eq!(at(4), place(RSP, None, 8));
    // The register until it has been stored.
    assert_eq!(at(12), place(0, None, 0));
    assert_eq!(at(19), place(RSP, Some(40), 0));
    assert_eq!(at(18), None);
    assert_eq!(entered(START + 19, true, &image(&code)), None);
}

#[test]
fn a_loop_that_moves_the_stack() {
    // mov rax, rsp; sub rsp, 64; and rsp, -64; mov [rsp+40], rax; 1: lea rsp, [rsp-64]; dec edi; jne 1b; xor eax, eax
    let code = [
        0x48, 0x89, 0xe0, 0x48, 0x83, 0xec, 0x40, 0x48, 0x83, 0xe4, 0xc0, 0x48, 0x89, 0x44, 0x24, 0x28, 0x48, 0x8d,
        0x64, 0x24, 0xc0, 0xff, 0xcf, 0x75, 0xf7, 0x31, 0xc0,
    ];
    let entered = entered_from(START, START + 21, &image(&code)).unwrap();
    let slots: Vec<_> = entered.rows().map(|row| row.return_address.stored.unwrap()).collect();
    assert_eq!(slots, (0..MAX_TIMES).map(|time| 104 + 64 * time).collect::<Vec<_>>());
    // Once the third time, what is in the other places leads nowhere.
    let words: Vec<u64> = (0..64).map(|at| if at == (104 + 128) / 8 { 0x7000 + 8 * 50 } else { 0x5555 }).collect();
    let read = |address: u64| words.get(usize::try_from(address.checked_sub(0x7000)? / 8).ok()?).copied();
    let mut before = Registers::default();
    before.set(X86_64::RSP, 0x7000);
    let left: Vec<_> = entered.rows().map(|row| row.apply_upwards(&before, &read).is_ok()).collect();
    assert_eq!(left.iter().enumerate().filter(|left| *left.1).map(|left| left.0).collect::<Vec<_>>(), [2]);
    let mut still = code;
    still[16..21].copy_from_slice(&[0x48, 0x8d, 0x5c, 0x24, 0xc0]);
    assert_eq!(entered_from(START, START + 21, &image(&still)).unwrap().rows().count(), 1);
}

#[test]
fn the_first_call_of_a_thread() {
    // syscall; test eax, eax; jne 1f; xor ebp, ebp; pop rdi; call r9; mov edi, eax; xor eax, eax; mov al, 60; syscall;
    // hlt; 1: ret: musl's
    let clone = [
        0x0f, 0x05, 0x85, 0xc0, 0x75, 0x0f, 0x31, 0xed, 0x5f, 0x41, 0xff, 0xd1, 0x89, 0xc7, 0x31, 0xc0, 0xb0, 0x3c,
        0x0f, 0x05, 0xf4, 0xc3,
    ];
    let begins = |code: &[u8], at: u64| begins_thread(START + at, &image(code));
    assert!(begins(&clone, 12));
    assert!((0..22).filter(|&at| at != 12).all(|at| !begins(&clone, at)));
    // Without xor ebp, ebp: what calls something after a system call, and exits, may have been called.
    let keeps = [
        0x0f, 0x05, 0x85, 0xc0, 0x75, 0x0e, 0x5f, 0x41, 0xff, 0xd1, 0x89, 0xc7, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05, 0xf4,
        0xc3,
    ];
    assert!(!begins(&keeps, 10));
    // push rbx; call rdi; mov edi, eax; mov eax, 60; syscall; hlt
    assert!(!begins(&[0x53, 0xff, 0xd7, 0x89, 0xc7, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05, 0xf4], 3));
    // Another system call than exit.
    let goes_on = [
        0x0f, 0x05, 0x85, 0xc0, 0x75, 0x10, 0x31, 0xed, 0x5f, 0x41, 0xff, 0xd1, 0x89, 0xc7, 0xb8, 0x27, 0, 0, 0, 0x0f,
        0x05, 0xc3, 0xc3,
    ];
    assert!(!begins(&goes_on, 12));
}

#[test]
fn the_code_of_an_entry_ends() {
    // xor rbp, rbp; mov rdi, rsp; and rsp, -16; call +0x40; hlt, and another function
    let entry =
        [0x48, 0x31, 0xed, 0x48, 0x89, 0xe7, 0x48, 0x83, 0xe4, 0xf0, 0xe8, 0x3b, 0, 0, 0, 0xf4, 0x90, 0x53, 0xc3];
    assert_eq!(end_of_entry(START, 256, &image(&entry)) - START, 16);
    assert_eq!(end_of_entry(START, 8, &image(&entry)) - START, 8);
    assert_eq!(end_of_entry(0x9000, 8, &image(&entry)), 0x9000);
}

#[test]
fn a_call_may_lead_on() {
    // test eax, eax; jne +9; ret
    assert!(leads_to(START, START + 13, &image(&[0x85, 0xc0, 0x75, 0x09, 0xc3])));
    // nop; jmp +0xb, and lea rax, [rip+0xe]; jmp rax
    let jump = [0x90, 0xe9, 0x0b, 0, 0, 0];
    let address = [0x48, 0x8d, 0x05, 0x0e, 0, 0, 0, 0xff, 0xe0];
    let ahead = |code: &[u8], to: u64| leads_to(START, START + to, &image(code));
    assert!(ahead(&jump, 0) && ahead(&jump, 17) && !ahead(&jump, 6) && !ahead(&jump, 0x800));
    assert!(ahead(&address, 21) && !ahead(&address, 22));
}

#[test]
fn any_bytes_are_followed_and_end() {
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as u8
    };
    let likely = [0x50, 0x5d, 0xc3, 0xc8, 0xc9, 0x48, 0x83, 0xe4, 0xe8, 0x75, 0xeb, 0xff, 0x8d, 0x89, 0x24, 0x90];
    for _ in 0..200 {
        let bytes: Vec<u8> = (0..200)
            .map(|_| if random() % 2 == 0 { likely[usize::from(random()) % likely.len()] } else { random() })
            .collect();
        let code = image(&bytes);
        for address in [START, START + 77, START + 199, START + 200, 0, u64::MAX] {
            let _ = (
                entered(address, address % 2 == 0, &code),
                entered_from(START, address, &code),
                begins_thread(address, &code),
            );
            let _ = (leads_to(address, START, &code), end_of_entry(address, 256, &code));
        }
    }
}
