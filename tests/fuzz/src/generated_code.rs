//! Names of generated code: `/tmp/perf-PID.map` and jitdump files.

use ccsd_symbolizer::jit::{JitDump, PerfMap};

pub fn run(data: &[u8]) {
    let Some((&first, data)) = data.split_first() else { return };
    let piece = usize::from(first).max(1);
    let (mut map, mut whole_map) = (PerfMap::default(), PerfMap::default());
    let (mut dump, mut whole_dump) = (JitDump::default(), JitDump::default());
    feed(data, piece, |bytes| map.feed(bytes));
    feed(data, piece, |bytes| dump.feed(bytes) as usize);
    feed(data, data.len(), |bytes| whole_map.feed(bytes));
    feed(data, data.len(), |bytes| whole_dump.feed(bytes) as usize);
    assert_eq!((map.bad_lines(), map.code().len()), (whole_map.bad_lines(), whole_map.code().len()));
    assert_eq!((dump.bad_records(), dump.code().len()), (whole_dump.bad_records(), whole_dump.code().len()));
    for address in data.chunks_exact(8).take(64).filter_map(|word| word.try_into().ok().map(u64::from_le_bytes)) {
        let _ = map.code().find(address, u64::MAX);
        let _ = dump.code().find(address, dump.latest());
    }
}

fn feed(data: &[u8], piece: usize, mut read: impl FnMut(&[u8]) -> usize) {
    let (mut at, mut end) = (0, 0);
    while end < data.len() {
        end = data.len().min(end + piece.max(1));
        while let Some(bytes) = data.get(at..end).filter(|bytes| !bytes.is_empty()) {
            let used = read(bytes);
            at += used;
            if used == 0 {
                break;
            }
        }
    }
}
