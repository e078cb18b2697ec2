//! A definition made ready to start: variables expanded, the program found, the environment put together. What is
//! missing is named, and then nothing is started.

mod arguments;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::definition::{Definition, Launch};
use super::guard::{Guard, is_secret};
use super::http::Target;
use super::settings::Settings;

/// Shorter values are too common in ordinary text to be taken out of it.
const MIN_SECRET: usize = 5;

/// Variables that every server gets, for programs do not run without; `XDG_…` besides.
const PASSED: &[&str] = &[
    "HOME",
    "LANG",
    "LC_ALL",
    "LOGNAME",
    "NODE_EXTRA_CA_CERTS",
    "PATH",
    "SHELL",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
];

#[derive(Clone)]
pub(super) enum Ready {
    Stdio(Program),
    Http(Target),
}

#[derive(Clone)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) env: BTreeMap<OsString, OsString>,
    pub(super) cwd: PathBuf,
}

/// Values that must not be repeated in any message, the longest first.
#[derive(Clone, Default)]
pub(super) struct Secrets {
    values: Vec<String>,
    /// Those that must not be in results either.
    pub(super) guard: Guard,
}

impl Secrets {
    fn of(values: impl IntoIterator<Item = String>, guard: Guard) -> Self {
        let mut values: Vec<String> = values.into_iter().filter(|value| value.len() >= MIN_SECRET).collect();
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        values.dedup();
        Self { values, guard }
    }

    pub(super) fn redact(&self, text: &str) -> String {
        self.values.iter().fold(text.to_owned(), |text, secret| {
            if text.contains(secret) { text.replace(secret, "[redacted]") } else { text }
        })
    }
}

/// What to start, or everything that is missing for it.
pub(super) fn ready(definition: &Definition, settings: &Settings) -> Result<(Ready, Secrets), Vec<String>> {
    let mut expansion = Expansion { settings, missing: Vec::new(), values: Vec::new(), guarded: Vec::new() };
    let ready = match &definition.launch {
        Launch::Http { url, headers, allow_http } => {
            let url = expansion.text(url);
            let headers: BTreeMap<String, String> = expansion.table(headers);
            if !expansion.missing.is_empty() {
                return Err(expansion.missing);
            }
            let target = Target::new(&url, &headers, *allow_http)?;
            expansion.guard_named(&headers);
            expansion.guarded.extend(target.secrets());
            expansion.values.extend(headers.into_values());
            Ready::Http(target)
        }
        Launch::Stdio { command, args, env, cwd } => {
            let command = expansion.text(command);
            let args: Vec<String> = args.iter().map(|arg| expansion.text(arg)).collect();
            let own = expansion.table(env);
            let cwd = cwd.as_ref().map(|cwd| expansion.text(cwd));
            expansion.guard_named(&own);
            expansion.guarded.extend(arguments::secrets(&args));
            expansion.values.extend(own.values().cloned());
            if expansion.missing.is_empty() {
                let program =
                    program(&command, args, own, cwd.as_deref(), settings).map_err(|need| vec![need])?;
                Ready::Stdio(program)
            } else {
                return Err(expansion.missing);
            }
        }
    };
    if expansion.missing.is_empty() {
        let Expansion { values, guarded, .. } = expansion;
        let all = values.into_iter().chain(guarded.iter().cloned());
        Ok((ready, Secrets::of(all, Guard::of(guarded.clone()))))
    } else {
        Err(expansion.missing)
    }
}

fn program(
    command: &str,
    args: Vec<String>,
    own: BTreeMap<String, String>,
    cwd: Option<&str>,
    settings: &Settings,
) -> Result<Program, String> {
    let cwd = cwd.map_or_else(|| settings.cwd.clone(), |cwd| settings.cwd.join(at_home(cwd, settings)));
    if !cwd.is_dir() {
        return Err(format!("directory {}", cwd.display()));
    }
    let mut env: BTreeMap<OsString, OsString> = settings
        .env
        .iter()
        .filter(|(name, _)| PASSED.contains(&name.as_str()) || name.starts_with("XDG_"))
        .map(|(name, value)| (name.into(), value.clone()))
        .collect();
    env.extend(own.into_iter().map(|(name, value)| (name.into(), value.into())));
    let search = env.get(OsStr::new("PATH")).cloned().unwrap_or_default();
    let path = find(command, &search, &cwd, settings).ok_or_else(|| format!("command {command}"))?;
    Ok(Program { path, args, env, cwd })
}

/// The program that a command means, as `execvp` would find it.
fn find(command: &str, search: &OsStr, cwd: &Path, settings: &Settings) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if command.contains('/') {
        return Some(cwd.join(at_home(command, settings))).filter(is_program);
    }
    std::env::split_paths(search).map(|folder| cwd.join(folder).join(command)).find(is_program)
}

/// `~/x` as shells mean it.
fn at_home(text: &str, settings: &Settings) -> PathBuf {
    match (text.strip_prefix("~/"), settings.env.get("HOME")) {
        (Some(rest), Some(home)) => Path::new(home).join(rest),
        _ => PathBuf::from(text),
    }
}

/// Whether a definition would start Cove again: its program is ours, or it is called `cove` and would serve.
pub(super) fn is_self(definition: &Definition, settings: &Settings) -> bool {
    let Launch::Stdio { command, args, .. } = &definition.launch else { return false };
    let named = Path::new(command).file_name() == Some(OsStr::new("cove"));
    let serves = args.is_empty() || args.iter().any(|arg| arg == "serve");
    if named && serves {
        return true;
    }
    let Ok((Ready::Stdio(program), _)) = ready(definition, settings) else { return false };
    let own = settings.executable.as_ref().and_then(|path| path.canonicalize().ok());
    own.is_some() && program.path.canonicalize().ok() == own
}

struct Expansion<'a> {
    settings: &'a Settings,
    missing: Vec<String>,
    /// What variables stood for.
    values: Vec<String>,
    /// What is secret for sure.
    guarded: Vec<String>,
}

impl Expansion<'_> {
    fn guard_named(&mut self, table: &BTreeMap<String, String>) {
        let secret = table.iter().filter(|(name, _)| is_secret(name));
        self.guarded.extend(secret.map(|(_, value)| value.clone()));
    }

    fn table(&mut self, table: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        table.iter().map(|(name, value)| (name.clone(), self.text(value))).collect()
    }

    /// `${VAR}` and `${VAR:-default}`; anything else stays as it is written. What is put in is not expanded again.
    fn text(&mut self, text: &str) -> String {
        let mut result = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            let after = &rest[at + 2..];
            let reference = after.find('}').map(|end| (&after[..end], &after[end + 1..]));
            let Some((inside, behind)) = reference.filter(|(inside, _)| is_reference(inside)) else {
                result.push_str(&rest[..at + 2]);
                rest = after;
                continue;
            };
            result.push_str(&rest[..at]);
            result.push_str(&self.value(inside));
            rest = behind;
        }
        result.push_str(rest);
        result
    }

    fn value(&mut self, inside: &str) -> String {
        let (name, default) = match inside.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inside, None),
        };
        // Other clients write `${env:VAR}`.
        let name = name.strip_prefix("env:").unwrap_or(name);
        // Cove's own settings are nobody else's business.
        let value = self.settings.env.get(name).filter(|_| !name.starts_with("COVE_"));
        let value = value.and_then(|value| value.to_str()).filter(|value| !value.is_empty());
        match (value, default) {
            (Some(value), _) => {
                let known = if is_secret(name) { &mut self.guarded } else { &mut self.values };
                known.push(value.to_owned());
                value.to_owned()
            }
            (None, Some(default)) => default.to_owned(),
            (None, None) => {
                if !self.missing.iter().any(|known| known == name) {
                    self.missing.push(name.to_owned());
                }
                String::new()
            }
        }
    }
}

fn is_reference(inside: &str) -> bool {
    let name = inside.split_once(":-").map_or(inside, |(name, _)| name);
    let name = name.strip_prefix("env:").or_else(|| name.strip_prefix("input:")).unwrap_or(name);
    // `${input:id}` asks a person; it names what is missing.
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}

#[cfg(test)]
mod tests;
