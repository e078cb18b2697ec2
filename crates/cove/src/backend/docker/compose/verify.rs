//! What Docker or Podman made of the document, compared with what must hold, before anything of it runs. Pure: Compose
//! is a program that we did not write, and there are many of it.

use std::collections::BTreeSet;

use bollard::models::{ContainerInspectResponse, HostConfig, NetworkInspect};

use super::super::facts::Maker;
use super::check::{Checked, Member, Mounted, Net, ORDINARY};
use super::document::{self, NO_ADDRESS, RUNNER, Terms};
use crate::policy::Access;

/// What is different, in words; nothing if all is as it must be.
pub(super) fn container(
    name: &str,
    checked: &Checked,
    terms: &Terms<'_>,
    found: &ContainerInspectResponse,
) -> Vec<String> {
    let Some(member) = checked.members.get(name) else {
        return vec![format!("`{name}` is not in the file")];
    };
    let Some(host) = &found.host_config else {
        return vec![format!("`{name}`: nothing is said of how it is held")];
    };
    let mut wrong = Vec::new();
    let mut expect = |holds: bool, what: &str| {
        if !holds {
            wrong.push(format!("`{name}`: {what}"));
        }
    };
    expect(host.privileged.unwrap_or(false) == member.is_privileged, "it is privileged");
    let bounds = document::bounds(member, terms.policy);
    expect(host.memory == i64::try_from(bounds.memory).ok(), "the limit of memory is another");
    let swap = host.memory_swap.unwrap_or(0);
    // Where the kernel cannot count swap, Docker says that it is not limited, and there is none for it.
    expect(swap == host.memory.unwrap_or(0) || swap == -1, "swap is not limited");
    expect(host.pids_limit == Some(i64::from(bounds.pids)), "the limit of processes is another");
    expect(cpus_hold(host, bounds.cpus), "the limit of processors is another");
    if !member.is_privileged {
        let extra: Vec<String> = capabilities(host).difference(&member.capabilities).cloned().collect();
        expect(
            extra.is_empty() || member.capabilities.contains("ALL"),
            &format!("it has the capabilities {}", extra.join(", ")),
        );
        let options = host.security_opt.clone().unwrap_or_default();
        let is_closed = |option: &String| {
            matches!(
                option.as_str(),
                "no-new-privileges" | "no-new-privileges:true" | "no-new-privileges=true"
            )
        };
        expect(options.iter().any(is_closed), "it can gain privileges");
        let filters = options.iter().filter(|option| option.starts_with("seccomp"));
        let filters: Vec<_> = filters.collect();
        let filtered = match (terms.profile, filters.as_slice()) {
            (Some(_), [one]) => one.contains("SCMP_ACT_ERRNO"),
            (None, []) => true,
            _ => false,
        };
        expect(filtered, "the filter of system calls is another");
        expect(!options.iter().any(|option| option.contains("unconfined")), "it is unconfined");
    }
    expect(is_own(host.pid_mode.as_deref()), "it shares processes");
    expect(is_own(host.ipc_mode.as_deref()), "it shares memory");
    expect(is_own(host.uts_mode.as_deref()), "it shares the machine's name");
    expect(is_own(host.userns_mode.as_deref()), "it shares users");
    expect(host.cgroup_parent.as_deref().unwrap_or("").is_empty(), "it is in another control group");
    expect(member.has_devices || is_void(host.devices.as_ref()), "it has devices");
    expect(is_void(host.device_requests.as_ref()), "it asks for devices");
    expect(is_void(host.device_cgroup_rules.as_ref()), "it has rules for devices");
    expect(is_void(host.volumes_from.as_ref()), "it has volumes of others");
    expect(!host.publish_all_ports.unwrap_or(false), "it publishes ports");
    let ports = host.port_bindings.as_ref();
    let published = ports.is_some_and(|ports| ports.values().any(|one| !is_void(one.as_ref())));
    expect(member.has_ports || !published, "it publishes ports");
    // What Podman says here is always the same; it is asked apart.
    if let (Some(runtime), Maker::Docker) = (&terms.policy.runtime, terms.kind) {
        expect(host.runtime.as_ref() == Some(runtime), "another runtime runs it");
    }
    wrong.extend(mounts(name, member, *name == checked.main, terms, found));
    wrong.extend(network_of(name, member, host, found));
    wrong
}

/// A network that was made for the file. Nothing in it may reach out.
pub(super) fn network(name: &str, kind: Maker, found: &NetworkInspect) -> Option<String> {
    let options = found.options.as_ref();
    let has_no_address = options.and_then(|options| options.get(NO_ADDRESS)).is_some_and(|set| set == "true");
    let is_closed = found.internal == Some(true) && (has_no_address || kind == Maker::Podman);
    (!is_closed).then(|| format!("the network `{name}` is not closed"))
}

/// Also where one word is for no limit at all.
fn cpus_hold(host: &HostConfig, cpus: f64) -> bool {
    let nanos = host.nano_cpus.unwrap_or(0) as f64 / 1e9;
    let quota = match (host.cpu_quota, host.cpu_period) {
        (Some(quota), Some(period)) if quota > 0 && period > 0 => quota as f64 / period as f64,
        _ => 0.0,
    };
    let found = if nanos > 0.0 { nanos } else { quota };
    (found - cpus).abs() < 0.01
}

/// Docker says `ALL` and what is given back; Podman says what of its own set is gone.
fn capabilities(host: &HostConfig) -> BTreeSet<String> {
    let names = |list: Option<&Vec<String>>| -> BTreeSet<String> {
        let plain = |name: &String| {
            let name = name.to_ascii_uppercase();
            name.strip_prefix("CAP_").unwrap_or(&name).to_owned()
        };
        list.into_iter().flatten().map(plain).collect()
    };
    let (added, dropped) = (names(host.cap_add.as_ref()), names(host.cap_drop.as_ref()));
    let mut result = added;
    if !dropped.contains("ALL") {
        let left = ORDINARY.iter().filter(|name| !dropped.contains(**name));
        result.extend(left.map(|name| (*name).to_owned()));
    }
    result
}

fn is_own(mode: Option<&str>) -> bool {
    matches!(mode.unwrap_or(""), "" | "private" | "shareable" | "none")
}

fn is_void<T>(list: Option<&Vec<T>>) -> bool {
    list.is_none_or(Vec::is_empty)
}

fn mounts(
    name: &str,
    member: &Member,
    is_main: bool,
    terms: &Terms<'_>,
    found: &ContainerInspectResponse,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut has_runner = false;
    let operators = || terms.policy.mounts.iter().filter(|_| is_main);
    for mount in found.mounts.iter().flatten() {
        let source = mount.source.as_deref().unwrap_or("");
        let target = mount.destination.as_deref().unwrap_or("");
        let is_writable = mount.rw.unwrap_or(true);
        let fits = |access: Access| !is_writable || access == Access::ReadWrite;
        let known = match mount.typ.as_deref().unwrap_or("") {
            "bind" => {
                member.mounts.iter().any(|expected| {
                    matches!(expected, Mounted::Bind { source: path, target: place, access }
                        if path.as_os_str() == source && place == target && fits(*access))
                }) || operators().any(|expected| {
                    expected.source.as_os_str() == source
                        && expected.target.as_os_str() == target
                        && fits(expected.access)
                })
            }
            "volume" if mount.name.as_deref() == Some(terms.runner_volume) => {
                has_runner |= target == RUNNER && !is_writable;
                target == RUNNER && !is_writable && is_main
            }
            // Volumes of the file, and those that an image asks for.
            "volume" => mount.driver.as_deref().unwrap_or("local") == "local" && target != RUNNER,
            "tmpfs" => target != RUNNER,
            _ => false,
        };
        if !known {
            wrong.push(format!("`{name}`: something is mounted at `{target}` that must not be"));
        }
    }
    if is_main && !has_runner {
        wrong.push(format!("`{name}`: the runner is not there"));
    }
    let tmpfs = found.host_config.as_ref().and_then(|host| host.tmpfs.as_ref());
    for place in ["/workspace", "/tmp"].into_iter().filter(|_| is_main) {
        if !tmpfs.is_some_and(|tmpfs| tmpfs.get(place).is_some_and(|options| options.contains("size="))) {
            wrong.push(format!("`{name}`: `{place}` is not bounded"));
        }
    }
    wrong
}

/// Podman calls every network of its own `bridge`; which ones there are is in another place.
fn network_of(
    name: &str,
    member: &Member,
    host: &HostConfig,
    found: &ContainerInspectResponse,
) -> Vec<String> {
    let mode = host.network_mode.as_deref().unwrap_or("");
    let joined = found.network_settings.as_ref().and_then(|settings| settings.networks.as_ref());
    let count = joined.map_or(0, |networks| networks.len());
    let holds = match &member.net {
        Net::Joined(expected) => {
            mode != "host" && mode != "none" && !mode.starts_with("container:") && count == expected.len()
        }
        Net::Of(_) => mode.starts_with("container:"),
        Net::None => mode == "none",
        Net::Host => mode == "host",
    };
    if holds { Vec::new() } else { vec![format!("`{name}`: it is in another network")] }
}

/// What containers of a Compose file do not have that others have, in words.
pub(super) fn gaps(kind: Maker) -> &'static [&'static str] {
    match kind {
        Maker::Docker => &[WRITABLE, LOGGED, UNMASKED, GOES_ON],
        Maker::Podman => &[
            WRITABLE,
            LOGGED,
            UNMASKED,
            GOES_ON,
            "the filter of system calls is Podman's own: Compose cannot give it another",
            "open files have Podman's own limit",
            "containers that have a network reach programs of this machine that listen on all its addresses",
            "`/workspace` can be written by every user in the main container",
        ],
    }
}

const WRITABLE: &str = "Compose: the files of its containers are writable, and the size of them and of its volumes is not limited";
const LOGGED: &str = "Compose: a megabyte of what each container says is kept on disk while it lives";
const UNMASKED: &str = "Compose: of `/proc` and `/sys` only what Docker or Podman hides by itself is hidden";
const GOES_ON: &str = "Compose: when Cove is killed, code ends, and the other containers go on until the next Cove removes them";

#[cfg(test)]
mod tests;
