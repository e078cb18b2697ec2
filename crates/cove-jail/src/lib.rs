//! The jail: Cove's embedded sandbox, made of Linux namespaces. It needs no daemon and no root.
//!
//! `plan` turns what is wanted and what this machine allows into plain data, without any effect. `enter` is the role
//! that a freshly executed copy of the program plays to carry a plan out. Between them stand `facts`, which looks at
//! the machine, and `watch`, which stays outside the sandbox and sees it through to its end. `probe` is for people: it
//! tells why a machine does not let a sandbox start.
//!
//! This is the only crate with unsafe code, and all of it is in `sys`. It must not know what a session, a cell or a
//! frame is: it starts one program in a closed room and says how that program ended.

mod confine;
pub mod enter;
pub mod facts;
pub mod plan;
pub mod probe;
pub mod report;
pub mod seccomp;
mod steps;
mod sys;
mod watch;

pub use confine::{confine, limit_data};
pub use facts::HostFacts;
pub use plan::{CannotEnforce, Plan, Spec, plan};
pub use report::{Event, OutOfMemory, Request, Step, StepFailure};

/// Removes the cgroups of sandboxes whose jail process was killed before it could. Cheap, and safe beside live ones.
pub fn sweep() -> usize {
    steps::cgroup::sweep(&facts::CgroupFacts::gather())
}
