//! A page that compares two profiles.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use ccsd_profile::export::{Export, SourceExcerpt, write_difference_page};
use ccsd_profile::{Profile, sanitise};

use super::sources;
use crate::args::export::ExportArgs;
use crate::exit::Failure;
use crate::message::warn;
use crate::query::{self, QueryArgs, QueryResult};
use crate::report::file::{self, LoadedFile};
use crate::source::ProfileSource;
use crate::symbolize;

pub fn page(
    args: &ExportArgs,
    before: &ProfileSource,
    after: &ProfileSource,
) -> Result<(Vec<u8>, [PathBuf; 2]), Failure> {
    if args.query.min.is_some() {
        return Err(Failure::bad_request(anyhow!(
            "leave out --min: functions that are small in one profile may not be in the other, so the page has them all"
        )));
    }
    let load = |source: &ProfileSource| -> Result<LoadedFile, Failure> {
        let mut loaded = file::load_source(source, &args.stored, &args.socket)?;
        symbolize::name_at_hand(&mut loaded.profile);
        loaded.messages().iter().for_each(|message| warn(format_args!("{message}")));
        Ok(loaded)
    };
    let (before, after) = (load(before)?, load(after)?);
    let place = |loaded: &LoadedFile| loaded.place().map(Path::to_owned);
    let places = [place(&before), place(&after)];
    let metric = common_metric(args.query.metric.as_deref(), &before.profile, &after.profile)?;
    let query = QueryArgs { metric: Some(metric), ..args.query.clone() };
    let ask = |profile: Profile, which: &str| {
        query::ask(&query, profile).map_err(|failure| Failure {
            status: failure.status,
            error: failure.error.context(format!("the profile {which}")),
        })
    };
    let paths = [before.path, after.path];
    let (before, after) = (ask(before.profile, "before")?, ask(after.profile, "after")?);
    let question = query::words_of(&args.query);
    let excerpts = |result: &QueryResult, place: &Option<PathBuf>| {
        if args.page.no_source || !result.question.keeps_functions() {
            return Vec::new();
        }
        let places = sources::places(args, place.as_deref());
        sources::excerpts(&result.profile, &result.selection, &places, args.page.max_size / sources::PART / 2)
    };
    let sources = [excerpts(&before, &places[0]), excerpts(&after, &places[1])];
    fn export<'a>(
        result: &'a QueryResult,
        question: &'a str,
        sources: &'a [SourceExcerpt],
        max_bytes: usize,
    ) -> Export<'a> {
        Export { question, max_bytes, sources, ..Export::new(&result.profile, &result.selection) }
    }
    let old = export(&before, &question, &sources[0], args.page.max_size);
    let new = export(&after, &question, &sources[1], args.page.max_size);
    let mut bytes = Vec::new();
    write_difference_page(&old, &new, &mut bytes).map_err(Failure::bad_request)?;
    Ok((bytes, paths))
}

/// The requested metric, or the first of the profile after, that both have.
fn common_metric(asked: Option<&str>, before: &Profile, after: &Profile) -> Result<String, Failure> {
    let has = |profile: &Profile, name: &str| profile.session().metrics.iter().any(|metric| metric.name == name);
    let common = after.session().metrics.iter().map(|metric| &metric.name).filter(|name| has(before, name));
    let found = common.clone().find(|name| asked.is_none_or(|asked| asked == *name));
    found.cloned().ok_or_else(|| {
        let what = asked.map_or_else(|| "no metric".to_owned(), |asked| format!("no metric {:?}", sanitise(asked)));
        let names: Vec<_> = common.map(|name| sanitise(name)).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Failure::bad_request(anyhow!("the profiles have {what} in common; they have: {names}"))
    })
}
