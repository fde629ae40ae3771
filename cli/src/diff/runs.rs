//! The compared profiles: one or several runs on each side.

use std::path::PathBuf;

use anyhow::anyhow;
use ccsd_profile::view::Selection;
use ccsd_profile::{Profile, ProfileLimits, SessionInfo, Unit, sanitise};

use crate::args::diff::DiffArgs;
use crate::exit::Failure;
use crate::message::warn;
use crate::query::{self, QueryArgs, QueryResult};
use crate::report::file;
use crate::source::ProfileSource;
use crate::stored::About;
use crate::symbolize;

pub struct LoadedRun {
    pub profile: Profile,
    pub selection: Selection,
    /// Description: a file, or a time range of a watch.
    pub what: String,
    /// Whether everything that was collected could be read.
    pub is_whole: bool,
    pub file: Option<PathBuf>,
    pub session: Option<u32>,
    pub stored: Option<About>,
}

pub struct RunSide {
    pub runs: Vec<LoadedRun>,
}

impl LoadedRun {
    pub fn ask(mut self, query: &QueryArgs, which: &str) -> Result<LoadedRun, Failure> {
        let QueryResult { profile, selection, .. } = query::ask(query, self.profile).map_err(|failure| Failure {
            status: failure.status,
            error: failure.error.context(format!("the profile {which}")),
        })?;
        (self.profile, self.selection) = (profile, selection);
        Ok(self)
    }
}

impl RunSide {
    fn of(run: LoadedRun) -> RunSide {
        RunSide { runs: vec![run] }
    }

    pub fn ask(&mut self, query: &QueryArgs, which: &str) -> Result<(), Failure> {
        self.runs =
            std::mem::take(&mut self.runs).into_iter().map(|run| run.ask(query, which)).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Mean wall time of a run, in seconds: of a watch what its intervals cover, of a file the time collected.
    pub fn wall_seconds(&self) -> Result<f64, Failure> {
        let wall_ns =
            |run: &LoadedRun| run.stored.as_ref().map_or(run.profile.accounting().duration_ns, |about| about.wall_ns);
        let all: u64 = self.runs.iter().map(wall_ns).fold(0, u64::saturating_add);
        match all {
            0 => Err(Failure::bad_request(anyhow!("--rate needs profiles that say how long they were collected"))),
            all => Ok(all as f64 / 1e9 / self.runs.len().max(1) as f64),
        }
    }

    pub fn selected(&self) -> Vec<ccsd_profile::view::Run<'_>> {
        self.runs.iter().map(|run| (&run.profile, &run.selection)).collect()
    }

    pub fn merged(self) -> Result<LoadedRun, Failure> {
        let mut runs = self.runs.into_iter();
        let nothing = || LoadedRun {
            profile: Profile::new(SessionInfo::default(), ProfileLimits::default()),
            selection: Selection::all(),
            what: String::new(),
            is_whole: true,
            file: None,
            session: None,
            stored: None,
        };
        let mut all = runs.next().unwrap_or_else(nothing);
        for run in runs {
            all.profile.merge(&run.profile).map_err(Failure::bad_request)?;
        }
        Ok(all)
    }
}

/// The two sides of the comparison.
pub fn sides(args: &DiffArgs) -> Result<(RunSide, RunSide), Failure> {
    let two_times = || {
        Failure::bad_request(anyhow!(
            "give two profiles, or two times of one: --since TIME and --against TIME..TIME; see `ccsd diff --help`"
        ))
    };
    let run = |source: &ProfileSource, since: Option<&str>, until: Option<&str>| {
        let mut loaded = file::load_time(source, &args.stored, (since, until), &args.socket)?;
        symbolize::name_at_hand(&mut loaded.profile);
        for message in loaded.messages() {
            warn(format_args!("{message}"));
        }
        let what = match &loaded.stored {
            Some(about) => about.line(),
            None => {
                let time = loaded.time().map_or_else(String::new, |time| format!(", {time}"));
                format!("{} of {}{time}", sanitise(&loaded.profile.session().target), loaded.path.display())
            }
        };
        let is_whole = loaded.is_whole();
        let file = (loaded.session.is_none() && loaded.stored.is_none()).then_some(loaded.path);
        let (profile, selection) = (loaded.profile, Selection::all());
        Ok::<LoadedRun, Failure>(LoadedRun {
            profile,
            selection,
            what,
            is_whole,
            file,
            session: loaded.session,
            stored: loaded.stored,
        })
    };
    if !args.before.is_empty() {
        let side = |sources: &[ProfileSource]| {
            let runs =
                sources.iter().map(|source| run(source, None, None)).collect::<Result<Vec<LoadedRun>, Failure>>()?;
            Ok::<RunSide, Failure>(RunSide { runs })
        };
        return Ok((side(&args.before)?, side(&args.after)?));
    }
    let side =
        |source: &ProfileSource, since: Option<&str>, until: Option<&str>| run(source, since, until).map(RunSide::of);
    let (since, until) = (args.stored.since.as_deref(), args.stored.until.as_deref());
    let watch = args.stored.watch.clone().map(ProfileSource::Watch);
    let sources: Vec<&ProfileSource> = args.sources.iter().chain(&watch).collect();
    for source in &sources {
        args.stored.source(source)?;
    }
    match (sources.as_slice(), args.against.as_deref()) {
        ([one], Some(against)) if args.stored.is_part() || matches!(one, ProfileSource::Watch(_)) => {
            Ok((side(one, Some(against), None)?, side(one, since, until)?))
        }
        ([before, after], None) => Ok((side(before, since, until)?, side(after, since, until)?)),
        _ => Err(two_times()),
    }
}

pub fn metric(asked: Option<&str>, before: &RunSide, after: &RunSide) -> Result<(String, Unit), Failure> {
    let runs = || after.runs.iter().chain(&before.runs).map(|run| run.profile.session().metrics.as_slice());
    let wanted = |metric: &&ccsd_profile::Metric| {
        asked.is_none_or(|asked| asked == metric.name)
            && runs().all(|metrics| metrics.iter().any(|it| it.name == metric.name))
    };
    let found = runs().next().unwrap_or_default().iter().find(wanted);
    found.map(|metric| (metric.name.clone(), metric.unit)).ok_or_else(|| {
        let names = |side: &RunSide| {
            let metrics = side.runs.iter().flat_map(|run| &run.profile.session().metrics);
            let mut names: Vec<_> = metrics.map(|metric| sanitise(&metric.name)).collect();
            names.dedup();
            names.join(", ")
        };
        let (before, after) = (names(before), names(after));
        let what = asked.map_or_else(|| "no metric".to_owned(), |asked| format!("no metric {:?}", sanitise(asked)));
        Failure::bad_request(anyhow!("the profiles have {what} in common: before {before}; after {after}"))
    })
}
