//! close_range(2): which descriptors reach the runner. Its standard input and output are the two directions of the
//! stream to the host, its standard error goes to the host's log, and there is no other.

use crate::report::{During, Step, StepFailure};
use crate::sys;

/// On entry 0 is the stream and 1 the jail's control socket, which must not reach the sandbox.
pub(crate) fn keep_stream_only() -> Result<(), StepFailure> {
    rustix::stdio::dup2_stdout(rustix::stdio::stdin())
        .during(Step::Descriptors, || "make the stream standard output".into())?;
    // Marked, not closed: until the runner is executed a failure must still be told.
    sys::close_on_exec_from(3).during(Step::Descriptors, || "close all other descriptors".into())
}
