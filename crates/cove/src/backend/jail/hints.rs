//! What a person can do about a machine that does not let a sandbox start, or not hold it well. The one home of these
//! lines: `cove run` shows them as hints, `cove doctor` as fixes.
//!
//! The cause is found by the step that failed, the kernel's answer and what the machine's own files say, never by the
//! text of a message.

use std::path::Path;

use cove_jail::probe::{ContainerKind, Machine};
use cove_jail::{Step, StepFailure};
use rustix::io::Errno;

use crate::backend::StartError;

/// Where nothing is set, distributions allow about as many.
const ENOUGH: u32 = 15_000;

pub(super) fn explain(failure: &StepFailure) -> StartError {
    let error = StartError::new(failure.to_string()).because(failure.cause.clone());
    // As far as its file can be found: the lines that name it are of use only then.
    let program = std::env::current_exe().unwrap_or_else(|_| "cove".into());
    let machine = Machine::look();
    match Obstacle::of(failure, &machine) {
        Some(obstacle) if obstacle.is_of_the_machine() && is_container(&machine) => error
            .with_hint(format!("{} (on the machine itself, not in this container)", obstacle.fix(&program))),
        Some(obstacle) => error.with_hint(obstacle.fix(&program)),
        None => error,
    }
}

/// For limits that are held by looking, because no cgroup is ours to make.
pub(crate) fn delegation(machine: &Machine) -> String {
    if is_container(machine) {
        // Its cgroups are not ours to divide, but they hold all that runs in it together.
        "bound the container itself, such as with `--memory 4g --pids-limit 1024 --cpus 2`, and the kernel holds all \
         sandboxes together to that"
    } else {
        "run it as `systemd-run --user --scope -p Delegate=yes cove …` or as root, and the kernel holds the limits"
    }
    .into()
}

/// A kind that is only guessed must not decide what is said.
fn is_container(machine: &Machine) -> bool {
    machine.container.as_ref().is_some_and(|found| found.sure)
}

/// Why a sandbox cannot be made here.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Obstacle {
    /// Ubuntu: user namespaces are powerless for programs without a profile.
    AppArmorNamespaces,
    /// Debian: only root may make them.
    RootOnly,
    /// The limit on a kind of namespace is 0.
    Closed(&'static str),
    /// The limit is not 0 here, but reached, or 0 in a namespace around this one.
    UsedUp,
    /// A filter on this process, such as Docker's own, answers in the kernel's place.
    Filter(Option<ContainerKind>),
    /// A profile on this process, such as Docker's own, forbids mounting.
    Profile(String),
    /// The kernel shows no fresh `/proc` to whoever sees only part of the old one.
    MaskedProc(Option<ContainerKind>),
    /// Root takes another way into a sandbox than others do, and in a container it lacks the power for it.
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

impl Obstacle {
    fn of(failure: &StepFailure, machine: &Machine) -> Option<Self> {
        let errno = failure.errno.map(Errno::from_raw_os_error)?;
        // A kind that is only guessed must not narrow down what is said.
        let container = machine.container.as_ref().filter(|found| found.sure).map(|found| found.kind);
        let ordinary = machine.user != 0;
        let profile = machine.apparmor_profile.clone();
        let apparmor = machine.namespaces.apparmor_only && ordinary && profile.is_none();
        Some(match (failure.step, errno) {
            (Step::Clone, Errno::PERM | Errno::ACCESS) => {
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
            // Filters that cannot look into the arguments of clone3(2) say that there is none.
            (Step::Clone, Errno::NOSYS) if machine.filtered => Self::Filter(container),
            (Step::Clone | Step::Namespaces, Errno::NOSPC | Errno::USERS) => {
                match machine.namespaces.closed.first() {
                    Some(kind) => Self::Closed(kind),
                    None => Self::UsedUp,
                }
            }
            (Step::Clone, Errno::INVAL) => Self::NoNamespaces,
            // AppArmor lets the namespace be made and takes its powers away: what fails is the first use of one.
            (Step::User | Step::Namespaces | Step::Network | Step::Mounts, Errno::PERM | Errno::ACCESS)
                if apparmor =>
            {
                Self::AppArmorNamespaces
            }
            // Podman's filter lets namespaces be made, but not used.
            (Step::User | Step::Namespaces | Step::Network, Errno::PERM) if machine.filtered => {
                Self::Filter(container)
            }
            (Step::User | Step::Namespaces | Step::Network, Errno::PERM | Errno::ACCESS) => Self::Forbidden,
            (Step::Mounts, Errno::PERM) if !ordinary && !machine.may_mount => Self::BareRoot(container),
            (Step::Mounts, Errno::ACCESS) if profile.is_some() => Self::Profile(profile?),
            (Step::Mounts, Errno::PERM) if !machine.masked_proc.is_empty() => Self::MaskedProc(container),
            (Step::Mounts, Errno::PERM | Errno::NOSYS) if machine.filtered => Self::Filter(container),
            (Step::Mounts, Errno::PERM | Errno::ACCESS) => Self::ForbiddenMount,
            (Step::Mounts, Errno::NOENT) => Self::SourceGone,
            (Step::Clone | Step::Mounts | Step::Descriptors, Errno::NOSYS) => Self::OldKernel,
            (Step::Execute, Errno::ACCESS) => Self::ClosedProgram,
            (_, Errno::NOMEM) => Self::NoMemory,
            // Nothing else refuses what a process does to itself in namespaces of its own.
            (_, Errno::PERM) if machine.filtered => Self::Filter(container),
            _ => return None,
        })
    }

    /// Whether the fix is a change to the machine: from inside a container it cannot be made.
    fn is_of_the_machine(&self) -> bool {
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
                 user.max_{kind}_namespaces={ENOUGH}`"
            ),
            Self::UsedUp => "no more namespaces may be made here; end some sandboxes, or raise \
                             `user.max_user_namespaces` with sysctl, on the machine itself if this is a container"
                .into(),
            Self::Filter(kind) => {
                format!("a system call filter on this process forbids namespaces; {}", without_filter(*kind))
            }
            Self::Profile(name) => format!(
                "the AppArmor profile `{name}` on this process forbids mounting; start the container with \
                 `--security-opt apparmor=unconfined`"
            ),
            Self::MaskedProc(kind) => {
                format!("parts of `/proc` are hidden, so the kernel shows no fresh one; {}", unmasked(*kind))
            }
            Self::BareRoot(kind) => format!(
                "root without the power to mount, as in containers, can make no sandbox, where an ordinary user can; {}, \
                 and {}",
                as_user(*kind),
                without_filter(*kind)
            ),
            Self::NoNamespaces => "this kernel was built without a kind of namespace that the sandbox needs; use one \
                                   with `CONFIG_USER_NS`, `CONFIG_PID_NS`, `CONFIG_NET_NS`, `CONFIG_IPC_NS` and \
                                   `CONFIG_UTS_NS`"
                .into(),
            Self::OldKernel => "this kernel is too old; Linux 5.12 or later is needed".into(),
            Self::Forbidden => "user namespaces are forbidden to this process, by a security module or because its root \
                                is not the machine's; start it outside a chroot and without that restriction"
                .into(),
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
    let text = format!(
        "abi <abi/4.0>,\\nprofile cove {} flags=(unconfined) {{\\n  userns,\\n}}\\n",
        program.display()
    );
    format!("printf '{text}' | sudo tee /etc/apparmor.d/cove && sudo apparmor_parser -r /etc/apparmor.d/cove")
}

fn as_user(kind: Option<ContainerKind>) -> &'static str {
    match kind {
        Some(ContainerKind::Docker | ContainerKind::Podman) => "use `--user 10001:10001`",
        Some(ContainerKind::Kubernetes) => "set `runAsUser: 10001` in the container's `securityContext`",
        Some(ContainerKind::Lxc | ContainerKind::Other) | None => "start it as one",
    }
}

fn without_filter(kind: Option<ContainerKind>) -> String {
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

fn unmasked(kind: Option<ContainerKind>) -> String {
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
    use cove_jail::probe::{Container, Namespaces};

    use super::*;

    #[track_caller]
    fn check(step: Step, errno: Errno, machine: &Machine, expected: Option<Obstacle>) {
        let errno = Some(errno.raw_os_error());
        let failure = StepFailure { step, action: "try".into(), errno, cause: "it failed".into() };
        assert_eq!(Obstacle::of(&failure, machine), expected);
    }

    fn user() -> Machine {
        Machine { user: 1000, ..Machine::default() }
    }

    fn docker() -> Machine {
        let container = Container { kind: ContainerKind::Docker, evidence: vec![], sure: true };
        Machine { filtered: true, container: Some(container), ..user() }
    }

    #[test]
    fn ubuntu() {
        let namespaces = Namespaces { apparmor_only: true, ..Namespaces::default() };
        let machine = Machine { namespaces, ..user() };
        for step in [Step::Clone, Step::User, Step::Namespaces, Step::Network, Step::Mounts] {
            check(step, Errno::PERM, &machine, Some(Obstacle::AppArmorNamespaces));
            check(step, Errno::ACCESS, &machine, Some(Obstacle::AppArmorNamespaces));
        }
        // The restriction is not for root, nor for a process that has a profile.
        check(Step::Clone, Errno::PERM, &Machine { user: 0, ..machine.clone() }, Some(Obstacle::Forbidden));
        let held = Machine { apparmor_profile: Some("mine".into()), ..machine.clone() };
        check(Step::Mounts, Errno::ACCESS, &held, Some(Obstacle::Profile("mine".into())));
        // A filter answers before AppArmor is asked.
        let filtered = Machine { filtered: true, ..machine };
        check(Step::Clone, Errno::PERM, &filtered, Some(Obstacle::Filter(None)));
    }

    #[test]
    fn debian_with_the_switch_off() {
        let namespaces = Namespaces { root_only: true, ..Namespaces::default() };
        check(Step::Clone, Errno::PERM, &Machine { namespaces, ..user() }, Some(Obstacle::RootOnly));
    }

    #[test]
    fn limits_on_namespaces() {
        check(Step::Clone, Errno::NOSPC, &user(), Some(Obstacle::UsedUp));
        check(Step::Clone, Errno::USERS, &user(), Some(Obstacle::UsedUp));
        let namespaces = Namespaces { closed: vec!["net"], ..Namespaces::default() };
        check(Step::Clone, Errno::NOSPC, &Machine { namespaces, ..user() }, Some(Obstacle::Closed("net")));
        // The last one is only made inside.
        let namespaces = Namespaces { closed: vec!["cgroup"], ..Namespaces::default() };
        let machine = Machine { namespaces, ..user() };
        check(Step::Namespaces, Errno::NOSPC, &machine, Some(Obstacle::Closed("cgroup")));
    }

    #[test]
    fn a_container_s_filter_and_its_masks_are_told_apart() {
        let filter = Obstacle::Filter(Some(ContainerKind::Docker));
        check(Step::Clone, Errno::PERM, &docker(), Some(filter.clone()));
        check(Step::Clone, Errno::NOSYS, &docker(), Some(filter.clone()));
        check(Step::Mounts, Errno::PERM, &docker(), Some(filter.clone()));
        let masked = Machine { masked_proc: vec!["/proc/sys".into()], ..docker() };
        let mask = Obstacle::MaskedProc(Some(ContainerKind::Docker));
        check(Step::Mounts, Errno::PERM, &masked, Some(mask.clone()));
        check(Step::Clone, Errno::PERM, &masked, Some(filter.clone()));
        assert_ne!(filter.fix(Path::new("/cove")), mask.fix(Path::new("/cove")));
        let profile = Machine { apparmor_profile: Some("docker-default".into()), ..docker() };
        check(Step::Mounts, Errno::ACCESS, &profile, Some(Obstacle::Profile("docker-default".into())));
    }

    #[test]
    fn podman_s_filter_lets_namespaces_be_made_but_not_used() {
        let container = Container { kind: ContainerKind::Podman, evidence: vec![], sure: true };
        let machine =
            Machine { container: Some(container), masked_proc: vec!["/proc/sys".into()], ..docker() };
        let filter = Obstacle::Filter(Some(ContainerKind::Podman));
        check(Step::Namespaces, Errno::PERM, &machine, Some(filter.clone()));
        check(Step::Pivot, Errno::PERM, &machine, Some(filter.clone()));
        check(Step::Pivot, Errno::PERM, &user(), None);
        let fix = filter.fix(Path::new("/cove"));
        assert!(fix.contains("seccomp=seccomp.json") && fix.contains("'unmask=/proc/*'"), "{fix}");
        // Without a filter it is something else.
        check(
            Step::Namespaces,
            Errno::PERM,
            &Machine { filtered: false, ..machine },
            Some(Obstacle::Forbidden),
        );
    }

    #[test]
    fn root_of_a_container_is_told_to_be_somebody_else() {
        let masked = Machine { user: 0, masked_proc: vec!["/proc/sys".into()], ..docker() };
        let bare = Obstacle::BareRoot(Some(ContainerKind::Docker));
        check(Step::Mounts, Errno::PERM, &masked, Some(bare.clone()));
        let fix = bare.fix(Path::new("/cove"));
        for part in ["--user 10001:10001", "seccomp=seccomp.json", "systempaths=unconfined"] {
            assert!(fix.contains(part), "{fix}");
        }
        let whole = Machine { may_mount: true, ..masked };
        check(Step::Mounts, Errno::PERM, &whole, Some(Obstacle::MaskedProc(Some(ContainerKind::Docker))));
    }

    #[test]
    fn who_cannot_divide_its_cgroups_bounds_what_holds_it() {
        assert!(delegation(&user()).contains("Delegate=yes"));
        assert!(delegation(&docker()).contains("`--memory 4g --pids-limit 1024 --cpus 2`"));
    }

    #[test]
    fn kernels() {
        check(Step::Clone, Errno::NOSYS, &user(), Some(Obstacle::OldKernel));
        check(Step::Mounts, Errno::NOSYS, &user(), Some(Obstacle::OldKernel));
        check(Step::Descriptors, Errno::NOSYS, &user(), Some(Obstacle::OldKernel));
        check(Step::Clone, Errno::INVAL, &user(), Some(Obstacle::NoNamespaces));
        check(Step::Seccomp, Errno::INVAL, &user(), None);
    }

    #[test]
    fn the_profile_is_one_line_for_a_shell() {
        let fix = Obstacle::AppArmorNamespaces.fix(Path::new("/opt/cove"));
        assert!(!fix.contains('\n'), "{fix}");
        assert!(fix.contains("profile cove /opt/cove flags=(unconfined) {\\n  userns,\\n}"), "{fix}");
        assert!(fix.contains("sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"), "{fix}");
    }
}
