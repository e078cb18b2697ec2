//! Plans for both engines, as a whole and in parts, and refused policies.

use super::super::libpod::PodmanFacts;
use super::*;
use cove_core::policy::{DoorName, ImageRecipe, ImageSource};
use cove_core::policy::{SandboxMount as PolicyMount, SandboxRoot, SandboxUser};
use cove_protocol::ReachableName;

pub(crate) fn facts(engine: Engine) -> EngineFacts {
    EngineFacts {
        engine,
        version: "1.2.3".into(),
        address: "unix:///run/x.sock".into(),
        endpoint: "unix:///run/x.sock".into(),
        rootless: false,
        maps_users: false,
        cgroup: 2,
        limits_swap: true,
        unenforced_limits: Vec::new(),
        processors: 4,
        user_processes: 1000,
        runtimes: vec!["runc".into(), "runsc".into()],
        default_runtime: "runc".into(),
        seccomp: true,
        apparmor: false,
        selinux: false,
    }
}

pub(crate) fn policy() -> Policy {
    let source = ImageSource::Reference("python:3.13-slim".into());
    Policy {
        root: SandboxRoot::Image(ImageRecipe { name: "python".into(), source, languages: Vec::new() }),
        limits: SandboxLimits { memory: 512 << 20, cpus: 1.0, pids: 256, workspace: 256 << 20, tmp: 64 << 20 },
        ..Policy::default()
    }
}

fn image() -> ImageFacts {
    ImageFacts {
        id: "sha256:abc".into(),
        environment: BTreeMap::from([
            ("PATH".to_owned(), "/opt/bin:/usr/bin".to_owned()),
            ("PYTHON_VERSION".to_owned(), "3.13".to_owned()),
            ("HOME".to_owned(), "/root".to_owned()),
        ]),
        command: vec!["python3".into()],
        folder: None,
        volumes: vec!["/var/lib/things".into(), "/tmp".into()],
        has_health_check: false,
    }
}

fn plan_policy(policy: &Policy, facts: &EngineFacts) -> Result<ContainerPlan, Failure> {
    let image = image();
    let labels = labels(&SandboxOwner::default(), "instance".into(), 7);
    plan(&PlanRequest { policy, image: &image, languages: &[], runner_volume: "cove-runner-1", labels }, facts)
}

pub(crate) fn body(engine: Engine) -> ContainerCreateBody {
    plan_policy(&policy(), &facts(engine)).unwrap().body
}

#[test]
fn shows_the_whole_docker_plan() {
    let plan = plan_policy(&policy(), &facts(Engine::Docker)).unwrap();
    insta::assert_snapshot!(plan, @"
    image       sha256:abc
    user        one of 1895825408 to 1912602623 for each container
    network     none but its own loopback
    privileges  no capabilities, no new privileges
    syscalls    the filter of the embedded sandbox, given to Docker
    limits      512m memory, 1 cpu, 256 processes; held by cgroups
    rlimits     core 1, fsize 268435456, memlock 65536, msgqueue 0, nice 0, nofile 1024, rtprio 0, sigpending 256, stack 4194304
    root        the image's, read-only
                /dev/shm  tmpfs rw,noexec,nosuid,nodev,size=67108864,mode=1777,nr_inodes=4096
                /run  tmpfs rw,exec,nosuid,nodev,size=1048576,mode=0755,nr_inodes=64
                /tmp  tmpfs rw,exec,nosuid,nodev,size=67108864,mode=1777,nr_inodes=4096
                /var/lib/things  tmpfs rw,exec,nosuid,nodev,size=67108864,mode=0777,nr_inodes=4096
                /workspace  tmpfs rw,exec,nosuid,nodev,size=268435456,mode=0700,nr_inodes=16384,uid=65534,gid=65534
                /.cove  read-only from cove-runner-1
    hidden      /dev: mqueue pts
                /proc: acpi asound buddyinfo bus cmdline config.gz consoles crypto diskstats dma driver dynamic_debug fs interrupts iomem ioports irq kallsyms kcore key-users keys kmsg kpagecgroup kpagecount kpageflags latency_stats loadavg locks mdstat misc modules mtrr pagetypeinfo partitions pressure sched_debug schedstat scsi slabinfo softirqs swaps sys sysvipc timer_list timer_stats tty version vmallocinfo zoneinfo
                /sys: block bus class dev devices firmware fs/bpf fs/btrfs fs/erofs fs/ext4 fs/f2fs fs/fuse fs/nfs fs/pstore fs/resctrl fs/selinux fs/smackfs fs/tmpfs fs/xfs hypervisor kernel module power
    environment COLUMNS HOME LANG LOGNAME MPLBACKEND MPLCONFIGDIR OMP_NUM_THREADS OPENBLAS_NUM_THREADS PATH PYTHON_VERSION TMPDIR TZ USER
    gap         containers have no user namespace: the user of their code is the same one outside
    gap         an image build that Docker's death interrupts leaves the container of its step, which never ran
    gap         inotify is bounded for each user alone: no engine sets the limits of a namespace
    gap         file locks are not counted; they end with the container
    gap         `/proc` shows the machine's processors, memory and time, which programs of images ask for
    gap         code can read the container's own cgroup, because the runner must
    gap         secure bits are not locked: that takes a capability that nothing in the container has
    gap         code can see that the runner exists: Docker mounts `/proc` without `hidepid`
    program     /.cove/cove runner --data=536870912 in /workspace
    ");
}

#[test]
fn shows_the_whole_podman_plan() {
    let plan = plan_policy(&policy(), &facts(Engine::Podman)).unwrap();
    insta::assert_snapshot!(plan, @"
    image       sha256:abc
    user        one of 1895825408 to 1912602623 for each container
    network     none but its own loopback
    privileges  no capabilities, no new privileges
    syscalls    the filter of the embedded sandbox, installed by the runner, behind the default one
    limits      512m memory, 1 cpu, 256 processes; held by cgroups
    rlimits     core 1, fsize 268435456, memlock 65536, msgqueue 0, nice 0, nofile 1024, nproc 1000, rtprio 0, sigpending 256, stack 4194304
    root        the image's, read-only
                /run  tmpfs rw,exec,nosuid,nodev,size=1048576,mode=0755
                /tmp  tmpfs rw,exec,nosuid,nodev,size=67108864,mode=1777
                /var/lib/things  tmpfs rw,exec,nosuid,nodev,size=67108864,mode=0777
                /var/tmp  tmpfs rw,exec,nosuid,nodev,size=67108864,mode=1777
                /workspace  tmpfs rw,exec,nosuid,nodev,size=268435456,mode=0777
                /.cove  read-only from cove-runner-1
    hidden      /dev: mqueue pts
                /proc: acpi asound buddyinfo bus cmdline config.gz consoles crypto diskstats dma driver dynamic_debug fs interrupts iomem ioports irq kallsyms kcore key-users keys kmsg kpagecgroup kpagecount kpageflags latency_stats loadavg locks mdstat misc modules mtrr pagetypeinfo partitions pressure sched_debug schedstat scsi slabinfo softirqs swaps sys sysvipc timer_list timer_stats tty version vmallocinfo zoneinfo
                /sys: block bus class dev devices firmware fs/bpf fs/btrfs fs/erofs fs/ext4 fs/f2fs fs/fuse fs/nfs fs/pstore fs/resctrl fs/selinux fs/smackfs fs/tmpfs fs/xfs hypervisor kernel module power
    environment COLUMNS HOME LANG LOGNAME MPLBACKEND MPLCONFIGDIR OMP_NUM_THREADS OPENBLAS_NUM_THREADS PATH PYTHON_VERSION TMPDIR TZ USER
    gap         containers have no user namespace: the user of their code is the same one outside
    gap         inotify is bounded for each user alone: no engine sets the limits of a namespace
    gap         file locks are not counted; they end with the container
    gap         `/proc` shows the machine's processors, memory and time, which programs of images ask for
    gap         code can read the container's own cgroup, because the runner must
    gap         secure bits are not locked: that takes a capability that nothing in the container has
    gap         the number of files in `/workspace` and `/tmp` is not limited: Podman takes no such option
    gap         the names in this machine's `/etc/hosts` are shown: Podman copies them by itself
    program     /.cove/cove runner --data=536870912 --filter in /workspace
    ");
}

#[test]
fn rootless_podman_gets_its_rlimits_from_the_runner() {
    let plan = plan_policy(&policy(), &EngineFacts { rootless: true, ..facts(Engine::Podman) }).unwrap();
    assert_eq!(plan.body.host_config.as_ref().unwrap().ulimits, None);
    let flag = plan.body.cmd.as_ref().unwrap().iter().find_map(|flag| flag.strip_prefix("--rlimits=")).unwrap();
    let limits: Vec<cove_jail::guest::Rlimit> = serde_json::from_str(flag).unwrap();
    assert!(limits.iter().any(|limit| limit.resource == RlimitResource::Nofile && limit.hard == 1024), "{limits:?}");
    assert!(plan.to_string().contains("rlimits     those of the embedded sandbox, set by the runner\n"), "{plan}");
    let root = plan_policy(&policy(), &facts(Engine::Podman)).unwrap();
    assert!(root.body.cmd.unwrap().iter().all(|flag| !flag.starts_with("--rlimits")));
}

/// Podman offers only the runtime that its service was started with.
#[test]
fn podman_refuses_another_runtime() {
    let mut facts = facts(Engine::Podman);
    facts.add_podman_facts(PodmanFacts { rootless: false, cgroup: 1, controllers: None, runtime: "crun".into() });
    assert_eq!((facts.runtimes.as_slice(), facts.default_runtime.as_str()), (&["crun".to_owned()][..], "crun"));
    let with = |runtime: &str| enforcement_gaps(&Policy { runtime: Some(runtime.into()), ..policy() }, &facts);
    with("crun").unwrap();
    let refused = with("runsc").unwrap_err();
    assert_eq!(refused.message, "could not use the runtime `runsc`");
    assert!(refused.cause.unwrap().to_string().ends_with("was started with: crun"));
    assert!(refused.hint.unwrap().contains("`podman --runtime runsc system service`"));
}

/// Podman's answer in the Docker API is wrong on cgroup v2: it looks for files of cgroup v1.
#[test]
fn podman_on_cgroup_2_is_judged_by_its_controllers() {
    let found = |cgroup, controllers: &[&str]| {
        let blind = ["memory", "pids", "cpus"].to_vec();
        let mut facts = EngineFacts { unenforced_limits: blind, limits_swap: false, ..facts(Engine::Podman) };
        let controllers = Some(controllers.iter().map(|one| (*one).to_owned()).collect());
        facts.add_podman_facts(PodmanFacts { rootless: true, cgroup, controllers, runtime: "crun".into() });
        facts
    };
    let whole = found(2, &["cpuset", "cpu", "io", "memory", "pids"]);
    assert!(whole.limits_swap && plan_policy(&policy(), &whole).is_ok(), "{whole:?}");
    let partly = found(2, &["memory", "pids"]);
    assert_eq!(partly.unenforced_limits, ["cpus"]);
    check_refusal(&policy(), &partly, "could not hold a container of Podman 1.2.3 to its limits", "Delegate=cpu");
    assert_eq!(found(1, &["cpu", "memory", "pids"]).unenforced_limits.len(), 3);
}

#[test]
fn missing_oom_reports_are_a_gap() {
    for (engine, cgroup, gap) in [(Engine::Podman, 1, true), (Engine::Podman, 2, false), (Engine::Docker, 1, false)] {
        let found = enforcement_gaps(&policy(), &EngineFacts { cgroup, ..facts(engine) }).unwrap();
        let has = found.iter().any(|gap| gap.text.contains("for lack of memory"));
        assert_eq!(has, gap, "{engine:?} {cgroup}: {found:?}");
    }
}

#[test]
fn plan_isolates_the_container_from_the_host() {
    let host = body(Engine::Docker).host_config.unwrap();
    assert_eq!(host.binds, None);
    assert_eq!((host.privileged, host.readonly_rootfs), (Some(false), Some(true)));
    assert_eq!(host.cap_drop, Some(vec!["ALL".to_owned()]));
    assert_eq!((host.memory, host.memory_swap), (Some(512 << 20), Some(512 << 20)));
    assert_eq!(host.pids_limit, Some(257), "the runner is one");
    assert_eq!(host.network_mode.as_deref(), Some("none"));
    let security = host.security_opt.unwrap();
    assert_eq!(security[0], "no-new-privileges:true");
    assert!(security[1].starts_with("seccomp={\"") && !security[1].contains('\n'));
    let text = serde_json::to_string(&body(Engine::Docker)).unwrap();
    assert!(!text.contains("docker.sock") && !text.contains("x.sock"), "the socket is mounted nowhere");
}

fn policy_with_names() -> Policy {
    let name = ReachableName { pattern: "a.test".into(), ports: vec![443] };
    Policy { proxy_door: true, door_names: vec![DoorName { name, images: Vec::new() }], ..policy() }
}

#[test]
fn a_container_whose_runner_answers_names_has_open_low_ports() {
    let with_names = policy_with_names();
    for engine in [Engine::Docker, Engine::Podman] {
        let plan = plan_policy(&with_names, &facts(engine)).unwrap();
        assert!(plan.to_string().contains("where the runner answers names and every port is free to use"), "{plan}");
        let host = plan.body.host_config.unwrap();
        assert_eq!(host.sysctls.unwrap()["net.ipv4.ip_unprivileged_port_start"], "0");
        assert_eq!(
            host.dns.is_some(),
            engine == Engine::Docker,
            "Podman writes no resolv.conf, and programs ask 127.0.0.1"
        );
        let without = body(engine).host_config.unwrap();
        assert!(!without.sysctls.unwrap_or_default().contains_key("net.ipv4.ip_unprivileged_port_start"));
    }
}

#[test]
fn plan_keeps_image_variables_and_adds_its_own() {
    let env = body(Engine::Docker).env.unwrap();
    for line in ["PATH=/.cove/bin:/opt/bin:/usr/bin", "PYTHON_VERSION=3.13", "HOME=/workspace"] {
        assert!(env.contains(&line.to_owned()), "{line}: {env:?}");
    }
    let found = plan_policy(&policy(), &facts(Engine::Docker)).unwrap().interpreters;
    let pythons: Vec<&str> =
        found.iter().filter(|one| one.language == Language::Python).map(|one| one.program.as_str()).collect();
    assert_eq!(pythons, ["/opt/bin/python3", "/usr/bin/python3"]);
}

#[test]
fn image_volumes_become_tmpfs() {
    let host = body(Engine::Docker).host_config.unwrap();
    let tmpfs = host.tmpfs.unwrap();
    assert!(tmpfs["/var/lib/things"].contains("size=67108864"), "{tmpfs:?}");
    assert!(tmpfs["/tmp"].contains("mode=1777"), "ours stays ours");
}

#[test]
fn caps_cpus_at_the_engine_processors() {
    let mut policy = policy();
    policy.limits.cpus = 64.0;
    let plan = plan_policy(&policy, &facts(Engine::Docker)).unwrap();
    assert_eq!(plan.body.host_config.unwrap().nano_cpus, Some(4_000_000_000));
}

#[track_caller]
fn check_refusal(policy: &Policy, facts: &EngineFacts, message: &str, hint: &str) {
    let error = plan_policy(policy, facts).expect_err("it is refused");
    assert!(error.message.contains(message), "{error:?}");
    assert!(error.hint.as_deref().unwrap_or_default().contains(hint), "{error:?}");
}

#[test]
fn refuses_unenforceable_limits_with_a_hint() {
    let rootless = EngineFacts { rootless: true, cgroup: 1, ..facts(Engine::Podman) };
    check_refusal(&policy(), &rootless, "could not hold a container of rootless Podman", "--backend jail");
    assert!(plan_policy(&policy(), &EngineFacts { cgroup: 2, ..rootless }).is_ok());
    let blind = EngineFacts { unenforced_limits: vec!["pids"], ..facts(Engine::Docker) };
    check_refusal(&policy(), &blind, "could not hold a container of Docker 1.2.3 to its limits", "cgroup");
    let unknown = Policy { runtime: Some("kata".into()), ..policy() };
    check_refusal(&unknown, &facts(Engine::Docker), "could not use the runtime `kata`", "register it");
    let mount = PolicyMount { source: "/a".into(), target: "/b".into(), access: MountAccess::ReadOnly };
    let mounted = Policy { mounts: vec![mount], ..policy() };
    let remote = EngineFacts { address: "tcp://10.0.0.1:2375".into(), ..facts(Engine::Docker) };
    check_refusal(&mounted, &remote, "could not mount directories", "file tools");
    let root = Policy { user: SandboxUser { uid: 0, gid: 1 }, ..policy() };
    check_refusal(&root, &facts(Engine::Docker), "could not run code as root", "--user");
}

#[test]
fn named_runtime_uses_the_runner_filter() {
    let policy = Policy { runtime: Some("runsc".into()), network: SandboxNetwork::Named("out".into()), ..policy() };
    let body = plan_policy(&policy, &facts(Engine::Docker)).unwrap().body;
    assert_eq!(body.cmd.unwrap(), ["runner", "--data=536870912", "--filter"]);
    let host = body.host_config.unwrap();
    assert_eq!((host.runtime.as_deref(), host.network_mode.as_deref()), (Some("runsc"), Some("out")));
    assert_eq!(host.security_opt.unwrap(), ["no-new-privileges:true"]);
    let podman = plan_policy(&policy, &facts(Engine::Podman)).unwrap().body.host_config.unwrap();
    let options = podman.security_opt.unwrap();
    assert!(!options.iter().any(|option| option.starts_with("proc-opts=")), "what it does with them: {options:?}");
}

#[test]
fn docker_and_podman_mask_the_same_paths() {
    let docker = body(Engine::Docker).host_config.unwrap();
    let podman = body(Engine::Podman).host_config.unwrap();
    let hidden = docker.masked_paths.unwrap();
    for path in ["/sys/kernel", "/proc/sys", "/proc/kallsyms", "/dev/pts", "/dev/mqueue"] {
        assert!(hidden.contains(&path.to_owned()), "{path}");
    }
    assert!(!hidden.iter().any(|path| "/sys/fs/cgroup".starts_with(path.as_str())), "the runner counts there");
    let options = podman.security_opt.unwrap();
    assert_eq!(options[1], format!("mask={}", hidden.join(":")));
    assert_eq!(options[2], "proc-opts=nosuid,nodev,noexec,hidepid=2,ro");
    assert_eq!(docker.readonly_paths.unwrap()[0], "/proc");
    assert!(podman.tmpfs.unwrap()["/var/tmp"].contains("size=67108864"), "Podman would give it no size");
    assert!(docker.tmpfs.unwrap()["/dev/shm"].contains("nr_inodes=4096"));
}

/// A runtime writes a label, a profile or settings of the kernel to `/proc` before it executes the runner.
#[test]
fn proc_is_writable_only_where_the_engine_needs_it() {
    let is_policy_closed = |policy: Policy, engine, apparmor, selinux| {
        let plan = plan_policy(&policy, &EngineFacts { apparmor, selinux, ..facts(engine) }).unwrap();
        let host = plan.body.host_config.unwrap();
        let listed = host.readonly_paths.is_some_and(|paths| paths.contains(&"/proc".into()));
        listed || host.security_opt.unwrap().iter().any(|option| option.ends_with(",ro"))
    };
    let is_closed = |engine, apparmor, selinux, runtime: Option<&str>| {
        is_policy_closed(Policy { runtime: runtime.map(Into::into), ..policy() }, engine, apparmor, selinux)
    };
    for engine in [Engine::Docker, Engine::Podman] {
        assert!(is_closed(engine, false, false, None));
        assert!(!is_closed(engine, false, true, None));
        assert_eq!(is_closed(engine, true, false, None), engine == Engine::Docker);
        assert!(!is_closed(engine, false, false, Some("runsc")));
        assert_eq!(is_policy_closed(policy_with_names(), engine, false, false), engine == Engine::Docker);
    }
}

#[test]
fn plan_sets_no_data_ulimit_for_the_runtime() {
    for engine in [Engine::Docker, Engine::Podman] {
        let mut policy = policy();
        policy.limits.memory = 64 << 20;
        let host = plan_policy(&policy, &facts(engine)).unwrap().body.host_config.unwrap();
        assert_eq!(host.memory, Some(64 << 20));
        let mut limits = host.ulimits.unwrap().into_iter();
        assert!(limits.all(|limit| limit.name.as_deref() != Some("data")), "the runner holds itself to it");
    }
}

#[test]
fn refuses_mount_paths_that_read_as_options() {
    for engine in [Engine::Docker, Engine::Podman] {
        for (source, target) in [
            ("/srv", "/data,source=/etc"),
            ("/srv", "/data,U"),
            ("/srv/y,source=/etc", "/data"),
            ("/srv", "/data\"x"),
            ("/srv", "/data\nx"),
        ] {
            let mounts =
                vec![PolicyMount { source: source.into(), target: target.into(), access: MountAccess::ReadOnly }];
            let error = plan_policy(&Policy { mounts, ..policy() }, &facts(engine)).unwrap_err();
            let report = format!("{error} {:?}", std::error::Error::source(&error).map(ToString::to_string));
            assert!(report.contains("could be read as options of the mount"), "{source} {target}: {report}");
        }
        let mounts =
            vec![PolicyMount { source: "/srv/a b=c:d".into(), target: "/d e".into(), access: MountAccess::ReadOnly }];
        assert!(plan_policy(&Policy { mounts, ..policy() }, &facts(engine)).is_ok());
    }
}

#[test]
fn thread_count_is_capped_at_the_processors() {
    let wide = Policy { limits: SandboxLimits { cpus: 64.0, ..policy().limits }, ..policy() };
    let env = plan_policy(&wide, &facts(Engine::Docker)).unwrap().body.env.unwrap();
    assert!(env.contains(&"OMP_NUM_THREADS=4".to_owned()), "{env:?}");
}
