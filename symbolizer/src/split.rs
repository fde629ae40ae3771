//! Split DWARF: most of a unit's debug information in its own file (DWARF 5, section 7.3; GNU's extension of DWARF 4).
//!
//! The image has a skeleton unit with the path of that file, `.dwo`; `dwp(1)` collects them into a package beside the
//! image. Read when an address of the unit is first looked up, and used only with the unit's 64-bit id.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addr2line::SplitDwarfLoad;
use gimli::{DebugInfo, DwoId, Reader, Section as _, UnitType};

use crate::debugfile::DebugFileFinder;
use crate::limits;
use crate::meter::Metered;
use crate::sections::{self, ReadBudget, SplitDwarfPackage};

#[derive(Debug, Default)]
pub(crate) struct SplitFiles {
    finder: DebugFileFinder,
    /// Path of the file with the skeleton units, if it is not the image.
    debug_path: Option<PathBuf>,
    package: SearchState,
    missing_noted: bool,
    refused_noted: bool,
    notes: Vec<String>,
}

#[derive(Debug, Default)]
enum SearchState {
    #[default]
    NotLooked,
    Found(PathBuf, SplitDwarfPackage),
    Missing,
}

impl SplitFiles {
    pub(crate) fn new(finder: DebugFileFinder, debug_path: Option<&Path>) -> SplitFiles {
        SplitFiles { finder, debug_path: debug_path.map(Path::to_owned), ..SplitFiles::default() }
    }

    /// Loads the debug information of a skeleton unit, if it is found.
    pub(crate) fn load(
        &mut self,
        wanted: &SplitDwarfLoad<Metered>,
        budget: &mut ReadBudget,
    ) -> Option<Arc<gimli::Dwarf<Metered>>> {
        let dwarf = self.find(wanted, budget)?;
        if let Err(why) = sections::check_units(&dwarf) {
            self.note(why);
            return None;
        }
        Some(Arc::new(dwarf))
    }

    pub(crate) fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    fn find(&mut self, wanted: &SplitDwarfLoad<Metered>, budget: &mut ReadBudget) -> Option<gimli::Dwarf<Metered>> {
        if let Some(dwarf) = self.find_in_package(wanted, budget) {
            return Some(dwarf);
        }
        let paths = self.paths(wanted)?;
        for path in &paths {
            let Some(file) = self.search(|finder, notes| finder.find_split(path, notes)) else { continue };
            match sections::read_split(&file, budget, |dwarf| select(dwarf, wanted.dwo_id)) {
                Ok(Some(mut dwarf)) => {
                    dwarf.make_dwo(&wanted.parent);
                    return Some(dwarf);
                }
                Ok(None) => self.note(format!("{} is of another build", path.display())),
                Err(why) => self.note(format!("{}: {why}", path.display())),
            };
        }
        if !self.missing_noted {
            self.missing_noted = true;
            let path = paths.first()?.display().to_string();
            self.note(format!(
                "split debug information is missing, {path} and perhaps more: inlined functions have no names"
            ));
        }
        None
    }

    /// Candidate paths of a `.dwo` file: where it was compiled, and the same path relative to the image.
    fn paths(&self, wanted: &SplitDwarfLoad<Metered>) -> Option<Vec<PathBuf>> {
        let path = |reader: &Metered| {
            let bytes = reader.to_slice().ok()?;
            (bytes.len() < limits::MAX_PATH).then(|| PathBuf::from(OsStr::from_bytes(&bytes)))
        };
        let name = path(wanted.path.as_ref()?)?;
        let directory = wanted.comp_dir.as_ref().and_then(path).unwrap_or_default();
        // An absolute path replaces the directory.
        let made = directory.join(&name);
        let beside = self.finder.directory().map(|directory| directory.join(&name));
        Some([Some(made.clone()), beside.filter(|beside| *beside != made)].into_iter().flatten().collect())
    }

    fn find_in_package(
        &mut self,
        wanted: &SplitDwarfLoad<Metered>,
        budget: &mut ReadBudget,
    ) -> Option<gimli::Dwarf<Metered>> {
        if let SearchState::NotLooked = self.package {
            self.package = SearchState::Missing;
            let debug_path = self.debug_path.clone();
            let (path, file) = self.search(|finder, notes| finder.find_package(debug_path.as_deref(), notes))?;
            match SplitDwarfPackage::read(&file, budget) {
                Ok(package) => self.package = SearchState::Found(path, package),
                Err(why) => self.note(format!("{}: {why}", path.display())),
            }
        }
        let SearchState::Found(path, package) = &self.package else { return None };
        match package.find(wanted.dwo_id) {
            Ok(None) => return None,
            Ok(Some(mut dwarf)) => {
                if select(&mut dwarf, wanted.dwo_id) {
                    dwarf.make_dwo(&wanted.parent);
                    return Some(dwarf);
                }
            }
            Err(_) => {}
        }
        let note = format!("{}: damaged index of a package of debug information", path.display());
        self.package = SearchState::Missing;
        self.note(note);
        None
    }

    /// Looks for a file. One file that is not accepted is named, for all.
    fn search<T>(&mut self, look: impl FnOnce(&DebugFileFinder, &mut Vec<String>) -> Option<T>) -> Option<T> {
        let mut refused = Vec::new();
        let found = look(&self.finder, &mut refused);
        if let Some(note) = refused.pop().filter(|_| !self.refused_noted) {
            self.refused_noted = true;
            self.note(note);
        }
        found
    }

    fn note(&mut self, note: String) {
        if self.notes.len() < limits::MAX_NOTES {
            self.notes.push(note);
        }
    }
}

/// Finds the unit `id` and removes the units before it: `addr2line` uses the first one, and type units come first.
fn select(dwarf: &mut gimli::Dwarf<Metered>, id: DwoId) -> bool {
    let mut units = dwarf.units();
    let mut found = None;
    // A damaged header ends the search.
    while let Ok(Some(header)) = units.next() {
        let same = match header.type_() {
            UnitType::SplitCompilation(other) => other == id,
            // DWARF 4 has the id in an attribute.
            UnitType::Compilation => dwarf.unit(header.clone()).is_ok_and(|unit| unit.dwo_id == Some(id)),
            _ => false,
        };
        if same {
            found = header.debug_info_offset();
            break;
        }
    }
    let Some(offset) = found else { return false };
    let mut from_there = dwarf.debug_info.reader().clone();
    if from_there.skip(offset.0).is_err() {
        return false;
    }
    dwarf.debug_info = DebugInfo::from(from_there);
    true
}
