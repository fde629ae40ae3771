//! `ccsd man`: manual pages, generated from the definition of the arguments.

use std::fs;
use std::io::{self, ErrorKind, IsTerminal, Write, stdout};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow};
use ccsd_daemon::destination;
use clap::{Arg, ArgAction};
use clap_mangen::Man;

use crate::args::{Cli, ManArgs};
use crate::exit::{Exit, Failure};

/// Date of the pages' last change. A build date would make builds of one version differ.
const DATE: &str = "2026-11-23";

pub fn man(args: &ManArgs) -> Result<Exit, Failure> {
    let mut root = Cli::grouped().disable_help_subcommand(true);
    root.build();
    if let Some(directory) = &args.output {
        return write_all(&root, directory);
    }
    let mut command = &root;
    for name in &args.command {
        let named = command.find_subcommand(name);
        command = named.ok_or_else(|| {
            let hint =
                if name.contains('/') { "; --output DIR writes all pages" } else { "; `ccsd --help` lists them" };
            Failure::bad_request(anyhow!("there is no command {:?}{hint}", args.command.join(" ")))
        })?;
    }
    show(command)
}

fn write_all(root: &clap::Command, directory: &Path) -> Result<Exit, Failure> {
    let written = fs::create_dir_all(directory).and_then(|()| {
        let below = root.get_subcommands().flat_map(clap::Command::get_subcommands);
        for command in std::iter::once(root).chain(root.get_subcommands()).chain(below) {
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

/// Shows a page with man(1) and the user's pager, if standard output is a terminal.
fn show(command: &clap::Command) -> Result<Exit, Failure> {
    let page = page(command)?;
    if !stdout().is_terminal() {
        return print(&page);
    }
    let mut reader = match Command::new("man").args(["-l", "-"]).stdin(Stdio::piped()).spawn() {
        Ok(reader) => reader,
        Err(error) if error.kind() == ErrorKind::NotFound => return print_help(command),
        Err(error) => return Err(Failure::at_run_time(anyhow!("cannot run man: {error}"))),
    };
    // The pipe is closed when the user leaves the pager early.
    let _ = reader.stdin.take().map(|mut input| input.write_all(&page));
    let status = reader.wait()?;
    // Some versions of man(1) do not read standard input.
    if status.success() { Ok(Exit::SUCCESS) } else { print_help(command) }
}

fn print_help(command: &clap::Command) -> Result<Exit, Failure> {
    print(command.clone().render_long_help().to_string().as_bytes())
}

/// Renders one page. clap_mangen omits option values in the synopsis and would reflow examples, so these are written
/// here.
fn page(command: &clap::Command) -> io::Result<Vec<u8>> {
    // clap_mangen omits an option's help if short help does not list the option.
    let command =
        &command.clone().mut_args(|argument| match argument.get_long_help().or(argument.get_help()).cloned() {
            Some(help) => argument.long_help(help),
            None => argument,
        });
    let man =
        Man::new(command.clone()).date(DATE).source(concat!("ccsd ", env!("CARGO_PKG_VERSION"))).manual("ccsd manual");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    writeln!(page, ".SH SYNOPSIS\n{}", synopsis(command))?;
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

/// The command with all its options and arguments, one per source line.
fn synopsis(command: &clap::Command) -> String {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let mut lines = vec![format!("\\fB{}\\fR", roff(name))];
    let options = command.get_arguments().filter(|it| !it.is_positional() && !it.is_hide_set());
    lines.extend(options.map(option));
    lines.extend(command.get_positionals().filter(|it| !it.is_hide_set()).map(positional));
    if command.has_subcommands() {
        let word = "\\fICOMMAND\\fR";
        lines.push(if command.is_subcommand_required_set() { word.to_owned() } else { format!("[{word}]") });
    }
    // Lines must not begin with a dot or an apostrophe, which would make them requests; none does.
    lines.join("\n")
}

fn option(argument: &Arg) -> String {
    let short = argument.get_short().map(|letter| format!("\\fB\\-{letter}\\fR"));
    let long = argument.get_long().map(|name| format!("\\fB\\-\\-{}\\fR", roff(name)));
    let names: Vec<String> = short.into_iter().chain(long).collect();
    let value = match argument.get_action() {
        ArgAction::Set | ArgAction::Append => format!(" {}", value(argument)),
        _ => String::new(),
    };
    let repeats = matches!(argument.get_action(), ArgAction::Append);
    format!("[{}{value}]{}", names.join("|"), if repeats { "..." } else { "" })
}

fn positional(argument: &Arg) -> String {
    let repeats = argument.get_num_args().is_some_and(|range| range.max_values() > 1);
    let text = format!("{}{}", value(argument), if repeats { "..." } else { "" });
    let text = if argument.is_trailing_var_arg_set() { format!("[\\fB\\-\\-\\fR] {text}") } else { text };
    if argument.is_required_set() { text } else { format!("[{text}]") }
}

fn value(argument: &Arg) -> String {
    let name = argument.get_value_names().and_then(<[_]>::first).map_or("VALUE", |name| name.as_str());
    format!("\\fI{}\\fR", roff(name))
}

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
    out.write_all(bytes).and_then(|()| out.flush())?;
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
            assert!(page.lines().any(|line| line.starts_with(".TH ") && line.contains(DATE)), "{page}");
        }
    }

    #[test]
    fn synopses_have_the_values_of_options() {
        let mut command = Cli::grouped();
        command.build();
        let record = synopsis(command.find_subcommand("record").unwrap());
        for part in [
            "\\fBccsd record\\fR\n",
            "[\\fB\\-F\\fR|\\fB\\-\\-frequency\\fR \\fIHZ\\fR]\n",
            "[\\fB\\-\\-no\\-output\\fR]\n",
            "\n[[\\fB\\-\\-\\fR] \\fIPROGRAM\\fR...]",
        ] {
            assert!(record.contains(part), "{part} is not in {record}");
        }
        let report = synopsis(command.find_subcommand("report").unwrap());
        assert!(report.contains("[\\fB\\-\\-hide\\fR \\fIPATTERN\\fR]...\n"), "{report}");
        assert!(report.ends_with("[\\fISOURCE\\fR]"), "{report}");
        let all = [synopsis(&command), record, report].join("\n");
        assert!(all.lines().all(|line| !line.starts_with(['.', '\''])), "{all}");
    }

    #[test]
    fn troff_sees_only_text() {
        assert_eq!(roff(".x\\y\n'a'"), "\\&.x\\ey\n\\(aqa\\(aq");
    }
}
