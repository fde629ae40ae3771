//! Tests of [`code`](super).

use super::*;

const START: u64 = 0x1000;

fn image(bytes: &[u8]) -> impl Fn(u64, u64) -> Option<Arc<[u8]>> {
    move |address, len| {
        let at = usize::try_from(address.checked_sub(START)?).ok()?;
        let end = bytes.len().min(at.saturating_add(len as usize));
        bytes.get(at..end).filter(|bytes| !bytes.is_empty()).map(Arc::from)
    }
}

/// Leaves a frame at `START`, with stack words from 0x7000 on. Returns what is known of rip, rsp, rbp, rbx.
fn leave(bytes: &[u8], words: &[u64]) -> Option<[Option<u64>; 4]> {
    let row = rows(START, &image(bytes)).into_iter().next()?;
    let read = |address: u64| words.get(usize::try_from(address.checked_sub(0x7000)? / 8).ok()?).copied();
    let mut before = Registers::default();
    for (register, value) in [(X86_64::RSP, 0x7000), (X86_64::RBP, 0x7010), (X86_64::RBX, 3)] {
        before.set(register, value);
    }
    let after = row.apply_upwards(&before, &read).ok()?;
    Some([X86_64::RA, X86_64::RSP, X86_64::RBP, X86_64::RBX].map(|register| after.get(register)))
}

const WORDS: [u64; 6] = [10, 11, 12, 13, 14, 15];

#[test]
fn a_leaf_returns() {
    assert_eq!(leave(&[0x90, 0xc3], &WORDS), Some([Some(10), Some(0x7008), Some(0x7010), Some(3)]));
}

#[test]
fn pushed_registers_are_popped() {
    assert_eq!(leave(&[0x5b, 0x5d, 0xc3], &WORDS), Some([Some(12), Some(0x7018), Some(11), Some(10)]));
    // push rbx; xor ebx, ebx; pop rbx; ret: as if nothing had been
    let pushed = [0x53, 0x31, 0xdb, 0x5b, 0xc3];
    assert_eq!(leave(&pushed, &WORDS), Some([Some(10), Some(0x7008), Some(0x7010), Some(3)]));
    // the same without the pop leaves rbx unknown, and returns to what was pushed: no way to leave
    assert_eq!(leave(&[0x53, 0x31, 0xdb, 0xc3], &WORDS), None);
}

#[test]
fn frame_pointers_lead_to_the_caller() {
    // mov rsp, rbp; pop rbp; ret, and leave; ret
    let expected = Some([Some(13), Some(0x7020), Some(12), Some(3)]);
    assert_eq!(leave(&[0x48, 0x89, 0xec, 0x5d, 0xc3], &WORDS), expected);
    assert_eq!(leave(&[0xc9, 0xc3], &WORDS), expected);
    // and rsp, -16; sub rsp, 64; lea rsp, [rbp]; pop rbp; ret
    let realigned = [0x48, 0x83, 0xe4, 0xf0, 0x48, 0x83, 0xec, 0x40, 0x48, 0x8d, 0x65, 0x00, 0x5d, 0xc3];
    assert_eq!(leave(&realigned, &WORDS), expected);
    let prologue = [0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3];
    assert_eq!(leave(&prologue, &WORDS), Some([Some(10), Some(0x7008), Some(0x7010), Some(3)]));
}

#[test]
fn loops_and_branches_end() {
    let code = [0x48, 0x83, 0xc4, 0x10, 0x75, 0x02, 0xeb, 0xf8, 0xc3];
    assert_eq!(leave(&code, &WORDS), Some([Some(12), Some(0x7018), Some(0x7010), Some(3)]));
    assert_eq!(leave(&[0xeb, 0xfe], &WORDS), None);
    // A jump through a register goes anywhere, one through the image's own slot to a function.
    assert_eq!(leave(&[0xff, 0xe0], &WORDS), None);
    assert_eq!(leave(&[0xff, 0x25, 0, 0, 0, 0], &WORDS).unwrap()[0], Some(10));
    // and rsp, -16; ret: unknown
    assert_eq!(leave(&[0x48, 0x83, 0xe4, 0xf0, 0xc3], &WORDS), None);
    assert_eq!(rows(START, &|_, _| None), []);
}

#[test]
fn calls_return_and_keep_what_they_must() {
    // mov rcx, rbx; call +0x100; mov rbx, rcx; add rsp, 8; ret
    let code = [0x48, 0x89, 0xd9, 0xe8, 0, 1, 0, 0, 0x48, 0x89, 0xcb, 0x48, 0x83, 0xc4, 0x08, 0xc3];
    assert_eq!(leave(&code, &WORDS), Some([Some(11), Some(0x7010), Some(0x7010), None]));
    // call the next instruction; pop rax; ret
    assert_eq!(leave(&[0xe8, 0, 0, 0, 0, 0x58, 0xc3], &WORDS).unwrap()[1], Some(0x7008));
}

#[test]
fn the_old_stack_is_kept_in_the_frame() {
    // mov rsi, [rsp+16]; mov rbp, [rsi-16]; mov rbx, [rsi-8]; lea rsp, [rsi]; ret
    let code = [0x48, 0x8b, 0x74, 0x24, 0x10, 0x48, 0x8b, 0x6e, 0xf0, 0x48, 0x8b, 0x5e, 0xf8, 0x48, 0x8d, 0x26, 0xc3];
    let words = |kept| [1, 2, kept, 13, 14, 0x200, 16];
    assert_eq!(leave(&code, &words(0x7028)), Some([Some(0x200), Some(0x7030), Some(13), Some(14)]));
    // No address of the stack, one that is not aligned, one further in: a word that is something else.
    for other in [3, 0x702c, 0x6ff8, 0x7fff_7028] {
        assert_eq!(leave(&code, &words(other)), None, "{other:#x}");
    }
    // mov rsi, [rsp+16]; mov rsi, [rsi]; lea rsp, [rsi]; ret: not followed further
    let twice = [0x48, 0x8b, 0x74, 0x24, 0x10, 0x48, 0x8b, 0x36, 0x48, 0x8d, 0x26, 0xc3];
    assert_eq!(rows(START, &image(&twice)), []);
    // The whole of such a function, from mov rax, rsp; push rbx; sub rsp, 64; and rsp, -64; mov [rsp+40], rax on.
    let whole = [
        0x48, 0x89, 0xe0, 0x53, 0x48, 0x83, 0xec, 0x40, 0x48, 0x83, 0xe4, 0xc0, 0x48, 0x89, 0x44, 0x24, 0x28, 0x31,
        0xc0, 0x48, 0x8b, 0x74, 0x24, 0x28, 0x48, 0x8b, 0x5e, 0xf8, 0x48, 0x8d, 0x26, 0xc3,
    ];
    assert_eq!(leave(&whole, &WORDS), Some([Some(10), Some(0x7008), Some(0x7010), Some(3)]));
}

#[test]
fn scratch_registers_are_known_where_they_are_kept() {
    // mov rbx, [rax-8]; lea rsp, [rax]; ret: of a caller, whose rax is known only from its callee
    let code = [0x48, 0x8b, 0x58, 0xf8, 0x48, 0x8d, 0x20, 0xc3];
    let found = rows(START, &image(&code));
    let read = |address: u64| (address == 0x7020 || address == 0x7018).then_some(0x200);
    let mut caller = Registers::default();
    caller.set(X86_64::RSP, 0x7000);
    assert_eq!(found[0].apply_upwards(&caller, &read), Err(Stuck::Bad));
    let mut inside = caller;
    inside.set(X86_64::RAX, 0x7020);
    inside.set(X86_64::RCX, 5);
    // nop; ret keeps all; mov rcx, rbx; ret, and call +0x100; ret, do not.
    for (callee, rax, rcx) in [
        (&[0x90, 0xc3][..], Some(0x7020), Some(5)),
        (&[0x48, 0x89, 0xd9, 0xc3], Some(0x7020), None),
        (&[0xe8, 0, 1, 0, 0, 0xc3], None, None),
    ] {
        let mut after = caller;
        rows(START, &image(callee))[0].keep(&inside, &mut after);
        assert_eq!([X86_64::RAX, X86_64::RCX].map(|register| after.get(register)), [rax, rcx]);
        assert_eq!(found[0].apply_upwards(&after, &read).is_ok(), rax.is_some());
    }
}

#[test]
fn enter_is_left() {
    // enter 32, 0; leave; ret. Compilers never use a level, with which it writes more.
    assert_eq!(leave(&[0xc8, 0x20, 0, 0, 0xc9, 0xc3], &WORDS), Some([Some(10), Some(0x7008), Some(0x7010), Some(3)]));
    assert_eq!(leave(&[0xc8, 0x20, 0, 1, 0xc9, 0xc3], &WORDS), None);
}

#[test]
fn the_stack_grows_down() {
    // lea rsp, [rbp - 0x40]; ret
    assert_eq!(leave(&[0x48, 0x8d, 0x65, 0xc0, 0xc3], &WORDS), None);
}

#[test]
fn any_bytes_are_followed_and_end() {
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as u8
    };
    // Instructions that handle the stack are common among these.
    let likely = [0x50, 0x5d, 0xc3, 0xc9, 0x48, 0x83, 0xc4, 0xe8, 0x75, 0xeb, 0xff, 0x8d, 0x89, 0x24];
    let mut found = 0;
    for _ in 0..500 {
        let bytes: Vec<u8> = (0..200)
            .map(|_| if random() % 2 == 0 { likely[usize::from(random()) % likely.len()] } else { random() })
            .collect();
        for address in [START, START + 77, START + 199, START + 200, 0, u64::MAX] {
            let rows = rows(address, &image(&bytes));
            found += rows.len();
            let everywhere = |address: u64| Some(address);
            for sp in [0, 0x7000, u64::MAX - 8] {
                let mut before = Registers::default();
                before.set(X86_64::RSP, sp);
                for row in &rows {
                    let _ = row.apply(&before, &everywhere);
                }
            }
            let _ = is_call_before(address, &image(&bytes));
        }
    }
    assert!(found > 100, "{found} rows");
}

#[test]
fn return_addresses_follow_calls() {
    let after = |bytes: &[u8]| {
        let mut code = vec![0x90; 16];
        code.extend(bytes);
        let end = START + code.len() as u64;
        is_call_before(end, &image(&code))
    };
    // call rel32; call rax; call r11; call [rax+8]; call [rip+x]; call [rsp+rcx*8+x]
    let calls: [&[u8]; 6] = [
        &[0xe8, 1, 2, 3, 4],
        &[0xff, 0xd0],
        &[0x41, 0xff, 0xd3],
        &[0xff, 0x50, 0x08],
        &[0xff, 0x15, 1, 2, 3, 4],
        &[0xff, 0x94, 0xcc, 1, 2, 3, 4],
    ];
    calls.iter().for_each(|call| assert!(after(call), "{call:x?}"));
    // nops; jmp rel32; jmp rax; push [rax+8]; half a call
    let others: [&[u8]; 5] = [&[], &[0xe9, 1, 2, 3, 4], &[0xff, 0xe0], &[0xff, 0x70, 0x08], &[0xe8, 1, 2, 3]];
    others.iter().for_each(|other| assert!(!after(other), "{other:x?}"));
}
