//! Resolves a definition before a start: expands variables, finds the program, builds the environment. If anything is
//! missing, names all of it and starts nothing.

mod argument_secrets;
mod proxy_secrets;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::http::HttpTarget;
use super::redaction::{ServerSecrets, is_secret_name};
use super::settings::UpstreamSettings;
use crate::definition::{DefinitionPlaces, ServerDefinition, ServerDefinitions, ServerLaunch};
use cove_core::search_path::is_executable;

/// Variables that every server inherits, because programs need them. Variables that begin with `XDG_` are added.
const INHERITED_VARIABLES: &[&str] = &[
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

/// Variables that name the proxy to use, in both cases. Every server inherits them: without them `npx` and `uvx` cannot
/// download behind a proxy.
const PROXY_VARIABLES: &[&str] = &["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"];

fn is_inherited(name: &str) -> bool {
    INHERITED_VARIABLES.contains(&name) || name.starts_with("XDG_") || is_proxy_variable(name)
}

fn is_proxy_variable(name: &str) -> bool {
    PROXY_VARIABLES.iter().any(|known| name == *known || name == known.to_ascii_lowercase())
}

#[derive(Clone)]
pub(super) enum ResolvedLaunch {
    Stdio(ServerCommand),
    Http(HttpTarget),
}

#[derive(Clone)]
pub(super) struct ServerCommand {
    pub(super) path: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) env: BTreeMap<OsString, OsString>,
    pub(super) cwd: PathBuf,
}

/// Returns what to start and its secrets. Fails with everything that is missing.
pub(super) fn resolve(
    definition: &ServerDefinition,
    settings: &UpstreamSettings,
) -> Result<(ResolvedLaunch, ServerSecrets), Vec<String>> {
    let mut expansion = VariableExpansion::new(settings);
    let launch = match &definition.launch {
        ServerLaunch::Http { url, headers, allow_http } => {
            let url = expansion.expand(url);
            let headers = expansion.expand_table(headers);
            expansion.check_missing()?;
            let target = HttpTarget::new(&url, &headers, *allow_http)?;
            expansion.secret_values.extend(target.secrets());
            ResolvedLaunch::Http(target)
        }
        ServerLaunch::Stdio { command, args, env, cwd } => {
            let command = expansion.expand(command);
            let args: Vec<String> = args.iter().map(|arg| expansion.expand(arg)).collect();
            let env = expansion.expand_table(env);
            let cwd = cwd.as_ref().map(|cwd| expansion.expand(cwd));
            expansion.secret_values.extend(argument_secrets::find_argument_secrets(&args));
            expansion.check_missing()?;
            let program = resolve_command(&command, args, env, cwd.as_deref(), settings);
            ResolvedLaunch::Stdio(program.map_err(|need| vec![need])?)
        }
    };
    let inherited = settings.env.iter().map(|(name, value)| (name.as_str(), value.to_string_lossy()));
    let own = match &launch {
        ResolvedLaunch::Stdio(program) => Some(&program.env),
        ResolvedLaunch::Http(_) => None,
    };
    let own = own.into_iter().flatten().filter_map(|(name, value)| Some((name.to_str()?, value.to_string_lossy())));
    let proxies = inherited.chain(own).filter(|(name, _)| is_proxy_variable(name));
    expansion.secret_values.extend(proxies.flat_map(|(_, value)| proxy_secrets::find_proxy_secrets(&value)));
    Ok((launch, ServerSecrets::new(expansion.values, expansion.secret_values)))
}

fn resolve_command(
    command: &str,
    args: Vec<String>,
    own: BTreeMap<String, String>,
    cwd: Option<&str>,
    settings: &UpstreamSettings,
) -> Result<ServerCommand, String> {
    let cwd = cwd.map_or_else(|| settings.cwd.clone(), |cwd| settings.cwd.join(expand_home(cwd, settings)));
    if !cwd.is_dir() {
        return Err(format!("directory {}", cwd.display()));
    }
    let mut env: BTreeMap<OsString, OsString> = settings
        .env
        .iter()
        .filter(|(name, _)| is_inherited(name))
        .map(|(name, value)| (name.into(), value.clone()))
        .collect();
    env.extend(own.into_iter().map(|(name, value)| (name.into(), value.into())));
    let search = env.get(OsStr::new("PATH")).cloned().unwrap_or_default();
    let path = find_program(command, &search, &cwd, settings).ok_or_else(|| format!("command {command}"))?;
    Ok(ServerCommand { path, args, env, cwd })
}

/// Finds the program of a command the way `execvp` does. Returns `None` if there is no executable file.
fn find_program(command: &str, search: &OsStr, cwd: &Path, settings: &UpstreamSettings) -> Option<PathBuf> {
    if command.contains('/') {
        return Some(cwd.join(expand_home(command, settings))).filter(|path| is_executable(path));
    }
    std::env::split_paths(search).map(|folder| cwd.join(folder).join(command)).find(|path| is_executable(path))
}

/// Expands `~/` to the home directory, as shells do.
fn expand_home(text: &str, settings: &UpstreamSettings) -> PathBuf {
    match (text.strip_prefix("~/"), settings.env.get("HOME")) {
        (Some(rest), Some(home)) => Path::new(home).join(rest),
        _ => PathBuf::from(text),
    }
}

impl ServerDefinitions {
    /// Reads every place, without the entries that would start Cove itself. Never fails: what cannot be read becomes
    /// a problem.
    pub fn load(places: &DefinitionPlaces, settings: &UpstreamSettings) -> Self {
        Self::read_places(places, |server| starts_cove(server, settings))
    }
}

/// Returns true if a definition would start Cove itself: its program is this executable, or is called `cove` and
/// would serve.
fn starts_cove(definition: &ServerDefinition, settings: &UpstreamSettings) -> bool {
    let ServerLaunch::Stdio { command, args, .. } = &definition.launch else { return false };
    let named = Path::new(command).file_name() == Some(OsStr::new("cove"));
    let serves = args.is_empty() || args.iter().any(|arg| arg == "serve");
    if named && serves {
        return true;
    }
    let Ok((ResolvedLaunch::Stdio(program), _)) = resolve(definition, settings) else { return false };
    let own = settings.executable.as_ref().and_then(|path| path.canonicalize().ok());
    own.is_some() && program.path.canonicalize().ok() == own
}

struct VariableExpansion<'a> {
    settings: &'a UpstreamSettings,
    missing: Vec<String>,
    /// Values of expanded variables.
    values: Vec<String>,
    /// Values that are secret by the name of their variable or header.
    secret_values: Vec<String>,
}

impl<'a> VariableExpansion<'a> {
    fn new(settings: &'a UpstreamSettings) -> Self {
        Self { settings, missing: Vec::new(), values: Vec::new(), secret_values: Vec::new() }
    }

    /// Fails with the names of variables that are not set.
    fn check_missing(&mut self) -> Result<(), Vec<String>> {
        if self.missing.is_empty() { Ok(()) } else { Err(std::mem::take(&mut self.missing)) }
    }

    /// Expands the values of a table, which are secret if their names say so.
    fn expand_table(&mut self, table: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut expanded = BTreeMap::new();
        for (name, value) in table {
            let value = self.expand(value);
            let known = if is_secret_name(name) { &mut self.secret_values } else { &mut self.values };
            known.push(value.clone());
            expanded.insert(name.clone(), value);
        }
        expanded
    }

    /// Expands `${VAR}` and `${VAR:-default}`, and leaves any other text as it is. The inserted values are not
    /// expanded again.
    fn expand(&mut self, text: &str) -> String {
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
            result.push_str(&self.expand_reference(inside));
            rest = behind;
        }
        result.push_str(rest);
        result
    }

    fn expand_reference(&mut self, inside: &str) -> String {
        let (name, default) = inside.split_once(":-").map_or((inside, None), |(name, default)| (name, Some(default)));
        // Other clients write `${env:VAR}`.
        let name = name.strip_prefix("env:").unwrap_or(name);
        // Servers do not get Cove's own settings.
        let value = self.settings.env.get(name).filter(|_| !name.starts_with("COVE_"));
        let value = value.and_then(|value| value.to_str()).filter(|value| !value.is_empty());
        match (value, default) {
            (Some(value), _) => {
                let known = if is_secret_name(name) { &mut self.secret_values } else { &mut self.values };
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
    // `${input:id}` asks a person for input. It is reported as missing.
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}

#[cfg(test)]
mod tests;
