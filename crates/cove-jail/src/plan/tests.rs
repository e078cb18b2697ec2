//! Whole plans for each kind of machine and specification, as `cove explain` prints them, and what is refused.

use super::*;

fn spec() -> JailSpec {
    JailSpec {
        root: JailRoot::Host,
        mounts: vec![],
        user: SandboxUser { uid: 65534, gid: 65534 },
        limits: SandboxLimits { memory: 512 * MIB, cpus: 1.0, pids: 256, workspace: 256 * MIB, tmp: 64 * MIB },
        filter: FilterMode::On,
        names: NameLookup::FilesOnly,
        environment: BTreeMap::new(),
        runner: "/opt/cove".into(),
    }
}

fn facts(uid: u32) -> HostFacts {
    let link = |target: &str| TopEntry::Link(target.into());
    HostFacts {
        uid,
        gid: uid,
        id_ranges: vec![(0, u32::MAX)],
        subordinate: Err("`newuidmap` is not installed".into()),
        needs_own_id: None,
        top: BTreeMap::from([
            ("bin".into(), link("usr/bin")),
            ("boot".into(), TopEntry::Directory),
            ("etc".into(), TopEntry::Directory),
            ("home".into(), TopEntry::Directory),
            ("lib".into(), link("usr/lib")),
            ("lib64".into(), link("usr/lib64")),
            ("root".into(), TopEntry::Directory),
            ("usr".into(), TopEntry::Directory),
        ]),
        etc: vec!["/etc/ld.so.cache".into(), "/etc/ssl/certs".into()],
        cgroup: CgroupFacts::None { reason: "nothing is delegated to this user".into() },
        user_limits: [
            ("max_inotify_instances", 128),
            ("max_inotify_watches", 1 << 20),
            ("max_fanotify_groups", 128),
            ("max_fanotify_marks", 8192),
        ]
        .map(|(name, limit)| (name.to_owned(), limit))
        .into(),
        processors: 4,
    }
}

fn explain(spec: &JailSpec, facts: &HostFacts) -> String {
    plan(spec, facts).unwrap().to_string()
}

#[test]
fn plans_for_an_ordinary_user_on_the_root_of_the_host() {
    insta::assert_snapshot!(explain(&spec(), &facts(1000)), @r"
    user        65534:65534, on this machine 1000:1000 like your own programs, since `newuidmap` is not installed
    namespaces  user mount pid net ipc uts cgroup; none can be made inside
    network     none but its own loopback
    privileges  no capabilities, no new privileges
    syscalls    238 allowed, 26 by rule (cache-advice, clone, core-limit, core-of-task, families, fcntl, fifo, fifo-at, ioctl, madvise, mode, mode-at, open, open-at, personality, pipe, prctl, read-flags, send-file, setsockopt, unix-family), 21 as if the kernel were older, the rest EPERM
    landlock    read 6, write 4, devices 5 paths, where the kernel has it
    limits      512 MiB memory, 1 cpu, 256 processes, 16384 file locks; held by watchdog and rlimits, since nothing is delegated to this user
    rlimits     core 1, data 536870912, fsize 268435456, memlock 65536, msgqueue 0, nice 0, nofile 512, nproc 257, rtprio 0, sigpending 256, stack 4194304
    root        4 MiB (1024 files) tmpfs, then read-only
                /bin  -> usr/bin
                /lib  -> usr/lib
                /lib64  -> usr/lib64
                /usr  read-only
                /etc/group  generated, 17 bytes
                /etc/hostname  generated, 5 bytes
                /etc/hosts  generated, 44 bytes
                /etc/nsswitch.conf  generated, 40 bytes
                /etc/passwd  generated, 49 bytes
                /etc/resolv.conf  generated, 0 bytes
                /etc/ld.so.cache  read-only
                /etc/ssl/certs  read-only
                /.cove/cove  read-only from /opt/cove
                /.cove/bin/mcp  -> ../cove
                /.cove/bin/apt  -> ../cove
                /.cove/bin/apt-get  -> ../cove
                /.cove/bin/npm  -> ../cove
                /.cove/bin/pip  -> ../cove
                /.cove/bin/pip3  -> ../cove
                /proc  own processes only
                /dev/null  device
                /dev/zero  device
                /dev/full  device
                /dev/random  device
                /dev/urandom  device
                /dev/fd  -> /proc/self/fd
                /dev/stdin  -> /proc/self/fd/0
                /dev/stdout  -> /proc/self/fd/1
                /dev/stderr  -> /proc/self/fd/2
                /dev/shm  64 MiB (4096 files) tmpfs
                /tmp  64 MiB (4096 files) tmpfs
                /workspace  256 MiB (16384 files) tmpfs
                /run  empty
    environment COLUMNS HOME LANG LOGNAME MPLBACKEND MPLCONFIGDIR OMP_NUM_THREADS OPENBLAS_NUM_THREADS PATH TMPDIR TZ USER
    program     /.cove/cove runner in /workspace
    ");
}

#[test]
fn a_sandbox_whose_runner_answers_names_asks_it() {
    let spec = JailSpec { names: NameLookup::Runner, ..spec() };
    let text = explain(&spec, &facts(1000));
    let network =
        "network     none but its own loopback, where the runner answers names and every port is free to use\n";
    assert!(text.contains(network) && text.contains("/etc/nsswitch.conf  generated, 44 bytes"), "{text}");
    assert!(text.contains("/etc/resolv.conf  generated, 21 bytes"), "{text}");
}

#[test]
fn root_with_cgroup_v1_gives_each_sandbox_its_own_user() {
    let mut facts = facts(0);
    facts.cgroup =
        CgroupFacts::V1 { memory: "/cg/memory".into(), pids: "/cg/pids".into(), cpu: Some("/cg/cpu".into()) };
    let plan = plan(&JailSpec { limits: SandboxLimits { cpus: 0.5, ..spec().limits }, ..spec() }, &facts).unwrap();
    assert_eq!(plan.identity.outside, HostIds::OneOf { first: 0x7000_0000, count: 0x1_0000 });
    assert_eq!(plan.control.watchdog_millis, None);
    assert_eq!(plan.control.affinity, None);
    assert_eq!(plan.control.pids, 257, "the runner is one more");
}

#[test]
fn a_sandbox_has_a_part_of_what_the_kernel_counts_for_its_maker() {
    let limits = |facts: &HostFacts| -> Vec<String> {
        let limits = plan(&spec(), facts).unwrap().user_limits.into_iter();
        let rest = limits.filter(|limit| !limit.name.ends_with("_namespaces"));
        rest.map(|limit| format!("{} {}", limit.name.trim_start_matches("max_"), limit.value)).collect()
    };
    let none = ["fanotify_groups 0", "fanotify_marks 0"];
    assert_eq!(limits(&facts(0)), [&["inotify_instances 16", "inotify_watches 4096"], &none[..]].concat());
    assert_eq!(limits(&facts(1000)), [&["inotify_instances 4", "inotify_watches 4096"], &none[..]].concat());
    let old = HostFacts { user_limits: BTreeMap::new(), ..facts(1000) };
    assert_eq!(limits(&old), [""; 0]);
}

#[test]
fn an_ordinary_user_with_subordinate_ids_gives_one_to_each_sandbox() {
    let ids = SubordinateIds {
        first_user: 132_768,
        first_group: 132_768,
        count: 32766,
        newuidmap: "/usr/bin/newuidmap".into(),
        newgidmap: "/usr/bin/newgidmap".into(),
        claims: vec!["/run/user/1000/cove".into()],
    };
    let facts = HostFacts { subordinate: Ok(ids.clone()), ..facts(1000) };
    let with = plan(&spec(), &facts).unwrap();
    assert_eq!(with.identity.outside, HostIds::Subordinate { user: SandboxUser { uid: 1000, gid: 1000 }, ids });
    assert!(with.to_string().contains("on this machine one of 132768 to 165533 that no other sandbox has\n"), "{with}");
    assert!(with.to_string().contains("nofile 512"), "{with}");
    let cgroup = CgroupFacts::V2 { parent: "/cg".into(), cpu: true };
    let held_by_cgroup = plan(&spec(), &HostFacts { cgroup, ..facts.clone() }).unwrap().to_string();
    assert!(held_by_cgroup.contains("nofile 1024"), "{held_by_cgroup}");
    let facts = HostFacts { needs_own_id: Some("`/data` is mounted writable".into()), ..facts };
    let without = plan(&spec(), &facts).unwrap().to_string();
    assert!(without.contains("1000:1000 like your own programs, since `/data` is mounted writable\n"), "{without}");
    assert!(without.contains("nofile 512"), "{without}");
}

#[test]
fn root_of_a_container_uses_the_ids_that_the_container_has() {
    let mut facts = facts(0);
    facts.id_ranges = vec![(0, 65536)];
    let plan = plan(&spec(), &facts).unwrap();
    assert_eq!(plan.identity.outside, HostIds::OneOf { first: 32768, count: 32766 });
    facts.id_ranges = vec![(0, 1)];
    assert_eq!(super::plan(&spec(), &facts), Err(PlanError::NoIds));
}

#[test]
fn another_tree_is_the_root_except_for_folders_that_the_sandbox_replaces() {
    let mut facts = facts(1000);
    facts.top.insert("opt".into(), TopEntry::Directory);
    let plan = plan(&JailSpec { root: JailRoot::Tree("/srv/tree".into()), ..spec() }, &facts).unwrap();
    let bound: Vec<String> = plan
        .entries
        .iter()
        .filter_map(|entry| match entry {
            PlanEntry::Bind(bind) if bind.access == BindAccess::ReadOnly => {
                Some(format!("{} <- {}", bind.target.display(), bind.source.display()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(
        bound,
        [
            "/boot <- /srv/tree/boot",
            "/etc <- /srv/tree/etc",
            "/opt <- /srv/tree/opt",
            "/usr <- /srv/tree/usr",
            "/.cove/cove <- /opt/cove"
        ]
    );
}

#[test]
fn refuses_a_specification_that_it_cannot_enforce() {
    let half = JailSpec { limits: SandboxLimits { cpus: 0.5, ..spec().limits }, ..spec() };
    assert!(matches!(plan(&half, &facts(1000)), Err(PlanError::FractionOfACpu { .. })));
    let superuser = JailSpec { user: SandboxUser { uid: 0, gid: 1 }, ..spec() };
    assert!(matches!(plan(&superuser, &facts(1000)), Err(PlanError::Superuser(0))));
    let mut empty = facts(1000);
    empty.top.clear();
    assert!(matches!(plan(&spec(), &empty), Err(PlanError::NotARoot(_))));
}

#[test]
fn a_plan_survives_its_encoding_for_the_jail() {
    let plan = plan(&spec(), &facts(1000)).unwrap();
    let json = serde_json::to_vec(&plan).unwrap();
    assert_eq!(serde_json::from_slice::<JailPlan>(&json).unwrap(), plan);
    assert!(json.len() < 64 * 1024, "{} bytes", json.len());
}

#[test]
fn a_plan_has_no_variable_of_the_host() {
    let plan = plan(&spec(), &facts(1000)).unwrap();
    let names: Vec<&str> = plan.environment.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "COLUMNS",
            "HOME",
            "LANG",
            "LOGNAME",
            "MPLBACKEND",
            "MPLCONFIGDIR",
            "OMP_NUM_THREADS",
            "OPENBLAS_NUM_THREADS",
            "PATH",
            "TMPDIR",
            "TZ",
            "USER"
        ]
    );
}
