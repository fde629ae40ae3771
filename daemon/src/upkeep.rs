//! Maintenance of the service: watches, configuration, metrics and systemd notifications.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ccsd_collector::usage;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use sd_notify::NotifyState;

use crate::config::{AbsolutePath, Config};
use crate::heap;
use crate::last_good::LastGood;
use crate::ledger::{LedgerPrincipal, Resource};
use crate::metrics::{self, ServiceMetrics};
use crate::sessions::Sessions;
use crate::store::{StateDirError, StateLock};
use crate::supervisor::{BEAT, Heart, LOOK, Supervisor};
use crate::watch::{WatchStatus, Watches};

/// Maximum characters of a configuration error in an answer to clients.
const SHOWN_CHARS: usize = 1000;
const TICK: Duration = Duration::from_secs(15);

/// A command to the service from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Read the configuration again.
    Reload,
    /// Shut down.
    Stop,
}

/// Watches, sessions and configuration of a running service.
pub struct Upkeep {
    watches: Watches,
    supervisor: Supervisor,
    sessions: Sessions,
    started: u64,
    file: ConfigFile,
    /// The socket that the configuration named at the start.
    socket: Option<AbsolutePath>,
    reloads: Mutex<Reloads>,
    metrics_problem: Mutex<Option<String>>,
    state_dir: Mutex<PathBuf>,
    /// Lock of the state directory, held while there are watches.
    lock: Mutex<Option<StateLock>>,
}

/// The configuration file of a service.
#[derive(Clone, Debug, Default)]
pub struct ConfigFile {
    /// Its path; `None` if there is no file to be read.
    pub path: Option<PathBuf>,
    /// Where a copy is kept while the file is good.
    pub last_good: Option<LastGood>,
    /// Why the file was refused at the start, if the service started with the copy.
    pub refused: Option<String>,
}

/// Why a service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum UpkeepError {
    /// No thread can be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The state directory is not used.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
}

#[derive(Clone, Default)]
struct Reloads {
    taken_up: u64,
    refused: u64,
    problem: Option<String>,
}

impl Upkeep {
    /// Starts the watches of `config`, which was read from `file`.
    pub fn start(
        config: &Config,
        file: ConfigFile,
        sessions: Sessions,
        supervisor: Supervisor,
    ) -> Result<Arc<Upkeep>, UpkeepError> {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let reloads = Mutex::new(Reloads { problem: file.refused.clone(), ..Reloads::default() });
        let state_dir = Mutex::new(config.state_dir.0.clone());
        let lock = Mutex::new(take(None, config).map_err(|(_, error)| error)?);
        let watches = Watches::start(config.clone(), sessions.ledger().clone(), &supervisor)?;
        let metrics_problem = Mutex::default();
        Ok(Arc::new(Upkeep {
            watches,
            supervisor,
            sessions,
            started,
            file,
            socket: config.socket.clone(),
            reloads,
            metrics_problem,
            state_dir,
            lock,
        }))
    }

    /// Takes the lock again if the state directory was moved or replaced.
    fn check_state_dir(&self) {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(old) = lock.as_ref().filter(|lock| !lock.is_there()) else { return };
        let dir = old.dir().display();
        match StateLock::take(old.dir()) {
            Ok(Some(new)) => {
                tracing::warn!("{dir} was moved or replaced; new profiles go to the directory that is there now");
                *lock = Some(new);
            }
            Ok(None) => {}
            Err(error) => tracing::error!("{dir} was moved or replaced, and ccsd cannot use the new one: {error}"),
        }
    }

    /// Handles orders until [`Order::Stop`]; then the watches end, within five seconds.
    pub fn run(&self, config: Config, orders: &Receiver<Order>, heart: &Heart) {
        let mut metrics_file = config.metrics_file;
        let watchdog = sd_notify::watchdog_enabled();
        // Twice as often as the watchdog of systemd requires.
        let tick = watchdog.map_or(TICK, |time| (time / 2).min(TICK));
        self.tell(&[NotifyState::Ready]);
        let (mut due, mut look_due) = (Instant::now(), Instant::now() + LOOK);
        let mut hanging = Vec::new();
        loop {
            heart.beat();
            let now = Instant::now();
            if now >= look_due {
                look_due = now + LOOK;
                let before = std::mem::replace(&mut hanging, self.supervisor.look());
                for name in hanging.iter().filter(|name| !before.contains(name)) {
                    tracing::error!("thread {name} hangs; systemd's watchdog will restart the service");
                }
            }
            match orders.recv_deadline(due.min(look_due).min(now + BEAT)) {
                Ok(Order::Reload) => {
                    if let Some(config) = self.reload() {
                        metrics_file = config.metrics_file;
                    }
                    continue;
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < due => continue,
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => break,
            }
            due = Instant::now() + tick;
            // First, because the rest may wait for a hanging thread. Without a notification systemd restarts the
            // service.
            if watchdog.is_some() && hanging.is_empty() {
                let _ = sd_notify::notify(&[NotifyState::Watchdog]);
            }
            self.write_metrics(metrics_file.as_ref());
            self.tell(&[]);
            heap::trim();
            ccsd_worker::end_idle();
            self.check_state_dir();
        }
        let _ = sd_notify::notify(&[NotifyState::Stopping, NotifyState::Status("ending")]);
        self.watches.stop();
    }

    /// Writes the metrics file, if configured. Only a new problem is logged.
    fn write_metrics(&self, file: Option<&AbsolutePath>) {
        let problem = file.and_then(|AbsolutePath(path)| {
            let error = metrics::write_file(path, &self.metrics()).err()?;
            Some(format!("cannot write the metrics file {}: {error}", path.display()))
        });
        let mut known = self.metrics_problem.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(problem) = problem.as_ref().filter(|_| *known != problem) {
            tracing::warn!("{problem} (see ReadWritePaths= in the drop-in node-exporter.conf)");
        }
        *known = problem;
    }

    /// What is wrong with the service as a whole.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let refused = self.reloads.lock().unwrap_or_else(PoisonError::into_inner).problem.clone();
        let refused = refused.map(|why| {
            let why: String = why.chars().take(SHOWN_CHARS).collect();
            format!("configuration refused, the last good one is in force: {why}")
        });
        let metrics = self.metrics_problem.lock().unwrap_or_else(PoisonError::into_inner).clone();
        refused.into_iter().chain(metrics).collect()
    }

    /// Notifies systemd, with a line for `systemctl status`.
    fn tell(&self, states: &[NotifyState<'_>]) {
        let overview = self.watches.overview();
        let profiling = overview.watches.iter().filter(|watch| watch.profiling).count();
        let processes: u64 = overview.watches.iter().map(|watch| watch.processes).sum();
        let problems = overview.watches.iter().filter(|watch| watch.problem.is_some()).count();
        let (running, _) = self.sessions();
        let mut status = format!(
            "{profiling} of {} watches profile {processes} processes; {running} sessions of clients",
            overview.watches.len()
        );
        if problems > 0 {
            status.push_str(&format!("; {problems} watches have a problem (see `ccsd daemon watches`)"));
        }
        if overview.step > 0 {
            status.push_str(&format!("; at step {} to keep within the budget", overview.step));
        }
        for problem in self.problems() {
            status.push_str(&format!("; {problem}"));
        }
        let mut all = states.to_vec();
        all.push(NotifyState::Status(&status));
        let _ = sd_notify::notify(&all);
    }

    /// Reads the configuration again. A bad one changes nothing.
    fn reload(&self) -> Option<Config> {
        let mut reloading = vec![NotifyState::Reloading];
        reloading.extend(NotifyState::monotonic_usec_now());
        let _ = sd_notify::notify(&reloading);
        let read = self.file.path.as_deref().map(|path| LastGood::read(self.file.last_good.as_ref(), path));
        // A state directory in use is an error like any other.
        let read = read.map(|read| match read {
            Ok(config) => {
                let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
                let had = lock.take();
                match take(had, &config) {
                    Ok(new) => {
                        *lock = new;
                        Ok(config)
                    }
                    Err((had, error)) => {
                        *lock = had;
                        Err(error.to_string())
                    }
                }
            }
            Err(error) => Err(error.to_string()),
        });
        {
            let mut reloads = self.reloads.lock().unwrap_or_else(PoisonError::into_inner);
            match &read {
                Some(Ok(_)) => reloads.taken_up += 1,
                Some(Err(_)) => reloads.refused += 1,
                None => {}
            }
            reloads.problem = read.as_ref().and_then(|read| read.as_ref().err().cloned());
        }
        let config = match read {
            Some(Ok(config)) => {
                tracing::info!("the configuration was reloaded: {} watches", config.watches.len());
                config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
                if config.socket != self.socket {
                    tracing::warn!("another `socket` takes effect when the daemon is started again");
                }
                self.state_dir.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&config.state_dir.0);
                let sessions = config.sessions;
                self.sessions.configure(sessions.memory_of_user.0, sessions.arguments, sessions.paranoid_users);
                self.watches.configure(config.clone());
                Some(config)
            }
            Some(Err(error)) => {
                tracing::error!("the configuration stays as it was: {error}");
                None
            }
            None => {
                tracing::info!("there is no configuration to reload");
                None
            }
        };
        self.tell(&[NotifyState::Ready]);
        config
    }

    /// State of the watches.
    #[must_use]
    pub fn watches(&self) -> Vec<WatchStatus> {
        self.watches.overview().watches
    }

    /// Directory of the profiles.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.state_dir.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The metrics as text.
    #[must_use]
    pub fn metrics(&self) -> String {
        let reloads = self.reloads.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (sessions_running, sessions_ended) = self.sessions();
        let own = ServiceMetrics {
            started: self.started,
            cpu_seconds: usage::all_cpu_ns() as f64 / 1e9,
            resident_bytes: usage::all_rss_bytes(),
            sessions_running,
            sessions_ended,
            users_bytes: self.sessions.ledger().taken_by_users(Resource::Bytes),
            reloads: (reloads.taken_up, reloads.refused),
            configuration_good: reloads.problem.is_none(),
            worker_failures: usage::worker_failures(),
        };
        metrics::render(&own, &self.watches.overview())
    }

    fn sessions(&self) -> (u64, u64) {
        let all = |what| {
            let ledger = self.sessions.ledger();
            ledger.taken(LedgerPrincipal::Own, what).saturating_add(ledger.taken_by_users(what))
        };
        (all(Resource::Running), all(Resource::Kept))
    }
}

/// Takes the lock that a configuration needs, which may be the one held.
fn take(had: Option<StateLock>, config: &Config) -> Result<Option<StateLock>, (Option<StateLock>, StateDirError)> {
    let dir = &config.state_dir.0;
    if config.watches.is_empty() || had.as_ref().is_some_and(|had| had.dir() == dir) {
        return Ok(had);
    }
    StateLock::take(dir).map_err(|error| (had, error))
}
