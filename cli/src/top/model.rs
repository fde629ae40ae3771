//! What is looked at: a profile that grows, what of it is new, and an earlier moment to compare with.

use ccsd_profile::{Process, Profile, ProfileLimits, SessionInfo, Unit, Update, UpdateError};

/// Intervals of the strip that are kept: wider is no terminal.
const POINTS: usize = 512;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StripInterval {
    pub length: u64,
    pub weight: u64,
}

pub struct Frozen {
    pub before: Profile,
    pub since: Profile,
    /// When it was, nanoseconds since the session began.
    pub at: u64,
}

struct Moment {
    profile: Profile,
    /// The last interval by itself, while that is asked for.
    last: Option<Profile>,
    frozen: Option<Frozen>,
    points: Vec<StripInterval>,
    /// The end of the strip, nanoseconds since the session began.
    until: u64,
    /// How often a session began: ids of one mean nothing in another.
    generation: u32,
}

pub struct TopModel {
    live: Moment,
    /// What is shown while paused. A copy takes as much memory as the profile, however long the pause.
    paused: Option<Moment>,
    wants_last: bool,
    ended: bool,
}

fn empty(session: &SessionInfo, full_names: bool) -> Profile {
    let mut profile = Profile::new(session.clone(), ProfileLimits::reading());
    profile.set_full_names(full_names);
    profile
}

fn copy(profile: &Profile) -> Result<Profile, UpdateError> {
    let mut copy = empty(profile.session(), profile.has_full_names());
    copy.apply(&profile.snapshot())?;
    Ok(copy)
}

/// The names of a profile without what was charged: what later updates refer to.
fn names(profile: &Profile) -> Result<Profile, UpdateError> {
    let mut names = profile.snapshot();
    names.clear_charges();
    let mut copy = empty(profile.session(), profile.has_full_names());
    copy.apply(&names)?;
    profile.snapshot_generation().map_or(Ok(()), |generation| copy.apply(&generation))?;
    Ok(copy)
}

impl Moment {
    fn new(session: &SessionInfo, full_names: bool, generation: u32) -> Moment {
        Moment {
            profile: empty(session, full_names),
            last: None,
            frozen: None,
            points: Vec::new(),
            until: 0,
            generation,
        }
    }

    /// A copy to look at. It takes no updates.
    fn picture(&self) -> Result<Moment, UpdateError> {
        let frozen =
            |frozen: &Frozen| Ok(Frozen { before: copy(&frozen.before)?, since: copy(&frozen.since)?, at: frozen.at });
        Ok(Moment {
            profile: copy(&self.profile)?,
            last: self.last.as_ref().map(copy).transpose()?,
            frozen: self.frozen.as_ref().map(frozen).transpose()?,
            points: self.points.clone(),
            ..*self
        })
    }

    fn apply(&mut self, update: &Update, wants_last: bool) -> Result<(), UpdateError> {
        if wants_last {
            let mut last = names(&self.profile)?;
            last.apply(update)?;
            self.last = Some(last);
        }
        self.profile.apply(update)?;
        if let Some(frozen) = &mut self.frozen {
            frozen.since.apply(update)?;
        }
        let metrics = self.profile.session().metrics.len();
        let charged = |sum: u64, weights: &[u64]| sum.saturating_add(weights.first().copied().unwrap_or(0));
        let weight = update.charges_with_weights(metrics).fold(0, |sum, (_, weights)| charged(sum, weights));
        let (until, now) = (self.until, self.profile.accounting().duration_ns);
        if now > until {
            if self.points.len() == POINTS {
                self.points.remove(0);
            }
            self.points.push(StripInterval { length: now - until, weight });
        }
        self.until = now;
        Ok(())
    }

    fn freeze(&mut self) -> Result<(), UpdateError> {
        let at = self.profile.accounting().duration_ns;
        self.frozen = Some(Frozen { before: copy(&self.profile)?, since: names(&self.profile)?, at });
        Ok(())
    }
}

impl TopModel {
    /// Nothing yet; names will be shown as they are, or as text shows them.
    pub fn new(full_names: bool) -> TopModel {
        let live = Moment::new(&SessionInfo::default(), full_names, 0);
        TopModel { live, paused: None, wants_last: false, ended: false }
    }

    fn seen(&self) -> &Moment {
        self.paused.as_ref().unwrap_or(&self.live)
    }

    /// A session begins, or starts again. What was frozen has other names and is gone.
    pub fn begin(&mut self, session: &SessionInfo) {
        let generation = self.live.generation.wrapping_add(1);
        self.live = Moment::new(session, self.live.profile.has_full_names(), generation);
        self.ended = false;
    }

    /// How often a session began: functions and threads of one have other numbers than those of another.
    pub fn generation(&self) -> u32 {
        self.seen().generation
    }

    /// What came since. Changes what is shown, unless paused. Errors: the update does not fit to what came before.
    pub fn update(&mut self, update: &Update) -> Result<(), UpdateError> {
        self.live.apply(update, self.wants_last)
    }

    pub fn end(&mut self) {
        self.ended = true;
    }

    pub fn has_ended(&self) -> bool {
        self.ended
    }

    pub fn shown(&self) -> &Profile {
        let seen = self.seen();
        seen.last.as_ref().filter(|_| self.wants_last).unwrap_or(&seen.profile)
    }

    pub fn profile(&self) -> &Profile {
        &self.seen().profile
    }

    /// What is profiled: by the name that it has now, if it is one process that has executed another program.
    pub fn target(&self) -> String {
        let (profile, session) = (self.profile(), self.profile().session());
        let target = session.target.clone();
        let [pid] = session.pids[..] else { return target };
        let mut names: Vec<&Process> = profile.processes().iter().filter(|process| process.pid == pid).collect();
        names.sort_by_key(|process| (process.start_time, process.exec_generation));
        match names[..] {
            [first, .., last] if first.name != last.name => match target.strip_prefix(&first.name) {
                Some(rest) if rest.is_empty() || rest.starts_with(' ') => format!("{}{rest}", last.name),
                _ => format!("{target}, now {}", last.name),
            },
            _ => target,
        }
    }

    pub fn points(&self) -> &[StripInterval] {
        &self.seen().points
    }

    /// Whether weights are time on a CPU, so that a weight divided by a length is a number of CPUs.
    pub fn weighs_time(&self) -> bool {
        self.profile().session().metrics.first().is_some_and(|metric| metric.unit == Unit::Nanoseconds)
    }

    pub fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// Keeps what is shown as it is, or goes on to what has come meanwhile.
    pub fn toggle_pause(&mut self) -> Result<(), UpdateError> {
        self.paused = match self.paused {
            None => Some(self.live.picture()?),
            Some(_) => None,
        };
        Ok(())
    }

    /// Whether only the last interval is shown; the first one that comes after this was asked for.
    pub fn shows_last(&self) -> bool {
        self.wants_last
    }

    pub fn toggle_last(&mut self) {
        self.wants_last = !self.wants_last;
        self.live.last = None;
        self.paused.iter_mut().for_each(|paused| paused.last = None);
    }

    pub fn frozen(&self) -> Option<&Frozen> {
        self.seen().frozen.as_ref()
    }

    /// Compares what comes from now on with what came up to now, or no longer.
    pub fn toggle_frozen(&mut self) -> Result<(), UpdateError> {
        let is_frozen = self.frozen().is_some();
        for moment in std::iter::once(&mut self.live).chain(&mut self.paused) {
            moment.frozen = None;
            if !is_frozen {
                moment.freeze()?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub mod tests {
    use ccsd_profile::view::{FlatView, Selection};
    use ccsd_profile::{CostCentre, Image, LineId, Metric, Thread};

    use super::*;

    pub struct TestProfile {
        pub profile: Profile,
        thread: ccsd_profile::ThreadId,
    }

    impl TestProfile {
        pub fn new() -> TestProfile {
            let metric = Metric { name: "cpu-clock".into(), unit: Unit::Nanoseconds };
            let session = SessionInfo { target: "./prog".into(), metrics: vec![metric], ..SessionInfo::default() };
            let mut profile = empty(&session, false);
            let process = Process::new(10, 1, "prog");
            let process = profile.add_process(process);
            let thread = profile.add_thread(Thread { process, tid: 10, name: "prog".into() });
            TestProfile { profile, thread }
        }

        pub fn charge(&mut self, stack: &[&str], samples: u64) {
            let image = self.profile.add_image(Image { name: "/bin/prog".into(), build_id: Vec::new() });
            let mut context = ccsd_profile::ContextId::ROOT;
            for name in stack {
                let centre = self.profile.add_cost_centre(CostCentre::named(image, *name));
                context = self.profile.contexts_mut().push(context, centre);
            }
            let weight = samples * 1_000_000;
            self.profile.charge_many(self.thread, context, LineId::UNKNOWN, samples, &[weight]);
        }

        pub fn update(&mut self, duration_ns: u64) -> Update {
            self.profile.accounting_mut().duration_ns = duration_ns;
            self.profile.take_update()
        }
    }

    fn weights(profile: &Profile) -> Vec<(String, u64)> {
        let view = FlatView::new(profile, &Selection::all());
        view.rows.into_iter().map(|row| (row.name, row.self_weight / 1_000_000)).collect()
    }

    fn pairs(pairs: &[(&str, u64)]) -> Vec<(String, u64)> {
        pairs.iter().map(|&(name, weight)| (name.to_owned(), weight)).collect()
    }

    fn model(source: &TestProfile) -> TopModel {
        let mut model = TopModel::new(false);
        model.begin(source.profile.session());
        model
    }

    #[test]
    fn updates_while_paused_come_afterwards() {
        let mut source = TestProfile::new();
        let mut model = model(&source);
        source.charge(&["main", "a"], 3);
        model.update(&source.update(1_000_000_000)).unwrap();
        model.toggle_pause().unwrap();
        for second in 2..5 {
            source.charge(&["main", "b"], 1);
            model.update(&source.update(second * 1_000_000_000)).unwrap();
        }
        assert_eq!(weights(model.shown()), pairs(&[("a", 3), ("main", 0)]));
        model.toggle_pause().unwrap();
        assert_eq!(weights(model.shown()), pairs(&[("a", 3), ("b", 3), ("main", 0)]));
        assert_eq!(weights(model.shown()), weights(&source.profile));
    }

    #[test]
    fn a_session_that_begins_anew_while_paused() {
        let mut first = TestProfile::new();
        let mut model = model(&first);
        first.charge(&["main", "a"], 3);
        model.update(&first.update(1_000_000_000)).unwrap();
        model.toggle_pause().unwrap();
        first.charge(&["main", "a"], 3);
        model.update(&first.update(2_000_000_000)).unwrap();
        let mut second = TestProfile::new();
        model.begin(second.profile.session());
        second.charge(&["other"], 7);
        model.update(&second.update(1_000_000_000)).unwrap();
        assert_eq!(weights(model.shown()), pairs(&[("a", 3), ("main", 0)]));
        model.toggle_pause().unwrap();
        assert_eq!(weights(model.shown()), pairs(&[("other", 7)]));
    }

    #[test]
    fn a_moment_that_is_frozen_while_paused() {
        let mut source = TestProfile::new();
        let mut model = model(&source);
        source.charge(&["main", "a"], 3);
        model.update(&source.update(1_000_000_000)).unwrap();
        model.toggle_pause().unwrap();
        source.charge(&["main", "b"], 2);
        model.update(&source.update(2_000_000_000)).unwrap();
        model.toggle_frozen().unwrap();
        let frozen = model.frozen().unwrap();
        assert_eq!(weights(&frozen.before), pairs(&[("a", 3), ("main", 0)]));
        source.charge(&["main", "a"], 1);
        model.update(&source.update(3_000_000_000)).unwrap();
        model.toggle_pause().unwrap();
        let frozen = model.frozen().unwrap();
        assert_eq!(weights(&frozen.before), pairs(&[("a", 3), ("b", 2), ("main", 0)]));
        assert_eq!(weights(&frozen.since), pairs(&[("a", 1), ("main", 0)]));
        model.toggle_frozen().unwrap();
        assert!(model.frozen().is_none());
    }

    #[test]
    fn a_process_that_executes_another_program_has_its_name() {
        let process = |name: &str, exec_generation| Process { exec_generation, ..Process::new(10, 1, name) };
        let named = |target: &str, pids: Vec<u32>, names: &[&str]| {
            let session = SessionInfo { target: target.into(), pids, ..SessionInfo::default() };
            let mut source = empty(&session, false);
            for (name, generation) in names.iter().zip(0..) {
                source.add_process(process(name, generation));
            }
            let mut model = TopModel::new(false);
            model.begin(&session);
            model.update(&source.take_update()).unwrap();
            model.target()
        };
        assert_eq!(named("sh (10)", vec![10], &["sh"]), "sh (10)");
        assert_eq!(named("sh (10)", vec![10], &["sh", "perl"]), "perl (10)");
        assert_eq!(named("./run.sh", vec![10], &["sh", "perl"]), "./run.sh, now perl");
        assert_eq!(named("two", vec![10, 11], &["sh", "perl"]), "two");
        assert_eq!(named("2 processes", vec![10], &["a", "b"]), "2 processes, now b");
    }

    #[test]
    fn the_last_interval_and_the_time_since_a_moment() {
        let mut source = TestProfile::new();
        let mut model = model(&source);
        source.charge(&["main", "a"], 3);
        model.update(&source.update(1_000_000_000)).unwrap();
        model.toggle_last();
        model.toggle_frozen().unwrap();
        source.charge(&["main", "b"], 2);
        model.update(&source.update(2_000_000_000)).unwrap();
        source.charge(&["main", "a"], 1);
        model.update(&source.update(3_000_000_000)).unwrap();
        assert_eq!(weights(model.shown()), pairs(&[("a", 1), ("main", 0)]));
        let frozen = model.frozen().unwrap();
        assert_eq!(weights(&frozen.before), pairs(&[("a", 3), ("main", 0)]));
        assert_eq!(weights(&frozen.since), pairs(&[("b", 2), ("a", 1), ("main", 0)]));
        let points: Vec<u64> = model.points().iter().map(|point| point.weight / 1_000_000).collect();
        assert_eq!(points, [3, 2, 1]);
        model.toggle_last();
        assert_eq!(weights(model.shown()), weights(&source.profile));
    }
}
