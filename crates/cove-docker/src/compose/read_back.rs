//! Compares the created containers and networks with what must hold, before any container starts. Pure. Cove does not
//! trust Compose to apply the document: it is a foreign program with many versions.

use std::collections::BTreeSet;

use bollard::models::{ContainerInspectResponse, HostConfig, NetworkInspect};

use super::super::engine::Engine;
use super::super::read_back::held_cpus;
use super::check::{
    CheckedCompose, ComposeService, DEFAULT_CAPABILITIES, ServiceMount, ServiceNetwork, forbids_new_privileges,
};
use super::document::{self, CORE_LIMIT, DocumentSettings, NO_GATEWAY_OPTION};
use cove_core::policy::{MountAccess, SandboxMount};
use cove_jail::guest::{COVE_FOLDER, TMP, WORKSPACE};

/// Returns one sentence for each difference. Empty if the container is as it must be.
pub(super) fn container_differences(
    name: &str,
    checked: &CheckedCompose,
    settings: &DocumentSettings<'_>,
    found: &ContainerInspectResponse,
) -> Vec<String> {
    let Some(member) = checked.services.get(name) else {
        return vec![format!("`{name}` is not in the file")];
    };
    let Some(host) = &found.host_config else {
        return vec![format!("`{name}`: nothing is said of how it is held")];
    };
    let mut wrong = Vec::new();
    let mut expect = |holds: bool, what: &str| wrong.extend((!holds).then(|| what.to_owned()));
    let (risks, policy) = (&member.risks, &settings.request.policy);
    expect(host.privileged.unwrap_or(false) == risks.is_privileged, "it is privileged");
    let limits = document::service_limits(member, &policy.limits);
    expect(host.memory == i64::try_from(limits.memory).ok(), "the limit of memory is another");
    let swap = host.memory_swap.unwrap_or(0);
    // If the kernel does not account swap, Docker reports -1, and the container has no swap.
    expect(swap == host.memory.unwrap_or(0) || swap == -1, "swap is not limited");
    expect(host.pids_limit == Some(i64::from(limits.pids)), "the limit of processes is another");
    expect((held_cpus(host) - limits.cpus).abs() < 0.01, "the limit of processors is another");
    let core = host.ulimits.iter().flatten().find(|limit| {
        limit.name.as_deref().is_some_and(|name| name.trim_start_matches("RLIMIT_").eq_ignore_ascii_case("core"))
    });
    let is_held = core.is_some_and(|core| core.soft == Some(CORE_LIMIT) && core.hard == Some(CORE_LIMIT));
    let is_asked = !settings.engine.traits().adds_default_rlimits;
    expect(is_held || !is_asked, "the limit on core files is another");
    if !risks.is_privileged {
        let extra: Vec<String> = effective_capabilities(host).difference(&risks.capabilities).cloned().collect();
        let has_extra = !extra.is_empty() && !risks.capabilities.contains("ALL");
        expect(!has_extra, &format!("it has the capabilities {}", extra.join(", ")));
        let options = host.security_opt.as_deref().unwrap_or_default();
        expect(options.iter().any(|option| forbids_new_privileges(option)), "it can gain privileges");
        let mut filters = options.iter().filter(|option| option.starts_with("seccomp"));
        let is_filtered = match (settings.profile, filters.next(), filters.next()) {
            (Some(_), Some(one), None) => one.contains("SCMP_ACT_ERRNO"),
            (None, None, _) => true,
            _ => false,
        };
        expect(is_filtered, "the filter of system calls is another");
        expect(!options.iter().any(|option| option.contains("unconfined")), "it is unconfined");
    }
    for (mode, what) in [
        (&host.pid_mode, "it shares processes"),
        (&host.ipc_mode, "it shares memory"),
        (&host.uts_mode, "it shares the machine's name"),
        (&host.userns_mode, "it shares users"),
    ] {
        expect(matches!(mode.as_deref().unwrap_or(""), "" | "private" | "shareable" | "none"), what);
    }
    expect(host.cgroup_parent.as_deref().unwrap_or("").is_empty(), "it is in another control group");
    expect(risks.has_devices || is_none_or_empty(host.devices.as_ref()), "it has devices");
    expect(is_none_or_empty(host.device_requests.as_ref()), "it asks for devices");
    expect(is_none_or_empty(host.device_cgroup_rules.as_ref()), "it has rules for devices");
    expect(is_none_or_empty(host.volumes_from.as_ref()), "it has volumes of others");
    expect(!host.publish_all_ports.unwrap_or(false), "it publishes ports");
    let mut ports = host.port_bindings.iter().flat_map(|ports| ports.values());
    expect(risks.has_ports || ports.all(|one| is_none_or_empty(one.as_ref())), "it publishes ports");
    if let (Some(runtime), true) = (&policy.runtime, settings.engine.traits().reports_runtime) {
        expect(host.runtime.as_ref() == Some(runtime), "another runtime runs it");
    }
    expect(is_network_joined(member, host, found), "it is in another network");
    wrong.extend(mount_differences(member, name == checked.main, settings, found));
    wrong.iter().map(|what| format!("`{name}`: {what}")).collect()
}

/// Checks a network that Compose created. Returns a difference if containers in it could reach anything outside.
pub(super) fn network_difference(name: &str, engine: Engine, found: &NetworkInspect) -> Option<String> {
    let options = found.options.as_ref();
    let has_no_address = options.and_then(|options| options.get(NO_GATEWAY_OPTION)).is_some_and(|set| set == "true");
    let is_closed = found.internal == Some(true) && (has_no_address || !engine.traits().closes_networks);
    (!is_closed).then(|| format!("the network `{name}` is not closed"))
}

/// Returns the capabilities of a container. Docker reports `ALL` as dropped and lists what is added; Podman lists what
/// is dropped from its default set.
fn effective_capabilities(host: &HostConfig) -> BTreeSet<String> {
    let names = |list: Option<&Vec<String>>| -> BTreeSet<String> {
        let plain = |name: &String| {
            let name = name.to_ascii_uppercase();
            name.strip_prefix("CAP_").unwrap_or(&name).to_owned()
        };
        list.into_iter().flatten().map(plain).collect()
    };
    let (mut result, dropped) = (names(host.cap_add.as_ref()), names(host.cap_drop.as_ref()));
    if !dropped.contains("ALL") {
        let left = DEFAULT_CAPABILITIES.iter().filter(|name| !dropped.contains(**name));
        result.extend(left.map(|name| (*name).to_owned()));
    }
    result
}

fn is_none_or_empty<T>(list: Option<&Vec<T>>) -> bool {
    list.is_none_or(Vec::is_empty)
}

fn mount_differences(
    member: &ComposeService,
    is_main: bool,
    settings: &DocumentSettings<'_>,
    found: &ContainerInspectResponse,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut has_runner = false;
    let of_file = member.mounts.iter().filter_map(|mount| match mount {
        ServiceMount::Bind(mount) => Some(mount),
        ServiceMount::Volume { .. } | ServiceMount::Tmpfs { .. } => None,
    });
    let of_operator = settings.request.policy.mounts.iter().filter(|_| is_main);
    let binds: Vec<&SandboxMount> = of_file.chain(of_operator).collect();
    for mount in found.mounts.iter().flatten() {
        let source = mount.source.as_deref().unwrap_or("");
        let target = mount.destination.as_deref().unwrap_or("");
        let is_writable = mount.rw.unwrap_or(true);
        let is_known = match mount.typ.as_deref().unwrap_or("") {
            "bind" => binds.iter().any(|expected| {
                expected.source.as_os_str() == source
                    && expected.target.as_os_str() == target
                    && (!is_writable || expected.access == MountAccess::ReadWrite)
            }),
            "volume" if mount.name.as_ref() == Some(&settings.request.runner_volume) => {
                has_runner |= target == COVE_FOLDER && !is_writable;
                target == COVE_FOLDER && !is_writable && is_main
            }
            // Volumes of the file, and those that an image declares.
            "volume" => mount.driver.as_deref().unwrap_or("local") == "local" && target != COVE_FOLDER,
            "tmpfs" => target != COVE_FOLDER,
            _ => false,
        };
        if !is_known {
            wrong.push(format!("something is mounted at `{target}` that must not be"));
        }
    }
    if is_main && !has_runner {
        wrong.push("the runner is not there".to_owned());
    }
    let tmpfs = found.host_config.as_ref().and_then(|host| host.tmpfs.as_ref());
    for place in [WORKSPACE, TMP].into_iter().filter(|_| is_main) {
        if !tmpfs.is_some_and(|tmpfs| tmpfs.get(place).is_some_and(|options| options.contains("size="))) {
            wrong.push(format!("`{place}` is not bounded"));
        }
    }
    wrong
}

/// Compares the container's network mode and the number of its networks. Podman reports the mode `bridge` for every
/// named network and lists the networks separately.
fn is_network_joined(member: &ComposeService, host: &HostConfig, found: &ContainerInspectResponse) -> bool {
    let mode = host.network_mode.as_deref().unwrap_or("");
    let joined = found.network_settings.as_ref().and_then(|settings| settings.networks.as_ref());
    match &member.network {
        ServiceNetwork::Joined(expected) => {
            let is_own = mode != "host" && mode != "none" && !mode.starts_with("container:");
            is_own && joined.map_or(0, |networks| networks.len()) == expected.len()
        }
        ServiceNetwork::OfService(_) => mode.starts_with("container:"),
        ServiceNetwork::None => mode == "none",
        ServiceNetwork::Host => mode == "host",
    }
}

#[cfg(test)]
mod tests;
