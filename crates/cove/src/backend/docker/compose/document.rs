//! The one document that is run: what of the file was looked at, and what we set for every container. Pure: what is
//! written here is compared with what came of it in `verify`.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::super::facts::Maker;
use super::check::{Checked, Member, Mounted, Net};
use crate::policy::{Access, Mount, Policy};

/// Where the runner is, inside.
pub(super) const RUNNER: &str = "/.cove";
/// The key of its volume in the document; `name` in `check` lets no file have it.
const RUNNER_KEY: &str = "_cove_runner";

/// Keeps Docker from giving the machine an address in a network.
pub(super) const NO_ADDRESS: &str = "com.docker.network.bridge.inhibit_ipv4";

/// What is set for all containers of a file alike.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms<'a> {
    pub(super) kind: Maker,
    pub(super) policy: &'a Policy,
    pub(super) labels: &'a BTreeMap<String, String>,
    pub(super) runner_volume: &'a str,
    /// The filter of system calls, where it can be set.
    pub(super) profile: Option<&'a Path>,
    /// What those that are built are called, by name of the container.
    pub(super) built: &'a BTreeMap<String, String>,
}

/// Bounds of one container: the policy's, or less where the file asks for less.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bounds {
    pub(super) memory: u64,
    pub(super) cpus: f64,
    pub(super) pids: u32,
}

pub(super) fn bounds(member: &Member, policy: &Policy) -> Bounds {
    let limits = policy.limits;
    Bounds {
        memory: member.memory.map_or(limits.memory, |memory| memory.min(limits.memory)),
        cpus: member.cpus.map_or(limits.cpus, |cpus| cpus.min(limits.cpus)),
        pids: member.pids.map_or(limits.pids, |pids| pids.min(limits.pids)),
    }
}

pub(super) fn document(checked: &Checked, terms: &Terms<'_>) -> Value {
    let members: Map<String, Value> = checked
        .members
        .iter()
        .map(|(name, member)| (name.clone(), container(name, member, *name == checked.main, terms)))
        .collect();
    let own = |extra: Value| {
        let mut shared = json!({ "labels": terms.labels });
        if let (Some(shared), Value::Object(extra)) = (shared.as_object_mut(), extra) {
            shared.extend(extra);
        }
        shared
    };
    // The operator's own network is joined later, through the interface of Docker: Compose would give all containers
    // of all sessions their short names in it.
    let mut closed = json!({ "internal": true });
    if terms.kind == Maker::Docker {
        // Else the machine itself is in the network, with every program that listens on all its addresses.
        closed["driver_opts"] = json!({ NO_ADDRESS: "true" });
    }
    let networks: Map<String, Value> =
        checked.networks.iter().map(|name| (name.clone(), own(closed.clone()))).collect();
    let mut volumes: Map<String, Value> =
        checked.volumes.iter().map(|name| (name.clone(), own(json!({})))).collect();
    volumes.insert(RUNNER_KEY.to_owned(), json!({ "external": true, "name": terms.runner_volume }));
    json!({ "services": members, "networks": networks, "volumes": volumes })
}

fn container(name: &str, member: &Member, is_main: bool, terms: &Terms<'_>) -> Value {
    let bounds = bounds(member, terms.policy);
    let mut result = member.kept.clone();
    if result.contains_key("environment") {
        result.insert("environment".into(), variables(member).into());
    }
    let mut set = |key: &str, value: Value| drop(result.insert(key.to_owned(), value));
    match (&member.build, terms.built.get(name)) {
        (Some(_), Some(tag)) => set("image", json!(tag)),
        _ => set("image", json!(member.image)),
    }
    // Built already; without this Compose would fetch what has its name, should it be gone.
    if let Some(build) = &member.build {
        let mut section = build.kept.clone();
        section.insert("context".into(), json!(build.context));
        let within = build.dockerfile.strip_prefix(&build.context).unwrap_or(&build.dockerfile);
        section.insert("dockerfile".into(), json!(within));
        set("build", section.into());
    }
    set("labels", json!(terms.labels));
    set("restart", json!("no"));
    set("logging", logging(terms.kind));
    set("mem_limit", json!(bounds.memory));
    set("memswap_limit", json!(bounds.memory));
    set("cpus", json!(bounds.cpus));
    set("pids_limit", json!(bounds.pids));
    // Podman adds limits of its own to any that are set, which may be higher than it may set.
    if terms.kind == Maker::Docker {
        set("ulimits", json!({ "core": 0, "nofile": { "soft": 4096, "hard": 4096 } }));
    }
    if let Some(runtime) = &terms.policy.runtime {
        set("runtime", json!(runtime));
    }
    if member.is_privileged {
        set("privileged", json!(true));
    } else {
        let mut options = vec!["no-new-privileges:true".to_owned()];
        options.extend(terms.profile.map(|path| format!("seccomp={}", path.to_string_lossy())));
        set("security_opt", json!(options));
        set("cap_drop", json!(["ALL"]));
        set("cap_add", json!(member.capabilities));
    }
    match &member.net {
        Net::Joined(joined) => {
            let joined = joined.iter().map(|(network, aliases)| {
                let options = if aliases.is_empty() { Value::Null } else { json!({ "aliases": aliases }) };
                (network.clone(), options)
            });
            set("networks", Value::Object(joined.collect()));
        }
        Net::Of(other) => set("network_mode", json!(format!("service:{other}"))),
        Net::None => set("network_mode", json!("none")),
        Net::Host => set("network_mode", json!("host")),
    }
    let mut volumes: Vec<Value> = member.mounts.iter().filter_map(mounted).collect();
    let mut memory: Vec<String> =
        member.mounts.iter().filter_map(|mount| in_memory(mount, terms.policy)).collect();
    if is_main {
        volumes.push(json!({ "type": "volume", "source": RUNNER_KEY, "target": RUNNER, "read_only": true }));
        volumes.extend(terms.policy.mounts.iter().map(operators));
        memory.extend(own_places(terms));
    }
    set("volumes", json!(volumes));
    set("tmpfs", json!(memory));
    result.into()
}

/// The variables of the file. Those without a value are left out: Compose would fill them from where it runs.
pub(super) fn variables(member: &Member) -> Map<String, Value> {
    match member.kept.get("environment") {
        Some(Value::Object(map)) => map
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
        Some(Value::Array(lines)) => {
            let pairs = lines.iter().filter_map(|line| line.as_str()?.split_once('='));
            pairs.map(|(name, value)| (name.to_owned(), value.into())).collect()
        }
        _ => Map::new(),
    }
}

/// Enough to say why a container ended, and bounded: of what Podman has, only its own kind of file is.
fn logging(kind: Maker) -> Value {
    match kind {
        Maker::Docker => json!({ "driver": "json-file", "options": { "max-size": "1m", "max-file": "1" } }),
        Maker::Podman => json!({ "driver": "k8s-file", "options": { "max-size": "1m" } }),
    }
}

/// The places that a session writes to. Podman takes no owner for them, so there everybody in the container may.
fn own_places(terms: &Terms<'_>) -> [String; 2] {
    let (user, limits) = (terms.policy.user, terms.policy.limits);
    let workspace = match terms.kind {
        Maker::Docker => format!("uid={},gid={},mode=0700", user.uid, user.gid),
        Maker::Podman => "mode=0777".to_owned(),
    };
    [
        format!("/workspace:rw,exec,nosuid,nodev,size={},{workspace}", limits.workspace),
        format!("/tmp:rw,exec,nosuid,nodev,size={},mode=1777", limits.tmp),
    ]
}

fn mounted(mount: &Mounted) -> Option<Value> {
    let is_read_only = |access: &Access| *access == Access::ReadOnly;
    match mount {
        Mounted::Bind { source, target, access } => Some(json!({
            "type": "bind", "source": source, "target": target, "read_only": is_read_only(access),
        })),
        Mounted::Volume { name: Some(name), target, access } => Some(json!({
            "type": "volume", "source": name, "target": target, "read_only": is_read_only(access),
        })),
        Mounted::Volume { name: None, target, .. } => Some(json!({ "type": "volume", "target": target })),
        Mounted::Memory { .. } => None,
    }
}

/// No larger than all memory that the container may have.
fn in_memory(mount: &Mounted, policy: &Policy) -> Option<String> {
    let Mounted::Memory { target, size, mode } = mount else { return None };
    let size = size.unwrap_or(policy.limits.tmp).min(policy.limits.memory);
    let mode = mode.as_deref().unwrap_or("1777");
    Some(format!("{target}:rw,nosuid,nodev,size={size},mode={mode}"))
}

fn operators(mount: &Mount) -> Value {
    json!({
        "type": "bind",
        "source": mount.source,
        "target": mount.target,
        "read_only": mount.access == Access::ReadOnly,
    })
}
