//! Shares of users in what has a limit.
//!
//! Root and the session's own user may take all. All other users and containers leave an eighth for them, and each of them
//! gets at most half of what the others leave of the rest: however much users take, there is room for the next.

use std::hash::Hash;

use hashbrown::HashMap;

use crate::shed::Shed;

/// What users other than root and the session's own have taken.
#[derive(Clone, Debug)]
pub struct Shares<K> {
    taken: HashMap<K, u64>,
    of_all: u64,
}

impl<K> Default for Shares<K> {
    fn default() -> Self {
        Self { taken: HashMap::new(), of_all: 0 }
    }
}

impl<K: Copy + Eq + Hash> Shares<K> {
    /// How much more one may take where everybody together has taken `taken` of `limit`.
    #[must_use]
    pub fn left(&self, payer: K, limit: u64, taken: u64) -> u64 {
        let own = self.taken.get(&payer).copied().unwrap_or(0);
        let rest = (limit - limit / 8).saturating_sub(self.of_all - own);
        limit.saturating_sub(taken).min((rest / 2).saturating_sub(own))
    }

    /// Counts what one has taken.
    pub fn add(&mut self, payer: K, amount: u64) {
        if amount > 0 {
            *self.taken.entry(payer).or_default() += amount;
            self.of_all += amount;
        }
    }

    /// Forgets what everybody has taken.
    pub fn clear(&mut self) {
        self.taken.clear();
        self.of_all = 0;
    }

    /// Counts what one has given back.
    pub fn give(&mut self, payer: K, amount: u64) {
        let Some(taken) = self.taken.get_mut(&payer) else { return };
        let amount = amount.min(*taken);
        *taken -= amount;
        self.of_all -= amount;
        if *taken == 0 {
            self.taken.remove(&payer);
        }
    }
}

/// A user or container other than root and the session's own user, by a number that the collector gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Payer(pub u64);

/// Who pays for what is entered now, and what each has taken.
#[derive(Debug, Default)]
pub(crate) struct TableShares {
    payer: Option<Payer>,
    /// By table. Contexts and charges have no shares: where these are full, a new generation begins.
    tables: [Shares<Payer>; Shed::COUNT],
}

impl TableShares {
    /// Whether who pays may take so much more of a table in which `taken` of `limit` are taken.
    pub(crate) fn has(&self, table: Shed, (taken, limit): (usize, usize), amount: usize) -> bool {
        let left = limit.saturating_sub(taken) as u64;
        let left = self.payer.map_or(left, |payer| self.tables[table as usize].left(payer, limit as u64, taken as u64));
        amount as u64 <= left
    }

    pub(crate) fn add(&mut self, table: Shed, amount: usize) {
        if let Some(payer) = self.payer {
            self.tables[table as usize].add(payer, amount as u64);
        }
    }

    /// Returns who paid before.
    pub(crate) const fn set_payer(&mut self, payer: Option<Payer>) -> Option<Payer> {
        std::mem::replace(&mut self.payer, payer)
    }

    /// The part of a table that who pays may use. The last quarter of the processes and threads is for entries that several
    /// share: if users could fill the quarter before it, root would have those alone.
    pub(crate) const fn usable(&self, limit: usize) -> usize {
        if self.payer.is_some() { limit - limit / 4 } else { limit }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::limits::ProfileLimits;
    use crate::model::{CostCentre, Image, Process, SessionInfo, Thread};
    use crate::profile::Profile;

    #[test]
    fn what_users_enter_leaves_room_for_the_next_and_for_root() {
        let limits = ProfileLimits {
            string_bytes: 1 << 16,
            cost_centres: 1024,
            lines: 1024,
            images: 64,
            processes: 64,
            threads: 64,
            ..ProfileLimits::default()
        };
        let mut profile = Profile::new(SessionInfo::default(), limits);
        let mut next = 0;
        let mut fill = |payer: Option<u64>| {
            profile.paid_by(payer.map(Payer), |profile| {
                let mut entered = [0; 5];
                for _ in 0..2048 {
                    next += 1;
                    let image = profile.add_image(Image { name: format!("/{next}"), build_id: Vec::new() });
                    let function = CostCentre::named(image, format!("f{next}"));
                    let function = profile.add_cost_centre(function);
                    let process = profile.add_process(Process::new(next, 1, format!("p{next}")));
                    let thread = profile.add_thread(Thread { process, tid: next, name: String::new() });
                    let line = profile.add_line("a.c", next);
                    entered[0] += usize::from(profile.image(image).unwrap().name.starts_with('/'));
                    entered[1] += usize::from(profile.name(function).starts_with('f'));
                    entered[2] += usize::from(!profile.process(process).unwrap().is_grouped());
                    entered[3] += usize::from(profile.thread(thread).unwrap().tid == next);
                    entered[4] += usize::from(profile.source_line(line) != crate::LineId::UNKNOWN);
                }
                entered
            })
        };
        // Processes and threads have entries of their own in three quarters, of which users leave a quarter.
        let (first, second) = (fill(Some(1)), fill(Some(2)));
        assert_eq!(first[..2], [28, 448], "{first:?}");
        assert!(first.iter().all(|&count| count >= 14) && second.iter().all(|&count| count >= 6), "{second:?}");
        (3..40).for_each(|user| _ = fill(Some(user)));
        let own = fill(None);
        let limits = [64, 1024, 64, 64, 1024];
        assert!(own.iter().zip(limits).all(|(&count, limit)| count >= limit / 10), "{own:?}");
    }
}
