//! `ccsd symbolize`: names functions of a profile from debug files found later, and reports do so with those at hand.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, Write, stdout};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use ccsd_collector::ElfFile;
use ccsd_collector::debuginfod::{Debuginfod, URLS_VARIABLE, fetched_before};
use ccsd_collector::naming::{NameFinder, NamedLater, find_names};
use ccsd_daemon::OutputFile;
use ccsd_profile::{DecodeError, Decoded, Decoder, Image, Profile, ProfileLimits, RenamedStream, sanitise};
use nix::fcntl::OFlag;

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
        at_hand(&dirs, image).or_else(|| {
            servers.as_mut()?.fetch(&image.build_id).unwrap_or_else(|problem| {
                warn(format_args!("{}: {problem}", sanitise(&image.name)));
                None
            })
        })
    });
    if named.functions > 0 || args.output.is_some() {
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
            output.finish();
            problem = output.error().map(ToString::to_string);
        }
        if let Some(problem) = problem {
            return Err(Failure::at_run_time(anyhow!(problem)));
        }
    }
    let NamedLater { functions, nameless, left_out, without } = named;
    let mut out = stdout().lock();
    let text = format!("{} named", counted(functions as u64, "function", "functions"));
    let rest: Vec<_> = without.iter().map(|name| sanitise(name)).collect();
    let rest = if nameless == 0 {
        String::new()
    } else {
        format!("; {nameless} without a name still, in {}", rest.join(", "))
    };
    let too_many = match left_out {
        0 => String::new(),
        count => format!("; of {count} places in them no inlined functions and lines: there are too many"),
    };
    writeln!(out, "{text}{rest}{too_many}")?;
    Ok(Exit::SUCCESS)
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
    NameFinder::new(|image: &Image| at_hand(&[Path::new(SYSTEM)], image))
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
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(std::io::Error::other("not a regular file")),
    }
}

/// A file with the build id of an image, in directories of debug files or fetched before.
fn at_hand(dirs: &[&Path], image: &Image) -> Option<File> {
    let hex: String = image.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    let (first, rest) = hex.split_at_checked(2)?;
    let name = image.name.rsplit('/').next().unwrap_or_default();
    let paths = dirs.iter().flat_map(|dir| {
        let mut paths = vec![dir.join(format!(".build-id/{first}/{rest}.debug"))];
        if !name.is_empty() && name != ".." {
            paths.extend([dir.join(format!("{name}.debug")), dir.join(name)]);
        }
        paths
    });
    let is_it = |file: &File| {
        let elf = file.try_clone().ok().and_then(|file| ElfFile::open_debug(file).ok());
        // A stripped copy has the same build id.
        elf.is_some_and(|elf| elf.build_id() == Some(image.build_id.as_slice()) && elf.has_names())
    };
    paths.filter_map(|path| open(&path).ok()).find(is_it).or_else(|| fetched_before(&image.build_id))
}
