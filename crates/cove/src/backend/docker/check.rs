//! What was made is compared with what was asked for, before it is started. Docker and Podman drop what they do not
//! know, or cannot do, without a word.

use bollard::models::{ContainerCreateBody, ContainerInspectResponse, HostConfig, MountType};

use super::facts::{Facts, Maker};

/// What differs, each in words. Empty if all is as it was asked for.
pub(super) fn differences(
    asked: &ContainerCreateBody,
    made: &ContainerInspectResponse,
    facts: &Facts,
) -> Vec<String> {
    let mut found = Differences(Vec::new());
    let (Some(want), Some(have)) = (&asked.host_config, &made.host_config) else {
        return vec!["it tells nothing of its configuration".into()];
    };
    let config = made.config.clone().unwrap_or_default();
    found.same("User", &asked.user, &config.user);
    found.same("Tty", &asked.tty, &config.tty);
    found.same("WorkingDir", &asked.working_dir, &config.working_dir);
    found.same("Entrypoint", &asked.entrypoint, &config.entrypoint);
    found.same("Cmd", &asked.cmd, &config.cmd);
    for (name, value) in asked.labels.iter().flatten() {
        let has = config.labels.as_ref().and_then(|labels| labels.get(name));
        found.expect(&format!("Labels.{name}"), value, has.map(String::as_str).unwrap_or("nothing"));
    }
    network(&mut found, want, have, made);
    isolation(&mut found, want, have, facts);
    limits(&mut found, want, have, facts);
    mounts(&mut found, want, have, made, facts);
    found.0
}

struct Differences(Vec<String>);

impl Differences {
    fn same<T: PartialEq + std::fmt::Debug>(&mut self, name: &str, want: &Option<T>, have: &Option<T>) {
        if want != have {
            let shown = |value: &Option<T>| match value {
                Some(value) => format!("{value:?}"),
                None => "nothing".into(),
            };
            self.0.push(format!("{name} is {}, not {}", shown(have), shown(want)));
        }
    }

    fn expect(&mut self, name: &str, want: &str, have: &str) {
        if want != have {
            self.0.push(format!("{name} is `{have}`, not `{want}`"));
        }
    }

    fn none_of<T: std::fmt::Debug>(&mut self, name: &str, have: &Option<Vec<T>>) {
        if let Some(have) = have.as_ref().filter(|have| !have.is_empty()) {
            self.0.push(format!("{name} is {have:?}, not empty"));
        }
    }

    fn is_one_of(&mut self, name: &str, wanted: &[&str], have: &Option<String>) {
        let have = have.as_deref().unwrap_or("");
        if !wanted.contains(&have) {
            self.0.push(format!("{name} is `{have}`"));
        }
    }
}

fn network(found: &mut Differences, want: &HostConfig, have: &HostConfig, made: &ContainerInspectResponse) {
    let networks = made.network_settings.as_ref().and_then(|settings| settings.networks.as_ref());
    let joined: Vec<&str> = networks.into_iter().flat_map(|all| all.keys().map(String::as_str)).collect();
    // Podman calls every network of its own a bridge, and tells their names.
    let is_named = have.network_mode.as_deref() == Some("bridge")
        && want.network_mode.as_deref().is_some_and(|name| name != "none" && joined == [name]);
    if !is_named {
        found.same("NetworkMode", &want.network_mode, &have.network_mode);
    }
}

fn isolation(found: &mut Differences, want: &HostConfig, have: &HostConfig, facts: &Facts) {
    found.same("Privileged", &want.privileged, &have.privileged);
    found.same("ReadonlyRootfs", &want.readonly_rootfs, &have.readonly_rootfs);
    found.same("AutoRemove", &want.auto_remove, &have.auto_remove);
    found.none_of("CapAdd", &have.cap_add);
    // Podman tells every capability by its name, Docker what it was told.
    let dropped = have.cap_drop.clone().unwrap_or_default();
    let all = dropped.iter().any(|name| name.eq_ignore_ascii_case("ALL"));
    const FEWEST: usize = 10;
    if !all && dropped.len() < FEWEST {
        found.0.push(format!("CapDrop is {dropped:?}, not all of them"));
    }
    // Podman never tells of these; one that does not know them refuses to make the container.
    let untold = |option: &&String| option.starts_with("mask=") || option.starts_with("proc-opts=");
    for option in want.security_opt.iter().flatten().filter(|option| !untold(option)) {
        let plain = |text: &str| text.replace(":true", "").replace("=true", "");
        let has = have.security_opt.iter().flatten().any(|other| plain(other) == plain(option));
        if !has {
            let name = option.split(['=', ':']).next().unwrap_or_default();
            found.0.push(format!("SecurityOpt has no `{name}` as it was asked for"));
        }
    }
    let weak = ["unconfined", "systempaths", "label=disable", "label:disable"];
    for option in have.security_opt.iter().flatten() {
        if option.len() < 200 && weak.iter().any(|weak| option.contains(weak)) {
            found.0.push(format!("SecurityOpt has `{option}`"));
        }
    }
    found.is_one_of("PidMode", &["", "private"], &have.pid_mode);
    // Podman's word for one of its own.
    found.is_one_of("IpcMode", &["private", "shareable", "none"], &have.ipc_mode);
    found.is_one_of("UTSMode", &["", "private"], &have.uts_mode);
    if have.userns_mode.as_deref() == Some("host") {
        found.0.push("UsernsMode is `host`".into());
    }
    if want.masked_paths.is_some() {
        let sorted = |paths: &Option<Vec<String>>| {
            let mut paths = paths.clone().unwrap_or_default();
            paths.sort_unstable();
            Some(paths)
        };
        found.same("MaskedPaths", &sorted(&want.masked_paths), &sorted(&have.masked_paths));
        found.same("ReadonlyPaths", &sorted(&want.readonly_paths), &sorted(&have.readonly_paths));
    }
    if want.dns.is_some() {
        found.same("Dns", &want.dns, &have.dns);
        found.same("DnsSearch", &want.dns_search, &have.dns_search);
    }
    if want.sysctls.is_some() {
        found.same("Sysctls", &want.sysctls, &have.sysctls);
    }
    found.none_of("Devices", &have.devices);
    found.none_of("DeviceRequests", &have.device_requests);
    found.none_of("GroupAdd", &have.group_add);
    found.none_of("VolumesFrom", &have.volumes_from);
    if have.port_bindings.as_ref().is_some_and(|ports| !ports.is_empty()) {
        found.0.push("PortBindings is not empty".into());
    }
    // What Podman says here is always the same; it is asked apart.
    if want.runtime.is_some() && facts.maker == Maker::Docker {
        found.same("Runtime", &want.runtime, &have.runtime);
    }
    let logs = have.log_config.as_ref().and_then(|log| log.typ.clone());
    found.is_one_of("LogConfig.Type", &["none"], &logs);
}

fn limits(found: &mut Differences, want: &HostConfig, have: &HostConfig, facts: &Facts) {
    found.same("Memory", &want.memory, &have.memory);
    if facts.limits_swap {
        found.same("MemorySwap", &want.memory_swap, &have.memory_swap);
    }
    found.same("PidsLimit", &want.pids_limit, &have.pids_limit);
    // Podman tells the same by quota and period.
    let quota = have.cpu_quota.unwrap_or(0) as f64
        / have.cpu_period.filter(|period| *period > 0).unwrap_or(100_000) as f64;
    let given = match have.nano_cpus {
        Some(nano) if nano > 0 => nano as f64 / 1e9,
        _ => quota,
    };
    let asked = want.nano_cpus.unwrap_or(0) as f64 / 1e9;
    if (given - asked).abs() > 0.005 {
        found.0.push(format!("the processors are {given}, not {asked}"));
    }
    if have.oom_kill_disable == Some(true) {
        found.0.push("OomKillDisable is set".into());
    }
    found.same("ShmSize", &want.shm_size, &have.shm_size);
    for limit in want.ulimits.iter().flatten() {
        let name = limit.name.clone().unwrap_or_default();
        let is_it = |other: &str| other.to_ascii_lowercase().trim_start_matches("rlimit_") == name;
        let has = have.ulimits.iter().flatten().find(|other| other.name.as_deref().is_some_and(is_it));
        match has {
            Some(other) if (other.soft, other.hard) == (limit.soft, limit.hard) => {}
            _ => found.0.push(format!("the limit `{name}` is not set as asked for")),
        }
    }
}

fn mounts(
    found: &mut Differences,
    want: &HostConfig,
    have: &HostConfig,
    made: &ContainerInspectResponse,
    facts: &Facts,
) {
    found.none_of("Binds", &have.binds.clone().map(|binds| unexpected_binds(&binds, want, facts)));
    for (path, options) in want.tmpfs.iter().flatten() {
        let has = have.tmpfs.as_ref().and_then(|all| all.get(path)).map(String::as_str).unwrap_or_default();
        let lacks: Vec<&str> =
            options.split(',').filter(|one| !has.split(',').any(|other| same_option(one, other))).collect();
        if !lacks.is_empty() {
            found.0.push(format!("the tmpfs at `{path}` lacks {}", lacks.join(", ")));
        }
    }
    let wanted: Vec<&bollard::models::Mount> = want.mounts.iter().flatten().collect();
    for point in made.mounts.iter().flatten() {
        let target = point.destination.as_deref().unwrap_or_default();
        let is_tmpfs = want.tmpfs.as_ref().is_some_and(|all| all.contains_key(target));
        let asked = wanted.iter().find(|mount| mount.target.as_deref() == Some(target));
        match asked {
            None if is_tmpfs => {}
            None => found.0.push(format!("something is mounted at `{target}` that nobody asked for")),
            Some(mount) => {
                let source = match mount.typ {
                    Some(MountType::VOLUME) => &point.name,
                    _ => &point.source,
                };
                found.same(&format!("the mount at {target}"), &mount.source, source);
                if mount.read_only == Some(true) && point.rw != Some(false) {
                    found.0.push(format!("the mount at `{target}` is writable"));
                }
            }
        }
    }
    for mount in wanted {
        let target = mount.target.as_deref().unwrap_or_default();
        if have.tmpfs.as_ref().is_some_and(|all| all.contains_key(target)) {
            found.0.push(format!("a tmpfs hides the mount at `{target}`"));
        }
        let points = made.mounts.iter().flatten();
        if !points.into_iter().any(|point| point.destination == mount.target) {
            found.0.push(format!("nothing is mounted at `{target}`"));
        }
    }
}

/// Podman tells every mount as a bind, too.
fn unexpected_binds(binds: &[String], want: &HostConfig, facts: &Facts) -> Vec<String> {
    let is_wanted = |bind: &String| {
        facts.maker == Maker::Podman
            && want.mounts.iter().flatten().any(|mount| {
                let pair = format!(
                    "{}:{}",
                    mount.source.as_deref().unwrap_or_default(),
                    mount.target.as_deref().unwrap_or_default()
                );
                *bind == pair || bind.starts_with(&format!("{pair}:"))
            })
    };
    binds.iter().filter(|bind| !is_wanted(bind)).cloned().collect()
}

/// `rw` and `exec` are what is when nothing else is said.
fn same_option(want: &str, have: &str) -> bool {
    want == have || want.trim_end_matches('k') == have
}

#[cfg(test)]
mod tests {
    use bollard::models::{ContainerConfig, MountPoint, ResourcesUlimits};

    use super::super::plan::tests::{body, facts};
    use super::*;

    /// As Docker tells of a container that it made as asked.
    fn made(asked: &ContainerCreateBody) -> ContainerInspectResponse {
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
    fn what_is_as_asked_for_passes() {
        for maker in [Maker::Docker, Maker::Podman] {
            let asked = body(maker);
            assert_eq!(differences(&asked, &made(&asked), &facts(maker)), [""; 0]);
        }
    }

    fn options(host: &mut HostConfig) -> &mut Vec<String> {
        host.security_opt.get_or_insert_default()
    }

    type Change = (&'static str, fn(&mut HostConfig));

    /// Each weakening, as an engine might do it in silence, and what is said of it.
    const WEAKENED: &[Change] = &[
        ("Privileged", |host| host.privileged = Some(true)),
        ("ReadonlyRootfs", |host| host.readonly_rootfs = Some(false)),
        ("NetworkMode", |host| host.network_mode = Some("bridge".into())),
        ("CapAdd", |host| host.cap_add = Some(vec!["SYS_ADMIN".into()])),
        ("CapDrop", |host| host.cap_drop = None),
        ("`no-new-privileges`", |host| drop(options(host).remove(0))),
        ("`seccomp`", |host| drop(options(host).pop())),
        ("unconfined", |host| options(host).push("apparmor=unconfined".into())),
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
    fn every_weakening_is_seen() {
        let asked = body(Maker::Docker);
        for (name, weaken) in WEAKENED {
            let mut made = made(&asked);
            weaken(made.host_config.as_mut().unwrap());
            let found = differences(&asked, &made, &facts(Maker::Docker));
            assert!(found.len() == 1 && found[0].contains(name), "{name}: {found:?}");
        }
    }

    /// Podman says `oci` of all, and is asked in its own words.
    #[test]
    fn another_runtime_is_seen() {
        for (maker, said, passes) in
            [(Maker::Docker, "runsc", true), (Maker::Docker, "runc", false), (Maker::Podman, "oci", true)]
        {
            let mut asked = body(maker);
            asked.host_config.as_mut().unwrap().runtime = Some("runsc".into());
            let mut made = made(&asked);
            made.host_config.as_mut().unwrap().runtime = Some(said.into());
            let found = differences(&asked, &made, &facts(maker));
            assert_eq!(found.is_empty(), passes, "{maker:?} {said}: {found:?}");
        }
    }

    #[test]
    fn a_mount_that_nobody_asked_for_is_seen_and_a_writable_one() {
        let asked = body(Maker::Docker);
        let mut more = made(&asked);
        let stray = MountPoint { destination: Some("/var/run/docker.sock".into()), ..MountPoint::default() };
        more.mounts.as_mut().unwrap().push(stray);
        let found = differences(&asked, &more, &facts(Maker::Docker));
        assert_eq!(found, ["something is mounted at `/var/run/docker.sock` that nobody asked for"]);
        let mut writable = made(&asked);
        writable.mounts.as_mut().unwrap()[0].rw = Some(true);
        let found = differences(&asked, &writable, &facts(Maker::Docker));
        assert_eq!(found, ["the mount at `/.cove` is writable"]);
        let mut hidden = made(&asked);
        hidden.host_config.as_mut().unwrap().tmpfs.as_mut().unwrap().insert("/.cove".into(), String::new());
        let found = differences(&asked, &hidden, &facts(Maker::Docker));
        assert_eq!(found, ["a tmpfs hides the mount at `/.cove`"]);
        let mut user = made(&asked);
        user.config.as_mut().unwrap().user = Some("0:0".into());
        assert_eq!(differences(&asked, &user, &facts(Maker::Docker)).len(), 1);
    }
}
