//! `ccsd doctor`: tries what this user may sample on this machine, and shows what would allow more.

mod check;
mod checks;

use std::fs;
use std::io::{Write, stdout};

use ccsd_collector::{EventChoice, Options, Scope, choose, system};
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::exit::{Exit, Failure};
use crate::format::counted;
use crate::style::{ColorChoice, TextLayout, Tone};
use crate::table::wrap;
use ccsd_profile::json::to_text;

use check::DoctorCheck;
use checks::user_name;

pub use checks::Capabilities;

#[derive(Debug, Serialize)]
struct Findings {
    ccsd_version: &'static str,
    host: String,
    kernel: String,
    cpus: usize,
    user: String,
    default_event: Option<String>,
    checks: Vec<DoctorCheck>,
}

pub fn run(args: &DoctorArgs, colour: ColorChoice) -> Result<Exit, Failure> {
    let findings = Findings {
        ccsd_version: env!("CARGO_PKG_VERSION"),
        host: system::host_name(),
        kernel: read_line("/proc/sys/kernel/osrelease"),
        cpus: system::online_cpus().len(),
        user: user_name(),
        default_event: default_event(),
        checks: checks::all(),
    };
    let text = if args.json {
        to_text(&findings).map_err(Failure::at_run_time)?
    } else {
        findings.text(TextLayout::of(&stdout(), colour))
    };
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())?;
    Ok(if findings.default_event.is_some() { Exit::SUCCESS } else { Exit::FAILURE })
}

impl Findings {
    fn text(&self, layout: TextLayout) -> String {
        const INDENT: usize = 27;
        let room = layout.width.map_or(usize::MAX, |width| width.saturating_sub(INDENT));
        let cpus = counted(self.cpus as u64, "CPU", "CPUs");
        let mut text = format!("{}: Linux {}, {cpus}, user {}\n\n", self.host, self.kernel, self.user);
        for check in &self.checks {
            let (mark, tone) = check.mark.text();
            for (i, line) in wrap(&check.text, room).iter().enumerate() {
                let (mark, name) = if i == 0 { (mark, check.name) } else { ("", "") };
                text.push_str(&layout.paint(tone, &format!("{mark:8}")));
                text.push_str(&layout.paint(Tone::Strong, &format!(" {name:17} ")));
                text.push_str(line);
                text.push('\n');
            }
            // Never wrapped, so that it can be copied.
            if let Some(command) = &check.command {
                text.push_str(&format!("{:INDENT$}{} {command}\n", "", layout.paint(Tone::Faint, "$")));
            }
        }
        text.push_str(&match &self.default_event {
            Some(event) => format!("\n`ccsd record` and `ccsd attach` will sample {event}.\n"),
            None => "\nNothing can be sampled here.\n".to_owned(),
        });
        text
    }
}

fn default_event() -> Option<String> {
    let choice = choose(EventChoice::Auto, Scope::Auto, Options::default().rate_hz, true).ok()?;
    let what = if choice.spec.kernel { "kernel and user code" } else { "user code only" };
    Some(format!("{}, {what}", choice.label()))
}

fn read_line(path: &str) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Findings {
        Findings {
            ccsd_version: "1",
            host: "vm".to_owned(),
            kernel: "6.18".to_owned(),
            cpus: 1,
            user: "root".to_owned(),
            default_event: None,
            checks: vec![
                DoctorCheck::ok("sampling", "works"),
                DoctorCheck::no("kernel stacks", "one two three four five six seven")
                    .command("sudo do something rather long"),
            ],
        }
    }

    #[test]
    fn text() {
        let text = findings().text(TextLayout { width: Some(45), colour: false });
        assert_eq!(
            text,
            "vm: Linux 6.18, 1 CPU, user root\n\n\
             ok       sampling          works\n\
             no       kernel stacks     one two three four\n                           five six seven\n\
             \x20                          $ sudo do something rather long\n\
             \nNothing can be sampled here.\n"
        );
    }

    #[test]
    fn marks_in_json() {
        let json = serde_json::to_value(findings()).unwrap();
        assert_eq!(json["checks"][1]["mark"], "no");
        assert_eq!(json["checks"][0]["command"], serde_json::Value::Null);
    }
}
