//! `ccsd report`, and the short report after a collection.
//!
//! Every text is the accounting, in lines that begin with `#`, an empty line, and the view. `grep -v '^#'` leaves the
//! view alone.

mod accounting;
mod cycles;
pub mod file;
mod flat;
mod graph;
mod json;
mod lines;
mod stacks;
mod stats;
mod threads;

use std::io::{Write, stdout};

use ccsd_profile::view::Selection;
use ccsd_profile::{CostCentreId, Profile, Unit, sanitise};

use crate::args::ReportArgs;
use crate::exit::{Exit, Failure};
use crate::query::{self, Metric, metric};
use crate::stored;
use crate::style::{ColorChoice, Layout};
use crate::warn;

pub use json::Counts;

/// Rows of the report after a collection: what fits on a screen below the program's own last words.
const SHORT_ROWS: usize = 15;

/// What to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    Flat,
    Graph,
    Stacks,
    Lines,
    Threads,
    Cycles,
    Stats,
}

impl View {
    fn of(args: &ReportArgs) -> View {
        let chosen = [
            (args.graph, View::Graph),
            (args.stacks, View::Stacks),
            (args.lines, View::Lines),
            (args.threads, View::Threads),
            (args.cycles, View::Cycles),
            (args.stats, View::Stats),
        ];
        chosen.into_iter().find(|(given, _)| *given).map_or(View::Flat, |(_, view)| view)
    }

    /// Its name in JSON, and that of its option.
    fn name(self) -> &'static str {
        match self {
            View::Flat => "flat",
            View::Graph => "graph",
            View::Stacks => "stacks",
            View::Lines => "lines",
            View::Threads => "threads",
            View::Cycles => "cycles",
            View::Stats => "stats",
        }
    }

    /// Rows that are shown on a terminal: about a page.
    fn rows_on_terminal(self) -> usize {
        match self {
            View::Flat | View::Stacks | View::Threads | View::Cycles | View::Stats => 40,
            // Of these, each "row" is a block of lines.
            View::Graph | View::Lines => 15,
        }
    }
}

/// What of a profile is shown, and how.
struct Shown<'a> {
    profile: &'a Profile,
    selection: Selection,
    metric: Metric,
    layout: Layout,
    /// Rows, if not all.
    limit: Option<usize>,
    /// The functions that are asked for, if not all.
    function: Option<Pattern<'a>>,
    /// Inherited time decides the order.
    inherited: bool,
    /// This is the report after a collection.
    short: bool,
    /// Size of the file.
    file_bytes: Option<u64>,
}

/// Which functions are asked for: those of this name or, if there is none, those whose name contains it.
#[derive(Clone, Copy, Debug)]
struct Pattern<'a> {
    text: &'a str,
    exact: bool,
}

impl<'a> Pattern<'a> {
    fn new(text: &'a str, profile: &Profile) -> Pattern<'a> {
        let mut ids = (0u32..).map(CostCentreId::new).take(profile.cost_centres().len());
        Pattern { text, exact: ids.any(|id| profile.name(id) == text) }
    }

    fn matches(&self, name: &str) -> bool {
        if self.exact { name == self.text } else { name.contains(self.text) }
    }
}

impl Shown<'_> {
    /// Whether a function is asked for.
    fn wants(&self, name: &str) -> bool {
        self.function.is_none_or(|pattern| pattern.matches(name))
    }

    /// How many rows to show out of `rows`.
    fn rows(&self, rows: usize) -> usize {
        self.limit.map_or(rows, |limit| limit.min(rows))
    }

    /// How to see the rest, for the row that stands for it. (The report after a collection ends with a better hint.)
    fn hint(&self) -> &'static str {
        if self.short { "" } else { "; -n 0 shows all" }
    }

    /// What to say where a view is empty.
    fn nothing(&self) -> String {
        match self.function {
            Some(pattern) => format!("no function was sampled whose name contains {:?}\n", sanitise(pattern.text)),
            None => "no samples: the target used too little CPU time; try a higher rate (-F)\n".to_owned(),
        }
    }
}

/// Runs the command.
pub fn run(args: &ReportArgs, colour: ColorChoice) -> Result<Exit, Failure> {
    let mut loaded = match &args.stored {
        stored if stored.is_given()? => stored::load(stored, stored.since.as_deref(), stored.until.as_deref())?.into(),
        _ => file::load_any(&args.file, &args.socket)?,
    };
    for message in loaded.messages() {
        warn(format_args!("{message}"));
    }
    let view = View::of(args);
    let layout = Layout::of(&stdout(), colour);
    let (profile, selection, metric) = query::ask(&args.query, loaded.profile)?;
    loaded.profile = profile;
    let limit = match args.limit {
        Some(0) => None,
        Some(limit) => Some(limit),
        None => (layout.is_terminal() && !args.json).then(|| view.rows_on_terminal()),
    };
    let shown = Shown {
        profile: &loaded.profile,
        selection,
        metric,
        layout,
        limit,
        function: args.function.as_deref().map(|text| Pattern::new(text, &loaded.profile)),
        inherited: args.inherited,
        short: false,
        file_bytes: loaded.session.is_none().then_some(loaded.bytes),
    };
    let text = if args.json {
        json::document(view, &shown, &loaded).map_err(Failure::at_run_time)?
    } else {
        let mut text = accounting::text(&loaded.profile, Some(&loaded), layout);
        text.push('\n');
        text.push_str(&view_text(view, &shown));
        text
    };
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())?;
    Ok(Exit::SUCCESS)
}

/// The report after a collection.
pub fn short(profile: &Profile, file_bytes: Option<u64>, layout: Layout) -> String {
    let (_, metric) = metric(profile, None).unwrap_or((0, Metric { name: String::new(), unit: Unit::Count }));
    let shown = Shown {
        profile,
        selection: Selection::all(),
        metric,
        layout,
        limit: Some(SHORT_ROWS),
        function: None,
        inherited: false,
        short: true,
        file_bytes,
    };
    format!("{}\n{}", accounting::text(profile, None, layout), flat::text(&shown))
}

/// The first rows of the flat profile, for a profile that grows.
pub fn top(profile: &Profile, rows: usize, layout: Layout) -> String {
    let (_, metric) = metric(profile, None).unwrap_or((0, Metric { name: String::new(), unit: Unit::Count }));
    flat::text(&Shown {
        profile,
        selection: Selection::all(),
        metric,
        layout,
        limit: (rows > 0).then_some(rows),
        function: None,
        inherited: false,
        short: true,
        file_bytes: None,
    })
}

fn view_text(view: View, shown: &Shown<'_>) -> String {
    match view {
        View::Flat => flat::text(shown),
        View::Graph => graph::text(shown),
        View::Stacks => stacks::text(shown),
        View::Lines => lines::text(shown),
        View::Threads => threads::text(shown),
        View::Cycles => cycles::text(shown),
        View::Stats => stats::text(shown),
    }
}

#[cfg(test)]
mod tests;
