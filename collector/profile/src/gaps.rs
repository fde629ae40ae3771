//! Gaps in histories whose entries are one `u32` each, the mark in its top bit.

/// The mark bit. Functions are numbered below it.
pub(crate) const MARK: u32 = 1 << 31;

/// Positions of the entries that the entry before them may not have called: between the two, recursion was squeezed out.
///
/// Next to a marked entry stands its true caller or callee, because A4 and A5 keep the ends of a run of unmarked entries. Of
/// a run of two only its ends are known: its functions are all marked further in, so where three or more are, a third may
/// have stood between the two. Where only two are, the run alternates between them and the call did happen.
pub(crate) fn gaps(entries: &[u32]) -> impl Iterator<Item = usize> + '_ {
    let unmarked = |i: usize| entries.get(i).is_some_and(|entry| entry & MARK == 0);
    let third = entries.iter().enumerate().rev().filter(|(_, entry)| **entry & MARK != 0).nth(2);
    (1..third.map_or(1, |(i, _)| i)).filter(move |&i| unmarked(i - 1) && unmarked(i))
}
