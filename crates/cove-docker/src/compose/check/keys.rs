//! The keys that a Compose file may have. Any other key is refused, so a feature of a later Compose stays off until
//! Cove supports it.

use serde_json::{Map, Value};

use super::key_path;
use cove_core::error::Refusal;

/// What Cove does with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyRule {
    /// Affects only the inside of the container, so it is kept as written.
    Kept,
    /// Set by Cove, whatever the file says.
    Overridden,
    /// Its value is checked.
    Checked,
    /// Checked before Compose resolves the file, and gone afterwards.
    Resolved,
}

pub(super) const TOP_KEYS: &[(&str, KeyRule)] = &[
    ("name", KeyRule::Overridden),
    ("networks", KeyRule::Checked),
    ("services", KeyRule::Checked),
    ("version", KeyRule::Overridden),
    ("volumes", KeyRule::Checked),
];

pub(super) const SERVICE_KEYS: &[(&str, KeyRule)] = &[
    ("build", KeyRule::Checked),
    ("cap_add", KeyRule::Checked),
    ("cap_drop", KeyRule::Overridden),
    ("command", KeyRule::Kept),
    ("cpus", KeyRule::Checked),
    ("depends_on", KeyRule::Kept),
    ("devices", KeyRule::Checked),
    ("domainname", KeyRule::Kept),
    ("entrypoint", KeyRule::Kept),
    ("env_file", KeyRule::Resolved),
    ("environment", KeyRule::Kept),
    ("expose", KeyRule::Kept),
    ("extends", KeyRule::Resolved),
    ("healthcheck", KeyRule::Kept),
    ("hostname", KeyRule::Kept),
    ("image", KeyRule::Checked),
    ("init", KeyRule::Kept),
    ("labels", KeyRule::Overridden),
    ("logging", KeyRule::Overridden),
    ("mem_limit", KeyRule::Checked),
    ("memswap_limit", KeyRule::Overridden),
    ("network_mode", KeyRule::Checked),
    ("networks", KeyRule::Checked),
    ("pids_limit", KeyRule::Checked),
    ("ports", KeyRule::Checked),
    ("privileged", KeyRule::Checked),
    ("read_only", KeyRule::Kept),
    ("restart", KeyRule::Overridden),
    ("security_opt", KeyRule::Checked),
    ("shm_size", KeyRule::Kept),
    ("stdin_open", KeyRule::Kept),
    ("stop_grace_period", KeyRule::Kept),
    ("stop_signal", KeyRule::Kept),
    ("sysctls", KeyRule::Checked),
    ("tmpfs", KeyRule::Checked),
    ("tty", KeyRule::Kept),
    ("user", KeyRule::Kept),
    ("volumes", KeyRule::Checked),
    ("working_dir", KeyRule::Kept),
];

pub(super) const BUILD_KEYS: &[(&str, KeyRule)] = &[
    ("args", KeyRule::Kept),
    ("context", KeyRule::Checked),
    ("dockerfile", KeyRule::Checked),
    ("target", KeyRule::Kept),
];

pub(super) const NETWORK_KEYS: &[(&str, KeyRule)] = &[
    ("driver", KeyRule::Checked),
    ("driver_opts", KeyRule::Checked),
    ("external", KeyRule::Checked),
    ("internal", KeyRule::Overridden),
    ("ipam", KeyRule::Checked),
    ("labels", KeyRule::Overridden),
    ("name", KeyRule::Checked),
];

pub(super) const VOLUME_KEYS: &[(&str, KeyRule)] = &[
    ("driver", KeyRule::Checked),
    ("driver_opts", KeyRule::Checked),
    ("external", KeyRule::Checked),
    ("labels", KeyRule::Overridden),
    ("name", KeyRule::Checked),
];

/// Keys that users often write, with the reason why they are refused. Completes "`services.web.pid` is refused: it …".
const REFUSED_KEY_REASONS: &[(&str, &str)] = &[
    ("annotations", "steers what runs the container"),
    ("cgroup", "leaves the container's own control group"),
    ("cgroup_parent", "leaves the limits that Cove sets"),
    ("configs", "shows files of this machine"),
    ("container_name", "lets only one session at a time have the image"),
    ("credential_spec", "shows credentials of this machine"),
    ("deploy", "sets limits that Cove sets itself"),
    ("device_cgroup_rules", "opens devices of this machine"),
    ("external_links", "reaches containers of others"),
    ("gpus", "opens devices of this machine"),
    ("include", "brings in files that Cove has not looked at"),
    ("ipc", "shares memory with others"),
    ("oom_kill_disable", "takes away the limit of memory"),
    ("pid", "shares the processes of another place"),
    ("runtime", "is chosen by the operator, with `--runtime`"),
    ("secrets", "shows files of this machine"),
    ("userns_mode", "shares the users of this machine"),
    ("uts", "shares the name of this machine"),
    ("volumes_from", "shows what belongs to other containers"),
];

/// Returns the rule of each key. Fails if a key is not in the table. Skips extension keys (`x-…`), which have no
/// effect.
pub(super) fn check_keys<'a>(
    map: &'a Map<String, Value>,
    table: &[(&str, KeyRule)],
    place: &str,
) -> Result<Vec<(&'a String, KeyRule)>, Refusal> {
    let rule = |key: &'a String| match table.iter().find(|(name, _)| name == key) {
        Some((_, rule)) => Ok((key, *rule)),
        None => Err(unknown_key_error(place, key)),
    };
    map.keys().filter(|key| !key.starts_with("x-")).map(rule).collect()
}

pub(super) fn unknown_key_error(place: &str, key: &str) -> Refusal {
    let why = match REFUSED_KEY_REASONS.iter().find(|(name, _)| *name == key) {
        Some((_, why)) => format!("refused: it {why}"),
        None => "not one that Cove can hold to its limits".to_owned(),
    };
    Refusal::new(format!("the key `{}` is {why}", key_path(place, key)), "remove it")
}
