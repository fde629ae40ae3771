//! The source files that the line tables of an image name.

use std::collections::HashSet;

use gimli::Reader as _;

use crate::elf_file::ElfFile;
use crate::limits;
use crate::lookup::append_path;
use crate::meter::{self, Metered, ReadGrant};
use crate::sections::{self, DebugSections, ReadBudget, damaged};

/// Maximum bytes of all paths together.
const MAX_BYTES: usize = 64 << 20;

/// The paths of the source files that the line tables in this file name, as [`Symbols`](crate::Symbols) gives them.
///
/// # Errors
/// Damaged debug information, or more than the limits allow.
pub fn source_files(file: &ElfFile) -> Result<HashSet<String>, String> {
    let most = limits::MAX_DEBUG_BYTES;
    let mut budget = ReadBudget::new(most / 3 * 2);
    let mut grant = ReadGrant { steps: limits::MAX_DWARF_STEPS, bytes: most, cpu: limits::MAX_DWARF_CPU, gate: None };
    let too_much = |_| "debug information is more than the limits allow".to_owned();
    let sections = meter::run(&mut grant, limits::MAX_DWARF_STACK, || DebugSections::read(file, &mut budget));
    let sections = sections.map_err(too_much)??;
    grant.steps = limits::MAX_DWARF_STEPS + budget.used() / limits::DEBUG_BYTES_PER_STEP;
    meter::run(&mut grant, limits::MAX_DWARF_STACK, || collect(&sections)).map_err(too_much)?
}

fn collect(sections: &DebugSections) -> Result<HashSet<String>, String> {
    let mut dwarf = sections.dwarf();
    sections::check_units(&dwarf)?;
    dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
    let (mut files, mut bytes) = (HashSet::new(), 0usize);
    let mut units = dwarf.units();
    while let Some(header) = units.next().map_err(damaged)? {
        let unit = dwarf.unit(header).map_err(damaged)?;
        let Some(program) = &unit.line_program else { continue };
        let table = program.header();
        // Before DWARF 5 there is no file 0.
        let listed = (1..).map_while(|index| table.file(index));
        for file in table.file(0).into_iter().chain(listed) {
            // Another file may be needed to know its name.
            let Ok(path) = path(&dwarf, &unit, table, file) else { continue };
            if files.contains(&path) {
                continue;
            }
            bytes = bytes.saturating_add(path.len());
            if bytes > MAX_BYTES {
                return Err("too many source files".to_owned());
            }
            files.insert(path);
        }
    }
    Ok(files)
}

/// A path as `addr2line` gives it: below its directory, which is below that of the compilation.
fn path(
    dwarf: &gimli::Dwarf<Metered>,
    unit: &gimli::Unit<Metered>,
    table: &gimli::LineProgramHeader<Metered>,
    file: &gimli::FileEntry<Metered>,
) -> gimli::Result<String> {
    let mut path = match &unit.comp_dir {
        Some(directory) => directory.to_string_lossy()?.into_owned(),
        None => String::new(),
    };
    let mut push = |part: &str| append_path(&mut path, part);
    // Directory 0 is that of the compilation.
    if let Some(directory) = file.directory(table).filter(|_| file.directory_index() != 0) {
        push(&dwarf.attr_string(unit, directory)?.to_string_lossy()?);
    }
    push(&dwarf.attr_string(unit, file.path_name())?.to_string_lossy()?);
    Ok(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::File;

    use super::*;

    #[test]
    fn an_image_names_its_source() {
        let own = File::open(std::env::current_exe().unwrap()).unwrap();
        let files = source_files(&ElfFile::open(own).unwrap()).unwrap();
        assert!(files.iter().any(|path| path.starts_with('/') && path.ends_with("/symbolizer/src/source_files.rs")));
        assert!(!files.contains("/etc/shadow"));
    }
}
