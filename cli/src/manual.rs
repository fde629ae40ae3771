//! `ccsd completions` and `ccsd man`: made from the definition of the arguments.

use std::fs;
use std::io::{self, Write, stdout};

use anyhow::Context;
use ccsd_daemon::destination;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::exit::{Exit, Failure};

/// Prints a completion script.
pub fn completions(args: &CompletionsArgs) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::grouped(), "ccsd", &mut script);
    if args.shell == Shell::Bash {
        script = values_first(&String::from_utf8_lossy(&script)).into_bytes();
    }
    print(&script)
}

/// A script for bash that offers values, as formats are, before options: it offers them in the order of its lists.
fn values_first(script: &str) -> String {
    let lines = script.lines().map(|line| {
        let list = line.split_once("opts=\"").and_then(|(start, rest)| Some((start, rest.strip_suffix('"')?)));
        let Some((start, words)) = list else { return format!("{line}\n") };
        let (options, values): (Vec<&str>, Vec<&str>) = words.split(' ').partition(|word| word.starts_with('-'));
        format!("{start}opts=\"{}\"\n", [values, options].concat().join(" "))
    });
    lines.collect()
}

/// Prints the manual page of ccsd, or writes all pages.
pub fn man(args: &ManArgs) -> Result<Exit, Failure> {
    // `ccsd help` needs no page.
    let mut command = Cli::grouped().disable_help_subcommand(true);
    command.build();
    let Some(directory) = &args.directory else {
        return print(&page(&command)?);
    };
    let written = fs::create_dir_all(directory).and_then(|()| {
        // Those of `ccsd daemon` have pages of their own: ccsd-daemon-status(1).
        let below = command.get_subcommands().flat_map(clap::Command::get_subcommands);
        for command in std::iter::once(&command).chain(command.get_subcommands()).chain(below) {
            let file = directory.join(Man::new(command.clone()).get_filename());
            destination::write(&file, &page(command)?, None).map_err(io::Error::other)?;
        }
        Ok(())
    });
    written
        .with_context(|| format!("cannot write manual pages to {}", directory.display()))
        .map_err(Failure::at_run_time)?;
    Ok(Exit::SUCCESS)
}

/// One page. The examples are set here: clap_mangen would fill their lines like those of any text.
fn page(command: &clap::Command) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(text) = command.get_after_long_help() {
        writeln!(page, ".SH EXAMPLES")?;
        for paragraph in text.to_string().split("\n\n") {
            let lines = paragraph.strip_prefix("Examples:\n").unwrap_or(paragraph);
            let is_code = lines.lines().any(|line| line.starts_with("  "));
            let (before, after) = if is_code { (".PP\n.nf", "\n.fi") } else { (".PP", "") };
            writeln!(page, "{before}\n{}{after}", roff(lines))?;
        }
    }
    Ok(page)
}

/// Text without what troff would take for a request or an escape.
fn roff(text: &str) -> String {
    let lines: Vec<String> = text
        .lines()
        .map(|line| {
            let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq").replace('`', "\\(ga");
            if line.starts_with('.') { format!("\\&{line}") } else { line }
        })
        .collect();
    lines.join("\n")
}

fn print(bytes: &[u8]) -> Result<Exit, Failure> {
    let mut out = stdout().lock();
    let result: io::Result<()> = out.write_all(bytes).and_then(|()| out.flush());
    result?;
    Ok(Exit::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_their_examples_line_by_line() {
        let mut command = Cli::grouped();
        command.build();
        for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
            let page = String::from_utf8(page(command).unwrap()).unwrap();
            assert!(page.contains(".nf\n  ccsd "), "{}", command.get_name());
        }
    }

    #[test]
    fn values_come_before_options() {
        let script = "a\n  opts=\"-o --output html svg -h\"\n  opts=\"\"\nb";
        assert_eq!(values_first(script), "a\n  opts=\"html svg -o --output -h\"\n  opts=\"\"\nb\n");
    }

    #[test]
    fn troff_sees_only_text() {
        assert_eq!(roff(".x\\y\n'a'"), "\\&.x\\ey\n\\(aqa\\(aq");
    }
}
