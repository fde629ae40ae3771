//! Symbolises addresses of an ELF file, one hexadecimal address per line of standard input. Time and memory go to
//! standard error.
//!
//! ```text
//! cargo run --release -p ccsd-symbolizer --example resolve -- FILE [--quiet] < addresses
//! ```

use std::fs::File;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Instant;

use ccsd_symbolizer::{DebugFileFinder, ElfFile, Symbols};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = std::fs::canonicalize(args.next().ok_or("usage: resolve FILE [--quiet] < addresses")?)?;
    let quiet = args.next().is_some();
    let begin = Instant::now();
    let image = Arc::new(ElfFile::open(File::open(&path)?)?);
    let opened = begin.elapsed();
    let unwind = image.has_unwind_info();
    let unwind_read = begin.elapsed() - opened;
    let finder = DebugFileFinder::system().image_path(&path);
    let mut symbols = Symbols::new(image, finder);
    let mut functions = Vec::new();
    let (mut first, mut rest, mut count) = (None, std::time::Duration::ZERO, 0u32);
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        let svma = u64::from_str_radix(line?.trim().trim_start_matches("0x"), 16)?;
        let begin = Instant::now();
        symbols.resolve(svma, &mut functions);
        match first {
            None => first = Some(begin.elapsed()),
            Some(_) => rest += begin.elapsed(),
        }
        count += 1;
        if quiet {
            continue;
        }
        writeln!(out, "{svma:#x}")?;
        for function in &functions {
            let name = function.display_name.as_ref().or(function.linkage_name.as_ref());
            let inlined = if function.inlined { " (inlined)" } else { "" };
            write!(out, "  {}{inlined}", name.map_or("?", |name| name))?;
            if let Some(start) = function.start {
                write!(out, " from {start:#x}")?;
            }
            writeln!(out, " at {}:{}", function.file.as_deref().unwrap_or("?"), function.line)?;
        }
    }
    out.flush()?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let memory = status.lines().filter(|line| line.starts_with("VmRSS") || line.starts_with("VmHWM"));
    eprintln!("open {opened:?}, unwind sections ({unwind}) {unwind_read:?}, first resolve {first:?}");
    eprintln!("{count} addresses, {:?} each after the first", rest / count.saturating_sub(1).max(1));
    eprintln!("{}, of symbols {} kB", memory.collect::<Vec<_>>().join(", "), symbols.held_bytes() >> 10);
    for note in symbols.notes() {
        eprintln!("note: {note}");
    }
    Ok(())
}
