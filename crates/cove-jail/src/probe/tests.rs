//! Probes of other machines, given as files.

use super::*;

/// Returns the probe of a machine whose files have this content.
fn machine(files: &[(&str, &str)]) -> MachineProbe {
    let root = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    MachineProbe::from_files(root.path(), ContainerVariables::default())
}

fn container(files: &[(&str, &str)]) -> Option<(ContainerKind, bool)> {
    machine(files).container.map(|container| (container.kind, container.sure))
}

const OVERLAY: &str = "\
601 512 0:49 / / rw,relatime - overlay overlay rw,lowerdir=/a
612 601 254:1 /docker/abc/hostname /etc/hostname rw - ext4 /dev/vda1 rw
";

#[test]
fn detects_containers_and_how_sure_that_is() {
    assert_eq!(container(&[("proc/self/cgroup", "0::/\n")]), None);
    // An image that became a machine's disk.
    assert_eq!(container(&[(".dockerenv", ""), ("proc/self/cgroup", "0::/\n")]), Some((ContainerKind::Docker, false)));
    assert_eq!(
        container(&[(".dockerenv", ""), ("proc/self/cgroup", "4:memory:/docker/0a1b2c\n")]),
        Some((ContainerKind::Docker, true))
    );
    assert_eq!(container(&[(".dockerenv", ""), ("proc/self/mountinfo", OVERLAY)]), Some((ContainerKind::Docker, true)));
    assert_eq!(container(&[("run/.containerenv", "")]), Some((ContainerKind::Podman, true)));
    assert_eq!(
        container(&[(".dockerenv", ""), ("proc/self/cgroup", "0::/kubepods.slice/kubepods-pod1.slice/cri-1.scope\n")]),
        Some((ContainerKind::Kubernetes, true))
    );
    assert_eq!(
        container(&[("proc/self/cgroup", "0::/lxc.payload.web/init.scope\n")]),
        Some((ContainerKind::Lxc, true))
    );
    assert_eq!(container(&[("run/systemd/container", "lxc\n")]), Some((ContainerKind::Lxc, true)));
    assert_eq!(container(&[("run/systemd/container", "systemd-nspawn\n")]), Some((ContainerKind::Other, true)));
    assert_eq!(container(&[("proc/self/mountinfo", OVERLAY)]), Some((ContainerKind::Other, false)));
}

#[test]
fn finds_forbidden_namespaces() {
    let machine = machine(&[
        ("proc/sys/user/max_user_namespaces", "0\n"),
        ("proc/sys/user/max_net_namespaces", "0\n"),
        ("proc/sys/user/max_pid_namespaces", "100\n"),
        ("proc/sys/kernel/unprivileged_userns_clone", "0\n"),
        ("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n"),
    ]);
    let expected =
        NamespaceLimits { most_user: Some(0), closed: vec!["user", "net"], root_only: true, apparmor_only: true };
    assert_eq!(machine.namespaces, expected);
}

#[test]
fn missing_files_forbid_nothing() {
    assert_eq!(machine(&[]).namespaces, NamespaceLimits::default());
    assert!(!machine(&[]).filtered);
    assert_eq!(machine(&[]).masked_proc, Vec::<PathBuf>::new());
}

#[test]
fn finds_the_filter_and_the_apparmor_profile_of_this_process() {
    let docker = machine(&[
        ("proc/self/status", "Name:\tcove\nSeccomp:\t2\nSeccomp_filters:\t1\n"),
        ("proc/self/attr/current", "docker-default (enforce)\n"),
    ]);
    assert!(docker.filtered);
    assert_eq!(docker.apparmor_profile.as_deref(), Some("docker-default"));
    let free = machine(&[
        ("proc/self/status", "Seccomp:\t0\n"),
        ("proc/self/attr/apparmor/current", "unconfined\n"),
        ("proc/self/attr/current", "unconfined_u:unconfined_r:unconfined_t:s0\n"),
    ]);
    assert!(!free.filtered);
    assert_eq!(free.apparmor_profile, None);
}

#[test]
fn finds_masks_over_proc() {
    let mounts = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
40 22 0:30 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw
41 22 0:21 /sys /proc/sys ro - proc proc rw
42 22 0:31 / /proc/acpi ro - tmpfs tmpfs ro
43 27 0:32 / /process ro - tmpfs tmpfs ro
";
    assert_eq!(masks_over_proc(mounts), [Path::new("/proc/sys"), Path::new("/proc/acpi")]);
    assert_eq!(masks_over_proc("22 27 0:21 / /proc ro,nosuid - proc proc rw\n"), [Path::new("/proc")]);
}

#[test]
fn finds_the_name_of_the_user() {
    let passwd = "root:x:0:0:root:/root:/bin/sh\ncove:x:999:995::/:/bin/false\n";
    let name_of = |user| MachineProbe { user, ..MachineProbe::default() }.with_user_name(passwd).user_name;
    assert_eq!(name_of(999).as_deref(), Some("cove"));
    assert_eq!(name_of(995), None);
}

#[test]
fn probes_this_machine() {
    let machine = MachineProbe::gather();
    assert!(!machine.kernel.is_empty() && !machine.architecture.is_empty());
}

#[test]
fn root_of_a_container_may_not_mount() {
    let with = |set: &str| machine(&[("proc/self/status", &format!("Name:\tcove\nCapEff:\t{set}\n"))]).may_mount;
    assert!(with("000001ffffffffff") && with("0000000000200000"));
    assert!(!with("00000000a80425fb") && !with("0000000000000000") && !with("nonsense"));
    assert!(!machine(&[]).may_mount);
}

#[test]
fn detects_a_container_by_an_environment_variable_alone() {
    let root = tempfile::tempdir().unwrap();
    for (value, kind) in [("podman", Some(ContainerKind::Podman)), ("lxc", Some(ContainerKind::Lxc)), ("", None)] {
        let variables = ContainerVariables { container: value.into(), ..ContainerVariables::default() };
        let found = MachineProbe::from_files(root.path(), variables).container;
        assert_eq!(found.map(|container| (container.kind, container.sure)), kind.map(|kind| (kind, true)));
    }
}

#[test]
fn finds_what_manages_cgroups() {
    let root = tempfile::tempdir().unwrap();
    let make = |path: &str| fs::create_dir_all(root.path().join(path)).unwrap();
    assert_eq!(detect_manager(root.path(), 1000), CgroupManager::Legacy);
    make("sys/fs/cgroup/cgroup.controllers");
    assert_eq!(detect_manager(root.path(), 1000), CgroupManager::Unified);
    make("run/systemd/system");
    make("run/user/1001/systemd");
    assert_eq!(detect_manager(root.path(), 1000), CgroupManager::Systemd);
    assert_eq!(detect_manager(root.path(), 1001), CgroupManager::UserSystemd);
}
