//! Plans a container: turns a policy, the facts of an image and the facts of the engine into the complete create
//! request. Pure data. What the engine cannot enforce becomes a named gap, or an error if a limit depends on it.

mod image_volumes;
mod masked_paths;
mod text;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountBindOptions, MountBindOptionsPropagationEnum, MountType, MountVolumeOptions, ResourcesUlimits, RestartPolicy,
    RestartPolicyNameEnum,
};
use cove_jail::guest::{
    COMMAND_FOLDER, COVE_FOLDER, HOST_NAME, RUNNER_PROGRAM, RlimitResource, SEARCH_PATH, SHM_SIZE, SandboxLimits, TMP,
    WORKSPACE, environment, inode_limit, rlimits,
};
use cove_protocol::{InterpreterPath, Language};
use serde::Serialize;

use self::masked_paths::{MASKED_PATHS, READ_ONLY_PATHS};
use super::container_user::own_users;
use super::engine::{Engine, EngineFacts};
use super::gaps::{EnforcementGap, GapScope, gaps_of};
use cove_core::backend::{ImageCommand, SandboxOwner};
use cove_core::error::{Failure, display_path, display_value};
use cove_core::policy::{MountAccess, Policy, SandboxNetwork};

/// The size of the tmpfs at `/run`.
const RUN_DIR_BYTES: u64 = 1024 * 1024;

/// Labels by which Cove recognises its own resources.
pub(super) const LABEL_KIND: &str = "cove.kind";
pub(super) const KIND_SANDBOX: &str = "sandbox";
pub(super) const LABEL_INSTANCE: &str = "cove.instance";
pub(super) const LABEL_SESSION: &str = "cove.session";
pub(super) const LABEL_PRINCIPAL: &str = "cove.principal";
pub(super) const LABEL_EXPIRES: &str = "cove.expires";
/// The name of the container or of its project. A copy of a container inherits this label but has another name.
pub(super) const LABEL_NAME: &str = "cove.name";

/// What an image configures itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ImageFacts {
    /// The image id. Containers are created from it, so that a tag that moves to another image meanwhile changes
    /// nothing.
    pub(super) id: String,
    pub(super) environment: BTreeMap<String, String>,
    /// The image's entry point and command.
    pub(super) command: Vec<String>,
    pub(super) folder: Option<String>,
    /// Folders that the image declares with `VOLUME`.
    pub(super) volumes: Vec<String>,
    pub(super) has_health_check: bool,
}

pub(super) struct PlanRequest<'a> {
    pub(super) policy: &'a Policy,
    pub(super) image: &'a ImageFacts,
    /// The languages that the image is offered for. If empty, all languages that it contains.
    pub(super) languages: &'a [Language],
    /// The name of the volume with the runner program.
    pub(super) runner_volume: &'a str,
    pub(super) labels: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ContainerPlan {
    pub(super) body: ContainerCreateBody,
    /// The users of which each container gets one instead of the body's, as first id and count.
    pub(super) own_users: Option<(u32, u32)>,
    /// What the engine cannot enforce here, one sentence each.
    pub(super) gaps: Vec<&'static str>,
    #[serde(skip)]
    pub(super) interpreters: Vec<InterpreterPath>,
    #[serde(skip)]
    pub(super) image_command: ImageCommand,
}

/// Returns the labels of a resource that this process creates, without `LABEL_NAME`.
pub(super) fn labels(owner: &SandboxOwner, instance: String, expires: u64) -> BTreeMap<String, String> {
    let labels = [
        (LABEL_KIND, KIND_SANDBOX.to_owned()),
        (LABEL_INSTANCE, instance),
        (LABEL_SESSION, owner.session.clone()),
        (LABEL_PRINCIPAL, owner.principal.clone()),
        (LABEL_EXPIRES, expires.to_string()),
    ];
    labels.map(|(name, value)| (name.to_owned(), value)).into()
}

impl ContainerPlan {
    /// Returns the plan with the label of a container of this name.
    pub(super) fn with_name(&self, name: &str) -> Self {
        let mut plan = self.clone();
        plan.body.labels.get_or_insert_default().insert(LABEL_NAME.to_owned(), name.to_owned());
        plan
    }
}

/// Plans a container. Fails if the engine cannot enforce the policy or if a mount's path is not safe.
pub(super) fn plan(request: &PlanRequest<'_>, facts: &EngineFacts) -> Result<ContainerPlan, Failure> {
    let policy = request.policy;
    let gaps = enforcement_gaps(policy, facts)?.iter().map(|gap| gap.text).collect();
    check_mount_paths(policy)?;
    let own_profile = facts.engine.traits().takes_filter && facts.seccomp && policy.runtime.is_none();
    let environment = variables(request, facts);
    let interpreters = interpreters(request.languages, &environment["PATH"]);
    let mut command = vec!["runner".to_owned(), data_limit(policy)];
    command.extend((!facts.takes_rlimits()).then(|| process_limits(policy)));
    if !own_profile {
        command.push("--filter".to_owned());
    }
    let user = policy.user;
    let body = ContainerCreateBody {
        image: Some(request.image.id.clone()),
        hostname: Some(HOST_NAME.into()),
        domainname: Some(String::new()),
        user: Some(format!("{}:{}", user.uid, user.gid)),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        open_stdin: Some(true),
        // When Cove disconnects, the engine closes standard input. The runner then ends, and with it the container.
        stdin_once: Some(true),
        tty: Some(false),
        env: Some(environment.iter().map(|(name, value)| format!("{name}={value}")).collect()),
        entrypoint: Some(vec![RUNNER_PROGRAM.to_owned()]),
        cmd: Some(command),
        working_dir: Some(WORKSPACE.into()),
        healthcheck: disabled_health_check(request, facts),
        // The runner ignores requests to stop, so the engine need not wait before it kills it.
        stop_timeout: Some(0),
        labels: Some(request.labels.clone().into_iter().collect()),
        host_config: Some(host_config(request, facts, own_profile)?),
        ..ContainerCreateBody::default()
    };
    let own = ImageCommand { command: request.image.command.clone(), directory: request.image.folder.clone() };
    let own_users = own_users(policy, facts);
    Ok(ContainerPlan { body, own_users, gaps, interpreters, image_command: own })
}

/// Returns what the engine cannot enforce for single containers. Fails if the policy depends on it.
pub(super) fn enforcement_gaps(policy: &Policy, facts: &EngineFacts) -> Result<Vec<&'static EnforcementGap>, Failure> {
    check_enforceable(policy, facts)?;
    Ok(gaps_of(facts, policy, GapScope::EveryContainer))
}

/// Returns the runner's argument for its data limit: an allocation beyond it fails as an ordinary exception.
pub(super) fn data_limit(policy: &Policy) -> String {
    format!("--data={}", policy.limits.memory)
}

/// Returns the runner's argument for the other limits on a process, where the engine does not set them.
pub(super) fn process_limits(policy: &Policy) -> String {
    let mut all = rlimits(&policy.limits);
    all.retain(|limit| !matches!(limit.resource, RlimitResource::Data | RlimitResource::Nproc));
    format!("--rlimits={}", serde_json::json!(all))
}

/// Fails if the engine cannot enforce a part of the policy.
fn check_enforceable(policy: &Policy, facts: &EngineFacts) -> Result<(), Failure> {
    let name = facts.name();
    if facts.rootless && facts.cgroup == 1 {
        return Err(Failure::operator(format!("could not hold a container of rootless {name} to its limits"))
            .because("on cgroup v1 only root can limit memory, processes and processors")
            .with_hint(
                "start the machine with cgroup v2 (`systemd.unified_cgroup_hierarchy=1`), use the root user's Docker \
                 or Podman, or the embedded sandbox (`--backend jail`)",
            ));
    }
    if !facts.unenforced_limits.is_empty() {
        let what = facts.unenforced_limits.join(" and ");
        let hint = match facts.rootless {
            true => {
                "give its user the cgroup controllers: `sudo systemctl edit user@.service`, `[Service]` and \
                 `Delegate=cpu memory pids`, and log in again; or use `--backend jail`"
            }
            false => {
                "give it the cgroup controllers that it misses (`docker info` names them), or use `--backend jail`"
            }
        };
        return Err(Failure::operator(format!("could not hold a container of {name} to its limits"))
            .because(format!("it says that it cannot limit {what} here"))
            .with_hint(hint));
    }
    if let Some(runtime) = &policy.runtime
        && !facts.runtimes.contains(runtime)
    {
        let known = if facts.runtimes.is_empty() { "none".into() } else { facts.runtimes.join(", ") };
        let (cause, hint) = match facts.engine {
            Engine::Docker => (
                format!("{name} knows {known}"),
                "register it with Docker (`runtimes` in `/etc/docker/daemon.json`), or leave `--runtime` out".into(),
            ),
            Engine::Podman => (
                format!("a container of {name} has the runtime that its service was started with: {known}"),
                format!(
                    "start it as `podman --runtime {} system service`, or leave `--runtime` out",
                    display_value(runtime)
                ),
            ),
        };
        return Err(Failure::operator(format!("could not use the runtime `{}`", display_value(runtime)))
            .because(cause)
            .with_hint(hint));
    }
    if !policy.mounts.is_empty() && !facts.is_local() {
        return Err(Failure::operator("could not mount directories into the container")
            .because(format!("{name} listens at `{}`, and paths mean something else there", facts.address))
            .with_hint("leave the mounts out, and move files with the file tools"));
    }
    if policy.user.uid == 0 || policy.user.gid == 0 {
        return Err(Failure::operator("could not run code as root").with_hint("choose another `--user`"));
    }
    Ok(())
}

/// Fails if the path of a mount contains a comma, a quote or a control character. Podman parses a mount as a line of
/// options, where these characters could start another option. Docker does not, but both accept the same mounts here.
pub(super) fn check_mount_paths(policy: &Policy) -> Result<(), Failure> {
    match policy.mounts.iter().flat_map(|mount| [&mount.source, &mount.target]).find(|path| could_be_options(path)) {
        None => Ok(()),
        Some(path) => Err(Failure::operator(format!("could not mount `{}`", display_path(path)))
            .because("a path with a comma, a quote or a control character in it could be read as options of the mount")
            .with_hint("choose another target, or give what is to be mounted another name")),
    }
}

/// Returns true for a path that an engine could read as options of its mount, or that is not UTF-8.
pub(super) fn could_be_options(path: &Path) -> bool {
    path.to_str().is_none_or(|path| path.contains([',', '"']) || path.contains(char::is_control))
}

/// Returns the image's variables, overridden by Cove's. None come from this machine.
fn variables(request: &PlanRequest<'_>, facts: &EngineFacts) -> BTreeMap<String, String> {
    let mut variables = request.image.environment.clone();
    let of_image = variables.get("PATH").filter(|path| !path.is_empty()).cloned();
    variables.extend(environment(&request.policy.limits, facts.processors));
    variables.insert("PATH".into(), format!("{COMMAND_FOLDER}:{}", of_image.as_deref().unwrap_or(SEARCH_PATH)));
    variables
}

/// Returns the places where each language may be, in the order of `PATH`. The runner uses the first that exists.
pub(super) fn interpreters(languages: &[Language], path: &str) -> Vec<InterpreterPath> {
    let offered = |language: &Language| languages.is_empty() || languages.contains(language);
    let mut all = Vec::new();
    for language in Language::ALL.into_iter().filter(offered) {
        let name = match language {
            Language::Python => "python3",
            Language::Node => "node",
            Language::Bash => "bash",
            Language::Sh => "sh",
        };
        let folders = path.split(':').filter(|folder| folder.starts_with('/') && *folder != COMMAND_FOLDER);
        all.extend(folders.map(|folder| InterpreterPath { language, program: format!("{folder}/{name}") }));
    }
    all
}

fn host_config(request: &PlanRequest<'_>, facts: &EngineFacts, own_profile: bool) -> Result<HostConfig, Failure> {
    let policy = request.policy;
    let limits = policy.limits;
    let docker = facts.engine.traits().takes_docker_options;
    let is_closed = docker && policy.network == SandboxNetwork::None;
    let mut security = vec!["no-new-privileges:true".to_owned()];
    if own_profile {
        // On one line: the engine repeats the profile in a label and in every inspect answer.
        let profile: serde_json::Value = serde_json::from_str(&cove_jail::seccomp::sandbox_profile())
            .map_err(|error| Failure::operator("could not write the system call filter").because(error))?;
        security.push(format!("seccomp={profile}"));
    }
    if !docker {
        security.push(format!("mask={}", MASKED_PATHS.join(":")));
        if policy.runtime.is_none() {
            // Older kernels know `hidepid` only as a number. The other options are Podman's defaults.
            let read_only = if closes_proc(policy, facts) { ",ro" } else { "" };
            security.push(format!("proc-opts=nosuid,nodev,noexec,hidepid=2{read_only}"));
        }
    }
    let bytes = |size: u64| i64::try_from(size).unwrap_or(i64::MAX);
    let paths =
        |list: &[&str]| -> Option<Vec<String>> { docker.then(|| list.iter().map(|path| (*path).to_owned()).collect()) };
    let whole_proc = closes_proc(policy, facts).then_some("/proc");
    let read_only: Vec<&str> = whole_proc.into_iter().chain(READ_ONLY_PATHS.iter().copied()).collect();
    Ok(HostConfig {
        network_mode: Some(match &policy.network {
            SandboxNetwork::None => "none".into(),
            SandboxNetwork::Named(name) => name.clone(),
        }),
        // Without these, Docker copies this machine's `resolv.conf`. Podman writes none without a network.
        dns: is_closed.then(|| vec!["127.0.0.1".into()]),
        dns_search: is_closed.then(|| vec![".".into()]),
        privileged: Some(false),
        cap_add: Some(Vec::new()),
        cap_drop: Some(vec!["ALL".into()]),
        security_opt: Some(security),
        readonly_rootfs: Some(true),
        tmpfs: Some(tmpfs(request, docker)?),
        shm_size: Some(bytes(SHM_SIZE)),
        sysctls: Some(kernel_settings(policy, facts)).filter(|settings| !settings.is_empty()),
        masked_paths: paths(MASKED_PATHS),
        readonly_paths: paths(&read_only),
        memory: Some(bytes(limits.memory)),
        memory_swap: facts.limits_swap.then_some(bytes(limits.memory)),
        oom_kill_disable: Some(false),
        // If the machine runs out of memory, the kernel kills sandboxes first.
        oom_score_adj: Some(1000),
        nano_cpus: Some((facts.usable_cpus(limits.cpus) * 1e9) as i64),
        // One more than the policy's limit, for the runner itself.
        pids_limit: Some(i64::from(limits.pids) + 1),
        ulimits: facts.takes_rlimits().then(|| ulimits(&limits, facts)),
        ipc_mode: Some("private".into()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        init: Some(false),
        auto_remove: Some(false),
        restart_policy: Some(RestartPolicy { name: Some(RestartPolicyNameEnum::NO), maximum_retry_count: None }),
        log_config: Some(HostConfigLogConfig { typ: Some("none".into()), config: Some(HashMap::new()) }),
        mounts: Some(mounts(request, docker)),
        runtime: policy.runtime.clone(),
        ..HostConfig::default()
    })
}

/// Returns the settings of the container's own network namespace.
fn kernel_settings(policy: &Policy, facts: &EngineFacts) -> HashMap<String, String> {
    let is_closed = policy.network == SandboxNetwork::None;
    // Docker opens ping sockets to every user. This empty group range closes them.
    let ping =
        (is_closed && facts.engine.traits().takes_docker_options).then_some(("net.ipv4.ping_group_range", "1 0"));
    // The runner answers names on a low port.
    let ports = (is_closed && policy.answers_names()).then_some(("net.ipv4.ip_unprivileged_port_start", "0"));
    ping.into_iter().chain(ports).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Returns true if the whole `/proc` of a container can be read-only. Other runtimes, such as gVisor's, have one of their own.
/// The settings of the kernel are written there after Podman's options for it took effect, and before Docker's read-only
/// paths do.
fn closes_proc(policy: &Policy, facts: &EngineFacts) -> bool {
    let keeps_settings = facts.engine.traits().takes_docker_options || kernel_settings(policy, facts).is_empty();
    facts.closes_proc() && policy.runtime.is_none() && keeps_settings
}

/// Disables the image's health check. Podman starts a timer for any explicit value, so the setting is sent to Podman
/// only if the image has a check.
fn disabled_health_check(request: &PlanRequest<'_>, facts: &EngineFacts) -> Option<HealthConfig> {
    let is_needed = !facts.engine.traits().times_disabled_health_checks || request.image.has_health_check;
    is_needed.then(|| HealthConfig { test: Some(vec!["NONE".into()]), ..HealthConfig::default() })
}

/// Returns the options of every tmpfs by path. Fails if a `VOLUME` of the image would hide the runner program.
fn tmpfs(request: &PlanRequest<'_>, docker: bool) -> Result<HashMap<String, String>, Failure> {
    let limits = request.policy.limits;
    let user = request.policy.user;
    let with = |size: u64, mode: &str| {
        // `exec` is explicit below because Docker adds `noexec` otherwise. Only Docker accepts a limit of inodes.
        let files = if docker { format!(",nr_inodes={}", inode_limit(size)) } else { String::new() };
        format!("rw,exec,nosuid,nodev,size={size},mode={mode}{files}")
    };
    let workspace = match docker {
        true => format!("{},uid={},gid={}", with(limits.workspace, "0700"), user.uid, user.gid),
        // Podman takes no owner for a tmpfs. Only the sandbox user runs in the container.
        false => with(limits.workspace, "0777"),
    };
    let mut all = HashMap::from([
        (TMP.to_owned(), with(limits.tmp, "1777")),
        (WORKSPACE.to_owned(), workspace),
        ("/run".to_owned(), with(RUN_DIR_BYTES, "0755")),
    ]);
    match docker {
        // Replaces Docker's `/dev/shm`, which has a size limit but no inode limit.
        true => all.insert("/dev/shm".to_owned(), with(SHM_SIZE, "1777").replacen("exec", "noexec", 1)),
        // Podman mounts a tmpfs without a size limit here unless the plan has one.
        false => all.insert("/var/tmp".to_owned(), with(limits.tmp, "1777")),
    };
    for place in image_volumes::volume_paths(&request.image.volumes)? {
        all.entry(place).or_insert_with(|| with(limits.tmp, "0777"));
    }
    // A tmpfs at the same path would hide the mount with Docker, and Podman would refuse the container.
    let is_mounted = |place: &String| request.policy.mounts.iter().any(|mount| mount.target == Path::new(place));
    all.retain(|place, _| !is_mounted(place));
    Ok(all)
}

/// Returns the rlimits of the embedded sandbox, with an exception: `nproc` counts the processes of all containers of
/// the same user together, so Docker gets none. Podman sets a default that it may not be permitted to set, so it gets
/// one.
fn ulimits(limits: &SandboxLimits, facts: &EngineFacts) -> Vec<ResourcesUlimits> {
    const OF_ALL_CONTAINERS: u64 = 16 * 1024;
    let number = |value: u64| Some(i64::try_from(value).unwrap_or(i64::MAX));
    let of_sandbox = rlimits(limits).into_iter().filter_map(|limit| {
        let (soft, hard) = match (limit.resource, facts.engine.traits().adds_default_rlimits) {
            // The container runtime itself runs under these limits and needs more data memory than a small sandbox has.
            (RlimitResource::Data, _) | (RlimitResource::Nproc, false) => return None,
            (RlimitResource::Nproc, true) => {
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

fn mounts(request: &PlanRequest<'_>, docker: bool) -> Vec<Mount> {
    let runner = Mount {
        target: Some(COVE_FOLDER.into()),
        source: Some(request.runner_volume.to_owned()),
        typ: Some(MountType::VOLUME),
        read_only: Some(true),
        volume_options: docker.then(|| MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }),
        ..Mount::default()
    };
    let binds = request.policy.mounts.iter().map(|mount| Mount {
        target: Some(mount.target.to_string_lossy().into_owned()),
        source: Some(mount.source.to_string_lossy().into_owned()),
        typ: Some(MountType::BIND),
        read_only: Some(mount.access == MountAccess::ReadOnly),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            // File systems mounted below the source would stay writable inside a read-only mount.
            non_recursive: docker.then_some(true),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    });
    [runner].into_iter().chain(binds).collect()
}

#[cfg(test)]
pub(super) mod tests;
