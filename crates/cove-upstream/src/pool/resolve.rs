//! Resolves a definition before a start: expands references, finds the program, builds the environment. If anything is
//! missing, names all of it and starts nothing.

mod argument_secrets;
mod fetched_values;
mod proxy_secrets;
mod value_files;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::http::HttpTarget;
use super::redaction::ServerSecrets;
use super::settings::UpstreamSettings;
use crate::definition::references::{TextPart, ValueReference, split_references};
use crate::definition::{
    DefinitionOwner, DefinitionPlaces, OAuthSettings, ServerDefinition, ServerDefinitions, ServerLaunch,
};
use crate::secrets::{is_secret_name, looks_secret};
use cove_core::error::display_value;
use cove_core::own_package::args_of_package;
use cove_core::search_path::{is_executable, programs};

pub(super) use fetched_values::{FetchedValues, HeadersCommand, ValueSource};

use value_files::{FileText, parse_env_file, read_value_file};

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
    Http(Box<HttpTarget>),
}

#[derive(Clone)]
pub(super) struct ServerCommand {
    pub(super) path: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) env: BTreeMap<OsString, OsString>,
    pub(super) cwd: PathBuf,
}

/// A definition that is ready to be started.
pub(super) struct ResolvedServer {
    pub(super) launch: ResolvedLaunch,
    pub(super) secrets: ServerSecrets,
    /// What the person should know about how secrets are passed.
    pub(super) remarks: Vec<String>,
}

/// Resolves a definition without running a program for it. Fails with everything that is missing.
pub(super) fn check(definition: &ServerDefinition, settings: &UpstreamSettings) -> Result<ResolvedServer, Vec<String>> {
    resolve(definition, settings, &ValueSource::Unfetched)
}

/// Returns what to start and its secrets. Fails with everything that is missing.
pub(super) fn resolve(
    definition: &ServerDefinition,
    settings: &UpstreamSettings,
    source: &ValueSource,
) -> Result<ResolvedServer, Vec<String>> {
    let mut expansion = ReferenceExpansion::new(settings, definition.owner, source);
    let launch = match &definition.launch {
        ServerLaunch::Http { url, transport, headers, headers_cmd, allow_http, oauth } => {
            let url = expansion.expand(url);
            let mut headers = expansion.expand_table(headers);
            headers.extend(headers_cmd.iter().flat_map(|command| expansion.command_headers(command)));
            let oauth = oauth.as_ref().map(|oauth| expansion.expand_oauth(oauth)).unwrap_or_default();
            expansion.check_missing()?;
            let command = headers_cmd.as_ref().map(|command| HeadersCommand::new(command, definition.owner, settings));
            let headers_command = command.transpose().map_err(|need| vec![need])?;
            let target = HttpTarget::new(&url, &headers, *allow_http).map_err(|needs| expansion.hide_secrets(needs))?;
            let target = HttpTarget { transport: *transport, headers_command, oauth: Box::new(oauth), ..target };
            expansion.secret_values.extend(target.secrets());
            ResolvedLaunch::Http(Box::new(target))
        }
        ServerLaunch::Stdio { command, args, env, env_file, cwd } => {
            let command = expansion.expand(command);
            let guarded = expansion.secret_values.len();
            let args: Vec<String> = args.iter().map(|arg| expansion.expand(arg)).collect();
            if expansion.secret_values.len() > guarded {
                expansion
                    .remarks
                    .push("a secret in `args` is visible in the list of processes: put it into `env`".into());
            }
            let mut variables = match env_file {
                Some(path) => expansion.read_env_file(path),
                None => BTreeMap::new(),
            };
            variables.extend(expansion.expand_table(env));
            let cwd = cwd.as_ref().map(|cwd| expansion.expand(cwd));
            expansion.secret_values.extend(argument_secrets::find_argument_secrets(&args));
            expansion.check_missing()?;
            let program = resolve_command(&command, args, variables, cwd.as_deref(), settings);
            ResolvedLaunch::Stdio(program.map_err(|need| expansion.hide_secrets(vec![need]))?)
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
    let ReferenceExpansion { values, secret_values, remarks, .. } = expansion;
    Ok(ResolvedServer { launch, secrets: ServerSecrets::new(values, secret_values), remarks })
}

/// Returns a text of the person's own configuration with the values of its references. Fails with what is missing.
pub(super) fn expand_text(text: &str, settings: &UpstreamSettings, source: &ValueSource) -> Result<String, String> {
    let mut expansion = ReferenceExpansion::new(settings, DefinitionOwner::Person, source);
    let expanded = expansion.expand(text);
    expansion.check_missing().map_err(|missing| missing.join(", "))?;
    Ok(expanded)
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

/// Finds the program of a command on the search path, or by its own path. Folders of the search path that are not
/// absolute are skipped, so that no file of a project runs because of its name. Returns `None` if there is no executable
/// file.
fn find_program(command: &str, search: &OsStr, cwd: &Path, settings: &UpstreamSettings) -> Option<PathBuf> {
    if command.contains('/') {
        return Some(cwd.join(expand_home(command, settings))).filter(|path| is_executable(path));
    }
    programs(command, search).next()
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
/// would serve, or comes from Cove's package and would serve.
fn starts_cove(definition: &ServerDefinition, settings: &UpstreamSettings) -> bool {
    let ServerLaunch::Stdio { command, args, .. } = &definition.launch else { return false };
    let named = Path::new(command).file_name() == Some(OsStr::new("cove"));
    let serves = |args: &[String]| args.is_empty() || args.iter().any(|arg| arg == "serve");
    if named && serves(args) || args_of_package(command, args).is_some_and(serves) {
        return true;
    }
    let Ok(ResolvedServer { launch: ResolvedLaunch::Stdio(program), .. }) = check(definition, settings) else {
        return false;
    };
    let own = settings.executable.as_ref().and_then(|path| path.canonicalize().ok());
    own.is_some() && program.path.canonicalize().ok() == own
}

/// Puts the values of references into the texts of one definition.
struct ReferenceExpansion<'a> {
    settings: &'a UpstreamSettings,
    owner: DefinitionOwner,
    source: &'a ValueSource,
    missing: Vec<String>,
    /// Values of expanded variables.
    values: Vec<String>,
    /// Values that are secret by where they come from, by the name of their variable or header, or by how they look.
    secret_values: Vec<String>,
    remarks: Vec<String>,
}

impl<'a> ReferenceExpansion<'a> {
    fn new(settings: &'a UpstreamSettings, owner: DefinitionOwner, source: &'a ValueSource) -> Self {
        let (missing, values, secret_values, remarks) = Default::default();
        Self { settings, owner, source, missing, values, secret_values, remarks }
    }

    /// Fails with everything that is missing.
    fn check_missing(&mut self) -> Result<(), Vec<String>> {
        if self.missing.is_empty() { Ok(()) } else { Err(std::mem::take(&mut self.missing)) }
    }

    /// Removes the secrets that are part of a command or an address from what is missing.
    fn hide_secrets(&self, needs: Vec<String>) -> Vec<String> {
        let secrets = ServerSecrets::new(Vec::new(), self.secret_values.clone());
        needs.iter().map(|need| secrets.redact(need)).collect()
    }

    /// Returns a value, or notes what is missing.
    fn require<T: Default>(&mut self, value: Result<T, String>) -> T {
        value.unwrap_or_else(|need| {
            if !self.missing.contains(&need) {
                self.missing.push(need);
            }
            T::default()
        })
    }

    /// Keeps a value out of messages, and out of results too if it is likely a secret.
    fn guard(&mut self, name: &str, value: &str) {
        let is_secret = is_secret_name(name) || looks_secret(value);
        let known = if is_secret { &mut self.secret_values } else { &mut self.values };
        known.push(value.to_owned());
        self.secret_values.extend(argument_secrets::find_url_secrets(value));
    }

    /// Expands the values of a table, which are secret if their names say so.
    fn expand_table(&mut self, table: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut expanded = BTreeMap::new();
        for (name, value) in table {
            let value = self.expand(value);
            self.guard(name, &value);
            expanded.insert(name.clone(), value);
        }
        expanded
    }

    /// Expands what a definition says about sign-in. The client's secret is secret whatever its name.
    fn expand_oauth(&mut self, oauth: &OAuthSettings) -> OAuthSettings {
        let mut expand = |text: &Option<String>| text.as_ref().map(|text| self.expand(text));
        let expanded = OAuthSettings {
            client_id: expand(&oauth.client_id),
            client_secret: expand(&oauth.client_secret),
            client_metadata_url: expand(&oauth.client_metadata_url),
            key_file: expand(&oauth.key_file),
            issuer: expand(&oauth.issuer),
            resource: expand(&oauth.resource),
            ..oauth.clone()
        };
        self.secret_values.extend(expanded.client_secret.clone());
        let key_file = expanded.key_file.as_ref().map(|file| self.settings.cwd.join(expand_home(file, self.settings)));
        OAuthSettings { key_file: key_file.map(|file| file.to_string_lossy().into_owned()), ..expanded }
    }

    /// Expands the references of a text, and leaves any other text as it is. The inserted values are not expanded again.
    fn expand(&mut self, text: &str) -> String {
        let parts = split_references(text);
        parts.into_iter().fold(String::with_capacity(text.len()), |result, part| match part {
            TextPart::Literal(literal) => result + literal,
            TextPart::Reference(reference) => result + &self.expand_reference(reference),
        })
    }

    fn expand_reference(&mut self, reference: ValueReference<'_>) -> String {
        let value = match reference {
            ValueReference::Variable { name, default } => return self.expand_variable(name, default),
            ValueReference::File(path) => self.read_file(path),
            ValueReference::Command(command) => self.source.command(command, self.owner, self.settings),
            ValueReference::Secret(name) => self.source.secret(name, self.settings),
        };
        let value = self.require(value);
        self.secret_values.push(value.clone());
        self.secret_values.extend(argument_secrets::find_url_secrets(&value));
        value
    }

    fn expand_variable(&mut self, name: &str, default: Option<&str>) -> String {
        // Servers do not get Cove's own settings.
        let value = self.settings.env.get(name).filter(|_| !name.starts_with("COVE_"));
        let value = value.and_then(|value| value.to_str()).filter(|value| !value.is_empty());
        match (value, default) {
            (Some(value), _) => {
                self.guard(name, value);
                value.to_owned()
            }
            (None, Some(default)) => default.to_owned(),
            (None, None) => self.require(Err(name.to_owned())),
        }
    }

    /// Returns the content of a file without one last line end.
    fn read_file(&mut self, path: &str) -> Result<String, String> {
        let text = self.read_text(path)?;
        match text.strip_suffix('\n').map_or(text.as_str(), |text| text.strip_suffix('\r').unwrap_or(text)) {
            "" => Err(format!("file {}, but it is empty", display_value(path))),
            value => Ok(value.to_owned()),
        }
    }

    fn read_text(&mut self, path: &str) -> Result<String, String> {
        let shown = display_value(path);
        let FileText { text, is_exposed } = read_value_file(&self.settings.cwd.join(expand_home(path, self.settings)))
            .map_err(|cause| format!("file {shown}, but it could not be read ({cause})"))?;
        if is_exposed {
            self.remarks.push(format!("other users can read `{shown}`: run `chmod 600 {shown}`"));
        }
        Ok(text)
    }

    /// Returns the variables of an `env_file`.
    fn read_env_file(&mut self, path: &str) -> BTreeMap<String, String> {
        let path = self.expand(path);
        let variables = self.read_text(&path).and_then(|text| {
            let wrong = |line| format!("file {}, but line {line} is not `KEY=VALUE`", display_value(&path));
            parse_env_file(&text).map_err(wrong)
        });
        let variables = self.require(variables);
        variables.iter().for_each(|(name, value)| self.guard(name, value));
        variables.into_iter().collect()
    }

    /// Returns the headers that the command of a definition printed.
    fn command_headers(&mut self, command: &str) -> BTreeMap<String, String> {
        let headers = self.source.headers(command, self.owner, self.settings);
        let headers = self.require(headers);
        self.secret_values.extend(headers.values().cloned());
        headers
    }
}

#[cfg(test)]
mod tests;
