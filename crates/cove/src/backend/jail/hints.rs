//! What a person can do about a step that failed. The step and the kernel's answer decide, never the text of a message.

use cove_jail::{Step, StepFailure};

use crate::backend::StartError;

pub(super) fn explain(failure: &StepFailure) -> StartError {
    let error = StartError::new(failure.to_string()).because(failure.cause.clone());
    match hint(failure) {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

fn hint(failure: &StepFailure) -> Option<String> {
    let errno = failure.errno.map(rustix::io::Errno::from_raw_os_error);
    use rustix::io::Errno;
    Some(match (failure.step, errno) {
        (Step::Clone | Step::User | Step::Namespaces, Some(Errno::PERM | Errno::ACCESS)) => {
            if std::path::Path::new("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").exists() {
                "this machine lets only programs with an AppArmor profile make user namespaces; allow them with \
                 `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`"
                    .into()
            } else {
                "user namespaces are forbidden here; inside a container, start it with \
                 `--security-opt seccomp=unconfined`, else allow them with `sudo sysctl \
                 kernel.unprivileged_userns_clone=1`"
                    .into()
            }
        }
        (Step::Clone, Some(Errno::NOSPC | Errno::USERS)) => {
            "no more namespaces can be made; raise `sysctl user.max_user_namespaces`, or end some sandboxes"
                .into()
        }
        (Step::Mounts, Some(Errno::PERM)) => {
            "this machine hides parts of `/proc` or of the file system; inside a container, start it with \
             `--security-opt systempaths=unconfined`"
                .into()
        }
        (Step::Mounts, Some(Errno::NOENT)) => {
            "what should be mounted is not there any more; check the path".into()
        }
        (Step::Mounts | Step::Descriptors, Some(Errno::NOSYS)) => {
            "this kernel is too old; Linux 5.12 or later is needed".into()
        }
        (_, Some(Errno::NOMEM)) => "the machine is out of memory; end something, or lower the limits".into(),
        _ => return None,
    })
}
