//! Every language that cells can have: whether its interpreter is there, which one it is, and whether it really runs.

use std::time::Duration;

use cove_protocol::Language;

use crate::backend::StartError;
use crate::backend::jail::Jail;
use crate::config::{Config, Origin, SETTINGS};
use crate::policy::Root;
use crate::session::CellEnd;

use super::report::{Check, Section};
use super::trial::Trial;

/// An interpreter that has not said its version by then is not going to.
const TIMEOUT: Duration = Duration::from_secs(20);

/// What a language is asked, and how it is installed. Looked up by name: a language that is not here is run all the
/// same, with nothing to say.
struct Known {
    name: &'static str,
    /// Prints its version.
    code: &'static str,
    package: &'static str,
}

const KNOWN: &[Known] = &[
    Known { name: "python", code: include_str!("version.py"), package: "python3" },
    Known { name: "node", code: include_str!("version.js"), package: "nodejs" },
    Known { name: "bash", code: include_str!("version.bash"), package: "bash" },
    // It has no version to tell of.
    Known { name: "sh", code: "", package: "dash" },
];

pub(super) async fn run_all(session: &Trial, jail: &Jail, config: &Config) -> Vec<Check> {
    let mut checks = Vec::new();
    for language in Language::ALL {
        if !session.has(language) {
            checks.push(absent(language, config));
            continue;
        }
        let check = Check::new(Section::Interpreters, language.as_str());
        let code = known(language).map_or("", |known| known.code);
        let tried = session.run(language, code, Vec::new(), TIMEOUT).await;
        checks.push(match tried.end {
            CellEnd::Completed { .. } => {
                let words = [tried.output.trim().to_owned(), place(language, jail, config)];
                check.ok(words.iter().filter(|word| !word.is_empty()).cloned().collect::<Vec<_>>().join(" "))
            }
            _ => check.fail(format!("does not run: {}", tried.instead())).fix(install(language)),
        });
    }
    checks
}

/// When no session starts although sandboxes do: what it should have begun with is at fault.
pub(super) fn missing(error: &StartError, config: &Config) -> Check {
    let check = Check::new(Section::Interpreters, Language::Python.as_str()).failed(error);
    if is_chosen(config) { check } else { check.fix(install_or_name()) }
}

/// Without a sandbox to run them in: only whether they are there.
pub(super) fn found(jail: &Jail, config: &Config) -> Vec<Check> {
    let found = match jail.interpreters(&config.policy) {
        Ok(found) => found,
        Err(error) => return vec![missing(&error, config)],
    };
    let check = |language: Language| {
        if found.iter().all(|interpreter| interpreter.language != language) {
            return absent(language, config);
        }
        let place = place(language, jail, config);
        Check::new(Section::Interpreters, language.as_str()).note(format!("found {place}; not run"))
    };
    Language::ALL.into_iter().map(check).collect()
}

/// Python is what protections and limits are tried with, so a doctor without it has failed. The others may be missing.
fn absent(language: Language, config: &Config) -> Check {
    let check = Check::new(Section::Interpreters, language.as_str());
    if language != Language::Python {
        check.note("not found; cells in it are refused").fix(install(language))
    } else if is_chosen(config) {
        check.fail("not found").fix("install `python3` in that tree, or name it with `--python`")
    } else {
        check.fail("not found on the search path").fix(install_or_name())
    }
}

/// Whether a setting says where python is: then that setting is wrong, and installing another would not help.
fn is_chosen(config: &Config) -> bool {
    config.policy.python.is_some() || config.policy.root != Root::Host
}

fn known(language: Language) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.name == language.as_str())
}

/// Where the sandbox has it, and which setting chose it, if one can.
fn place(language: Language, jail: &Jail, config: &Config) -> String {
    let found = jail.interpreters(&config.policy).unwrap_or_default();
    let Some(interpreter) = found.into_iter().find(|interpreter| interpreter.language == language) else {
        return String::new();
    };
    let how = match SETTINGS.iter().find(|setting| setting.key == language.as_str()) {
        None => String::new(),
        Some(setting) => match config.origin(setting) {
            Origin::Default => format!(" ({})", setting.fallback.text()),
            origin => format!(" (by {origin})"),
        },
    };
    format!("at {}{how}", interpreter.program)
}

fn install_or_name() -> String {
    format!("{}, or name one with `--python /path/to/python3`", install(Language::Python))
}

fn install(language: Language) -> String {
    let package = known(language).map_or(language.as_str(), |known| known.package);
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    match tool(&release) {
        Some(tool) => format!("`sudo {tool} {package}`"),
        None => format!("install `{package}` with this machine's packages"),
    }
}

/// What installs packages here: see os-release(5).
fn tool(release: &str) -> Option<&'static str> {
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
    fn packages_are_installed_as_the_machine_does_it() {
        assert_eq!(tool("NAME=\"Debian\"\nID=debian\n"), Some("apt install"));
        assert_eq!(tool("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"), Some("apt install"));
        assert_eq!(tool("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"), Some("dnf install"));
        assert_eq!(tool("ID=alpine\n"), Some("apk add"));
        assert_eq!(tool("ID=plan9\n"), None);
        assert_eq!(tool(""), None);
    }

    #[test]
    fn every_language_is_known() {
        let unknown: Vec<Language> =
            Language::ALL.into_iter().filter(|language| known(*language).is_none()).collect();
        assert_eq!(unknown, []);
    }
}
