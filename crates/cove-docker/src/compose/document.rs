//! The document that Compose runs: the checked parts of the file, and Cove's settings for every container. Pure.
//! `read_back` later compares the created containers with these settings.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::super::engine::Engine;
use super::ComposeRequest;
use super::check::{CheckedCompose, ComposeService, ServiceMount, ServiceNetwork};
use cove_core::policy::{MountAccess, SandboxLimits, SandboxMount};
use cove_jail::guest::{COVE_FOLDER, TMP, WORKSPACE, inode_limit};

/// The key of the runner volume in the document. `check_name` refuses it in files, so it cannot collide.
const RUNNER_VOLUME_KEY: &str = "_cove_runner";

/// A network option that keeps Docker from giving the host an address in the network.
pub(super) const NO_GATEWAY_OPTION: &str = "com.docker.network.bridge.inhibit_ipv4";

/// The limit on core files of every container whose engine takes one.
pub(super) const CORE_LIMIT: i64 = 1;

/// The settings that apply to all containers of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct DocumentSettings<'a> {
    pub(super) engine: Engine,
    pub(super) request: &'a ComposeRequest,
    /// The path of the seccomp profile, if the engine accepts one.
    pub(super) profile: Option<&'a Path>,
    /// The references of built images, by service name.
    pub(super) built_images: &'a BTreeMap<String, String>,
}

/// Returns the limits of one container: the policy's, or lower ones if the file asks for them.
pub(super) fn service_limits(member: &ComposeService, limits: &SandboxLimits) -> SandboxLimits {
    SandboxLimits {
        memory: member.memory.map_or(limits.memory, |memory| memory.min(limits.memory)),
        cpus: member.cpus.map_or(limits.cpus, |cpus| cpus.min(limits.cpus)),
        pids: member.pids.map_or(limits.pids, |pids| pids.min(limits.pids)),
        ..*limits
    }
}

/// Builds the document from a checked file.
pub(super) fn build_document(checked: &CheckedCompose, settings: &DocumentSettings<'_>) -> Value {
    let request = settings.request;
    let services = checked.services.iter();
    let services: Map<String, Value> = services
        .map(|(name, member)| (name.clone(), service_entry(name, member, *name == checked.main, settings)))
        .collect();
    // The containers join the operator's network later, through the engine's API: Compose would give them their short
    // service names there, and those of all sessions would collide.
    let mut closed = json!({ "labels": request.labels, "internal": true });
    if settings.engine.traits().closes_networks {
        closed["driver_opts"] = json!({ NO_GATEWAY_OPTION: "true" });
    }
    let networks: Map<String, Value> = checked.networks.iter().map(|name| (name.clone(), closed.clone())).collect();
    let own = json!({ "labels": request.labels });
    let mut volumes: Map<String, Value> = checked.volumes.iter().map(|name| (name.clone(), own.clone())).collect();
    volumes.insert(RUNNER_VOLUME_KEY.to_owned(), json!({ "external": true, "name": request.runner_volume }));
    json!({ "services": services, "networks": networks, "volumes": volumes })
}

fn service_entry(name: &str, member: &ComposeService, is_main: bool, settings: &DocumentSettings<'_>) -> Value {
    let policy = &settings.request.policy;
    let limits = service_limits(member, &policy.limits);
    let mut result = member.kept.clone();
    if result.contains_key("environment") {
        result.insert("environment".into(), service_variables(member).into());
    }
    let mut set = |key: &str, value: Value| drop(result.insert(key.to_owned(), value));
    let built = settings.built_images.get(name).filter(|_| member.build.is_some());
    set("image", json!(built.or(member.image.as_ref())));
    // The image is already built. Without a `build` section Compose would pull an image of that name if it were gone.
    if let Some(build) = &member.build {
        let mut section = json!({ "context": build.folder, "dockerfile": build.dockerfile });
        if !build.arguments.is_empty() {
            section["args"] = json!(build.arguments);
        }
        if let Some(target) = &build.target {
            section["target"] = json!(target);
        }
        set("build", section);
    }
    set("labels", json!(settings.request.labels));
    set("restart", json!("no"));
    // The logs explain why a container ended.
    let engine = settings.engine.traits();
    let log_options: BTreeMap<_, _> = engine.log_options.iter().copied().collect();
    set("logging", json!({ "driver": engine.log_driver, "options": log_options }));
    set("mem_limit", json!(limits.memory));
    set("memswap_limit", json!(limits.memory));
    set("cpus", json!(limits.cpus));
    set("pids_limit", json!(limits.pids));
    // With others it would be without the operator's defaults. The runner limits core files itself.
    if !engine.adds_default_rlimits {
        // 1 and not 0: see `cove_jail::guest::rlimits`.
        set("ulimits", json!({ "core": CORE_LIMIT, "nofile": { "soft": 4096, "hard": 4096 } }));
    }
    if let Some(runtime) = &policy.runtime {
        set("runtime", json!(runtime));
    }
    if member.risks.is_privileged {
        set("privileged", json!(true));
    } else {
        let mut options = vec!["no-new-privileges:true".to_owned()];
        options.extend(settings.profile.map(|path| format!("seccomp={}", path.to_string_lossy())));
        set("security_opt", json!(options));
        set("cap_drop", json!(["ALL"]));
        set("cap_add", json!(member.risks.capabilities));
    }
    match &member.network {
        ServiceNetwork::Joined(joined) => {
            let joined = joined.iter().map(|(network, aliases)| {
                let options = if aliases.is_empty() { Value::Null } else { json!({ "aliases": aliases }) };
                (network.clone(), options)
            });
            set("networks", Value::Object(joined.collect()));
        }
        ServiceNetwork::OfService(other) => set("network_mode", json!(format!("service:{other}"))),
        ServiceNetwork::None => set("network_mode", json!("none")),
        ServiceNetwork::Host => set("network_mode", json!("host")),
    }
    let mut volumes: Vec<Value> = member.mounts.iter().filter_map(mount_entry).collect();
    let tmpfs = member.mounts.iter().filter_map(|mount| tmpfs_entry(mount, &policy.limits));
    let mut tmpfs: Vec<String> = tmpfs.collect();
    if is_main {
        volumes
            .push(json!({ "type": "volume", "source": RUNNER_VOLUME_KEY, "target": COVE_FOLDER, "read_only": true }));
        volumes.extend(policy.mounts.iter().map(bind_entry));
        tmpfs.extend(session_tmpfs(settings));
    }
    set("volumes", json!(volumes));
    set("tmpfs", json!(tmpfs));
    result.into()
}

/// Returns the variables of the file, without those that have no value: Compose would take these from its environment.
pub(super) fn service_variables(member: &ComposeService) -> Map<String, Value> {
    match member.kept.get("environment") {
        Some(Value::Object(map)) => {
            let mut map = map.clone();
            map.retain(|_, value| !value.is_null());
            map
        }
        Some(Value::Array(lines)) => {
            let pairs = lines.iter().filter_map(|line| line.as_str()?.split_once('='));
            pairs.map(|(name, value)| (name.to_owned(), value.into())).collect()
        }
        _ => Map::new(),
    }
}

/// Returns the tmpfs entries for `/workspace` and `/tmp`. Podman accepts no owner for a tmpfs, so all users in the
/// container may write to `/workspace`, and no limit of inodes.
fn session_tmpfs(settings: &DocumentSettings<'_>) -> [String; 2] {
    let (user, limits) = (settings.request.policy.user, settings.request.policy.limits);
    let is_docker = settings.engine.traits().takes_docker_options;
    let workspace = match is_docker {
        true => format!("uid={},gid={},mode=0700", user.uid, user.gid),
        false => "mode=0777".to_owned(),
    };
    let entry = |place: &str, size: u64, mode: &str| {
        let files = if is_docker { format!(",nr_inodes={}", inode_limit(size)) } else { String::new() };
        format!("{place}:rw,exec,nosuid,nodev,size={size},{mode}{files}")
    };
    [entry(WORKSPACE, limits.workspace, &workspace), entry(TMP, limits.tmp, "mode=1777")]
}

fn mount_entry(mount: &ServiceMount) -> Option<Value> {
    match mount {
        ServiceMount::Bind(mount) => Some(bind_entry(mount)),
        ServiceMount::Volume { name: Some(name), target, access } => Some(json!({
            "type": "volume", "source": name, "target": target, "read_only": *access == MountAccess::ReadOnly,
        })),
        ServiceMount::Volume { name: None, target, .. } => Some(json!({ "type": "volume", "target": target })),
        ServiceMount::Tmpfs { .. } => None,
    }
}

fn bind_entry(mount: &SandboxMount) -> Value {
    let SandboxMount { source, target, access } = mount;
    json!({ "type": "bind", "source": source, "target": target, "read_only": *access == MountAccess::ReadOnly })
}

/// Returns the entry of a tmpfs, no larger than the policy's memory limit.
fn tmpfs_entry(mount: &ServiceMount, limits: &SandboxLimits) -> Option<String> {
    let ServiceMount::Tmpfs { target, size, mode } = mount else { return None };
    let size = size.unwrap_or(limits.tmp).min(limits.memory);
    let mode = mode.as_deref().unwrap_or("1777");
    Some(format!("{}:rw,nosuid,nodev,size={size},mode={mode}", target.display()))
}
