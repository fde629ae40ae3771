//! The function with the most samples so far, for the status line.

use ccsd_profile::{CostCentreId, Profile, ProfileLimits, SessionInfo, Update, sanitise};
use std::collections::HashMap;

use crate::format::percent;

/// Follows a session's updates: names, contexts, and the number of samples in each function.
pub struct Leader {
    profile: Profile,
    own: HashMap<CostCentreId, u64>,
    samples: u64,
}

impl Leader {
    pub fn new(session: &SessionInfo) -> Leader {
        Leader { profile: Profile::new(session.clone(), ProfileLimits::reading()), own: HashMap::new(), samples: 0 }
    }

    /// Applies an update. An update that does not fit is ignored.
    pub fn update(&mut self, update: &Update) {
        let mut names = update.clone();
        names.clear_charges();
        if self.profile.apply(&names).is_err() {
            return;
        }
        for charge in &update.charges {
            let Some(function) = self.profile.contexts().leaf(charge.context) else { continue };
            *self.own.entry(function).or_default() += charge.samples;
            self.samples += charge.samples;
        }
    }

    /// `34.21% memcpy`
    pub fn text(&self) -> Option<String> {
        let mut named: HashMap<CostCentreId, u64> = HashMap::new();
        for (&function, &samples) in &self.own {
            *named.entry(self.profile.real(function)).or_default() += samples;
        }
        // Ties go to the function met first, so that the line does not flicker.
        let (function, samples) =
            named.into_iter().max_by_key(|&(function, samples)| (samples, std::cmp::Reverse(function)))?;
        let share = samples as f64 / self.samples.max(1) as f64;
        Some(format!("{}% {}", percent(share), sanitise(&self.profile.labels().label(function))))
    }
}
