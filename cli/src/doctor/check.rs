//! One check of `ccsd doctor`.

use serde::Serialize;

use crate::style::Tone;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckResult {
    Ok,
    Limited,
    No,
}

impl CheckResult {
    pub fn text(self) -> (&'static str, Tone) {
        match self {
            CheckResult::Ok => ("ok", Tone::Good),
            CheckResult::Limited => ("limited", Tone::Warning),
            CheckResult::No => ("no", Tone::Bad),
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct DoctorCheck {
    pub name: &'static str,
    pub mark: CheckResult,
    pub text: String,
    pub command: Option<String>,
}

impl DoctorCheck {
    pub fn ok(name: &'static str, text: impl Into<String>) -> DoctorCheck {
        DoctorCheck { name, mark: CheckResult::Ok, text: text.into(), command: None }
    }

    pub fn limited(name: &'static str, text: impl Into<String>) -> DoctorCheck {
        DoctorCheck { name, mark: CheckResult::Limited, text: text.into(), command: None }
    }

    pub fn no(name: &'static str, text: impl Into<String>) -> DoctorCheck {
        DoctorCheck { name, mark: CheckResult::No, text: text.into(), command: None }
    }

    pub fn command(self, command: impl Into<String>) -> DoctorCheck {
        DoctorCheck { command: Some(command.into()), ..self }
    }
}
