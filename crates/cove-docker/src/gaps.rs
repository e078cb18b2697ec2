//! What engines cannot enforce and the embedded sandbox can, each with the way to close it. `cove doctor` and `cove
//! explain` name those of the engine in use; a test compares the table with the attacks that succeed in containers.

use super::engine::{Engine, EngineFacts};
use cove_core::policy::Policy;

/// Something that an engine cannot enforce.
#[derive(Debug, Clone, Copy)]
pub struct EnforcementGap {
    /// One sentence.
    pub text: &'static str,
    /// What closes the gap.
    pub fix: &'static str,
    /// The attack cases that succeed because of it, by the names of their files. Empty if no attack shows it.
    pub cases: &'static [&'static str],
    pub scope: GapScope,
    /// The engines that may have it.
    pub engines: &'static [Engine],
    /// True if an engine with these facts has it for this policy.
    applies: fn(&EngineFacts, &Policy) -> bool,
}

/// The containers that have a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapScope {
    EveryContainer,
    /// Those of a Compose file only.
    ComposeProject,
}

impl EnforcementGap {
    /// For every container of both engines, until it is changed.
    const EVERYWHERE: Self = Self {
        text: "",
        fix: "use the embedded sandbox (`--backend jail`), which does not have these gaps",
        cases: &[],
        scope: GapScope::EveryContainer,
        engines: &[Engine::Docker, Engine::Podman],
        applies: |_, _| true,
    };
    /// For the containers of a Compose file, with both engines.
    const COMPOSE: Self = Self {
        fix: "use an image of one container (a Dockerfile, or `image` in `image.toml`), which does not have these gaps",
        scope: GapScope::ComposeProject,
        ..Self::EVERYWHERE
    };
}

/// All gaps. Those with the same way to close them are together, because `cove doctor` prints it once for them.
pub const ENFORCEMENT_GAPS: &[EnforcementGap] = &[
    EnforcementGap {
        text: "which runtime runs the container is not known",
        fix: "name one (`--runtime runc`)",
        applies: |facts, policy| facts.default_runtime.is_empty() && policy.runtime.is_none(),
        ..EnforcementGap::EVERYWHERE
    },
    EnforcementGap {
        text: "swap is not limited: the kernel does not count it",
        fix: "start the machine with `swapaccount=1`, or without swap",
        applies: |facts, _| !facts.limits_swap,
        ..EnforcementGap::EVERYWHERE
    },
    EnforcementGap {
        text: "what TCP connections hold is outside the limit on memory: with cgroups of version 1 no runtime limits it",
        fix: CGROUP_2,
        cases: &["A47-tcp-buffers"],
        applies: |facts, _| facts.cgroup == 1,
        ..EnforcementGap::EVERYWHERE
    },
    EnforcementGap {
        text: "a container killed for lack of memory looks like one that was killed from outside: Podman does not say \
               which on cgroup v1",
        fix: CGROUP_2,
        engines: &[Engine::Podman],
        applies: |facts, _| !facts.reports_oom_kills(),
        ..EnforcementGap::EVERYWHERE
    },
    EnforcementGap {
        text: "containers have no user namespace: the user of their code is the same one outside",
        fix: "use a rootless engine, or `userns-remap` in Docker's `daemon.json`",
        applies: |facts, _| !facts.rootless && !facts.maps_users,
        ..EnforcementGap::EVERYWHERE
    },
    EnforcementGap {
        text: "an image build that Docker's death interrupts leaves the container of its step, which never ran",
        fix: "remove it (`docker container prune`)",
        engines: &[Engine::Docker],
        ..EnforcementGap::EVERYWHERE
    },
    EnforcementGap {
        text: "two containers may by chance have the same user, and share what the kernel counts for each user",
        applies: |facts, _| facts.rootless || facts.maps_users,
        ..EnforcementGap::EVERYWHERE
    },
    EnforcementGap {
        text: "inotify is bounded for each user alone: no engine sets the limits of a namespace",
        ..EnforcementGap::EVERYWHERE
    },
    EnforcementGap {
        text: "file locks are not counted; they end with the container",
        cases: &["K24-file-locks", "K24-locks-of-threads"],
        ..EnforcementGap::EVERYWHERE
    },
    EnforcementGap {
        text: "`/proc` shows the machine's processors, memory and time, which programs of images ask for",
        cases: &["A25-kernel-info"],
        ..EnforcementGap::EVERYWHERE
    },
    EnforcementGap {
        text: "code can read the container's own cgroup, because the runner must",
        cases: &["A26-cgroup"],
        ..EnforcementGap::EVERYWHERE
    },
    EnforcementGap {
        text: "secure bits are not locked: that takes a capability that nothing in the container has",
        cases: &["A11-capabilities"],
        ..EnforcementGap::EVERYWHERE
    },
    EnforcementGap {
        text: "code can see that the runner exists: Docker mounts `/proc` without `hidepid`",
        cases: &["A02-proc-root"],
        engines: &[Engine::Docker],
        ..EnforcementGap::EVERYWHERE
    },
    EnforcementGap {
        text: "the number of files in `/workspace` and `/tmp` is not limited: Podman takes no such option",
        cases: &["A48-disk-fill", "A53-archive-bombs"],
        engines: &[Engine::Podman],
        ..EnforcementGap::EVERYWHERE
    },
    EnforcementGap {
        text: "the names in this machine's `/etc/hosts` are shown: Podman copies them by itself",
        engines: &[Engine::Podman],
        ..EnforcementGap::EVERYWHERE
    },
    EnforcementGap {
        text: "code can lower the score by which the kernel kills it first when the machine runs out of memory",
        applies: |facts, _| facts.rootless && !facts.closes_proc(),
        ..EnforcementGap::EVERYWHERE
    },
    EnforcementGap {
        text: "Compose: the files of its containers are writable, and the size of them and of its volumes is not limited",
        ..EnforcementGap::COMPOSE
    },
    EnforcementGap {
        text: "Compose: a megabyte of what each container says is kept on disk while it lives",
        ..EnforcementGap::COMPOSE
    },
    EnforcementGap {
        text: "Compose: of `/proc`, `/sys` and `/dev` only what Docker or Podman hides by itself is hidden",
        cases: &["A01-host-secrets", "A21-terminal", "A22-devices", "A24-sysctl", "A25-kernel-info", "A26-cgroup"],
        ..EnforcementGap::COMPOSE
    },
    EnforcementGap {
        text: "Compose: code sees the first process of its service and the variables of the file, and can end its own runner",
        cases: &["A03-host-processes", "A28-environment"],
        ..EnforcementGap::COMPOSE
    },
    EnforcementGap {
        text: "Compose: code can make ping sockets, in networks that lead nowhere",
        cases: &["A34-internet"],
        ..EnforcementGap::COMPOSE
    },
    EnforcementGap {
        text: "Compose: the number of files in `/dev/shm` is not limited",
        cases: &["A48-disk-fill"],
        ..EnforcementGap::COMPOSE
    },
    EnforcementGap {
        text: "Compose: `sendfile` is allowed, because nginx sends files with it; a cgroup counts what it holds",
        cases: &["A19-page-cache"],
        engines: &[Engine::Docker],
        ..EnforcementGap::COMPOSE
    },
    EnforcementGap {
        text: "Compose: services without code in them have the users of their images",
        ..EnforcementGap::COMPOSE
    },
    EnforcementGap {
        text: "Compose: when Cove is killed, code ends, and the other containers go on until the next Cove removes them",
        ..EnforcementGap::COMPOSE
    },
    EnforcementGap {
        text: "Compose: the filter of the other containers is Podman's own, which Compose cannot replace",
        engines: &[Engine::Podman],
        ..EnforcementGap::COMPOSE
    },
    EnforcementGap {
        text: "Compose: open files have Podman's own limit",
        engines: &[Engine::Podman],
        ..EnforcementGap::COMPOSE
    },
    EnforcementGap {
        text: "Compose: containers that have a network reach programs of this machine that listen on all its addresses",
        engines: &[Engine::Podman],
        ..EnforcementGap::COMPOSE
    },
    EnforcementGap {
        text: "Compose: `/workspace` can be written by every user in the main container",
        engines: &[Engine::Podman],
        ..EnforcementGap::COMPOSE
    },
];

const CGROUP_2: &str = "start the machine with cgroup v2 (`systemd.unified_cgroup_hierarchy=1`)";

/// Returns the gaps of an engine for containers of this policy.
pub(super) fn gaps_of(facts: &EngineFacts, policy: &Policy, scope: GapScope) -> Vec<&'static EnforcementGap> {
    let applies = |gap: &&EnforcementGap| {
        gap.scope == scope && gap.engines.contains(&facts.engine) && (gap.applies)(facts, policy)
    };
    ENFORCEMENT_GAPS.iter().filter(applies).collect()
}
