//! The query options shared by `report`, `export` and `diff`.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use ccsd_profile::query::{Filter, Grouping, Pattern, Preset, Pruned, QueryError};
use ccsd_profile::view::{Selection, Total, ViewColumn};
use ccsd_profile::{CostCentreId, Profile, Unit, sanitise};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, StyledStr, TypedValueParser};
use clap::error::{ContextKind, ContextValue};
use serde::Serialize;

use crate::exit::Failure;
use crate::format::shell_word;
use crate::suggest;

/// The option that excludes `[not sampled]`.
const OF_SAMPLED: &str = "--of-sampled";

/// Maximum size of a file of patterns, as in the library.
const SPECIFICATION_BYTES: u64 = 1 << 20;

/// Which part of a profile, and by what.
#[derive(Clone, Debug, Default, Args)]
pub struct QueryArgs {
    /// Hide all other functions
    ///
    /// Self time of a hidden function counts for its innermost visible caller. PATTERN is a name, a part of names if no
    /// function has exactly that name, a glob (`mem*`) or a regular expression between slashes (`/^mem(cpy|set)/`).
    /// `module:` or `file:` before it selects all functions of an image or source file, by path or file name.
    #[arg(long, value_name = "PATTERN", help_heading = "Selection", value_parser = pattern)]
    pub only: Vec<Pattern>,
    /// Hide these functions: their self time counts for their callers
    #[arg(long, value_name = "PATTERN", help_heading = "Selection", value_parser = pattern)]
    pub hide: Vec<Pattern>,
    /// Keep only stacks with one of these functions
    ///
    /// `thread:` or `process:` and a name or number keeps only samples of that thread or process; `unit:`, `container:` and
    /// `user:` those of processes that belong to it, as `--by` names them.
    #[arg(long, value_name = "PATTERN", help_heading = "Selection", value_parser = pattern)]
    pub focus: Vec<Pattern>,
    /// Drop stacks with one of these functions, or of these threads, processes, units, containers and users
    #[arg(long, value_name = "PATTERN", help_heading = "Selection", value_parser = pattern)]
    pub ignore: Vec<Pattern>,
    /// Read patterns from a file: lines of `only PATTERN`, `hide PATTERN`, `focus PATTERN` or `ignore PATTERN`
    #[arg(long, value_name = "FILE", help_heading = "Selection")]
    pub spec: Option<PathBuf>,
    /// Show only functions of libraries and the kernel, or only phases: main and the functions that it calls
    #[arg(long, value_name = "PRESET", help_heading = "Selection")]
    pub preset: Option<PresetName>,
    /// Count by functions, or by modules, files, lines, threads, ...
    ///
    /// `lexical` counts a closure for the function whose source contains it; a closure called through another function
    /// shows as recursion. `group` makes one row of allocation, of page faults, of the kernel and of start-up.
    #[arg(long, value_name = "WHAT", default_value = "function", help_heading = "Selection",
        value_parser = by())]
    pub by: Grouping,
    /// Merge rows with less than this percentage of total time
    ///
    /// Functions (or what --by names) below it become one row, or one function of exported stacks, called `[other: ...]`;
    /// totals and other rows do not change. Views of stacks, lines and threads merge their rows, too.
    #[arg(long, value_name = "PERCENT", help_heading = "Selection", value_parser = percentage, allow_hyphen_values = true)]
    pub min: Option<f64>,
    /// Order rows by a column; numbers descend
    ///
    /// Each view has some of these columns and names them. total is also called inherited.
    #[arg(long, value_name = "COLUMN", help_heading = "Selection", value_parser = column())]
    pub sort: Option<ViewColumn>,
    /// Leave out [not sampled], the CPU time without samples: shares are of sampled time
    #[arg(long, help_heading = "Selection")]
    pub of_sampled: bool,
    /// Show C++ and Rust names with all parameters, template arguments and namespaces
    #[arg(long, help_heading = "Selection")]
    pub full_names: bool,
    /// The metric of the weights [default: the first of the profile]
    #[arg(long, value_name = "NAME", help_heading = "Selection")]
    pub metric: Option<String>,
}

impl QueryArgs {
    pub fn chooses_functions(&self) -> bool {
        !self.only.is_empty() || self.spec.is_some() || self.preset.is_some()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PresetName {
    Libraries,
    Phases,
}

fn pattern(text: &str) -> Result<Pattern, String> {
    text.parse().map_err(|error: ccsd_profile::query::PatternError| error.to_string())
}

/// Words for what has another name here, and that name.
const OTHER_WORDS: [(&str, &str); 12] = [
    ("cgroup", "unit or container"),
    ("service", "unit"),
    ("slice", "unit"),
    ("pod", "container"),
    ("uid", "user"),
    ("pid", "process"),
    ("comm", "process"),
    ("tid", "thread"),
    ("dso", "module"),
    ("image", "module"),
    ("symbol", "function"),
    ("source", "file"),
];

fn by() -> GroupingParser {
    GroupingParser(PossibleValuesParser::new(Grouping::ALL.map(Grouping::name)))
}

/// Parses what `--by` names, and suggests names that are spelled quite differently, which clap does not.
#[derive(Clone)]
struct GroupingParser(PossibleValuesParser);

impl TypedValueParser for GroupingParser {
    type Value = Grouping;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Grouping, clap::Error> {
        let meant = OTHER_WORDS.iter().find(|(word, _)| value.eq_ignore_ascii_case(word));
        let parser = self.0.clone().try_map(|text| text.parse::<Grouping>());
        parser.parse_ref(command, argument, value).map_err(|mut error| {
            if let Some((_, name)) = meant {
                let tip = StyledStr::from(format!("did you mean {name}?"));
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
            }
            error
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        self.0.possible_values()
    }
}

fn column() -> impl TypedValueParser<Value = ViewColumn> {
    let value = |column: ViewColumn| match column.heading() == column.name() {
        true => PossibleValue::new(column.name()),
        false => PossibleValue::new(column.heading()).alias(column.name()),
    };
    PossibleValuesParser::new(ViewColumn::ALL.map(value)).try_map(|text| text.parse::<ViewColumn>())
}

pub fn percentage(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim_end();
    let plain = !number.is_empty() && number.chars().all(|c| c.is_ascii_digit() || c == '.');
    let value = number.parse::<f64>().ok().filter(|value| plain && (0.0..=100.0).contains(value));
    value.ok_or_else(|| "not a share: give percent from 0 to 100, as in 0.5".to_owned())
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownMetric {
    /// Safe to print.
    pub name: String,
    pub unit: Unit,
}

impl ShownMetric {
    /// What shares are of, in a sentence.
    pub fn noun(&self) -> &str {
        match self.unit {
            Unit::Nanoseconds | Unit::Cycles => "the time",
            _ => &self.name,
        }
    }
}

pub struct QueryResult {
    pub profile: Profile,
    pub selection: Selection,
    pub metric: ShownMetric,
    pub question: Question,
    /// The cost centre that stands for all below `--min`.
    pub other: Option<CostCentreId>,
}

/// The query, printed with every answer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Question {
    pub selection: Vec<String>,
    pub by: &'static str,
    /// Share in percent below which cost centres were merged.
    pub min_percent: Option<f64>,
    pub below_min: usize,
    /// Weight of the selection; shares refer to it.
    pub selected: Total,
}

impl Question {
    pub fn keeps_functions(&self) -> bool {
        self.by == Grouping::Function.name() && self.min_percent.is_none()
    }

    /// In words, unless it is the default.
    pub fn text(&self) -> Option<String> {
        let mut parts = self.selection.clone();
        if self.by != Grouping::Function.name() {
            parts.push(format!("--by {}", self.by));
        }
        parts.extend(self.min_percent.map(|min| format!("--min {min}")));
        let Total { weight, samples, whole_weight, whole_samples, .. } = self.selected;
        if samples != whole_samples || weight != whole_weight {
            parts.push(format!("({samples} of {whole_samples} samples)"));
        }
        (!parts.is_empty()).then(|| parts.join(" "))
    }
}

/// Applies a query to a profile. Errors: patterns or metrics that the profile does not have, and wrong specifications,
/// are bad requests.
pub fn ask(args: &QueryArgs, mut profile: Profile) -> Result<QueryResult, Failure> {
    profile.set_full_names(args.full_names);
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
    let mut selection = select(&filter, &profile)?.metric(index);
    let mut asked = words(&filter);
    if args.of_sampled {
        asked.push(OF_SAMPLED.to_owned());
        selection = selection.ignore(profile.not_sampled_cost_centre());
    }
    let mut question = Question {
        selection: asked,
        by: args.by.name(),
        min_percent: args.min.filter(|&min| min > 0.0),
        below_min: 0,
        selected: Total::of(&profile, &selection),
    };
    if args.by == Grouping::Function && question.min_percent.is_none() {
        return Ok(QueryResult { profile, selection, metric, question, other: None });
    }
    // Functions are selected before regrouping replaces them.
    let whole = filter.is_empty() && !args.of_sampled;
    let mut profile = if whole { profile } else { profile.selected(&selection) };
    if args.by != Grouping::Function {
        profile = profile.by(args.by);
    }
    let mut other = None;
    if let Some(percent) = question.min_percent {
        let pruned = profile.pruned(index, percent);
        Pruned { profile, other, functions: question.below_min } = pruned;
    }
    profile.set_full_names(args.full_names);
    Ok(QueryResult { profile, selection: Selection::all().metric(index), metric, question, other })
}

fn select(filter: &Filter, profile: &Profile) -> Result<Selection, Failure> {
    filter.select(profile).map_err(|error| {
        let unmatched = match &error {
            QueryError::NoMatch { pattern, .. } => pattern.parse::<Pattern>().ok(),
            _ => None,
        };
        let question = unmatched.map_or_else(String::new, |pattern| suggest::question(&pattern, profile));
        Failure::bad_request(anyhow!("{error}{question}"))
    })
}

/// The query as options, independent of the profile; empty for the default.
pub fn words_of(args: &QueryArgs) -> String {
    let lists = [("--only", &args.only), ("--hide", &args.hide), ("--focus", &args.focus), ("--ignore", &args.ignore)];
    let mut words: Vec<String> = lists.iter().flat_map(|(option, patterns)| options(option, patterns)).collect();
    words.extend(args.preset.map(|preset| match preset {
        PresetName::Libraries => "--preset libraries".to_owned(),
        PresetName::Phases => "--preset phases".to_owned(),
    }));
    words.extend(args.of_sampled.then(|| OF_SAMPLED.to_owned()));
    words.extend(args.spec.as_ref().map(|path| format!("--spec {}", path.display())));
    if args.by != Grouping::Function {
        words.push(format!("--by {}", args.by.name()));
    }
    words.extend(args.min.map(|min| format!("--min {min}")));
    words.join(" ")
}

fn options(option: &str, patterns: &[Pattern]) -> Vec<String> {
    patterns.iter().map(|pattern| format!("{option} {}", shell_word(&sanitise(pattern.text())))).collect()
}

fn words(filter: &Filter) -> Vec<String> {
    let lists =
        [("--only", &filter.only), ("--hide", &filter.hide), ("--focus", &filter.focus), ("--ignore", &filter.ignore)];
    let options = lists.iter().flat_map(|(option, patterns)| options(option, patterns));
    let preset = filter.preset.map(|preset| match preset {
        Preset::Libraries => "--preset libraries".to_owned(),
        Preset::Phases => "--preset phases".to_owned(),
    });
    options.chain(preset).collect()
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

/// The metric with this name, or the first.
pub fn metric(profile: &Profile, name: Option<&str>) -> Result<(usize, ShownMetric), Failure> {
    let metrics = &profile.session().metrics;
    let position = match name {
        Some(name) => metrics.iter().position(|metric| metric.name == name),
        None => Some(0),
    };
    match position.and_then(|i| Some((i, metrics.get(i)?))) {
        Some((i, metric)) => Ok((i, ShownMetric { name: sanitise(&metric.name).into_owned(), unit: metric.unit })),
        None => {
            let names: Vec<_> = metrics.iter().map(|metric| sanitise(&metric.name)).collect();
            let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let asked = name.map_or_else(String::new, |name| format!(" {:?}", sanitise(name)));
            Err(Failure::bad_request(anyhow!("the profile has no metric{asked}; it has: {has}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        query: QueryArgs,
    }

    #[test]
    fn other_words_for_groupings_are_pointed_out() {
        let parse = |word: &str| Command::try_parse_from(["report", "--by", word]);
        let refused = |word: &str| parse(word).map(|command| command.query.by).unwrap_err().to_string();
        let of_groups = refused("cgroup");
        assert!(of_groups.contains("did you mean unit or container?") && of_groups.contains("module"), "{of_groups}");
        // What is spelled much alike, clap suggests.
        let misspelt = refused("proces");
        assert!(misspelt.contains("'process'") && !misspelt.contains("did you mean"), "{misspelt}");
        assert_eq!(parse("unit").unwrap().query.by, Grouping::Unit);
        for (word, names) in OTHER_WORDS {
            assert!(word.parse::<Grouping>().is_err(), "{word}");
            assert!(names.split(" or ").all(|name| name.parse::<Grouping>().is_ok()), "{names}");
        }
    }
}
