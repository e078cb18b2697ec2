//! The doctor's findings, as text and as JSON.

use std::fmt::Write;

use cove_jail::probe::MachineProbe;
use serde::Serialize;

use crate::cli::tables::{PrintStyle, Tone};
use cove_core::error::{Failure, escape_control, one_line_chain};
use cove_core::image::library::SandboxKind;
use cove_core::keyword::keywords;

/// The fix for a forbidden action that succeeded.
pub(super) const HOLE_FIX: &str = "this is a hole in the sandbox; run no untrusted code here, and report it with what \
                               `cove doctor --json` prints";
/// The fix for an unexpected failure.
pub(super) const REPORT_FIX: &str = "try again; if it stays, report it with what `cove doctor --json` prints";

keywords!(
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    pub(super) ReportSection, "SECTION", "a section":
    Machine = "machine",
    Sandbox = "sandbox",
    Containers = "containers",
    Protections = "protections",
    Limits = "limits",
    Interpreters = "interpreters",
    Configuration = "configuration",
    Servers = "servers",
    Clients = "clients",
    Verdict = "verdict",
);

impl ReportSection {
    /// A check of this section that fails until it has a result.
    pub(super) fn check(self, name: &'static str) -> DoctorCheck {
        DoctorCheck { section: self, check: name, status: CheckStatus::Fail, detail: String::new(), fix: None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CheckStatus {
    /// Tried, with the expected result.
    Ok,
    /// Worth knowing, but no weaker than Cove promises.
    Note,
    Fail,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct DoctorCheck {
    pub(super) section: ReportSection,
    pub(super) check: &'static str,
    pub(super) status: CheckStatus,
    pub(super) detail: String,
    pub(super) fix: Option<String>,
}

impl DoctorCheck {
    pub(super) fn ok(self, detail: impl Into<String>) -> Self {
        Self { status: CheckStatus::Ok, detail: detail.into(), ..self }
    }

    pub(super) fn note(self, detail: impl Into<String>) -> Self {
        Self { status: CheckStatus::Note, detail: detail.into(), ..self }
    }

    pub(super) fn fail(self, detail: impl Into<String>) -> Self {
        Self { status: CheckStatus::Fail, detail: detail.into(), ..self }
    }

    pub(super) fn fail_with(self, error: &Failure) -> Self {
        let fix = error.hint.clone().unwrap_or_else(|| REPORT_FIX.into());
        self.fail(one_line_chain(error)).fix(fix)
    }

    pub(super) fn fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }
}

/// True if the sandbox works and every part of it was proven.
pub(super) fn is_sound(checks: &[DoctorCheck]) -> bool {
    let proven = |section| checks.iter().any(|check| check.section == section && check.status == CheckStatus::Ok);
    checks.iter().all(|check| check.status != CheckStatus::Fail)
        && [ReportSection::Sandbox, ReportSection::Protections, ReportSection::Limits].into_iter().all(proven)
}

/// Reports the level of isolation. Only the embedded sandbox uses Landlock, on machines that have it.
pub(super) fn verdict_check(checks: &[DoctorCheck], machine: &MachineProbe, by: SandboxKind) -> DoctorCheck {
    let check = ReportSection::Verdict.check("isolation");
    let has = |section, status| checks.iter().any(|c| c.section == section && c.status == status);
    let failures = checks.iter().filter(|check| check.status == CheckStatus::Fail).count();
    if has(ReportSection::Sandbox, CheckStatus::Fail) {
        return check.fail("none: no sandbox starts here, and no code is run without one");
    }
    if has(ReportSection::Protections, CheckStatus::Fail) {
        return check.fail("reduced: not every protection holds; run no untrusted code here");
    }
    if !has(ReportSection::Protections, CheckStatus::Ok) {
        return check.fail("not proven: the sandbox starts, but nothing could be tried in it");
    }
    let landlock = if by == SandboxKind::Embedded && machine.landlock.is_some() { ", Landlock" } else { "" };
    let tier = format!("full: namespaces, system call filter{landlock}; every protection was proven");
    match failures {
        0 => check.ok(tier),
        1 => check.fail(format!("{tier}, but 1 other check failed")),
        _ => check.fail(format!("{tier}, but {failures} other checks failed")),
    }
}

/// Renders one line per check under the name of its section, and below it, or below the last of several checks of one
/// name with the same fix, the line with the fix.
pub(super) fn render_text(checks: &[DoctorCheck], style: PrintStyle) -> String {
    let width = checks.iter().map(|check| check.check.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    let mut section = None;
    for (at, check) in checks.iter().enumerate() {
        if section != Some(check.section) {
            section = Some(check.section);
            let gap = if text.is_empty() { "" } else { "\n" };
            // Writing to a string does not fail.
            let _ = writeln!(text, "{gap}{}", style.paint(Tone::Heading, check.section.as_str()));
        }
        let (status, tone) = match check.status {
            CheckStatus::Ok => ("ok", Tone::Good),
            CheckStatus::Note => ("note", Tone::Warning),
            CheckStatus::Fail => ("FAIL", Tone::Bad),
        };
        let status = style.paint(tone, &format!("{status:4}"));
        let _ = writeln!(text, "  {status}  {:width$}  {}", check.check, escape_control(&check.detail));
        // One line for all that the same thing fixes.
        let is_repeated = checks.get(at + 1).is_some_and(|next| next.check == check.check && next.fix == check.fix);
        if let Some(fix) = check.fix.as_ref().filter(|_| !is_repeated) {
            let _ = writeln!(text, "        {} {}", style.paint(Tone::Name, "fix:"), escape_control(fix));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound_checks() -> Vec<DoctorCheck> {
        vec![
            ReportSection::Machine.check("kernel").ok("Linux"),
            ReportSection::Sandbox.check("start").ok("in 9 ms"),
            ReportSection::Protections.check("host file").ok("denied"),
            ReportSection::Limits.check("memory").ok("held"),
            ReportSection::Limits.check("level").note("watchdog").fix("be root"),
            ReportSection::Limits.check("gap").note("no locks").fix("be elsewhere"),
            ReportSection::Limits.check("gap").note("no files").fix("be elsewhere"),
            ReportSection::Interpreters.check("python").ok("3.11"),
        ]
    }

    #[test]
    fn untried_sections_are_not_sound() {
        assert!(is_sound(&sound_checks()));
        for section in [ReportSection::Sandbox, ReportSection::Protections, ReportSection::Limits] {
            let mut checks = sound_checks();
            checks.retain(|check| check.section != section);
            assert!(!is_sound(&checks), "{section:?}");
            checks.push(section.check("all").note("not tried"));
            assert!(!is_sound(&checks), "{section:?}");
        }
        for at in 0..sound_checks().len() {
            let mut checks = sound_checks();
            checks[at].status = CheckStatus::Fail;
            assert!(!is_sound(&checks), "{at}");
        }
    }

    #[test]
    fn verdict_names_the_isolation_tier() {
        let tier = |failing: Option<ReportSection>| {
            let mut checks = sound_checks();
            for check in checks.iter_mut().filter(|check| Some(check.section) == failing) {
                check.status = CheckStatus::Fail;
            }
            verdict_check(&checks, &MachineProbe::default(), SandboxKind::Embedded)
        };
        assert_eq!(tier(None).status, CheckStatus::Ok);
        for (failing, word) in [
            (ReportSection::Sandbox, "none: "),
            (ReportSection::Protections, "reduced: "),
            (ReportSection::Interpreters, "full: "),
        ] {
            let check = tier(Some(failing));
            assert_eq!(check.status, CheckStatus::Fail);
            assert!(check.detail.starts_with(word), "{check:?}");
        }
    }

    #[test]
    fn verdict_never_claims_landlock_for_containers() {
        let machine = MachineProbe { landlock: Some(6), ..MachineProbe::default() };
        for (by, has) in [(SandboxKind::Embedded, true), (SandboxKind::Container, false)] {
            let check = verdict_check(&sound_checks(), &machine, by);
            assert_eq!(check.detail.contains("Landlock"), has, "{check:?}");
        }
    }

    #[test]
    fn doctor_report_is_aligned() {
        let mut checks = sound_checks();
        checks[2] = ReportSection::Protections.check("host file").fail("was read\u{1b}[2J").fix("report it");
        insta::assert_snapshot!(render_text(&checks, PrintStyle::default()), @r"
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
          note  gap        no locks
          note  gap        no files
                fix: be elsewhere

        interpreters
          ok    python     3.11
        ");
    }
}
