//! x86_64: stubs of the procedure linkage table, relocations, the end of a program's first function.

use object::elf;

pub(crate) const MACHINE: elf::Machine = elf::EM_X86_64;
/// Bytes of a page; segments are mapped in whole pages.
pub(crate) const PAGE: u64 = 4096;

pub(crate) enum StubTarget {
    Slot(u64),
    /// The index into `.rela.plt` that the stub pushes for the dynamic linker.
    Index(usize),
}

/// Decodes the target of a stub from its first one or two instructions.
pub(crate) fn stub_target(code: &[u8], start: u64) -> Option<StubTarget> {
    const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
    const BND: &[u8] = &[0xf2];
    let word = |bytes: &[u8]| -> Option<i32> { Some(i32::from_le_bytes(*bytes.first_chunk::<4>()?)) };
    let body = code.strip_prefix(ENDBR64).unwrap_or(code);
    let body = body.strip_prefix(BND).unwrap_or(body);
    if let Some(rest) = body.strip_prefix(&[0xff, 0x25]) {
        // jmp *displacement(%rip), relative to the end of the instruction.
        let end = code.len() - rest.len() + 4;
        let slot = start.checked_add(end as u64)?.checked_add_signed(i64::from(word(rest)?))?;
        return Some(StubTarget::Slot(slot));
    }
    // push $index, then a jump to the first stub.
    let rest = body.strip_prefix(&[0x68])?;
    Some(StubTarget::Index(usize::try_from(word(rest)?).ok()?))
}

/// Size of a stub in bytes: 16, or 8 in `.plt.got` and, where not stated, in static programs without branch tracking.
pub(crate) fn stub_size(entry_size: u64, code: &[u8]) -> u8 {
    let is_short = entry_size == 8 || code.get(8..10).is_some_and(|second| second == [0xff, 0x25]);
    if is_short { 8 } else { 16 }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relocation {
    /// The address of its symbol.
    Function,
    /// The result of the function at its addend (an ifunc resolver).
    Chosen,
}

pub(crate) fn relocation_of(kind: elf::RelocationType) -> Option<Relocation> {
    match kind {
        elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_GLOB_DAT => Some(Relocation::Function),
        elf::R_X86_64_IRELATIVE => Some(Relocation::Chosen),
        _ => None,
    }
}

/// Length of the code at a program's entry point, including the `hlt` with which C libraries end it.
pub(crate) fn end_after_halt(code: &[u8]) -> Option<usize> {
    // 0xf4 is `hlt`, followed by padding (`nop`, `int3`, several bytes long), `endbr64` or `ret`.
    let halt = code.windows(2).position(|two| matches!(two, [0xf4, 0x66 | 0x0f | 0x90 | 0xcc | 0xf3 | 0xc3]));
    halt.map(|halt| halt + 1)
}
