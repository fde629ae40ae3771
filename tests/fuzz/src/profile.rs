//! Profile files.

use ccsd_profile::export::{Export, Format};
use ccsd_profile::view::{
    CyclesView, DiffTree, DiffView, FlatView, GraphView, LinesView, Selection, StacksView, StatsView, SummaryView,
    ThreadsView, TreeView,
};
use ccsd_profile::{Encoder, Profile, Recovery, read_profile};

/// Bytes of the header, before the first record.
const HEADER: usize = 12;

/// Reads the file with repaired checksums, shows every view, writes every format, and reads it again: the result is the
/// same.
pub fn run(data: &[u8]) {
    let Ok(loaded) = read_profile(&repaired(data)[..]) else { return };
    let profile = &loaded.profile;
    // Sums of weights that no machine has are the largest number, which is not the sum of anything.
    if views(profile) <= u64::MAX / 2 {
        round_trip(profile);
    }
}

/// The file with each record's checksum as it must be. (Else nearly all that a fuzzer makes ends there.)
fn repaired(data: &[u8]) -> Vec<u8> {
    let mut file = data.to_vec();
    let mut at = HEADER;
    for number in 0u32.. {
        let Some((length, digits)) = file.get(at + 1..).and_then(leb128) else { break };
        let Some(end) = (at + 1 + digits).checked_add(length).filter(|end| end + 4 <= file.len()) else { break };
        let mut sum = crc32fast::Hasher::new();
        if number == 0 {
            sum.update(&file[..HEADER]);
        }
        sum.update(&number.to_le_bytes());
        sum.update(&file[at..end]);
        file[end..end + 4].copy_from_slice(&sum.finalize().to_le_bytes());
        at = end + 4;
    }
    file
}

/// A number and the bytes that it takes.
fn leb128(bytes: &[u8]) -> Option<(usize, usize)> {
    let digits = bytes.iter().take(5).position(|byte| byte & 0x80 == 0)? + 1;
    let value = bytes[..digits].iter().rev().fold(0, |value, byte| value << 7 | usize::from(byte & 0x7f));
    Some((value, digits))
}

fn views(profile: &Profile) -> u64 {
    let all = Selection::all();
    let flat = FlatView::new(profile, &all);
    // Sums that are too large are the largest number.
    let sum = |weights: &mut dyn Iterator<Item = u64>| weights.fold(0, u64::saturating_add);
    assert_eq!(sum(&mut flat.rows.iter().map(|row| row.self_weight)), flat.total.weight);
    let stacks = StacksView::new(profile, &all);
    let listed = sum(&mut stacks.rows.iter().map(|row| row.weight));
    assert_eq!(listed.saturating_add(stacks.other.weight), flat.total.weight);
    let _ = GraphView::new(profile, &all);
    let _ = TreeView::new(profile, &all);
    let _ = LinesView::new(profile, &all);
    let _ = ThreadsView::new(profile, &all);
    let _ = CyclesView::new(profile, &all);
    let _ = SummaryView::new(profile, &all);
    let _ = StatsView::new(profile, None);
    let difference = DiffView::new((profile, &all), (profile, &all));
    assert!(difference.rows.iter().all(|row| row.before == row.after));
    let _ = DiffTree::new((profile, &all), (profile, &all), 0.0);
    for format in Format::ALL {
        let written = Export::new(profile, &all).write(format, &mut std::io::sink());
        // Some formats have nothing to say of no samples, or of weights that no machine has.
        let is_odd = flat.total.samples == 0 || flat.total.weight > u64::MAX / 2;
        assert!(written.is_ok() || is_odd, "{format:?}: {written:?}");
    }
    flat.total.weight
}

fn round_trip(profile: &Profile) {
    let mut encoder = Encoder::new(Vec::new(), profile.session()).expect("a session that was read");
    if encoder.write(&profile.snapshot()).is_err() {
        // It says what cannot be written, and has written nothing of it.
        return;
    }
    let file = encoder.finish_with(profile.accounting()).expect("an update that was written");
    let again = read_profile(&file[..]).expect("a file that was written");
    assert!(matches!(again.recovery, Recovery::Whole) && again.finished);
    assert_eq!(again.profile.canonical(), profile.canonical());
}
