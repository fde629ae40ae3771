//! Of whose deaths the stacks are kept: a server whose workers die all the time dies of the same again and again, and a
//! user whose programs do leaves room for the deaths of others'.

use ccsd_profile::MAX_SESSION_CRASHES;
use ccsd_worker::Principal;

use crate::process::shared_room::SharedRoom;

/// Where a session has no end and all that it tells is stored, there is room again after this time, nanoseconds.
const RENEWAL_NS: u64 = 3_600_000_000_000;
/// Users of whom a note says that there is no room for more of theirs.
const MAX_NOTED: usize = 8;

#[derive(Debug)]
pub struct KeptDeaths {
    room: SharedRoom,
    since: u64,
    /// Users of whom there is a note.
    noted: Vec<Principal>,
}

/// What becomes of a death's stack.
#[derive(Debug, PartialEq, Eq)]
pub enum Kept {
    Yes,
    No {
        /// What is to be said of that, once for each user.
        note: Option<String>,
    },
}

impl KeptDeaths {
    /// For a session of this user, or of root.
    pub fn new(user: Option<u32>) -> KeptDeaths {
        let mut room = SharedRoom::new(MAX_SESSION_CRASHES as u64);
        if let Some(user) = user {
            room.set_user(user);
        }
        KeptDeaths { room, since: 0, noted: Vec::new() }
    }

    /// Takes room for the death of a process for which `payer` answers.
    pub fn take(&mut self, payer: Principal) -> Kept {
        if self.room.take(payer, 1) {
            return Kept::Yes;
        }
        if self.noted.contains(&payer) || self.noted.len() >= MAX_NOTED {
            return Kept::No { note: None };
        }
        self.noted.push(payer);
        let whose = match payer {
            Principal::Elsewhere { namespace: 0, .. } => " of unknown users".to_owned(),
            user if self.room.is_other(user) => format!(" {user}"),
            _ => String::new(),
        };
        let note = format!("so many processes{whose} died of signals that the stacks of further ones are not kept");
        Kept::No { note: Some(note) }
    }

    /// Makes room again once so much time has passed. To be called where all updates are stored; `now` in nanoseconds.
    pub fn renew(&mut self, now: u64) {
        if self.since == 0 {
            self.since = now;
        } else if now.saturating_sub(self.since) >= RENEWAL_NS {
            self.since = now;
            self.room = self.room.emptied();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::children_of;

    #[test]
    fn one_user_s_deaths_leave_room_for_those_of_root_and_others() {
        let mut deaths = KeptDeaths::new(None);
        let user = |number| Principal::User(number);
        let child_of = children_of;
        let kept = |deaths: &mut KeptDeaths, of| (0..1_000).filter(|_| deaths.take(of) == Kept::Yes).count();
        assert_eq!((kept(&mut deaths, user(1)), kept(&mut deaths, user(2))), (28, 14));
        assert_eq!(deaths.take(user(1)), Kept::No { note: None });
        assert_eq!((kept(&mut deaths, child_of(7)), deaths.take(child_of(8))), (7, Kept::Yes));
        assert_eq!(kept(&mut deaths, Principal::Own), MAX_SESSION_CRASHES - 28 - 14 - 7 - 1);
        let Kept::No { note: Some(note) } = deaths.take(user(3)) else { panic!() };
        assert!(note.contains("of user 3"), "{note}");
        let notes = (4..100).filter(|&number| deaths.take(user(number)) != Kept::No { note: None });
        assert_eq!(notes.count(), MAX_NOTED - 5);
        deaths.renew(5);
        deaths.renew(4 + RENEWAL_NS);
        assert_ne!(deaths.take(user(1)), Kept::Yes);
        deaths.renew(5 + RENEWAL_NS);
        assert_eq!(kept(&mut deaths, user(1)), 28);
        // In a user's session, that user's may take all.
        let mut deaths = KeptDeaths::new(Some(1));
        assert_eq!(kept(&mut deaths, user(1)), MAX_SESSION_CRASHES);
    }
}
