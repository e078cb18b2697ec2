//! The one table of settings. A row says everything about a setting: its names, its default, the field of the
//! configuration that it fills, the format of its values, and its help.

use std::path::PathBuf;

use super::Config;
use super::format::{
    ADDRESS, ALLOWED_MOUNT, AUTHORITY, BOOLEAN, CALL_PATTERN, CPUS, DIRECTORY, DURATION, FILE, IMAGE, MODULE, MOUNT,
    NETWORK, NETWORK_RULE, NODE_PACKAGE, OUTPUT_LIMIT, PROGRAM, PYTHON, PYTHON_PACKAGE, REGISTRY, ROOTFS, RUNTIME,
    START_TIMEOUT, SettingContext, TOOLSETS, USER, ValueFormat, WARM_TARGET, WEB_ORIGIN, WORKSPACE, keyword, number,
    size,
};
use SettingKind::{List, Optional, WithDefault};
use cove_core::error::Refusal;
use cove_core::image::BackendChoice;
use cove_core::policy::ComposeRisk;
use cove_core::policy::SandboxRoot;
use cove_core::process_env::ProcessEnv;
use cove_core::units::{KIB, MAX_PIDS, MIB};
use cove_server::http_config::HttpAuth;
use cove_server::server_config::{LogFormat, LogLevel, OutputFormat};
use cove_upstream::catalog::SearchMode;
use cove_upstream::catalog::pins::ToolChangePolicy;

/// More sessions or connections than one machine can serve.
const MAX_OPEN: u64 = 100_000;
const MAX_RATE: u64 = 1_000_000;

#[derive(Debug)]
pub struct Setting {
    /// The key in the file.
    pub key: &'static str,
    pub flag: &'static str,
    /// The environment variable.
    pub env: &'static str,
    /// Stands for the value in help.
    pub placeholder: &'static str,
    /// True if a value begins with a path of this machine.
    pub names_path: bool,
    pub group: SettingGroup,
    pub kind: SettingKind,
    /// One line.
    pub help: &'static str,
    /// The words that a value may be; empty if others are allowed too and none is worth a suggestion.
    pub choices: fn() -> Vec<&'static str>,
    /// Parses one value into its field. A list grows by one value at each call.
    pub(super) set: fn(&mut Config, &str, &ProcessEnv) -> Result<(), Refusal>,
    show: fn(&Config) -> Vec<String>,
}

/// What a setting is about; decides which commands have its flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingGroup {
    /// Every command that starts or describes a sandbox.
    Sandbox,
    /// Commands that call upstream servers, or run code that does.
    Calls,
    /// Commands that serve.
    Server,
}

/// How many values a setting has, and what applies without any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingKind {
    /// Always one value. The default is parsed like any other text.
    WithDefault(&'static str),
    /// One value or none. The text describes what applies without one.
    Optional(&'static str),
    /// Any number of values: a repeated flag, an array in the file, separated by `;` in the environment. The text
    /// describes what applies without any.
    List(&'static str),
}

impl SettingKind {
    pub fn is_list(self) -> bool {
        matches!(self, List(_))
    }

    /// The default, or the description of what applies without a value.
    pub fn default_text(self) -> &'static str {
        match self {
            WithDefault(text) | Optional(text) | List(text) => text,
        }
    }
}

impl Setting {
    /// Returns the values in force, written so that they can be parsed again. Empty if nothing is set.
    pub fn show(&self, config: &Config) -> Vec<String> {
        (self.show)(config)
    }
}

/// A field of the configuration that holds the values of a setting: the value itself, an option or a list.
trait SettingField<T> {
    fn put(&mut self, value: T);
    fn values(&self) -> Vec<&T>;
}

impl<T> SettingField<T> for T {
    fn put(&mut self, value: T) {
        *self = value;
    }

    fn values(&self) -> Vec<&T> {
        vec![self]
    }
}

impl<T> SettingField<T> for Option<T> {
    fn put(&mut self, value: T) {
        *self = Some(value);
    }

    fn values(&self) -> Vec<&T> {
        self.iter().collect()
    }
}

impl<T> SettingField<T> for Vec<T> {
    fn put(&mut self, value: T) {
        self.push(value);
    }

    fn values(&self) -> Vec<&T> {
        self.iter().collect()
    }
}

/// `--rootfs` chooses a tree; the other roots are chosen elsewhere.
impl SettingField<PathBuf> for SandboxRoot {
    fn put(&mut self, value: PathBuf) {
        *self = SandboxRoot::Tree(value);
    }

    fn values(&self) -> Vec<&PathBuf> {
        match self {
            SandboxRoot::Host | SandboxRoot::Image(_) => Vec::new(),
            SandboxRoot::Tree(path) => vec![path],
        }
    }
}

fn show_values<T>(field: &impl SettingField<T>, format: &ValueFormat<T>) -> Vec<String> {
    field.values().into_iter().map(format.show).collect()
}

/// One row: group, key, environment variable, kind, field and its format, help. The flag follows from the key; a test
/// checks that the environment variable does too.
macro_rules! setting {
    ($group:ident, $key:literal, $env:literal, $kind:expr, $($field:ident).+: $format:expr, $help:literal) => {
        Setting {
            key: $key,
            flag: concat!("--", $key),
            env: $env,
            placeholder: $format.placeholder,
            names_path: $format.names_path,
            group: SettingGroup::$group,
            kind: $kind,
            help: $help,
            choices: $format.choices,
            set: |config, text, env| {
                let value = ($format.parse)(text, &SettingContext { config, env })?;
                config.$($field).+.put(value);
                Ok(())
            },
            show: |config| show_values(&config.$($field).+, &$format),
        }
    };
}

/// In the order in which they are applied and shown.
pub static SETTINGS: &[Setting] = &[
    setting!(Sandbox, "backend", "COVE_BACKEND", WithDefault("auto"),
        backend: keyword::<BackendChoice>(),
        "Backend that creates sandboxes: `auto`, `jail`, `docker` or `podman`"),
    setting!(Sandbox, "network", "COVE_NETWORK", WithDefault("none"),
        policy.network: NETWORK,
        "Network of the sandbox: `none` (loopback only), or the name of a Docker or Podman network"),
    setting!(Sandbox, "allow-net", "COVE_ALLOW_NET", List("none"),
        allowed_net: NETWORK_RULE,
        "Host that code may reach, with TLS on port 443 unless a port is named, or a preset such as `pypi`; repeatable"),
    setting!(Sandbox, "no-net", "COVE_NO_NET", WithDefault("false"),
        no_net: BOOLEAN,
        "Whether code reaches no host, whatever other settings allow"),
    setting!(Sandbox, "runtime", "COVE_RUNTIME", Optional("chosen by Docker or Podman"),
        policy.runtime: RUNTIME,
        "Container runtime for Docker or Podman, such as `runsc`"),
    setting!(Sandbox, "image", "COVE_IMAGE", Optional("`ubuntu`, with every language"),
        images.standard: IMAGE,
        "Default image"),
    setting!(Sandbox, "image-dir", "COVE_IMAGE_DIR", Optional("built-in images"),
        images.dir: DIRECTORY,
        "Directory with one folder for each image, used instead of the built-in images"),
    setting!(Sandbox, "pull", "COVE_PULL", WithDefault("false"),
        images.pull: BOOLEAN,
        "Whether Cove may fetch missing images from their registry"),
    setting!(Sandbox, "allow-compose", "COVE_ALLOW_COMPOSE", List("none"),
        images.compose_allowed: keyword::<ComposeRisk>(),
        "What Compose files may use: `privileged`, `host-network`, `ports`, `capabilities`, `devices`; repeatable"),
    setting!(Sandbox, "memory", "COVE_MEMORY", WithDefault("512m"),
        policy.limits.memory: size::<{ 16 * MIB }>(),
        "Memory limit of the whole sandbox"),
    setting!(Sandbox, "cpus", "COVE_CPUS", WithDefault("1"),
        policy.limits.cpus: CPUS,
        "Number of CPUs that the sandbox may use; may be a fraction"),
    setting!(Sandbox, "pids-limit", "COVE_PIDS_LIMIT", WithDefault("256"),
        policy.limits.pids: number::<u32, MAX_PIDS>(),
        "Maximum number of processes and threads in the sandbox"),
    setting!(Sandbox, "user", "COVE_USER", WithDefault("65534:65534"),
        policy.user: USER,
        "User and group that the code runs as; never root"),
    setting!(Sandbox, "timeout", "COVE_TIMEOUT", WithDefault("30s"),
        cell.timeout: DURATION,
        "Time limit of a cell"),
    setting!(Sandbox, "max-timeout", "COVE_MAX_TIMEOUT", WithDefault("120s"),
        cell.max_timeout: DURATION,
        "Longest time limit that a cell may ask for"),
    setting!(Sandbox, "max-output", "COVE_MAX_OUTPUT", WithDefault("6000 tokens"),
        cell.max_output: OUTPUT_LIMIT,
        "Most output in a result, in characters or `tokens`"),
    setting!(Sandbox, "workspace-size", "COVE_WORKSPACE_SIZE", WithDefault("256m"),
        policy.limits.workspace: size::<{ 64 * KIB }>(),
        "Size of `/workspace`"),
    setting!(Sandbox, "tmp-size", "COVE_TMP_SIZE", WithDefault("64m"),
        policy.limits.tmp: size::<{ 64 * KIB }>(),
        "Size of `/tmp`"),
    // Before `python`, which is a path inside the root file system if there is one.
    setting!(Sandbox, "rootfs", "COVE_ROOTFS", Optional("none"),
        policy.root: ROOTFS,
        "Directory to use as the root file system instead of this machine's `/usr`"),
    setting!(Sandbox, "python", "COVE_PYTHON", Optional("first `python3` on `PATH`"),
        policy.python: PYTHON,
        "Python that runs the code; with `--rootfs`, its path inside that directory"),
    setting!(Sandbox, "packages", "COVE_PACKAGES", List("none"),
        packages.python: PYTHON_PACKAGE,
        "Python package that sessions have once `cove packages sync` has installed it; repeatable"),
    setting!(Sandbox, "node-packages", "COVE_NODE_PACKAGES", List("none"),
        packages.node: NODE_PACKAGE,
        "The same for a package of npm; repeatable"),
    setting!(Sandbox, "mount", "COVE_MOUNT", List("none"),
        policy.mounts: MOUNT,
        "File or directory to mount in the sandbox, read-only unless `:rw`; repeatable"),
    setting!(Sandbox, "workspace", "COVE_WORKSPACE", Optional("none"),
        workspace: WORKSPACE,
        "Directory that code may write to, as `/workspace/shared`, to give files to you"),
    setting!(Sandbox, "allow-mount", "COVE_ALLOW_MOUNT", List("none"),
        server.allowed_mounts: ALLOWED_MOUNT,
        "Directory that agents and Compose files may mount from, read-only unless `:rw`; repeatable"),
    setting!(Calls, "allow-call", "COVE_ALLOW_CALL", List("all"),
        grants.allowed: CALL_PATTERN,
        "Tools of MCP servers that code may call, with `*` as wildcard; repeatable"),
    setting!(Calls, "deny-call", "COVE_DENY_CALL", List("none"),
        grants.denied: CALL_PATTERN,
        "Tools of MCP servers that code may not call, even if `--allow-call` matches; repeatable"),
    setting!(Calls, "start-timeout", "COVE_START_TIMEOUT", WithDefault("120s"),
        start_timeout: START_TIMEOUT,
        "Time that an MCP server may take to start, at most `10m`; it does not count against the cell"),
    setting!(Calls, "search", "COVE_SEARCH", WithDefault("hybrid"),
        search: keyword::<SearchMode>(),
        "How searches rank tools of MCP servers: `hybrid` (by words and meaning) or `bm25` (by words alone)"),
    setting!(Calls, "tool-changes", "COVE_TOOL_CHANGES", WithDefault("block"),
        tool_changes: keyword::<ToolChangePolicy>(),
        "What happens to a tool that its MCP server changes or adds: `block` or `warn` until you accept it, or `allow`"),
    setting!(Calls, "quarantine", "COVE_QUARANTINE", WithDefault("false"),
        quarantine: BOOLEAN,
        "Whether code may use a new MCP server only after `cove servers accept`"),
    setting!(Calls, "state-dir", "COVE_STATE_DIR", Optional("`~/.local/state/cove`"),
        server.state_dir: DIRECTORY,
        "Directory for data that Cove keeps between runs"),
    setting!(Server, "tools", "COVE_TOOLS", WithDefault("code"),
        server.tools: TOOLSETS,
        "Tools that agents see: `code`, `python`, `sessions`, `files`, separated by commas, or `all`"),
    setting!(Server, "output", "COVE_OUTPUT", WithDefault("compact"),
        server.output: keyword::<OutputFormat>(),
        "Format of results for the model: `compact`, `toon` or `json`"),
    setting!(Server, "idle-timeout", "COVE_IDLE_TIMEOUT", WithDefault("30m"),
        server.idle_timeout: DURATION,
        "Time after which an unused session ends"),
    setting!(Server, "max-sessions", "COVE_MAX_SESSIONS", WithDefault("64"),
        server.max_sessions: number::<usize, MAX_OPEN>(),
        "Maximum number of open sessions"),
    setting!(Server, "warm", "COVE_WARM", WithDefault("auto"),
        policy.readiness.warm: WARM_TARGET,
        "Sessions kept ready for each language: `auto` as many as were needed lately, or a number, at most 64"),
    setting!(Server, "preload", "COVE_PRELOAD", List("none"),
        policy.readiness.preload: MODULE,
        "Python module that sessions kept ready have imported, such as `numpy`; repeatable"),
    setting!(Server, "log-level", "COVE_LOG_LEVEL", WithDefault("info"),
        server.log_level: keyword::<LogLevel>(),
        "Level of the log on standard error: `error`, `warn`, `info`, `debug` or `off`"),
    setting!(Server, "log-format", "COVE_LOG_FORMAT", WithDefault("text"),
        server.log_format: keyword::<LogFormat>(),
        "Format of the log: `text`, or `json` with one record per line"),
    setting!(Server, "http", "COVE_HTTP", Optional("standard input and output"),
        server.http.address: ADDRESS,
        "Address to serve HTTP on, such as `127.0.0.1:8765` or `:8765`"),
    setting!(Server, "auth", "COVE_AUTH", WithDefault("token"),
        server.http.auth: keyword::<HttpAuth>(),
        "HTTP authentication: `token`, or `none` (anyone on this machine)"),
    setting!(Server, "token-file", "COVE_TOKEN_FILE", Optional("`tokens` in the state directory"),
        server.http.token_file: FILE,
        "File with tokens: one `TOKEN` or `NAME TOKEN` per line"),
    setting!(Server, "allow-host", "COVE_ALLOW_HOST", List("loopback and the address itself"),
        server.http.allowed_hosts: AUTHORITY,
        "Further host name that HTTP clients may use for this server; repeatable"),
    setting!(Server, "allow-origin", "COVE_ALLOW_ORIGIN", List("pages served by this machine"),
        server.http.allowed_origins: WEB_ORIGIN,
        "Origin of web pages that may send requests, such as `https://a.example`; repeatable"),
    setting!(Server, "max-connections", "COVE_MAX_CONNECTIONS", WithDefault("256"),
        server.http.max_connections: number::<usize, MAX_OPEN>(),
        "Maximum number of open HTTP connections"),
    setting!(Server, "rate-limit", "COVE_RATE_LIMIT", WithDefault("100"),
        server.http.rate_limit: number::<usize, MAX_RATE>(),
        "HTTP requests per second for each token; a burst may have twice as many"),
    setting!(Server, "input-timeout", "COVE_INPUT_TIMEOUT", WithDefault("600s"),
        server.input_timeout: START_TIMEOUT,
        "Time that a person may take to answer a question of an MCP server, at most `10m`; it does not count against the cell"),
    setting!(Calls, "secrets-helper", "COVE_SECRETS_HELPER", Optional("the file `secrets.json`"),
        secrets_helper: PROGRAM,
        "Program with arguments that keeps the secrets of `cove secrets`, such as one for a keyring"),
    setting!(Calls, "registry", "COVE_REGISTRY", WithDefault("https://registry.modelcontextprotocol.io"),
        registry: REGISTRY,
        "Registry that `cove servers search` and `add` ask for servers; `none` asks none"),
    setting!(Calls, "allow-requests", "COVE_ALLOW_REQUESTS", WithDefault("false"),
        allow_requests: BOOLEAN,
        "Whether code may ask you to add servers that you approved in `catalog.d`"),
    setting!(Calls, "isolate-upstreams", "COVE_ISOLATE_UPSTREAMS", WithDefault("false"),
        isolate_upstreams: BOOLEAN,
        "Whether each token of the HTTP server has processes of MCP servers of its own, so that their answers cannot cross"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_key() {
        for setting in SETTINGS {
            assert_eq!(setting.flag, format!("--{}", setting.key));
            assert_eq!(setting.env, format!("COVE_{}", setting.key.to_uppercase().replace('-', "_")));
            assert!(!setting.help.contains('\n') && !setting.help.ends_with('.'), "{}", setting.key);
        }
    }

    /// `cove install` makes the paths of settings absolute.
    #[test]
    fn settings_know_which_values_begin_with_a_path() {
        for setting in SETTINGS {
            let is_path = ["DIR", "FILE", "PATH", "SOURCE"].iter().any(|word| setting.placeholder.starts_with(word));
            assert_eq!(setting.names_path, is_path, "{}", setting.key);
        }
    }
}
