//! The jail: Cove's embedded sandbox, made of Linux namespaces. It needs no daemon and no root.
//!
//! `plan` turns a specification and the facts about this machine into plain data, without any effect. `enter` is the
//! role that a freshly executed copy of the program plays to carry out a plan. `facts` looks at the machine for `plan`.
//! `watch` stays outside the sandbox until it ends. `guest` says what the inside of every sandbox is like, whichever
//! backend makes it. `probe` is for people: it finds out why a machine does not let a sandbox start.
//!
//! This is the only crate with unsafe code, and all of it is in `sys`. It must not know what a session, a cell or a
//! frame is: it starts one program in a sandbox and reports how that program ended.

mod confine;
pub mod enter;
pub mod facts;
pub mod guest;
pub mod meminfo;
pub mod plan;
pub mod probe;
pub mod report;
pub mod seccomp;
mod steps;
mod sys;
mod watch;

pub use confine::{confine, forbid_core_files, forbid_own_core_files, limit_data};
pub use facts::{HostFacts, JailRoot};
pub use plan::{JailPlan, JailSpec, PlanError, plan};
pub use report::{JailEvent, JailRequest, JailStep, MemoryKiller, StepFailure};
pub use steps::rlimit::limit_processes;

/// Makes this process look up host names without any module of the system. Must be called while the
/// process has one thread.
pub fn use_built_in_name_lookups() -> std::io::Result<()> {
    sys::use_built_in_name_lookups()
}

/// Prepares the cgroup that this process is in for sandboxes, if it was delegated to this user. A host calls it before it
/// makes its first plan. Returns whether it did: else plans use what is there, or a watchdog.
pub fn divide_delegated_cgroup() -> bool {
    facts::CgroupFacts::undivided().is_some_and(|own| steps::cgroup::divide(&own).is_ok())
}

/// Removes the cgroups of sandboxes whose jail process was killed before it could clean up. Cheap, and safe beside live
/// sandboxes. Returns how many folders it removed.
pub fn sweep() -> usize {
    steps::cgroup::sweep(&facts::CgroupFacts::gather())
}
