//! The one table of settings. A row is everything there is to say about a setting: its names, its default, its help,
//! how its text becomes part of the configuration and how that part is shown.

use std::path::Path;

use super::value::{self, KIB, MIB, Wrong};
use super::{BackendChoice, Config, Surroundings, mount, root};
use crate::policy::{Access, Network, Root};

#[derive(Debug)]
pub struct Setting {
    /// The key in the file.
    pub key: &'static str,
    pub flag: &'static str,
    pub env: &'static str,
    /// What stands for the value in help.
    pub placeholder: &'static str,
    pub count: Count,
    pub fallback: Fallback,
    /// One line.
    pub help: &'static str,
    /// Parses one value into its place. A setting that may be repeated adds to its list.
    pub(super) set: fn(&mut Config, &str, &Surroundings) -> Result<(), Wrong>,
    show: fn(&Config) -> Vec<String>,
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
    ($key:literal, $env:literal, $placeholder:literal, $count:expr, $fallback:expr, $help:literal,
     set: $set:expr, show: $show:expr $(,)?) => {
        Setting {
            key: $key,
            flag: concat!("--", $key),
            env: $env,
            placeholder: $placeholder,
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
        "backend",
        "COVE_BACKEND",
        "BACKEND",
        Count::One,
        Fallback::Value("auto"),
        "What makes the sandbox: `auto` or `jail`",
        set: |config, text, _| assign(&mut config.backend, value::backend(text)),
        show: |config| match config.backend {
            BackendChoice::Auto => one("auto"),
            BackendChoice::Jail => one("jail"),
        },
    ),
    setting!(
        "network",
        "COVE_NETWORK",
        "NETWORK",
        Count::One,
        Fallback::Value("none"),
        "Network of the sandbox; `none` is its own loopback alone",
        set: |config, text, _| assign(&mut config.policy.network, value::network(text)),
        show: |config| match config.policy.network {
            Network::None => one("none"),
        },
    ),
    setting!(
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
        "rootfs",
        "COVE_ROOTFS",
        "DIR",
        Count::One,
        Fallback::Absent { meaning: "none" },
        "Directory to use as root in place of this machine's `/usr`",
        set: |config, text, around| assign(&mut config.policy.root, root::tree(text, around).map(Root::Tree)),
        show: |config| match &config.policy.root {
            Root::Host => Vec::new(),
            Root::Tree(path) => one(path_text(path)),
        },
    ),
    setting!(
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
];

fn assign<T>(place: &mut T, value: Result<T, Wrong>) -> Result<(), Wrong> {
    *place = value?;
    Ok(())
}

fn one(text: impl Into<String>) -> Vec<String> {
    vec![text.into()]
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
