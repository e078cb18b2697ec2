//! The text form of a plan, as `cove explain` prints it.

use std::collections::BTreeMap;
use std::fmt;

use bollard::models::HostConfig;

use super::ContainerPlan;
use cove_core::units::show_size;

impl fmt::Display for ContainerPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = &self.body;
        let Some(host) = &body.host_config else { return Ok(()) };
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let size = |value: Option<i64>| show_size(value.and_then(|size| u64::try_from(size).ok()).unwrap_or(0));
        writeln!(f, "image       {}", text(&body.image))?;
        if let Some(runtime) = &host.runtime {
            writeln!(f, "runtime     {runtime}")?;
        }
        match self.own_users {
            Some((first, count)) => {
                writeln!(f, "user        one of {first} to {} for each container", first + count - 1)?
            }
            None => writeln!(f, "user        {}, the same for all containers", text(&body.user))?,
        }
        match host.network_mode.as_deref() {
            Some("none") if opens_low_ports(host) => writeln!(
                f,
                "network     none but its own loopback, where the runner answers names and every port is free to use"
            )?,
            Some("none") => writeln!(f, "network     none but its own loopback")?,
            name => writeln!(f, "network     {}, as the operator chose", name.unwrap_or_default())?,
        }
        writeln!(f, "privileges  no capabilities, no new privileges")?;
        let profile = host.security_opt.iter().flatten().any(|option| option.starts_with("seccomp="));
        let by = if profile { "given to Docker" } else { "installed by the runner, behind the default one" };
        writeln!(f, "syscalls    the filter of the embedded sandbox, {by}")?;
        let (cpus, processes) = (host.nano_cpus.unwrap_or(0) as f64 / 1e9, host.pids_limit.unwrap_or(0) - 1);
        let cpus = format!("{cpus} {}", if cpus == 1.0 { "cpu" } else { "cpus" });
        writeln!(f, "limits      {} memory, {cpus}, {processes} processes; held by cgroups", size(host.memory))?;
        let ulimits: Vec<String> = host
            .ulimits
            .iter()
            .flatten()
            .map(|limit| format!("{} {}", text(&limit.name), limit.soft.unwrap_or(0)))
            .collect();
        match ulimits.is_empty() {
            true => writeln!(f, "rlimits     those of the embedded sandbox, set by the runner")?,
            false => writeln!(f, "rlimits     {}", ulimits.join(", "))?,
        }
        writeln!(f, "root        the image's, read-only")?;
        let mut tmpfs: Vec<_> = host.tmpfs.iter().flatten().collect();
        tmpfs.sort_unstable();
        for (path, options) in tmpfs {
            writeln!(f, "            {path}  tmpfs {options}")?;
        }
        for mount in host.mounts.iter().flatten() {
            let access = if mount.read_only == Some(true) { "read-only" } else { "read-write" };
            writeln!(f, "            {}  {access} from {}", text(&mount.target), text(&mount.source))?;
        }
        for (index, (top, below)) in masked_by_folder(host).into_iter().enumerate() {
            let heading = if index == 0 { "hidden" } else { "" };
            writeln!(f, "{heading:<11} {top}: {}", below.join(" "))?;
        }
        let variables: Vec<&str> = body.env.iter().flatten().filter_map(|line| line.split('=').next()).collect();
        writeln!(f, "environment {}", variables.join(" "))?;
        for gap in &self.gaps {
            writeln!(f, "gap         {gap}")?;
        }
        let command: Vec<&str> = body.entrypoint.iter().chain(&body.cmd).flatten().map(String::as_str).collect();
        write!(f, "program     {} in {}", command.join(" "), text(&body.working_dir))
    }
}

fn opens_low_ports(host: &HostConfig) -> bool {
    host.sysctls.iter().flatten().any(|(name, _)| name == "net.ipv4.ip_unprivileged_port_start")
}

/// Returns the masked paths, grouped by top folder. Docker gets them as a list, Podman as a security option.
fn masked_by_folder(host: &HostConfig) -> BTreeMap<&str, Vec<&str>> {
    let listed = host.masked_paths.iter().flatten().map(String::as_str);
    let options = host.security_opt.iter().flatten().filter_map(|option| option.strip_prefix("mask="));
    let mut by_folder = BTreeMap::<&str, Vec<&str>>::new();
    for path in listed.chain(options.flat_map(|paths| paths.split(':'))) {
        let (_, rest) = path.split_at(1);
        let end = rest.find('/').map_or(path.len(), |end| end + 1);
        by_folder.entry(&path[..end]).or_default().push(path[end..].trim_start_matches('/'));
    }
    by_folder
}
