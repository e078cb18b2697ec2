//! The one table of settings. A row is everything there is to say about a setting: its names, its default, its help,
//! how its text becomes part of the configuration and how that part is shown.

use std::path::Path;

use super::value::{self, KIB, MIB, Wrong};
use super::{BackendChoice, Config, Surroundings, http, mount, root, server};
use crate::broker::grants::Pattern;
use crate::policy::{Access, Network, Root};

#[derive(Debug)]
pub struct Setting {
    /// The key in the file.
    pub key: &'static str,
    pub flag: &'static str,
    pub env: &'static str,
    /// What stands for the value in help.
    pub placeholder: &'static str,
    pub part: Part,
    pub count: Count,
    pub fallback: Fallback,
    /// One line.
    pub help: &'static str,
    /// Parses one value into its place. A setting that may be repeated adds to its list.
    pub(super) set: fn(&mut Config, &str, &Surroundings) -> Result<(), Wrong>,
    show: fn(&Config) -> Vec<String>,
}

/// What a setting is about; decides which commands have its flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Every command that starts or describes a sandbox.
    Sandbox,
    /// Commands whose code, or who themselves, call upstream servers.
    Calls,
    /// Commands that serve.
    Server,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    One,
    /// Repeated flags, an array in the file, separated by `;` in the environment.
    Many,
}

/// What holds when nobody sets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    Value(&'static str),
    Absent {
        /// What that means, in words.
        meaning: &'static str,
    },
}

impl Fallback {
    pub fn text(self) -> &'static str {
        match self {
            Fallback::Value(text) | Fallback::Absent { meaning: text } => text,
        }
    }
}

impl Setting {
    /// The values in force, written so that they can be read again. None when nothing is set.
    pub fn show(&self, config: &Config) -> Vec<String> {
        (self.show)(config)
    }
}

/// `key` gives all three names, so that they cannot drift apart; a test holds the environment's to it.
macro_rules! setting {
    ($part:ident, $key:literal, $env:literal, $placeholder:literal, $count:expr, $fallback:expr, $help:literal,
     set: $set:expr, show: $show:expr $(,)?) => {
        Setting {
            key: $key,
            flag: concat!("--", $key),
            env: $env,
            placeholder: $placeholder,
            part: Part::$part,
            count: $count,
            fallback: $fallback,
            help: $help,
            set: $set,
            show: $show,
        }
    };
}

/// In the order in which they are applied and shown.
pub static SETTINGS: &[Setting] = &[
    setting!(
        Sandbox,
        "backend",
        "COVE_BACKEND",
        "BACKEND",
        Count::One,
        Fallback::Value("auto"),
        "What makes the sandbox: `auto`, `jail`, `docker` or `podman`",
        set: |config, text, _| assign(&mut config.backend, value::backend(text)),
        show: |config| match config.backend {
            BackendChoice::Auto => one("auto"),
            BackendChoice::Jail => one("jail"),
            BackendChoice::Docker => one("docker"),
            BackendChoice::Podman => one("podman"),
        },
    ),
    setting!(
        Sandbox,
        "network",
        "COVE_NETWORK",
        "NETWORK",
        Count::One,
        Fallback::Value("none"),
        "Network of the sandbox: `none` is its own loopback alone, else one of Docker or Podman by name",
        set: |config, text, _| assign(&mut config.policy.network, value::network(text)),
        show: |config| match &config.policy.network {
            Network::None => one("none"),
            Network::Named(name) => one(name),
        },
    ),
    setting!(
        Sandbox,
        "runtime",
        "COVE_RUNTIME",
        "NAME",
        Count::One,
        Fallback::Absent { meaning: "that of Docker or Podman" },
        "Runtime that Docker or Podman runs containers with, such as `runsc`",
        set: |config, text, _| assign(&mut config.policy.runtime, value::runtime(text)),
        show: |config| config.policy.runtime.iter().cloned().collect(),
    ),
    setting!(
        Sandbox,
        "image",
        "COVE_IMAGE",
        "NAME",
        Count::One,
        Fallback::Absent { meaning: "`ubuntu`, with every language" },
        "Image of sessions for which nobody names one",
        set: |config, text, _| {
            config.images.standard = Some(text.to_owned());
            Ok(())
        },
        show: |config| config.images.standard.iter().cloned().collect(),
    ),
    setting!(
        Sandbox,
        "image-dir",
        "COVE_IMAGE_DIR",
        "DIR",
        Count::One,
        Fallback::Absent { meaning: "images built in" },
        "Directory with a folder for each image, in place of those built in",
        set: |config, text, around| {
            if text.is_empty() {
                return Err(Wrong::new("it names no directory", "name a directory"));
            }
            config.images.dir = Some(around.cwd.join(text));
            Ok(())
        },
        show: |config| config.images.dir.iter().map(|path| path_text(path)).collect(),
    ),
    setting!(
        Sandbox,
        "pull",
        "COVE_PULL",
        "BOOLEAN",
        Count::One,
        Fallback::Value("false"),
        "Whether images that are not there may be fetched from their registry",
        set: |config, text, _| assign(&mut config.images.pull, value::boolean(text)),
        show: |config| one(config.images.pull.to_string()),
    ),
    setting!(
        Sandbox,
        "allow-compose",
        "COVE_ALLOW_COMPOSE",
        "RISK",
        Count::Many,
        Fallback::Absent { meaning: "none" },
        "What Compose files may have: `privileged`, `host-network`, `ports`, `capabilities`, `devices`; repeatable",
        set: |config, text, _| {
            config.images.compose_allowed.push(value::compose_risk(text)?);
            Ok(())
        },
        show: |config| config.images.compose_allowed.iter().map(|risk| risk.as_str().to_owned()).collect(),
    ),
    setting!(
        Sandbox,
        "memory",
        "COVE_MEMORY",
        "SIZE",
        Count::One,
        Fallback::Value("512m"),
        "Memory of the whole sandbox",
        set: |config, text, _| assign(&mut config.policy.limits.memory, value::size(text, 16 * MIB)),
        show: |config| one(value::show_size(config.policy.limits.memory)),
    ),
    setting!(
        Sandbox,
        "cpus",
        "COVE_CPUS",
        "NUMBER",
        Count::One,
        Fallback::Value("1"),
        "Processors that the sandbox may use; may be a fraction",
        set: |config, text, _| assign(&mut config.policy.limits.cpus, value::cpus(text)),
        show: |config| one(config.policy.limits.cpus.to_string()),
    ),
    setting!(
        Sandbox,
        "pids-limit",
        "COVE_PIDS_LIMIT",
        "NUMBER",
        Count::One,
        Fallback::Value("256"),
        "Processes and threads in the sandbox",
        set: |config, text, _| assign(&mut config.policy.limits.pids, value::pids(text)),
        show: |config| one(config.policy.limits.pids.to_string()),
    ),
    setting!(
        Sandbox,
        "user",
        "COVE_USER",
        "UID:GID",
        Count::One,
        Fallback::Value("65534:65534"),
        "User and group that the code runs as, never root",
        set: |config, text, _| assign(&mut config.policy.user, value::user(text)),
        show: |config| one(format!("{}:{}", config.policy.user.uid, config.policy.user.gid)),
    ),
    setting!(
        Sandbox,
        "timeout",
        "COVE_TIMEOUT",
        "DURATION",
        Count::One,
        Fallback::Value("30s"),
        "Time that one cell may take",
        set: |config, text, _| assign(&mut config.cell.timeout, value::duration(text)),
        show: |config| one(value::show_duration(config.cell.timeout)),
    ),
    setting!(
        Sandbox,
        "max-timeout",
        "COVE_MAX_TIMEOUT",
        "DURATION",
        Count::One,
        Fallback::Value("120s"),
        "Most time that a cell may be given",
        set: |config, text, _| assign(&mut config.cell.max_timeout, value::duration(text)),
        show: |config| one(value::show_duration(config.cell.max_timeout)),
    ),
    setting!(
        Sandbox,
        "max-output",
        "COVE_MAX_OUTPUT",
        "NUMBER",
        Count::One,
        Fallback::Value("20000"),
        "Characters of output that a result keeps",
        set: |config, text, _| assign(&mut config.cell.max_output, value::max_output(text)),
        show: |config| one(config.cell.max_output.to_string()),
    ),
    setting!(
        Sandbox,
        "workspace-size",
        "COVE_WORKSPACE_SIZE",
        "SIZE",
        Count::One,
        Fallback::Value("256m"),
        "Room in `/workspace`",
        set: |config, text, _| assign(&mut config.policy.limits.workspace, value::size(text, 64 * KIB)),
        show: |config| one(value::show_size(config.policy.limits.workspace)),
    ),
    setting!(
        Sandbox,
        "tmp-size",
        "COVE_TMP_SIZE",
        "SIZE",
        Count::One,
        Fallback::Value("64m"),
        "Room in `/tmp`",
        set: |config, text, _| assign(&mut config.policy.limits.tmp, value::size(text, 64 * KIB)),
        show: |config| one(value::show_size(config.policy.limits.tmp)),
    ),
    // Before `python`, which means another place when there is a root of its own.
    setting!(
        Sandbox,
        "rootfs",
        "COVE_ROOTFS",
        "DIR",
        Count::One,
        Fallback::Absent { meaning: "none" },
        "Directory to use as root in place of this machine's `/usr`",
        set: |config, text, around| assign(&mut config.policy.root, root::tree(text, around).map(Root::Tree)),
        show: |config| match &config.policy.root {
            Root::Host | Root::Image(_) => Vec::new(),
            Root::Tree(path) => one(path_text(path)),
        },
    ),
    setting!(
        Sandbox,
        "python",
        "COVE_PYTHON",
        "PATH",
        Count::One,
        Fallback::Absent { meaning: "first `python3` on `PATH`" },
        "Python that runs the code; with `--rootfs` inside that tree",
        set: |config, text, around| {
            let python = root::python(text, &config.policy.root, around).map(Some);
            assign(&mut config.policy.python, python)
        },
        show: |config| config.policy.python.iter().map(|path| path_text(path)).collect(),
    ),
    setting!(
        Sandbox,
        "mount",
        "COVE_MOUNT",
        "SOURCE:TARGET[:rw]",
        Count::Many,
        Fallback::Absent { meaning: "none" },
        "What to show inside, read-only unless `:rw`; repeatable",
        set: |config, text, around| {
            let mount = mount::parse(text, &config.policy.mounts, around)?;
            config.policy.mounts.push(mount);
            Ok(())
        },
        show: |config| {
            let show = |mount: &crate::policy::Mount| {
                let access = match mount.access {
                    Access::ReadOnly => "",
                    Access::ReadWrite => ":rw",
                };
                format!("{}:{}{access}", path_text(&mount.source), path_text(&mount.target))
            };
            config.policy.mounts.iter().map(show).collect()
        },
    ),
    setting!(
        Sandbox,
        "allow-mount",
        "COVE_ALLOW_MOUNT",
        "DIR[:rw]",
        Count::Many,
        Fallback::Absent { meaning: "none" },
        "Directory that agents and Compose files may mount from, read-only unless `:rw`; repeatable",
        set: |config, text, around| {
            config.server.allowed_mounts.push(mount::allowed(text, around)?);
            Ok(())
        },
        show: |config| config.server.allowed_mounts.iter().map(ToString::to_string).collect(),
    ),
    setting!(
        Calls,
        "allow-call",
        "COVE_ALLOW_CALL",
        "SERVER.TOOL",
        Count::Many,
        Fallback::Absent { meaning: "all" },
        "Tools of MCP servers that code may call, `*` for any; repeatable",
        set: |config, text, _| {
            config.grants.allowed.push(pattern(text)?);
            Ok(())
        },
        show: |config| config.grants.allowed.iter().map(ToString::to_string).collect(),
    ),
    setting!(
        Calls,
        "deny-call",
        "COVE_DENY_CALL",
        "SERVER.TOOL",
        Count::Many,
        Fallback::Absent { meaning: "none" },
        "Tools of MCP servers that code may not call, whatever is allowed; repeatable",
        set: |config, text, _| {
            config.grants.denied.push(pattern(text)?);
            Ok(())
        },
        show: |config| config.grants.denied.iter().map(ToString::to_string).collect(),
    ),
    setting!(
        Calls,
        "state-dir",
        "COVE_STATE_DIR",
        "DIR",
        Count::One,
        Fallback::Absent { meaning: "`~/.local/state/cove`" },
        "Directory for what lasts from one start to the next",
        set: |config, text, around| {
            config.server.state_dir = Some(around.cwd.join(text));
            Ok(())
        },
        show: |config| config.server.state_dir.iter().map(|path| path_text(path)).collect(),
    ),
    setting!(
        Server,
        "tools",
        "COVE_TOOLS",
        "TOOLSETS",
        Count::One,
        Fallback::Value("code"),
        "Tools that agents see: `code`, `python`, `sessions`, `files`, comma separated, or `all`",
        set: |config, text, _| assign(&mut config.server.tools, server::tools(text)),
        show: |config| one(config.server.tools.to_string()),
    ),
    setting!(
        Server,
        "output",
        "COVE_OUTPUT",
        "FORMAT",
        Count::One,
        Fallback::Value("compact"),
        "How results are written for the model: `compact`, `toon` or `json`",
        set: |config, text, _| assign(&mut config.server.output, server::output(text)),
        show: |config| one(config.server.output.as_str()),
    ),
    setting!(
        Server,
        "idle-timeout",
        "COVE_IDLE_TIMEOUT",
        "DURATION",
        Count::One,
        Fallback::Value("30m"),
        "Time after which a session that nobody uses ends",
        set: |config, text, _| assign(&mut config.server.idle_timeout, value::duration(text)),
        show: |config| one(value::show_duration(config.server.idle_timeout)),
    ),
    setting!(
        Server,
        "max-sessions",
        "COVE_MAX_SESSIONS",
        "NUMBER",
        Count::One,
        Fallback::Value("64"),
        "Sessions that may be open at once",
        set: |config, text, _| assign(&mut config.server.max_sessions, server::count(text, 100_000)),
        show: |config| one(config.server.max_sessions.to_string()),
    ),
    setting!(
        Server,
        "log-level",
        "COVE_LOG_LEVEL",
        "LEVEL",
        Count::One,
        Fallback::Value("info"),
        "What is logged on standard error: `error`, `warn`, `info`, `debug` or `off`",
        set: |config, text, _| assign(&mut config.server.log_level, server::log_level(text)),
        show: |config| one(config.server.log_level.as_str()),
    ),
    setting!(
        Server,
        "log-format",
        "COVE_LOG_FORMAT",
        "FORMAT",
        Count::One,
        Fallback::Value("text"),
        "How logs are written: `text` or `json`, one record a line",
        set: |config, text, _| assign(&mut config.server.log_format, server::log_format(text)),
        show: |config| one(config.server.log_format.as_str()),
    ),
    setting!(
        Server,
        "http",
        "COVE_HTTP",
        "ADDR",
        Count::One,
        Fallback::Absent { meaning: "standard input and output" },
        "Address to serve HTTP on, such as `127.0.0.1:8765` or `:8765`",
        set: |config, text, _| assign(&mut config.server.http.address, http::address(text).map(Some)),
        show: |config| config.server.http.address.iter().map(ToString::to_string).collect(),
    ),
    setting!(
        Server,
        "auth",
        "COVE_AUTH",
        "KIND",
        Count::One,
        Fallback::Value("token"),
        "Who may ask over HTTP: who has a `token`, or anyone here with `none`",
        set: |config, text, _| assign(&mut config.server.http.auth, server::auth(text)),
        show: |config| one(config.server.http.auth.as_str()),
    ),
    setting!(
        Server,
        "token-file",
        "COVE_TOKEN_FILE",
        "FILE",
        Count::One,
        Fallback::Absent { meaning: "`tokens` in the state directory" },
        "File with tokens, one `TOKEN` or `NAME TOKEN` a line",
        set: |config, text, around| {
            if text.is_empty() {
                return Err(Wrong::new("it names no file", "name a file"));
            }
            config.server.http.token_file = Some(around.cwd.join(text));
            Ok(())
        },
        show: |config| config.server.http.token_file.iter().map(|path| path_text(path)).collect(),
    ),
    setting!(
        Server,
        "allow-host",
        "COVE_ALLOW_HOST",
        "HOST[:PORT]",
        Count::Many,
        Fallback::Absent { meaning: "loopback and the address itself" },
        "Further name of this server over HTTP; repeatable",
        set: |config, text, _| {
            config.server.http.allowed_hosts.push(http::allowed_host(text)?);
            Ok(())
        },
        show: |config| config.server.http.allowed_hosts.iter().map(ToString::to_string).collect(),
    ),
    setting!(
        Server,
        "allow-origin",
        "COVE_ALLOW_ORIGIN",
        "ORIGIN",
        Count::Many,
        Fallback::Absent { meaning: "pages of this machine" },
        "Origin of pages that may ask, as `https://a.example`; repeatable",
        set: |config, text, _| {
            config.server.http.allowed_origins.push(http::allowed_origin(text)?);
            Ok(())
        },
        show: |config| config.server.http.allowed_origins.iter().map(ToString::to_string).collect(),
    ),
    setting!(
        Server,
        "max-connections",
        "COVE_MAX_CONNECTIONS",
        "NUMBER",
        Count::One,
        Fallback::Value("256"),
        "HTTP connections that may be open at once",
        set: |config, text, _| assign(&mut config.server.http.max_connections, server::count(text, 100_000)),
        show: |config| one(config.server.http.max_connections.to_string()),
    ),
    setting!(
        Server,
        "rate-limit",
        "COVE_RATE_LIMIT",
        "NUMBER",
        Count::One,
        Fallback::Value("100"),
        "HTTP requests a second for each token; twice that in a burst",
        set: |config, text, _| assign(&mut config.server.http.rate_limit, server::count(text, 1_000_000)),
        show: |config| one(config.server.http.rate_limit.to_string()),
    ),
];

fn assign<T>(place: &mut T, value: Result<T, Wrong>) -> Result<(), Wrong> {
    *place = value?;
    Ok(())
}

fn one(text: impl Into<String>) -> Vec<String> {
    vec![text.into()]
}

fn pattern(text: &str) -> Result<Pattern, Wrong> {
    let right =
        "write `SERVER`, or `SERVER.TOOL` with `*` for any run of characters, such as `github.list_*`";
    Pattern::parse(text).map_err(|cause| Wrong::new(cause, right))
}

fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

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
}
