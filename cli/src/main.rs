//! The command line of ccsd: `args` defines the arguments, each command's module executes one. The libraries compute
//! the numbers; this crate formats them.

mod annotate;
mod args;
mod blocks;
mod completion;
mod connection;
mod diff;
mod doctor;
mod dump;
mod duration;
mod exit;
mod export;
mod flame;
mod format;
mod functions;
mod import;
mod job;
mod leader;
mod locate;
mod machine;
mod manual;
mod message;
mod open;
mod output;
mod processes;
mod query;
mod recording;
mod report;
mod run;
mod service;
mod signals;
mod source;
mod status;
mod stored;
mod style;
mod suggest;
mod surroundings;
mod symbolize;
mod table;
mod times;
mod top;
mod values;

use args::service::DaemonCommand;
use args::{Cli, Command};
use exit::{Exit, Failure};
use message::warn;

/// Reports allocations, which limit what parsing may take.
#[global_allocator]
static ALLOCATOR: ccsd_worker::Allocator = ccsd_worker::Allocator;

fn main() {
    ccsd_collector::usage::begin();
    // Two internal commands. The worker must do nothing else before it has given up its rights.
    match std::env::args_os().nth(1) {
        Some(word) if word == service::worker::ARGUMENT => service::worker::serve().leave(),
        Some(word) if word == completion::ARGUMENT => {
            completion::complete(std::env::args_os().skip(2).collect()).leave()
        }
        _ => {}
    }
    signals::write_to_the_limit();
    let cli = Cli::parse_grouped();
    let exit = run(cli).unwrap_or_else(|failure| {
        warn(format_args!("{failure}"));
        Exit::Status(failure.status)
    });
    exit.leave();
}

fn run(cli: Cli) -> Result<Exit, Failure> {
    match cli.command {
        Command::Record(args) => run::record(args, cli.color),
        Command::Attach(args) => run::attach(args, cli.color),
        Command::Dump(args) => dump::run(&args, cli.color),
        Command::Report(args) => report::run(&args, cli.color),
        Command::Top(args) => top::run(&args, cli.color),
        Command::Daemon(args) => match args.command {
            None => service::daemon::run(args.run),
            Some(DaemonCommand::Run(args)) => service::daemon::run(args),
            Some(DaemonCommand::Status(args)) => service::status(&args, cli.color),
            Some(DaemonCommand::Stop(args)) => service::stop(&args),
            Some(DaemonCommand::Save(args)) => service::save(&args),
            Some(DaemonCommand::Watches(args)) => service::watches::list(&args, cli.color),
            Some(DaemonCommand::Metrics(args)) => service::metrics(&args),
        },
        Command::Diff(args) => diff::run(&args, cli.color),
        Command::Annotate(args) => annotate::run(&args, cli.color),
        Command::Import(args) => import::run(&args, cli.color),
        Command::Symbolize(args) => symbolize::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Open(args) => open::run(args),
        Command::Doctor(args) => doctor::run(&args, cli.color),
        Command::Completions(args) => completion::print_script(&args),
        Command::Man(args) => manual::man(&args),
    }
}
