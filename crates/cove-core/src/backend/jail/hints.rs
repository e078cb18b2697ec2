//! What a person can do if this machine does not let a sandbox start, or cannot enforce its limits well. All such
//! advice is here: `cove run` shows it as hints, `cove doctor` as fixes.
//!
//! The cause is derived from the step that failed, the kernel's error code and the machine's own files, never from the
//! text of a message.

use crate::error::Failure;
use std::path::Path;

use cove_jail::probe::{CgroupManager, ContainerKind, MachineProbe};
use cove_jail::{JailStep, StepFailure};
use rustix::io::Errno;

/// About the number that distributions allow by default.
const DEFAULT_NAMESPACE_LIMIT: u32 = 15_000;

pub(super) fn explain_failure(failure: &StepFailure) -> Failure {
    let error = Failure::operator(failure.to_string()).because(failure.cause.clone());
    // Some hints name the file of this program.
    let program = std::env::current_exe().unwrap_or_else(|_| "cove".into());
    let machine = MachineProbe::gather();
    match JailObstacle::from_failure(failure, &machine) {
        Some(obstacle) if obstacle.needs_machine_change() && is_known_container(&machine) => {
            error.with_hint(format!("{} (on the machine itself, not in this container)", obstacle.fix(&program)))
        }
        Some(obstacle) => error.with_hint(obstacle.fix(&program)),
        None => error,
    }
}

/// What the watchdog cannot do, and cgroups can.
pub const WATCHDOG_WEAKNESSES: &str = "it looks 10 to 200 times a second, so a burst of memory can pass the limit for a \
    moment; `--cpus` takes whole ones only";

/// Returns the hint for a machine where the watchdog enforces the limits, because Cove may not make cgroups: the lines
/// that give it one.
pub fn delegation_hint(machine: &MachineProbe) -> String {
    if is_known_container(machine) {
        // Cove may not divide the container's cgroup, but that cgroup limits everything in the container together.
        return "bound the container itself, such as with `--memory 4g --pids-limit 1024 --cpus 2`, and the kernel holds \
                all sandboxes together to that"
            .into();
    }
    let user = machine.user_name.clone().unwrap_or_else(|| machine.user.to_string());
    let lines = match machine.manager {
        CgroupManager::UserSystemd => "run it as `systemd-run --user --scope -p Delegate=yes cove …`".to_owned(),
        CgroupManager::Systemd => format!(
            "run `sudo loginctl enable-linger {user}` once, then start it as `XDG_RUNTIME_DIR=/run/user/{} systemd-run \
             --user --scope -p Delegate=yes cove …`",
            machine.user
        ),
        CgroupManager::Unified => format!(
            "run `sudo sh -c 'cd /sys/fs/cgroup && echo \"+cpu +memory +pids\" > cgroup.subtree_control && mkdir -p cove \
             && cd cove && chown {user} . cgroup.procs cgroup.subtree_control && echo $$ > cgroup.procs && exec su {user} \
             -c \"cove …\"'`"
        ),
        CgroupManager::Legacy => format!(
            "run `sudo sh -c 'for c in memory pids cpu; do d=/sys/fs/cgroup/$c/cove; mkdir -p $d && chown {user} $d && \
             echo $$ > $d/cgroup.procs; done; exec su {user} -c \"cove …\"'`"
        ),
    };
    format!("{lines}, or run it as root, and the kernel holds the limits")
}

/// True if this process certainly runs in a container. A guess must not decide the hint.
fn is_known_container(machine: &MachineProbe) -> bool {
    machine.container.as_ref().is_some_and(|found| found.sure)
}

/// Why this machine cannot make a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
enum JailObstacle {
    /// Ubuntu: programs without an AppArmor profile get no capabilities in user namespaces.
    AppArmorNamespaces,
    /// Debian: only root may make user namespaces.
    RootOnly,
    /// The limit on a kind of namespace is 0.
    Closed(&'static str),
    /// The limit is not 0 here, but it is reached, or it is 0 in an outer namespace.
    UsedUp,
    /// A seccomp filter on this process, such as Docker's, refuses the system call.
    Filter(Option<ContainerKind>),
    /// An AppArmor profile on this process, such as Docker's, forbids mounting.
    Profile(String),
    /// The kernel refuses to mount a new `/proc` for a process that sees only part of the old one.
    MaskedProc(Option<ContainerKind>),
    /// As root, the jail opens its mount sources outside the user namespace, which needs `CAP_SYS_ADMIN`. Root in a
    /// container usually lacks it.
    BareRoot(Option<ContainerKind>),
    NoNamespaces,
    OldKernel,
    Forbidden,
    ForbiddenMount,
    SourceGone,
    /// The user that the sandbox gets may not execute this program's file.
    ClosedProgram,
    NoMemory,
}

impl JailObstacle {
    fn from_failure(failure: &StepFailure, machine: &MachineProbe) -> Option<Self> {
        let errno = failure.errno.map(Errno::from_raw_os_error)?;
        // A guessed kind of container must not narrow down the hint.
        let container = machine.container.as_ref().filter(|found| found.sure).map(|found| found.kind);
        let ordinary = machine.user != 0;
        let profile = machine.apparmor_profile.clone();
        let apparmor = machine.namespaces.apparmor_only && ordinary && profile.is_none();
        Some(match (failure.step, errno) {
            (JailStep::Clone, Errno::PERM | Errno::ACCESS) => {
                if machine.namespaces.root_only && ordinary {
                    Self::RootOnly
                } else if machine.filtered {
                    Self::Filter(container)
                } else if apparmor {
                    Self::AppArmorNamespaces
                } else {
                    Self::Forbidden
                }
            }
            // Filters that cannot read the arguments of clone3(2) answer ENOSYS.
            (JailStep::Clone, Errno::NOSYS) if machine.filtered => Self::Filter(container),
            (JailStep::Clone | JailStep::Namespaces, Errno::NOSPC | Errno::USERS) => {
                match machine.namespaces.closed.first() {
                    Some(kind) => Self::Closed(kind),
                    None => Self::UsedUp,
                }
            }
            (JailStep::Clone, Errno::INVAL) => Self::NoNamespaces,
            // AppArmor allows the namespace but removes its capabilities, so the first use of one fails.
            (
                JailStep::User | JailStep::Namespaces | JailStep::Network | JailStep::Mounts,
                Errno::PERM | Errno::ACCESS,
            ) if apparmor => Self::AppArmorNamespaces,
            // Podman's filter allows making namespaces, but not using them.
            (JailStep::User | JailStep::Namespaces | JailStep::Network, Errno::PERM) if machine.filtered => {
                Self::Filter(container)
            }
            (JailStep::User | JailStep::Namespaces | JailStep::Network, Errno::PERM | Errno::ACCESS) => Self::Forbidden,
            (JailStep::Mounts, Errno::PERM) if !ordinary && !machine.may_mount => Self::BareRoot(container),
            (JailStep::Mounts, Errno::ACCESS) if profile.is_some() => Self::Profile(profile?),
            (JailStep::Mounts, Errno::PERM) if !machine.masked_proc.is_empty() => Self::MaskedProc(container),
            (JailStep::Mounts, Errno::PERM | Errno::NOSYS) if machine.filtered => Self::Filter(container),
            (JailStep::Mounts, Errno::PERM | Errno::ACCESS) => Self::ForbiddenMount,
            (JailStep::Mounts, Errno::NOENT) => Self::SourceGone,
            (JailStep::Clone | JailStep::Mounts | JailStep::Descriptors, Errno::NOSYS) => Self::OldKernel,
            (JailStep::Execute, Errno::ACCESS) => Self::ClosedProgram,
            (_, Errno::NOMEM) => Self::NoMemory,
            // Nothing else refuses operations of a process on itself in its own namespaces.
            (_, Errno::PERM) if machine.filtered => Self::Filter(container),
            _ => return None,
        })
    }

    /// True if the fix is a change to the machine, which cannot be made from inside a container.
    fn needs_machine_change(&self) -> bool {
        matches!(self, Self::AppArmorNamespaces | Self::RootOnly | Self::Closed(_))
    }

    fn fix(&self, program: &Path) -> String {
        match self {
            Self::AppArmorNamespaces => {
                let profile = apparmor_profile(program);
                format!(
                    "this machine lets only programs with an AppArmor profile use user namespaces; give this one its own \
                     with `{profile}`, or allow them to all programs with `sudo sysctl \
                     kernel.apparmor_restrict_unprivileged_userns=0`"
                )
            }
            Self::RootOnly => "only root may make user namespaces here; allow them to everyone with `sudo sysctl \
                               kernel.unprivileged_userns_clone=1`"
                .into(),
            Self::Closed(kind) => format!(
                "`user.max_{kind}_namespaces` is 0 here; allow some with `sudo sysctl \
                 user.max_{kind}_namespaces={DEFAULT_NAMESPACE_LIMIT}`"
            ),
            Self::UsedUp => "no more namespaces may be made here; end some sandboxes, or raise \
                             `user.max_user_namespaces` with sysctl, on the machine itself if this is a container"
                .into(),
            Self::Filter(kind) => {
                format!("a system call filter on this process forbids namespaces; {}", disable_filter_hint(*kind))
            }
            Self::Profile(name) => format!(
                "the AppArmor profile `{name}` on this process forbids mounting; start the container with \
                 `--security-opt apparmor=unconfined`"
            ),
            Self::MaskedProc(kind) => {
                format!("parts of `/proc` are hidden, so the kernel shows no fresh one; {}", unmask_proc_hint(*kind))
            }
            Self::BareRoot(kind) => format!(
                "root without the power to mount, as in containers, can make no sandbox, where an ordinary user can; {}, \
                 and {}",
                run_as_user_hint(*kind),
                disable_filter_hint(*kind)
            ),
            Self::NoNamespaces => "this kernel was built without a kind of namespace that the sandbox needs; use one \
                                   with `CONFIG_USER_NS`, `CONFIG_PID_NS`, `CONFIG_NET_NS`, `CONFIG_IPC_NS` and \
                                   `CONFIG_UTS_NS`"
                .into(),
            Self::OldKernel => "this kernel is too old; Linux 5.12 or later is needed".into(),
            Self::Forbidden => {
                "user namespaces are forbidden to this process, by a security module or because its root \
                                is not the machine's; start it outside a chroot and without that restriction"
                    .into()
            }
            Self::ForbiddenMount => "this machine hides parts of the file system; start it where `/` and `/proc` are \
                                     not restricted"
                .into(),
            Self::SourceGone => "what should be mounted is not there any more; check the path".into(),
            Self::ClosedProgram => format!(
                "the sandbox's user may not execute this program; let everyone with `chmod a+rx {}`",
                program.display()
            ),
            Self::NoMemory => "the machine is out of memory; end something, or lower the limits".into(),
        }
    }
}

/// One line that gives `program` alone the right to use user namespaces: see apparmor.d(5).
fn apparmor_profile(program: &Path) -> String {
    let text = format!("abi <abi/4.0>,\\nprofile cove {} flags=(unconfined) {{\\n  userns,\\n}}\\n", program.display());
    format!("printf '{text}' | sudo tee /etc/apparmor.d/cove && sudo apparmor_parser -r /etc/apparmor.d/cove")
}

fn run_as_user_hint(kind: Option<ContainerKind>) -> &'static str {
    match kind {
        Some(ContainerKind::Docker | ContainerKind::Podman) => "use `--user 10001:10001`",
        Some(ContainerKind::Kubernetes) => "set `runAsUser: 10001` in the container's `securityContext`",
        Some(ContainerKind::Lxc | ContainerKind::Other) | None => "start it as one",
    }
}

fn disable_filter_hint(kind: Option<ContainerKind>) -> String {
    match kind {
        Some(ContainerKind::Docker) => {
            "start the container with `--security-opt seccomp=seccomp.json --security-opt systempaths=unconfined`; \
             `cove explain --seccomp-profile > seccomp.json` writes that file"
        }
        Some(ContainerKind::Podman) => {
            "start the container with `--security-opt seccomp=seccomp.json --security-opt 'unmask=/proc/*'`; \
             `cove explain --seccomp-profile > seccomp.json` writes that file"
        }
        Some(ContainerKind::Kubernetes) => {
            "set `seccompProfile: {type: Unconfined}` and `procMount: Unmasked` in the container's `securityContext`, \
             and `hostUsers: false` in the pod"
        }
        Some(ContainerKind::Lxc) => "set `security.nesting=true` for the container",
        Some(ContainerKind::Other) | None => {
            "inside a container, start it with `--security-opt seccomp=seccomp.json`, a file that `cove explain \
             --seccomp-profile` prints; inside a systemd unit, set `RestrictNamespaces=no`"
        }
    }
    .into()
}

fn unmask_proc_hint(kind: Option<ContainerKind>) -> String {
    match kind {
        Some(ContainerKind::Podman) => "start the container with `--security-opt 'unmask=/proc/*'`",
        Some(ContainerKind::Kubernetes) => {
            "set `procMount: Unmasked` in the container's `securityContext`, and `hostUsers: false` in the pod"
        }
        Some(ContainerKind::Lxc) => "set `security.nesting=true` for the container",
        Some(ContainerKind::Docker | ContainerKind::Other) | None => {
            "inside a container, start it with `--security-opt systempaths=unconfined`; else unmount what lies over \
             `/proc`"
        }
    }
    .into()
}

#[cfg(test)]
mod tests {
    use cove_jail::probe::{DetectedContainer, NamespaceLimits};

    use super::*;

    #[track_caller]
    fn check(step: JailStep, errno: Errno, machine: &MachineProbe, expected: Option<JailObstacle>) {
        let errno = Some(errno.raw_os_error());
        let failure = StepFailure { step, action: "try".into(), errno, cause: "it failed".into() };
        assert_eq!(JailObstacle::from_failure(&failure, machine), expected);
    }

    fn user_machine() -> MachineProbe {
        MachineProbe { user: 1000, ..MachineProbe::default() }
    }

    fn docker_machine() -> MachineProbe {
        let container = DetectedContainer { kind: ContainerKind::Docker, evidence: vec![], sure: true };
        MachineProbe { filtered: true, container: Some(container), ..user_machine() }
    }

    #[test]
    fn detects_ubuntu_namespace_restriction() {
        let namespaces = NamespaceLimits { apparmor_only: true, ..NamespaceLimits::default() };
        let machine = MachineProbe { namespaces, ..user_machine() };
        for step in [JailStep::Clone, JailStep::User, JailStep::Namespaces, JailStep::Network, JailStep::Mounts] {
            check(step, Errno::PERM, &machine, Some(JailObstacle::AppArmorNamespaces));
            check(step, Errno::ACCESS, &machine, Some(JailObstacle::AppArmorNamespaces));
        }
        // The restriction is not for root, nor for a process that has a profile.
        check(
            JailStep::Clone,
            Errno::PERM,
            &MachineProbe { user: 0, ..machine.clone() },
            Some(JailObstacle::Forbidden),
        );
        let held = MachineProbe { apparmor_profile: Some("mine".into()), ..machine.clone() };
        check(JailStep::Mounts, Errno::ACCESS, &held, Some(JailObstacle::Profile("mine".into())));
        // A filter answers before AppArmor is asked.
        let filtered = MachineProbe { filtered: true, ..machine };
        check(JailStep::Clone, Errno::PERM, &filtered, Some(JailObstacle::Filter(None)));
    }

    #[test]
    fn detects_debian_namespace_switch() {
        let namespaces = NamespaceLimits { root_only: true, ..NamespaceLimits::default() };
        check(
            JailStep::Clone,
            Errno::PERM,
            &MachineProbe { namespaces, ..user_machine() },
            Some(JailObstacle::RootOnly),
        );
    }

    #[test]
    fn detects_namespace_limits() {
        check(JailStep::Clone, Errno::NOSPC, &user_machine(), Some(JailObstacle::UsedUp));
        check(JailStep::Clone, Errno::USERS, &user_machine(), Some(JailObstacle::UsedUp));
        let namespaces = NamespaceLimits { closed: vec!["net"], ..NamespaceLimits::default() };
        check(
            JailStep::Clone,
            Errno::NOSPC,
            &MachineProbe { namespaces, ..user_machine() },
            Some(JailObstacle::Closed("net")),
        );
        // The last one is only made inside.
        let namespaces = NamespaceLimits { closed: vec!["cgroup"], ..NamespaceLimits::default() };
        let machine = MachineProbe { namespaces, ..user_machine() };
        check(JailStep::Namespaces, Errno::NOSPC, &machine, Some(JailObstacle::Closed("cgroup")));
    }

    #[test]
    fn distinguishes_container_filter_from_masked_proc() {
        let filter = JailObstacle::Filter(Some(ContainerKind::Docker));
        check(JailStep::Clone, Errno::PERM, &docker_machine(), Some(filter.clone()));
        check(JailStep::Clone, Errno::NOSYS, &docker_machine(), Some(filter.clone()));
        check(JailStep::Mounts, Errno::PERM, &docker_machine(), Some(filter.clone()));
        let masked = MachineProbe { masked_proc: vec!["/proc/sys".into()], ..docker_machine() };
        let mask = JailObstacle::MaskedProc(Some(ContainerKind::Docker));
        check(JailStep::Mounts, Errno::PERM, &masked, Some(mask.clone()));
        check(JailStep::Clone, Errno::PERM, &masked, Some(filter.clone()));
        assert_ne!(filter.fix(Path::new("/cove")), mask.fix(Path::new("/cove")));
        let profile = MachineProbe { apparmor_profile: Some("docker-default".into()), ..docker_machine() };
        check(JailStep::Mounts, Errno::ACCESS, &profile, Some(JailObstacle::Profile("docker-default".into())));
    }

    #[test]
    fn detects_podman_filter_by_unusable_namespaces() {
        let container = DetectedContainer { kind: ContainerKind::Podman, evidence: vec![], sure: true };
        let machine =
            MachineProbe { container: Some(container), masked_proc: vec!["/proc/sys".into()], ..docker_machine() };
        let filter = JailObstacle::Filter(Some(ContainerKind::Podman));
        check(JailStep::Namespaces, Errno::PERM, &machine, Some(filter.clone()));
        check(JailStep::Pivot, Errno::PERM, &machine, Some(filter.clone()));
        check(JailStep::Pivot, Errno::PERM, &user_machine(), None);
        let fix = filter.fix(Path::new("/cove"));
        assert!(fix.contains("seccomp=seccomp.json") && fix.contains("'unmask=/proc/*'"), "{fix}");
        // Without a filter it is something else.
        check(
            JailStep::Namespaces,
            Errno::PERM,
            &MachineProbe { filtered: false, ..machine },
            Some(JailObstacle::Forbidden),
        );
    }

    #[test]
    fn advises_container_root_to_run_as_a_user() {
        let masked = MachineProbe { user: 0, masked_proc: vec!["/proc/sys".into()], ..docker_machine() };
        let bare = JailObstacle::BareRoot(Some(ContainerKind::Docker));
        check(JailStep::Mounts, Errno::PERM, &masked, Some(bare.clone()));
        let fix = bare.fix(Path::new("/cove"));
        for part in ["--user 10001:10001", "seccomp=seccomp.json", "systempaths=unconfined"] {
            assert!(fix.contains(part), "{fix}");
        }
        let whole = MachineProbe { may_mount: true, ..masked };
        check(JailStep::Mounts, Errno::PERM, &whole, Some(JailObstacle::MaskedProc(Some(ContainerKind::Docker))));
    }

    #[test]
    fn delegation_hint_fits_machine_or_container() {
        assert!(delegation_hint(&docker_machine()).contains("`--memory 4g --pids-limit 1024 --cpus 2`"));
        let hint =
            |manager| delegation_hint(&MachineProbe { manager, user_name: Some("ada".into()), ..user_machine() });
        insta::assert_snapshot!(hint(CgroupManager::UserSystemd), @"run it as `systemd-run --user --scope -p Delegate=yes cove …`, or run it as root, and the kernel holds the limits");
        insta::assert_snapshot!(hint(CgroupManager::Systemd), @"run `sudo loginctl enable-linger ada` once, then start it as `XDG_RUNTIME_DIR=/run/user/1000 systemd-run --user --scope -p Delegate=yes cove …`, or run it as root, and the kernel holds the limits");
        insta::assert_snapshot!(hint(CgroupManager::Unified), @r#"run `sudo sh -c 'cd /sys/fs/cgroup && echo "+cpu +memory +pids" > cgroup.subtree_control && mkdir -p cove && cd cove && chown ada . cgroup.procs cgroup.subtree_control && echo $$ > cgroup.procs && exec su ada -c "cove …"'`, or run it as root, and the kernel holds the limits"#);
        insta::assert_snapshot!(hint(CgroupManager::Legacy), @r#"run `sudo sh -c 'for c in memory pids cpu; do d=/sys/fs/cgroup/$c/cove; mkdir -p $d && chown ada $d && echo $$ > $d/cgroup.procs; done; exec su ada -c "cove …"'`, or run it as root, and the kernel holds the limits"#);
    }

    #[test]
    fn detects_kernels_without_needed_features() {
        check(JailStep::Clone, Errno::NOSYS, &user_machine(), Some(JailObstacle::OldKernel));
        check(JailStep::Mounts, Errno::NOSYS, &user_machine(), Some(JailObstacle::OldKernel));
        check(JailStep::Descriptors, Errno::NOSYS, &user_machine(), Some(JailObstacle::OldKernel));
        check(JailStep::Clone, Errno::INVAL, &user_machine(), Some(JailObstacle::NoNamespaces));
        check(JailStep::Seccomp, Errno::INVAL, &user_machine(), None);
    }

    #[test]
    fn apparmor_profile_is_one_shell_line() {
        let fix = JailObstacle::AppArmorNamespaces.fix(Path::new("/opt/cove"));
        assert!(!fix.contains('\n'), "{fix}");
        assert!(fix.contains("profile cove /opt/cove flags=(unconfined) {\\n  userns,\\n}"), "{fix}");
        assert!(fix.contains("sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"), "{fix}");
    }
}
