//! Arguments as they stand on the command line. What they mean is decided by the module of each command.

use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::style::ColorChoice;

pub mod annotate;
pub mod collect;
pub mod diff;
pub mod dump;
pub mod export;
pub mod open;
pub mod report;
pub mod service;
pub mod socket;
pub mod spelling;
pub mod stored;
pub mod symbolize;

use crate::values::DEFAULT_FILE;
use annotate::{ANNOTATE_EXAMPLES, AnnotateArgs};
use collect::{ATTACH_EXAMPLES, AttachArgs, RECORD_EXAMPLES, RecordArgs};
use diff::{DIFF_EXAMPLES, DiffArgs};
use dump::{DUMP_EXAMPLES, DumpArgs};
use export::{EXPORT_EXAMPLES, ExportArgs};
use open::{OPEN_EXAMPLES, OpenArgs};
use report::{REPORT_EXAMPLES, ReportArgs};
use service::{DAEMON_EXAMPLES, DaemonArgs, TOP_EXAMPLES, TopArgs};
use symbolize::{SYMBOLIZE_EXAMPLES, SymbolizeArgs};

/// A sampling profiler for Linux: where a native program spends its CPU time
///
/// ccsd samples the call stacks of native programs. It needs no rebuild, never stops the program to sample it, folds
/// recursion so that profiles stay small, and counts every sample that it loses.
#[derive(Debug, Parser)]
#[command(name = "ccsd", version, max_term_width = 80, after_long_help = EXAMPLES)]
pub struct Cli {
    /// When to use colour: auto, always or never [default: auto, on a terminal unless NO_COLOR is set]
    #[arg(
        long,
        value_name = "WHEN",
        global = true,
        default_value = "auto",
        hide_short_help = true,
        display_order = 998,
        hide_possible_values = true,
        hide_default_value = true
    )]
    pub color: ColorChoice,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The commands by what they are for, as `ccsd --help` lists them.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Collect", &["record", "attach", "dump"]),
    ("Look", &["report", "open", "top", "annotate", "diff", "export", "import", "symbolize"]),
    ("Service", &["daemon"]),
    ("Help", &["doctor", "completions", "man", "help"]),
];

impl Cli {
    /// The arguments of this process. Ends it where they are wrong, or ask for help.
    pub fn parse_grouped() -> Cli {
        let words = spelling::renewed(std::env::args_os().collect());
        Cli::from_arg_matches(&Cli::grouped().get_matches_from(words)).unwrap_or_else(|error| error.exit())
    }

    /// The definition, whose help lists commands by groups.
    pub fn grouped() -> clap::Command {
        let command = Cli::command();
        let groups: String = GROUPS.iter().map(|(title, names)| group_text(&command, title, names)).collect();
        command.help_template(format!(
            "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{}\n{{options}}{{after-help}}",
            heading("Options")
        ))
    }
}

/// A heading as clap prints them; on what is no terminal without its style.
fn heading(title: &str) -> String {
    format!("\x1b[1m\x1b[4m{title}:\x1b[0m")
}

fn group_text(command: &clap::Command, title: &str, names: &[&str]) -> String {
    let about = |name: &str| {
        let about = command.find_subcommand(name).and_then(clap::Command::get_about).map(ToString::to_string);
        // clap makes this one.
        about.unwrap_or_else(|| "Show the help of a command".to_owned())
    };
    let lines = names.iter().map(|name| format!("  \x1b[1m{name:<11}\x1b[0m  {}\n", about(name)));
    format!("{}\n{}\n", heading(title), lines.collect::<String>())
}

const EXAMPLES: &str = "\
Examples:
  ccsd record -- xz -k big.tar       run a program; see where its time goes
  ccsd attach redis-server           profile a process; Ctrl-C twice ends it
  ccsd dump redis-server             what each of its threads is doing now
  ccsd report --graph                callers and callees, from profile.ccsd
  ccsd open                          the same profile as a page in a browser
  ccsd doctor                        what can be sampled, and how to allow more

Exit status: that of the program for `record` (and the same signal, if one
killed it); else 0 if all went well, 1 if something failed on the way, 2 if the
request cannot be met (no such process, function or session, no profile), 3 if
something grew by more than `diff --fail-above` allows. 126: the program cannot
be executed. 127: it is not found.";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program and profile it
    ///
    /// Runs a program, samples its call stacks until it ends, writes a profile and prints a short report.
    ///
    /// The program keeps its input and output. ccsd prints to standard error and ends with the program's exit status. On a
    /// terminal, the first Ctrl-C prints the stacks of all threads; a second within two seconds goes to the program, too,
    /// and ends the collection. Elsewhere SIGINT, and everywhere SIGTERM, end the collection with file and report; ccsd then
    /// waits for the program until it ends or a second signal comes.
    #[command(after_long_help = RECORD_EXAMPLES, override_usage = "ccsd record [OPTIONS] [--] PROGRAM [ARGS]...")]
    Record(RecordArgs),
    /// Profile running processes
    ///
    /// Samples the call stacks of running processes until they end, --duration is over, or Ctrl-C is typed twice.
    ///
    /// All their threads are sampled and, without --no-inherit, all their descendants, existing and new. Sampling never
    /// stops them. On a terminal, the first Ctrl-C prints the stacks of all threads; blocked ones are stopped for a moment
    /// (see `ccsd dump --help`); a second within two seconds, or q and Enter, ends the collection.
    #[command(after_long_help = ATTACH_EXAMPLES)]
    Attach(AttachArgs),
    /// Show what every thread of a process is doing now
    ///
    /// Prints the stacks of all threads, running or asleep, once.
    ///
    /// Shows for each thread its name, its state, the kernel function it waits in, and its stack, innermost function first,
    /// with source lines and inlined functions where there is debug information. Each blocked thread is stopped for far less
    /// than a millisecond, and its system call goes on afterwards; running threads are sampled once and not stopped. A
    /// thread that must not be stopped (another program traces it, or its system call could not go on) is read as it is,
    /// and the dump says so. Job control is not disturbed. For processes that this user may not trace, ccsd asks a daemon.
    /// Threads with the same stack are shown together, and recursion in deep stacks is shown once, with its count.
    #[command(after_long_help = DUMP_EXAMPLES)]
    Dump(DumpArgs),
    /// Show a profile
    ///
    /// Shows where the time of a profile went.
    ///
    /// The default view is a sentence, the most expensive chain of calls, the program's own functions, then all others, and
    /// one line of accounting, more where something was lost. All other views begin with the accounting and the query, in
    /// lines that begin with `#`. Percentages are of the selected weight: everything, unless --focus, --ignore, --since or
    /// --until leave something out. They have 95% confidence intervals where there is room. On a terminal long tables are
    /// cut to --limit rows, with one row for the rest, and names to its width; files and pipes get everything.
    #[command(after_long_help = REPORT_EXAMPLES)]
    Report(ReportArgs),
    /// Open a profile in a browser
    ///
    /// Writes the page of `ccsd export html` into a file that only this user can read, and opens it with xdg-open, or with
    /// the program that BROWSER names. Over ssh and without a display it prints how to see the page elsewhere. Prints the name
    /// of the file, or with --serve the address.
    #[command(after_long_help = OPEN_EXAMPLES)]
    Open(OpenArgs),
    /// Convert a recording of `perf record`
    ///
    /// Reads perf.data, recorded with `--call-graph dwarf` (ccsd unwinds the stacks) or `-g` (the kernel has unwound them by
    /// frame pointers), or the text of `perf script`, and writes a profile. Programs and libraries are read from their old
    /// paths, if they have not changed.
    #[command(after_long_help = IMPORT_EXAMPLES)]
    Import(ImportArgs),
    /// Name functions of a profile from debug files found later
    ///
    /// A profile of a stripped program has functions such as IMAGE+0xADDRESS, and the build id of each image. The debug file
    /// of that build id gives them names, inlined functions and lines, on any machine. Functions that had a name when the
    /// profile was collected keep it, and get no lines: the profile has no addresses of them.
    ///
    /// Exit status 2 if functions lack names and none could be given; standard error says why, by image. A profile that was
    /// cut short stays marked as such.
    #[command(after_long_help = SYMBOLIZE_EXAMPLES)]
    Symbolize(SymbolizeArgs),
    /// Run or query the daemon: status, stop, save, watches, metrics
    ///
    /// `ccsd daemon` alone runs a daemon, like `ccsd daemon run`. `record` and `attach` use a daemon where they may;
    /// sessions of `attach --detach` go on without a client.
    #[command(after_long_help = DAEMON_EXAMPLES)]
    Daemon(DaemonArgs),
    /// Show what uses the CPU now, full-screen or (--plain) as lines
    ///
    /// Shows functions, the tree of calls, callers and callees, threads and a flame graph of a process, the machine, a
    /// session or a file, updated about once a second. The key ? lists all keys: filter, unfold, compare with an earlier
    /// moment, print the stacks of all threads, save.
    #[command(after_long_help = TOP_EXAMPLES)]
    Top(TopArgs),
    /// Compare two profiles
    ///
    /// Compares two profiles, several runs before with several after, or two times of a watch, function by function.
    ///
    /// Functions are matched by name and by the file name of their image, so two builds of a program can be compared. A
    /// row shows the change of a function's share of all samples; use --absolute (weights) where both runs did the same work.
    /// A ~ marks changes that chance may explain; of the others at most 5% on average are due to chance in sampling. Only
    /// several runs a side (--before, --after) show how much runs differ by themselves.
    ///
    /// Exit status 3 if something grew by more than --fail-above, and 2 if one of its profiles has no samples or cannot
    /// be read whole.
    #[command(after_long_help = DIFF_EXAMPLES)]
    Diff(DiffArgs),
    /// Show source code with the time of each line
    ///
    /// Shows the source of a function with the total time of each line, calls included, and its self time.
    ///
    /// The total of a line counts each sample in which the function was at this line once, so the lines of a recursive
    /// function may add up to more than the function.
    ///
    /// Source files are read from the paths in the debug information, or as --source-root and --substitute say. A missing
    /// file, or one that changed after the profile was taken, is reported.
    #[command(after_long_help = ANNOTATE_EXAMPLES)]
    Annotate(AnnotateArgs),
    /// Write a profile in another tool's format
    ///
    /// Writes a profile for pprof, KCachegrind, flame graphs, speedscope, Graphviz, gprof's readers, or as JSON or CSV.
    ///
    /// Totals, and the self and total time of every function, are those of `ccsd report` with the same options. (Where the
    /// longest stacks have no room, their middle is `[elided]`, and the files say how much that is.) Recursion is folded in the
    /// stacks, and the files say so.
    #[command(after_long_help = EXPORT_EXAMPLES)]
    Export(ExportArgs),
    /// Show what can be sampled here, and how to allow more
    ///
    /// Tries what this user can sample on this machine, and gives the commands that allow more.
    ///
    /// Exit status 1 if nothing can be sampled at all.
    #[command(after_long_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// Print a completion script for a shell
    ///
    /// Prints a completion script. Those for bash, zsh and fish also complete processes, sessions, watches, and the
    /// functions of a profile.
    #[command(after_long_help = COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
    /// Show the manual page of ccsd or of a command
    ///
    /// Shows ccsd(1), or the page of a command: with man(1) on a terminal, otherwise as troff source.
    #[command(after_long_help = MAN_EXAMPLES)]
    Man(ManArgs),
}

/// Arguments of `ccsd import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The file that `perf record` wrote, or the text that `perf script` printed; - for either from standard input
    ///
    /// A recording on standard input must be in the format of `perf record -o -`.
    #[arg(value_name = "FILE", default_value = "perf.data")]
    pub file: PathBuf,
    /// The profile file
    ///
    /// Replaces an older profile of this name, but no other file.
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_FILE)]
    pub output: PathBuf,
    /// The event to import, if several were recorded [default: the first that has samples]
    ///
    /// Without it, the events of a group become metrics of one profile (see `ccsd report --metric`); so do the
    /// events that the header of a text names. Of a text without header it is the first sample's.
    #[arg(short, long, value_name = "NAME")]
    pub event: Option<String>,
}

const IMPORT_EXAMPLES: &str = "\
Examples:
  ccsd import                              perf.data in this directory
  ccsd import old/perf.data -o old.ccsd && ccsd diff old.ccsd profile.ccsd
  perf record -g -o - ./prog | ccsd import -
  ccsd import -e cycles                    one of several events
  ccsd import && ccsd report --metric page-faults
                                           with -e '{cpu-clock,page-faults}:S'
  ccsd import script.txt                   text that perf printed like this:
  perf script --header --no-inline --max-stack 65535 \\
    -F comm,pid,tid,time,event,period,ip,sym,dso > script.txt";

/// Arguments of `ccsd doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const DOCTOR_EXAMPLES: &str = "\
Examples:
  ccsd doctor
  sudo ccsd doctor                         what root could do
  ccsd doctor --json | jq '.checks[] | select(.mark != \"ok\")'";

/// Arguments of `ccsd completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  ccsd completions bash > ~/.local/share/bash-completion/completions/ccsd
  ccsd completions zsh > ~/.zfunc/_ccsd
  ccsd completions fish > ~/.config/fish/completions/ccsd.fish";

/// Arguments of `ccsd man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// The command, as in `ccsd man record` or `ccsd man daemon status`
    #[arg(value_name = "COMMAND")]
    pub command: Vec<String>,
    /// Write the pages of ccsd and of all its commands into this directory
    #[arg(short, long, value_name = "DIR", conflicts_with = "command")]
    pub output: Option<PathBuf>,
}

const MAN_EXAMPLES: &str = "\
Examples:
  ccsd man
  ccsd man record
  ccsd man --output ~/.local/share/man/man1";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Frequency;
    use clap::ValueEnum;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_rate_has_the_name_that_it_has_in_a_configuration() {
        let frequency = |line: &str| match parse(line).unwrap().command {
            Command::Record(args) => args.collect.frequency,
            other => panic!("{other:?}"),
        };
        assert_eq!(frequency("ccsd record --rate 49 -- x"), Frequency::Hz(49));
        assert_eq!(frequency("ccsd record --frequency max -- x"), Frequency::Max);
    }

    #[test]
    fn every_command_is_in_one_group() {
        let mut command = Cli::grouped();
        command.build();
        let mut names: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        names.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(names, grouped);
    }

    #[test]
    fn every_help_fits_80_columns_and_has_examples() {
        fn check(command: &mut clap::Command, wide: &mut Vec<String>) {
            let name = command.get_name().to_owned();
            let long = command.render_long_help().to_string();
            assert!(long.contains("Examples:\n  ccsd "), "{name} has no example");
            let examples = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            for text in [examples, long, command.render_help().to_string()] {
                let lines = text.lines().filter(|line| line.chars().count() > 80);
                wide.extend(lines.map(|line| format!("{name}: {line}")));
            }
            command.get_subcommands_mut().filter(|it| it.get_name() != "help").for_each(|it| check(it, wide));
        }
        let mut command = Cli::grouped();
        command.build();
        let mut wide = Vec::new();
        check(&mut command, &mut wide);
        assert!(wide.is_empty(), "{}", wide.join("\n"));
    }

    #[test]
    fn top_begins_with_a_view() {
        use crate::args::report::View;
        for (words, view) in [("--tree", View::Tree), ("--view threads", View::Threads), ("--callers", View::Butterfly)]
        {
            let Command::Top(args) = parse(&format!("ccsd top {words} a")).unwrap().command else { panic!() };
            assert_eq!(args.view.view, Some(view), "{words}");
        }
    }

    #[test]
    fn a_daemon_runs_where_nothing_else_is_said() {
        for line in ["ccsd daemon", "ccsd daemon --grace 1s"] {
            let Command::Daemon(args) = parse(line).unwrap().command else { panic!() };
            assert!(args.command.is_none(), "{line}");
        }
        let Command::Daemon(args) = parse("ccsd daemon status --json").unwrap().command else { panic!() };
        assert!(matches!(args.command, Some(service::DaemonCommand::Status(_))));
    }

    #[test]
    fn arguments_after_the_program_are_the_program_s() {
        for line in ["ccsd record -F 99 -- ls -l --color", "ccsd record -F 99 ls -l --color"] {
            let Command::Record(args) = parse(line).unwrap().command else { panic!() };
            assert_eq!(args.program, ["ls", "-l", "--color"]);
            assert_eq!(args.collect.frequency, Frequency::Hz(99));
        }
    }

    #[test]
    fn every_view_has_a_flag() {
        use super::report::View;
        for view in View::value_variants() {
            for line in [format!("ccsd report --{}", view.name()), format!("ccsd report --view {}", view.name())] {
                let Command::Report(args) = parse(&line).unwrap().command else { panic!() };
                assert_eq!(args.view.view, Some(*view), "{line}");
            }
        }
        let Command::Report(args) = parse("ccsd report --callers").unwrap().command else { panic!() };
        assert_eq!(args.view.view, Some(View::Butterfly));
    }

    #[test]
    fn total_is_the_word_for_inherited() {
        use ccsd_profile::view::ViewColumn;
        for (line, sort, total) in [
            ("ccsd report --sort total", Some(ViewColumn::Inherited), false),
            ("ccsd report --sort inherited", Some(ViewColumn::Inherited), false),
            ("ccsd report --total", None, true),
            ("ccsd report --inherited", None, true),
        ] {
            let Command::Report(args) = parse(line).unwrap().command else { panic!() };
            assert_eq!((args.query.sort, args.inherited), (sort, total), "{line}");
        }
        assert!(parse("ccsd diff --total a b").is_ok() && parse("ccsd export csv --sort total").is_ok());
    }

    #[test]
    fn a_budget_is_in_percent() {
        for (text, percent) in [("1", 1.0), ("0.5%", 0.5), ("25", 25.0)] {
            let line = format!("ccsd record --overhead {text} -- ls");
            let Command::Record(args) = parse(&line).unwrap().command else { panic!() };
            assert_eq!(args.collect.overhead, Some(percent));
        }
    }

    #[test]
    fn a_value_that_is_none_is_answered_with_what_it_should_be() {
        for (line, message) in [
            ("ccsd record -F -5 -- ls", "a whole number of samples per second from 1 to"),
            ("ccsd report -n abc", "-n takes a number of rows"),
            ("ccsd report -n -1", "-n takes a number of rows"),
            ("ccsd diff -n x a b", "-n takes a number of rows"),
            ("ccsd top --plain -n x a", "-n takes a number of rows"),
            ("ccsd dump -n x 1", "not a number of lines"),
            ("ccsd annotate --context x f", "not a number of lines"),
            ("ccsd daemon stop session:x", "session: takes the number of a session"),
            ("ccsd daemon save watch:/ -o y", "watch: takes the name of a watch"),
            ("ccsd report pid:0", "not a process id"),
            ("ccsd report --since soon", "is no time"),
            ("ccsd report --until 10s", "is no time"),
            ("ccsd diff --against x a", "is no time"),
            ("ccsd diff --against ..x a", "is no time"),
            ("ccsd report --hide /(/", "expression"),
        ] {
            let error = parse(line).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(error.to_string().contains(message), "{line}: {error}");
        }
    }

    #[test]
    fn wrong_arguments_exit_with_2() {
        for line in [
            "ccsd",
            "ccsd record",
            "ccsd attach",
            "ccsd attach 0",
            "ccsd attach -1",
            "ccsd attach 99999999999",
            "ccsd record -e nonsense -- ls",
            "ccsd record --duration -1 -- ls",
            "ccsd record --kernel --user -- ls",
            "ccsd record --overhead 0 -- ls",
            "ccsd record --overhead -1 -- ls",
            "ccsd record --overhead 26 -- ls",
            "ccsd record --overhead nan -- ls",
            "ccsd record --overhead much -- ls",
            "ccsd record --overhead 1 -F 99 -- ls",
            "ccsd top --interval a",
            "ccsd top -n 3 a",
            "ccsd top --view stats a",
            "ccsd daemon --grace 1s status",
            "ccsd dump",
            "ccsd dump 0",
            "ccsd dump --json --full 1",
            "ccsd report --flat --graph",
            "ccsd report -n -1",
            "ccsd report --flat --view graph",
            "ccsd report --min 101",
            "ccsd report --min -1",
            "ccsd report --sort nonsense",
            "ccsd report --inherited --sort self",
            "ccsd report --total --sort self",
            "ccsd report --tree --hot",
            "ccsd report --tree --view hot",
            "ccsd report --watch x a.ccsd",
            "ccsd diff",
            "ccsd diff a b c",
            "ccsd diff --before a",
            "ccsd diff --after a",
            "ccsd diff --before a --after b -- c",
            "ccsd diff --fail-above x a b",
            "ccsd diff --fail-above 5 --svg x a b",
            "ccsd diff --watch x --against -1h a b",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
