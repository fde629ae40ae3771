//! `ccsd completions` and `ccsd man`: made from the definition of the arguments.

use std::fs;
use std::io::{self, Write, stdout};

use anyhow::Context;
use clap::CommandFactory;
use clap_mangen::Man;

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::exit::{Exit, Failure};

/// Prints a completion script.
pub fn completions(args: &CompletionsArgs) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "ccsd", &mut script);
    print(&script)
}

/// Prints the manual page of ccsd, or writes all pages.
pub fn man(args: &ManArgs) -> Result<Exit, Failure> {
    let Some(directory) = &args.directory else {
        let mut page = Vec::new();
        Man::new(Cli::command()).render(&mut page)?;
        return print(&page);
    };
    let written = fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(Cli::command(), directory));
    written
        .with_context(|| format!("cannot write manual pages to {}", directory.display()))
        .map_err(Failure::at_run_time)?;
    Ok(Exit::SUCCESS)
}

fn print(bytes: &[u8]) -> Result<Exit, Failure> {
    let mut out = stdout().lock();
    let result: io::Result<()> = out.write_all(bytes).and_then(|()| out.flush());
    result?;
    Ok(Exit::SUCCESS)
}
