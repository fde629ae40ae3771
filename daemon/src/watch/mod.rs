//! Watches: processes that are profiled for as long as they run, and their stored profiles.
//!
//! One thread ([`Watches`]) scans, enforces the budget and removes old profiles. Each watch that has matched has a
//! thread ([`follower`]) with a session and a segment.

mod budget;
mod follower;
mod proc_stat;
mod rules;
mod scan;
mod short_lives;
mod status;

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use ccsd_collector::usage;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, TrySendError, bounded};

use crate::config::{Config, WatchConfig};
use crate::ledger::{Ledger, Resource};
use crate::store;
use crate::supervisor::{BEAT, Heart, Supervisor};
use crate::users::{UserNumber, UserNumbers};
use budget::Shedder;
use follower::{Handle, Orders, SegmentTarget};
use rules::WatchRule;
use scan::Scanner;

pub use rules::{describe, unknown_users};
pub use scan::user_number;
pub use status::WatchStatus;

const RETENTION_PERIOD: Duration = Duration::from_secs(60);
/// A watch starts another segment at this fraction of its share of the store, so that old segments exist to be removed.
const SEGMENT_SHARE: u64 = 8;
/// Maximum time to end: less than the promised five seconds.
const END_TIME: Duration = Duration::from_secs(4);

/// Status of all watches.
#[derive(Clone, Debug, Default)]
pub struct Overview {
    /// Status of each watch.
    pub watches: Vec<WatchStatus>,
    /// Back-off steps taken for the budget.
    pub step: u8,
    /// CPU use of the service in the last minute, percent of one CPU.
    pub cpu_percent: Option<f64>,
    /// Whether the budget is exceeded and no step is left.
    pub over_budget: bool,
    /// Bytes of all stored profiles.
    pub stored_bytes: u64,
    /// Segments removed since the service began.
    pub removed_segments: u64,
    /// Scans for processes since the service began.
    pub looks: u64,
    /// CPU seconds of these scans.
    pub look_seconds: f64,
    /// Configured limits.
    pub limits: ServiceLimits,
}

/// Configured limits of the service.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServiceLimits {
    /// CPU use, percent of one CPU.
    pub cpu_percent: f64,
    /// Memory, bytes.
    pub memory: u64,
    /// Size of all stored profiles.
    pub stored_bytes: u64,
    /// Age of stored profiles.
    pub age_seconds: u64,
}

impl ServiceLimits {
    /// The limits of a configuration.
    #[must_use]
    pub fn of(config: &Config) -> ServiceLimits {
        ServiceLimits {
            cpu_percent: config.budget.cpu_percent.0,
            memory: config.budget.memory.0,
            stored_bytes: config.retention.bytes.0,
            age_seconds: config.retention.age.0.as_secs(),
        }
    }
}

/// The running watches.
pub struct Watches {
    commands: Sender<WatchCommand>,
    overview: Arc<Mutex<Overview>>,
    ended: Receiver<()>,
}

enum WatchCommand {
    Configure(Box<Config>),
    Stop,
}

impl Watches {
    /// Starts the watches. What the users' sessions in the ledger take does not count for their budget.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(config: Config, ledger: Ledger, supervisor: &Supervisor) -> io::Result<Watches> {
        let (commands, receiver) = bounded(1);
        let (alive, ended) = bounded(0);
        let overview = Arc::new(Mutex::new(Overview::default()));
        let manager = Manager::new(config, ledger, Arc::clone(&overview));
        supervisor.spawn("ccsd-watch", move |heart| {
            let _alive: Sender<()> = alive;
            manager.run(&receiver, heart);
        })?;
        Ok(Watches { commands, overview, ended })
    }

    /// Applies another configuration. Watches in both continue.
    pub fn configure(&self, config: Config) {
        let _ = self.commands.send(WatchCommand::Configure(Box::new(config)));
    }

    /// Status of all watches.
    #[must_use]
    pub fn overview(&self) -> Overview {
        self.overview.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends all sessions and finishes their segments, within five seconds; slower ones stay as after a crash.
    pub fn stop(&self) {
        let _ = self.commands.send(WatchCommand::Stop);
        let _ = self.ended.recv_timeout(END_TIME);
    }
}

struct Manager {
    config: Config,
    scanner: Scanner,
    /// In the order of the configuration; `None` for watches that have not matched any process yet.
    followers: Vec<Option<Handle>>,
    /// Disconnected when the threads of removed watches end.
    ending: Vec<Receiver<()>>,
    shedder: Shedder,
    reason: Arc<str>,
    ledger: Ledger,
    overview: Arc<Mutex<Overview>>,
    retained: Option<Instant>,
    /// For each watch of the configuration, the bytes that it had stored when that was looked at, and those that its follower
    /// had written by then.
    stored: Vec<(u64, u64)>,
    named: HashSet<PathBuf>,
    users: UserNumbers,
    /// Answers about users that the rules have.
    answers: u64,
    /// Watches and their missing users that were logged.
    missing: HashSet<(String, String)>,
}

/// CPU time of the service without users' sessions and without the workers that read users' files: these are no reason for
/// the watches to do less.
fn cpu_time(ledger: &Ledger) -> Duration {
    Duration::from_nanos(usage::machine_cpu_ns().saturating_sub(ledger.users_cpu_ns()))
}

fn rule(watch: &WatchConfig, users: &UserNumbers) -> WatchRule {
    WatchRule::new(watch, |name| users.find(name).number())
}

impl Manager {
    fn new(config: Config, ledger: Ledger, overview: Arc<Mutex<Overview>>) -> Manager {
        let users = UserNumbers::default();
        Manager {
            scanner: Scanner::new(config.watches.iter().map(|watch| rule(watch, &users)).collect()),
            users,
            answers: 0,
            missing: HashSet::new(),
            followers: config.watches.iter().map(|_| None).collect(),
            ending: Vec::new(),
            shedder: Shedder::new(config.budget, Instant::now(), cpu_time(&ledger)),
            reason: "".into(),
            ledger,
            overview,
            retained: None,
            stored: Vec::new(),
            named: HashSet::new(),
            config,
        }
    }

    fn run(mut self, commands: &Receiver<WatchCommand>, heart: &Heart) {
        loop {
            heart.beat();
            self.look_users_up();
            self.retain(heart);
            self.scan(heart);
            heart.beat();
            self.keep_the_budget();
            self.tell();
            // Without watches there is nothing to scan.
            let pause = if self.config.watches.is_empty() { RETENTION_PERIOD } else { self.scanner.pause() };
            let until = Instant::now() + pause;
            loop {
                heart.beat();
                match commands.recv_deadline(until.min(Instant::now() + BEAT)) {
                    Ok(WatchCommand::Configure(config)) => {
                        self.configure(*config);
                        break;
                    }
                    Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
                    Err(RecvTimeoutError::Timeout) => break,
                    Ok(WatchCommand::Stop) | Err(RecvTimeoutError::Disconnected) => return self.stop(),
                }
            }
        }
    }

    fn scan(&mut self, heart: &Heart) {
        if self.config.watches.is_empty() {
            return;
        }
        let fits = self.scanner.scan(|| heart.beat());
        {
            let mut overview = self.overview.lock().unwrap_or_else(PoisonError::into_inner);
            overview.looks += 1;
            overview.look_seconds += self.scanner.cost().as_secs_f64();
        }
        let step = self.shedder.step();
        let watches = self.config.watches.len().max(1) as u64;
        let segment_bytes = (self.config.retention.bytes.0 / watches / SEGMENT_SHARE).max(store::LEAST_SEGMENT);
        let writable = self.writable();
        let rules = self.scanner.rules();
        let watches = self.config.watches.iter().zip(rules).zip(&mut self.followers).zip(fits).enumerate();
        for (number, (((watch, rule), follower), found)) in watches {
            heart.beat();
            let writable = writable.get(number).copied().unwrap_or(u64::MAX);
            if follower.is_none() && (!found.is_empty() || watch.samples_cpus()) {
                let dir = self.config.state_dir.0.join(&watch.name.0);
                let place = SegmentTarget { dir, segment_bytes, writable };
                match follower::start(Arc::new(watch.clone()), rule.clone(), place) {
                    Ok(handle) => *follower = Some(handle),
                    Err(error) => tracing::error!("watch {}: cannot start a thread: {error}", watch.name.0),
                }
            }
            if let Some(handle) = follower {
                let (watch, reason) = (Arc::new(watch.clone()), Arc::clone(&self.reason));
                let name = watch.name.0.clone();
                // A busy follower gets the orders of the next scan.
                let sent = handle.orders.try_send(Orders { found, watch, step, reason, segment_bytes, writable });
                if matches!(sent, Err(TrySendError::Disconnected(_))) {
                    tracing::error!(watch = %name, "watch {name}: its thread has failed; ccsd starts it again");
                    *follower = None;
                    if let Some(stored) = self.stored.get_mut(number) {
                        stored.1 = 0;
                    }
                }
            }
        }
    }

    /// Gives the rules what is known of their users by now.
    fn look_users_up(&mut self) {
        let users = self.users.clone();
        for watch in &self.config.watches {
            for user in unknown_users(watch, |name| users.find(name).number()) {
                let is_missing = users.find(&user) == UserNumber::Missing;
                let name = &watch.name.0;
                if is_missing && self.missing.insert((name.clone(), user.clone())) {
                    tracing::warn!(watch = %name, "watch {name}: there is no user {user:?}, so it matches no process");
                }
            }
        }
        let answers = users.answers();
        if std::mem::replace(&mut self.answers, answers) == answers {
            return;
        }
        let changed = self.scanner.rules().iter().filter(|rule| rule.set_users(|name| users.find(name).number()));
        if changed.count() > 0 {
            self.scanner.check_all();
        }
    }

    fn keep_the_budget(&mut self) {
        // What is the kernel's is not resident.
        let users = |what| self.ledger.taken_by_users(what);
        let users_bytes = users(Resource::Bytes).saturating_sub(users(Resource::KernelBytes));
        let memory = usage::machine_rss_bytes().saturating_sub(users_bytes);
        let Some(reason) = self.shedder.review(Instant::now(), cpu_time(&self.ledger), memory) else { return };
        let step = self.shedder.step();
        tracing::warn!(
            step = step.number(),
            "step {} of {}: {reason}",
            step.number(),
            budget::BackoffStep::LAST.number()
        );
        self.reason = reason.into();
    }

    fn retain(&mut self, heart: &Heart) {
        if self.retained.is_some_and(|when| when.elapsed() < RETENTION_PERIOD) {
            return;
        }
        self.retained = Some(Instant::now());
        let removed = match store::retain(
            &self.config.state_dir.0,
            self.config.retention,
            SystemTime::now(),
            self.config.watches.len(),
            || heart.beat(),
        ) {
            Ok(removed) => removed,
            // Nothing has been stored yet, or a follower reports what is wrong with the directory.
            Err(error) => {
                self.stored = self.written().into_iter().map(|written| (0, written)).collect();
                return tracing::debug!("{error}");
            }
        };
        let bytes = |watch: &WatchConfig| removed.by_watch.get(&watch.name.0).copied().unwrap_or(0);
        self.stored = self.config.watches.iter().map(bytes).zip(self.written()).collect();
        for path in &removed.segments {
            tracing::info!("removed {}: stored profiles exceeded their limit", path.display());
        }
        for failed in &removed.failed {
            tracing::warn!("{failed}");
        }
        for path in removed.foreign {
            if self.named.insert(path.clone()) {
                tracing::warn!("{} is not a profile of a watch; ccsd leaves it alone", path.display());
            }
        }
        let mut overview = self.overview.lock().unwrap_or_else(PoisonError::into_inner);
        overview.stored_bytes = removed.bytes;
        overview.removed_segments += removed.segments.len() as u64;
    }

    /// Bytes that the followers have written since they began.
    fn written(&self) -> Vec<u64> {
        let written = |follower: &Option<Handle>| follower.as_ref().map_or(0, |handle| handle.status().bytes);
        self.followers.iter().map(written).collect()
    }

    /// For each watch, how many bytes its follower may have written in all: see [`store::writable`].
    fn writable(&self) -> Vec<u64> {
        let written = self.written();
        let stored = |(&(bytes, before), &now): (&(u64, u64), &u64)| bytes.saturating_add(now.saturating_sub(before));
        let stored: Vec<u64> = self.stored.iter().zip(&written).map(stored).collect();
        // What cannot be asked is no reason to store less.
        let free = store::free_for_segments(&self.config.state_dir.0).unwrap_or(u64::MAX);
        let more = store::writable(&stored, free, self.config.retention.bytes.0);
        written.into_iter().zip(more).map(|(written, more)| written.saturating_add(more)).collect()
    }

    fn tell(&mut self) {
        self.ending.retain(|ended| ended.try_recv() == Err(TryRecvError::Empty));
        let watches = self.config.watches.iter().zip(&self.followers).enumerate();
        let statuses = watches.map(|(number, (watch, follower))| {
            let mut status = follower.as_ref().map_or_else(
                || WatchStatus {
                    name: watch.name.0.clone(),
                    rate_hz: self.shedder.step().rate(watch.rate_hz.0),
                    configured_rate_hz: watch.rate_hz.0,
                    ..WatchStatus::default()
                },
                Handle::status,
            );
            if status.processes == 0 {
                status.hint = hint(watch, &self.users, self.scanner.near_miss(number));
            }
            status
        });
        let statuses = statuses.collect();
        let mut overview = self.overview.lock().unwrap_or_else(PoisonError::into_inner);
        overview.watches = statuses;
        overview.limits = ServiceLimits::of(&self.config);
        overview.step = self.shedder.step().number();
        overview.cpu_percent = self.shedder.last_use().map(|used| used.cpu_percent);
        overview.over_budget = self.shedder.is_helpless();
    }

    fn configure(&mut self, config: Config) {
        let before = std::mem::replace(&mut self.config, config);
        let handles = std::mem::take(&mut self.followers).into_iter().zip(self.scanner.rules().to_vec());
        let mut old: Vec<(WatchConfig, (Option<Handle>, WatchRule))> =
            before.watches.into_iter().zip(handles).collect();
        let mut rules = Vec::new();
        let moved = before.state_dir != self.config.state_dir || before.retention.bytes != self.config.retention.bytes;
        for watch in &self.config.watches {
            // A watch that selects other processes now is another watch.
            let same = |(old, _): &(WatchConfig, _)| !moved && same_processes(old, watch);
            // The old rule remembers the processes that it has admitted.
            let kept = old.iter().position(same).map(|i| old.swap_remove(i).1);
            let (follower, rule) = kept.unwrap_or_else(|| (None, rule(watch, &self.users)));
            self.followers.push(follower);
            rules.push(rule);
        }
        self.ending.extend(old.into_iter().filter_map(|(_, (handle, _))| handle).map(|handle| handle.ended));
        self.scanner = Scanner::new(rules);
        self.shedder.set_budget(self.config.budget);
        self.retained = None;
    }

    fn stop(self) {
        // All followers end when their channels are dropped.
        let following: Vec<Receiver<()>> = self.followers.into_iter().flatten().map(|handle| handle.ended).collect();
        for ended in following.into_iter().chain(self.ending) {
            let _ = ended.recv();
        }
    }
}

fn hint(watch: &WatchConfig, users: &UserNumbers, near_miss: Option<String>) -> Option<String> {
    let unknown = unknown_users(watch, |name| users.find(name).number());
    let unknown = unknown.first().map(|user| match users.find(user) {
        UserNumber::Unknown => format!("it is not known yet which user {user:?} is"),
        _ => format!("there is no user {user:?}"),
    });
    unknown.or_else(|| near_miss.map(|near| format!("nothing matches; {near}")))
}

/// Looks once which processes match a configuration: for each watch their number, else what nearly matches.
#[must_use]
pub fn look(config: &Config) -> Vec<(usize, Option<String>)> {
    let rules = config.watches.iter().map(|watch| WatchRule::new(watch, user_number)).collect();
    let mut scanner = Scanner::new(rules);
    let found = scanner.scan(|| {});
    let near = |number: usize, processes: usize| scanner.near_miss(number).filter(|_| processes == 0);
    found.iter().enumerate().map(|(number, found)| (found.len(), near(number, found.len()))).collect()
}

fn same_processes(a: &WatchConfig, b: &WatchConfig) -> bool {
    let rule = |watch: &WatchConfig| WatchConfig {
        rate_hz: b.rate_hz,
        event: b.event,
        overhead: b.overhead,
        interval: b.interval,
        layout: b.layout,
        ..watch.clone()
    };
    rule(a) == *b
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ledger::Shares;
    use std::path::Path;
    use std::process::{Command, Stdio};

    #[test]
    fn a_follower_that_has_failed_is_started_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut target = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let (state, pid) = (dir.path().display(), target.id());
        let text = format!("state_dir = \"{state}\"\n[[watch]]\nname = \"x\"\ncomm = \"cat\"\nuser = \"*\"\n");
        let config = Config::parse(text.as_bytes(), Path::new("x")).unwrap();
        let overview = Arc::default();
        let mut manager = Manager::new(config, Ledger::new(Shares::new(1 << 20, 1024, 1 << 20)), overview);
        let heart = Heart::unwatched();
        // The process may not have executed its program yet.
        while manager.followers.iter().flatten().count() == 0 {
            manager.scan(&heart);
        }
        // As a panic leaves it: without a receiver for the orders.
        let (orders, failed) = bounded(1);
        drop(failed);
        let first = manager.followers[0].as_mut().unwrap();
        drop(std::mem::replace(&mut first.orders, orders));
        first.ended.recv().unwrap_err();
        manager.scan(&heart);
        assert!(manager.followers[0].is_none(), "it is seen that PID {pid} is not followed");
        manager.scan(&heart);
        assert!(manager.followers[0].is_some());
        manager.stop();
        drop(target.stdin.take());
        target.wait().unwrap();
    }
}
