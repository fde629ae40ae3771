//! What a session holds, at its end.

/// Gives back what a session of a process that goes on has in memory and open. Of a process that ends with its session nobody
/// waits for that: the kernel takes all at once, where to take apart a million small things would be the longest part of
/// the end, for which those who wait for the target's end wait, too.
pub fn give_back<T>(held: T, exits: bool) {
    if exits {
        std::mem::forget(held);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn only_a_process_that_ends_keeps_it() {
        let held = Arc::new(());
        give_back(held.clone(), false);
        assert_eq!(Arc::strong_count(&held), 1);
        give_back(held.clone(), true);
        assert_eq!(Arc::strong_count(&held), 2);
    }
}
