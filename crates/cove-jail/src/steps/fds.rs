//! close_range(2): which descriptors the runner gets. Its standard input and output are the two directions of the
//! stream to the host, its standard error goes to the host's log, and it gets no other.

use crate::report::{JailStep, StepContext, StepFailure};
use crate::sys;

/// Makes the stream standard output too, and marks all other descriptors to be closed. On entry 0 is the stream and 1
/// is the jail's control socket, which must not reach the sandbox.
pub(crate) fn keep_stream_only() -> Result<(), StepFailure> {
    rustix::stdio::dup2_stdout(rustix::stdio::stdin())
        .during(JailStep::Descriptors, || "make the stream standard output".into())?;
    // Marked, not closed: until it executes the runner, the child must be able to report a failure.
    sys::close_on_exec_from(3).during(JailStep::Descriptors, || "close all other descriptors".into())
}
