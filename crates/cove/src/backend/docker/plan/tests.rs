//! Plans of both, whole and in their parts, and what is refused.

use super::super::libpod::Told;
use super::*;
use crate::image::{Recipe, Source};
use crate::policy::{Mount as PolicyMount, Root, User};

pub(crate) fn facts(maker: Maker) -> Facts {
    Facts {
        maker,
        version: "1.2.3".into(),
        address: "unix:///run/x.sock".into(),
        rootless: false,
        cgroup: 2,
        limits_swap: true,
        unlimited: Vec::new(),
        processors: 4,
        user_processes: 1000,
        runtimes: vec!["runc".into(), "runsc".into()],
        default_runtime: "runc".into(),
        seccomp: true,
        apparmor: false,
    }
}

fn policy() -> Policy {
    let source = Source::Reference("python:3.13-slim".into());
    Policy {
        root: Root::Image(Recipe { name: "python".into(), source, languages: Vec::new() }),
        python: None,
        mounts: Vec::new(),
        network: Network::None,
        runtime: None,
        user: User { uid: 65534, gid: 65534 },
        limits: Limits { memory: 512 << 20, cpus: 1.0, pids: 256, workspace: 256 << 20, tmp: 64 << 20 },
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
        checks_health: false,
    }
}

fn planned(policy: &Policy, facts: &Facts) -> Result<Plan, StartError> {
    let image = image();
    let labels = labels(&Whose::default(), "instance".into(), 7);
    plan(&Request { policy, image: &image, languages: &[], runner: "cove-runner-1", labels }, facts)
}

pub(crate) fn body(maker: Maker) -> ContainerCreateBody {
    planned(&policy(), &facts(maker)).unwrap().body
}

#[test]
fn the_whole_plan_of_docker() {
    let plan = planned(&policy(), &facts(Maker::Docker)).unwrap();
    insta::assert_snapshot!(plan, @"
    image       sha256:abc
    user        65534:65534
    network     none but its own loopback
    privileges  no capabilities, no new privileges
    syscalls    the filter of the embedded sandbox, given to Docker
    limits      512m memory, 1 cpus, 256 processes; held by cgroups
    rlimits     core 0, fsize 268435456, memlock 65536, msgqueue 0, nofile 1024, sigpending 256, stack 4194304
    root        the image's, read-only
                /dev/shm  tmpfs rw,noexec,nosuid,nodev,size=67108864,mode=1777,nr_inodes=4096
                /run  tmpfs rw,exec,nosuid,nodev,size=1048576,mode=0755,nr_inodes=64
                /tmp  tmpfs rw,exec,nosuid,nodev,size=67108864,mode=1777,nr_inodes=4096
                /var/lib/things  tmpfs rw,exec,nosuid,nodev,size=67108864,mode=0777,nr_inodes=4096
                /workspace  tmpfs rw,exec,nosuid,nodev,size=268435456,mode=0700,nr_inodes=16384,uid=65534,gid=65534
                /.cove  read-only from cove-runner-1
    hidden      /dev: mqueue pts
                /proc: acpi asound buddyinfo bus cmdline config.gz consoles crypto diskstats dma driver dynamic_debug fs interrupts iomem ioports irq kallsyms kcore key-users keys kmsg kpagecgroup kpagecount kpageflags latency_stats locks mdstat misc modules mtrr pagetypeinfo partitions pressure sched_debug schedstat scsi slabinfo softirqs swaps sys sysvipc timer_list timer_stats tty vmallocinfo zoneinfo
                /sys: block bus class dev devices firmware fs/bpf fs/btrfs fs/erofs fs/ext4 fs/f2fs fs/fuse fs/nfs fs/pstore fs/resctrl fs/selinux fs/smackfs fs/tmpfs fs/xfs hypervisor kernel module power
    environment HOME LANG LOGNAME MPLBACKEND MPLCONFIGDIR OMP_NUM_THREADS OPENBLAS_NUM_THREADS PATH PYTHON_VERSION TMPDIR TZ USER
    program     /.cove/cove runner --data=536870912 in /workspace
    ");
}

#[test]
fn the_whole_plan_of_podman() {
    let plan = planned(&policy(), &facts(Maker::Podman)).unwrap();
    insta::assert_snapshot!(plan, @"
    image       sha256:abc
    user        65534:65534
    network     none but its own loopback
    privileges  no capabilities, no new privileges
    syscalls    the filter of the embedded sandbox, installed by the runner, behind the default one
    limits      512m memory, 1 cpus, 256 processes; held by cgroups
    rlimits     core 0, fsize 268435456, memlock 65536, msgqueue 0, nofile 1024, nproc 1000, sigpending 256, stack 4194304
    root        the image's, read-only
                /run  tmpfs rw,exec,nosuid,nodev,size=1048576,mode=0755
                /tmp  tmpfs rw,exec,nosuid,nodev,size=67108864,mode=1777
                /var/lib/things  tmpfs rw,exec,nosuid,nodev,size=67108864,mode=0777
                /var/tmp  tmpfs rw,exec,nosuid,nodev,size=67108864,mode=1777
                /workspace  tmpfs rw,exec,nosuid,nodev,size=268435456,mode=0777
                /.cove  read-only from cove-runner-1
    hidden      /dev: mqueue pts
                /proc: acpi asound buddyinfo bus cmdline config.gz consoles crypto diskstats dma driver dynamic_debug fs interrupts iomem ioports irq kallsyms kcore key-users keys kmsg kpagecgroup kpagecount kpageflags latency_stats locks mdstat misc modules mtrr pagetypeinfo partitions pressure sched_debug schedstat scsi slabinfo softirqs swaps sys sysvipc timer_list timer_stats tty vmallocinfo zoneinfo
                /sys: block bus class dev devices firmware fs/bpf fs/btrfs fs/erofs fs/ext4 fs/f2fs fs/fuse fs/nfs fs/pstore fs/resctrl fs/selinux fs/smackfs fs/tmpfs fs/xfs hypervisor kernel module power
    environment HOME LANG LOGNAME MPLBACKEND MPLCONFIGDIR OMP_NUM_THREADS OPENBLAS_NUM_THREADS PATH PYTHON_VERSION TMPDIR TZ USER
    gap         the number of files in `/workspace` and `/tmp` is not limited: Podman takes no such option
    gap         the names in this machine's `/etc/hosts` are shown: Podman copies them by itself
    program     /.cove/cove runner --data=536870912 --filter in /workspace
    ");
}

/// There only one can be had, and a killed container tells less.
#[test]
fn podman_has_the_runtime_that_it_was_started_with() {
    let mut facts = facts(Maker::Podman);
    facts.add(Told { rootless: false, cgroup: 1, runtime: "crun".into() });
    assert_eq!(
        (facts.runtimes.as_slice(), facts.default_runtime.as_str()),
        (&["crun".to_owned()][..], "crun")
    );
    let with = |runtime: &str| gaps(&Policy { runtime: Some(runtime.into()), ..policy() }, &facts);
    with("crun").unwrap();
    let refused = with("runsc").unwrap_err();
    assert_eq!(refused.message, "could not use the runtime `runsc`");
    assert!(refused.cause.unwrap().to_string().ends_with("was started with: crun"));
    assert!(refused.hint.unwrap().contains("`podman --runtime runsc system service`"));
}

#[test]
fn what_a_killed_container_does_not_tell_is_a_gap() {
    for (maker, cgroup, gap) in
        [(Maker::Podman, 1, true), (Maker::Podman, 2, false), (Maker::Docker, 1, false)]
    {
        let found = gaps(&policy(), &Facts { cgroup, ..facts(maker) }).unwrap();
        let has = found.iter().any(|gap| gap.contains("for want of memory"));
        assert_eq!(has, gap, "{maker:?} {cgroup}: {found:?}");
    }
}

#[test]
fn the_host_s_part_of_the_request_is_all_there_is() {
    let host = body(Maker::Docker).host_config.unwrap();
    assert_eq!(host.binds, None);
    assert_eq!((host.privileged, host.readonly_rootfs), (Some(false), Some(true)));
    assert_eq!(host.cap_drop, Some(vec!["ALL".to_owned()]));
    assert_eq!((host.memory, host.memory_swap), (Some(512 << 20), Some(512 << 20)));
    assert_eq!(host.pids_limit, Some(257), "the runner is one");
    assert_eq!(host.network_mode.as_deref(), Some("none"));
    let security = host.security_opt.unwrap();
    assert_eq!(security[0], "no-new-privileges:true");
    assert!(security[1].starts_with("seccomp={\"") && !security[1].contains('\n'));
    let text = serde_json::to_string(&body(Maker::Docker)).unwrap();
    assert!(!text.contains("docker.sock") && !text.contains("x.sock"), "the socket is mounted nowhere");
}

#[test]
fn what_the_image_says_is_kept_and_what_we_say_wins() {
    let env = body(Maker::Docker).env.unwrap();
    for line in ["PATH=/.cove/bin:/opt/bin:/usr/bin", "PYTHON_VERSION=3.13", "HOME=/workspace"] {
        assert!(env.contains(&line.to_owned()), "{line}: {env:?}");
    }
    let found = planned(&policy(), &facts(Maker::Docker)).unwrap().interpreters;
    let pythons: Vec<&str> =
        found.iter().filter(|one| one.language == Language::Python).map(|one| one.program.as_str()).collect();
    assert_eq!(pythons, ["/opt/bin/python3", "/usr/bin/python3"]);
}

#[test]
fn no_volume_is_made_for_what_the_image_declares() {
    let host = body(Maker::Docker).host_config.unwrap();
    let tmpfs = host.tmpfs.unwrap();
    assert!(tmpfs["/var/lib/things"].contains("size=67108864"), "{tmpfs:?}");
    assert!(tmpfs["/tmp"].contains("mode=1777"), "ours stays ours");
}

#[test]
fn more_processors_than_there_are_are_all_of_them() {
    let mut policy = policy();
    policy.limits.cpus = 64.0;
    let plan = planned(&policy, &facts(Maker::Docker)).unwrap();
    assert_eq!(plan.body.host_config.unwrap().nano_cpus, Some(4_000_000_000));
}

#[track_caller]
fn refused(policy: &Policy, facts: &Facts, message: &str, hint: &str) {
    let error = planned(policy, facts).expect_err("it is refused");
    assert!(error.message.contains(message), "{error:?}");
    assert!(error.hint.as_deref().unwrap_or_default().contains(hint), "{error:?}");
}

#[test]
fn what_cannot_be_held_is_refused_with_a_way_out() {
    let rootless = Facts { rootless: true, cgroup: 1, ..facts(Maker::Podman) };
    refused(&policy(), &rootless, "could not hold a container of rootless Podman", "--backend jail");
    assert!(planned(&policy(), &Facts { cgroup: 2, ..rootless }).is_ok());
    let blind = Facts { unlimited: vec!["pids"], ..facts(Maker::Docker) };
    refused(&policy(), &blind, "could not hold a container of Docker 1.2.3 to its limits", "cgroup");
    let unknown = Policy { runtime: Some("kata".into()), ..policy() };
    refused(&unknown, &facts(Maker::Docker), "could not use the runtime `kata`", "register it");
    let mount = PolicyMount { source: "/a".into(), target: "/b".into(), access: Access::ReadOnly };
    let mounted = Policy { mounts: vec![mount], ..policy() };
    let remote = Facts { address: "tcp://10.0.0.1:2375".into(), ..facts(Maker::Docker) };
    refused(&mounted, &remote, "could not mount directories", "file tools");
    let root = Policy { user: User { uid: 0, gid: 1 }, ..policy() };
    refused(&root, &facts(Maker::Docker), "could not run code as root", "--user");
}

#[test]
fn another_runtime_is_asked_for_by_name_and_filtered_from_inside() {
    let policy = Policy { runtime: Some("runsc".into()), network: Network::Named("out".into()), ..policy() };
    let body = planned(&policy, &facts(Maker::Docker)).unwrap().body;
    assert_eq!(body.cmd.unwrap(), ["runner", "--data=536870912", "--filter"]);
    let host = body.host_config.unwrap();
    assert_eq!((host.runtime.as_deref(), host.network_mode.as_deref()), (Some("runsc"), Some("out")));
    assert_eq!(host.security_opt.unwrap(), ["no-new-privileges:true"]);
    let podman = planned(&policy, &facts(Maker::Podman)).unwrap().body.host_config.unwrap();
    let options = podman.security_opt.unwrap();
    assert!(
        !options.iter().any(|option| option.starts_with("proc-opts=")),
        "what it does with them: {options:?}"
    );
}

#[test]
fn both_hide_the_same_and_podman_the_runner_too() {
    let docker = body(Maker::Docker).host_config.unwrap();
    let podman = body(Maker::Podman).host_config.unwrap();
    let hidden = docker.masked_paths.unwrap();
    for path in ["/sys/kernel", "/proc/sys", "/proc/kallsyms", "/dev/pts", "/dev/mqueue"] {
        assert!(hidden.contains(&path.to_owned()), "{path}");
    }
    assert!(
        !hidden.iter().any(|path| "/sys/fs/cgroup".starts_with(path.as_str())),
        "the runner counts there"
    );
    let options = podman.security_opt.unwrap();
    assert_eq!(options[1], format!("mask={}", hidden.join(":")));
    assert_eq!(options[2], "proc-opts=nosuid,nodev,noexec,hidepid=2");
    assert!(podman.tmpfs.unwrap()["/var/tmp"].contains("size=67108864"), "Podman would give it no size");
    assert!(docker.tmpfs.unwrap()["/dev/shm"].contains("nr_inodes=4096"));
}

#[test]
fn the_runtime_can_start_however_little_memory_there_is() {
    for maker in [Maker::Docker, Maker::Podman] {
        let mut policy = policy();
        policy.limits.memory = 64 << 20;
        let host = planned(&policy, &facts(maker)).unwrap().body.host_config.unwrap();
        assert_eq!(host.memory, Some(64 << 20));
        let mut limits = host.ulimits.unwrap().into_iter();
        assert!(limits.all(|limit| limit.name.as_deref() != Some("data")), "the runner holds itself to it");
    }
}

#[test]
fn paths_that_could_be_read_as_options_are_refused() {
    for maker in [Maker::Docker, Maker::Podman] {
        for (source, target) in [
            ("/srv", "/data,source=/etc"),
            ("/srv", "/data,U"),
            ("/srv/y,source=/etc", "/data"),
            ("/srv", "/data\"x"),
            ("/srv", "/data\nx"),
        ] {
            let mounts =
                vec![PolicyMount { source: source.into(), target: target.into(), access: Access::ReadOnly }];
            let error = planned(&Policy { mounts, ..policy() }, &facts(maker)).unwrap_err();
            let report = format!("{error} {:?}", std::error::Error::source(&error).map(ToString::to_string));
            assert!(report.contains("could be read as options of the mount"), "{source} {target}: {report}");
        }
        let mounts = vec![PolicyMount {
            source: "/srv/a b=c:d".into(),
            target: "/d e".into(),
            access: Access::ReadOnly,
        }];
        assert!(planned(&Policy { mounts, ..policy() }, &facts(maker)).is_ok());
    }
}

#[test]
fn programs_are_told_of_no_more_processors_than_there_are() {
    let wide = Policy { limits: Limits { cpus: 64.0, ..policy().limits }, ..policy() };
    let env = planned(&wide, &facts(Maker::Docker)).unwrap().body.env.unwrap();
    assert!(env.contains(&"OMP_NUM_THREADS=4".to_owned()), "{env:?}");
}
