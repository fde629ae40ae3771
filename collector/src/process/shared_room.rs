//! Room for images, threads and mappings, of which one user leaves some for others.
//!
//! The shares are those of [`Shares`]. The owner of a file pays for it; for one of root's, the user who maps it, until
//! somebody else does, too.

use ccsd_profile::Shares;
use ccsd_worker::Principal;
use nix::unistd::geteuid;

#[derive(Debug)]
pub struct SharedRoom {
    limit: u64,
    taken: u64,
    /// The session's own user.
    own: Principal,
    others: Shares<Principal>,
}

impl SharedRoom {
    pub fn new(limit: u64) -> SharedRoom {
        let own = ccsd_worker::principal_of(geteuid().as_raw());
        SharedRoom { limit, taken: 0, own, others: Shares::default() }
    }

    pub fn set_user(&mut self, user: u32) {
        self.own = ccsd_worker::principal_of(user);
    }

    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Whether somebody else than root and the session's own user pays.
    pub fn is_other(&self, payer: Principal) -> bool {
        payer != Principal::Own && payer != self.own
    }

    pub fn has(&self, payer: Principal, amount: u64) -> bool {
        amount <= self.left(payer)
    }

    /// How much more one may take.
    pub fn left(&self, payer: Principal) -> u64 {
        match self.is_other(payer) {
            true => self.others.left(payer, self.limit, self.taken),
            false => self.limit.saturating_sub(self.taken),
        }
    }

    /// The same room, of which nothing is taken.
    pub fn emptied(&self) -> SharedRoom {
        SharedRoom { limit: self.limit, taken: 0, own: self.own, others: Shares::default() }
    }

    /// Forgets what was taken.
    pub fn clear(&mut self) {
        self.taken = 0;
        self.others.clear();
    }

    /// Takes room; false if there is not so much.
    pub fn take(&mut self, payer: Principal, amount: u64) -> bool {
        let has = self.has(payer, amount);
        if has {
            self.add(payer, amount);
        }
        has
    }

    /// Takes room that was found to be there before.
    pub fn add(&mut self, payer: Principal, amount: u64) {
        self.taken = self.taken.saturating_add(amount);
        if self.is_other(payer) {
            self.others.add(payer, amount);
        }
    }

    /// Gives back what was taken.
    pub fn give(&mut self, payer: Principal, amount: u64) {
        self.taken = self.taken.saturating_sub(amount);
        self.others.give(payer, amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_much_users_take_there_is_room_for_the_next_and_for_root() {
        let mut room = SharedRoom::new(1024);
        let fill = |room: &mut SharedRoom, owner| (0..).take_while(|_| room.take(owner, 1)).count();
        let user = Principal::User;
        assert_eq!((fill(&mut room, user(1)), fill(&mut room, user(2)), fill(&mut room, user(3))), (448, 224, 112));
        assert!(!room.has(user(1), 1) && room.has(user(4), 56));
        assert_eq!(fill(&mut room, Principal::Own), 1024 - 448 - 224 - 112);
        assert!(!room.has(user(4), 1) && room.has(user(4), 0));
        room.give(user(2), 224);
        assert_eq!(fill(&mut room, user(4)), 168);
        // In a session of a user, that user's files are the own ones.
        let mut room = SharedRoom::new(1024);
        room.own = user(7);
        assert_eq!((fill(&mut room, user(1)), fill(&mut room, user(7))), (448, 576));
        room.give(user(7), 8);
        assert!(room.take(Principal::Own, 8) && !room.take(Principal::Own, 1));
    }
}
