//! How room is shared among things of different lengths.

use std::collections::BTreeMap;

/// Up to which length things are shown in full where all have `room` together: the longest are cut to it, so that many or
/// long ones of one program do not take the place of others'. `by_length` counts them; `least` are shown in any case.
pub fn fair_length(by_length: &BTreeMap<usize, usize>, room: usize, least: usize) -> usize {
    let mut longer: usize = by_length.values().sum();
    let (mut below, mut left) = (0, room);
    for (&length, &count) in by_length {
        let more = (length - below).saturating_mul(longer);
        if more > left {
            return (below + left / longer.max(1)).max(least);
        }
        (below, left, longer) = (length, left - more, longer.saturating_sub(count));
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_are_cut_and_all_fit() {
        for (lengths, room, most) in [
            (&[][..], 0, usize::MAX),
            (&[5, 7, 9], 21, usize::MAX),
            (&[5, 7, 9], 20, 8),
            (&[1, 100, 100], 101, 50),
            (&[1, 1, 1_000_000], 1_000, 998),
            (&[10, 10], 7, 3),
            (&[10, 10], 5, 3),
        ] {
            let mut by_length = BTreeMap::new();
            lengths.iter().for_each(|&length| *by_length.entry(length).or_default() += 1);
            assert_eq!(fair_length(&by_length, room, 3), most, "{lengths:?} in {room}");
        }
    }
}
