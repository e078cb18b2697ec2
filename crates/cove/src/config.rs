//! One typed configuration: flag over environment over file over default, each value with its origin.
//!
//! [`SETTINGS`] is the single source of what can be set; the command line, the file and `cove config show` all read
//! it. Nothing here is started, and nothing is read but the configuration file and the paths that settings name.

mod file;
mod http;
pub(crate) mod jsonc;
mod mount;
mod root;
mod server;
mod settings;
pub mod value;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::broker::grants::Grants;
use crate::error::{Error, shown, shown_path};
use crate::policy::{CellLimits, Limits, Network, Policy, Root, User};

pub use http::{Authority, HostName, HttpConfig, WebOrigin};
pub use mount::{AllowedMount, requested as requested_mount};
pub use server::{Auth, LogFormat, LogLevel, OutputFormat, ServerConfig, Toolset, Toolsets};
pub use settings::{Count, Fallback, Part, SETTINGS, Setting};

use file::File;
pub(crate) use file::{distance, nearest, scalar_text};
pub use value::Wrong;
use value::show_duration;

/// Between the interrupt at the deadline and the kill: the same everywhere, so not a setting.
const GRACE: Duration = Duration::from_secs(1);

/// What was configured, parsed and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub policy: Policy,
    pub cell: CellLimits,
    pub backend: BackendChoice,
    pub images: ImagesConfig,
    pub server: ServerConfig,
    /// Which tools of upstream servers code may call.
    pub grants: Grants,
    /// The configuration file, whether or not it exists. Nothing where there is no home to look in.
    pub file: Option<PathBuf>,
    origins: BTreeMap<&'static str, Origin>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BackendChoice {
    /// The best one that works here.
    Auto,
    Jail,
    Docker,
    Podman,
}

/// Which images there are, and what may be done to have them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImagesConfig {
    /// The folder whose folders are the images, in place of those built in.
    pub dir: Option<PathBuf>,
    /// The image of sessions for which nobody named one.
    pub standard: Option<String>,
    /// Whether an image that is not there may be fetched from its registry.
    pub pull: bool,
    /// What Compose files may have that is refused otherwise.
    pub compose_allowed: Vec<ComposeRisk>,
}

/// What a Compose file may ask for only if the operator allows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComposeRisk {
    Privileged,
    HostNetwork,
    Ports,
    Capabilities,
    Devices,
}

impl ComposeRisk {
    pub const ALL: [Self; 5] =
        [Self::Privileged, Self::HostNetwork, Self::Ports, Self::Capabilities, Self::Devices];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::HostNetwork => "host-network",
            Self::Ports => "ports",
            Self::Capabilities => "capabilities",
            Self::Devices => "devices",
        }
    }
}

/// Where the value of a setting comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Flag(&'static str),
    Environment(&'static str),
    File { path: PathBuf, line: usize },
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(name) => write!(f, "flag {name}"),
            Origin::Environment(name) => write!(f, "environment {name}"),
            Origin::File { path, line } => write!(f, "file {} line {line}", shown_path(path)),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// Settings as the command line has them: not parsed, by key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    /// The file to read instead of the person's own.
    pub config: Option<String>,
    pub values: BTreeMap<&'static str, Vec<String>>,
}

/// The process around us, as far as it decides what we do. Made once, so that tests can make another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surroundings {
    pub env: BTreeMap<String, OsString>,
    /// Relative paths start here.
    pub cwd: PathBuf,
    pub stdin_is_terminal: bool,
}

impl Surroundings {
    pub fn of_this_process() -> Result<Self, Error> {
        let cwd = std::env::current_dir()
            .map_err(|error| Error::usage("could not find the working directory").because(error))?;
        // A variable whose name is not text is none of ours.
        let env =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value))).collect();
        Ok(Self { env, cwd, stdin_is_terminal: std::io::stdin().is_terminal() })
    }

    /// A variable of ours. An empty one counts as unset.
    pub fn var(&self, name: &str) -> Result<Option<&str>, Error> {
        let Some(value) = self.env.get(name).filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        value.to_str().map(Some).ok_or_else(|| {
            Error::usage(format!("could not read `{name}={}`", shown(&value.to_string_lossy())))
                .because("it is not valid UTF-8")
                .with_hint("write it as UTF-8 text")
        })
    }

    /// A directory that others configured. Relative ones are ignored, as the XDG specification asks.
    pub(crate) fn directory(&self, name: &str) -> Option<&Path> {
        self.env.get(name).map(Path::new).filter(|path| path.is_absolute())
    }

    pub(crate) fn home(&self) -> Option<&Path> {
        self.directory("HOME")
    }
}

/// One value of a setting as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    text: String,
    /// How messages name it: the place and the value.
    written: String,
}

impl Entry {
    fn refused(&self, wrong: Wrong) -> Error {
        let cause = if self.text.is_empty() { "it is empty".to_owned() } else { wrong.cause };
        Error::usage(format!("could not read {}", self.written)).because(cause).with_hint(wrong.hint)
    }
}

impl Config {
    pub fn load(flags: &Flags, around: &Surroundings) -> Result<Self, Error> {
        let file = File::find(flags.config.as_deref(), around)?;
        let mut config = Self::unset();
        for setting in SETTINGS {
            let (origin, entries) = layer(setting, flags, around, &file)?;
            for entry in &entries {
                // What is passed to the kernel would end at a NUL byte.
                if entry.text.contains('\0') {
                    return Err(entry.refused(Wrong::new("it has a NUL byte", "leave the NUL byte out")));
                }
                (setting.set)(&mut config, &entry.text, around).map_err(|wrong| entry.refused(wrong))?;
            }
            config.origins.insert(setting.key, origin);
        }
        config.server.settle(around);
        config.file = file::place(flags.config.as_deref(), around)?;
        config.check_timeouts()?;
        Ok(config)
    }

    /// The limits that a cell runs under when it asks for nothing else.
    pub fn bounds(&self) -> crate::ending::Bounds {
        crate::ending::Bounds {
            timeout: self.cell.timeout,
            max_timeout: self.cell.max_timeout,
            memory: self.policy.limits.memory,
            lasts: true,
        }
    }

    pub fn origin(&self, setting: &Setting) -> &Origin {
        self.origins.get(setting.key).unwrap_or(&Origin::Default)
    }

    /// Before any setting is applied. Every setting with a default overwrites its part.
    fn unset() -> Self {
        Self {
            policy: Policy {
                root: Root::Host,
                python: None,
                mounts: Vec::new(),
                network: Network::None,
                runtime: None,
                user: User { uid: 0, gid: 0 },
                limits: Limits { memory: 0, cpus: 0.0, pids: 0, workspace: 0, tmp: 0 },
            },
            cell: CellLimits {
                timeout: Duration::ZERO,
                max_timeout: Duration::ZERO,
                grace: GRACE,
                max_output: 0,
            },
            backend: BackendChoice::Auto,
            images: ImagesConfig::default(),
            server: ServerConfig::unset(),
            grants: Grants::default(),
            file: None,
            origins: BTreeMap::new(),
        }
    }

    fn check_timeouts(&self) -> Result<(), Error> {
        if self.cell.timeout <= self.cell.max_timeout {
            return Ok(());
        }
        let (timeout, most) = (show_duration(self.cell.timeout), show_duration(self.cell.max_timeout));
        let origin = |key| self.origins.get(key).unwrap_or(&Origin::Default);
        Err(Error::usage(format!(
            "could not use a `timeout` of `{timeout}` with a `max-timeout` of `{most}`"
        ))
        .because(format!(
            "`timeout` ({}) is longer than `max-timeout` ({})",
            origin("timeout"),
            origin("max-timeout")
        ))
        .with_hint(format!("set `timeout` to at most `{most}`, or `max-timeout` to at least `{timeout}`")))
    }
}

/// The first layer that has the setting. A list is replaced as a whole: what a layer says is all there is.
fn layer(
    setting: &'static Setting,
    flags: &Flags,
    around: &Surroundings,
    file: &File,
) -> Result<(Origin, Vec<Entry>), Error> {
    if let Some(values) = flags.values.get(setting.key) {
        let entry = |text: &String| {
            let shown = if text.is_empty() { "''".to_owned() } else { shown(text) };
            Entry { written: format!("`{} {shown}`", setting.flag), text: text.clone() }
        };
        return Ok((Origin::Flag(setting.flag), values.iter().map(entry).collect()));
    }
    if let Some(value) = around.var(setting.env)? {
        let entry = |text: &str| Entry {
            written: format!("`{}={}`", setting.env, shown(text)),
            text: text.to_owned(),
        };
        let entries = match setting.count {
            Count::One => vec![entry(value)],
            Count::Many => value.split(';').filter(|part| !part.is_empty()).map(entry).collect(),
        };
        return Ok((Origin::Environment(setting.env), entries));
    }
    if let Some((line, entries)) = file.entries.get(setting.key) {
        return Ok((Origin::File { path: file.path.clone(), line: *line }, entries.clone()));
    }
    let entries = match setting.fallback {
        Fallback::Value(text) => {
            vec![Entry { written: format!("the default of `{}`", setting.key), text: text.to_owned() }]
        }
        Fallback::Absent { .. } => Vec::new(),
    };
    Ok((Origin::Default, entries))
}

#[cfg(test)]
mod tests;
