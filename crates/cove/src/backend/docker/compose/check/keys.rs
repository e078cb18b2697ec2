//! What a Compose file may say at all, by key. A key that is not here is refused, so what a later Compose learns to do
//! is not done before somebody has thought about it.

use serde_json::{Map, Value};

use super::{Wrong, at};

/// What becomes of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// Acts inside of the container alone, so it stays as it is.
    Kept,
    /// Set by us, whatever the file says.
    Ours,
    /// Looked at, value by value.
    Checked,
    /// Gone once Compose has resolved the file, and looked at before.
    Resolved,
}

pub(super) const TOP: &[(&str, Rule)] = &[
    ("name", Rule::Ours),
    ("networks", Rule::Checked),
    ("services", Rule::Checked),
    ("version", Rule::Ours),
    ("volumes", Rule::Checked),
];

pub(super) const MEMBER: &[(&str, Rule)] = &[
    ("build", Rule::Checked),
    ("cap_add", Rule::Checked),
    ("cap_drop", Rule::Ours),
    ("command", Rule::Kept),
    ("cpus", Rule::Checked),
    ("depends_on", Rule::Kept),
    ("devices", Rule::Checked),
    ("domainname", Rule::Kept),
    ("entrypoint", Rule::Kept),
    ("env_file", Rule::Resolved),
    ("environment", Rule::Kept),
    ("expose", Rule::Kept),
    ("extends", Rule::Resolved),
    ("healthcheck", Rule::Kept),
    ("hostname", Rule::Kept),
    ("image", Rule::Checked),
    ("init", Rule::Kept),
    ("labels", Rule::Ours),
    ("logging", Rule::Ours),
    ("mem_limit", Rule::Checked),
    ("memswap_limit", Rule::Ours),
    ("network_mode", Rule::Checked),
    ("networks", Rule::Checked),
    ("pids_limit", Rule::Checked),
    ("ports", Rule::Checked),
    ("privileged", Rule::Checked),
    ("read_only", Rule::Kept),
    ("restart", Rule::Ours),
    ("security_opt", Rule::Checked),
    ("shm_size", Rule::Kept),
    ("stdin_open", Rule::Kept),
    ("stop_grace_period", Rule::Kept),
    ("stop_signal", Rule::Kept),
    ("sysctls", Rule::Checked),
    ("tmpfs", Rule::Checked),
    ("tty", Rule::Kept),
    ("user", Rule::Kept),
    ("volumes", Rule::Checked),
    ("working_dir", Rule::Kept),
];

pub(super) const BUILD: &[(&str, Rule)] = &[
    ("args", Rule::Kept),
    ("context", Rule::Checked),
    ("dockerfile", Rule::Checked),
    ("target", Rule::Kept),
];

pub(super) const NETWORK: &[(&str, Rule)] = &[
    ("driver", Rule::Checked),
    ("driver_opts", Rule::Checked),
    ("external", Rule::Checked),
    ("internal", Rule::Ours),
    ("ipam", Rule::Checked),
    ("labels", Rule::Ours),
    ("name", Rule::Checked),
];

pub(super) const VOLUME: &[(&str, Rule)] = &[
    ("driver", Rule::Checked),
    ("driver_opts", Rule::Checked),
    ("external", Rule::Checked),
    ("labels", Rule::Ours),
    ("name", Rule::Checked),
];

/// Keys that people do write, and why they cannot have them. Completes "`services.web.pid` …".
const WHY_NOT: &[(&str, &str)] = &[
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

/// Refuses what is not in the table. Keys of one's own, `x-…`, say nothing to anybody and are left out.
pub(super) fn known(
    map: &Map<String, Value>,
    table: &[(&str, Rule)],
    place: &str,
) -> Result<Vec<(String, Rule)>, Wrong> {
    let mut found = Vec::new();
    for key in map.keys().filter(|key| !key.starts_with("x-")) {
        let Some((_, rule)) = table.iter().find(|(name, _)| name == key) else {
            return Err(unknown(place, key));
        };
        found.push((key.clone(), *rule));
    }
    Ok(found)
}

pub(super) fn unknown(place: &str, key: &str) -> Wrong {
    let key_at = at(place, key);
    match WHY_NOT.iter().find(|(name, _)| *name == key) {
        Some((_, why)) => Wrong::new(format!("the key `{key_at}` is refused: it {why}"), "remove it"),
        None => Wrong::new(
            format!("the key `{key_at}` is not one that Cove can hold to its limits"),
            "remove it".to_owned(),
        ),
    }
}
