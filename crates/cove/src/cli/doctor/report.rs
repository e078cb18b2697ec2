//! What was found, as people read it and as programs do.

use std::fmt::Write;

use cove_jail::probe::Machine;
use serde::Serialize;

use crate::backend::StartError;
use crate::error::{Error, escaped};
use crate::image::shelf::By;

/// What to do about something that must never go through, but did.
pub(super) const HOLE: &str = "this is a hole in the sandbox; run no untrusted code here, and report it with what \
                               `cove doctor --json` prints";
/// What to do about something that nobody has foreseen.
pub(super) const REPORT: &str = "try again; if it stays, report it with what `cove doctor --json` prints";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Section {
    Machine,
    Sandbox,
    Containers,
    Protections,
    Limits,
    Interpreters,
    Verdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    /// Tried, and as it should be.
    Ok,
    /// Worth knowing; nothing is weaker for it than Cove promises.
    Note,
    Fail,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    pub(super) section: Section,
    pub(super) check: &'static str,
    pub(super) status: Status,
    pub(super) detail: String,
    pub(super) fix: Option<String>,
}

impl Check {
    pub(super) fn new(section: Section, check: &'static str) -> Self {
        Self { section, check, status: Status::Fail, detail: String::new(), fix: None }
    }

    pub(super) fn ok(self, detail: impl Into<String>) -> Self {
        Self { status: Status::Ok, detail: detail.into(), ..self }
    }

    pub(super) fn note(self, detail: impl Into<String>) -> Self {
        Self { status: Status::Note, detail: detail.into(), ..self }
    }

    pub(super) fn fail(self, detail: impl Into<String>) -> Self {
        Self { status: Status::Fail, detail: detail.into(), ..self }
    }

    pub(super) fn failed(self, error: &StartError) -> Self {
        let fix = error.hint.clone().unwrap_or_else(|| REPORT.into());
        self.fail(crate::error::in_one_line(error)).fix(fix)
    }

    pub(super) fn fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }
}

/// Whether the sandbox works and everything about it was proven.
pub(super) fn is_sound(checks: &[Check]) -> bool {
    let proven = |section| {
        let mut of = checks.iter().filter(|check| check.section == section).peekable();
        of.peek().is_some() && of.any(|check| check.status == Status::Ok)
    };
    checks.iter().all(|check| check.status != Status::Fail)
        && [Section::Sandbox, Section::Protections, Section::Limits].into_iter().all(proven)
}

/// The tier of isolation and what to make of it. Landlock is the embedded sandbox's, where the machine has it.
pub(super) fn verdict(checks: &[Check], machine: &Machine, by: By) -> Check {
    let check = Check::new(Section::Verdict, "isolation");
    let has = |section, status| checks.iter().any(|c| c.section == section && c.status == status);
    let failures = checks.iter().filter(|check| check.status == Status::Fail).count();
    if has(Section::Sandbox, Status::Fail) {
        return check.fail("none: no sandbox starts here, and no code is run without one");
    }
    if has(Section::Protections, Status::Fail) {
        return check.fail("reduced: not every protection holds; run no untrusted code here");
    }
    if !has(Section::Protections, Status::Ok) {
        return check.fail("not proven: the sandbox starts, but nothing could be tried in it");
    }
    let landlock = if by == By::Sandbox && machine.landlock.is_some() { ", Landlock" } else { "" };
    let tier = format!("full: namespaces, system call filter{landlock}; every protection was proven");
    match failures {
        0 => check.ok(tier),
        1 => check.fail(format!("{tier}, but 1 other check failed")),
        _ => check.fail(format!("{tier}, but {failures} other checks failed")),
    }
}

pub(super) fn json(checks: &[Check]) -> Result<String, Error> {
    let mut text = serde_json::to_string_pretty(checks)
        .map_err(|error| Error::internal("could not write the checks as JSON").because(error))?;
    text.push('\n');
    Ok(text)
}

/// A line for each check under the name of its section, and below a failure the line that fixes it.
pub(super) fn text(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.check.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    let mut section = None;
    for check in checks {
        if section != Some(check.section) {
            section = Some(check.section);
            let gap = if text.is_empty() { "" } else { "\n" };
            // Writing to a string does not fail.
            let _ = writeln!(text, "{gap}{}", name(check.section));
        }
        let status = match check.status {
            Status::Ok => "ok",
            Status::Note => "note",
            Status::Fail => "FAIL",
        };
        let _ = writeln!(text, "  {status:4}  {:width$}  {}", check.check, escaped(&check.detail));
        if let Some(fix) = &check.fix {
            let _ = writeln!(text, "        fix: {}", escaped(fix));
        }
    }
    text
}

fn name(section: Section) -> &'static str {
    match section {
        Section::Machine => "machine",
        Section::Sandbox => "sandbox",
        Section::Containers => "containers",
        Section::Protections => "protections",
        Section::Limits => "limits",
        Section::Interpreters => "interpreters",
        Section::Verdict => "verdict",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> Vec<Check> {
        vec![
            Check::new(Section::Machine, "kernel").ok("Linux"),
            Check::new(Section::Sandbox, "start").ok("in 9 ms"),
            Check::new(Section::Protections, "host file").ok("denied"),
            Check::new(Section::Limits, "memory").ok("held"),
            Check::new(Section::Limits, "level").note("watchdog").fix("be root"),
            Check::new(Section::Interpreters, "python").ok("3.11"),
        ]
    }

    #[test]
    fn only_what_was_tried_is_sound() {
        assert!(is_sound(&sound()));
        for section in [Section::Sandbox, Section::Protections, Section::Limits] {
            let mut checks = sound();
            checks.retain(|check| check.section != section);
            assert!(!is_sound(&checks), "{section:?}");
            checks.push(Check::new(section, "all").note("not tried"));
            assert!(!is_sound(&checks), "{section:?}");
        }
        for at in 0..sound().len() {
            let mut checks = sound();
            checks[at].status = Status::Fail;
            assert!(!is_sound(&checks), "{at}");
        }
    }

    #[test]
    fn tiers() {
        let tier = |failing: Option<Section>| {
            let mut checks = sound();
            for check in checks.iter_mut().filter(|check| Some(check.section) == failing) {
                check.status = Status::Fail;
            }
            verdict(&checks, &Machine::default(), By::Sandbox)
        };
        assert_eq!(tier(None).status, Status::Ok);
        for (failing, word) in [
            (Section::Sandbox, "none: "),
            (Section::Protections, "reduced: "),
            (Section::Interpreters, "full: "),
        ] {
            let check = tier(Some(failing));
            assert_eq!(check.status, Status::Fail);
            assert!(check.detail.starts_with(word), "{check:?}");
        }
    }

    #[test]
    fn landlock_is_not_claimed_of_containers() {
        let machine = Machine { landlock: Some(6), ..Machine::default() };
        for (by, has) in [(By::Sandbox, true), (By::Container, false)] {
            let check = verdict(&sound(), &machine, by);
            assert_eq!(check.detail.contains("Landlock"), has, "{check:?}");
        }
    }

    #[test]
    fn text_is_aligned() {
        let mut checks = sound();
        checks[2] = Check::new(Section::Protections, "host file").fail("was read\u{1b}[2J").fix("report it");
        insta::assert_snapshot!(text(&checks), @r"
        machine
          ok    kernel     Linux

        sandbox
          ok    start      in 9 ms

        protections
          FAIL  host file  was read\u{1b}[2J
                fix: report it

        limits
          ok    memory     held
          note  level      watchdog
                fix: be root

        interpreters
          ok    python     3.11
        ");
    }
}
