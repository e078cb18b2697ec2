//! The typed configuration. A flag wins over the environment, the environment over the file, the file over the default;
//! each value remembers its origin.
//!
//! [`SETTINGS`] is the single list of settings; the command line, the file and `cove config show` all use it. Loading
//! starts nothing, and reads only the configuration file and the paths that settings name.

mod file;
mod format;
mod root;
mod settings;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::packages::{PackageKind, PackageRequest};
use cove_core::error::{Failure, Refusal, display_path, display_value};
use cove_core::image::{BackendChoice, ImagesConfig};
use cove_core::output::OutputLimit;
use cove_core::policy::grants::Grants;
use cove_core::policy::{CellLimits, ComposeRisk, EffectiveLimits, Policy, SandboxMount, SandboxNetwork};
use cove_core::process_env::ProcessEnv;
use cove_core::spelling::nearest;
use cove_core::units::show_duration;
use cove_egress::EgressRules;
use cove_server::ServerSetup;
use cove_server::server_config::ServerConfig;
use cove_upstream::broker::BrokerConfig;
use cove_upstream::catalog::SearchMode;
use cove_upstream::catalog::pins::{FirstListing, PinPolicy, ToolChangePolicy};
use cove_upstream::discovery::RegistryAddress;
use cove_upstream::secrets::{ProgramWords, SecretStore};

pub use settings::{SETTINGS, Setting, SettingGroup, SettingKind};

use file::ConfigFile;
pub use file::{path, template};
pub(crate) use format::boolean;

/// Time between the interrupt at the deadline and the kill. It suits every cell, so it is not a setting.
const GRACE: Duration = Duration::from_secs(1);

/// All settings, parsed and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub policy: Policy,
    pub cell: CellLimits,
    /// What code may reach over the network: the table `[egress]` and `allowed_net` together.
    pub egress: EgressRules,
    /// The hosts and presets of `--allow-net`.
    allowed_net: Vec<String>,
    no_net: bool,
    pub backend: BackendChoice,
    pub images: ImagesConfig,
    pub packages: PackagesConfig,
    /// The directory that all sessions may write to.
    pub workspace: Option<SandboxMount>,
    pub server: ServerConfig,
    /// Which tools of upstream servers code may call.
    pub grants: Grants,
    /// How long an upstream server may take to start.
    pub start_timeout: Duration,
    /// How searches rank the tools of upstream servers.
    pub search: SearchMode,
    /// The registry that `cove servers` asks.
    pub registry: RegistryAddress,
    /// Whether code may request approved servers.
    pub allow_requests: bool,
    /// The program that keeps secrets instead of the file in the state directory.
    pub secrets_helper: Option<ProgramWords>,
    /// What happens to tools of upstream servers that change.
    pub tool_changes: ToolChangePolicy,
    /// Holds new upstream servers until a person accepts them.
    pub quarantine: bool,
    /// Gives every principal a process or connection of its own to each upstream server.
    pub isolate_upstreams: bool,
    /// The configuration file, whether or not it exists. None without a home directory.
    pub file: Option<PathBuf>,
    /// A warning for each line of the file that is not used.
    pub warnings: Vec<String>,
    origins: BTreeMap<&'static str, SettingOrigin>,
}

/// The packages that sessions shall have, beside those that `cove packages add` added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PackagesConfig {
    python: Vec<PackageRequest>,
    node: Vec<PackageRequest>,
}

impl PackagesConfig {
    pub fn of_kind(&self, kind: PackageKind) -> &[PackageRequest] {
        match kind {
            PackageKind::Python => &self.python,
            PackageKind::Node => &self.node,
        }
    }
}

/// Where the value of a setting comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingOrigin {
    Flag(&'static str),
    Environment(&'static str),
    File { path: PathBuf, line: usize },
    Default,
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => write!(f, "flag {name}"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::File { path, line } => write!(f, "file {} line {line}", display_path(path)),
            Self::Default => f.write_str("default"),
        }
    }
}

/// The settings of a command line, not parsed yet, by key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SettingFlags {
    /// The file to read instead of the user's own.
    pub config: Option<String>,
    pub values: BTreeMap<&'static str, Vec<String>>,
}

/// One value of a setting as a person wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WrittenValue {
    text: String,
    /// The value and its place, as messages name them.
    written: String,
}

impl WrittenValue {
    fn error(&self, refusal: Refusal) -> Failure {
        let cause = if self.text.is_empty() { "it is empty".to_owned() } else { refusal.cause };
        Failure::usage(format!("could not read {}", self.written)).because(cause).with_hint(refusal.hint)
    }
}

impl Config {
    /// Reads every setting. Fails with a usage error at the first value that is refused.
    pub fn load(flags: &SettingFlags, env: &ProcessEnv) -> Result<Self, Failure> {
        let file = ConfigFile::find(flags.config.as_deref(), env)?;
        let mut config = Self::unset();
        for setting in SETTINGS {
            let (origin, values) = layer(setting, flags, env, &file)?;
            for value in &values {
                // The kernel would read a text only up to a NUL byte.
                if value.text.contains('\0') {
                    return Err(value.error(Refusal::new("it has a NUL byte", "leave the NUL byte out")));
                }
                (setting.set)(&mut config, &value.text, env).map_err(|refusal| value.error(refusal))?;
            }
            config.origins.insert(setting.key, origin);
        }
        config.server.fill_defaults(env);
        config.file = file::path(flags.config.as_deref(), env)?;
        config.warnings = file.warnings;
        config.check_timeouts()?;
        config.set_egress(file.egress)?;
        Ok(config)
    }

    /// The limits that a cell runs under when it asks for nothing else.
    pub fn bounds(&self) -> EffectiveLimits {
        EffectiveLimits {
            timeout: self.cell.timeout,
            max_timeout: self.cell.max_timeout,
            memory: self.policy.limits.memory,
            workspace: self.policy.limits.workspace,
            tmp: self.policy.limits.tmp,
            session_persists: true,
        }
    }

    /// The part that a broker needs.
    pub fn broker(&self) -> BrokerConfig {
        BrokerConfig {
            config_file: self.file.clone(),
            state_dir: self.server.state_dir.clone(),
            grants: self.grants.clone(),
            start_timeout: self.start_timeout,
            search: self.search,
            allow_requests: self.allow_requests,
            secrets_helper: self.secrets_helper.clone(),
            pins: self.pins(),
            isolate_upstreams: self.isolate_upstreams,
        }
    }

    /// Where secrets of servers are kept.
    pub fn secret_store(&self, env: &ProcessEnv) -> SecretStore {
        SecretStore::new(self.server.state_dir.as_deref(), self.secrets_helper.as_ref(), env)
    }

    pub fn pins(&self) -> PinPolicy {
        let first_listing = if self.quarantine { FirstListing::Quarantine } else { FirstListing::Accept };
        PinPolicy { changes: self.tool_changes, first_listing }
    }

    /// The part that a server needs.
    pub fn server_setup(&self) -> ServerSetup {
        ServerSetup {
            policy: self.policy.clone(),
            cell: self.cell,
            server: self.server.clone(),
            broker: self.broker(),
            egress: self.egress.clone(),
        }
    }

    pub fn origin(&self, setting: &Setting) -> &SettingOrigin {
        self.origins.get(setting.key).unwrap_or(&SettingOrigin::Default)
    }

    /// The configuration before any setting is applied. Every setting with a default overwrites its field.
    fn unset() -> Self {
        Self {
            policy: Policy::default(),
            cell: CellLimits {
                timeout: Duration::ZERO,
                max_timeout: Duration::ZERO,
                grace: GRACE,
                max_output: OutputLimit::Characters(0),
            },
            egress: EgressRules::default(),
            allowed_net: Vec::new(),
            no_net: false,
            backend: BackendChoice::Auto,
            images: ImagesConfig::default(),
            packages: PackagesConfig::default(),
            workspace: None,
            server: ServerConfig::default(),
            grants: Grants::default(),
            start_timeout: Duration::ZERO,
            search: SearchMode::default(),
            registry: RegistryAddress::None,
            allow_requests: false,
            secrets_helper: None,
            tool_changes: ToolChangePolicy::default(),
            quarantine: false,
            isolate_upstreams: false,
            file: None,
            warnings: Vec::new(),
            origins: BTreeMap::new(),
        }
    }

    /// Joins the rules of the file with those of `allow-net`. Fails if the sandbox would have another network beside them.
    fn set_egress(&mut self, of_file: EgressRules) -> Result<(), Failure> {
        if self.no_net {
            return Ok(());
        }
        self.egress = of_file;
        for text in &self.allowed_net {
            self.egress.add(text).map_err(|refusal| {
                Failure::usage("could not use the rules of `allow-net`").because(refusal.cause).with_hint(refusal.hint)
            })?;
        }
        self.policy.proxy_door = self.egress.allow_anything();
        match self.egress.door_names() {
            Some(names) => self.policy.door_names = names,
            None => self.warnings.push(
                "the egress rules have more names and ports than a sandbox answers; programs there must obey the \
                 variables that name a proxy"
                    .to_owned(),
            ),
        }
        if self.policy.proxy_door && self.images.compose_allowed.contains(&ComposeRisk::HostNetwork) {
            return Err(Failure::usage("could not use `allow-compose host-network` with egress rules")
                .because("the door of such a container would be open to every program of this machine")
                .with_hint("leave `host-network` out, or take the rules out with `--no-net`"));
        }
        match &self.policy.network {
            SandboxNetwork::Named(name) if self.policy.proxy_door => {
                Err(Failure::usage(format!("could not use the network `{}` with egress rules", display_value(name)))
                    .because("code would reach whatever that network reaches, past the rules")
                    .with_hint("leave `network` out, or take the rules out with `--no-net`"))
            }
            SandboxNetwork::Named(_) | SandboxNetwork::None => Ok(()),
        }
    }

    fn check_timeouts(&self) -> Result<(), Failure> {
        if self.cell.timeout <= self.cell.max_timeout {
            return Ok(());
        }
        let (timeout, most) = (show_duration(self.cell.timeout), show_duration(self.cell.max_timeout));
        let origin = |key| self.origins.get(key).unwrap_or(&SettingOrigin::Default);
        Err(Failure::usage(format!("could not use a `timeout` of `{timeout}` with a `max-timeout` of `{most}`"))
            .because(format!(
                "`timeout` ({}) is longer than `max-timeout` ({})",
                origin("timeout"),
                origin("max-timeout")
            ))
            .with_hint(format!("set `timeout` to at most `{most}`, or `max-timeout` to at least `{timeout}`")))
    }
}

/// Variables that Cove reads besides those of settings, or that its own programs set.
const OTHER_VARIABLES: [&str; 6] =
    ["COVE_CONFIG", "COVE_JSON", "COVE_LANGUAGE", "COVE_TOKEN", "COVE_COMPLETE", "COVE_COMMIT"];

/// A warning for each variable whose name is close to one that Cove reads. Others that begin with `COVE_` may be meant
/// for a server.
pub fn misspelled_variables(env: &ProcessEnv) -> Vec<String> {
    let known: Vec<&str> = SETTINGS.iter().map(|setting| setting.env).chain(OTHER_VARIABLES).collect();
    let others = env.env.keys().filter(|name| name.starts_with("COVE_") && !known.contains(&name.as_str()));
    let warning = |name: &String| {
        // Their common beginning would make all names similar.
        let own = |name: &'static str| name.trim_start_matches("COVE_");
        let nearest = nearest(name.trim_start_matches("COVE_"), known.iter().map(|name| own(name)))?;
        Some(format!("`{}` is not a variable of Cove; did you mean `COVE_{nearest}`?", display_value(name)))
    };
    others.filter_map(warning).collect()
}

/// Returns the values of a setting from the first layer that has it. Lists of several layers are not joined.
fn layer(
    setting: &'static Setting,
    flags: &SettingFlags,
    env: &ProcessEnv,
    file: &ConfigFile,
) -> Result<(SettingOrigin, Vec<WrittenValue>), Failure> {
    if let Some(values) = flags.values.get(setting.key) {
        let value = |text: &String| {
            let shown = if text.is_empty() { "''".to_owned() } else { display_value(text) };
            WrittenValue { written: format!("`{} {shown}`", setting.flag), text: text.clone() }
        };
        return Ok((SettingOrigin::Flag(setting.flag), values.iter().map(value).collect()));
    }
    if let Some(text) = env.var(setting.env)? {
        let value = |text: &str| WrittenValue {
            written: format!("`{}={}`", setting.env, display_value(text)),
            text: text.to_owned(),
        };
        let values = match setting.kind.is_list() {
            false => vec![value(text)],
            true => text.split(';').filter(|part| !part.is_empty()).map(value).collect(),
        };
        return Ok((SettingOrigin::Environment(setting.env), values));
    }
    if let Some((line, values)) = file.entries.get(setting.key) {
        return Ok((SettingOrigin::File { path: file.path.clone(), line: *line }, values.clone()));
    }
    let values = match setting.kind {
        SettingKind::WithDefault(text) => {
            vec![WrittenValue { written: format!("the default of `{}`", setting.key), text: text.to_owned() }]
        }
        SettingKind::Optional(_) | SettingKind::List(_) => Vec::new(),
    };
    Ok((SettingOrigin::Default, values))
}

#[cfg(test)]
mod tests;
