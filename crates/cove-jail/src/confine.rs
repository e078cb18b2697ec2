//! Applies the system call filter and a memory limit to this very process. For containers: an engine has made the
//! sandbox, and cannot set these itself.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::set_no_new_privs;

use crate::guest::NODE_CODE_RANGE;
use crate::report::{JailStep, StepContext, StepFailure};
use crate::seccomp::{Arch, compile};
use crate::sys;

/// Holds this process and everything it starts to the system call filter, from here on.
///
/// Fails if the process has more than one thread, because the filter would not hold the others, or if the kernel
/// refuses.
pub fn confine() -> Result<(), StepFailure> {
    let action = || "install the system call filter".to_owned();
    let threads = std::fs::read_dir("/proc/self/task").during(JailStep::Seccomp, || "count threads".into())?;
    if threads.count() != 1 {
        let error = io::Error::other("the process has more than one thread");
        return Err(StepFailure::new(JailStep::Seccomp, action(), error));
    }
    // The kernel requires it: a setuid program must not run under a filter that it does not expect.
    set_no_new_privs(true).during(JailStep::Capabilities, || "give up new privileges".into())?;
    sys::install_filter(&compile(Arch::NATIVE)).during(JailStep::Seccomp, action)
}

/// Keeps this process from leaving a core file with what it knows, and from being handed to the `core_pattern` program.
/// Programs that it starts may raise the limit again. Nothing happens if the hard limit is 0, which only root can raise.
pub fn forbid_own_core_files() {
    let now = getrlimit(Resource::Core);
    // 1 and not 0: see `guest::rlimits`.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(1), maximum: now.maximum });
}

/// The same for this process and everything that it starts, for good. An engine may have set the limit already.
pub fn forbid_core_files() {
    let maximum = getrlimit(Resource::Core).maximum.map_or(1, |maximum| maximum.min(1));
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(maximum), maximum: Some(maximum) });
}

/// Limits the data of each process, this one included, to `bytes` from here on. The runner can add `NODE_CODE_RANGE` for
/// a process. Fails if the kernel refuses.
pub fn limit_data(bytes: u64) -> Result<(), StepFailure> {
    let wanted = bytes.saturating_add(NODE_CODE_RANGE);
    // A hard limit that is already lower stays, because raising it takes a privilege.
    let maximum = getrlimit(Resource::Data).maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let limit = Rlimit { current: Some(bytes.min(maximum)), maximum: Some(maximum) };
    setrlimit(Resource::Data, limit).during(JailStep::Rlimits, || "limit the memory of each process".into())
}
