//! Limits the number of connections, in total and by user.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum connections in total, and of one untrusted user. An idle connection is a sleeping thread and a descriptor.
const MAX_CONNECTIONS: usize = 2_048;
const MAX_CONNECTIONS_OF_USER: usize = 64;
/// Maximum connections of all untrusted users together, so that root always finds a slot.
const MAX_CONNECTIONS_OF_USERS: usize = 1_024;

/// Open connections.
#[derive(Debug, Default)]
pub struct OpenConnections {
    all: usize,
    /// Connections of each user other than root.
    of_users: HashMap<u32, usize>,
}

impl OpenConnections {
    /// Checks that one more connection fits, of this user if `limited`; otherwise returns whose limit is reached.
    fn room(&self, limited: Option<u32>) -> Result<(), String> {
        if self.all >= MAX_CONNECTIONS {
            return Err(format!("the daemon has {} connections", self.all));
        }
        let of_users: usize = if limited.is_some() { self.of_users.values().sum() } else { 0 };
        if of_users >= MAX_CONNECTIONS_OF_USERS {
            return Err(format!("the daemon has {of_users} connections of users"));
        }
        match limited.and_then(|uid| Some((uid, *self.of_users.get(&uid)?))) {
            Some((uid, count)) if count >= MAX_CONNECTIONS_OF_USER => {
                Err(format!("user {uid} has {count} connections"))
            }
            _ => Ok(()),
        }
    }

    fn add(&mut self, limited: Option<u32>) {
        self.all += 1;
        if let Some(uid) = limited {
            *self.of_users.entry(uid).or_insert(0) += 1;
        }
    }

    fn remove_limited(&mut self, uid: u32) {
        if let Some(count) = self.of_users.get_mut(&uid) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.of_users.remove(&uid);
            }
        }
    }
}

/// A slot among all connections, held while the connection is open.
pub struct ConnectionSlot {
    open: Arc<Mutex<OpenConnections>>,
    limited: Option<u32>,
}

impl ConnectionSlot {
    /// Takes a slot; `limited` is the user whose limit applies. The error says whose limit is reached.
    pub fn new(open: &Arc<Mutex<OpenConnections>>, limited: Option<u32>) -> Result<ConnectionSlot, String> {
        let mut all = lock(open);
        all.room(limited)?;
        all.add(limited);
        Ok(ConnectionSlot { open: Arc::clone(open), limited })
    }

    /// Exempts the connection from the limits of untrusted users, once its user has turned out to be trusted.
    pub fn exempt(&mut self) {
        if let Some(uid) = self.limited.take() {
            lock(&self.open).remove_limited(uid);
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut open = lock(&self.open);
        open.all = open.all.saturating_sub(1);
        if let Some(uid) = self.limited {
            open.remove_limited(uid);
        }
    }
}

fn lock(open: &Mutex<OpenConnections>) -> MutexGuard<'_, OpenConnections> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_s_connections_are_limited_until_he_is_known_to_be_trusted() {
        let open = Arc::default();
        let mut places: Vec<ConnectionSlot> =
            (0..MAX_CONNECTIONS_OF_USER).flat_map(|_| ConnectionSlot::new(&open, Some(7))).collect();
        assert_eq!(ConnectionSlot::new(&open, Some(7)).err(), Some("user 7 has 64 connections".to_owned()));
        assert!(ConnectionSlot::new(&open, Some(8)).is_ok() && ConnectionSlot::new(&open, None).is_ok());
        places[0].exempt();
        places[0].exempt();
        let another = ConnectionSlot::new(&open, Some(7));
        assert!(another.is_ok() && ConnectionSlot::new(&open, Some(7)).is_err());
        drop(places);
        drop(another);
        assert_eq!(lock(&open).all, 0);
        assert_eq!(lock(&open).of_users.len(), 0);
        let all: Vec<ConnectionSlot> = (0..MAX_CONNECTIONS).flat_map(|_| ConnectionSlot::new(&open, None)).collect();
        assert_eq!((all.len(), ConnectionSlot::new(&open, None).is_err()), (MAX_CONNECTIONS, true));
    }
}
