//! What a session holds, at its end.

/// Gives back what a session of a process that goes on has in memory and open. Of a process that ends with its session nobody
/// waits for either: the kernel takes both at once, where to take apart a million small things would be the longest part of
/// the end, for which those who wait for the target's end wait, too.
pub fn give_back<T>(held: T, exits: bool) {
    if exits {
        std::mem::forget(held);
    }
}
