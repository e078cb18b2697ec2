//! Compares a created container with its plan before it starts. Docker and Podman silently drop settings that they do
//! not know or cannot apply.

use std::fmt::Debug;

use bollard::models::{ContainerCreateBody, ContainerInspectResponse, HostConfig, MountType};

use super::engine::EngineFacts;

/// Returns one sentence for each difference. Empty if the container matches the plan.
pub(super) fn plan_differences(
    planned: &ContainerCreateBody,
    made: &ContainerInspectResponse,
    facts: &EngineFacts,
) -> Vec<String> {
    let (Some(want), Some(have)) = (&planned.host_config, &made.host_config) else {
        return vec!["it tells nothing of its configuration".into()];
    };
    let mut comparison = PlanComparison { want, have, made, facts, found: Vec::new() };
    let config = made.config.clone().unwrap_or_default();
    comparison.expect_same("User", &planned.user, &config.user);
    comparison.expect_same("Tty", &planned.tty, &config.tty);
    comparison.expect_same("WorkingDir", &planned.working_dir, &config.working_dir);
    comparison.expect_same("Entrypoint", &planned.entrypoint, &config.entrypoint);
    comparison.expect_same("Cmd", &planned.cmd, &config.cmd);
    for (name, value) in planned.labels.iter().flatten() {
        let has = config.labels.as_ref().and_then(|labels| labels.get(name)).map_or("nothing", String::as_str);
        comparison.expect(has == value, || format!("Labels.{name} is `{has}`, not `{value}`"));
    }
    comparison.compare_network();
    comparison.compare_isolation();
    comparison.compare_limits();
    comparison.compare_mounts();
    comparison.found
}

struct PlanComparison<'a> {
    want: &'a HostConfig,
    have: &'a HostConfig,
    made: &'a ContainerInspectResponse,
    facts: &'a EngineFacts,
    /// The differences so far.
    found: Vec<String>,
}

impl PlanComparison<'_> {
    fn expect(&mut self, holds: bool, difference: impl FnOnce() -> String) {
        self.found.extend((!holds).then(difference));
    }

    fn expect_same<T: PartialEq + Debug>(&mut self, name: &str, want: &Option<T>, have: &Option<T>) {
        let shown = |value: &Option<T>| value.as_ref().map_or("nothing".into(), |value| format!("{value:?}"));
        self.expect(want == have, || format!("{name} is {}, not {}", shown(have), shown(want)));
    }

    fn expect_none<T: Debug>(&mut self, name: &str, have: &Option<Vec<T>>) {
        let have = have.as_deref().unwrap_or_default();
        self.expect(have.is_empty(), || format!("{name} is {have:?}, not empty"));
    }

    fn expect_one_of(&mut self, name: &str, wanted: &[&str], have: &Option<String>) {
        let have = have.as_deref().unwrap_or("");
        self.expect(wanted.contains(&have), || format!("{name} is `{have}`"));
    }

    fn compare_network(&mut self) {
        let (want, have) = (&self.want.network_mode, &self.have.network_mode);
        let networks = self.made.network_settings.as_ref().and_then(|settings| settings.networks.as_ref());
        let joined: Vec<&String> = networks.into_iter().flat_map(|all| all.keys()).collect();
        // Podman reports the mode `bridge` for every named network and lists the names separately.
        let is_named =
            have.as_deref() == Some("bridge") && want.as_ref().is_some_and(|name| name != "none" && joined == [name]);
        if !is_named {
            self.expect_same("NetworkMode", want, have);
        }
    }

    fn compare_isolation(&mut self) {
        let (want, have) = (self.want, self.have);
        self.expect_same("Privileged", &want.privileged, &have.privileged);
        self.expect_same("ReadonlyRootfs", &want.readonly_rootfs, &have.readonly_rootfs);
        self.expect_same("AutoRemove", &want.auto_remove, &have.auto_remove);
        self.expect_none("CapAdd", &have.cap_add);
        // Podman lists every dropped capability by name; Docker repeats the request.
        let dropped = have.cap_drop.as_deref().unwrap_or_default();
        let all = dropped.iter().any(|name| name.eq_ignore_ascii_case("ALL"));
        const MIN_DROPPED_CAPABILITIES: usize = 10;
        self.expect(all || dropped.len() >= MIN_DROPPED_CAPABILITIES, || {
            format!("CapDrop is {dropped:?}, not all of them")
        });
        // Podman does not report these options. A Podman that does not know them refuses to create the container.
        let untold = |option: &&String| option.starts_with("mask=") || option.starts_with("proc-opts=");
        for option in want.security_opt.iter().flatten().filter(|option| !untold(option)) {
            let plain = |text: &str| text.replace(":true", "").replace("=true", "");
            let has = have.security_opt.iter().flatten().any(|other| plain(other) == plain(option));
            let name = option.split(['=', ':']).next().unwrap_or_default();
            self.expect(has, || format!("SecurityOpt has no `{name}` as it was asked for"));
        }
        let weak = ["unconfined", "systempaths", "label=disable", "label:disable"];
        for option in have.security_opt.iter().flatten() {
            let is_weak = option.len() < 200 && weak.iter().any(|weak| option.contains(weak));
            self.expect(!is_weak, || format!("SecurityOpt has `{option}`"));
        }
        self.expect_one_of("PidMode", &["", "private"], &have.pid_mode);
        // Podman reports a private IPC namespace as `shareable`.
        self.expect_one_of("IpcMode", &["private", "shareable", "none"], &have.ipc_mode);
        self.expect_one_of("UTSMode", &["", "private"], &have.uts_mode);
        self.expect(have.userns_mode.as_deref() != Some("host"), || "UsernsMode is `host`".into());
        if want.masked_paths.is_some() {
            let sorted = |paths: &Option<Vec<String>>| {
                let mut paths = paths.clone().unwrap_or_default();
                paths.sort_unstable();
                Some(paths)
            };
            self.expect_same("MaskedPaths", &sorted(&want.masked_paths), &sorted(&have.masked_paths));
            self.expect_same("ReadonlyPaths", &sorted(&want.readonly_paths), &sorted(&have.readonly_paths));
        }
        if want.dns.is_some() {
            self.expect_same("Dns", &want.dns, &have.dns);
            self.expect_same("DnsSearch", &want.dns_search, &have.dns_search);
        }
        // Podman does not report them. The runner says whether it could use what they open.
        if want.sysctls.is_some() && self.facts.engine.traits().takes_docker_options {
            self.expect_same("Sysctls", &want.sysctls, &have.sysctls);
        }
        self.expect_none("Devices", &have.devices);
        self.expect_none("DeviceRequests", &have.device_requests);
        self.expect_none("GroupAdd", &have.group_add);
        self.expect_none("VolumesFrom", &have.volumes_from);
        let has_ports = have.port_bindings.as_ref().is_some_and(|ports| !ports.is_empty());
        self.expect(!has_ports, || "PortBindings is not empty".into());
        if want.runtime.is_some() && self.facts.engine.traits().reports_runtime {
            self.expect_same("Runtime", &want.runtime, &have.runtime);
        }
        let logs = have.log_config.as_ref().and_then(|log| log.typ.clone());
        self.expect_one_of("LogConfig.Type", &["none"], &logs);
    }

    fn compare_limits(&mut self) {
        let (want, have) = (self.want, self.have);
        self.expect_same("Memory", &want.memory, &have.memory);
        if self.facts.limits_swap {
            self.expect_same("MemorySwap", &want.memory_swap, &have.memory_swap);
        }
        self.expect_same("PidsLimit", &want.pids_limit, &have.pids_limit);
        let (given, wanted) = (held_cpus(have), held_cpus(want));
        self.expect((given - wanted).abs() <= 0.005, || format!("the processors are {given}, not {wanted}"));
        self.expect(have.oom_kill_disable != Some(true), || "OomKillDisable is set".into());
        self.expect_same("ShmSize", &want.shm_size, &have.shm_size);
        for limit in want.ulimits.iter().flatten() {
            let name = limit.name.clone().unwrap_or_default();
            let is_it = |other: &str| other.to_ascii_lowercase().trim_start_matches("rlimit_") == name;
            let has = have.ulimits.iter().flatten().find(|other| other.name.as_deref().is_some_and(is_it));
            let holds = has.is_some_and(|other| (other.soft, other.hard) == (limit.soft, limit.hard));
            self.expect(holds, || format!("the limit `{name}` is not set as asked for"));
        }
    }

    fn compare_mounts(&mut self) {
        let (want, have, made) = (self.want, self.have, self.made);
        self.expect_none("Binds", &Some(self.unexpected_binds()));
        let tmpfs = |path: &str| have.tmpfs.as_ref().and_then(|all| all.get(path));
        for (path, options) in want.tmpfs.iter().flatten() {
            let has = tmpfs(path).map(String::as_str).unwrap_or_default();
            // The engine may report a size without its unit `k`.
            let is_lacking =
                |one: &&str| !has.split(',').any(|other| other == *one || other == one.trim_end_matches('k'));
            let lacks: Vec<&str> = options.split(',').filter(is_lacking).collect();
            self.expect(lacks.is_empty(), || format!("the tmpfs at `{path}` lacks {}", lacks.join(", ")));
        }
        for point in made.mounts.iter().flatten() {
            let target = point.destination.as_deref().unwrap_or_default();
            let is_tmpfs = want.tmpfs.as_ref().is_some_and(|all| all.contains_key(target));
            match want.mounts.iter().flatten().find(|mount| mount.target.as_deref() == Some(target)) {
                None => self.expect(is_tmpfs, || format!("an unrequested mount is at `{target}`")),
                Some(mount) => {
                    let source = match mount.typ {
                        Some(MountType::VOLUME) => &point.name,
                        _ => &point.source,
                    };
                    self.expect_same(&format!("the mount at {target}"), &mount.source, source);
                    let is_held = mount.read_only != Some(true) || point.rw == Some(false);
                    self.expect(is_held, || format!("the mount at `{target}` is writable"));
                }
            }
        }
        for mount in want.mounts.iter().flatten() {
            let target = mount.target.as_deref().unwrap_or_default();
            self.expect(tmpfs(target).is_none(), || format!("a tmpfs hides the mount at `{target}`"));
            let is_there = made.mounts.iter().flatten().any(|point| point.destination == mount.target);
            self.expect(is_there, || format!("nothing is mounted at `{target}`"));
        }
    }

    /// Returns the binds that the plan does not contain.
    fn unexpected_binds(&self) -> Vec<String> {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let is_wanted = |bind: &&String| {
            self.facts.engine.traits().reports_mounts_as_binds
                && self.want.mounts.iter().flatten().any(|mount| {
                    let pair = format!("{}:{}", text(&mount.source), text(&mount.target));
                    bind.strip_prefix(&pair).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
                })
        };
        self.have.binds.iter().flatten().filter(|bind| !is_wanted(bind)).cloned().collect()
    }
}

/// Returns the limit of processors. Docker reports it in billionths, and Podman as quota and period.
pub(super) fn held_cpus(host: &HostConfig) -> f64 {
    match (host.nano_cpus, host.cpu_period) {
        (Some(nano @ 1..), _) => nano as f64 / 1e9,
        (_, period) => {
            let period = period.filter(|period| *period > 0).unwrap_or(100_000);
            host.cpu_quota.unwrap_or(0) as f64 / period as f64
        }
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::{ContainerConfig, MountPoint, ResourcesUlimits};

    use super::super::engine::Engine;
    use super::super::plan::tests::{body, facts};
    use super::*;

    /// Returns the answer of an engine that created the container exactly as requested.
    fn inspect_response(asked: &ContainerCreateBody) -> ContainerInspectResponse {
        let mounts = asked.host_config.iter().flat_map(|host| host.mounts.iter().flatten());
        let mounts = mounts.map(|mount| MountPoint {
            destination: mount.target.clone(),
            name: mount.source.clone(),
            source: mount.source.clone(),
            rw: Some(mount.read_only != Some(true)),
            ..MountPoint::default()
        });
        ContainerInspectResponse {
            config: Some(ContainerConfig {
                user: asked.user.clone(),
                tty: asked.tty,
                working_dir: asked.working_dir.clone(),
                entrypoint: asked.entrypoint.clone(),
                cmd: asked.cmd.clone(),
                labels: asked.labels.clone(),
                ..ContainerConfig::default()
            }),
            host_config: asked.host_config.clone(),
            mounts: Some(mounts.collect()),
            ..ContainerInspectResponse::default()
        }
    }

    #[test]
    fn accepts_a_container_made_as_planned() {
        for engine in [Engine::Docker, Engine::Podman] {
            let asked = body(engine);
            assert_eq!(plan_differences(&asked, &inspect_response(&asked), &facts(engine)), [""; 0]);
        }
    }

    fn security_options(host: &mut HostConfig) -> &mut Vec<String> {
        host.security_opt.get_or_insert_default()
    }

    type Change = (&'static str, fn(&mut HostConfig));

    /// Changes that an engine might make silently, each with a part of the message that must report it.
    const WEAKENED: &[Change] = &[
        ("Privileged", |host| host.privileged = Some(true)),
        ("ReadonlyRootfs", |host| host.readonly_rootfs = Some(false)),
        ("NetworkMode", |host| host.network_mode = Some("bridge".into())),
        ("CapAdd", |host| host.cap_add = Some(vec!["SYS_ADMIN".into()])),
        ("CapDrop", |host| host.cap_drop = None),
        ("`no-new-privileges`", |host| drop(security_options(host).remove(0))),
        ("`seccomp`", |host| drop(security_options(host).pop())),
        ("unconfined", |host| security_options(host).push("apparmor=unconfined".into())),
        ("MaskedPaths", |host| host.masked_paths = Some(Vec::new())),
        ("ReadonlyPaths", |host| host.readonly_paths = None),
        ("Sysctls", |host| host.sysctls = None),
        ("PidMode", |host| host.pid_mode = Some("host".into())),
        ("IpcMode", |host| host.ipc_mode = Some("host".into())),
        ("UTSMode", |host| host.uts_mode = Some("host".into())),
        ("UsernsMode", |host| host.userns_mode = Some("host".into())),
        ("Memory", |host| host.memory = Some(0)),
        ("MemorySwap", |host| host.memory_swap = Some(-1)),
        ("PidsLimit", |host| host.pids_limit = None),
        ("processors", |host| host.nano_cpus = None),
        ("ShmSize", |host| host.shm_size = Some(1 << 40)),
        ("OomKillDisable", |host| host.oom_kill_disable = Some(true)),
        ("`nofile`", |host| {
            let nofile = |limit: &ResourcesUlimits| limit.name.as_deref() != Some("nofile");
            host.ulimits.iter_mut().for_each(|all| all.retain(nofile));
        }),
        ("tmpfs at `/tmp`", |host| drop(host.tmpfs.as_mut().map(|all| all.remove("/tmp")))),
        ("LogConfig", |host| host.log_config = None),
        ("Binds", |host| host.binds = Some(vec!["/:/host".into()])),
        ("GroupAdd", |host| host.group_add = Some(vec!["0".into()])),
    ];

    #[test]
    fn read_back_detects_every_weakening() {
        let asked = body(Engine::Docker);
        for (name, weaken) in WEAKENED {
            let mut made = inspect_response(&asked);
            weaken(made.host_config.as_mut().unwrap());
            let found = plan_differences(&asked, &made, &facts(Engine::Docker));
            assert!(found.len() == 1 && found[0].contains(name), "{name}: {found:?}");
        }
    }

    /// Podman reports `oci` for every runtime; its own API gives the real one.
    #[test]
    fn read_back_detects_another_runtime() {
        for (engine, said, passes) in
            [(Engine::Docker, "runsc", true), (Engine::Docker, "runc", false), (Engine::Podman, "oci", true)]
        {
            let mut asked = body(engine);
            asked.host_config.as_mut().unwrap().runtime = Some("runsc".into());
            let mut made = inspect_response(&asked);
            made.host_config.as_mut().unwrap().runtime = Some(said.into());
            let found = plan_differences(&asked, &made, &facts(engine));
            assert_eq!(found.is_empty(), passes, "{engine:?} {said}: {found:?}");
        }
    }

    #[test]
    fn read_back_detects_extra_and_writable_mounts() {
        let asked = body(Engine::Docker);
        let mut more = inspect_response(&asked);
        let stray = MountPoint { destination: Some("/var/run/docker.sock".into()), ..MountPoint::default() };
        more.mounts.as_mut().unwrap().push(stray);
        let found = plan_differences(&asked, &more, &facts(Engine::Docker));
        assert_eq!(found, ["an unrequested mount is at `/var/run/docker.sock`"]);
        let mut writable = inspect_response(&asked);
        writable.mounts.as_mut().unwrap()[0].rw = Some(true);
        let found = plan_differences(&asked, &writable, &facts(Engine::Docker));
        assert_eq!(found, ["the mount at `/.cove` is writable"]);
        let mut hidden = inspect_response(&asked);
        hidden.host_config.as_mut().unwrap().tmpfs.as_mut().unwrap().insert("/.cove".into(), String::new());
        let found = plan_differences(&asked, &hidden, &facts(Engine::Docker));
        assert_eq!(found, ["a tmpfs hides the mount at `/.cove`"]);
        let mut user = inspect_response(&asked);
        user.config.as_mut().unwrap().user = Some("0:0".into());
        assert_eq!(plan_differences(&asked, &user, &facts(Engine::Docker)).len(), 1);
    }
}
