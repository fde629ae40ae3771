//! `ccsd symbolize`: names functions of a profile from debug files found later, and reports do so with those at hand.

use std::cmp::Reverse;
use std::fmt;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use ccsd_collector::debuginfod::{Debuginfod, URLS_VARIABLE, fetched_before};
use ccsd_collector::naming::{NameFinder, NamedLater, NamelessImage, WhyNameless, find_names};
use ccsd_collector::{Door, ElfFile, FileRoot, ImageError};
use ccsd_daemon::OutputFile;
use ccsd_profile::{DecodeError, Decoded, Decoder, Image, Profile, ProfileLimits, RenamedStream, sanitise};

use crate::args::symbolize::SymbolizeArgs;
use crate::exit::{Exit, Failure};
use crate::format::counted;
use crate::message::warn;

const SYSTEM: &str = "/usr/lib/debug";

pub fn run(args: &SymbolizeArgs) -> Result<Exit, Failure> {
    let mut servers = servers(args)?;
    let target = args.output.as_ref().unwrap_or(&args.file);
    OutputFile::check_contents(target).map_err(Failure::bad_request)?;
    for dir in &args.debug_dir {
        if !dir.is_dir() {
            return Err(Failure::bad_request(anyhow!("--debug-dir {}: there is no such directory", dir.display())));
        }
    }
    let mut profile: Option<Profile> = None;
    let is_whole = read(&args.file, |decoder, record| {
        let profile = profile.get_or_insert_with(|| Profile::new(decoder.session().clone(), ProfileLimits::reading()));
        match record {
            Some(Decoded::Update(update)) => profile.apply(&update).map_err(|error| anyhow!("{error}")),
            _ => Ok(()),
        }
    })?;
    if !is_whole {
        let what = "it has no end: its collection was interrupted, or what followed was cut off";
        if args.output.is_none() {
            let name = args.file.display();
            return Err(Failure::bad_request(anyhow!("{name}: {what}; with -o what there is goes to another file")));
        }
        warn(format_args!("{}: {what}", args.file.display()));
    }
    let profile = profile.unwrap_or_else(|| Profile::new(Default::default(), ProfileLimits::reading()));
    let mut dirs: Vec<&Path> = args.debug_dir.iter().map(PathBuf::as_path).collect();
    dirs.push(Path::new(SYSTEM));
    let (names, named) = find_names(&profile, |image| {
        at_hand(&dirs, image).or_else(|mut missing| {
            let Some(servers) = servers.as_mut() else { return Err(missing) };
            missing.server = Some(match servers.fetch(&image.build_id) {
                Ok(Some(file)) => return Ok(file),
                Ok(None) => "no server has one".to_owned(),
                Err(problem) => problem,
            });
            Err(missing)
        })
    });
    let gained = named.functions + named.with_lines;
    if gained == 0 && named.nameless.iter().any(is_to_be_had) {
        let target = if args.output.is_some() { "nothing is written" } else { "the file is unchanged" };
        let (name, reasons) = (args.file.display(), reasons(&named.nameless));
        return Err(Failure::bad_request(anyhow!("{name}: no function could be named, and {target}{reasons}")));
    }
    if gained > 0 || args.output.is_some() {
        let mut output: Option<(OutputFile, RenamedStream)> = None;
        read(&args.file, |decoder, record| {
            if output.is_none() {
                let session = decoder.session();
                output = Some((OutputFile::replace(target, session)?, RenamedStream::new(session, &names)));
            }
            if let (Some((output, stream)), Some(Decoded::Update(update))) = (&mut output, record) {
                output.write(&stream.rename(&update)?);
            }
            Ok(())
        })?;
        let mut problem = None;
        if let Some((mut output, _)) = output {
            if is_whole {
                output.finish();
            } else {
                output.finish_cut();
            }
            problem = output.error().map(ToString::to_string);
        }
        if let Some(problem) = problem {
            return Err(Failure::at_run_time(anyhow!(problem)));
        }
    }
    let mut out = stdout().lock();
    writeln!(out, "{}", summary(&named))?;
    Ok(Exit::SUCCESS)
}

/// What became of the functions, with reasons for those that have no name, or no lines, still.
fn summary(named: &NamedLater<Box<MissingFile>>) -> String {
    let NamedLater { functions, with_lines, nameless, left_out } = named;
    let sum = |of: fn(&NamelessImage<Box<MissingFile>>) -> usize| nameless.iter().map(of).sum::<usize>();
    let (without_name, without_lines) = (sum(|it| it.functions), sum(|it| it.without_lines));
    let functions_named = counted(*functions as u64, "function", "functions");
    let mut parts = Vec::new();
    parts.push(match (functions, with_lines, without_name) {
        (0, 0, 0) => "all functions have names already".to_owned(),
        (_, 0, _) => format!("{functions_named} named"),
        (0, _, _) => format!("lines of {} found", counted(*with_lines as u64, "function", "functions")),
        _ => format!("{functions_named} named, and lines of {with_lines} more found"),
    });
    if *left_out > 0 {
        parts.push(format!("of {left_out} places in them no inlined functions and lines: there are too many"));
    }
    if without_name > 0 {
        parts.push(format!("{without_name} without a name still"));
    }
    if without_lines > 0 {
        parts.push(format!("{without_lines} with a name, but without lines"));
    }
    let mut text = parts.join("; ");
    if without_name + without_lines > 0 {
        text.push_str(&reasons(nameless));
    }
    text
}

/// Images that are listed with why their functions have no names.
const MAX_REASONS: usize = 10;

/// Whether another debug file could name functions of an image.
fn is_to_be_had(it: &NamelessImage<Box<MissingFile>>) -> bool {
    it.functions > 0 && !matches!(it.why, WhyNameless::NotInFile { problem: None })
}

/// The images with most functions that have no name, or no lines, a line each.
fn reasons(nameless: &[NamelessImage<Box<MissingFile>>]) -> String {
    let mut images: Vec<_> = nameless.iter().collect();
    images.sort_by_key(|it| Reverse((it.functions, it.without_lines)));
    let reason = |it: &&NamelessImage<Box<MissingFile>>| {
        let why = match &it.why {
            WhyNameless::NoBuildId => "it has no build id, by which a debug file could be known".to_owned(),
            WhyNameless::NotFound(missing) => missing.to_string(),
            WhyNameless::Unreadable(error) => format!("its debug file cannot be read: {error}"),
            WhyNameless::OtherBuild => "its debug file has another build id".to_owned(),
            WhyNameless::NotInFile { problem: None } => "its debug file has no name for them".to_owned(),
            WhyNameless::NotInFile { problem: Some(problem) } => format!("its debug file is damaged: {problem}"),
        };
        let functions = counted(it.functions as u64, "function", "functions");
        let what = match (it.functions, it.without_lines) {
            (_, 0) => functions,
            (0, count) => format!("lines of {}", counted(count as u64, "function", "functions")),
            (_, count) => format!("{functions} and lines of {count}"),
        };
        format!("\n  {what} of {}: {}", sanitise(&it.image), sanitise(&why))
    };
    let mut text: String = images.iter().take(MAX_REASONS).map(reason).collect();
    if let Some(more) = images.len().checked_sub(MAX_REASONS).filter(|more| *more > 0) {
        text.push_str(&format!("\n  and {}", counted(more as u64, "more image", "more images")));
    }
    text
}

/// Why there is no debug file of an image.
struct MissingFile {
    build_id: String,
    /// The first file under its name that cannot be used, and why.
    unusable: Option<(PathBuf, Unusable)>,
    searched: Vec<PathBuf>,
    /// What came of asking servers.
    server: Option<String>,
}

enum Unusable {
    Unreadable(ImageError),
    OtherBuild,
    /// It has the build id and no names.
    Nameless,
    /// Others could have put it there.
    OfOthers,
}

impl fmt::Display for MissingFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.unusable {
            Some((path, Unusable::Unreadable(error))) => write!(f, "{} cannot be read: {error}", path.display())?,
            Some((path, Unusable::OtherBuild)) => {
                write!(f, "{} is no file of build id {}", path.display(), self.build_id)?;
            }
            Some((path, Unusable::Nameless)) => {
                write!(f, "{} is of its build, but has no names: it is stripped or damaged", path.display())?;
            }
            Some((path, Unusable::OfOthers)) => {
                write!(f, "{} is not read, because other users could have put it there", path.display())?;
            }
            None => {
                let dirs: Vec<_> = self.searched.iter().map(|dir| dir.display().to_string()).collect();
                write!(f, "no debug file with build id {} in {}", self.build_id, dirs.join(", "))?;
            }
        }
        self.server.iter().try_for_each(|problem| write!(f, "; {problem}"))
    }
}

/// The servers to ask: of the command line, else of the environment, which other programs use too, as far as they can
/// be asked.
fn servers(args: &SymbolizeArgs) -> Result<Option<Debuginfod>, Failure> {
    let named = |urls: &String| !urls.trim().is_empty();
    if let Some(urls) = args.debuginfod.as_ref().filter(|urls| named(urls)) {
        return Debuginfod::new(urls).map(Some).map_err(Failure::bad_request);
    }
    let Some(urls) = std::env::var(URLS_VARIABLE).ok().filter(named) else { return Ok(None) };
    let (usable, others): (Vec<&str>, Vec<&str>) = urls.split_whitespace().partition(|url| Debuginfod::can_ask(url));
    for url in others {
        warn(format_args!("{url} of {URLS_VARIABLE} is not asked: it is no address of https:// or http://"));
    }
    if usable.is_empty() {
        return Ok(None);
    }
    Debuginfod::new(&usable.join(" ")).map(Some).or_else(|error| {
        warn(format_args!("{error}: no server is asked"));
        Ok(None)
    })
}

/// Names functions of a loaded profile from installed debug files and what was fetched before.
pub fn name_at_hand(profile: &mut Profile) {
    let (names, _) = find_names(profile, |image| at_hand(&[Path::new(SYSTEM)], image));
    if !names.is_empty() {
        *profile = profile.with_later_names(&names);
    }
}

/// A finder of the names that [`name_at_hand`] finds, for a profile that grows.
pub fn finder() -> NameFinder<impl FnMut(&Image) -> Option<File>> {
    NameFinder::new(|image: &Image| at_hand(&[Path::new(SYSTEM)], image).ok())
}

/// Reads a file to its end, or to where it was cut off. Returns whether it has the end that a finished profile has.
fn read(
    path: &Path,
    mut each: impl FnMut(&Decoder<BufReader<File>>, Option<Decoded>) -> Result<(), anyhow::Error>,
) -> Result<bool, Failure> {
    let name = || path.display().to_string();
    let file = open(path).with_context(|| format!("cannot read {}", path.display())).map_err(Failure::bad_request)?;
    let decoder = Decoder::new(BufReader::with_capacity(1 << 18, file));
    let mut decoder = decoder.map_err(|error| Failure::bad_request(anyhow!("{}: {error}", name())))?;
    each(&decoder, None).map_err(Failure::at_run_time)?;
    let mut has_end = false;
    loop {
        match decoder.next_record() {
            Ok(None) | Err(DecodeError::CutOff { .. }) => return Ok(has_end),
            Ok(record) => {
                has_end |= matches!(record, Some(Decoded::End(_)));
                each(&decoder, record).map_err(Failure::at_run_time)?;
            }
            Err(error) => return Err(Failure::bad_request(anyhow!("{}: {error}", name()))),
        }
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    Door::default().open(&FileRoot::own(), &std::path::absolute(path)?).map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => std::io::Error::other("not a regular file"),
        _ => error,
    })
}

/// A file with the build id of an image, in directories of debug files or fetched before.
fn at_hand(dirs: &[&Path], image: &Image) -> Result<File, Box<MissingFile>> {
    let build_id: String = image.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    let by_build_id = build_id.split_at_checked(2).map(|(first, rest)| format!(".build-id/{first}/{rest}.debug"));
    let name = image.name.rsplit('/').next().filter(|name| !name.is_empty() && *name != "..");
    let by_name = name.iter().flat_map(|name| [format!("{name}.debug"), (*name).to_owned()]);
    let names: Vec<String> = by_build_id.into_iter().chain(by_name).collect();
    let mut unusable = None;
    for path in dirs.iter().flat_map(|dir| names.iter().map(|name| dir.join(name))) {
        let Ok(file) = open(&path) else { continue };
        let elf = file.try_clone().map_err(ImageError::from).and_then(ElfFile::open_debug);
        let why = match elf {
            Err(error) => Unusable::Unreadable(error),
            Ok(elf) if elf.build_id() != Some(image.build_id.as_slice()) => Unusable::OtherBuild,
            // A stripped copy has the same build id.
            Ok(elf) if !elf.has_names() => Unusable::Nameless,
            Ok(_) => return Ok(file),
        };
        unusable = unusable.or(Some((path, why)));
    }
    match fetched_before(&image.build_id) {
        Ok(Some(file)) => return Ok(file),
        Ok(None) => {}
        Err(path) => unusable = unusable.or(Some((path, Unusable::OfOthers))),
    }
    let searched = dirs.iter().map(PathBuf::from).collect();
    Err(Box::new(MissingFile { build_id, unusable, searched, server: None }))
}
