//! Stacks of code whose instructions and unwind tables are anybody's.

use std::io::Write;

use ccsd_collector::Budget;
use ccsd_collector::internals::{
    Bytes, GoroutineTable, Images, Mapping, Mappings, ProcessKey, Sample, ShadowStack, StackRoot, StackUnwinder,
    UnwindTarget, UserRegs,
};
use ccsd_profile::TruncationReason;

const BASE: u64 = 0x5555_0000_0000;
const TEXT: usize = 0x1000;
const SP: u64 = 0x7ffe_0000_1000;
/// No process: what is not copied cannot be read.
const NOBODY: u32 = u32::MAX;
const SECOND: u64 = 1_000_000_000;
/// Those of the unwinder: tables may have any number of callers at one place.
const MOST_FRAMES: usize = 1 << 19;
/// Those up to which stacks do not depend on how fast the machine is, without optimisation either.
const SAME_FRAMES: usize = 1 << 15;

/// A stack from bytes: lengths of code and unwind table (u16), which table (u8), then both, registers, and stack words.
/// See [`word`].
pub fn run(data: &[u8]) {
    follow(data);
}

pub fn follow(data: &[u8]) -> usize {
    let Some(((code, table, is_debug), rest)) = parts(data) else { return 0 };
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&image(code, table, is_debug)).expect("it can be written");
    let mut images = Images::default();
    let image = images.add_opened("fuzzed", file);
    let mut mappings = Mappings::default();
    let end = BASE + (TEXT + code.len()) as u64;
    mappings.insert_within(Mapping { start: BASE, end, image, to_svma: BASE.wrapping_neg(), has_offsets: false }, 1);
    let mut words = rest.chunks(8).map(word);
    let mut next = || words.next().unwrap_or_default();
    let regs = UserRegs { ip: next(), sp: SP, bp: next(), others: std::array::from_fn(|_| next()) };
    let stack: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    let sample = Sample {
        id: 0,
        pid: NOBODY,
        tid: NOBODY,
        time: SECOND,
        period: 1,
        group_value: None,
        kernel_chain: Bytes::new(&[]),
        user_chain: Bytes::new(&[]),
        regs: Some(regs),
        has_user_state: true,
        stack: Bytes::new(&stack),
        stack_full: is_debug,
    };
    let budget = Budget::default();
    let mut unwinder = StackUnwinder::within(budget.unwind_tables, budget.unwind_rules);
    let (mut shadow, mut goroutines) = (ShadowStack::default(), GoroutineTable::default());
    let mut time = 0;
    let mut unwind = |shadow: &mut ShadowStack| {
        let mut frames = Vec::new();
        // Time enough for whatever takes long.
        time += SECOND;
        let sample = Sample { time, ..sample };
        let target = UnwindTarget {
            mappings: &mut mappings,
            process: ProcessKey(0),
            owner: None,
            goroutines: &mut goroutines,
            images: &images,
        };
        let unwound = unwinder.unwind(&sample, target, shadow, true, &mut frames);
        (unwound, frames)
    };
    let (first, frames) = unwind(&mut shadow);
    assert!(frames.len() <= MOST_FRAMES);
    // The same stack again: with what is remembered of the thread, and without. What takes as long as that is cut by time.
    if frames.len() > SAME_FRAMES {
        return frames.len();
    }
    let (again, new) = unwind(&mut shadow);
    let (whole, all) = unwind(&mut ShadowStack::default());
    if [first, again, whole].iter().all(|it| it.root != StackRoot::Truncated(TruncationReason::TooDeep)) {
        assert_eq!((again.root, again.gap), (first.root, first.gap));
        assert_eq!(new[..], frames[..new.len()]);
        assert_eq!((whole.root, &all), (first.root, &frames));
    }
    frames.len()
}

/// Code, unwind table and whether that is `.debug_frame`; and what comes after them.
type InputParts<'a> = ((&'a [u8], &'a [u8], bool), &'a [u8]);

fn parts(data: &[u8]) -> Option<InputParts<'_>> {
    let (head, rest) = data.split_at_checked(5)?;
    let length = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
    let (code, rest) = rest.split_at_checked(length(0))?;
    let (table, rest) = rest.split_at_checked(length(2))?;
    Some(((code, table, head[4] & 1 == 1), rest))
}

/// A word: the highest byte says whether it is an address of code, one of the stack, or just a number.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    let low = u64::from(u16::from_le_bytes([word[0], word[1]]));
    match word[7] {
        1 => BASE + TEXT as u64 + low,
        2 => SP + (low & !7),
        _ => u64::from_le_bytes(word),
    }
}

fn image(code: &[u8], table: &[u8], is_debug: bool) -> Vec<u8> {
    const NAMES: &[u8] = b"\0.text\0.eh_frame\0.debug_frame\0.shstrtab\0";
    let (text, eh_frame, debug_frame, names) = (1, 7, 17, 30);
    let mut file = vec![0; TEXT];
    let mut append = |bytes: &[u8]| {
        file.resize(file.len().next_multiple_of(8), 0);
        let at = file.len();
        file.extend(bytes);
        at
    };
    let (code_at, table_at, names_at) = (append(code), append(table), append(NAMES));
    let (kind, flags, name) = if is_debug { (1, 0, debug_frame) } else { (1, 2, eh_frame) };
    let sections = [
        (0u32, 0u32, 0u64, 0, 0),
        (text, 1, 6, code_at, code.len()),
        (name, kind, flags, table_at, table.len()),
        (names, 3, 0, names_at, NAMES.len()),
    ];
    let mut headers = Vec::new();
    for (name, kind, flags, at, size) in sections {
        headers.extend(name.to_le_bytes());
        headers.extend(kind.to_le_bytes());
        let address = if flags == 0 { 0 } else { at as u64 };
        for number in [flags, address, at as u64, size as u64, 0, 8, 0] {
            headers.extend(number.to_le_bytes());
        }
    }
    let headers_at = append(&headers);
    let size = file.len() as u64;
    // ELFCLASS64, ELFDATA2LSB, EV_CURRENT; ET_DYN, EM_X86_64.
    file[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    file[16..24].copy_from_slice(&[3, 0, 62, 0, 1, 0, 0, 0]);
    file[32..40].copy_from_slice(&64u64.to_le_bytes());
    file[40..48].copy_from_slice(&(headers_at as u64).to_le_bytes());
    for (at, number) in [(52, 64u16), (54, 56), (56, 1), (58, 64), (60, sections.len() as u16), (62, 3)] {
        file[at..at + 2].copy_from_slice(&number.to_le_bytes());
    }
    // PT_LOAD, readable and executable.
    file[64..72].copy_from_slice(&[1, 0, 0, 0, 5, 0, 0, 0]);
    for (at, number) in [(96, size), (104, size), (112, 0x1000u64)] {
        file[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
    file
}
