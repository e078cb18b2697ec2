//! The limits and the system call filter on this very process, where something else has made the sandbox and cannot be given it.

use std::io;

use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::set_no_new_privs;

use crate::report::{During, Step, StepFailure};
use crate::seccomp::{Arch, compile};
use crate::sys;

/// From here on this process and all it starts are held to the filter. For a process with one thread: another would stay
/// free of it.
pub fn confine() -> Result<(), StepFailure> {
    let action = || "install the system call filter".to_owned();
    let threads = std::fs::read_dir("/proc/self/task").during(Step::Seccomp, || "count threads".into())?;
    if threads.count() != 1 {
        let error = io::Error::other("the process has more than one thread");
        return Err(StepFailure::new(Step::Seccomp, action(), error));
    }
    // The kernel asks for it: a program that changes its user must not do so under a filter that it does not expect.
    set_no_new_privs(true).during(Step::Capabilities, || "give up new privileges".into())?;
    sys::install_filter(&compile(Arch::NATIVE)).during(Step::Seccomp, action)
}

/// From here on each process may have so many bytes of its own.
pub fn limit_data(bytes: u64) -> Result<(), StepFailure> {
    let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    setrlimit(Resource::Data, limit).during(Step::Rlimits, || "limit the memory of each process".into())
}
