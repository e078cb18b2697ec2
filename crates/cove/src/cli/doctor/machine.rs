//! Describes this machine. Nothing here fails: the check that a restriction breaks reports it.

use cove_jail::probe::{DetectedContainer, MachineProbe};

use super::report::{DoctorCheck, ReportSection};

pub(super) fn machine_checks(machine: &MachineProbe) -> Vec<DoctorCheck> {
    let check = |name| ReportSection::Machine.check(name);
    let mut checks = vec![
        check("kernel").ok(format!("Linux {} on {}", machine.kernel, machine.architecture)),
        check("user").ok(match &machine.user_name {
            Some(name) => format!("{name} ({})", machine.user),
            None => machine.user.to_string(),
        }),
        match &machine.container {
            None => check("container").ok("none seen"),
            Some(container) => check("container").note(describe_container(container)),
        },
        namespace_check(machine),
        match machine.landlock {
            Some(version) => check("landlock").ok(format!("ABI {version}")),
            None => check("landlock").note("none in this kernel; the mounts stand alone"),
        },
    ];
    if let Some(reason) = &machine.shared_id {
        let name = machine.user_name.clone().unwrap_or_else(|| machine.user.to_string());
        checks.push(check("sandbox users").note(format!("sandboxes have your own user id, since {reason}")).fix(
            format!(
                "as root: `apt install uidmap` (`shadow-utils` elsewhere), then `usermod --add-subuids 100000-165535 \
             --add-subgids 100000-165535 {name}` with a range that is free; else code can use up what the kernel \
             counts for your user"
            ),
        ));
    }
    checks.extend(core_check(machine));
    if machine.filtered {
        checks.push(check("filter").note("this process is under a system call filter itself"));
    }
    if let Some(profile) = &machine.apparmor_profile {
        checks.push(check("apparmor").note(format!("this process is held by the profile `{profile}`")));
    }
    if !machine.masked_proc.is_empty() {
        let paths: Vec<String> = machine.masked_proc.iter().map(|path| path.display().to_string()).collect();
        checks.push(check("proc").note(format!("masked: {}", paths.join(" "))));
    }
    checks
}

/// Reports a crash handler that a crash in a sandbox would reach in spite of the limit on core files.
fn core_check(machine: &MachineProbe) -> Option<DoctorCheck> {
    let check = ReportSection::Machine.check("core files");
    match machine.core_pattern.chars().next()? {
        '|' if machine.core_limit == Some(0) && machine.user != 0 => Some(
            check
                .note("a crash in a sandbox starts the program of `kernel.core_pattern` as root, outside")
                .fix("raise the hard limit on core files above 0 (`hard core 1` in `/etc/security/limits.conf`)"),
        ),
        '@' => Some(
            check.note("the kernel connects to the socket of `kernel.core_pattern` for a crash in a sandbox too").fix(
                "let `kernel.core_pattern` name a file or a program (`|`): the limit on core files does not stop a socket",
            ),
        ),
        _ => None,
    }
}

fn describe_container(container: &DetectedContainer) -> String {
    let kind = container.kind.name();
    let evidence = container.evidence.join(", ");
    if container.sure {
        format!("{kind}: {evidence}")
    } else {
        format!("perhaps {kind}: {evidence}, and nothing else says so")
    }
}

fn namespace_check(machine: &MachineProbe) -> DoctorCheck {
    let check = ReportSection::Machine.check("user namespaces");
    let allowed = &machine.namespaces;
    if let Some(kind) = allowed.closed.first() {
        check.note(format!("closed: `user.max_{kind}_namespaces` is 0"))
    } else if allowed.root_only {
        check.note("for root only: `kernel.unprivileged_userns_clone` is 0")
    } else if allowed.apparmor_only {
        check.note("for programs with an AppArmor profile only: `kernel.apparmor_restrict_unprivileged_userns` is set")
    } else {
        match allowed.most_user {
            Some(most) => check.ok(format!("allowed, at most {most}")),
            None => check.note("this kernel does not say whether it has any"),
        }
    }
}
