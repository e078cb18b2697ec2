//! The definitions of upstream servers: read from files, checked and ordered. Nothing is started here. A mistake in one
//! file or one server becomes a [`DefinitionProblem`] and does not affect the others.

#[cfg(any(test, fuzzing))]
#[path = "../tests/exercise/definitions.rs"]
pub mod exercise;
mod oauth;
mod places;
mod read;
pub(crate) mod references;
pub mod trust;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::catalog::names::{server_aliases, stable_hash};
use cove_core::document::read_text;
use cove_core::error::{Refusal, display_path, display_value};
use cove_core::policy::grants::{Grants, ToolPattern};
use cove_core::session::clock::MAX_STOPPED;
use cove_core::units;

pub use oauth::{OAuthGrant, OAuthSettings};
pub use places::{DefinitionPlaces, DefinitionStamp};
pub(crate) use read::{is_loopback_url, parse_url};

const MAX_NAME: usize = 64;
/// Long enough for a first start that downloads a package.
pub const DEFAULT_START_TIMEOUT: Duration = Duration::from_secs(120);

/// The line that defines a server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DefinitionOrigin {
    pub path: PathBuf,
    pub line: usize,
}

impl fmt::Display for DefinitionOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} line {}", display_path(&self.path), self.line)
    }
}

/// A mistake in a file, or the reason why an entry is skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefinitionProblem {
    pub path: PathBuf,
    /// None if the whole file could not be read.
    pub line: Option<usize>,
    pub what: String,
    pub hint: String,
}

impl DefinitionProblem {
    fn new(path: &Path, line: Option<usize>, what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, what: what.into(), hint: hint.into() }
    }
}

impl fmt::Display for DefinitionProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in `{}`", display_path(&self.path))?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        write!(f, ": {}; {}", self.what, self.hint)
    }
}

/// Who wrote a definition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DefinitionOwner {
    /// The person that Cove runs for, in a file of their own.
    #[default]
    Person,
    /// The authors of a project that the person trusts.
    Project,
}

/// One server as its file defines it. Variables are expanded later, at each start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerDefinition {
    pub name: String,
    /// The name as an identifier that is valid in every language, unique among all definitions.
    pub alias: String,
    pub origin: DefinitionOrigin,
    pub owner: DefinitionOwner,
    /// Later definitions with the same name, which are not used.
    pub shadowed: Vec<DefinitionOrigin>,
    pub launch: ServerLaunch,
    pub description: Option<String>,
    pub disabled: bool,
    /// Allows a definition that would start Cove itself.
    pub allow_self: bool,
    /// How long the server may take to start; the setting of that name if not set.
    pub start_timeout: Option<Duration>,
    /// How long one call may take.
    pub call_timeout: Option<Duration>,
    /// Patterns of the tools that code may use; all if empty.
    pub allowed_tools: Vec<String>,
    /// Patterns of the tools that code may not use, also if they are allowed.
    pub denied_tools: Vec<String>,
    /// Whether every principal has a process or connection of its own; the setting `isolate-upstreams` if not set.
    pub isolate: Option<bool>,
    /// The published server that it was made from, as `com.example/name@1.0.0`.
    pub published: Option<String>,
}

impl ServerDefinition {
    /// True if a server started from either definition serves for both.
    pub(super) fn starts_like(&self, other: &Self) -> bool {
        (&self.launch, self.disabled, self.isolate) == (&other.launch, other.disabled, other.isolate)
    }

    /// Returns which tools code may use. Patterns were checked when the definition was read.
    pub fn tool_filter(&self) -> Grants {
        let patterns = |texts: &[String]| texts.iter().filter_map(|text| ToolPattern::for_tool(text).ok()).collect();
        Grants { allowed: patterns(&self.allowed_tools), denied: patterns(&self.denied_tools) }
    }

    /// A digest that is the same in every run. It covers only the names of variables and headers, so it reveals
    /// no secrets.
    pub fn digest(&self) -> String {
        let mut parts: Vec<&str> = Vec::new();
        match &self.launch {
            ServerLaunch::Stdio { command, args, env, env_file, cwd } => {
                parts.extend(["stdio", command, cwd.as_deref().unwrap_or_default()]);
                parts.extend(args.iter().map(String::as_str).chain(["env"]).chain(env.keys().map(String::as_str)));
                parts.extend(env_file.iter().flat_map(|file| ["env_file", file]));
            }
            ServerLaunch::Http { url, headers, headers_cmd, oauth, .. } => {
                parts.extend(["http", url].into_iter().chain(headers.keys().map(String::as_str)));
                parts.extend(headers_cmd.iter().flat_map(|command| ["headers_cmd", command]));
                parts.extend(oauth.iter().flat_map(|oauth| oauth.digest_parts()));
            }
        }
        format!("{:016x}", stable_hash(parts.iter().flat_map(|part| part.bytes().chain([0xff]))))
    }
}

/// How Cove reaches a server.
#[derive(Clone, PartialEq, Eq)]
pub enum ServerLaunch {
    Stdio {
        command: String,
        args: Vec<String>,
        env: BTreeMap<String, String>,
        /// A file with more variables, read at each start.
        env_file: Option<String>,
        cwd: Option<String>,
    },
    Http {
        url: String,
        transport: HttpTransport,
        headers: BTreeMap<String, String>,
        /// A command that prints more headers as a JSON object.
        headers_cmd: Option<String>,
        /// Allows plain HTTP to another machine.
        allow_http: bool,
        /// None if nothing but the server decides how a person signs in.
        oauth: Option<Box<OAuthSettings>>,
    },
}

/// The transport of a server with an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HttpTransport {
    /// Streamable HTTP, or the older one if the server refuses that.
    #[default]
    Detected,
    StreamableHttp,
    /// HTTP with SSE of revision 2024-11-05.
    LegacySse,
}

/// Leaves out the values of arguments, variables, headers and addresses, which may be secrets.
impl fmt::Debug for ServerLaunch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdio { command, args, env, cwd, .. } => f
                .debug_struct("Stdio")
                .field("command", command)
                .field("args", &args.len())
                .field("env", &env.keys())
                .field("cwd", cwd)
                .finish_non_exhaustive(),
            Self::Http { headers, .. } => {
                f.debug_struct("Http").field("headers", &headers.keys()).finish_non_exhaustive()
            }
        }
    }
}

/// Every configured server in the order of precedence, and the problems with the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerDefinitions {
    pub servers: Vec<ServerDefinition>,
    pub problems: Vec<DefinitionProblem>,
    /// Files of the project that Cove would read if the user trusted its directory.
    pub untrusted: Vec<PathBuf>,
}

impl ServerDefinitions {
    /// Reads every place. Never fails: a file that cannot be read becomes a problem. Skips entries that would start
    /// Cove itself, and so on without end, which `starts_cove` decides.
    pub(crate) fn read_places(places: &DefinitionPlaces, starts_cove: impl Fn(&ServerDefinition) -> bool) -> Self {
        let mut all = Self::default();
        for (file, owner) in places.files(&mut all) {
            all.add_file(&file, owner);
        }
        let is_own = |server: &mut ServerDefinition| !server.allow_self && starts_cove(server);
        all.problems.extend(all.servers.extract_if(.., is_own).map(|server| {
            let what = format!("`{}` would start Cove itself, so it is skipped", server.name);
            let hint = "set `allow_self` to `true` if you want that";
            DefinitionProblem::new(&server.origin.path, Some(server.origin.line), what, hint)
        }));
        all.assign_aliases();
        all
    }

    /// The definitions of a single text.
    pub fn from_text(path: &Path, text: &str) -> Self {
        let mut all = Self::default();
        all.add_text(path, text, DefinitionOwner::Person);
        all.assign_aliases();
        all
    }

    fn add_file(&mut self, path: &Path, owner: DefinitionOwner) {
        match read_text(path) {
            Ok(Some(text)) => self.add_text(path, &text, owner),
            Ok(None) => {}
            Err(error) => {
                let what = format!("it could not be read ({error})");
                self.problems.push(DefinitionProblem::new(path, None, what, "make it readable, or remove it"));
            }
        }
    }

    fn add_text(&mut self, path: &Path, text: &str, owner: DefinitionOwner) {
        for server in read::servers(path, text) {
            match server {
                Err(problem) => self.problems.push(problem),
                Ok(server) => match self.servers.iter_mut().find(|known| known.name == server.name) {
                    Some(known) => known.shadowed.push(server.origin),
                    None => self.servers.push(ServerDefinition { owner, ..server }),
                },
            }
        }
    }

    fn assign_aliases(&mut self) {
        let names: Vec<&str> = self.servers.iter().map(|server| server.name.as_str()).collect();
        for (alias, server) in server_aliases(&names).into_iter().zip(&mut self.servers) {
            server.alias = alias;
        }
    }
}

/// Parses the time that a server may take to start. Refuses more than a cell's clock may stand still.
pub fn parse_start_timeout(text: &str) -> Result<Duration, Refusal> {
    units::duration(text).and_then(|timeout| match timeout <= MAX_STOPPED {
        true => Ok(timeout),
        false => Err(Refusal::of_value(text, "is too long", "write at most `10m`")),
    })
}

/// Checks a name against `[A-Za-z0-9][A-Za-z0-9_.-]{0,63}`. The error is the whole reason.
pub fn check_name(name: &str) -> Result<(), String> {
    let wrong = |reason: &str| Err(format!("`{}` cannot be a server's name: {reason}", display_value(name)));
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    match name.chars().next() {
        None => wrong("it is empty"),
        Some(first) if !first.is_ascii_alphanumeric() => wrong("it must begin with a letter or a digit"),
        Some(_) if name.len() > MAX_NAME => wrong("it has more than 64 characters"),
        Some(_) => match name.chars().find(|c| !allowed(*c)) {
            Some(c) => wrong(&format!("it has `{}`", c.escape_default())),
            None => Ok(()),
        },
    }
}

#[cfg(test)]
mod tests;
