//! Instructions from objdump beside the source lines that they belong to.
//!
//! Of functions with lines a profile has no addresses, so a line's cost stands once, at its first group of instructions.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use ccsd_collector::{Door, ElfFile, FileRoot};
use ccsd_profile::view::LineRow;
use ccsd_profile::{CostCentre, Image, sanitise};
use serde::Serialize;

use super::door::SourceDoor;
use crate::format::{UnitScale, percent};
use crate::style::{TextLayout, Tone};
use crate::table::{TableCell, TableColumn, TextTable};

/// Maximum bytes of objdump's output, enough for a function of a million instructions.
const LARGEST: u64 = 64 << 20;
pub const PER_LINE: &str = "costs are of source lines, wherever the line's code is, inlined copies included; each stands once, at \
                            the first instructions of its line: no instruction has a cost of its own";

#[derive(Debug, Serialize)]
pub struct Assembly {
    image: String,
    symbol: String,
    costs: &'static str,
    groups: Vec<InstructionGroup>,
    /// Weight of lines that have no instruction in this symbol, and weight without a line.
    elsewhere: u64,
}

#[derive(Debug, PartialEq, Serialize)]
struct InstructionGroup {
    file: String,
    line: u32,
    /// Weight of the line, in the first of its groups; `null` in further groups and for lines without a cost.
    weight: Option<u64>,
    instructions: Vec<Instruction>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Instruction {
    address: u64,
    text: String,
}

pub fn of(centre: &CostCentre, image: &Image, rows: &[LineRow]) -> Result<Assembly, String> {
    let path = Path::new(&image.name);
    let shown = sanitise(&image.name).into_owned();
    if !path.is_absolute() {
        return Err(format!("{shown} is no file: there is nothing to disassemble"));
    }
    check(path, &image.build_id)?;
    let Some(symbol) = centre.linkage_name.as_deref() else {
        return Err(format!("the function has no symbol in {shown} that objdump could find it by"));
    };
    // Several local functions may share the name: objdump would show the first.
    let start = centre.start.filter(|_| centre.local);
    let mut groups = parse(&objdump(path, symbol, start)?, start);
    if groups.is_empty() && start.is_some() {
        groups = parse(&objdump(path, symbol, None)?, None);
    }
    if groups.is_empty() {
        let name = sanitise(symbol);
        return Err(format!(
            "objdump finds no symbol {name} in {shown}: it is stripped, or all of the function is inlined"
        ));
    }
    Ok(costed(shown, symbol, groups, rows))
}

fn check(path: &Path, build_id: &[u8]) -> Result<(), String> {
    let name = sanitise(&path.to_string_lossy()).into_owned();
    let file = Door::default().open(&FileRoot::own(), path).map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => format!("{name} is not a regular file"),
        _ => format!("cannot open {name}: {error}"),
    })?;
    SourceDoor::check_program(path).map_err(|why| format!("objdump does not read {name}: {why}"))?;
    let elf = ElfFile::open(file).map_err(|error| format!("{name}: {error}"))?;
    let hex = |id: &[u8]| match id {
        [] => "none".to_owned(),
        id => id.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    let is = elf.build_id().unwrap_or_default();
    if is.is_empty() && build_id.is_empty() {
        return Err(format!("{name} has no build id, so that nothing tells whether it is what was profiled"));
    }
    if is != build_id {
        return Err(format!(
            "{name} is not what was profiled: its build id is {}, that of the profile {}",
            hex(is),
            hex(build_id)
        ));
    }
    Ok(())
}

/// Maximum bytes of code shown of a function found by its address.
const LONGEST: u64 = 64 << 10;

fn objdump(path: &Path, symbol: &str, start: Option<u64>) -> Result<String, String> {
    let mut command = Command::new("objdump");
    command.args(["--disassemble", "--line-numbers", "--no-show-raw-insn", "--wide"]);
    // Single arguments, which cannot be taken for options.
    match start {
        Some(start) => command
            .arg(format!("--start-address={start:#x}"))
            .arg(format!("--stop-address={:#x}", start.saturating_add(LONGEST))),
        None => command.arg(format!("--disassemble={symbol}")),
    };
    command.arg("--").arg(path);
    // objdump must not download anything.
    command
        .env("LC_ALL", "C")
        .env_remove("DEBUGINFOD_URLS")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => "objdump is not there: it comes with binutils".to_owned(),
        _ => format!("cannot run objdump: {error}"),
    })?;
    let mut bytes = Vec::new();
    let read = match child.stdout.take() {
        Some(out) => out.take(LARGEST).read_to_end(&mut bytes),
        None => Ok(0),
    };
    // objdump may still be writing.
    let cut = bytes.len() as u64 == LARGEST;
    if cut || read.is_err() {
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| format!("cannot wait for objdump: {error}"))?;
    match read {
        Err(error) => Err(format!("cannot read what objdump prints: {error}")),
        Ok(_) if cut => Err("objdump prints too much of this function".to_owned()),
        Ok(_) if !status.success() => Err(format!("objdump cannot read the file ({status})")),
        Ok(_) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

/// Groups objdump's output by `FILE:LINE` lines, for the symbol that begins at `start` or for all.
fn parse(text: &str, start: Option<u64>) -> Vec<InstructionGroup> {
    let mut groups: Vec<InstructionGroup> = Vec::new();
    let mut place = (String::new(), 0);
    let mut within = false;
    for line in text.lines() {
        if let Some((address, instruction)) = instruction(line).filter(|_| within) {
            if groups.last().is_none_or(|group| (group.file.as_str(), group.line) != (place.0.as_str(), place.1)) {
                groups.push(InstructionGroup {
                    file: place.0.clone(),
                    line: place.1,
                    weight: None,
                    instructions: Vec::new(),
                });
            }
            if let Some(group) = groups.last_mut() {
                group.instructions.push(Instruction { address, text: sanitise(instruction).into_owned() });
            }
        } else if line.ends_with(">:") {
            // The start of a symbol: `0000000000001129 <hot>:`
            let address = line.split_once(' ').and_then(|(address, _)| u64::from_str_radix(address, 16).ok());
            (within, place) = (start.is_none() || address == start, (String::new(), 0));
        } else if line.starts_with("Disassembly of section") {
            within = false;
        } else if let Some(found) = location(line) {
            place = found;
        }
    }
    groups
}

/// `    1137:\tmov    %eax,%edx`
fn instruction(line: &str) -> Option<(u64, &str)> {
    let (address, text) = line.strip_prefix(' ')?.trim_start().split_once(":\t")?;
    Some((u64::from_str_radix(address, 16).ok()?, text.trim_end()))
}

/// `/src/a.c:12`, or `/src/a.c:12 (discriminator 3)`
fn location(line: &str) -> Option<(String, u32)> {
    let line = line.split_once(" (discriminator ").map_or(line, |(place, _)| place);
    let (file, number) = line.rsplit_once(':')?;
    let number = number.parse().ok().filter(|&number| number > 0)?;
    (!file.is_empty()).then(|| (file.to_owned(), number))
}

fn costed(image: String, symbol: &str, mut groups: Vec<InstructionGroup>, rows: &[LineRow]) -> Assembly {
    let mut left: BTreeMap<u32, Vec<(PathBuf, u64)>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.weight > 0) {
        left.entry(row.line).or_default().push((normal(&row.file), row.weight));
    }
    for group in groups.iter_mut().filter(|group| group.line > 0) {
        let Some(rows) = left.get_mut(&group.line) else { continue };
        let file = normal(&group.file);
        // Either path may be relative to the compilation directory.
        let same =
            |(row, _): &(PathBuf, u64)| !row.as_os_str().is_empty() && (file.ends_with(row) || row.ends_with(&file));
        if let Some(at) = rows.iter().position(same) {
            group.weight = Some(rows.remove(at).1);
        }
    }
    let elsewhere = left.into_values().flatten().map(|(_, weight)| weight).fold(0, u64::saturating_add);
    for group in &mut groups {
        group.file = sanitise(&group.file).into_owned();
    }
    Assembly { image, symbol: sanitise(symbol).into_owned(), costs: PER_LINE, groups, elsewhere }
}

fn normal(path: &str) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if normal.file_name().is_some() => {
                normal.pop();
            }
            part => normal.push(part),
        }
    }
    normal
}

impl Assembly {
    pub fn text(&self, total: u64, scale: UnitScale, layout: TextLayout) -> String {
        let mut text = format!("\ninstructions of {} in {}\n", self.symbol, self.image);
        text.push_str(&layout.paint(Tone::Faint, &format!("# {}\n", self.costs)));
        let mut table = TextTable::new(vec![
            TableColumn::number(format!("line {}", scale.unit)),
            TableColumn::number("%"),
            TableColumn::number("address"),
            TableColumn::text("instruction"),
        ]);
        let share = |weight: u64| if total == 0 { 0.0 } else { weight as f64 / total as f64 };
        for group in &self.groups {
            let place = match group.line {
                0 => "[no line]".to_owned(),
                line => format!("{}:{line}", group.file.rsplit('/').next().unwrap_or(&group.file)),
            };
            let (weight, part) = match group.weight {
                Some(weight) => (scale.weight(weight), percent(share(weight))),
                None => (String::new(), String::new()),
            };
            table.row(vec![weight.into(), part.into(), TableCell::default(), TableCell::toned(Tone::Faint, place)]);
            for instruction in &group.instructions {
                let address = TableCell::toned(Tone::Faint, format!("{:x}", instruction.address));
                let instruction = format!("  {}", instruction.text.replace('\t', " "));
                table.row(vec![TableCell::default(), TableCell::default(), address, instruction.into()]);
            }
        }
        text.push_str(&table.render(layout));
        if self.elsewhere > 0 {
            let (weight, part) = (scale.weight(self.elsewhere), percent(share(self.elsewhere)));
            let unit = scale.unit;
            text.push_str(&format!(
                "\n{weight} {unit} ({part}%) was spent in lines that none of these were made from\n"
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use ccsd_profile::LineId;
    use ccsd_profile::view::Share;

    use super::*;

    const PRINTED: &str = "\nt:     file format elf64-x86-64\n\n\nDisassembly of section .text:\n\n0000000000001129 <hot>:\n\
        hot():\n/w/./t.c:5\n    1129:\ttest   %edi,%edi\n    112b:\tjle    114a <hot+0x21>\n/w/t.c:4\n    1132:\tmov    \
        $0x0,%ecx\nsq():\n/w/t.c:2 (discriminator 3)\n    1137:\tmov    %eax,%edx\nhot():\n/w/./t.c:5\n    1140:\tadd    \
        $0x1,%eax\n\nDisassembly of section .fini:\n";

    fn row(file: &str, line: u32, weight: u64) -> LineRow {
        let share = Share::default();
        LineRow {
            id: LineId::UNKNOWN,
            file: file.to_owned(),
            line,
            weight,
            samples: 1,
            share,
            inherited_weight: weight,
            inherited_samples: 1,
            inherited_share: share,
        }
    }

    #[test]
    fn a_line_s_cost_stands_once() {
        let rows = [row("/w/t.c", 5, 70), row("t.c", 4, 20), row("/elsewhere/t.c", 2, 8), row("", 0, 2)];
        let assembly = costed("t".into(), "hot", parse(PRINTED, None), &rows);
        let groups: Vec<_> = assembly.groups.iter().map(|it| (it.line, it.weight, it.instructions.len())).collect();
        assert_eq!(groups, [(5, Some(70), 2), (4, Some(20), 1), (2, None, 1), (5, None, 1)]);
        assert_eq!(assembly.elsewhere, 10);
        assert_eq!((parse(PRINTED, Some(0x1129)).len(), parse(PRINTED, Some(0x1130)).len()), (4, 0));
        let first = assembly.groups[0].instructions.first().map(|it| (it.address, it.text.as_str()));
        assert_eq!(first, Some((0x1129, "test   %edi,%edi")));
    }

    #[test]
    fn refuses_other_files() {
        assert!(check(Path::new("/dev/zero"), &[]).unwrap_err().contains("not a regular file"));
        assert!(check(Path::new("/etc/passwd"), &[]).is_err());
        assert!(check(Path::new("/nowhere"), &[]).unwrap_err().contains("cannot open"));
        let me = std::env::current_exe().unwrap();
        assert!(check(&me, &[1, 2, 3]).unwrap_err().contains("not what was profiled"));
    }
}
