//! Room for images, of which one user's files leave some for those of others.
//!
//! What is root's and the session's own user's may take all. All other users together get a half, and each of them at most
//! half of what the others leave of it.

use ccsd_worker::Principal;
use hashbrown::HashMap;
use nix::unistd::geteuid;

#[derive(Debug)]
pub(super) struct ImageRoom {
    limit: usize,
    taken: usize,
    /// The session's own user.
    own: Principal,
    others: HashMap<Principal, usize>,
    of_others: usize,
}

impl ImageRoom {
    pub(super) fn new(limit: usize) -> ImageRoom {
        let own = ccsd_worker::principal_of(geteuid().as_raw());
        ImageRoom { limit, taken: 0, own, others: HashMap::new(), of_others: 0 }
    }

    pub(super) fn set_user(&mut self, user: u32) {
        self.own = ccsd_worker::principal_of(user);
    }

    fn is_other(&self, owner: Principal) -> bool {
        owner != Principal::Own && owner != self.own
    }

    pub(super) fn has(&self, owner: Principal, amount: usize) -> bool {
        let fits = self.taken.saturating_add(amount) <= self.limit;
        if !fits || !self.is_other(owner) {
            return fits;
        }
        let taken = self.others.get(&owner).copied().unwrap_or(0);
        let left = (self.limit / 2).saturating_sub(self.of_others - taken);
        taken.saturating_add(amount) <= left / 2
    }

    /// Takes room; false if there is not so much.
    pub(super) fn take(&mut self, owner: Principal, amount: usize) -> bool {
        let has = self.has(owner, amount);
        if has {
            self.taken += amount;
            if self.is_other(owner) {
                *self.others.entry(owner).or_default() += amount;
                self.of_others += amount;
            }
        }
        has
    }

    /// Gives back what was taken.
    pub(super) fn give(&mut self, owner: Principal, amount: usize) {
        self.taken = self.taken.saturating_sub(amount);
        if let Some(taken) = self.others.get_mut(&owner) {
            let amount = amount.min(*taken);
            *taken -= amount;
            self.of_others -= amount;
            self.others.retain(|_, taken| *taken > 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_much_users_take_there_is_room_for_the_next_and_for_root() {
        let mut room = ImageRoom::new(1024);
        let fill = |room: &mut ImageRoom, owner| (0..).take_while(|_| room.take(owner, 1)).count();
        let user = Principal::User;
        assert_eq!((fill(&mut room, user(1)), fill(&mut room, user(2)), fill(&mut room, user(3))), (256, 128, 64));
        assert!(!room.has(user(1), 1) && room.has(user(4), 32));
        assert_eq!(fill(&mut room, Principal::Own), 1024 - 256 - 128 - 64);
        assert!(!room.has(user(4), 1));
        room.give(user(2), 128);
        assert_eq!(room.others.len(), 2);
        assert_eq!(fill(&mut room, user(4)), 96);
        // In a session of a user, that user's files are the own ones.
        let mut room = ImageRoom::new(1024);
        room.own = user(7);
        assert_eq!((fill(&mut room, user(1)), fill(&mut room, user(7))), (256, 768));
        room.give(user(7), 8);
        assert!(room.take(Principal::Own, 8) && !room.take(Principal::Own, 1));
    }
}
