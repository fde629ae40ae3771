//! What of a profile is asked for: the options that `report` and `export` share.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use ccsd_profile::query::{By, Filter, Pattern, Preset};
use ccsd_profile::view::Selection;
use ccsd_profile::{Profile, Unit, sanitise};
use clap::Args;

use crate::exit::Failure;

/// Largest file of patterns that is read; the library takes no more either.
const SPECIFICATION_BYTES: u64 = 1 << 20;

/// Which part of a profile, and by what.
#[derive(Debug, Default, Args)]
pub struct QueryArgs {
    /// Hide all functions but these
    ///
    /// What a hidden function spends itself counts for its innermost visible caller. PATTERN is a name, a part of one if
    /// there is none of that name, a glob (`mem*`) or an expression between slashes (`/^mem(cpy|set)/`); with `module:` or
    /// `file:` before it, it names all functions of images or source files, by path or file name.
    #[arg(long, value_name = "PATTERN", help_heading = "Selection", value_parser = pattern)]
    pub only: Vec<Pattern>,
    /// Hide these functions: their own time counts for their callers
    #[arg(long, value_name = "PATTERN", help_heading = "Selection", value_parser = pattern)]
    pub hide: Vec<Pattern>,
    /// Only stacks with one of these functions
    ///
    /// Or `thread:` or `process:` and a name or number: only what these did.
    #[arg(long, value_name = "PATTERN", help_heading = "Selection", value_parser = pattern)]
    pub focus: Vec<Pattern>,
    /// No stacks with one of these functions, or what these threads and processes did
    #[arg(long, value_name = "PATTERN", help_heading = "Selection", value_parser = pattern)]
    pub ignore: Vec<Pattern>,
    /// A file of such patterns, as lines of `only PATTERN`, `hide PATTERN`, `focus PATTERN`, `ignore PATTERN`
    #[arg(long, value_name = "FILE", help_heading = "Selection")]
    pub spec: Option<PathBuf>,
    /// Show only the functions of libraries and the kernel, or only the phases: main and what it calls itself
    #[arg(long, value_name = "PRESET", help_heading = "Selection")]
    pub preset: Option<PresetName>,
    /// Sum up costs by
    ///
    /// `lexical` counts closures and lambdas for the functions that they are written in; `group` makes one of all
    /// allocation, page faults, kernel and start-up.
    #[arg(long, value_name = "WHAT", default_value = "function", help_heading = "Selection",
        value_parser = by())]
    pub by: By,
    /// Weigh by this metric of the profile [default: its first]
    #[arg(long, value_name = "NAME", help_heading = "Selection")]
    pub metric: Option<String>,
}

/// Names of presets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PresetName {
    /// The functions of libraries, and the kernel.
    Libraries,
    /// `main` and what it calls itself.
    Phases,
}

fn pattern(text: &str) -> Result<Pattern, String> {
    text.parse().map_err(|error: ccsd_profile::query::PatternError| error.to_string())
}

fn by() -> impl clap::builder::TypedValueParser<Value = By> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(By::ALL.map(By::name)).try_map(|text| text.parse::<By>())
}

/// The metric by which weights are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Safe to print.
    pub name: String,
    /// In what it is counted.
    pub unit: Unit,
}

/// The profile that is asked for, the selection of it, and its metric.
///
/// # Errors
/// What the profile does not have is a bad request, and so is a wrong specification.
pub fn ask(args: &QueryArgs, profile: Profile) -> Result<(Profile, Selection, Metric), Failure> {
    let (index, metric) = metric(&profile, args.metric.as_deref())?;
    let mut filter = Filter {
        only: args.only.clone(),
        hide: args.hide.clone(),
        focus: args.focus.clone(),
        ignore: args.ignore.clone(),
        preset: args.preset.map(|preset| match preset {
            PresetName::Libraries => Preset::Libraries,
            PresetName::Phases => Preset::Phases,
        }),
    };
    if let Some(path) = &args.spec {
        let name = path.display();
        let text = specification(path).with_context(|| format!("cannot read {name}")).map_err(Failure::bad_request)?;
        filter.add_specification(&text).map_err(|error| Failure::bad_request(anyhow!("{name}, {error}")))?;
    }
    let selection = filter.select(&profile).map_err(Failure::bad_request)?.metric(index);
    if args.by == By::Function {
        return Ok((profile, selection, metric));
    }
    // Functions are selected before they are no more.
    let profile = if filter.is_empty() { profile } else { profile.selected(&selection) };
    Ok((profile.by(args.by), Selection::all().metric(index), metric))
}

fn specification(path: &Path) -> anyhow::Result<String> {
    let meta = fs::metadata(path)?;
    if !meta.is_file() {
        return Err(anyhow!("it is not a regular file"));
    }
    if meta.len() > SPECIFICATION_BYTES {
        return Err(anyhow!("it is larger than {} KiB", SPECIFICATION_BYTES >> 10));
    }
    Ok(fs::read_to_string(path)?)
}

/// The metric of this name, or the first.
///
/// # Errors
/// That there is none.
pub fn metric(profile: &Profile, name: Option<&str>) -> Result<(usize, Metric), Failure> {
    let metrics = &profile.session().metrics;
    let position = match name {
        Some(name) => metrics.iter().position(|metric| metric.name == name),
        None => Some(0),
    };
    match position.and_then(|i| Some((i, metrics.get(i)?))) {
        Some((i, metric)) => Ok((i, Metric { name: sanitise(&metric.name).into_owned(), unit: metric.unit })),
        None => {
            let names: Vec<_> = metrics.iter().map(|metric| sanitise(&metric.name)).collect();
            let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let asked = name.map_or_else(String::new, |name| format!(" {:?}", sanitise(name)));
            Err(Failure::bad_request(anyhow!("the profile has no metric{asked}; it has: {has}")))
        }
    }
}
