//! Every language that cells can have: whether its interpreter is there, which one it is, and whether it really runs.

use cove_core::error::Failure;
use std::time::Duration;

use cove_protocol::Language;

use crate::config::{Config, SETTINGS, SettingOrigin};
use cove_core::backend::jail::Jail;
use cove_core::policy::SandboxRoot;
use cove_core::session::{CellEnd, Session};

use super::report::{DoctorCheck, ReportSection};
use super::trial_program::run_program;

/// An interpreter that has not printed its version by then hangs.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The code that prints a language's version, and the package that installs it.
struct VersionProbe {
    /// Empty for `sh`, which has no version to print.
    code: &'static str,
    package: &'static str,
}

fn version_probe(language: Language) -> VersionProbe {
    match language {
        Language::Python => VersionProbe { code: include_str!("version.py"), package: "python3" },
        Language::Node => VersionProbe { code: include_str!("version.js"), package: "nodejs" },
        Language::Bash => VersionProbe { code: include_str!("version.bash"), package: "bash" },
        Language::Sh => VersionProbe { code: "", package: "dash" },
    }
}

pub(super) async fn run_all(session: &Session, jail: &Jail, config: &Config) -> Vec<DoctorCheck> {
    let mut checks = Vec::new();
    for language in Language::ALL {
        if !session.languages().contains(&language) {
            checks.push(absent_check(language, config));
            continue;
        }
        let check = ReportSection::Interpreters.check(language.as_str());
        let tried = run_program(session, language, version_probe(language).code, Vec::new(), TIMEOUT).await;
        checks.push(match tried.end {
            CellEnd::Completed { .. } => {
                let location = describe_location(language, jail, config);
                check.ok(format!("{} {location}", tried.output.trim()).trim())
            }
            _ => check.fail(format!("does not run: {}", tried.describe_end())).fix(install_hint(language)),
        });
    }
    checks
}

/// Reports the interpreter that keeps a session from starting although sandboxes start.
pub(super) fn missing_check(error: &Failure, config: &Config) -> DoctorCheck {
    let check = ReportSection::Interpreters.check(Language::Python.as_str()).fail_with(error);
    if is_configured(config) { check } else { check.fix(install_or_name_hint()) }
}

/// Reports which interpreters exist, without a sandbox to run them in.
pub(super) fn found_checks(jail: &Jail, config: &Config) -> Vec<DoctorCheck> {
    let interpreters = match jail.interpreters(&config.policy) {
        Ok(interpreters) => interpreters,
        Err(error) => return vec![missing_check(&error, config)],
    };
    let check = |language: Language| {
        if interpreters.iter().all(|interpreter| interpreter.language != language) {
            return absent_check(language, config);
        }
        let place = describe_location(language, jail, config);
        ReportSection::Interpreters.check(language.as_str()).note(format!("found {place}; not run"))
    };
    Language::ALL.into_iter().map(check).collect()
}

/// Reports a missing interpreter. Without Python the doctor fails, because Python programs try the protections and
/// limits; other languages are optional.
fn absent_check(language: Language, config: &Config) -> DoctorCheck {
    let check = ReportSection::Interpreters.check(language.as_str());
    if language != Language::Python {
        check.note("not found; cells in it are refused").fix(install_hint(language))
    } else if is_configured(config) {
        check.fail("not found").fix("install `python3` in that tree, or name it with `--python`")
    } else {
        check.fail("not found on the search path").fix(install_or_name_hint())
    }
}

/// True if a setting names the Python. Then the setting is wrong, and installing another Python would not help.
fn is_configured(config: &Config) -> bool {
    config.policy.python.is_some() || config.policy.root != SandboxRoot::Host
}

/// Describes where the sandbox has the interpreter, and which setting chose it, if there is such a setting.
fn describe_location(language: Language, jail: &Jail, config: &Config) -> String {
    let interpreters = jail.interpreters(&config.policy).unwrap_or_default();
    let Some(interpreter) = interpreters.into_iter().find(|interpreter| interpreter.language == language) else {
        return String::new();
    };
    let how = match SETTINGS.iter().find(|setting| setting.key == language.as_str()) {
        None => String::new(),
        Some(setting) => match config.origin(setting) {
            SettingOrigin::Default => format!(" ({})", setting.kind.default_text()),
            origin => format!(" (by {origin})"),
        },
    };
    format!("at {}{how}", interpreter.program)
}

fn install_or_name_hint() -> String {
    format!("{}, or name one with `--python /path/to/python3`", install_hint(Language::Python))
}

fn install_hint(language: Language) -> String {
    let package = version_probe(language).package;
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    match package_command(&release) {
        Some(tool) => format!("`sudo {tool} {package}`"),
        None => format!("install `{package}` with this machine's packages"),
    }
}

/// The command that installs packages on this distribution: see os-release(5).
fn package_command(release: &str) -> Option<&'static str> {
    const TOOLS: &[(&[&str], &str)] = &[
        (&["debian", "ubuntu"], "apt install"),
        (&["fedora", "rhel", "centos"], "dnf install"),
        (&["alpine"], "apk add"),
        (&["arch"], "pacman -S"),
        (&["suse", "opensuse", "opensuse-leap", "opensuse-tumbleweed"], "zypper install"),
    ];
    let names = |key: &str| {
        let line = release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.unwrap_or_default().trim_matches('"').to_owned()
    };
    let names = format!("{} {}", names("ID"), names("ID_LIKE"));
    let mut names = names.split_whitespace();
    names.find_map(|name| TOOLS.iter().find(|(known, _)| known.contains(&name)).map(|(_, tool)| *tool))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_package_manager_of_the_distribution() {
        assert_eq!(package_command("NAME=\"Debian\"\nID=debian\n"), Some("apt install"));
        assert_eq!(package_command("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"), Some("apt install"));
        assert_eq!(package_command("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"), Some("dnf install"));
        assert_eq!(package_command("ID=alpine\n"), Some("apk add"));
        assert_eq!(package_command("ID=plan9\n"), None);
        assert_eq!(package_command(""), None);
    }

    #[test]
    fn every_language_has_a_version_probe() {
        for language in Language::ALL {
            let VersionProbe { code, package } = version_probe(language);
            assert!(!package.is_empty() && code.is_empty() == (language == Language::Sh), "{language}");
        }
    }
}
