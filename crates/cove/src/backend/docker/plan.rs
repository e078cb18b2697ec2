//! From a policy, an image and what Docker or Podman can do to the whole request that makes the container: pure data.
//! What they cannot do is a gap with a name, and where a limit could not be held, a refusal.

mod hidden;
mod text;
mod volumes;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountBindOptions, MountBindOptionsPropagationEnum, MountType, MountVolumeOptions, ResourcesUlimits,
    RestartPolicy, RestartPolicyNameEnum,
};
use cove_jail::plan::{
    COMMANDS, HOSTNAME, Limits as JailLimits, RUNNER, Resource, SHM, environment, inodes, rlimits,
};
use cove_protocol::{Interpreter, Language};
use serde::Serialize;

use self::hidden::{MASKED, READ_ONLY};
use super::facts::{Facts, Maker};
use crate::backend::{OwnProgram, StartError, Whose};
use crate::error::{shown, shown_path};
use crate::policy::{Access, Limits, Network, Policy};

/// Where the volume with our own program is mounted.
pub(super) const HOME: &str = "/.cove";
/// Room for what programs leave in `/run`.
const RUN: u64 = 1024 * 1024;
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Labels by which we know what is ours.
pub(super) const KIND: &str = "cove.kind";
pub(super) const SANDBOX: &str = "sandbox";
pub(super) const INSTANCE: &str = "cove.instance";
pub(super) const SESSION: &str = "cove.session";
pub(super) const PRINCIPAL: &str = "cove.principal";
pub(super) const EXPIRES: &str = "cove.expires";
/// The name of the container, or of its project: a copy of what we made has the label, and another name.
pub(super) const NAME: &str = "cove.name";

/// What an image brings of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ImageFacts {
    /// What is started, so that a name that comes to mean another image meanwhile changes nothing.
    pub(super) id: String,
    pub(super) environment: BTreeMap<String, String>,
    /// Its entry point and command.
    pub(super) command: Vec<String>,
    pub(super) folder: Option<String>,
    /// Folders for which a volume would be made.
    pub(super) volumes: Vec<String>,
    pub(super) checks_health: bool,
}

pub(super) struct Request<'a> {
    pub(super) policy: &'a Policy,
    pub(super) image: &'a ImageFacts,
    /// What the image is offered for; empty for whatever is in it.
    pub(super) languages: &'a [Language],
    /// The volume with our own program.
    pub(super) runner: &'a str,
    pub(super) labels: BTreeMap<&'static str, String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Plan {
    pub(super) body: ContainerCreateBody,
    /// What Docker or Podman cannot do here, in words.
    pub(super) gaps: Vec<String>,
    #[serde(skip)]
    pub(super) interpreters: Vec<Interpreter>,
    #[serde(skip)]
    pub(super) own: OwnProgram,
}

pub(super) fn labels(whose: &Whose, instance: String, expires: u64) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        (KIND, SANDBOX.to_owned()),
        (INSTANCE, instance),
        (SESSION, whose.session.clone()),
        (PRINCIPAL, whose.principal.clone()),
        (EXPIRES, expires.to_string()),
    ])
}

impl Plan {
    /// As a container of this name.
    pub(super) fn named(&self, name: &str) -> Self {
        let mut plan = self.clone();
        plan.body.labels.get_or_insert_default().insert(NAME.to_owned(), name.to_owned());
        plan
    }
}

pub(super) fn plan(request: &Request<'_>, facts: &Facts) -> Result<Plan, StartError> {
    let policy = request.policy;
    let gaps = gaps(policy, facts)?;
    takes_paths(policy)?;
    let own_profile = facts.maker == Maker::Docker && facts.seccomp && policy.runtime.is_none();
    let environment = variables(request, facts);
    let interpreters = interpreters(request.languages, &environment["PATH"]);
    let mut command = vec!["runner".to_owned(), data_limit(policy)];
    if !own_profile {
        command.push("--filter".to_owned());
    }
    let user = policy.user;
    let body = ContainerCreateBody {
        image: Some(request.image.id.clone()),
        hostname: Some(HOSTNAME.into()),
        domainname: Some(String::new()),
        user: Some(format!("{}:{}", user.uid, user.gid)),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        open_stdin: Some(true),
        // When we go, so does its standard input, and with that the runner and all that it holds.
        stdin_once: Some(true),
        tty: Some(false),
        env: Some(environment.iter().map(|(name, value)| format!("{name}={value}")).collect()),
        entrypoint: Some(vec![RUNNER.to_owned()]),
        cmd: Some(command),
        working_dir: Some("/workspace".into()),
        healthcheck: no_checks(request, facts),
        // The runner hears no request to end: whoever waits for it waits in vain.
        stop_timeout: Some(0),
        labels: Some(
            request.labels.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        ),
        host_config: Some(host_config(request, facts, own_profile)?),
        ..ContainerCreateBody::default()
    };
    let own = OwnProgram { command: request.image.command.clone(), directory: request.image.folder.clone() };
    Ok(Plan { body, gaps, interpreters, own })
}

/// What cannot be had here, in words; an error where it cannot be done without.
pub(super) fn gaps(policy: &Policy, facts: &Facts) -> Result<Vec<String>, StartError> {
    can_enforce(policy, facts)?;
    let mut gaps = Vec::new();
    if !facts.limits_swap {
        gaps.push("swap is not limited: the kernel does not count it".to_owned());
    }
    if facts.maker == Maker::Podman {
        gaps.push(
            "the number of files in `/workspace` and `/tmp` is not limited: Podman takes no such option"
                .into(),
        );
        gaps.push("the names in this machine's `/etc/hosts` are shown: Podman copies them by itself".into());
    }
    if !facts.tells_want_of_memory() {
        gaps.push(
            "a container that is killed for want of memory is not told from one that somebody kills: Podman does not \
             say which on cgroup v1"
                .into(),
        );
    }
    if facts.default_runtime.is_empty() && policy.runtime.is_none() {
        gaps.push("which runtime runs the container is not known".into());
    }
    Ok(gaps)
}

/// What the runner is told to hold itself to: an allocation beyond it fails as an ordinary exception.
pub(super) fn data_limit(policy: &Policy) -> String {
    format!("--data={}", policy.limits.memory)
}

/// Refuses what could only be promised.
fn can_enforce(policy: &Policy, facts: &Facts) -> Result<(), StartError> {
    let name = facts.name();
    if facts.rootless && facts.cgroup == 1 {
        return Err(StartError::new(format!("could not hold a container of rootless {name} to its limits"))
            .because("on cgroup v1 only root can limit memory, processes and processors")
            .with_hint(
                "start the machine with cgroup v2 (`systemd.unified_cgroup_hierarchy=1`), use the root user's Docker \
                 or Podman, or the embedded sandbox (`--backend jail`)",
            ));
    }
    if !facts.unlimited.is_empty() {
        let what = facts.unlimited.join(" and ");
        return Err(StartError::new(format!("could not hold a container of {name} to its limits"))
            .because(format!("it says that it cannot limit {what} here"))
            .with_hint("give it the cgroup controllers that it misses (`docker info` names them), or use `--backend jail`"));
    }
    if let Some(runtime) = &policy.runtime
        && !facts.runtimes.contains(runtime)
    {
        let known = if facts.runtimes.is_empty() { "none".into() } else { facts.runtimes.join(", ") };
        let (cause, hint) = match facts.maker {
            Maker::Docker => (
                format!("{name} knows {known}"),
                "register it with Docker (`runtimes` in `/etc/docker/daemon.json`), or leave `--runtime` out"
                    .into(),
            ),
            Maker::Podman => (
                format!("a container of {name} has the runtime that its service was started with: {known}"),
                format!(
                    "start it as `podman --runtime {} system service`, or leave `--runtime` out",
                    shown(runtime)
                ),
            ),
        };
        return Err(StartError::new(format!("could not use the runtime `{}`", shown(runtime)))
            .because(cause)
            .with_hint(hint));
    }
    if !policy.mounts.is_empty() && !facts.is_local() {
        return Err(StartError::new("could not mount directories into the container")
            .because(format!("{name} listens at `{}`, and paths mean something else there", facts.address))
            .with_hint("leave the mounts out, and move files with the file tools"));
    }
    if policy.user.uid == 0 || policy.user.gid == 0 {
        return Err(StartError::new("could not run code as root").with_hint("choose another `--user`"));
    }
    Ok(())
}

/// Podman reads a mount as a line of options, in which these begin another one or hide where it begins. Docker does not;
/// what may be mounted is the same with both.
pub(super) fn takes_paths(policy: &Policy) -> Result<(), StartError> {
    let paths = policy.mounts.iter().flat_map(|mount| [&mount.source, &mount.target]);
    let is_odd = |path: &&std::path::PathBuf| {
        path.to_str().is_none_or(|path| path.contains([',', '"']) || path.contains(char::is_control))
    };
    match paths.into_iter().find(is_odd) {
        None => Ok(()),
        Some(path) => Err(StartError::new(format!("could not mount `{}`", shown_path(path)))
            .because("a path with a comma, a quote or a control character in it could be read as options of the mount")
            .with_hint("choose another target, or give what is to be mounted another name")),
    }
}

/// The image's own, then ours over them: nothing of this machine's.
fn variables(request: &Request<'_>, facts: &Facts) -> BTreeMap<String, String> {
    let mut variables = request.image.environment.clone();
    let of_image = variables.get("PATH").filter(|path| !path.is_empty()).cloned();
    variables.extend(environment(&jail_limits(&request.policy.limits), facts.processors));
    variables.insert("PATH".into(), format!("{COMMANDS}:{}", of_image.as_deref().unwrap_or(PATH)));
    variables
}

pub(super) fn jail_limits(limits: &Limits) -> JailLimits {
    let Limits { memory, cpus, pids, workspace, tmp } = *limits;
    JailLimits { memory, cpus, pids, workspace, tmp }
}

/// Where each language may be, in the order in which a shell would look; the runner takes what is there.
pub(super) fn interpreters(languages: &[Language], path: &str) -> Vec<Interpreter> {
    let offered = |language: &Language| languages.is_empty() || languages.contains(language);
    let mut all = Vec::new();
    for language in Language::ALL.into_iter().filter(offered) {
        let name = match language {
            Language::Python => "python3",
            Language::Node => "node",
            Language::Bash => "bash",
            Language::Sh => "sh",
        };
        let folders = path.split(':').filter(|folder| folder.starts_with('/') && *folder != COMMANDS);
        all.extend(folders.map(|folder| Interpreter { language, program: format!("{folder}/{name}") }));
    }
    all
}

fn host_config(request: &Request<'_>, facts: &Facts, own_profile: bool) -> Result<HostConfig, StartError> {
    let policy = request.policy;
    let limits = policy.limits;
    let docker = facts.maker == Maker::Docker;
    let is_closed = docker && policy.network == Network::None;
    let mut security = vec!["no-new-privileges:true".to_owned()];
    if own_profile {
        // On one line: it travels in a label of the container and in every answer about it.
        let profile: serde_json::Value = serde_json::from_str(&cove_jail::seccomp::docker_json())
            .map_err(|error| StartError::new("could not write the system call filter").because(error))?;
        security.push(format!("seccomp={profile}"));
    }
    if !docker {
        security.push(format!("mask={}", MASKED.join(":")));
        if policy.runtime.is_none() {
            // As a number also older kernels know it. The others are what it would have been by itself.
            security.push("proc-opts=nosuid,nodev,noexec,hidepid=2".into());
        }
    }
    let bytes = |size: u64| i64::try_from(size).unwrap_or(i64::MAX);
    let processors =
        if facts.processors == 0 { limits.cpus } else { limits.cpus.min(f64::from(facts.processors)) };
    let paths = |list: &[&str]| docker.then(|| list.iter().map(|path| (*path).to_owned()).collect());
    Ok(HostConfig {
        network_mode: Some(match &policy.network {
            Network::None => "none".into(),
            Network::Named(name) => name.clone(),
        }),
        // Else there would be this machine's own. Podman makes none without a network.
        dns: is_closed.then(|| vec!["127.0.0.1".into()]),
        dns_search: is_closed.then(|| vec![".".into()]),
        privileged: Some(false),
        cap_add: Some(Vec::new()),
        cap_drop: Some(vec!["ALL".into()]),
        security_opt: Some(security),
        readonly_rootfs: Some(true),
        tmpfs: Some(tmpfs(request, docker)?),
        shm_size: Some(bytes(SHM)),
        // Docker lets everybody send echo requests, by a socket that is otherwise not to be had.
        sysctls: is_closed
            .then(|| HashMap::from([("net.ipv4.ping_group_range".to_owned(), "1 0".to_owned())])),
        masked_paths: paths(MASKED),
        readonly_paths: paths(READ_ONLY),
        memory: Some(bytes(limits.memory)),
        memory_swap: facts.limits_swap.then_some(bytes(limits.memory)),
        oom_kill_disable: Some(false),
        // When the machine runs out of memory, a sandbox goes before anything else does.
        oom_score_adj: Some(1000),
        nano_cpus: Some((processors * 1e9) as i64),
        // One more than asked for: the runner is one.
        pids_limit: Some(i64::from(limits.pids) + 1),
        ulimits: Some(ulimits(&limits, facts)),
        ipc_mode: Some("private".into()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        init: Some(false),
        auto_remove: Some(false),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        log_config: Some(HostConfigLogConfig { typ: Some("none".into()), config: Some(HashMap::new()) }),
        mounts: Some(mounts(request, docker)),
        runtime: policy.runtime.clone(),
        ..HostConfig::default()
    })
}

/// Nobody asks whether the image's own program is well. For whatever says anything of checks Podman sets a timer, so that
/// it is said only where there is one.
fn no_checks(request: &Request<'_>, facts: &Facts) -> Option<HealthConfig> {
    let is_needed = facts.maker == Maker::Docker || request.image.checks_health;
    is_needed.then(|| HealthConfig { test: Some(vec!["NONE".into()]), ..HealthConfig::default() })
}

fn tmpfs(request: &Request<'_>, docker: bool) -> Result<HashMap<String, String>, StartError> {
    let limits = request.policy.limits;
    let user = request.policy.user;
    let with = |size: u64, mode: &str| {
        // What is not forbidden by name Docker forbids by itself: programs in there could not be started.
        let files = if docker { format!(",nr_inodes={}", inodes(size)) } else { String::new() };
        format!("rw,exec,nosuid,nodev,size={size},mode={mode}{files}")
    };
    let workspace = match docker {
        true => format!("{},uid={},gid={}", with(limits.workspace, "0700"), user.uid, user.gid),
        // There is nobody else in there.
        false => with(limits.workspace, "0777"),
    };
    let mut all = HashMap::from([
        ("/tmp".to_owned(), with(limits.tmp, "1777")),
        ("/workspace".to_owned(), workspace),
        ("/run".to_owned(), with(RUN, "0755")),
    ]);
    match docker {
        // In place of Docker's own one, which has a size and no number of files.
        true => all.insert("/dev/shm".to_owned(), with(SHM, "1777").replacen("exec", "noexec", 1)),
        // Podman makes one there by itself, without a size.
        false => all.insert("/var/tmp".to_owned(), with(limits.tmp, "1777")),
    };
    for place in volumes::places(&request.image.volumes)? {
        all.entry(place).or_insert_with(|| with(limits.tmp, "0777"));
    }
    // Docker would hide what is mounted at the same place, and Podman refuse it.
    let is_mounted =
        |place: &String| request.policy.mounts.iter().any(|mount| mount.target == Path::new(place));
    all.retain(|place, _| !is_mounted(place));
    Ok(all)
}

/// Those of the embedded sandbox; but the number of processes counts those of every container with the same user
/// together, so that it is left out where it can be. Podman sets one of its own that it may not be allowed to set.
fn ulimits(limits: &Limits, facts: &Facts) -> Vec<ResourcesUlimits> {
    const OF_ALL_CONTAINERS: u64 = 16 * 1024;
    let number = |value: u64| Some(i64::try_from(value).unwrap_or(i64::MAX));
    let of_sandbox = rlimits(&jail_limits(limits)).into_iter().filter_map(|limit| {
        let (soft, hard) = match (limit.resource, facts.maker) {
            // What makes the container runs under these, and needs more of it than a small sandbox has.
            (Resource::Data, _) | (Resource::Nproc, Maker::Docker) => return None,
            (Resource::Nproc, Maker::Podman) => {
                let most = OF_ALL_CONTAINERS.min(facts.user_processes);
                (most, most)
            }
            _ => (limit.soft, limit.hard),
        };
        let name = format!("{:?}", limit.resource).to_lowercase();
        Some(ResourcesUlimits { name: Some(name), soft: number(soft), hard: number(hard) })
    });
    of_sandbox.collect()
}

fn mounts(request: &Request<'_>, docker: bool) -> Vec<Mount> {
    let runner = Mount {
        target: Some(HOME.into()),
        source: Some(request.runner.to_owned()),
        typ: Some(MountType::VOLUME),
        read_only: Some(true),
        volume_options: docker
            .then(|| MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }),
        ..Mount::default()
    };
    let binds = request.policy.mounts.iter().map(|mount| Mount {
        target: Some(mount.target.to_string_lossy().into_owned()),
        source: Some(mount.source.to_string_lossy().into_owned()),
        typ: Some(MountType::BIND),
        read_only: Some(mount.access == Access::ReadOnly),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            // What is mounted below would stay writable in a read-only mount.
            non_recursive: docker.then_some(true),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    });
    [runner].into_iter().chain(binds).collect()
}

#[cfg(test)]
pub(super) mod tests;
