//! `ccsd report`, and the short report after a collection.
//!
//! Texts begin with the accounting in lines that start with `#`, an empty line, and the view; in the summary the
//! accounting comes last, in one line unless something is wrong.

pub mod accounting;
pub mod choice;
mod cycles;
pub mod file;
mod flame;
mod flat;
mod graph;
mod hints;
mod hot;
mod json;
mod lines;
mod presentation;
mod stacks;
mod stats;
mod summary;
mod threads;
mod timeline;
mod tree;

use std::io::{Write, stdout};

use anyhow::anyhow;
use ccsd_profile::query::Grouping;
use ccsd_profile::view::{Total, ViewColumn};
use ccsd_profile::{Profile, Timeline, sanitise};

use crate::args::report::{ReportArgs, View};
use crate::exit::{Exit, Failure};
use crate::format::{count, counted, ratio};
use crate::functions::NamedFunctions;
use crate::message::warn;
use crate::query::{self, QueryResult, Question};
use crate::style::{ColorChoice, TextLayout, terminal_rows};
use crate::suggest;
use crate::symbolize;
use accounting::Said;
use presentation::Presentation;

pub use flame::background as flame_background;
pub use json::AccountingCounts;
pub use lines::remarks as line_remarks;

pub fn run(args: &ReportArgs, colour: ColorChoice) -> Result<Exit, Failure> {
    let view = View::of(args);
    let sort = args.query.sort.or(args.inherited.then_some(ViewColumn::Inherited));
    if let Some(column) = sort.filter(|column| !view.columns().contains(column)) {
        let columns: Vec<_> = view.columns().iter().map(|column| column.heading()).collect();
        let (view, column) = (view.name(), column.heading());
        let has = if columns.is_empty() {
            "has an order of its own".to_owned()
        } else {
            format!("has {}", columns.join(", "))
        };
        return Err(Failure::bad_request(anyhow!("the view {view} has no column {column} to sort by: it {has}")));
    }
    if args.function.is_some() && !view.takes_function() {
        return Err(Failure::bad_request(anyhow!("--function does not go with {}: use --focus", view.name())));
    }
    if args.function.is_none() && view == View::Butterfly {
        return Err(Failure::bad_request(anyhow!("of which function? Name it with --function NAME")));
    }
    let layout = TextLayout::of(&stdout(), colour);
    let mut timeline = Timeline::default();
    let mut loaded = if view == View::Timeline {
        let width = timeline::width(layout.width);
        let metric = args.query.metric.as_deref();
        let no_times = || {
            Failure::bad_request(anyhow!(
                "a daemon's session has no intervals; --timeline goes with a file (`ccsd record`, `ccsd attach`) or a \
                 watch (watch:NAME)"
            ))
        };
        if args.source.is_session() {
            return Err(no_times());
        }
        let loaded = file::load_timeline(&args.source, &args.stored, &args.socket, metric, (width, false))?;
        if loaded.file.session.is_some() {
            return Err(no_times());
        }
        timeline = loaded.timeline;
        loaded.file
    } else {
        file::load_source(&args.source, &args.stored, &args.socket)?
    };
    for message in loaded.messages() {
        warn(format_args!("{message}"));
    }
    symbolize::name_at_hand(&mut loaded.profile);
    let QueryResult { profile, mut selection, metric, question, other } = query::ask(&args.query, loaded.profile)?;
    loaded.profile = profile;
    let chooses = args.function.is_some() || args.query.chooses_functions();
    if view.folds_startup() && !args.json && !chooses {
        selection = selection.hide(loaded.profile.startup_functions());
    }
    let functions = args.function.as_ref().map(|pattern| NamedFunctions::new(pattern, &loaded.profile));
    if let Some(pattern) = args.function.as_ref().filter(|_| functions.as_ref().is_some_and(NamedFunctions::is_empty)) {
        return Err(Failure::bad_request(anyhow!(
            "the profile has no {} that matches {:?}{}",
            args.query.by.nouns().0,
            sanitise(pattern.text()),
            suggest::question(pattern, &loaded.profile)
        )));
    }
    let mut limit = view.limit(args.limit, layout.is_terminal() && !args.json);
    if view == View::Flame && args.limit.is_none() && !args.json {
        // Its top stays on the screen, with what is said below it.
        let room = terminal_rows(&stdout()).map(|rows| rows.saturating_sub(ROWS_BELOW_FLAME).max(LEAST_FLAME));
        limit = room.map_or(limit, |room| Some(limit.map_or(room, |limit| limit.min(room))));
    }
    let min = args.query.min.unwrap_or(view.default_min());
    let shown = Presentation {
        selection,
        metric,
        limit,
        functions,
        sort,
        min: min / 100.0,
        other,
        by: args.query.by,
        intervals: args.intervals,
        file_bytes: loaded.session.is_none().then_some(loaded.bytes),
        watch: loaded.stored.as_ref().map(|about| about.watch.as_str()),
        timeline: &timeline,
        ..Presentation::new(&loaded.profile, layout)
    };
    let text = if args.json {
        json::document(view, &shown, &loaded, &question).map_err(Failure::at_run_time)?
    } else {
        let head = head(view, &shown, &question);
        if view == View::Summary {
            let asked = head.iter().filter(|(label, _)| *label != "view").cloned();
            let notable = accounting::is_notable(&loaded.profile) || !loaded.messages().is_empty();
            let about = accounting::about(&loaded, asked, layout);
            let head = head.iter().filter(|(label, _)| *label == "view").cloned().collect();
            let said = Said { head: true, verbose: args.verbose };
            let accounting = match args.verbose || notable {
                true => accounting::text(&loaded.profile, Some(&loaded), head, said, layout),
                false => accounting::line(&loaded.profile, layout),
            };
            format!("{about}\n{}\n{accounting}", summary::text(&shown))
        } else if view == View::Flame && !args.verbose {
            let asked = head.into_iter().filter(|(label, _)| *label != "view");
            let about = accounting::about(&loaded, asked, layout);
            format!("{}{about}{}", flame::text(&shown), accounting::line(&loaded.profile, layout))
        } else {
            let accounting = accounting::text(
                &loaded.profile,
                Some(&loaded),
                head,
                Said { head: false, verbose: args.verbose },
                layout,
            );
            format!("{accounting}\n{}", view_text(view, &shown))
        }
    };
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())?;
    Ok(Exit::SUCCESS)
}

/// Rows of a terminal that a flame graph leaves for what is said of it, and the fewest that it takes.
const ROWS_BELOW_FLAME: usize = 8;
const LEAST_FLAME: usize = 8;

fn head(view: View, shown: &Presentation<'_>, question: &Question) -> Vec<(&'static str, String)> {
    let Total { weight, samples, whole_weight, whole_samples, .. } = question.selected;
    let mut what = vec![view.name().to_owned()];
    if let Some(named) = &shown.functions {
        what.push(format!("of {}", named.text()));
    }
    if shown.by != Grouping::Function {
        what.push(format!("by {}", shown.by.name()));
    }
    if let Some(column) = shown.sort.or_else(|| view.columns().first().copied()) {
        what.push(format!("in order of {}", column.heading()));
    }
    let mut text = format!("{}; weighed by {}", what.join(" "), shown.metric.name);
    let min = question.min_percent.unwrap_or(view.default_min());
    if min > 0.0 {
        let what = if view == View::Hot { "not shown beside the chains" } else { "summed up" };
        text.push_str(&format!("; less than {min}% is {what}"));
    }
    let all = samples == whole_samples && weight == whole_weight;
    if view.has_percentages() && all {
        text.push_str(&format!("; % of all {}", counted(samples, "sample", "samples")));
    }
    let mut lines = vec![("view", text)];
    if !question.selection.is_empty() {
        let mut text = question.selection.join(" ");
        if !all {
            text.push_str(&format!(
                ": {} of {}, {} of {}",
                count(samples),
                counted(whole_samples, "sample", "samples"),
                ratio(weight, whole_weight),
                shown.metric.name
            ));
            if view.has_percentages() {
                text.push_str("; % of these");
            }
        }
        lines.push(("selected", text));
    }
    lines
}

/// The report after a collection: the summary, and the accounting in one line, or in full if `verbose` or after losses.
pub fn short(profile: &Profile, file_bytes: Option<u64>, verbose: bool, layout: TextLayout) -> String {
    let limit = Some(choice::SUMMARY_ROWS);
    let shown = Presentation { limit, short: true, file_bytes, ..Presentation::new(profile, layout) };
    let attached = accounting::attached(profile, layout);
    let said = Said { head: !attached.is_empty(), verbose };
    let accounting = match verbose || accounting::is_notable(profile) {
        true => accounting::text(profile, None, Vec::new(), said, layout),
        false => accounting::line(profile, layout),
    };
    format!("{attached}{}\n{accounting}", summary::text(&shown))
}

pub fn top(profile: &Profile, rows: usize, layout: TextLayout) -> String {
    let limit = (rows > 0).then_some(rows);
    flat::text(&Presentation { limit, short: true, growing: true, ..Presentation::new(profile, layout) })
}

fn view_text(view: View, shown: &Presentation<'_>) -> String {
    match view {
        View::Summary => summary::text(shown),
        View::Flat => flat::text(shown),
        View::Graph => graph::text(shown),
        View::Stacks => stacks::text(shown),
        View::Lines => lines::text(shown),
        View::Threads => threads::text(shown),
        View::Cycles => cycles::text(shown),
        View::Stats => stats::text(shown),
        View::Tree => tree::top_down_text(shown),
        View::Flame => flame::text(shown),
        View::BottomUp => tree::bottom_up_text(shown),
        View::Butterfly => tree::butterflies_text(shown),
        View::Hot => hot::text(shown),
        View::Timeline => timeline::text(shown),
    }
}

#[cfg(test)]
mod tests;
